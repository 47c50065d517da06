"""The way of a small publish, in one piece: from the receive buffer into a batch, and back as a reply.

A request that says `Publish` in postcard, names its partition and wants nothing unusual is put into the batch of its
partition where it lies, without an object for it; all others, and whatever is odd about a request, are left to the
ordinary way, which knows every case and every refusal. Both ways must end alike, and tests hold them against each
other. There is no twin in Python: without this the ordinary way takes everything.

`Express` knows nothing about logs. `find` says which partition takes plain records, `append` appends the batch of a
turn and later calls what it was given with the first offset or an error, as `Publisher` does.
Invariant: what was taken is answered once, in order on its line, unless the line is lost.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from rivven.server._lines cimport SHORT_BYTES_MAX, Line, Taker

from rivven.record import BatchBuilder, complete

cdef enum:
    LENGTH_BYTES = 4
    HEAD_BYTES = 5
    POSTCARD = 0
    PUBLISH = 4
    PUBLISHED = 3
    OVERHEAD_BYTES = 40  # as `broker.publish` counts a record
    BATCH_HEADER_BYTES = 61
    FRAME_BYTES_MAX = 4000


cdef inline uint32_t load32(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline void store32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0], at[1], at[2], at[3] = value >> 24, <uint8_t>(value >> 16), <uint8_t>(value >> 8), <uint8_t>value


cdef inline const uint8_t *varint(const uint8_t *at, const uint8_t *end, uint32_t *value) noexcept nogil:
    """A number of at most 28 bits; NULL where there is none, or more of it."""
    cdef uint32_t found = 0
    cdef int shift = 0
    while at < end and shift < 28:
        found |= <uint32_t>(at[0] & 0x7F) << shift
        if at[0] < 0x80:
            value[0] = found
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline uint8_t *put_varint(uint8_t *at, uint64_t value) noexcept nogil:
    while value > 0x7F:
        at[0] = <uint8_t>(value & 0x7F | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


assert LENGTH_BYTES + HEAD_BYTES + 1 + 10 + 5 <= SHORT_BYTES_MAX, "a reply fits into its slot"


cdef class Target:
    """A partition, and what was published to it in this turn."""

    cdef object log, builder
    cdef int64_t bytes_max, records_max, size_bytes
    cdef uint32_t partition
    cdef Waiters waiters


cdef class Waiters:
    """Who wants to hear what became of a batch, record by record. Called once, with its first offset or an error."""

    cdef Express express
    cdef uint32_t partition
    cdef list lines
    cdef list numbers
    cdef list correlation_ids
    cdef list begun
    cdef int64_t request_bytes
    cdef int64_t latest_us

    def __cinit__(self, Express express, uint32_t partition):
        self.express = express
        self.partition = partition
        self.lines = []
        self.numbers = []
        self.correlation_ids = []
        self.begun = []

    cdef int add(self, Line line, uint32_t correlation_id, int64_t begun_us, Py_ssize_t request_bytes) except -1:
        if begun_us != self.latest_us:
            self.latest_us = begun_us
            self.begun.append((begun_us, len(self.lines)))
        self.lines.append(line)
        self.numbers.append(line.expect())
        self.correlation_ids.append(correlation_id)
        self.request_bytes += request_bytes
        return 0

    def __call__(self, first, error):
        cdef Express express = self.express
        cdef Line line
        cdef Py_ssize_t index, count = len(self.lines)
        cdef uint64_t offset
        express.inflight_bytes -= self.request_bytes
        if error is not None:
            express.failed(count)
            for index in range(count):
                line = self.lines[index]
                line.replied_with(self.numbers[index], express.refuse(self.correlation_ids[index], error))
        else:
            offset = first
            for index in range(count):
                line = self.lines[index]
                reply(line, self.numbers[index], self.correlation_ids[index], offset, self.partition)
                offset += 1
        express.observe(self.begun, count)
        self.lines = None


cdef int reply(Line line, uint64_t number, uint32_t correlation_id, uint64_t offset, uint32_t partition) except -1:
    cdef uint8_t *begin = line.place(number)
    cdef uint8_t *at = begin + LENGTH_BYTES
    at[0] = POSTCARD
    store32(at + 1, correlation_id)
    at[HEAD_BYTES] = PUBLISHED
    at = put_varint(at + HEAD_BYTES + 1, offset)
    at = put_varint(at, partition)
    store32(begin, <uint32_t>(at - begin - LENGTH_BYTES))
    return line.replied(number, at - begin)


cdef class Express(Taker):
    cdef object find, append, refuse, observe, failed, now_ms
    cdef dict targets
    cdef list begun
    cdef int64_t stamp_ms
    cdef Target latest
    cdef bytes latest_topic
    cdef uint32_t frame_bytes_max
    cdef public int64_t inflight_bytes_max
    cdef readonly int64_t inflight_bytes

    def __init__(self, *, find, append, refuse, observe, failed, now_ms, uint32_t frame_bytes_max):
        self.find = find
        self.append = append
        self.refuse = refuse
        self.observe = observe
        self.failed = failed
        self.now_ms = now_ms
        self.frame_bytes_max = frame_bytes_max
        self.targets = {}
        self.begun = []

    def forget(self):
        """Topics have changed: ask again for every partition."""
        self.targets.clear()
        self.latest = None

    cdef Py_ssize_t take(self, Line line, const uint8_t *data, Py_ssize_t length) except -1:
        cdef Py_ssize_t taken = 0
        cdef uint32_t frame_bytes, topic_bytes, partition, value_bytes
        cdef uint32_t key_bytes = 0
        cdef const uint8_t *at
        cdef const uint8_t *end
        cdef const uint8_t *topic
        cdef const uint8_t *key
        cdef Target target
        if not self.begun:
            self.stamp_ms = self.now_ms()
        while length - taken >= LENGTH_BYTES + HEAD_BYTES + 1:
            frame_bytes = load32(data + taken)
            if frame_bytes > self.frame_bytes_max or frame_bytes > length - taken - LENGTH_BYTES:
                break
            at = data + taken + LENGTH_BYTES
            end = at + frame_bytes
            if frame_bytes < HEAD_BYTES + 6 or at[0] != POSTCARD or at[HEAD_BYTES] != PUBLISH:
                break
            topic = varint(at + HEAD_BYTES + 1, end, &topic_bytes)
            if topic == NULL or topic_bytes >= end - topic or topic[topic_bytes] != 1:
                break  # no topic, or no partition
            at = varint(topic + topic_bytes + 1, end, &partition)
            if at == NULL or at >= end or at[0] > 1:
                break
            key, key_bytes = NULL, 0
            if at[0] == 1:
                key = varint(at + 1, end, &key_bytes)
                if key == NULL or key_bytes >= end - key:
                    break
                at = key + key_bytes
            else:
                at += 1
            at = varint(at, end, &value_bytes)
            if at == NULL or <Py_ssize_t>value_bytes + 1 != end - at or at[value_bytes] != 0:
                break  # a value that ends elsewhere, or an epoch
            if self.inflight_bytes + frame_bytes > self.inflight_bytes_max:
                break
            target = self.target(topic, topic_bytes, partition)
            if target is None or not self.fits(target, <int64_t>value_bytes + key_bytes):
                break
            if line.allowance is not None and not line.allowance.has_one(line.seen_us):
                break
            self.put(
                target,
                None if key == NULL else PyBytes_FromStringAndSize(<const char *>key, key_bytes),
                PyBytes_FromStringAndSize(<const char *>at, value_bytes),
            )
            target.waiters.add(line, load32(data + taken + LENGTH_BYTES + 1), line.seen_us, frame_bytes)
            self.inflight_bytes += frame_bytes
            taken += LENGTH_BYTES + frame_bytes
        return taken

    cdef bint begins(self, const uint8_t *data, Py_ssize_t length) noexcept:
        cdef uint32_t frame_bytes
        if length < LENGTH_BYTES:
            return True
        frame_bytes = load32(data)
        if frame_bytes > FRAME_BYTES_MAX or frame_bytes <= length - LENGTH_BYTES:
            return False  # too long to wait for it here, or whole and still not taken
        if length > LENGTH_BYTES and data[LENGTH_BYTES] != POSTCARD:
            return False
        return length <= LENGTH_BYTES + HEAD_BYTES or data[LENGTH_BYTES + HEAD_BYTES] == PUBLISH

    cdef Target target(self, const uint8_t *topic, uint32_t topic_bytes, uint32_t partition):
        """Where plain records of this partition go; None if it takes none."""
        cdef bytes name = self.latest_topic
        cdef Target found
        if (
            self.latest is not None
            and self.latest.partition == partition
            and PyBytes_GET_SIZE(name) == topic_bytes
            and memcmp(PyBytes_AS_STRING(name), topic, topic_bytes) == 0
        ):
            return self.latest
        name = PyBytes_FromStringAndSize(<const char *>topic, topic_bytes)
        known = (name, partition)
        found = self.targets.get(known)
        if found is None:
            plain = self.find(name, partition)
            if plain is None:
                return None
            found = Target.__new__(Target)
            found.log, found.bytes_max, found.records_max = plain
            found.partition = partition
            found.builder = BatchBuilder()
            self.targets[known] = found
        self.latest, self.latest_topic = found, name
        return found

    cdef bint fits(self, Target target, int64_t payload_bytes) except -1:
        """Whether the partition takes a record of this size; what does not fit beside it is passed on first."""
        cdef int64_t size_bytes = payload_bytes + OVERHEAD_BYTES
        if size_bytes > target.bytes_max - BATCH_HEADER_BYTES:
            return False
        if target.waiters is not None and (
            target.size_bytes + size_bytes > target.bytes_max - BATCH_HEADER_BYTES
            or len(target.waiters.lines) >= target.records_max
        ):
            self.begun.remove(target)
            self.pass_on(target)
        if target.waiters is None:
            target.waiters = Waiters(self, target.partition)
            self.begun.append(target)
        target.size_bytes += size_bytes
        return True

    cdef int put(self, Target target, bytes key, bytes value) except -1:
        target.builder.put(self.stamp_ms, key, value, (), 0)
        return 0

    def finish(self):
        """The turn is over: pass on what was taken."""
        cdef Target target
        cdef list begun = self.begun
        if begun:
            self.begun = []
            for target in begun:
                self.pass_on(target)

    cdef int pass_on(self, Target target) except -1:
        cdef Waiters waiters = target.waiters
        target.waiters, target.size_bytes = None, 0
        self.append(target.log, complete(target.builder.take()), waiters, len(waiters.lines))
        return 0

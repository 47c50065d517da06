"""The way of most of what is published, in one piece: from the receive buffer to the log, and back as a reply.

A request that says `Publish` in postcard, names its partition and wants nothing unusual is put into the batch of its
partition where it lies, without an object for it. Parcels, which are requests with whole batches for one partition, are
laid end to end, and at the end of the turn each partition gets its own in one piece; one that is part of a transaction
is passed on at once. All others, and whatever is odd about a request, are left to the ordinary way, which knows every case
and every refusal. Both ways must end alike, and tests hold them against each other. There is no twin in Python: without
this the ordinary way takes everything.

`Express` knows nothing about logs. `find` says which partition takes plain records, `append` appends the batches of a
turn, `deliver` the parcels of a partition and `deliver_in_transaction` one that is part of a transaction; the first two
later call what they were given with the first offset or an error, as `Publisher` does, the last with a `Produced`.
Invariant: what was taken is answered once, in order on its line, unless the line is lost.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from rivven.record._native_builder cimport BatchBuilder
from rivven.server._lines cimport SHORT_BYTES_MAX, Line, Taker
from rivven.server._parcels cimport (
    HEAD_BYTES,
    NATIVE,
    POSTCARD,
    PRODUCE_BATCHES,
    Parcel,
    load32,
    put_varint,
    read_kafka,
    read_native,
    store32,
    varint,
    written,
)

from rivven.errors import RivvenError
from rivven.record import complete_plain

cdef enum:
    LENGTH_BYTES = 4
    PUBLISH = 4
    PUBLISHED = 3
    OVERHEAD_BYTES = 40  # as `broker.publish` counts a record
    BATCH_HEADER_BYTES = 61
    PUBLISH_BYTES_MAX = 4000
    PARCEL_BYTES_MAX = 2 * 1024 * 1024
    RUN_BYTES_MAX = 256 * 1024  # of parcels in one write: beyond that it is no cheaper
    TARGETS_MAX = 100_000
    TOPIC_BYTES_MAX = 255
    PUBLISH_FORM = -2  # as `front` calls it


assert LENGTH_BYTES + HEAD_BYTES + 1 + 10 + 5 <= SHORT_BYTES_MAX, "a reply fits into its slot"


cdef class Lot:
    """A partition, and what came for it in this turn: single records, or parcels."""

    cdef object log
    cdef BatchBuilder builder
    cdef int64_t bytes_max, records_max, size_bytes
    cdef Waiters waiters
    cdef Run run


cdef class Named:
    """What clients call a topic, by its name or by its id, and its partitions that were asked for."""

    cdef bytes topic
    cdef bint by_id
    cdef dict targets


cdef class Target:
    """What clients call a partition: by the name of its topic or by its id. Both have one lot, and so one order."""

    cdef bytes topic
    cdef bint by_id
    cdef uint32_t partition
    cdef Lot lot


cdef class Run:
    """Parcels for one partition, end to end, and who wants to hear what became of each; see `broker.Parcels`."""

    cdef readonly object data
    cdef Py_ssize_t used
    cdef bint closed
    cdef str transaction
    cdef readonly list ends
    cdef list carriers

    def __cinit__(self):
        self.ends = []
        self.carriers = []

    @property
    def answers(self):
        return self.carriers

    def __call__(self, first, error):
        cdef Carrier carrier
        cdef Py_buffer view
        cdef Py_ssize_t begin = 0
        cdef const uint8_t *at
        PyObject_GetBuffer(self.data, &view, PyBUF_SIMPLE)
        try:
            for carrier, end in zip(self.carriers, self.ends):
                at = <const uint8_t *>view.buf + begin
                carrier.tell(<int64_t>(<uint64_t>load32(at) << 32 | load32(at + 4)), error)
                begin = end
        finally:
            PyBuffer_Release(&view)

    cdef int adopt(self, const Parcel *parcel, Carrier carrier, bytearray owner) except -1:
        """A parcel that is long, and alone where it lies: it can stay there."""
        cdef Py_ssize_t begin = <const char *>parcel.batch - PyByteArray_AS_STRING(owner)
        self.closed = True
        self.data = memoryview(owner)[begin : begin + parcel.batch_bytes]
        self.used = parcel.batch_bytes
        self.ends.append(self.used)
        self.carriers.append(carrier)
        return 0

    cdef int add(self, const Parcel *parcel, Carrier carrier, Py_ssize_t expected) except -1:
        """`expected` is how many bytes may come in all; a hint, so that they need not be moved."""
        cdef Py_ssize_t needed = self.used + parcel.batch_bytes
        if self.data is None:
            self.data = PyByteArray_FromStringAndSize(NULL, max(needed, min(expected, <Py_ssize_t>RUN_BYTES_MAX)))
        elif needed > len(self.data):
            PyByteArray_Resize(self.data, max(needed, min(2 * needed, <Py_ssize_t>RUN_BYTES_MAX)))
        memcpy(PyByteArray_AS_STRING(self.data) + self.used, parcel.batch, parcel.batch_bytes)
        self.used = needed
        self.ends.append(needed)
        self.carriers.append(carrier)
        return 0


cdef struct Asked:
    uint64_t number
    uint32_t correlation_id


cdef class Waiters:
    """Who wants to hear what became of a batch, record by record. Called once, with its first offset or an error."""

    cdef Express express
    cdef uint32_t partition
    cdef list lines
    cdef Asked *asked
    cdef Py_ssize_t room
    cdef int64_t request_bytes, begun_us

    def __cinit__(self, Express express, uint32_t partition, int64_t begun_us):
        self.express = express
        self.partition = partition
        self.lines = []
        self.begun_us = begun_us

    def __dealloc__(self):
        PyMem_Free(self.asked)

    cdef int add(self, Line line, uint32_t correlation_id, Py_ssize_t request_bytes) except -1:
        cdef Py_ssize_t count = PyList_GET_SIZE(self.lines)
        cdef void *asked
        if count == self.room:
            asked = PyMem_Realloc(self.asked, (2 * count + 16) * sizeof(Asked))
            if asked == NULL:
                raise MemoryError
            self.asked, self.room = <Asked *>asked, 2 * count + 16
        self.asked[count].number = line.expect()
        self.asked[count].correlation_id = correlation_id
        self.lines.append(line)
        self.request_bytes += request_bytes
        return 0

    def __call__(self, first, error):
        self.tell(first, error)

    cdef int tell(self, int64_t first, error) except -1:
        cdef Express express = self.express
        cdef Line line
        cdef Py_ssize_t index, count
        cdef uint64_t offset
        if self.lines is None:
            return 0  # they have been told
        count = PyList_GET_SIZE(self.lines)
        express.inflight_bytes -= self.request_bytes
        if error is not None:
            express.failed(count, error)
            for index in range(count):
                line = self.lines[index]
                line.replied_with(
                    self.asked[index].number, express.refuse(self.asked[index].correlation_id, error)
                )
        else:
            offset = <uint64_t>first
            for index in range(count):
                line = self.lines[index]
                reply(line, self.asked[index].number, self.asked[index].correlation_id, offset, self.partition)
                offset += 1
        self.lines = None
        return express.count_answered(PUBLISH_FORM, self.begun_us, count)


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


cdef inline bint may_ask(Line line) noexcept:
    """Whether its address has a request left; that is taken then."""
    return line.allowance is None or line.allowance.has_one(line.lines.turn_us)


cdef class Carrier:
    """Who wants to hear what became of a parcel. Called once, with its first offset or an error."""

    cdef Express express
    cdef Line line
    cdef Target target
    cdef uint64_t number
    cdef uint32_t correlation_id
    cdef int version
    cdef int64_t begun_us, request_bytes, start
    cdef bint told

    def __call__(self, first, error):
        self.tell(first, error)

    def settle(self, produced):
        self.start = produced.start
        self.tell(produced.base_offset, produced.error)

    cdef int tell(self, int64_t first, error) except -1:
        cdef Express express = self.express
        cdef Target target = self.target
        cdef bytes frame
        cdef int64_t correlation_id
        if self.told:
            return 0
        self.told = True
        express.inflight_bytes -= self.request_bytes
        if error is None:
            frame = written(self.version, self.correlation_id, target.topic, target.partition, first, self.start)
        else:
            place = target.topic, target.by_id, target.partition, self.start
            correlation_id = <int64_t>self.correlation_id
            if self.version != NATIVE:
                correlation_id = <int32_t>self.correlation_id
            frame = express.return_parcel(self.version, correlation_id, place, error)
        if frame is None:
            self.line.abort()
        else:
            self.line.replied_with(self.number, frame)
        return express.count_answered(self.version, self.begun_us, 1)


cdef struct Answered:
    int version
    int64_t begun_us
    int64_t count


cdef class Tally:
    """How long answers of one kind took."""

    cdef tuple bounds
    cdef list counts
    cdef double seconds

    def __cinit__(self, tuple bounds):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)

    cdef int count(self, double seconds, int64_t count) except -1:
        cdef Py_ssize_t place = 0, places = len(self.bounds)
        while place < places and <double>self.bounds[place] < seconds:
            place += 1
        self.counts[place] += count
        self.seconds += seconds * <double>count
        return 0


cdef class Express(Taker):
    cdef object find, append, deliver, deliver_in_transaction, refuse, return_parcel, failed, now_ms
    cdef dict named, lots
    cdef Py_ssize_t targets
    cdef Answered *answers
    cdef Py_ssize_t answers_used, answers_room
    cdef dict tallies
    cdef tuple bounds_s
    cdef list begun
    cdef int64_t stamp_ms
    cdef Named latest
    cdef uint32_t frame_bytes_max
    cdef int produce_newest
    cdef public int64_t inflight_bytes_max
    cdef readonly int64_t inflight_bytes

    def __init__(self, front, *, uint32_t frame_bytes_max, int produce_newest, tuple bounds_s):
        """`front` answers what is asked here; `produce_newest` is the newest version of Kafka's Produce. How long
        answers took is counted by `bounds_s`."""
        self.find = front.find
        self.append = front.append
        self.deliver = front.deliver
        self.deliver_in_transaction = front.deliver_in_transaction
        self.refuse = front.refuse
        self.return_parcel = front.return_parcel
        self.failed = front.failed
        self.now_ms = front.now_ms
        self.frame_bytes_max = frame_bytes_max
        self.produce_newest = produce_newest
        self.named = {}
        self.lots = {}
        self.bounds_s = bounds_s
        self.tallies = {}
        self.begun = []

    def __dealloc__(self):
        PyMem_Free(self.answers)

    def forget(self):
        """Topics have changed: ask again for every partition."""
        self.finish()
        self.named.clear()
        self.targets = 0
        self.lots.clear()
        self.latest = None

    cdef Py_ssize_t take(self, Line line, const uint8_t *data, Py_ssize_t length, bytearray owner) except -1:
        cdef Py_ssize_t taken = 0
        cdef uint32_t frame_bytes
        cdef const uint8_t *at
        cdef bint took, bulky = False
        cdef Parcel parcel
        if not self.begun:
            self.stamp_ms = self.now_ms()
        while length - taken >= LENGTH_BYTES + HEAD_BYTES + 1:
            frame_bytes = load32(data + taken)
            if frame_bytes > self.frame_bytes_max or frame_bytes > length - taken - LENGTH_BYTES:
                break
            if self.inflight_bytes + frame_bytes > self.inflight_bytes_max:
                break
            at = data + taken + LENGTH_BYTES
            if line.kafka:
                bulky = read_kafka(at, at + frame_bytes, self.produce_newest, &parcel)
                took = bulky and self.take_parcel(line, &parcel, frame_bytes, length - taken, owner)
            elif at[0] == POSTCARD and at[HEAD_BYTES] == PUBLISH:
                took = self.take_publish(line, at, frame_bytes)
            else:
                bulky = read_native(at, at + frame_bytes, &parcel)
                took = bulky and self.take_parcel(line, &parcel, frame_bytes, length - taken, owner)
            if not took:
                break
            taken += LENGTH_BYTES + frame_bytes
        line.bulky = bulky or not taken
        return taken

    cdef Py_ssize_t begins(self, Line line, const uint8_t *data, Py_ssize_t length) noexcept:
        cdef Py_ssize_t frame_bytes
        cdef bint may_be
        if length < LENGTH_BYTES:
            return LENGTH_BYTES
        frame_bytes = load32(data)
        if frame_bytes > min(<uint32_t>PARCEL_BYTES_MAX, self.frame_bytes_max) or frame_bytes <= length - LENGTH_BYTES:
            return 0  # too long to wait for it here, or whole and still not taken
        data += LENGTH_BYTES
        length -= LENGTH_BYTES
        if line.kafka:
            may_be = length < 2 or data[0] == 0 and data[1] == 0
        elif length and data[0] != POSTCARD:
            may_be = False
        elif length <= HEAD_BYTES:
            may_be = True
        else:
            may_be = data[HEAD_BYTES] == PRODUCE_BATCHES or (
                data[HEAD_BYTES] == PUBLISH and frame_bytes <= PUBLISH_BYTES_MAX
            )
        return LENGTH_BYTES + frame_bytes if may_be else 0

    # Parcels

    cdef bint take_parcel(
        self, Line line, const Parcel *parcel, uint32_t frame_bytes, Py_ssize_t left, bytearray owner
    ) except -1:
        cdef Target target = self.target(parcel.topic, parcel.topic_bytes, parcel.partition, parcel.by_id)
        cdef Lot lot
        cdef Carrier carrier
        cdef str transaction = None
        if target is None:
            return False
        if parcel.transaction != NULL:
            try:
                transaction = parcel.transaction[: parcel.transaction_bytes].decode()
            except UnicodeDecodeError:
                return False
        if not may_ask(line):
            return False
        lot = target.lot
        if lot.waiters is not None or (
            lot.run is not None
            and (
                lot.run.closed
                or transaction is not None
                or lot.run.used + <Py_ssize_t>parcel.batch_bytes > RUN_BYTES_MAX
            )
        ):
            self.begun.remove(lot)
            self.pass_on(lot)  # what came before keeps the lower offsets
        carrier = Carrier.__new__(Carrier)
        carrier.express = self
        carrier.line = line
        carrier.target = target
        carrier.number = line.expect()
        carrier.correlation_id = parcel.correlation_id
        carrier.version = parcel.version
        carrier.begun_us = line.lines.turn_us
        carrier.request_bytes = frame_bytes
        carrier.start = lot.log.start
        self.inflight_bytes += frame_bytes
        if lot.run is None:
            lot.run = Run()
            self.begun.append(lot)
        if owner is not None and lot.run.used == 0:
            lot.run.adopt(parcel, carrier, owner)
        else:
            lot.run.add(parcel, carrier, left if transaction is None else 0)
        if transaction is not None:  # now: a transaction's requests have one order over all partitions
            lot.run.transaction = transaction
            self.begun.remove(lot)
            self.pass_on(lot)
        return True

    cdef int hand_over(self, Lot lot) except -1:
        """Pass on the parcels that were taken."""
        cdef Run run = lot.run
        cdef Carrier carrier
        lot.run = None
        if isinstance(run.data, bytearray):
            PyByteArray_Resize(run.data, run.used)
        try:
            if run.transaction is None:
                self.deliver(lot.log, run)
            else:
                carrier = run.carriers[0]
                connection, answer = carrier.line.protocol, carrier.settle
                self.deliver_in_transaction(connection, run.transaction, lot.log, run.data, answer)
        except (RivvenError, OSError) as error:  # as for any other request: these fail, the node goes on
            for carrier in run.carriers:
                carrier(-1, error)
        return 0

    # How long it took

    cdef int count_answered(self, int version, int64_t begun_us, Py_ssize_t count) except -1:
        """An answer is on its way; it counts when it is sent."""
        cdef Answered *last
        cdef void *answers
        if self.answers_used:
            last = &self.answers[self.answers_used - 1]
            if last.version == version and last.begun_us == begun_us:
                last.count += count
                return 0
        if self.answers_used == self.answers_room:
            answers = PyMem_Realloc(self.answers, (2 * self.answers_room + 16) * sizeof(Answered))
            if answers == NULL:
                raise MemoryError
            self.answers, self.answers_room = <Answered *>answers, 2 * self.answers_room + 16
        last = &self.answers[self.answers_used]
        last.version, last.begun_us, last.count = version, begun_us, count
        self.answers_used += 1
        return 0

    cdef int sent(self, int64_t now_us) except -1:
        cdef Py_ssize_t place
        cdef Answered *each
        for place in range(self.answers_used):
            each = &self.answers[place]
            tally = self.tallies.get(each.version)
            if tally is None:
                tally = self.tallies[each.version] = Tally(self.bounds_s)
            (<Tally>tally).count(<double>(now_us - each.begun_us) / 1e6, each.count)
        self.answers_used = 0
        return 0

    def take_counts(self):
        """How many were answered since the last time, by version: within each bound and beyond all, and the sum of
        the seconds."""
        cdef Tally tally
        tallies, self.tallies = self.tallies, {}
        return {version: (tally.counts, tally.seconds) for version, tally in tallies.items()}

    # Single records

    cdef bint take_publish(self, Line line, const uint8_t *frame, uint32_t frame_bytes) except -1:
        cdef uint32_t topic_bytes, partition, value_bytes
        cdef uint32_t key_bytes = 0
        cdef const uint8_t *at
        cdef const uint8_t *end = frame + frame_bytes
        cdef const uint8_t *topic
        cdef const uint8_t *key = NULL
        cdef int64_t size_bytes
        cdef Target target
        cdef Lot lot
        if frame_bytes < HEAD_BYTES + 6:
            return False
        topic = varint(frame + HEAD_BYTES + 1, end, &topic_bytes)
        if topic == NULL or topic_bytes >= end - topic or topic[topic_bytes] != 1:
            return False  # no topic, or no partition
        at = varint(topic + topic_bytes + 1, end, &partition)
        if at == NULL or at >= end or at[0] > 1:
            return False
        if at[0] == 1:
            key = varint(at + 1, end, &key_bytes)
            if key == NULL or key_bytes >= end - key:
                return False
            at = key + key_bytes
        else:
            at += 1
        at = varint(at, end, &value_bytes)
        if at == NULL or <Py_ssize_t>value_bytes + 1 != end - at or at[value_bytes] != 0:
            return False  # a value that ends elsewhere, or an epoch
        target = self.target(topic, topic_bytes, partition, False)
        size_bytes = <int64_t>value_bytes + key_bytes + OVERHEAD_BYTES
        if target is None or size_bytes > target.lot.bytes_max - BATCH_HEADER_BYTES or not may_ask(line):
            return False
        lot = target.lot
        self.make_room(lot, partition, size_bytes, line.lines.turn_us)
        if not lot.builder.put_plain(self.stamp_ms, key, -1 if key == NULL else <int64_t>key_bytes, at, value_bytes):
            raise OverflowError("a clock that goes back by a lifetime")
        lot.waiters.add(line, load32(frame + 1), frame_bytes)
        self.inflight_bytes += frame_bytes
        return True

    cdef Target target(self, const uint8_t *topic, uint32_t topic_bytes, uint32_t partition, bint by_id):
        """Where plain records of this partition go; None if it takes none."""
        cdef Named named = self.latest
        cdef Target target
        if topic_bytes > TOPIC_BYTES_MAX:
            return None  # no topic has such a name, and many of them would fill the memory
        if (
            named is None
            or named.by_id != by_id
            or PyBytes_GET_SIZE(named.topic) != topic_bytes
            or memcmp(PyBytes_AS_STRING(named.topic), topic, topic_bytes) != 0
        ):
            named = self.latest = self.topic(PyBytes_FromStringAndSize(<const char *>topic, topic_bytes), by_id)
        known = named.targets.get(partition, self)
        if known is not self:
            return <Target>known
        if self.targets >= TARGETS_MAX:  # names that nobody has may be many
            self.named.clear()
            self.targets, self.latest = 0, None
        target = named.targets[partition] = self.found(named.topic, partition, by_id)
        self.targets += 1
        return target

    cdef Named topic(self, bytes name, bint by_id):
        cdef Named named
        known = (name, by_id)
        if known not in self.named:
            named = self.named[known] = Named.__new__(Named)
            named.topic, named.by_id, named.targets = name, by_id, {}
            self.targets += 1
        return self.named[known]

    cdef Target found(self, bytes topic, uint32_t partition, bint by_id):
        cdef Target target
        cdef Lot lot
        plain = self.find(topic, partition, by_id)
        if plain is None:
            return None
        lot = self.lots.get(plain[0])
        if lot is None:
            lot = self.lots[plain[0]] = Lot.__new__(Lot)
            lot.log, lot.bytes_max, lot.records_max = plain
            lot.builder = BatchBuilder.__new__(BatchBuilder)
        target = Target.__new__(Target)
        target.topic, target.partition, target.by_id, target.lot = topic, partition, by_id, lot
        return target

    cdef int make_room(self, Lot lot, uint32_t partition, int64_t size_bytes, int64_t turn_us) except -1:
        """A record of this size is about to be put: what it does not fit beside is passed on first."""
        if lot.run is not None or lot.waiters is not None and (
            lot.size_bytes + size_bytes > lot.bytes_max - BATCH_HEADER_BYTES
            or len(lot.waiters.lines) >= lot.records_max
        ):
            self.begun.remove(lot)
            self.pass_on(lot)
        if lot.waiters is None:
            lot.waiters = Waiters.__new__(Waiters, self, partition, turn_us)
            self.begun.append(lot)
        lot.size_bytes += size_bytes
        return 0

    def finish(self):
        """The turn is over: pass on what was taken."""
        cdef list begun = self.begun
        cdef list batches = []
        cdef Lot lot
        self.begun = []
        for lot in begun:
            if lot.run is not None:
                self.hand_over(lot)
            else:
                batches.append(self.completed(lot))
        if batches:
            self.append_each(batches)

    cdef int pass_on(self, Lot lot) except -1:
        if lot.run is not None:
            return self.hand_over(lot)
        return self.append_each([self.completed(lot)])

    cdef int append_each(self, list batches) except -1:
        try:
            self.append(batches)
        except (RivvenError, OSError) as error:  # as for any other request: these fail, the node goes on
            for _, _, _, waiters in batches:
                (<Waiters>waiters).tell(-1, error)
        return 0

    cdef tuple completed(self, Lot lot):
        """The batch of single records that was begun for a partition, and who waits for it."""
        cdef Waiters waiters = lot.waiters
        lot.waiters, lot.size_bytes = None, 0
        batch, header = complete_plain(lot.builder.take())
        return lot.log, batch, header, waiters

"""Produce and Fetch at C speed: the native twin of `made.produce` and `made.fetch`, for what clients mostly send.

Invariant: whatever is unusual here (a tagged field that is set, a record error, a length beyond the end, a number
that does not fit) is left, untouched, to the made function; so both refuse alike, and a wrong turn costs time only.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from .made import fetch, produce
from .primitives import NO_ID

cdef object PartitionProduceData = produce.PartitionProduceData
cdef object TopicProduceData = produce.TopicProduceData
cdef object ProduceRequest = produce.ProduceRequest
cdef object FetchPartition = fetch.FetchPartition
cdef object FetchTopic = fetch.FetchTopic
cdef object ForgottenTopic = fetch.ForgottenTopic
cdef object FetchRequest = fetch.FetchRequest
cdef object NO_LEADER = produce.LeaderIdAndEpoch()
cdef object NO_FETCH_LEADER = fetch.LeaderIdAndEpoch()
cdef object NO_EPOCH = fetch.EpochEndOffset()
cdef object NO_SNAPSHOT = fetch.SnapshotId()
cdef object NO_STATE = fetch.ReplicaState()
cdef object NO_TOPIC_ID = NO_ID
cdef int32_t STRING_BYTES_MAX = 32767


# Reading


cdef struct Cursor:
    const uint8_t *data
    Py_ssize_t at
    Py_ssize_t end
    bint flexible
    bint odd


cdef inline const uint8_t *take(Cursor *c, Py_ssize_t count) noexcept nogil:
    """So many bytes; where there are not as many, the cursor is odd and what comes back must not be read."""
    cdef Py_ssize_t at = c.at
    if c.odd or count > c.end - at:
        c.odd = True
        return NULL
    c.at = at + count
    return c.data + at


cdef inline int64_t number(Cursor *c, int width) noexcept nogil:
    cdef const uint8_t *at = take(c, width)
    cdef uint64_t value = 0
    cdef int i
    if at == NULL:
        return 0
    for i in range(width):
        value = (value << 8) | at[i]
    if width == 8:
        return <int64_t>value
    if width == 4:
        return <int32_t><uint32_t>value
    return <int16_t>value if width == 2 else <int8_t>value


cdef inline int64_t uvarint(Cursor *c) noexcept nogil:
    cdef const uint8_t *at
    cdef uint64_t value = 0
    cdef int shift
    for shift in range(0, 35, 7):
        at = take(c, 1)
        if at == NULL:
            return 0
        value |= <uint64_t>(at[0] & 0x7F) << shift
        if at[0] < 0x80:
            return <int64_t>value
    c.odd = True
    return 0


cdef inline int64_t length(Cursor *c, int width) noexcept nogil:
    """A length or count, -1 for null."""
    return uvarint(c) - 1 if c.flexible else number(c, width)


cdef inline int64_t count_of(Cursor *c, int64_t least) noexcept nogil:
    """How many entries follow, of at least so many bytes each."""
    cdef int64_t count = length(c, 4)
    if count < 0 or count > (c.end - c.at) // least:
        c.odd = True
        return 0
    return count


cdef inline void no_tags(Cursor *c) noexcept nogil:
    cdef const uint8_t *at
    if c.flexible:
        at = take(c, 1)
        if at != NULL and at[0] != 0:
            c.odd = True


cdef object text(Cursor *c, bint nullable):
    cdef int64_t count = length(c, 2)
    cdef const uint8_t *at
    if count < 0:
        if not nullable:
            c.odd = True
        return None
    at = take(c, count)
    return None if at == NULL else PyUnicode_DecodeUTF8(<const char *>at, count, NULL)


cdef object topic_id(Cursor *c):
    cdef const uint8_t *at = take(c, 16)
    return None if at == NULL else PyBytes_FromStringAndSize(<const char *>at, 16)


cdef object read_produce(object data, Py_ssize_t at, Py_ssize_t end, int version):
    """The request and the position behind it, or None where it is odd."""
    cdef Py_buffer view
    cdef Cursor c
    cdef int64_t topics, partitions, size, index, acks, timeout_ms, _
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        c = Cursor(<const uint8_t *>view.buf, at, min(end, view.len), version >= 9, False)
        transactional_id = text(&c, True)
        acks = number(&c, 2)
        timeout_ms = number(&c, 4)
        topics = count_of(&c, 3)
        topic_data = []
        while topics > 0 and not c.odd:
            topics -= 1
            name = text(&c, False) if version < 13 else ""
            identity = NO_TOPIC_ID if version < 13 else topic_id(&c)
            partitions = count_of(&c, 6)
            partition_data = []
            while partitions > 0 and not c.odd:
                partitions -= 1
                index = number(&c, 4)
                size = length(&c, 4)
                if size < 0:
                    records = None
                elif take(&c, size) == NULL:
                    break
                else:
                    records = data[c.at - size : c.at]
                no_tags(&c)
                partition_data.append(PartitionProduceData(index, records))
            no_tags(&c)
            topic_data.append(TopicProduceData(name, identity, partition_data))
        no_tags(&c)
        if c.odd:
            return None
        return ProduceRequest(transactional_id, acks, timeout_ms, topic_data), c.at
    finally:
        PyBuffer_Release(&view)


cdef object read_fetch(object data, Py_ssize_t at, Py_ssize_t end, int version):
    cdef Py_buffer view
    cdef Cursor c
    cdef int64_t topics, partitions, replica_id = -1, max_wait_ms, min_bytes, max_bytes, isolation
    cdef int64_t session_id = 0, session_epoch = -1
    cdef int64_t partition, epoch, offset, last_epoch, start, most
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        c = Cursor(<const uint8_t *>view.buf, at, min(end, view.len), version >= 12, False)
        if version < 15:
            replica_id = number(&c, 4)
        max_wait_ms = number(&c, 4)
        min_bytes = number(&c, 4)
        max_bytes = number(&c, 4)
        isolation = number(&c, 1)
        if version >= 7:
            session_id = number(&c, 4)
            session_epoch = number(&c, 4)
        topics = count_of(&c, 3)
        wanted = []
        while topics > 0 and not c.odd:
            topics -= 1
            name = text(&c, False) if version < 13 else ""
            identity = NO_TOPIC_ID if version < 13 else topic_id(&c)
            partitions = count_of(&c, 16)
            inner = []
            while partitions > 0 and not c.odd:
                partitions -= 1
                partition = number(&c, 4)
                epoch = number(&c, 4) if version >= 9 else -1
                offset = number(&c, 8)
                last_epoch = number(&c, 4) if version >= 12 else -1
                start = number(&c, 8) if version >= 5 else -1
                most = number(&c, 4)
                no_tags(&c)
                inner.append(FetchPartition(partition, epoch, offset, last_epoch, start, most))
            no_tags(&c)
            wanted.append(FetchTopic(name, identity, inner))
        forgotten = []
        if version >= 7:
            topics = count_of(&c, 3)
            while topics > 0 and not c.odd:
                topics -= 1
                name = text(&c, False) if version < 13 else ""
                identity = NO_TOPIC_ID if version < 13 else topic_id(&c)
                partitions = count_of(&c, 4)
                numbers = []
                while partitions > 0 and not c.odd:
                    partitions -= 1
                    numbers.append(number(&c, 4))
                no_tags(&c)
                forgotten.append(ForgottenTopic(name, identity, numbers))
        rack_id = text(&c, False) if version >= 11 else ""
        no_tags(&c)
        if c.odd:
            return None
        return FetchRequest(
            None, replica_id, NO_STATE, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch,
            wanted, forgotten, rack_id,
        ), c.at
    finally:
        PyBuffer_Release(&view)


# Writing


cdef inline uint8_t *put(uint8_t *out, int64_t value, int width) noexcept nogil:
    cdef int i
    for i in range(width):
        out[i] = <uint8_t>(<uint64_t>value >> (8 * (width - 1 - i)))
    return out + width


cdef inline uint8_t *put_length(uint8_t *out, int64_t count, int width, bint flexible) noexcept nogil:
    cdef uint64_t value
    if not flexible:
        return put(out, count, width)
    value = count + 1
    while value > 0x7F:
        out[0] = <uint8_t>(value & 0x7F) | 0x80
        out += 1
        value >>= 7
    out[0] = <uint8_t>value
    return out + 1


cdef inline uint8_t *put_bytes(uint8_t *out, bytes data) noexcept:
    memcpy(out, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return out + PyBytes_GET_SIZE(data)


cdef uint8_t *room(bytearray out, Py_ssize_t used, Py_ssize_t count) except NULL:
    """Make room behind what is used; where to go on."""
    if used + count > PyByteArray_GET_SIZE(out):
        PyByteArray_Resize(out, used + count)
    return <uint8_t *>PyByteArray_AS_STRING(out) + used


cdef bytearray write_produce(object message, bytearray before, int version):
    """A copy of what stands before with the message behind it, or None where it is odd."""
    cdef bint flexible = version >= 9
    cdef bytearray out = bytearray(before)
    cdef uint8_t *at
    cdef Py_ssize_t used = PyByteArray_GET_SIZE(out)
    cdef bytes name
    cdef list responses = message.responses, partitions
    if version >= 10 and message.node_endpoints:
        return None
    at = room(out, used, 16)
    at = put_length(at, len(responses), 4, flexible)
    for topic in responses:
        name = topic.topic_id if version >= 13 else topic.name.encode()
        partitions = topic.partition_responses
        if name is None or PyBytes_GET_SIZE(name) > STRING_BYTES_MAX:
            return None
        if version >= 13 and PyBytes_GET_SIZE(name) != 16:
            return None
        used = at - <uint8_t *>PyByteArray_AS_STRING(out)
        at = room(out, used, 32 + PyBytes_GET_SIZE(name) + 64 * len(partitions))
        if version < 13:
            at = put_length(at, PyBytes_GET_SIZE(name), 2, flexible)
        at = put_bytes(at, name)
        at = put_length(at, len(partitions), 4, flexible)
        for one in partitions:
            at = put(at, <int32_t>one.index, 4)
            at = put(at, <int16_t>one.error_code, 2)
            at = put(at, <int64_t>one.base_offset, 8)
            at = put(at, <int64_t>one.log_append_time_ms, 8)
            if version >= 5:
                at = put(at, <int64_t>one.log_start_offset, 8)
            if version >= 8:
                if one.record_errors or one.error_message is not None:
                    return None
                at = put_length(at, 0, 4, flexible)
                at = put_length(at, -1, 2, flexible)
            if version >= 10 and one.current_leader != NO_LEADER:
                return None
            if flexible:
                at = put(at, 0, 1)
        if flexible:
            at = put(at, 0, 1)
    used = at - <uint8_t *>PyByteArray_AS_STRING(out)
    at = room(out, used, 8)
    at = put(at, <int32_t>message.throttle_time_ms, 4)
    if flexible:
        at = put(at, 0, 1)
    PyByteArray_Resize(out, at - <uint8_t *>PyByteArray_AS_STRING(out))
    return out


cdef bytearray write_fetch(object message, bytearray before, list pieces, int version):
    """The same for Fetch; what was filled before records, and they, are put into `pieces`."""
    cdef bint flexible = version >= 12
    cdef bytearray out = bytearray(before)
    cdef uint8_t *at
    cdef Py_ssize_t used = PyByteArray_GET_SIZE(out), size
    cdef bytes name
    cdef list responses = message.responses, partitions
    if version >= 16 and message.node_endpoints:
        return None
    at = room(out, used, 32)
    at = put(at, <int32_t>message.throttle_time_ms, 4)
    if version >= 7:
        at = put(at, <int16_t>message.error_code, 2)
        at = put(at, <int32_t>message.session_id, 4)
    at = put_length(at, len(responses), 4, flexible)
    for topic in responses:
        name = topic.topic_id if version >= 13 else topic.topic.encode()
        partitions = topic.partitions
        if name is None or PyBytes_GET_SIZE(name) > STRING_BYTES_MAX:
            return None
        if version >= 13 and PyBytes_GET_SIZE(name) != 16:
            return None
        used = at - <uint8_t *>PyByteArray_AS_STRING(out)
        at = room(out, used, 32 + PyBytes_GET_SIZE(name))
        if version < 13:
            at = put_length(at, PyBytes_GET_SIZE(name), 2, flexible)
        at = put_bytes(at, name)
        at = put_length(at, len(partitions), 4, flexible)
        for one in partitions:
            if one.aborted_transactions or (
                flexible
                and (
                    one.diverging_epoch != NO_EPOCH
                    or one.current_leader != NO_FETCH_LEADER
                    or one.snapshot_id != NO_SNAPSHOT
                )
            ):
                return None
            used = at - <uint8_t *>PyByteArray_AS_STRING(out)
            at = room(out, used, 72)
            at = put(at, <int32_t>one.partition_index, 4)
            at = put(at, <int16_t>one.error_code, 2)
            at = put(at, <int64_t>one.high_watermark, 8)
            at = put(at, <int64_t>one.last_stable_offset, 8)
            if version >= 5:
                at = put(at, <int64_t>one.log_start_offset, 8)
            at = put_length(at, -1 if one.aborted_transactions is None else 0, 4, flexible)
            if version >= 11:
                at = put(at, <int32_t>one.preferred_read_replica, 4)
            records = one.records
            size = -1 if records is None else len(records)
            if size > 0x7FFFFFFF:
                return None
            at = put_length(at, size, 4, flexible)
            if size > 0:
                PyByteArray_Resize(out, at - <uint8_t *>PyByteArray_AS_STRING(out))
                pieces.append(out)
                pieces.append(records)
                out = bytearray()
                at = room(out, 0, 16)
            if flexible:
                at = put(at, 0, 1)
        used = at - <uint8_t *>PyByteArray_AS_STRING(out)
        at = room(out, used, 16)
        if flexible:
            at = put(at, 0, 1)
    used = at - <uint8_t *>PyByteArray_AS_STRING(out)
    at = room(out, used, 1)
    if flexible:
        at = put(at, 0, 1)
    PyByteArray_Resize(out, at - <uint8_t *>PyByteArray_AS_STRING(out))
    return out


# One function for one version, with the made one behind it


def produce_reader(int version, made):
    def read(data, Py_ssize_t at, Py_ssize_t end):
        try:
            found = read_produce(data, at, end, version)
        except UnicodeDecodeError:
            found = None
        return made(data, at, end) if found is None else found

    return read


def fetch_reader(int version, made):
    def read(data, Py_ssize_t at, Py_ssize_t end):
        try:
            found = read_fetch(data, at, end, version)
        except UnicodeDecodeError:
            found = None
        return made(data, at, end) if found is None else found

    return read


def produce_writer(int version, made):
    def write(message, bytearray out, list parts):
        try:
            found = write_produce(message, out, version)
        except (OverflowError, TypeError, AttributeError):
            found = None
        return made(message, out, parts) if found is None else found

    return write


def fetch_writer(int version, made):
    def write(message, bytearray out, list parts):
        cdef list pieces = []
        try:
            found = write_fetch(message, out, pieces, version)
        except (OverflowError, TypeError, AttributeError):
            found = None
        if found is None:
            return made(message, out, parts)
        parts += pieces
        return found

    return write

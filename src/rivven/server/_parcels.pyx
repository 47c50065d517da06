"""Requests that bring whole batches for one partition, in both dialects: read where they lie, and answered.

That is what a producer sends that is busy with one partition, and the shortest way for it: no object for the request,
its topic or its partition. Whatever is unusual (a transaction in Kafka's words, a client that waits for no answer, a
version before zstd, a tagged field, a byte too much) is not read here, and so left to `wire`, which reads or refuses
everything.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    PRODUCED_BATCHES = 42
    TOPIC_ID_BYTES = 16
    FIRST_VERSION = 7
    FIRST_FLEXIBLE = 9
    FIRST_BY_ID = 13
    WITHOUT_TOPIC_BYTES_MAX = 80
    NAME_BYTES_MAX = 256  # as `wire` has it


# Reading


cdef inline const uint8_t *counted(const uint8_t *at, const uint8_t *end, uint32_t *length) noexcept nogil:
    """Bytes behind their length; NULL if they are not all there."""
    if at != NULL:
        at = varint(at, end, length)
    if at == NULL or length[0] > <uint64_t>(end - at):
        return NULL
    return at


cdef inline const uint8_t *one(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """What stands behind a count of one; NULL if there are more, or none."""
    if at == NULL or at >= end or at[0] != 1:
        return NULL
    return at + 1


cdef bint read_native(const uint8_t *at, const uint8_t *end, Parcel *parcel) noexcept nogil:
    """`ProduceBatches` in postcard, from its format on."""
    cdef uint32_t timeout_ms
    if end - at < HEAD_BYTES + 8 or at[0] != POSTCARD or at[HEAD_BYTES] != PRODUCE_BATCHES:
        return False
    parcel.correlation_id = load32(at + 1)
    parcel.version = NATIVE
    parcel.by_id = False
    at += HEAD_BYTES + 1
    if at[0] > 0x7F:
        return False  # no such acks
    at = one(varint(at + 1, end, &timeout_ms), end)
    parcel.topic = counted(at, end, &parcel.topic_bytes)
    if parcel.topic == NULL:
        return False
    at = one(parcel.topic + parcel.topic_bytes, end)
    if at == NULL:
        return False
    at = varint(at, end, &parcel.partition)
    parcel.batch = counted(at, end, &parcel.batch_bytes)
    if parcel.batch == NULL:
        return False
    at = parcel.batch + parcel.batch_bytes
    parcel.transaction = NULL
    if end - at == 1 and at[0] == 0:
        return True
    parcel.transaction = counted(one(at, end), end, &parcel.transaction_bytes)
    if parcel.transaction == NULL or parcel.transaction_bytes > NAME_BYTES_MAX:
        return False
    return parcel.transaction + parcel.transaction_bytes == end


cdef inline int load16(const uint8_t *at) noexcept nogil:
    return at[0] << 8 | at[1]


cdef inline const uint8_t *entry(const uint8_t *at, const uint8_t *end, bint flexible) noexcept nogil:
    """What stands behind a count of one; NULL if there are more, or none."""
    if at == NULL:
        return NULL
    if flexible:
        return at + 1 if at < end and at[0] == 2 else NULL
    return at + 4 if end - at >= 4 and load32(at) == 1 else NULL


cdef const uint8_t *sized(const uint8_t *at, const uint8_t *end, int width, uint32_t *length) noexcept nogil:
    """Bytes behind their length, which has so many bytes, or is a compact one if it has none. NULL if they are not
    all there, or null."""
    if at == NULL:
        return NULL
    if width == 0:
        at = varint(at, end, length)
        if at == NULL or length[0] == 0:
            return NULL
        length[0] -= 1
    elif end - at < width:
        return NULL
    else:
        length[0] = load32(at) if width == 4 else <uint32_t>load16(at)
        at += width
    if length[0] > <uint64_t>(end - at):
        return NULL
    return at


cdef const uint8_t *behind_client_id(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """NULL for one that might not be text."""
    cdef int length
    if end - at < 2:
        return NULL
    length = load16(at)
    at += 2
    if length == 0xFFFF:
        return at
    if length > 0x7FFF or length > end - at:
        return NULL
    while length:
        if at[0] > 0x7F:
            return NULL
        at += 1
        length -= 1
    return at


cdef bint read_kafka(const uint8_t *at, const uint8_t *end, int newest, Parcel *parcel) noexcept nogil:
    """`Produce`, from its api key on."""
    cdef bint flexible
    cdef int version, tags, acks
    if end - at < 10 or load16(at) != 0:
        return False
    version = load16(at + 2)
    if not FIRST_VERSION <= version <= newest:
        return False
    parcel.version = version
    parcel.transaction = NULL
    parcel.correlation_id = load32(at + 4)
    flexible = version >= FIRST_FLEXIBLE
    at = behind_client_id(at + 8, end)
    if at == NULL or end - at < 12:
        return False
    if flexible:
        if at[0] or at[1]:  # a tag, or the name of a transaction
            return False
        at += 2
    else:
        if load16(at) != 0xFFFF:
            return False
        at += 2
    acks = load16(at)
    if acks != 1 and acks != 0xFFFF:
        return False
    at = entry(at + 6, end, flexible)
    if version >= FIRST_BY_ID:
        parcel.by_id = True
        parcel.topic, parcel.topic_bytes = at, TOPIC_ID_BYTES
        if at == NULL or end - at < TOPIC_ID_BYTES:
            return False
    else:
        parcel.by_id = False
        parcel.topic = sized(at, end, 0 if flexible else 2, &parcel.topic_bytes)
        if parcel.topic == NULL:
            return False
    at = entry(parcel.topic + parcel.topic_bytes, end, flexible)
    if at == NULL or end - at < 4:
        return False
    parcel.partition = load32(at)
    parcel.batch = sized(at + 4, end, 0 if flexible else 4, &parcel.batch_bytes)
    if parcel.batch == NULL:
        return False
    at = parcel.batch + parcel.batch_bytes
    if not flexible:
        return at == end
    for tags in range(3):  # of the partition, the topic and the request
        if at >= end or at[0]:
            return False
        at += 1
    return at == end


# Writing


cdef inline uint8_t *put_signed(uint8_t *at, int64_t value) noexcept nogil:
    return put_varint(at, <uint64_t>value << 1 ^ <uint64_t>(value >> 63))


cdef inline uint8_t *put(uint8_t *at, uint64_t value, int width) noexcept nogil:
    cdef int place
    for place in range(width):
        at[place] = <uint8_t>(value >> 8 * (width - 1 - place))
    return at + width


cdef inline uint8_t *put_bytes(uint8_t *at, bytes data) noexcept:
    memcpy(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return at + PyBytes_GET_SIZE(data)


cdef inline uint8_t *put_entry(uint8_t *at, bint flexible) noexcept nogil:
    """A count of one."""
    return put(at, 2, 1) if flexible else put(at, 1, 4)


cdef bytes written(int version, uint32_t correlation_id, bytes topic, uint32_t partition, int64_t first, int64_t start):
    """The whole frame that says at which offset the batches begin."""
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, WITHOUT_TOPIC_BYTES_MAX + PyBytes_GET_SIZE(topic))
    cdef uint8_t *begin = <uint8_t *>PyBytes_AS_STRING(frame)
    cdef uint8_t *at
    if version == NATIVE:
        at = write_native(begin + 4, correlation_id, topic, partition, first, start)
    else:
        at = write_kafka(begin + 4, version, correlation_id, topic, partition, first, start)
    store32(begin, <uint32_t>(at - begin - 4))
    return frame[: at - begin]


cdef uint8_t *write_native(
    uint8_t *at, uint32_t correlation_id, bytes topic, uint32_t partition, int64_t first, int64_t start
) noexcept:
    at[0] = POSTCARD
    store32(at + 1, correlation_id)
    at[HEAD_BYTES] = PRODUCED_BATCHES
    at[HEAD_BYTES + 1] = 1
    at = put_bytes(put_varint(at + HEAD_BYTES + 2, PyBytes_GET_SIZE(topic)), topic)
    at[0] = 1
    at = put_varint(at + 1, partition)
    at[0], at[1] = 0, 0  # no error, and no words about it
    at = put_signed(at + 2, first)
    at = put_signed(at, -1)  # no time of appending
    return put_signed(at, start)


cdef uint8_t *write_kafka(
    uint8_t *at, int version, uint32_t correlation_id, bytes topic, uint32_t partition, int64_t first, int64_t start
) noexcept:
    cdef bint flexible = version >= FIRST_FLEXIBLE
    at = put(at, correlation_id, 4)
    if flexible:
        at = put(at, 0, 1)
    at = put_entry(at, flexible)
    if version < FIRST_BY_ID:
        at = put_varint(at, PyBytes_GET_SIZE(topic) + 1) if flexible else put(at, PyBytes_GET_SIZE(topic), 2)
    at = put_entry(put_bytes(at, topic), flexible)
    at = put(put(at, partition, 4), 0, 2)
    at = put(put(put(at, first, 8), <uint64_t>-1, 8), start, 8)
    if version >= 8:  # nothing about single records, and no words
        at = put(put(at, 1, 1), 0, 1) if flexible else put(put(at, 0, 4), 0xFFFF, 2)
    if flexible:
        at = put(at, 0, 2)
    at = put(at, 0, 4)  # how long it was held back
    return put(at, 0, 1) if flexible else at

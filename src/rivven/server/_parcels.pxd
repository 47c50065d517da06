from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    NATIVE = -1
    HEAD_BYTES = 5
    POSTCARD = 0
    PRODUCE_BATCHES = 40

cdef struct Parcel:
    const uint8_t *topic
    uint32_t topic_bytes
    bint by_id
    uint32_t partition
    const uint8_t *batch
    uint32_t batch_bytes
    uint32_t correlation_id
    int version
    const uint8_t *transaction  # NULL if it is part of none
    uint32_t transaction_bytes


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


cdef bint read_native(const uint8_t *at, const uint8_t *end, Parcel *parcel) noexcept nogil
cdef bint read_kafka(const uint8_t *at, const uint8_t *end, int newest, Parcel *parcel) noexcept nogil
cdef bytes written(int version, uint32_t correlation_id, bytes topic, uint32_t partition, int64_t first, int64_t start)

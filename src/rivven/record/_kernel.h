/* The innermost loops of the native twin: numbers in big-endian order, varints, one record, CRC-32C.
 *
 * Nothing here allocates or touches a Python object. Every read is checked against an end that the caller gives;
 * every write goes where the caller has made room for at least RECORD_ROOM bytes plus the fields themselves.
 */
#ifndef RIVVEN_RECORD_KERNEL_H
#define RIVVEN_RECORD_KERNEL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define RIVVEN_INLINE static inline __attribute__((always_inline, unused))

/* Lengths, deltas and the attributes byte of one record, each varint at its longest. */
#define RECORD_ROOM 48

/* Numbers */

RIVVEN_INLINE uint32_t load32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

RIVVEN_INLINE uint64_t load64(const uint8_t *at)
{
    return (uint64_t)load32(at) << 32 | load32(at + 4);
}

RIVVEN_INLINE int16_t load16(const uint8_t *at)
{
    return (int16_t)(at[0] << 8 | at[1]);
}

RIVVEN_INLINE uint64_t zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

RIVVEN_INLINE int varint_bytes(int64_t value)
{
    int bits = 64 - __builtin_clzll(zigzag(value) | 1);
    return (9 * bits + 64) >> 6; /* bits / 7, rounded up: true for 1 to 64, and no division */
}

RIVVEN_INLINE uint8_t *put_varint(uint8_t *out, int64_t value)
{
    uint64_t bits = zigzag(value);
    while (bits > 0x7f) {
        *out++ = (uint8_t)(bits | 0x80);
        bits >>= 7;
    }
    *out++ = (uint8_t)bits;
    return out;
}

/* The slow way for varints of three bytes and more, and for those that go wrong; `at` is their second byte. */
__attribute__((noinline, unused)) static const uint8_t *get_long_varint(
    const uint8_t *at, const uint8_t *end, int bits_max, uint64_t bits, int64_t *value)
{
    for (int shift = 7;; shift += 7) {
        if (at >= end || shift >= bits_max)
            return NULL;
        uint64_t byte = *at++;
        int room = bits_max - shift;
        if (room < 7 && (byte & 0x7f) >> room)
            return NULL;
        bits |= (byte & 0x7f) << shift;
        if (byte < 0x80)
            break;
    }
    *value = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
    return at;
}

/* The place after the varint, or NULL if it leaves [at, end) or does not fit into `bits_max` bits. */
RIVVEN_INLINE const uint8_t *get_varint(const uint8_t *at, const uint8_t *end, int bits_max, int64_t *value)
{
    if (at >= end)
        return NULL;
    uint64_t bits = *at++;
    if (bits >= 0x80) {
        bits &= 0x7f;
        if (at >= end || *at >= 0x80)
            return get_long_varint(at, end, bits_max, bits, value);
        bits |= (uint64_t)*at++ << 7;
    }
    *value = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
    return at;
}

/* One record */

typedef struct {
    int64_t timestamp_delta;
    int64_t offset_delta;
    const uint8_t *key;
    int64_t key_bytes; /* -1 for null, as with the other lengths */
    const uint8_t *value;
    int64_t value_bytes;
    int64_t header_count;
    const uint8_t *headers; /* where the first header stands */
    const uint8_t *end;
} RecordView;

RIVVEN_INLINE int64_t field_bytes(int64_t length)
{
    return varint_bytes(length) + (length > 0 ? length : 0);
}

/* Copy by steps of which the last two overlap, so that neither side is left by a byte. Fields are short, and asking
 * the library how to copy one best takes longer than copying it. */
#define COPY_STEP 16
#define COPY_BYTES_MAX 256

RIVVEN_INLINE void copy_exactly(uint8_t *out, const uint8_t *data, int64_t length)
{
    if (length >= COPY_STEP && length <= COPY_BYTES_MAX) {
        for (int64_t place = 0; place < length - COPY_STEP; place += COPY_STEP)
            __builtin_memcpy(out + place, data + place, COPY_STEP);
        __builtin_memcpy(out + length - COPY_STEP, data + length - COPY_STEP, COPY_STEP);
    } else if (length >= 8 && length < COPY_STEP) {
        __builtin_memcpy(out, data, 8);
        __builtin_memcpy(out + length - 8, data + length - 8, 8);
    } else {
        memcpy(out, data, (size_t)length);
    }
}

RIVVEN_INLINE uint8_t *put_field(uint8_t *out, const uint8_t *data, int64_t length)
{
    out = put_varint(out, length);
    if (length > 0) {
        copy_exactly(out, data, length);
        out += length;
    }
    return out;
}

RIVVEN_INLINE int64_t record_body(const RecordView *record, int64_t headers_bytes)
{
    return 1 + varint_bytes(record->timestamp_delta) + varint_bytes(record->offset_delta)
           + field_bytes(record->key_bytes) + field_bytes(record->value_bytes)
           + varint_bytes(record->header_count) + headers_bytes;
}

/* What the record takes in all, with its own length in front. */
RIVVEN_INLINE int64_t record_length(const RecordView *record, int64_t headers_bytes)
{
    int64_t body = record_body(record, headers_bytes);
    return varint_bytes(body) + body;
}

/* Everything of a record up to its header count; `headers_bytes` is what the headers after the count will take. */
RIVVEN_INLINE uint8_t *put_record(uint8_t *out, const RecordView *record, int64_t headers_bytes)
{
    out = put_varint(out, record_body(record, headers_bytes));
    *out++ = 0;
    out = put_varint(out, record->timestamp_delta);
    out = put_varint(out, record->offset_delta);
    out = put_field(out, record->key, record->key_bytes);
    out = put_field(out, record->value, record->value_bytes);
    return put_varint(out, record->header_count);
}

RIVVEN_INLINE const uint8_t *get_field(const uint8_t *at, const uint8_t *end, const uint8_t **data, int64_t *length)
{
    at = get_varint(at, end, 32, length);
    if (!at || *length < -1 || *length > end - at)
        return NULL;
    *data = at;
    return *length > 0 ? at + *length : at;
}

/* Fill `record` from the bytes at `at`; NULL, or what is wrong. Headers are left to the caller to walk. */
RIVVEN_INLINE const char *get_record(const uint8_t *at, const uint8_t *end, RecordView *record)
{
    int64_t length;
    at = get_varint(at, end, 32, &length);
    if (!at || length < 1 || length > end - at)
        return "a record longer than its batch";
    record->end = at + length;
    at = get_varint(at + 1, record->end, 64, &record->timestamp_delta);
    if (!at || !(at = get_varint(at, record->end, 32, &record->offset_delta)))
        return "a varint cut short or too long";
    if (!(at = get_field(at, record->end, &record->key, &record->key_bytes)))
        return "a key longer than its record";
    if (!(at = get_field(at, record->end, &record->value, &record->value_bytes)))
        return "a value longer than its record";
    at = get_varint(at, record->end, 32, &record->header_count);
    if (!at || record->header_count < 0 || record->header_count > (record->end - at) / 2)
        return "more headers than the record holds";
    if (!record->header_count && at != record->end)
        return "bytes at the end of a record";
    record->headers = at;
    return NULL;
}

/* A column of byte strings under construction, with room for every row and byte that is still to come, and for
 * COPY_STEP bytes more. */
typedef struct {
    uint8_t *validity; /* a bit for each row, all of them set to begin with */
    int32_t *ends;
    uint8_t *data;
    int64_t used;
    int64_t rows;
    int64_t nulls;
} CellsView;

/* Copy a short string by whole steps, a little beyond its end; that is faster than asking how to copy it best.
 * Nothing at or after `end` is read. */
RIVVEN_INLINE void copy_bytes(uint8_t *out, const uint8_t *data, int64_t length, const uint8_t *end)
{
    if (length > COPY_BYTES_MAX || end - data < length + COPY_STEP) {
        memcpy(out, data, (size_t)length);
        return;
    }
    for (int64_t place = 0; place < length; place += COPY_STEP)
        __builtin_memcpy(out + place, data + place, COPY_STEP);
}

/* `end` is where the bytes end that may be read, which may be behind the string. */
RIVVEN_INLINE void add_cell(CellsView *cells, const uint8_t *data, int64_t length, const uint8_t *end)
{
    int64_t row = cells->rows;
    if (length > 0) {
        copy_bytes(cells->data + cells->used, data, length, end);
        cells->used += length;
    } else if (length < 0) {
        cells->validity[row >> 3] &= (uint8_t) ~(1u << (row & 7));
        cells->nulls++;
    }
    cells->rows = row + 1;
    cells->ends[row + 1] = (int32_t)cells->used;
}

/* An Arrow array of numbers, byte strings or lists, by its addresses. */
typedef struct {
    const uint8_t *validity; /* NULL if nothing is missing */
    const void *first;       /* the numbers themselves, or where each string or list starts */
    const uint8_t *data;
    int64_t shift; /* where the array starts in its buffers */
    int present;   /* whether there is such a column at all */
    int wide;      /* 64 bits to a number instead of 32 */
} ColumnView;

RIVVEN_INLINE int64_t column_number(const ColumnView *column, int64_t row)
{
    row += column->shift;
    return column->wide ? ((const int64_t *)column->first)[row] : ((const int32_t *)column->first)[row];
}

RIVVEN_INLINE int column_missing(const ColumnView *column, int64_t row)
{
    row += column->shift;
    return !column->present || (column->validity && !(column->validity[row >> 3] >> (row & 7) & 1));
}

RIVVEN_INLINE void column_cell(const ColumnView *column, int64_t row, const uint8_t **at, int64_t *length)
{
    *at = NULL;
    *length = -1;
    if (!column_missing(column, row)) {
        int64_t start = column_number(column, row);
        *at = column->data + start;
        *length = column_number(column, row + 1) - start;
    }
}

RIVVEN_INLINE int ascii_only(const uint8_t *at, int64_t length)
{
    uint8_t all = 0;
    for (int64_t place = 0; place < length; place++)
        all |= at[place];
    return all < 0x80;
}

/* MurmurHash2 with the seed that every Kafka client uses. */
__attribute__((unused)) static int32_t murmur2_of(const uint8_t *at, size_t length)
{
    const uint32_t mix = 0x5bd1e995u;
    uint32_t state = 0x9747b28cu ^ (uint32_t)length, word;
    for (; length >= 4; at += 4, length -= 4) {
        word = ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24) * mix;
        state = (state * mix) ^ ((word ^ word >> 24) * mix);
    }
    if (length) {
        word = at[0];
        if (length > 1)
            word |= (uint32_t)at[1] << 8;
        if (length > 2)
            word |= (uint32_t)at[2] << 16;
        state = (state ^ word) * mix;
    }
    state = (state ^ state >> 13) * mix;
    return (int32_t)(state ^ state >> 15);
}

/* CRC-32C */

#define CRC_POLYNOMIAL 0x82f63b78u
#define CRC_LANE_BYTES 1024

static uint32_t crc_table[8][256];      /* eight bytes at a step, where the processor has no instruction */
static uint32_t crc_skip_table[4][256]; /* what one lane of zeros does to a CRC, per byte of it */
static int crc_hardware, crc_folds;
static uint64_t crc_fold_far[2], crc_fold_next[2]; /* what moves 16 bytes on by CRC_FOLD_BYTES, and by 16 */

static uint32_t crc_software(uint32_t crc, const uint8_t *at, size_t length)
{
    for (; length >= 8; at += 8, length -= 8) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = crc_table[7][crc & 0xff] ^ crc_table[6][crc >> 8 & 0xff] ^ crc_table[5][crc >> 16 & 0xff]
              ^ crc_table[4][crc >> 24] ^ crc_table[3][at[4]] ^ crc_table[2][at[5]] ^ crc_table[1][at[6]]
              ^ crc_table[0][at[7]];
    }
    while (length--)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *at++) & 0xff];
    return crc;
}

RIVVEN_INLINE uint32_t crc_skip(uint32_t crc)
{
    return crc_skip_table[0][crc & 0xff] ^ crc_skip_table[1][crc >> 8 & 0xff]
           ^ crc_skip_table[2][crc >> 16 & 0xff] ^ crc_skip_table[3][crc >> 24];
}

#if defined(__x86_64__)
/* The instruction takes three cycles but starts every cycle, so three lanes run side by side. */
__attribute__((target("sse4.2"))) static uint32_t crc_lanes(uint32_t crc, const uint8_t *at, size_t length)
{
    uint64_t first = crc, word;
    for (; length >= 3 * CRC_LANE_BYTES; at += 3 * CRC_LANE_BYTES, length -= 3 * CRC_LANE_BYTES) {
        uint64_t second = 0, third = 0;
        for (size_t place = 0; place < CRC_LANE_BYTES; place += 8) {
            uint64_t words[3];
            memcpy(&words[0], at + place, 8);
            memcpy(&words[1], at + place + CRC_LANE_BYTES, 8);
            memcpy(&words[2], at + place + 2 * CRC_LANE_BYTES, 8);
            first = __builtin_ia32_crc32di(first, words[0]);
            second = __builtin_ia32_crc32di(second, words[1]);
            third = __builtin_ia32_crc32di(third, words[2]);
        }
        first = crc_skip((uint32_t)first) ^ second;
        first = crc_skip((uint32_t)first) ^ third;
    }
    for (; length >= 8; at += 8, length -= 8) {
        memcpy(&word, at, 8);
        first = __builtin_ia32_crc32di(first, word);
    }
    crc = (uint32_t)first;
    while (length--)
        crc = __builtin_ia32_crc32qi(crc, *at++);
    return crc;
}
#endif

#if defined(__x86_64__)
/* Carry-less multiplication can do it too: it moves 16 bytes of the message over any distance, onto other bytes that the
 * whole then depends on alike. It runs beside the instruction for CRCs and is as fast, so each gets half of a block:
 * first what is folded, by 96 bytes at a step, then three lanes as above. */
#define CRC_FOLD_BYTES 96
#define CRC_BLOCK_BYTES (6 * CRC_LANE_BYTES)
#define CRC_TARGET __attribute__((target("avx2,pclmul,sse4.2,vpclmulqdq")))

CRC_TARGET RIVVEN_INLINE __m256i crc_fold(__m256i sum, __m256i by, const uint8_t *at)
{
    __m256i low = _mm256_clmulepi64_epi128(sum, by, 0x00), high = _mm256_clmulepi64_epi128(sum, by, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), _mm256_loadu_si256((const __m256i *)at));
}

CRC_TARGET RIVVEN_INLINE __m128i crc_fold_half(__m128i sum, __m128i by, __m128i onto)
{
    __m128i low = _mm_clmulepi64_si128(sum, by, 0x00), high = _mm_clmulepi64_si128(sum, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

CRC_TARGET RIVVEN_INLINE void crc_step(uint64_t lanes[3], const uint8_t *at)
{
    for (int lane = 0; lane < 3; lane++) {
        uint64_t word;
        memcpy(&word, at + lane * CRC_LANE_BYTES, 8);
        lanes[lane] = __builtin_ia32_crc32di(lanes[lane], word);
    }
}

CRC_TARGET static uint32_t crc_blocks(uint32_t crc, const uint8_t *at, size_t length)
{
    __m128i next = _mm_loadu_si128((const __m128i *)crc_fold_next);
    __m256i far = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)crc_fold_far));
    for (; length >= CRC_BLOCK_BYTES; at += CRC_BLOCK_BYTES, length -= CRC_BLOCK_BYTES) {
        const uint8_t *folded = at, *laned = at + 3 * CRC_LANE_BYTES;
        uint64_t lanes[3] = {0, 0, 0};
        __m256i first = _mm256_loadu_si256((const __m256i *)folded);
        __m256i second = _mm256_loadu_si256((const __m256i *)(folded + 32));
        __m256i third = _mm256_loadu_si256((const __m256i *)(folded + 64));
        first = _mm256_xor_si256(first, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc)));
        for (int place = 32; place < CRC_LANE_BYTES; place += 32) {
            folded += CRC_FOLD_BYTES;
            crc_step(lanes, laned + place - 32);
            first = crc_fold(first, far, folded);
            crc_step(lanes, laned + place - 24);
            second = crc_fold(second, far, folded + 32);
            crc_step(lanes, laned + place - 16);
            third = crc_fold(third, far, folded + 64);
            crc_step(lanes, laned + place - 8);
        }
        for (int place = CRC_LANE_BYTES - 32; place < CRC_LANE_BYTES; place += 8)
            crc_step(lanes, laned + place);
        __m128i sum = _mm256_castsi256_si128(first);
        sum = crc_fold_half(sum, next, _mm256_extracti128_si256(first, 1));
        sum = crc_fold_half(sum, next, _mm256_castsi256_si128(second));
        sum = crc_fold_half(sum, next, _mm256_extracti128_si256(second, 1));
        sum = crc_fold_half(sum, next, _mm256_castsi256_si128(third));
        sum = crc_fold_half(sum, next, _mm256_extracti128_si256(third, 1));
        crc = (uint32_t)__builtin_ia32_crc32di(
            __builtin_ia32_crc32di(0, (uint64_t)_mm_cvtsi128_si64(sum)), (uint64_t)_mm_extract_epi64(sum, 1));
        for (int lane = 0; lane < 3; lane++)
            crc = crc_skip(crc) ^ (uint32_t)lanes[lane];
    }
    return crc_lanes(crc, at, length);
}

/* What to multiply with to move something `bits` on: that power of x, with the bits of a CRC in their mirrored order. */
static uint64_t crc_power(int bits)
{
    uint32_t power = 0x80000000u;
    while (bits--)
        power = power >> 1 ^ (power & 1 ? CRC_POLYNOMIAL : 0);
    return (uint64_t)power << 1;
}
#endif

__attribute__((unused)) static uint32_t crc32c_of(uint32_t crc, const uint8_t *at, size_t length)
{
    crc = ~crc;
#if defined(__x86_64__)
    if (crc_folds && length >= CRC_BLOCK_BYTES)
        return ~crc_blocks(crc, at, length);
    if (crc_hardware)
        return ~crc_lanes(crc, at, length);
#endif
    return ~crc_software(crc, at, length);
}

/* A CRC is a polynomial, and bytes behind it multiply it: here with each other, by the rule that bits are mirrored. */
static uint32_t crc_times(uint32_t left, uint32_t right)
{
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
        if (left & bit)
            product ^= right;
        right = right >> 1 ^ (right & 1 ? CRC_POLYNOMIAL : 0);
    }
    return product;
}

/* How the CRC of a message changes with that of its first part, which has `rest` bytes behind it. */
__attribute__((unused)) static uint32_t crc_moved_on(uint32_t change, size_t rest)
{
    uint32_t power = 0x00800000u; /* x to the eighth: one byte on */
    for (; rest; rest >>= 1, power = crc_times(power, power))
        if (rest & 1)
            change = crc_times(change, power);
    return change;
}

/* By each way there is here, one after the other, the plainest first; how many there are. For tests. */
__attribute__((unused)) static int crc_each_way(uint32_t crc, const uint8_t *at, size_t length, uint32_t found[3])
{
    int ways = 0;
    found[ways++] = ~crc_software(~crc, at, length);
#if defined(__x86_64__)
    if (crc_hardware)
        found[ways++] = ~crc_lanes(~crc, at, length);
    if (crc_folds)
        found[ways++] = ~crc_blocks(~crc, at, length);
#endif
    return ways;
}

__attribute__((unused)) static void crc_init(void)
{
    static const uint8_t zeros[CRC_LANE_BYTES];
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC_POLYNOMIAL : 0);
        crc_table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int step = 1; step < 8; step++)
            crc_table[step][byte] = crc_table[step - 1][byte] >> 8 ^ crc_table[0][crc_table[step - 1][byte] & 0xff];
    for (int place = 0; place < 4; place++)
        for (uint32_t byte = 0; byte < 256; byte++)
            crc_skip_table[place][byte] = crc_software(byte << 8 * place, zeros, CRC_LANE_BYTES);
#if defined(__x86_64__)
    __builtin_cpu_init();
    crc_hardware = __builtin_cpu_supports("sse4.2");
    crc_folds = crc_hardware && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul")
                && __builtin_cpu_supports("vpclmulqdq");
    crc_fold_far[0] = crc_power(8 * CRC_FOLD_BYTES + 32);
    crc_fold_far[1] = crc_power(8 * CRC_FOLD_BYTES - 32);
    crc_fold_next[0] = crc_power(8 * 16 + 32);
    crc_fold_next[1] = crc_power(8 * 16 - 32);
#endif
}

#endif

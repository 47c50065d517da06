"""The native twin of `pure`: the same functions, the same bytes, the same refusals, at C speed.

Invariant: no read passes the end of the buffer it was given, whatever the bytes say. Reasons are worded by
`header`, which holds the same rules; where the two disagree it is this one that is wrong.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from rivven.errors import Malformed
from rivven.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX

from .header import CODEC_MASK, CONTROL, TRANSACTIONAL, BatchHeader, Record, crc_fault, fault


cdef extern from "_kernel.h" nogil:
    enum:
        RECORD_ROOM
    const int64_t INT64_MAX
    ctypedef struct RecordView:
        int64_t timestamp_delta
        int64_t offset_delta
        const uint8_t *key
        int64_t key_bytes
        const uint8_t *value
        int64_t value_bytes
        int64_t header_count
        const uint8_t *headers
        const uint8_t *end
    uint32_t load32(const uint8_t *at)
    uint64_t load64(const uint8_t *at)
    int load16(const uint8_t *at)
    int64_t field_bytes(int64_t length)
    uint8_t *put_field(uint8_t *out, const uint8_t *data, int64_t length)
    uint8_t *put_record(uint8_t *out, const RecordView *record, int64_t headers_bytes)
    const uint8_t *get_field(const uint8_t *at, const uint8_t *end, const uint8_t **data, int64_t *length)
    const char *get_record(const uint8_t *at, const uint8_t *end, RecordView *record)
    int32_t murmur2_of(const uint8_t *at, size_t length)
    uint32_t crc32c_of(uint32_t crc, const uint8_t *at, size_t length)
    int crc_each_way(uint32_t crc, const uint8_t *at, size_t length, uint32_t *found)
    uint32_t crc_moved_on(uint32_t change, size_t rest)
    void crc_init()


cdef extern from *:
    """
    /* A record holds numbers, byte strings and tuples of them, so it is never part of a cycle and is left
       untracked: a collector that walks a million of them would find nothing. */
    static inline PyObject *rivven_new_tuple(PyTypeObject *type, Py_ssize_t length)
    {
        PyTupleObject *made = PyObject_GC_NewVar(PyTupleObject, type, length);
        if (!made)
            return NULL;
        memset(made->ob_item, 0, (size_t)length * sizeof(PyObject *));
    #if PY_VERSION_HEX >= 0x030E0000
        made->ob_hash = -1;
    #endif
        return (PyObject *)made;
    }

    /* Records come and go by the batch, and memory that goes all at once is given back to the system, to be cleared
       anew for the next batch: half of what decoding costs. So the last records to die leave their tuples here,
       which is what `tuple` does for its own and denies to a type made from it. */
    #define RECORD_FIELDS 5
    #define RECORDS_SPARED_MAX 8192

    #if defined(Py_GIL_DISABLED) || PY_VERSION_HEX >= 0x030E0000
    #define rivven_new_record(type) rivven_new_tuple(type, RECORD_FIELDS)
    #define rivven_spare_records(type) ((void)(type))
    #else
    static PyTypeObject *record_type;
    static PyObject *records_spared[RECORDS_SPARED_MAX];
    static Py_ssize_t records_spared_count;

    static inline PyObject *rivven_new_record(PyTypeObject *type)
    {
        if (!records_spared_count)
            return rivven_new_tuple(type, RECORD_FIELDS);
        return (PyObject *)PyObject_InitVar((PyVarObject *)records_spared[--records_spared_count], type, RECORD_FIELDS);
    }

    static void record_dealloc(PyObject *self)
    {
        PyTypeObject *type = Py_TYPE(self);
        PyObject_GC_UnTrack(self);
        Py_TRASHCAN_BEGIN(self, record_dealloc)
        for (Py_ssize_t place = Py_SIZE(self); --place >= 0;)
            Py_CLEAR(((PyTupleObject *)self)->ob_item[place]);
        if (type == record_type && Py_SIZE(self) == RECORD_FIELDS && records_spared_count < RECORDS_SPARED_MAX)
            records_spared[records_spared_count++] = self;
        else
            type->tp_free(self);
        Py_DECREF(type);
        Py_TRASHCAN_END
    }

    /* `Record` has no slot, dictionary or finalizer beyond a tuple's, so this does all that its own would do. A type
       made from it comes by here as well, once it has seen to what is its own. */
    static void rivven_spare_records(PyTypeObject *type)
    {
        record_type = type;
        type->tp_dealloc = record_dealloc;
    }
    #endif
    #define rivven_set(tuple, place, item) (((PyTupleObject *)(tuple))->ob_item[place] = (item))
    """
    object rivven_new_tuple(PyTypeObject *kind, Py_ssize_t length)
    object rivven_new_record(PyTypeObject *kind)
    void rivven_spare_records(PyTypeObject *kind)
    void rivven_set(object made, Py_ssize_t place, PyObject *item)
    PyObject *new_long "PyLong_FromLongLong"(long long value) except NULL
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t length) except NULL
    PyObject *borrowed_none "Py_None"
    bint is_tuple "PyTuple_CheckExact"(PyObject *item) noexcept
    bint is_bytes "PyBytes_CheckExact"(PyObject *item) noexcept
    bint is_int "PyLong_CheckExact"(PyObject *item) noexcept
    PyObject *tuple_item "PyTuple_GET_ITEM"(PyObject *item, Py_ssize_t place) noexcept
    Py_ssize_t tuple_length "PyTuple_GET_SIZE"(PyObject *item) noexcept
    const uint8_t *bytes_at "(const uint8_t *)PyBytes_AS_STRING"(PyObject *item) noexcept
    Py_ssize_t bytes_length "PyBytes_GET_SIZE"(PyObject *item) noexcept
    void incref "Py_INCREF"(PyObject *item)


crc_init()

cdef int HEADER_BYTES = 61
cdef int PREFIX_BYTES = 12
cdef int CRC_FROM = 21
cdef int LOG_APPEND_TIME = 0x08
cdef int RECORD_BYTES_MIN = 7
cdef int CODEC_BITS = CODEC_MASK
cdef int NOT_PLAIN = CONTROL | TRANSACTIONAL
cdef int64_t _BATCH_BYTES_MAX = BATCH_BYTES_MAX
cdef int64_t _BATCH_RECORDS_MAX = BATCH_RECORDS_MAX
cdef object _RECORD = Record
cdef object _HEADER = BatchHeader
cdef PyTypeObject *RECORD = <PyTypeObject *>_RECORD
cdef PyTypeObject *HEADER = <PyTypeObject *>_HEADER
cdef tuple NO_HEADERS = ()

rivven_spare_records(RECORD)


cdef class Span:
    """A buffer held open for the length of one call."""

    cdef Py_buffer buffer
    cdef const uint8_t *at
    cdef Py_ssize_t length

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)
        self.at = <const uint8_t *>self.buffer.buf
        self.length = self.buffer.len

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


def crc32c(data, uint32_t crc=0):
    cdef Span span = Span(data)
    return crc32c_of(crc, span.at, span.length)


def crc32c_each_way(data, uint32_t crc=0):
    """By each way that this processor knows; they agree."""
    cdef Span span = Span(data)
    cdef uint32_t found[3]
    cdef int ways = crc_each_way(crc, span.at, span.length, found)
    return [found[way] for way in range(ways)]


def crc_between(buffer, Py_ssize_t start, Py_ssize_t end):
    """The CRC of a part of the buffer, which must lie inside it."""
    cdef Span span = Span(buffer)
    if not 0 <= start <= end <= span.length:  # not an assert: memory is at stake, with -O too
        raise AssertionError("the part lies inside the buffer")
    return crc32c_of(0, span.at + start, end - start)


def crc_changed(uint32_t crc, before, after, size_t rest):
    """The CRC of a message whose first bytes have changed, with `rest` bytes behind them that nobody has to look at."""
    if len(before) != len(after):
        raise AssertionError("as many bytes as before")
    return crc ^ crc_moved_on(crc32c(before) ^ crc32c(after), rest)


# Batches


cdef inline int64_t batch_bytes(const uint8_t *at) noexcept nogil:
    return <int64_t><int32_t>load32(at + 8) + PREFIX_BYTES


cdef inline int32_t last_offset_delta(const uint8_t *at) noexcept nogil:
    return <int32_t>load32(at + 23)


cdef inline bint sound(const uint8_t *at) noexcept nogil:
    """The rules of `header.fault`, on the 61 bytes themselves."""
    cdef int64_t base_offset = <int64_t>load64(at)
    cdef int64_t last_delta = last_offset_delta(at)
    cdef int64_t count = <int32_t>load32(at + 57)
    return (
        at[16] == 2
        and HEADER_BYTES <= batch_bytes(at) <= _BATCH_BYTES_MAX
        and at[22] & 7 <= 4
        and 0 <= base_offset <= INT64_MAX - <int64_t>2147483648
        and last_delta >= 0
        and 0 <= count <= last_delta + 1
        and count <= _BATCH_RECORDS_MAX
    )


cdef inline PyObject *number(const uint8_t *at, int length) except NULL:
    if length == 8:
        return new_long(<int64_t>load64(at))
    if length == 4:
        return new_long(<int32_t>load32(at))
    return new_long(<short>load16(at))


cdef object header_from(const uint8_t *at):
    made = rivven_new_tuple(HEADER, 13)
    rivven_set(made, 0, number(at, 8))
    rivven_set(made, 1, number(at + 8, 4))
    rivven_set(made, 2, number(at + 12, 4))
    rivven_set(made, 3, new_long(<signed char>at[16]))
    rivven_set(made, 4, new_long(load32(at + 17)))
    rivven_set(made, 5, number(at + 21, 2))
    rivven_set(made, 6, number(at + 23, 4))
    rivven_set(made, 7, number(at + 27, 8))
    rivven_set(made, 8, number(at + 35, 8))
    rivven_set(made, 9, number(at + 43, 8))
    rivven_set(made, 10, number(at + 51, 2))
    rivven_set(made, 11, number(at + 53, 4))
    rivven_set(made, 12, number(at + 57, 4))
    return made


cdef object nonsense(const uint8_t *at):
    return Malformed(what="batch", reason=fault(header_from(at)))


cdef inline void store(uint8_t *at, uint64_t value, int length) noexcept nogil:
    while length:
        length -= 1
        at[length] = <uint8_t>value
        value >>= 8


def complete_plain(built):
    """The batch that a `BatchBuilder` gave, with a header of neither codec nor numbers before its records; and that
    header, which whoever appends the batch needs next."""
    cdef bytearray batch = built[0]
    cdef int32_t count = built[1]
    cdef int64_t base_ms = built[3], max_ms = built[4]
    cdef uint8_t *at = <uint8_t *>PyByteArray_AS_STRING(batch)
    cdef Py_ssize_t length = PyByteArray_GET_SIZE(batch)
    if length < HEADER_BYTES:  # not an assert: memory is at stake, with -O too
        raise AssertionError("there is room for the header")
    memset(at, 0xFF, HEADER_BYTES)
    store(at, 0, 8)
    store(at + 8, <uint64_t>(length - PREFIX_BYTES), 4)
    at[16] = 2
    store(at + 21, 0, 2)
    store(at + 23, <uint64_t>(count - 1), 4)
    store(at + 27, <uint64_t>base_ms, 8)
    store(at + 35, <uint64_t>max_ms, 8)
    store(at + 57, <uint64_t>count, 4)
    store(at + 17, crc32c_of(0, at + CRC_FROM, length - CRC_FROM), 4)
    if not sound(at):
        raise nonsense(at)
    return batch, header_from(at)


def parse_header(buffer, Py_ssize_t position=0):
    """The header at `position`; `Malformed` if there is none. The rest of the batch need not be there yet."""
    cdef Span span = Span(buffer)
    if position < 0 or span.length - position < HEADER_BYTES:
        raise Malformed(what="batch", reason=f"no {HEADER_BYTES} bytes of header at position {position}")
    if not sound(span.at + position):
        raise nonsense(span.at + position)
    return header_from(span.at + position)


def checked_header(buffer, Py_ssize_t position, int64_t bytes_max):
    """The header of a batch that is all there, within the limit and true to its CRC; None where it is not."""
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef int64_t whole, left
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        left = view.len - position
        at = <const uint8_t *>view.buf + position
        if position < 0 or left < HEADER_BYTES or not sound(at):
            return None
        whole = batch_bytes(at)
        if whole > bytes_max or whole > left:
            return None
        if crc32c_of(0, at + CRC_FROM, <size_t>(whole - CRC_FROM)) != load32(at + 17):
            return None
        return header_from(at)
    finally:
        PyBuffer_Release(&view)


def plain_run(buffer, list ends, int64_t bytes_max):
    """How many records there are in batches that stand end to end, each up to one of the `ends`, and whether any of
    them is compressed. None unless every one is whole, within the limit and true to its CRC, has a record at each of
    its offsets, and is nobody's: neither numbered by a producer nor part of a transaction."""
    cdef Span span = Span(buffer)
    cdef const uint8_t *at = span.at
    cdef int64_t begin = 0, end, records = 0
    cdef int attributes, seen = 0
    for each in ends:
        end = each
        if end > span.length or end - begin < HEADER_BYTES or end - begin > bytes_max:
            return None
        at = span.at + begin
        attributes = at[21] << 8 | at[22]
        if (
            not sound(at)
            or batch_bytes(at) != end - begin
            or attributes & NOT_PLAIN
            or <int64_t>load64(at + 43) >= 0
            or <int64_t><int32_t>load32(at + 57) != <int64_t>last_offset_delta(at) + 1
            or crc32c_of(0, at + CRC_FROM, <size_t>(end - begin - CRC_FROM)) != load32(at + 17)
        ):
            return None
        seen |= attributes
        records += <int64_t>last_offset_delta(at) + 1
        begin = end
    return (records, (seen & CODEC_BITS) != 0) if begin == span.length else None


def scan(buffer, Py_ssize_t position, Py_ssize_t end, *, bint verify, bint dense=False):
    """Walk whole batches up to `end`: (end of the last good one, the offset after it or -1, why it stopped early).

    With `dense` each batch must begin where the one before it ends. The reason is None when the walk ran out of whole batches. Nothing that the bytes hold makes it raise.
    """
    cdef Span span = Span(buffer)
    cdef int64_t next_offset = -1, base_offset, length
    cdef uint32_t found
    cdef const uint8_t *at
    end = min(end, span.length)
    while position >= 0 and end - position >= HEADER_BYTES:
        at = span.at + position
        if not sound(at):
            return position, next_offset, fault(header_from(at))
        length = batch_bytes(at)
        if length > end - position:
            break
        base_offset = <int64_t>load64(at)
        if base_offset < next_offset:
            return position, next_offset, f"base offset {base_offset} after offset {next_offset - 1}"
        if dense and next_offset >= 0 and base_offset != next_offset:
            return position, next_offset, f"base offset {base_offset} where {next_offset} is due"
        if verify:
            found = crc32c_of(0, at + CRC_FROM, length - CRC_FROM)
            if found != load32(at + 17):
                return position, next_offset, crc_fault(load32(at + 17), found)
        position += length
        next_offset = base_offset + last_offset_delta(at) + 1
    return position, next_offset, None


def seek(buffer, Py_ssize_t position, int64_t offset):
    """Where the first whole batch stands that ends at or after `offset`; -1 if none does.

    `Malformed` if nonsense stands before it.
    """
    cdef Span span = Span(buffer)
    cdef const uint8_t *at
    while position >= 0 and span.length - position >= HEADER_BYTES:
        at = span.at + position
        if not sound(at):
            raise nonsense(at)
        if batch_bytes(at) > span.length - position:
            break
        if <int64_t>load64(at) + last_offset_delta(at) >= offset:
            return position
        position += batch_bytes(at)
    return -1


def fit(buffer, Py_ssize_t position, int64_t bytes_max):
    """The end of the whole batches within `bytes_max` of `position`; the first one counts however long it is.

    `position` itself if not one whole batch is there; `Malformed` if nonsense is.
    """
    cdef Span span = Span(buffer)
    cdef Py_ssize_t start = position, end
    while position >= 0 and span.length - position >= HEADER_BYTES:
        if not sound(span.at + position):
            if position == start:
                raise nonsense(span.at + position)
            break
        end = position + batch_bytes(span.at + position)
        if end > span.length or (position > start and end - start > bytes_max):
            break
        position = end
    return position


# Records to bytes


cdef class Writer:
    """A bytearray that grows as records are put into it, with room for a header in front."""

    cdef bytearray made
    cdef Py_ssize_t used
    cdef Py_ssize_t room

    def __cinit__(self, Py_ssize_t room):
        self.made = bytearray()
        self.used = HEADER_BYTES
        self.room = room + HEADER_BYTES
        PyByteArray_Resize(self.made, self.room)

    cdef inline uint8_t *reserve(self, int64_t length) except NULL:
        if self.room - self.used < length:
            self.grow(length)
        return <uint8_t *>PyByteArray_AS_STRING(self.made) + self.used

    cdef int grow(self, int64_t length) except -1:
        self.room = self.used + length + (self.used + length) // 4
        PyByteArray_Resize(self.made, self.room)
        return 0

    cdef bytearray finish(self):
        PyByteArray_Resize(self.made, self.used)
        return self.made

    cdef inline int put_plain(self, const RecordView *record) except -1:
        """One record without headers."""
        cdef uint8_t *out
        out = self.reserve(RECORD_ROOM + max(record.key_bytes, 0) + max(record.value_bytes, 0))
        out = put_record(out, record, 0)
        self.used = out - <uint8_t *>PyByteArray_AS_STRING(self.made)
        return 0

    cdef int put(self, RecordView *record, key, value, headers) except -1:
        """One record, whose deltas `record` holds already."""
        cdef uint8_t *out
        cdef int64_t headers_bytes = 0
        key = field(key, &record.key, &record.key_bytes)
        value = field(value, &record.value, &record.value_bytes)
        record.header_count = 0
        if headers is not NO_HEADERS:
            headers = [(text.encode(), plain(header_value)) for text, header_value in headers]
            record.header_count = len(headers)
            headers_bytes = headers_length(headers)
        out = self.reserve(RECORD_ROOM + max(record.key_bytes, 0) + max(record.value_bytes, 0) + headers_bytes)
        out = put_record(out, record, headers_bytes)
        if record.header_count:
            out = put_headers(out, headers)
        self.used = out - <uint8_t *>PyByteArray_AS_STRING(self.made)
        return 0


cdef inline bint point_at(PyObject *data, const uint8_t **at, int64_t *length) noexcept:
    """Point at the bytes of a key or value, unless it is of some other type than most are."""
    if is_bytes(data):
        at[0] = bytes_at(data)
        length[0] = bytes_length(data)
        return True
    at[0] = NULL
    length[0] = -1
    return data == borrowed_none


cdef inline bint point_at_plain(PyObject *item, RecordView *record) noexcept:
    """Point at key and value of a tuple of the types that most records have: nothing of it need be converted or kept,
    as the tuple keeps them. If it is any other, False."""
    if not is_tuple(item) or tuple_length(item) != 4 or tuple_item(item, 3) != <PyObject *>NO_HEADERS:
        return False
    record.header_count = 0
    return (
        is_int(tuple_item(item, 0))
        and point_at(tuple_item(item, 1), &record.key, &record.key_bytes)
        and point_at(tuple_item(item, 2), &record.value, &record.value_bytes)
    )


cdef inline object field(data, const uint8_t **at, int64_t *length):
    """Point at the bytes of a key or value; the returned object is what keeps them there."""
    if data is None:
        at[0] = NULL
        length[0] = -1
        return None
    if not PyBytes_CheckExact(data):
        data = plain(data)
    at[0] = <const uint8_t *>PyBytes_AS_STRING(data)
    length[0] = PyBytes_GET_SIZE(data)
    return data


cdef object plain(data):
    return data if data is None or PyBytes_CheckExact(data) else bytes(memoryview(data))


cdef int64_t headers_length(list headers) except -1:
    cdef int64_t total = 0
    for name, value in headers:
        total += field_bytes(len(name)) + field_bytes(-1 if value is None else len(value))
    return total


cdef uint8_t *put_headers(uint8_t *out, list headers) except NULL:
    cdef const uint8_t *at = NULL
    cdef int64_t length = 0
    for name, value in headers:
        out = put_field(out, <const uint8_t *>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        field(value, &at, &length)
        out = put_field(out, at, length)
    return out


cdef int64_t between(int64_t later_ms, int64_t earlier_ms) except? -1:
    """Their distance, which need not fit into 64 bits though both do."""
    if (earlier_ms < 0 and later_ms > INT64_MAX + earlier_ms) or (
        earlier_ms > 0 and later_ms < -INT64_MAX - 1 + earlier_ms
    ):
        raise OverflowError(
            f"a timestamp {int(later_ms) - int(earlier_ms)} ms from the batch's first does not fit into 64 bits"
        )
    return later_ms - earlier_ms


cdef inline int64_t whole(number) except? -1:
    """A C number of a Python one, but not of a float, which would lose its fraction in silence."""
    if not isinstance(number, int):
        raise TypeError(f"a timestamp is a whole number of milliseconds, not {number!r}")
    return number


def encode_records(records):
    """The records after room for a header, with the base and the maximum timestamp of the batch."""
    cdef tuple items = tuple(records), item
    cdef Py_ssize_t place, count = len(items)
    cdef RecordView record
    cdef int64_t base_ms = whole(items[0][0]), max_ms = base_ms, timestamp_ms
    cdef bint plain_item
    cdef Writer writer = Writer(count * (RECORD_ROOM + likely_bytes(items[0])))
    for place in range(count):
        plain_item = point_at_plain(tuple_item(<PyObject *>items, place), &record)
        if plain_item:
            timestamp_ms = <object>tuple_item(tuple_item(<PyObject *>items, place), 0)
        else:
            item = items[place] if type(items[place]) is tuple else tuple(items[place])
            if PyTuple_GET_SIZE(item) != 4:
                raise ValueError(f"a record is (timestamp_ms, key, value, headers), not {len(item)} values")
            timestamp_ms = whole(<object>PyTuple_GET_ITEM(item, 0))
        if timestamp_ms > max_ms:
            max_ms = timestamp_ms
        record.timestamp_delta = between(timestamp_ms, base_ms)
        record.offset_delta = place
        if plain_item:
            writer.put_plain(&record)
        else:
            writer.put(
                &record,
                <object>PyTuple_GET_ITEM(item, 1),
                <object>PyTuple_GET_ITEM(item, 2),
                <object>PyTuple_GET_ITEM(item, 3),
            )
    return writer.finish(), base_ms, max_ms


cdef Py_ssize_t likely_bytes(record) except -1:
    """What a record like the first one takes: batches are of a kind, so this mostly saves growing."""
    _, key, value, _ = record
    return min(len(key or b"") + len(value or b""), 4096)


def encode_kept(records, int64_t base_offset, int64_t base_timestamp_ms):
    """Records at the offsets they have, after room for a header."""
    cdef RecordView record
    cdef Writer writer = Writer(0)
    for offset, timestamp_ms, key, value, headers in records:
        record.timestamp_delta = between(timestamp_ms, base_timestamp_ms)
        record.offset_delta = <int64_t>offset - base_offset
        writer.put(&record, key, value, headers)
    return writer.finish()


# Bytes to records


def decode_records(body, Py_ssize_t start, Py_ssize_t end, header):
    """The records of one batch from its unpacked bytes; `Malformed` unless they fill them exactly."""
    cdef Span span = Span(body)
    if not 0 <= start <= end <= span.length:
        raise AssertionError("the records lie inside the buffer")
    cdef const uint8_t *at = span.at + start
    cdef const uint8_t *stop = span.at + end
    cdef int64_t base_offset = header[0], last_delta = header[6], base_ms = header[7], max_ms = header[8]
    cdef Py_ssize_t count = header[12], place
    cdef bint appended = header[5] & LOG_APPEND_TIME
    cdef int64_t delta = -1, timestamp_ms, known_ms = 0
    cdef object known = None
    cdef RecordView view
    cdef const char *wrong
    if count * RECORD_BYTES_MIN > end - start:
        raise bad(f"{count} records do not fit into {end - start} bytes")
    cdef list records = PyList_New(count)
    for place in range(count):
        wrong = get_record(at, stop, &view)
        if wrong != NULL:
            raise bad(wrong.decode())
        if not delta < view.offset_delta <= last_delta:
            raise bad(f"offset delta {view.offset_delta} after {delta}, of at most {last_delta}")
        delta = view.offset_delta
        if appended:
            timestamp_ms = max_ms
        else:
            timestamp_ms = <int64_t>(<uint64_t>base_ms + <uint64_t>view.timestamp_delta)
            if (timestamp_ms < base_ms) != (view.timestamp_delta < 0):
                raise bad("a timestamp beyond 64 bits")
        if place == 0 or timestamp_ms != known_ms:  # neighbours mostly share theirs, so they share the number
            known, known_ms = timestamp_ms, timestamp_ms
        record = record_from(&view, base_offset + delta, known)
        Py_INCREF(record)
        PyList_SET_ITEM(records, place, record)
        at = view.end
    if at != stop:
        raise bad(f"{stop - at} bytes after the last record")
    return records


cdef inline object record_from(RecordView *view, int64_t offset, timestamp_ms):
    made = rivven_new_record(RECORD)
    rivven_set(made, 0, new_long(offset))
    Py_INCREF(timestamp_ms)
    rivven_set(made, 1, <PyObject *>timestamp_ms)
    rivven_set(made, 2, bytes_or_none(view.key, view.key_bytes))
    rivven_set(made, 3, bytes_or_none(view.value, view.value_bytes))
    headers = NO_HEADERS if view.header_count == 0 else headers_from(view)
    Py_INCREF(headers)
    rivven_set(made, 4, <PyObject *>headers)
    return made


cdef inline PyObject *bytes_or_none(const uint8_t *at, int64_t length) except NULL:
    if length < 0:
        incref(borrowed_none)
        return borrowed_none
    return new_bytes(<const char *>at, length)


cdef tuple headers_from(RecordView *view):
    cdef const uint8_t *at = view.headers
    cdef const uint8_t *name = NULL
    cdef const uint8_t *value = NULL
    cdef int64_t place, name_bytes = 0, value_bytes = 0
    cdef list headers = []
    for place in range(view.header_count):
        at = get_field(at, view.end, &name, &name_bytes)
        if at != NULL:
            at = get_field(at, view.end, &value, &value_bytes)
        if at == NULL:
            raise bad("a header longer than its record")
        if name_bytes < 0:
            raise bad("a header without a name")
        headers.append((text_from(name, name_bytes), None if value_bytes < 0 else value[:value_bytes]))
    if at != view.end:
        raise bad(f"{view.end - at} bytes at the end of a record")
    return tuple(headers)


cdef str text_from(const uint8_t *at, int64_t length):
    try:
        return at[:length].decode("utf-8")
    except UnicodeDecodeError:
        raise bad("a header name that is not UTF-8") from None


cdef object bad(str reason):
    return Malformed(what="records", reason=reason)


# Keys to partitions


def murmur2(data):
    """MurmurHash2 with the seed that every Kafka client uses, as a signed 32-bit number."""
    cdef Span span = Span(data)
    return murmur2_of(span.at, span.length)

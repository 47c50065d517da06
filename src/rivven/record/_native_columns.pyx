"""The native twin of `pure_columns`: no Python object per record in either direction.

Invariant: room for a whole batch is made in every column before its first record is taken, so the inner loop only
writes; and no read passes the end of the bytes it was given.
"""

from functools import cache, partial

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset

from rivven.errors import BatchTooLarge, Malformed

from ._native import crc_between, parse_header
from .header import crc_fault
from .pure_columns import COLUMN_BYTES_MAX, Binary, Columns


cdef extern from "_kernel.h" nogil:
    enum:
        RECORD_ROOM
    const int64_t INT64_MAX
    const int64_t INT64_MIN
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
    int64_t field_bytes(int64_t length)
    int64_t record_length(const RecordView *record, int64_t headers_bytes)
    uint8_t *put_field(uint8_t *out, const uint8_t *data, int64_t length)
    uint8_t *put_record(uint8_t *out, const RecordView *record, int64_t headers_bytes)
    const uint8_t *get_field(const uint8_t *at, const uint8_t *end, const uint8_t **data, int64_t *length)
    const char *get_record(const uint8_t *at, const uint8_t *end, RecordView *record)
    enum:
        COPY_STEP
    ctypedef struct CellsView:
        uint8_t *validity
        int32_t *ends
        uint8_t *data
        int64_t used
        int64_t rows
        int64_t nulls
    void add_cell(CellsView *cells, const uint8_t *data, int64_t length, const uint8_t *end)
    ctypedef struct ColumnView:
        const uint8_t *validity
        const void *first
        const uint8_t *data
        int64_t shift
        bint present
        bint wide
    int64_t column_number(const ColumnView *column, int64_t row)
    bint column_missing(const ColumnView *column, int64_t row)
    void column_cell(const ColumnView *column, int64_t row, const uint8_t **at, int64_t *length)
    bint ascii_only(const uint8_t *at, int64_t length)


cdef int HEADER_BYTES = 61
cdef int CRC_FROM = 21
cdef int CONTROL = 0x20
cdef int LOG_APPEND_TIME = 0x08
cdef int RECORD_BYTES_MIN = 7
cdef int64_t _COLUMN_BYTES_MAX = COLUMN_BYTES_MAX
cdef const uint8_t[::1] NOTHING = b"\0"


cdef inline const uint8_t *start_of(const uint8_t[::1] data) noexcept:
    """Where the bytes are; somewhere harmless if there are none."""
    return &data[0] if data.shape[0] else &NOTHING[0]


# Batches to columns


cdef class Growing:
    """A buffer written through a pointer. Whoever writes has reserved the room.

    With `allocate` it is Arrow's, whose pool keeps pages that the system would have to clear anew for every fetch;
    otherwise it is a bytearray.
    """

    cdef object allocate
    cdef object made
    cdef uint8_t *at
    cdef Py_ssize_t room
    cdef Py_ssize_t expected  # how many bytes there will be in all, if that is known: growing means copying

    def __cinit__(self, allocate=None):
        self.allocate = allocate
        self.expected = 0
        self.made = bytearray() if allocate is None else b""
        self.room = 0
        self.at = NULL

    cdef int reserve(self, Py_ssize_t total, int fill) except -1:
        """Room for `total` bytes in all; what is new is set to `fill`, unless that is negative."""
        cdef Py_ssize_t before = self.room
        if total <= before:
            return 0
        self.room = max(total, self.expected) if before == 0 else max(total, before + before // 2)
        if self.allocate is None:
            PyByteArray_Resize(self.made, self.room)
            self.at = <uint8_t *>PyByteArray_AS_STRING(self.made)
        elif before == 0:
            self.made = self.allocate(self.room)
            self.at = <uint8_t *>address(self.made)
        else:
            self.made.resize(self.room)
            self.at = <uint8_t *>address(self.made)
        if fill >= 0:
            memset(self.at + before, fill, self.room - before)
        return 0

    cdef object finish(self, Py_ssize_t used):
        if self.allocate is None:
            PyByteArray_Resize(self.made, used)
        elif self.room:
            self.made.resize(used, shrink_to_fit=used < self.room // 2)
        return self.made


cdef class Cells:
    """A column of byte strings under construction."""

    cdef Growing validity
    cdef Growing ends
    cdef Growing data
    cdef CellsView view

    def __cinit__(self, allocate):
        self.validity, self.ends, self.data = Growing(allocate), Growing(allocate), Growing(allocate)
        memset(&self.view, 0, sizeof(CellsView))

    cdef int reserve(self, Py_ssize_t rows, int64_t length) except -1:
        """Room for that many more rows with that many more bytes among them."""
        cdef CellsView *view = &self.view
        if view.used + length > _COLUMN_BYTES_MAX:
            raise BatchTooLarge(batch_bytes=view.used + length, bytes_max=COLUMN_BYTES_MAX)
        self.validity.reserve((view.rows + rows + 7) // 8, 0xFF)
        self.ends.reserve((view.rows + rows + 1) * 4, -1)
        self.data.reserve(view.used + length + COPY_STEP, -1)
        view.validity, view.ends, view.data = self.validity.at, <int32_t *>self.ends.at, self.data.at
        view.ends[0] = 0
        return 0

    cdef object finish(self):
        cdef CellsView *view = &self.view
        self.reserve(0, 0)
        validity = self.validity.finish((view.rows + 7) // 8) if view.nulls else None
        return Binary(validity, self.ends.finish((view.rows + 1) * 4), self.data.finish(view.used))


cdef class Gatherer:
    """All columns under construction, and the selection as C numbers."""

    cdef Growing offsets
    cdef Growing timestamps_ms
    cdef Growing header_ends
    cdef Cells keys
    cdef Cells values
    cdef Cells names
    cdef Cells header_values
    cdef Py_ssize_t rows
    cdef int64_t first_offset
    cdef int64_t last_offset
    cdef int64_t first_ms
    cdef int64_t last_ms
    cdef bytes key
    cdef bint with_keys
    cdef bint with_values
    cdef bint with_headers
    cdef bint verify

    def __cinit__(self, selection, allocate):
        self.offsets, self.timestamps_ms = Growing(allocate), Growing(allocate)
        self.keys, self.values = Cells(allocate), Cells(allocate)
        self.names, self.header_values, self.header_ends = Cells(None), Cells(None), Growing(None)
        self.header_ends.reserve(4, 0)
        self.rows = 0
        (
            self.first_offset,
            self.last_offset,
            self.first_ms,
            self.last_ms,
            self.key,
            self.with_keys,
            self.with_values,
            self.with_headers,
            self.verify,
        ) = selection

    cdef int reserve(self, Py_ssize_t rows, Py_ssize_t length) except -1:
        """Room for a batch of so many records in so many bytes. Lists of headers are rare and grow as they come."""
        self.offsets.reserve((self.rows + rows) * 8, -1)
        self.timestamps_ms.reserve((self.rows + rows) * 8, -1)
        if self.with_keys:
            self.keys.reserve(rows, length)
        if self.with_values:
            self.values.reserve(rows, length)
        if self.with_headers:
            self.header_ends.reserve((self.rows + rows + 1) * 4, -1)
        return 0

    cdef bint skips(self, header):
        """Whether the header alone tells that no record is wanted."""
        cdef int64_t base_offset = header[0], last_offset_delta = header[6], max_ms = header[8]
        cdef int flags = header[5]
        return (
            flags & CONTROL
            or base_offset + last_offset_delta < self.first_offset
            or base_offset > self.last_offset
            or max_ms < self.first_ms
        )

    cdef inline bint wants(self, RecordView *view, int64_t offset, int64_t timestamp_ms) noexcept:
        if not (self.first_offset <= offset <= self.last_offset and self.first_ms <= timestamp_ms <= self.last_ms):
            return False
        if self.key is None:
            return True
        return view.key_bytes == len(self.key) and memcmp(view.key, <const char *>self.key, view.key_bytes) == 0

    cdef bint wants_all(self, header):
        """Whether the header alone tells that every record is wanted."""
        cdef int64_t base_offset = header[0], last_offset_delta = header[6]
        return (
            self.key is None
            and self.first_ms == INT64_MIN
            and self.last_ms == INT64_MAX
            and self.first_offset <= base_offset
            and base_offset + last_offset_delta <= self.last_offset
        )

    cdef int add_batch(self, const uint8_t *at, Py_ssize_t length, header) except -1:
        cdef int64_t base_offset = header[0], last_delta = header[6], base_ms = header[7], max_ms = header[8]
        cdef Py_ssize_t count = header[12], place, rows = self.rows
        cdef bint appended = header[5] & LOG_APPEND_TIME, wants_all = self.wants_all(header)
        cdef const uint8_t *stop = at + length
        cdef int64_t delta = -1, timestamp_ms
        cdef RecordView view
        cdef const char *wrong
        if count * RECORD_BYTES_MIN > length:
            raise bad(f"{count} records do not fit into {length} bytes")
        self.reserve(count, length)
        # Copies, so that the compiler keeps them in registers while bytes are written.
        cdef CellsView keys = self.keys.view, values = self.values.view
        cdef int64_t *offsets = <int64_t *>self.offsets.at
        cdef int64_t *timestamps_ms = <int64_t *>self.timestamps_ms.at
        cdef int32_t *header_ends = <int32_t *>self.header_ends.at
        cdef bint with_keys = self.with_keys, with_values = self.with_values, with_headers = self.with_headers
        for place in range(count):
            wrong = get_record(at, stop, &view)
            if wrong != NULL:
                raise bad(wrong.decode())
            if not delta < view.offset_delta <= last_delta:
                raise bad(f"offset delta {view.offset_delta} after {delta}, of at most {last_delta}")
            delta = view.offset_delta
            timestamp_ms = max_ms
            if not appended:
                timestamp_ms = <int64_t>(<uint64_t>base_ms + <uint64_t>view.timestamp_delta)
                if (timestamp_ms < base_ms) != (view.timestamp_delta < 0):
                    raise bad("a timestamp beyond 64 bits")
            at = view.end
            if not (wants_all or self.wants(&view, base_offset + delta, timestamp_ms)):
                if view.header_count:
                    self.add_headers(&view, False)
                continue
            offsets[rows] = base_offset + delta
            timestamps_ms[rows] = timestamp_ms
            rows += 1
            if with_keys:
                add_cell(&keys, view.key, view.key_bytes, stop)
            if with_values:
                add_cell(&values, view.value, view.value_bytes, stop)
            if view.header_count:
                self.add_headers(&view, with_headers)
            if with_headers:
                header_ends[rows] = <int32_t>self.names.view.rows
        if at != stop:
            raise bad(f"{stop - at} bytes after the last record")
        self.rows, self.keys.view, self.values.view = rows, keys, values
        return 0

    cdef int add_headers(self, RecordView *view, bint kept) except -1:
        """Check the headers of a record, and keep them if they are wanted."""
        cdef const uint8_t *at = view.headers
        cdef const uint8_t *name = NULL
        cdef const uint8_t *value = NULL
        cdef int64_t place, name_bytes = 0, value_bytes = 0
        if kept:
            self.names.reserve(view.header_count, view.end - at)
            self.header_values.reserve(view.header_count, view.end - at)
        for place in range(view.header_count):
            at = get_field(at, view.end, &name, &name_bytes)
            if at != NULL:
                at = get_field(at, view.end, &value, &value_bytes)
            if at == NULL:
                raise bad("a header longer than its record")
            if name_bytes < 0:
                raise bad("a header without a name")
            if not ascii_only(name, name_bytes):
                require_text(name, name_bytes)
            if kept:
                add_cell(&self.names.view, name, name_bytes, view.end)
                add_cell(&self.header_values.view, value, value_bytes, view.end)
        if at != view.end:
            raise bad(f"{view.end - at} bytes at the end of a record")
        return 0

    cdef object finish(self):
        return Columns(
            self.rows,
            self.offsets.finish(self.rows * 8),
            self.timestamps_ms.finish(self.rows * 8),
            self.keys.finish() if self.with_keys else None,
            self.values.finish() if self.with_values else None,
            self.header_ends.finish((self.rows + 1) * 4) if self.with_headers else None,
            self.names.finish() if self.with_headers else None,
            self.header_values.finish() if self.with_headers else None,
        )


@cache
def resizable():
    """Arrow is loaded by those who use it."""
    from pyarrow import allocate_buffer

    return partial(allocate_buffer, resizable=True)


def gather(buffer, Py_ssize_t position, Py_ssize_t end, selection, unpack):
    """The selected records of all whole batches in the buffer; control batches are left out."""
    cdef const uint8_t[::1] plain
    cdef Gatherer gatherer = Gatherer(selection, resizable())
    cdef Py_ssize_t start, stop, batch_bytes
    end = min(end, len(buffer))
    gatherer.values.data.expected = max(0, end - position) + COPY_STEP
    while end - position >= HEADER_BYTES:
        header = parse_header(buffer, position)
        batch_bytes = header.batch_bytes
        if batch_bytes > end - position:
            break
        if not gatherer.skips(header):
            if gatherer.verify:
                found = crc_between(buffer, position + CRC_FROM, position + batch_bytes)
                if found != header.crc:
                    raise Malformed(what="batch", reason=crc_fault(header.crc, found))
            body, start, stop = unpack(buffer, position, header)
            plain = body
            if not 0 <= start <= stop <= plain.shape[0]:
                raise AssertionError("the records lie inside the buffer")
            gatherer.add_batch(start_of(plain) + start, stop - start, header)
        position += batch_bytes
    return gatherer.finish()


cdef object bad(str reason):
    return Malformed(what="records", reason=reason)


cdef int require_text(const uint8_t *at, int64_t length) except -1:
    try:
        at[:length].decode("utf-8")
    except UnicodeDecodeError:
        raise bad("a header name that is not UTF-8") from None
    return 0


# Columns to batches


cdef const uint8_t *address(buffer) except? NULL:
    if buffer is None:
        return NULL
    return <const uint8_t *><uintptr_t>buffer.address


cdef int view_of(array, ColumnView *column) except -1:
    """Fill in the addresses of an Arrow array, which must outlive them; None is a column of nulls."""
    memset(column, 0, sizeof(ColumnView))
    if array is None:
        return 0
    buffers, kind = array.buffers(), str(array.type)
    column.present = 1
    column.wide = kind == "int64" or kind.startswith("large_")
    column.shift = array.offset
    column.validity = address(buffers[0]) if array.null_count else NULL
    column.first = address(buffers[1])
    column.data = address(buffers[2]) if len(buffers) == 3 else NULL
    return 0


cdef class BegunBatch:
    """A batch without its header that takes the rows of one table after another; `expected_bytes` is a hint."""

    cdef Growing room
    cdef Py_ssize_t used
    cdef readonly int64_t count, base_ms, max_ms

    def __cinit__(self, Py_ssize_t expected_bytes=0):
        self.room = Growing()
        self.room.reserve(max(expected_bytes, <Py_ssize_t>HEADER_BYTES), -1)
        self.used = HEADER_BYTES

    def take(self):
        """The bytes, for good."""
        return self.room.finish(self.used)


cdef class Rows:
    """Columns as records to encode.

    `timestamps` are 64-bit milliseconds; without them every record has `timestamp_ms`.
    `headers` are a list array and, as its parts, the arrays of all names and of all values.
    """

    cdef object arrays
    cdef int64_t count
    cdef int64_t timestamp_ms
    cdef ColumnView timestamps
    cdef ColumnView keys
    cdef ColumnView values
    cdef ColumnView lists
    cdef ColumnView names
    cdef ColumnView header_values

    def __cinit__(self, int64_t count, timestamps, keys, values, headers, int64_t timestamp_ms):
        lists, names, header_values = headers or (None, None, None)
        self.arrays = (timestamps, keys, values, lists, names, header_values)
        self.count = count
        self.timestamp_ms = timestamp_ms
        view_of(timestamps, &self.timestamps)
        view_of(keys, &self.keys)
        view_of(values, &self.values)
        view_of(lists, &self.lists)
        view_of(names, &self.names)
        view_of(header_values, &self.header_values)

    def put(self, BegunBatch begun, int64_t start, int64_t count_max, int64_t bytes_max):
        """Put rows from `start` on into the batch, up to so many rows and bytes in it; how many were put. The first
        row of a batch always fits."""
        if not 0 <= start < self.count:
            raise AssertionError("the rows lie inside the columns")
        # Copies, so that the compiler keeps them in registers while bytes are written.
        cdef ColumnView timestamps = self.timestamps, keys = self.keys, values = self.values, lists = self.lists
        cdef int64_t timestamp_ms = column_number(&timestamps, start) if timestamps.present else self.timestamp_ms
        cdef int64_t base_ms = begun.base_ms if begun.count else timestamp_ms
        cdef int64_t max_ms = begun.max_ms if begun.count else timestamp_ms
        cdef int64_t row, headers_bytes = 0, length, before = begun.count
        cdef int64_t stop = min(self.count, start + count_max - before)
        cdef Py_ssize_t used = begun.used
        cdef RecordView record
        cdef uint8_t *out
        cdef Growing batch = begun.room
        if stop <= start:
            return 0
        batch.reserve(min(bytes_max, used + self.likely_bytes(start, stop)), -1)
        record.header_count = 0
        for row in range(start, stop):
            if timestamps.present:
                timestamp_ms = column_number(&timestamps, row)
            record.timestamp_delta = <int64_t>(<uint64_t>timestamp_ms - <uint64_t>base_ms)
            if (record.timestamp_delta < 0) != (timestamp_ms < base_ms):
                raise OverflowError("timestamps in one batch are more than 64 bits apart")
            record.offset_delta = before + row - start
            column_cell(&keys, row, &record.key, &record.key_bytes)
            column_cell(&values, row, &record.value, &record.value_bytes)
            if lists.present:
                record.header_count = self.header_count(row)
                headers_bytes = self.headers_bytes(row, record.header_count)
            length = RECORD_ROOM + max(record.key_bytes, 0) + max(record.value_bytes, 0) + headers_bytes
            if used + length > bytes_max and record.offset_delta:
                if used + record_length(&record, headers_bytes) > bytes_max:
                    stop = row
                    break
            if used + length > batch.room:
                batch.reserve(used + length, -1)
            out = put_record(batch.at + used, &record, headers_bytes)
            if record.header_count:
                out = self.put_headers(out, row, record.header_count)
            used = out - batch.at
            max_ms = max(max_ms, timestamp_ms)
        begun.used, begun.count, begun.base_ms, begun.max_ms = used, before + stop - start, base_ms, max_ms
        return stop - start

    cdef int64_t likely_bytes(self, int64_t start, int64_t stop) noexcept:
        """What these rows take at most, but for their headers."""
        cdef int64_t total = (stop - start + 1) * RECORD_ROOM
        if self.keys.present:
            total += column_number(&self.keys, stop) - column_number(&self.keys, start)
        if self.values.present:
            total += column_number(&self.values, stop) - column_number(&self.values, start)
        return total

    cdef int64_t header_count(self, int64_t row) noexcept:
        if column_missing(&self.lists, row):
            return 0
        return column_number(&self.lists, row + 1) - column_number(&self.lists, row)

    cdef int64_t headers_bytes(self, int64_t row, int64_t count) noexcept:
        cdef int64_t total = 0, place, first = column_number(&self.lists, row), length
        cdef const uint8_t *at
        for place in range(first, first + count):
            column_cell(&self.names, place, &at, &length)
            total += field_bytes(length)
            column_cell(&self.header_values, place, &at, &length)
            total += field_bytes(length)
        return total

    cdef uint8_t *put_headers(self, uint8_t *out, int64_t row, int64_t count) noexcept:
        cdef int64_t place, first = column_number(&self.lists, row), length
        cdef const uint8_t *at
        for place in range(first, first + count):
            column_cell(&self.names, place, &at, &length)
            out = put_field(out, at, length)
            column_cell(&self.header_values, place, &at, &length)
            out = put_field(out, at, length)
        return out

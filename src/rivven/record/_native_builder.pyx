"""The native twin of `pure_builder`: a record is encoded where it is put, with no object kept for it.

Invariant: `Sorter.add` and `BatchBuilder.take` run no Python code from beginning to end, so the interpreter's own lock
makes them atomic.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from .pure_builder import RECORD_OVERHEAD_BYTES, Built


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
    int64_t field_bytes(int64_t length)
    uint8_t *put_field(uint8_t *out, const uint8_t *data, int64_t length)
    uint8_t *put_record(uint8_t *out, const RecordView *record, int64_t headers_bytes)
    int32_t murmur2_of(const uint8_t *at, size_t length)


ATOMIC = True
cdef int HEADER_BYTES = 61
cdef Py_ssize_t ROOM_MIN = 4096
cdef int64_t OVERHEAD_BYTES = RECORD_OVERHEAD_BYTES


cdef inline void point(bytes data, const uint8_t **at, int64_t *length) noexcept:
    at[0], length[0] = NULL, -1
    if data is not None:
        at[0], length[0] = <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)


cdef class BatchBuilder:
    """One batch under construction, and after `take` the next."""

    def __cinit__(self):
        self.begin()

    cdef int begin(self) except -1:
        self.made = bytearray()
        self.used, self.room = HEADER_BYTES, 0
        self.base_ms = self.max_ms = 0
        self.count = 0
        self.size_bytes = self.mark = 0
        return 0

    cdef uint8_t *reserve(self, Py_ssize_t length) except NULL:
        cdef Py_ssize_t room
        if self.room - self.used < length:
            room = max(ROOM_MIN, self.used + length + self.used // 2)
            PyByteArray_Resize(self.made, room)
            self.room = room
        return <uint8_t *>PyByteArray_AS_STRING(self.made) + self.used

    cdef bint put_plain(
        self, int64_t timestamp_ms, const uint8_t *key, int64_t key_bytes, const uint8_t *value, int64_t value_bytes
    ) except -1:
        """As `put`, for a record without headers whose fields lie elsewhere; without a key it has -1 bytes. Whether
        its timestamp is near enough."""
        cdef RecordView record
        record.key, record.key_bytes = key, key_bytes
        record.value, record.value_bytes = value, value_bytes
        record.header_count = 0
        return append(self, timestamp_ms, &record, None, 0)

    def put(self, timestamp_ms, bytes key, bytes value, headers, int64_t size_bytes):
        """Write a record whatever the mark; its place in the batch."""
        cdef RecordView record
        cdef bytes written = None
        if not isinstance(timestamp_ms, int):
            raise TypeError(f"a timestamp is a whole number of milliseconds, not {timestamp_ms!r}")
        point(key, &record.key, &record.key_bytes)
        point(value, &record.value, &record.value_bytes)
        record.header_count = len(headers)
        if record.header_count:
            written = headers_written(headers)
        if not append(self, timestamp_ms, &record, written, size_bytes):
            delta_ms = timestamp_ms - int(self.base_ms)
            raise OverflowError(f"a timestamp {delta_ms} ms from the batch's first does not fit into 64 bits")
        return self.count - 1

    def take(self):
        """What was put, and begin anew."""
        cdef bytearray made = self.made
        cdef Py_ssize_t count = self.count, used = self.used
        cdef int64_t size_bytes = self.size_bytes, base_ms = self.base_ms, max_ms = self.max_ms
        self.begin()  # before any object is made, which could let another thread in
        PyByteArray_Resize(made, used)
        return Built(made, count, size_bytes, base_ms, max_ms)


cdef inline bint append(
    BatchBuilder to, int64_t timestamp_ms, RecordView *record, bytes headers, int64_t size_bytes
) except -1:
    """Write one record, of which `record` holds the fields; whether its timestamp is near enough for that."""
    cdef Py_ssize_t headers_bytes = 0 if headers is None else PyBytes_GET_SIZE(headers)
    cdef int64_t base_ms = to.base_ms if to.count else timestamp_ms
    cdef uint8_t *out
    if (base_ms < 0 and timestamp_ms > INT64_MAX + base_ms) or (base_ms > 0 and timestamp_ms < INT64_MIN + base_ms):
        return False
    record.timestamp_delta = timestamp_ms - base_ms
    record.offset_delta = to.count
    out = to.reserve(RECORD_ROOM + max(record.key_bytes, 0) + max(record.value_bytes, 0) + headers_bytes)
    out = put_record(out, record, headers_bytes)
    if headers_bytes:
        memcpy(out, PyBytes_AS_STRING(headers), headers_bytes)
        out += headers_bytes
    to.used = out - <uint8_t *>PyByteArray_AS_STRING(to.made)
    to.base_ms = base_ms
    to.max_ms = max(to.max_ms, timestamp_ms) if to.count else timestamp_ms
    to.count += 1
    to.size_bytes += size_bytes
    return True


cdef bytes headers_written(headers):
    """Headers as they follow their count."""
    cdef const uint8_t *at = NULL
    cdef int64_t length = 0, total = 0
    cdef bytes name, value
    pairs = [(text.encode(), value) for text, value in headers]
    for name, value in pairs:
        total += field_bytes(len(name)) + field_bytes(-1 if value is None else len(value))
    made = bytearray(total)
    cdef uint8_t *out = <uint8_t *>PyByteArray_AS_STRING(made)
    for name, value in pairs:
        point(name, &at, &length)
        out = put_field(out, at, length)
        point(value, &at, &length)
        out = put_field(out, at, length)
    return bytes(made)


cdef class Sorter:
    """Puts a record with its partition's others, if it is of the plain sort and they have not reached their mark."""

    cdef list builders
    cdef public BatchBuilder sticky
    cdef public bint shut

    def __cinit__(self):
        self.builders = []
        self.sticky = None
        self.shut = False

    def extend(self, BatchBuilder builder not None):
        """One more partition."""
        self.builders.append(builder)

    def add(self, value, key, int64_t now_ns):
        """Whether the record was taken; if not, nothing has happened, and `BatchBuilder.put` is the way."""
        cdef RecordView record
        cdef BatchBuilder builder
        cdef Py_ssize_t partitions = PyList_GET_SIZE(self.builders)
        cdef int64_t size_bytes
        if self.shut or partitions == 0 or not PyBytes_CheckExact(value):
            return False
        point(<bytes>value, &record.value, &record.value_bytes)
        size_bytes = record.value_bytes + OVERHEAD_BYTES
        if key is None:
            builder = self.sticky
            record.key, record.key_bytes = NULL, -1
        elif PyBytes_CheckExact(key):
            point(<bytes>key, &record.key, &record.key_bytes)
            size_bytes += record.key_bytes
            builder = <BatchBuilder>PyList_GET_ITEM(
                self.builders, (murmur2_of(record.key, record.key_bytes) & 0x7FFFFFFF) % partitions
            )
        else:
            return False
        if builder is None or builder.size_bytes + size_bytes >= builder.mark:
            return False
        record.header_count = 0
        return append(builder, now_ns // 1_000_000, &record, None, size_bytes)

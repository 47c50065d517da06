"""The native twin of `tail.py`; the words are there."""

from cpython.array cimport array, resize_smart
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport UINT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from array import array

from rivven.limits import OFFSET_DELTA_MAX

cdef enum:
    PREFIX_BYTES = 12
    HEADER_BYTES = 61

cdef int64_t DELTA_MAX = OFFSET_DELTA_MAX


cdef inline void store32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline uint32_t load32(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline int append32(array column, uint32_t value) except -1:
    cdef Py_ssize_t count = len(column)
    resize_smart(column, count + 1)
    column.data.as_uints[count] = value
    return 0


cdef inline int append64(array column, int64_t value) except -1:
    cdef Py_ssize_t count = len(column)
    resize_smart(column, count + 1)
    column.data.as_longlongs[count] = value
    return 0


cdef class Tail:
    cdef public object file
    cdef public int64_t base_offset, interval_bytes, unindexed_bytes, reserved_bytes
    cdef public int64_t end_bytes, next_offset, max_timestamp_ms, first_append_ms
    cdef public bint dirty
    cdef public tuple columns

    def __init__(self, int64_t base_offset, int64_t interval_bytes):
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.dirty = False
        self.first_append_ms = -1
        self.columns = array("I"), array("I"), array("q"), array("I")
        self.reset()

    cpdef reset(self):
        self.file = None
        self.unindexed_bytes = 0
        self.reserved_bytes = 0
        self.end_bytes = 0
        self.next_offset = self.base_offset
        self.max_timestamp_ms = -1

    def reserve(self, int64_t upto):
        raise NotImplementedError

    def takes(
        self, int64_t batch_bytes, int64_t last_offset, int64_t now_ms, int64_t segment_bytes, int64_t segment_ms
    ):
        if self.end_bytes == 0 or self.first_append_ms < 0:
            self.first_append_ms = now_ms
        return self.end_bytes == 0 or not (
            self.end_bytes + batch_bytes > segment_bytes
            or last_offset - self.base_offset > DELTA_MAX
            or 0 <= segment_ms <= now_ms - self.first_append_ms
        )

    def put(self, batch, int32_t last_offset_delta, int64_t newest_ms, int32_t leader_epoch, bint later=False):
        cdef Py_buffer view
        cdef uint8_t *at
        cdef int64_t batch_bytes, position = self.end_bytes
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        at = <uint8_t *>view.buf
        batch_bytes = view.len
        if batch_bytes >= 16:
            store32(at, <uint32_t>(<uint64_t>self.next_offset >> 32))
            store32(at + 4, <uint32_t>self.next_offset)
            store32(at + 8, <uint32_t>(batch_bytes - 12))
            store32(at + 12, <uint32_t>leader_epoch)
        PyBuffer_Release(&view)
        assert batch_bytes >= 16, "a validated batch has its header"
        if later:
            self.dirty = True
        else:
            self._write(batch)
        self._took(position, batch_bytes, self.next_offset, last_offset_delta, newest_ms)
        return position

    def put_run(self, data, list ends, int32_t leader_epoch, *, bint later=False):
        cdef Py_buffer view
        cdef uint8_t *at
        cdef int64_t begin = 0, end, position = self.end_bytes
        cdef int64_t offset = self.next_offset
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            for each in ends:
                end = each
                assert begin + HEADER_BYTES <= end <= view.len, "whole batches"
                at = <uint8_t *>view.buf + begin
                store32(at, <uint32_t>(<uint64_t>offset >> 32))
                store32(at + 4, <uint32_t>offset)
                store32(at + 8, <uint32_t>(end - begin - PREFIX_BYTES))
                store32(at + 12, <uint32_t>leader_epoch)
                offset += <int64_t><int32_t>load32(at + 23) + 1
                begin = end
            assert begin == view.len, "nothing but the batches"
            if later:
                self.dirty = True
            else:
                self._write_run(data)
            begin = 0
            for each in ends:
                end = each
                at = <uint8_t *>view.buf + begin
                self._took(
                    position + begin,
                    end - begin,
                    self.next_offset,
                    <int32_t>load32(at + 23),
                    <int64_t>(<uint64_t>load32(at + 35) << 32 | load32(at + 39)),
                )
                begin = end
        finally:
            PyBuffer_Release(&view)
        return position

    cdef int _write_run(self, data) except -1:
        try:
            self._write(data)
        except OSError:
            self.file.truncate(self.end_bytes)
            self.file.sync()
            raise
        return 0

    def write(self, batch):
        return self._write(batch)

    def took(
        self,
        int64_t position,
        int64_t batch_bytes,
        int64_t base_offset,
        int32_t last_offset_delta,
        int64_t newest_ms,
    ):
        self._took(position, batch_bytes, base_offset, last_offset_delta, newest_ms)

    cdef int64_t _write(self, batch) except -1:
        cdef int64_t upto = self.end_bytes + len(batch)
        assert self.file is not None
        if upto > self.reserved_bytes:
            self.reserve(upto)
        try:
            self.file.write(batch, self.end_bytes)
        except OSError:
            try:
                self.file.truncate(self.end_bytes)
            except OSError:
                pass
            raise
        self.dirty = True
        return self.end_bytes

    cdef int _index(self, int64_t relative_offset, int64_t position) except -1:
        cdef array keys, positions, newest, offsets
        keys, positions, newest, offsets = self.columns
        if not (0 <= relative_offset <= UINT32_MAX and 0 <= position <= UINT32_MAX):
            raise OverflowError("a segment has at most 4 GiB")
        append32(keys, <uint32_t>relative_offset)
        append32(positions, <uint32_t>position)
        append64(newest, self.max_timestamp_ms)
        append32(offsets, <uint32_t>relative_offset)
        return 0

    cdef int _took(
        self,
        int64_t position,
        int64_t batch_bytes,
        int64_t base_offset,
        int32_t last_offset_delta,
        int64_t newest_ms,
    ) except -1:
        if self.unindexed_bytes >= self.interval_bytes:
            self._index(base_offset - self.base_offset, position)
            self.unindexed_bytes = 0
        self.unindexed_bytes += batch_bytes
        self.end_bytes = position + batch_bytes
        self.next_offset = base_offset + last_offset_delta + 1
        if newest_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = newest_ms
        return 0

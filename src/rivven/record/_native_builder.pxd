from libc.stdint cimport int64_t, uint8_t


cdef class BatchBuilder:
    cdef bytearray made
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    cdef int64_t base_ms
    cdef int64_t max_ms
    cdef readonly Py_ssize_t count
    cdef readonly int64_t size_bytes
    cdef public int64_t mark

    cdef int begin(self) except -1
    cdef uint8_t *reserve(self, Py_ssize_t length) except NULL
    cdef bint put_plain(
        self, int64_t timestamp_ms, const uint8_t *key, int64_t key_bytes, const uint8_t *value, int64_t value_bytes
    ) except -1

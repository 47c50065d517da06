"""The native twin of `queueing.py`; the words are there."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

cdef enum:
    HEAD_BYTES = 28


cdef inline void little32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>value
    at[1] = <uint8_t>(value >> 8)
    at[2] = <uint8_t>(value >> 16)
    at[3] = <uint8_t>(value >> 24)


cdef class Queue:
    cdef public object _commit, _clock
    cdef object _groups
    cdef int64_t _group_bytes, _group_writes

    def __init__(self, commit, clock):
        self._commit = commit
        self._clock = clock
        self._groups = commit.groups
        self._group_bytes = commit.limits.group_bytes
        self._group_writes = commit.limits.group_writes

    def queue(self, log, int kind, payload, int64_t upto, file=None, int64_t position=0):
        cdef int64_t payload_bytes = len(payload)
        cdef int64_t size_bytes = HEAD_BYTES + payload_bytes
        cdef bytes topic_id = log.topic_id
        cdef bytes head = PyBytes_FromStringAndSize(NULL, HEAD_BYTES)
        cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(head)
        assert PyBytes_GET_SIZE(topic_id) == 16
        memset(at, 0, 4)
        at[0] = <uint8_t>kind
        little32(at + 4, <uint32_t>payload_bytes)
        memcpy(at + 8, PyBytes_AS_STRING(topic_id), 16)
        little32(at + 24, <uint32_t>log.partition[1])
        self._add((log, upto, head, payload, file, position), size_bytes)

    cdef int _add(self, tuple write, int64_t size_bytes) except -1:
        """As `Commit.add`."""
        cdef list writes
        groups = self._groups
        cdef Py_ssize_t count = len(groups)
        group = groups[count - 1] if count else None
        if group is not None:
            writes = group.writes
            held = group.size_bytes
            if <int64_t>held + size_bytes <= self._group_bytes and PyList_GET_SIZE(writes) < self._group_writes:
                writes.append(write)
                group.size_bytes = <int64_t>held + size_bytes
                self._commit.waiting_bytes += size_bytes
                return 0
        now_us = 0 if group is not None else self._clock.now_us()
        self._commit.add(write, size_bytes, now_us)
        return 0

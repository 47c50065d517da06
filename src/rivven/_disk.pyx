"""The native committers and the ring behind `rivven.system`; the work itself is in `_disk.h`.

Invariant: while the kernel or the worker thread may touch a buffer, an object here holds a `Py_buffer` of it.
Those are released when the completion is taken, or when the object dies, which waits for what is under way.
"""

import os

from rivven.ports import Completion

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.errno cimport EAGAIN, EINTR, EINVAL, ENOSYS, EOPNOTSUPP, errno
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from posix.unistd cimport close as close_fd, getpid


cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout_ms)
    enum: POLLIN


cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t preadv2(int fd, const iovec *iov, int count, int64_t position, int flags)
    enum: RWF_NOWAIT


cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void *data, size_t length, int64_t position)


cdef extern from "<fcntl.h>" nogil:
    enum: FALLOC_FL_KEEP_SIZE
    int fallocate(int fd, int mode, int64_t position, int64_t length)


# A small write to the page cache is over sooner than the GIL is given up and taken back.
cdef enum:
    KEEP_GIL_BYTES_MAX = 16384


cdef extern from "_disk.h" nogil:
    enum: RV_READ
    enum: RV_WRITE
    enum: RV_SYNC

    ctypedef struct rv_place:
        int fd
        int64_t position

    ctypedef struct rv_group:
        int fd
        int64_t written_bytes
        int64_t elapsed_us
        int error
        int failed_sync
        int sync
        uint32_t iov_at
        uint32_t placed_count

    ctypedef struct rv_worker:
        rv_group group

    ctypedef struct rv_ring:
        int fd

    ctypedef struct rv_answer:
        uint64_t tag
        int32_t result

    ctypedef struct rv_operation:
        int kind
        int fd
        char *data
        uint64_t length
        int64_t position
        uint64_t done
        int error

    int64_t rv_now_us()
    int rv_event_open()
    void rv_event_ring(int event_fd)
    int rv_event_clear(int event_fd)
    void rv_group_begin(
        rv_group *group, iovec *iov, uint32_t iov_count, const rv_place *places, uint32_t placed_count, int fd,
        int64_t position, int sync
    )
    void rv_group_write_each(rv_group *group)
    void rv_group_fail(rv_group *group, int error, int in_sync)
    int rv_worker_start(rv_worker *worker, int event_fd)
    void rv_worker_submit(rv_worker *worker)
    int rv_worker_take_back(rv_worker *worker)
    void rv_group_perform(rv_group *group)
    void rv_worker_wait_placed(rv_worker *worker)
    void rv_worker_stop(rv_worker *worker)
    int rv_ring_open(rv_ring *ring, uint32_t depth, int event_fd, uint32_t workers)
    void rv_ring_close(rv_ring *ring)
    int rv_ring_enter(rv_ring *ring, uint32_t wanted)
    int rv_ring_take(rv_ring *ring, rv_answer *answer)
    int rv_chain_next(rv_ring *ring, rv_group *group)
    int rv_chain_settle(rv_ring *ring, rv_group *group, const rv_answer *answer)
    void rv_ring_run(rv_ring *ring, rv_operation *operations, uint32_t count)


cdef object _os_error(int code, str path=None):
    if path is None:
        return OSError(code, os.strerror(code))
    return OSError(code, os.strerror(code), path)


cdef class FileWriter:
    """The calls of a file that every append and every fetch makes. What is short of a whole write is `system`'s
    affair, and so is a file system that cannot say what would wait."""

    cdef public int _fd
    cdef public bint _read_only

    def read_cached(self, Py_ssize_t length_bytes, int64_t position):
        cdef bytes data = PyBytes_FromStringAndSize(NULL, length_bytes)
        cdef char *into = PyBytes_AS_STRING(data)
        cdef iovec rest
        cdef Py_ssize_t found = 0
        cdef ssize_t got = 0
        cdef int error = 0
        while found < length_bytes:
            rest.iov_base, rest.iov_len = into + found, <size_t>(length_bytes - found)
            if length_bytes <= KEEP_GIL_BYTES_MAX:
                got = preadv2(self._fd, &rest, 1, position + found, RWF_NOWAIT)
                error = errno
            else:
                with nogil:
                    got = preadv2(self._fd, &rest, 1, position + found, RWF_NOWAIT)
                    error = errno
            if got <= 0:
                break
            found += got
        if got < 0 and error not in (EAGAIN, EINTR):
            if error in (EOPNOTSUPP, ENOSYS, EINVAL):
                return self._read_waiting(length_bytes, position)
            raise _os_error(error, self._name())
        return data if found == length_bytes else data[:found]

    def reserve(self, int64_t length_bytes, int64_t position):
        cdef int refused = 1
        if not self._read_only:
            with nogil:
                refused = fallocate(self._fd, FALLOC_FL_KEEP_SIZE, position, length_bytes)
        return refused == 0

    def write(self, data, int64_t position):
        cdef Py_buffer view
        cdef ssize_t written
        cdef int error = 0
        if self._read_only:
            self._refuse_if_read_only()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        if view.len <= KEEP_GIL_BYTES_MAX:
            written = pwrite(self._fd, view.buf, <size_t>view.len, position)
            error = errno
        else:
            with nogil:
                written = pwrite(self._fd, view.buf, <size_t>view.len, position)
                error = errno
        cdef bint whole = written == view.len
        PyBuffer_Release(&view)
        if written < 0 and error != EINTR:
            raise _os_error(error)
        if not whole:
            self._write_rest(data, position)


cdef class SystemClock:
    def now_ms(self):
        cdef timespec now
        clock_gettime(CLOCK_REALTIME, &now)
        return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000

    def now_us(self):
        return rv_now_us()


cdef class _Base:
    """What both native committers share: the held buffers, the event, and the rule of one at a time."""

    cdef Py_buffer *_views
    cdef iovec *_iov
    cdef rv_place *_places
    cdef uint32_t _capacity, _held
    cdef int _event_fd
    cdef int _owner_pid
    cdef bint _under_way, _closed
    cdef list _files

    def __cinit__(self):
        self._closed = True  # until the constructor of the kind has opened everything
        self._owner_pid = getpid()
        self._event_fd = rv_event_open()
        if self._event_fd < 0:
            raise _os_error(errno)

    def __dealloc__(self):
        self._let_go()
        PyMem_Free(self._views)
        PyMem_Free(self._iov)
        PyMem_Free(self._places)
        if self._event_fd >= 0:
            close_fd(self._event_fd)

    def submit(self, file, buffers, int64_t position, *, bint sync, before=()):
        assert position >= 0
        self._submit(before, file, file.fileno(), buffers, position, sync)

    def submit_each(self, writes):
        self._submit(writes, None, -1, (), 0, False)

    cdef int _submit(self, before, file, int fd, buffers, int64_t position, bint sync) except -1:
        assert not self._closed, "the committer is closed"
        assert not self._under_way, "one submission at a time"
        cdef uint32_t placed_count = 0, iov_count = 0
        cdef list files = []  # held too: whoever else drops one must not close it under the thread
        self._reserve(<size_t>len(before) + <size_t>len(buffers))
        try:
            for placed in before:
                written, data, where = placed
                assert where >= 0 and len(data), "something, somewhere"
                self._places[placed_count].fd = written.fileno()
                self._places[placed_count].position = where
                files.append(written)
                placed_count += 1
                iov_count = self._hold(data, iov_count)
            for buffer in buffers:
                iov_count = self._hold(buffer, iov_count)
        except BaseException:
            self._let_go()
            raise
        files.append(file)
        self._files = files
        self._under_way = True
        rv_group_begin(self._group(), self._iov, iov_count, self._places, placed_count, fd, position, sync)
        self._start()
        return 0

    def wait_for_each(self):
        if self._under_way:
            self._wait_placed()
        return not self._under_way or self._group().iov_at >= self._group().placed_count

    def completed(self):
        if self._closed or not rv_event_clear(self._event_fd) or not self._under_way or not self._finish():
            return None
        return self._taken()

    def wait(self, int timeout_ms):
        assert timeout_ms >= 0
        cdef int64_t deadline_us = rv_now_us() + <int64_t>timeout_ms * 1000
        cdef int64_t left_ms = timeout_ms
        while self._under_way:
            self._poll(<int>left_ms)
            completion = self.completed()
            if completion is not None:
                return completion
            left_ms = (deadline_us - rv_now_us() + 999) // 1000
            if left_ms <= 0:
                break
        return None

    def fileno(self):
        return -1 if self._closed else self._event_fd

    def close(self):
        """Wait for the submission under way, if any, whose outcome is then lost; and give everything back."""
        if self._closed:
            return
        self._closed = True
        self._stop()
        self._under_way = False
        self._let_go()
        self._files = None
        close_fd(self._event_fd)
        self._event_fd = -1

    cdef int _poll(self, int timeout_ms) except -1:
        cdef pollfd waited
        cdef int result
        waited.fd = self._event_fd
        waited.events = POLLIN
        waited.revents = 0
        with nogil:
            result = poll(&waited, 1, timeout_ms)
            if result < 0:
                result = -errno  # now: taking the GIL again may change it
        if result == -EINTR:
            PyErr_CheckSignals()
        return 0

    cdef object _taken(self):
        cdef rv_group *group = self._group()
        cdef int code = group.error
        self._under_way = False
        self._let_go()
        error = _os_error(code, self._path()) if code else None
        self._files = None
        return Completion(
            group.written_bytes, bool(group.sync) and not code, group.elapsed_us, error, bool(group.failed_sync)
        )

    cdef str _path(self):
        """Of the file that was being written."""
        cdef rv_group *group = self._group()
        return self._files[min(group.iov_at, group.placed_count)].path

    cdef uint32_t _hold(self, buffer, uint32_t iov_count) except? 0xFFFFFFFF:
        """Take a view of a buffer; how many there are with any bytes."""
        cdef Py_buffer *view = &self._views[self._held]
        PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
        self._held += 1
        if view.len == 0:
            return iov_count
        self._iov[iov_count].iov_base = view.buf
        self._iov[iov_count].iov_len = <size_t>view.len
        return iov_count + 1

    cdef int _reserve(self, size_t count) except -1:
        cdef void *views
        cdef void *iov
        cdef void *places
        if count <= self._capacity:
            return 0
        views = PyMem_Realloc(self._views, count * sizeof(Py_buffer))
        if views == NULL:
            raise MemoryError
        self._views = <Py_buffer *>views
        iov = PyMem_Realloc(self._iov, count * sizeof(iovec))
        if iov == NULL:
            raise MemoryError
        self._iov = <iovec *>iov
        places = PyMem_Realloc(self._places, count * sizeof(rv_place))
        if places == NULL:
            raise MemoryError
        self._places = <rv_place *>places
        self._capacity = <uint32_t>count
        return 0

    cdef void _let_go(self) noexcept:
        cdef uint32_t held = self._held
        self._held = 0
        for i in range(held):
            PyBuffer_Release(&self._views[i])

    # What the kinds do each in their way

    cdef rv_group *_group(self) noexcept:
        return NULL

    cdef void _start(self) noexcept:
        """The group is ready."""

    cdef void _wait_placed(self) noexcept:
        """Until what goes each to its own place is written."""

    cdef bint _finish(self) noexcept:
        """The event was rung: whether the whole group is done with."""
        return False

    cdef void _stop(self) noexcept:
        pass


cdef class NativeCommitter(_Base):
    """A committer on a thread of its own that never needs the GIL."""

    cdef rv_worker _worker

    def __init__(self):
        assert self._closed, "made once"
        cdef int error = rv_worker_start(&self._worker, self._event_fd)
        if error:
            raise _os_error(error)
        self._closed = False

    def __dealloc__(self):
        if not self._closed:
            self._closed = True
            self._stop()

    def wait(self, int timeout_ms):
        """Whoever waits may as well work: a group that the thread has not begun with is done here, sooner than the
        thread would have woken up."""
        assert timeout_ms >= 0
        if self._under_way and rv_worker_take_back(&self._worker):
            with nogil:
                rv_group_perform(&self._worker.group)
            return self._taken()
        return _Base.wait(self, timeout_ms)

    cdef rv_group *_group(self) noexcept:
        return &self._worker.group

    cdef void _start(self) noexcept:
        rv_worker_submit(&self._worker)

    cdef void _wait_placed(self) noexcept:
        with nogil:
            rv_worker_wait_placed(&self._worker)

    cdef bint _finish(self) noexcept:
        return True

    cdef void _stop(self) noexcept:
        if self._owner_pid != getpid():
            return  # after a fork the thread stayed in the parent, and joining it would wait for ever
        with nogil:
            rv_worker_stop(&self._worker)


cdef class UringCommitter(_Base):
    """A committer on an io_uring: linked writes and a sync, done by the kernel's own threads.

    The kernel cancels what a thread has submitted when that thread ends, so the one that submits has to live
    until the completion. `elapsed_us` ends when the completion is taken: the kernel does not say when it came.
    """

    cdef rv_ring _ring
    cdef rv_group _work
    cdef bint _ringless  # the ring has, or had, no part in it

    def __init__(self):
        assert self._closed, "made once"
        cdef int error = rv_ring_open(&self._ring, 16, self._event_fd, 0)
        if error:
            raise _os_error(error)
        self._closed = False

    def __dealloc__(self):
        if not self._closed:
            self._closed = True
            self._stop()

    cdef rv_group *_group(self) noexcept:
        return &self._work

    cdef void _start(self) noexcept:
        """What goes each to its own place is written here and now: to the page cache that is a copy, which the kernel
        does no sooner on a thread of its own."""
        cdef int error
        if self._work.placed_count:
            with nogil:
                rv_group_write_each(&self._work)
        self._ringless = self._work.error != 0 or self._work.fd < 0
        if not self._ringless:
            error = rv_chain_next(&self._ring, &self._work)
            if error:
                rv_group_fail(&self._work, error, 0)
                self._ringless = True
        if self._ringless:
            rv_group_perform(&self._work)  # of which nothing is left but to take the time
            rv_event_ring(self._event_fd)  # the completion tells, as it does for every other outcome

    cdef bint _finish(self) noexcept:
        cdef rv_answer answer
        if self._ringless:
            return True
        return rv_ring_take(&self._ring, &answer) and rv_chain_settle(&self._ring, &self._work, &answer)

    cdef void _stop(self) noexcept:
        if self._owner_pid == getpid():
            while self._under_way and not self._finish():
                with nogil:
                    rv_ring_enter(&self._ring, 1)
        rv_ring_close(&self._ring)


cdef class Ring:
    """An io_uring for batches. One thread at a time; the caller sees to that."""

    cdef rv_ring _ring

    def __cinit__(self, uint32_t depth, uint32_t workers=0):
        self._ring.fd = -1
        cdef int error = rv_ring_open(&self._ring, depth, -1, workers)
        if error:
            raise _os_error(error)

    def __dealloc__(self):
        if self._ring.fd >= 0:
            rv_ring_close(&self._ring)

    def close(self):
        if self._ring.fd >= 0:
            rv_ring_close(&self._ring)

    def run(self, operations):
        """For each (kind, fd, data or None, length, position): the bytes of a read, None, or an errno."""
        assert self._ring.fd >= 0, "the ring is closed"
        cdef uint32_t count = <uint32_t>len(operations)
        cdef rv_operation *wanted = <rv_operation *>PyMem_Malloc(max(count, 1) * sizeof(rv_operation))
        cdef Py_buffer *views = <Py_buffer *>PyMem_Malloc(max(count, 1) * sizeof(Py_buffer))
        cdef uint32_t held = 0
        cdef uint32_t i = 0
        try:
            if wanted == NULL or views == NULL:
                raise MemoryError
            memset(wanted, 0, count * sizeof(rv_operation))
            found = []
            for kind, fd, data, length, position in operations:
                wanted[i].kind = kind
                wanted[i].fd = fd
                wanted[i].length = length
                wanted[i].position = position
                if wanted[i].kind == RV_READ:
                    room = PyBytes_FromStringAndSize(NULL, length)
                    found.append(room)
                    wanted[i].data = PyBytes_AS_STRING(room)
                elif wanted[i].kind == RV_WRITE:
                    PyObject_GetBuffer(data, &views[held], PyBUF_SIMPLE)
                    held += 1
                    assert views[held - 1].len == length
                    wanted[i].data = <char *>views[held - 1].buf
                i += 1
            with nogil:
                rv_ring_run(&self._ring, wanted, count)
            return self._answers(wanted, count, found)
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            PyMem_Free(views)
            PyMem_Free(wanted)

    cdef list _answers(self, rv_operation *asked, uint32_t count, list found):
        answers = []
        cdef uint32_t i, reads = 0
        for i in range(count):
            answer = None
            if asked[i].kind == RV_READ:
                answer = found[reads]
                reads += 1
                if asked[i].done < asked[i].length:
                    answer = answer[:asked[i].done]
            answers.append(asked[i].error if asked[i].error else answer)
        return answers

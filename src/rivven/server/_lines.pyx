"""Sockets of clients, without a Python frame for each that has something to say.

An event loop calls two methods of a protocol for every piece that arrives and makes a few objects on the way, which is
more than the work on a small request. `Lines` is a set of sockets that the event loop sees as one descriptor: `poll`
receives from all that are readable, hands what a `Taker` takes to it where it lies, and the rest to the socket's
protocol. To a protocol a `Line` is an `asyncio.Transport`, as far as `Connection` uses one.

Invariants:
- What is written to a line leaves in the order in which it was written, whichever way it came.
- A descriptor is watched only while something would be done about it: level-triggered events would spin otherwise.
- `connection_lost` is called once, by the loop, never from inside another call of the protocol.
- Nothing here waits, and no system call lets another thread in: they return at once.
"""

from collections import deque
from os import strerror

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP
        EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD
        EPOLL_CLOEXEC
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int what, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int events_max, int timeout_ms)

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_NOSIGNAL, MSG_DONTWAIT
    struct iovec:
        void *iov_base
        size_t iov_len
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t recv(int fd, void *at, size_t length, int flags)
    ssize_t send(int fd, const void *at, size_t length, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

cdef extern from "<time.h>" nogil:
    enum:
        CLOCK_MONOTONIC
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)

cdef enum:
    WAITING = 0
    LONG = 255
    READY_MAX = 128
    PIECES_MAX = 64
    OWED_MAX = 1000
    SLOTS_KEPT_MAX = 64
    TAKEN_BYTES_MAX = 32768
    ROOMY_BYTES_MIN = 128 * 1024  # what is longer is received where it stays
    PEEKED_BYTES = 4096
    KEPT_BYTES_MAX = 64 * 1024 * 1024


cdef inline int64_t monotonic_us() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000 + now.tv_nsec // 1000


cdef object failure(int code):
    return OSError(code, strerror(code))


cdef inline bint passes(int code) noexcept nogil:
    """Whether to try again later is all there is to do about an error."""
    return code == EAGAIN or code == EINTR


cdef class Taker:
    """Takes what it can of bytes that have arrived, as far as it understands them."""

    cdef Py_ssize_t take(self, Line line, const uint8_t *data, Py_ssize_t length, bytearray owner) except -1:
        """How many bytes it took, from the begin; whole requests only. They lie in `owner`, which is its to keep, or
        in a buffer that is everybody's if there is none."""
        return 0

    cdef Py_ssize_t begins(self, Line line, const uint8_t *data, Py_ssize_t length) noexcept:
        """How long a request would be that it would take whole, and of which these bytes, which it did not take, may
        be the begin; 0 if they are not."""
        return 0

    cdef int sent(self, int64_t now_us) except -1:
        """What it has replied is on its way."""
        return 0


cdef class Allowance:
    """The native twin of `allowance.py`; the words are there."""

    def __init__(self, int64_t rate, int64_t now_us):
        self.rate = self.left = <double>rate
        self.at_us = now_us

    cdef bint has_one(self, int64_t now_us) noexcept:
        if now_us > self.at_us:
            self.left = min(self.rate, self.left + <double>(now_us - self.at_us) * self.rate / 1e6)
            self.at_us = now_us
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def take(self, int64_t now_us):
        return self.has_one(now_us)


cdef class Lines:
    """Every line of a node, as one descriptor that is readable when one of them has something.

    `receives` and `sends` count system calls, for whoever wants to know what a request costs.
    """

    def __cinit__(self):
        self.epoll = -1

    def __init__(self, loop, shared):
        """`shared` is the buffer into which a protocol wants to receive when it is between two frames."""
        cdef Py_buffer view
        self.loop = loop
        self.lines = {}
        self.unsent = []
        self.shared = shared
        PyObject_GetBuffer(shared, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.shared_at, self.shared_bytes = <uint8_t *>view.buf, view.len
        PyBuffer_Release(&view)  # the object stays, and so does its memory: nobody resizes it
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise failure(errno)

    def __dealloc__(self):
        if self.epoll >= 0:
            close(self.epoll)

    def fileno(self):
        return self.epoll

    def close(self):
        """Lines that are left are nobody's any more."""
        if self.epoll >= 0:
            close(self.epoll)
            self.epoll = -1

    def add(self, sock, protocol):
        """Serve a socket that was accepted; the protocol has it from here on."""
        cdef Line line = Line.__new__(Line)
        line.lines = self
        line.sock = sock
        line.protocol = protocol
        line.fd = sock.fileno()
        line.backlog = deque()
        line.backlog_bytes_max = 65536
        line.reading = True
        line.seen_us = monotonic_us()
        self.lines[line.fd] = line
        protocol.connection_made(line)
        if line.fd >= 0 and line.reading:
            self.watch(line, EPOLLIN)
        return line

    cdef int watch(self, Line line, uint32_t events) except -1:
        cdef epoll_event event
        cdef int what
        if events == line.watched or line.fd < 0:
            return 0
        what = EPOLL_CTL_DEL if not events else EPOLL_CTL_MOD if line.watched else EPOLL_CTL_ADD
        event.events = events
        event.data.fd = line.fd
        if epoll_ctl(self.epoll, what, line.fd, &event) < 0:
            raise failure(errno)
        line.watched = events
        return 0

    def poll(self):
        """Receive from every line that has something, once, and send where there is room again."""
        cdef epoll_event ready[READY_MAX]
        cdef int count = epoll_wait(self.epoll, ready, READY_MAX, 0)
        cdef int index
        cdef uint32_t events
        cdef Line line
        self.turn_us = monotonic_us()
        for index in range(count):
            found = self.lines.get(ready[index].data.fd)
            if found is None:
                continue  # closed by what happened to one before it
            line = <Line>found
            events = ready[index].events
            try:
                if events & EPOLLOUT:
                    line.writable()
                if line.fd >= 0 and events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                    if line.reading:
                        line.readable()
                    else:  # it was paused without a system call, in the hope that it would soon be resumed
                        self.watch(line, line.watched & ~<uint32_t>EPOLLIN)
            except Exception as error:
                self.broken(line, error)

    def send(self):
        """Send what was replied since the last time."""
        cdef Line line
        cdef list unsent = self.unsent
        if not unsent:
            return
        self.unsent = []
        for line in unsent:
            line.unsent = False
            try:
                line.send_out()
                if line.held and line.owed < OWED_MAX:
                    line.held = False
                    if line.reading:
                        self.watch(line, line.watched | EPOLLIN)
                if line.wanted and line.owed == 0 and line.fd >= 0:
                    line.wanted = False
                    line.protocol.line_is_free()
            except Exception as error:
                self.broken(line, error)
        if self.taker is not None:
            self.taker.sent(monotonic_us())

    cdef int broken(self, Line line, error) except -1:
        """A protocol failed where it must not: this client is lost, the others are not."""
        self.loop.call_exception_handler(
            {"message": "a connection failed", "exception": error, "transport": line, "protocol": line.protocol}
        )
        return line.lose(error)


cdef class Line:
    """One socket; an `asyncio.Transport` as far as it goes.

    `express` says that the protocol is between two frames and has nothing under way, so that a taker may have what
    comes next; the protocol sets it. `owed` counts what the taker took and has not answered: while there is any, the
    protocol must not answer anything, or replies would overtake each other. If it sets `wanted`, its `line_is_free` is
    called when there is none any more.

    Requests that a taker took are numbered. It answers them in any order, each in its slot, and they leave in theirs.
    """

    def __dealloc__(self):
        PyMem_Free(self.out)
        PyMem_Free(self.slots)

    # In

    cdef int readable(self) except -1:
        cdef Py_buffer view
        cdef ssize_t count
        cdef int code
        if self.express:
            if self.owed >= OWED_MAX:  # it asks faster than it can be answered: let it wait in its socket
                self.held = True
                return self.lines.watch(self, self.watched & ~<uint32_t>EPOLLIN)
            return self.receive_express()
        if self.rest is not None:
            count = self.rest_bytes
            self.hand_on(self.let_go(), count)
            if self.fd < 0:
                return 0
        room = self.protocol.get_buffer(-1)
        PyObject_GetBuffer(room, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        count = recv(self.fd, view.buf, view.len, MSG_DONTWAIT)
        code = errno
        self.lines.receives += 1
        PyBuffer_Release(&view)
        if count > 0:
            self.protocol.buffer_updated(count)
            return 0
        return self.ended(count, code)

    cdef int receive_express(self) except -1:
        """Let the taker have what comes, and the protocol what it leaves; but for the begin of a request that will be
        the taker's, which waits for its end."""
        cdef Lines lines = self.lines
        cdef uint8_t *at = lines.shared_at
        cdef Py_ssize_t left = self.rest_bytes, taken, room
        cdef ssize_t count
        cdef int code
        if self.rest is not None and left < PyByteArray_GET_SIZE(self.rest):
            return self.receive_rest()
        if left:
            memcpy(at, PyByteArray_AS_STRING(self.rest), left)
        # Small requests are many in few bytes, and others want their turn; of large ones as many as there is room for;
        # of one so long that it is received where it stays, only enough to know it by
        room = lines.shared_bytes
        if not left and self.lengthy:
            room = min(PEEKED_BYTES, room)
        elif not left and not self.bulky:
            room = min(TAKEN_BYTES_MAX, room)
        count = recv(self.fd, at + left, room - left, MSG_DONTWAIT)
        code = errno
        lines.receives += 1
        if count <= 0:
            return self.ended(count, code)
        if self.rest is not None:
            self.let_go()
        left += count
        taken = lines.taker.take(self, at, left, None)
        if taken:
            self.seen_us = lines.turn_us  # what trickles in does not count as a sign of life
            self.declined = False
            left -= taken
            memmove(at, at + taken, left)
        self.lengthy = False
        if left and self.fd >= 0:  # an answer may have been that there is none
            room = lines.taker.begins(self, at, left)
            if room < ROOMY_BYTES_MIN:
                room = min(room, left)  # others may come with the rest of it
            elif self.declined:
                room = 0  # the protocol receives it where it wants it: what was kept would be copied
            if room and lines.kept_bytes + room <= KEPT_BYTES_MAX:
                self.keep(at, left, room)
                return self.receive_rest() if room > left else 0  # most of the time it is there, too
            self.protocol.buffer_updated(left)
        return 0

    cdef int receive_rest(self) except -1:
        """Receive more of a long request where the begin of it is kept, and nothing beyond its end."""
        cdef bytearray whole = self.rest
        cdef uint8_t *at = <uint8_t *>PyByteArray_AS_STRING(whole)
        cdef Py_ssize_t room = PyByteArray_GET_SIZE(whole)
        cdef ssize_t count = recv(self.fd, at + self.rest_bytes, room - self.rest_bytes, MSG_DONTWAIT)
        cdef int code = errno
        self.lines.receives += 1
        if count <= 0:
            return self.ended(count, code)
        self.rest_bytes += count
        if self.rest_bytes < room:
            return 0
        self.let_go()  # first: whoever takes it may find out that the line is lost
        if self.lines.taker.take(self, at, room, whole):
            self.seen_us = self.lines.turn_us
            self.lengthy = True
            return 0
        self.declined = True  # one for a compacted topic, say, and more of its kind may follow
        return self.hand_on(whole, room)

    cdef int keep(self, const uint8_t *data, Py_ssize_t length, Py_ssize_t room) except -1:
        self.rest = PyByteArray_FromStringAndSize(NULL, room)
        self.rest_bytes = length
        self.lines.kept_bytes += room
        memcpy(PyByteArray_AS_STRING(self.rest), data, length)
        return 0

    cdef bytearray let_go(self):
        """What was kept is used now, or nobody will."""
        cdef bytearray rest = self.rest
        self.lines.kept_bytes -= PyByteArray_GET_SIZE(rest)
        self.rest, self.rest_bytes = None, 0
        return rest

    cdef int hand_on(self, bytearray rest, Py_ssize_t length) except -1:
        """The express is closed: what was kept for it is the protocol's."""
        cdef Py_buffer view
        cdef Py_ssize_t done = 0, count
        while done < length and self.fd >= 0:
            room = self.protocol.get_buffer(-1)
            PyObject_GetBuffer(room, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
            count = min(view.len, length - done)
            memcpy(view.buf, PyByteArray_AS_STRING(rest) + done, count)
            PyBuffer_Release(&view)
            done += count
            self.protocol.buffer_updated(count)
        return 0

    cdef int ended(self, ssize_t count, int code) except -1:
        """Nothing was received: the other side is done, or something is wrong, or it was a false alarm."""
        if count == 0:
            if not self.protocol.eof_received():
                self.close()
        elif not passes(code):
            self.lose(failure(code))
        return 0

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        if self.closing or self.fd < 0:
            return
        self.reading = True
        self.lines.watch(self, self.watched | EPOLLIN)

    # The taker's replies

    cdef uint64_t expect(self) except? 0xFFFFFFFFFFFFFFFF:
        """The number of a request that was taken just now; its reply will leave in this place."""
        cdef uint64_t number = self.first + <uint64_t>self.owed
        if <uint64_t>self.owed == self.slots_room:
            self.widen()
        self.slots[number & (self.slots_room - 1)].length = WAITING
        self.owed += 1
        return number

    cdef int widen(self) except -1:
        cdef uint64_t room = 2 * self.slots_room if self.slots_room else 4
        cdef uint64_t number = self.first
        cdef uint64_t end = self.first + <uint64_t>self.owed
        cdef Slot *slots = <Slot *>PyMem_Malloc(room * sizeof(Slot))
        if slots == NULL:
            raise MemoryError
        while number != end:
            slots[number & (room - 1)] = self.slots[number & (self.slots_room - 1)]
            number += 1
        PyMem_Free(self.slots)
        self.slots, self.slots_room = slots, room
        return 0

    cdef uint8_t *place(self, uint64_t number) noexcept:
        """Where to write the reply to a request, up to `SHORT_BYTES_MAX`; `replied` says how long it has become."""
        return self.slots[number & (self.slots_room - 1)].reply

    cdef int replied(self, uint64_t number, Py_ssize_t length) except -1:
        self.slots[number & (self.slots_room - 1)].length = <uint8_t>length
        return self.ready()

    cdef int replied_with(self, uint64_t number, bytes frame) except -1:
        """A reply that may be too long for its place."""
        if number == self.first:  # its turn has come already
            self.put_out(PyBytes_AS_STRING(frame), len(frame))
            self.first += 1
            self.owed -= 1
            return self.ready()
        if self.long_replies is None:
            self.long_replies = {}
        self.long_replies[number] = frame
        self.slots[number & (self.slots_room - 1)].length = LONG
        return self.ready()

    cdef int ready(self) except -1:
        if not self.unsent:
            self.unsent = True
            self.lines.unsent.append(self)
        return 0

    cdef int gather(self) except -1:
        """Put the replies into `out` that can leave: those before the first that is not there."""
        cdef Slot *slot
        while self.owed:
            slot = &self.slots[self.first & (self.slots_room - 1)]
            if slot.length == WAITING:
                break
            if slot.length == LONG:
                frame = self.long_replies.pop(self.first)
                self.put_out(PyBytes_AS_STRING(frame), len(frame))
            else:
                self.put_out(slot.reply, slot.length)
            self.first += 1
            self.owed -= 1
        if not self.owed and self.slots_room > SLOTS_KEPT_MAX:
            PyMem_Free(self.slots)
            self.slots, self.slots_room = NULL, 0
        return 0

    cdef int put_out(self, const void *data, Py_ssize_t length) except -1:
        cdef Py_ssize_t room = self.out_bytes + length
        cdef void *out
        if room > self.out_room:
            room = max(64, 2 * room)
            out = PyMem_Realloc(self.out, room)
            if out == NULL:
                raise MemoryError
            self.out, self.out_room = <uint8_t *>out, room
        memcpy(self.out + self.out_bytes, data, length)
        self.out_bytes += length
        return 0

    cdef int send_out(self) except -1:
        """Send what the taker replied, after what is before it."""
        cdef ssize_t count = 0
        cdef int code
        cdef Py_ssize_t length
        self.gather()
        length = self.out_bytes
        if not length:
            return 0
        self.out_bytes = 0
        if self.fd < 0:
            return 0
        if not self.backlog_bytes:
            count = send(self.fd, self.out, length, MSG_NOSIGNAL | MSG_DONTWAIT)
            code = errno
            self.lines.sends += 1
            if count == length:
                return 0
            if count < 0:
                if not passes(code):
                    return self.lose(failure(code))
                count = 0
        self.backlog.append(PyBytes_FromStringAndSize(<char *>self.out + count, length - count))
        self.backlog_bytes += length - count
        return self.after_drain()

    # The protocol's

    def writelines(self, pieces):
        cdef Py_ssize_t length
        if self.fd < 0:
            return
        self.send_out()
        for piece in pieces:
            length = len(piece)
            if length:
                self.backlog.append(piece)
                self.backlog_bytes += length
        if self.fd < 0:
            return
        if self.watched & EPOLLOUT:  # there is no room yet; but it may be time to say so
            self.after_drain()
        else:
            self.drain()

    cdef int drain(self) except -1:
        """Send as much as the socket takes."""
        cdef Py_buffer views[PIECES_MAX]
        cdef iovec vector[PIECES_MAX]
        cdef msghdr message
        cdef int used, index
        cdef Py_ssize_t wanted
        cdef ssize_t count
        cdef int code
        while self.backlog_bytes:
            used, wanted = 0, -self.begun_bytes
            try:
                for piece in self.backlog:
                    if used == PIECES_MAX:
                        break
                    PyObject_GetBuffer(piece, &views[used], PyBUF_SIMPLE)
                    vector[used].iov_base, vector[used].iov_len = views[used].buf, <size_t>views[used].len
                    wanted += views[used].len
                    used += 1
                vector[0].iov_base = <uint8_t *>vector[0].iov_base + self.begun_bytes
                vector[0].iov_len -= self.begun_bytes
                memset(&message, 0, sizeof(msghdr))
                message.msg_iov, message.msg_iovlen = vector, <size_t>used
                count = sendmsg(self.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                code = errno
                self.lines.sends += 1
            finally:
                for index in range(used):
                    PyBuffer_Release(&views[index])
            if count < 0:
                if passes(code):
                    break
                return self.lose(failure(code))
            self.sent(count)
            if count < wanted:
                break
        return self.after_drain()

    cdef int sent(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t left
        self.backlog_bytes -= count
        count += self.begun_bytes
        while self.backlog:
            left = len(self.backlog[0])
            if count < left:
                break
            count -= left
            self.backlog.popleft()
        self.begun_bytes = count
        return 0

    cdef int after_drain(self) except -1:
        """Wait for room if there is something left; tell the protocol if it is too much, or no longer."""
        if self.backlog_bytes:
            self.lines.watch(self, self.watched | EPOLLOUT)
            if self.backlog_bytes > self.backlog_bytes_max and not self.writing_paused:
                self.writing_paused = True
                self.express = False
                self.protocol.pause_writing()
            return 0
        self.lines.watch(self, self.watched & ~<uint32_t>EPOLLOUT)
        if self.writing_paused:
            self.writing_paused = False
            self.protocol.resume_writing()
        if self.closing:
            self.lose(None)
        return 0

    cdef int writable(self) except -1:
        if self.backlog_bytes:
            return self.drain()
        return self.after_drain()

    def set_write_buffer_limits(self, high=None, low=None):
        self.backlog_bytes_max = 65536 if high is None else high

    # Whom it is about

    def get_extra_info(self, name, default=None):
        if name == "peername":
            try:
                return self.sock.getpeername()
            except OSError:  # it has gone already
                return default
        return self.sock if name == "socket" else default

    # The end

    def is_closing(self):
        return self.closing or self.fd < 0

    def close(self):
        """Read no more, and close once what was written has left."""
        if self.closing or self.fd < 0:
            return
        self.closing = True
        self.reading = self.express = False
        self.send_out()
        if self.fd >= 0 and not self.backlog_bytes:
            self.lose(None)

    def abort(self):
        self.lose(None)

    cdef int lose(self, error) except -1:
        """It is over: give the descriptor up, and have the protocol told."""
        if self.fd < 0:
            return 0
        if self.watched:
            self.lines.watch(self, 0)
        del self.lines.lines[self.fd]
        self.fd = -1
        self.closing, self.reading, self.express = True, False, False
        self.out_bytes = self.backlog_bytes = 0
        self.backlog.clear()
        if self.rest is not None:
            self.let_go()
        self.sock.close()
        self.lines.loop.call_soon(self.protocol.connection_lost, error)
        return 0


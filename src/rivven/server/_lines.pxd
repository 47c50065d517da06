from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    SHORT_BYTES_MAX = 31

cdef struct Slot:
    uint8_t length
    uint8_t reply[SHORT_BYTES_MAX]


cdef class Taker:
    cdef Py_ssize_t take(self, Line line, const uint8_t *data, Py_ssize_t length, bytearray owner) except -1
    cdef Py_ssize_t begins(self, Line line, const uint8_t *data, Py_ssize_t length) noexcept
    cdef int sent(self, int64_t now_us) except -1


cdef class Allowance:
    cdef double rate, left
    cdef int64_t at_us

    cdef bint has_one(self, int64_t now_us) noexcept


cdef class Lines:
    cdef int epoll
    cdef object loop
    cdef dict lines
    cdef list unsent
    cdef object shared
    cdef uint8_t *shared_at
    cdef Py_ssize_t shared_bytes
    cdef public Taker taker
    cdef readonly int64_t turn_us
    cdef int64_t kept_bytes
    cdef readonly int64_t receives, sends

    cdef int watch(self, Line line, uint32_t events) except -1
    cdef int broken(self, Line line, error) except -1


cdef class Line:
    cdef Lines lines
    cdef object sock, protocol, backlog
    cdef int fd
    cdef uint32_t watched
    cdef bint reading, closing, writing_paused
    cdef bint unsent, held, bulky, lengthy, declined
    cdef Slot *slots
    cdef uint64_t slots_room, first
    cdef dict long_replies
    cdef bytearray rest
    cdef Py_ssize_t rest_bytes
    cdef uint8_t *out
    cdef Py_ssize_t out_bytes, out_room
    cdef Py_ssize_t backlog_bytes, begun_bytes, backlog_bytes_max
    cdef public Allowance allowance
    cdef public bint express
    cdef public bint kafka
    cdef public bint wanted
    cdef readonly Py_ssize_t owed
    cdef readonly int64_t seen_us

    cdef int readable(self) except -1
    cdef int receive_express(self) except -1
    cdef int receive_rest(self) except -1
    cdef int keep(self, const uint8_t *data, Py_ssize_t length, Py_ssize_t room) except -1
    cdef bytearray let_go(self)
    cdef int hand_on(self, bytearray rest, Py_ssize_t length) except -1
    cdef int ended(self, ssize_t count, int code) except -1
    cdef int writable(self) except -1
    cdef uint64_t expect(self) except? 0xFFFFFFFFFFFFFFFF
    cdef int widen(self) except -1
    cdef uint8_t *place(self, uint64_t number) noexcept
    cdef int replied(self, uint64_t number, Py_ssize_t length) except -1
    cdef int replied_with(self, uint64_t number, bytes frame) except -1
    cdef int ready(self) except -1
    cdef int put_out(self, const void *data, Py_ssize_t length) except -1
    cdef int gather(self) except -1
    cdef int send_out(self) except -1
    cdef int drain(self) except -1
    cdef int sent(self, Py_ssize_t count) except -1
    cdef int after_drain(self) except -1
    cdef int lose(self, error) except -1

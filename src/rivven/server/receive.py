"""Bytes in: one shared buffer for what is small, pooled buffers for what is large.

Every connection receives into the same buffer, and whole frames are handed on before the next connection has its
turn. Only a frame that does not fit, or that has not wholly arrived, gets a buffer of its own, of its exact length,
out of a pool of size classes; the rest of it is then received right where it will be used. How frames are cut is
`wire`'s to say; this is about whose memory they lie in when many connections share it.
Invariant: the pool holds at most `bytes_max`, and only buffers that nobody looks into.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rivven.limits import KIB, MIB
from rivven.wire import LENGTH, TRUSTED_BYTES, cut, is_watched

SHARED_BYTES = 256 * KIB
CLASSES = (512, 4 * KIB, 64 * KIB, 1 * MIB)
POOL_BYTES_MAX = 64 * MIB
RECEIVING_BYTES_MAX = 256 * MIB


@dataclass(slots=True)
class BufferPool:
    bytes_max: int = POOL_BYTES_MAX
    receiving_bytes_max: int = RECEIVING_BYTES_MAX
    """How much all frames together may hold that have not wholly arrived."""
    receiving_bytes: int = 0
    hits: int = 0
    misses: int = 0
    held_bytes: int = 0
    _free: dict[int, list[bytearray]] = field(default_factory=lambda: {size: [] for size in CLASSES})

    def take(self, length_bytes: int) -> bytearray:
        """A buffer of at least this length."""
        size = next((size for size in CLASSES if size >= length_bytes), None)
        if size is not None and (free := self._free[size]):
            self.hits += 1
            self.held_bytes -= size
            return free.pop()
        self.misses += 1
        return bytearray(size or length_bytes)

    def give(self, buffer: bytearray) -> None:
        """Give one back; it is kept if it is of a class, there is room, and nobody looks into it."""
        size = len(buffer)
        free = self._free.get(size)
        if free is None or self.held_bytes + size > self.bytes_max or is_watched(buffer):
            return
        self.held_bytes += size
        free.append(buffer)


class Receiver:
    """One connection's place in the stream: at a frame's begin, or inside one."""

    __slots__ = (
        "_frame",
        "_frame_bytes",
        "_frame_bytes_max",
        "_got",
        "_pool",
        "_reserved",
        "_shared",
        "full",
        "oversized",
    )

    def __init__(self, shared: memoryview, pool: BufferPool, frame_bytes_max: int) -> None:
        self._shared = shared
        self._pool = pool
        self._frame_bytes_max = frame_bytes_max
        self._frame: bytearray | None = None  # a frame that has begun, from its length on
        self._frame_bytes = 0  # its whole length, once known, with the length itself
        self._got = 0
        self._reserved = 0
        self.oversized: int | None = None
        """A length above the limit: say so, and close."""
        self.full = False
        """There is no room for the rest of a frame while so many others are on their way: say so, and close."""

    def _reserve(self, length_bytes: int) -> bool:
        """Count the buffer of a frame that has begun towards what all of them may hold; False if that is too much."""
        pool = self._pool
        if pool.receiving_bytes + length_bytes - self._reserved > pool.receiving_bytes_max:
            self.full = True
            return False
        pool.receiving_bytes += length_bytes - self._reserved
        self._reserved = length_bytes
        return True

    @property
    def is_between_frames(self) -> bool:
        return self._frame is None and not self.full and self.oversized is None

    def release(self) -> None:
        """The frame that had begun is whole, or will never be."""
        self._pool.receiving_bytes -= self._reserved
        self._reserved = 0

    def buffer(self) -> memoryview:
        if self._frame is not None and self._got == len(self._frame):
            self._grow()
        if self._frame is None or self.full:  # in the second case nobody will look at it
            return self._shared
        wanted = self._frame_bytes or LENGTH.size
        return memoryview(self._frame)[self._got : min(wanted, len(self._frame))]

    def _grow(self) -> None:
        assert self._frame is not None
        length_bytes = min(self._frame_bytes, 4 * len(self._frame))
        if self._reserve(length_bytes):
            larger = bytearray(length_bytes)
            larger[: self._got] = self._frame
            self._frame = larger

    def received(self, count: int) -> list[tuple[memoryview, bytearray | None]]:
        """The frames' bodies that are whole now. Those with a buffer are theirs to keep; the others lie in the
        shared buffer and must be used up before anything else is received."""
        if self.full:
            return []
        if self._frame is not None:
            return self._more(count)
        return self._split(self._shared[:count])

    def _more(self, count: int) -> list[tuple[memoryview, bytearray | None]]:
        frame = self._frame
        assert frame is not None
        self._got += count
        if not self._frame_bytes and (self._got < LENGTH.size or not self._know_length(frame)):
            return []
        if self._got < self._frame_bytes:
            return []
        self._frame = None
        self.release()
        body = memoryview(frame)[LENGTH.size : self._frame_bytes]
        return [(body, frame)]

    def _know_length(self, frame: bytearray) -> bool:
        """The length has arrived: move over to a buffer that is long enough. Whether the frame may come."""
        length = LENGTH.unpack_from(frame)[0]
        if length > self._frame_bytes_max:
            self.oversized = length
            return False
        self._frame_bytes = LENGTH.size + length
        if self._frame_bytes > len(frame):
            wanted = min(self._frame_bytes, TRUSTED_BYTES)
            if not self._reserve(wanted):
                return False
            larger = self._pool.take(wanted)
            larger[: self._got] = frame[: self._got]
            self._pool.give(frame)
            self._frame = larger
        return True

    def _split(self, data: memoryview) -> list[tuple[memoryview, bytearray | None]]:
        bodies, position, self.oversized = cut(data, 0, len(data), self._frame_bytes_max)
        if position < len(data) and self.oversized is None:
            self._begin(data[position:])
        return [(body, None) for body in bodies]

    def _begin(self, rest: memoryview) -> None:
        known = len(rest) >= LENGTH.size
        self._frame_bytes = LENGTH.size + LENGTH.unpack_from(rest)[0] if known else 0
        wanted = min(max(self._frame_bytes, len(rest), LENGTH.size), TRUSTED_BYTES)
        if not self._reserve(wanted):
            return
        self._frame = self._pool.take(wanted)
        self._frame[: len(rest)] = rest
        self._got = len(rest)

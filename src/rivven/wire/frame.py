"""Frames: a length, then that many bytes. What came in is cut into frames where it lies.

Sans-I/O: the shell asks for a `buffer`, receives into it and says how much; whole frames come back as views. A
small frame lies in the receive buffer, a large one in a buffer of its own, and nothing is copied but the odd
half frame at a buffer's end. A buffer is used again only when nobody looks into it any more; of large ones some are
kept for that, if so wished, since new memory costs more than receiving into it.
A length above the limit is told at once, before anything is kept for it.
"""

from __future__ import annotations

import struct
from collections import deque
from enum import IntEnum

from rivven.errors import Malformed
from rivven.limits import KIB, MIB

from .bounds import FRAME_HEADER_BYTES, REQUEST_BYTES_MAX, unreadable
from .schema import Piece

LENGTH = struct.Struct(">I")
HEAD = struct.Struct(">BI")
"""The format and the correlation id."""
WHOLE_HEAD = struct.Struct(">IBI")
HTTP = int.from_bytes(b"HTTP")
"""What the first bytes of a web server's answer are, taken for a length."""

RECEIVE_BYTES = 64 * KIB
TRUSTED_BYTES = 1 * MIB
"""What a length alone may reserve; the buffer of a longer frame grows with what really arrives."""


SPARE_STEP_BYTES = 256 * KIB


class Format(IntEnum):
    """How the payload of a frame is written. Each frame says it for itself, and is answered in kind."""

    POSTCARD = 0
    PROTOBUF = 1


FORMATS = tuple(Format)


def read_head(body: Piece) -> tuple[Format, int]:
    """The format and the correlation id of a native frame; `body` is what follows the length."""
    if len(body) < FRAME_HEADER_BYTES:
        raise unreadable("Wire data too short (need format byte + correlation_id)")
    form, correlation_id = HEAD.unpack_from(body)
    if form > Format.PROTOBUF:
        raise about(unreadable(f"Unknown wire format: {form:#04x}"), Format.POSTCARD, correlation_id)
    return FORMATS[form], correlation_id


def about(error: Malformed, form: Format, correlation_id: int) -> Malformed:
    """The same error, knowing which frame it is about, so that the refusal can say so."""
    error.facts = {"format": form, "correlation_id": correlation_id, **error.facts}
    return error


def cut(data: memoryview, start: int, end: int, bytes_max: int) -> tuple[list[memoryview], int, int | None]:
    """The bodies of the whole frames from `start` on, where what is left begins, and a length above the limit, at
    which the cutting ends."""
    bodies: list[memoryview] = []
    while end - start >= LENGTH.size:
        (length,) = LENGTH.unpack_from(data, start)
        if length > bytes_max:
            return bodies, start, length
        body = start + LENGTH.size
        if end - body < length:
            break
        start = body + length
        bodies.append(data[body:start])
    return bodies, start, None


def is_watched(buffer: bytearray) -> bool:
    """Whether somebody still looks into a buffer: then it may not change its length."""
    try:
        last = buffer.pop()  # shorter first: to become longer it might have to move
    except BufferError:
        return True
    buffer.append(last)
    return False


class Splitter:
    """Cuts a stream into frame bodies, without their lengths."""

    def __init__(
        self,
        *,
        frame_bytes_max: int = REQUEST_BYTES_MAX,
        receive_bytes: int = RECEIVE_BYTES,
        trusted_bytes: int = TRUSTED_BYTES,
        spare_bytes_max: int = 0,
    ) -> None:
        """`trusted_bytes` is what a length alone may reserve, `spare_bytes_max` what is kept of large buffers."""
        assert receive_bytes >= 2 * LENGTH.size
        self.frame_bytes_max = frame_bytes_max
        """May be changed between frames, when the dialect is known."""
        self._receive_bytes = receive_bytes
        self._small = bytearray(receive_bytes)
        self._start = self._end = 0  # what of `_small` came in and was not handed out
        self._large: bytearray | None = None
        self._large_end = self._large_bytes = 0
        self._trusted_bytes = trusted_bytes
        self._spare_bytes_max = spare_bytes_max
        self._spares: deque[bytearray] = deque()
        self.oversized: int | None = None
        """The length that was above the limit. Nothing after it is read; say so and close."""

    def about_oversized(self) -> str:
        """The same in words, for whoever asked and got this for an answer."""
        if self.oversized == HTTP:
            return "that port speaks HTTP; name the one that the broker is bound to, 9092 by default"
        return f"an answer of {self.oversized} bytes is above the limit"

    def buffer(self) -> memoryview:
        """Where to receive next; never empty. Drop it before the next call, or that one takes a new buffer."""
        if self._large is not None:
            if self._large_end == len(self._large):
                more = bytes(min(3 * len(self._large), self._large_bytes - len(self._large)))
                try:
                    self._large += more
                except BufferError:  # somebody kept the last view
                    self._large = self._large + more
            return memoryview(self._large)[self._large_end : self._large_bytes]
        self._make_room()
        return memoryview(self._small)[self._end :]

    def received(self, count: int) -> list[memoryview]:
        """The bodies that are whole now that `count` more bytes lie in the buffer."""
        if self.oversized is not None:
            return []
        if self._large is None:
            self._end += count
            return self._split()
        self._large_end += count
        if self._large_end < self._large_bytes:
            return []
        whole, self._large = self._large, None
        self._keep(whole)
        return [memoryview(whole)[: self._large_bytes]]

    def feed(self, data: Piece) -> list[memoryview]:
        """`buffer` and `received` for whoever was handed the bytes."""
        bodies: list[memoryview] = []
        rest = memoryview(data)
        while rest and self.oversized is None:
            with self.buffer() as room:
                count = min(len(room), len(rest))
                room[:count] = rest[:count]
            bodies += self.received(count)
            rest = rest[count:]
        return bodies

    def _split(self) -> list[memoryview]:
        view = memoryview(self._small)
        end = self._end
        bodies, start, self.oversized = cut(view, self._start, end, self.frame_bytes_max)
        if end - start >= LENGTH.size and self.oversized is None:
            (length,) = LENGTH.unpack_from(view, start)
            if length + LENGTH.size > self._receive_bytes:
                self._begin_large(view[start + LENGTH.size : end], length)
                start = end
        self._start = start
        return bodies

    def _begin_large(self, begun: memoryview, length: int) -> None:
        self._large = self._room_for(min(length, max(self._trusted_bytes, len(begun))))
        self._large[: len(begun)] = begun
        self._large_end, self._large_bytes = len(begun), length

    def _room_for(self, length_bytes: int) -> bytearray:
        """A buffer of at least this length: one that was used before and is free again, or a new one."""
        for spare in self._spares:
            if length_bytes <= len(spare) and not is_watched(spare):
                self._spares.remove(spare)
                return spare
        if self._spare_bytes_max:
            length_bytes = (
                -(-length_bytes // SPARE_STEP_BYTES) * SPARE_STEP_BYTES
            )  # so that it fits the next one, too
        return bytearray(length_bytes)

    def _keep(self, buffer: bytearray) -> None:
        self._spares.append(buffer)
        while sum(map(len, self._spares)) > self._spare_bytes_max:
            self._spares.popleft()

    def _make_room(self) -> None:
        """Start over in the small buffer, or in a new one, unless the frame that was begun fits where it lies."""
        start, end = self._start, self._end
        if start == end == 0:
            if is_watched(self._small):
                self._small = bytearray(self._receive_bytes)
            return
        waiting = end - start
        if waiting:
            wanted = LENGTH.size
            if waiting >= LENGTH.size:
                wanted += LENGTH.unpack_from(self._small, start)[0]
            if start + wanted <= self._receive_bytes and end < self._receive_bytes:
                return
        begun = self._small[start:end]
        if is_watched(self._small):
            self._small = bytearray(self._receive_bytes)
        self._small[:waiting] = begun
        self._start, self._end = 0, waiting

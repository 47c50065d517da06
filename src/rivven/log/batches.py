"""Walking the batches of a file, in large reads, without holding more than one read in memory.

The one loop behind recovery, index rebuilding, compaction and verification. It stops at the first thing that is
not a whole batch and says why: `bad` is None at a clean end, else the reason, and `position` is where the good
part ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from rivven.errors import BatchTooLarge, Malformed
from rivven.limits import MIB
from rivven.ports import File
from rivven.record import HEADER_BYTES, BatchHeader, parse_header, validate

CHUNK_BYTES = 4 * MIB


class Found(NamedTuple):
    """A whole batch: where it stands in the file, its header, and its bytes."""

    position: int
    header: BatchHeader
    data: memoryview


class Offsets(Enum):
    """What the base offsets of neighbours must be like: anything, ever higher, or without a gap."""

    ANY = auto()
    GROWING = auto()
    DENSE = auto()


class Batches:
    """Iterate once over the batches of `file` from `position` to `end`; then read `position` and `bad`.

    `offset_min` is the lowest base offset that the first batch may have, or the one that it must have where offsets
    are dense: others are damage.
    """

    def __init__(
        self,
        file: File,
        position: int = 0,
        end: int | None = None,
        *,
        verify: bool = True,
        offset_min: int = 0,
        offsets: Offsets = Offsets.GROWING,
    ) -> None:
        self._file = file
        self._offsets = offsets
        self.position = position
        self.end = file.length() if end is None else end
        self.bad: str | None = None
        self.next_offset = offset_min
        self._verify = verify
        self._chunk = memoryview(b"")
        self._chunk_at = position

    def __iter__(self) -> Iterator[Found]:
        check = validate if self._verify else parse_header
        while self.position < self.end:
            data = self._have(HEADER_BYTES)
            if data is None:
                self.bad = "the file ends inside a batch header"
                return
            try:
                header = parse_header(data)
                data = self._have(header.batch_bytes)
                if data is None:
                    self.bad = "the file ends inside a batch"
                    return
                if self._verify:
                    header = check(data)
            except (Malformed, BatchTooLarge) as error:
                self.bad = str(error)
                return
            if not self._follows(header.base_offset):
                more = "" if self._offsets is Offsets.DENSE else " or more"
                self.bad = f"offset {header.base_offset} where {self.next_offset}{more} was due"
                return
            batch_bytes = header.batch_bytes
            found = Found(self.position, header, data[:batch_bytes])
            self.position += batch_bytes
            self.next_offset = header.next_offset
            yield found

    def _follows(self, base_offset: int) -> bool:
        match self._offsets:
            case Offsets.ANY:
                return True
            case Offsets.GROWING:
                return base_offset >= self.next_offset
            case Offsets.DENSE:
                return base_offset == self.next_offset

    def _have(self, length_bytes: int) -> memoryview | None:
        """At least `length_bytes` from the present position, or None if the file ends before."""
        inside = self.position - self._chunk_at
        if inside + length_bytes <= len(self._chunk):
            return self._chunk[inside:]
        if self.position + length_bytes > self.end:
            return None
        wanted = max(length_bytes, min(CHUNK_BYTES, self.end - self.position))
        self._chunk = memoryview(self._file.read(wanted, self.position))
        self._chunk_at = self.position
        return self._chunk if len(self._chunk) >= length_bytes else None

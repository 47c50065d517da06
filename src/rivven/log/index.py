"""A sparse index of a segment: sorted keys, each with a 32-bit value, in memory as two columns.

The offset index maps (offset - base) to the byte position of the batch that starts there. The time index maps
the largest timestamp seen *before* a batch to that batch's (offset - base). Both get one entry for about every
`index.interval.bytes` of log.

On disk an index is a sequence of blocks, one per flush: a 16-byte header (magic, entries, CRC-32C of the
payload, reserved) and the payload, the keys followed by the values, little-endian. Indexes are derived:
whatever is missing, short or damaged is made again from the log.
Invariant: keys never fall, values never fall, and `kept` entries of them are in the file.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from rivven.ports import Disk
from rivven.record import crc32c

from .document import read_whole

BLOCK = struct.Struct("<4sIII")


@dataclass(frozen=True, slots=True)
class Kind:
    suffix: str
    magic: bytes
    key_code: str
    strict: bool
    """Whether every key is above the one before."""


OFFSETS = Kind(".idx", b"RVIX", "I", strict=True)
TIMES = Kind(".tidx", b"RVTX", "q", strict=False)

assert array("I").itemsize == 4
assert array("q").itemsize == 8


@dataclass(slots=True)
class Flush:
    """One write that brings an index file up to date: `run` anywhere, then `finish` where the index lives."""

    index: Index
    path: str
    block: bytes
    position: int
    count: int
    cuts: int

    def run(self, disk: Disk, *, sync: bool) -> None:
        emptied = self.count == 0 and disk.exists(self.path)
        if not self.block and not emptied and not (sync and self.count):
            return
        file = disk.open(self.path, create=True)
        try:
            if self.position == 0:
                file.truncate(0)
            if self.block:
                file.write(self.block, self.position)
            if sync:
                file.sync()
        finally:
            file.close()

    def finish(self) -> None:
        self.index._flushed(self)


class Index:
    __slots__ = ("_cuts", "_kept", "_kept_bytes", "_kind", "keys", "saved", "values")

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.keys = array(kind.key_code)
        self.values = array("I")
        """The columns. `tail` appends to them without asking."""
        self._kept = 0
        self._kept_bytes = 0
        self._cuts = 0
        self.saved = False
        """Whether there may be a file of it."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def lacks_file(self) -> bool:
        """Whether it has entries that no file has."""
        return len(self.keys) > self._kept

    def last(self) -> tuple[int, int] | None:
        return (self.keys[-1], self.values[-1]) if self.keys else None

    def at_or_below(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is at most `key`."""
        place = bisect_right(self.keys, key) - 1
        return (self.keys[place], self.values[place]) if place >= 0 else None

    def below(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is less than `key`."""
        place = bisect_left(self.keys, key) - 1
        return (self.keys[place], self.values[place]) if place >= 0 else None

    def above(self, key: int) -> tuple[int, int] | None:
        """The first entry whose key is more than `key`."""
        place = bisect_right(self.keys, key)
        return (self.keys[place], self.values[place]) if place < len(self.keys) else None

    def before_position(self, value_max: int) -> tuple[int, int] | None:
        """The last entry whose value is not above this one."""
        place = bisect_right(self.values, value_max) - 1
        return (self.keys[place], self.values[place]) if place >= 0 else None

    def cut(self, value_max: int) -> None:
        """Forget the entries whose value is above `value_max`."""
        place = bisect_right(self.values, value_max)
        del self.keys[place:], self.values[place:]
        if place < self._kept:
            self.distrust_file()
        self._cuts += 1

    def distrust_file(self) -> None:
        """The next flush writes it anew."""
        self._kept = self._kept_bytes = 0

    # Disk

    def flush(self, path: str) -> Flush:
        """What the file at `path` still lacks, as a job that may run on any thread."""
        count = len(self.keys) - self._kept
        if count == 0:
            return Flush(self, path, b"", self._kept_bytes, self._kept, self._cuts)
        self.saved = True
        payload = _little(self.keys[self._kept :]) + _little(self.values[self._kept :])
        block = BLOCK.pack(self._kind.magic, count, crc32c(payload), 0) + payload
        return Flush(self, path, block, self._kept_bytes, len(self.keys), self._cuts)

    def _flushed(self, flush: Flush) -> None:
        if flush.cuts == self._cuts:  # else the file no longer matches, and the next flush writes it anew
            self._kept = flush.count
            self._kept_bytes = flush.position + len(flush.block)

    @classmethod
    def load(cls, disk: Disk, path: str, kind: Kind) -> tuple[Index, str | None]:
        """What the file holds, up to its first damage, and what was wrong with it."""
        index = cls(kind)
        try:
            data = read_whole(disk, path)
        except FileNotFoundError:
            return index, "missing"
        index.saved = True
        return index, index._parse(data)

    def _parse(self, data: bytes) -> str | None:
        entry_bytes = self.keys.itemsize + 4
        position = 0
        while position < len(data):
            if position + BLOCK.size > len(data):
                return "cut short"
            magic, count, crc, _ = BLOCK.unpack_from(data, position)
            start = position + BLOCK.size
            end = start + count * entry_bytes
            if magic != self._kind.magic or count == 0:
                return "not an index block"
            if end > len(data):
                return "cut short"
            payload = data[start:end]
            if crc32c(payload) != crc:
                return "checksum mismatch"
            keys_bytes = count * self.keys.itemsize
            keys = _from_little(self._kind.key_code, payload[:keys_bytes])
            values = _from_little("I", payload[keys_bytes:])
            if not self._follows(keys, values):
                return "not in order"
            self.keys.extend(keys)
            self.values.extend(values)
            position = end
            self._kept = len(self.keys)
            self._kept_bytes = position
        return None

    def _follows(self, keys: array[int], values: array[int]) -> bool:
        if self.keys and (keys[0] < self.keys[-1] or values[0] <= self.values[-1]):
            return False
        # Sorting what is sorted already is one pass in C; a set finds repeats.
        if list(keys) != sorted(keys) or list(values) != sorted(set(values)):
            return False
        return not self._kind.strict or len(set(keys)) == len(keys)


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _from_little(code: str, data: bytes) -> array[int]:
    column = array(code)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column

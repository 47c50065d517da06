"""Which keys a sealed segment may hold: a Bloom filter in a file beside it.

`<base>.bloom` is 32 bytes (magic, hash count, flags, keys, bits, CRC-32C of the bits, reserved) and the bits. Like
an index it is derived and may be missing. "No" is certain; "maybe" is wrong about once in a hundred times.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b

from rivven.ports import Disk
from rivven.record import crc32c

from .document import read_whole, write_whole

HEADER = struct.Struct("<4sHHQQI4x")
MAGIC = b"RVBF"
HASHES = 7
BITS_PER_KEY = 10
HAS_TOMBSTONES = 1


class Bloom:
    def __init__(self, keys: int, *, bits: bytearray | None = None, tombstones: bool = False) -> None:
        self._bits = bits if bits is not None else bytearray(max(8, keys * BITS_PER_KEY // 8 + 1))
        self._keys = keys
        self.tombstones = tombstones
        """Whether the segment holds tombstones or markers that a later cleaning may drop."""

    @classmethod
    def of(cls, keys: Iterable[bytes], *, tombstones: bool = False) -> Bloom:
        distinct = keys if isinstance(keys, set) else set(keys)
        bloom = cls(len(distinct), tombstones=tombstones)
        for key in distinct:
            for place in bloom._places(key):
                bloom._bits[place >> 3] |= 1 << (place & 7)
        return bloom

    def may_hold(self, key: bytes) -> bool:
        return all(self._bits[place >> 3] & (1 << (place & 7)) for place in self._places(key))

    def _places(self, key: bytes) -> list[int]:
        first, second = struct.unpack("<QQ", blake2b(key, digest_size=16).digest())
        count = len(self._bits) * 8
        return [(first + turn * second) % count for turn in range(HASHES)]

    # Disk

    def save(self, disk: Disk, path: str) -> None:
        flags = HAS_TOMBSTONES if self.tombstones else 0
        bits = bytes(self._bits)
        head = HEADER.pack(MAGIC, HASHES, flags, self._keys, len(bits) * 8, crc32c(bits))
        write_whole(disk, path, head + bits)

    @classmethod
    def load(cls, disk: Disk, path: str) -> Bloom | None:
        """The filter, or None if it is missing or damaged."""
        try:
            data = read_whole(disk, path)
        except FileNotFoundError:
            return None
        if len(data) < HEADER.size:
            return None
        magic, hashes, flags, keys, bits, crc = HEADER.unpack_from(data)
        body = bytearray(data[HEADER.size :])
        if magic != MAGIC or hashes != HASHES or bits != len(body) * 8 or not body or crc32c(body) != crc:
            return None
        return cls(keys, bits=body, tombstones=bool(flags & HAS_TOMBSTONES))

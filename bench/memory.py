"""Memory that is really there when a round begins.

A virtual machine gives memory that nobody uses back to its host within seconds, and gets it again page by page: at
0.2 GB/s where we measured it. Whoever fills the page cache fastest would pay most for that, and we would measure the
host. So between two rounds this process holds memory that it has touched, and lets go of it when the clock starts.
"""

from __future__ import annotations

import mmap
from pathlib import Path

WARM_BYTES = 5 << 29
"""What the fastest of all writes in one round, and a little more."""
SHARE_MAX = 4
"""Of what the machine has to spare, a fourth at most."""
PIECE_BYTES = 1 << 26


class Ballast:
    def __init__(self) -> None:
        self._wanted_bytes = 0
        self._pieces: list[mmap.mmap] = []
        self._cached_bytes = 0
        """In the page cache, when a round began."""

    @property
    def is_wanted(self) -> bool:
        """Only where figures count: it takes longer than a round."""
        return self._wanted_bytes > 0

    def want(self, wanted_bytes: int) -> None:
        """How much to hold from now on, if the machine has it."""
        self._wanted_bytes = min(wanted_bytes, from_kernel("MemAvailable") // SHARE_MAX)

    def take_back(self) -> None:
        """Take what the round that is over has left: soon it would be gone."""
        self._take(self._wanted_bytes - max(0, from_kernel("Cached") - self._cached_bytes))

    def take_all(self) -> None:
        self._take(self._wanted_bytes)

    def drop(self) -> None:
        self._cached_bytes = from_kernel("Cached")
        while self._pieces:
            self._pieces.pop().close()

    def _take(self, upto_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        while len(self._pieces) < upto_bytes // PIECE_BYTES:
            self._pieces.append(mmap.mmap(-1, PIECE_BYTES, flags=flags))


def from_kernel(name: str) -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


ballast = Ballast()

"""Readers whose bytes have to come from the medium first, and what the shell brings into memory for them.

A broker has one thread for everybody, so it reads only what the page cache holds. What a reader wants beside that is
handed to the shell as a `Preload`, to be run on any thread; afterwards the reader is tried again.
Invariant: a reader that waits is named by exactly one preload that is wanted or under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rivven.log import NotCached, Piece, preload
from rivven.ports import Disk


@dataclass(slots=True, eq=False)
class Preload:
    """Begun by the broker, `run` on any thread, and then `Preloading.done`."""

    disk: Disk
    pieces: tuple[Piece, ...]
    readers: list[Callable[[], object]] = field(default_factory=list)

    def run(self) -> None:
        preload(self.disk, self.pieces)


class Preloading:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.total = 0
        self._known: dict[tuple[Piece, ...], Preload] = {}
        self.wanted: list[Preload] = []
        """What the shell is to take and run."""

    def __len__(self) -> int:
        """How many readers wait."""
        return sum(len(preload.readers) for preload in self._known.values())

    def want(self, missing: NotCached, reader: Callable[[], object] | None = None) -> None:
        """Have it brought into memory and the reader tried again; without one, for whoever asks next."""
        known = self._known.get(missing.pieces)
        if known is None:
            known = self._known[missing.pieces] = Preload(self._disk, missing.pieces)
            self.wanted.append(known)
            self.total += 1
        if reader is not None:
            known.readers.append(reader)

    def take(self) -> list[Preload]:
        wanted, self.wanted = self.wanted, []
        return wanted

    def done(self, preload: Preload) -> None:
        """It has run: whoever waited is tried again."""
        del self._known[preload.pieces]
        for reader in preload.readers:
            reader()

"""Reading what is not in memory, without anybody else having to wait for the medium.

A reader asks for what the page cache holds. If that is not one batch, it learns what has to be brought into memory
first, has that done on another thread, and asks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rivven.ports import Disk


class Piece(NamedTuple):
    """A stretch of a file."""

    path: str
    position: int
    length_bytes: int


class NotCached(Exception):
    """These have to come from the medium before the read can be answered."""

    def __init__(self, *pieces: Piece) -> None:
        super().__init__(*pieces)
        self.pieces = pieces


def preload(disk: Disk, pieces: Iterable[Piece]) -> None:
    """Bring them into memory: waits, on any thread. What cannot be read is told to who reads it then."""
    for piece in pieces:
        try:
            disk.preload(*piece)
        except OSError:
            return

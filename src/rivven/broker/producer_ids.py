"""Producer ids: each is given out once, whatever happens. A block is reserved on disk before the first of it is used.

Invariant: every id that was ever given out is below `reserved` in the file.
"""

from __future__ import annotations

import msgspec

from rivven.errors import DiskFull
from rivven.log import Document
from rivven.ports import Disk

FILE = "producer_ids.json"
BLOCK = 1000


class Reserved(msgspec.Struct, frozen=True):
    reserved: int = 0
    """The first id that is not reserved."""


class ProducerIds:
    def __init__(self, disk: Disk) -> None:
        self._file = Document(disk, FILE, Reserved)
        found, _ = self._file.load()
        self._next = self._reserved = found.reserved if found is not None else 0

    def next(self) -> int:
        """An id that nobody had before. Now and then this waits for the disk."""
        if self._next >= self._reserved:
            try:
                self._file.save(Reserved(self._next + BLOCK))
            except OSError as error:
                raise DiskFull(wanted_bytes=0, path=FILE) from error
            self._reserved = self._next + BLOCK
        given = self._next
        self._next += 1
        return given

    def may_have_given(self, producer_id: int) -> bool:
        """Whether that id may be in somebody's hands. It surely is not above what is reserved."""
        return 0 <= producer_id < self._next

"""Producer ids: each is given out once, whatever happens. A block is reserved on disk before the first of it is used.

Invariant: every id that was ever given out is below `reserved` in the file. Should the file be lost, ids go on above
all that the logs know of: a new producer that got the id of an old one would be taken for it, and what it sends for
repetitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from rivven.errors import DiskFull
from rivven.log import Document
from rivven.ports import Disk

logger = logging.getLogger(__name__)

FILE = "producer_ids.json"
BLOCK = 1000
BELIEVED_MAX = 2**62
"""Clients may write any number for their id; from here on none of ours is near."""


class Reserved(msgspec.Struct, frozen=True):
    reserved: int = 0
    """The first id that is not reserved."""


class ProducerIds:
    def __init__(self, disk: Disk, in_use: Callable[[], Iterable[int]] = tuple) -> None:
        """`in_use` tells which ids the logs and coordinators know; it is asked if the file cannot say."""
        self._file = Document(disk, FILE, Reserved)
        found, _ = self._file.load()
        self._next = self._reserved = found.reserved if found is not None else self._above(in_use())

    @staticmethod
    def _above(known: Iterable[int]) -> int:
        highest = max((each for each in known if each < BELIEVED_MAX), default=-1)
        if highest >= 0:
            logger.warning("%s is lost; producer ids go on above %d, the highest that is known", FILE, highest)
        return highest + 1

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

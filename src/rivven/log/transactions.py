"""The transactions of one partition as its log shows them: which are open, and which were aborted.

A transactional batch opens its producer's transaction at its first offset; a control batch ends it. Readers of
committed data stop at the last stable offset and skip what the aborted index names.
Invariant: no producer has two open transactions; aborted entries are ordered by their last offset.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from rivven.model import Offset
from rivven.record import BatchHeader


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the abort marker."""


class Transactions:
    def __init__(self, open_: dict[int, int] | None = None, aborted: list[Aborted] | None = None) -> None:
        self._open = dict(open_ or {})
        self._aborted = list(aborted or [])

    def open_transactions(self) -> dict[int, int]:
        """First offset by producer id."""
        return dict(self._open)

    def aborted(self) -> list[Aborted]:
        return list(self._aborted)

    def first_open_offset(self) -> Offset | None:
        return Offset(min(self._open.values())) if self._open else None

    def note(self, header: BatchHeader, *, commit: bool | None) -> None:
        """Take an appended transactional batch into account; `commit` is the verdict of a control batch."""
        if commit is None:
            self._open.setdefault(header.producer_id, header.base_offset)
            return
        first = self._open.pop(header.producer_id, None)
        if first is not None and not commit:
            self._aborted.append(Aborted(header.producer_id, first, header.last_offset))

    def aborted_between(self, first: int, last: int) -> list[Aborted]:
        """The aborted transactions that overlap [first, last], ordered by their first offset."""
        place = bisect_left(self._aborted, first, key=lambda entry: entry.last_offset)
        return sorted(
            (entry for entry in self._aborted[place:] if entry.first_offset <= last),
            key=lambda entry: entry.first_offset,
        )

    def forget_open(self) -> bool:
        """Whether there were any."""
        forgotten = bool(self._open)
        self._open.clear()
        return forgotten

    def forget_ended(self, before: int) -> None:
        """Forget what ended before there, since nothing of it is left: the log starts there, or has been cleaned so
        far. A reader who hears of an aborted transaction expects its marker, and cleaning takes that away later."""
        place = bisect_left(self._aborted, before, key=lambda entry: entry.last_offset)
        del self._aborted[:place]

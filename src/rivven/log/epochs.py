"""Which leader epoch wrote which offsets: the history that lets a follower find where it diverged.

Invariant: epochs and their start offsets both grow.
"""

from __future__ import annotations

from bisect import bisect_right

from rivven.model import Epoch, Offset


class LeaderEpochs:
    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._entries = list(entries or [])
        self.latest = -1
        """The newest epoch, -1 before the first. Every append looks at it."""
        self._note_latest()

    def _note_latest(self) -> None:
        self.latest = self._entries[-1][0] if self._entries else -1

    def entries(self) -> list[tuple[int, int]]:
        return list(self._entries)

    def assign(self, epoch: int, start: int) -> bool:
        """Note that `epoch` begins at `start`; whether that was news. An older or unknown epoch changes nothing."""
        if epoch <= self.latest:
            return False
        self._entries.append((epoch, start))
        self._note_latest()
        return True

    def end_of(self, epoch: int, log_end: Offset) -> tuple[Epoch, Offset]:
        """The largest known epoch at or below `epoch`, and the offset after its last record; (-1, -1) if none."""
        place = bisect_right(self._entries, epoch, key=lambda entry: entry[0]) - 1
        if place < 0:
            return Epoch(-1), Offset(-1)
        end = self._entries[place + 1][1] if place + 1 < len(self._entries) else log_end
        return Epoch(self._entries[place][0]), Offset(end)

    def truncate(self, end: int) -> None:
        """Forget the epochs that begin at or after `end`."""
        while self._entries and self._entries[-1][1] >= end:
            self._entries.pop()
        self._note_latest()

    def advance_start(self, start: int) -> None:
        """Forget the epochs that ended before the log's new start."""
        while len(self._entries) > 1 and self._entries[1][1] <= start:
            self._entries.pop(0)
        if self._entries and self._entries[0][1] < start:
            self._entries[0] = (self._entries[0][0], start)

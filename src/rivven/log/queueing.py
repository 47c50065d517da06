"""One entry into the write-ahead log's next group. This is done for every append, so there are two twins.

An entry is its head (kind, length, topic id, partition: see `wal`) and its payload. A group closes when the next
entry would make it too long, or has as many as it may have.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rivven.ports import Buffer, Clock, File
from rivven.record import NATIVE

from .commit import Commit
from .log import Log
from .wal import ENTRY, ENTRY_BYTES

Write = tuple[Log, int, bytes, Buffer, File | None, int]
"""Its log, the offset that is durable once it is written, the entry's head and its payload; and where in its segment
that goes, without a file if it is there already."""


class PureQueue:
    __slots__ = ("_clock", "_commit")

    def __init__(self, commit: Commit[Write], clock: Clock) -> None:
        self._commit = commit
        self._clock = clock

    def queue(
        self, log: Log, kind: int, payload: Buffer, upto: int, file: File | None = None, position: int = 0
    ) -> None:
        """Once it is written, what is below `upto` is durable. The payload must not change until then. With a file it
        is written there, too, before."""
        payload_bytes = len(payload)
        head = ENTRY.pack(kind, payload_bytes, log.topic_id, log.partition[1])
        now_us = 0 if self._commit.groups else self._clock.now_us()  # only the oldest write's time matters
        self._commit.add((log, upto, head, payload, file, position), ENTRY_BYTES + payload_bytes, now_us)


Queue = PureQueue

if not TYPE_CHECKING and NATIVE:
    with suppress(ImportError):
        from ._queueing import Queue  # noqa: F401

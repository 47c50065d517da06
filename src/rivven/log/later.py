"""Large appends under the policy `none`: another thread writes them, and whoever appends goes on meanwhile.

A megabyte takes as long to get into the page cache as everything else that a broker does with it, so the two are done
at once. What is appended this way has its offsets and its place in the file; it counts as written, and is shown to
readers, when its bytes are in the page cache, just as if it had been written at once.

Only where the file system has set room aside: a full disk must refuse an append before it has an offset. Where that
room turns out to be a promise that is not kept, as on disks that copy on write, the same writes are tried until there
is room; any other failure is `SyncFailed`, as in `journal`.
Invariant: the writes of a log are done in the order of its offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from rivven.errors import DiskFull, SyncFailed
from rivven.ports import Buffer, Clock, Committer, Completion, File

from .log import NO_ROOM, Log

logger = logging.getLogger(__name__)

RETRY_US = 50_000
WAIT_MS = 1000


class _Write(NamedTuple):
    file: File
    data: Buffer
    position: int
    log: Log
    upto: int


class Later:
    def __init__(self, committer: Committer, clock: Clock, written: Callable[[Log, int], None]) -> None:
        """`written` hears that everything below an offset is."""
        self._committer = committer
        self._clock = clock
        self._written = written
        self._waiting: list[_Write] = []
        self._under_way: list[_Write] = []
        self._retry_us: int | None = None
        """When to try what is under way once more, after the disk had no room for it."""
        self.unwritten = 0
        """How many writes are not done."""

    def add(self, log: Log, upto: int, file: File, position: int, data: Buffer) -> None:
        """`pump` hands it over. The caller leaves the data as it is until it is written."""
        self._waiting.append(_Write(file, data, position, log, upto))
        self.unwritten += 1

    def fileno(self) -> int:
        """Readable when `pump` has something to take."""
        return self._committer.fileno()

    def due_us(self) -> int | None:
        return self._retry_us

    def pump(self) -> None:
        """Take what is done, and hand over what waits. Never waits itself."""
        if self._under_way and self._retry_us is None and (completion := self._committer.completed()):
            self._completed(completion)
        if self._retry_us is not None and self._clock.now_us() >= self._retry_us:
            self._submit()
        if self._waiting and not self._under_way:
            self._under_way, self._waiting = self._waiting, []
            self._submit()

    def forget(self, logs: Collection[Log]) -> None:
        """What is to be written for these need not be: they are about to go. Waits for what is under way."""
        while self._under_way and self._retry_us is None:
            if completion := self._committer.wait(WAIT_MS):
                self._completed(completion)
        for write in (*self._under_way, *self._waiting):
            self.unwritten -= write.log in logs
        for log in logs:
            log.deferred_upto = 0
        self._waiting = [write for write in self._waiting if write.log not in logs]
        self._under_way = [write for write in self._under_way if write.log not in logs]
        if not self._under_way:
            self._retry_us = None

    def settle(self) -> None:
        """Wait until everything is written. `DiskFull` if there is no room, for now."""
        while self._under_way or self._waiting:
            if self._retry_us is not None:
                self._submit()
            elif not self._under_way:
                self.pump()
            elif (completion := self._committer.wait(WAIT_MS)) and not self._completed(completion):
                write = self._under_way[0]
                raise DiskFull(wanted_bytes=len(write.data), path=write.file.path)

    def _submit(self) -> None:
        self._retry_us = None
        self._committer.submit_each([write[:3] for write in self._under_way])

    def _completed(self, completion: Completion) -> bool:
        """Whether it is written; else there was no room."""
        if (error := completion.error) is not None:
            path = self._under_way[0].file.path
            if error.errno not in NO_ROOM:
                raise SyncFailed(path=path, reason=str(error)) from error
            self._retry_us = self._clock.now_us() + RETRY_US
            logger.error("no room on the disk for %s; writers wait", path)
            return False
        done, self._under_way = self._under_way, []
        for write in done:
            self.unwritten -= 1
            self._written(write.log, write.upto)
        return True

    def close(self) -> None:
        self._committer.close()

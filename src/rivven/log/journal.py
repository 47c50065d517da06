"""The write-ahead log in motion: writes are queued, go to the disk in groups, and are acknowledged.

`queue` takes an entry that is already in its segment, or has its place there; `pump` hands the next group to the
committer, which writes to the segments first, and takes a finished one back, which makes its batches durable and
visible. Nothing waits but `flush`, and `settle` for what is to be written to segments.

A sync or write that fails raises `SyncFailed`, after which the journal must not be used: what the cache holds can
no longer be trusted to reach the medium. Only a full disk is forgiven, since a refused write was never synced:
the same group goes to the same place until there is room.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from rivven.errors import DiskFull, SyncFailed
from rivven.ports import Buffer, Clock, Committer, Completion, File, Placed

from .commit import Commit, CommitLimits, SyncPolicy
from .log import NO_ROOM, Log
from .queueing import Queue
from .wal import GROUP, Wal

logger = logging.getLogger(__name__)

RETRY_US = 50_000
"""How long a group waits that the disk had no room for."""
WAIT_MS = 1000


_moved = itemgetter(0, 1)
_parts = itemgetter(2, 3)
_placed = itemgetter(4, 3, 5)


class _Submission(NamedTuple):
    file: File
    buffers: list[Buffer]
    position: int
    sync: bool
    before: list[Placed]


class Journal(Queue):
    def __init__(
        self,
        wal: Wal,
        committer: Committer,
        clock: Clock,
        policy: SyncPolicy,
        limits: CommitLimits,
        make_room: Callable[[int], None],
    ) -> None:
        """`make_room` is called when a flush needs a write-ahead file with so many bytes free; it may wait."""
        super().__init__(Commit(policy, limits), clock)
        self._wal = wal
        self._committer = committer
        self.admit = self._commit.admit
        """Raise `Overloaded` if too much waits already to take so many bytes more."""
        self._make_room = make_room
        self.moved: dict[Log, int] = {}
        """Whose durable offset has moved since `pump` last said so; whoever moves one puts the log here."""
        self._under_way: _Submission | None = None
        self._retry_us: int | None = None
        """When to submit the group under way once more, after the disk had no room for it."""

    # What waits

    @property
    def waiting(self) -> int:
        """How many writes are not durable yet, a group under way counted as one."""
        return len(self._commit) + self._commit.busy

    @property
    def waiting_bytes(self) -> int:
        return self._commit.waiting_bytes

    @property
    def room_bytes(self) -> int:
        """How much `admit` would let wait beside what waits already."""
        return self._commit.limits.waiting_bytes_max - self._commit.waiting_bytes

    @property
    def lacking_bytes(self) -> int:
        """What the next group needs and no write-ahead file has room for; 0 if it has room, or there is none."""
        return 0 if not self._commit.groups or self._wal.has_room(self._next_bytes()) else self._next_bytes()

    @property
    def groups_done(self) -> int:
        """The number of the last group that is wholly written."""
        return self._wal.group_number - self._commit.busy

    # Committing

    def fileno(self) -> int:
        """Readable when `pump` has something to take."""
        return self._committer.fileno()

    def due_us(self) -> int | None:
        """When `pump` should be called at the latest, on the clock's monotonic time; None if nothing is due."""
        if self._retry_us is not None or self._commit.busy:
            return self._retry_us  # a group under way announces itself
        return self._commit.due_us()

    def pump(self) -> list[Log]:
        """Take the group that is done, if one is, and hand over the next. Never waits. Returns the logs whose
        durable offset has moved since the last time, in whatever way."""
        commit = self._commit
        if commit.busy and self._retry_us is None and (completion := self._committer.completed()):
            self._completed(completion)
        if self._retry_us is not None and self._clock.now_us() >= self._retry_us:
            self._submit()
        if not commit.busy and commit.groups and self._wal.has_room(self._next_bytes()):
            self._take()  # without room the spare is being prepared, or a checkpoint must free a file first
        if not self.moved:
            return []
        moved, self.moved = self.moved, {}
        return list(moved)

    def flush(self, *, sync: bool = False) -> None:
        """Wait until everything queued is done; with `sync` also onto the medium, whatever the policy says."""
        while self._commit.busy or self._commit.groups:
            if not self._commit.busy:
                if not self._wal.has_room(self._next_bytes()):
                    self._make_room(self._next_bytes())
                self._take(force=True, sync=sync)
            elif self._retry_us is not None:
                self._submit()
            elif completion := self._committer.wait(WAIT_MS):
                self._completed(completion)
                if self._retry_us is not None:
                    raise DiskFull(wanted_bytes=self._commit.waiting_bytes, path=self._wal.directory)

    def settle(self) -> None:
        """Write to the segments what is queued for them and not there yet, and wait for what is being written.
        `DiskFull` if there is no room, for now."""
        if self._under_way is not None and self._under_way.before:
            if self._retry_us is not None:
                self._submit()
            if not self._committer.wait_for_each():
                while (completion := self._committer.wait(WAIT_MS)) is None:
                    pass
                self._completed(completion)
                raise DiskFull(wanted_bytes=self._commit.waiting_bytes, path=self._wal.directory)
            self._under_way = self._under_way._replace(before=[])  # not again: the files may be closed from here on
        for group in self._commit.groups:
            for place, (log, upto, head, payload, file, position) in enumerate(group.writes):
                if file is not None:
                    self._write(file, payload, position)
                    group.writes[place] = log, upto, head, payload, None, 0
        under_way = self._commit.under_way
        for group in (*((under_way,) if under_way is not None else ()), *self._commit.groups):
            for write in group.writes:
                write[0].deferred_upto = 0

    def _write(self, file: File, payload: Buffer, position: int) -> None:
        try:
            file.write(payload, position)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise DiskFull(wanted_bytes=len(payload), path=file.path) from error
            raise SyncFailed(path=file.path, reason=str(error)) from error

    def withdraw(self) -> None:
        """Forget what is queued, after a `flush` that found no room for it. The next group takes its place."""
        if self._under_way is not None and self._commit.busy:
            assert self._retry_us is not None, "a group is on its way to the disk"
            self._wal.unframe(self._under_way.position)
        self._under_way = self._retry_us = None
        self._commit.clear()

    def _next_bytes(self) -> int:
        return self._commit.next_bytes() + GROUP.size

    def _take(self, *, force: bool = False, sync: bool = False) -> None:
        group = self._commit.take(self._clock.now_us(), force=force, sync=sync)
        if group is None:
            return
        parts: list[Buffer] = [*chain.from_iterable(map(_parts, group.writes))]
        try:
            self._wal.sync_before_leaving(GROUP.size + group.size_bytes)
        except OSError as error:
            self._failed(error, in_sync=True)
        file, position, buffers = self._wal.frame(parts, len(group.writes))
        before = [placed for placed in map(_placed, group.writes) if placed[0] is not None]
        self._under_way = _Submission(file, buffers, position, group.sync, before)
        self._submit()

    def _submit(self) -> None:
        assert self._under_way is not None
        self._retry_us = None
        file, buffers, position, sync, before = self._under_way
        self._committer.submit(file, buffers, position, sync=sync, before=before)

    def _completed(self, completion: Completion) -> None:
        if completion.error is not None:
            self._failed(completion.error, in_sync=completion.failed_sync)
            return
        group = self._commit.done()
        self._under_way = None
        self._wal.wrote(len(group.writes), GROUP.size + group.size_bytes, completion)
        moved = dict(map(_moved, group.writes))  # the last of each log counts
        for log, upto in moved.items():
            log.advance(upto)
        self.moved.update(moved)

    def _failed(self, error: OSError, *, in_sync: bool) -> None:
        if in_sync or error.errno not in NO_ROOM:
            raise SyncFailed(path=self._wal.directory, reason=str(error)) from error
        # A disk that copies on write may be full even for a file that has its zeros.
        self._retry_us = self._clock.now_us() + RETRY_US
        logger.error("no room on the disk for %s; writers wait", error.filename or "the write-ahead log")

    def close(self) -> None:
        self._committer.close()
        self._wal.close()

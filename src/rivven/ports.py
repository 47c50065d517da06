"""The doors outward: Disk, Clock and Entropy as small Protocols.

Everything below the shells reaches the outside world through these alone, so that a whole store runs on real
files (`rivven.system`) or on a simulated disk that crashes at will (`rivven.sim`).

Paths are relative to the data directory, with `/` between their parts. Failures are plain `OSError`s with their
`errno`; whoever calls decides what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. Positions are absolute; there is no cursor."""

    @property
    def path(self) -> str: ...

    def read(self, length_bytes: int, position: int) -> bytes:
        """Up to `length_bytes` from `position`; shorter only where the file ends."""

    def read_cached(self, length_bytes: int, position: int) -> bytes:
        """What `read` gives, up to the first byte that has to come from the medium, which is not waited for."""

    def write(self, data: Buffer, position: int) -> None:
        """All of `data`, or an OSError after which any prefix of it may have been written."""

    def sync(self) -> None:
        """Return once the content is on the medium (fdatasync). An error means that it may never get there."""

    def reserve(self, length_bytes: int, position: int) -> bool:
        """Have so much room found from there on, since many writes will follow; the length stays as it is. Whether
        that was done: where it cannot be, nothing happens."""

    def truncate(self, length_bytes: int) -> None:
        """Make it so long; room that was reserved behind it is given back."""

    def length(self) -> int: ...

    def close(self) -> None: ...


class Whereabouts(NamedTuple):
    """By which others on this machine find a file, and know that it is this machine and the very same file."""

    machine: str
    path: str
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one `Committer.submit`."""

    bytes_written: int
    synced: bool
    elapsed_us: int
    error: OSError | None = None
    """The first failure; `failed_sync` says at which step."""
    failed_sync: bool = False


Placed = tuple["File", Buffer, int]
"""Bytes that go to a place in a file."""


class Committer(Protocol):
    """Writes, and syncs, one group at a time away from the caller's thread. At most one submission is under way."""

    def submit(
        self, file: File, buffers: Sequence[Buffer], position: int, *, sync: bool, before: Sequence[Placed] = ()
    ) -> None:
        """Write what goes `before`, then the buffers one after the other from `position`, then fdatasync if asked.
        Returns at once. The caller leaves the buffers unchanged, and the files open, until the completion arrives."""

    def submit_each(self, writes: Sequence[Placed]) -> None:
        """Nothing but buffers that go each to a file and a position of its own: in this order, and without a sync.
        After a failure some are written, perhaps in part."""

    def wait_for_each(self) -> bool:
        """Wait until what goes each to its own place is written, for as long as it takes to copy it; False if that
        failed, as the completion will tell. Those files are no longer in use then; the sync may be under way."""

    def completed(self) -> Completion | None:
        """The outcome of the submission under way, or None while there is none. Never waits."""

    def wait(self, timeout_ms: int) -> Completion | None:
        """Like `completed`, but waits up to `timeout_ms` for it."""

    def fileno(self) -> int:
        """A descriptor that is readable when a completion is there, for an event loop; -1 if there is none."""

    def close(self) -> None: ...


@dataclass(slots=True)
class IoStats:
    """What a disk's batches have done; only what succeeded is counted."""

    operations: int = 0
    reads: int = 0
    writes: int = 0
    syncs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class IoBatch(Protocol):
    """Reads, writes and syncs queued together and run together, in any order among themselves.

    The methods that queue return the operation's place in the list that `run` returns: the bytes that a read
    found, None for a write or sync that went well, or the OSError of the one that did not.
    """

    def read(self, file: File, length_bytes: int, position: int) -> int: ...

    def write(self, file: File, data: Buffer, position: int) -> int: ...

    def sync(self, file: File) -> int: ...

    def run(self) -> list[bytes | OSError | None]: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A tree of files below one data directory."""

    def open(self, path: str, *, create: bool = False) -> File:
        """An existing file, or with `create` also a new empty one. FileNotFoundError otherwise."""

    def preload(self, path: str, position: int, length_bytes: int) -> None:
        """Bring what a file holds there into memory, for `read_cached`. It waits, so it is for another thread; a file
        that is gone is nothing to wait for."""

    def exists(self, path: str) -> bool: ...

    def whereabouts(self, file: File) -> Whereabouts | None:
        """Where others on this machine find this file of ours; None if it is not there for others."""

    def names(self, directory: str) -> list[str]:
        """The sorted names in a directory; empty if there is no such directory."""

    def is_dir(self, path: str) -> bool: ...

    def make_dirs(self, directory: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Atomic, replacing what was at `new`. Durable after `sync_dir` of the directories concerned."""

    def remove(self, path: str) -> None:
        """A file, or an empty directory."""

    def sync_dir(self, directory: str) -> None:
        """Make the creations, renames and removals in this directory durable."""

    def lock(self, path: str) -> Lock:
        """Take the lock file for this process; `DirectoryLocked` if another process has it."""

    def free_bytes(self) -> int: ...

    def committer(self) -> Committer: ...

    def batch(self) -> IoBatch: ...

    @property
    def stats(self) -> IoStats: ...


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time, for timestamps and retention."""

    def now_us(self) -> int:
        """Monotonic time, for windows and latencies."""


class Entropy(Protocol):
    def bytes(self, count: int) -> bytes: ...

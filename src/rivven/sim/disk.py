"""A disk in memory that fails in the ways a POSIX disk may, and in no other.

Every file has the content that programs see and the content that is durable; what lies between is a list of
changes not yet synced. Names are kept the same way, per directory. `crash` is a power loss: it draws a fate
for each of these changes from `rng`. `kill` ends the process alone, and what was visible stays.

Invariant: a byte that was synced, below names that were synced up to the root, survives every crash until a
later change covers it. Chance comes from `rng` alone, in a fixed order, so a seed repeats a history exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from errno import EINVAL, EISDIR, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY, errorcode
from functools import partial
from random import Random

from rivven.errors import DirectoryLocked
from rivven.ports import Buffer, Completion, File, IoStats, Placed, Whereabouts

SECTOR_BYTES = 512
ENDLESS_BYTES = 1 << 60
"""What `free_bytes` tells when no capacity was given."""
OPERATIONS = frozenset({"write", "sync", "sync_dir", "open", "rename", "truncate", "read", "remove", "make_dirs"})
_KEEP_CHANCES = (0.0, 0.5, 0.9, 1.0)
"""Drawn anew for each file and crash: coins that are always fair would hardly ever lose all or nothing."""


class Halted(BaseException):
    """The machine stopped amid an operation (`SimDisk.halt_after`). No `except Exception` may survive it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One change that a crash took, wholly or in part: explains a seed, and tells torn bytes from wrong."""

    kind: str
    """dropped, torn, scattered, zeroed, uncut (a lost truncation), or entry (a lost change of names)"""
    path: str
    position: int = 0
    length_bytes: int = 0
    """Where the change was; of a torn one, the sector behind the cut, which alone may hold garbage."""


def _error(code: int, path: str) -> OSError:
    return OSError(code, f"simulated {errorcode[code]}", path)


# Content


class _Fate(Enum):
    OPEN = auto()
    """Not synced: a crash decides, the next sync settles."""
    DOOMED = auto()
    """A sync failed: its pages count as clean, so no later sync settles it, and a crash decides."""
    SETTLED = auto()
    """Durable, but kept in the list since something doomed before it must be decided first."""


@dataclass(slots=True)
class _Change:
    """A write of `data` at `position`, or where `data` is None a truncation to `position`."""

    position: int
    data: bytes | None
    fate: _Fate = _Fate.OPEN

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.position :]
        missing = self.position - len(content)
        if missing > 0:
            content.extend(bytes(missing))
        if self.data is not None:
            content[self.position : self.position + len(self.data)] = self.data

    def lose(self, rng: Random, content: bytearray, path: str) -> Loss:
        """Apply to `content` what a power loss leaves of this change."""
        if self.data is None:
            return Loss("uncut", path, self.position)
        kind = rng.choice(("dropped", "dropped", "torn", "scattered", "zeroed"))
        end = self.position + len(self.data)
        if kind == "torn":
            return Loss(kind, path, *self._tear(rng, content, self.data))
        if kind == "scattered":
            self._scatter(rng, content, self.data)
        elif kind == "zeroed":  # the length got there and the data did not
            content.extend(bytes(max(0, end - len(content))))
        return Loss(kind, path, self.position, len(self.data))

    def _tear(self, rng: Random, content: bytearray, data: bytes) -> tuple[int, int]:
        """A prefix up to a sector's border; the sector behind it may be untouched, zeros or garbage.

        Garbage stays within the write: a sector that is rewritten does not take its older bytes along."""
        end = self.position + len(data)
        border = rng.randint(self.position // SECTOR_BYTES, (end - 1) // SECTOR_BYTES)
        cut = max(self.position, border * SECTOR_BYTES)
        torn_bytes = min(end, (border + 1) * SECTOR_BYTES) - cut
        torn = rng.choice((b"", bytes(torn_bytes), rng.randbytes(torn_bytes)))
        kept = data[: cut - self.position] + torn
        if kept:
            _Change(self.position, kept).apply(content)
        return cut, torn_bytes

    def _scatter(self, rng: Random, content: bytearray, data: bytes) -> None:
        """Any subset of its sectors, since pages are written back in any order."""
        end = self.position + len(data)
        for sector in range(self.position // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1):
            if rng.random() < 0.5:
                first = max(self.position, sector * SECTOR_BYTES)
                last = min(end, (sector + 1) * SECTOR_BYTES)
                _Change(first, data[first - self.position : last - self.position]).apply(content)


class _Inode:
    """A file's content, apart from its name."""

    __slots__ = ("changes", "durable", "linked", "visible")

    def __init__(self) -> None:
        self.visible = bytearray()
        self.durable = bytearray()
        self.changes: list[_Change] = []
        self.linked = True
        """Has a name, and so takes room."""

    def change(self, change: _Change) -> None:
        change.apply(self.visible)
        self.changes.append(change)

    def sync(self) -> None:
        """Costs what was changed, not what the file holds."""
        if any(change.fate is _Fate.DOOMED for change in self.changes):
            self._mark(_Fate.SETTLED)
            return
        for change in self.changes:
            change.apply(self.durable)
        self.changes.clear()

    def doom(self) -> None:
        self._mark(_Fate.DOOMED)

    def _mark(self, fate: _Fate) -> None:
        for change in self.changes:
            if change.fate is _Fate.OPEN:
                change.fate = fate

    def damage(self, change: _Change) -> None:
        """A change that no crash undoes; older changes that are still open stay so."""
        change.fate = _Fate.SETTLED
        self.change(change)
        if len(self.changes) == 1:
            self.sync()

    def lose_power(self, rng: Random, path: str) -> list[Loss]:
        if not self.changes:
            return []
        losses = []
        keep_chance = rng.choice(_KEEP_CHANCES)
        for change in self.changes:
            if change.fate is _Fate.SETTLED or rng.random() < keep_chance:
                change.apply(self.durable)
            else:
                losses.append(change.lose(rng, self.durable, path))
        self.changes.clear()
        self.visible = bytearray(self.durable)
        return losses


# Names


class _Directory:
    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}


_Node = _Inode | _Directory
_Place = tuple[_Directory, str]


@dataclass(slots=True, eq=False)
class _Entry:
    """One change of names: `node` leaves `source` and appears at `target`. A creation has no source, a
    removal no target, and a rename, having both, is kept or lost as one."""

    path: str
    node: _Node
    source: _Place | None
    target: _Place | None
    waiting: set[_Directory] = field(init=False)
    """The directories still to be synced before this is durable."""
    doomed: bool = False

    def __post_init__(self) -> None:
        self.waiting = {place[0] for place in (self.source, self.target) if place}

    @property
    def settled(self) -> bool:
        return not self.waiting and not self.doomed

    @property
    def moves(self) -> bool:
        """From one directory to another."""
        return bool(self.source and self.target and self.source[0] is not self.target[0])

    @property
    def touched(self) -> set[object]:
        """Changes that touch the same node or the same name are durable in their order, or not at all."""
        return {thing for thing in (self.node, self.source, self.target) if thing is not None}

    def apply(self) -> None:
        if self.source:
            directory, name = self.source
            gone = directory.durable.pop(name, None)
            assert gone is self.node, f"{self.path} was changed out of order"
        if self.target:
            directory, name = self.target
            directory.durable[name] = self.node


def _persist(entries: list[_Entry], wanted: Callable[[_Entry], bool]) -> list[_Entry]:
    """Make the wanted entries durable, and the earlier ones that they rest on; returns those left.

    An entry rests on the earlier ones of its node and of its names: else a rename might leave its file under
    two names or none. One that moves a file into a directory also rests on that directory's own entry. A
    creation does not: a new directory may be lost with everything in it, until its parent is synced."""
    needed: set[object] = set()
    homes: set[_Node] = set()
    kept, left = [], []
    for entry in reversed(entries):
        houses = entry.node in homes
        if not (wanted(entry) or houses or not needed.isdisjoint(entry.touched)):
            left.append(entry)
            continue
        kept.append(entry)
        needed |= entry.touched
        if entry.target and (houses or entry.moves):
            homes.add(entry.target[0])
    for entry in reversed(kept):
        entry.apply()
    return left[::-1]


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    assert ".." not in parts, f"{path!r} may lead out of the data directory"
    assert not path.startswith("/"), f"{path!r} is not relative to the data directory"
    return parts


# Handles


class _Handle:
    """What a process holds and a crash takes. To use it afterwards is the tested program's mistake, hence an
    assertion and no OSError, which that program might swallow. Closing is always allowed."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._epoch = disk.epoch
        self._closed = False

    @property
    def _live(self) -> bool:
        return self._epoch == self._disk.epoch and not self._closed

    def _check(self) -> None:
        assert self._epoch == self._disk.epoch, "stale handle: used after a crash"
        assert not self._closed, "used after close"


class SimFile(_Handle):
    def __init__(self, disk: SimDisk, inode: _Inode, path: str) -> None:
        super().__init__(disk)
        self.inode = inode
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def read(self, length_bytes: int, position: int) -> bytes:
        self._check()
        assert length_bytes >= 0
        assert position >= 0
        self._disk.meet("read", self._path)
        end = min(position + length_bytes, self.length())
        if position < end and self._disk.cached_upto(self._path, end) < end:
            self._disk.waits += 1
            self._disk.preload(self._path, position, length_bytes)
        return bytes(self.inode.visible[position : position + length_bytes])

    def read_cached(self, length_bytes: int, position: int) -> bytes:
        return self.read(max(0, self._disk.cached_upto(self._path, position + length_bytes) - position), position)

    def write(self, data: Buffer, position: int) -> None:
        _, error = self.put(bytes(data), position)
        if error:
            raise error

    def put(self, data: bytes, position: int) -> tuple[int, OSError | None]:
        """Write what the disk lets through: how much that was, and why it was not all."""
        self._check()
        assert position >= 0
        return self._disk.put(self.inode, data, position, self._path)

    def reserve(self, length_bytes: int, position: int) -> bool:
        """Whether there is room now. It is not kept from others: as on a disk that copies on write, what was
        reserved may still be refused."""
        self._check()
        assert length_bytes > 0
        assert position >= 0
        return self._disk.fitting(self.inode, length_bytes, position) == length_bytes

    def sync(self) -> None:
        self._check()
        self._disk.syncs += 1
        try:
            self._disk.meet("sync", self._path)
        except OSError:
            self.inode.doom()
            raise
        self.inode.sync()

    def truncate(self, length_bytes: int) -> None:
        self._check()
        assert length_bytes >= 0
        self._disk.meet("truncate", self._path)
        if length_bytes - len(self.inode.visible) > self._disk.free_bytes():
            raise _error(ENOSPC, self._path)
        self._disk.change(self.inode, _Change(length_bytes, None))

    def length(self) -> int:
        self._check()
        return len(self.inode.visible)

    def close(self) -> None:
        self._closed = True


@dataclass(frozen=True, slots=True)
class _Submission:
    before: list[tuple[SimFile, Sequence[Buffer], int]]
    writes: list[tuple[SimFile, Sequence[Buffer], int]]
    sync: bool


class SimCommitter(_Handle):
    """Writes when `step` says so, or with `SimDisk.auto_complete` when somebody asks for the outcome. The
    buffers are read only then, so a caller that changes them too early is found out."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self._submission: _Submission | None = None
        self._completion: Completion | None = None
        self._placed: Completion | None = None
        """What became of the writes that go each to its own place."""

    def submit(
        self, file: File, buffers: Sequence[Buffer], position: int, *, sync: bool, before: Sequence[Placed] = ()
    ) -> None:
        assert isinstance(file, SimFile), "a file of another disk"
        self._begin(before, [(file, buffers, position)], sync=sync)

    def submit_each(self, writes: Sequence[Placed]) -> None:
        self._begin(writes, [], sync=False)

    def _begin(
        self, before: Sequence[Placed], writes: list[tuple[SimFile, Sequence[Buffer], int]], *, sync: bool
    ) -> None:
        self._check()
        assert self._submission is None, "one submission at a time"
        ours = [(file, [data], position) for file, data, position in before if isinstance(file, SimFile)]
        assert len(ours) == len(before), "a file of another disk"
        self._submission = _Submission([*ours], writes, sync)
        self._placed = None

    def wait_for_each(self) -> bool:
        self._check()
        if self._submission is None:
            return True
        if self._place(self._submission).error is not None:
            self.step()  # which ends there
            return False
        return True

    def _place(self, work: _Submission) -> Completion:
        if self._placed is None:
            self._placed = self._put(work.before)
        return self._placed

    def _put(self, writes: list[tuple[SimFile, Sequence[Buffer], int]]) -> Completion:
        count, error = 0, None
        for file, buffers, position in writes:
            written, error = file.put(b"".join(buffers), position)
            count += written
            if error:
                break
        return Completion(count, synced=False, elapsed_us=self._disk.rng.randint(50, 500), error=error)

    def step(self) -> bool:
        """Perform the submission under way, for `completed` or `wait` to report; False if there is none."""
        self._check()
        if self._submission is None or self._completion is not None:
            return False
        self._completion = self._perform(self._submission)
        return True

    def _perform(self, work: _Submission) -> Completion:
        placed = self._place(work)
        if placed.error:
            return placed
        done = self._put(work.writes)
        done = replace(done, bytes_written=placed.bytes_written + done.bytes_written)
        if done.error or not work.sync:
            return done
        try:
            work.writes[-1][0].sync()
        except OSError as refused:
            return replace(done, error=refused, failed_sync=True)
        return replace(done, synced=True)

    def completed(self) -> Completion | None:
        self._check()
        if self._disk.auto_complete and self._submission and self._disk.rng.random() < 0.5:
            self.step()
        return self._report()

    def wait(self, timeout_ms: int) -> Completion | None:
        self._check()
        assert timeout_ms >= 0
        if self._disk.auto_complete:
            self.step()
        return self._report()

    def _report(self) -> Completion | None:
        completion = self._completion
        if completion is not None:
            self._submission = self._completion = None
        return completion

    def abandon(self) -> None:
        """Leave of the submission under way what a sudden end may: nothing, a prefix, all, or all synced."""
        work, rng = self._submission, self._disk.rng
        if work is None or self._completion is not None:
            return
        for file, buffers, position in (*(work.before if self._placed is None else ()), *work.writes):
            data = b"".join(buffers)
            count = rng.choice((0, rng.randint(0, len(data)), len(data)))
            count = min(count, self._disk.fitting(file.inode, len(data), position))
            if count:
                self._disk.change(file.inode, _Change(position, data[:count]))
            if count < len(data):
                return
        if work.sync and rng.random() < 0.5:
            file.inode.sync()

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """A submission under way is carried out first, as by a thread that is joined."""
        if self._live:
            self.step()
            self._disk.committers.remove(self)
        self._closed = True


class SimBatch(_Handle):
    """Runs what was queued in an order of its own."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self._queue: list[Callable[[], bytes | None]] = []

    def read(self, file: File, length_bytes: int, position: int) -> int:
        return self._add(partial(self._read, file, length_bytes, position))

    def write(self, file: File, data: Buffer, position: int) -> int:
        return self._add(partial(self._write, file, data, position))

    def sync(self, file: File) -> int:
        return self._add(partial(self._sync, file))

    def _add(self, operation: Callable[[], bytes | None]) -> int:
        self._check()
        self._queue.append(operation)
        return len(self._queue) - 1

    def run(self) -> list[bytes | OSError | None]:
        self._check()
        queue, self._queue = self._queue, []
        results: list[bytes | OSError | None] = [None] * len(queue)
        for place in self._disk.rng.sample(range(len(queue)), len(queue)):
            try:
                results[place] = queue[place]()
                self._disk.stats.operations += 1
            except OSError as error:
                results[place] = error
        return results

    def _read(self, file: File, length_bytes: int, position: int) -> bytes:
        found = file.read(length_bytes, position)
        self._disk.stats.reads += 1
        self._disk.stats.bytes_read += len(found)
        return found

    def _write(self, file: File, data: Buffer, position: int) -> None:
        file.write(data, position)
        self._disk.stats.writes += 1
        self._disk.stats.bytes_written += memoryview(data).nbytes

    def _sync(self, file: File) -> None:
        file.sync()
        self._disk.stats.syncs += 1


class SimLock(_Handle):
    def __init__(self, disk: SimDisk, path: str) -> None:
        super().__init__(disk)
        self._path = path

    def release(self) -> None:
        if self._live:
            self._disk.locks.remove(self._path)
        self._closed = True


# The disk


@dataclass(slots=True)
class _Fault:
    operation: str
    errno: int
    path_contains: str
    times: int
    after: int


class SimDisk:
    """A `Disk` for one process at a time, and the switches of its adversary."""

    def __init__(self, rng: Random, *, capacity_bytes: int | None = None) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.auto_complete = True
        """Whether committers perform their submissions when asked for the outcome, or only on `step`."""
        self.stats = IoStats()
        self.writes = 0
        self.syncs = 0
        self.epoch = 1
        """The life of the process: every crash and kill begins another, and makes older handles stale."""
        self.committers: list[SimCommitter] = []
        self.locks: set[str] = set()
        self.evicted: dict[str, int] = {}
        """Files of which nothing is in memory from a position on, until somebody reads or preloads it."""
        self.waits = 0
        """How many reads had to wait for the medium."""
        self._root = _Directory()
        self._entries: list[_Entry] = []
        self._faults: list[_Fault] = []
        self._used_bytes = 0
        self._operations_left: int | None = None

    # Names

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for part in _parts(path):
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(part)
        return node

    def _place(self, path: str) -> _Place:
        """The directory, which must exist, and the name in it."""
        *above, name = _parts(path)
        parent = self._find("/".join(above))
        if parent is None:
            raise _error(ENOENT, path)
        if not isinstance(parent, _Directory):
            raise _error(ENOTDIR, path)
        return parent, name

    def _move(self, path: str, node: _Node, source: _Place | None, target: _Place | None) -> None:
        """Change names for all to see, and note it for the next crash."""
        leaving = node if target is None else target[0].entries.get(target[1])
        if source:
            del source[0].entries[source[1]]
        if target:
            target[0].entries[target[1]] = node
        if isinstance(leaving, _Inode):
            leaving.linked = False
            self._used_bytes -= len(leaving.visible)
        self._entries.append(_Entry(path, node, source, target))

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.meet("open", path)
        node = self._find(path)
        if isinstance(node, _Directory):
            raise _error(EISDIR, path)
        if node is None:
            if not create:
                raise _error(ENOENT, path)
            node = _Inode()
            self._move(path, node, None, self._place(path))
        return SimFile(self, node, path)

    def evict(self) -> None:
        """The memory is wanted for something else: nothing is cached any more."""
        self.evicted.update(dict.fromkeys(self.snapshot(), 0))

    def cached_upto(self, path: str, end: int) -> int:
        return min(end, self.evicted.get(path, end))

    def preload(self, path: str, position: int, length_bytes: int) -> None:
        assert position >= 0
        assert length_bytes > 0
        if path in self.evicted:
            self.evicted[path] = max(self.evicted[path], position + length_bytes)  # and all that comes before

    def whereabouts(self, file: File) -> Whereabouts | None:
        """What is simulated is nowhere."""
        del file
        return None

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def names(self, directory: str) -> list[str]:
        node = self._find(directory)
        return sorted(node.entries) if isinstance(node, _Directory) else []

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), _Directory)

    def make_dirs(self, directory: str) -> None:
        self.meet("make_dirs", directory)
        node = self._root
        for name in _parts(directory):
            if name not in node.entries:
                self._move(directory, _Directory(), None, (node, name))
            below = node.entries[name]
            if not isinstance(below, _Directory):
                raise _error(ENOTDIR, directory)
            node = below

    def rename(self, old: str, new: str) -> None:
        self.meet("rename", old, new)
        source, target = self._place(old), self._place(new)
        node, replaced = self._find(old), self._find(new)
        if node is None:
            raise _error(ENOENT, old)
        if node is replaced:
            return
        if isinstance(node, _Directory) and _parts(new)[: len(_parts(old))] == _parts(old):
            raise _error(EINVAL, new)
        if isinstance(replaced, _Directory):
            if not isinstance(node, _Directory):
                raise _error(EISDIR, new)
            if replaced.entries:
                raise _error(ENOTEMPTY, new)
        elif replaced is not None and isinstance(node, _Directory):
            raise _error(ENOTDIR, new)
        self._move(f"{old} -> {new}", node, source, target)

    def remove(self, path: str) -> None:
        self.meet("remove", path)
        node = self._find(path)
        if node is None:
            raise _error(ENOENT, path)
        if isinstance(node, _Directory) and node.entries:
            raise _error(ENOTEMPTY, path)
        self._move(path, node, self._place(path), None)

    def sync_dir(self, directory: str) -> None:
        node = self._find(directory)
        if node is None:
            raise _error(ENOENT, directory)
        if not isinstance(node, _Directory):
            raise _error(ENOTDIR, directory)
        concerned = [entry for entry in self._entries if node in entry.waiting]
        try:
            self.meet("sync_dir", directory)
        except OSError:
            for entry in concerned:
                entry.doomed = True
            raise
        for entry in concerned:
            entry.waiting.remove(node)
        if concerned:
            self._entries = _persist(self._entries, lambda entry: entry.settled)

    def lock(self, path: str) -> SimLock:
        if path in self.locks:
            raise DirectoryLocked(path=path, pid=self.epoch)
        self.open(path, create=True).close()
        self.locks.add(path)
        return SimLock(self, path)

    # Content

    def change(self, inode: _Inode, change: _Change) -> None:
        before_bytes = len(inode.visible)
        inode.change(change)
        if inode.linked:
            self._used_bytes += len(inode.visible) - before_bytes

    def put(self, inode: _Inode, data: bytes, position: int, path: str) -> tuple[int, OSError | None]:
        self.writes += 1
        count = fits = self.fitting(inode, len(data), position)
        refusal = self._refusal("write", path)
        if refusal is None and fits < len(data):
            refusal = _error(ENOSPC, path)
        if refusal is not None:
            count = self.rng.choice((0, self.rng.randint(0, fits), fits))
        if count:
            self.change(inode, _Change(position, data[:count]))
        if isinstance(refusal, Halted):
            raise refusal
        return count, refusal

    def fitting(self, inode: _Inode, length_bytes: int, position: int) -> int:
        """How much of a write there is room for."""
        growth_bytes = position + length_bytes - len(inode.visible)
        lacking_bytes = max(0, growth_bytes - self.free_bytes()) if growth_bytes > 0 else 0
        return max(0, length_bytes - lacking_bytes)

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return ENDLESS_BYTES
        return max(0, self.capacity_bytes - self._used_bytes)

    def committer(self) -> SimCommitter:
        committer = SimCommitter(self)
        self.committers.append(committer)
        return committer

    def batch(self) -> SimBatch:
        return SimBatch(self)

    def step(self) -> bool:
        """Perform the oldest submission under way; False if there is none."""
        return any(committer.step() for committer in self.committers)

    # The adversary

    def fail(self, operation: str, errno: int, *, path_contains: str = "", times: int = 1, after: int = 0) -> None:
        """Let the first `after` matching calls pass and the next `times` raise OSError(errno). A write that
        fails may have written a prefix; a sync that fails dooms what it should have made durable."""
        assert operation in OPERATIONS, f"no operation {operation!r}"
        assert times > 0
        self._faults.append(_Fault(operation, errno, path_contains, times, after))

    def heal(self) -> None:
        """Take back all failures that are still to come."""
        self._faults.clear()

    def halt_after(self, operations: int) -> None:
        """Let so many more operations pass, then raise `Halted` from each until `crash` or `kill`: so a
        test stops a program between any two steps of one call."""
        assert operations >= 0
        self._operations_left = operations

    def let_live(self) -> None:
        """Take back a `halt_after` that has not come yet."""
        if self._operations_left is not None and self._operations_left >= 0:
            self._operations_left = None

    def meet(self, operation: str, *paths: str) -> None:
        refusal = self._refusal(operation, *paths)
        if refusal is not None:
            raise refusal

    def _refusal(self, operation: str, *paths: str) -> OSError | Halted | None:
        """What this operation runs into. The first one halted is told so, since a write may get half way."""
        if self._operations_left is not None:
            if self._operations_left < 0:
                raise Halted
            self._operations_left -= 1
            if self._operations_left < 0:
                return Halted()
        for fault in self._faults:
            if fault.operation != operation or not any(fault.path_contains in path for path in paths):
                continue
            if fault.after:
                fault.after -= 1
                continue
            fault.times -= 1
            if not fault.times:
                self._faults.remove(fault)
            return _error(fault.errno, paths[0])
        return None

    def kill(self) -> None:
        """The process dies; the page cache lives on."""
        for committer in self.committers:
            committer.abandon()
        self.committers.clear()
        self.locks.clear()
        self._operations_left = None
        self.epoch += 1

    def crash(self) -> list[Loss]:
        """The power goes: whatever was not synced is kept, lost or torn. Returns what was not kept whole."""
        self.kill()
        keep_chance = self.rng.choice(_KEEP_CHANCES)
        left = _persist(self._entries, lambda entry: entry.settled or self.rng.random() < keep_chance)
        self._entries = []
        self._used_bytes = 0
        losses = [Loss("entry", entry.path) for entry in left]
        self._reload(self._root, "", losses)
        return losses

    def _reload(self, directory: _Directory, prefix: str, losses: list[Loss]) -> None:
        """Start over from what is durable; what no durable name leads to is gone."""
        directory.entries = dict(directory.durable)
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if isinstance(node, _Directory):
                self._reload(node, f"{prefix}{name}/", losses)
            else:
                losses += node.lose_power(self.rng, prefix + name)
                node.linked = True
                self._used_bytes += len(node.visible)

    def flip(self, path: str, position: int, bit: int = 0) -> None:
        """Rot one bit, on the medium and in the cache."""
        inode = self._inode(path)
        inode.damage(_Change(position, bytes([inode.visible[position] ^ (1 << bit)])))

    def cut(self, path: str, length_bytes: int) -> None:
        """Lose the end of a file, on the medium and in the cache."""
        inode = self._inode(path)
        lost_bytes = len(inode.visible) - length_bytes
        assert lost_bytes >= 0, "a cut shortens"
        inode.damage(_Change(length_bytes, None))
        self._used_bytes -= lost_bytes

    def _inode(self, path: str) -> _Inode:
        node = self._find(path)
        assert isinstance(node, _Inode), f"there is no file {path}"
        return node

    def snapshot(self) -> dict[str, bytes]:
        """All files as programs see them, by path."""
        found: dict[str, bytes] = {}
        self._collect(self._root, "", found)
        return found

    def _collect(self, directory: _Directory, prefix: str, found: dict[str, bytes]) -> None:
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if isinstance(node, _Directory):
                self._collect(node, f"{prefix}{name}/", found)
            else:
                found[prefix + name] = bytes(node.visible)

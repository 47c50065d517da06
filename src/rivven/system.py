"""The real doors: files below one directory, committers and batches over them, the clock, and entropy.

Invariant: a completion or a result is handed out only after the kernel has answered for every byte of it, and
no buffer is let go before that. Nothing here decides what an error means; it says which call failed, and how.

There are three committers and two batches, all alike to their users (one test runs over all of them). Those
over `rivven._disk` are native; `RIVVEN_PURE=1`, or an installation without a compiler, leaves the pure ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from rivven.errors import DirectoryLocked
from rivven.ports import Buffer, Committer, Completion, File, IoBatch, IoStats, Lock, Placed, Whereabouts

if TYPE_CHECKING:
    from rivven import _disk

CommitterKind = Literal["auto", "native", "thread", "uring"]
BatchKind = Literal["auto", "uring", "plain"]

IOV_MAX: Final = os.sysconf("SC_IOV_MAX")
RING_DEPTH: Final = 256
"""How many operations of one batch the kernel may hold at a time."""
SYNCS_AT_ONCE: Final = 32
"""How many fdatasyncs of one batch overlap. They only wait, and the more of them do, the fewer journal
commits they need together: 8 at once take nearly twice as long as 32, and 64 are no faster."""
SYNCS_FOR_POOL_MIN: Final = 4
PRELOAD_CHUNK_BYTES: Final = 1 << 20
CLOSING_MAX: Final = 256
"""How many descriptors may wait to be closed."""

_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class PureFileWriter:
    """The calls of a file that every append and every fetch makes, so they have native twins."""

    __slots__ = ("_fd", "_read_only")
    _fd: int
    _read_only: bool

    def read_cached(self, length_bytes: int, position: int) -> bytes:
        data = bytearray(length_bytes)
        found = 0
        try:
            while found < length_bytes:
                got = os.preadv(self._fd, [memoryview(data)[found:]], position + found, os.RWF_NOWAIT)
                if not got:
                    break
                found += got
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return self._read_waiting(length_bytes, position)
            error.filename = self._name()
            raise
        del data[found:]
        return bytes(data)

    def write(self, data: Buffer, position: int) -> None:
        if self._read_only:
            self._refuse_if_read_only()
        if os.pwrite(self._fd, data, position) != len(data):
            self._write_rest(data, position)

    def reserve(self, length_bytes: int, position: int) -> bool:  # noqa: ARG002
        """Python knows no `fallocate` that leaves the length alone; its twin does."""
        return False

    def _refuse_if_read_only(self) -> None:
        raise NotImplementedError

    def _write_rest(self, data: Buffer, position: int) -> None:
        raise NotImplementedError

    def _read_waiting(self, length_bytes: int, position: int) -> bytes:
        raise NotImplementedError

    def _name(self) -> str:
        raise NotImplementedError


class PureClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000


FileWriter = PureFileWriter
SystemClock = PureClock

if not TYPE_CHECKING and os.environ.get("RIVVEN_PURE", "0") in ("", "0"):
    with suppress(ImportError):
        from rivven._disk import FileWriter, SystemClock  # noqa: F401


class SystemFile(FileWriter):
    """An open file of a `SystemDisk`. Once closed, every use of it fails with EBADF."""

    __slots__ = ("_closer", "_path")

    def __init__(self, fd: int, path: str, closer: _Closer, *, read_only: bool) -> None:
        self._fd = fd
        self._path = path
        self._closer = closer
        self._read_only = read_only

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        """The descriptor, -1 once closed: never a number that may by now belong to another file."""
        return self._fd

    def read(self, length_bytes: int, position: int) -> bytes:
        try:
            return self._read(length_bytes, position)
        except OSError as error:
            error.filename = self._path
            raise

    def _read_waiting(self, length_bytes: int, position: int) -> bytes:
        """For file systems that cannot say what would wait."""
        return self.read(length_bytes, position)

    def _name(self) -> str:
        return self._path

    def _read(self, length_bytes: int, position: int) -> bytes:
        data = os.pread(self._fd, length_bytes, position)
        if len(data) == length_bytes or not data:
            return data
        parts = [data]
        found_bytes = len(data)
        while found_bytes < length_bytes:
            data = os.pread(self._fd, length_bytes - found_bytes, position + found_bytes)
            if not data:
                break
            parts.append(data)
            found_bytes += len(data)
        return b"".join(parts)

    def _write_rest(self, data: Buffer, position: int) -> None:
        _pwrite_all(self._fd, data, position)  # from the start: it is rare, and writing twice is harmless

    def sync(self) -> None:
        _fdatasync(self._fd)

    def truncate(self, length_bytes: int) -> None:
        self._refuse_if_read_only()
        if length_bytes or self.length():
            os.ftruncate(self._fd, length_bytes)
        # else it is empty: ext4 would take it for one that is replaced, and write it all out when it is closed

    def length(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._closer.close(fd)

    def __del__(self) -> None:
        # Whoever drops a segment need not know who else still reads or syncs it: the last one out closes.
        self.close()

    def _refuse_if_read_only(self) -> None:
        if self._read_only:
            raise _read_only_error(self._path)


class SystemLock:
    """A held lock file. The kernel lets go of it when the process ends, however it ends."""

    __slots__ = ("_clear_pid", "_fd")

    def __init__(self, fd: int, *, clear_pid: bool) -> None:
        self._fd = fd
        self._clear_pid = clear_pid

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        # The file itself stays: removing it would let two processes lock two files of the same name.
        try:
            if self._clear_pid:
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)


class _Closer:
    """Closes descriptors on a thread of its own, since the last close of a removed file is what frees its blocks: a
    gigabyte takes a good part of a second, and nobody waits for it.

    Whoever hands one over is not to use it again. Where many wait already they are closed at once, so that a process
    does not run out of descriptors.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[int | None] = SimpleQueue()  # may be put to from a finaliser
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_close_all, args=(self._waiting,), name="rivven-close", daemon=True
                )
                self._thread.start()

    def close(self, fd: int) -> None:
        if self._thread is None or self._waiting.qsize() >= CLOSING_MAX:
            os.close(fd)
        else:
            self._waiting.put(fd)

    def stop(self) -> None:
        """Wait until all are closed; what comes later is closed at once."""
        with self._guard:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join()
        while not self._waiting.empty():  # one that was handed over at the same time
            if (fd := self._waiting.get()) is not None:
                os.close(fd)


def _close_all(waiting: SimpleQueue[int | None]) -> None:
    while (fd := waiting.get()) is not None:
        with suppress(OSError):  # what it could not write, a sync before has told or nobody asked for
            os.close(fd)


@cache
def machine_id() -> str:
    """Another one on every machine, whatever they have in common, and after every start of it; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


class SystemDisk:
    """The files below `root`, which is created if it is missing.

    With `read_only` nothing is created or changed: changes fail with EROFS, and `lock` shares the lock file
    with other readers. Batches may run on any thread, each on one; a committer belongs to the thread that
    submits, and has nothing in common with the batches.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        committer: CommitterKind = "auto",
        batch: BatchKind = "auto",
        read_only: bool = False,
    ) -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._machine = machine_id()
        self._read_only = read_only
        self._committer_kind = committer
        self._batch_kind = batch
        self._tally = _Tally()
        self._threads = _SyncThreads()
        self._closer = _Closer()
        self._ring: _Ring | None = None
        self._plain = batch == "plain"
        self._ring_guard = threading.Lock()
        if not read_only:
            os.makedirs(self._root, exist_ok=True)
        elif not os.path.isdir(self._root):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._root)

    @property
    def root(self) -> str:
        return self._root

    @property
    def stats(self) -> IoStats:
        return self._tally.stats

    def open(self, path: str, *, create: bool = False) -> SystemFile:
        full = self._full(path)
        flags = (os.O_RDONLY if self._read_only else os.O_RDWR) | os.O_CLOEXEC
        if create and self._read_only and not os.path.exists(full):
            raise _read_only_error(path)
        if create and not self._read_only:
            flags |= os.O_CREAT
        return SystemFile(os.open(full, flags, 0o644), path, self._closer, read_only=self._read_only)

    def preload(self, path: str, position: int, length_bytes: int) -> None:
        try:
            fd = os.open(self._full(path), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            # As much again is asked for and not waited for: who reads one stretch will want the next
            os.posix_fadvise(fd, position, 2 * length_bytes, os.POSIX_FADV_WILLNEED)
            end = position + length_bytes
            while position < end and (data := os.pread(fd, min(PRELOAD_CHUNK_BYTES, end - position), position)):
                position += len(data)
        finally:
            os.close(fd)

    def whereabouts(self, file: File) -> Whereabouts | None:
        assert isinstance(file, SystemFile)
        status = os.fstat(file.fileno())
        if not (self._machine and self._root.isprintable() and status.st_nlink):
            return None
        return Whereabouts(self._machine, self._full(file.path), status.st_dev, status.st_ino)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._full(path))

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._full(directory)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(self._full(path))

    def make_dirs(self, directory: str) -> None:
        if self._read_only and self.is_dir(directory):
            return
        os.makedirs(self._changing(directory), exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(self._changing(old), self._changing(new))

    def remove(self, path: str) -> None:
        full = self._changing(path)
        if os.path.isdir(full) and not os.path.islink(full):
            os.rmdir(full)
        else:
            self._unlink(full)

    def _unlink(self, full: str) -> None:
        """The name is gone on return; the blocks are freed when the closer lets go of the file."""
        if not hasattr(os, "O_PATH"):
            os.unlink(full)
            return
        held = os.open(full, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.unlink(full)
        finally:
            self._closer.start()
            self._closer.close(held)

    def sync_dir(self, directory: str) -> None:
        fd = os.open(self._full(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock:
        full = self._full(path)
        if self._read_only:
            return self._lock_shared(full)
        fd = os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._flock(fd, fcntl.LOCK_EX)
            with suppress(OSError):  # the lock is what counts; on a full disk nobody learns whose it is
                os.ftruncate(fd, 0)
                _pwrite_all(fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            os.close(fd)
            raise
        return SystemLock(fd, clear_pid=True)

    def free_bytes(self) -> int:
        facts = os.statvfs(self._root)
        return facts.f_bavail * facts.f_frsize

    def committer(self) -> Committer:
        """A committer of its own for the caller, who closes it."""
        return new_committer(self._committer_kind)

    def batch(self) -> IoBatch:
        # `make bench`: a thousand syncs take a fifth of the time that they take one by one, with both kinds alike
        # (56 and 60 ms of 300), and so do a thousand reads from the cache (4 ms); but a thousand reads that have
        # to go to the disk, as recovery does, take 18 ms through the ring and 110 in turn. Hence the ring.
        ring = self._shared_ring()
        if ring is None:
            return PlainBatch(self._tally, self._threads)
        return UringBatch(self._tally, ring)

    def close(self) -> None:
        """Give back the ring and the threads. Open files, locks and committers have owners."""
        self._threads.close()
        self._closer.stop()
        with self._ring_guard:
            ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()

    def _full(self, path: str) -> str:
        assert not path.startswith("/"), f"{path!r} is not relative to the data directory"
        assert ".." not in path.split("/"), f"{path!r} may lead out of the data directory"
        return f"{self._root}/{path}" if path else self._root

    def _changing(self, path: str) -> str:
        if self._read_only:
            raise _read_only_error(path)
        return self._full(path)

    def _lock_shared(self, full: str) -> Lock:
        try:
            fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return SystemLock(-1, clear_pid=False)  # whoever writes here creates it first, so nobody does
        try:
            self._flock(fd, fcntl.LOCK_SH)
        except BaseException:
            os.close(fd)
            raise
        return SystemLock(fd, clear_pid=False)

    def _flock(self, fd: int, mode: int) -> None:
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryLocked(path=self._root, pid=_living_pid(os.pread(fd, 32, 0))) from None

    def _shared_ring(self) -> _Ring | None:
        """The one ring of this disk, made when first wanted; None where batches are to be plain."""
        with self._ring_guard:
            if self._ring is None and not self._plain:
                try:
                    self._ring = _Ring(_native_or_refuse().Ring(RING_DEPTH, SYNCS_AT_ONCE))
                except OSError:
                    if self._batch_kind == "uring":
                        raise
                    self._plain = True  # a kernel that refuses once is not asked for every batch
            return self._ring


def new_committer(kind: CommitterKind = "auto") -> Committer:
    """A committer of the kind asked for; OSError(ENOSYS) if it was not built, or what the kernel says.

    `auto` is the native thread where it is built. `make bench`, p50 and p99 of a group in us: inline 175 and 320,
    native 255 and 450, io_uring 255 and 430, Python thread 330 and 540; and while the caller's thread is busy, as
    an event loop is, native 245, io_uring 245, Python thread 550. Of the two that are alike the native one works
    on any kernel and in containers that forbid io_uring.
    """
    match kind:
        case "thread":
            return ThreadCommitter()
        case "native":
            return _native_or_refuse().NativeCommitter()
        case "uring":
            return _native_or_refuse().UringCommitter()
        case "auto":
            native = _native()
            return ThreadCommitter() if native is None else native.NativeCommitter()


# Memory

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES: Final = 64 * 1024 * 1024


def keep_freed_memory() -> None:
    """Have the C library keep what was freed, up to a bound, for what is wanted next; for a process that is ours.

    glibc gives a buffer of a megabyte back to the system as soon as it is free, and the system has to clear the same
    pages again for the next one: 150 page faults, and a third of what writing such a request costs in all.
    """
    with suppress(AttributeError, OSError):  # another C library may do as it likes
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)  # the most that it takes


# The portable committer


_Write = tuple["SystemFile", list[memoryview], int]


class _Placed:
    """Whether what goes each to its own place is written."""

    __slots__ = ("done", "well")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.well = False

    def note(self, well: bool) -> None:
        if well and not self.well:
            self.well = True
            self.done.set()


class _Job(NamedTuple):
    before: list[_Write]
    writes: list[_Write]
    sync: bool
    """Whether the last file is synced."""
    start_ns: int
    placed: _Placed


class _Bell:
    """A descriptor that is readable from `ring` until `clear`."""

    __slots__ = ("_read_fd", "_write_fd")

    def __init__(self, *, pipe: bool) -> None:
        if pipe:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._read_fd, False)
        else:
            self._read_fd = self._write_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def ring(self) -> None:
        os.write(self._write_fd, (1).to_bytes(8, sys.byteorder))

    def clear(self) -> bool:
        """Whether it had been rung."""
        try:
            return len(os.read(self._read_fd, 8)) == 8
        except BlockingIOError:
            return False

    def fileno(self) -> int:
        return self._read_fd

    def close(self) -> None:
        os.close(self._read_fd)
        if self._write_fd != self._read_fd:
            os.close(self._write_fd)


class ThreadCommitter:
    """A committer in pure Python: one daemon thread, which needs the GIL between its calls to the kernel."""

    def __init__(self, *, pipe: bool = not hasattr(os, "eventfd")) -> None:
        self._bell = _Bell(pipe=pipe)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._outcomes: deque[Completion] = deque(maxlen=1)
        self._placed = _Placed()
        self._under_way = False
        self._closed = False
        self._thread = threading.Thread(
            target=_commit_jobs,
            args=(self._jobs, self._outcomes, self._bell),
            name="rivven-commit",
            daemon=True,
        )
        self._thread.start()

    def submit(
        self, file: File, buffers: Sequence[Buffer], position: int, *, sync: bool, before: Sequence[Placed] = ()
    ) -> None:
        views = [view for view in map(_byte_view, buffers) if len(view)]
        self._hand_over(before, [(_system_file(file), views, position)], sync=sync)

    def submit_each(self, writes: Sequence[Placed]) -> None:
        self._hand_over(writes, [], sync=False)

    def _hand_over(self, before: Sequence[Placed], writes: list[_Write], *, sync: bool) -> None:
        assert not self._closed, "the committer is closed"
        assert not self._under_way, "one submission at a time"
        placed = [(_system_file(file), [_byte_view(data)], position) for file, data, position in before]
        assert all(position >= 0 for _, _, position in chain(placed, writes))
        self._under_way = True
        self._placed = _Placed()
        self._jobs.put(_Job(placed, writes, sync, time.monotonic_ns(), self._placed))

    def wait_for_each(self) -> bool:
        if not self._under_way:
            return True
        self._placed.done.wait()
        return self._placed.well

    def completed(self) -> Completion | None:
        if not self._under_way or not self._bell.clear():
            return None
        self._under_way = False
        return self._outcomes.pop()

    def wait(self, timeout_ms: int) -> Completion | None:
        assert timeout_ms >= 0
        if not self._under_way:
            return None
        poll = select.poll()
        poll.register(self._bell.fileno(), select.POLLIN)
        poll.poll(timeout_ms)
        return self.completed()

    def fileno(self) -> int:
        return -1 if self._closed else self._bell.fileno()

    def close(self) -> None:
        """Wait for the submission under way, if any, whose outcome is then lost; and end the thread."""
        if self._closed:
            return
        self._closed = True
        self._under_way = False
        self._jobs.put(None)
        self._thread.join()
        self._bell.close()


def _commit_jobs(jobs: SimpleQueue[_Job | None], outcomes: deque[Completion], bell: _Bell) -> None:
    while (job := jobs.get()) is not None:
        outcome = _commit(job)
        job = None  # let go of the buffers before the caller hears that it may have them back
        outcomes.append(outcome)
        bell.ring()


def _commit(job: _Job) -> Completion:
    written_bytes = 0
    failed: OSError | None = None
    syncing = False
    try:
        for number, (file, views, position) in enumerate(chain(job.before, job.writes)):
            job.placed.note(number >= len(job.before))
            pending, at = deque(views), position
            while pending:
                count = _pwritev(file.fileno(), pending, at)
                at += count
                written_bytes += count
                _drop_front(pending, count)
        job.placed.note(True)
        syncing = job.sync
        if syncing:
            _fdatasync(file.fileno())
    except OSError as error:
        error.filename = file.path
        failed = error.with_traceback(None)  # its frames would keep the buffers
    job.placed.done.set()
    elapsed_us = (time.monotonic_ns() - job.start_ns) // 1000
    if failed is not None:
        return Completion(written_bytes, False, elapsed_us, failed, failed_sync=syncing)
    return Completion(written_bytes, job.sync, elapsed_us)


def _pwritev(fd: int, views: Iterable[memoryview], position: int) -> int:
    count = os.pwritev(fd, [view for view, _ in zip(views, range(IOV_MAX), strict=False)], position)
    if count == 0:
        raise OSError(errno.EIO, "the kernel wrote nothing of something")
    return count


def _drop_front(views: deque[memoryview], count: int) -> None:
    while count:
        view = views.popleft()
        if len(view) > count:
            views.appendleft(view[count:])
            return
        count -= len(view)


# Batches


class _Operation(NamedTuple):
    kind: int
    file: SystemFile
    data: memoryview | None
    length_bytes: int
    position: int


READ, WRITE, SYNC = 0, 1, 2

Result = bytes | OSError | None


@dataclass(slots=True)
class _Tally:
    """The stats of one disk. Batches of several threads count into it, each once per run."""

    stats: IoStats = field(default_factory=IoStats)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def count(self, operations: list[_Operation], results: list[Result]) -> None:
        done = [0, 0, 0]
        done_bytes = [0, 0, 0]
        for operation, result in zip(operations, results, strict=True):
            if not isinstance(result, OSError):
                done[operation.kind] += 1
                done_bytes[operation.kind] += operation.length_bytes if result is None else len(result)
        with self.guard:
            self.stats.operations += sum(done)
            self.stats.reads += done[READ]
            self.stats.writes += done[WRITE]
            self.stats.syncs += done[SYNC]
            self.stats.bytes_read += done_bytes[READ]
            self.stats.bytes_written += done_bytes[WRITE]


class _Batch:
    """What both batches share: the queue and the count. `run` empties it, so a batch may be used again."""

    def __init__(self, tally: _Tally) -> None:
        self._tally = tally
        self._operations: list[_Operation] = []

    def read(self, file: File, length_bytes: int, position: int) -> int:
        return self._queue(_Operation(READ, _system_file(file), None, length_bytes, position))

    def write(self, file: File, data: Buffer, position: int) -> int:
        view = _byte_view(data)
        return self._queue(_Operation(WRITE, _system_file(file), view, len(view), position))

    def sync(self, file: File) -> int:
        return self._queue(_Operation(SYNC, _system_file(file), None, 0, 0))

    def run(self) -> list[Result]:
        operations, self._operations = self._operations, []
        results = self._perform(operations) if operations else []
        self._tally.count(operations, results)
        return results

    def _perform(self, operations: list[_Operation]) -> list[Result]:
        raise NotImplementedError

    def _queue(self, operation: _Operation) -> int:
        assert operation.length_bytes >= 0
        assert operation.position >= 0
        self._operations.append(operation)
        return len(self._operations) - 1


class _SyncThreads:
    """The threads that sync for the plain batches of one disk, started when first wanted."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def pool(self) -> Executor:
        with self._guard:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="rivven-sync")
            return self._pool

    def close(self) -> None:
        with self._guard:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


class PlainBatch(_Batch):
    """A batch of plain calls: reads and writes in turn, then the syncs, on threads if there are several."""

    def __init__(self, tally: _Tally, threads: _SyncThreads) -> None:
        super().__init__(tally)
        self._threads = threads

    def _perform(self, operations: list[_Operation]) -> list[Result]:
        results: list[Result] = [None] * len(operations)
        syncs: deque[tuple[int, SystemFile]] = deque()
        for place, operation in enumerate(operations):
            if operation.kind == SYNC:
                syncs.append((place, operation.file))
                continue
            try:
                results[place] = _read_or_write(operation)
            except OSError as error:
                results[place] = _named(error, operation.file)
        self._sync(syncs, results)
        return results

    def _sync(self, syncs: deque[tuple[int, SystemFile]], results: list[Result]) -> None:
        if len(syncs) < SYNCS_FOR_POOL_MIN:
            _sync_until_empty(syncs, results)
            return
        pool = self._threads.pool()
        workers = [pool.submit(_sync_until_empty, syncs, results) for _ in range(min(SYNCS_AT_ONCE, len(syncs)))]
        for worker in workers:
            worker.result()


def _read_or_write(operation: _Operation) -> bytes | None:
    if operation.length_bytes == 0:
        return b"" if operation.data is None else None  # the ring, too, does not ask the kernel for nothing
    if operation.data is None:
        return operation.file.read(operation.length_bytes, operation.position)
    _pwrite_all(operation.file.fileno(), operation.data, operation.position)
    return None


def _sync_until_empty(syncs: deque[tuple[int, SystemFile]], results: list[Result]) -> None:
    while True:
        try:
            place, file = syncs.popleft()
        except IndexError:
            return
        try:
            file.sync()
        except OSError as error:
            results[place] = _named(error, file)


class _Ring:
    """The io_uring of one disk, shared by its batches: a lock lets one of them through at a time."""

    def __init__(self, ring: _disk.Ring) -> None:
        self._ring = ring
        self._guard = threading.Lock()

    def run(self, operations: list[tuple[int, int, memoryview | None, int, int]]) -> list[bytes | int | None]:
        with self._guard:
            return self._ring.run(operations)

    def close(self) -> None:
        with self._guard:
            self._ring.close()


class UringBatch(_Batch):
    """A batch that the kernel gets as a whole through an io_uring, `RING_DEPTH` operations at a time."""

    def __init__(self, tally: _Tally, ring: _Ring) -> None:
        super().__init__(tally)
        self._ring = ring

    def _perform(self, operations: list[_Operation]) -> list[Result]:
        answers = self._ring.run(
            [(op.kind, op.file.fileno(), op.data, op.length_bytes, op.position) for op in operations]
        )
        return [
            OSError(answer, os.strerror(answer), operation.file.path) if isinstance(answer, int) else answer
            for operation, answer in zip(operations, answers, strict=True)
        ]


# The clock, and chance


class SystemEntropy:
    def bytes(self, count: int) -> bytes:
        return os.urandom(count)


# Small things


class _Native(Protocol):
    """What `rivven._disk` offers."""

    NativeCommitter: type[_disk.NativeCommitter]
    UringCommitter: type[_disk.UringCommitter]
    Ring: type[_disk.Ring]


def _native() -> _Native | None:
    if os.environ.get("RIVVEN_PURE") == "1":
        return None
    try:
        from rivven import _disk
    except ImportError:
        return None
    return _disk


def _native_or_refuse() -> _Native:
    native = _native()
    if native is None:
        raise OSError(errno.ENOSYS, "rivven._disk is not built, or RIVVEN_PURE=1 forbids it")
    return native


def _system_file(file: File) -> SystemFile:
    assert isinstance(file, SystemFile), f"{file!r} is not a file of a SystemDisk"
    return file


def _byte_view(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _pwrite_all(fd: int, data: Buffer, position: int) -> None:
    written_bytes = os.pwrite(fd, data, position)
    length_bytes = len(data) if not isinstance(data, memoryview) else data.nbytes
    if written_bytes == length_bytes:
        return
    view = _byte_view(data)
    while written_bytes < length_bytes:
        count = os.pwrite(fd, view[written_bytes:], position + written_bytes)
        if count == 0:
            raise OSError(errno.EIO, "the kernel wrote nothing of something")
        written_bytes += count


def _named(error: OSError, file: SystemFile) -> OSError:
    error.filename = file.path
    return error.with_traceback(None)


def _read_only_error(path: str) -> OSError:
    return OSError(errno.EROFS, "opened read-only", path)


def _living_pid(text: bytes) -> int | str:
    """The process that a lock file names; "unknown" if it names none, or one that is gone: others hold it."""
    try:
        pid = int(text)
    except ValueError:
        return "unknown"
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "unknown"
    return pid

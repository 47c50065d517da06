"""The real doors, each committer and each batch against the same sentences."""

from __future__ import annotations

import errno
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivven.errors import DirectoryLocked
from rivven.ports import Committer, Completion, IoBatch
from rivven.system import (
    CLOSING_MAX,
    IOV_MAX,
    RING_DEPTH,
    PlainBatch,
    PureFileWriter,
    SystemClock,
    SystemDisk,
    SystemEntropy,
    SystemFile,
    ThreadCommitter,
    UringBatch,
    new_committer,
)

WAIT_MS = 60_000
"""Longer than any disk takes; a test that waits this long has failed."""

MakeCommitter = Callable[[], Committer]

MAKERS: dict[str, MakeCommitter] = {
    "thread": ThreadCommitter,
    "thread with a pipe": lambda: ThreadCommitter(pipe=True),
    "native": lambda: new_committer("native"),
    "uring": lambda: new_committer("uring"),
}


def refusal(make: Callable[[], Any]) -> str:
    """Why the thing cannot be had here; empty if it can."""
    try:
        made = make()
    except OSError as error:
        return f"NOT TESTED: {error}"
    made.close()
    return ""


def ring_disk() -> SystemDisk:
    disk = SystemDisk(tempfile.gettempdir(), batch="uring")
    disk.batch()
    return disk


REFUSALS = {name: refusal(make) for name, make in MAKERS.items()}
RING_REFUSAL = refusal(ring_disk)


def kinds(names: list[str], refusals: dict[str, str]) -> list[Any]:
    return [
        pytest.param(name, marks=pytest.mark.skipif(bool(refusals.get(name)), reason=refusals.get(name, "")))
        for name in names
    ]


COMMITTERS = kinds(list(MAKERS), REFUSALS)
BATCHES = kinds(["plain", "uring"], {"uring": RING_REFUSAL})


@pytest.fixture(params=COMMITTERS)
def make(request: pytest.FixtureRequest) -> MakeCommitter:
    return MAKERS[request.param]


@pytest.fixture
def committer(make: MakeCommitter) -> Iterator[Committer]:
    made = make()
    yield made
    made.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SystemDisk]:
    made = SystemDisk(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture(params=BATCHES)
def batch_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SystemDisk]:
    made = SystemDisk(tmp_path / "data", batch=request.param)
    yield made
    made.close()


@pytest.fixture
def file(disk: SystemDisk) -> Iterator[SystemFile]:
    made = disk.open("file", create=True)
    yield made
    made.close()


@pytest.fixture
def full(disk: SystemDisk) -> Iterator[SystemFile]:
    """A file that never has room."""
    os.symlink("/dev/full", f"{disk.root}/full")
    made = disk.open("full")
    yield made
    made.close()


def outcome(committer: Committer) -> Completion:
    completion = committer.wait(WAIT_MS)
    assert completion is not None
    return completion


def no_room(committer: Committer) -> Completion:
    """The outcome, which is that `full` had no room."""
    completion = outcome(committer)
    assert completion.error is not None
    assert (completion.error.errno, completion.error.filename) == (errno.ENOSPC, "full")
    return completion


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# Files


def test_what_is_written_is_read_where_it_was_written(disk: SystemDisk) -> None:
    file = disk.open("file", create=True)
    file.write(b"world", 6)
    file.write(bytearray(b"hello "), 0)
    file.write(memoryview(b"xx!")[2:], 11)
    file.sync()
    assert file.read(100, 0) == b"hello world!"
    assert file.read(5, 6) == b"world"
    assert file.read(5, 100) == b""
    assert file.length() == 12
    file.truncate(5)
    assert file.read(100, 0) == b"hello"
    assert file.path == "file"
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(1, 0)


def pure(file: SystemFile) -> PureFileWriter:
    """The pure twin on a file that another one has open."""
    made = PureFileWriter()
    made._fd = file.fileno()
    return made


@pytest.mark.parametrize("twin", [lambda file: file, pure], ids=["native", "pure"])
def test_what_is_not_in_memory_is_not_waited_for_until_it_is_preloaded(
    disk: SystemDisk, file: SystemFile, twin: Callable[[SystemFile], SystemFile]
) -> None:
    data = os.urandom(4 << 20)
    file.write(data, 0)
    reader = twin(file)
    assert reader.read_cached(len(data) + 9, 0) == data
    assert reader.read_cached(1000, len(data) - 10) == data[-10:]
    assert reader.read_cached(1000, len(data)) == b""
    file.sync()
    os.posix_fadvise(file.fileno(), 1 << 20, 0, os.POSIX_FADV_DONTNEED)
    found = reader.read_cached(len(data), 0)
    if len(found) == len(data):
        pytest.skip("this file system keeps everything in memory")
    assert found == data[: len(found)]
    disk.preload("file", 0, len(data))
    assert reader.read_cached(len(data), 0) == data


def test_a_file_that_is_gone_need_not_be_preloaded(disk: SystemDisk) -> None:
    disk.preload("gone", 0, 1000)


def test_a_view_of_wide_items_is_written_by_its_bytes(file: SystemFile, committer: Committer) -> None:
    wide = memoryview(bytes(range(16))).cast("I")
    file.write(wide, 0)
    assert file.read(100, 0) == bytes(range(16))
    committer.submit(file, [wide, b"end"], 8, sync=False)
    assert outcome(committer).bytes_written == 19
    assert file.read(100, 8) == bytes(range(16)) + b"end"


def test_a_removed_file_is_let_go_of_elsewhere_and_its_blocks_with_it(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path / "data")
    before = open_descriptors()
    file = disk.open("file", create=True)
    file.write(bytes(1 << 20), 0)
    disk.remove("file")
    assert not disk.exists("file")
    assert file.read(1, 0) == b"\0", "whoever has it open may read on"
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(1, 0)
    for _ in range(2 * CLOSING_MAX):
        disk.open("other", create=True).close()
        disk.remove("other")
    disk.close()
    assert open_descriptors() == before, "blocks are free once nobody holds the file"
    disk.open("after", create=True).close()
    disk.remove("after")
    disk.close()
    assert open_descriptors() == before


def test_what_cannot_be_removed_is_not_held(disk: SystemDisk) -> None:
    disk.open("once", create=True).close()
    disk.remove("once")
    before = open_descriptors()
    with pytest.raises(FileNotFoundError):
        disk.remove("once")
    assert open_descriptors() <= before


def test_only_create_makes_a_file(disk: SystemDisk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("file")
    disk.open("file", create=True).close()
    disk.open("file").close()
    assert disk.exists("file")
    assert not disk.exists("other")


def test_the_tree_can_be_listed_and_changed(disk: SystemDisk) -> None:
    disk.make_dirs("topics/b")
    disk.make_dirs("topics/a")
    disk.make_dirs("topics/a")
    disk.open("topics/a/new", create=True).close()
    disk.open("topics/a/old", create=True).close()
    assert disk.names("topics") == ["a", "b"]
    assert disk.names("nowhere") == []
    assert disk.names("topics/a/new") == []
    assert disk.names("") == ["topics"]
    assert disk.is_dir("topics")
    assert not disk.is_dir("topics/a/new")
    disk.rename("topics/a/new", "topics/a/old")
    disk.sync_dir("topics/a")
    disk.sync_dir("")
    assert disk.names("topics/a") == ["old"]
    with pytest.raises(OSError, match="not empty"):
        disk.remove("topics/a")
    disk.remove("topics/a/old")
    disk.remove("topics/a")
    assert disk.names("topics") == ["b"]
    with pytest.raises(FileNotFoundError):
        disk.remove("topics/a")
    assert disk.free_bytes() > 0


@pytest.mark.parametrize("path", ["/etc/passwd", "../out", "a/../../out", ".."])
def test_a_path_that_leads_out_is_our_own_mistake(disk: SystemDisk, path: str) -> None:
    with pytest.raises(AssertionError):
        disk.open(path)
    with pytest.raises(AssertionError):
        disk.remove(path)


def test_a_read_only_disk_reads_and_changes_nothing(disk: SystemDisk, file: SystemFile) -> None:
    file.write(b"kept", 0)
    disk.make_dirs("dir")
    viewer = SystemDisk(disk.root, read_only=True)
    seen = viewer.open("file", create=True)
    assert seen.read(10, 0) == b"kept"
    changes: list[Callable[[], object]] = [
        lambda: seen.write(b"x", 0),
        lambda: seen.truncate(0),
        lambda: viewer.open("other", create=True),
        lambda: viewer.rename("file", "other"),
        lambda: viewer.remove("file"),
        lambda: viewer.make_dirs("more"),
    ]
    for change in changes:
        with pytest.raises(OSError, match="read-only") as refused:
            change()
        assert refused.value.errno == errno.EROFS
    viewer.make_dirs("dir")
    seen.close()
    viewer.close()
    assert disk.names("") == ["dir", "file"]


def test_a_read_only_disk_does_not_make_its_root(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SystemDisk(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()


# Locks

HOLD_LOCK = """
import sys
from rivven.system import SystemDisk
lock = SystemDisk(sys.argv[1]).lock("lock")
print("held", flush=True)
sys.stdin.read()
"""


def child(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    source = str(Path(__file__).parent.parent / "src")
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        **options,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    """What it printed, what it complained of, and its exit code; one that does not end is killed."""
    with process:
        try:
            output, complaints = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return output, complaints, process.returncode


def test_a_second_process_is_told_who_holds_the_lock_until_that_one_is_killed(disk: SystemDisk) -> None:
    with child(HOLD_LOCK, disk.root) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryLocked, match=f"{disk.root} is in use by process {holder.pid}"):
            disk.lock("lock")
        with pytest.raises(DirectoryLocked, match=str(holder.pid)):
            SystemDisk(disk.root, read_only=True).lock("lock")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock = disk.lock("lock")
    assert disk.open("lock").read(100, 0) == b"%d\n" % os.getpid()
    lock.release()


def test_a_lock_is_free_again_once_released(disk: SystemDisk) -> None:
    lock = disk.lock("lock")
    with pytest.raises(DirectoryLocked, match=str(os.getpid())):
        disk.lock("lock")
    lock.release()
    lock.release()
    disk.lock("lock").release()


def test_readers_share_the_lock_and_keep_writers_out(disk: SystemDisk) -> None:
    viewer = SystemDisk(disk.root, read_only=True)
    viewer.lock("lock").release()  # nobody has ever locked it: there is nothing to share
    disk.lock("lock").release()
    first, second = viewer.lock("lock"), viewer.lock("lock")
    with pytest.raises(DirectoryLocked, match="unknown"):
        disk.lock("lock")
    first.release()
    second.release()
    disk.lock("lock").release()


def test_a_dead_process_is_not_named_as_the_holder(disk: SystemDisk) -> None:
    pid_text, _, _ = ended(child("import os; print(os.getpid())"))
    disk.open("lock", create=True).write(pid_text.encode(), 0)
    reader = SystemDisk(disk.root, read_only=True).lock("lock")
    with pytest.raises(DirectoryLocked, match="unknown"):
        disk.lock("lock")
    reader.release()


# Committers


def test_a_group_lands_where_it_was_asked_to(committer: Committer, file: SystemFile) -> None:
    file.write(bytes(100), 0)
    committer.submit(file, [b"one", bytearray(b"two"), memoryview(b"three"), b""], 10, sync=True)
    completion = outcome(committer)
    assert (completion.bytes_written, completion.synced, completion.error) == (11, True, None)
    assert completion.elapsed_us > 0
    assert file.read(100, 0) == bytes(10) + b"onetwothree" + bytes(79)


def test_a_group_need_not_be_synced(committer: Committer, file: SystemFile) -> None:
    committer.submit(file, [b"data"], 0, sync=False)
    completion = outcome(committer)
    assert (completion.bytes_written, completion.synced, completion.error) == (4, False, None)


def test_nothing_can_be_written_with_and_without_a_sync(committer: Committer, file: SystemFile) -> None:
    for sync in (True, False):
        for buffers in ([], [b""]):
            committer.submit(file, buffers, 0, sync=sync)
            completion = outcome(committer)
            assert (completion.bytes_written, completion.synced) == (0, sync)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("count", [IOV_MAX, IOV_MAX + 1, 20 * IOV_MAX + 7])
def test_a_group_may_have_more_buffers_than_one_call_takes(
    committer: Committer, file: SystemFile, count: int, sync: bool
) -> None:
    buffers = [b"%07d;" % number for number in range(count)]
    committer.submit(file, buffers, 3, sync=sync)
    assert outcome(committer).bytes_written == 8 * count
    assert file.read(8 * count + 1, 3) == b"".join(buffers)


def test_a_group_may_be_large(committer: Committer, file: SystemFile) -> None:
    data = os.urandom(1 << 20) * 24
    committer.submit(file, [data, b"tail"], 0, sync=True)
    assert outcome(committer).bytes_written == len(data) + 4
    assert file.read(len(data) + 4, 0) == data + b"tail"


def test_writes_go_each_to_its_own_place(committer: Committer, disk: SystemDisk, file: SystemFile) -> None:
    other = disk.open("other", create=True)
    large = bytes(range(256)) * 20_000
    committer.submit_each([(file, b"one", 3), (other, large, 10), (file, bytearray(b"two"), 0), (other, b"x", 0)])
    completion = outcome(committer)
    assert (completion.bytes_written, completion.synced, completion.error) == (7 + len(large), False, None)
    assert file.read(100, 0) == b"twoone"
    assert other.read(10, 0) == b"x" + bytes(9)
    assert other.read(len(large) + 1, 10) == large
    committer.submit(file, [b"as", b" ever"], 0, sync=True)
    assert outcome(committer).synced
    assert file.read(100, 0) == b"as ever"
    other.close()


def test_what_goes_before_a_group_is_written_before_it(
    committer: Committer, disk: SystemDisk, file: SystemFile
) -> None:
    other = disk.open("other", create=True)
    for turn in range(50):
        before = [(other, b"%03d" % turn, 3 * turn), (other, b"end", 3 * turn + 3)]
        committer.submit(file, [b"group ", b"%03d" % turn], 9 * turn, sync=True, before=before)
        if turn % 2:
            assert committer.wait_for_each()
            assert other.read(6, 3 * turn) == b"%03dend" % turn
        completion = outcome(committer)
        assert (completion.bytes_written, completion.synced, completion.error) == (15, True, None)
        assert other.read(6, 3 * turn) == b"%03dend" % turn
        assert file.read(100, 9 * turn) == b"group %03d" % turn
    assert committer.wait_for_each(), "with nothing under way there is nothing to wait for"
    other.close()


def test_where_what_goes_before_fails_the_group_is_not_begun(
    committer: Committer, full: SystemFile, file: SystemFile
) -> None:
    for waits in (False, True):
        committer.submit(file, [b"never"], 0, sync=True, before=[(file, b"placed", 100), (full, b"never", 0)])
        assert not waits or not committer.wait_for_each()
        completion = no_room(committer)
        assert not completion.failed_sync
        assert not completion.synced
        assert file.read(5, 0) == bytes(5)
    committer.submit(file, [b"after"], 0, sync=True)
    assert outcome(committer).error is None


def test_a_group_that_fails_behind_what_goes_before_it_is_told_apart(
    committer: Committer, full: SystemFile, file: SystemFile
) -> None:
    committer.submit(full, [b"never"], 0, sync=False, before=[(file, b"placed", 0)])
    assert committer.wait_for_each()
    no_room(committer)
    assert file.read(6, 0) == b"placed"


def test_of_writes_that_fail_the_file_is_named_and_the_next_ones_are_served(
    committer: Committer, full: SystemFile, file: SystemFile
) -> None:
    committer.submit_each([(file, b"before", 0), (full, b"never", 0), (file, b"perhaps", 6)])
    completion = no_room(committer)
    assert not completion.failed_sync
    assert file.read(6, 0) == b"before"
    committer.submit_each([(file, b"after", 0)])
    assert outcome(committer).error is None


def test_an_event_loop_hears_of_each_completion_once(committer: Committer, file: SystemFile) -> None:
    poll = select.poll()
    poll.register(committer.fileno(), select.POLLIN)
    assert committer.completed() is None
    assert committer.wait(0) is None
    for _ in range(50):
        committer.submit(file, [b"data"], 0, sync=False)
        completion = None
        while completion is None:
            assert poll.poll(WAIT_MS) == [(committer.fileno(), select.POLLIN)]
            completion = committer.completed()
        assert completion.error is None
        assert poll.poll(0) == []
        assert committer.completed() is None


def test_two_at_once_are_our_own_mistake(committer: Committer, file: SystemFile) -> None:
    committer.submit(file, [b"one"], 0, sync=True)
    with pytest.raises(AssertionError):
        committer.submit(file, [b"two"], 0, sync=True)
    assert outcome(committer).bytes_written == 3


def test_what_is_no_buffer_is_refused_and_leaves_the_committer_idle(committer: Committer, file: SystemFile) -> None:
    changing = bytearray(b"free")
    with pytest.raises((TypeError, BufferError)):
        committer.submit(file, [changing, "text"], 0, sync=True)  # type: ignore[list-item]
    changing += b" again"
    committer.submit(file, [changing], 0, sync=True)
    assert outcome(committer).bytes_written == 10


def test_buffers_are_given_back_with_the_completion(committer: Committer, file: SystemFile) -> None:
    buffer = bytearray(b"data" * 100)
    for position in range(20):
        committer.submit(file, [buffer], position, sync=False)
        assert outcome(committer).error is None
        buffer += b"more"  # BufferError if anybody still held it


def test_a_full_device_is_a_failed_write(committer: Committer, full: SystemFile) -> None:
    committer.submit(full, [b"data"], 0, sync=True)
    completion = no_room(committer)
    assert (completion.bytes_written, completion.synced, completion.failed_sync) == (0, False, False)


def test_a_file_that_may_not_be_written_is_a_failed_write(
    committer: Committer, disk: SystemDisk, file: SystemFile
) -> None:
    unwritable = SystemDisk(disk.root, read_only=True).open("file")
    committer.submit(unwritable, [b"data"] * 2000, 0, sync=True)
    completion = outcome(committer)
    assert completion.error is not None
    assert completion.error.errno == errno.EBADF
    assert not completion.failed_sync
    unwritable.close()
    file.close()
    committer.submit(file, [b"data"], 0, sync=False)
    closed = outcome(committer)
    assert closed.error is not None
    assert closed.error.errno == errno.EBADF


def test_a_failed_sync_is_told_from_a_failed_write(committer: Committer, disk: SystemDisk) -> None:
    os.mkfifo(f"{disk.root}/fifo")
    fifo = disk.open("fifo")
    committer.submit(fifo, [], 0, sync=True)
    completion = outcome(committer)
    assert completion.error is not None
    assert completion.error.errno == errno.EINVAL
    assert (completion.failed_sync, completion.synced) == (True, False)
    fifo.close()


def test_what_a_failed_sync_follows_was_written(committer: Committer, disk: SystemDisk) -> None:
    os.symlink("/dev/null", f"{disk.root}/null")
    null = disk.open("null")
    committer.submit(null, [b"data"] * 3000, 0, sync=True)
    completion = outcome(committer)
    assert completion.error is not None
    assert completion.error.errno == errno.EINVAL
    assert completion.error.filename == "null"
    assert (completion.bytes_written, completion.failed_sync, completion.synced) == (12_000, True, False)
    null.close()


def test_after_a_failure_the_next_group_is_served(committer: Committer, full: SystemFile, file: SystemFile) -> None:
    for _ in range(3):
        committer.submit(full, [b"data"], 0, sync=True)
        assert outcome(committer).error is not None
        committer.submit(file, [b"data"], 0, sync=True)
        assert outcome(committer).error is None


SHORT_WRITES = """
import errno, resource, sys
from rivven.system import SystemDisk, ThreadCommitter, new_committer

disk = SystemDisk(sys.argv[1], batch="plain" if sys.argv[2].startswith("thread") else "auto")
pipe = sys.argv[2] == "thread with a pipe"
committer = ThreadCommitter(pipe=True) if pipe else new_committer(sys.argv[2])
file = disk.open("short", create=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

for buffers in ([b"x" * 60_000], [b"y" * 7] * 10_000, [b"z" * 30_000, b"z" * 20_001]):
    committer.submit(file, buffers, 0, sync=True)
    outcome = committer.wait(60_000)
    assert outcome.bytes_written == 50_000, outcome
    assert outcome.error.errno == errno.EFBIG and not outcome.failed_sync and not outcome.synced, outcome
    assert file.read(60_000, 0) == b"".join(buffers)[:50_000]
committer.submit(file, [b"fits"], 49_996, sync=True)
assert committer.wait(60_000).error is None

batch = disk.batch()
batch.write(file, b"w" * 60_000, 0)
batch.write(file, b"fits", 0)
long, fitting = batch.run()
assert long.errno == errno.EFBIG and fitting is None, (long, fitting)
assert disk.stats.writes == 1 and disk.stats.bytes_written == 4
print("done")
"""


@pytest.mark.parametrize("kind", COMMITTERS)
def test_a_short_write_is_finished_or_its_reason_told(kind: str, tmp_path: Path) -> None:
    assert ended(child(SHORT_WRITES, str(tmp_path), kind)) == ("done\n", "", 0)


def test_many_groups_follow_one_another(committer: Committer, file: SystemFile) -> None:
    for number in range(2000):
        committer.submit(file, [b"%04d" % number, b";"], number * 5, sync=number % 100 == 0)
        assert outcome(committer).error is None
    assert file.read(20_000, 0) == b"".join(b"%04d;" % number for number in range(2000))


class Interrupted(Exception):
    """Raised by a signal handler."""


class Alarms:
    """A signal every half millisecond. Each is counted, and the next one raises if it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.raise_next = False

    def __call__(self, _number: int, _frame: object) -> None:
        self.count += 1
        if self.raise_next:
            self.raise_next = False
            raise Interrupted


@pytest.fixture
def alarms() -> Iterator[Alarms]:
    made = Alarms()
    before = signal.signal(signal.SIGALRM, made)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    yield made
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_signals_disturb_neither_a_group_nor_a_wait(committer: Committer, file: SystemFile, alarms: Alarms) -> None:
    turns = 0
    while turns < 20 or alarms.count < 10:
        turns += 1
        committer.submit(file, [b"data"] * 2000, 0, sync=True)
        completion = outcome(committer)
        assert (completion.bytes_written, completion.synced) == (8000, True)


@pytest.mark.parametrize("kind", kinds(["native", "uring"], REFUSALS))
def test_a_wait_that_a_handler_ends_leaves_the_group_to_be_waited_for(
    kind: str, file: SystemFile, alarms: Alarms
) -> None:
    committer = MAKERS[kind]()
    interrupted = 0
    while interrupted < 5:
        committer.submit(file, [b"data"] * 2000, 0, sync=True)
        completion = None
        try:
            alarms.raise_next = True
            completion = committer.wait(WAIT_MS)
            alarms.raise_next = False
        except Interrupted:
            interrupted += 1
            completion = completion or committer.wait(WAIT_MS)  # None if it had been handed out by then
        assert completion is None or completion.synced
    committer.close()


def test_signals_do_not_disturb_a_batch(batch_disk: SystemDisk, alarms: Alarms) -> None:
    file = batch_disk.open("file", create=True)
    batch = batch_disk.batch()
    while alarms.count < 10:
        for number in range(300):
            batch.write(file, b"%04d" % number, number * 4)
            batch.sync(file)
        assert batch.run() == [None] * 600
    file.close()


def test_closing_is_idempotent_waits_and_leaks_nothing(make: MakeCommitter, file: SystemFile) -> None:
    before = open_descriptors()
    for round_ in range(20):
        committer = make()
        committer.submit(file, [b"%02d" % round_] * 3000, round_ * 6000, sync=True)
        committer.close()
        committer.close()
        assert committer.fileno() == -1
        assert committer.completed() is None
        assert file.read(6000, round_ * 6000) == b"%02d" % round_ * 3000
        with pytest.raises(AssertionError):
            committer.submit(file, [b"late"], 0, sync=False)
    assert open_descriptors() == before


@pytest.mark.parametrize("kind", kinds(["native", "uring"], REFUSALS))
def test_one_that_is_forgotten_finishes_its_group_and_leaks_nothing(kind: str, file: SystemFile) -> None:
    before = open_descriptors()
    committer = MAKERS[kind]()
    committer.submit(file, [b"data"] * 5000, 0, sync=True)
    del committer
    assert file.read(20_000, 0) == b"data" * 5000
    assert open_descriptors() == before


LEFT_OPEN = """
import os, sys
from rivven.system import SystemDisk, ThreadCommitter, new_committer
disk = SystemDisk(sys.argv[1])
pipe = sys.argv[2] == "thread with a pipe"
committer = ThreadCommitter(pipe=True) if pipe else new_committer(sys.argv[2])
disk.batch().run()
committer.submit(disk.open("file", create=True), [b"data"] * 5000, 0, sync=True)
if sys.argv[3] == "fork":
    if not (pid := os.fork()):
        committer.close() if sys.argv[2] in ("native", "uring") else None
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert committer.wait(60_000).bytes_written == 20_000
"""


@pytest.mark.parametrize("kind", COMMITTERS)
@pytest.mark.parametrize("how", ["exit", "fork"])
def test_a_process_ends_well_without_closing(kind: str, how: str, tmp_path: Path) -> None:
    assert ended(child(LEFT_OPEN, str(tmp_path), kind, how)) == ("", "", 0)


def test_auto_is_native_where_it_is_built_and_a_thread_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = new_committer()
    chosen.close()
    assert type(chosen).__name__ == ("ThreadCommitter" if REFUSALS["native"] else "NativeCommitter")
    monkeypatch.setenv("RIVVEN_PURE", "1")
    chosen = new_committer()
    chosen.close()
    assert isinstance(chosen, ThreadCommitter)
    with pytest.raises(OSError, match="RIVVEN_PURE") as refused:
        new_committer("uring")
    assert refused.value.errno == errno.ENOSYS


# Batches


def test_a_batch_answers_each_operation_in_its_place(batch_disk: SystemDisk) -> None:
    file = batch_disk.open("file", create=True)
    file.write(b"0123456789", 0)
    batch = batch_disk.batch()
    places = [
        batch.read(file, 4, 0),
        batch.write(file, b"abc", 20),
        batch.sync(file),
        batch.read(file, 100, 5),
        batch.read(file, 5, 1000),
        batch.read(file, 0, 0),
        batch.write(file, b"", 0),
    ]
    assert places == list(range(7))
    results = batch.run()
    assert isinstance(results[3], bytes)
    assert results[3][:5] == b"56789"  # and what was written beside it, if that came first
    assert results[:3] == [b"0123", None, None]
    assert results[4:] == [b"", b"", None]
    assert file.read(3, 20) == b"abc"
    assert batch.run() == []
    file.close()


def test_a_batch_may_be_longer_than_a_ring_is_deep(batch_disk: SystemDisk) -> None:
    files = [batch_disk.open(f"file-{number}", create=True) for number in range(10)]
    count = 4 * RING_DEPTH + 3
    batch = batch_disk.batch()
    for number in range(count):
        batch.write(files[number % 10], b"%06d" % number, number * 6)
    for _ in range(RING_DEPTH + 1):
        batch.sync(files[0])
    assert batch.run() == [None] * (count + RING_DEPTH + 1)
    for number in range(count):
        batch.read(files[number % 10], 6, number * 6)
    assert batch.run() == [b"%06d" % number for number in range(count)]
    for file in files:
        file.close()


def test_errors_stay_with_their_operations_and_only_successes_count(batch_disk: SystemDisk) -> None:
    os.symlink("/dev/full", f"{batch_disk.root}/full")
    os.mkfifo(f"{batch_disk.root}/fifo")
    good = batch_disk.open("good", create=True)
    full, fifo = batch_disk.open("full"), batch_disk.open("fifo")
    closed = batch_disk.open("good")
    closed.close()
    batch = batch_disk.batch()
    for _ in range(100):
        batch.write(good, b"fine", 0)
        batch.write(full, b"no room", 0)
        batch.sync(fifo)
        batch.sync(good)
        batch.read(closed, 10, 0)
    results = batch.run()
    for start in range(0, 500, 5):
        fine, no_room, no_sync, synced, no_file = results[start : start + 5]
        assert (fine, synced) == (None, None)
        assert isinstance(no_room, OSError)
        assert isinstance(no_sync, OSError)
        assert isinstance(no_file, OSError)
        assert (no_room.errno, no_room.filename) == (errno.ENOSPC, "full")
        assert (no_sync.errno, no_sync.filename) == (errno.EINVAL, "fifo")
        assert (no_file.errno, no_file.filename) == (errno.EBADF, "good")
    stats = batch_disk.stats
    assert (stats.operations, stats.reads, stats.writes, stats.syncs) == (200, 0, 100, 100)
    assert (stats.bytes_read, stats.bytes_written) == (0, 400)
    batch.read(good, 100, 0)
    assert batch.run() == [b"fine"]
    assert (stats.operations, stats.reads, stats.bytes_read) == (201, 1, 4)
    for file in (good, full, fifo):
        file.close()


def test_batches_may_run_on_several_threads_beside_a_committer(batch_disk: SystemDisk) -> None:
    files = [batch_disk.open(f"file-{number}", create=True) for number in range(4)]
    failures: list[object] = []

    def work(file: SystemFile) -> None:
        for turn in range(30):
            batch = batch_disk.batch()
            for place in range(20):
                batch.write(file, b"%04d" % (turn + place), place * 4)
            for _ in range(5):
                batch.sync(file)
            failures.extend(result for result in batch.run() if result is not None)

    threads = [threading.Thread(target=work, args=[file]) for file in files]
    for thread in threads:
        thread.start()
    committer = batch_disk.committer()
    own = batch_disk.open("own", create=True)
    while any(thread.is_alive() for thread in threads):
        committer.submit(own, [b"data"], 0, sync=True)
        assert outcome(committer).error is None
    for thread in threads:
        thread.join()
    assert failures == []
    assert batch_disk.stats.operations == 4 * 30 * 25
    committer.close()
    for file in files:
        assert file.read(80, 0) == b"".join(b"%04d" % (29 + place) for place in range(20))
        file.close()
    own.close()


def test_closing_a_disk_gives_back_its_ring_and_threads(tmp_path: Path) -> None:
    before, threads_before = open_descriptors(), threading.active_count()
    for kind in ("plain", "auto"):
        for _ in range(5):
            disk = SystemDisk(tmp_path, batch="plain" if kind == "plain" else "auto")
            file = disk.open("file", create=True)
            batch = disk.batch()
            for _ in range(10):
                batch.sync(file)
            batch.run()
            file.close()
            disk.close()
            disk.close()
    assert (open_descriptors(), threading.active_count()) == (before, threads_before)


def test_auto_batches_use_a_ring_where_the_kernel_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SystemDisk(tmp_path)
    assert isinstance(disk.batch(), PlainBatch if RING_REFUSAL else UringBatch)
    disk.close()
    monkeypatch.setenv("RIVVEN_PURE", "1")
    disk = SystemDisk(tmp_path)
    assert isinstance(disk.batch(), PlainBatch)
    disk.close()


SLOT_BYTES = 40
slots = st.dictionaries(st.integers(0, 40), st.binary(max_size=SLOT_BYTES), max_size=20)
spans = st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 2500)), max_size=20)


@pytest.mark.parametrize("kind", BATCHES)
@given(rounds=st.lists(st.tuples(slots, spans), max_size=4))
@settings(max_examples=60, deadline=None)
def test_batches_do_to_a_file_what_they_do_to_a_bytearray(
    kind: Any, rounds: list[tuple[dict[int, bytes], list[tuple[int, int]]]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        disk = SystemDisk(root, batch=kind)
        file = disk.open("file", create=True)
        model = bytearray()
        for writes, reads in rounds:
            batch: IoBatch = disk.batch()
            for slot, data in writes.items():
                batch.write(file, data, slot * SLOT_BYTES)
                if data:
                    model.extend(bytes(max(0, slot * SLOT_BYTES + len(data) - len(model))))
                    model[slot * SLOT_BYTES : slot * SLOT_BYTES + len(data)] = data
            assert batch.run() == [None] * len(writes)
            for position, length_bytes in reads:
                batch.read(file, length_bytes, position)
            assert batch.run() == [bytes(model[start : start + length]) for start, length in reads]
        file.close()
        disk.close()


# The clock, and chance


def test_the_clock_and_chance_are_the_systems() -> None:
    clock = SystemClock()
    assert clock.now_ms() > 1_700_000_000_000
    first_us = clock.now_us()
    assert clock.now_us() >= first_us
    entropy = SystemEntropy()
    assert len(entropy.bytes(16)) == 16
    assert entropy.bytes(16) != entropy.bytes(16)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep what they like")
def test_a_large_buffer_that_was_freed_is_not_given_back_and_cleared_again() -> None:
    """Page faults of taking and freeing a megabyte a few hundred times, in a process of its own."""
    script = (
        "import resource, sys\n"
        "from rivven.system import keep_freed_memory\n"
        "keep_freed_memory()\n"
        "def take():\n"
        "    held = [bytearray(1_000_000) for _ in range(8)]\n"
        "take()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(100): take()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(told.stdout) < 10_000, "of 195,000 pages"

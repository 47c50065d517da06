"""A disk that refuses: errors put between a real process and its kernel with `strace -e inject`.

`-P` limits a fault to one file. strace counts calls per thread, and a writer with one thread has one thread for each
kind of call, so `when=k` means the k-th group, or the k-th batch. What goes through io_uring cannot be refused this
way; `tests/sim` refuses it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from writing import TOPIC, History, Writer, check, reopened, writing

from rivven.log.blocking import BlockingStore

FAILED = 3
WAL_1 = "wal/00000000000000000001.wal"
WAL_2 = "wal/00000000000000000002.wal"
SEGMENT_0 = f"topics/{TOPIC}/partition-0/00000000000000000000.log"

ONE = ("--partitions", 1, "--threads", 1)
NO_ROOM_ASIDE = "fallocate:error=EOPNOTSUPP"
"""A disk that sets none aside is written to when something is appended, and refuses then."""

Faulty = Callable[..., list[str]]


@cache
def strace_refusal() -> str:
    """Why there is no fault injection here; empty if there is."""
    if shutil.which("strace") is None:
        return "NOT TESTED: a refusing disk. strace is not installed (apt install strace)"
    inject = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO", "--seccomp-bpf"]
    tried = subprocess.run(
        ["strace", "-f", "-o", "/dev/null", *inject, "true"], capture_output=True, text=True, timeout=20
    )
    return (
        f"NOT TESTED: a refusing disk. strace may not trace here: {tried.stderr.strip()}" if tried.returncode else ""
    )


@pytest.fixture
def faulty(tmp_path: Path) -> Faulty:
    """The command line that puts faults before a program: `faulty("fdatasync:error=EIO:when=2", WAL_1)`; of several,
    divided by blanks, none has a part of another's calls."""
    if reason := strace_refusal():
        pytest.skip(reason)

    def prefix(fault: str, *paths: str) -> list[str]:
        faults = fault.split()
        calls = ",".join(each.partition(":")[0] for each in faults)
        injections = [text for each in faults for text in ("-e", f"inject={each}")]
        only = [text for path in paths for text in ("-P", str(tmp_path / "data" / path))]
        return [
            *("strace", "-D", "-f", "--seccomp-bpf", "-o", str(tmp_path / "strace")),
            *("-e", f"trace={calls}", *injections, *only),
        ]

    return prefix


def injected(tmp_path: Path) -> int:
    return (tmp_path / "strace").read_text().count("(INJECTED)")


def assert_nothing_lost(tmp_path: Path, history: History) -> None:
    """Neither before nor after somebody goes on writing where the fault was."""
    with reopened(tmp_path / "data") as store:
        if history.acks or store.store.topics:
            check(store, history)
        else:
            store.create_topic(TOPIC, 3)
        partitions = store.store.topic(TOPIC).partitions
    with writing(tmp_path / "data", history, "--run", 99, "--appends", 3, "--partitions", partitions) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    with reopened(tmp_path / "data") as store:
        check(store, history)


def assert_ended_by_a_failed_sync(writer: Writer) -> None:
    assert writer.wait_for_end() == FAILED, writer.errors
    assert writer.errors.count("\n") == 1, writer.errors
    assert "the disk failed to sync" in writer.errors
    assert "Input/output error" in writer.errors
    assert "done" not in writer.lines


# Syncs


@pytest.mark.parametrize("pure", [False, True], ids=["native", "pure"])
@pytest.mark.parametrize("group", [1, 2, 9])
def test_a_failed_sync_of_a_group_ends_the_writer_before_it_acknowledges(
    tmp_path: Path, faulty: Faulty, group: int, pure: bool
) -> None:
    history = History()
    fault = faulty(f"fdatasync:error=EIO:when={group}", WAL_1)
    options = ("--threads", 1, "--value-bytes", 10)
    with writing(tmp_path / "data", history, *options, prefix=fault, pure=pure) as writer:
        assert_ended_by_a_failed_sync(writer)
    assert injected(tmp_path) == 1
    assert len(history.acks) == group - 1, "one batch is one group here, and none after the failure counts"
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("policy", ["every_write", "every_n_writes(5)"])
def test_a_failed_sync_ends_all_threads_of_a_writer(tmp_path: Path, faulty: Faulty, policy: str) -> None:
    history = History()
    fault = faulty("fdatasync:error=EIO:when=6", WAL_1)
    with writing(tmp_path / "data", history, "--threads", 5, "--sync-policy", policy, prefix=fault) as writer:
        assert_ended_by_a_failed_sync(writer)
    assert injected(tmp_path) == 1
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("policy", ["every_write", "none"])
def test_a_failed_sync_of_a_segment_ends_the_writer(tmp_path: Path, faulty: Faulty, policy: str) -> None:
    history = History()
    fault = faulty("fdatasync:error=EIO:when=1+", SEGMENT_0)
    with writing(tmp_path / "data", history, "--sync-policy", policy, prefix=fault, pure=True) as writer:
        assert_ended_by_a_failed_sync(writer)
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("call", [1, 3, 8])
def test_a_failed_sync_of_a_directory_ends_the_writer(tmp_path: Path, faulty: Faulty, call: int) -> None:
    history = History()
    with writing(tmp_path / "data", history, prefix=faulty(f"fsync:error=EIO:when={call}")) as writer:
        assert_ended_by_a_failed_sync(writer)
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("document", ["checkpoint.json.tmp", "topic_metadata.json.tmp"])
def test_a_failed_sync_of_a_document_ends_the_writer(tmp_path: Path, faulty: Faulty, document: str) -> None:
    history = History()
    with writing(tmp_path / "data", history, prefix=faulty("fdatasync:error=EIO:when=1", document)) as writer:
        assert_ended_by_a_failed_sync(writer)
    assert_nothing_lost(tmp_path, history)


# Want of room


@pytest.mark.parametrize("pure", [False, True], ids=["native", "pure"])
@pytest.mark.parametrize("policy", ["every_write", "none"])
def test_a_batch_without_room_is_refused_and_later_ones_are_taken(
    tmp_path: Path, faulty: Faulty, policy: str, pure: bool
) -> None:
    history = History()
    fault = faulty(f"{NO_ROOM_ASIDE} pwrite64:error=ENOSPC:when=3..6", SEGMENT_0)
    options = (*ONE, "--appends", 30, "--on-full", "retry", "--sync-policy", policy)
    with writing(tmp_path / "data", history, *options, prefix=fault, pure=pure) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    assert len(writer.of_kind("full")) == 4
    assert writer.of_kind("read") == ["read 6"] * 4, "reads go on, and show what was acknowledged"
    assert len(history.acks) == 30
    assert_nothing_lost(tmp_path, history)


def test_a_writer_that_gives_up_on_a_full_disk_says_so_in_one_line(tmp_path: Path, faulty: Faulty) -> None:
    history = History()
    fault = faulty(f"{NO_ROOM_ASIDE} pwrite64:error=ENOSPC:when=3+", SEGMENT_0)
    with writing(tmp_path / "data", history, *ONE, prefix=fault) as writer:
        assert writer.wait_for_end() == FAILED
    assert writer.errors.count("\n") == 1
    assert "DiskFull: no room on the disk" in writer.errors
    assert "free some space" in writer.errors
    assert_nothing_lost(tmp_path, history)


def test_writers_wait_where_room_that_was_set_aside_is_not_there(tmp_path: Path, faulty: Faulty) -> None:
    """As on a disk that copies on write: the append has its offset by then, so it is tried again."""
    history = History()
    fault = faulty("pwrite64:error=ENOSPC:when=3..6", SEGMENT_0)
    with writing(tmp_path / "data", history, *ONE, "--appends", 30, prefix=fault) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    assert injected(tmp_path) == 4
    assert len(history.acks) == 30
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("pure", [False, True], ids=["native", "pure"])
def test_writers_wait_while_the_write_ahead_log_has_no_room(tmp_path: Path, faulty: Faulty, pure: bool) -> None:
    history = History()
    fault = faulty("pwritev,pwritev2:error=ENOSPC:when=4..6", WAL_1)
    with writing(tmp_path / "data", history, "--appends", 20, prefix=fault, pure=pure) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    assert injected(tmp_path) == 3
    assert len(history.acks) == 60
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("policy", ["every_write", "none"])
def test_a_roll_without_room_is_refused_and_done_later(tmp_path: Path, faulty: Faulty, policy: str) -> None:
    history = History()
    with writing(tmp_path / "data", history, *ONE, "--appends", 30, "--sync-policy", policy) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    segments = sorted((tmp_path / "data" / SEGMENT_0).parent.glob("*.log"))
    assert len(segments) > 2
    shutil.rmtree(tmp_path / "data")
    history = History()
    fault = faulty("openat:error=ENOSPC:when=1..3", f"{Path(SEGMENT_0).parent}/{segments[1].name}")
    options = (*ONE, "--appends", 30, "--on-full", "retry", "--sync-policy", policy)
    with writing(tmp_path / "data", history, *options, prefix=fault) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    assert injected(tmp_path) == len(writer.of_kind("full")) == 3
    assert len(history.acks) == 30
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("call", ["pwrite64", "openat"])
@pytest.mark.parametrize("document", ["checkpoint.json.tmp", "checkpoint.json.bak.tmp"])
def test_a_checkpoint_without_room_is_tried_again(tmp_path: Path, faulty: Faulty, document: str, call: str) -> None:
    history = History()
    with writing(tmp_path / "data", history, "--appends", 3) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    fault = faulty(f"{call}:error=ENOSPC:when=2..5", document)
    with writing(tmp_path / "data", history, "--run", 1, "--appends", 120, prefix=fault) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    assert injected(tmp_path)
    assert len(history.acks) == 369
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("call", [1, 2])
def test_a_write_ahead_file_that_found_no_room_leaves_nothing_behind(
    tmp_path: Path, faulty: Faulty, call: int
) -> None:
    """Call 1 fills the file with zeros, call 2 writes its header."""
    history = History()
    fault = faulty(f"pwrite64:error=ENOSPC:when={call}", WAL_2)
    with writing(tmp_path / "data", history, "--appends", 120, prefix=fault) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    assert injected(tmp_path) == 1
    assert len(history.acks) == 360
    assert not (tmp_path / "data" / WAL_2).exists(), "it takes the room that is wanting, and nobody will use it"
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_directory_without_room_for_a_store_is_named(tmp_path: Path, faulty: Faulty, call: int) -> None:
    history = History()
    fault = faulty(f"mkdir:error=ENOSPC:when={call}")
    with writing(tmp_path / "data", history, *ONE, "--appends", 3, prefix=fault) as writer:
        assert writer.wait_for_end() == FAILED
    assert writer.errors.count("\n") == 1, writer.errors
    assert str(tmp_path / "data") in writer.errors or "in the data directory" in writer.errors
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("call", [4, 5])
def test_a_topic_without_room_for_its_directories_can_be_made_later(
    tmp_path: Path, faulty: Faulty, call: int
) -> None:
    history = History()
    fault = faulty(f"mkdir:error=ENOSPC:when={call}")
    with writing(tmp_path / "data", history, *ONE, "--appends", 3, "--on-full", "retry", prefix=fault) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    assert injected(tmp_path) == 1
    assert writer.of_kind("refused")
    assert len(history.acks) == 3
    assert_nothing_lost(tmp_path, history)


# Reads


def test_a_failing_read_says_which_file_failed_and_loses_nothing(tmp_path: Path, faulty: Faulty) -> None:
    history = History()
    with writing(tmp_path / "data", history, *ONE, "--appends", 40) as writer:
        assert writer.wait_for_end() == 0, writer.errors
    read = (*ONE[:2], "--threads", 0, "--read")
    with writing(tmp_path / "data", history, *read, prefix=faulty("pread64:error=EIO:when=1+", SEGMENT_0)) as reader:
        assert reader.wait_for_end() == FAILED, reader.errors
        assert_names_the_file(reader, SEGMENT_0)
        assert not reader.of_kind("read")
    assert injected(tmp_path)
    with writing(tmp_path / "data", history, *read) as reader:
        assert reader.wait_for_end() == 0, reader.errors
        assert reader.of_kind("read") == ["read 120"]
    assert_nothing_lost(tmp_path, history)


@pytest.mark.parametrize("path", [WAL_1, SEGMENT_0, "checkpoint.json", "topic_metadata.json"])
def test_a_store_that_cannot_read_a_file_does_not_open_and_does_when_it_can(
    tmp_path: Path, faulty: Faulty, path: str
) -> None:
    history = History()
    with writing(tmp_path / "data", history, "--wal-file-bytes", 1024 * 1024) as writer:
        writer.wait_for("ack", 20)
        writer.kill()
    for call in (1, 2):
        fault = faulty(f"pread64:error=EIO:when={call}", path)
        with writing(tmp_path / "data", History(), "--run", 50 + call, "--threads", 0, prefix=fault) as again:
            status = again.wait_for_end()
        if call == 1 or injected(tmp_path):
            assert status == FAILED, f"it opened without {path}: {again.lines}"
            assert_names_the_file(again, path)
    with reopened(tmp_path / "data") as store:
        check(store, history)


def assert_names_the_file(writer: Writer, path: str) -> None:
    assert writer.errors.count("\n") == 1, writer.errors
    assert "Input/output error" in writer.errors
    assert path in writer.errors


def test_a_store_object_outlives_a_read_that_failed(tmp_path: Path) -> None:
    with BlockingStore(tmp_path / "data") as store:
        store.create_topic(TOPIC)
        store.append(TOPIC, [(0, None, b"one", [])])
        path = tmp_path / "data" / SEGMENT_0
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])  # behind its back
        with pytest.raises(Exception, match="unreadable in"):
            store.read(TOPIC, 0)
        path.write_bytes(whole)
        assert [record.value for record in store.read(TOPIC, 0)] == [b"one"]

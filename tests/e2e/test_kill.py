"""kill -9, again and again, on one directory: what was acknowledged is there, and nothing else.

A killed process loses nothing that it handed to the kernel, so here all three sync policies keep every acknowledged
record. What a power loss takes is the difference between them, and which bytes had reached the medium cannot be
known from outside; that is what the simulated disk is for (`tests/sim`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest
from writing import SMALL, History, check, check_compacted, reopened, writing

from rivven.errors import DirectoryLocked
from rivven.log.blocking import BlockingStore

POLICIES = ("every_write", "every_n_writes(7)", "none")


def kill_rounds(
    directory: Path, rounds: int, seed: int, *options: object, group: int = 1, pure: bool = False, acks_max: int = 90
) -> History:
    """Start a writer, kill it after some acknowledgements, look at what is left; on the same directory each time."""
    rng = Random(seed)
    history = History(in_flight=group)
    for run in range(rounds):
        acks = rng.randrange(acks_max)
        with writing(directory, history, "--run", run, "--group", group, *options, pure=pure) as writer:
            writer.wait_for("ack", acks)
            writer.kill()
        with reopened(directory) as store:
            # One that was killed before its first answer may not have opened the store: then the last mark stands.
            assert not store.store.recovery.clean or not acks, "a killed process left the mark of a good end"
            checker = check_compacted if "--compact" in options else check
            try:
                checker(store, history)
            except AssertionError as error:
                keep = directory.with_name(f"failed-{seed}-{run}")
                shutil.copytree(directory, keep, dirs_exist_ok=True)
                raise AssertionError(f"seed {seed}, round {run}, killed after {acks} acks, copy in {keep}") from error
    return history


@pytest.mark.parametrize("policy", POLICIES)
def test_a_killed_writer_loses_nothing_acknowledged(tmp_path: Path, policy: str) -> None:
    history = kill_rounds(tmp_path / "data", 8, 1, "--sync-policy", policy)
    assert len(history.acks) > 8


@pytest.mark.parametrize("policy", ["every_write", "none"])
def test_nor_does_one_without_native_code(tmp_path: Path, policy: str) -> None:
    kill_rounds(tmp_path / "data", 3, 2, "--sync-policy", policy, pure=True)


def test_nor_one_that_commits_through_io_uring(tmp_path: Path) -> None:
    kill_rounds(tmp_path / "data", 3, 3, "--committer", "uring")


def test_nor_one_that_appends_to_several_partitions_together(tmp_path: Path) -> None:
    kill_rounds(tmp_path / "data", 4, 4, "--partitions", 8, group=4)


def test_nor_one_whose_batches_fill_the_write_ahead_files(tmp_path: Path) -> None:
    kill_rounds(tmp_path / "data", 4, 5, "--value-bytes", 9000, "--segment-bytes", 50_000, acks_max=40)


def test_a_writer_killed_while_it_compacts_keeps_the_last_value_of_every_key(tmp_path: Path) -> None:
    history = kill_rounds(tmp_path / "data", 4, 6, "--compact", acks_max=150)
    assert history.cleanings, "no round lived long enough to clean"


@pytest.mark.parametrize("acks", [0, 1])
def test_a_writer_killed_as_it_starts_leaves_a_directory_that_opens(tmp_path: Path, acks: int) -> None:
    history = History()
    for run in range(3):
        with writing(tmp_path / "data", history, "--run", run) as writer:
            writer.wait_for("ack" if acks else "ready")
            writer.kill()
    with reopened(tmp_path / "data") as store:
        check(store, history)


@pytest.mark.soak
@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_two_hundred_kills_lose_nothing_acknowledged(tmp_path: Path, policy: str, pure: bool) -> None:
    kill_rounds(tmp_path / "data", 200, Random().getrandbits(32), "--sync-policy", policy, pure=pure)


@pytest.mark.soak
def test_two_hundred_kills_while_compacting_keep_the_last_value_of_every_key(tmp_path: Path) -> None:
    kill_rounds(tmp_path / "data", 200, Random().getrandbits(32), "--compact", acks_max=400)


# One process at a time


def test_a_second_process_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    history = History()
    with writing(tmp_path / "data", history) as first:
        first.wait_for("ready")
        with writing(tmp_path / "data", history) as second:
            status = second.wait_for_end()
            assert (status, second.lines) == (3, [])
            assert second.errors.count("\n") == 1
            assert "DirectoryLocked" in second.errors
            assert f"process {first.process.pid};" in second.errors
        with pytest.raises(DirectoryLocked, match=f"in use by process {first.process.pid};"):
            BlockingStore(tmp_path / "data", SMALL)
        first.wait_for("ack", 3)  # the refusals did it no harm
        first.kill()
        assert first.errors == ""
    with reopened(tmp_path / "data") as store:
        check(store, history)


def test_a_store_refuses_itself_a_second_time(tmp_path: Path) -> None:
    with (
        reopened(tmp_path / "data"),
        pytest.raises(DirectoryLocked, match=f"in use by process {os.getpid()};"),
    ):
        BlockingStore(tmp_path / "data", SMALL)
    reopened(tmp_path / "data").close()

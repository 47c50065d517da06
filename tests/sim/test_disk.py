"""The simulated disk: a plain disk while nothing goes wrong, and an honest adversary when something does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import EIO, ENOENT, ENOSPC
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rivven.errors import DirectoryLocked
from rivven.ports import Disk
from rivven.sim import Halted, SimDisk

SEEDS = range(300)
PATHS = ("a", "b", "d/a", "d/b", "d/e/a")
DIRS = ("", "d", "d/e")


def new_disk(seed: int = 0, **options: Any) -> SimDisk:
    return SimDisk(Random(seed), **options)


def new_file(disk: SimDisk, path: str, content: bytes) -> None:
    """A file whose content and names are durable up to the root."""
    file = disk.open(path, create=True)
    file.write(content, 0)
    file.sync()
    file.close()
    parts = path.split("/")
    for depth in range(len(parts)):
        disk.sync_dir("/".join(parts[:depth]))


def outcomes(play: Callable[[SimDisk], None], read: Callable[[SimDisk], Any]) -> set[Any]:
    """What is found after the same play and a crash, over many seeds."""
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        play(disk)
        disk.crash()
        found.add(read(disk))
    return found


def content(path: str) -> Callable[[SimDisk], bytes | None]:
    return lambda disk: disk.snapshot().get(path)


# A plain disk


def test_it_is_a_disk() -> None:
    disk: Disk = new_disk()
    assert disk.names("") == []
    assert disk.is_dir("")


def test_a_file_reads_back_what_was_written() -> None:
    file = new_disk().open("a", create=True)
    file.write(memoryview(b"world"), 6)
    file.write(bytearray(b"hello"), 0)
    assert file.read(100, 0) == b"hello\0world"
    assert file.read(3, 9) == b"ld"
    assert file.read(3, 11) == b""
    file.truncate(2)
    file.truncate(4)
    assert (file.read(9, 0), file.length(), file.path) == (b"he\0\0", 4, "a")


def test_what_is_missing_is_not_found() -> None:
    disk = new_disk()
    for act in (
        lambda: disk.open("a"),
        lambda: disk.open("no/a", create=True),
        lambda: disk.remove("a"),
        lambda: disk.rename("a", "b"),
        lambda: disk.sync_dir("no"),
    ):
        with pytest.raises(FileNotFoundError):
            act()
    assert disk.names("no") == []
    assert not disk.exists("a")


def test_directories_refuse_what_only_files_can_do() -> None:
    disk = new_disk()
    disk.make_dirs("d/e")
    disk.open("f", create=True)
    with pytest.raises(IsADirectoryError):
        disk.open("d")
    with pytest.raises(IsADirectoryError):
        disk.rename("f", "d")
    with pytest.raises(NotADirectoryError):
        disk.rename("d", "f")
    with pytest.raises(NotADirectoryError):
        disk.make_dirs("f/g")
    with pytest.raises(OSError, match="ENOTEMPTY"):
        disk.remove("d")
    with pytest.raises(OSError, match="EINVAL"):
        disk.rename("d", "d/e/d")
    disk.remove("d/e")
    disk.remove("d")
    assert disk.names("") == ["f"]


def test_a_directory_is_renamed_with_all_that_is_in_it() -> None:
    disk = new_disk()
    disk.make_dirs("d/e")
    new_file(disk, "d/e/a", b"x")
    disk.rename("d", "gone")
    assert disk.snapshot() == {"gone/e/a": b"x"}
    assert disk.names("gone") == ["e"]


def test_a_removed_file_stays_readable_to_who_has_it_open() -> None:
    disk = new_disk(capacity_bytes=10)
    file = disk.open("a", create=True)
    file.write(b"12345678", 0)
    disk.remove("a")
    assert file.read(8, 0) == b"12345678"
    assert disk.free_bytes() == 10
    file.write(b"9", 8)
    assert disk.free_bytes() == 10


def test_a_path_stays_within_the_data_directory() -> None:
    for path in ("../a", "/a"):
        with pytest.raises(AssertionError, match="data directory"):
            new_disk().open(path, create=True)


class PlainDisk(RuleBasedStateMachine):
    """Without a crash, against a dict of bytearrays; kills and syncs change nothing that is visible."""

    @initialize(seed=st.integers(0, 1000))
    def start(self, seed: int) -> None:
        self.disk = new_disk(seed)
        self.disk.make_dirs("d/e")
        self.files: dict[str, bytearray] = {}

    @rule(path=st.sampled_from(PATHS), data=st.binary(max_size=1200), position=st.integers(0, 2000))
    def write(self, path: str, data: bytes, position: int) -> None:
        file = self.disk.open(path, create=True)
        file.write(data, position)
        model = self.files.setdefault(path, bytearray())
        if data:
            model.extend(bytes(max(0, position - len(model))))
            model[position : position + len(data)] = data

    @rule(path=st.sampled_from(PATHS), length_bytes=st.integers(0, 2000))
    def truncate(self, path: str, length_bytes: int) -> None:
        self.disk.open(path, create=True).truncate(length_bytes)
        old = self.files.get(path, bytearray())
        self.files[path] = (old + bytes(length_bytes))[:length_bytes]

    @rule(path=st.sampled_from(PATHS))
    def remove(self, path: str) -> None:
        if path in self.files:
            self.disk.remove(path)
            del self.files[path]
        else:
            with pytest.raises(FileNotFoundError):
                self.disk.remove(path)

    @rule(old=st.sampled_from(PATHS), new=st.sampled_from(PATHS))
    def rename(self, old: str, new: str) -> None:
        if old in self.files:
            self.disk.rename(old, new)
            self.files[new] = self.files.pop(old)

    @rule(path=st.sampled_from(PATHS))
    def sync(self, path: str) -> None:
        if path in self.files:
            self.disk.open(path).sync()

    @rule(directory=st.sampled_from(DIRS))
    def sync_dir(self, directory: str) -> None:
        self.disk.sync_dir(directory)

    @rule()
    def kill(self) -> None:
        self.disk.kill()

    @rule()
    def crash(self) -> None:
        """After which whatever was left is the model."""
        self.disk.crash()
        self.disk.make_dirs("d/e")
        self.files = {path: bytearray(found) for path, found in self.disk.snapshot().items()}

    @invariant()
    def the_files_are_those_of_the_model(self) -> None:
        if not hasattr(self, "disk"):
            return
        assert self.disk.snapshot() == self.files
        self.disk.capacity_bytes = 1_000_000
        assert self.disk.free_bytes() == 1_000_000 - sum(map(len, self.files.values()))
        self.disk.capacity_bytes = None


PlainDisk.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
test_without_a_crash_it_is_a_dict_of_bytearrays = PlainDisk.TestCase


# What a crash leaves

changes = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3000), st.binary(min_size=1, max_size=1800)),
        st.tuples(st.just("truncate"), st.integers(0, 3000), st.just(b"")),
        st.tuples(st.just("sync"), st.just(0), st.just(b"")),
        st.tuples(st.just("fail"), st.just(0), st.just(b"")),
    ),
    max_size=12,
)


def play(disk: SimDisk, path: str, history: list[tuple[str, int, bytes]]) -> Iterator[None]:
    file = disk.open(path)
    for kind, position, data in history:
        if kind == "write":
            file.write(data, position)
        elif kind == "truncate":
            file.truncate(position)
        elif kind == "sync":
            file.sync()
        else:
            disk.fail("sync", EIO)
            with pytest.raises(OSError, match="EIO"):
                file.sync()
        yield


@given(seed=st.integers(0, 2**32), kept=st.binary(max_size=3000), history=changes)
def test_what_was_synced_survives_until_a_later_change_covers_it(
    seed: int, kept: bytes, history: list[tuple[str, int, bytes]]
) -> None:
    disk = new_disk(seed)
    disk.make_dirs("d/e")
    new_file(disk, "d/e/quiet", kept)
    new_file(disk, "d/e/a", kept)
    for _ in play(disk, "d/e/a", history):
        pass
    disk.open("d/e/fresh", create=True).write(b"never synced", 0)
    disk.crash()
    files = disk.snapshot()
    assert files["d/e/quiet"] == kept
    touched: set[int] = set()
    for kind, position, data in history:
        end = position + len(data) if kind == "write" else len(kept) if kind == "truncate" else position
        touched.update(range(position, end))
    found = files["d/e/a"]
    assert all(found[at : at + 1] == kept[at : at + 1] for at in range(len(kept)) if at not in touched)


@given(seed=st.integers(0, 2**32), kept=st.binary(max_size=3000), history=changes)
def test_every_byte_after_a_crash_was_there_once_or_is_zero_or_torn(
    seed: int, kept: bytes, history: list[tuple[str, int, bytes]]
) -> None:
    disk = new_disk(seed)
    new_file(disk, "a", kept)
    versions = [kept] + [disk.snapshot()["a"] for _ in play(disk, "a", history)]
    torn: set[int] = set()
    for loss in disk.crash():
        if loss.kind == "torn":
            torn.update(range(loss.position, loss.position + loss.length_bytes))
    found = disk.snapshot()["a"]
    assert len(found) <= max(map(len, versions))
    for at, byte in enumerate(found):
        assert byte == 0 or at in torn or any(byte in version[at : at + 1] for version in versions)


@given(history=changes, ending=st.binary(max_size=1800))
def test_the_last_sync_wins_over_everything_before_it(history: list[tuple[str, int, bytes]], ending: bytes) -> None:
    disk = new_disk()
    new_file(disk, "a", b"")
    for _ in play(disk, "a", history):
        pass
    file = disk.open("a")
    file.truncate(0)
    file.write(ending, 0)
    file.sync()
    disk.crash()
    assert disk.snapshot() == {"a": ending}


def random_history(seed: int) -> list[dict[str, bytes]]:
    """Everything at once, and what was seen after each step."""
    chance, disk = Random(seed), new_disk(seed, capacity_bytes=6000)
    seen = []
    for _ in range(60):
        disk.make_dirs("d/e")
        with suppress(OSError):
            file = disk.open(chance.choice(PATHS), create=True)
            file.write(chance.randbytes(chance.randrange(1500)), chance.randrange(2000))
            committer = disk.committer()
            committer.submit(file, [chance.randbytes(700)], 100, sync=True)
            chance.choice((file.sync, committer.completed, lambda: disk.sync_dir("d")))()
            disk.rename(file.path, chance.choice(PATHS))
        if chance.random() < 0.3:
            chance.choice((disk.crash, disk.kill))()
        seen.append(disk.snapshot())
    return seen


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_the_same_seed_gives_the_same_history(seed: int) -> None:
    assert random_history(seed) == random_history(seed)


def test_a_crash_drops_tears_reorders_zeroes_and_uncuts() -> None:
    old, first, second = b"o" * 2048, b"1" * 2048, b"2" * 2048

    def overwrite(disk: SimDisk) -> None:
        new_file(disk, "a", old)
        file = disk.open("a")
        file.write(first, 0)
        file.write(second, 2048)
        file.truncate(3072)

    found = outcomes(overwrite, content("a"))
    assert (first + second)[:3072] in found, "all kept"
    assert old in found, "all dropped"
    assert first in found, "the later write dropped"
    assert old + second[:1024] in found, "the earlier write dropped: reordered"
    assert first + second in found, "the truncation lost"
    assert any(data.startswith(first[:512] + old[512:]) for data in found), "torn at a sector"
    assert first + bytes(2048) in found, "the length without the data"
    assert any(set(data) - set(b"o12\0") for data in found), "garbage in a torn sector"
    holes = {data[:2048] for data in found}
    assert any(hole[:512] == old[:512] and hole[512:1024] == first[:512] for hole in holes), "scattered"


def test_a_sector_torn_by_an_append_keeps_its_older_bytes() -> None:
    def append(disk: SimDisk) -> None:
        new_file(disk, "a", b"old" * 50)
        disk.open("a").write(b"new" * 500, 150)

    found = outcomes(append, content("a"))
    assert len(found) > 10
    assert all(data[:150] == b"old" * 50 for data in found)


def test_a_torn_write_is_whole_up_to_a_sector_and_missing_behind_the_next() -> None:
    cuts = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        new_file(disk, "a", b"o" * 150)
        disk.open("a").write(b"n" * 1500, 150)
        losses, found = disk.crash(), disk.snapshot()["a"]
        if [loss.kind for loss in losses] == ["torn"]:
            cut, torn_bytes = losses[0].position, losses[0].length_bytes
            cuts.add(cut)
            assert found[:cut] == (b"o" * 150 + b"n" * 1500)[:cut]
            assert len(found) in (cut, cut + torn_bytes)
    assert cuts == {150, 512, 1024, 1536}


def test_syncing_a_file_does_not_sync_its_name() -> None:
    def create(disk: SimDisk) -> None:
        file = disk.open("a", create=True)
        file.write(b"x", 0)
        file.sync()

    assert outcomes(create, content("a")) == {None, b"x"}


def test_syncing_a_name_does_not_sync_the_file() -> None:
    def create(disk: SimDisk) -> None:
        disk.open("a", create=True).write(b"x", 0)
        disk.sync_dir("")

    found = outcomes(create, content("a"))
    assert {b"", b"x", b"\0"} <= found
    assert None not in found


def test_names_of_one_directory_are_lost_independently() -> None:
    def create(disk: SimDisk) -> None:
        for name in "abc":
            disk.open(name, create=True)

    assert len(outcomes(create, lambda disk: tuple(disk.names("")))) == 8


def test_a_directory_is_lost_with_its_files_until_its_parent_is_synced() -> None:
    def create(disk: SimDisk) -> None:
        disk.make_dirs("d")
        disk.open("d/a", create=True)
        disk.sync_dir("d")

    assert outcomes(create, lambda disk: (disk.names(""), disk.names("d")) == (["d"], ["a"])) == {True, False}
    assert outcomes(create, lambda disk: disk.is_dir("d") and not disk.names("d")) == {False}


def test_a_removed_file_may_come_back_whole() -> None:
    def remove(disk: SimDisk) -> None:
        new_file(disk, "a", b"x")
        disk.remove("a")

    assert outcomes(remove, content("a")) == {None, b"x"}

    def remove_for_good(disk: SimDisk) -> None:
        remove(disk)
        disk.sync_dir("")

    assert outcomes(remove_for_good, content("a")) == {None}


def test_a_rename_is_atomic() -> None:
    def replace(disk: SimDisk) -> None:
        new_file(disk, "a", b"old")
        new_file(disk, "a.tmp", b"new")
        disk.rename("a.tmp", "a")

    found = outcomes(replace, lambda disk: tuple(disk.snapshot().items()))
    assert found == {(("a", b"new"),), (("a", b"old"), ("a.tmp", b"new"))}


def test_a_name_reused_after_a_rename_never_costs_the_renamed_file() -> None:
    def rotate(disk: SimDisk) -> None:
        new_file(disk, "log", b"old")
        disk.rename("log", "log.1")
        file = disk.open("log", create=True)
        file.write(b"new", 0)
        file.sync()

    found = outcomes(rotate, lambda disk: tuple(disk.snapshot().items()))
    assert found == {(("log", b"old"),), (("log.1", b"old"),), (("log", b"new"), ("log.1", b"old"))}


def test_a_file_moved_between_directories_is_in_one_of_them() -> None:
    def move(disk: SimDisk) -> None:
        new_file(disk, "a", b"x")
        disk.make_dirs("d/e")
        disk.rename("a", "d/e/a")
        disk.sync_dir("d/e")

    assert outcomes(move, lambda disk: tuple(disk.snapshot())) == {("a",), ("d/e/a",)}

    def move_for_good(disk: SimDisk) -> None:
        move(disk)
        disk.sync_dir("")

    assert outcomes(move_for_good, lambda disk: tuple(disk.snapshot())) == {("d/e/a",)}


@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(
        st.tuples(st.sampled_from(("rename", "sync_dir")), st.sampled_from(PATHS), st.sampled_from(PATHS))
    ),
)
def test_renames_lose_no_file_and_double_none(seed: int, steps: list[tuple[str, str, str]]) -> None:
    disk = new_disk(seed)
    disk.make_dirs("d/e")
    for path in PATHS[::2]:
        new_file(disk, path, path.encode())
    for kind, old, new in steps:
        if kind == "sync_dir":
            disk.sync_dir(old.rpartition("/")[0])
        elif disk.exists(old) and not disk.exists(new):
            disk.rename(old, new)
    disk.crash()
    assert sorted(disk.snapshot().values()) == sorted(path.encode() for path in PATHS[::2])


# The end of a process


def test_a_kill_leaves_everything_visible() -> None:
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.open("a", create=True).write(b"x" * 2000, 0)
        before = disk.snapshot()
        disk.kill()
        assert disk.snapshot() == before


@pytest.mark.parametrize("end", [SimDisk.crash, SimDisk.kill])
def test_handles_of_a_dead_process_are_stale(end: Callable[[SimDisk], object]) -> None:
    disk = new_disk()
    file, committer, batch = disk.open("a", create=True), disk.committer(), disk.batch()
    end(disk)
    for act in (
        lambda: file.read(1, 0),
        lambda: file.write(b"x", 0),
        lambda: file.truncate(0),
        file.sync,
        file.length,
        lambda: committer.submit(file, [b"x"], 0, sync=True),
        committer.completed,
        lambda: committer.wait(0),
        lambda: batch.sync(file),
        batch.run,
    ):
        with pytest.raises(AssertionError, match="stale handle"):
            act()
    file.close()
    committer.close()


def test_a_closed_file_is_not_used() -> None:
    file = new_disk().open("a", create=True)
    file.close()
    with pytest.raises(AssertionError, match="after close"):
        file.read(1, 0)


def test_a_lock_has_one_holder_until_released_or_dead() -> None:
    disk = new_disk()
    lock = disk.lock("lock")
    with pytest.raises(DirectoryLocked):
        disk.lock("lock")
    lock.release()
    stale = disk.lock("lock")
    disk.kill()
    disk.lock("lock")
    stale.release()
    with pytest.raises(DirectoryLocked):
        disk.lock("lock")
    disk.crash()
    disk.lock("lock")


def test_a_halt_stops_a_program_between_any_two_steps() -> None:
    def replace(disk: SimDisk) -> None:
        file = disk.open("a.tmp", create=True)
        file.write(b"new", 0)
        file.sync()
        disk.rename("a.tmp", "a")
        disk.sync_dir("")

    found = set()
    for operations in range(6):
        for seed in range(40):
            disk = new_disk(seed)
            new_file(disk, "a", b"old")
            disk.halt_after(operations)
            with suppress(Halted):
                replace(disk)
            disk.crash()
            found.add((operations, disk.snapshot()["a"]))
    assert found == {(at, b"old") for at in range(5)} | {(4, b"new"), (5, b"new")}


def test_after_a_halt_nothing_works_until_the_crash() -> None:
    disk = new_disk()
    file = disk.open("a", create=True)
    disk.halt_after(0)
    for _ in range(3):
        with pytest.raises(Halted):
            file.sync()
    disk.kill()
    assert disk.open("a").length() == 0


# Committer and batch


def test_wait_performs_the_submission() -> None:
    disk = new_disk()
    new_file(disk, "a", b"")
    committer, file = disk.committer(), disk.open("a")
    assert committer.wait(0) is None
    committer.submit(file, [b"ab", bytearray(b"cd")], 1, sync=True)
    done = committer.wait(1000)
    assert done
    assert (done.bytes_written, done.synced, done.error) == (4, True, None)
    assert committer.completed() is None
    assert committer.fileno() == -1
    disk.crash()
    assert disk.snapshot() == {"a": b"\0abcd"}


def test_completed_reports_sooner_or_later() -> None:
    disk = new_disk()
    committer, file = disk.committer(), disk.open("a", create=True)
    asked = []
    for _ in range(50):
        committer.submit(file, [b"x"], 0, sync=False)
        asked.append(next(turn for turn in range(100) if committer.completed()))
    assert min(asked) == 0
    assert max(asked) > 1


def test_a_submission_waits_for_step_when_told_so() -> None:
    disk = new_disk()
    disk.auto_complete = False
    committer, file = disk.committer(), disk.open("a", create=True)
    committer.submit(file, [b"x"], 0, sync=True)
    assert committer.wait(1000) is None
    assert committer.completed() is None
    assert disk.snapshot() == {"a": b""}
    with pytest.raises(AssertionError, match="one submission"):
        committer.submit(file, [b"y"], 0, sync=True)
    assert disk.step()
    assert not disk.step()
    assert disk.snapshot() == {"a": b"x"}
    assert committer.completed()


def test_a_kill_leaves_any_prefix_of_the_submission() -> None:
    lengths, synced = set(), set()
    for seed in SEEDS:
        disk = new_disk(seed)
        new_file(disk, "a", b"")
        committer = disk.committer()
        committer.submit(disk.open("a"), [b"abcd", b"efgh"], 0, sync=True)
        disk.kill()
        left = disk.snapshot()["a"]
        assert b"abcdefgh".startswith(left)
        lengths.add(len(left))
        disk.crash()
        if len(left) == 8:
            synced.add(disk.snapshot()["a"] == left)
    assert lengths == set(range(9))
    assert synced == {True, False}


def test_a_failed_submission_says_at_which_step() -> None:
    disk = new_disk()
    committer, file = disk.committer(), disk.open("a", create=True)
    disk.fail("write", EIO)
    committer.submit(file, [b"abcd"], 0, sync=True)
    done = committer.wait(0)
    assert done
    assert done.error
    assert not done.failed_sync
    assert done.bytes_written == file.length()
    disk.fail("sync", EIO)
    committer.submit(file, [b"abcd"], 0, sync=True)
    done = committer.wait(0)
    assert done
    assert done.error
    assert done.failed_sync
    assert not done.synced


def test_a_batch_runs_in_any_order_and_answers_in_place() -> None:
    found = set()
    for seed in range(50):
        disk = new_disk(seed)
        file = disk.open("a", create=True)
        batch = disk.batch()
        assert [batch.write(file, b"11", 0), batch.write(file, b"22", 0), batch.sync(file)] == [0, 1, 2]
        assert batch.read(file, 2, 0) == 3
        results = batch.run()
        assert results[:3] == [None, None, None]
        found.add((results[3], file.read(2, 0)))
        assert (disk.stats.operations, disk.stats.writes, disk.stats.syncs) == (4, 2, 1)
        assert (disk.writes, disk.syncs) == (2, 1)
        assert batch.run() == []
    assert found == {(read, last) for read in (b"", b"11", b"22") for last in (b"11", b"22")}


def test_a_failed_operation_of_a_batch_does_not_stop_the_others() -> None:
    disk = new_disk()
    good, bad = disk.open("good", create=True), disk.open("bad", create=True)
    disk.fail("write", EIO, path_contains="bad")
    batch = disk.batch()
    batch.write(bad, b"x", 0)
    batch.write(good, b"x", 0)
    failed, fine = batch.run()
    assert isinstance(failed, OSError)
    assert fine is None
    assert disk.stats.operations == disk.stats.bytes_written == 1


# Faults


def test_a_fault_strikes_where_and_as_often_as_told() -> None:
    disk = new_disk()
    disk.fail("open", ENOENT, path_contains="d/", times=2, after=1)
    disk.make_dirs("d")
    struck = []
    for path in ("d/a", "b", "d/a", "d/a", "d/a"):
        try:
            disk.open(path, create=True)
        except FileNotFoundError:
            struck.append(True)
        else:
            struck.append(False)
    assert struck == [False, False, True, True, False]


def test_every_operation_can_fail_and_be_healed() -> None:
    disk = new_disk()
    new_file(disk, "a", b"x")
    file = disk.open("a")
    acts: dict[str, Callable[[], object]] = {
        "write": lambda: file.write(b"y", 0),
        "sync": file.sync,
        "sync_dir": lambda: disk.sync_dir(""),
        "open": lambda: disk.open("a"),
        "rename": lambda: disk.rename("a", "b"),
        "truncate": lambda: file.truncate(0),
        "read": lambda: file.read(1, 0),
        "remove": lambda: disk.remove("a"),
        "make_dirs": lambda: disk.make_dirs("d"),
    }
    for operation, act in acts.items():
        disk.fail(operation, EIO, times=1000)
        with pytest.raises(OSError, match="EIO") as caught:
            act()
        assert caught.value.errno == EIO
        disk.heal()
    assert list(disk.snapshot()) == ["a"]


def test_a_failed_write_leaves_any_prefix() -> None:
    lengths = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.fail("write", EIO)
        with pytest.raises(OSError, match="EIO"):
            disk.open("a", create=True).write(b"abcd", 0)
        left = disk.snapshot()["a"]
        assert b"abcd".startswith(left)
        lengths.add(len(left))
    assert lengths == set(range(5))


def test_a_failed_sync_dooms_what_a_later_sync_pretends_to_keep() -> None:
    def doom(disk: SimDisk) -> None:
        new_file(disk, "a", b"....")
        file = disk.open("a")
        file.write(b"12", 0)
        disk.fail("sync", EIO)
        with pytest.raises(OSError, match="EIO"):
            file.sync()
        file.write(b"34", 1)
        file.sync()
        assert disk.snapshot()["a"] == b"134."

    found = outcomes(doom, content("a"))
    assert {b"134.", b".34."} <= found
    assert all(data and data[1:] == b"34." for data in found), "what was written and synced later is safe"


def test_a_failed_directory_sync_dooms_the_names() -> None:
    def doom(disk: SimDisk) -> None:
        disk.open("a", create=True)
        disk.fail("sync_dir", EIO)
        with pytest.raises(OSError, match="EIO"):
            disk.sync_dir("")
        disk.sync_dir("")

    assert outcomes(doom, content("a")) == {None, b""}


# Room


def test_a_full_disk_refuses_and_recovers() -> None:
    lengths = set()
    for seed in range(100):
        disk = new_disk(seed, capacity_bytes=100)
        new_file(disk, "old", b"o" * 60)
        file = disk.open("a", create=True)
        with pytest.raises(OSError, match="ENOSPC") as caught:
            file.write(b"n" * 50, 0)
        assert caught.value.errno == ENOSPC
        lengths.add(file.length())
        assert disk.free_bytes() == 40 - file.length()
        disk.open("old").write(b"O" * 60, 0)
        disk.remove("old")
        file.write(b"n" * 50, 0)
        assert disk.free_bytes() == 50
        file.truncate(20)
        assert disk.free_bytes() == 80
        disk.capacity_bytes = 10
        assert disk.free_bytes() == 0
        with pytest.raises(OSError, match="ENOSPC"):
            file.truncate(21)
        disk.capacity_bytes = None
        file.write(b"n" * 5000, 0)
    assert {0, 40} < lengths
    assert max(lengths) == 40


def test_a_submission_cut_short_still_fits_the_disk() -> None:
    for seed in range(50):
        disk = new_disk(seed, capacity_bytes=4)
        disk.committer().submit(disk.open("a", create=True), [b"abcdefgh"], 0, sync=True)
        disk.kill()
        assert len(disk.snapshot()["a"]) <= 4


def test_a_removed_file_that_comes_back_takes_its_room_again() -> None:
    came_back = set()
    for seed in range(50):
        disk = new_disk(seed, capacity_bytes=10)
        new_file(disk, "a", b"x" * 4)
        disk.remove("a")
        disk.crash()
        came_back.add(disk.exists("a"))
        disk.open("a", create=True).write(b"y" * 6, 0)
        assert disk.free_bytes() == 4
    assert came_back == {True, False}


def test_a_replaced_file_gives_back_its_room() -> None:
    disk = new_disk(capacity_bytes=100)
    new_file(disk, "a", b"x" * 40)
    new_file(disk, "b", b"x" * 10)
    disk.rename("b", "a")
    assert disk.free_bytes() == 90


# Damage


def test_rot_is_there_before_and_after_a_crash() -> None:
    for seed in range(50):
        disk = new_disk(seed, capacity_bytes=10)
        new_file(disk, "a", b"abcd")
        disk.flip("a", 1, bit=5)
        disk.cut("a", 3)
        assert disk.snapshot() == {"a": b"aBc"}
        assert disk.free_bytes() == 7
        disk.crash()
        assert disk.snapshot() == {"a": b"aBc"}


def test_rot_settles_nothing_else() -> None:
    def rot(disk: SimDisk) -> None:
        new_file(disk, "a", b"....")
        disk.open("a").write(b"12", 0)
        disk.flip("a", 3)

    assert {b"12./", b".../"} <= outcomes(rot, content("a"))

"""Every kind of damage is found, with the file and the place; what a crash leaves behind is never called damage."""

from random import Random

import pytest
from building import NOW_MS, World, names_of, new_world, transactional

from rivven.log import Finding, Severity, Tally, Verification, read_directory
from rivven.sim.history import POLICIES, random_event
from rivven.sim.store import StoreWorld

LOG = "topics/t/partition-0/00000000000000000000.log"
DERIVED = (".idx", ".tidx", ".state", ".bloom")


def verify(disk, **options) -> tuple[list[Finding], list[Tally]]:
    directory = read_directory(disk)
    run = Verification(disk, directory, **options)
    findings, tallies = list(run.node()), []
    for topic, place in directory.partitions():
        tally, found = run.partition(topic, place)
        findings += found
        tallies.append(tally)
    return findings, tallies


def problems(disk, **options) -> list[Finding]:
    return [finding for finding in verify(disk, **options)[0] if finding.severity is Severity.PROBLEM]


def filled_world(configs: dict[str, str] | None = None) -> World:
    world = new_world(configs=configs)
    for number in range(40):
        key = b"key-%d" % (number % 5)
        world.write(b"value %d" % number, b"x" * 40, key=key, timestamp_ms=NOW_MS + number)
    return world


@pytest.fixture
def world() -> World:
    """Some segments, closed in good order."""
    world = filled_world()
    world.store.close()
    return world


@pytest.fixture
def cleaned() -> World:
    """A compacted partition with filters beside its segments, closed in good order."""
    world = filled_world({"cleanup.policy": "compact"})
    world.clock.advance(ms=1000)
    world.store.checkpoint()
    world.store.clean(force=True)
    world.store.configure("t", {"cleanup.policy": "compact", "segment.bytes": "1024"})
    world.store.close()
    return world


# In order


def test_an_intact_directory_gives_no_findings(world):
    before = world.disk.snapshot()
    findings, [tally] = verify(world.disk)
    assert findings == []
    assert (tally.records, tally.batches, tally.start, tally.end, tally.problems) == (80, 40, 0, 80, 0)
    assert tally.segments == len(names_of(world.disk, ".log"))
    assert world.disk.snapshot() == before


def test_a_compacted_directory_gives_no_findings(cleaned):
    findings, [tally] = verify(cleaned.disk)
    assert findings == []
    assert tally.records < 80


def test_transactions_and_epochs_give_no_findings():
    world = new_world()
    for epoch in range(3):
        world.write(b"a", leader_epoch=epoch, **transactional(base_sequence=epoch))
        world.mark(7, commit=epoch % 2 == 0)
        world.store.log("t", 0).roll()
    world.store.close()
    # Markers are appended with epoch 0 here, as no broker would: only that is reported.
    assert {finding.what for finding in verify(world.disk)[0]} <= {"leader epoch 0 after 1", "leader epoch 0 after 2"}


def test_a_new_directory_gives_no_findings():
    world = new_world(topic=False)
    world.store.close()
    assert verify(world.disk) == ([], [])


def test_a_log_that_lost_its_first_segments_to_retention_is_in_order():
    world = filled_world()
    world.store.delete_before(world.log(), 33)
    world.store.close()
    findings, [tally] = verify(world.disk)
    assert findings == []
    assert tally.start == 33


# Damage to the log


def test_a_flipped_bit_in_a_batch_is_found_at_its_place(world):
    world.disk.flip(LOG, 200)
    [problem] = problems(world.disk)
    assert problem.path == LOG
    assert problem.partition == "t/0"
    assert problem.position is not None
    assert problem.position <= 200
    assert "CRC" in problem.what
    assert (problem.first_offset, problem.last_offset) == (2, 3)
    assert "restore" in problem.then


@pytest.mark.parametrize("position", range(0, 61, 3))
def test_a_flipped_bit_in_any_part_of_a_header_is_found_and_the_rest_is_still_read(world, position):
    second = problem_free_batches(world)[1]
    world.disk.flip(LOG, second + position, bit=3)
    found = problems(world.disk)
    assert found
    assert found[0].path == LOG
    assert verify(world.disk)[1][0].batches >= 38


def problem_free_batches(world) -> list[int]:
    from rivven.log import walk_batches

    file = world.disk.open(LOG)
    return [item.position for item in walk_batches(file)]


def test_a_flipped_bit_in_the_leader_epoch_alone_is_found(world):
    # It stands outside the CRC, so the growing epochs have to give it away.
    world.disk.flip(LOG, problem_free_batches(world)[1] + 15)
    assert any("leader epoch 0 after 1" in problem.what for problem in problems(world.disk))


def test_a_cut_segment_in_the_middle_is_found(world):
    world.disk.cut(LOG, 500)
    found = problems(world.disk)
    assert {problem.path for problem in found} >= {LOG}
    gap = next(problem for problem in found if "ends at" in problem.what)
    assert gap.first_offset is not None
    assert gap.last_offset == int(names_of(world.disk, ".log")[1][-24:-4]) - 1


def test_a_cut_last_segment_below_the_recovery_point_is_found(world):
    last = names_of(world.disk, ".log")[-1]
    length_bytes = len(world.disk.snapshot()[last])
    world.disk.cut(last, length_bytes - 10)
    found = problems(world.disk)
    assert any(problem.path == last and problem.last_offset == 79 for problem in found)


def test_a_missing_segment_is_found(world):
    middle = names_of(world.disk, ".log")[1]
    for path in (middle, middle.replace(".log", ".idx"), middle.replace(".log", ".tidx")):
        world.disk.remove(path)
    [problem] = problems(world.disk)
    assert "the segment before it ends at" in problem.what
    assert problem.first_offset == int(middle[-24:-4])


def test_all_segments_missing_is_found(world):
    for path in names_of(world.disk, ""):
        if path.startswith("topics/t/partition-0/"):
            world.disk.remove(path)
    [problem] = problems(world.disk)
    assert (problem.what, problem.first_offset, problem.last_offset) == ("the segment files are missing", 0, 79)


def test_zeros_in_the_middle_are_stepped_over(world):
    positions = problem_free_batches(world)
    file = world.disk.open(LOG)
    file.write(bytes(positions[3] - positions[1]), positions[1])
    found = problems(world.disk)
    assert found[0].position == positions[1]
    assert verify(world.disk)[1][0].batches == 38


# Damage beside the log


@pytest.mark.parametrize("suffix", [".idx", ".tidx"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_index_is_found_and_said_to_be_rebuilt(world, suffix, cut):
    path = names_of(world.disk, suffix)[0]
    length_bytes = len(world.disk.snapshot()[path])
    world.disk.cut(path, length_bytes - 3) if cut else world.disk.flip(path, length_bytes - 2)
    [problem] = problems(world.disk)
    assert problem.path == path
    assert problem.position is not None
    assert "rebuilt" in problem.then


def test_an_index_of_another_segment_is_found(world):
    first, second = names_of(world.disk, ".idx")[:2]
    first_t, second_t = names_of(world.disk, ".tidx")[:2]
    files = world.disk.snapshot()
    for path, content in ((first, files[second]), (first_t, files[second_t])):
        file = world.disk.open(path)
        file.truncate(0)
        file.write(content, 0)
    found = problems(world.disk)
    assert all(problem.path in (first, first_t) for problem in found)


def test_a_missing_index_is_a_note(world):
    path = names_of(world.disk, ".idx")[0]
    world.disk.remove(path)
    findings, _ = verify(world.disk)
    assert [(finding.severity, finding.path) for finding in findings] == [(Severity.NOTE, path)]


def test_a_damaged_snapshot_is_found(world):
    path = names_of(world.disk, ".state")[0]
    world.disk.flip(path, len(world.disk.snapshot()[path]) // 2)
    [problem] = problems(world.disk)
    assert problem.path == path
    assert "nothing is lost" in problem.then


def test_a_torn_snapshot_is_a_note(world):
    path = names_of(world.disk, ".state")[0]
    world.disk.cut(path, 10)
    [finding] = verify(world.disk)[0]
    assert (finding.severity, finding.path) == (Severity.NOTE, path)


@pytest.mark.parametrize("position", [0, 9, 36])
def test_a_damaged_filter_is_found(cleaned, position):
    path = names_of(cleaned.disk, ".bloom")[0]
    cleaned.disk.flip(path, position)
    found = problems(cleaned.disk)
    assert [problem.path for problem in found] in ([path], [])
    assert found or position == 9, "only the number of keys stands outside the checksum"


def test_a_cut_filter_is_found(cleaned):
    path = names_of(cleaned.disk, ".bloom")[0]
    cleaned.disk.cut(path, 33)
    [problem] = problems(cleaned.disk)
    assert (problem.path, problem.position) == (path, 32)


def test_a_filter_that_denies_a_key_of_its_segment_is_found(cleaned):
    from rivven.log.bloom import Bloom

    path = names_of(cleaned.disk, ".bloom")[-1]
    Bloom.of([b"another"]).save(cleaned.disk, path)
    [problem] = problems(cleaned.disk)
    assert problem.path == path
    assert "denies the key" in problem.what
    assert problems(cleaned.disk, quick=True) == []


# Damage to the documents


@pytest.mark.parametrize("name", ["topic_metadata.json", "checkpoint.json", "topics/t/partition-0/cleaner.json"])
@pytest.mark.parametrize("suffix", ["", ".bak"])
@pytest.mark.parametrize("how", ["flip", "cut", "empty"])
def test_a_damaged_document_is_found(cleaned, name, suffix, how):
    path = name + suffix
    length_bytes = len(cleaned.disk.snapshot()[path])
    if how == "flip":
        cleaned.disk.flip(path, length_bytes - 6)
    else:
        cleaned.disk.cut(path, length_bytes // 2 if how == "cut" else 0)
    found = problems(cleaned.disk)
    assert [problem.path for problem in found] == [path]
    assert found[0].position == 0


def test_a_lost_metadata_document_is_found(world):
    for name in ("topic_metadata.json", "topic_metadata.json.bak"):
        if world.disk.exists(name):
            world.disk.remove(name)
    found = problems(world.disk)
    assert [(problem.path, problem.what) for problem in found] == [("topic_metadata.json", "the document is missing")]


def test_a_topic_that_the_metadata_has_lost_is_found(world):
    world.open()
    world.store.create_topic("younger")
    world.store.close()
    older = world.disk.snapshot()["topic_metadata.json.bak"]
    world.open()
    world.store.create_topic("youngest")
    world.store.close()
    file = world.disk.open("topic_metadata.json.bak")
    file.truncate(0)
    file.write(older, 0)
    world.disk.flip("topic_metadata.json", 60)
    found = problems(world.disk)
    assert [problem.path for problem in found] == ["topic_metadata.json", "topics/youngest"]
    assert "restore" in found[1].then


def test_strange_files_are_notes(world):
    world.disk.make_dirs("topics/stranger")
    world.disk.make_dirs("topics/t/partition-9")
    world.disk.open("topics/t/partition-0/notes.txt", create=True)
    world.disk.open(LOG + ".damaged", create=True)
    findings, _ = verify(world.disk)
    assert {finding.severity for finding in findings} == {Severity.NOTE}
    assert {finding.path for finding in findings} == {
        "topics/stranger",
        "topics/t/partition-9",
        "topics/t/partition-0/notes.txt",
        LOG + ".damaged",
    }


# The write-ahead log


def uncovered_world() -> World:
    """Groups that no checkpoint covers, and the process gone."""
    world = new_world()
    for number in range(6):
        world.write(b"value %d" % number)
    world.disk.kill()
    return world


def test_after_a_kill_there_is_no_problem():
    assert problems(uncovered_world().disk) == []


def test_a_damaged_group_that_no_checkpoint_covers_is_found():
    world = uncovered_world()
    path = names_of(world.disk, ".wal", under="wal")[0]
    world.disk.flip(path, 4096 + 60)
    [problem] = problems(world.disk)
    assert (problem.path, problem.position) == (path, 4096)


def test_a_damaged_group_that_a_checkpoint_covers_is_a_note(world):
    path = names_of(world.disk, ".wal", under="wal")[0]
    world.disk.flip(path, 4096 + 60)
    findings, _ = verify(world.disk)
    assert [(finding.severity, finding.path, finding.position) for finding in findings] == [
        (Severity.NOTE, path, 4096)
    ]


def test_a_damaged_header_in_front_of_groups_that_nobody_else_has_is_found():
    world = uncovered_world()
    path = names_of(world.disk, ".wal", under="wal")[0]
    world.disk.flip(path, 9)
    [problem] = problems(world.disk)
    assert (problem.path, problem.position) == (path, 0)
    assert "its first group" in problem.then
    world.disk.flip(path, 4096 + 60)
    assert any("groups up to" in problem.then for problem in problems(world.disk))


def test_a_cut_write_ahead_file_is_found(world):
    path = names_of(world.disk, ".wal", under="wal")[0]
    world.disk.cut(path, 20_000)
    [finding] = verify(world.disk)[0]
    assert (finding.path, finding.position) == (path, 20_000)
    assert "cut short" in finding.what


# What a crash leaves


def test_a_torn_end_beyond_the_recovery_point_is_a_note_that_says_what_is_cut():
    world = new_world()
    world.write(b"kept")
    world.store.checkpoint()
    world.write(b"torn")
    world.disk.kill()
    length_bytes = len(world.disk.snapshot()[LOG])
    world.disk.cut(LOG, length_bytes - 5)
    findings, [tally] = verify(world.disk)
    assert {finding.severity for finding in findings} == {Severity.NOTE}
    assert any("recovery will cut" in finding.then and finding.path == LOG for finding in findings)
    assert any("1 batch is in the write-ahead log alone" in finding.what for finding in findings)
    assert tally.end == 1
    world.open()
    assert world.log().end == 2
    assert world.store.recovery.intact


def test_a_live_directory_has_no_problem_at_its_moving_end():
    world = new_world()
    world.write(b"one")
    world.disk.cut(LOG, len(world.disk.snapshot()[LOG]) - 5)
    findings, _ = verify(world.disk, live=True)
    assert {finding.severity for finding in findings} == {Severity.NOTE}


def test_many_findings_are_counted_rather_than_told(world):
    for path in names_of(world.disk, ".log"):
        for position in range(70, len(world.disk.snapshot()[path]), 60):
            world.disk.flip(path, position)
    findings, [tally] = verify(world.disk)
    assert len(findings) <= 51
    assert tally.problems <= 51 or "more findings" in findings[-1].what


class VerifiedWorld(StoreWorld):
    """A world whose directory is verified before each start, and the verdict compared with recovery's."""

    def _open(self):
        known = self.disk.exists("topics")
        before = self.disk.snapshot()
        found = problems(self.disk) if known else []
        assert self.disk.snapshot() == before, "verify changes nothing"
        store = super()._open()
        # After a power loss a derived file may be torn at any time, since none of them is synced.
        lost = [finding for finding in found if not finding.path.endswith(DERIVED)]
        assert bool(lost) != store.recovery.intact, (lost, store.recovery)
        return store


@pytest.mark.parametrize("seed", range(40))
def test_verify_and_recovery_agree_after_every_crash(seed):
    rng = Random(f"history {seed}")
    world = VerifiedWorld(seed, policy=rng.choices(POLICIES, weights=(6, 2, 1))[0])
    for _ in range(40):
        random_event(rng, world)[1]()
    world.kill()
    assert [problem for problem in problems(world.disk) if not problem.path.endswith(DERIVED)] == []

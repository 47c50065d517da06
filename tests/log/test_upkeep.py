"""Cleaning on demand does what its plan said, and indexes come back as they were."""

import pytest
from building import NOW_MS, names_of, new_world, records_of

from rivven.log import Wanted, clean_log, plan_cleaning, read_directory, read_partition, rebuild_indexes


def files_of(disk):
    directory = read_directory(disk)
    [(topic, place)] = directory.partitions()
    return read_partition(disk, directory, topic, place)


def filled(configs):
    world = new_world(configs=configs)
    for number in range(30):
        key = b"key-%d" % (number % 3)
        world.write(b"value %d" % number, b"x" * 60, key=key, timestamp_ms=NOW_MS + number * 1000)
    world.clock.advance(ms=100_000)
    world.store.close()
    return world


@pytest.mark.parametrize(
    "configs",
    [
        {"retention.bytes": "2000"},
        {"retention.ms": "80000"},
        {"retention.ms": "1000"},
        {"retention.ms": "-1"},
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "compact,delete", "retention.bytes": "2000"},
    ],
)
def test_a_plan_changes_nothing_and_comes_true(configs):
    world = filled(configs)
    wanted = Wanted(world.clock.now_ms(), force=True)
    before = world.disk.snapshot()
    plan = plan_cleaning(world.disk, files_of(world.disk), wanted)
    assert world.disk.snapshot() == before
    world.open()
    done = clean_log(world.store, world.log(), wanted)
    assert done.changes == plan.changes
    assert (done.start_before, done.start_after) == (plan.start_before, plan.start_after)
    if done.changes:
        assert done.before == plan.before
        assert done.after.records == sum(1 for _ in records_of(world.log())) or world.log().start > 0
    if plan.after is not None and done.changes:
        assert done.after == plan.after


def test_what_is_not_wanted_is_not_done():
    world = filled({"cleanup.policy": "compact,delete", "retention.bytes": "2000"})
    world.open()
    now_ms = world.clock.now_ms()
    assert not clean_log(world.store, world.log(), Wanted(now_ms, retention=False, compaction=False)).changes
    compacted = clean_log(world.store, world.log(), Wanted(now_ms, retention=False))
    assert (compacted.retention, compacted.compaction, compacted.start_after) == ("off", "done", 0)
    assert compacted.after.records < compacted.before.records


def test_compaction_that_is_not_due_waits_for_force():
    world = filled({"cleanup.policy": "compact"})
    world.open()
    now_ms = world.clock.now_ms()
    assert clean_log(world.store, world.log(), Wanted(now_ms)).compaction == "done"
    assert clean_log(world.store, world.log(), Wanted(now_ms)).compaction == "not due"
    assert clean_log(world.store, world.log(), Wanted(now_ms, force=True)).compaction == "done"


def test_indexes_are_rebuilt_as_they_were():
    world = filled(None)
    before = {path: world.disk.snapshot()[path] for path in names_of(world.disk, "idx")}
    assert before
    damaged, missing = names_of(world.disk, ".idx")[0], names_of(world.disk, ".tidx")[1]
    world.disk.flip(damaged, 20)
    world.disk.remove(missing)
    done = list(rebuild_indexes(world.disk, files_of(world.disk)))
    assert [each.was for each in done[:3]] == ["checksum mismatch", "missing", "good"]
    after = {path: world.disk.snapshot()[path] for path in names_of(world.disk, "idx")}
    assert after.keys() > before.keys(), "the end has one now, too, though it is short"
    assert all(after[path][16:] == before[path][16:] for path in before if len(after[path]) == len(before[path]))
    world.open()
    assert world.store.recovery.rebuilt == []


def test_a_torn_end_is_left_out_of_the_index_and_reported():
    world = filled(None)
    last = names_of(world.disk, ".log")[-1]
    world.disk.cut(last, len(world.disk.snapshot()[last]) - 5)
    *_, rebuilt = rebuild_indexes(world.disk, files_of(world.disk))
    assert rebuilt.unindexed_bytes > 0

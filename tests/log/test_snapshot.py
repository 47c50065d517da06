"""The facts of a partition in a file: derived, so a bad file costs time and never a fact."""

from __future__ import annotations

from errno import ENOSPC
from random import Random

import pytest
from building import batch_of, facts_of, finish_chores, names_of, new_world, remove_all, transactional

from rivven.limits import SHORT_LOG_ENTRIES
from rivven.log.document import write_whole
from rivven.log.snapshot import Facts, drop, load, save, saved
from rivven.record import encode_marker, parse_header, patch
from rivven.sim import SimDisk


def facts() -> Facts:
    """Two epochs, two producers, one open transaction and one aborted."""
    facts = Facts()
    batches = [
        batch_of(b"a", **transactional(producer_id=1)),
        encode_marker(commit=False, producer_id=1, producer_epoch=0, timestamp_ms=3),
        batch_of(b"b", **transactional(producer_id=2)),
    ]
    for offset, batch in enumerate(batches):
        patch(batch, base_offset=offset, leader_epoch=offset // 2)
        facts.note(parse_header(batch), batch)
    return facts


def new_disk() -> SimDisk:
    disk = SimDisk(Random(0))
    disk.make_dirs("p")
    return disk


def test_every_fact_survives_the_file():
    disk, before = new_disk(), facts()
    save(disk, "p", before.snapshot(3))
    after = Facts(load(disk, "p", 3))
    assert after.snapshot(3) == before.snapshot(3)
    assert before.snapshot(3).epochs == [(0, 0), (1, 2)]
    assert before.snapshot(3).open_transactions == {2: 2}
    assert before.snapshot(3).aborted == [(1, 0, 1)]


def test_the_names_tell_the_offsets():
    disk = new_disk()
    for upto in (7, 3):
        save(disk, "p", facts().snapshot(upto))
    assert saved(disk, "p") == [3, 7]
    drop(disk, "p", [3, 99])
    assert saved(disk, "p") == [7]
    assert load(disk, "p", 3) is None


def test_a_file_under_another_name_is_not_believed():
    disk = new_disk()
    save(disk, "p", facts().snapshot(3))
    disk.rename(f"p/{3:020d}.state", f"p/{4:020d}.state")
    assert load(disk, "p", 4) is None


def test_no_flipped_bit_gives_other_facts():
    good = facts().snapshot(3)
    disk = new_disk()
    save(disk, "p", good)
    path = f"p/{3:020d}.state"
    for place in range(0, len(disk.snapshot()[path]) * 8, 3):
        disk.flip(path, place // 8, place % 8)
        assert load(disk, "p", 3) in (None, good)
        disk.flip(path, place // 8, place % 8)


def test_changes_tell_whether_a_snapshot_would_be_news():
    noted = Facts()
    plain = batch_of(b"a")
    patch(plain, base_offset=0, leader_epoch=0)
    noted.note(parse_header(plain), plain)
    before = noted.changes
    patch(plain, base_offset=1, leader_epoch=0)
    noted.note(parse_header(plain), plain)
    assert noted.changes == before
    patch(plain, base_offset=2, leader_epoch=1)
    noted.note(parse_header(plain), plain)
    assert noted.changes > before


def busy_world():
    world = new_world()
    for turn in range(12):
        world.write(b"v" * 150, leader_epoch=turn // 4, producer_id=1, producer_epoch=0, base_sequence=turn)
        world.write(b"t", **transactional(producer_id=2, base_sequence=turn), leader_epoch=turn // 4)
        if turn % 3:
            world.mark(2, commit=turn % 3 == 1)
    return world


def test_facts_are_the_same_after_a_restart_with_or_without_the_files():
    for end in ("close", "kill", "crash"):
        for remove in (False, True):
            world = busy_world()
            before = facts_of(world.log())
            world.end(end)
            if remove:
                remove_all(world.disk, ".state")
            world.open()
            assert facts_of(world.log()) == before, (end, remove)


@pytest.mark.parametrize("end", ["close", "kill", "crash"])
def test_a_short_log_does_without_files_of_derived_facts_and_forgets_none(end):
    world = new_world(configs={"segment.bytes": "1000000"})
    world.write(b"x" * 300)
    world.write(b"t", **transactional(producer_id=2))
    for _ in range(3):
        world.write(b"y" * 5000)
    finish_chores(world.store)
    world.store.checkpoint()
    world.write(b"t", **transactional(producer_id=3))
    world.store.checkpoint()
    before = facts_of(world.log())
    assert len(before["open"]) == 2
    world.reopen(end)
    assert names_of(world.disk, ".state") == names_of(world.disk, "idx") == []
    assert (facts_of(world.log()), world.store.recovery.rebuilt) == (before, [])


@pytest.mark.parametrize("end", ["close", "kill", "crash"])
@pytest.mark.parametrize("more", [0, 1], ids=["nothing more", "more"])
def test_retention_takes_a_short_log_and_leaves_its_facts(end, more):
    """All that was written is deleted, also what the facts were derived from."""
    for seed in range(20):
        world = new_world(seed, configs={"segment.bytes": "1000000", "retention.ms": "1000"})
        world.write(b"v", producer_id=9, producer_epoch=2, base_sequence=0, leader_epoch=2)
        finish_chores(world.store)
        world.store.checkpoint()
        for number in range(more):
            world.write(b"w", producer_id=9, producer_epoch=2, base_sequence=1 + number, leader_epoch=2)
        before = facts_of(world.log())
        world.clock.advance(ms=1_000_000)
        world.store.retain()
        assert world.log().start == world.log().end
        world.reopen(end)
        assert facts_of(world.log())["producers"] == before["producers"], (seed, end)
        assert facts_of(world.log())["epochs"] != [], (seed, end)


def test_a_log_whose_begin_is_gone_is_never_short():
    """The roll of retention had no room for its snapshot: the next checkpoint must make one."""
    world = new_world(configs={"segment.bytes": "1000000", "retention.ms": "1000"})
    world.write(b"v", producer_id=9, producer_epoch=2, base_sequence=0)
    finish_chores(world.store)
    world.store.checkpoint()
    world.clock.advance(ms=1_000_000)
    world.disk.fail("write", ENOSPC, path_contains=".state")
    world.store.retain()
    world.disk.heal()
    world.store.checkpoint()
    world.write(b"w")
    world.store.checkpoint()
    before = facts_of(world.log())
    assert 9 in before["producers"]
    world.reopen()
    assert facts_of(world.log())["producers"] == before["producers"]


def test_a_short_segment_gets_its_indexes_when_it_is_sealed():
    world = new_world(configs={"segment.bytes": "1000000", "segment.ms": "1000"})
    for _ in range(3):
        world.write(b"y" * 5000)
    finish_chores(world.store)
    world.store.checkpoint()
    assert names_of(world.disk, "idx") == []
    world.clock.advance(ms=1_000_000)
    world.write(b"the first of the next segment")
    world.store.checkpoint()
    assert len(names_of(world.disk, "idx")) == 2
    world.reopen()
    assert world.store.recovery.rebuilt == []


def test_a_few_large_batches_are_no_short_log():
    world = new_world(configs={"segment.bytes": "10000000"})
    for _ in range(3):
        world.write(b"y" * 50_000)
    finish_chores(world.store)
    world.store.checkpoint()
    assert len(names_of(world.disk, "idx")) == 2


def test_a_wrong_index_of_a_short_log_is_told_once():
    world = new_world(configs={"segment.bytes": "1000000"})
    for _ in range(SHORT_LOG_ENTRIES + 2):
        world.write(b"y" * 5000)
    world.end("close")
    for path in names_of(world.disk, "idx"):
        world.disk.flip(path, 20)
    world.open()
    assert world.store.recovery.rebuilt != []
    world.reopen()
    assert world.store.recovery.rebuilt == []


def test_a_damaged_snapshot_is_passed_over():
    world = busy_world()
    before = facts_of(world.log())
    world.end("close")
    for path in names_of(world.disk, ".state"):
        world.disk.flip(path, 80)
    world.open()
    assert facts_of(world.log()) == before


def test_snapshots_of_a_lost_tail_are_not_believed():
    """A roll leaves a snapshot; if the power goes before its batches are durable, others take their offsets."""
    for seed in range(30):
        world = new_world(seed)
        for turn in range(3):
            world.write(b"v" * 150, producer_id=1, producer_epoch=0, base_sequence=turn)
        for turn in range(12):
            world.put(batch_of(b"lost" * 40, producer_id=9, producer_epoch=0, base_sequence=turn))
        world.reopen("crash")
        survived = {row.producer_id for row in world.log().facts.producers.rows()}
        for turn in range(9):
            world.write(b"w", producer_id=3, producer_epoch=0, base_sequence=turn)
        before = facts_of(world.log())
        assert set(before["producers"]) == survived | {3}
        world.reopen("kill")
        assert facts_of(world.log()) == before, seed


def test_an_older_snapshot_that_came_back_with_the_power_is_not_vouched_for():
    """The names of snapshots are not synced: a power loss may take the newest, and bring back the one before."""
    world = new_world(configs={"segment.bytes": "1000000"})
    for _ in range(SHORT_LOG_ENTRIES + 1):
        world.write(b"long enough for a snapshot" * 1000)
    world.write(b"t", **transactional(producer_id=2))
    world.reopen()
    (older,) = names_of(world.disk, ".state")
    content = world.disk.snapshot()[older]
    world.mark(2, commit=False)
    world.end("close")
    assert remove_all(world.disk, ".state") != [older]
    write_whole(world.disk, older, content, sync=True)
    world.open()
    world.store.create_topic("other", 1, {})
    world.write(b"something to have a checkpoint for", topic="other")
    before = facts_of(world.log())
    assert before["aborted"] != []
    world.reopen()
    assert facts_of(world.log()) == before


def test_a_transaction_whose_records_are_deleted_holds_nobody_up_after_a_power_loss():
    """Its marker may be deleted as well, and then nothing would ever end it."""
    for seed in range(20):
        world = new_world(seed)
        world.write(b"t", **transactional(producer_id=2))
        finish_chores(world.store)
        world.store.checkpoint()
        world.mark(2, commit=False)
        world.write(b"plain")
        world.store.delete_before(world.log(), 3)
        for _ in range(3):
            world.reopen("crash")
            assert world.log().last_stable == world.log().high_watermark == 3, seed
        world.write(b"v", **transactional(producer_id=2, base_sequence=1))
        world.reopen("crash")
        assert (world.log().last_stable, world.log().high_watermark) == (3, 4), seed

"""Large appends under the policy `none`: placed at once, shown when they are written, and never out of order."""

from __future__ import annotations

from errno import EIO, ENOSPC
from itertools import accumulate

import pytest
from building import LATER_BYTES, batch_of, finish_chores, new_world, values_of

from rivven.errors import DiskFull, SyncFailed
from rivven.record import encode

LARGE = bytes(LATER_BYTES)
HUGE = bytes(8000)
ROOMY = {"segment.bytes": "100000"}


def paused(**options):
    """A store whose writes wait for `disk.step`."""
    world = new_world(policy="none", configs=ROOMY, **options)
    world.disk.auto_complete = False
    return world


def ends_of(batches):
    return list(accumulate(map(len, batches)))


def put_run(world, *values: bytes):
    batches = [batch_of(value) for value in values]
    run = bytearray().join(batches)
    return world.store.append_run(world.log(), run, ends_of(batches), len(batches), numbered=False)


def test_what_is_large_has_its_offsets_at_once_and_is_shown_when_it_is_written():
    world = paused()
    done = put_run(world, LARGE, b"b")
    log = world.log()
    assert (done.base_offset, done.next_offset, log.end) == (0, 2, 2)
    assert world.store.pump() == []
    assert (log.durable, log.high_watermark, world.store.waiting) == (0, 0, 1)
    assert values_of(log) == []
    world.disk.step()
    assert world.store.pump() == [log]
    assert (log.durable, log.high_watermark, world.store.waiting) == (2, 2, 0)
    assert values_of(log) == [LARGE, b"b"]


def test_what_is_small_is_written_at_once_unless_something_large_is_on_its_way():
    world = paused()
    world.put(batch_of(b"small"))
    assert world.log().high_watermark == 1
    put_run(world, LARGE)
    world.put(batch_of(b"behind"))
    put_run(world, b"behind, too")
    assert (world.log().end, world.log().high_watermark) == (4, 1)
    while world.store.waiting:
        world.store.pump()
        world.disk.step()
    world.store.pump()
    assert values_of(world.log()) == [b"small", LARGE, b"behind", b"behind, too"]


def test_readers_are_not_kept_waiting_nor_shown_what_is_not_there():
    world = paused()
    put_run(world, b"first")
    put_run(world, LARGE)
    world.store.pump()
    log = world.log()
    assert values_of(log) == [b"first"]
    assert log.offset_for_timestamp(0) is not None
    assert log.newest() is not None
    assert log.timestamp_at(1) is None


@pytest.mark.parametrize(
    "act",
    [
        lambda world: world.store.flush(),
        lambda world: world.store.checkpoint(),
        lambda world: world.log().roll(),
        lambda world: world.store.truncate(world.log(), 1),
    ],
    ids=["flush", "checkpoint", "roll", "truncate"],
)
def test_what_looks_at_the_whole_file_waits_until_it_is_whole(act):
    world = new_world(policy="none", configs=ROOMY)
    put_run(world, LARGE, b"b", b"c")
    assert world.store.waiting
    act(world)
    assert not world.log().unwritten
    assert values_of(world.log()) in ([LARGE, b"b", b"c"], [LARGE])


def test_a_time_behind_what_is_written_is_not_found_yet():
    world = new_world(policy="none", configs=ROOMY | {"index.interval.bytes": "200"})
    world.disk.auto_complete = False
    world.put(encode([(1, None, b"first", ())]))
    later = [encode([(100 + number, None, LARGE, ())]) for number in range(5)]
    world.store.append_run(world.log(), bytearray().join(later), ends_of(later), 5, numbered=False)
    world.store.pump()
    assert world.log().offset_for_timestamp(104) is None
    assert world.log().newest() == (0, 1)
    world.disk.step()
    world.store.pump()
    assert world.log().offset_for_timestamp(104) == (5, 104)
    assert world.log().newest() == (5, 104)


def test_a_refused_write_gives_back_the_room_that_was_set_aside():
    world = new_world(policy="none", configs=ROOMY)
    put_run(world, LARGE)
    world.store.flush()
    held_bytes = world.log().active.held_bytes
    assert held_bytes > world.log().active.end_bytes
    world.disk.fail("write", ENOSPC, path_contains=".log")
    with pytest.raises(DiskFull):
        world.put(batch_of(b"refused"))
    assert world.log().active.held_bytes == 0


def stuck():
    """A store with a topic whose last append finds no room, for as long as nobody makes some."""
    world = new_world(policy="none", configs=ROOMY, capacity_bytes=200_000)
    world.store.create_topic("old", 1, ROOMY)
    for _ in range(3):
        world.put(batch_of(bytes(1000)), topic="old")
    world.store.log("old", 0).roll()
    world.store.delete_before(world.store.log("old", 0), 1)  # there is a write-ahead file from here on
    world.store.checkpoint()
    put_run(world, HUGE)
    world.disk.capacity_bytes -= world.disk.free_bytes() - len(HUGE) + 1000
    world.store.pump()
    while world.store.due_us() is None:
        world.store.pump()
    return world


def test_while_one_topic_lacks_room_others_can_make_it():
    for free in (
        lambda store: store.delete_topic("old"),
        lambda store: store.delete_before(store.log("old", 0), 3),
    ):
        world = stuck()
        free(world.store)
        world.clock.advance(ms=1000)
        while world.store.waiting:
            world.store.pump()
        assert values_of(world.log()) == [HUGE]


def test_a_topic_that_lacks_room_can_be_deleted():
    world = stuck()
    world.store.delete_topic("t")
    assert world.store.waiting == 0
    world.store.flush()


def test_a_store_that_lacks_room_closes_without_a_clean_mark():
    world = stuck()
    world.store.close()
    world.disk.capacity_bytes = None
    world.open()
    assert not world.store.recovery.clean
    assert world.store.recovery.intact
    assert values_of(world.log()) == []


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_a_sudden_end_loses_only_what_nobody_was_told_of(end):
    for seed in range(30):
        world = paused(seed=seed)
        told = [b"%d" % number + LARGE for number in range(3)]
        for value in told:
            put_run(world, value)
            world.store.pump()
            world.disk.step()
            world.store.pump()
        world.store.checkpoint()
        for number in range(4):
            put_run(world, b"%d not told" % number + LARGE)
            world.store.pump()
        world.disk.auto_complete = True
        world.reopen(end)
        assert values_of(world.log())[:3] == told
        assert world.store.recovery.intact, "that is no damage"


def test_without_room_set_aside_it_is_written_at_once_and_refused_at_once():
    world = new_world(policy="none", configs=ROOMY, capacity_bytes=200_000)
    world.disk.capacity_bytes -= world.disk.free_bytes() - LATER_BYTES * 3 // 2
    put_run(world, LARGE)
    assert (world.log().high_watermark, world.store.waiting) == (1, 0)
    with pytest.raises(DiskFull):
        put_run(world, LARGE)
    assert (world.log().end, world.store.waiting) == (1, 0)


def test_room_that_was_promised_and_is_not_there_is_waited_for():
    world = paused()
    put_run(world, LARGE)
    world.disk.fail("write", ENOSPC, path_contains=".log")
    world.store.pump()
    world.disk.step()
    assert world.store.pump() == []
    assert world.store.due_us() is not None, "it will be tried again"
    world.clock.advance(ms=1000)
    world.store.pump()
    world.disk.step()
    assert world.store.pump() == [world.log()]
    assert values_of(world.log()) == [LARGE]


def test_whoever_waits_for_it_hears_that_there_is_no_room_and_chores_go_on():
    world = new_world(policy="none", configs=ROOMY)
    put_run(world, LARGE)
    world.disk.fail("write", ENOSPC, path_contains=".log")
    with pytest.raises(DiskFull):
        world.store.flush()
    world.store.flush()
    assert values_of(world.log()) == [LARGE]
    finish_chores(world.store)


def test_a_disk_that_fails_ends_the_store():
    world = paused()
    put_run(world, LARGE)
    world.disk.fail("write", EIO, path_contains=".log")
    world.store.pump()
    world.disk.step()
    with pytest.raises(SyncFailed):
        world.store.pump()

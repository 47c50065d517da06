"""One node's storage: what is acknowledged stays, what fails is said, and one store has the directory."""

from __future__ import annotations

from errno import EIO, ENOSPC
from itertools import accumulate

import pytest
from building import (
    SMALL,
    batch_of,
    finish_chores,
    new_world,
    small_config,
    values_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rivven.errors import (
    DirectoryLocked,
    DiskFull,
    Overloaded,
    RivvenError,
    StoreClosed,
    SyncFailed,
    UnknownTopic,
)
from rivven.limits import KIB
from rivven.log import Store
from rivven.record import validate


def test_one_store_at_a_time_has_the_directory():
    world = new_world()
    with pytest.raises(DirectoryLocked):
        Store(world.disk, world.clock, None, small_config())
    world.write(b"still works")
    world.store.close()
    world.open()
    assert values_of(world.log()) == [b"still works"]


def test_a_store_that_cannot_open_gives_the_lock_back():
    world = new_world()
    world.end("close")
    world.disk.fail("open", EIO, path_contains="checkpoint.json")
    with pytest.raises((OSError, RivvenError)):
        world.open()
    world.open()


@pytest.mark.parametrize("policy", ["every_write", "every_n_writes(3)", "none"])
def test_a_closed_store_loses_nothing_under_any_policy(policy):
    for seed in range(10):
        world = new_world(seed, policy=policy)
        for number in range(20):
            world.write(b"%d" % number + bytes(100))
        world.store.close()
        world.disk.crash()
        world.open()
        assert len(values_of(world.log())) == 20
        assert world.store.recovery.clean
        assert (world.store.recovery.replayed, world.store.recovery.cuts) == (0, [])


@pytest.mark.parametrize("policy", ["every_write", "every_n_writes(3)", "none"])
def test_the_death_of_the_process_loses_nothing_under_any_policy(policy):
    for seed in range(10):
        world = new_world(seed, policy=policy)
        for number in range(20):
            world.write(b"%d" % number + bytes(100))
        world.reopen("kill")
        assert len(values_of(world.log())) == 20
        assert not world.store.recovery.clean


def test_the_policy_none_syncs_nothing_and_shows_at_once():
    world = new_world(policy="none")
    before = world.disk.syncs
    world.put(batch_of(b"a"))
    assert (world.log().high_watermark, world.store.waiting, world.disk.syncs) == (1, 0, before)


def test_under_the_policy_none_only_a_full_segment_asks_for_a_checkpoint():
    world = new_world(policy="none")
    world.store.create_topic("wide", 50, SMALL)
    finish_chores(world.store)
    for partition in range(50):
        world.put(batch_of(b"v"), topic="wide", partition=partition)
    assert not world.store.has_chores, "that a partition has its first batch is no reason to sync all of them"
    log = world.store.log("wide", 0)
    while len(log.segments) == 1:
        world.put(batch_of(bytes(100)), topic="wide", partition=0)
    assert world.store.has_chores


def test_after_a_truncation_the_policy_none_keeps_what_came_later():
    world = new_world(policy="none")
    for number in range(10):
        world.write(b"%d" % number)
    world.store.truncate(world.log(), 5)
    world.write(b"later")
    world.reopen("kill")
    assert values_of(world.log()) == [b"0", b"1", b"2", b"3", b"4", b"later"]


def test_one_sync_covers_many_partitions():
    world = new_world()
    world.store.create_topic("wide", 50, SMALL)
    finish_chores(world.store)
    before = world.disk.syncs
    for partition in range(50):
        world.put(batch_of(b"v"), topic="wide", partition=partition)
    world.store.flush()
    assert world.disk.syncs == before + 1
    world.reopen("crash")
    assert all(values_of(world.log("wide", partition)) == [b"v"] for partition in range(50))


def test_pump_never_waits_and_tells_whose_data_became_durable():
    world = new_world()
    world.disk.auto_complete = False
    done = world.put(batch_of(b"a"))
    assert world.store.pump() == []
    assert (world.log().durable, world.store.waiting) == (0, 1)
    world.put(batch_of(b"b"))
    assert world.store.pump() == []
    assert world.disk.step()
    assert world.store.pump() == [world.log()]
    assert world.log().durable == done.next_offset
    assert world.disk.step()
    assert world.store.pump() == [world.log()]
    assert (world.log().durable, world.store.waiting) == (2, 0)


def test_pump_tells_also_what_a_flush_or_an_append_without_sync_has_moved_and_tells_it_once():
    world = new_world()
    world.store.create_topic("other", 1, SMALL)
    world.put(batch_of(b"a"))
    world.put(batch_of(b"b"), topic="other")
    world.store.delete_before(world.log("other"), 0)
    assert world.log().durable == 1, "everybody's writes went to the disk with it"
    assert set(world.store.pump()) == {world.log(), world.log("other")}
    assert world.store.pump() == []
    quick = new_world(policy="none")
    quick.put(batch_of(b"a"))
    quick.put(batch_of(b"b"))
    assert quick.store.pump() == [quick.log()]
    assert quick.store.pump() == []


def test_a_flush_that_fails_halfway_leaves_it_to_pump_to_tell_what_it_has_moved():
    world = new_world()
    world.disk.auto_complete = False
    world.put(batch_of(b"a"))
    world.store.pump()
    assert world.disk.step()
    world.put(batch_of(b"b"))
    world.disk.fail("write", ENOSPC, path_contains="wal")
    world.disk.auto_complete = True
    with pytest.raises(DiskFull):
        world.store.flush()
    assert world.store.pump() == [world.log()]
    assert world.log().durable == 1


def test_a_group_that_gathers_is_due_at_the_end_of_its_window():
    world = new_world(eager=False, window_us=200)
    now_us = world.clock.now_us()
    assert world.store.due_us() is None
    world.put(batch_of(b"a"))
    assert world.store.due_us() == now_us + 200
    world.store.pump()
    assert world.store.waiting == 1
    world.clock.advance(us=200)
    world.disk.auto_complete = False
    world.store.pump()
    assert world.disk.step()


def test_too_much_waiting_is_refused_and_consumes_no_offset():
    world = new_world(waiting_bytes_max=1000)
    world.disk.auto_complete = False
    for _ in range(4):
        world.put(batch_of(bytes(100)))
    end = world.log().end
    with pytest.raises(Overloaded):
        world.put(batch_of(bytes(500)))
    assert world.log().end == end
    world.disk.auto_complete = True
    world.store.flush()
    assert world.write(b"again").base_offset == end


# The disk fails


CALLS = {
    "append": lambda world: world.put(batch_of(b"x")),
    "pump": lambda world: world.store.pump(),
    "flush": lambda world: world.store.flush(),
    "truncate": lambda world: world.store.truncate(world.store.logs[0], 0),
    "delete_before": lambda world: world.store.delete_before(world.store.logs[0], 0),
    "retain": lambda world: world.store.retain(),
    "create_topic": lambda world: world.store.create_topic("x"),
    "add_partitions": lambda world: world.store.add_partitions("t", 5),
    "configure": lambda world: world.store.configure("t", {}),
    "delete_topic": lambda world: world.store.delete_topic("t"),
    "checkpoint": lambda world: world.store.checkpoint(),
    "chores": lambda world: world.store.chores(),
    "clean": lambda world: world.store.begin_cleaning(world.store.logs[0]),
}


def fail_a_sync(world) -> None:
    world.disk.fail("sync", EIO, path_contains=".wal")
    world.put(batch_of(b"lost"))
    with pytest.raises(SyncFailed) as caught:
        world.store.flush()
    assert not caught.value.retriable


@pytest.mark.parametrize("call", list(CALLS))
def test_after_a_failed_sync_every_call_is_refused(call):
    world = new_world()
    world.write(b"a")
    fail_a_sync(world)
    with pytest.raises(StoreClosed, match="the disk failed"):
        CALLS[call](world)


@pytest.mark.parametrize("call", list(CALLS))
def test_after_its_end_every_call_is_refused(call):
    world = new_world()
    world.store.close()
    with pytest.raises(StoreClosed):
        CALLS[call](world)


def test_to_close_twice_is_no_mistake():
    world = new_world()
    world.store.close()
    world.store.close()
    world.open()
    world.store.abandon()
    world.store.close()
    world.open()


def test_after_a_failed_sync_nothing_acknowledged_is_lost():
    for seed in range(40):
        world = new_world(seed)
        for number in range(10):
            world.write(b"%d" % number + bytes(100))
        fail_a_sync(world)
        assert world.log().durable == 10
        assert values_of(world.log())[-1].startswith(b"9")
        world.store.close()
        if seed % 2:
            world.disk.crash()
        world.open()
        assert [int(value[:1]) for value in values_of(world.log())[:10]] == list(range(10)), seed
        assert world.store.recovery.intact


def test_what_a_failed_sync_left_in_the_cache_is_not_taken_for_durable():
    """The pages count as clean: a recovery that believes them loses them at the next power loss."""
    for seed in range(40):
        world = new_world(seed)
        world.write(b"a")
        fail_a_sync(world)
        world.reopen("kill")
        found = values_of(world.log())
        world.write(b"b")
        world.reopen("crash")
        assert values_of(world.log()) == [*found, b"b"], seed


@pytest.mark.parametrize("path", [".log", "checkpoint.json"])
def test_a_sync_that_fails_in_a_checkpoint_ends_the_store(path):
    for seed in range(10):
        world = new_world(seed)
        for number in range(10):
            world.write(b"%d" % number + bytes(100))
        world.disk.fail("sync", EIO, path_contains=path)
        with pytest.raises(SyncFailed):
            world.store.checkpoint()
        with pytest.raises(StoreClosed):
            world.store.flush()
        world.store.close()
        world.disk.crash()
        world.open()
        assert len(values_of(world.log())) == 10


def test_a_sync_that_fails_in_a_chore_ends_the_store():
    world = new_world()
    world.write(b"a")
    world.disk.fail("sync", EIO, path_contains=".log")
    (chore,) = [chore for chore in world.store.chores() if type(chore).__name__ == "SyncSegments"]
    with pytest.raises(SyncFailed) as caught:
        chore.run()
    with pytest.raises(SyncFailed):
        world.store.finish(chore, caught.value)
    with pytest.raises(StoreClosed):
        world.store.pump()


def test_no_room_for_a_checkpoint_is_not_the_end():
    world = new_world()
    for number in range(10):
        world.write(b"%d" % number + bytes(100))
    world.disk.fail("write", ENOSPC, path_contains="checkpoint.json")
    with pytest.raises(DiskFull):
        world.store.checkpoint()
    world.write(b"more")
    world.store.checkpoint()
    world.reopen("crash")
    assert len(values_of(world.log())) == 11


@pytest.mark.parametrize("suffix", [".idx", ".tidx", ".state", "checkpoint.json"])
def test_no_room_in_a_chore_is_tried_again(suffix):
    world = new_world(3)
    for number in range(20):
        world.write(b"%d" % number + bytes(100), producer_id=1, producer_epoch=0, base_sequence=number)
    world.disk.fail("write", ENOSPC, path_contains=suffix)
    due, refused = world.store.chores(), 0
    while due:
        chore = due.pop()
        try:
            chore.run()
        except OSError as error:
            refused += 1
            due += world.store.finish(chore, error)
        else:
            due += world.store.finish(chore)
    assert refused == 1
    assert finish_chores(world.store) >= 1
    world.reopen("crash")
    assert len(values_of(world.log())) == 20
    assert world.store.recovery.intact


def test_no_room_for_a_write_ahead_file_makes_writers_wait_and_no_more():
    world = new_world(configs={"segment.bytes": "100000000"})
    finish_chores(world.store)
    world.disk.fail("write", ENOSPC, path_contains=".wal", times=1000)
    refused = 0
    written = 0
    for _ in range(30):
        try:
            world.write(bytes(20_000))
            written += 1
        except DiskFull:
            refused += 1
            break
    assert refused
    world.disk.heal()
    world.store.flush()
    world.write(b"again")
    end = world.log().end
    assert end >= written + 1
    world.reopen("crash")
    assert world.log().end == end


def test_no_room_to_make_a_write_ahead_file_is_told_and_leaves_no_file():
    world = new_world(configs={"segment.bytes": "100000000"})
    world.write(b"a")
    used_bytes = sum(map(len, world.disk.snapshot().values()))
    world.disk.capacity_bytes = used_bytes + 200 * KIB
    (chore,) = [chore for chore in world.store.chores() if type(chore).__name__ == "PrepareSpare"]
    with pytest.raises(OSError, match="ENOSPC") as caught:
        chore.run()
    world.store.finish(chore, caught.value)
    assert [name[-5:] for name in world.disk.names("wal")] == [".made", "1.wal"]
    world.write(b"b")
    world.disk.capacity_bytes = None
    assert finish_chores(world.store)
    world.reopen("crash")
    assert values_of(world.log()) == [b"a", b"b"]


def test_a_group_without_room_waits_and_goes_to_the_same_place():
    world = new_world()
    world.write(b"a")
    world.disk.fail("write", ENOSPC, path_contains=".wal", times=2)
    world.put(batch_of(b"b"))
    with pytest.raises(DiskFull):
        world.store.flush()
    assert world.log().durable == 1
    assert world.store.due_us() is not None
    world.disk.heal()
    world.clock.advance(ms=100)
    for _ in range(20):
        world.store.pump()
    assert world.log().durable == 2
    world.reopen("crash")
    assert values_of(world.log()) == [b"a", b"b"]
    assert world.store.recovery.intact


def test_a_truncation_refused_for_want_of_room_does_not_happen_later():
    """What was appended after the refusal was acknowledged: a note still in the queue must not take it back."""
    world = new_world()
    for number in range(6):
        world.write(b"%d" % number)
    world.disk.fail("write", ENOSPC, path_contains=".wal")
    with pytest.raises(DiskFull):
        world.store.truncate(world.log(), 3)
    assert world.log().end == 6
    world.disk.heal()
    world.write(b"6")
    world.reopen("crash")
    assert values_of(world.log()) == [b"%d" % number for number in range(7)]


def test_a_topic_that_finds_no_room_for_its_files_can_be_made_later():
    world = new_world()
    world.disk.fail("open", ENOSPC, path_contains="topics/x/")
    with pytest.raises(DiskFull):
        world.store.create_topic("x", 2, SMALL)
    if "x" not in {topic.name for topic in world.store.topics}:
        world.store.create_topic("x", 2, SMALL)
    world.write(b"a", topic="x", partition=1)
    world.reopen("crash")
    assert values_of(world.log("x", 1)) == [b"a"]


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_dir"])
def test_a_refused_change_of_topics_leaves_them_as_they_were(operation):
    world = new_world()
    world.write(b"a")
    world.disk.fail(operation, ENOSPC, path_contains="topic_metadata.json" if operation != "sync_dir" else "")
    with pytest.raises((DiskFull, SyncFailed)):
        world.store.create_topic("x")
    assert [topic.name for topic in world.store.topics] == ["t"]
    world.disk.heal()
    world.reopen("crash")
    assert values_of(world.log()) == [b"a"]


# Any history


steps = st.lists(
    st.sampled_from(["put", "put", "put", "flush", "pump", "chores", "checkpoint", "crash", "kill", "close"]),
    max_size=40,
)


@given(steps, st.integers(0, 2**32))
@settings(max_examples=60)
def test_no_history_loses_what_was_durable(steps, seed):
    world = new_world(seed)
    put: list[bytes] = []
    for step in steps:
        if step == "put":
            put.append(b"%d" % len(put) + bytes(180))
            world.put(batch_of(put[-1]))
        elif step == "chores":
            finish_chores(world.store)
        elif step in ("flush", "pump", "checkpoint"):
            getattr(world.store, step)()
        else:
            durable = world.log().durable if step in ("crash", "kill") else world.log().end
            world.reopen(step)
            assert world.log().end >= durable
            assert world.log().high_watermark == world.log().end
            assert world.store.recovery.intact
            del put[world.log().end :]
        assert values_of(world.log()) == put[: world.log().high_watermark]
    assert world.log().end == len(put)


def test_a_topic_is_found_by_its_id_until_it_is_deleted():
    store = new_world().store
    made = store.create_topic("found", 1)
    assert store.topic_of_id(made.id_bytes) == made
    assert store.topic_of_id(bytes(16)) is None
    store.add_partitions("found", 3)
    assert store.topic_of_id(made.id_bytes).partitions == 3
    store.delete_topic("found")
    assert store.topic_of_id(made.id_bytes) is None
    again = store.create_topic("found", 1)
    assert again.id_bytes != made.id_bytes
    assert store.topic_of_id(again.id_bytes) == again


def test_a_run_is_kept_as_a_whole_or_not_at_all():
    world = new_world(configs={"segment.bytes": "2000"}, defer_bytes_max=0)
    log = world.log()

    def run(*values: bytes):
        batches = [batch_of(value) for value in values]
        return bytearray().join(batches), list(accumulate(map(len, batches))), len(batches)

    done = world.store.append_run(log, *run(b"a", b"b", b"c"), numbered=False)
    assert done is not None
    assert (done.base_offset, done.next_offset) == (0, 3)
    world.disk.fail("write", ENOSPC, path_contains=".log")
    with pytest.raises(DiskFull):
        world.store.append_run(log, *run(b"lost", b"lost"), numbered=False)
    assert log.end == 3
    assert world.store.append_run(log, *run(bytes(1500), bytes(1500)), numbered=False) is None, "more than a segment"
    assert log.end == 3
    assert world.store.append_run(log, *run(bytes(900), bytes(900)), numbered=False).segment == 3, "in one of its own"
    world.store.flush()
    world.reopen("crash")
    assert values_of(world.log()) == [b"a", b"b", b"c", bytes(900), bytes(900)]


@pytest.mark.parametrize("policy", ["every_write", "none"])
def test_batches_of_many_partitions_fail_each_by_itself(policy):
    world = new_world(policy=policy)
    world.store.create_topic("gone")
    world.store.create_topic("other")
    logs = [world.log(), world.log("gone"), world.log("other"), world.log()]
    world.store.delete_topic("gone")
    batches = [batch_of(b"%d" % number) for number in range(len(logs))]
    outcomes = world.store.append_each(
        [(log, batch, validate(batch), None) for log, batch in zip(logs, batches, strict=True)]
    )
    assert [isinstance(outcome, UnknownTopic) for outcome in outcomes] == [False, True, False, False]
    world.store.flush()
    world.reopen("kill")
    assert values_of(world.log()) == [b"0", b"3"]
    assert values_of(world.log("other")) == [b"2"]


def test_a_full_disk_refuses_only_what_meets_it():
    world = new_world(defer_bytes_max=0)
    log = world.log()
    world.disk.fail("write", ENOSPC, path_contains=".log", after=1)
    batches = [batch_of(b"%d" % number) for number in range(4)]
    outcomes = world.store.append_each([(log, batch, validate(batch), None) for batch in batches])
    assert [isinstance(outcome, DiskFull) for outcome in outcomes] == [False, True, False, False]
    world.store.flush()
    world.reopen("crash")
    assert values_of(world.log()) == [b"0", b"2", b"3"]

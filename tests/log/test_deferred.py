"""With a write-ahead log, short appends have their place at once and are written there by the thread that writes the
group, before the group. Acknowledged is what is in both; whoever needs the file sooner does not wait for the sync."""

from __future__ import annotations

from errno import EIO, ENOSPC

import pytest
from building import batch_of, finish_chores, new_world, values_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rivven.errors import DiskFull, SyncFailed
from rivven.limits import DEFER_BYTES_MAX
from rivven.record import validate

ROOMY = {"segment.bytes": "100000"}
LONG = bytes(DEFER_BYTES_MAX)


def paused(**options):
    """A store whose groups wait for `disk.step`."""
    world = new_world(configs=ROOMY, **options)
    world.disk.auto_complete = False
    return world


def segment_bytes(world, topic="t") -> bytes:
    return b"".join(
        data
        for path, data in sorted(world.disk.snapshot().items())
        if path.startswith(f"topics/{topic}/") and path.endswith(".log")
    )


def wal_holds(world, value: bytes) -> bool:
    return any(value in data for path, data in world.disk.snapshot().items() if path.startswith("wal/"))


def test_what_is_short_is_in_its_segment_once_its_group_is_done_and_not_shown_before():
    world = paused()
    done = world.put(batch_of(b"short"))
    log = world.log()
    assert (done.base_offset, log.end, log.unwritten) == (0, 1, True)
    assert (segment_bytes(world), log.read(0, bytes_max=100, upto=1)) == (b"", b"")
    world.store.pump()
    assert segment_bytes(world) == b""
    world.disk.step()
    assert world.store.pump() == [log]
    assert (log.durable, log.unwritten) == (1, False)
    assert b"short" in segment_bytes(world)
    assert wal_holds(world, b"short")
    assert values_of(log) == [b"short"]


def test_what_is_long_is_written_at_once_unless_something_short_is_before_it():
    world = paused()
    world.put(batch_of(LONG))
    assert not world.log().unwritten
    assert len(segment_bytes(world)) > len(LONG)
    world.put(batch_of(b"short"))
    world.put(batch_of(LONG[1:]))
    assert world.log().unwritten
    assert len(segment_bytes(world)) < 2 * len(LONG)
    world.disk.auto_complete = True
    world.store.flush()
    assert values_of(world.log()) == [LONG, b"short", LONG[1:]]


@pytest.mark.parametrize("under_way", [False, True], ids=["queued", "under way"])
@pytest.mark.parametrize(
    "act",
    [
        lambda world: world.store.settle(),
        lambda world: world.log().roll(),
        lambda world: world.store.retain(),
        lambda world: world.store.chores() or world.store._begin_checkpoint(clean=False),
    ],
    ids=["settle", "roll", "retain", "checkpoint"],
)
def test_whoever_needs_the_file_has_it_without_the_sync(act, under_way):
    world = paused()
    world.put(batch_of(b"first"))
    if under_way:
        world.store.pump()
    world.put(batch_of(b"second"))
    act(world)
    log = world.log()
    assert (log.unwritten, log.durable) == (False, 0)
    assert segment_bytes(world).index(b"first") < segment_bytes(world).index(b"second")
    assert not wal_holds(world, b"second")
    world.put(batch_of(b"third"))
    world.disk.auto_complete = True
    world.store.flush()
    assert values_of(log) == [b"first", b"second", b"third"]


def test_a_file_that_was_let_go_of_is_not_written_again():
    """The group's sync has no room while its segments are complete: what is tried again is the group alone."""
    world = paused()
    world.put(batch_of(b"kept"))
    world.store.pump()
    world.store.settle()
    log = world.log()
    log.roll()
    world.store._checkpoint_now(clean=False)
    log.segments[0].unload()
    world.disk.fail("write", ENOSPC, path_contains="wal")
    world.disk.step()
    world.store.pump()
    assert log.durable == 0
    world.disk.heal()
    world.disk.auto_complete = True
    world.store.flush()
    assert values_of(log) == [b"kept"]


def test_a_segment_without_room_holds_its_group_back_until_there_is_some():
    world = paused()
    world.disk.fail("write", ENOSPC, path_contains=".log")
    world.put(batch_of(b"waits"))
    world.store.pump()
    world.disk.step()
    assert world.store.pump() == []
    assert not wal_holds(world, b"waits"), "an entry is in its segment before it is in a group"
    assert world.store.due_us() is not None
    world.disk.fail("write", ENOSPC, path_contains=".log")
    with pytest.raises(DiskFull):
        world.store.settle()
    world.disk.heal()
    world.disk.auto_complete = True
    world.store.flush()
    assert values_of(world.log()) == [b"waits"]
    world.reopen("crash")
    assert values_of(world.log()) == [b"waits"]


@pytest.mark.parametrize("act", ["pump", "settle"])
def test_any_other_failure_of_a_segment_ends_the_store(act):
    world = paused()
    world.put(batch_of(b"lost"))
    world.disk.fail("write", EIO, path_contains=".log")
    if act == "pump":
        world.store.pump()
        world.disk.step()
    with pytest.raises(SyncFailed, match="EIO"):
        getattr(world.store, act)()
    world.end("kill")
    world.disk.heal()
    world.disk.auto_complete = True
    world.open()
    assert world.write(b"after").base_offset in (0, 1)


def test_without_room_set_aside_all_is_written_at_once(monkeypatch):
    world = new_world(configs=ROOMY)
    monkeypatch.setattr(type(world.log().active.open_file()), "reserve", lambda *_: False)
    world.put(batch_of(b"a"))
    assert not world.log().unwritten
    assert b"a" in segment_bytes(world)


def test_a_topic_is_deleted_while_something_is_to_be_written_to_it():
    world = new_world(configs=ROOMY)
    world.store.create_topic("other")
    world.put(batch_of(b"gone"))
    world.put(batch_of(b"stays"), topic="other")
    world.store.delete_topic("t")
    world.store.flush()
    assert values_of(world.log("other")) == [b"stays"]


@pytest.mark.parametrize("policy", ["every_write", "every_n_writes(3)"])
@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(["put", "put", "run", "long", "pump", "step", "settle", "roll", "chores", "truncate", "kill"])
    ),
    st.integers(0, 2**32),
)
def test_no_history_shows_or_keeps_anything_else_than_was_appended(policy, steps, seed):
    world = new_world(seed, policy=policy, configs=ROOMY)
    kept: list[bytes] = []
    for number, step in enumerate(steps):
        log = world.log()
        if step in ("put", "long"):
            kept.append(b"%d " % number + (LONG if step == "long" else b""))
            world.put(batch_of(kept[-1]))
        elif step == "run":
            batches = [batch_of(b"%d a" % number), batch_of(b"%d b" % number)]
            kept += [b"%d a" % number, b"%d b" % number]
            ends = [len(batches[0]), len(batches[0]) + len(batches[1])]
            assert world.store.append_run(log, bytearray().join(batches), ends, 2, numbered=False) is not None
        elif step == "step":
            world.disk.step()
        elif step == "roll":
            log.roll()
        elif step == "chores":
            finish_chores(world.store)
        elif step == "truncate":
            world.store.truncate(log, len(kept) // 2)
            del kept[len(kept) // 2 :]
        elif step == "kill":
            durable = log.durable
            world.reopen("kill")
            assert len(kept) >= world.log().end >= durable
            del kept[world.log().end :]
        else:
            getattr(world.store, step)()
        log = world.log()
        assert (log.end, values_of(log)) == (len(kept), kept[: log.high_watermark])
    world.store.close()
    world.open()
    assert values_of(world.log()) == kept


def test_many_partitions_are_one_group():
    world = paused(topic=False)
    world.store.create_topic("wide", 50)
    batches = [batch_of(b"%d" % number) for number in range(50)]
    world.store.append_each(
        [(world.log("wide", number), batch, validate(batch), None) for number, batch in enumerate(batches)]
    )
    world.store.pump()
    world.disk.step()
    assert len(world.store.pump()) == 50
    assert world.store.wal_stats.groups == 1
    assert [values_of(world.log("wide", number)) for number in range(50)] == [
        [b"%d" % number] for number in range(50)
    ]

"""Small appends with a write-ahead log: they wait for others in memory, and nobody can tell but by the files."""

from __future__ import annotations

from errno import EIO, ENOSPC

import pytest
from building import batch_of, finish_chores, names_of, new_world, values_of
from hypothesis import given
from hypothesis import strategies as st

from rivven.errors import DiskFull, StoreClosed, SyncFailed
from rivven.limits import GATHER_BYTES_MAX
from rivven.log import Store

ROOMY = {"segment.bytes": "1000000"}


def world_of(*values: bytes, policy: str = "every_write"):
    world = new_world(configs=ROOMY, policy=policy)
    for value in values:
        world.write(value)
    return world


def file_of(world) -> bytes:
    (path,) = names_of(world.disk, ".log", under="topics/t")
    return world.disk.snapshot()[path]


def test_what_is_small_waits_and_is_read_all_the_same():
    world = world_of(b"a", b"b")
    assert file_of(world) == b""
    assert values_of(world.log()) == [b"a", b"b"]
    assert world.log().offset_for_timestamp(0) is not None
    assert file_of(world) == b"", "and reading writes nothing"
    world.store.write_out()
    assert len(file_of(world)) == world.log().active.end_bytes
    assert values_of(world.log()) == [b"a", b"b"]


@pytest.mark.parametrize("policy", ["every_write", "every_n_writes(3)"])
@pytest.mark.parametrize("end", ["close", "kill", "crash"])
def test_what_waits_is_there_after_any_end(policy, end):
    world = world_of(*(b"%d" % number for number in range(9)), policy=policy)
    world.store.flush(sync=True)
    world.reopen(end)
    assert values_of(world.log()) == [b"%d" % number for number in range(9)]
    assert world.store.recovery.intact


def test_under_the_policy_none_nothing_waits():
    world = new_world(configs=ROOMY, policy="none")
    world.write(b"a")
    assert len(file_of(world)) == world.log().active.end_bytes


def test_enough_is_written_and_what_is_large_takes_the_rest_along():
    world = world_of(*[bytes(3000)] * 5)
    assert file_of(world) == b""
    world.write(bytes(3000))
    assert GATHER_BYTES_MAX - 3100 < len(file_of(world)) <= GATHER_BYTES_MAX
    world.write(bytes(GATHER_BYTES_MAX))
    assert len(file_of(world)) == world.log().active.end_bytes


@pytest.mark.parametrize(
    "look",
    [
        Store.checkpoint,
        Store.write_out,
        lambda store: store.log("t", 0).roll(),
        lambda store: store.truncate(store.log("t", 0), 2),
        lambda store: store.log("t", 0).active.open_file(),
    ],
    ids=["checkpoint", "write_out", "roll", "truncate", "open_file"],
)
def test_whoever_needs_the_file_has_it_whole(look):
    world = world_of(b"a", b"b", b"c")
    look(world.store)
    written = max(world.disk.snapshot()[path] for path in names_of(world.disk, ".log", under="topics/t"))
    assert len(written) == world.log().segments[0].end_bytes > 0


@given(
    sizes=st.lists(st.integers(0, 6000), min_size=1, max_size=30),
    looks=st.sets(st.integers(0, 30)),
    at=st.integers(0, 29),
    bytes_max=st.integers(1, 20_000),
)
def test_what_is_read_does_not_depend_on_what_is_written(sizes, looks, at, bytes_max):
    world, plain = (new_world(configs=ROOMY) for _ in range(2))
    for place, size in enumerate(sizes):
        for each in (world, plain):
            each.write(b"%d" % place + bytes(size))
        plain.store.write_out()
        if place in looks:
            world.store.write_out()
    offset = min(at, len(sizes) - 1)
    assert world.log().read(offset, bytes_max=bytes_max) == plain.log().read(offset, bytes_max=bytes_max)
    assert values_of(world.log()) == values_of(plain.log())
    world.store.write_out()
    assert file_of(world) == file_of(plain)


def test_a_disk_that_sets_no_room_aside_is_written_to_at_once(monkeypatch):
    world = new_world(configs=ROOMY)
    monkeypatch.setattr(type(world.log().active.open_file()), "reserve", lambda *_: False)
    world.write(b"a")
    assert len(file_of(world)) == world.log().active.end_bytes


def test_room_that_was_promised_and_is_not_there_is_waited_for():
    world = world_of(b"a", b"b")
    world.disk.fail("write", ENOSPC, path_contains=".log", times=3)
    with pytest.raises(DiskFull):
        world.store.write_out()
    with pytest.raises(DiskFull):
        world.write(bytes(GATHER_BYTES_MAX))
    assert values_of(world.log()) == [b"a", b"b"], "and meanwhile it is read"
    assert finish_chores(world.store) >= 0
    world.disk.heal()
    world.write(b"c")
    world.store.checkpoint()
    world.reopen("crash")
    assert values_of(world.log()) == [b"a", b"b", b"c"]


def test_a_disk_that_fails_ends_the_store_and_loses_nothing():
    world = world_of(b"a", b"b")
    world.disk.fail("write", EIO, path_contains=".log")
    with pytest.raises(SyncFailed):
        world.store.write_out()
    with pytest.raises(StoreClosed):
        world.put(batch_of(b"c"))
    world.disk.heal()
    world.end("kill")
    world.open()
    assert values_of(world.log()) == [b"a", b"b"]

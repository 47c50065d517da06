"""Reading what is in memory, and what it takes until something is."""

from __future__ import annotations

import pytest
from building import World, finish_chores, new_world
from hypothesis import given
from hypothesis import strategies as st

from rivven.errors import CorruptLog
from rivven.limits import PRELOAD_BYTES_MAX
from rivven.log import Log, NotCached, preload


def filled(sizes: list[tuple[int, int]], **configs: str) -> tuple[World, Log]:
    world = new_world(configs=configs, defer_bytes_max=0)
    for count, value_bytes in sizes:
        world.write(*[bytes(value_bytes)] * count)
    finish_chores(world.store)
    return world, world.log()


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 900)), min_size=1, max_size=25),
    cuts=st.lists(st.integers(0, 3000), min_size=1, max_size=5),
    bytes_max=st.integers(1, 3000),
    data=st.data(),
)
def test_what_is_cached_is_the_beginning_of_what_is_read(sizes, cuts, bytes_max, data):
    world, log = filled(sizes)
    offset = data.draw(st.integers(log.start, log.end - 1))
    whole = bytes(log.read(offset, bytes_max=bytes_max))
    world.disk.evict()
    for place, path in enumerate(sorted(world.disk.evicted)):
        world.disk.evicted[path] = cuts[place % len(cuts)]
    world.disk.waits = 0
    found = b""
    for _ in range(3):  # the indexes of its segment, then its first batch, and then it must be there
        try:
            found = bytes(log.read(offset, bytes_max=bytes_max, cached=True))
            break
        except NotCached as missing:
            preload(world.disk, missing.pieces)
    assert found
    assert whole.startswith(found)
    assert world.disk.waits == 0


def test_one_batch_that_is_longer_than_what_is_preloaded_at_a_time_comes_whole():
    bytes_max = 2 * PRELOAD_BYTES_MAX
    big = {"max.message.bytes": str(bytes_max), "segment.bytes": str(bytes_max)}
    world, log = filled([(1, 10), (1, PRELOAD_BYTES_MAX + 5000), (1, 10)], **big)
    world.disk.evict()
    world.disk.waits = 0
    with pytest.raises(NotCached) as first:
        log.read(1, bytes_max=100, cached=True)
    preload(world.disk, first.value.pieces)
    with pytest.raises(NotCached) as second:
        log.read(1, bytes_max=100, cached=True)
    preload(world.disk, second.value.pieces)
    assert len(log.read(1, bytes_max=100, cached=True)) > PRELOAD_BYTES_MAX
    assert world.disk.waits == 0


def test_a_file_that_is_shorter_than_it_was_is_damage_and_not_waited_for():
    world, log = filled([(1, 10), (1, 100)])
    world.disk.open(log.active.path).truncate(90)
    with pytest.raises(NotCached) as missing:
        log.read(1, bytes_max=100, cached=True)
    preload(world.disk, missing.value.pieces)
    with pytest.raises(CorruptLog):
        log.read(1, bytes_max=100)


def test_what_is_deleted_meanwhile_is_nothing_to_wait_for():
    world, log = filled([(1, 10)])
    world.disk.evict()
    with pytest.raises(NotCached) as missing:
        log.read(0, bytes_max=100, cached=True)
    world.store.delete_topic("t")
    world.disk.waits = 0
    preload(world.disk, missing.value.pieces)
    assert world.disk.waits == 0
    assert not world.disk.exists(missing.value.pieces[-1].path)

"""Where batches stand, for whoever reads the file by himself: the same that `read` gives, and nothing beyond."""

from __future__ import annotations

from random import Random

import pytest
from building import SMALL, World, batch_of, finish_chores, new_world, small_config, transactional
from hypothesis import given
from hypothesis import strategies as st

from rivven.log import Log, Place
from rivven.ports import File, Whereabouts
from rivven.record import parse_header, scan
from rivven.sim import SimDisk


class OpenDisk(SimDisk):
    """One whose files others could find."""

    def whereabouts(self, file: File) -> Whereabouts | None:
        return Whereabouts("here", file.path, 1, 2)


def open_world(policy: str = "every_write", **configs: str) -> World:
    world = World(OpenDisk(Random(0)), config=small_config(policy))
    world.store.create_topic("t", 1, SMALL | {name.replace("_", "."): value for name, value in configs.items()})
    return world


def stands(world: World, place: Place) -> bytes:
    return world.disk.open(place.where.path).read(place.length_bytes, place.position)


def whole(log: Log, world: World, *, upto: int, bytes_max: int) -> list[int]:
    """The base offsets of all batches, from place to place."""
    found: list[int] = []
    offset = int(log.start)
    while offset < upto:
        place = log.locate(offset, bytes_max=bytes_max, upto=upto)
        assert place is not None
        data = stands(world, place)
        assert scan(data, 0, len(data), verify=True)[0] == len(data) > 0
        at = 0
        while at < len(data):
            header = parse_header(data, at)
            found.append(header.base_offset)
            at += header.batch_bytes
        assert header.next_offset <= place.next_offset <= upto
        assert place.next_offset > offset
        offset = place.next_offset
    return found


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 500)), min_size=1, max_size=25),
    bytes_max=st.integers(1, 3000),
    data=st.data(),
)
def test_what_stands_there_is_what_is_read(sizes, bytes_max, data):
    world = open_world()
    ends = [world.write(*[bytes(size)] * count).next_offset for count, size in sizes]
    log, upto = world.log(), data.draw(st.sampled_from(ends))
    offset = data.draw(st.integers(0, upto - 1))
    place = log.locate(offset, bytes_max=bytes_max, upto=upto)
    assert place is not None
    assert place.dense
    here = stands(world, place)
    assert here == log.read(offset, bytes_max=place.length_bytes, upto=upto)
    first = parse_header(here)
    assert first.base_offset <= offset <= first.last_offset
    assert place.length_bytes <= bytes_max or place.length_bytes == first.batch_bytes
    bases = [0, *ends][: ends.index(upto) + 1]
    assert whole(log, world, upto=upto, bytes_max=bytes_max) == bases


def test_nothing_is_told_where_only_reading_can_tell():
    world = open_world()
    for number in range(9):
        world.write(bytes(200), b"%d" % number)
    log = world.log()
    world.store.delete_before(log, 4)
    assert log.locate(3, bytes_max=100, upto=18) is None, "it is deleted"
    assert log.locate(18, bytes_max=100, upto=18) is None, "it is the end"
    assert log.locate(10, bytes_max=100, upto=10) is None, "it is not to be seen"
    assert new_world().log().locate(0, bytes_max=100, upto=1) is None
    closed = new_world()
    closed.write(b"v")
    assert closed.log().locate(0, bytes_max=100, upto=1) is None, "nobody else finds a simulated file"


def test_what_is_not_decided_is_left_out():
    world = open_world()
    world.write(b"a", b"b")
    world.write(b"open", **transactional())
    world.write(b"c")
    log = world.log()
    place = log.locate(0, bytes_max=1 << 20, upto=log.last_stable)
    assert place is not None
    assert (place.next_offset, log.last_stable) == (2, 2)
    assert scan(stands(world, place), 0, 1 << 20, verify=True)[1] == 2


def test_what_is_not_written_yet_is_left_out():
    world = open_world("none", segment_bytes="100000")
    world.write(b"a", b"b")
    world.disk.auto_complete = False
    large = batch_of(bytes(400), bytes(400))
    world.store.append_run(world.log(), large, [len(large)], 2, numbered=False)
    log = world.log()
    assert log.end > log.high_watermark == 2, "a large write is on its way"
    place = log.locate(0, bytes_max=1 << 20, upto=log.high_watermark)
    assert place is not None
    assert place.next_offset == 2
    assert place.length_bytes < len(large)


@pytest.mark.parametrize("end", ["close", "kill"])
def test_compacted_logs_have_gaps_and_say_so(end):
    world = open_world(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for number in range(30):
        world.write(bytes(150), key=b"%d" % (number % 3))
    world.log().roll()
    world.store.checkpoint()
    world.store.clean(force=True)
    finish_chores(world.store)
    world.reopen(end)
    log = world.log()
    found = whole(log, world, upto=log.high_watermark, bytes_max=500)
    assert found == sorted(set(found))
    assert found[-1] == 29
    assert len(found) < 30
    place = log.locate(0, bytes_max=500, upto=log.high_watermark)
    assert place is not None
    assert not place.dense

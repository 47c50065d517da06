"""A directory is read as it lies, around its damage, by the names that people use for it."""

import pytest
from building import NOW_MS, names_of, new_world

from rivven.errors import BadDirectory, UnknownTopic
from rivven.log import (
    Unreadable,
    WalkedBatch,
    read_content,
    read_directory,
    read_partition,
    segment_batches,
    walk_batches,
)
from rivven.sim import SimDisk

LOG = "topics/t/partition-0/00000000000000000000.log"


@pytest.fixture
def world():
    world = new_world()
    for number in range(30):
        world.write(b"value %d" % number, b"x" * 30, key=b"key-%d" % number, timestamp_ms=NOW_MS + number)
    world.store.close()
    return world


def files_of(world):
    directory = read_directory(world.disk)
    [(topic, place)] = directory.partitions()
    return read_partition(world.disk, directory, topic, place)


def test_a_directory_of_something_else_is_refused():
    from random import Random

    disk = SimDisk(Random(0))
    disk.open("holiday.jpg", create=True)
    with pytest.raises(BadDirectory, match="not a data directory"):
        read_directory(disk)


def test_an_unknown_topic_suggests_the_nearest(world):
    world.open()
    world.store.create_topic("orders", 2)
    directory = read_directory(world.disk)
    with pytest.raises(UnknownTopic, match="did you mean 'orders'"):
        directory.topic("ordres")
    with pytest.raises(UnknownTopic, match="the topics are orders, t"):
        directory.topic("zzzz")
    with pytest.raises(UnknownTopic, match="orders has 2, counted from 0"):
        directory.partitions("orders", 2)


def test_a_walk_meets_every_batch(world):
    file = world.disk.open(LOG)
    items = list(walk_batches(file))
    assert all(isinstance(item, WalkedBatch) and item.fault is None and item.crc_ok for item in items)
    assert items[0].position == 0
    assert items[-1].position + items[-1].header.batch_bytes == file.length()


@pytest.mark.parametrize("position", range(0, 130, 7))
def test_a_walk_loses_no_more_than_the_damaged_batch(world, position):
    file = world.disk.open(LOG)
    whole = [item.position for item in walk_batches(file)]
    world.disk.flip(LOG, whole[2] + min(position, whole[3] - whole[2] - 1), bit=4)
    met = [item.position for item in walk_batches(file) if isinstance(item, WalkedBatch)]
    assert set(whole) - set(met) <= {whole[2]}


def test_a_walk_over_garbage_says_where_it_was(world):
    file = world.disk.open(LOG)
    whole = [item.position for item in walk_batches(file)]
    file.write(b"\x02" * (whole[4] - whole[1]), whole[1])
    [bad] = [item for item in walk_batches(file) if isinstance(item, Unreadable)]
    assert (bad.position, bad.length_bytes) == (whole[1], whole[4] - whole[1])


def test_a_walk_may_begin_at_an_offset(world):
    files = files_of(world)
    segment = files.segments[1]
    items = list(segment_batches(world.disk, segment, from_offset=segment.base_offset + 5))
    assert items[0].header.base_offset == segment.base_offset + 4
    assert items[0].header.last_offset >= segment.base_offset + 5


def test_a_bad_index_does_not_lead_a_walk_astray(world):
    segment = files_of(world).segments[1]
    path = segment.side(".idx")
    for position in range(len(world.disk.snapshot()[path])):
        world.disk.flip(path, position, bit=2)
        [first, *_] = segment_batches(world.disk, segment, from_offset=segment.base_offset + 8)
        assert first.header.base_offset == segment.base_offset + 8
        world.disk.flip(path, position, bit=2)


@pytest.mark.parametrize("suffix", [".idx", ".tidx", ".state"])
def test_side_files_can_be_shown(world, suffix):
    path = names_of(world.disk, suffix)[-1]
    content = read_content(world.disk, path)
    assert content is not None
    assert content.fault is None
    assert content.facts
    list(content.rows)
    world.disk.cut(path, 20)
    damaged = read_content(world.disk, path)
    assert damaged is not None
    assert damaged.fault is not None


def test_an_index_shows_offsets_and_positions_of_batches(world):
    segment = files_of(world).segments[0]
    content = read_content(world.disk, segment.side(".idx"))
    batches = {item.header.base_offset: item.position for item in segment_batches(world.disk, segment)}
    rows = list(content.rows)
    assert rows
    assert all(batches[offset] == position for offset, position in rows)


def test_a_write_ahead_file_shows_its_entries():
    world = new_world()
    for _ in range(3):
        world.write(b"a", b"b")
    world.disk.kill()
    topic = read_directory(world.disk).topics[0]
    path = names_of(world.disk, ".wal", under="wal")[0]
    rows = [
        dict(zip(content.columns, row, strict=True))
        for content in [read_content(world.disk, path, {topic.id_bytes: "t"})]
        for row in content.rows
    ]
    assert [(row["entry"], row["topic"], row["first_offset"], row["last_offset"]) for row in rows] == [
        ("append", "t", 0, 1),
        ("append", "t", 2, 3),
        ("append", "t", 4, 5),
    ]


def test_documents_can_be_shown(world):
    for name in ("topic_metadata.json", "checkpoint.json"):
        content = read_content(world.disk, name)
        assert content is not None
        assert any("t" in str(row) for row in content.rows)


def test_a_file_of_no_known_kind_is_not_explained(world):
    assert read_content(world.disk, "holiday.jpg") is None

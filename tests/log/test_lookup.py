"""Records are found by key, offset and time, in as few segments as the filters allow."""

import pytest
from building import NOW_MS, names_of, new_world, transactional

from rivven.errors import OffsetOutOfRange
from rivven.log import KeyLookup, find_offset, find_timestamp, read_directory, read_partition


def files_of(disk):
    directory = read_directory(disk)
    [(topic, place)] = directory.partitions()
    return read_partition(disk, directory, topic, place)


@pytest.fixture
def world():
    """Offsets 0 to 39, two to a batch; each key twice in the same batch and again 10 offsets later."""
    world = new_world()
    for number in range(20):
        world.write(b"value %d" % number, b"x" * 60, key=b"key-%d" % (number // 2), timestamp_ms=NOW_MS + number * 10)
    world.store.close()
    return world


def test_a_key_is_found_newest_first(world):
    found = list(KeyLookup(world.disk, b"key-3").newest_first(files_of(world.disk)))
    assert [match.record.offset for match in found] == [15, 14, 13, 12]
    assert found[-1].record.value == b"value 6"
    assert found[0].path in names_of(world.disk, ".log")


def test_a_key_that_is_nowhere_is_not_found(world):
    lookup = KeyLookup(world.disk, b"nobody")
    assert list(lookup.newest_first(files_of(world.disk))) == []
    assert lookup.segments_read == len(names_of(world.disk, ".log"))
    assert names_of(world.disk, ".bloom") == []


def test_filters_are_made_on_the_way_and_then_used(world):
    files = files_of(world.disk)
    first = KeyLookup(world.disk, b"key-3", world.disk)
    before = list(first.newest_first(files))
    assert first.filters_saved == len(files.segments) - 1
    second = KeyLookup(world.disk, b"key-3", world.disk)
    assert list(second.newest_first(files)) == before
    assert second.filters_saved == 0
    assert second.segments_skipped > 0
    assert second.segments_read + second.segments_skipped == len(files.segments)


def test_a_filter_made_on_the_way_knows_of_tombstones():
    from rivven.log.bloom import Bloom

    world = new_world()
    world.write(None, key=b"gone")
    world.log().roll()
    world.write(b"here", key=b"here")
    world.log().roll()
    world.store.close()
    list(KeyLookup(world.disk, b"gone", world.disk).newest_first(files_of(world.disk)))
    blooms = [Bloom.load(world.disk, path) for path in names_of(world.disk, ".bloom")]
    assert [bloom.tombstones for bloom in blooms if bloom is not None] == [True, False]


def test_no_filter_is_made_for_a_damaged_segment(world):
    files = files_of(world.disk)
    world.disk.flip(files.segments[0].path, 150)
    lookup = KeyLookup(world.disk, b"key-0", world.disk)
    list(lookup.newest_first(files))
    assert lookup.filters_saved == len(files.segments) - 2
    assert len(lookup.damage) == 1
    assert files.segments[0].path in lookup.damage[0]


def test_deleted_records_are_not_found():
    world = new_world()
    world.write(b"old", key=b"k")
    world.write(b"new", key=b"k")
    world.store.delete_before(world.log(), 1)
    world.store.close()
    found = list(KeyLookup(world.disk, b"k").newest_first(files_of(world.disk)))
    assert [match.record.value for match in found] == [b"new"]


def test_records_of_transactions_say_how_they_ended():
    world = new_world()
    for producer_id, commit in ((7, True), (8, False), (9, None)):
        world.write(b"v%d" % producer_id, key=b"k", **transactional(producer_id=producer_id))
        if commit is not None:
            world.mark(producer_id, commit=commit)
    world.store.close()
    found = list(KeyLookup(world.disk, b"k").newest_first(files_of(world.disk)))
    assert [(match.record.value, match.transaction) for match in found] == [
        (b"v9", "open"),
        (b"v8", "aborted"),
        (b"v7", "committed"),
    ]


def test_a_marker_is_not_found_by_its_key():
    world = new_world()
    world.write(b"v", key=b"k", **transactional())
    world.mark(7, commit=True)
    world.store.close()
    assert list(KeyLookup(world.disk, bytes([0, 0, 0, 1])).newest_first(files_of(world.disk))) == []


@pytest.mark.parametrize("offset", [0, 1, 17, 39])
def test_a_record_is_found_by_offset(world, offset):
    match = find_offset(world.disk, files_of(world.disk), offset)
    assert match is not None
    assert match.record.offset == offset


def test_an_offset_outside_the_log_is_refused(world):
    with pytest.raises(OffsetOutOfRange, match=r"offset 40 of t/0 is outside \[0, 39\]"):
        find_offset(world.disk, files_of(world.disk), 40)


def test_a_record_is_found_by_time(world):
    match = find_timestamp(world.disk, files_of(world.disk), NOW_MS + 95)
    assert match is not None
    assert (match.record.offset, match.record.timestamp_ms) == (20, NOW_MS + 100)
    assert find_timestamp(world.disk, files_of(world.disk), NOW_MS + 10_000) is None
    assert find_timestamp(world.disk, files_of(world.disk), 0).record.offset == 0

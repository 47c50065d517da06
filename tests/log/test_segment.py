"""One segment: its batches, its two indexes, and what a damaged one still gives."""

from __future__ import annotations

from random import Random

import pytest
from building import batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rivven.errors import CorruptLog
from rivven.limits import INDEX_INTERVAL_BYTES
from rivven.log.segment import Segment
from rivven.model import TopicPartition
from rivven.record import HEADER_BYTES, decode, encode, parse_header, walk
from rivven.sim import SimDisk

PARTITION = TopicPartition("t", 0)
BASE = 100

shapes = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 120), st.integers(0, 50)), min_size=1, max_size=30
)  # records, value bytes, timestamp


def new_segment(disk: SimDisk, interval_bytes: int = 200) -> Segment:
    disk.make_dirs("p")
    return Segment(disk, "p", PARTITION, BASE, interval_bytes)


def filled(shape: list[tuple[int, int, int]], interval_bytes: int = 200) -> tuple[SimDisk, Segment, list[bytes]]:
    disk = SimDisk(Random(0))
    segment = new_segment(disk, interval_bytes)
    segment.create()
    batches = []
    for count, value_bytes, timestamp_ms in shape:
        rows = [(timestamp_ms - turn, None, bytes(value_bytes), ()) for turn in range(count)]
        batch = encode(rows, base_offset=segment.next_offset)
        segment.note(parse_header(batch), segment.write(batch))
        batches.append(bytes(batch))
    return disk, segment, batches


def flush(disk: SimDisk, segment: Segment) -> None:
    for job in segment.index_flushes():
        job.run(disk, sync=True)
        job.finish()


def reloaded(disk: SimDisk, interval_bytes: int = 200) -> Segment:
    segment = new_segment(disk, interval_bytes)
    segment.seal(segment.next_offset)
    segment.load()
    return segment


def test_positions_are_dense_and_offsets_grow():
    disk, segment, batches = filled([(2, 10, 5), (1, 20, 9), (3, 0, 7)])
    assert disk.snapshot()[segment.path] == b"".join(batches)
    assert (segment.base_offset, segment.next_offset, segment.max_timestamp_ms) == (100, 106, 9)
    assert segment.end_bytes == sum(map(len, batches))


def test_its_files_are_named_after_the_first_offset():
    segment = new_segment(SimDisk(Random(0)))
    assert (segment.path, segment.side(".idx")) == ("p/00000000000000000100.log", "p/00000000000000000100.idx")


def test_the_index_is_sparse_by_default():
    _, segment, _ = filled([(1, 930, 0)] * 40, INDEX_INTERVAL_BYTES)
    assert 40_000 // 5000 - 1 <= len(segment._offsets) <= 10
    assert len(segment._times) == len(segment._offsets)


@given(shapes, st.integers(0, 100), st.sampled_from([1, 100, 200, 700, 4096]))
@settings(max_examples=80)
def test_looking_up_an_offset_equals_a_linear_search(shape, step, interval_bytes):
    _, segment, batches = filled(shape, interval_bytes)
    offset = BASE + step
    position = 0
    for batch in batches:
        if parse_header(batch).last_offset >= offset:
            assert segment.position_of(offset) == position
            assert bytes(segment.read(offset, 1)) == batch
            return
        position += len(batch)
    assert segment.position_of(offset) is None
    assert segment.read(offset, 1) is None


@given(shapes, st.integers(-5, 55), st.sampled_from([1, 200, 4096]))
@settings(max_examples=80)
def test_looking_up_a_time_equals_a_linear_search(shape, timestamp_ms, interval_bytes):
    _, segment, batches = filled(shape, interval_bytes)
    expected = next((h.base_offset for h in map(parse_header, batches) if h.max_timestamp_ms >= timestamp_ms), None)
    assert segment.offset_for_timestamp(timestamp_ms, segment.next_offset) == expected


@given(shapes, st.integers(0, 100), st.integers(1, 2000))
@settings(max_examples=80)
def test_a_read_gives_whole_batches_up_to_a_limit(shape, step, bytes_max):
    _, segment, batches = filled(shape)
    data = segment.read(BASE + step, bytes_max)
    if data is None:
        assert BASE + step >= segment.next_offset
        return
    headers = [header for _, header in walk(data)]
    assert sum(header.batch_bytes for header in headers) == len(data)
    assert headers[0].base_offset <= BASE + step <= headers[0].last_offset
    assert len(data) <= bytes_max or len(headers) == 1
    if headers[-1].next_offset < segment.next_offset:
        following = next(b for b in batches if parse_header(b).base_offset == headers[-1].next_offset)
        assert len(data) + len(following) > bytes_max, "it could have given one more"


@given(shapes, st.integers(0, 100))
@settings(max_examples=80)
def test_truncation_leaves_what_a_shorter_segment_would_be(shape, step):
    disk, segment, _ = filled(shape)
    flush(disk, segment)
    offset = BASE + step
    end = segment.end_below(offset)
    segment.truncate(offset)
    kept, next_offset = [], BASE
    for count, value_bytes, timestamp_ms in shape:
        if next_offset + count > offset:
            break
        kept.append((count, value_bytes, timestamp_ms))
        next_offset += count
    other_disk, other, _ = filled(kept)
    assert end == segment.next_offset == other.next_offset
    assert (segment.end_bytes, segment.max_timestamp_ms) == (other.end_bytes, other.max_timestamp_ms)
    assert disk.snapshot()[segment.path] == other_disk.snapshot()[other.path]
    assert segment.columns == other.columns
    batch = batch_of(b"more", base_offset=segment.next_offset)
    segment.note(parse_header(batch), segment.write(batch))


@given(shapes, st.integers(0, 30))
@settings(max_examples=60)
def test_a_loaded_segment_is_the_one_that_was_written(shape, flushed):
    disk = SimDisk(Random(0))
    segment = new_segment(disk)
    segment.create()
    for place, (count, value_bytes, timestamp_ms) in enumerate(shape):
        batch = batch_of(*[bytes(value_bytes)] * count, timestamp_ms=timestamp_ms, base_offset=segment.next_offset)
        segment.note(parse_header(batch), segment.write(batch))
        if place == flushed:
            flush(disk, segment)
    again = reloaded(disk)
    assert (again.end_bytes, again.next_offset) == (segment.end_bytes, segment.next_offset)
    assert again.max_timestamp_ms == segment.max_timestamp_ms
    for offset in range(BASE, segment.next_offset):
        assert again.position_of(offset) == segment.position_of(offset)


LONG = [(2, 50, 10 * n) for n in range(20)]


def damage_flip(disk: SimDisk, path: str) -> None:
    disk.flip(path, 20, 3)


def damage_cut(disk: SimDisk, path: str) -> None:
    disk.cut(path, len(disk.snapshot()[path]) - 3)


def damage_remove(disk: SimDisk, path: str) -> None:
    disk.remove(path)


@pytest.mark.parametrize("suffix", [".idx", ".tidx"])
@pytest.mark.parametrize("damage", [damage_flip, damage_cut, damage_remove])
def test_a_bad_index_is_made_again_from_the_log_and_said_so(suffix, damage):
    disk, segment, _ = filled(LONG)
    segment.seal(segment.next_offset)
    flush(disk, segment)
    damage(disk, segment.side(suffix))
    again = reloaded(disk)
    assert again.rebuilt
    assert again.columns == segment.columns


def test_an_index_that_points_past_the_end_is_made_again():
    disk, segment, batches = filled(LONG)
    flush(disk, segment)
    disk.cut(segment.path, len(batches[0]))
    again = reloaded(disk)
    assert again.rebuilt
    assert (again.end_bytes, again.next_offset) == (len(batches[0]), BASE + 2)


def test_an_index_of_other_content_is_made_again():
    disk, segment, _ = filled(LONG)
    flush(disk, segment)
    other, _, batches = filled([(1, 77, 5)] * 30)
    content = other.snapshot()[segment.path]
    disk.cut(segment.path, 0)
    disk.open(segment.path).write(content, 0)
    again = reloaded(disk)
    assert again.rebuilt
    assert [bytes(again.read(BASE + n, 1)) for n in range(30)] == batches


def test_recovery_does_not_trust_an_index_of_other_content():
    """After a truncation, a crash may keep the old index beside the new batches: they must not pay for it."""
    disk, segment, _ = filled(LONG)
    flush(disk, segment)
    other, _, batches = filled([(1, 77, 5)] * 30)
    content = other.snapshot()[segment.path]
    disk.cut(segment.path, 0)
    disk.open(segment.path).write(content, 0)
    again = new_segment(disk)
    outcome = again.recover(BASE + 30)
    assert (outcome.damage, outcome.cut_bytes) == ([], 0)
    assert [bytes(again.read(BASE + n, 1)) for n in range(30)] == batches


def test_recovery_does_not_trust_an_index_that_points_past_the_end():
    disk, segment, _ = filled(LONG)
    flush(disk, segment)
    other, _, batches = filled([(9, 0, 5)] * 4)
    disk.cut(segment.path, 0)
    disk.open(segment.path).write(other.snapshot()[segment.path], 0)
    again = new_segment(disk)
    again.recover(BASE + 36)
    assert (again.next_offset, again.end_bytes) == (BASE + 36, sum(map(len, batches)))


def test_recovery_cuts_a_torn_tail():
    disk, segment, batches = filled(LONG)
    disk.cut(segment.path, segment.end_bytes - 5)
    again = new_segment(disk)
    outcome = again.recover(BASE)
    assert (again.next_offset, outcome.cut_bytes, outcome.damage) == (BASE + 38, len(batches[-1]) - 5, [])
    assert len(disk.snapshot()[segment.path]) == again.end_bytes
    assert set(outcome.crcs) == {BASE + 2 * n for n in range(19)}


def test_recovery_keeps_a_damaged_batch_that_was_acknowledged():
    disk, segment, batches = filled(LONG)
    flush(disk, segment)
    position = segment.position_of(BASE + 38)
    disk.flip(segment.path, position + HEADER_BYTES + 2)
    again = new_segment(disk)
    outcome = again.recover(BASE + 40)
    assert [(first, last) for first, last, _, _ in outcome.damage] == [(BASE + 38, BASE + 39)]
    assert (again.next_offset, outcome.cut_bytes) == (BASE + 40, 0)
    with pytest.raises(CorruptLog):
        again.read(BASE + 38, 1)
    assert bytes(again.read(BASE + 36, 1)) == batches[-2]


def test_recovery_puts_aside_what_it_cannot_step_over():
    disk, segment, batches = filled(LONG)
    flush(disk, segment)
    position = segment.position_of(BASE + 38)
    disk.flip(segment.path, position + 16)  # the magic byte: nobody knows where the next batch begins
    again = new_segment(disk)
    outcome = again.recover(BASE + 40)
    assert [(first, last) for first, last, _, _ in outcome.damage] == [(BASE + 38, BASE + 39)]
    assert again.next_offset == BASE + 38
    assert len(disk.snapshot()[segment.path + ".damaged"]) == len(batches[-1])


@pytest.mark.parametrize("place", [8, 16, 17, 22, HEADER_BYTES + 1])
def test_a_read_of_a_damaged_batch_names_it_and_the_others_go_on(place):
    disk, segment, batches = filled(LONG)
    position = segment.position_of(BASE + 10)
    disk.flip(segment.path, position + place, 6)
    assert bytes(segment.read(BASE + 8, 1)) == batches[4]
    assert bytes(segment.read(BASE + 8, 10_000)) == batches[4]
    with pytest.raises(CorruptLog) as caught:
        segment.read(BASE + 10, 10_000)
    facts = caught.value.facts
    assert (facts["partition"], facts["path"], facts["first"]) == (PARTITION, segment.path, BASE + 10)
    assert BASE + 11 <= facts["last"] < segment.next_offset
    if facts["last"] + 1 < segment.next_offset:
        assert decode(segment.read(facts["last"] + 1, 1))[0].offset == facts["last"] + 1


def test_a_batch_larger_than_an_index_interval_is_found():
    _, segment, batches = filled([(1, 10, 0), (1, 5000, 0), (1, 10, 0), (1, 3000, 0), (1, 10, 0)], 100)
    for step, batch in enumerate(batches):
        assert bytes(segment.read(BASE + step, 1)) == batch


def test_a_segment_that_was_unloaded_loads_again():
    disk, segment, batches = filled(LONG)
    flush(disk, segment)
    segment.seal(segment.next_offset)
    segment.dirty = False
    segment.unload()
    assert not segment.loaded
    assert (segment.next_offset, segment.end_bytes) == (BASE + 40, sum(map(len, batches)))
    assert bytes(segment.read(BASE + 20, 1)) == batches[10]


def test_to_remove_it_takes_all_its_files():
    disk, segment, _ = filled(LONG)
    flush(disk, segment)
    segment.remove()
    assert disk.snapshot() == {}

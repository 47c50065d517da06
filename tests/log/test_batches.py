"""Walking the batches of a file: each one once, and a stop with a reason at the first that is none."""

from __future__ import annotations

from random import Random

import pytest
from building import batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rivven.log import batches as module
from rivven.log.batches import Batches
from rivven.ports import File
from rivven.record import HEADER_BYTES, parse_header
from rivven.sim import SimDisk


def file_of(*batches: bytes) -> tuple[SimDisk, File]:
    disk = SimDisk(Random(0))
    file = disk.open("a.log", create=True)
    file.write(b"".join(batches), 0)
    return disk, file


def row(count: int, value_bytes: int = 5) -> list[bytes]:
    return [bytes(batch_of(b"v" * value_bytes, b"w", base_offset=2 * n)) for n in range(count)]


def test_every_batch_comes_once_with_its_place():
    batches = row(4)
    _, file = file_of(*batches)
    walk = Batches(file)
    found = list(walk)
    assert [bytes(each.data) for each in found] == batches
    assert [each.header.base_offset for each in found] == [0, 2, 4, 6]
    assert [each.position for each in found] == [n * len(batches[0]) for n in range(4)]
    assert (walk.bad, walk.position, walk.next_offset) == (None, file.length(), 8)


def test_an_empty_file_is_a_clean_end():
    walk = Batches(file_of(b"")[1])
    assert (list(walk), walk.bad, walk.position) == ([], None, 0)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.integers(80, 700))
@settings(max_examples=50)
def test_the_size_of_the_reads_does_not_matter(lengths, chunk_bytes):
    batches = [bytes(batch_of(b"v" * length, base_offset=n)) for n, length in enumerate(lengths)]
    _, file = file_of(*batches)
    before, module.CHUNK_BYTES = module.CHUNK_BYTES, chunk_bytes
    try:
        assert [bytes(each.data) for each in Batches(file)] == batches
    finally:
        module.CHUNK_BYTES = before


@given(st.integers(0, 400))
def test_a_cut_ends_the_walk_where_the_good_part_ends(length_bytes):
    batches = row(4)
    disk, file = file_of(*batches)
    length_bytes = min(length_bytes, file.length())
    disk.cut("a.log", length_bytes)
    walk = Batches(file)
    count = len(list(walk))
    assert walk.position == count * len(batches[0]) <= length_bytes
    assert (walk.bad is None) == (walk.position == length_bytes)


@pytest.mark.parametrize("place", [16, 17, HEADER_BYTES + 3])
def test_a_flipped_bit_ends_the_walk_and_says_why(place):
    batches = row(3)
    disk, file = file_of(*batches)
    disk.flip("a.log", len(batches[0]) + place, 3)
    walk = Batches(file)
    assert (len(list(walk)), walk.position) == (1, len(batches[0]))
    assert walk.bad


def test_without_verifying_only_headers_are_looked_at():
    batches = row(3)
    disk, file = file_of(*batches)
    disk.flip("a.log", len(batches[0]) + HEADER_BYTES + 3)
    walk = Batches(file, verify=False)
    assert (len(list(walk)), walk.bad) == (3, None)


def test_offsets_that_go_back_are_damage():
    batches = row(2)
    walk = Batches(file_of(batches[1], batches[0])[1])
    assert len(list(walk)) == 1
    assert "offset 0 where 4 or more was due" in walk.bad
    assert list(Batches(file_of(batches[0])[1], offset_min=1)) == []


def test_offsets_may_leave_gaps():
    batches = row(5)
    walk = Batches(file_of(batches[0], batches[3])[1])
    assert ([each.header.base_offset for each in walk], walk.bad) == ([0, 6], None)


def test_it_may_begin_and_end_between_batches():
    batches = row(5)
    length_bytes = len(batches[0])
    walk = Batches(file_of(*batches)[1], length_bytes, 3 * length_bytes)
    assert ([each.header.base_offset for each in walk], walk.bad) == ([2, 4], None)


@given(st.binary(max_size=300))
def test_garbage_ends_the_walk_and_never_raises(garbage):
    good = bytes(batch_of(b"v"))
    walk = Batches(file_of(good, garbage)[1])
    assert len(list(walk)) >= 1
    assert parse_header(good).next_offset <= walk.next_offset
    assert (walk.bad is None) == (walk.position == len(good) + len(garbage))

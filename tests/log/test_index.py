"""Sparse indexes: lookups equal a linear search, files carry them to the next life, damage is told."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.log.index import BLOCK, OFFSETS, TIMES, Index
from rivven.sim import SimDisk

rising = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=40)


def add(index: Index, key: int, value: int) -> None:
    """As `tail` does."""
    index.keys.append(key)
    index.values.append(value)


def build(steps: list[tuple[int, int]], kind=OFFSETS) -> tuple[Index, list[tuple[int, int]]]:
    index, entries, key, value = Index(kind), [], 0, 0
    for key_step, value_step in steps:
        key, value = key + key_step, value + value_step
        add(index, key, value)
        entries.append((key, value))
    return index, entries


def save(index: Index, disk: SimDisk, path: str = "a.idx") -> None:
    flush = index.flush(path)
    flush.run(disk, sync=True)
    flush.finish()


def entries_of(index: Index) -> list[tuple[int, int]]:
    return list(zip(index.keys, index.values, strict=True))


@given(rising, st.integers(0, 200))
def test_lookups_equal_a_linear_search(steps, key):
    index, entries = build(steps)
    assert index.at_or_below(key) == max((e for e in entries if e[0] <= key), default=None)
    assert index.below(key) == max((e for e in entries if e[0] < key), default=None)
    assert index.above(key) == min((e for e in entries if e[0] > key), default=None)
    assert index.last() == (entries[-1] if entries else None)


@given(rising, st.integers(-1, 200))
def test_a_cut_forgets_the_values_above_it(steps, value_max):
    index, entries = build(steps)
    index.cut(value_max)
    assert entries_of(index) == [entry for entry in entries if entry[1] <= value_max]


@given(rising, st.lists(st.integers(0, 40), max_size=4).map(sorted))
def test_any_row_of_flushes_reads_back_as_one_index(steps, stops):
    disk = SimDisk(Random(0))
    whole, entries = build(steps)
    index = Index(OFFSETS)
    for place, entry in enumerate(entries):
        if place in stops:
            save(index, disk)
        add(index, *entry)
    save(index, disk)
    again, problem = Index.load(disk, "a.idx", OFFSETS)
    assert (entries_of(again), problem) == (entries_of(whole), None if entries else "missing")


def test_a_flush_writes_only_what_the_file_lacks():
    disk = SimDisk(Random(0))
    index, _ = build([(1, 1)] * 10)
    save(index, disk)
    before = disk.snapshot()["a.idx"]
    save(index, disk)
    assert disk.snapshot()["a.idx"] == before
    add(index, 100, 100)
    save(index, disk)
    assert disk.snapshot()["a.idx"].startswith(before)
    assert len(disk.snapshot()["a.idx"]) == len(before) + BLOCK.size + 8


@given(rising, st.integers(0, 100), rising)
def test_after_a_cut_the_file_holds_the_new_content_alone(steps, value_max, more):
    disk = SimDisk(Random(0))
    index, _ = build(steps)
    save(index, disk)
    index.cut(value_max)
    key, value = index.last() or (0, 0)
    for key_step, value_step in more:
        key, value = key + key_step, value + value_step
        add(index, key, value)
    save(index, disk)
    again, problem = Index.load(disk, "a.idx", OFFSETS)
    assert entries_of(again) == entries_of(index)
    assert problem in (None, "missing")


def test_a_flush_overtaken_by_a_cut_does_not_count():
    disk = SimDisk(Random(0))
    index, _ = build([(1, 10)] * 6)
    flush = index.flush("a.idx")
    index.cut(30)
    flush.run(disk, sync=True)
    flush.finish()
    add(index, 50, 50)
    save(index, disk)
    assert entries_of(Index.load(disk, "a.idx", OFFSETS)[0]) == [(1, 10), (2, 20), (3, 30), (50, 50)]


def test_times_may_repeat_but_offsets_may_not():
    for kind, problem in ((TIMES, None), (OFFSETS, "not in order")):
        disk, index = SimDisk(Random(0)), Index(kind)
        add(index, 5, 1)
        add(index, 5, 2)
        save(index, disk)
        assert Index.load(disk, "a.idx", kind)[1] == problem


def test_a_time_index_holds_any_timestamp():
    disk, index = SimDisk(Random(0)), Index(TIMES)
    for value, key in enumerate((-(2**62), -1, 0, 2**62)):
        add(index, key, value + 1)
    save(index, disk)
    assert entries_of(Index.load(disk, "a.idx", TIMES)[0]) == entries_of(index)


@pytest.mark.parametrize(("keys", "values"), [((3, 2), (1, 2)), ((1, 2), (2, 1)), ((1, 2), (2, 2))])
def test_entries_out_of_order_are_refused(keys, values):
    disk, index = SimDisk(Random(0)), Index(OFFSETS)
    for key, value in zip(keys, values, strict=True):
        add(index, key, value)
    save(index, disk)
    assert Index.load(disk, "a.idx", OFFSETS)[1] == "not in order"


def test_blocks_out_of_order_are_refused():
    disk, index = SimDisk(Random(0)), Index(OFFSETS)
    for key in (5, 4):
        add(index, key, key)
        save(index, disk)
    again, problem = Index.load(disk, "a.idx", OFFSETS)
    assert (entries_of(again), problem) == ([(5, 5)], "not in order")


def test_an_index_of_the_other_kind_is_refused():
    disk = SimDisk(Random(0))
    save(build([(1, 1)])[0], disk)
    assert Index.load(disk, "a.idx", TIMES)[1] == "not an index block"


def two_blocks() -> tuple[SimDisk, Index]:
    disk = SimDisk(Random(0))
    index, _ = build([(2, 3)] * 5)
    save(index, disk)
    add(index, 90, 90)
    save(index, disk)
    return disk, index


def test_no_flipped_bit_gives_a_wrong_entry():
    length_bytes = len(two_blocks()[0].snapshot()["a.idx"])
    for place in range(length_bytes * 8):
        disk, index = two_blocks()
        disk.flip("a.idx", place // 8, place % 8)
        again, problem = Index.load(disk, "a.idx", OFFSETS)
        good = entries_of(index)
        assert entries_of(again) == good[: len(again)], place
        assert problem is not None or len(again) == len(good), place


def test_no_cut_gives_a_wrong_entry():
    length_bytes = len(two_blocks()[0].snapshot()["a.idx"])
    for length in range(length_bytes):
        disk, index = two_blocks()
        disk.cut("a.idx", length)
        again, _ = Index.load(disk, "a.idx", OFFSETS)
        assert entries_of(again) == entries_of(index)[: len(again)]

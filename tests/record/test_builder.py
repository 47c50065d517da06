"""Batches written record by record are those that `encode` writes, and no record is lost on the quick way in."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.errors import Malformed

NOW_NS = 1_700_000_000_000_999_999
NOW_MS = 1_700_000_000_000
FAR = 1 << 40

fields = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5), fields), max_size=3).map(tuple)
new_records = st.lists(st.tuples(st.integers(-(2**61), 2**61), fields, fields, headers), min_size=1, max_size=30)


def begun(record: ModuleType, partitions: int = 3):
    """A sorter and its builders, each with a record in it and far from its mark."""
    sorter, builders = record.Sorter(), [record.BatchBuilder() for _ in range(partitions)]
    for builder in builders:
        builder.put(NOW_MS, None, b"first", (), 37)
        builder.mark = FAR
        sorter.extend(builder)
    return sorter, builders


@given(rows=new_records, codec=st.integers(0, 4))
def test_a_built_batch_is_the_one_that_encode_writes(record: ModuleType, rows, codec):
    builder = record.BatchBuilder()
    assert [builder.put(*row, 50) for row in rows] == list(range(len(rows)))
    assert (builder.count, builder.size_bytes) == (len(rows), 50 * len(rows))
    built = builder.take()
    assert (built.count, built.size_bytes) == (len(rows), 50 * len(rows))
    assert record.complete(built, codec=record.Codec(codec)) == record.encode(rows, codec=record.Codec(codec))


@given(rows=new_records)
def test_a_plain_batch_comes_with_its_header(record: ModuleType, rows):
    builder = record.BatchBuilder()
    for row in rows:
        builder.put(*row, 50)
    batch, header = record.complete_plain(builder.take())
    assert batch == record.encode(rows)
    assert header == record.validate(batch)


def test_an_empty_batch_has_no_header(record: ModuleType):
    with pytest.raises((Malformed, AssertionError)):
        record.complete_plain(record.BatchBuilder().take())


def test_a_builder_begins_anew_after_each_batch(record: ModuleType):
    builder = record.BatchBuilder()
    for number in range(3):
        builder.put(number, b"k", b"v" * 5000 * number, (), 10)
        builder.mark = FAR
        assert record.decode(record.complete(builder.take())) == [(0, number, b"k", b"v" * 5000 * number, ())]
        assert (builder.count, builder.size_bytes, builder.mark) == (0, 0, 0)


def test_a_batch_of_nothing_is_not_completed(record: ModuleType):
    with pytest.raises(ValueError, match="not 0"):
        record.complete(record.BatchBuilder().take())


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ((1.5, None, None, ()), TypeError),
        ((2**63, None, None, ()), OverflowError),
        ((-(2**63), None, None, ()), OverflowError),
        ((1, None, "text", ()), TypeError),
        ((1, None, None, [(7, b"v")]), AttributeError),
    ],
)
def test_what_cannot_be_written_leaves_the_batch_as_it_was(record: ModuleType, row, error):
    builder = record.BatchBuilder()
    builder.put(5, b"k", b"v", (), 10)
    with pytest.raises(error):
        builder.put(*row, 10)
    builder.put(6, b"k", b"w", (), 10)
    found = record.decode(record.complete(builder.take()))
    assert [(entry.timestamp_ms, entry.value) for entry in found] == [(5, b"v"), (6, b"w")]


@given(keys=st.lists(st.none() | st.binary(max_size=20), max_size=40), partitions=st.integers(1, 7))
def test_a_record_goes_to_the_partition_of_its_key_or_to_the_sticky_one(record: ModuleType, keys, partitions):
    sorter, builders = begun(record, partitions)
    sorter.sticky = builders[-1]
    expected = [[b"first"] for _ in builders]
    for place, key in enumerate(keys):
        value = b"%d" % place
        assert sorter.add(value, key, NOW_NS)
        expected[partitions - 1 if key is None else record.partition_for_key(key, partitions)].append(value)
    for builder, values in zip(builders, expected, strict=True):
        size_bytes = builder.size_bytes
        found = record.decode(record.complete(builder.take()))
        assert [entry.value for entry in found] == values
        assert {entry.timestamp_ms for entry in found} == {NOW_MS}
        assert size_bytes == sum(
            len(entry.value) + len(entry.key or b"") + record.RECORD_OVERHEAD_BYTES for entry in found
        )


@pytest.mark.parametrize(
    ("value", "key"),
    [(None, None), (bytearray(b"v"), None), ("text", None), (b"v", bytearray(b"k")), (b"v", "text"), (b"v", None)],
)
def test_what_is_not_plain_is_left_for_the_other_way(record: ModuleType, value, key):
    sorter, builders = begun(record)
    assert not sorter.add(value, key, NOW_NS)  # no partition is sticky yet
    assert [builder.count for builder in builders] == [1, 1, 1]


def test_nothing_is_taken_while_shut_or_without_partitions_or_at_the_mark_or_before_the_first(record: ModuleType):
    assert not record.Sorter().add(b"v", b"k", NOW_NS)
    sorter, (builder,) = begun(record, 1)
    sorter.shut = True
    assert not sorter.add(b"v", b"k", NOW_NS)
    sorter.shut = False
    builder.mark = builder.size_bytes + 34
    assert not sorter.add(b"v", b"k", NOW_NS)
    builder.mark += 1
    assert sorter.add(b"v", b"k", NOW_NS)
    builder.take()
    assert not sorter.add(b"v", b"k", NOW_NS)
    assert builder.count == 0


def test_a_record_too_far_in_time_from_its_batch_is_left_for_the_other_way(record: ModuleType):
    builder, sorter = record.BatchBuilder(), record.Sorter()
    builder.put(-(2**63), None, None, (), 10)
    builder.mark = FAR
    sorter.extend(builder)
    assert not sorter.add(b"v", b"k", NOW_NS)
    assert builder.count == 1


def test_threads_add_while_another_takes_and_every_record_is_there_once(native: ModuleType):
    assert native.ATOMIC
    sorter, builders = begun(native)
    taken, done = [], threading.Event()

    def add(thread: int) -> None:
        for place in range(5000):
            key = b"%d/%d" % (thread, place)
            while not sorter.add(b"v" * (place % 50), key, NOW_NS):
                pass

    def take() -> None:
        while not done.is_set() or any(builder.count > 1 for builder in builders):
            for builder in builders:
                taken.append(builder.take())
                builder.put(NOW_MS, None, b"first", (), 37)
                builder.mark = FAR

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        adding = [threading.Thread(target=add, args=(number,)) for number in range(3)]
        taking = threading.Thread(target=take)
        for thread in (*adding, taking):
            thread.start()
        for thread in adding:
            thread.join()
        done.set()
        taking.join()
    finally:
        sys.setswitchinterval(before)
    found = [entry.key for built in taken for entry in native.decode(native.complete(built)) if entry.key]
    assert sorted(found) == sorted(b"%d/%d" % (thread, place) for thread in range(3) for place in range(5000))

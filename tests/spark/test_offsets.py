"""Offsets as JSON, limits, and the stretches that tasks read."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from rivven.model import TopicPartition
from rivven.spark.offsets import Stretch, from_document, limited, split, to_document
from rivven.spark.planning import parse_sizes

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 5))
SPANS = st.dictionaries(PARTITIONS, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=6)


@given(st.dictionaries(PARTITIONS, st.integers(0, 2**62)))
def test_a_document_holds_the_offsets(offsets: dict[TopicPartition, int]) -> None:
    assert from_document(to_document(offsets)) == offsets


@given(SPANS, st.integers(1, 10**6))
def test_a_limit_is_kept_and_used_up(spans: dict[TopicPartition, tuple[int, int]], rows_max: int) -> None:
    start = {each: begin for each, (begin, _) in spans.items()}
    end = {each: begin + count for each, (begin, count) in spans.items()}
    found = limited(start, end, rows_max)
    assert all(start[each] <= found[each] <= end[each] for each in spans)
    assert sum(found[each] - start[each] for each in spans) == min(
        rows_max, sum(count for _, count in spans.values())
    )


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=4),
    st.integers(1, 20),
    st.integers(100_000, 10**9),
)
def test_a_split_covers_everything_once_in_parts_of_the_size(
    spans: list[tuple[int, int]], partitions_min: int, bytes_max: int
) -> None:
    whole = [Stretch("t", number, start, start + count) for number, (start, count) in enumerate(spans)]
    parts = split(whole, partitions_min=partitions_min, bytes_max=bytes_max, record_bytes=lambda _: 100.0)
    for stretch in whole:
        own = [part for part in parts if part.partition == stretch.partition]
        assert sum(part.count for part in own) == stretch.count
        edges = [stretch.start, *(part.until for part in own)]
        assert [part.start for part in own] == edges[:-1]
        assert all(part.count * 100 <= max(bytes_max + 100, 100) for part in own)
    records = sum(stretch.count for stretch in whole)
    assert len(parts) >= min(partitions_min, records)


def test_the_largest_is_cut_first() -> None:
    whole = [Stretch("t", 0, 0, 90), Stretch("t", 1, 0, 10)]
    parts = split(whole, partitions_min=4, bytes_max=10**9, record_bytes=lambda _: 100.0)
    assert [(part.partition, part.count) for part in parts] == [(0, 30), (0, 30), (0, 30), (1, 10)]


def test_a_stretch_travels_to_its_task() -> None:
    stretch = Stretch("t", 1, 5, 9)
    assert pickle.loads(pickle.dumps(stretch)) == stretch


def test_sizes_are_read_from_metrics_with_labels_in_any_order() -> None:
    text = """# HELP rivven_storage_bytes Bytes
rivven_storage_bytes{topic="a",partition="1"} 12.0
rivven_storage_bytes{partition="0",topic="b"} 1.5e+06
rivven_storage_bytes{partition="all",topic="c"} 3.0
rivven_topics 7.0
"""
    assert parse_sizes(text) == {TopicPartition("a", 1): 12.0, TopicPartition("b", 0): 1_500_000.0}

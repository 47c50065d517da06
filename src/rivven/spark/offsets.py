"""Offsets by partition: as JSON, within a limit, and cut into the stretches that tasks read. Nobody is asked here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import InputPartition

from rivven.model import TopicPartition

Offsets = dict[TopicPartition, int]
Document = dict[str, dict[str, int]]


def to_document(offsets: Mapping[TopicPartition, int]) -> Document:
    """As Spark's checkpoint keeps them.

    >>> to_document({TopicPartition("orders", 1): 7, TopicPartition("orders", 0): 5})
    {'orders': {'0': 5, '1': 7}}
    """
    document: Document = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return document


def from_document(document: Mapping[str, Mapping[str, Any]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, parts in document.items()
        for partition, offset in parts.items()
    }


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], rows_max: int) -> Offsets:
    """An end at most `rows_max` after the start, each partition's share in proportion to what it has.

    >>> one, two = TopicPartition("t", 0), TopicPartition("t", 1)
    >>> sorted(limited({one: 0, two: 0}, {one: 90, two: 10}, 50).values())
    [5, 45]
    """
    backlog = {each: max(0, offset - start.get(each, offset)) for each, offset in end.items()}
    total = sum(backlog.values())
    if total <= rows_max:
        return dict(end)
    shares = {each: divmod(rows_max * count, total) for each, count in backlog.items()}
    left = rows_max - sum(share for share, _ in shares.values())
    by_rest = sorted(shares, key=lambda each: (-shares[each][1], each))
    given = {each: shares[each][0] + (place < left) for place, each in enumerate(by_rest)}
    return {each: start.get(each, offset) + given[each] if backlog[each] else offset for each, offset in end.items()}


@dataclass(frozen=True)
class Stretch(InputPartition):
    """What one task reads: offsets [start, until) of a partition."""

    topic: str
    partition: int
    start: int
    until: int

    @property
    def count(self) -> int:
        return self.until - self.start

    def cut(self, parts: int) -> list[Stretch]:
        """About equal parts, in order; none is empty."""
        parts = max(1, min(parts, self.count))
        edges = [self.start + self.count * place // parts for place in range(parts + 1)]
        return [Stretch(self.topic, self.partition, low, high) for low, high in pairwise(edges)]


def split(
    stretches: Iterable[Stretch],
    *,
    partitions_min: int,
    bytes_max: int,
    record_bytes: Callable[[Stretch], float],
) -> list[Stretch]:
    """Cut what is larger than `bytes_max` by estimate; then cut further until there are `partitions_min`."""
    whole = [stretch for stretch in stretches if stretch.count > 0]
    sizes = [stretch.count * record_bytes(stretch) for stretch in whole]
    cuts = [max(1, -(-int(size) // bytes_max)) for size in sizes]
    if sum(cuts) < partitions_min:
        cuts = _at_least(whole, sizes, cuts, partitions_min)
    return [part for stretch, parts in zip(whole, cuts, strict=True) for part in stretch.cut(parts)]


def _at_least(whole: Sequence[Stretch], sizes: Sequence[float], cuts: list[int], partitions_min: int) -> list[int]:
    """More cuts, always where the parts are largest and can be cut."""
    cuts = list(cuts)
    weights = [size or stretch.count for size, stretch in zip(sizes, whole, strict=True)]
    while sum(cuts) < partitions_min:
        places = [place for place, stretch in enumerate(whole) if cuts[place] < stretch.count]
        if not places:
            break
        cuts[max(places, key=lambda place: weights[place] / cuts[place])] += 1
    return cuts

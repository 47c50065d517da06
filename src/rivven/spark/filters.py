"""Filters that Spark hands down: what they leave of a topic, before any record is fetched.

Topic, partition, offset and timestamp can be bounded. Timestamps need not grow with offsets, so the broker is asked
for the first record that is late enough, and the rows after it are looked at one by one while they are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

T = TypeVar("T")

BEFORE_ALL, AFTER_ALL = -(2**63), 2**63 - 1
NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType", "headers")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers from `low` to `high`, both included."""

    low: int = BEFORE_ALL
    high: int = AFTER_ALL

    def both(self, other: Range) -> Range:
        return Range(max(self.low, other.low), min(self.high, other.high))


EVERYTHING = Range()


@dataclass(frozen=True, slots=True)
class Selection:
    """What is left of all records."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_range: Range = EVERYTHING
    offsets: Range = EVERYTHING
    times_ms: Range = EVERYTHING

    def has(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.partition_range.low <= partition <= self.partition_range.high
        )


def select(filters: Sequence[Filter]) -> tuple[Selection, list[Filter]]:
    """What the filters leave, and which of them Spark still has to apply itself."""
    selection, left = Selection(), []
    for one in filters:
        selection, whole = _narrowed(selection, one)
        if not whole:
            left.append(one)
    return selection, left


def _narrowed(selection: Selection, one: Filter) -> tuple[Selection, bool]:
    """The selection under one more filter, and whether that is all there is to it."""
    attribute: Any = getattr(one, "attribute", ())
    if len(attribute) != 1:
        return selection, False
    name = attribute[0]
    if isinstance(one, IsNotNull):
        return selection, name in NEVER_NULL
    match name:
        case "topic":
            return _by_topic(selection, one)
        case "partition":
            return _by_partition(selection, one)
        case "offset":
            return _by_range(selection, "offsets", one, int)
        case "timestamp":
            return _by_range(selection, "times_ms", one, datetime)
    return selection, False


def _values(one: Filter, kind: type) -> list[Any] | None:
    """What an equality allows; None if the filter is none, or compares with something else."""
    if isinstance(one, EqualTo | EqualNullSafe):
        values = [one.value]
    elif isinstance(one, In):
        values = list(one.value)
    else:
        return None
    fit = all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
    return values if fit and values else None


def _by_topic(selection: Selection, one: Filter) -> tuple[Selection, bool]:
    values = _values(one, str)
    if values is None:
        return selection, False
    return replace(selection, topics=_both(selection.topics, frozenset(values))), True


def _both(before: frozenset[T] | None, now: frozenset[T]) -> frozenset[T]:
    return now if before is None else before & now


def _by_partition(selection: Selection, one: Filter) -> tuple[Selection, bool]:
    values = _values(one, int)
    if values is None:
        return _by_range(selection, "partition_range", one, int)
    return replace(selection, partitions=_both(selection.partitions, frozenset(values))), True


def _by_range(selection: Selection, field: str, one: Filter, kind: type) -> tuple[Selection, bool]:
    bounds, whole = _bounds(one, kind), True
    if bounds is None:
        values = _values(one, kind)
        if values is None:
            return selection, False
        ranges = [_equal(value) for value in values]
        bounds, whole = Range(min(each.low for each in ranges), max(each.high for each in ranges)), len(values) == 1
    return replace(selection, **{field: getattr(selection, field).both(bounds)}), whole


def _bounds(one: Filter, kind: type) -> Range | None:
    if not isinstance(one, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    value: Any = one.value
    if not isinstance(value, kind) or isinstance(value, bool):
        return None
    low, high = _neighbours(value)
    match one:
        case GreaterThan():
            return Range(low=low + 1)
        case GreaterThanOrEqual():
            return Range(low=high)
        case LessThan():
            return Range(high=high - 1)
        case _:
            return Range(high=low)


def _equal(value: Any) -> Range:
    """Nothing at all where a time falls between two milliseconds."""
    low, high = _neighbours(value)
    return Range(high, low)


def _neighbours(value: Any) -> tuple[int, int]:
    """The whole numbers next to a value, below and above; a time counts in milliseconds."""
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH
        return since // timedelta(milliseconds=1), -(-since // timedelta(milliseconds=1))
    return int(value), int(value)

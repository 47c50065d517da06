"""What filters leave of a topic: no record that they want is left out, and what is said to be done is done."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from rivven.spark.filters import Selection, select

COMPARED: dict[Any, Any] = {
    spark.EqualTo: lambda have, value: have == value,
    spark.EqualNullSafe: lambda have, value: have == value,
    spark.GreaterThan: lambda have, value: have > value,
    spark.GreaterThanOrEqual: lambda have, value: have >= value,
    spark.LessThan: lambda have, value: have < value,
    spark.LessThanOrEqual: lambda have, value: have <= value,
    spark.In: lambda have, value: have in value,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = st.integers(0, 5)
MOMENTS = st.integers(0, 5_000).map(lambda micros: EPOCH + timedelta(microseconds=micros))


def filters_on(name: str, values: Any) -> Any:
    single = st.builds(lambda kind, value: kind((name,), value), st.sampled_from(list(COMPARED)[:6]), values)
    several = st.builds(lambda some: spark.In((name,), tuple(some)), st.lists(values, min_size=1, max_size=3))
    return single | several


FILTERS = st.lists(
    filters_on("partition", NUMBERS)
    | filters_on("offset", NUMBERS)
    | filters_on("timestamp", MOMENTS)
    | st.builds(lambda value: spark.EqualTo(("topic",), value), st.sampled_from(["a", "b"])),
    max_size=4,
)


def selected(selection: Selection, record: dict[str, Any]) -> bool:
    time_ms = (record["timestamp"] - EPOCH) // timedelta(milliseconds=1)
    return (
        selection.has(record["topic"], record["partition"])
        and selection.offsets.low <= record["offset"] <= selection.offsets.high
        and selection.times_ms.low <= time_ms <= selection.times_ms.high
    )


@given(FILTERS, st.sampled_from(["a", "b"]), NUMBERS, NUMBERS, st.integers(0, 5))
def test_a_selection_and_what_is_left_to_spark_are_the_filters(
    filters: list[Any], topic: str, partition: int, offset: int, time_ms: int
) -> None:
    moment = EPOCH + timedelta(milliseconds=time_ms)
    record = {"topic": topic, "partition": partition, "offset": offset, "timestamp": moment}

    def passes(some: list[Any]) -> bool:
        return all(COMPARED[type(one)](record[one.attribute[0]], one.value) for one in some)

    selection, left = select(filters)
    assert (selected(selection, record) and passes(left)) == passes(filters)


@pytest.mark.parametrize(
    "one",
    [
        spark.EqualTo(("value",), b"x"),
        spark.Not(spark.EqualTo(("partition",), 1)),
        spark.EqualTo(("headers", "key"), "x"),
        spark.EqualTo(("partition",), True),
        spark.EqualNullSafe(("offset",), None),
        spark.IsNotNull(("key",)),
        spark.StringStartsWith(("topic",), "a"),
    ],
    ids=repr,
)
def test_what_is_not_understood_is_left_to_spark(one: spark.Filter) -> None:
    assert select([one]) == (Selection(), [one])


def test_what_can_never_be_null_needs_no_look() -> None:
    assert select([spark.IsNotNull(("offset",))]) == (Selection(), [])

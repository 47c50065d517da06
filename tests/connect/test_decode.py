"""JSON as typed columns, by Spark on a table that stands still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rivven.connect.decode import arrow_schema, typed

GOOD = ['{"id": 1, "name": "a"}', '{"id": 2}', '{"name": "c", "more": true}']
BAD = ["{", "5", "[1]", "", '{"id": "x"}']


@dataclass
class Launch:
    """A run of no name that keeps what it is told in memory."""

    dead_letter_topic: str | None = None
    name: str = "test"
    once: bool = True
    rows_per_second: float = 0
    kept: dict[str, str] = field(default_factory=dict)

    def recall(self, key: str, make: Callable[[], str]) -> str:
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]


def rows(
    spark: SparkSession, values: list[str], launch: Launch, schema: str | None = None
) -> list[dict[str, object]]:
    numbered = [(value, number) for number, value in enumerate(values)]
    frame: DataFrame = spark.createDataFrame(numbered, "value STRING, __offset BIGINT")
    where = F.format_string("record %d", F.col("__offset"))
    made = typed(frame, schema, lambda: [value.encode() for value in values], launch, where)  # type: ignore[arg-type]
    return [row.asDict() for row in made.orderBy("__offset").collect()]


def test_fields_become_columns_and_what_is_known_of_the_record_stays(spark: SparkSession) -> None:
    launch = Launch()
    assert rows(spark, GOOD, launch) == [
        {"id": 1, "name": "a", "more": None, "__offset": 0},
        {"id": 2, "name": None, "more": None, "__offset": 1},
        {"id": None, "name": "c", "more": True, "__offset": 2},
    ]
    assert list(rows(spark, ['{"other": 1}'], launch)[0]) == ["id", "name", "more", "__offset"], (
        "found once, and kept"
    )
    assert rows(spark, GOOD[:1], Launch(), "name STRING") == [{"name": "a", "__offset": 0}]


@pytest.mark.parametrize("bad", BAD)
def test_a_record_that_is_not_so_ends_the_query_and_is_named(spark: SparkSession, bad: str) -> None:
    with pytest.raises(PySparkException, match="RIVVEN_UNREADABLE: record 1 is no JSON with the columns expected"):
        rows(spark, [*GOOD[:1], bad], Launch(), "id BIGINT, name STRING")


def test_with_a_place_for_letters_it_is_kept_as_it_came(spark: SparkSession) -> None:
    found = rows(spark, [*GOOD[:1], *BAD], Launch(dead_letter_topic="dead"), "id BIGINT, name STRING")
    assert [row["__corrupt"] for row in found] == [None, *BAD]


def test_without_a_record_there_is_nothing_to_find_columns_from(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="there is no record yet to find the columns from; give the schema"):
        rows(spark, ["5"], Launch())


def test_the_columns_of_a_sample_without_spark() -> None:
    sample = [b'{"a": 1, "b": [1.5], "c": {"d": true, "e": null}}', b'{"a": 20000000000000000000, "f": {}}', b"no"]
    assert arrow_schema(sample) == pa.schema(
        [
            ("a", pa.decimal128(38, 0)),
            ("b", pa.list_(pa.float64())),
            ("c", pa.struct([("d", pa.bool_()), ("e", pa.string())])),
            ("f", pa.string()),
        ]
    )
    assert arrow_schema([b"no"]) == pa.schema([("value", pa.string())])

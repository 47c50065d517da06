"""Rows as records: where they go, what they may be, and that each is there once whatever happens to its task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from tables import Topics, values

from rivven.client import ServerException, blocking
from rivven.spark.options import for_writing
from rivven.spark.sink import BatchWriter

pytestmark = pytest.mark.xdist_group("spark")


def write(table: DataFrame, topics: Topics, topic: str | None, **options: str) -> None:
    given = {"servers": topics.servers} | ({"topic": topic} if topic else {}) | options
    table.write.format("rivven").mode("append").options(**given).save()


def writer_into(topics: Topics, topic: str, **options: str) -> BatchWriter:
    """As the driver makes one for a table."""
    return BatchWriter(for_writing({"servers": topics.servers, "topic": topic} | options, stream=False))


def one_row(value: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [value.encode()]})


def open_transactions(client: blocking.RivvenClient) -> list[str]:
    return [each.transactional_id for each in client.list_transactions() if each.state == "Ongoing"]


def test_a_row_becomes_a_record_with_all_that_it_has(topics: Topics, spark: SparkSession) -> None:
    topic = topics.make()
    rows = spark.sql(
        "SELECT 'k' AS key, CAST('v' AS BINARY) AS value, timestamp_millis(1700000000007) AS timestamp, "
        "array(struct('source' AS key, CAST('web' AS BINARY) AS value)) AS headers"
    )
    write(rows, topics, topic, compression="zstd")
    write(spark.sql("SELECT CAST(NULL AS STRING) AS value, 'gone' AS key"), topics, topic)
    (first, second) = topics.client.consumer(topic, start_offset=0).fetch()
    assert (first.key, first.value, first.timestamp, first.headers) == (
        *(b"k", b"v", 1700000000007),
        (("source", b"web"),),
    )
    assert (second.key, second.value, second.headers) == (b"gone", None, ())
    assert second.timestamp > 1700000000007


def test_many_rows_of_many_tasks_are_all_there_once(topics: Topics, spark: SparkSession) -> None:
    topic = topics.make(3)
    rows = spark.range(0, 20_000, 1, 4).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 50 AS STRING) AS key")
    write(rows, topics, topic)
    found = topics.read(topic).selectExpr("CAST(CAST(value AS STRING) AS INT) AS value")
    assert found.agg(sql.count("*"), sql.countDistinct("value"), sql.sum("value")).first() == (
        *(20_000, 20_000),
        20_000 * 19_999 // 2,
    )
    assert open_transactions(topics.client) == []


def test_a_key_goes_where_our_producer_puts_it(topics: Topics, spark: SparkSession) -> None:
    by_spark, by_client = topics.make(5), topics.make(5)
    keys = [f"key-{number}" for number in range(40)]
    write(spark.createDataFrame([(key, key) for key in keys], "key STRING, value STRING"), topics, by_spark)
    with topics.client.producer(by_client) as producer:
        for key in keys:
            producer.put(key.encode(), key.encode())

    def places(topic: str) -> set[tuple[str, int]]:
        found = topics.read(topic).selectExpr("CAST(key AS STRING)", "partition").collect()
        return {(row.key, row.partition) for row in found}

    assert places(by_spark) == places(by_client)
    assert len({partition for _, partition in places(by_spark)}) == 5


def test_a_column_names_the_partition_and_null_leaves_it_to_the_key(topics: Topics, spark: SparkSession) -> None:
    topic = topics.make(4)
    rows = [("a", "k", 3), ("b", "k", 2), ("c", "k", None), ("d", "k", None)]
    write(spark.createDataFrame(rows, "value STRING, key STRING, partition INT"), topics, topic)
    found = {
        row.value: row.partition
        for row in topics.read(topic).selectExpr("CAST(value AS STRING)", "partition").collect()
    }
    assert (found["a"], found["b"]) == (3, 2)
    assert found["c"] == found["d"]


def test_a_column_names_the_topic_and_null_is_the_one_that_was_given(topics: Topics, spark: SparkSession) -> None:
    one, two = topics.make(), topics.make()
    rows = spark.createDataFrame([("1", one), ("2", two), ("3", None)], "value STRING, topic STRING")
    write(rows.coalesce(1), topics, two)
    assert (values(topics.read(one)), values(topics.read(two))) == (["1"], ["2", "3"])
    with pytest.raises(PySparkException, match="a row has no topic; fill the column"):
        write(rows.coalesce(1), topics, None)
    assert (values(topics.read(one)), values(topics.read(two))) == (["1"], ["2", "3"]), "nothing of a failed write"


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("SELECT 1 AS id, 'x' AS value", {}, r"column 'id' is no part of a record.*to_json\(struct\(\*\)\)"),
        ("SELECT 1 AS value", {}, "column 'value' is int and must be binary or string; to_json it"),
        ("SELECT 'x' AS value, 1L AS partition", {}, r"cast it: CAST\(partition AS INT\)"),
        ("SELECT 'x' AS key", {}, "there is no column 'value'"),
        ("SELECT 'x' AS value, -1 AS partition", {}, "a row's partition is -1; partitions count from 0"),
        ("SELECT 'x' AS value", {"topik": "x"}, "did you mean 'topic'"),
        ("SELECT 'x' AS value", {"startingOffsets": "earliest"}, "and this is a write"),
    ],
)
def test_what_cannot_be_a_record_is_refused_with_the_cure(
    topics: Topics, spark: SparkSession, query: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(spark.sql(query), topics, "refused", **options)


def test_a_topic_has_to_be_said_and_is_never_overwritten(topics: Topics, spark: SparkSession) -> None:
    rows = spark.sql("SELECT 'x' AS value")
    with pytest.raises(PySparkException, match="there is no topic to write to; give option 'topic'"):
        write(rows, topics, None)
    with pytest.raises(PySparkException, match="only ever appended to"):
        rows.write.format("rivven").mode("overwrite").options(servers=topics.servers, topic="refused").save()


def failing_once(mark: Path) -> object:
    """A function for `mapInArrow` that passes rows on, and fails the first time behind some of them."""

    def pass_on(batches: Iterator[object]) -> Iterator[object]:
        yield from batches
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return
        raise ValueError("this task fails once")

    return pass_on


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_task_that_is_run_again(topics: Topics, spark: SparkSession, tmp_path: Path, delivery: str) -> None:
    """What its first run wrote does not count, unless speed was asked for."""
    topic = topics.make()
    rows = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    failing = rows.mapInArrow(failing_once(tmp_path / "failed"), rows.schema)  # type: ignore[arg-type]
    write(failing, topics, topic, delivery=delivery)
    assert (tmp_path / "failed").exists()
    found = values(topics.read(topic))
    assert len(set(found)) == 100
    if delivery == "exactly_once":
        assert len(found) == 100


def test_a_write_that_fails_leaves_nothing_behind(topics: Topics, spark: SparkSession) -> None:
    topic = topics.make()
    topics.fill(topic, 0, ["before"])
    rows = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS value", "id")
    fails_late = rows.selectExpr("IF(id = 99, raise_error('this task fails'), value) AS value")
    with pytest.raises(PySparkException, match="this task fails"):
        write(fails_late, topics, topic)
    topics.fill(topic, 0, ["after"])
    assert values(topics.read(topic)) == ["after", "before"], "no open transaction keeps readers waiting"


def test_numbered_writes_count_once(topics: Topics, spark: SparkSession) -> None:
    """As `foreachBatch` would do them, and do again after a crash."""
    topic = topics.make()
    for sequence, value in ((0, "a"), (1, "b"), (1, "b again"), (0, "a again"), (2, "c")):
        rows = spark.createDataFrame([(value,)], "value STRING")
        write(rows, topics, topic, ownerId="nightly", sequence=str(sequence))
    assert values(topics.read(topic)) == ["a", "b", "c"]


def test_a_write_without_a_name_leaves_no_owner_behind(topics: Topics) -> None:
    topic = topics.make()
    kept, empty, failed = (writer_into(topics, topic) for _ in range(3))
    kept.commit([kept.write(iter([one_row("kept")])), None])
    empty.commit([empty.write(iter([])), None])
    failed.abort([])
    assert values(topics.read(topic)) == ["kept"]
    for writer in (kept, empty, failed):
        owner = topics.client.register_owner(writer._owner.owner)
        assert (owner.epoch, owner.decided) == (0, -1), "nobody knew it"


@pytest.mark.parametrize("name", [{}, {"ownerId": "nightly load", "sequence": "3"}])
def test_a_task_that_spark_gave_up_leaves_nothing_open(topics: Topics, name: dict[str, str]) -> None:
    """Spark does not wait for tasks that it cancels: they may come to the broker after the driver has given up."""
    topic = topics.make()
    topics.fill(topic, 0, ["before"])
    writer = writer_into(topics, topic, **name)
    writer.write(iter([one_row("in time")]))
    writer.abort([])
    with pytest.raises(ServerException, match="owner"):
        writer.write(iter([one_row("too late")]))
    topics.fill(topic, 0, ["after"])
    assert values(topics.read(topic)) == ["after", "before"]
    assert open_transactions(topics.client) == []


def test_what_is_not_committed_is_not_read(topics: Topics, client: blocking.RivvenClient) -> None:
    topic = topics.make()
    topics.fill(topic, 0, ["before"])
    owner = client.register_owner("test of readers")
    given_up, undecided = (client.attempt(owner.owner, owner.epoch, 0) for _ in range(2))
    for attempt, value in ((given_up, b"given up"), (undecided, b"undecided")):
        attempt.producer(topic).put(value)
        attempt.flush()
    given_up.abort()
    topics.fill(topic, 0, ["after"])
    everything = ["after", "before", "given up", "undecided"]
    assert values(topics.read(topic)) == ["before"]
    assert values(topics.read(topic, isolationLevel="read_uncommitted")) == everything
    client.decide(owner.owner, owner.epoch, 0, [undecided.identity])
    assert values(topics.read(topic)) == ["after", "before", "undecided"]
    assert values(topics.read(topic, minPartitions=7)) == ["after", "before", "undecided"], "cut anywhere"
    for attempt in (given_up, undecided):
        attempt.close()

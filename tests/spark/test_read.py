"""A topic as a table: which records a batch read finds, and as what."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from tables import Topics, values

from rivven.client import blocking

pytestmark = pytest.mark.xdist_group("spark")

FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def letters(topics: Topics) -> str:
    """a0 to a9 in partition 0, b0 to b4 in partition 1, one a second."""
    topic = topics.make(2, "letters")
    topics.fill(topic, 0, [f"a{place}" for place in range(10)])
    topics.fill(topic, 1, [f"b{place}" for place in range(5)])
    return topic


LETTERS = [*(f"a{place}" for place in range(10)), *(f"b{place}" for place in range(5))]


def test_a_record_has_all_its_columns_with_their_types(topics: Topics) -> None:
    topic = topics.make()
    with topics.client.producer(topic) as producer:
        headers = (("source", b"web"), ("empty", None))
        producer.put(b"paid", b"42", headers=headers, timestamp_ms=FIRST_MS + 7)
        producer.put(None, None, timestamp_ms=FIRST_MS)
    table = topics.read(topic)
    assert [(field.name, field.dataType.simpleString()) for field in table.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    first, second = table.orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition, first.offset) == (
        *(b"42", b"paid"),
        *(topic, 0, 0),
    )
    assert first.timestamp.astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 7000, tzinfo=UTC)
    assert first.timestampType == 0
    assert [(header.key, header.value and bytes(header.value)) for header in first.headers] == [*headers]
    assert (second.key, second.value, second.headers) == (None, None, [])


def test_a_topic_with_the_brokers_time_says_so(topics: Topics) -> None:
    topic = topics.make(message_timestamp_type="LogAppendTime")
    topics.fill(topic, 0, ["x", "y"])
    assert [row.timestampType for row in topics.read(topic, columns="timestampType").collect()] == [1, 1]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, LETTERS),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, LETTERS),
        ({"startingOffsets": '{"letters":{"0":8,"1":-2}}'}, ["a8", "a9", "b0", "b1", "b2", "b3", "b4"]),
        ({"endingOffsets": '{"letters":{"0":1,"1":-1}}'}, ["a0", "b0", "b1", "b2", "b3", "b4"]),
        ({"startingTimestamp": FIRST_MS + 4_000}, ["a4", "a5", "a6", "a7", "a8", "a9", "b4"]),
        ({"startingTimestamp": "2023-11-14T22:13:28.5Z"}, ["a9"]),
        ({"endingTimestamp": FIRST_MS + 1_000}, ["a0", "b0"]),
        (
            {"startingOffsetsByTimestamp": json.dumps({"letters": {"0": FIRST_MS + 9_000, "1": FIRST_MS + 3_000}})},
            ["a9", "b3", "b4"],
        ),
        (
            {"endingOffsetsByTimestamp": json.dumps({"letters": {"0": FIRST_MS + 2_000, "1": FIRST_MS}})},
            ["a0", "a1"],
        ),
        ({"minPartitions": 7}, LETTERS),
        ({"maxPartitionBytes": 100}, LETTERS),
        ({"isolationLevel": "read_uncommitted", "failOnDataLoss": "false", "includeHeaders": "true"}, LETTERS),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_an_option_chooses_what_is_read(topics: Topics, letters: str, options: dict[str, object], found: list[str]):
    assert values(topics.read(letters, **options)) == found


def test_topics_are_named_in_three_ways_and_the_servers_too(
    topics: Topics, letters: str, spark: SparkSession
) -> None:
    other = topics.make(1, "numbers")
    topics.fill(other, 0, ["1"])
    assert values(topics.read("letters,numbers")) == ["1", *LETTERS]
    assert values(topics.read(None, subscribePattern="num.*|nothing")) == ["1"]
    assert values(topics.read(None, assign='{"letters":[1]}')) == ["b0", "b1", "b2", "b3", "b4"]
    aliased = spark.read.format("rivven").option("KAFKA.bootstrap.SERVERS", topics.servers)
    assert values(aliased.load("numbers")) == ["1"]
    assert letters


def test_columns_are_chosen_by_option_or_by_schema(topics: Topics, letters: str, spark: SparkSession) -> None:
    table = topics.read(letters, columns="Offset, value")
    assert table.columns == ["offset", "value"]
    assert bytes(table.orderBy("value").first().value) == b"a0"
    reader = spark.read.format("rivven").options(servers=topics.servers, subscribe=letters)
    assert reader.schema("partition INT, topic STRING").load().distinct().count() == 2


def test_minimum_partitions_and_bytes_make_more_tasks(topics: Topics, letters: str) -> None:
    assert topics.read(letters).rdd.getNumPartitions() == 2
    assert topics.read(letters, minPartitions=6).rdd.getNumPartitions() == 6
    assert topics.read(letters, maxPartitionBytes=50).rdd.getNumPartitions() > 4


def test_a_topic_without_records_is_an_empty_table(topics: Topics) -> None:
    assert topics.read(topics.make(3)).count() == 0


def messages_out(client: blocking.RivvenClient) -> float:
    """How many records the broker has handed out since it started."""
    (line,) = [
        line
        for line in client.get_metrics("rivven_core_messages_read").splitlines()
        if not line.startswith("#") and "_created" not in line
    ]
    return float(line.rsplit(" ", 1)[1])


@pytest.mark.parametrize(
    ("condition", "found", "fetched"),
    [
        ("partition = 1", ["b0", "b1", "b2", "b3", "b4"], 5),
        ("partition IN (1, 7)", ["b0", "b1", "b2", "b3", "b4"], 5),
        ("partition > 0 AND offset <= 1", ["b0", "b1"], 5),
        ("partition < 1 AND offset = 4", ["a4"], 10),
        ("offset IN (4, 9)", ["a4", "a9", "b4"], 15),
        ("offset > 100", [], 0),
        ("topic = 'letters' AND partition >= 1", ["b0", "b1", "b2", "b3", "b4"], 5),
        ("topic = 'others'", [], 0),
        (f"timestamp >= timestamp_millis({FIRST_MS + 8_000})", ["a8", "a9"], 10),
        (f"timestamp > timestamp_millis({FIRST_MS + 20_000})", [], 0),
        (f"timestamp < timestamp_micros({FIRST_MS}001)", ["a0", "b0"], 15),
        (f"timestamp = timestamp_millis({FIRST_MS + 2_000}) AND partition = 0", ["a2"], 10),
        ("partition <> 0", ["b0", "b1", "b2", "b3", "b4"], 15),
        ("CAST(value AS STRING) LIKE 'a%' AND partition = 1", [], 5),
    ],
)
def test_a_filter_is_handed_down(
    topics: Topics, letters: str, condition: str, found: list[str], fetched: int
) -> None:
    """The records are the right ones, and the broker hands out no more than the batches that hold them."""
    before = messages_out(topics.client)
    assert values(topics.read(letters, filterPushdown=True).where(condition)) == found
    assert messages_out(topics.client) - before <= fetched


def test_a_table_that_is_used_again_is_whole_again(topics: Topics, letters: str) -> None:
    """Spark would keep the filters of one use for all others."""
    table = topics.read(letters)
    assert table.where("partition = 1 AND offset < 2").count() == 2
    assert table.count() == 15
    assert table.where("offset < 3").unionAll(table.where("offset >= 3")).count() == 15


def test_times_that_do_not_grow_are_filtered_one_by_one(topics: Topics) -> None:
    topic = topics.make()
    for value, moment in (("late", 9_000), ("early", 1_000), ("later", 10_000), ("earliest", 0)):
        topics.fill(topic, 0, [value], first_ms=FIRST_MS + moment)
    at = f"timestamp_millis({FIRST_MS + 9_000})"
    assert values(topics.read(topic, filterPushdown=True).where(f"timestamp >= {at}")) == ["late", "later"]
    assert values(topics.read(topic, filterPushdown=True).where(f"timestamp < {at}")) == ["earliest", "early"]


def test_much_more_than_one_fetch_comes_in_order(topics: Topics) -> None:
    topic = topics.make()
    with topics.client.producer(topic, compression="zstd") as producer:
        for number in range(120_000):
            producer.put(b"%d" % number)
    table = topics.read(topic, minPartitions=3).selectExpr("CAST(CAST(value AS STRING) AS BIGINT) = offset AS same")
    assert [tuple(row) for row in table.groupBy("same").count().collect()] == [(True, 120_000)]


def test_records_that_are_gone_are_an_error_that_names_the_cure_or_a_shorter_table(topics: Topics) -> None:
    topic = topics.make()
    topics.fill(topic, 0, list("abcdef"))
    topics.client.delete_records(topic, 0, 4)
    assert values(topics.read(topic)) == ["e", "f"]
    start = json.dumps({topic: {"0": 1}})
    with pytest.raises(Exception, match=rf"{topic}/0: offsets 1 to 3 are gone.*failOnDataLoss=false"):
        topics.read(topic, startingOffsets=start).collect()
    assert values(topics.read(topic, startingOffsets=start, failOnDataLoss="false")) == ["e", "f"]


def test_a_view_in_sql_reads_the_topic(topics: Topics, letters: str, spark: SparkSession) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW letters USING rivven OPTIONS (servers '{topics.servers}', subscribe 'letters')")
    found = spark.sql("SELECT CAST(value AS STRING) AS value FROM letters WHERE partition = 1 AND offset < 2")
    assert values(found) == ["b0", "b1"]
    assert letters

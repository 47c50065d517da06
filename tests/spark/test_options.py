"""Options that cannot be meant: each is refused by its name, with what to write instead, before anybody is asked."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rivven.client import ConfigException
from rivven.model import TopicPartition
from rivven.spark.options import EARLIEST, LATEST, for_reading, for_writing, normalized

pytestmark = pytest.mark.xdist_group("spark")

ENOUGH = {"servers": "localhost:9092", "subscribe": "orders"}
TO_WRITE = {"servers": "localhost:9092", "topic": "orders"}


def read(**options: str) -> object:
    return for_reading(normalized(ENOUGH | options), stream=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribes": "x"}, "no option 'subscribes'; did you mean 'subscribe'?"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"qqq": "x"}, "no option 'qqq'; there are servers, "),
        ({"kafka.group.id": "g"}, "use 'groupId'"),
        ({"asyncProgressTrackingEnabled": "true"}, "leave it out"),
        ({"servers": " "}, "'servers' is missing; name one or more as host:port"),
        ({"bootstrap.servers": "elsewhere:1"}, "is given twice, as 'localhost:9092' and as 'elsewhere:1'"),
        ({"subscribePattern": "o.*"}, "'subscribe' and 'subscribePattern' are given; name what to read by one of"),
        ({"subscribe": " , "}, "names no topic"),
        ({"topic": "orders"}, "'topic' is for a write, and this is a batch read"),
        ({"maxOffsetsPerTrigger": "5"}, "'maxOffsetsPerTrigger' is for a stream, and this is a batch read"),
        ({"groupId": "g"}, "'groupId' is for a stream"),
        ({"startingOffsets": "latest"}, "'startingOffsets' is latest, where a batch read would find nothing"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "'startingOffsets' is latest"),
        ({"startingOffsets": "newest"}, "is 'newest'; use earliest, latest, or JSON such as"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "has '0': -3 for 'orders'"),
        ({"startingOffsets": '{"orders":[1]}'}, "needs partitions for 'orders'"),
        ({"startingOffsets": '{"orders":{"zero":1}}'}, "has 'zero'"),
        ({"endingOffsets": "earliest"}, "'endingOffsets' is earliest, where there is nothing to read"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "contradict one another; give one"),
        ({"startingTimestamp": "yesterday"}, "use milliseconds since 1970, or a time like"),
        ({"endingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "1700000000000"),
        ({"minPartitions": "0"}, "'minPartitions' is '0'; use a whole number above 0"),
        ({"maxPartitionBytes": "1g"}, "'maxPartitionBytes' is '1g'"),
        ({"failOnDataLoss": "yes"}, "'failOnDataLoss' is 'yes'; use true or false"),
        ({"isolationLevel": "serializable"}, "use one of read_committed, read_uncommitted"),
        ({"columns": "key,values"}, "'columns' names 'values'; there are key, value"),
        ({"columns": ","}, "'columns' names none"),
        ({"includeHeaders": "false"}, "name the columns you want with 'columns'"),
        ({"tlsCaCertPath": "ca.pem"}, "TLS needs both"),
        ({"tlsCaCertPath": "a", "tlsServerName": "b", "tlsClientKeyPath": "c"}, "'tlsClientCertPath' and"),
        ({"username": "me"}, "needs both 'username' and 'password'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_reader_refuses(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigException) as refused:
        read(**options)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "none is given; name what to read by one of 'subscribe', 'subscribePattern' and 'assign'"),
        ({"subscribePattern": "("}, "is no regular expression"),
        ({"assign": "orders"}, "'assign' is 'orders'; use JSON such as"),
        ({"assign": '{"orders":0}'}, "needs a list of partitions for 'orders'"),
        ({"assign": "{}"}, "names no partition"),
    ],
)
def test_what_to_read_has_to_be_said_once_and_well(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigException) as refused:
        for_reading(normalized({"servers": "s"} | options), stream=True)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delivery": "at_most_once"}, "use one of exactly_once, at_least_once"),
        ({"compression": "brotli"}, "use one of none, gzip, snappy, lz4, zstd"),
        ({"transactionTimeoutMs": "soon"}, "a whole number above 0"),
        ({"startingOffsets": "earliest"}, "is for a batch read and a stream, and this is a write"),
        ({"path": "orders"}, "name the same thing; give one"),
        ({"topic": ""}, "'topic' is empty"),
        ({"partitioner": "random"}, "there is nothing to choose"),
        ({"ownerId": "nightly"}, "need both 'ownerId', their name, and 'sequence'"),
        ({"sequence": "3"}, "need both 'ownerId', their name, and 'sequence'"),
        ({"ownerId": "nightly", "sequence": "-1"}, "a whole number from 0 up"),
    ],
)
def test_a_writer_refuses(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigException) as refused:
        for_writing(normalized(TO_WRITE | options), stream=False)
    assert message in str(refused.value)


def test_names_are_known_in_any_case_and_values_become_what_they_mean() -> None:
    reading = for_reading(
        normalized(
            {
                "BOOTSTRAP.servers": "a:1,b:2",
                "ASSIGN": '{"orders":[1,0,1]}',
                "startingoffsets": '{"orders":{"0":-2,"1":7}}',
                "MaxOffsetsPerTrigger": "100",
            }
        ),
        stream=True,
    )
    assert reading.access.servers == "a:1,b:2"
    assert reading.wanted.partitions == (TopicPartition("orders", 0), TopicPartition("orders", 1))
    assert reading.start.table == {TopicPartition("orders", 0): EARLIEST, TopicPartition("orders", 1): 7}
    assert (reading.end.edge, reading.rows_max, reading.committed) == (LATEST, 100, True)


def test_a_stream_starts_with_what_comes_and_a_batch_with_what_is_there() -> None:
    assert for_reading(normalized(ENOUGH), stream=True).start.edge == LATEST
    assert for_reading(normalized(ENOUGH), stream=False).start.edge == EARLIEST


def test_passwords_are_not_shown() -> None:
    shown = repr(for_writing(normalized(TO_WRITE | {"username": "me", "password": "secret"}), stream=True))
    assert "me" in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"subscribes": "x"}, None, "did you mean 'subscribe'?"),
        ({"servers": "localhost:9092", "columns": "vlaue"}, None, "there are key, value"),
        (ENOUGH, "value STRING", "the schema has value string; a topic has key binary"),
    ],
)
def test_spark_shows_what_was_refused(
    spark: SparkSession, options: dict[str, str], schema: str | None, message: str
) -> None:
    reader = spark.read.format("rivven").options(**options)
    with pytest.raises(PySparkException) as refused:
        (reader.schema(schema) if schema else reader).load().collect()
    assert message in str(refused.value)

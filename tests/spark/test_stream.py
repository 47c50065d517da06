"""A topic as a stream: what each micro-batch reads, what is remembered, and what happens when the topic changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tables import Topics, values

pytestmark = pytest.mark.xdist_group("spark")


def run(table: DataFrame, checkpoint: Path, **trigger: Any) -> tuple[StreamingQuery, list[str]]:
    """A query that gathers values, and the list in which it does."""
    rows: list[str] = []

    def keep(batch: DataFrame, _: int) -> None:
        rows.extend(values(batch))

    writer = table.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start(), rows


def to_the_end(table: DataFrame, checkpoint: Path) -> tuple[list[str], list[Any]]:
    """What is there now, and what Spark tells of each batch."""
    query, rows = run(table, checkpoint, availableNow=True)
    assert query.awaitTermination(120)
    error = query.exception()
    if error is not None:
        raise error
    return rows, [progress for progress in query.recentProgress if progress["numInputRows"]]


def eventually(holds: Callable[[], bool]) -> None:
    deadline = monotonic() + 90
    while not holds():
        assert monotonic() < deadline, "it never came"
        sleep(0.05)


def test_what_is_there_is_read_once_in_batches_of_the_limit(topics: Topics, tmp_path: Path) -> None:
    topic = topics.make(2)
    topics.fill(topic, 0, [f"a{place}" for place in range(9)])
    topics.fill(topic, 1, [f"b{place}" for place in range(3)])
    stream = topics.stream(topic, maxOffsetsPerTrigger=4)
    rows, progress = to_the_end(stream, tmp_path)
    assert sorted(rows) == [*(f"a{place}" for place in range(9)), "b0", "b1", "b2"]
    assert [each["numInputRows"] for each in progress] == [4, 4, 4]
    (source,) = progress[1]["sources"]
    assert json.loads(source["startOffset"]) == {topic: {"0": 3, "1": 1}}
    assert json.loads(source["endOffset"]) == {topic: {"0": 6, "1": 2}}
    assert json.loads(source["latestOffset"]) == {topic: {"0": 9, "1": 3}}, "from which lag is told"

    topics.fill(topic, 1, ["b3"])
    rows, _ = to_the_end(stream, tmp_path)
    assert rows == ["b3"], "the checkpoint knows what was read"


def test_a_running_stream_finds_new_records_partitions_and_topics(topics: Topics, tmp_path: Path) -> None:
    first = topics.make(1, "growing-1")
    topics.fill(first, 0, ["early"])
    stream = topics.stream(None, subscribePattern="growing-.*", startingOffsets="latest", groupId="watchers")
    query, seen = run(stream, tmp_path, processingTime="0 seconds")
    try:
        eventually(lambda: bool(query.recentProgress))
        topics.fill(first, 0, ["new record"])
        eventually(lambda: seen == ["new record"])
        topics.client.create_partitions(first, 2)
        topics.fill(first, 1, ["new partition"])
        eventually(lambda: "new partition" in seen)
        topics.fill(topics.make(1, "growing-2"), 0, ["new topic"])
        eventually(lambda: "new topic" in seen)
        topics.fill(first, 0, ["last"])
        eventually(lambda: sorted(seen) == ["last", "new partition", "new record", "new topic"])
        done = {"growing-1": {0: 3, 1: 1}, "growing-2": {0: 1}}  # the last batch as well, after which nothing comes
        eventually(lambda: topics.client.describe_group("watchers") == done)
    finally:
        query.stop()


def test_records_that_are_gone_stop_a_stream_unless_it_may_go_on(topics: Topics, tmp_path: Path) -> None:
    topic = topics.make()
    topics.fill(topic, 0, list("ab"))
    to_the_end(topics.stream(topic), tmp_path)
    topics.fill(topic, 0, list("cdef"))
    topics.client.delete_records(topic, 0, 4)
    with pytest.raises(PySparkException) as refused:
        to_the_end(topics.stream(topic), tmp_path)
    assert f"{topic}/0: offsets 2 to 3 are gone, the first that is left is 4: retention came first." in str(
        refused.value
    )
    assert "failOnDataLoss=false" in str(refused.value)
    rows, _ = to_the_end(topics.stream(topic, failOnDataLoss="false"), tmp_path)
    assert rows == ["e", "f"]


def test_a_topic_that_was_made_anew_is_noticed(topics: Topics, tmp_path: Path) -> None:
    topic = topics.make()
    topics.fill(topic, 0, list("abcd"))
    to_the_end(topics.stream(topic), tmp_path)
    topics.client.delete_topic(topic)
    topics.make(name=topic)
    topics.fill(topic, 0, list("xy"))
    query, seen = run(topics.stream(topic), tmp_path, processingTime="0 seconds")
    with pytest.raises(PySparkException, match="the partition ends at 2 now; was the topic made anew"):
        query.awaitTermination(90)
    assert seen == []
    query, seen = run(topics.stream(topic, failOnDataLoss="false"), tmp_path, processingTime="0 seconds")
    try:
        eventually(lambda: sorted(seen) == ["x", "y"])
    finally:
        query.stop()


def test_a_stream_of_a_topic_that_is_not_there_says_so(topics: Topics, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="there is no topic 'nowhere'"):
        to_the_end(topics.stream("nowhere"), tmp_path)


def test_the_columns_of_a_stream_are_chosen_too(topics: Topics, tmp_path: Path, spark: SparkSession) -> None:
    topic = topics.make()
    topics.fill(topic, 0, ["only"])
    stream = topics.stream(topic, columns="value,offset")
    assert stream.columns == ["value", "offset"]
    assert to_the_end(stream, tmp_path)[0] == ["only"]
    assert spark.streams.active == []

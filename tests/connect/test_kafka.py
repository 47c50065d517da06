"""The connectors that speak Kafka, against a `rivvend` of our own, which does as well."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parent))  # `from pipelines import run_once`

from pipelines import forget_commit, records, run_once

from rivven.client import blocking
from rivven.connect.kafka import KafkaTrouble
from rivven.connect.kit import SinkKit, SourceKit, rows_of
from rivven.connect.sdk import BadSettings, Batch, Task
from rivven.connect.sinks.kafka import KafkaSink, NotDelivered, ProgressLost
from rivven.connect.sources.kafka import DataLost, KafkaSource, Range

QUERY = "11111111-2222-3333-4444-555555555555"
FIRST_MS = 1_700_000_000_000
NOWHERE = "127.0.0.1:1"
numbers = count()


class Cluster:
    """A cluster as one knows it who only speaks Kafka."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})  # it outlives the cluster

    def topic(self, partitions: int = 1, name: str | None = None) -> str:
        name = name or f"kafka-{next(numbers)}"
        for future in self._admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(20)
        return name

    def producer(self, **options: str) -> Producer:
        more = {name.replace("_", "."): value for name, value in options.items()}
        return Producer({"bootstrap.servers": self.servers, **more})

    def fill(self, topic: str, rows: int, *, partition: int = 0, first: int = 0) -> None:
        producer = self.producer()
        for number in range(first, first + rows):
            value = json.dumps({"id": number, "name": f"name {number}"})
            producer.produce(topic, value, f"k{number}", partition, timestamp=FIRST_MS + number * 1000)
        assert producer.flush(20) == 0

    def committed(self, group: str, topic: str) -> int:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group})
        try:
            return int(consumer.committed([TopicPartition(topic, 0)], timeout=20)[0].offset)
        finally:
            consumer.close()

    def values(self, topic: str, **more: Any) -> list[Any]:
        """What a reader of committed records sees, in order."""
        return [json.loads(row["value"]) for row in self.rows(topic, **more)]

    def rows(self, topic: str, **more: Any) -> list[dict[str, Any]]:
        source = KafkaSource.configured({"brokers": self.servers, "topic": topic, "format": "raw"} | more)
        assert isinstance(source, KafkaSource)
        start = source.start_position()
        found = rows_of(source, start, source.newest_position())
        source.close()
        return found


@pytest.fixture(scope="session")
def cluster(servers: str) -> Cluster:
    return Cluster(servers)


def source_of(cluster: Cluster, **settings: Any) -> KafkaSource:
    made = KafkaSource.configured({"brokers": cluster.servers} | settings)
    assert isinstance(made, KafkaSource)
    return made


def sink_of(cluster: Cluster, **settings: Any) -> KafkaSink:
    made = KafkaSink.configured({"brokers": cluster.servers} | settings)
    assert isinstance(made, KafkaSink)
    return made


# The source


class TestKafkaSource(SourceKit):
    connector = KafkaSource
    bad_settings: ClassVar[dict[str, Any]] = {"brokers": "nowhere"}
    rows_expected = 35

    @pytest.fixture(autouse=True)
    def _serve(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def make_settings(self, home: Path) -> dict[str, Any]:
        if not (home / "made").exists():
            self.cluster.topic(2, home.name)
            self.cluster.fill(home.name, 20, partition=0)
            self.cluster.fill(home.name, 15, partition=1, first=20)
            (home / "made").touch()
        return {"brokers": self.cluster.servers, "topic": home.name}


def test_a_record_comes_with_all_that_is_known_of_it(cluster):
    topic = cluster.topic()
    producer = cluster.producer()
    producer.produce(topic, b'{"id": 1}', b"key", timestamp=FIRST_MS, headers=[("a", b"1"), ("a", b"2"), ("b", None)])
    producer.produce(topic, None, b"gone", timestamp=FIRST_MS)
    producer.flush(20)
    first, second = cluster.rows(topic, include_headers=True, keep_topic=True)
    assert first == {
        "key": b"key",
        "value": b'{"id": 1}',
        "__key": b"key",
        "__partition": 0,
        "__offset": 0,
        "__timestamp": datetime.fromtimestamp(FIRST_MS / 1000, UTC),
        "__stream": topic,
        "__metadata": [
            ("topic", topic),
            ("partition", "0"),
            ("offset", "0"),
            ("header.a", "2"),
            ("header.b", None),
        ],
        "__topic": topic,
    }
    assert second["value"] is None
    (text, _) = cluster.rows(topic, format="text", include_key=False)
    assert (text["key"], text["value"], text["__key"]) == ("key", '{"id": 1}', None)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", 10),
        (datetime.fromtimestamp(FIRST_MS / 1000 + 6.5, UTC).isoformat(), 7),
        ("2999-01-01", 10),
    ],
)
def test_a_new_pipeline_begins_where_it_is_told(cluster, start, first):
    topic = cluster.topic()
    cluster.fill(topic, 10)
    source = source_of(cluster, topic=topic, start_offset=start)
    assert source.start_position() == {topic: {"0": first}}


def test_a_step_takes_from_every_partition_its_share(cluster):
    source = source_of(cluster, topic="t")
    start, newest = {"t": {"0": 10, "1": 0}}, {"t": {"0": 910, "1": 99, "2": 1}}
    assert source.advance(start, newest, 100) == {"t": {"0": 100, "1": 9, "2": 1}}
    assert source.advance(start, newest, 1000) == newest
    assert source.rows_between(start, newest) == 1000
    assert source.advance(newest, newest, 1000) == newest
    assert source.plan(start, newest) == [Range("t", 0, 10, 910), Range("t", 1, 0, 99), Range("t", 2, None, 1)]


def test_topics_that_match_are_found_also_when_they_are_made_later(cluster):
    cluster.fill(cluster.topic(name="match-1"), 3)
    cluster.fill(cluster.topic(name="no-match-1"), 3)
    source = source_of(cluster, topic_pattern="match-[0-9]+")
    start = source.start_position()
    assert start == {"match-1": {"0": 0}}
    cluster.fill(cluster.topic(name="match-2"), 2)
    end = source.newest_position()
    assert end == {"match-1": {"0": 3}, "match-2": {"0": 2}}
    assert len(rows_of(source, start, end)) == 5
    assert [stream.name for stream in source.discover()] == ["match-1", "match-2"]
    source.close()


def test_what_was_aborted_is_not_read_and_what_is_open_is_waited_for(cluster):
    topic = cluster.topic()
    cluster.fill(topic, 2)
    producer = cluster.producer(transactional_id=f"{topic}-writer")
    producer.init_transactions(20)
    for number, commit in ((10, False), (11, True), (12, False)):
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"id": number}))
        producer.flush(20)
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    assert [each["id"] for each in cluster.values(topic)] == [0, 1, 11], "the end of the range has no record"
    producer.begin_transaction()
    producer.produce(topic, json.dumps({"id": 13}))
    producer.flush(20)
    cluster.fill(topic, 1, first=14)
    assert [each["id"] for each in cluster.values(topic)] == [0, 1, 11]
    everything = [0, 1, 10, 11, 12, 13, 14]
    assert [each["id"] for each in cluster.values(topic, isolation_level="read_uncommitted")] == everything
    producer.commit_transaction(20)
    assert [each["id"] for each in cluster.values(topic)] == [0, 1, 11, 13, 14]


def test_records_that_are_gone_are_an_error_unless_that_is_allowed(cluster):
    topic = cluster.topic()
    cluster.fill(topic, 5)
    source = source_of(cluster, topic=topic)
    with pytest.raises(DataLost, match=rf"{topic}/0 was read up to offset 99 and now ends at 5: .*fail_on_data_loss"):
        source.advance({topic: {"0": 99}}, source.newest_position(), 10)
    with pytest.raises(DataLost, match=f"{topic}/0 no longer has offset 99"):
        list(source.read(Range(topic, 0, 99, 105)))
    careless = source_of(cluster, topic=topic, fail_on_data_loss=False)
    assert sum(batch.num_rows for batch in careless.read(Range(topic, 0, 99, 5))) == 5


def test_progress_is_published_for_onlookers(cluster):
    topic = cluster.topic()
    cluster.fill(topic, 5)
    source = source_of(cluster, topic=topic, consumer_group="onlookers")
    source.commit({topic: {"0": 4}})
    source.close()
    assert cluster.committed("onlookers", topic) == 4
    quiet = source_of(cluster, topic=topic, consumer_group="nobody", enable_auto_commit=False)
    quiet.commit({topic: {"0": 4}})
    assert cluster.committed("nobody", topic) < 0


def test_check_and_discover_speak_of_what_is_there(cluster):
    topic = cluster.topic()
    cluster.fill(topic, 5)
    assert source_of(cluster, topic=topic).check() == []
    (stream,) = source_of(cluster, topic=topic).discover()
    assert (stream.name, stream.schema) == (topic, pa.schema([("id", pa.int64()), ("name", pa.string())]))
    (finding,) = source_of(cluster, topics=[topic, "nothere"]).check()
    assert (finding.level, finding.field, finding.text) == ("error", "topics", "there is no topic 'nothere'")
    (finding,) = source_of(cluster, brokers=NOWHERE, topic=topic, request_timeout_ms=300).check()
    assert (finding.level, finding.field) == ("error", "brokers")
    (finding,) = source_of(cluster, topic=topic, properties={"no.such.thing": "1"}).check()
    assert (finding.field, 'No such configuration property: "no.such.thing"' in finding.text) == ("properties", True)
    with pytest.raises(KafkaTrouble, match="there is no topic nothere"):
        source_of(cluster, topic="nothere").start_position()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({}, "give one of topic, topics and topic_pattern"),
        ({"topic": "a", "topics": ["b"]}, "give one of topic, topics and topic_pattern"),
        ({"topic_pattern": "["}, "topic_pattern: is no regular expression"),
        ({"topic": "a", "start_offset": "begin"}, "start_offset: must be earliest, latest, or a time"),
        ({"topic": "a", "security": {"sasl_username": "ada"}}, "PLAINTEXT does not ask who we are"),
        ({"topic": "a", "security": {"protocol": "SASL_SSL"}}, "PLAIN needs sasl_username and sasl_password"),
        ({"topic": "a", "security": {"ssl_ca_cert": "ca.pem"}}, "PLAINTEXT does not encrypt"),
        ({"topic": "a", "security": {"protocol": "ssl", "ssl_client_key": "k"}}, "belong together"),
    ],
)
def test_settings_that_do_not_fit_are_named(wrong, why):
    with pytest.raises(BadSettings, match=why):
        KafkaSource.configured({"brokers": "localhost:9092"} | wrong)


def test_secrets_reach_the_client_and_nobody_else():
    security = {
        "protocol": "SASL_SSL",
        "sasl_mechanism": "scram-sha-512",
        "sasl_username": "ada",
        "sasl_password": "hush",
    }
    given = {
        "brokers": ["a:1", "b:2"],
        "topic": "t",
        "security": security,
        "properties": {"ssl.key.password": "psst"},
    }
    source = KafkaSource.configured(given)
    options = source.settings.options()
    assert options["bootstrap.servers"] == "a:1,b:2"
    assert (options["sasl.mechanism"], options["sasl.password"]) == ("SCRAM-SHA-512", "hush")
    assert options["ssl.key.password"] == "psst"
    assert not any(word in repr(source) + str(source.settings.as_dict()) for word in ("hush", "psst"))
    token = {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "oauth_token": "tok"}
    made = KafkaSource.configured({**given, "security": token}).settings.options()
    assert made["oauth_cb"]("")[0] == "tok"


# The sink


def table(ids: list[int], **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), **columns})


def write(sink: KafkaSink, batch_id: int, batches: Iterator[pa.RecordBatch], partition: int = 0) -> Any:
    return pickle.loads(pickle.dumps(sink)).write(batches, Task(Batch(QUERY, batch_id), partition, "a"))


def ids(cluster: Cluster, topic: str, **more: Any) -> list[int]:
    return [each["id"] for each in cluster.values(topic, **more)]


class TestKafkaSink(SinkKit):
    connector = KafkaSink
    bad_settings: ClassVar[dict[str, Any]] = {"acks": "leader", "idempotent": True}
    more: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _serve(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def make_settings(self, home: Path) -> dict[str, Any]:
        if not (home / "made").exists():
            self.cluster.topic(2, home.name)
            (home / "made").touch()
        named = {"brokers": self.cluster.servers, "topic": home.name, "key_field": "id"}
        return {**named, "max_message_bytes": 4096, **self.more}

    def written(self, home: Path) -> list[dict[str, Any]]:
        return self.cluster.values(home.name)

    def hopeless(self) -> pa.RecordBatch:
        names = pa.array([b"x" * 5000, b"\xff"], pa.binary()).view(pa.string())
        return table([90, 91], name=names)


class TestKafkaSinkExactlyOnce(TestKafkaSink):
    more: ClassVar[dict[str, Any]] = {"delivery": "exactly_once"}

    def make_settings(self, home: Path) -> dict[str, Any]:
        return super().make_settings(home) | {"transactional_id": home.name}

    def test_what_is_not_committed_is_not_visible(self, tmp_path: Path) -> None:
        """Here the task commits; that it does so once is what counts, and is tested below."""

    def test_an_aborted_batch_leaves_nothing_and_can_come_again(self, tmp_path: Path) -> None:
        """Likewise: what a failed batch has written is not written again when it comes again."""
        sink = self._sink(tmp_path)
        assert sink is not None
        batch = Batch(self.query, 0)
        sink.abort(self._write(sink, batch, "a", self.sample(0, 5)), batch)
        sink.commit(self._write(sink, batch, "b", self.sample(0, 5)), batch)
        assert self._ids(tmp_path) == list(range(5))


def test_a_record_keeps_its_key_its_time_and_where_it_came_from(cluster):
    topic, other = cluster.topic(), cluster.topic()
    about = {
        "__key": pa.array([b"k1", None]),
        "__topic": pa.array(["orders", "orders"]),
        "__partition": pa.array([3, 3]),
        "__offset": pa.array([7, 8]),
        "__timestamp": pa.array([FIRST_MS * 1000, None], pa.timestamp("us", tz="UTC")),
        "target": pa.array([other, None]),
    }
    sink = sink_of(cluster, topic=topic, topic_field="target", include_headers=True, custom_headers={"from": "test"})
    assert write(sink, 0, iter([table([1, 2], **about)])) == 2
    (routed,) = cluster.rows(other, include_headers=True)
    assert (routed["key"], json.loads(routed["value"])) == (b"k1", {"id": 1})
    assert routed["__timestamp"] == datetime.fromtimestamp(FIRST_MS / 1000, UTC)
    assert routed["__metadata"][3:] == [
        ("header.from", "test"),
        ("header.rivven.topic", "orders"),
        ("header.rivven.partition", "3"),
        ("header.rivven.offset", "7"),
    ]
    (plain,) = cluster.rows(topic)
    assert (plain["key"], json.loads(plain["value"])) == (None, {"id": 2})


def test_single_columns_can_be_key_and_value(cluster):
    topic = cluster.topic()
    texts = pa.array([b"\x00raw", None])
    sink = sink_of(cluster, topic=topic, key_field="id", value_field="body", compression="lz4")
    sink.prepare(table([1], body=texts.slice(0, 1)).schema)
    write(sink, 0, iter([table([1, 2], body=texts)]))
    assert [(row["key"], row["value"]) for row in cluster.rows(topic)] == [(b"1", b"\x00raw"), (b"2", None)]
    with pytest.raises(ValueError, match="key_field: there is no column 'id'; there is body"):
        sink.prepare(pa.schema([("body", pa.binary())]))


def test_a_record_that_cannot_be_sent_is_refused_with_its_reason(cluster):
    topic = cluster.topic()
    targets = pa.array([None, "no such name!", topic])
    texts = pa.array(["x" * 3000, "a", "b"])
    refused: list[tuple[int, str]] = []
    task = Task(Batch(QUERY, 0), 0, "a", lambda rows, why: refused.append((rows.to_pylist()[0]["id"], why)))
    sink = sink_of(cluster, topic=topic, topic_field="target", max_message_bytes=2000)
    assert sink.write(iter([table([1, 2, 3], target=targets, text=texts)]), task) == 1
    assert ids(cluster, topic) == [3]
    assert refused == [
        (1, "it has 3,018 bytes, and max_message_bytes is 2,000"),
        (2, "target is 'no such name!', which is no name of a topic"),
    ]


def test_what_is_not_delivered_is_an_error(cluster):
    sink = sink_of(cluster, brokers=NOWHERE, topic="t", delivery_timeout_ms=300)
    with pytest.raises(NotDelivered, match="3 records were not delivered to Kafka, the first to topic t"):
        write(sink, 0, iter([table([1, 2, 3])]))


def written(source: KafkaSource) -> None:
    """Wait until the topic of a source has something in it, committed or not."""
    end_s = time.monotonic() + 30
    while not any(source.newest_position()[str(source.settings.topic)].values()):
        assert time.monotonic() < end_s, "nothing was written"
    source.close()


def test_an_attempt_that_fails_leaves_nothing_that_readers_see(cluster):
    topic = cluster.topic()
    sink = sink_of(cluster, topic=topic, delivery="exactly_once", transactional_id=topic)
    assert sink.delivery == "exactly_once"

    def broken() -> Iterator[pa.RecordBatch]:
        yield table(list(range(2000)))
        written(source_of(cluster, topic=topic, isolation_level="read_uncommitted"))
        raise OSError("the task dies")

    with pytest.raises(OSError, match="the task dies"):
        write(sink, 0, broken())
    assert ids(cluster, topic) == []
    assert ids(cluster, topic, isolation_level="read_uncommitted") != [], "something had been written"
    assert write(sink, 0, iter([table([1, 2])])) == 2
    assert write(sink, 0, iter([table([1, 2])])) == 0, "it comes again"
    assert write(sink, 1, iter([])) == 0
    assert write(sink, 2, iter([table([3])])) == 1
    assert write(sink, 1, iter([table([9])])) == 0
    assert ids(cluster, topic) == [1, 2, 3]
    assert cluster.committed(f"{topic}-{QUERY}-0", topic) == 3


DYING = """
import os, signal, sys
import pyarrow as pa
from rivven.connect.sdk import Batch, Task
from rivven.connect.sinks.kafka import KafkaSink
from rivven.connect.sources.kafka import KafkaSource

servers, topic, query = sys.argv[1:]

def batches():
    yield pa.RecordBatch.from_pydict({"id": list(range(3000))})
    source = KafkaSource.configured({"brokers": servers, "topic": topic, "isolation_level": "read_uncommitted"})
    while not source.newest_position()[topic]["0"]:
        pass
    os.kill(os.getpid(), signal.SIGKILL)

settings = {"brokers": servers, "topic": topic, "delivery": "exactly_once", "transactional_id": topic, "linger_ms": 0}
KafkaSink.configured(settings).write(batches(), Task(Batch(query, 0), 0, "a"))
"""


def test_a_process_that_is_killed_leaves_a_transaction_that_the_next_attempt_ends(cluster):
    topic = cluster.topic()
    died = subprocess.run([sys.executable, "-c", DYING, cluster.servers, topic, QUERY], timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    sink = sink_of(cluster, topic=topic, delivery="exactly_once", transactional_id=topic)
    assert write(sink, 0, iter([table([1, 2])])) == 2
    cluster.fill(topic, 1, first=3)
    assert ids(cluster, topic) == [1, 2, 3], "and nobody waits for what is dead"
    assert len(ids(cluster, topic, isolation_level="read_uncommitted")) > 3


def test_an_attempt_that_was_given_up_and_still_runs_is_shut_out(cluster):
    topic = cluster.topic()
    sink = sink_of(cluster, topic=topic, delivery="exactly_once", transactional_id=topic)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield table(list(range(1500)))
        assert write(sink, 0, iter([table([1, 2])])) == 2  # another attempt at the same batch
        yield table([4])

    with pytest.raises((KafkaTrouble, NotDelivered)):
        write(sink, 0, overtaken())
    assert ids(cluster, topic) == [1, 2]


def test_progress_that_was_forgotten_is_asked_about(cluster):
    topic = cluster.topic()
    given = {"topic": topic, "delivery": "exactly_once", "transactional_id": topic}
    with pytest.raises(ProgressLost, match=r"micro-batch 5 may or may not be there; .* on_lost_progress: write"):
        write(sink_of(cluster, **given), 5, iter([table([1])]))
    assert write(sink_of(cluster, **given, on_lost_progress="write"), 5, iter([table([1])])) == 1
    assert write(sink_of(cluster, **given), 6, iter([table([2])])) == 1
    assert ids(cluster, topic) == [1, 2]


def test_check_of_the_sink(cluster):
    assert sink_of(cluster, topic=cluster.topic()).check() == []
    assert [each.level for each in sink_of(cluster, topic="nothere").check()] == ["warning"]
    assert [each.field for each in sink_of(cluster, brokers=NOWHERE, topic="t", request_timeout_ms=300).check()] == [
        "brokers"
    ]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"acks": "none", "delivery": "exactly_once"}, "exactly_once needs acks: all"),
        ({"idempotent": False, "delivery": "exactly_once"}, "idempotent: delivery: exactly_once needs it"),
        ({"transactional_id": "a"}, "is for delivery: exactly_once"),
        ({"topic_field": "a", "key_field": "a"}, "another column"),
        ({"brokers": ""}, "must name at least one broker"),
    ],
)
def test_settings_of_the_sink_that_do_not_fit_are_named(wrong, why):
    with pytest.raises(BadSettings, match=why):
        KafkaSink.configured({"brokers": "localhost:9092", "topic": "t"} | wrong)


# Through Spark


def test_from_kafka_to_kafka_exactly_once(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    source, target = cluster.topic(2), cluster.topic(2)
    text = f"""
    pipelines:
      copy:
        source:
          connector: kafka-source
          config: {{brokers: "{cluster.servers}", topic: {source}}}
        transforms:
          - type: filter
            config: {{where: "id <> 13"}}
        sink:
          connector: kafka-sink
          config: {{brokers: "{cluster.servers}", topic: {target}, delivery: exactly_once}}
    """
    for first in (0, 100):
        cluster.fill(source, 50, partition=0, first=first)
        cluster.fill(source, 50, partition=1, first=first + 50)
        (work,) = run_once(spark, tmp_path, text).values()
        assert (work.state, work.error, work.plan.delivery) == ("done", "", "exactly_once")
        forget_commit(tmp_path, "copy")
    (work,) = run_once(spark, tmp_path, text).values()
    assert work.progress.rows == 100, "the last batch came again"
    rows = cluster.rows(target)
    found = sorted((row["key"], json.loads(row["value"])["name"]) for row in rows)
    assert found == sorted((b"k%d" % number, f"name {number}") for number in range(200) if number != 13)
    assert {row["__timestamp"].timestamp() for row in rows} >= {FIRST_MS / 1000, FIRST_MS / 1000 + 199}


def test_from_kafka_into_a_topic_with_letters_for_what_is_no_json(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, cluster: Cluster, tmp_path: Path
) -> None:
    source = cluster.topic()
    cluster.fill(source, 3)
    producer = cluster.producer()
    producer.produce(source, b"{no json", b"bad")
    producer.produce(source, None, b"gone")
    assert producer.flush(20) == 0
    text = f"""
    broker: {{bootstrap_servers: ["{servers}"]}}
    sources:
      legacy:
        connector: kafka
        topic: into-{source}
        dead_letter_topic: letters-{source}
        config: {{brokers: "{cluster.servers}", topic: {source}}}
    """
    (work,) = run_once(spark, tmp_path, text).values()
    assert (work.state, work.error) == ("done", "")
    found = records(client, f"into-{source}")
    events = [json.loads(each.value) for each in found]
    assert [each.key for each in found] == [b"k0", b"k1", b"k2"]
    assert [each["data"] for each in events] == [{"id": number, "name": f"name {number}"} for number in range(3)]
    assert events[2]["stream"] == source
    assert events[2]["metadata"] == {"topic": source, "partition": "0", "offset": "2"}
    assert events[2]["timestamp"].startswith("2023-11-14T22:13:22")
    (letter,) = [json.loads(each.value) for each in records(client, f"letters-{source}")]
    assert letter["connector_name"] == "legacy"

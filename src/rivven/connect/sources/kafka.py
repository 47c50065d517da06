"""Topics of any Kafka cluster, read by offsets: no group is joined, and the same range gives the same records.

The client is confluent-kafka. A task reads the range of one partition and ends when it has come to the end of it,
which is told by a record behind it, or by the broker saying that its end is reached: between two offsets there may be
fewer records than numbers, or none, where transactions were aborted or a topic is compacted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rivven.connect.decode import arrow_schema, typed
from rivven.connect.kafka import KafkaSettings, logger, offset_spec
from rivven.connect.sdk import ArrowSource, Finding, Launch, Position, Stream, setting
from rivven.errors import RivvenError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 10_000
BATCH_BYTES = 8 << 20
FETCH_ROWS, WAIT_S = 1000, 0.1
SAMPLE_ROWS = 500
STALLED_S = 300.0
"""A read that neither ends nor gives a record for this long has lost its broker."""

Offsets = dict[str, dict[str, int]]
"""A position: by topic, by partition, the next offset to read."""


class DataLost(RivvenError, code=216):
    """Records that were to be read are gone."""

    message = (
        "{what}: it was deleted by retention or the topic was made anew; "
        "set fail_on_data_loss: false to go on with what is there"
    )


def _pattern(value: str) -> str | None:
    try:
        re.compile(value)
    except re.error as error:
        return f"is no regular expression: {error}"
    return None


def _start(value: str) -> str | None:
    if value in ("earliest", "latest"):
        return None
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return f"must be earliest, latest, or a time like 2026-01-31T12:00:00Z, not {value!r}"
    return None


class KafkaSourceSettings(KafkaSettings):
    topic: str | None = setting("The topic.", default=None, example="orders", least=1)
    topics: list[str] = setting("Several topics.", factory=list)
    topic_pattern: str | None = setting(
        "Topics whose whole names match a regular expression; those that are made later are found, too.",
        default=None,
        example="orders-.*",
        check=_pattern,
    )
    start_offset: str = setting(
        "Where a new pipeline begins: earliest, latest, or a time. Partitions added later begin at their start.",
        default="earliest",
        check=_start,
    )
    format: Literal["json", "text", "raw"] = setting(
        "What the records are: `json` gives their fields as columns, `text` and `raw` give key and value.",
        default="json",
    )
    schema: str | None = setting(
        "The columns as a Spark DDL; without it they are found from the records and kept in the state directory.",
        default=None,
        example="id BIGINT, name STRING",
    )
    isolation_level: Literal["read_committed", "read_uncommitted"] = setting(
        "Whether records of transactions are read when these are committed, or at once.", default="read_committed"
    )
    include_key: bool = setting("Keep the record's key as the key.", default=True)
    include_headers: bool = setting("Give the headers in the metadata, as header.NAME.", default=False)
    keep_topic: bool = setting("Write each record to the topic of the name that it had there.", default=False)
    fail_on_data_loss: bool = setting("Stop when records are gone before they were read.", default=True)
    consumer_group: str = setting("The group under which progress is published.", default="rivven-connect", least=1)
    enable_auto_commit: bool = setting(
        "Publish progress with every micro-batch, for tools that show lag. It is not read back.", default=True
    )
    fetch_min_bytes: int = setting("What a broker waits for before it answers.", default=1, least=1)
    fetch_max_bytes: int = setting("The most that one answer may have.", default=52_428_800, least=1024)
    max_poll_records: int = setting(
        "Records in one poll.", default=500, least=1, ignored="a micro-batch has what its trigger and rate allow"
    )
    max_poll_interval_ms: int = setting(
        "The longest time between polls.", default=300_000, least=1, ignored="no group is joined, so nobody waits"
    )
    session_timeout_ms: int = setting(
        "When a member is given up.", default=30_000, least=1, ignored="no group is joined"
    )
    heartbeat_interval_ms: int = setting(
        "How often a member says that it is alive.", default=3_000, least=1, ignored="no group is joined"
    )
    auto_commit_interval_ms: int = setting(
        "How often progress is published.", default=5_000, least=1, ignored="it is published with every micro-batch"
    )
    empty_poll_delay_ms: int = setting(
        "The pause when nothing is there.", default=100, least=0, ignored="the trigger says when to look again"
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        given = [self.topic is not None, bool(self.topics), self.topic_pattern is not None]
        if sum(given) != 1:
            yield "topic", "give one of topic, topics and topic_pattern"


class Range(NamedTuple):
    """Records of one partition: from `start`, or from its first where that is None, to before `end`."""

    topic: str
    partition: int
    start: int | None
    end: int


class KafkaSource(ArrowSource[KafkaSourceSettings]):
    name = "kafka"
    aliases = ("kafka-source", "apache-kafka")
    title = "Apache Kafka"
    summary = "Reads topics of a Kafka cluster, each record exactly once."
    docs = """
    Works with every cluster that speaks Kafka's protocol, rivven among them. Positions are offsets, kept in the
    pipeline's own state, so the guarantee rests on nothing in the cluster; what is published to `consumer_group` is
    for tools that show lag.

    The record's key, time, topic, partition, offset and headers come beside its fields: the key becomes the key of
    the record written, the time its time, the name of the topic the `stream` of the envelope; topic, partition,
    offset and headers are in its `metadata`. With `keep_topic` the record goes to the topic of the same name.

    A record that is no JSON stops the pipeline, or goes to the dead-letter topic if there is one. Tombstones, records
    without a value, have no fields and are left out; `format: raw` keeps them.

    `properties` takes whatever librdkafka knows, such as `ssl.endpoint.identification.algorithm`. Amazon's IAM login
    is not among the mechanisms.
    """
    example = """
    sources:
      legacy-orders:
        connector: kafka
        topic: orders
        config:
          brokers: kafka-1:9092,kafka-2:9092
          topic: shop.orders
          start_offset: earliest
          security:
            protocol: SASL_SSL
            sasl_mechanism: SCRAM-SHA-512
            sasl_username: pipelines
            sasl_password: "${KAFKA_PASSWORD}"
    """
    extra = "kafka"
    modules = ("confluent_kafka", "pyarrow", "numpy")
    delivery = "exactly_once"

    def __init__(self, settings: KafkaSourceSettings) -> None:
        super().__init__(settings)
        self._admin: AdminClient | None = None
        self._publisher: Consumer | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.settings,)

    @property
    def stream(self) -> str:
        return self.settings.topic or ""

    def close(self) -> None:
        self._admin = None
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def check(self) -> list[Finding]:
        found, there = self.settings.findings()
        if found:
            return found
        if not self._wanted(there):
            text = f"no topic matches {self.settings.topic_pattern}"
            found.append(Finding(text, "warning", "topic_pattern", "topics that are made later are found"))
        for name in self._named():
            if name not in there or there[name].error is not None:
                field = "topic" if self.settings.topic else "topics"
                fix = "create it, or look at the name and our rights"
                found.append(Finding(f"there is no topic {name!r}", field=field, fix=fix))
        return found

    def discover(self) -> list[Stream]:
        try:
            names = sorted(self._wanted(self.settings.existing(self._asking())))
            if self.settings.format != "json":
                return [Stream(name, self.schema()) for name in names]
            return [Stream(name, arrow_schema(self._sample([name]))) for name in names]
        finally:
            self.close()

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        kind = pa.string() if self.settings.format == "text" else pa.binary()
        fields: list[tuple[str, pa.DataType]]
        fields = [("value", kind)] if self.settings.format == "json" else [("key", kind), ("value", kind)]
        fields += [
            ("__key", pa.binary()),
            ("__partition", pa.int32()),
            ("__offset", pa.int64()),
            ("__timestamp", pa.timestamp("us", tz="UTC")),
            ("__stream", pa.string()),
            ("__metadata", pa.map_(pa.string(), pa.string())),
        ]
        return pa.schema(fields + ([("__topic", pa.string())] if self.settings.keep_topic else []))

    def frame(self, spark: SparkSession, launch: Launch) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        frame = super().frame(spark, launch)
        if self.settings.format != "json":
            return frame
        where = F.format_string(
            "the record at offset %d of partition %d of topic %s",
            F.col("__offset"),
            F.col("__partition"),
            F.col("__stream"),
        )
        try:
            return typed(frame, self.settings.schema, self._sample, launch, where)
        finally:
            self.close()

    # Topics and offsets

    def _named(self) -> list[str]:
        return [self.settings.topic] if self.settings.topic else self.settings.topics

    def _wanted(self, there: Mapping[str, Any]) -> list[str]:
        if self.settings.topic_pattern is None:
            return [name for name in self._named() if name in there and there[name].error is None]
        wanted = re.compile(self.settings.topic_pattern)
        return [name for name in sorted(there) if wanted.fullmatch(name) and not name.startswith("__")]

    def _asking(self) -> AdminClient:
        if self._admin is None:
            self._admin = self.settings.admin()
        return self._admin

    def _offsets(self, which: Literal["earliest", "latest"] | int) -> Offsets:
        """The first offset, the end, or the first since a time in ms, of every partition there is."""
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        there = self.settings.existing(self._asking())
        names = self._wanted(there)
        if lost := [name for name in self._named() if name not in names]:
            raise self.settings.trouble(f"there is no topic {', '.join(lost)}")
        asked = {
            TopicPartition(name, number): offset_spec(which) for name in names for number in there[name].partitions
        }
        if not asked:
            return {}
        committed = self.settings.isolation_level == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        timeout_s = self.settings.request_timeout_ms / 1000
        found: Offsets = {}
        try:
            futures = self._asking().list_offsets(asked, isolation_level=level, request_timeout=timeout_s)
            for place, future in sorted(futures.items(), key=lambda item: (item[0].topic, item[0].partition)):
                found.setdefault(place.topic, {})[str(place.partition)] = future.result().offset
        except KafkaException as error:
            raise self.settings.trouble(error) from None
        return found

    def start_position(self) -> Position:
        text = self.settings.start_offset
        if text == "earliest":
            return dict(self._offsets("earliest"))
        newest = self._offsets("latest")
        if text == "latest":
            return dict(newest)
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        found = self._offsets(int(moment.timestamp() * 1000))
        return {  # -1: nothing is as young as that
            topic: {part: newest[topic][part] if offset < 0 else offset for part, offset in parts.items()}
            for topic, parts in found.items()
        }

    def newest_position(self) -> Position:
        return dict(self._offsets("latest"))

    def advance(self, start: Position, newest: Position | None, rows: int) -> Position:
        assert newest is not None, "a topic has an end"
        ranges = self._ranges(start, newest)
        whole = sum(each.end - (each.start or 0) for each in ranges)
        end: Offsets = {topic: dict(parts) for topic, parts in start.items()}
        for each in ranges:
            first, size = each.start or 0, each.end - (each.start or 0)
            share = size if whole <= rows else max(1, size * rows // whole)
            end.setdefault(each.topic, {})[str(each.partition)] = first + min(size, share)
        return dict(end)

    def _ranges(self, start: Position, end: Position) -> list[Range]:
        """What stands between two positions; a partition that the first does not know begins at its own start."""
        made = []
        for topic, parts in sorted(end.items()):
            for part, last in sorted(parts.items(), key=lambda item: int(item[0])):
                first = start.get(topic, {}).get(part)
                if first is not None and last < first and self.settings.fail_on_data_loss:
                    raise DataLost(what=f"{topic}/{part} was read up to offset {first} and now ends at {last}")
                if last > (first or 0):
                    made.append(Range(topic, int(part), first, last))
        return made

    def rows_between(self, start: Position, end: Position) -> int:
        return sum(each.end - (each.start or 0) for each in self._ranges(start, end))

    def plan(self, start: Position, end: Position) -> Sequence[Range]:
        return self._ranges(start, end)

    def commit(self, end: Position) -> None:
        if not self.settings.enable_auto_commit:
            return
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        offsets = [TopicPartition(topic, int(part), at) for topic, parts in end.items() for part, at in parts.items()]
        try:
            if self._publisher is None:
                self._publisher = Consumer(self._reading())
            self._publisher.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:  # it is for onlookers alone
            logger.warning("progress cannot be published: %s", error.args[0].str())

    # Records

    def _reading(self) -> dict[str, Any]:
        settings = self.settings
        made = settings.options(
            group_id=settings.consumer_group,
            isolation_level=settings.isolation_level,
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="error" if settings.fail_on_data_loss else "earliest",
            fetch_min_bytes=settings.fetch_min_bytes,
            fetch_max_bytes=settings.fetch_max_bytes,
        )
        made.setdefault("receive.message.max.bytes", settings.fetch_max_bytes + (1 << 20))
        return made

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        found: list[Message] = []
        size = 0
        for messages in self._messages(part):
            found += messages
            size += sum(map(len, messages))
            if len(found) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._batch(part, found)
                found, size = [], 0
        if found:
            yield self._batch(part, found)

    def _messages(self, part: Range) -> Iterator[list[Message]]:
        """The records of a range, some at a time."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

        passing = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
        consumer = Consumer(self._reading())
        try:
            begin = OFFSET_BEGINNING if part.start is None else part.start
            consumer.assign([TopicPartition(part.topic, part.partition, begin)])
            seen_s, ended, at = time.monotonic(), False, part.start or 0
            while not ended:
                wanted = min(FETCH_ROWS, max(1, part.end - at))  # it waits for as many as it is asked for
                found = []
                for message in consumer.consume(wanted, WAIT_S):
                    error, offset = message.error(), message.offset() or 0
                    if error is None:
                        if offset < part.end:
                            found.append(message)
                        ended = ended or offset >= part.end - 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ended = ended or offset >= part.end
                    elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                        raise DataLost(what=f"{part.topic}/{part.partition} no longer has offset {part.start}")
                    elif error.fatal() or not (error.retriable() or error.code() in passing):
                        raise self.settings.trouble(error)
                if found:
                    yield found
                    seen_s, at = time.monotonic(), (found[-1].offset() or 0) + 1
                elif time.monotonic() - seen_s > STALLED_S:
                    text = f"{part.topic}/{part.partition} gives nothing, though it should have records"
                    raise self.settings.trouble(text)
        except KafkaException as error:
            raise self.settings.trouble(error) from None
        finally:
            consumer.close()

    def _sample(self, names: Sequence[str] | None = None) -> list[bytes]:
        """The first records of each partition; tombstones have nothing to learn from."""
        first, last = self._offsets("earliest"), self._offsets("latest")
        found = []
        for each in self._ranges(first, last):
            if names is None or each.topic in names:
                part = each._replace(end=min(each.end, (each.start or 0) + SAMPLE_ROWS))
                values = [message.value() for messages in self._messages(part) for message in messages]
                found += [value for value in values if value is not None]
        return found

    def _batch(self, part: Range, messages: Sequence[Message]) -> pa.RecordBatch:
        import pyarrow as pa

        rows, schema = len(messages), self.schema()
        keys, values = [message.key() for message in messages], [message.value() for message in messages]
        times = [time_ms if kind else None for kind, time_ms in (message.timestamp() for message in messages)]
        offsets = pa.array([message.offset() for message in messages], pa.int64())
        columns: dict[str, Any] = {
            "key": keys,
            "value": values,
            "__key": keys if self.settings.include_key else pa.nulls(rows, pa.binary()),
            "__partition": pa.repeat(pa.scalar(part.partition, pa.int32()), rows),
            "__offset": offsets,
            "__timestamp": pa.array(times, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
            "__stream": pa.repeat(pa.scalar(part.topic), rows),
            "__topic": pa.repeat(pa.scalar(part.topic), rows),
            "__metadata": self._metadata(part, offsets, messages),
        }
        if self.settings.format == "text":
            columns |= {name: [_text(each) for each in columns[name]] for name in ("key", "value")}
        arrays = [
            column if isinstance(column := columns[field.name], pa.Array) else pa.array(column, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _metadata(self, part: Range, offsets: pa.Array[Any], messages: Sequence[Message]) -> Any:
        """Where each record is, and its headers: without these a column is made of whole columns, which is quick."""
        import numpy as np
        import pyarrow as pa

        if self.settings.include_headers:
            own = [("topic", part.topic), ("partition", str(part.partition))]
            return [[*own, ("offset", str(message.offset())), *_headers(message).items()] for message in messages]
        rows = len(messages)
        texts = pa.concat_arrays([pa.array([part.topic, str(part.partition)]), offsets.cast(pa.string())])
        places = np.tile(np.array([0, 1, 0]), rows)
        places[2::3] = np.arange(2, rows + 2)
        names = pa.array(["topic", "partition", "offset"]).take(np.tile(np.arange(3), rows))
        edges: Any = pa.array(np.arange(0, 3 * rows + 1, 3), pa.int32())
        return pa.MapArray.from_arrays(edges, names, texts.take(places))


def _headers(message: Message) -> dict[str, str | None]:
    """By name; of several with one name, the last."""
    pairs: Any = message.headers() or ()
    return {f"header.{name}": _text(value) for name, value in pairs}


def _text(value: bytes | str | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

"""Records to topics of any Kafka cluster: at least once by many tasks, or exactly once by one transaction a batch.

Kafka's transactions end in the process that began them, so tasks cannot write and leave the decision to the driver.
Exactly once is done in one task instead. It takes the transactional id of the query, which puts an end to whatever
an earlier attempt has left open and shuts out an attempt that still runs. Then it looks up which micro-batch was the
last to be committed, and unless that is this one, it writes the records and the number of the micro-batch in one
transaction. The number is kept as an offset of a consumer group, the one thing besides records that a transaction of
Kafka's has in it. So a crash at any point leaves either nothing of the micro-batch, or all of it and the knowledge
of that. It holds because a micro-batch that comes again has the same records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from rivven.connect.kafka import KafkaSettings
from rivven.connect.sdk import RESERVED, ArrowSink, Delivery, Finding, Launch, Task, setting
from rivven.errors import RivvenError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, KafkaError, Message, Producer
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

POLL_ROWS = 1000
"""Records after which delivery reports are taken in."""
OVERHEAD_BYTES = 4096
"""What a batch of one record may have besides the record."""
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class NotDelivered(RivvenError, code=217, retriable=True):
    """The cluster did not take all records."""

    message = "{count} records were not delivered to Kafka, the first to topic {topic}: {reason}"


class ProgressLost(RivvenError, code=218):
    """Nobody knows whether this micro-batch was written before."""

    message = (
        "the cluster does not know how far {group} has come, so micro-batch {batch} may or may not be there; "
        "offsets of groups are kept for some days only (offsets.retention.minutes). Look at the topic, and set "
        "on_lost_progress: write to write it"
    )


class KafkaSinkSettings(KafkaSettings):
    topic: str = setting("The topic.", example="orders", least=1)
    topic_field: str | None = setting(
        "A column that names the topic of its record, where it is not empty.", default=None
    )
    key_field: str | None = setting(
        "The column that is the key; without it the record keeps the key it has.", default=None
    )
    value_field: str | None = setting(
        "The column that is the value as it stands; without it the value is a JSON object of all columns.",
        default=None,
    )
    include_headers: bool = setting(
        "Say in headers where a record comes from: rivven.topic, rivven.partition, rivven.offset.", default=False
    )
    custom_headers: dict[str, str] = setting("Headers that every record gets.", factory=dict)
    delivery: Literal["at_least_once", "exactly_once"] = setting(
        "`exactly_once` writes each micro-batch in one task and one transaction.", default="at_least_once"
    )
    transactional_id: str | None = setting(
        "What the ids of transactions and of the group that keeps progress begin with, for the rights they need.",
        default=None,
        example="rivven-connect",
        least=1,
    )
    transaction_timeout_ms: int = setting(
        "How long a transaction may be open; the cluster has a limit for it, 15 minutes by default.",
        default=300_000,
        least=1000,
    )
    on_lost_progress: Literal["fail", "write"] = setting(
        "What follows with exactly_once if the cluster has forgotten how far the pipeline had come.", default="fail"
    )
    acks: Literal["none", "leader", "all"] = setting("Who must have a record before it counts.", default="all")
    idempotent: bool | None = setting(
        "Let the cluster drop what the client sends twice; by default with acks: all.", default=None
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting("Of batches of records.", default="none")
    max_message_bytes: int = setting(
        "The largest record, with its key and headers: at most what the topic takes (max.message.bytes). A larger "
        "one is refused, and goes to the dead-letter topic.",
        default=1_000_000,
        least=1024,
        most=1_000_000_000,
    )
    batch_size_bytes: int = setting("Records are gathered up to this much.", default=1_000_000, least=1)
    linger_ms: int = setting("And for this long.", default=5, least=0)
    retry_backoff_ms: int = setting("The pause before a request is sent again.", default=100, least=1)
    delivery_timeout_ms: int = setting("When a record is given up.", default=120_000, least=100)
    retries: int = setting(
        "How often a request is sent again.", default=3, least=0, ignored="delivery_timeout_ms says when it ends"
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.acks != "all" and self.idempotent:
            yield "acks", "idempotent needs acks: all"
        if self.acks != "all" and self.delivery == "exactly_once":
            yield "acks", "delivery: exactly_once needs acks: all"
        if self.idempotent is False and self.delivery == "exactly_once":
            yield "idempotent", "delivery: exactly_once needs it"
        if self.transactional_id is not None and self.delivery != "exactly_once":
            yield "transactional_id", "is for delivery: exactly_once; set that, or leave it out"
        if self.topic_field is not None and self.topic_field in (self.key_field, self.value_field):
            yield "topic_field", "must be another column than the key and the value"


Headers = list[tuple[str, str | bytes | None]]


class Outgoing(NamedTuple):
    """One record on its way out."""

    topic: str
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: Headers | None

    @property
    def bytes(self) -> int:
        own = len(self.key or b"") + len(self.value or b"")
        return own + sum(len(name) + len(value or b"") for name, value in self.headers or ())


class KafkaSink(ArrowSink[KafkaSinkSettings]):
    name = "kafka"
    aliases = ("kafka-sink", "apache-kafka")
    title = "Apache Kafka"
    summary = "Writes records to topics of a Kafka cluster, at least once or exactly once."
    docs = """
    Works with every cluster that speaks Kafka's protocol, rivven among them. A record is a JSON object of its
    columns, with the key and the time that it has; `value_field` and `key_field` take single columns instead. Keys go
    to the partitions that Java's and our own producer choose.

    By default all tasks write at once with an idempotent producer, at least once: after a crash, the records of the
    last micro-batch come again.

    With `delivery: exactly_once` a micro-batch is written in one transaction, together with its number, and one that
    comes again is not written again. Readers have to read with `isolation.level=read_committed`. Kafka's
    transactions end where they began, so one task does all the writing, at the speed of one producer. The number is
    an offset of the group `rivven-connect-<query>-0`, which a cluster keeps for seven days after the last one; a
    pipeline that rests for longer stops and asks what to do (`on_lost_progress`), and so does one that ran with
    `at_least_once` before.

    A record above `max_message_bytes`, or whose `topic_field` has no name of a topic, is refused before it is sent:
    it goes to the sink's `dead_letter_topic`, or without one it stops the pipeline.
    """
    example = """
    sinks:
      to-legacy:
        connector: kafka
        topics: [orders]
        consumer_group: to-legacy
        config:
          brokers: kafka-1:9092,kafka-2:9092
          topic: shop.orders
          key_field: customer_id
          delivery: exactly_once
    """
    extra = "kafka"
    modules = ("confluent_kafka", "pyarrow")
    delivery: Delivery = "at_least_once"
    record_columns = RESERVED

    def __init__(self, settings: KafkaSinkSettings) -> None:
        super().__init__(settings)
        self.delivery = settings.delivery

    def check(self) -> list[Finding]:
        found, there = self.settings.findings()
        topic = there.get(self.settings.topic)
        if not found and (topic is None or topic.error is not None):
            text = f"there is no topic {self.settings.topic!r}"
            fix = "create it, unless the cluster makes topics by itself"
            found.append(Finding(text, "warning", "topic", fix))
        return found

    def prepare(self, schema: pa.Schema) -> None:
        for name in ("topic_field", "key_field", "value_field"):
            column = getattr(self.settings, name)
            if column is not None and column not in schema.names:
                raise ValueError(f"{name}: there is no column {column!r}; there is {', '.join(schema.names)}")

    def start(self, frame: DataFrame, launch: Launch) -> StreamingQuery:
        return super().start(frame.coalesce(1) if self.delivery == "exactly_once" else frame, launch)

    def _options(self, **more: Any) -> dict[str, Any]:
        settings = self.settings
        idempotent = settings.acks == "all" if settings.idempotent is None else settings.idempotent
        return settings.options(
            acks={"none": 0, "leader": 1, "all": -1}[settings.acks],
            enable_idempotence=idempotent,
            compression_type=settings.compression,
            batch_size=settings.batch_size_bytes,
            message_max_bytes=settings.max_message_bytes + OVERHEAD_BYTES,
            linger_ms=settings.linger_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            request_timeout_ms=settings.request_timeout_ms,
            message_timeout_ms=settings.delivery_timeout_ms,
            partitioner="murmur2_random",
            **more,
        )

    def write(self, batches: Iterator[pa.RecordBatch], task: Task) -> int | None:
        from confluent_kafka import KafkaException, Producer

        try:
            if self.delivery == "exactly_once":
                return self._write_once(batches, task)
            outbox = Outbox(Producer(self._options()), self.settings.delivery_timeout_ms / 1000)
            outbox.send(self._records(batches, task))
            outbox.settle()
        except KafkaException as error:
            raise self.settings.trouble(error) from None
        return outbox.sent or None

    def _write_once(self, batches: Iterator[pa.RecordBatch], task: Task) -> int:
        from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

        settings, batch = self.settings, task.batch
        own = f"{settings.transactional_id or 'rivven-connect'}-{batch.query_id}-{task.partition}"
        timeout_s = settings.request_timeout_ms / 1000
        lasting = {
            "transactional_id": own,
            "transaction_timeout_ms": settings.transaction_timeout_ms,
            "message_timeout_ms": min(settings.delivery_timeout_ms, settings.transaction_timeout_ms),
        }
        producer = Producer(self._options() | {name.replace("_", "."): value for name, value in lasting.items()})
        _persist(lambda: producer.init_transactions(timeout_s))  # from here on, no other attempt can commit
        keeper = Consumer(settings.options(group_id=own, isolation_level="read_committed", enable_auto_commit=False))
        try:
            place = TopicPartition(settings.topic, 0)
            if self._is_written(keeper, place, task, own):
                for _ in self._records(batches, task):  # for what it refuses: letters come after the records
                    pass
                return 0
            producer.begin_transaction()
            outbox = Outbox(producer, settings.delivery_timeout_ms / 1000)
            try:
                outbox.send(self._records(batches, task))
                outbox.settle()
                place.offset = batch.batch_id + 1
                group = keeper.consumer_group_metadata()
                _persist(lambda: producer.send_offsets_to_transaction([place], group, timeout_s))
                _persist(lambda: producer.commit_transaction(timeout_s))
            except BaseException:
                with suppress(KafkaException):  # who is shut out can't; the cluster ends what nobody else does
                    producer.abort_transaction(timeout_s)
                raise
            return outbox.sent
        finally:
            keeper.close()

    def _is_written(self, keeper: Consumer, place: Any, task: Task, own: str) -> bool:
        (kept,) = keeper.committed([place], timeout=self.settings.request_timeout_ms / 1000)
        if kept.error is not None:
            raise self.settings.trouble(kept.error)
        if kept.offset >= 0:
            return bool(kept.offset > task.batch.batch_id)
        if task.batch.batch_id > 0 and self.settings.on_lost_progress == "fail":
            raise ProgressLost(group=own, batch=task.batch.batch_id)
        return False

    # Records

    def _records(self, batches: Iterator[pa.RecordBatch], task: Task) -> Iterator[Outgoing]:
        """The records that can be sent; the others are refused here, by looking at nothing but themselves."""
        fixed: Headers = [(name, text.encode()) for name, text in self.settings.custom_headers.items()]
        for batch in batches:
            try:
                rows: Iterable[Any] = batch.to_pylist(maps_as_pydicts="lossy")
            except (ValueError, OverflowError):  # one of them has a text that is none, or a time that Python lacks
                rows = (None for _ in range(batch.num_rows))
            for place, row in enumerate(rows):
                try:
                    known = row or batch.slice(place, 1).to_pylist(maps_as_pydicts="lossy")[0]
                    record = self._record(known, fixed)
                    complaint = self._complaint(record)
                except (ValueError, OverflowError) as error:
                    complaint = f"it cannot be made a record: {error}"
                if complaint is None:
                    yield record
                else:
                    task.refuse(batch.slice(place, 1), complaint)

    def _complaint(self, record: Outgoing) -> str | None:
        if self.settings.topic_field and not TOPIC.fullmatch(record.topic):
            return f"{self.settings.topic_field} is {record.topic[:60]!r}, which is no name of a topic"
        size = record.bytes
        if size > self.settings.max_message_bytes:
            return f"it has {size:,} bytes, and max_message_bytes is {self.settings.max_message_bytes:,}"
        return None

    def _record(self, row: dict[str, Any], fixed: Headers) -> Outgoing:
        settings = self.settings
        topic = row[settings.topic_field] if settings.topic_field else None
        key = row[settings.key_field] if settings.key_field else row.get("__key")
        if settings.value_field:
            value = _bytes(row[settings.value_field])
        else:
            data = {name: item for name, item in row.items() if name not in RESERVED and name != settings.topic_field}
            value = msgspec.json.encode(data, enc_hook=str)
        moment = row.get("__timestamp")
        time_ms = int(moment.timestamp() * 1000) if isinstance(moment, datetime) else 0
        headers = [*fixed, *_origin(row)] if settings.include_headers else fixed
        return Outgoing(str(topic) if topic else settings.topic, _bytes(key), value, time_ms, headers or None)


def _origin(row: Mapping[str, Any]) -> Headers:
    names = ("topic", "partition", "offset")
    return [(f"rivven.{name}", str(row[f"__{name}"]).encode()) for name in names if row.get(f"__{name}") is not None]


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str)


class Outbox:
    """A producer, and what it says of what it was given."""

    def __init__(self, producer: Producer, timeout_s: float) -> None:
        self._producer = producer
        self._timeout_s = timeout_s
        self.sent = 0
        self._failed = 0
        self._first: tuple[str, str] | None = None

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed += 1
            self._first = self._first or (message.topic() or "", error.str())

    def send(self, records: Iterator[Outgoing]) -> None:
        for record in records:
            while True:
                try:
                    self._producer.produce(
                        record.topic,
                        value=record.value,
                        key=record.key,
                        timestamp=record.time_ms,
                        headers=record.headers,
                        on_delivery=self._report,
                    )
                    break
                except BufferError:  # it has enough for now
                    self._poll(0.1)
            self.sent += 1
            if self.sent % POLL_ROWS == 0:
                self._poll(0)
                self._look()

    def _poll(self, seconds: float) -> None:
        with _fatal_errors_shown():
            self._producer.poll(seconds)

    def settle(self) -> None:
        """Wait until the cluster has all of it."""
        with _fatal_errors_shown():
            left = self._producer.flush(self._timeout_s + 5)
        self._look()
        if left:
            raise NotDelivered(count=left, topic="?", reason="no answer in time")

    def _look(self) -> None:
        if self._first is not None:
            topic, reason = self._first
            raise NotDelivered(count=self._failed, topic=topic, reason=reason)


@contextmanager
def _fatal_errors_shown() -> Iterator[None]:
    """The client raises a fatal error, such as being shut out, while it still calls back, which hides the error."""
    from confluent_kafka import KafkaException

    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


TRIES_MAX = 10


def _persist(step: Callable[[], object]) -> None:
    """A step of a transaction, again as long as the client says that it may be: it waits and times out by itself."""
    from confluent_kafka import KafkaException

    for tried in range(TRIES_MAX):
        try:
            step()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or tried == TRIES_MAX - 1:
                raise

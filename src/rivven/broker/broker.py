"""The broker: every request of the vocabulary, decided.

`handle` takes a request and makes its reply, fulfilled at once or later; `turn` ends a round of requests: what was
published is written, what has become durable is answered, and waiting requests are looked at. Both return at once;
`due_us` says when `turn` is wanted next even if no request comes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rivven.coordinator import CONSUME, PRODUCE, REQUEST, CommittedOffset, OffsetKey, Quotas, QuotaTable
from rivven.errors import InvalidTopic, NotYet, RivvenError, TopicExists, UnknownPartition, UnknownTopic
from rivven.log import KEYS, Document, Log, Store, Topic, TopicConfig, check_name
from rivven.ports import Clock, Disk
from rivven.wire import Request, Response, fitting, greet
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .admit import Admission
from .committed import TOPIC as OFFSETS_TOPIC
from .committed import CommittedOffsets
from .fetch import Reader, Waiting
from .partitioner import Partitioner
from .publish import Publisher
from .session import Reply, Session
from .stats import BrokerStats
from .texts import told, topic_not_found

logger = logging.getLogger(__name__)

PARTITIONS_MAX = 1000
"""Through the native protocol."""
CONSUME_MESSAGES_MAX = 10_000
CONSUME_BYTES_PER_MESSAGE = 4096
CONSUME_BYTES_MAX = 8 * 1024 * 1024
"""Well below the largest reply, whatever the records' own lengths take."""
WAIT_MS_MAX = 30_000
FETCH_BYTES_MAX = 50 * 1024 * 1024
QUOTAS = "quotas.json"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    node_id: str = "rivven-1"
    host: str = "127.0.0.1"
    port: int = 9092
    rack: str | None = None
    default_partitions: int = 3
    auto_create_topics: bool = True
    segment_bytes: int | None = None
    """For topics that do not say; None leaves it to the log's own default."""
    partitioner_records: int = 16_384
    partitioner_linger_ms: int = 100
    quotas: dict[str, int] = field(default_factory=dict)
    """Default limits by key; none unless configured."""


class Broker:
    def __init__(self, store: Store, disk: Disk, clock: Clock, config: BrokerConfig | None = None) -> None:
        self.store = store
        self.config = config or BrokerConfig()
        self.stats = BrokerStats()
        self._clock = clock
        self._publisher = Publisher(store, clock, self.stats)
        self._partitioner = Partitioner(
            batch_records=self.config.partitioner_records, linger_ms=self.config.partitioner_linger_ms
        )
        self._reader = Reader(self.stats)
        self._waiting = Waiting()
        self._committed = CommittedOffsets(store, clock, self._publisher)
        self._quota_file = Document(disk, QUOTAS, QuotaTable)
        table = self._quota_file.load()[0] or QuotaTable()
        self._admission = Admission(Quotas.from_table(table, self.config.quotas))
        self._stopping = False
        self._touched: dict[Session, None] = {}
        """Sessions with replies that were fulfilled since the last turn."""
        self._handlers: dict[type[Request], Callable[[Any, Reply], Response | None]] = {
            ask.Publish: self._publish,
            ask.PublishBatch: self._publish_batch,
            ask.PublishRecords: self._publish_records,
            ask.ProduceBatches: self._produce_batches,
            ask.Consume: self._consume,
            ask.FetchBatches: self._fetch_batches,
            ask.CreateTopic: self._create_topic,
            ask.ListTopics: self._list_topics,
            ask.DeleteTopic: self._delete_topic,
            ask.GetMetadata: self._get_metadata,
            ask.GetClusterMetadata: self._get_cluster_metadata,
            ask.CreatePartitions: self._create_partitions,
            ask.AlterTopicConfig: self._alter_topic_config,
            ask.DescribeTopicConfigs: self._describe_topic_configs,
            ask.GetOffsetBounds: self._get_offset_bounds,
            ask.GetOffsetForTimestamp: self._get_offset_for_timestamp,
            ask.DeleteRecords: self._delete_records,
            ask.CommitOffset: self._commit_offset,
            ask.GetOffset: self._get_offset,
            ask.ListGroups: self._list_groups,
            ask.DescribeGroup: self._describe_group,
            ask.DeleteGroup: self._delete_group,
            ask.DescribeQuotas: self._describe_quotas,
            ask.AlterQuotas: self._alter_quotas,
            ask.Ping: self._ping,
            ask.Handshake: self._handshake,
        }

    # The two doors

    def handle(self, request: Request, reply: Reply) -> None:
        """Decide a request. Its reply is fulfilled now, or by a later `turn`."""
        kind = type(request)
        requests = self.stats.requests
        reply.kind = name = kind.__name__
        requests[name] = requests.get(name, 0) + 1
        if self._admission.charge(reply.session, REQUEST, 1, self._clock.now_us()):
            self.stats.throttled += 1
        handler = self._handlers.get(kind)
        try:
            if handler is None:
                raise NotYet(request=kind.__name__)
            response = handler(request, reply)
        except RivvenError as error:
            response = told(error)
        except OSError as error:  # of a file that could not be opened, say: this request fails, the node goes on
            logger.exception("%s failed", name)
            response = tell.Error(f"INTERNAL_ERROR: {error}")
        if response is not None:
            self._fulfil(reply, response)

    def turn(self) -> list[Session]:
        """End a round: write, commit, answer. Returns the sessions that have replies to send."""
        self._publisher.append_gathered()
        moved = self.store.pump()
        # Under a policy without syncs the offset has moved already, and no group will say so.
        durable = {**dict.fromkeys(moved), **dict.fromkeys(self._publisher.waiting_logs())}
        if durable:
            self._publisher.answer_durable(durable)
            self._waiting.wake(durable)
        self._waiting.expire(self._clock.now_us())
        touched, self._touched = self._touched, {}
        return list(touched)

    def end_waiting(self) -> None:
        """The node is about to stop: answer whoever waits for records with what there is, now and from now on."""
        self._stopping = True
        self._waiting.expire_all()

    def due_us(self) -> int | None:
        """When `turn` is wanted at the latest, on the clock's monotonic time."""
        due = [us for us in (self._waiting.due_us(), self.store.due_us()) if us is not None]
        return min(due) if due else None

    def _fulfil(self, reply: Reply, response: Response) -> None:
        if type(response) is tell.Error:
            self.stats.errors += 1
        reply.fulfil(response)
        self._touched[reply.session] = None

    @property
    def waiting(self) -> int:
        """How many requests wait for records."""
        return len(self._waiting)

    # Publishing

    def _publish(self, request: ask.Publish, reply: Reply) -> Response | None:
        record = (self._clock.now_ms(), request.key, request.value, ())
        log = self._log_for(request.topic, request.partition, request.key, 1)
        self._charge_produce(reply, len(request.value))

        def answer(offset: int, error: RivvenError | None) -> None:
            self._fulfil(reply, told(error) if error else tell.Published(offset, log.partition.partition))

        self._publisher.gather(log, [record], answer)
        return None

    def _publish_batch(self, request: ask.PublishBatch, reply: Reply) -> Response | None:
        now_ms = self._clock.now_ms()
        rows = [(now_ms, record.key, record.value, ()) for record in request.records]
        return self._publish_rows(request.topic, request.partition, rows, reply)

    def _publish_records(self, request: ask.PublishRecords, reply: Reply) -> Response | None:
        now_ms = self._clock.now_ms()
        rows = [
            (
                now_ms if record.timestamp_ms is None else record.timestamp_ms,
                record.key,
                record.value,
                tuple((header.name, header.value) for header in record.headers),
            )
            for record in request.records
        ]
        return self._publish_rows(request.topic, request.partition, rows, reply)

    def _publish_rows(self, topic: str, partition: int | None, rows: list[Any], reply: Reply) -> Response | None:
        if not rows:
            return tell.PublishedBatch(0, 0, 0)
        log = self._log_for(topic, partition, rows[0][1], len(rows))
        self._charge_produce(reply, sum(len(row[2] or b"") for row in rows))

        def answer(offset: int, error: RivvenError | None) -> None:
            number = log.partition.partition
            self._fulfil(reply, told(error) if error else tell.PublishedBatch(offset, number, len(rows)))

        self._publisher.gather(log, rows, answer)
        return None

    def _produce_batches(self, request: ask.ProduceBatches, reply: Reply) -> Response | None:
        outcomes: list[tuple[str, list[tell.PartitionProduced | None]]] = []
        left = 1  # one for ourselves, so that an answer on the spot does not end it early

        def settle() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                topics = tuple(
                    tell.TopicProduced(name, tuple(part for part in parts if part is not None))
                    for name, parts in outcomes
                )
                self._fulfil(reply, tell.ProducedBatches(topics))

        for entry in request.topics:
            parts: list[tell.PartitionProduced | None] = [None] * len(entry.partitions)
            outcomes.append((entry.topic, parts))
            for place, part in enumerate(entry.partitions):
                left += 1
                self._produce_one(entry.topic, part, parts, place, settle, reply)
        settle()
        return None

    def _produce_one(
        self,
        topic: str,
        part: ask.PartitionBatches,
        parts: list[tell.PartitionProduced | None],
        place: int,
        settle: Callable[[], None],
        reply: Reply,
    ) -> None:
        start = -1

        def answer(offset: int, error: RivvenError | None) -> None:
            code, text = (error.code, str(error)) if error is not None else (0, None)
            parts[place] = tell.PartitionProduced(part.partition, code, text, offset, -1, start)
            settle()

        try:
            log = self._log_for(topic, part.partition, None, 0)
            start = log.start
            assert not isinstance(part.batches, tuple), "only what is sent comes in pieces"
            data = memoryview(part.batches)
            self._charge_produce(reply, len(data))
            self._publisher.append_batches(log, data, answer)
        except RivvenError as error:
            answer(-1, error)

    def _log_for(self, name: str, partition: int | None, key: bytes | None, records: int) -> Log:
        """The partition to publish to, of a topic that is made if need be."""
        topic = self._topic_to_publish(name, partition)
        if partition is None:
            partition = self._partitioner.choose(name, topic.partitions, key, self._clock.now_ms(), records)
        elif partition >= topic.partitions:
            raise UnknownPartition(partition=partition, partitions=topic.partitions)
        return self.store.log(name, partition)

    def _topic_to_publish(self, name: str, partition: int | None) -> Topic:
        try:
            topic = self.store.topic(name)
        except UnknownTopic:
            check_name(name)
            partitions = self.config.default_partitions
            if not self.config.auto_create_topics:
                raise
            if partition is not None and partition >= partitions:
                raise UnknownPartition(partition=partition, partitions=partitions) from None
            topic = self._make_topic(name, partitions)
        if name == OFFSETS_TOPIC:
            raise InvalidTopic(topic=name, reason="the broker keeps it for itself")
        return topic

    def _make_topic(self, name: str, partitions: int) -> Topic:
        configs = {"segment.bytes": str(self.config.segment_bytes)} if self.config.segment_bytes else {}
        return self.store.create_topic(name, partitions, configs)

    def _charge_produce(self, reply: Reply, size_bytes: int) -> None:
        if self._admission.charge(reply.session, PRODUCE, size_bytes, self._clock.now_us()):
            self.stats.throttled += 1

    def _charge_consume(self, reply: Reply, size_bytes: int) -> None:
        reply.session.unsent_bytes += size_bytes
        if self._admission.charge(reply.session, CONSUME, size_bytes, self._clock.now_us()):
            self.stats.throttled += 1

    # Reading

    def _consume(self, request: ask.Consume, reply: Reply) -> Response | None:
        log = self._log_to_read(request.topic, request.partition)
        if isinstance(log, tell.Error):
            return log
        messages_max = min(request.max_messages, CONSUME_MESSAGES_MAX)
        bytes_max = min(max(1, messages_max * CONSUME_BYTES_PER_MESSAGE), CONSUME_BYTES_MAX)

        def attempt(last: bool) -> bool:
            waits = not last and request.offset >= self._reader.readable_end(log, request.isolation_level)
            if waits:
                return False
            try:
                records = self._reader.records(
                    log,
                    request.offset,
                    records_max=messages_max,
                    bytes_max=bytes_max,
                    isolation=request.isolation_level,
                )
            except RivvenError as error:
                self._fulfil(reply, told(error))
                return True
            self._charge_consume(reply, sum(len(record.value or b"") for record in records))
            found = tell.Messages(tuple(_message(record, request.partition) for record in records))
            self._fulfil(reply, fitting(found))
            return True

        wait_ms = 0 if self._stopping else min(request.max_wait_ms or 0, WAIT_MS_MAX)
        if not attempt(wait_ms == 0):
            self._waiting.add([log], self._clock.now_us() + wait_ms * 1000, attempt)
        return None

    def _fetch_batches(self, request: ask.FetchBatches, reply: Reply) -> Response | None:
        wanted = [(entry.topic, part) for entry in request.topics for part in entry.partitions]
        logs = [self._find_log(topic, part.partition) for topic, part in wanted]

        def attempt(last: bool) -> bool:
            if not last and not self._enough(request, wanted, logs):
                return False
            self._fulfil(reply, self._fetched(request, reply))
            return True

        wait_ms = 0 if self._stopping else min(request.max_wait_ms, WAIT_MS_MAX)
        if not attempt(wait_ms == 0 or any(log is None for log in logs)):
            self._waiting.add(
                [log for log in logs if log is not None], self._clock.now_us() + wait_ms * 1000, attempt
            )
        return None

    def _enough(
        self, request: ask.FetchBatches, wanted: list[tuple[str, ask.PartitionFetch]], logs: list[Log | None]
    ) -> bool:
        """Whether the partitions together have what was asked for, by a cheap estimate that is never too high by
        more than a batch: any readable record counts as one byte if only one is asked for."""
        have_bytes = 0
        for (_, part), log in zip(wanted, logs, strict=True):
            if log is None or part.fetch_offset < log.start or part.fetch_offset > log.end:
                return True  # an error to tell at once
            if part.fetch_offset >= self._reader.readable_end(log, request.isolation):
                continue
            if request.min_bytes <= 1:
                return True
            try:
                have_bytes += len(
                    self._reader.batches(log, part.fetch_offset, part.partition_max_bytes, request.isolation)
                )
            except RivvenError:
                return True
            if have_bytes >= request.min_bytes:
                return True
        return False

    def _fetched(self, request: ask.FetchBatches, reply: Reply) -> Response:
        left_bytes = min(request.max_bytes, FETCH_BYTES_MAX)
        topics = []
        given_bytes = 0
        for entry in request.topics:
            parts = []
            for part in entry.partitions:
                # The first batch comes whole, whatever the limits: a reader must always get on.
                budget = min(part.partition_max_bytes, left_bytes - given_bytes)
                fetched = self._fetch_one(entry.topic, part, budget, request.isolation, first=given_bytes == 0)
                given_bytes += len(fetched.batches)
                parts.append(fetched)
            topics.append(tell.TopicFetched(entry.topic, tuple(parts)))
        self._charge_consume(reply, given_bytes)
        return tell.FetchedBatches(tuple(topics))

    def _fetch_one(
        self, topic: str, part: ask.PartitionFetch, bytes_max: int, isolation: int, *, first: bool
    ) -> tell.PartitionFetched:
        log = self._find_log(topic, part.partition)
        if log is None:
            unknown = UnknownTopic(partition=f"partition {topic}/{part.partition}")
            return tell.PartitionFetched(part.partition, unknown.code, str(unknown), -1, -1, -1, (), b"")
        code, text, data = 0, None, memoryview(b"")
        try:
            if bytes_max > 0 or first:
                data = self._reader.batches(log, part.fetch_offset, max(1, bytes_max), isolation)
                self._reader.count_out(data)
        except RivvenError as error:
            code, text = error.code, str(error)
        aborted: tuple[tell.AbortedTransaction, ...] = ()
        if isolation and len(data):
            found = log.aborted_between(part.fetch_offset, log.last_stable)
            aborted = tuple(tell.AbortedTransaction(entry.producer_id, entry.first_offset) for entry in found)
        return tell.PartitionFetched(
            part.partition, code, text, log.high_watermark, log.last_stable, log.start, aborted, data
        )

    def _find_log(self, topic: str, partition: int) -> Log | None:
        try:
            return self.store.log(topic, partition)
        except UnknownTopic:
            return None

    def _log_to_read(self, name: str, partition: int) -> Log | tell.Error:
        try:
            topic = self.store.topic(name)
        except UnknownTopic:
            return topic_not_found(name)
        if partition >= topic.partitions:
            return tell.Error(f"Partition {partition} not found for topic '{name}'")
        return self.store.log(name, partition)

    def _get_offset_bounds(self, request: ask.GetOffsetBounds, _: Reply) -> Response:
        log = self._log_to_read(request.topic, request.partition)
        return log if isinstance(log, tell.Error) else tell.OffsetBounds(log.start, log.high_watermark)

    def _get_offset_for_timestamp(self, request: ask.GetOffsetForTimestamp, _: Reply) -> Response:
        log = self._log_to_read(request.topic, request.partition)
        if isinstance(log, tell.Error):
            return log
        found = log.offset_for_timestamp(request.timestamp_ms)
        return tell.OffsetForTimestamp(found[0] if found is not None else None)

    # Topics

    def _create_topic(self, request: ask.CreateTopic, _: Reply) -> Response:
        partitions = self.config.default_partitions if request.partitions is None else request.partitions
        if not 1 <= partitions <= PARTITIONS_MAX:
            return tell.Error(f"INVALID_PARTITION_COUNT: must be between 1 and {PARTITIONS_MAX}, got {partitions}")
        if is_internal(request.name):
            return internal_topic(request.name)
        try:
            topic = self._make_topic(request.name, partitions)
        except TopicExists:
            return tell.Error(f"Topic '{request.name}' already exists")
        return tell.TopicCreated(topic.name, topic.partitions)

    def _list_topics(self, _: ask.ListTopics, __: Reply) -> Response:
        return tell.Topics(tuple(topic.name for topic in self.store.topics if not is_internal(topic.name)))

    def _delete_topic(self, request: ask.DeleteTopic, _: Reply) -> Response:
        try:
            topic = self.store.topic(request.name)
        except UnknownTopic:
            return topic_not_found(request.name)
        if is_internal(request.name):
            return internal_topic(request.name)
        logs = [self.store.log(*partition) for partition in topic.each()]
        self._publisher.append_gathered()
        self.store.delete_topic(request.name)
        self._partitioner.forget(request.name)
        gone = UnknownTopic(partition=f"topic {request.name!r}: it was deleted")
        for log in logs:
            self._publisher.abandon(log, gone)
            self._waiting.end(log)
        return tell.TopicDeleted()

    def _get_metadata(self, request: ask.GetMetadata, _: Reply) -> Response:
        try:
            topic = self.store.topic(request.topic)
        except UnknownTopic:
            return topic_not_found(request.topic)
        return tell.Metadata(topic.name, topic.partitions)

    def _get_cluster_metadata(self, request: ask.GetClusterMetadata, _: Reply) -> Response:
        node = self.config.node_id
        wanted = set(request.topics)
        topics = [topic for topic in self.store.topics if not wanted or topic.name in wanted]
        return tell.ClusterMetadata(
            node,
            (tell.BrokerInfo(node, self.config.host, self.config.port, self.config.rack),),
            tuple(
                tell.TopicMetadata(
                    topic.name,
                    is_internal(topic.name),
                    tuple(
                        tell.PartitionMetadata(number, node, (node,), (node,)) for number in range(topic.partitions)
                    ),
                )
                for topic in topics
            ),
        )

    def _create_partitions(self, request: ask.CreatePartitions, _: Reply) -> Response:
        topic = self._topic_to_change(request.topic)
        if isinstance(topic, tell.Error):
            return topic
        count = request.new_partition_count
        if count > PARTITIONS_MAX:
            return tell.Error(f"INVALID_PARTITIONS: at most {PARTITIONS_MAX}, got {count}")
        if count <= topic.partitions:
            return tell.Error(
                f"INVALID_PARTITIONS: New partition count {count} must be greater than current count "
                f"{topic.partitions}"
            )
        self.store.add_partitions(request.topic, count)
        return tell.PartitionsCreated(request.topic, count)

    def _topic_to_change(self, name: str) -> Topic | tell.Error:
        if is_internal(name):
            return internal_topic(name)
        try:
            return self.store.topic(name)
        except UnknownTopic:
            return tell.Error(f"UNKNOWN_TOPIC_OR_PARTITION: Topic '{name}' not found")

    def _alter_topic_config(self, request: ask.AlterTopicConfig, _: Reply) -> Response:
        topic = self._topic_to_change(request.topic)
        if isinstance(topic, tell.Error):
            return topic
        configs = dict(topic.configs)
        for entry in request.configs:
            if entry.value is None:
                configs.pop(entry.key, None)
            else:
                configs[entry.key] = entry.value
        # A key that nobody knows is a mistake even where it is only to be reset.
        TopicConfig.from_map({entry.key: entry.value or "0" for entry in request.configs if entry.key not in KEYS})
        self.store.configure(request.topic, configs)
        return tell.TopicConfigAltered(request.topic, len(request.configs))

    def _describe_topic_configs(self, request: ask.DescribeTopicConfigs, _: Reply) -> Response:
        names = request.topics or tuple(topic.name for topic in self.store.topics if topic.configs)
        return tell.TopicConfigsDescribed(tuple(self._describe_configs(name) for name in names))

    def _describe_configs(self, name: str) -> tell.TopicConfigDescription:
        topic = next((topic for topic in self.store.topics if topic.name == name), None)
        chosen = topic.configs if topic is not None else {}
        values = TopicConfig.from_map(chosen).to_map()
        return tell.TopicConfigDescription(
            name,
            {key: tell.TopicConfigValue(value, key not in chosen, False, False) for key, value in values.items()},
        )

    def _delete_records(self, request: ask.DeleteRecords, _: Reply) -> Response:
        if is_internal(request.topic):
            return internal_topic(request.topic)
        topic = request.topic
        results = [self._delete_before(topic, entry.partition, entry.offset) for entry in request.partition_offsets]
        return tell.RecordsDeleted(topic, tuple(results))

    def _delete_before(self, topic: str, partition: int, offset: int) -> tell.DeleteRecordsResult:
        log = self._find_log(topic, partition)
        if log is None:
            text = f"UNKNOWN_TOPIC_OR_PARTITION: Partition {partition} not found"
            return tell.DeleteRecordsResult(partition, 0, text)
        if offset > log.high_watermark:
            text = f"OFFSET_OUT_OF_RANGE: Target offset {offset} exceeds latest offset {log.high_watermark}"
            return tell.DeleteRecordsResult(partition, log.start, text)
        try:
            if offset > log.start:
                self.store.delete_before(log, offset)
        except RivvenError as error:
            return tell.DeleteRecordsResult(partition, log.start, told(error).message)
        return tell.DeleteRecordsResult(partition, log.start)

    # Groups' offsets

    def _commit_offset(self, request: ask.CommitOffset, reply: Reply) -> Response | None:
        if not is_group(request.consumer_group):
            return bad_group("INVALID_CONSUMER_GROUP", request.consumer_group)
        try:
            topic = self.store.topic(request.topic)
        except UnknownTopic:
            return tell.Error(f"UNKNOWN_TOPIC: topic '{request.topic}' does not exist")
        number = request.partition
        if number >= topic.partitions:
            return tell.Error(f"UNKNOWN_PARTITION: partition {number} does not exist in topic '{request.topic}'")
        latest = self.store.log(request.topic, number).end
        if request.offset > latest:
            return tell.Error(
                f"OFFSET_OUT_OF_RANGE: offset {request.offset} exceeds latest offset {latest} for partition {number}"
            )
        key = OffsetKey(request.consumer_group, request.topic, number)
        committed = CommittedOffset(request.offset, committed_ms=self._clock.now_ms())

        def done(error: RivvenError | None) -> None:
            self._fulfil(reply, told(error) if error is not None else tell.OffsetCommitted())

        self._committed.commit({key: committed}, done)
        return None

    def _get_offset(self, request: ask.GetOffset, _: Reply) -> Response:
        if not is_group(request.consumer_group):
            return bad_group("INVALID_CONSUMER_GROUP", request.consumer_group)
        key = OffsetKey(request.consumer_group, request.topic, request.partition)
        found = self._committed.table.get(key)
        return tell.CommittedOffset(found.offset if found is not None else None)

    def _list_groups(self, _: ask.ListGroups, __: Reply) -> Response:
        return tell.Groups(tuple(self._committed.table.groups()))

    def _describe_group(self, request: ask.DescribeGroup, _: Reply) -> Response:
        if not is_group(request.consumer_group):
            return bad_group("INVALID_GROUP_ID", request.consumer_group)
        offsets = self._committed.table.of_group(request.consumer_group)
        if not offsets:
            return tell.Error(f"Consumer group '{request.consumer_group}' not found")
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), committed in sorted(offsets.items()):
            by_topic.setdefault(topic, {})[partition] = committed.offset
        return tell.GroupDescription(request.consumer_group, by_topic)

    def _delete_group(self, request: ask.DeleteGroup, reply: Reply) -> Response | None:
        if not is_group(request.consumer_group):
            return bad_group("INVALID_GROUP_ID", request.consumer_group)
        keys = self._committed.table.keys_of_group(request.consumer_group)
        if not keys:
            return tell.Error(f"Consumer group '{request.consumer_group}' not found")

        def done(error: RivvenError | None) -> None:
            self._fulfil(reply, told(error) if error is not None else tell.GroupDeleted())

        self._committed.commit(dict.fromkeys(keys), done)
        return None

    # Quotas

    def _describe_quotas(self, request: ask.DescribeQuotas, _: Reply) -> Response:
        quotas = self._admission.quotas
        if not request.entities:
            rows = [tell.QuotaEntry(kind, name, values) for (kind, name), values in quotas.stored().items()]
            return tell.QuotasDescribed(tuple(rows))
        entries = []
        for entity in request.entities:
            if entity.entity_type == "user":
                entries.append(
                    tell.QuotaEntry("user", entity.entity_name, quotas.effective(entity.entity_name, None))
                )
            elif entity.entity_type == "client-id":
                values = quotas.effective(None, entity.entity_name)
                entries.append(tell.QuotaEntry("client-id", entity.entity_name, values))
        return tell.QuotasDescribed(tuple(entries))

    def _alter_quotas(self, request: ask.AlterQuotas, _: Reply) -> Response:
        quotas = self._admission.quotas
        altered = sum(
            quotas.alter(change.entity_type, change.entity_name, change.quota_key, change.quota_value)
            for change in request.alterations
        )
        if altered:
            self._quota_file.save(quotas.to_table())
        return tell.QuotasAltered(altered)

    # The connection itself

    def _ping(self, _: ask.Ping, __: Reply) -> Response:
        return tell.Pong()

    def _handshake(self, request: ask.Handshake, reply: Reply) -> Response:
        reply.session.client_id = request.client_id
        return greet(request)


GROUP = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,254}")


def is_group(name: str) -> bool:
    return GROUP.fullmatch(name) is not None and ".." not in name


def bad_group(code: str, name: str) -> tell.Error:
    return tell.Error(f"{code}: Invalid consumer group ID: {name}")


def internal_topic(name: str) -> tell.Error:
    return tell.Error(f"INVALID_TOPIC_NAME: topic '{name}' is the broker's own; choose another name")


def is_internal(name: str) -> bool:
    return name.startswith("__")


def _message(record: Any, partition: int) -> tell.MessageData:
    headers = tuple(tell.MessageHeader(name, value or b"") for name, value in record.headers)
    return tell.MessageData(record.offset, partition, record.key, record.value or b"", record.timestamp_ms, headers)

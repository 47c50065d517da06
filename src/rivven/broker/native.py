"""The native dialect: each request of its vocabulary as an operation of the broker, the outcome in its own words.

Thin on purpose: what is decided here is only what this protocol alone says, its limits and its texts, which clients
of it know by heart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from rivven.errors import NotYet, OffsetOutOfRange, RivvenError, TopicExists, UnknownPartition, UnknownTopic
from rivven.model import TopicPartition
from rivven.record import Record
from rivven.wire import CAPABILITIES, Capability, Request, Response, fitting, greet
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .admit import Limit
from .native_groups import NativeGroups
from .native_transactions import ForPartition, NativeTransactions
from .reading import Fetched, Wanted
from .session import Reply, Session
from .texts import refusal, told, topic_not_found
from .topics import is_internal
from .writing import Produced

if TYPE_CHECKING:
    from .broker import Broker

logger = logging.getLogger(__name__)
P = TypeVar("P", bound=tell.PartitionFetched)

PARTITIONS_MAX = 1000
"""Of one topic, through this protocol."""


class Native:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._transactions = NativeTransactions(broker)
        self._handlers: dict[type[Request], Callable[[Any, Reply], Response | None]] = {
            ask.Publish: self._publish,
            ask.PublishBatch: self._publish_batch,
            ask.PublishRecords: self._publish_records,
            ask.ProduceBatches: self._produce_batches,
            ask.Consume: self._consume,
            ask.FetchBatches: self._fetch_batches,
            ask.FindBatches: self._find_batches,
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
            ask.DescribeQuotas: self._describe_quotas,
            ask.AlterQuotas: self._alter_quotas,
            ask.Ping: self._ping,
            ask.Handshake: self._handshake,
            **NativeGroups(broker).handlers(),
            **self._transactions.handlers(),
        }

    def handle(self, request: Request, reply: Reply) -> None:
        """Decide a request. A handler returns its response, or None if it fulfils the reply by itself."""
        kind = type(request)
        self._broker.begin(reply, kind.__name__)
        handler = self._handlers.get(kind)
        try:
            if handler is None:
                raise NotYet(request=kind.__name__)
            response = handler(request, reply)
        except RivvenError as error:
            response = told(error)
        except OSError as error:  # of a file that could not be opened, say: this request fails, the node goes on
            logger.exception("%s failed", kind.__name__)
            response = refusal(error)
        if response is not None:
            self._fulfil(reply, response)

    def _fulfil(self, reply: Reply, response: Response) -> None:
        self._broker.fulfil(reply, response, failed=type(response) is tell.Error)

    def _done(self, reply: Reply, response: Response) -> Callable[[RivvenError | None], None]:
        """Answers with `response` once all is well, or with what went wrong."""
        return lambda error: self._fulfil(reply, response if error is None else told(error))

    # Publishing

    def _publish(self, request: ask.Publish, reply: Reply) -> None:
        writing = self._broker.writing
        record = (self._broker.clock.now_ms(), request.key, request.value, ())
        log = writing.log_for(request.topic, request.partition, request.key)

        def answer(offset: int, error: RivvenError | None) -> None:
            self._fulfil(reply, told(error) if error else tell.Published(offset, log.partition.partition))

        writing.publish(reply.session, log, [record], answer)

    def _publish_batch(self, request: ask.PublishBatch, reply: Reply) -> Response | None:
        now_ms = self._broker.clock.now_ms()
        rows = [(now_ms, record.key, record.value, ()) for record in request.records]
        return self._publish_rows(request.topic, request.partition, rows, reply)

    def _publish_records(self, request: ask.PublishRecords, reply: Reply) -> Response | None:
        now_ms = self._broker.clock.now_ms()
        rows = [
            (
                now_ms if record.timestamp_ms is None else record.timestamp_ms,
                record.key,
                record.value,
                tuple((header.name, header.value) for header in record.headers),
            )
            for record in request.records
        ]
        if not rows:  # a producer's way to have its topic made before it knows where its records go
            self._broker.topics.to_publish(request.topic, request.partition)
        return self._publish_rows(request.topic, request.partition, rows, reply)

    def _publish_rows(self, topic: str, partition: int | None, rows: list[Any], reply: Reply) -> Response | None:
        if not rows:
            return tell.PublishedBatch(0, 0, 0)
        writing = self._broker.writing
        log = writing.log_for(topic, partition, rows[0][1], len(rows))

        def answer(offset: int, error: RivvenError | None) -> None:
            number = log.partition.partition
            self._fulfil(reply, told(error) if error else tell.PublishedBatch(offset, number, len(rows)))

        writing.publish(reply.session, log, rows, answer)
        return None

    def _produce_batches(self, request: ask.ProduceBatches, reply: Reply) -> None:
        outcomes: list[tuple[str, list[tell.PartitionProduced | None]]] = []
        in_transaction: list[ForPartition] = []
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
                assert not isinstance(part.batches, tuple), "only what is sent comes in pieces"
                answer = _noting(parts, place, part.partition, settle)
                batches = memoryview(part.batches)
                where = TopicPartition(entry.topic, part.partition)
                if request.transactional_id is None:
                    self._broker.writing.produce(reply.session, *where, batches, answer)
                else:
                    in_transaction.append(ForPartition(where, batches, answer))
        if request.transactional_id is not None:
            self._transactions.produce(request.transactional_id, reply.session, in_transaction)
        settle()

    def produce_in_transaction(
        self,
        session: Session,
        transaction: str,
        where: TopicPartition,
        batches: memoryview,
        answer: Callable[[Produced], None],
    ) -> None:
        """What `_produce_batches` does for a request that names one partition and a transaction. Raises only what the
        disk does."""
        self._broker.due_us = 0  # as with every request: something may come due
        self._transactions.produce(transaction, session, [ForPartition(where, batches, answer)])

    # Reading

    def _consume(self, request: ask.Consume, reply: Reply) -> Response | None:
        def answer(records: list[Record], error: RivvenError | None) -> None:
            if error is not None:
                self._fulfil(reply, told(error))
                return
            found = tell.Messages(tuple(_message(record, request.partition) for record in records))
            self._fulfil(reply, fitting(found))

        try:
            self._broker.reading.consume(
                reply.session,
                request.topic,
                request.partition,
                request.offset,
                records_max=request.max_messages,
                wait_ms=request.max_wait_ms or 0,
                isolation=request.isolation_level,
                answer=answer,
            )
        except UnknownTopic as error:
            return _not_found(request.topic, error)
        return None

    def _fetch_batches(self, request: ask.FetchBatches, reply: Reply) -> None:
        def answer(found: list[Fetched]) -> None:
            topics = _by_topic(request, found, _partition_fetched)
            self._fulfil(reply, tell.FetchedBatches(tuple(tell.TopicFetched(*topic) for topic in topics)))

        self._fetch(request, reply, answer)

    def _find_batches(self, request: ask.FindBatches, reply: Reply) -> None:
        def answer(found: list[Fetched]) -> None:
            topics = _by_topic(request, found, _partition_found)
            self._fulfil(reply, tell.FoundBatches(tuple(tell.TopicFound(*topic) for topic in topics)))

        self._fetch(request, reply, answer, by_place=reply.session.is_local)

    def _fetch(
        self,
        request: ask.FetchBatches,
        reply: Reply,
        answer: Callable[[list[Fetched]], None],
        *,
        by_place: bool = False,
    ) -> None:
        wanted = [
            Wanted(entry.topic, part.partition, part.fetch_offset, part.partition_max_bytes)
            for entry in request.topics
            for part in entry.partitions
        ]
        self._broker.reading.fetch(
            reply.session,
            wanted,
            wait_ms=request.max_wait_ms,
            bytes_min=request.min_bytes,
            bytes_max=request.max_bytes,
            isolation=request.isolation,
            answer=answer,
            by_place=by_place,
        )

    def _get_offset_bounds(self, request: ask.GetOffsetBounds, _: Reply) -> Response:
        try:
            bounds = self._broker.reading.bounds(request.topic, request.partition)
        except UnknownTopic as error:
            return _not_found(request.topic, error)
        return tell.OffsetBounds(bounds.start, bounds.high_watermark)

    def _get_offset_for_timestamp(self, request: ask.GetOffsetForTimestamp, _: Reply) -> Response:
        try:
            found = self._broker.reading.offset_for_timestamp(request.topic, request.partition, request.timestamp_ms)
        except UnknownTopic as error:
            return _not_found(request.topic, error)
        return tell.OffsetForTimestamp(found[0] if found is not None else None)

    # Topics

    def _create_topic(self, request: ask.CreateTopic, _: Reply) -> Response:
        wanted = request.partitions
        if wanted is not None and not 1 <= wanted <= PARTITIONS_MAX:
            return tell.Error(f"INVALID_PARTITION_COUNT: must be between 1 and {PARTITIONS_MAX}, got {wanted}")
        try:
            topic = self._broker.topics.create(request.name, wanted)
        except TopicExists:
            return tell.Error(f"Topic '{request.name}' already exists")
        return tell.TopicCreated(topic.name, topic.partitions)

    def _list_topics(self, _: ask.ListTopics, __: Reply) -> Response:
        return tell.Topics(tuple(topic.name for topic in self._broker.topics if not is_internal(topic.name)))

    def _delete_topic(self, request: ask.DeleteTopic, reply: Reply) -> Response | None:
        try:
            self._broker.topics.delete(request.name, self._done(reply, tell.TopicDeleted()))
        except UnknownTopic:
            return topic_not_found(request.name)
        return None

    def _get_metadata(self, request: ask.GetMetadata, _: Reply) -> Response:
        try:
            topic = self._broker.topics.get(request.topic)
        except UnknownTopic:
            return topic_not_found(request.topic)
        return tell.Metadata(topic.name, topic.partitions)

    def _get_cluster_metadata(self, request: ask.GetClusterMetadata, _: Reply) -> Response:
        config = self._broker.config
        node = config.node_id
        wanted = set(request.topics)
        return tell.ClusterMetadata(
            node,
            (tell.BrokerInfo(node, config.host, config.port, config.rack),),
            tuple(
                tell.TopicMetadata(
                    topic.name,
                    is_internal(topic.name),
                    tuple(
                        tell.PartitionMetadata(number, node, (node,), (node,)) for number in range(topic.partitions)
                    ),
                )
                for topic in self._broker.topics
                if not wanted or topic.name in wanted
            ),
        )

    def _create_partitions(self, request: ask.CreatePartitions, _: Reply) -> Response:
        count = request.new_partition_count
        if count > PARTITIONS_MAX:
            return tell.Error(f"INVALID_PARTITIONS: at most {PARTITIONS_MAX}, got {count}")
        try:
            self._broker.topics.add_partitions(request.topic, count)
        except UnknownTopic:
            return _no_topic_to_change(request.topic)
        return tell.PartitionsCreated(request.topic, count)

    def _alter_topic_config(self, request: ask.AlterTopicConfig, _: Reply) -> Response:
        try:
            self._broker.topics.alter_configs(request.topic, {entry.key: entry.value for entry in request.configs})
        except UnknownTopic:
            return _no_topic_to_change(request.topic)
        return tell.TopicConfigAltered(request.topic, len(request.configs))

    def _describe_topic_configs(self, request: ask.DescribeTopicConfigs, _: Reply) -> Response:
        topics = self._broker.topics
        names = request.topics or tuple(topic.name for topic in topics if topic.configs)
        return tell.TopicConfigsDescribed(tuple(self._describe_configs(name) for name in names))

    def _describe_configs(self, name: str) -> tell.TopicConfigDescription:
        """A topic that there is not is told with what it would have: this protocol has no place for an error."""
        topics = self._broker.topics
        try:
            found = {key: (each.value, each.is_default) for key, each in topics.configs(name).items()}
        except UnknownTopic:
            found = {key: (value, True) for key, value in topics.default_configs().items()}
        configs = {key: tell.TopicConfigValue(*each, False, False) for key, each in found.items()}
        return tell.TopicConfigDescription(name, configs)

    def _delete_records(self, request: ask.DeleteRecords, _: Reply) -> Response:
        topic = request.topic
        results = [self._delete_before(topic, entry.partition, entry.offset) for entry in request.partition_offsets]
        return tell.RecordsDeleted(topic, tuple(results))

    def _delete_before(self, topic: str, partition: int, offset: int) -> tell.DeleteRecordsResult:
        try:
            return tell.DeleteRecordsResult(partition, self._broker.topics.delete_before(topic, partition, offset))
        except UnknownTopic:
            text = f"UNKNOWN_TOPIC_OR_PARTITION: Partition {partition} not found"
            return tell.DeleteRecordsResult(partition, 0, text)
        except OffsetOutOfRange as error:
            start, end = error.facts["start"], error.facts["end"]
            text = f"OFFSET_OUT_OF_RANGE: Target offset {offset} exceeds latest offset {end}"
            return tell.DeleteRecordsResult(partition, start, text)

    # Quotas

    def _describe_quotas(self, request: ask.DescribeQuotas, _: Reply) -> Response:
        admission = self._broker.admission
        if not request.entities:
            rows = [tell.QuotaEntry(kind, name, values) for (kind, name), values in admission.stored().items()]
            return tell.QuotasDescribed(tuple(rows))
        entries = []
        for entity in request.entities:
            kind, name = entity.entity_type, entity.entity_name
            if kind in ("user", "client-id"):
                values = admission.effective(name, None) if kind == "user" else admission.effective(None, name)
                entries.append(tell.QuotaEntry(kind, name, values))
        return tell.QuotasDescribed(tuple(entries))

    def _alter_quotas(self, request: ask.AlterQuotas, _: Reply) -> Response:
        changes = [
            Limit(change.entity_type, change.entity_name, change.quota_key, change.quota_value)
            for change in request.alterations
        ]
        return tell.QuotasAltered(self._broker.admission.alter(changes))

    # The connection itself

    def _ping(self, _: ask.Ping, __: Reply) -> Response:
        return tell.Pong()

    def _handshake(self, request: ask.Handshake, reply: Reply) -> Response:
        reply.session.client_id = request.client_id
        return greet(request, CAPABILITIES if reply.session.is_local else CAPABILITIES & ~Capability.PLACES)


def _not_found(topic: str, error: UnknownTopic) -> tell.Error:
    if isinstance(error, UnknownPartition):
        return tell.Error(f"Partition {error.facts['partition']} not found for topic '{topic}'")
    return topic_not_found(topic)


def _no_topic_to_change(name: str) -> tell.Error:
    return tell.Error(f"UNKNOWN_TOPIC_OR_PARTITION: Topic '{name}' not found")


def _noting(
    parts: list[tell.PartitionProduced | None], place: int, partition: int, settle: Callable[[], None]
) -> Callable[[Produced], None]:
    """Notes what became of one partition's batches, in its place, and has the whole looked at."""

    def answer(produced: Produced) -> None:
        parts[place] = _partition_produced(partition, produced)
        settle()

    return answer


def produced_to_one(topic: str, partition: int, produced: Produced) -> tell.ProducedBatches:
    """The answer to a request that names one partition."""
    return tell.ProducedBatches((tell.TopicProduced(topic, (_partition_produced(partition, produced),)),))


def _partition_produced(partition: int, produced: Produced) -> tell.PartitionProduced:
    base_offset, append_ms, start, error = produced
    code, text = (error.code, str(error)) if error is not None else (0, None)
    return tell.PartitionProduced(partition, code, text, base_offset, append_ms, start)


def _by_topic(
    request: ask.FetchBatches, found: Iterable[Fetched], tell_one: Callable[[int, Fetched], P]
) -> list[tuple[str, tuple[P, ...]]]:
    """What was found, in the words of `tell_one`, as the request has its partitions."""
    each = iter(found)
    return [
        (entry.topic, tuple(tell_one(part.partition, next(each)) for part in entry.partitions))
        for entry in request.topics
    ]


def _partition_fetched(partition: int, found: Fetched) -> tell.PartitionFetched:
    return tell.PartitionFetched(*_about(partition, found))


def _partition_found(partition: int, found: Fetched) -> tell.PartitionFound:
    place = found.place
    places = () if place is None else (tell.Place(*place.where, place.position, place.length_bytes, place.dense),)
    return tell.PartitionFound(*(*_about(partition, found), places))


def _about(partition: int, found: Fetched) -> tuple[Any, ...]:
    error, bounds = found.error, found.bounds
    code, text = (error.code, str(error)) if error is not None else (0, None)
    aborted = tuple(tell.AbortedTransaction(entry.producer_id, entry.first_offset) for entry in found.aborted)
    return partition, code, text, bounds.high_watermark, bounds.last_stable, bounds.start, aborted, found.batches


def _message(record: Record, partition: int) -> tell.MessageData:
    headers = tuple(tell.MessageHeader(name, value or b"") for name, value in record.headers)
    return tell.MessageData(record.offset, partition, record.key, record.value or b"", record.timestamp_ms, headers)

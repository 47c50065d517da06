"""Records in and out in Kafka's words: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch.

A batch passes through as it is. Fetch keeps no sessions: each request names all it wants, which every client can do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from rivven.broker.reading import Fetched, Wanted
from rivven.broker.writing import Produced
from rivven.coordinator import AddPartitions
from rivven.errors import (
    InvalidTransactionState,
    Malformed,
    OutOfOrderSequence,
    PartitionNotInTransaction,
    ProducerFenced,
    RivvenError,
    TransactionAbortable,
    UnknownTopic,
)
from rivven.log import Log, Topic
from rivven.model import Epoch, ProducerId, TopicPartition
from rivven.record import BatchHeader, Codec, parse_header, walk
from rivven.wire.kafka import NO_ID, Error, code_of
from rivven.wire.kafka.made import fetch, produce
from rivven.wire.kafka.made.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from rivven.wire.kafka.made.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

from .dialect import Asked, Handler, Silence

if TYPE_CHECKING:
    from rivven.broker.broker import Broker

PRODUCE, FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH = 0, 1, 2, 23
ZSTD_FROM = 7, 10
"""The first versions of Produce and of Fetch that know this codec."""
IMPLICIT_FROM = 12
"""From this version of Produce on a partition becomes part of the transaction by being written to."""
NOT_ADDED = PartitionNotInTransaction, InvalidTransactionState, OutOfOrderSequence
"""What a batch is refused with if its partition is not part of the transaction, or is only just being added."""
BY_ID_FROM = 13
"""The first version of both that names topics by their ids."""
LEADER_EPOCH: Final = 0
"""A node alone has led its partitions since they were made."""
LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
READ_COMMITTED = 1


class RecordRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {
            PRODUCE: self._produce,
            FETCH: self._fetch,
            LIST_OFFSETS: self._list_offsets,
            OFFSET_FOR_LEADER_EPOCH: self._offset_for_leader_epoch,
        }

    # Produce

    def _produce(self, request: produce.ProduceRequest, asked: Asked) -> object | None:
        waits = _Producing(request, asked)
        fault = _produce_fault(request)
        for place, topic in enumerate(request.topic_data):
            name, unknown = self._named(topic.name, topic.topic_id, asked.version >= BY_ID_FROM)
            for part in topic.partition_data:
                settle = waits.expect(place, part.index)
                error = fault or unknown
                if error is None and asked.version < ZSTD_FROM[0] and _has_zstd(part.records):
                    error = Error.UNSUPPORTED_COMPRESSION_TYPE
                if error is not None:
                    settle(Produced(), error)
                    continue
                data = memoryview(part.records or b"")
                if request.transactional_id is None:
                    self._broker.writing.produce(asked.session, name, part.index, data, settle)
                else:
                    where = TopicPartition(name, part.index)
                    self._produce_in_transaction(request.transactional_id, where, data, asked, settle)
        waits.all_sent()
        return None

    def _produce_in_transaction(
        self,
        transactional_id: str,
        where: TopicPartition,
        data: memoryview,
        asked: Asked,
        settle: Callable[[Produced], None],
    ) -> None:
        """As part of a transaction, to which newer clients leave it to the broker to add the partition. They send the
        next batch without waiting for that: it seems to be out of order, and goes the same way behind the first."""

        def admit(log: Log, header: BatchHeader) -> None:
            whom = header.producer_id, header.producer_epoch
            self._broker.transactions.admit(*whom, log.partition, batch_bytes=header.batch_bytes)

        def produce_now(answer: Callable[[Produced], None]) -> None:
            self._broker.writing.produce(asked.session, *where, data, answer, admit)

        def added(result: object) -> None:
            if isinstance(result, RivvenError):
                settle(Produced(error=result))
            else:
                produce_now(settle)

        def first(produced: Produced) -> None:
            if asked.version >= IMPLICIT_FROM and isinstance(produced.error, NOT_ADDED):
                header = parse_header(data)
                whom = ProducerId(header.producer_id), Epoch(header.producer_epoch)
                self._broker.transactions.ask(AddPartitions(transactional_id, *whom, (where,)), added)
            else:
                settle(produced)

        produce_now(first)

    # Fetch

    def _fetch(self, request: fetch.FetchRequest, asked: Asked) -> object | None:
        if request.session_id and request.session_epoch > 0:
            return fetch.FetchResponse(error_code=Error.FETCH_SESSION_ID_NOT_FOUND)
        by_id = asked.version >= BY_ID_FROM
        faults: dict[int, Error] = {}
        wanted: list[Wanted] = []
        for topic in request.topics:
            name, unknown = self._named(topic.topic, topic.topic_id, by_id)
            for part in topic.partitions:
                fault = unknown or _epoch_fault(part.current_leader_epoch)
                if fault is not None:
                    faults[len(wanted)] = fault
                wanted.append(Wanted(name, part.partition, part.fetch_offset, part.partition_max_bytes))

        def answer(found: list[Fetched]) -> None:
            asked.answer(_fetch_response(request, asked.version, found, faults))

        self._broker.reading.fetch(
            asked.session,
            wanted,
            wait_ms=0 if faults else request.max_wait_ms,
            bytes_min=request.min_bytes,
            bytes_max=request.max_bytes,
            isolation=request.isolation_level,
            answer=answer,
        )
        return None

    def _named(self, name: str, topic_id: bytes, by_id: bool) -> tuple[str, Error | None]:
        """The topic's name, whichever way it was named."""
        if not by_id:
            return name, None
        topic = self._topic_of(topic_id)
        return (topic.name, None) if topic is not None else ("", Error.UNKNOWN_TOPIC_ID)

    def _topic_of(self, topic_id: bytes) -> Topic | None:
        return None if topic_id == NO_ID else self._broker.topics.by_id(topic_id)

    # Offsets

    def _list_offsets(self, request: ListOffsetsRequest, _: Asked) -> ListOffsetsResponse:
        topics = [
            ListOffsetsTopicResponse(
                topic.name, [self._list_one(topic.name, part, request.isolation_level) for part in topic.partitions]
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    def _list_one(self, topic: str, part: ListOffsetsPartition, isolation: int) -> ListOffsetsPartitionResponse:
        number = part.partition_index
        try:
            log = self._broker.topics.log(topic, number)
            if (fault := _epoch_fault(part.current_leader_epoch)) is not None:
                return ListOffsetsPartitionResponse(number, fault)
            timestamp_ms, offset = _offset_at(log, part.timestamp, isolation)
        except RivvenError as error:
            return ListOffsetsPartitionResponse(number, code_of(error))
        return ListOffsetsPartitionResponse(
            number, Error.NONE, timestamp_ms, offset, LEADER_EPOCH if offset >= 0 else -1
        )

    def _offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, _: Asked
    ) -> OffsetForLeaderEpochResponse:
        topics = [
            OffsetForLeaderTopicResult(
                topic.topic, [self._end_of_epoch(topic.topic, part) for part in topic.partitions]
            )
            for topic in request.topics
        ]
        return OffsetForLeaderEpochResponse(topics=topics)

    def _end_of_epoch(self, topic: str, part: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            log = self._broker.topics.log(topic, part.partition)
        except UnknownTopic as error:
            return EpochEndOffset(code_of(error), part.partition)
        if (fault := _epoch_fault(part.current_leader_epoch)) is not None:
            return EpochEndOffset(fault, part.partition)
        if part.leader_epoch == LEADER_EPOCH:
            return EpochEndOffset(Error.NONE, part.partition, LEADER_EPOCH, log.high_watermark)
        epoch, end = log.facts.epochs.end_of(part.leader_epoch, log.high_watermark)
        return EpochEndOffset(Error.NONE, part.partition, epoch, end)


class _Producing:
    """One Produce request until the last of its partitions is settled."""

    __slots__ = ("_asked", "_left", "_outcomes", "_request")

    def __init__(self, request: produce.ProduceRequest, asked: Asked) -> None:
        self._request = request
        self._asked = asked
        self._outcomes: list[list[produce.PartitionProduceResponse]] = [[] for _ in request.topic_data]
        self._left = 1  # one for ourselves, so that an answer on the spot does not end it early

    def expect(self, topic: int, partition: int) -> partial[None]:
        """One partition more; call what is returned with its outcome."""
        self._left += 1
        outcomes = self._outcomes[topic]
        outcomes.append(produce.PartitionProduceResponse(partition))
        return partial(self._settle, outcomes, len(outcomes) - 1, partition)

    def all_sent(self) -> None:
        self._settle_one()

    def _settle(
        self,
        outcomes: list[produce.PartitionProduceResponse],
        place: int,
        partition: int,
        produced: Produced,
        fault: Error | None = None,
    ) -> None:
        outcomes[place] = _partition_produced(partition, produced, self._asked.version, fault)
        self._settle_one()

    def _settle_one(self) -> None:
        self._left -= 1
        if self._left:
            return
        if self._request.acks == 0:
            failed = any(part.error_code for parts in self._outcomes for part in parts)
            self._asked.answer(Silence.HANG_UP if failed else Silence.NO_ANSWER)
            return
        topics = [
            produce.TopicProduceResponse(topic.name, topic.topic_id, parts)
            for topic, parts in zip(self._request.topic_data, self._outcomes, strict=True)
        ]
        self._asked.answer(produce.ProduceResponse(topics))


def _produce_fault(request: produce.ProduceRequest) -> Error | None:
    """What is wrong with the whole request."""
    if request.acks not in (-1, 0, 1):
        return Error.INVALID_REQUIRED_ACKS
    return None


def produced_to_one(topic: str, topic_id: bytes, partition: int, produced: Produced, version: int) -> object:
    """The answer to a request that names one partition."""
    parts = [_partition_produced(partition, produced, version)]
    return produce.ProduceResponse([produce.TopicProduceResponse(topic, topic_id, parts)])


def _partition_produced(
    partition: int, produced: Produced, version: int, fault: Error | None = None
) -> produce.PartitionProduceResponse:
    code: Error = fault or Error.NONE
    text: str | None = None
    records: list[produce.BatchIndexAndErrorMessage] = []
    if produced.error is not None:
        code, text, records = _refusal(produced.error, version)
    return produce.PartitionProduceResponse(
        partition, code, produced.base_offset, produced.append_ms, produced.start, records, text
    )


def overloaded(request: produce.ProduceRequest) -> object:
    """The answer to a request that was not looked at, since too many are under way; the client tries again."""
    if request.acks == 0:
        return Silence.HANG_UP
    return produce.ProduceResponse(
        [
            produce.TopicProduceResponse(
                topic.name,
                topic.topic_id,
                [
                    produce.PartitionProduceResponse(part.index, Error.NOT_ENOUGH_REPLICAS, -1)
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _refusal(error: RivvenError, version: int) -> tuple[Error, str, list[produce.BatchIndexAndErrorMessage]]:
    if isinstance(error, Malformed) and error.facts.get("what") == "record":
        text = str(error)
        return Error.INVALID_RECORD, text, [produce.BatchIndexAndErrorMessage(0, text)]
    if isinstance(error, ProducerFenced):
        return Error.INVALID_PRODUCER_EPOCH, str(error), []  # on the way of records they know this one alone
    if isinstance(error, TransactionAbortable) and version < IMPLICIT_FROM:
        return Error.INVALID_TXN_STATE, str(error), []  # older clients do not know that they may abort and go on
    return code_of(error), str(error), []


def _has_zstd(records: object) -> bool:
    try:
        return any(header.codec is Codec.ZSTD for _, header in walk(records or b""))  # type: ignore[arg-type]
    except RivvenError:
        return False  # it will be refused for what it is


def _epoch_fault(claimed: int) -> Error | None:
    if claimed < 0 or claimed == LEADER_EPOCH:
        return None
    return Error.UNKNOWN_LEADER_EPOCH if claimed > LEADER_EPOCH else Error.FENCED_LEADER_EPOCH


def _fetch_response(
    request: fetch.FetchRequest, version: int, found: Sequence[Fetched], faults: dict[int, Error]
) -> fetch.FetchResponse:
    committed = request.isolation_level == READ_COMMITTED
    topics, place = [], 0
    for topic in request.topics:
        parts = []
        for part in topic.partitions:
            parts.append(_partition_data(part.partition, found[place], faults.get(place), committed, version))
            place += 1
        topics.append(fetch.FetchableTopicResponse(topic.topic, topic.topic_id, parts))
    return fetch.FetchResponse(responses=topics)


def _partition_data(
    partition: int, found: Fetched, fault: Error | None, committed: bool, version: int
) -> fetch.PartitionData:
    code = fault or (Error.NONE if found.error is None else code_of(found.error))
    batches = found.batches
    if code is Error.NONE and version < ZSTD_FROM[1] and _has_zstd(batches):
        code = Error.UNSUPPORTED_COMPRESSION_TYPE
    aborted = None
    if committed:
        aborted = [fetch.AbortedTransaction(entry.producer_id, entry.first_offset) for entry in found.aborted]
    start, high_watermark, last_stable = found.bounds
    return fetch.PartitionData(
        partition,
        code,
        high_watermark,
        last_stable,
        start,
        aborted_transactions=aborted,
        records=batches if code is Error.NONE else b"",
    )


def _offset_at(log: Log, timestamp_ms: int, isolation: int) -> tuple[int, int]:
    """Timestamp and offset of what a time, or one of the special ones, stands for; -1 where there is none."""
    match timestamp_ms:
        case -1:
            return -1, log.last_stable if isolation == READ_COMMITTED else log.high_watermark
        case -2 | -4:
            return -1, log.start
        case -3:
            found = log.newest()
        case -5 | -6:
            return -1, -1  # nothing is tiered yet
        case _:
            found = log.offset_for_timestamp(timestamp_ms)
    if found is None or (isolation == READ_COMMITTED and found[0] >= log.last_stable):
        return -1, -1
    return found[1], found[0]

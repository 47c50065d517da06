"""Transactions in Kafka's words: partitions and offsets that are added, verdicts, and what tools look at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rivven import coordinator as ask
from rivven.errors import InvalidGroupRequest, ProducerFenced, RivvenError, TransactionNotFound
from rivven.model import NO_EPOCH, Epoch, ProducerId, TopicPartition
from rivven.wire.kafka import Error, code_of
from rivven.wire.kafka.made import add_partitions_to_txn as add
from rivven.wire.kafka.made import describe_producers as producers
from rivven.wire.kafka.made import describe_transactions as described
from rivven.wire.kafka.made import list_transactions as listed
from rivven.wire.kafka.made import write_txn_markers as mark
from rivven.wire.kafka.made.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from rivven.wire.kafka.made.end_txn import EndTxnRequest, EndTxnResponse
from rivven.wire.kafka.made.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from .dialect import Asked, Handler

if TYPE_CHECKING:
    from rivven.broker.broker import Broker

ADD_PARTITIONS, ADD_OFFSETS, END_TXN, WRITE_MARKERS, OFFSET_COMMIT = 24, 25, 26, 27, 28
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 61, 65, 66
FENCED_FROM = 2
"""The first version of these requests whose clients know the code for a fenced producer."""
SECOND_FROM = 5
"""EndTxn and TxnOffsetCommit of this version speak the second version of the transaction protocol."""
BATCHED_FROM = 4
PATTERN_CHARS_MAX = 256


class TransactionRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {
            ADD_PARTITIONS: self._add_partitions,
            ADD_OFFSETS: self._add_offsets,
            END_TXN: self._end,
            OFFSET_COMMIT: self._commit_offsets,
            WRITE_MARKERS: self._write_markers,
            DESCRIBE_PRODUCERS: self._describe_producers,
            DESCRIBE_TRANSACTIONS: self._describe,
            LIST_TRANSACTIONS: self._list,
        }

    # What a producer asks

    def _add_partitions(self, request: add.AddPartitionsToTxnRequest, asked: Asked) -> None:
        if asked.version >= BATCHED_FROM:
            transactions = request.transactions
        else:
            one = add.AddPartitionsToTxnTransaction(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                False,
                request.v3_and_below_topics,
            )
            transactions = [one]
        results: dict[int, add.AddPartitionsToTxnResult] = {}

        def settle(place: int, result: add.AddPartitionsToTxnResult) -> None:
            results[place] = result
            if len(results) < len(transactions):
                return
            if asked.version >= BATCHED_FROM:
                ordered = [results[at] for at in range(len(transactions))]
                asked.answer(add.AddPartitionsToTxnResponse(results_by_transaction=ordered))
            else:
                asked.answer(add.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results))

        for place, transaction in enumerate(transactions):
            self._add_one(transaction, asked, lambda result, place=place: settle(place, result))  # type: ignore[misc]
        if not transactions:
            asked.answer(add.AddPartitionsToTxnResponse())

    def _add_one(
        self,
        transaction: add.AddPartitionsToTxnTransaction,
        asked: Asked,
        settle: Callable[[add.AddPartitionsToTxnResult], None],
    ) -> None:
        wanted = [TopicPartition(topic.name, number) for topic in transaction.topics for number in topic.partitions]
        unknown = {partition: code for partition in wanted if (code := self._fault(partition)) is not None}

        def told(result: object) -> None:
            topics = []
            for topic in transaction.topics:
                parts = []
                for number in topic.partitions:
                    partition = TopicPartition(topic.name, number)
                    code = unknown.get(partition) or self._added_code(result, partition, bool(unknown), asked.version)
                    parts.append(add.AddPartitionsToTxnPartitionResult(number, code))
                topics.append(add.AddPartitionsToTxnTopicResult(topic.name, parts))
            settle(add.AddPartitionsToTxnResult(transaction.transactional_id, topics))

        if unknown:  # then none is added, and those that might have been are told so
            told(None)
            return
        self._broker.transactions.ask(
            ask.AddPartitions(
                transaction.transactional_id,
                ProducerId(transaction.producer_id),
                Epoch(transaction.producer_epoch),
                tuple(wanted),
                verify_only=transaction.verify_only,
                version=1 if asked.version < BATCHED_FROM else 2,
            ),
            told,
        )

    @staticmethod
    def _added_code(result: object, partition: TopicPartition, others_unknown: bool, version: int) -> Error:
        if others_unknown:
            return Error.OPERATION_NOT_ATTEMPTED
        if isinstance(result, RivvenError):
            return _code(result, version)
        missing = isinstance(result, ask.Added) and partition in result.missing
        return Error.TRANSACTION_ABORTABLE if missing else Error.NONE

    def _fault(self, partition: TopicPartition) -> Error | None:
        try:
            self._broker.topics.log(*partition)
        except RivvenError as error:
            return code_of(error)
        return None

    def _add_offsets(self, request: AddOffsetsToTxnRequest, asked: Asked) -> None:
        self._broker.transactions.ask(
            ask.AddOffsets(
                request.transactional_id,
                ProducerId(request.producer_id),
                Epoch(request.producer_epoch),
                request.group_id,
                version=1,
            ),
            lambda result: asked.answer(AddOffsetsToTxnResponse(error_code=_code(result, asked.version))),
        )

    def _end(self, request: EndTxnRequest, asked: Asked) -> None:
        def told(result: object) -> None:
            if isinstance(result, ask.Ended):
                asked.answer(EndTxnResponse(0, Error.NONE, result.producer_id, result.producer_epoch))
            else:
                asked.answer(EndTxnResponse(error_code=_code(result, asked.version)))

        self._broker.transactions.ask(
            ask.EndTxn(
                request.transactional_id,
                ProducerId(request.producer_id),
                Epoch(request.producer_epoch),
                request.committed,
                version=2 if asked.version >= SECOND_FROM else 1,
            ),
            told,
        )

    # Offsets that count when the transaction commits

    def _commit_offsets(self, request: TxnOffsetCommitRequest, asked: Asked) -> None:
        whom = ProducerId(request.producer_id), Epoch(request.producer_epoch)

        def commit(result: object = None) -> None:
            if isinstance(result, RivvenError):
                self._answer_offsets(request, asked, result)
                return
            try:
                self._admit_offsets(request, whom)
            except RivvenError as error:
                self._answer_offsets(request, asked, error)
                return
            self._broker.groups.ask(
                ask.Commit(
                    request.group_id,
                    tuple(self._offsets(request)),
                    request.member_id,
                    request.group_instance_id,
                    request.generation_id,
                    producer_id=whom[0],
                    producer_epoch=whom[1],
                ),
                lambda outcome: self._answer_offsets(request, asked, outcome),
            )

        if asked.version >= SECOND_FROM:
            added = ask.AddOffsets(request.transactional_id, *whom, request.group_id)
            self._broker.transactions.ask(added, commit)
        else:
            commit()

    def _admit_offsets(self, request: TxnOffsetCommitRequest, whom: tuple[ProducerId, Epoch]) -> None:
        transactions = self._broker.transactions
        try:
            transactions.admit(*whom, request.group_id)
        except TransactionNotFound:
            # A native transaction, whose member of a group speaks this dialect: it is known by its own name.
            transactions.admit(*whom, request.group_id, label=request.transactional_id)

    def _offsets(self, request: TxnOffsetCommitRequest) -> Iterable[tuple[TopicPartition, ask.CommittedOffset]]:
        for topic in request.topics:
            for part in topic.partitions:
                partition = TopicPartition(topic.name, part.partition_index)
                if self._fault(partition) is None:
                    yield (
                        partition,
                        ask.CommittedOffset(
                            part.committed_offset,
                            part.committed_leader_epoch,
                            part.committed_metadata or "",
                            self._broker.groups.now_ms(),
                        ),
                    )

    def _answer_offsets(self, request: TxnOffsetCommitRequest, asked: Asked, result: object) -> None:
        whole = None
        if isinstance(result, InvalidGroupRequest):
            whole = Error.INVALID_GROUP_ID
        elif isinstance(result, RivvenError):
            whole = _code(result, asked.version)
        errors = result.errors if isinstance(result, ask.Committed) else {}
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                partition = TopicPartition(topic.name, part.partition_index)
                refused = errors.get(partition)
                code = whole or self._fault(partition) or (code_of(refused) if refused is not None else Error.NONE)
                parts.append(TxnOffsetCommitResponsePartition(part.partition_index, code))
            topics.append(TxnOffsetCommitResponseTopic(topic.name, parts))
        asked.answer(TxnOffsetCommitResponse(topics=topics))

    # What an operator asks

    def _write_markers(self, request: mark.WriteTxnMarkersRequest, asked: Asked) -> object | None:
        """Ends what nobody else would end. An open transaction that its coordinator knows of is not touched, and one
        whose producer has a later epoch by now is another than was meant."""
        hanging = {(one.partition, one.producer_id) for one in self._broker.transactions.hanging()}
        wanted = [
            (marker, TopicPartition(topic.name, number))
            for marker in request.markers
            for topic in marker.topics
            for number in topic.partition_indexes
        ]
        codes: dict[int, Error] = {}

        def settle(place: int, code: Error) -> None:
            codes[place] = code
            if len(codes) == len(wanted):
                asked.answer(_marked(request, [codes[at] for at in range(len(wanted))]))

        if not wanted:
            return mark.WriteTxnMarkersResponse()
        for place, (marker, partition) in enumerate(wanted):
            if (fault := self._fault(partition)) is not None:
                settle(place, fault)
            elif (partition, ProducerId(marker.producer_id)) not in hanging:
                settle(place, Error.INVALID_TXN_STATE)
            elif marker.producer_epoch < self._epoch_in(partition, marker.producer_id):
                settle(place, Error.INVALID_PRODUCER_EPOCH)
            else:
                self._broker.end_hanging(
                    partition,
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.transaction_result,
                    lambda error, place=place: settle(place, Error.NONE if error is None else code_of(error)),  # type: ignore[misc]
                )
        return None

    def _epoch_in(self, partition: TopicPartition, producer_id: int) -> int:
        row = self._broker.topics.log(*partition).facts.producers.get(producer_id)
        return NO_EPOCH if row is None else row.epoch

    def _describe_producers(self, request: producers.DescribeProducersRequest, _: Asked) -> object:
        topics = [
            producers.TopicResponse(topic.name, [self._producers(topic.name, n) for n in topic.partition_indexes])
            for topic in request.topics
        ]
        return producers.DescribeProducersResponse(topics=topics)

    def _producers(self, topic: str, number: int) -> producers.PartitionResponse:
        try:
            facts = self._broker.topics.log(topic, number).facts
        except RivvenError as error:
            return producers.PartitionResponse(number, code_of(error), str(error))
        begun = facts.transactions.open_transactions()
        active = [
            producers.ProducerState(
                row.producer_id,
                row.epoch,
                row.batches[-1].last_sequence if row.batches else -1,
                row.last_timestamp_ms,
                0,
                begun.get(row.producer_id, -1),
            )
            for row in facts.producers.rows()
        ]
        # One that has been silent for long is forgotten, and what it left open is not.
        left = sorted(begun.keys() - {row.producer_id for row in active})
        active += [producers.ProducerState(who, NO_EPOCH, current_txn_start_offset=begun[who]) for who in left]
        return producers.PartitionResponse(number, active_producers=active)

    def _describe(self, request: described.DescribeTransactionsRequest, _: Asked) -> object:
        states = []
        for name in request.transactional_ids:
            try:
                found = self._broker.transactions.describe(name)
            except RivvenError:
                states.append(described.TransactionState(Error.TRANSACTIONAL_ID_NOT_FOUND, name))
                continue
            by_topic: dict[str, list[int]] = {}
            homes = filter(None, map(self._broker.transactions.home_of, found.groups))
            for topic, number in sorted({*found.partitions, *homes}):
                by_topic.setdefault(topic, []).append(number)
            states.append(
                described.TransactionState(
                    Error.NONE,
                    name,
                    found.status.title,
                    found.timeout_ms,
                    found.started_ms,
                    found.producer_id,
                    found.producer_epoch,
                    [described.TopicData(topic, numbers) for topic, numbers in by_topic.items()],
                    found.label or "",
                    found.owner,
                    found.sequence,
                    list(found.groups),
                )
            )
        return described.DescribeTransactionsResponse(transaction_states=states)

    def _list(self, request: listed.ListTransactionsRequest, _: Asked) -> object:
        titles = {status.title for status in ask.TxnStatus}
        unknown = [name for name in request.state_filters if name not in titles]
        try:
            pattern = _pattern(request.transactional_id_pattern)
        except re.error:
            return listed.ListTransactionsResponse(error_code=Error.INVALID_REGULAR_EXPRESSION)
        now_ms = self._broker.groups.now_ms()
        states = [
            listed.TransactionState(each.transactional_id, each.producer_id, each.status.title)
            for each in self._broker.transactions.list()
            if (not request.state_filters or each.status.title in request.state_filters)
            and (not request.producer_id_filters or each.producer_id in request.producer_id_filters)
            and (request.duration_filter < 0 or 0 <= each.started_ms <= now_ms - request.duration_filter)
            and (pattern is None or pattern.fullmatch(each.transactional_id))
        ]
        return listed.ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=states)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    """A pattern of transactional ids. Repetitions inside repetitions can take for ever, and are refused."""
    if not text:
        return None
    if len(text) > PATTERN_CHARS_MAX or re.search(r"[+*}]\)?[+*{]|\([^)]*[+*][^)]*\)[+*{]", text):
        raise re.error("too much to match")
    return re.compile(text)


def _code(result: object, version: int) -> Error:
    if isinstance(result, ProducerFenced) and version < FENCED_FROM:
        return Error.INVALID_PRODUCER_EPOCH
    return code_of(result) if isinstance(result, RivvenError) else Error.NONE


def _marked(request: mark.WriteTxnMarkersRequest, codes: list[Error]) -> mark.WriteTxnMarkersResponse:
    following = iter(codes)
    return mark.WriteTxnMarkersResponse(
        [
            mark.WritableTxnMarkerResult(
                marker.producer_id,
                [
                    mark.WritableTxnMarkerTopicResult(
                        topic.name,
                        [
                            mark.WritableTxnMarkerPartitionResult(number, next(following))
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )

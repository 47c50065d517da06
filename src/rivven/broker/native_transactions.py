"""Producers that count their records, transactions and decisions over many of them, in the native protocol's words.

A transaction belongs to a producer id and has the name that it was begun with (`txn_id`). It is decided by the same
coordinator as Kafka's, and its records lie in the log as Kafka's do.
Older clients number their records in one row although the broker chooses the partitions: where a request names no
partition, numbers may be left out, and a repetition is looked for in all partitions of the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rivven import coordinator as txn
from rivven.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    Malformed,
    OwnerNotFound,
    PartitionNotInTransaction,
    RivvenError,
    TransactionNotFound,
    UnknownPartition,
    UnknownTopic,
)
from rivven.log import Log
from rivven.model import Epoch, ProducerId, TopicPartition
from rivven.record import BatchHeader, NewRecord, parse_header, walk
from rivven.wire import Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .native_groups import bad_group, is_group
from .producer_epochs import ProducerEpochs
from .publish import Admit, Numbers
from .session import Reply, Session
from .texts import producer_unknown, told, told_of_numbers, told_of_transaction
from .writing import Produced

if TYPE_CHECKING:
    from .broker import Broker

PRODUCER_ID_MAX = 2**63 - 1
FIRST_VERSION = 1
"""Of the transaction protocol: native producers keep their epoch from one transaction to the next."""

Handler = Callable[[Any, Reply], Response | None]
Numbered = ask.IdempotentPublish | ask.IdempotentPublishBatch | ask.TransactionalPublish
InTransaction = (
    ask.AddPartitionsToTxn
    | ask.AddOffsetsToTxn
    | ask.TransactionalPublish
    | ask.CommitTransaction
    | ask.AbortTransaction
)


class ForPartition(NamedTuple):
    """Batches for one partition, and who hears what became of them."""

    where: TopicPartition
    batches: memoryview
    answer: Callable[[Produced], None]


class NativeTransactions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._epochs = ProducerEpochs(broker.store, broker.producer_ids, broker.transactions)

    def handlers(self) -> dict[type[Request], Handler]:
        return {
            ask.InitProducerId: self._init,
            ask.IdempotentPublish: self._publish,
            ask.IdempotentPublishBatch: self._publish_batch,
            ask.BeginTransaction: self._begin,
            ask.AddPartitionsToTxn: self._add_partitions,
            ask.AddOffsetsToTxn: self._add_offsets,
            ask.TransactionalPublish: self._publish_in_transaction,
            ask.CommitTransaction: self._commit,
            ask.AbortTransaction: self._abort,
            ask.RegisterOwner: self._register_owner,
            ask.BeginOwnedTransaction: self._begin_owned,
            ask.Decide: self._decide,
            ask.ForgetOwner: self._forget_owner,
        }

    def _ask(self, request: txn.TxnAsk, reply: Reply, response: Response) -> None:
        self._broker.transactions.ask(request, lambda result: self._fulfil(reply, _said(result) or response))

    def _fulfil(self, reply: Reply, response: Response) -> None:
        self._broker.fulfil(reply, response, failed=type(response) is tell.Error)

    # Records that are counted

    def _init(self, request: ask.InitProducerId, reply: Reply) -> Response | None:
        wanted = request.producer_id
        if wanted is not None and wanted > PRODUCER_ID_MAX:
            return tell.Error(f"INVALID_REQUEST: the producer id {wanted} is above {PRODUCER_ID_MAX}")
        producer_id, epoch = self._epochs.init(wanted)
        response = tell.ProducerIdInitialized(producer_id, epoch)
        if producer_id != wanted:
            return response
        # The life before must stay out also after a crash. And what it left open has ended before this one asks for
        # the offsets of its group: they may be part of that.
        life = txn.NextLife(ProducerId(producer_id), Epoch(epoch))

        def begun(result: object) -> None:
            if isinstance(result, ConcurrentTransactions):
                self._broker.transactions.ask(life, begun)
            else:
                self._fulfil(reply, _said(result) or response)

        self._broker.transactions.ask(life, begun)
        return None

    def _publish(self, request: ask.IdempotentPublish, reply: Reply) -> Response | None:
        if (refusal := self._refusal(request, request.sequence, single=True)) is not None:
            return refusal
        numbers = _numbers(request, request.sequence)

        def say(log: Log, offset: int, repeated: bool) -> Response:
            return tell.IdempotentPublished(offset, log.partition.partition, repeated)

        rows = [(self._broker.clock.now_ms(), request.key, request.value, ())]
        return self._append(request, rows, numbers, reply, say)

    def _publish_batch(self, request: ask.IdempotentPublishBatch, reply: Reply) -> Response | None:
        if not request.records:
            return tell.IdempotentPublishedBatch(0, 0, 0, False)
        if (refusal := self._refusal(request, request.base_sequence, single=False)) is not None:
            return refusal
        numbers = _numbers(request, request.base_sequence)
        now_ms = self._broker.clock.now_ms()
        rows = [(now_ms, record.key, record.value, ()) for record in request.records]

        def say(log: Log, offset: int, repeated: bool) -> Response:
            return tell.IdempotentPublishedBatch(offset, log.partition.partition, len(rows), repeated)

        return self._append(request, rows, numbers, reply, say)

    def _refusal(self, request: Numbered, sequence: int, *, single: bool) -> Response | None:
        """What is wrong with a producer's numbers before any partition is looked at."""
        if (fault := _fault(request.producer_id, request.producer_epoch)) is not None:
            return fault
        if sequence < 0:
            words = "expected sequence" if single else "expected"
            return tell.Error(f"OUT_OF_ORDER_SEQUENCE: {words} 0, got {sequence}")
        try:
            known = self._epochs.check(request.producer_id, request.producer_epoch)
        except RivvenError as error:
            return told_of_numbers(error, single=single)
        # A transaction may be begun with an id that nobody initialized; then that makes it known.
        if not known and not isinstance(request, ask.TransactionalPublish):
            return producer_unknown(request.producer_id)
        return None

    def _append(
        self,
        request: Numbered,
        rows: Sequence[NewRecord],
        numbers: Numbers,
        reply: Reply,
        say: Callable[[Log, int, bool], Response],
    ) -> Response | None:
        single = isinstance(request, ask.IdempotentPublish)
        writing = self._broker.writing
        log = writing.log_for_numbered(request.topic, request.partition, rows[0][1], numbers, len(rows))

        def answer(repeated: bool, offset: int, error: RivvenError | None) -> None:
            self._fulfil(reply, told(error) if error is not None else say(log, offset, repeated))

        try:
            writing.publish_numbered(reply.session, log, rows, numbers, answer)
        except RivvenError as error:
            return told_of_numbers(error, single=single)
        return None

    # Transactions

    def _begin(self, request: ask.BeginTransaction, reply: Reply) -> Response | None:
        begin = txn.BeginTxn(
            ProducerId(request.producer_id), Epoch(request.producer_epoch), request.txn_id, request.timeout_ms
        )
        return self._begin_txn(begin, reply)

    def _begin_txn(self, begin: txn.BeginTxn, reply: Reply) -> Response | None:
        if (refusal := self._fenced(begin.producer_id, begin.producer_epoch)) is not None:
            return refusal

        def told_of_begin(result: object) -> None:
            if isinstance(result, ConcurrentTransactions):
                words = f"producer already has an active transaction: {result.facts['reason']}"
                self._fulfil(reply, tell.Error(f"CONCURRENT_TRANSACTIONS: {words}"))
            else:
                self._fulfil(reply, _said(result) or tell.TransactionStarted(begin.label))

        self._broker.transactions.ask(begin, told_of_begin)
        return None

    def _fenced(self, producer_id: int, epoch: int) -> Response | None:
        """A refusal for whoever is not the latest life of its producer."""
        if (fault := _fault(producer_id, epoch)) is not None:
            return fault
        try:
            self._epochs.check(producer_id, epoch)
        except RivvenError as error:
            return told_of_transaction(error)
        return None

    def _add_partitions(self, request: ask.AddPartitionsToTxn, reply: Reply) -> Response | None:
        if (refusal := self._fenced(request.producer_id, request.producer_epoch)) is not None:
            return refusal
        partitions = tuple(TopicPartition(each.topic, each.partition) for each in request.partitions)
        self._ask(_adding(request, partitions), reply, tell.PartitionsAddedToTxn(request.txn_id, len(partitions)))
        return None

    def _commit(self, request: ask.CommitTransaction, reply: Reply) -> Response | None:
        return self._end(request, reply, tell.TransactionCommitted(request.txn_id))

    def _abort(self, request: ask.AbortTransaction, reply: Reply) -> Response | None:
        return self._end(request, reply, tell.TransactionAborted(request.txn_id))

    def _end(
        self, request: ask.CommitTransaction | ask.AbortTransaction, reply: Reply, response: Response
    ) -> Response | None:
        if (refusal := self._fenced(request.producer_id, request.producer_epoch)) is not None:
            return refusal
        commit = isinstance(request, ask.CommitTransaction)
        end = txn.EndTxn(*_whose(request), commit, FIRST_VERSION, label=request.txn_id)
        self._ask(end, reply, response)
        return None

    # Records of a transaction

    def _publish_in_transaction(self, request: ask.TransactionalPublish, reply: Reply) -> Response | None:
        if (refusal := self._refusal(request, request.sequence, single=False)) is not None:
            return refusal
        numbers = _numbers(request, request.sequence, transactional=True)
        rows: list[NewRecord] = [(self._broker.clock.now_ms(), request.key, request.value, ())]
        writing, admit = self._broker.writing, self._admitting(request.txn_id)
        log = writing.log_for_numbered(request.topic, request.partition, request.key, numbers)

        def answer(_: bool, offset: int, error: RivvenError | None) -> None:
            done = tell.TransactionalPublished(max(offset, 0), log.partition.partition, request.sequence)
            self._fulfil(reply, done if error is None else told_of_numbers(error, single=False))

        def publish(result: object = None) -> None:
            if isinstance(result, RivvenError):
                answer(False, -1, result)
                return
            try:
                writing.publish_numbered(reply.session, log, rows, numbers, answer, admit)
            except PartitionNotInTransaction as error:
                if request.partition is not None or result is not None:
                    answer(False, -1, error)
                else:  # the broker chose the partition, so it is for the broker to add it
                    self._broker.transactions.ask(_adding(request, (log.partition,)), publish)
            except RivvenError as error:
                answer(False, -1, error)

        publish()
        return None

    def _admitting(self, txn_id: str) -> Admit:
        def admit(log: Log, header: BatchHeader) -> None:
            self._admit(header.producer_id, header.producer_epoch, log.partition, txn_id, header.batch_bytes)

        return admit

    def _admit(
        self, producer_id: int, epoch: int, target: TopicPartition | str, txn_id: str, batch_bytes: int = 0
    ) -> None:
        try:
            self._broker.transactions.admit(producer_id, epoch, target, batch_bytes=batch_bytes, label=txn_id)
        except InvalidProducerIdMapping:
            raise TransactionNotFound(transaction=txn_id) from None  # it has never begun one

    def produce(self, txn_id: str, session: Session, parts: Sequence[ForPartition]) -> None:
        """Whole batches as part of a transaction; the partitions that it lacks are added together. Raises nothing."""
        lacking: list[ForPartition] | None = []
        for part in parts:
            where, batches, answer = part
            if (stranger := _stranger(batches)) is not None:
                answer(Produced(error=stranger))
                continue

            def first(produced: Produced, part: ForPartition = part) -> None:
                if not isinstance(produced.error, PartitionNotInTransaction):
                    part.answer(produced)
                elif lacking is not None:
                    lacking.append(part)
                else:
                    self._add_and_produce(txn_id, session, [part])

            self._produce_one(txn_id, session, where, batches, first)
        late, lacking = lacking, None
        if late:
            self._add_and_produce(txn_id, session, late)

    def _add_and_produce(self, txn_id: str, session: Session, parts: Sequence[ForPartition]) -> None:
        header = parse_header(parts[0].batches)
        whom = ProducerId(header.producer_id), Epoch(header.producer_epoch)

        def added(result: object) -> None:
            for where, batches, answer in parts:
                if isinstance(result, RivvenError):
                    answer(Produced(error=result))
                else:
                    self._produce_one(txn_id, session, where, batches, answer)

        targets = tuple(dict.fromkeys(part.where for part in parts))
        self._broker.transactions.ask(txn.AddPartitions(txn.native_id(whom[0]), *whom, targets, label=txn_id), added)

    def _produce_one(
        self,
        txn_id: str,
        session: Session,
        where: TopicPartition,
        batches: memoryview,
        answer: Callable[[Produced], None],
    ) -> None:
        admit = self._admitting(txn_id)

        def check(log: Log, header: BatchHeader) -> None:
            self._epochs.check(ProducerId(header.producer_id), Epoch(header.producer_epoch))
            admit(log, header)

        self._broker.writing.produce(session, *where, batches, answer, check)

    # Offsets that count when the transaction commits

    def _add_offsets(self, request: ask.AddOffsetsToTxn, reply: Reply) -> Response | None:
        refusal = self._fenced(request.producer_id, request.producer_epoch) or self._offsets_fault(request)
        if refusal is not None:
            return refusal

        def committed(result: object) -> None:
            refused = result.errors.values() if isinstance(result, txn.Committed) else [result]
            error = next((each for each in refused if isinstance(each, RivvenError)), None)
            self._fulfil(reply, told(error) if error is not None else tell.OffsetsAddedToTxn(request.txn_id))

        def added(result: object) -> None:
            try:
                if isinstance(result, RivvenError):
                    raise result
                self._admit(request.producer_id, request.producer_epoch, request.group_id, request.txn_id)
            except RivvenError as error:
                self._fulfil(reply, told_of_transaction(error))
                return
            self._broker.groups.ask(self._commit_of(request), committed)

        add = txn.AddOffsets(*_whose(request), request.group_id, request.txn_id, FIRST_VERSION)
        self._broker.transactions.ask(add, added)
        return None

    def _commit_of(self, request: ask.AddOffsetsToTxn) -> txn.Commit:
        now_ms = self._broker.groups.now_ms()
        offsets = tuple(
            (TopicPartition(each.topic, each.partition), txn.CommittedOffset(each.offset, committed_ms=now_ms))
            for each in request.offsets
        )
        _, producer_id, epoch = _whose(request)
        return txn.Commit(request.group_id, offsets, unchecked=True, producer_id=producer_id, producer_epoch=epoch)

    def _offsets_fault(self, request: ask.AddOffsetsToTxn) -> Response | None:
        if not is_group(request.group_id):
            return bad_group("INVALID_CONSUMER_GROUP", request.group_id)
        for topic, number, offset in ((each.topic, each.partition, each.offset) for each in request.offsets):
            try:
                self._broker.topics.log(topic, number)
            except UnknownPartition:
                return tell.Error(f"UNKNOWN_PARTITION: partition {number} does not exist in topic '{topic}'")
            except UnknownTopic:
                return tell.Error(f"UNKNOWN_TOPIC: topic '{topic}' does not exist")
            if offset < 0:
                return tell.Error(f"OFFSET_OUT_OF_RANGE: offset {offset} is below 0 for partition {number}")
        return None

    # Decisions over many transactions

    def _register_owner(self, request: ask.RegisterOwner, reply: Reply) -> None:
        def answer(result: object) -> None:
            if isinstance(result, txn.Registered):
                decided = None if result.decided == txn.NO_SEQUENCE else result.decided
                self._fulfil(reply, tell.OwnerRegistered(result.owner_epoch, decided))
            else:
                self._fulfil(reply, _said(result) or tell.Ok())

        self._broker.transactions.ask(txn.RegisterOwner(request.owner, request.join), answer)

    def _begin_owned(self, request: ask.BeginOwnedTransaction, reply: Reply) -> Response | None:
        if not request.owner:
            return tell.Error("INVALID_REQUEST: the owner is empty; name one, or send BeginTransaction")
        begin = txn.BeginTxn(
            ProducerId(request.producer_id),
            Epoch(request.producer_epoch),
            request.txn_id,
            request.timeout_ms,
            request.owner,
            request.owner_epoch,
            request.sequence,
        )
        return self._begin_txn(begin, reply)

    def _decide(self, request: ask.Decide, reply: Reply) -> None:
        committing = tuple((ProducerId(each.producer_id), Epoch(each.producer_epoch)) for each in request.committing)

        def answer(result: object) -> None:
            if isinstance(result, txn.Decided):
                known = result.committed is not None
                committed = tuple(ask.TxnProducer(*each) for each in result.committed or ())
                self._fulfil(reply, tell.Decided(result.sequence, known, committed, result.repeated))
            else:
                self._fulfil(reply, _said(result) or tell.Ok())

        self._broker.transactions.ask(
            txn.Decide(request.owner, request.owner_epoch, request.sequence, committing), answer
        )

    def _forget_owner(self, request: ask.ForgetOwner, reply: Reply) -> None:
        def answer(result: object) -> None:
            gone = isinstance(result, txn.Forgotten | OwnerNotFound)
            self._fulfil(reply, (None if gone else _said(result)) or tell.Ok())

        self._broker.transactions.ask(txn.ForgetOwner(request.owner, request.owner_epoch), answer)


def _whose(request: InTransaction) -> tuple[str, ProducerId, Epoch]:
    return txn.native_id(request.producer_id), ProducerId(request.producer_id), Epoch(request.producer_epoch)


def _adding(request: InTransaction, partitions: tuple[TopicPartition, ...]) -> txn.AddPartitions:
    return txn.AddPartitions(*_whose(request), partitions, request.txn_id, version=FIRST_VERSION)


def _numbers(request: Numbered, sequence: int, *, transactional: bool = False) -> Numbers:
    return Numbers(
        request.producer_id, request.producer_epoch, sequence, transactional, skipping=request.partition is None
    )


def _fault(producer_id: int, epoch: int) -> Response | None:
    """Numbers that this protocol can say and a batch cannot hold."""
    if producer_id > PRODUCER_ID_MAX:
        return tell.Error(f"INVALID_REQUEST: the producer id {producer_id} is above {PRODUCER_ID_MAX}")
    if epoch > txn.EPOCH_LAST:
        return tell.Error(f"INVALID_PRODUCER_EPOCH: {epoch} is above {txn.EPOCH_LAST}, the last that is given")
    return None


def _stranger(batches: memoryview) -> RivvenError | None:
    """What is wrong with batches that come as part of a transaction and would be written beside it."""
    try:
        if all(header.transactional for _, header in walk(batches)):
            return None
    except RivvenError as error:
        return error
    return Malformed(what="batch", reason="it is not part of a transaction, and the request names one")


def _said(result: object) -> Response | None:
    """What went wrong; None if nothing did."""
    return told_of_transaction(result) if isinstance(result, RivvenError) else None

"""A native producer's transactions step by step, each asked for until its outcome is known or patience ends.

Every step may be haunted: the same request arrives once more by another way, at any later time. So an end may come
after the next transaction has begun, and a record after its transaction has ended.
Invariant: records are numbered, and a step is never taken before the one before it is known to be done.
"""

from __future__ import annotations

from collections.abc import Sequence

from rivven import errors
from rivven.model import TopicPartition
from rivven.record import encode
from rivven.wire import Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .chronicle import Fate, Send, Txn, Writer
from .stage import Pause, Scene, Story

ATTEMPTS_MAX = 10
HAUNTED = 0.15
RETRIED = ("CONCURRENT_TRANSACTIONS", "BUFFER_FULL", "DISK_FULL", "WAL_ERROR")
RETRIED_CODES = (errors.ConcurrentTransactions.code, errors.Overloaded.code, errors.DiskFull.code)


class TxnSteps:
    """Who the producer is now, and what it can do."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.rng = scene.rng
        self.writer: Writer | None = None
        """None before it is initialized."""
        self._next: dict[TopicPartition, int] = {}
        """The next number in each partition."""

    # Asking

    def insist(self, request: Request, *, haunted: bool = True) -> Story[Response | None]:
        """Ask until there is an answer that counts; None if none came."""
        response: Response | None = None
        for _ in range(ATTEMPTS_MAX):
            if haunted and self.rng.random() < HAUNTED:
                self.scene.haunt(request)
            response = yield request
            if response is not None and not is_retried(response):
                return response
            yield Pause(0, 200)
        return response

    def init(self, producer_id: int | None = None) -> Story[bool]:
        """A new producer, or the next life of one: the life before is fenced once this is answered."""
        response = yield from self.insist(ask.InitProducerId(producer_id), haunted=False)
        if not isinstance(response, tell.ProducerIdInitialized):
            return False
        self.writer = (response.producer_id, response.producer_epoch)
        self._next = {}
        return True

    # A transaction

    def begin(self, txn: Txn, timeout_ms: int) -> Story[bool]:
        # A beginning that comes again after the end begins the transaction again: there, nothing but its name tells
        # that it is an old one. Therefore it is not haunted.
        request = ask.BeginTransaction(txn.name, *txn.writer, timeout_ms)
        response = yield from self.insist(request, haunted=False)
        return isinstance(response, tell.TransactionStarted)

    def begin_owned(self, txn: Txn, owner_epoch: int, timeout_ms: int) -> Story[Response | None]:
        request = ask.BeginOwnedTransaction(txn.name, *txn.writer, timeout_ms, txn.owner, owner_epoch, txn.sequence)
        return (yield from self.insist(request))

    def add(self, txn: Txn, partitions: Sequence[TopicPartition]) -> Story[bool]:
        where = tuple(ask.TxnPartition(*partition) for partition in partitions)
        response = yield from self.insist(ask.AddPartitionsToTxn(txn.name, *txn.writer, where))
        return isinstance(response, tell.PartitionsAddedToTxn)

    def write(self, txn: Txn, where: TopicPartition, sends: Sequence[Send]) -> Story[bool]:
        """One record, or a batch of several. The partition need not have been added for a batch."""
        number = self._next.get(where, 0)
        for send in sends:
            send.connection = f"producer {txn.writer}"
        if len(sends) == 1 and self.rng.random() < 0.5:
            (send,) = sends
            response = yield from self.insist(
                ask.TransactionalPublish(txn.name, *where, None, send.value, *txn.writer, number)
            )
            if not isinstance(response, tell.TransactionalPublished):
                return False
            offset = response.offset
        else:
            response = yield from self.insist(self._batch(txn, where, sends, number))
            if not isinstance(response, tell.ProducedBatches) or response.topics[0].partitions[0].error:
                return False
            offset = response.topics[0].partitions[0].base_offset
        self._next[where] = number + len(sends)
        for place, send in enumerate(sends):
            send.offset = offset + place
            self.scene.chronicle.end(send, Fate.DONE)
        return True

    def _batch(self, txn: Txn, where: TopicPartition, sends: Sequence[Send], number: int) -> Request:
        now_ms = self.scene.now_ms()
        batch = encode(
            [(now_ms, None, send.value, ()) for send in sends],
            producer_id=txn.writer[0],
            producer_epoch=txn.writer[1],
            base_sequence=number,
            transactional=True,
        )
        parts = (ask.PartitionBatches(where.partition, bytes(batch)),)
        return ask.ProduceBatches(-1, 1000, (ask.TopicBatches(where.topic, parts),), txn.name)

    def take_offsets(self, txn: Txn, group: str, offsets: dict[TopicPartition, int]) -> Story[bool]:
        rows = tuple(ask.TxnOffset(*partition, offset) for partition, offset in offsets.items())
        response = yield from self.insist(ask.AddOffsetsToTxn(txn.name, *txn.writer, group, rows))
        if not isinstance(response, tell.OffsetsAddedToTxn):
            return False
        txn.offsets |= {(group, partition): offset for partition, offset in offsets.items()}
        return True

    def commit(self, txn: Txn) -> Story[bool]:
        """Whether it is known how it ended."""
        txn.to_commit = True
        response = yield from self.insist(ask.CommitTransaction(txn.name, *txn.writer))
        match response:
            case tell.TransactionCommitted():
                self.scene.chronicle.end(txn, Fate.DONE)
            case tell.Error(message) if "it was aborted" in message:
                self.scene.chronicle.end(txn, Fate.REFUSED)
        return txn.fate is not Fate.OPEN

    def abort(self, txn: Txn) -> Story[bool]:
        response = yield from self.insist(ask.AbortTransaction(txn.name, *txn.writer))
        if isinstance(response, tell.Error) and "it was committed" in response.message:
            self.scene.wrong("aborted read", f"{txn.name} was to be aborted: {response.message}")
        self.scene.chronicle.end(txn, Fate.REFUSED)
        return isinstance(response, tell.TransactionAborted) or (
            isinstance(response, tell.Error) and "it was aborted" in response.message
        )


def is_retried(response: Response) -> bool:
    match response:
        case tell.Error(message):
            return message.startswith(RETRIED)
        case tell.ProducedBatches(topics):
            return any(part.error in RETRIED_CODES for topic in topics for part in topic.partitions)
        case _:
            return False

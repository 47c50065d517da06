"""One transactional id as the log has it, and the steps it can take: each makes a new value. Nothing is decided here.

    EMPTY ------> ONGOING ------> PREPARE_COMMIT | PREPARE_ABORT ------> COMPLETE_COMMIT | COMPLETE_ABORT
                     ^            the verdict is final                   every marker is written    |
                     +------------------------------------------------------------------------------+

Epochs. A producer is told epochs up to 32,766. Each new instance of it gets the next one; under version 2 so does
every end of a transaction, so that a request of an earlier transaction, however late, carries an epoch that no longer
counts. Epoch 32,767 fences a producer that has had all of them; its successor begins with a new producer id at 0.

`last_id` and `last_epoch` are what the producer had before its present ones, where the change was its own: its end of
a transaction, its wish for a new epoch, or its transaction's timing out. Whoever presents them repeats a request
whose answer was lost, and is told the present ones. After a change that was somebody else's doing they are unset, so
that the one who was replaced stays out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rivven.model import NO_EPOCH, NO_PRODUCER, Epoch, ProducerId, TopicPartition

from .txn_values import EPOCH_LAST, NO_SEQUENCE, DescribedTxn, TxnStatus

FreshId = Callable[[], int]
"""Gives a producer id that nobody had before; may raise from the tree of errors."""
NOT_STARTED_MS = -1


@dataclass(frozen=True, slots=True)
class Txn:
    producer_id: ProducerId
    epoch: Epoch
    timeout_ms: int
    updated_ms: int
    status: TxnStatus = TxnStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    started_ms: int = NOT_STARTED_MS
    last_id: ProducerId = NO_PRODUCER
    last_epoch: Epoch = NO_EPOCH
    next_id: ProducerId = NO_PRODUCER
    """The producer id to go on with when the transaction is complete, if the present one has no epochs left."""
    version: int = 0
    label: str | None = None
    """What a native producer calls its transaction; None in Kafka's dialect."""
    owner: str = ""
    """Who decides about it; empty if its producer does."""
    owner_epoch: int = NO_EPOCH
    sequence: int = NO_SEQUENCE

    @property
    def native(self) -> bool:
        return self.label is not None

    @property
    def committing(self) -> bool:
        return self.status in (TxnStatus.PREPARE_COMMIT, TxnStatus.COMPLETE_COMMIT)

    @property
    def next_producer(self) -> tuple[ProducerId, Epoch]:
        """The id and epoch with which the producer goes on after this transaction."""
        return (self.producer_id, self.epoch) if self.next_id == NO_PRODUCER else (self.next_id, Epoch(0))

    def was(self, producer_id: ProducerId, epoch: Epoch) -> bool:
        """Is that who the producer was before it became what it is?"""
        return self.last_epoch != NO_EPOCH and (self.last_id, self.last_epoch) == (producer_id, epoch)

    def begun_like(self, other: Txn) -> bool:
        """Are these the same beginning of a native transaction, asked for twice?"""
        mine = (self.label, self.epoch, self.owner, self.owner_epoch, self.sequence)
        return mine == (other.label, other.epoch, other.owner, other.owner_epoch, other.sequence)

    def outlives(self, other: Txn) -> bool:
        """Has this attempt ended, and would that one be the same again, or an earlier one?

        One producer with one epoch begins once under each sequence of an owner. Otherwise a beginning that was sent
        twice could revive an attempt that has aborted, and the owner would commit what came after and not what came
        before.
        """
        same = (self.owner, self.owner_epoch, self.epoch) == (other.owner, other.owner_epoch, other.epoch)
        return self.status.complete and bool(self.owner) and same and other.sequence <= self.sequence

    # A new instance

    def initialized(self, timeout_ms: int, fresh_id: FreshId, now_ms: int, *, own_wish: bool) -> Txn:
        """The next epoch, or a new id where epochs have run out; `own_wish`: for the instance that had the last."""
        assert not self.status.open
        last = (self.producer_id, self.epoch) if own_wish else (NO_PRODUCER, NO_EPOCH)
        producer_id, epoch = self._next(fresh_id)
        return Txn(producer_id, epoch, timeout_ms, now_ms, last_id=last[0], last_epoch=last[1])

    def _next(self, fresh_id: FreshId) -> tuple[ProducerId, Epoch]:
        if self.epoch >= EPOCH_LAST:
            return ProducerId(fresh_id()), Epoch(0)
        return self.producer_id, Epoch(self.epoch + 1)

    # A transaction begins and grows

    def with_added(
        self, partitions: Iterable[TopicPartition], groups: Iterable[str], version: int, now_ms: int
    ) -> Txn:
        """One that is not open begins; this is also what tells who may present the last epoch: nobody any more."""
        if self.status is not TxnStatus.ONGOING:
            return replace(
                self,
                status=TxnStatus.ONGOING,
                partitions=frozenset(partitions),
                groups=frozenset(groups),
                started_ms=now_ms,
                updated_ms=now_ms,
                last_id=NO_PRODUCER,
                last_epoch=NO_EPOCH,
                version=version,
            )
        return replace(
            self, partitions=self.partitions.union(partitions), groups=self.groups.union(groups), updated_ms=now_ms
        )

    # It ends

    def ended(self, *, commit: bool, version: int, fresh_id: FreshId, now_ms: int) -> Txn:
        """As its producer wishes. From version 2 on the markers carry the next epoch already, and so fence whatever
        the producer sent before and which arrives later."""
        if version < 2:
            return self._with_verdict(commit, now_ms)
        next_id = ProducerId(fresh_id()) if self.epoch >= EPOCH_LAST else NO_PRODUCER
        bumped = replace(
            self,
            epoch=Epoch(self.epoch + 1),
            next_id=next_id,
            last_id=self.producer_id,
            last_epoch=self.epoch,
            version=version,
        )
        return bumped._with_verdict(commit, now_ms)

    def fenced(self, now_ms: int, *, recoverable: bool = False) -> Txn:
        """Aborted with an epoch that its producer does not have. `recoverable`: nobody else asked for it, and the
        producer may learn its new epoch when it next speaks."""
        recoverable = recoverable and self.epoch < EPOCH_LAST  # the epoch that fences for good is told to nobody
        last = (self.producer_id, self.epoch) if recoverable else (NO_PRODUCER, NO_EPOCH)
        epoch = Epoch(min(self.epoch + 1, EPOCH_LAST + 1))
        return replace(self, epoch=epoch, last_id=last[0], last_epoch=last[1])._with_verdict(False, now_ms)

    def dropped(self, *, commit: bool, now_ms: int) -> Txn:
        """Ended with the same epoch: by an owner's decision, or by the timeout of a native transaction, whose name
        keeps late requests out."""
        return self._with_verdict(commit, now_ms)

    def _with_verdict(self, commit: bool, now_ms: int) -> Txn:
        status = TxnStatus.PREPARE_COMMIT if commit else TxnStatus.PREPARE_ABORT
        prepared = replace(self, status=status, updated_ms=now_ms)
        return prepared if self.partitions or self.groups else prepared.completed(now_ms)

    def completed(self, now_ms: int) -> Txn:
        """Every marker is written."""
        assert self.status.preparing
        status = TxnStatus.COMPLETE_COMMIT if self.committing else TxnStatus.COMPLETE_ABORT
        producer_id, epoch = self.next_producer
        return replace(
            self,
            producer_id=producer_id,
            epoch=epoch,
            next_id=NO_PRODUCER,
            status=status,
            partitions=frozenset(),
            groups=frozenset(),
            updated_ms=now_ms,
        )

    def described(self, transactional_id: str) -> DescribedTxn:
        return DescribedTxn(
            transactional_id,
            self.status,
            self.producer_id,
            self.epoch,
            self.timeout_ms,
            self.started_ms if self.status.open else NOT_STARTED_MS,
            self.updated_ms,
            tuple(sorted(self.partitions)),
            tuple(sorted(self.groups)),
            self.label,
            self.owner,
            self.sequence,
        )

"""Decisions over many transactions at once: what an owner has decided, and what follows for each of its transactions.

An owner lets many producers write, each in a transaction of its own, and then says in one word which of them count: a
Spark query, whose batches are its sequences and whose task attempts are its transactions. The word is one record in
the log. Once that is durable it holds: of every transaction that was begun under the owner the record alone tells the
end, whoever crashes at whatever step (`Verdicts`). Until the transactions that commit have taken it over into records
of their own, the owner stands still, so no later record can cover it.

Invariants: `decided` only grows; what was decided for a sequence never changes; nothing is begun under a sequence
that was decided.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from rivven import limits
from rivven.errors import AlreadyDecided, OwnerFenced, OwnerNotFound, TooManyTransactions
from rivven.model import NO_EPOCH, Epoch, ProducerId

from .txn_log import KeptDecision, KeptOwner
from .txn_state import Txn
from .txn_values import NO_SEQUENCE, BeginTxn, Decide, Decided, DescribedOwner, OwnerAsk, Registered

Committed = tuple[tuple[ProducerId, Epoch], ...]


def registered(kept: KeptOwner | None, now_ms: int) -> KeptOwner:
    """The next registration; the first has epoch 0."""
    if kept is None:
        return KeptOwner(0, NO_SEQUENCE, (), now_ms)
    return msgspec.structs.replace(kept, epoch=kept.epoch + 1, updated_ms=now_ms)


def decided(kept: KeptOwner, sequence: int, committing: Committed, now_ms: int) -> KeptOwner:
    """With one more decision; of the earlier ones as many are kept as the limits allow."""
    assert sequence > kept.decided, "a decision never changes"
    room = limits.OWNER_DECIDED_KEPT
    earlier: list[KeptDecision] = []
    for decision in reversed(kept.decisions[-(limits.OWNER_DECISIONS_KEPT - 1) :]):
        room -= len(decision.committed)
        if room < 0:
            break
        earlier.insert(0, decision)
    return KeptOwner(kept.epoch, sequence, (*earlier, KeptDecision(sequence, committing)), now_ms)


def recalled(kept: KeptOwner, sequence: int) -> Decided:
    """What was decided for a sequence that is not above the last one."""
    for decision in kept.decisions:
        if decision.sequence == sequence:
            committed = tuple((ProducerId(producer_id), Epoch(epoch)) for producer_id, epoch in decision.committed)
            return Decided(sequence, committed, repeated=True)
    # One that was passed over has aborted; one from before our memory may have been either.
    known = bool(kept.decisions) and sequence > kept.decisions[0].sequence
    return Decided(sequence, () if known else None, repeated=True)


class Verdicts:
    """What one owner's record says about its open transactions."""

    def __init__(self, kept: KeptOwner) -> None:
        self._kept = kept
        self._committed = frozenset(kept.decisions[-1].committed) if kept.decisions else frozenset()

    def verdict(self, txn: Txn) -> bool | None:
        """Commit, abort, or undecided. Asked only of transactions whose own records say that they are open."""
        if txn.sequence == self._kept.decided:
            return (txn.producer_id, txn.epoch) in self._committed
        if txn.sequence < self._kept.decided or txn.owner_epoch < self._kept.epoch:
            return False
        return None


@dataclass(slots=True)
class Awaited:
    """An answer that is given when these transactions have their markers."""

    reply_id: int
    answer: Registered | Decided
    unfinished: set[str]


@dataclass(slots=True)
class Owner:
    name: str
    kept: KeptOwner | None = None
    """As the log has it; None while the first record is being written."""
    writing: bool = False
    line: deque[tuple[OwnerAsk | BeginTxn, int]] = field(default_factory=deque)
    members: set[str] = field(default_factory=set)
    """The transactions begun under it that have not ended."""
    remembered: set[str] = field(default_factory=set)
    """Those that have aborted before anything was decided, and must not come to life again until it is."""
    unsettled: set[str] = field(default_factory=set)
    """Those that were decided to commit, and whose own records do not say so yet."""
    awaited: list[Awaited] = field(default_factory=list)

    @property
    def stands_still(self) -> bool:
        return self.writing or bool(self.unsettled)

    def check_epoch(self, epoch: int) -> KeptOwner:
        if self.kept is None or epoch > self.kept.epoch:
            raise OwnerNotFound(owner=self.name, epoch=epoch)
        if epoch < self.kept.epoch:
            raise OwnerFenced(owner=self.name, present=self.kept.epoch, given=epoch)
        return self.kept

    def check_begin(self, request: BeginTxn) -> None:
        kept = self.check_epoch(request.owner_epoch)
        if request.sequence <= kept.decided:
            raise AlreadyDecided(owner=self.name, decided=kept.decided, given=request.sequence)
        known = request.transactional_id in self.members
        if not known and len(self.members) + len(self.remembered) >= limits.OWNER_TRANSACTIONS_MAX:
            facts = {"what": f"the open transactions of owner {self.name!r}", "limit": limits.OWNER_TRANSACTIONS_MAX}
            raise TooManyTransactions(transaction=request.transactional_id, **facts)

    def covers(self, txn: Txn) -> bool:
        """Does the owner's record keep that transaction from ever beginning again?"""
        return self.kept is None or txn.sequence <= self.kept.decided or txn.owner_epoch < self.kept.epoch

    def repeated(self, request: Decide) -> Decided | None:
        """The answer to a decision that was made before; None if this is a new one."""
        kept = self.check_epoch(request.owner_epoch)
        return recalled(kept, request.sequence) if request.sequence <= kept.decided else None

    def finish(self, transactional_id: str) -> list[Awaited]:
        """That transaction has its markers, or its verdict will be carried out without anybody waiting for it."""
        for one in self.awaited:
            one.unfinished.discard(transactional_id)
        done = [one for one in self.awaited if not one.unfinished]
        self.awaited = [one for one in self.awaited if one.unfinished]
        return done

    def described(self) -> DescribedOwner:
        epoch, last = (NO_EPOCH, NO_SEQUENCE) if self.kept is None else (self.kept.epoch, self.kept.decided)
        return DescribedOwner(self.name, epoch, last, len(self.members))

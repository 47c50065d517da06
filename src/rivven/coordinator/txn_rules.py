"""What a request makes of a transactional id: the rules of epochs, beginnings and ends, apart from any writing.

Each rule is given the id as the log has it, at rest, and returns a `Step`: what to answer, and before that what to
write, if anything. Refusals are raised.
"""

from __future__ import annotations

from dataclasses import dataclass

from rivven import limits
from rivven.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
    RivvenError,
    TransactionNotFound,
    TransactionTooLarge,
)
from rivven.model import NO_PRODUCER, Epoch, ProducerId

from .txn_state import FreshId, Txn
from .txn_values import (
    EPOCH_LAST,
    NATIVE,
    AbortTxn,
    Added,
    AddOffsets,
    AddPartitions,
    BeginTxn,
    Begun,
    Ended,
    EndTxn,
    Initialized,
    InitProducer,
    NextLife,
    ProducerAsk,
    TxnConfig,
    TxnResult,
    TxnStatus,
)

IdAsk = InitProducer | BeginTxn | NextLife | ProducerAsk | AbortTxn


@dataclass(frozen=True, slots=True)
class Step:
    answer: TxnResult | RivvenError
    next: Txn | None = None
    """What the log must have before the answer is given; None if nothing changes."""
    wait: bool = False
    """Answer only when the markers are written, too."""


class Rules:
    def __init__(self, config: TxnConfig, fresh_id: FreshId) -> None:
        self._config = config
        self._fresh_id = fresh_id

    def step(self, request: IdAsk, now: Txn | None, now_ms: int) -> Step:
        match request:
            case InitProducer():
                return self._init(request, now, now_ms)
            case BeginTxn():
                return self._begin(request, now, now_ms)
            case NextLife():
                return self._next_life(request, now, now_ms)
            case AddPartitions() | AddOffsets():
                return self._add(request, _known(request, now), now_ms)
            case EndTxn():
                return self._end(request, now, now_ms)
            case AbortTxn():
                return self._abort(request, now, now_ms)

    # A producer comes

    def _init(self, request: InitProducer, now: Txn | None, now_ms: int) -> Step:
        """A plain request is a new instance. One that names its producer id and epoch is an instance that wants its
        next epoch (KIP-360), and gets it only if nobody else has come since."""
        name = request.transactional_id
        if name.startswith(NATIVE):
            reason = f"begins with {NATIVE!r}, which is for native producers; use another"
            raise InvalidTransactionRequest(transaction=name, field="transactional id", reason=reason)
        self._check_timeout(request.timeout_ms)
        if now is None:
            first = Txn(ProducerId(self._fresh_id()), Epoch(0), request.timeout_ms, now_ms)
            return Step(Initialized(first.producer_id, first.epoch), first)
        own_wish = request.producer_id != NO_PRODUCER
        named = (request.producer_id, request.producer_epoch)
        repeats = own_wish and now.was(*named)
        if own_wish and not repeats and named != (now.producer_id, now.epoch):
            raise fenced(name, now, request.producer_epoch)
        if now.status.preparing:
            raise ending(name)
        if now.status is TxnStatus.ONGOING:
            # What the earlier instance left open is aborted first; whoever asks tries again, and finds that done.
            assert not repeats, "whoever has begun a transaction has heard its epoch"
            return Step(ending(name), now.fenced(now_ms, recoverable=own_wish))
        if repeats:
            return Step(Initialized(now.producer_id, now.epoch))
        next_ = now.initialized(request.timeout_ms, self._fresh_id, now_ms, own_wish=own_wish)
        return Step(Initialized(next_.producer_id, next_.epoch), next_)

    def _begin(self, request: BeginTxn, now: Txn | None, now_ms: int) -> Step:
        name = request.transactional_id
        timeout_ms = self._config.timeout_ms_default if request.timeout_ms is None else request.timeout_ms
        self._check_timeout(timeout_ms)
        if not 0 <= request.producer_epoch <= EPOCH_LAST:
            reason = f"must be 0 to {EPOCH_LAST}"
            raise InvalidTransactionRequest(transaction=name, field="producer epoch", reason=reason)
        begun = Txn(
            request.producer_id,
            request.producer_epoch,
            timeout_ms,
            now_ms,
            TxnStatus.ONGOING,
            started_ms=now_ms,
            label=request.label,
            owner=request.owner,
            owner_epoch=request.owner_epoch,
            sequence=request.sequence,
        )
        if now is not None and request.producer_epoch < now.epoch:
            raise fenced(name, now, request.producer_epoch)
        if now is not None and now.status.preparing:
            raise ending(name)
        if now is not None and now.outlives(begun):
            reason = "this attempt was aborted; begin another with the producer's next epoch"
            raise InvalidTransactionState(transaction=name, status=now.status.title, reason=reason)
        if now is None or now.status is not TxnStatus.ONGOING:
            return Step(Begun(name), begun)
        if now.begun_like(begun):
            return Step(Begun(name))
        if request.producer_epoch > now.epoch:  # the same producer in a later life
            return Step(ending(name), now.dropped(commit=False, now_ms=now_ms))
        raise ConcurrentTransactions(transaction=name, reason=f"its producer has {now.label!r} open")

    def _next_life(self, request: NextLife, now: Txn | None, now_ms: int) -> Step:
        name = request.transactional_id
        if now is not None and request.producer_epoch < now.epoch:
            raise fenced(name, now, request.producer_epoch)
        if now is not None and now.status.open:
            aborted = None if now.status.preparing else now.dropped(commit=False, now_ms=now_ms)
            return Step(ending(name), aborted, wait=True)
        timeout_ms = self._config.timeout_ms_default
        return Step(Begun(name), Txn(request.producer_id, request.producer_epoch, timeout_ms, now_ms, label=""))

    # A transaction grows

    def _add(self, request: AddPartitions | AddOffsets, now: Txn, now_ms: int) -> Step:
        """Whatever is part of the transaction already costs no write."""
        name = request.transactional_id
        partitions = request.partitions if isinstance(request, AddPartitions) else ()
        groups = (request.group,) if isinstance(request, AddOffsets) else ()
        if isinstance(request, AddPartitions) and request.verify_only:
            there = now.partitions if now.status is TxnStatus.ONGOING else frozenset()
            return Step(Added(frozenset(partitions) - there))
        if now.status.preparing:
            raise ending(name)
        ongoing = now.status is TxnStatus.ONGOING
        if now.native and not ongoing:
            raise not_open(name, now)
        if ongoing and now.partitions.issuperset(partitions) and now.groups.issuperset(groups):
            return Step(Added())
        next_ = now.with_added(partitions, groups, request.version, now_ms)
        _check_bounds(name, next_)
        return Step(Added(), next_)

    # It ends

    def _end(self, request: EndTxn, now: Txn | None, now_ms: int) -> Step:
        name = request.transactional_id
        if now is not None and request.version >= 2 and _repeats_end(request, now):
            return _end_again(request, now)
        now = _known(request, now)
        if now.status.preparing or (now.status.complete and request.version < 2):
            return _end_again(request, now)
        if now.status is TxnStatus.ONGOING:
            if now.owner and request.commit:
                reason = f"only its owner {now.owner!r} can commit it"
                raise InvalidTransactionState(transaction=name, status=now.status.title, reason=reason)
        elif request.commit or request.version < 2:
            raise not_open(name, now)
        # A client of version 2 does not know whether its first write began a transaction. It may abort nothing, and
        # gets its next epoch as it would after any other end.
        next_ = now.ended(commit=request.commit, version=request.version, fresh_id=self._fresh_id, now_ms=now_ms)
        return Step(Ended(*next_.next_producer), next_, request.wait)

    def _abort(self, request: AbortTxn, now: Txn | None, now_ms: int) -> Step:
        name = request.transactional_id
        if now is None:
            raise TransactionNotFound(transaction=name)
        if now.status.preparing:
            raise ending(name)
        if now.status is not TxnStatus.ONGOING:
            raise not_open(name, now)
        # Of an owner's transaction only the owner can make anything: there is nobody to be fenced.
        next_ = now.dropped(commit=False, now_ms=now_ms) if now.owner else now.fenced(now_ms)
        return Step(Ended(next_.producer_id, next_.epoch), next_, wait=True)

    def timed_out(self, now: Txn, now_ms: int) -> Txn:
        """A native producer may begin its next transaction as it is: that has another name. One of Kafka's dialect
        is fenced, and learns its next epoch when it asks for it or aborts (version 2)."""
        return now.dropped(commit=False, now_ms=now_ms) if now.native else now.fenced(now_ms, recoverable=True)

    def _check_timeout(self, timeout_ms: int) -> None:
        if not 1 <= timeout_ms <= self._config.timeout_ms_max:
            raise InvalidTransactionTimeout(timeout_ms=timeout_ms, timeout_ms_max=self._config.timeout_ms_max)


def _known(request: ProducerAsk, now: Txn | None) -> Txn:
    """The transaction, if the request comes from the one who has it now."""
    name = request.transactional_id
    if (request.label is not None and now is None) or (now is not None and now.label != request.label):
        raise TransactionNotFound(transaction=request.label or name)
    if now is None or now.producer_id != request.producer_id:
        raise InvalidProducerIdMapping(transaction=name, producer_id=request.producer_id)
    if now.epoch != request.producer_epoch:
        raise fenced(name, now, request.producer_epoch)
    return now


def _repeats_end(request: EndTxn, now: Txn) -> bool:
    return (now.status.preparing or now.status.complete) and now.was(request.producer_id, request.producer_epoch)


def _end_again(request: EndTxn, now: Txn) -> Step:
    """The same end once more, since its answer was lost, or the other one, which comes too late.

    Before version 2 a transaction that has ended and the next one have the same epoch: an end that was delayed beyond
    the beginning of the next transaction ends that one. Nothing can tell them apart, which is why version 2 exists:
    there the delayed one carries an epoch that no longer counts, and is fenced.
    """
    name = request.transactional_id
    if now.committing is not request.commit:
        reason = "it was committed" if now.committing else "it was aborted"
        raise InvalidTransactionState(transaction=name, status=now.status.title, reason=reason)
    if now.status.preparing:
        raise ending(name)
    return Step(Ended(now.producer_id, now.epoch))


def _check_bounds(name: str, txn: Txn) -> None:
    if len(txn.partitions) > limits.TRANSACTION_PARTITIONS_MAX:
        raise TransactionTooLarge(transaction=name, what="its partitions", limit=limits.TRANSACTION_PARTITIONS_MAX)
    if len(txn.groups) > limits.TRANSACTION_GROUPS_MAX:
        raise TransactionTooLarge(transaction=name, what="its groups", limit=limits.TRANSACTION_GROUPS_MAX)


def fenced(name: str, now: Txn, given: Epoch) -> ProducerFenced:
    return ProducerFenced(transaction=name, present=now.epoch, given=given)


def ending(name: str) -> ConcurrentTransactions:
    return ConcurrentTransactions(transaction=name, reason="its last transaction is still ending")


def not_open(name: str, now: Txn) -> InvalidTransactionState:
    return InvalidTransactionState(transaction=name, status=now.status.title, reason="it has no open transaction")

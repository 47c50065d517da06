"""All transactions of a node, and their owners: requests go in with the time, effects come out, nothing waits.

`ask` takes whatever changes something; its answer comes as an effect. What must outlive a crash is decided first,
written by the shell (`TxnPersist`), and counts once `persisted` says so. While a change of a transactional id is
being written, whatever else concerns it stands in its line. While its markers are being written (`WriteMarkers`) its
producer is told to try again. The verdict is final as soon as its record is durable; everything behind it is done
again after a crash, from the record alone: `replay` the log, then perform what `recall` returns.

Writing is admitted directly (`admit`): the shell asks it in the same turn in which it appends the batch, so no batch
can follow the marker of its own transaction. That is also why a marker can be written twice: see `WriteMarkers`.

Invariants: every request is answered exactly once; a verdict never changes; a transactional id begins nothing new
before all markers of its last transaction are written; a producer has one open transaction at most; what is told to
have ended is in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from rivven import limits
from rivven.errors import (
    ConcurrentTransactions,
    DecisionRefused,
    InvalidProducerIdMapping,
    InvalidTransactionRequest,
    OwnerNotFound,
    PartitionNotInTransaction,
    RivvenError,
    TooManyTransactions,
    TransactionNotFound,
    TransactionTooLarge,
)
from rivven.model import NO_EPOCH, Epoch, ProducerId, TopicPartition

from .decisions import Awaited, Committed, Owner, Verdicts, decided, registered
from .timers import Timers
from .txn_log import (
    OWNER_KEY,
    TXN_KEY,
    KeptOwner,
    decode_owner,
    decode_txn,
    decode_txn_key,
    encode_owner,
    encode_txn,
    owner_key,
    txn_key,
)
from .txn_rules import IdAsk, Rules, fenced, not_open
from .txn_state import FreshId, Txn
from .txn_values import (
    AddPartitions,
    BeginTxn,
    Decide,
    Decided,
    DescribedOwner,
    DescribedTxn,
    ForgetOwner,
    Forgotten,
    NextLife,
    OpenInLog,
    OwnerAsk,
    Registered,
    RegisterOwner,
    TxnAnswer,
    TxnAsk,
    TxnConfig,
    TxnEffect,
    TxnPersist,
    TxnResult,
    TxnStatus,
    WriteMarkers,
)

A = TypeVar("A")

TIMEOUT, RETRY, EXPIRE, OWNER_EXPIRE = "timeout", "retry", "expire", "owner"


@dataclass(slots=True)
class Entry:
    """One transactional id: what the log has, and what is under way."""

    name: str
    now: Txn | None = None
    """As the log has it; None while the first record is being written."""
    writing: Txn | None = None
    busy: bool = False
    """A record is being written: `writing`, or its tombstone."""
    held: bool = False
    """A decision that commits it is being written, and nothing may come before that."""
    verdict: bool | None = None
    """What its owner has decided, until its own record says so."""
    paused: bool = False
    """The record of the verdict could not be written; it is tried again after a while."""
    marking: bool = False
    waiting: list[tuple[int, TxnResult | RivvenError]] = field(default_factory=list)
    """Who is answered when the markers are written."""
    line: deque[tuple[IdAsk, int]] = field(default_factory=deque)
    active_ms: int = 0
    pending_bytes: int = 0

    @property
    def stands_still(self) -> bool:
        return self.busy or self.held

    @property
    def latest(self) -> Txn | None:
        return self.writing if self.busy else self.now


@dataclass(frozen=True, slots=True)
class _Write:
    """A record of a transactional id; None is its tombstone."""

    entry: Entry
    next: Txn | None
    reply_id: int | None = None
    answer: TxnResult | RivvenError | None = None
    wait: bool = False


@dataclass(frozen=True, slots=True)
class _Marking:
    entry: Entry


@dataclass(frozen=True, slots=True)
class _OwnerWrite:
    owner: Owner
    next: KeptOwner | None
    reply_id: int | None
    answer: Registered | Decided | Forgotten
    held: tuple[Entry, ...] = ()


class Transactions:
    def __init__(self, config: TxnConfig, fresh_id: FreshId) -> None:
        self._config = config
        self._rules = Rules(config, self._unused_id)
        self._fresh_id = fresh_id
        self._timers = Timers()
        self._entries: dict[str, Entry] = {}
        self._names: dict[ProducerId, str] = {}
        """The transactional id of each producer id that is in use."""
        self._owners: dict[str, Owner] = {}
        self._open: set[str] = set()
        self._writes: dict[int, _Write | _Marking | _OwnerWrite] = {}
        self._tokens = 0

    # Starting from the log

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Take one record of the topic; records of unknown kinds are passed over."""
        if key is None:
            return
        version, name = decode_txn_key(key)
        if version == TXN_KEY:
            self._entries.pop(name, None)
            if value is not None:
                self._entries[name] = Entry(name, decode_txn(value))
        elif version == OWNER_KEY:
            self._owners.pop(name, None)
            if value is not None:
                self._owners[name] = Owner(name, decode_owner(value))

    def recall(self, now_ms: int) -> list[TxnEffect]:
        """The log has been read to its end: what was in doubt goes on to its end, and time begins to count."""
        effects: list[TxnEffect] = []
        verdicts = {name: Verdicts(owner.kept) for name, owner in self._owners.items() if owner.kept is not None}
        for _, entry in sorted(self._entries.items()):
            assert entry.now is not None
            entry.active_ms = now_ms
            self._note(entry)
            if entry.now.status is TxnStatus.ONGOING and entry.now.owner in verdicts:
                self._judge(entry, self._owners[entry.now.owner], verdicts[entry.now.owner])
        for _, entry in sorted(self._entries.items()):
            self._set_timers(entry, now_ms)
            effects += self._resume(entry, now_ms)
        for owner in self._owners.values():
            self._set_owner_timer(owner)
        return effects

    # What changes something

    def ask(self, request: TxnAsk, reply_id: int, now_ms: int) -> list[TxnEffect]:
        try:
            _check_fields(request)
            match request:
                case RegisterOwner() | Decide() | ForgetOwner():
                    return self._ask_owner(request, reply_id, now_ms)
                case _:
                    return self._ask_id(request, reply_id, now_ms)
        except RivvenError as error:
            return [TxnAnswer(reply_id, error)]

    def _ask_id(self, request: IdAsk, reply_id: int, now_ms: int) -> list[TxnEffect]:
        if isinstance(request, BeginTxn) and request.owner:
            owner = self._known_owner(request.owner, request.owner_epoch)
            if owner.stands_still:
                return _stand_in_line(owner.line, request, reply_id, request.owner)
        entry = self._entries.get(request.transactional_id) or Entry(request.transactional_id)
        if entry.stands_still:
            return _stand_in_line(entry.line, request, reply_id, entry.name)
        if entry.verdict is not None:
            ending = ConcurrentTransactions(transaction=entry.name, reason="its owner has decided about it")
            if isinstance(request, NextLife):
                entry.waiting.append((reply_id, ending))
                return []
            raise ending
        if isinstance(request, BeginTxn) and request.owner:
            self._known_owner(request.owner, request.owner_epoch).check_begin(request)
        if isinstance(request, BeginTxn | NextLife):
            self._check_name(request.producer_id, entry.name)
        step = self._rules.step(request, entry.now, now_ms)
        self._touch(entry, now_ms)
        if step.next is None and step.wait:
            entry.waiting.append((reply_id, step.answer))
            return []
        if step.next is None:
            return [TxnAnswer(reply_id, step.answer)]
        return self._write(entry, step.next, reply_id, step.answer, wait=step.wait)

    def _check_name(self, producer_id: ProducerId, name: str) -> None:
        """A producer of Kafka's dialect may not become a native one."""
        if self._names.get(producer_id, name) != name:
            raise InvalidProducerIdMapping(transaction=name, producer_id=producer_id)

    # Owners

    def _ask_owner(self, request: OwnerAsk, reply_id: int, now_ms: int) -> list[TxnEffect]:
        owner = self._owners.get(request.owner)
        if owner is not None and owner.stands_still:
            return _stand_in_line(owner.line, request, reply_id, request.owner)
        match request:
            case RegisterOwner():
                return self._register(request, reply_id, now_ms)
            case Decide():
                return self._decide(request, reply_id, now_ms)
            case ForgetOwner():
                owner = self._known_owner(request.owner, request.owner_epoch)
                if request.owner_epoch != NO_EPOCH:
                    owner.check_epoch(request.owner_epoch)
                if owner.members:
                    reason = f"owner {request.owner!r} has {len(owner.members)} transactions open"
                    raise ConcurrentTransactions(transaction="", reason=reason)
                return self._write_owner(_OwnerWrite(owner, None, reply_id, Forgotten(owner.name)))

    def _register(self, request: RegisterOwner, reply_id: int, now_ms: int) -> list[TxnEffect]:
        owner = self._owners.get(request.owner)
        if owner is None:
            if len(self._owners) >= limits.TRANSACTION_OWNERS_MAX:
                raise TooManyTransactions(transaction="", what="owners", limit=limits.TRANSACTION_OWNERS_MAX)
            owner = self._owners[request.owner] = Owner(request.owner)
        if request.join and owner.kept is not None:
            return [TxnAnswer(reply_id, Registered(owner.kept.epoch, owner.kept.decided))]
        next_ = registered(owner.kept, now_ms)
        return self._write_owner(_OwnerWrite(owner, next_, reply_id, Registered(next_.epoch, next_.decided)))

    def _decide(self, request: Decide, reply_id: int, now_ms: int) -> list[TxnEffect]:
        """All that commit must be open and at rest, or nothing is decided. From here until the record is written they
        are held: neither a timeout nor their producer can end them otherwise."""
        owner = self._known_owner(request.owner, request.owner_epoch)
        if (repeated := owner.repeated(request)) is not None:
            return self._await(owner, reply_id, repeated)
        if len(request.committing) > limits.OWNER_TRANSACTIONS_MAX:
            reason = f"names more than {limits.OWNER_TRANSACTIONS_MAX} transactions"
            raise InvalidTransactionRequest(transaction="", field="decision", reason=reason)
        committing: Committed = tuple(dict.fromkeys(request.committing))
        entries = tuple(self._decidable(request, *one) for one in committing)
        assert owner.kept is not None
        next_ = decided(owner.kept, request.sequence, committing, now_ms)
        for entry in entries:
            entry.held = True
        answer = Decided(request.sequence, committing)
        return self._write_owner(_OwnerWrite(owner, next_, reply_id, answer, entries))

    def _decidable(self, request: Decide, producer_id: ProducerId, epoch: Epoch) -> Entry:
        facts = {"owner": request.owner, "sequence": request.sequence, "producer_id": producer_id, "epoch": epoch}
        entry = self._entries.get(self._names.get(producer_id, ""))
        now = None if entry is None else entry.now
        if entry is None or now is None or now.epoch != epoch:
            raise DecisionRefused(**facts, reason="has no open transaction")
        if (now.owner, now.owner_epoch, now.sequence) != (request.owner, request.owner_epoch, request.sequence):
            raise DecisionRefused(**facts, reason="did not begin its transaction under this owner and sequence")
        if entry.stands_still:
            raise ConcurrentTransactions(transaction=entry.name, reason="it is just being changed")
        if now.status is not TxnStatus.ONGOING or entry.verdict is not None:
            raise DecisionRefused(**facts, reason="has a transaction that was aborted")
        return entry

    def _known_owner(self, name: str, epoch: int) -> Owner:
        owner = self._owners.get(name)
        if owner is None:
            raise OwnerNotFound(owner=name, epoch=epoch)
        return owner

    def _judge(self, entry: Entry, owner: Owner, verdicts: Verdicts) -> None:
        """Note what the owner's record says about a transaction that is open or about to be."""
        latest = entry.latest
        if latest is None or latest.status is not TxnStatus.ONGOING or entry.verdict is not None:
            return
        entry.verdict = verdicts.verdict(latest)
        if entry.verdict:
            owner.unsettled.add(entry.name)

    def _settle(self, entry: Entry, now_ms: int) -> list[TxnEffect]:
        """Take the owner's verdict over into the transaction's own record."""
        assert entry.now is not None
        assert entry.verdict is not None
        return self._write(entry, entry.now.dropped(commit=entry.verdict, now_ms=now_ms))

    def _await(self, owner: Owner, reply_id: int, answer: Registered | Decided) -> list[TxnEffect]:
        """Answer when everything that the record ended has its markers."""
        unfinished = {name for name in owner.members if self._is_ending(self._entries[name])}
        if not unfinished:
            return [TxnAnswer(reply_id, answer)]
        owner.awaited.append(Awaited(reply_id, answer, unfinished))
        return []

    @staticmethod
    def _is_ending(entry: Entry) -> bool:
        return entry.verdict is not None or (entry.latest is not None and entry.latest.status.preparing)

    # What has been written

    def persisted(self, token: int, now_ms: int) -> list[TxnEffect]:
        """The records of that effect are durable."""
        written = self._writes.pop(token)
        if isinstance(written, _OwnerWrite):
            return self._owner_written(written, now_ms)
        assert isinstance(written, _Write)
        return self._written(written, now_ms)

    def marked(self, token: int, now_ms: int) -> list[TxnEffect]:
        """All markers of that effect are durable. The record that says so need not be waited for: nothing else of
        this transactional id is written before it."""
        marking = self._writes.pop(token)
        assert isinstance(marking, _Marking)
        entry = marking.entry
        entry.marking = False
        assert entry.now is not None
        told = self._tell_ended(entry, entry.now.owner)
        return told + self._write(entry, entry.now.completed(now_ms))

    def failed(self, token: int, error: RivvenError, now_ms: int) -> list[TxnEffect]:
        """What that effect asked for has not been done: its records are not in the log, or some marker is not."""
        written = self._writes.pop(token)
        match written:
            case _Marking(entry):
                # The verdict is final: nobody is kept waiting for longer than the first attempt.
                entry.marking = False
                self._timers.set((entry.name, RETRY, ""), now_ms + self._config.retry_ms)
                assert entry.now is not None
                return self._tell_ended(entry, entry.now.owner)
            case _Write():
                return self._not_written(written, error, now_ms)
            case _OwnerWrite():
                return self._owner_not_written(written, error, now_ms)

    def _written(self, write: _Write, now_ms: int) -> list[TxnEffect]:
        entry = write.entry
        before, entry.now = entry.now, write.next
        self._release(entry, before)
        entry.active_ms = now_ms
        if entry.now is None or entry.now.status is not TxnStatus.ONGOING:
            entry.verdict = None
        self._note(entry)
        self._set_timers(entry, now_ms)
        effects: list[TxnEffect] = []
        preparing = entry.now is not None and entry.now.status.preparing
        if write.reply_id is not None and write.answer is not None:
            if write.wait and preparing:
                entry.waiting.append((write.reply_id, write.answer))
            else:
                effects.append(TxnAnswer(write.reply_id, write.answer))
        if preparing:
            effects += self._mark(entry)
        elif before is not None and not self._is_open(entry):
            effects += self._tell_ended(entry, before.owner)
        return effects + self._tell_owner(entry, before, now_ms) + self._serve(entry, now_ms)

    def _not_written(self, write: _Write, error: RivvenError, now_ms: int) -> list[TxnEffect]:
        entry = write.entry
        self._release(entry, None)
        self._note(entry)
        if entry.now is None or entry.now.status is not TxnStatus.ONGOING:
            entry.verdict = None  # it was to be begun, and has not been
        entry.paused = entry.verdict is not None and write.reply_id is None
        if write.reply_id is None and self._is_open(entry):
            self._timers.set((entry.name, RETRY, ""), now_ms + self._config.retry_ms)
        elif write.reply_id is None:
            self._timers.set((entry.name, EXPIRE, ""), now_ms + self._config.expiration_check_ms)
        effects: list[TxnEffect] = [] if write.reply_id is None else [TxnAnswer(write.reply_id, error)]
        if write.next is not None:
            effects += self._tell_ended(entry, write.next.owner)
        return effects + self._tell_owner(entry, write.next, now_ms) + self._serve(entry, now_ms)

    def _owner_written(self, write: _OwnerWrite, now_ms: int) -> list[TxnEffect]:
        owner = write.owner
        owner.kept, owner.writing = write.next, False
        effects: list[TxnEffect] = []
        for entry in write.held:
            entry.held = False
        if owner.kept is None:
            assert isinstance(write.answer, Forgotten)
            self._forget_owner(owner)
            effects += [] if write.reply_id is None else [TxnAnswer(write.reply_id, write.answer)]
            return effects + self._serve_owner(owner, now_ms)
        self._set_owner_timer(owner)
        verdicts = Verdicts(owner.kept)
        for name in owner.remembered:
            self._set_timers(self._entries[name], now_ms)
        members = [self._entries[name] for name in sorted(owner.members)]
        for entry in members:
            self._judge(entry, owner, verdicts)
        assert not isinstance(write.answer, Forgotten)
        assert write.reply_id is not None
        effects += self._await(owner, write.reply_id, write.answer)
        for entry in members:
            effects += self._serve(entry, now_ms)
        return effects + self._serve_owner(owner, now_ms)

    def _owner_not_written(self, write: _OwnerWrite, error: RivvenError, now_ms: int) -> list[TxnEffect]:
        owner = write.owner
        owner.writing = False
        effects: list[TxnEffect] = [] if write.reply_id is None else [TxnAnswer(write.reply_id, error)]
        if owner.kept is None:
            self._forget_owner(owner)
        elif write.reply_id is None:
            self._timers.set((owner.name, OWNER_EXPIRE, ""), now_ms + self._config.expiration_check_ms)
        for entry in write.held:
            entry.held = False
            effects += self._serve(entry, now_ms)
        return effects + self._serve_owner(owner, now_ms)

    def _forget_owner(self, owner: Owner) -> None:
        assert not owner.members
        del self._owners[owner.name]
        self._timers.clear((owner.name, OWNER_EXPIRE, ""))

    # Writing

    def _write(
        self,
        entry: Entry,
        next_: Txn | None,
        reply_id: int | None = None,
        answer: TxnResult | RivvenError | None = None,
        *,
        wait: bool = False,
    ) -> list[TxnEffect]:
        assert not entry.stands_still
        if next_ is not None and next_.status.complete and self._is_covered(next_):
            next_ = None  # its owner remembers how it ended, and its producer may never come again
        opens = next_ is not None and next_.status.open
        if opens and entry.name not in self._open and len(self._open) >= self._config.open_max:
            facts = {"what": "the open transactions of this node", "limit": self._config.open_max}
            raise TooManyTransactions(transaction=entry.name, **facts)
        if entry.name not in self._entries:
            if len(self._entries) >= limits.TRANSACTIONAL_IDS_MAX:
                facts = {"what": "transactional ids", "limit": limits.TRANSACTIONAL_IDS_MAX}
                raise TooManyTransactions(transaction=entry.name, **facts)
            self._entries[entry.name] = entry
        entry.writing, entry.busy = next_, True
        if opens:
            self._open.add(entry.name)
            if next_ is not None and next_.owner in self._owners:
                self._owners[next_.owner].members.add(entry.name)
        token = self._next_token()
        self._writes[token] = _Write(entry, next_, reply_id, answer, wait)
        value = None if next_ is None else encode_txn(next_)
        return [TxnPersist(token, entry.name, ((txn_key(entry.name), value),))]

    def _is_covered(self, txn: Txn) -> bool:
        """Is it an owner's, and does the owner's record say all that there is to know of it?"""
        return bool(txn.owner) and (txn.owner not in self._owners or self._owners[txn.owner].covers(txn))

    def _write_owner(self, write: _OwnerWrite) -> list[TxnEffect]:
        owner = write.owner
        assert not owner.stands_still
        owner.writing = True
        token = self._next_token()
        self._writes[token] = write
        value = None if write.next is None else encode_owner(write.next)
        return [TxnPersist(token, owner.name, ((owner_key(owner.name), value),))]

    def _mark(self, entry: Entry) -> list[TxnEffect]:
        now = entry.now
        assert now is not None
        assert now.status.preparing
        assert not entry.marking
        entry.marking = True
        token = self._next_token()
        self._writes[token] = _Marking(entry)
        where = (tuple(sorted(now.partitions)), tuple(sorted(now.groups)))
        return [WriteMarkers(token, entry.name, now.producer_id, now.epoch, now.committing, *where)]

    def _unused_id(self) -> int:
        """Native producers may bring ids that nobody gave them."""
        while (producer_id := ProducerId(self._fresh_id())) in self._names:
            continue
        return producer_id

    def _next_token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _release(self, entry: Entry, before: Txn | None) -> None:
        """Its write is over."""
        entry.writing, entry.busy, entry.paused = None, False, False
        if before is not None and self._names.get(before.producer_id) == entry.name:
            del self._names[before.producer_id]
        if entry.now is None:
            self._entries.pop(entry.name, None)
            for what in (TIMEOUT, RETRY, EXPIRE):
                self._timers.clear((entry.name, what, ""))

    def _note(self, entry: Entry) -> None:
        """Keep the tables in step with what the log has of this id."""
        now = entry.now
        if now is not None:
            self._names[now.producer_id] = entry.name
        if now is not None and now.status.open:
            self._open.add(entry.name)
            if now.owner in self._owners:
                self._owners[now.owner].members.add(entry.name)
                self._owners[now.owner].remembered.discard(entry.name)
        else:
            self._open.discard(entry.name)
            entry.pending_bytes = 0
            if now is not None and now.owner in self._owners:
                self._owners[now.owner].remembered.add(entry.name)

    def _tell_owner(self, entry: Entry, was: Txn | None, now_ms: int) -> list[TxnEffect]:
        """Let the owner know what has become of its transaction: settled once its own record says how it ends, gone
        once it has ended."""
        owner = self._owners.get(was.owner) if was is not None else None
        if owner is None:
            return []
        if not self._is_open(entry):
            owner.members.discard(entry.name)
        if entry.now is None or entry.now.owner != owner.name:
            owner.remembered.discard(entry.name)
        if entry.verdict is None:
            owner.unsettled.discard(entry.name)
        return self._serve_owner(owner, now_ms)

    def _tell_ended(self, entry: Entry, owner_name: str) -> list[TxnEffect]:
        """Answer whoever waits for the markers of this transaction."""
        effects: list[TxnEffect] = [TxnAnswer(reply_id, answer) for reply_id, answer in entry.waiting]
        entry.waiting.clear()
        if (owner := self._owners.get(owner_name)) is not None:
            effects += [TxnAnswer(one.reply_id, one.answer) for one in owner.finish(entry.name)]
        return effects

    @staticmethod
    def _is_open(entry: Entry) -> bool:
        return entry.now is not None and entry.now.status.open

    # The lines

    def _serve(self, entry: Entry, now_ms: int) -> list[TxnEffect]:
        """Let whatever waited for this transactional id go on, an owner's verdict first."""
        effects: list[TxnEffect] = []
        while not entry.stands_still:
            if entry.verdict is not None and not entry.paused:
                effects += self._settle(entry, now_ms)
            elif entry.line:
                request, reply_id = entry.line.popleft()
                effects += self.ask(request, reply_id, now_ms)
            else:
                break
        return effects

    def _serve_owner(self, owner: Owner, now_ms: int) -> list[TxnEffect]:
        effects: list[TxnEffect] = []
        while owner.line and not owner.stands_still:
            request, reply_id = owner.line.popleft()
            effects += self.ask(request, reply_id, now_ms)
        return effects

    # Time

    def due_ms(self) -> int | None:
        """When `tick` should be called next; it may be early."""
        return self._timers.next_ms()

    def tick(self, now_ms: int) -> list[TxnEffect]:
        effects: list[TxnEffect] = []
        while (due := self._timers.pop(now_ms)) is not None:
            name, what, _ = due
            if what == OWNER_EXPIRE:
                effects += self._expire_owner(self._owners[name], now_ms)
            elif (entry := self._entries.get(name)) is None:
                continue
            elif entry.stands_still:
                self._timers.set(due, now_ms + self._config.retry_ms)
            elif what == RETRY:
                entry.paused = False
                effects += self._resume(entry, now_ms)
            elif what == TIMEOUT:
                effects += self._time_out(entry, now_ms)
            else:
                effects += self._expire(entry)
        return effects

    def _set_timers(self, entry: Entry, now_ms: int) -> None:
        now = entry.now
        if now is None:
            return
        if now.status is TxnStatus.ONGOING:
            self._timers.set((entry.name, TIMEOUT, ""), max(self._deadline_ms(entry, now), now_ms))
            self._timers.clear((entry.name, EXPIRE, ""))
            return
        self._timers.clear((entry.name, TIMEOUT, ""))
        if not now.status.open:
            config = self._config
            # What has ended is in the logs with its epoch; a life that has begun nothing is known from here alone.
            brief = now.native and not now.owner and now.status.complete
            kept_ms = config.native_expiration_ms if brief else config.id_expiration_ms
            due_ms = now_ms if self._is_covered(now) else now.updated_ms + kept_ms
            self._timers.set((entry.name, EXPIRE, ""), max(due_ms, now_ms))

    def _set_owner_timer(self, owner: Owner) -> None:
        assert owner.kept is not None
        self._timers.set((owner.name, OWNER_EXPIRE, ""), owner.kept.updated_ms + self._config.owner_expiration_ms)

    @staticmethod
    def _deadline_ms(entry: Entry, now: Txn) -> int:
        """Native transactions count from the last sign of life, Kafka's from their start."""
        return (entry.active_ms if now.native else now.started_ms) + now.timeout_ms

    def _touch(self, entry: Entry, now_ms: int) -> None:
        entry.active_ms = max(entry.active_ms, now_ms)

    def _resume(self, entry: Entry, now_ms: int) -> list[TxnEffect]:
        """Go on with what an end has left to do."""
        assert entry.now is not None
        if entry.now.status.preparing and not entry.marking:
            return self._mark(entry)
        if entry.now.status is TxnStatus.ONGOING and entry.verdict is None:
            return self._time_out(entry, now_ms)
        return self._serve(entry, now_ms)

    def _time_out(self, entry: Entry, now_ms: int) -> list[TxnEffect]:
        now = entry.now
        if now is None or now.status is not TxnStatus.ONGOING or entry.verdict is not None:
            return []
        if (deadline_ms := self._deadline_ms(entry, now)) > now_ms:
            self._timers.set((entry.name, TIMEOUT, ""), deadline_ms)
            return []
        return self._write(entry, self._rules.timed_out(now, now_ms))

    def _expire(self, entry: Entry) -> list[TxnEffect]:
        if entry.now is None or entry.now.status.open:
            return []
        return self._write(entry, None)

    def _expire_owner(self, owner: Owner, now_ms: int) -> list[TxnEffect]:
        if owner.members or owner.stands_still:
            self._timers.set((owner.name, OWNER_EXPIRE, ""), now_ms + self._config.expiration_check_ms)
            return []
        return self._write_owner(_OwnerWrite(owner, None, None, Forgotten(owner.name)))

    # What is told at once

    def admit(
        self,
        producer_id: ProducerId,
        producer_epoch: Epoch,
        target: TopicPartition | str,
        now_ms: int,
        *,
        batch_bytes: int = 0,
        label: str | None = None,
    ) -> None:
        """May this producer write to the partition, or commit offsets of the group, as part of its transaction?

        Raises if not. The batch must be appended in the same turn. What a transaction has written is counted since
        the node's start.
        """
        name = self._names.get(producer_id)
        if name is None:
            raise InvalidProducerIdMapping(transaction=label or "", producer_id=producer_id)
        entry = self._entries[name]
        now = entry.now
        assert now is not None
        if now.epoch != producer_epoch:
            raise fenced(name, now, producer_epoch)
        if now.label != label:
            raise TransactionNotFound(transaction=label or name)
        writing_end = entry.writing is not None and entry.writing.status.preparing
        if now.status is not TxnStatus.ONGOING or entry.held or entry.verdict is not None or writing_end:
            raise not_open(name, now)
        if target not in (now.groups if isinstance(target, str) else now.partitions):
            raise PartitionNotInTransaction(transaction=name, partition=target)
        if entry.pending_bytes + batch_bytes > self._config.pending_bytes_max:
            raise TransactionTooLarge(transaction=name, what="its bytes", limit=self._config.pending_bytes_max)
        entry.pending_bytes += batch_bytes
        self._touch(entry, now_ms)

    def describe(self, transactional_id: str) -> DescribedTxn:
        entry = self._entries.get(transactional_id)
        if entry is None or entry.now is None:
            raise TransactionNotFound(transaction=transactional_id)
        return entry.now.described(transactional_id)

    def owners(self) -> list[DescribedOwner]:
        return [owner.described() for _, owner in sorted(self._owners.items())]

    def open_count(self) -> int:
        return len(self._open)

    def hanging(
        self, found: Iterable[OpenInLog], home_of: Callable[[str], TopicPartition | None] = lambda _: None
    ) -> list[OpenInLog]:
        """Of the transactions that logs show as open, those that no coordinator will ever end: here their producer
        has nothing open in that partition. An abort marker ends them. `home_of` tells where a group's offsets lie,
        which a transaction writes to as well."""
        return [one for one in found if not self._will_end(one, home_of)]

    def _will_end(self, one: OpenInLog, home_of: Callable[[str], TopicPartition | None]) -> bool:
        entry = self._entries.get(self._names.get(one.producer_id, ""))
        known = [] if entry is None else [entry.now, entry.writing]
        return any(
            one.partition in txn.partitions or one.partition in map(home_of, txn.groups)
            for txn in known
            if txn is not None and txn.status.open
        )

    def list(self) -> list[DescribedTxn]:
        """By transactional id, what the log has of each."""
        return [entry.now.described(name) for name, entry in sorted(self._entries.items()) if entry.now is not None]


def _stand_in_line(line: deque[tuple[A, int]], request: A, reply_id: int, name: str) -> list[TxnEffect]:
    if len(line) >= limits.TRANSACTION_WAITING_MAX:
        raise TooManyTransactions(transaction=name, what="waiting requests", limit=limits.TRANSACTION_WAITING_MAX)
    line.append((request, reply_id))
    return []


def _check_fields(request: TxnAsk) -> None:
    about = request.owner if isinstance(request, OwnerAsk) else request.transactional_id
    bytes_max = limits.TRANSACTIONAL_ID_BYTES_MAX
    for name in ("transactional_id", "owner", "label", "group"):
        text = getattr(request, name, None)
        if text is None or (name == "owner" and isinstance(request, BeginTxn) and not text):
            continue
        if not text or len(text.encode()) > bytes_max:
            raise _cannot_be(about, name.replace("_", " "), f"must have 1 to {bytes_max} bytes")
    sequenced = isinstance(request, Decide) or (isinstance(request, BeginTxn) and request.owner)
    if sequenced and not 0 <= getattr(request, "sequence", 0) < 2**63:
        raise _cannot_be(about, "sequence", "must be from 0 to 2^63 - 1")
    if isinstance(request, BeginTxn) and not 0 <= request.producer_id < 2**63:
        raise _cannot_be(about, "producer id", "must be from 0 to 2^63 - 1")
    for topic, number in request.partitions if isinstance(request, AddPartitions) else ():
        if not 0 < len(topic) <= limits.TOPIC_NAME_CHARS_MAX or not 0 <= number < limits.PARTITIONS_PER_TOPIC_MAX:
            raise _cannot_be(about, "partition", f"{topic[:64]!r}/{number} cannot be")


def _cannot_be(about: str, field_name: str, reason: str) -> InvalidTransactionRequest:
    return InvalidTransactionRequest(transaction=about[:64], field=field_name, reason=reason)

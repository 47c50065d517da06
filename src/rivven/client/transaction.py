"""Transactions: records of several topics, and offsets of groups, that count together or not at all.

A transactional producer owns its decisions (docs/protocols/batch-decisions.md): its `transactional_id` is the owner,
each transaction is the next sequence, with one attempt, and a commit is a decision. So a producer that comes under
an id fences whoever had it before and ends what that one left open, and a commit whose answer was lost is asked for
again and answered with what was decided.
Invariant: records are taken only while a transaction is open; after one that did not commit the producer goes on in
a new epoch, so that nothing of the old one that is still on its way can reach the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from rivven.errors import RivvenError
from rivven.model import TopicPartition
from rivven.wire import Capability
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .coordinator_link import TxnName
from .failures import (
    ConfigException,
    ConnectionException,
    Fenced,
    ServerException,
    TimeoutException,
    TransactionClosed,
)
from .group_consumer import GroupConsumer
from .lane import Identity
from .producer import Producer
from .sending import DELIVERY_TIMEOUT_MS, SendOptions, sending
from .shell import Channel, Cluster

if TYPE_CHECKING:
    from .consumer import Consumer

TIMEOUT_MS = 60_000
"""A transaction whose producer is silent for longer is aborted by the server."""
NONE_DECIDED = -1


class Owner(NamedTuple):
    """Somebody who decides over transactions: the epoch of its registration, and the last sequence it decided."""

    owner: str
    epoch: int
    decided: int = NONE_DECIDED


class Decision(NamedTuple):
    """What was decided. `committed` has producer id and epoch of each, where it is `known`, as it is for the latest
    decisions; `repeated`: it was decided before."""

    sequence: int
    known: bool
    committed: tuple[tuple[int, int], ...]
    repeated: bool


async def register_owner(channel: Channel, owner: str, *, fence: bool = True) -> Owner:
    await _check_decisions(channel)
    answer = await channel.ask(ask.RegisterOwner(owner, not fence), tell.OwnerRegistered)
    return Owner(owner, answer.owner_epoch, NONE_DECIDED if answer.decided is None else answer.decided)


async def decide(
    channel: Channel, owner: str, owner_epoch: int, sequence: int, committing: Iterable[tuple[int, int]]
) -> Decision:
    producers = tuple(ask.TxnProducer(producer_id, epoch) for producer_id, epoch in committing)
    answer = await channel.ask(ask.Decide(owner, owner_epoch, sequence, producers), tell.Decided)
    committed = tuple((each.producer_id, each.producer_epoch) for each in answer.committed)
    return Decision(answer.sequence, answer.known, committed, answer.repeated)


async def forget_owner(channel: Channel, owner: str, owner_epoch: int) -> None:
    await channel.ask(ask.ForgetOwner(owner, owner_epoch), tell.Ok)


async def _check_decisions(channel: Channel) -> None:
    if not (await channel.connection()).capabilities & Capability.DECISIONS:
        raise ConfigException(reason="this server decides over no transactions; transactions here need a newer one")


class Attempt:
    """One transaction under an owner, who will decide over it. Made by `RivvenClient.attempt`.

        attempt = await client.attempt(owner.owner, owner.epoch, sequence=7)
        producer = await attempt.producer("orders")
        await producer.put(b"paid")
        await attempt.flush()
        await client.decide(owner.owner, owner.epoch, 7, [attempt.identity])
        await attempt.close()

    `close` leaves it open for the decision. It may be in another process than the one that decides.
    """

    def __init__(self, cluster: Cluster, channel: Channel | None = None) -> None:
        self._cluster = cluster
        self._channel = channel or Channel(cluster)
        self._producers: dict[str, Producer] = {}
        self._identity: Identity | None = None
        self._name = ""
        self._refusal: RivvenError | None = None
        """Why no records are taken."""

    @property
    def name(self) -> str:
        """What the server knows the transaction by."""
        return self._name

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch: what a decision names it by."""
        producer_id, epoch, _ = self._known()
        return producer_id, epoch

    def _known(self) -> Identity:
        assert self._identity is not None, "begun before anybody sees it"
        return self._identity

    async def _identify(self) -> None:
        """Take a new identity, or the next epoch of the one it has; whatever was open ends by that."""
        former = None if self._identity is None else self._identity.producer_id
        answer = await self._channel.ask(ask.InitProducerId(former), tell.ProducerIdInitialized)
        self._identity = Identity(answer.producer_id, answer.producer_epoch, True)
        for producer in self._producers.values():
            with producer._guard:
                producer._outbox.identify_anew(self._identity)

    async def _begin(self, owner: str, owner_epoch: int, sequence: int, timeout_ms: int) -> None:
        producer_id, epoch = self.identity
        self._name = f"{sequence}-{producer_id}-{epoch}"
        request = ask.BeginOwnedTransaction(self._name, producer_id, epoch, timeout_ms, owner, owner_epoch, sequence)
        await self._channel.ask(request, tell.TransactionStarted)
        self._refusal = None
        for producer in self._producers.values():
            with producer._guard:
                producer._outbox.admit()

    async def producer(self, topic: str, **options: Unpack[SendOptions]) -> Producer:
        """The producer that sends to a topic as part of this transaction; one for each topic."""
        producer = self._producers.get(topic)
        if producer is None:
            producer = Producer(self._cluster, topic, sending(**options), attempt=self)
            producer._outbox.identify(self._known())
            if self._refusal is not None:
                producer._outbox.refuse(self._refusal)
            await producer._start()
            self._producers[topic] = producer
        return producer

    async def send_offsets(
        self, consumer: Consumer | GroupConsumer | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit how far a consumer has read, or where a group goes on, as part of the transaction."""
        if isinstance(consumer, str):
            group, where = consumer, dict(offsets or {})
        else:
            consumer._check_group()
            assert consumer.group is not None
            group, where = consumer.group, _positions(consumer) if offsets is None else dict(offsets)
        member = consumer if isinstance(consumer, GroupConsumer) else None
        entries = tuple(ask.TxnOffset(*partition, offset) for partition, offset in where.items())
        producer_id, epoch = self.identity
        # A member's offsets count only if it is one: it commits them itself, once the transaction knows of the group.
        request = ask.AddOffsetsToTxn(self._name, producer_id, epoch, group, () if member else entries)
        await self._channel.ask(request, tell.OffsetsAddedToTxn)
        if member is not None and where:
            await member._commit_as_member(where, TxnName(self._name, producer_id, epoch))

    async def flush(self) -> None:
        """Wait until everything is stored. Raises if anything was not: then the transaction can only abort."""
        producers = list(self._producers.values())
        await asyncio.gather(*(producer.flush() for producer in producers), return_exceptions=True)
        for producer in producers:
            if producer._outbox.doom is not None:
                raise producer._outbox.doom.with_traceback(None)

    async def abort(self) -> None:
        """End it: nothing that was sent counts."""
        await self._give_up(TransactionClosed(reason="the transaction was aborted"))
        producer_id, epoch = self.identity
        await self._channel.ask(ask.AbortTransaction(self._name, producer_id, epoch), tell.TransactionAborted)

    async def _give_up(self, error: RivvenError) -> None:
        """Send nothing more, and wait for what is under way."""
        self._refusal = error
        for producer in self._producers.values():
            with producer._guard:
                told = producer._outbox.give_up(error)
            producer._tell(told)
        for producer in self._producers.values():
            while not producer._outbox.is_empty and not producer._closed:
                await producer._progress()

    def _refuse(self, error: RivvenError) -> None:
        self._refusal = error
        for producer in self._producers.values():
            with producer._guard:
                producer._outbox.refuse(error)

    async def close(self) -> None:
        """Hang up. What was flushed waits for the decision; what was not is given up."""
        for producer in self._producers.values():
            await producer._hang_up()
        self._channel.close()

    async def __aenter__(self) -> Attempt:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                await self.abort()
        finally:
            await self.close()


NOT_OPEN = "begin a transaction first: `async with producer.transaction():`"


class Transactions:
    """The transactions of one producer, one after the other."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
        self._channel = Channel(cluster)
        self._attempt = Attempt(cluster, self._channel)
        self._owner = Owner(transactional_id, 0)
        self._timeout_ms = timeout_ms
        self._sequence = 0
        self._open = False
        self._failure: RivvenError | None = None
        """Why there can be no other transaction."""

    async def start(self, topic: str, options: SendOptions) -> Producer:
        """Become the one producer with this id, and make the way to its topic."""
        try:
            self._owner = await register_owner(self._channel, self._owner.owner)
            self._sequence = self._owner.decided
            await self._attempt._identify()
            producer = await self._attempt.producer(topic, **options)
        except BaseException:
            await self._attempt.close()
            raise
        producer._transactions = self
        self._attempt._refuse(TransactionClosed(reason=NOT_OPEN))
        return producer

    @property
    def owner(self) -> Owner:
        return self._owner

    @property
    def attempt(self) -> Attempt:
        return self._attempt

    def transaction(self) -> Transaction:
        return Transaction(self)

    async def begin(self) -> int:
        """The sequence under which it was begun."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._open:
            raise ConfigException(reason="this producer is in a transaction; it has one at a time")
        self._open = True
        try:
            self._sequence += 1
            await self._attempt._begin(self._owner.owner, self._owner.epoch, self._sequence, self._timeout_ms)
        except BaseException as error:
            self._open = False
            if isinstance(error, Fenced):
                self._failure = error
            elif isinstance(error, (ConnectionException, TimeoutException)):
                await self._renew_quietly()  # it may have begun
            raise
        return self._sequence

    async def commit(self) -> None:
        try:
            await self._attempt.flush()
        except BaseException:
            await self.abort()
            raise
        try:
            await self._decide()
        except Fenced as error:
            self._failure = error
            raise
        except (ConnectionException, TimeoutException) as lost:
            reason = (
                f"whether transaction {self._sequence} of {self._owner.owner!r} has committed is not known: {lost}. "
                "Make the producer anew: it tells by `last_committed`"
            )
            self._failure = ConnectionException(reason=reason)
            raise self._failure from None
        except RivvenError:
            await self._renew()  # it has timed out, or an operator has ended it
            raise
        finally:
            self._close()

    async def _decide(self) -> None:
        """Commit. Asking again is safe for as long as it takes, so it is done for as long as a record may take."""
        identity = self._attempt.identity
        decision = await self._patiently(
            lambda: decide(self._channel, self._owner.owner, self._owner.epoch, self._sequence, [identity])
        )
        if decision.known and identity not in decision.committed:
            raise ServerException(reason=f"transaction {self._sequence} of {self._owner.owner!r} was not committed")
        self._owner = self._owner._replace(decided=self._sequence)

    async def _patiently(self, once: Callable[[], Awaitable[Decision]]) -> Decision:
        loop = asyncio.get_running_loop()
        due = loop.time() + DELIVERY_TIMEOUT_MS / 1000
        while True:
            try:
                return await once()
            except RivvenError as error:
                if not error.retriable or loop.time() > due:
                    raise
            await asyncio.sleep(self._channel.cluster.options.backoff_ms / 1000)

    async def abort(self) -> None:
        try:
            await self._attempt._give_up(TransactionClosed(reason="the transaction was aborted"))
            await self._renew()
        finally:
            self._close()

    async def _renew(self) -> None:
        """End what is open by going on in the next epoch."""
        try:
            await self._attempt._identify()
        except RivvenError as error:
            self._failure = error
            raise

    async def _renew_quietly(self) -> None:
        with contextlib.suppress(RivvenError):  # it is kept as the failure, for whoever begins next
            await self._renew()

    def _close(self) -> None:
        self._open = False
        self._attempt._refuse(self._failure or TransactionClosed(reason=NOT_OPEN))

    async def close(self) -> None:
        try:
            if self._open:
                await self.abort()
        finally:
            await self._attempt.close()


class Transaction:
    """One transaction of a producer. Made by `Producer.transaction`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self.sequence = -1
        """Its number under the producer's `transactional_id`; compare `Producer.last_committed`."""

    async def producer(self, topic: str, **options: Unpack[SendOptions]) -> Producer:
        """A producer of another topic that takes part in this transaction, and in the later ones."""
        return await self._transactions.attempt.producer(topic, **options)

    async def send_offsets(
        self, consumer: Consumer | GroupConsumer | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit how far a consumer has read as part of the transaction: what it was handed and what was made of it
        count together. A group may be named instead, with the offsets it goes on at."""
        await self._transactions.attempt.send_offsets(consumer, offsets)

    async def __aenter__(self) -> Transaction:
        self.sequence = await self._transactions.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            await self._transactions.commit()
            return
        try:
            await self._transactions.abort()
        except RivvenError as failed:
            assert error is not None
            error.add_note(f"aborting the transaction failed as well: {failed}")


def _positions(consumer: Any) -> dict[TopicPartition, int]:
    return {
        key if isinstance(key, TopicPartition) else TopicPartition(consumer.topic, key): offset
        for key, offset in consumer.positions().items()
    }

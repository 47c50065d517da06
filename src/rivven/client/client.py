"""`connect` and the client it gives: administration, single records, and the makers of producers and consumers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from rivven.model import TopicPartition
from rivven.wire import Capability, Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .admin import Admin
from .consumer import FETCH_BYTES, WAIT_MS, Consumer
from .coordinator_link import Coordinator
from .failures import ConfigException, SerializationException
from .group_consumer import GroupConsumer, MemberOptions, make_member
from .inbox import ISOLATIONS, Isolation
from .options import Options
from .places import Found
from .producer import Producer
from .sending import BATCH_BYTES_MAX, BUFFER_BYTES, DELIVERY_TIMEOUT_MS, REQUEST_BYTES_MAX, SendOptions, sending
from .shell import Channel, Cluster, log_in_by_scram, log_in_plainly, make_cluster, make_tls_cluster
from .transaction import (
    TIMEOUT_MS,
    Attempt,
    Decision,
    Owner,
    Transactions,
    decide,
    forget_owner,
    register_owner,
)
from .values import GroupState, Message, ProducerState, as_bytes

A = TypeVar("A")
R = TypeVar("R", bound=Response)


async def connect(address: str | Sequence[str], *, options: Options | None = None) -> RivvenClient:
    """Connect to the first server that answers, of one or several as `host:port`.

        client = await rivven.connect("localhost:9092")
        await client.ping()
        await client.close()

    A list is tried in its order, now and whenever the connection has to be made anew.
    """
    return await _connected(make_cluster(address, options))


async def connect_tls(
    address: str | Sequence[str],
    ca_cert_path: str | Path,
    server_name: str,
    client_cert_path: str | Path | None = None,
    client_key_path: str | Path | None = None,
    *,
    options: Options | None = None,
) -> RivvenClient:
    """The same over TLS 1.3, with the server's certificate checked against `ca_cert_path` and `server_name`."""
    return await _connected(
        make_tls_cluster(address, ca_cert_path, server_name, client_cert_path, client_key_path, options)
    )


async def _connected(cluster: Cluster) -> RivvenClient:
    client = RivvenClient(cluster)
    await client._start()
    return client


class RivvenClient(Admin):
    """One connection for everything but the stream of records, which producers and consumers have of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._channel = Channel(cluster)

    async def _start(self) -> None:
        await self._channel.connection()

    async def _ask(self, request: Request, kind: type[R], *, repeat: bool = True) -> R:
        return await self._channel.ask(request, kind, repeat=repeat)

    async def __aenter__(self) -> RivvenClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up. Producers and consumers that were made here have to be closed by themselves."""
        self._channel.close()

    # Producers and consumers

    async def producer(
        self,
        topic: str,
        batch_size: int = 16384,
        linger_ms: int = 5,
        *,
        compression: str = "none",
        compression_level: int | None = None,
        acks: int = -1,
        buffer_bytes: int = BUFFER_BYTES,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        idempotent: bool = True,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = TIMEOUT_MS,
    ) -> Producer:
        """A producer for one topic, with a connection of its own.

        A batch leaves with `batch_size` bytes or after `linger_ms`, and grows up to `batch_bytes_max` while the
        server is busy. At most `buffer_bytes` wait; what is not stored within `delivery_timeout_ms` fails. What is
        sent again is recognised by the server and stored once, unless `idempotent` is off or nobody is asked to
        acknowledge.

        With a `transactional_id` it sends in transactions alone. There is one producer with an id at a time: a new
        one fences the one before and aborts what that left open. The server aborts a transaction whose producer is
        silent for `transaction_timeout_ms`.
        """
        options: SendOptions = {
            "batch_size": batch_size,
            "linger_ms": linger_ms,
            "compression": compression,
            "compression_level": compression_level,
            "acks": acks,
            "buffer_bytes": buffer_bytes,
            "batch_bytes_max": batch_bytes_max,
            "request_bytes_max": request_bytes_max,
            "delivery_timeout_ms": delivery_timeout_ms,
            "idempotent": idempotent,
        }
        if transactional_id is not None:
            if not idempotent or not acks:
                raise ConfigException(reason="transactions need idempotent=True and acks")
            return await Transactions(self._cluster, transactional_id, transaction_timeout_ms).start(topic, options)
        producer = Producer(self._cluster, topic, sending(**options))
        await producer._start()
        return producer

    @overload
    async def consumer(
        self,
        topic: str,
        partition: int | Iterable[int] | None = 0,
        group: str | None = None,
        start_offset: int | None = None,
        batch_size: int = 100,
        auto_commit: bool = True,
        *,
        fetch_bytes: int = FETCH_BYTES,
        wait_ms: int = WAIT_MS,
        isolation: Isolation = "read_committed",
    ) -> Consumer: ...

    @overload
    async def consumer(
        self,
        *,
        group: str,
        topics: str | Iterable[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        batch_size: int = 100,
        auto_commit: bool = True,
        **membership: Unpack[MemberOptions],
    ) -> GroupConsumer: ...

    async def consumer(
        self,
        topic: str | None = None,
        partition: int | Iterable[int] | None = 0,
        group: str | None = None,
        start_offset: int | None = None,
        batch_size: int = 100,
        auto_commit: bool = True,
        *,
        topics: str | Iterable[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        fetch_bytes: int = FETCH_BYTES,
        wait_ms: int = WAIT_MS,
        isolation: Isolation = "read_committed",
        **membership: Any,
    ) -> Consumer | GroupConsumer:
        """A consumer of partitions that are given to it, or a member of a group that shares them; with connections
        of its own.

        With `topic` it reads one partition, several, or with None all. It starts at `start_offset`, else where the
        group has committed, else at 0. `fetch_bytes` is what it asks for at a time and partition, `wait_ms` how long
        a fetch waits at the server. With `isolation` "read_committed" records of transactions are handed out when
        these have committed, and never if they abort; "read_uncommitted" hands out whatever is there.

        With `group` and without `topic` it joins the group for `topics`, for all topics that match `pattern`, or for
        what `subscribe` will name, and takes the options that `MemberOptions` lists.
        """
        if topic is None:
            if group is None or partition != 0 or start_offset is not None:
                raise ConfigException(reason="name a topic to read, or a group without one to be a member of")
            membership |= {"fetch_bytes": fetch_bytes, "wait_ms": wait_ms, "isolation": isolation}
            return await make_member(
                self._cluster,
                group,
                topics,
                pattern,
                batch_size=batch_size,
                auto_commit=auto_commit,
                options=membership,
            )
        if topics is not None or pattern is not None or membership:
            named = ", ".join(["topics"] * (topics is not None) + ["pattern"] * (pattern is not None) + [*membership])
            raise ConfigException(reason=f"{named}: for members of a group, which name no single topic")
        consumer = Consumer(
            self._cluster,
            topic,
            group=group,
            batch_size=batch_size,
            auto_commit=auto_commit,
            fetch_bytes=fetch_bytes,
            wait_ms=wait_ms,
            isolation=isolation,
        )
        await consumer._start(partition, start_offset)
        return consumer

    async def find_batches(
        self, topic: str, partition: int, offset: int, *, bytes_max: int, isolation: Isolation = "read_committed"
    ) -> Found | None:
        """Where the server's files have what a consumer would be sent, for whoever moves much data on its machine.
        None where that is another machine, or something is wrong: a consumer will tell what."""
        connection = await self._channel.connection()
        if not (connection.capabilities & Capability.PLACES and connection.is_near):
            return None
        wanted = ask.TopicFetch(topic, (ask.PartitionFetch(partition, offset, bytes_max),))
        request = ask.FindBatches(0, 0, bytes_max, ISOLATIONS.index(isolation), (wanted,))
        answer = await self._ask(request, tell.FoundBatches)
        parts = [part for topic in answer.topics for part in topic.partitions if not part.error]
        return Found(parts[0], offset) if parts else None

    async def describe_members(self, group: str) -> GroupState:
        """The state of a group, its assignor, and its members with what each reads."""
        return await self._coordinated(group, Coordinator.describe)

    async def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """What a group has committed, whichever of its members did."""
        return await self._coordinated(group, Coordinator.committed)

    async def reset_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Have a group go on at these offsets, all at once. Refused while it has members."""
        await self._coordinated(group, partial(Coordinator.commit, offsets=offsets))

    async def _coordinated(self, group: str, asked: Callable[[Coordinator], Awaitable[A]]) -> A:
        coordinator = Coordinator(self._cluster, group)
        try:
            return await asked(coordinator)
        finally:
            coordinator.close()

    # Who we are

    async def authenticate(self, username: str, password: str) -> tuple[str, int]:
        """Log in with a password in plain text, which servers take over TLS alone; (session id, lifetime in seconds).

        Producers and consumers that are made from here on log in by themselves, and so does every new connection.
        """
        return await self._log_in(partial(log_in_plainly, username=username, password=password))

    async def authenticate_scram(self, username: str, password: str) -> tuple[str, int]:
        """The same by SCRAM-SHA-256, which never sends the password."""
        return await self._log_in(partial(log_in_by_scram, username=username, password=password))

    async def _log_in(self, log_in: partial[Any]) -> tuple[str, int]:
        session: tuple[str, int] = await log_in(await self._channel.connection())
        self._cluster.log_in = log_in
        return session

    # Single records

    async def publish(self, topic: str, value: bytes, key: bytes | None = None) -> int:
        """Publish one record and wait for it; its offset. A producer is faster for many."""
        request = ask.Publish(topic, None, as_bytes(key, "key"), _value(value))
        return (await self._ask(request, tell.Published, repeat=False)).offset

    async def consume(self, topic: str, partition: int, offset: int, max_messages: int) -> list[Message]:
        """Up to so many records from an offset on, without waiting for any."""
        answer = await self._ask(ask.Consume(topic, partition, offset, max_messages), tell.Messages)
        return [
            Message(
                entry.value,
                entry.offset,
                entry.timestamp_ms,
                entry.partition,
                topic,
                entry.key,
                tuple((header.name, header.value) for header in entry.headers),
            )
            for entry in answer.messages
        ]

    # Exactly once

    async def register_owner(self, owner: str, *, fence: bool = True) -> Owner:
        """Become the one who decides for this owner: earlier registrations are fenced, what they left open aborts.

        Without `fence` take part in the registration that there is; the first makes one.
        """
        return await register_owner(self._channel, owner, fence=fence)

    async def attempt(self, owner: str, owner_epoch: int, sequence: int, *, timeout_ms: int = TIMEOUT_MS) -> Attempt:
        """Begin a transaction over which the owner will decide, under this sequence."""
        attempt = Attempt(self._cluster)
        try:
            await attempt._identify()
            await attempt._begin(owner, owner_epoch, sequence, timeout_ms)
        except BaseException:
            await attempt.close()
            raise
        return attempt

    async def decide(
        self, owner: str, owner_epoch: int, sequence: int, committing: Iterable[tuple[int, int]]
    ) -> Decision:
        """Of all attempts under the owner and the sequence these commit, named by their `identity`, and all others
        abort. A sequence is decided once: whoever asks again is told what was decided."""
        return await decide(self._channel, owner, owner_epoch, sequence, committing)

    async def forget_owner(self, owner: str, owner_epoch: int) -> None:
        """Have the server forget an owner whose work is done. Use its name for nothing else: what was decided under
        it is not known any more. Refused while an attempt of it is open."""
        await forget_owner(self._channel, owner, owner_epoch)

    async def init_producer_id(self, previous_producer_id: int | None = None) -> ProducerState:
        """An identity for idempotent records; the previous one's, if given, with a new epoch."""
        request = ask.InitProducerId(previous_producer_id)
        answer = await self._ask(request, tell.ProducerIdInitialized, repeat=False)
        return ProducerState(answer.producer_id, answer.producer_epoch)

    async def publish_idempotent(
        self, topic: str, value: bytes, producer_state: ProducerState, key: bytes | None = None
    ) -> int:
        """Publish a record that is stored once, however often the request has to be made; its offset."""
        request = ask.IdempotentPublish(
            topic,
            None,
            as_bytes(key, "key"),
            _value(value),
            producer_state.producer_id,
            producer_state.producer_epoch,
            producer_state.next_sequence,
        )
        answer = await self._ask(request, tell.IdempotentPublished)
        producer_state.advance()
        return answer.offset

    async def begin_transaction(
        self, transactional_id: str, producer_state: ProducerState, timeout_ms: int | None = None
    ) -> None:
        producer_id, epoch = producer_state.producer_id, producer_state.producer_epoch
        request = ask.BeginTransaction(transactional_id, producer_id, epoch, timeout_ms)
        await self._ask(request, tell.TransactionStarted)

    async def add_partitions_to_txn(
        self, transactional_id: str, producer_state: ProducerState, partitions: Iterable[tuple[str, int]]
    ) -> int:
        """Say that the transaction writes to these (topic, partition); how many."""
        entries = tuple(ask.TxnPartition(topic, partition) for topic, partition in partitions)
        producer_id, epoch = producer_state.producer_id, producer_state.producer_epoch
        request = ask.AddPartitionsToTxn(transactional_id, producer_id, epoch, entries)
        return (await self._ask(request, tell.PartitionsAddedToTxn)).partition_count

    async def commit_transaction(self, transactional_id: str, producer_state: ProducerState) -> None:
        producer_id, epoch = producer_state.producer_id, producer_state.producer_epoch
        request = ask.CommitTransaction(transactional_id, producer_id, epoch)
        await self._ask(request, tell.TransactionCommitted, repeat=False)

    async def abort_transaction(self, transactional_id: str, producer_state: ProducerState) -> None:
        producer_id, epoch = producer_state.producer_id, producer_state.producer_epoch
        request = ask.AbortTransaction(transactional_id, producer_id, epoch)
        await self._ask(request, tell.TransactionAborted, repeat=False)


def _value(value: bytes) -> bytes:
    held = as_bytes(value, "value")
    if held is None:
        raise SerializationException(reason="a tombstone needs a producer: `put(None, key)`")
    return held

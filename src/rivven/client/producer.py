"""The producer: records in, batches out, answers back to whoever waits for them.

All order and all bounds are the outbox's; this moves its parcels over a connection that it keeps up, and tells the
callers. Nothing that was accepted is dropped silently: what cannot be delivered is told to the record's watcher, or
raised by the next `flush` or `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Any

from rivven.errors import RivvenError
from rivven.record import batches_of
from rivven.wire import Capability, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from . import arrow
from .deliveries import Collected, keep, resolve
from .exchange import check_old, old_request, outcomes, request_for
from .failures import Closed, ConfigException, SerializationException, ServerException
from .lane import Batch, Identity, Parcel, Told
from .outbox import Outbox
from .retry import Backoff
from .sending import Sending
from .shell import Channel, Cluster, Connection, Timer, gone, monotonic_ms
from .values import Delivery, Headers, OnDelivery, as_number

if TYPE_CHECKING:
    import pyarrow as pa

    from .consumer import Consumer
    from .group_consumer import GroupConsumer
    from .transaction import Attempt, Transaction, Transactions
    from .transform import Change

IN_FLIGHT_MAX = 5
"""Requests under way at a time; each partition has one at most."""
METADATA_MS = 300_000
"""How often a producer asks whether its topic has more partitions."""


class Producer:
    """Sends records to one topic. Made by `RivvenClient.producer`.

    `send` waits until its record is stored and gives the offset. `put` only hands over: it waits for room and for
    nothing else, and is the way to send many records; `flush` then waits for all of them.

        producer = await client.producer("orders", linger_ms=20, compression="zstd")
        offset = await producer.send(b"paid", key=b"42", headers=[("source", b"web")])
        for number in range(1000):
            await producer.put(b"order %d" % number, key=b"%d" % number)
        await producer.flush()
        await producer.close()
    """

    def __init__(self, cluster: Cluster, topic: str, sending: Sending, *, attempt: Attempt | None = None) -> None:
        self._topic = topic
        self._sending = sending
        self._attempt = attempt
        """The transaction it takes part in; then whoever made it says who it is, and when it may send."""
        self._transactions: Transactions | None = None
        """Those that it begins itself."""
        self._channel = Channel(cluster)
        self._channel.on_lost = self._wake
        self._outbox = Outbox(topic, 0, sending, monotonic_ms, cluster.rng)
        self._add = self._outbox.sorter.add
        self._guard: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        """Held while the outbox is touched; a lock where other threads add to it."""
        self._on_room: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = Timer(self._pump)
        self._woken = False
        self._in_flight = 0
        self._mending: asyncio.Task[None] | None = None
        self._refreshed_ms = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._closed = False

    async def _start(self) -> None:
        """Connect, and learn the topic's partitions if there is such a topic."""
        try:
            connection = await self._channel.connection()
            if self._sending.idempotent and self._sending.acks and self._attempt is None:
                self._outbox.needs_identity = bool(connection.capabilities & Capability.BATCHES)
                await self._identify()
            self._tell(self._place(await self._count_partitions()))
        except BaseException:
            self._channel.close()
            raise

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def waiting_bytes(self) -> int:
        """What was handed over and is not stored yet; at most `buffer_bytes` and one record."""
        return self._outbox.waiting_bytes

    @property
    def is_idempotent(self) -> bool:
        """Whether what is sent again is recognised, so that every record is stored once."""
        return self._outbox.identity is not None

    def transaction(self) -> Transaction:
        """A transaction, for a producer that was made with a `transactional_id`.

            async with producer.transaction() as transaction:
                await producer.put(b"paid", key=b"42")
                audit = await transaction.producer("audit")
                await audit.put(b"42 paid")

        All that is sent within counts when the block ends, to all readers of committed records, or if an exception
        leaves it, never.
        """
        if self._transactions is None:
            reason = "this producer has no transactions; make it with a transactional_id that stays the same"
            raise ConfigException(reason=reason)
        return self._transactions.transaction()

    async def transform(
        self,
        consumer: Consumer | GroupConsumer,
        change: Change,
        *,
        stop: asyncio.Event | None = None,
        idle_ms: int | None = None,
        round_messages: int = 500,
    ) -> int:
        """Read, change, write, exactly once, until `stop` is set or nothing came for `idle_ms`; how many messages.

            def change(message):
                return rivven.Output(message.value.upper(), key=message.key, topic="loud")

            consumer = await client.consumer(group="shout", topics="orders", auto_commit=False)
            producer = await client.producer("loud", transactional_id="shout-1")
            await producer.transform(consumer, change)

        `change` gives the records that a message becomes: bytes, an `Output`, several of these, or None. It may be a
        coroutine. The messages of a round, what became of them and the group's offsets are one transaction. If
        `change` raises, the round does not count, and the error is raised.
        """
        from .transform import change_all, transform

        return await transform(
            self,
            consumer,
            partial(change_all, change),
            stop=stop,
            idle_ms=idle_ms,
            round_messages=round_messages,
        )

    @property
    def last_committed(self) -> int:
        """The `sequence` of the last transaction that committed under this producer's `transactional_id`, in this
        process or in one before; -1 if none has."""
        return -1 if self._transactions is None else self._transactions.owner.decided

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Records in

    async def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Send a record and wait until it is stored; its offset.

        It does not linger, since its caller waits: it goes with whatever else is there by now.
        """
        await self._ready_for(partition)
        delivered = self.submit(value, key, partition=partition, headers=headers, timestamp_ms=timestamp_ms)
        self._hurry()
        return await delivered

    async def send_to_partition(self, value: bytes | None, partition: int, key: bytes | None = None) -> int:
        return await self.send(value, key, partition=partition)

    async def send_batch(self, messages: Iterable[tuple[bytes | None, bytes | None]]) -> list[int]:
        """Send (value, key) pairs and wait for all; their offsets. If any failed, the first error is raised."""
        collected = Collected(self._loop)
        offsets: list[int] = []
        for value, key in messages:
            await self._ready_for(None)
            offsets.append(-1)
            watcher = partial(keep, offsets, len(offsets) - 1, collected)
            collected.expected += 1
            with self._guard:
                self._outbox.add(value, key, None, (), time_ns() // 1_000_000, watcher)
        self._hurry()
        await collected.wait()
        return offsets

    async def put(
        self,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand a record over, waiting only while the buffer is full. `on_delivery` hears what became of it."""
        if timestamp_ms is None:
            now_ns = time_ns()
            if partition is None and not headers and on_delivery is None and self._add(value, key, now_ns):
                return
            timestamp_ms = now_ns // 1_000_000
        if self._outbox.sorter.shut or partition is not None:
            await self._ready_for(partition)
        if self._outbox.add(value, key, partition, headers, timestamp_ms, on_delivery):
            self._wake()
            await asyncio.sleep(0)  # without it a busy caller would fill the buffer before anything is sent

    def put_nowait(
        self,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """`put` that raises `BufferFull` instead of waiting."""
        if self._closed:
            raise Closed(what="producer")
        if timestamp_ms is None:
            timestamp_ms = time_ns() // 1_000_000
        with self._guard:
            self._outbox.require_room()
            news = self._outbox.add(value, key, partition, headers, timestamp_ms, on_delivery)
        if news:
            self._wake()

    def submit(
        self,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[int]:
        """`put_nowait` with a future of the offset."""
        delivered: asyncio.Future[int] = self._loop.create_future()
        self.put_nowait(
            value,
            key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
            on_delivery=partial(resolve, delivered),
        )
        return delivered

    async def send_arrow(self, table: pa.Table | pa.RecordBatch, *, partition: int | None = None) -> list[Delivery]:
        """Send the rows of a table and wait until they are stored; one delivery for each batch they went in.

        Columns are `key`, `value`, `timestamp` and `headers`, each optional, and `partition` to place rows one by
        one. Without it or the argument rows go by their keys. No Python object is made for a row; keys are hashed
        once for each distinct one.
        """
        collected = Collected(self._loop)
        collected.expected = table.num_rows
        await self.put_arrow(table, partition=partition, on_delivery=collected.add)
        await collected.wait()
        return collected.deliveries

    async def put_arrow(
        self,
        table: pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> int:
        """Hand the rows of a table over; how many. `on_delivery` is told of each batch."""
        await self._ready_for_rows(table, partition)
        for number, batch, count in self._batches_of(table, partition):
            await self._ready_for(number)
            with self._guard:
                self._outbox.add_batch(number, batch, count, on_delivery)
            self._wake()
            await asyncio.sleep(0)
        return table.num_rows

    async def _ready_for_rows(self, table: pa.Table | pa.RecordBatch, partition: int | None) -> None:
        """Wait for room and, if there are rows, for the partitions of their topic, which is made if need be."""
        await self._ready_for(partition)
        if table.num_rows and not self._outbox.partitions:
            await self._find_partitions(make=True)

    def _batches_of(
        self, table: pa.Table | pa.RecordBatch, partition: int | None
    ) -> Iterator[tuple[int | None, bytearray, int]]:
        """The rows as batches, each made when it is asked for: its partition, its bytes, and how many rows it has."""
        sending = self._sending
        for number, rows in arrow.placed(table, self._outbox.partitions, partition):
            batches = batches_of(
                rows,
                codec=sending.codec,
                level=sending.level,
                records_per_batch=1_000_000,
                batch_bytes_max=sending.batch_bytes_max,
                timestamp_ms=time_ns() // 1_000_000,
            )
            for batch, count in batches:
                yield number, batch, count

    # Waiting

    async def _ready_for(self, partition: int | None) -> None:
        """Wait for room, and ask anew for the partitions if this one is not known."""
        outbox = self._outbox
        while not self._closed and outbox.is_full:
            await self._progress()
        if self._closed:
            raise Closed(what="producer")
        outbox.look_for_room()
        if partition is not None and as_number(partition, "partition") >= outbox.partitions > 0:
            self._tell(self._place(await self._count_partitions()))

    def _hurry(self) -> None:
        with self._guard:
            self._outbox.hurry()
        self._wake()

    async def _progress(self) -> None:
        """Wait until something has been settled."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        self._wake()
        await waiter

    async def flush(self) -> None:
        """Wait until everything that was handed over is stored, or has failed.

        Raises the first error of a record that nobody watched.
        """
        while self._outbox.unplaced and not self._closed:
            await self._progress()
        collected = Collected(self._loop)
        with self._guard:
            collected.expected = self._outbox.watch_all(collected.count_one)
        self._wake()
        await collected.settled()
        error, self._outbox.error = self._outbox.error, None
        if error is not None:
            raise error

    async def close(self) -> None:
        """Flush, then close. A transaction that is open is aborted. A second call does nothing."""
        if self._closed:
            return
        try:
            if self._transactions is not None:
                await self._transactions.close()
            else:
                await self.flush()
        finally:
            await self._hang_up()

    async def _hang_up(self) -> None:
        self._closed = True
        self._outbox.close()
        self._timer.cancel()
        self._channel.close()
        await gone(self._mending)
        with self._guard:
            told = self._outbox.expire(Closed(what="producer"))
        self._tell(told)

    # Parcels out

    def _wake(self) -> None:
        if not self._woken and not self._loop.is_closed():
            self._woken = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what can be sent, and see to it that this is called again in time."""
        self._woken = False
        if self._closed:
            return
        outbox = self._outbox
        with self._guard:
            told = outbox.expire()
        if told:
            self._tell(told)
        connection = self._channel.current
        if connection is None or outbox.unplaced or outbox.needs_identity:
            if not outbox.is_empty:
                self._mend()
            if connection is None or outbox.unplaced:
                with self._guard:
                    expires_ms = outbox.expires_ms()
                if expires_ms is not None:
                    self._timer.set(expires_ms)
                return
        single = not connection.capabilities & Capability.BATCHES
        while self._in_flight < IN_FLIGHT_MAX and connection.is_open:  # a write may find out that it is not
            with self._guard:
                parcels = outbox.take(single=single)
            if not parcels:
                break
            self._dispatch(connection, parcels)
        with self._guard:
            due_ms = outbox.due_ms() if self._in_flight < IN_FLIGHT_MAX else None
        if due_ms is not None:
            self._timer.set(due_ms)
        if monotonic_ms() - self._refreshed_ms > METADATA_MS:
            self._mend()

    def _dispatch(self, connection: Connection, parcels: list[Parcel]) -> None:
        parcels = [parcel for parcel in parcels if self._encode(parcel, connection.capabilities)]
        if not parcels:
            return
        timeout_ms = self._channel.cluster.options.request_timeout_ms
        name = None if self._attempt is None else self._attempt.name
        try:
            request = request_for(self._topic, parcels, connection.capabilities, self._sending.acks, timeout_ms, name)
            connection.submit(request, partial(self._answered, parcels))
        except RivvenError as error:
            self._in_flight += 1
            self._answered(parcels, error)
        else:
            self._in_flight += 1

    def _encode(self, parcel: Parcel, capabilities: Capability) -> bool:
        """Make the bytes now, while an earlier request is under way. Whether that worked."""
        for batch in parcel.batches:
            try:
                if capabilities & Capability.BATCHES:
                    batch.encode(self._sending.codec, self._sending.level)
                else:
                    check_old(batch, capabilities)
            except (RivvenError, ValueError, TypeError, OverflowError) as failed:
                with self._guard:
                    if isinstance(failed, ServerException):
                        told = self._outbox.refused(parcel, failed)
                    else:
                        error = SerializationException(reason=f"a batch cannot be written: {failed}")
                        told = self._outbox.fail(parcel, batch, error)
                self._tell(told)
                return False
        return True

    def _answered(self, parcels: list[Parcel], result: Response | RivvenError) -> None:
        self._in_flight -= 1
        told: Told = []
        with self._guard:
            outcome_of = outcomes(result)
            for parcel in parcels:
                outcome = outcome_of(parcel.lane.partition)
                if isinstance(outcome, RivvenError):
                    told += self._outbox.refused(parcel, outcome)
                else:
                    told += self._outbox.delivered(parcel, outcome)
        self._tell(told)
        self._wake()

    def _tell(self, told: Told) -> None:
        for watcher, delivery in told:
            try:
                watcher(delivery)
            except Exception as error:
                facts = {"message": "a delivery callback failed", "exception": error}
                self._loop.call_exception_handler(facts)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        if self._on_room is not None:
            self._on_room()

    # A connection to send them by

    def _mend(self) -> None:
        if self._mending is None or self._mending.done():
            self._mending = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Try until there is a connection and the topic's partitions are known, or nothing is left to send."""
        options = self._channel.cluster.options
        backoff = Backoff(self._channel.cluster.rng, first_ms=options.backoff_ms, most_ms=options.backoff_ms_max)
        while not self._closed:
            try:
                await self._channel.connection()
                await self._identify()
                await self._find_partitions(make=bool(self._outbox.unplaced))
                break
            except RivvenError as error:
                with self._guard:
                    told = self._outbox.expire(None if error.retriable else error)
                self._tell(told)
                if self._outbox.is_empty:
                    return
                await asyncio.sleep(max(backoff.next_ms(), error.facts.get("retry_ms", 0)) / 1000)
        self._wake()

    async def _identify(self) -> None:
        """Ask for an identity, if batches wait for one."""
        if self._outbox.needs_identity:
            answer = await self._channel.ask(ask.InitProducerId(None), tell.ProducerIdInitialized)
            with self._guard:
                self._outbox.identify(Identity(answer.producer_id, answer.producer_epoch))

    async def _find_partitions(self, *, make: bool) -> None:
        """Learn how many there are. `make`: have the server make the topic if there is none and it may."""
        partitions = await self._count_partitions()
        if partitions == 0 and make:
            connection = await self._channel.connection()
            if connection.capabilities & Capability.RECORDS:
                await self._channel.ask(ask.PublishRecords(self._topic, None, ()), tell.PublishedBatch)
            else:
                await self._publish_first()
            partitions = await self._count_partitions()
        self._tell(self._place(partitions))

    async def _publish_first(self) -> None:
        """Publish one record by itself, which makes the topic where a server knows no other way."""
        connection = await self._channel.connection()
        if not self._outbox.unplaced:
            raise ConfigException(reason=f"there is no topic {self._topic}; create it first")
        first = self._outbox.unplaced[0]
        batch = Batch(1, first.size_bytes, first.born_ms, [])
        batch.rows = [first.row]
        check_old(batch, connection.capabilities)
        request = old_request(self._topic, first.partition, batch, connection.capabilities)
        answer = await self._channel.ask(request, tell.PublishedBatch)
        with self._guard:
            told = self._outbox.placed_first(answer.partition, answer.base_offset, None)
        self._tell(told)

    async def _count_partitions(self) -> int:
        """How many partitions the topic has; 0 if there is no such topic."""
        self._refreshed_ms = monotonic_ms()
        try:
            return (await self._channel.ask(ask.GetMetadata(self._topic), tell.Metadata)).partitions
        except ServerException as error:
            if "not found" in str(error).lower():
                return 0
            raise

    def _place(self, partitions: int) -> Told:
        with self._guard:
            return self._outbox.place(partitions)

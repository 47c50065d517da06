"""The producer for threads, and the transactions that it takes part in.

A record is gathered in the thread that hands it over; the loop is woken only when there is news. Invariant: the
outbox is touched under the producer's lock alone, but for the quick way in where that is one step by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Any, Unpack

from rivven.model import TopicPartition
from rivven.record import ATOMIC

from . import producer as shell_producer
from . import transaction as shell_transaction
from .blocking_consumer import Consumer, GroupConsumer
from .failures import Closed
from .loop_thread import Blocking, LoopThread, waits
from .sending import SendOptions
from .transform import Changed, Output, outputs, transform
from .values import Delivery, Headers, Message, OnDelivery, as_number

if TYPE_CHECKING:
    import pyarrow as pa


class Producer(Blocking[shell_producer.Producer]):
    """`rivven.Producer`, blocking. Callbacks run on the loop's thread: they must not wait for anything."""

    def __init__(self, inner: shell_producer.Producer, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiters = 0
        self._outbox = inner._outbox
        self._sorter = inner._outbox.sorter
        self._add: Callable[[bytes | None, bytes | None, int], bool] = (
            self._sorter.add if ATOMIC else self._add_locked
        )
        inner._guard = self._lock
        inner._on_room = self._tell_room
        self._joined: dict[str, Producer] = {inner.topic: self}
        """Those that take part in its transactions, by topic."""

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def waiting_bytes(self) -> int:
        """What was handed over and is not stored yet; at most `buffer_bytes` and one record."""
        return self._inner.waiting_bytes

    @property
    def is_idempotent(self) -> bool:
        """Whether what is sent again is recognised, so that every record is stored once."""
        return self._inner.is_idempotent

    @property
    def last_committed(self) -> int:
        """The `sequence` of the last transaction that committed under this producer's `transactional_id`; -1 if none
        has."""
        return self._inner.last_committed

    def transaction(self) -> Transaction:
        """A transaction, for a producer that was made with a `transactional_id`: `with producer.transaction():`."""
        return Transaction(self)

    def transform(
        self,
        consumer: Consumer | GroupConsumer,
        change: Callable[[Message], Changed],
        *,
        stop: threading.Event | None = None,
        idle_ms: int | None = None,
        round_messages: int = 500,
    ) -> int:
        """Read, change, write, exactly once, until `stop` is set or nothing came for `idle_ms`; how many messages.
        `change` runs in a thread of its own; see `rivven.Producer.transform`."""

        def change_each(messages: list[Message]) -> list[Output]:
            return [output for message in messages for output in outputs(change(message))]

        async def change_all(messages: list[Message]) -> list[Output]:
            return await asyncio.to_thread(change_each, messages)

        work = transform(
            self._inner,
            consumer._inner,
            change_all,
            stop=stop,
            idle_ms=idle_ms,
            round_messages=round_messages,
        )
        return self._thread.run(work)

    def put(
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
        with self._lock:
            if self._sorter.shut:
                self._wait_for_room()
            news = self._outbox.add(value, key, partition, headers, timestamp_ms, on_delivery)
        if news:
            self._wake()

    def _add_locked(self, value: bytes | None, key: bytes | None, now_ns: int) -> bool:
        with self._lock:
            return self._sorter.add(value, key, now_ns)

    def put_arrow(
        self,
        table: pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> int:
        """Hand the rows of a table over, waiting only while the buffer is full; how many. Batches are made of them
        here, while those before are sent. `on_delivery` is told of each."""
        wanted, outbox = -1 if partition is None else as_number(partition, "partition"), self._outbox
        if wanted >= outbox.partitions or not outbox.partitions or outbox.is_closed:
            self._thread.run(self._inner._ready_for_rows(table, partition))
        for number, batch, count in self._inner._batches_of(table, partition):
            if number is not None and number >= outbox.partitions:
                self._thread.run(self._inner._ready_for(number))
            with self._lock:
                if outbox.is_full or outbox.is_closed:
                    self._wait_for_room()
                outbox.add_batch(number, batch, count, on_delivery)
            self._wake()
        return table.num_rows

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
        if timestamp_ms is None:
            timestamp_ms = time_ns() // 1_000_000
        with self._lock:
            if self._outbox.is_closed:
                raise Closed(what="producer")
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
    ) -> Future[int]:
        """`put` with a future of the offset."""
        delivered: Future[int] = Future()
        self.put(
            value,
            key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
            on_delivery=partial(_resolve, delivered),
        )
        return delivered

    def close(self) -> None:
        """Flush, then close. A second call does nothing."""
        with self._lock:
            self._outbox.close()
            self._room.notify_all()
        self._thread.run(self._inner.close())

    def _wait_for_room(self) -> None:
        """Called with the lock held."""
        self._waiters += 1
        try:
            while not self._outbox.is_closed and self._outbox.is_full:
                self._wake()
                self._room.wait()
        finally:
            self._waiters -= 1
        if self._outbox.is_closed:  # by whoever closed it, or the transaction that it was part of
            raise Closed(what="producer")
        self._outbox.look_for_room()

    def _tell_room(self) -> None:
        if self._waiters:
            with self._lock:
                self._room.notify_all()

    def _wake(self) -> None:
        self._thread.check_fork()
        if not self._inner._woken:
            self._thread.loop.call_soon_threadsafe(self._inner._wake)

    send = waits(shell_producer.Producer.send)
    send_to_partition = waits(shell_producer.Producer.send_to_partition)
    send_batch = waits(shell_producer.Producer.send_batch)
    send_arrow = waits(shell_producer.Producer.send_arrow)
    flush = waits(shell_producer.Producer.flush)


class Attempt(Blocking[shell_transaction.Attempt]):
    """`rivven.Attempt`, blocking."""

    def __init__(self, inner: shell_transaction.Attempt, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._producers: dict[str, Producer] = {}

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, *why: Any) -> None:
        self._thread.run(self._inner.__aexit__(*why))

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch: what a decision names it by."""
        return self._inner.identity

    def producer(self, topic: str, **options: Unpack[SendOptions]) -> Producer:
        """The producer that sends to a topic as part of this transaction; one for each topic."""
        return _joined(self._thread, self._inner.producer(topic, **options), self._producers)

    def send_offsets(
        self, consumer: Consumer | GroupConsumer | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit how far a consumer has read, or where a group goes on, as part of the transaction."""
        inner = consumer if isinstance(consumer, str) else consumer._inner
        self._thread.run(self._inner.send_offsets(inner, offsets))

    flush = waits(shell_transaction.Attempt.flush)
    abort = waits(shell_transaction.Attempt.abort)
    close = waits(shell_transaction.Attempt.close)


class Transaction:
    """`rivven.Transaction`, blocking: `with producer.transaction() as transaction:`."""

    def __init__(self, home: Producer) -> None:
        self._thread = home._thread
        self._inner = home._inner.transaction()
        self._joined = home._joined

    def __enter__(self) -> Transaction:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(self, *why: Any) -> None:
        self._thread.run(self._inner.__aexit__(*why))

    @property
    def sequence(self) -> int:
        return self._inner.sequence

    def producer(self, topic: str, **options: Unpack[SendOptions]) -> Producer:
        """A producer of another topic that takes part in this transaction, and in the later ones."""
        return _joined(self._thread, self._inner.producer(topic, **options), self._joined)

    def send_offsets(
        self, consumer: Consumer | GroupConsumer | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit how far a consumer has read, or where a group goes on, as part of the transaction."""
        inner = consumer if isinstance(consumer, str) else consumer._inner
        self._thread.run(self._inner.send_offsets(inner, offsets))


def _joined(
    thread: LoopThread, making: Coroutine[Any, Any, shell_producer.Producer], known: dict[str, Producer]
) -> Producer:
    """The one blocking producer of each that takes part in a transaction."""
    inner = thread.run(making)
    if inner.topic not in known:
        known[inner.topic] = Producer(inner, thread)
    return known[inner.topic]


def _resolve(delivered: Future[int], delivery: Delivery) -> None:
    if not delivered.set_running_or_notify_cancel():
        return
    if delivery.error is not None:
        delivered.set_exception(delivery.error)
    else:
        delivered.set_result(delivery.offset)

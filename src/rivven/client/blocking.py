"""The same client for programs without an event loop: scripts, threads, Spark.

All connections live on one event loop in a thread of its own, shared by the process and made anew after a fork. A
call hops there and back; records that are `put` do not, they are gathered in the calling thread. Clients, producers
and consumers may be shared between threads, but a consumer's messages then go to whoever asks first.

    client = rivven.blocking.connect("localhost:9092")
    with client.producer("orders") as producer:
        producer.put(b"paid", key=b"42")
    with client.consumer("orders", partition=None) as consumer:
        print(consumer.fetch())
    client.close()
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from rivven.model import TopicPartition
from rivven.record import ATOMIC

from . import client as shell_client
from . import consumer as shell_consumer
from . import group_consumer as shell_group
from . import producer as shell_producer
from . import transaction as shell_transaction
from .consumer import FETCH_BYTES, WAIT_MS
from .failures import Closed
from .group_consumer import MemberOptions
from .inbox import Bounds, Isolation, Taken
from .options import Options
from .reader import Reader
from .sending import BATCH_BYTES_MAX, BUFFER_BYTES, DELIVERY_TIMEOUT_MS, REQUEST_BYTES_MAX, SendOptions
from .shell import make_cluster, make_tls_cluster
from .transaction import TIMEOUT_MS
from .transform import Changed, Output, outputs, transform
from .values import Delivery, Headers, Message, OnDelivery, Position, as_number

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Attempt",
    "Consumer",
    "GroupConsumer",
    "Producer",
    "RivvenClient",
    "Transaction",
    "connect",
    "connect_tls",
]

A = TypeVar("A", covariant=True)
K = TypeVar("K")
P = ParamSpec("P")
S = TypeVar("S", bound=Reader[Any], covariant=True)
T = TypeVar("T")


class _LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        threading.Thread(target=self.loop.run_forever, name="rivven-client", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done on the loop, and wait for it; an interrupt here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_thread: _LoopThread | None = None
_thread_lock = threading.Lock()


def _loop_thread() -> _LoopThread:
    global _thread
    with _thread_lock:
        if _thread is None:
            _thread = _LoopThread()
        return _thread


def _forget_thread() -> None:
    """A forked child has the loop and not its thread."""
    global _thread, _thread_lock
    _thread, _thread_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_thread)


class _Blocking(Generic[A]):
    """Something on the loop, and the thread to reach it by."""

    def __init__(self, inner: A, thread: _LoopThread) -> None:
        self._inner = inner
        self._thread = thread


def _waits(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Blocking[A], P], T]:
    """The same method, done on the loop and waited for."""

    @wraps(method)
    def call(self: _Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._inner, *args, **kwargs))

    return call


def connect(address: str | Sequence[str], *, options: Options | None = None) -> RivvenClient:
    """Connect to the first server that answers, of one or several as `host:port`."""
    thread = _loop_thread()

    async def start() -> shell_client.RivvenClient:
        return await shell_client._connected(make_cluster(address, options))

    return RivvenClient(thread.run(start()), thread)


def connect_tls(
    address: str | Sequence[str],
    ca_cert_path: str | Path,
    server_name: str,
    client_cert_path: str | Path | None = None,
    client_key_path: str | Path | None = None,
    *,
    options: Options | None = None,
) -> RivvenClient:
    """The same over TLS 1.3."""
    thread = _loop_thread()

    async def start() -> shell_client.RivvenClient:
        return await shell_client._connected(
            make_tls_cluster(address, ca_cert_path, server_name, client_cert_path, client_key_path, options)
        )

    return RivvenClient(thread.run(start()), thread)


class RivvenClient(_Blocking[shell_client.RivvenClient]):
    """`rivven.RivvenClient`, blocking."""

    def __enter__(self) -> RivvenClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def producer(
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
        making = self._inner.producer(
            topic,
            batch_size,
            linger_ms,
            compression=compression,
            compression_level=compression_level,
            acks=acks,
            buffer_bytes=buffer_bytes,
            batch_bytes_max=batch_bytes_max,
            request_bytes_max=request_bytes_max,
            delivery_timeout_ms=delivery_timeout_ms,
            idempotent=idempotent,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        return Producer(self._thread.run(making), self._thread)

    @overload
    def consumer(
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
    def consumer(
        self,
        *,
        group: str,
        topics: str | Iterable[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        batch_size: int = 100,
        auto_commit: bool = True,
        **membership: Unpack[MemberOptions],
    ) -> GroupConsumer: ...

    def consumer(
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
        make: Any = self._inner.consumer  # which of its shapes is asked for, it sees itself
        making = make(
            *(topic, partition, group, start_offset, batch_size, auto_commit),
            topics=topics,
            pattern=pattern,
            fetch_bytes=fetch_bytes,
            wait_ms=wait_ms,
            isolation=isolation,
            **membership,
        )
        inner = self._thread.run(making)
        if isinstance(inner, shell_group.GroupConsumer):
            return GroupConsumer(inner, self._thread)
        return Consumer(inner, self._thread)

    def attempt(self, owner: str, owner_epoch: int, sequence: int, *, timeout_ms: int = TIMEOUT_MS) -> Attempt:
        """Begin a transaction over which the owner will decide, under this sequence."""
        making = self._inner.attempt(owner, owner_epoch, sequence, timeout_ms=timeout_ms)
        return Attempt(self._thread.run(making), self._thread)

    close = _waits(shell_client.RivvenClient.close)
    authenticate = _waits(shell_client.RivvenClient.authenticate)
    authenticate_scram = _waits(shell_client.RivvenClient.authenticate_scram)
    publish = _waits(shell_client.RivvenClient.publish)
    consume = _waits(shell_client.RivvenClient.consume)
    init_producer_id = _waits(shell_client.RivvenClient.init_producer_id)
    publish_idempotent = _waits(shell_client.RivvenClient.publish_idempotent)
    register_owner = _waits(shell_client.RivvenClient.register_owner)
    decide = _waits(shell_client.RivvenClient.decide)
    find_batches = _waits(shell_client.RivvenClient.find_batches)
    forget_owner = _waits(shell_client.RivvenClient.forget_owner)
    begin_transaction = _waits(shell_client.RivvenClient.begin_transaction)
    add_partitions_to_txn = _waits(shell_client.RivvenClient.add_partitions_to_txn)
    commit_transaction = _waits(shell_client.RivvenClient.commit_transaction)
    abort_transaction = _waits(shell_client.RivvenClient.abort_transaction)

    create_topic = _waits(shell_client.RivvenClient.create_topic)
    list_topics = _waits(shell_client.RivvenClient.list_topics)
    delete_topic = _waits(shell_client.RivvenClient.delete_topic)
    get_metadata = _waits(shell_client.RivvenClient.get_metadata)
    create_partitions = _waits(shell_client.RivvenClient.create_partitions)
    describe_topic_configs = _waits(shell_client.RivvenClient.describe_topic_configs)
    describe_topic_config_entries = _waits(shell_client.RivvenClient.describe_topic_config_entries)
    alter_topic_config = _waits(shell_client.RivvenClient.alter_topic_config)
    get_offset_bounds = _waits(shell_client.RivvenClient.get_offset_bounds)
    get_offset_for_timestamp = _waits(shell_client.RivvenClient.get_offset_for_timestamp)
    delete_records = _waits(shell_client.RivvenClient.delete_records)
    delete_records_batch = _waits(shell_client.RivvenClient.delete_records_batch)
    list_groups = _waits(shell_client.RivvenClient.list_groups)
    describe_group = _waits(shell_client.RivvenClient.describe_group)
    delete_group = _waits(shell_client.RivvenClient.delete_group)
    commit_offset = _waits(shell_client.RivvenClient.commit_offset)
    get_offset = _waits(shell_client.RivvenClient.get_offset)
    describe_quotas = _waits(shell_client.RivvenClient.describe_quotas)
    alter_quotas = _waits(shell_client.RivvenClient.alter_quotas)
    get_cluster_metadata = _waits(shell_client.RivvenClient.get_cluster_metadata)
    describe_members = _waits(shell_client.RivvenClient.describe_members)
    committed_offsets = _waits(shell_client.RivvenClient.committed_offsets)
    reset_offsets = _waits(shell_client.RivvenClient.reset_offsets)
    list_transactions = _waits(shell_client.RivvenClient.list_transactions)
    describe_transactions = _waits(shell_client.RivvenClient.describe_transactions)
    describe_producers = _waits(shell_client.RivvenClient.describe_producers)
    find_hanging_transactions = _waits(shell_client.RivvenClient.find_hanging_transactions)
    abort_open_transaction = _waits(shell_client.RivvenClient.abort_open_transaction)
    abort_hanging_transaction = _waits(shell_client.RivvenClient.abort_hanging_transaction)
    get_metrics = _waits(shell_client.RivvenClient.get_metrics)
    ping = _waits(shell_client.RivvenClient.ping)


class Producer(_Blocking[shell_producer.Producer]):
    """`rivven.Producer`, blocking. Callbacks run on the loop's thread: they must not wait for anything."""

    def __init__(self, inner: shell_producer.Producer, thread: _LoopThread) -> None:
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
        if not self._inner._woken:
            self._thread.loop.call_soon_threadsafe(self._inner._wake)

    send = _waits(shell_producer.Producer.send)
    send_to_partition = _waits(shell_producer.Producer.send_to_partition)
    send_batch = _waits(shell_producer.Producer.send_batch)
    send_arrow = _waits(shell_producer.Producer.send_arrow)
    flush = _waits(shell_producer.Producer.flush)


class Attempt(_Blocking[shell_transaction.Attempt]):
    """`rivven.Attempt`, blocking."""

    def __init__(self, inner: shell_transaction.Attempt, thread: _LoopThread) -> None:
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

    flush = _waits(shell_transaction.Attempt.flush)
    abort = _waits(shell_transaction.Attempt.abort)
    close = _waits(shell_transaction.Attempt.close)


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
    thread: _LoopThread, making: Coroutine[Any, Any, shell_producer.Producer], known: dict[str, Producer]
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


class _Reading(_Blocking[S], Generic[S, K]):
    """What the blocking consumers share."""

    @property
    def group(self) -> str | None:
        return self._inner.group

    @property
    def is_closed(self) -> bool:
        return self._inner.is_closed

    def current_offset(self, partition: K | None = None) -> Position:
        """The offset of the next message that will be handed out."""
        return self._inner.current_offset(partition)

    def positions(self) -> dict[K, int]:
        """The same for every partition."""
        return self._inner.positions()

    def pause(self, *partitions: K) -> None:
        """Hand out nothing more of these partitions, or of any, until `resume`."""
        self._thread.run(_soon(partial(self._inner.pause, *partitions)))

    def resume(self, *partitions: K) -> None:
        self._thread.run(_soon(partial(self._inner.resume, *partitions)))

    def commit_soon(self) -> None:
        """Commit without waiting for it."""
        self._thread.run(_soon(self._inner.commit_soon))

    def fetch_arrow(
        self, *, columns: Sequence[str] | None = None, until: int | None = None, wait_ms: int = 0
    ) -> pa.RecordBatch:
        """The next records as columns; made in the calling thread, while the loop goes on reading."""
        taken = self._thread.run(self._inner._next_chunk(until, wait_ms))
        return taken.to_arrow(columns)

    def fetch_batches(self, *, until: int | None = None, wait_ms: int = 0) -> Taken:
        """The next batches as they came, and the offset that is wanted first. No data: there is nothing now."""
        return self._thread.run(self._inner._next_chunk(until, wait_ms))

    def bounds(self) -> dict[K, Bounds]:
        """What the server told of the partitions with its last answers, for those that have been asked for."""
        shelves = dict(self._inner._inbox.shelves)
        return {key: shelf.bounds for key, shelf in shelves.items() if shelf.bounds is not None}

    def take_lost(self) -> list[tuple[K, int, int]]:
        """Partition, start and end of what was to be read and is gone, since this was last asked."""
        shelves = dict(self._inner._inbox.shelves)
        return [(key, *shelf.lost.popleft()) for key, shelf in shelves.items() for _ in range(len(shelf.lost))]

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come. What the loop's body has finished with is what an automatic commit covers."""
        inner = self._inner
        while not inner.is_closed:
            if (not inner._handed or inner._due) and not self._thread.run(inner._refill()):
                return
            while inner._handed and not inner._due:
                try:
                    message = inner._handed.popleft()
                except IndexError:  # another thread was faster
                    break
                yield message

    seek = _waits(Reader.seek)
    seek_to_beginning = _waits(Reader.seek_to_beginning)
    seek_to_end = _waits(Reader.seek_to_end)
    seek_to_timestamp = _waits(Reader.seek_to_timestamp)
    get_offset_bounds = _waits(Reader.get_offset_bounds)
    lag = _waits(Reader.lag)
    fetch = _waits(Reader.fetch)
    poll = _waits(Reader.poll)


async def _soon(call: Callable[[], T]) -> T:
    """What does not wait, done on the loop all the same."""
    return call()


class Consumer(_Reading[shell_consumer.Consumer, int]):
    """`rivven.Consumer`, blocking. Iterating waits for messages, and ends when the consumer is closed."""

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def partition(self) -> int:
        return self._inner.partition

    @property
    def partitions(self) -> list[int]:
        return self._inner.partitions

    assign = _waits(shell_consumer.Consumer.assign)
    commit = _waits(shell_consumer.Consumer.commit)
    close = _waits(shell_consumer.Consumer.close)


class GroupConsumer(_Reading[shell_group.GroupConsumer, TopicPartition]):
    """`rivven.GroupConsumer`, blocking. Listeners run in a thread of their own while the caller waits for messages.
    They may use the consumer, but not ask it for messages."""

    def __init__(self, inner: shell_group.GroupConsumer, thread: _LoopThread) -> None:
        super().__init__(inner, thread)
        inner._callbacks_in_thread = True

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def topics(self) -> list[str]:
        return self._inner.topics

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._inner.assignment

    @property
    def member_id(self) -> str:
        return self._inner.member_id

    @property
    def generation(self) -> int:
        return self._inner.generation

    @property
    def is_settled(self) -> bool:
        return self._inner.is_settled

    subscribe = _waits(shell_group.GroupConsumer.subscribe)
    commit = _waits(shell_group.GroupConsumer.commit)
    close = _waits(shell_group.GroupConsumer.close)

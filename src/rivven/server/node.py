"""A running broker: the store on its disk, the listener, the turn of the loop, the chores' thread, the timers.

All decisions are the broker's and the store's; this starts them, feeds them what arrives, performs what they ask for
and stops them in good order. Requests that arrive in one turn of the event loop are handled together, and the turn
ends with one call of `Broker.turn`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from rivven.broker import NEVER_US, Broker, BrokerConfig, GroupConfig, Preload, Reply, Session, TxnConfig
from rivven.errors import DiskFull, Overloaded, RivvenError, SyncFailed
from rivven.limits import PARTITIONS_MAX
from rivven.log import Chore, Store, StoreConfig, SyncPolicy
from rivven.system import SystemClock, SystemDisk, SystemEntropy
from rivven.wire import responses as tell

from .allowance import Allowances
from .connection import Connection
from .front import Front
from .listener import Listener
from .metrics import Histogram, scrape
from .receive import SHARED_BYTES, BufferPool

if TYPE_CHECKING:
    from .settings import Settings

logger = logging.getLogger(__name__)

SWEEP_S = 5.0
DRAIN_S = 10.0
CLOSE_S = 1.0
CHORE_RETRY_S = 0.2
PRELOADS_AT_ONCE = 4
"""How many readers of cold data the disk serves at a time; more of them only share it."""
FILES_RESERVED = 256
"""Descriptors for what is neither a connection nor a partition."""


class Node:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.shared_buffer = memoryview(bytearray(SHARED_BYTES))
        self.buffers = BufferPool(receiving_bytes_max=settings.max_inflight_bytes)
        self.latency: dict[str, Histogram] = {}
        self.connections_total = 0
        self.refused_total = 0
        self.ordinary_bytes = 0
        """What requests hold that are under way, those that the front took aside."""
        self.ready = False
        self.started_us = 0
        self._clock = SystemClock()
        self.now_us: Callable[[], int] = self._clock.now_us
        self._disk = SystemDisk(settings.data_dir)
        self._connections: dict[Connection, None] = {}
        self._by_address: dict[str, int] = {}
        self.allowances = Allowances(settings.rate_limit_per_ip)
        self._lent: dict[Reply, bytearray] = {}
        self._turn_wanted = False
        self._resting: dict[Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = NEVER_US
        self._tasks: set[asyncio.Task[None]] = set()
        self._chores_wanted = asyncio.Event()
        self._chore_thread = ThreadPoolExecutor(1, thread_name_prefix="rivven-chores")
        self._preload_threads = ThreadPoolExecutor(PRELOADS_AT_ONCE, thread_name_prefix="rivven-preload")
        self._listener: Listener | None = None
        self.front: Front | None = None
        self._connections_max = settings.max_total_connections
        self._failed: asyncio.Future[Any] | None = None

    # Start and stop

    async def start(self) -> None:
        """Recover the store and listen."""
        self.loop = asyncio.get_running_loop()
        self._failed = self.loop.create_future()
        settings = self.settings
        files_max = raise_file_limit()
        self._connections_max = min(settings.max_total_connections, files_max // 2)
        config = StoreConfig(
            sync_policy=SyncPolicy.parse(settings.sync_policy),
            partitions_max=min(PARTITIONS_MAX, max(16, files_max // 2 - FILES_RESERVED)),
            topic_defaults={"segment.bytes": str(settings.max_segment_size)},
        )
        self._listener = Listener(self.loop, settings.bind_host, settings.bind_port)
        self.store = Store(self._disk, self._clock, SystemEntropy(), config)
        self.broker = Broker(self.store, self._disk, self._clock, self._broker_config())
        if self.store.fileno() >= 0:
            self.loop.add_reader(self.store.fileno(), self.turn_now)
        self.front = Front.open(self)
        self._spawn(self._chores_forever())
        self._spawn(self._sweep_forever())
        self._spawn(self._clean_forever())
        self.started_us = self.now_us()
        self.ready = True
        self._listener.start(self._serve_socket)
        # Not before: whoever waits for the node would wait for what only Kafka's clients need.
        self.loop.run_in_executor(self._chore_thread, self.broker.kafka.load)

    def _broker_config(self) -> BrokerConfig:
        settings = self.settings
        return BrokerConfig(
            node_id=settings.node_id,
            host=settings.advertise_host or settings.bind_host,
            port=settings.advertise_port or self.address[1],
            rack=settings.rack,
            default_partitions=settings.default_partitions,
            auto_create_topics=settings.auto_create_topics,
            partitioner_records=settings.partitioner_batch_size,
            partitioner_linger_ms=settings.partitioner_linger_ms,
            quotas=dict(settings.quotas),
            groups=GroupConfig(
                initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
                session_timeout_ms_min=settings.group_min_session_timeout_ms,
                session_timeout_ms_max=settings.group_max_session_timeout_ms,
                consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
                consumer_heartbeat_ms=settings.group_consumer_heartbeat_ms,
                offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
            ),
            transactions=TxnConfig(
                timeout_ms_max=settings.transaction_max_timeout_ms,
                id_expiration_ms=settings.transactional_id_expiration_ms,
            ),
            broker_id=settings.broker_id,
            data_dir=str(settings.data_dir),
            node_configs={
                "socket.request.max.bytes": str(settings.max_request_size),
                "connections.max.idle.ms": str(int(settings.idle_timeout_secs * 1000)),
                "max.connections.per.ip": str(settings.max_connections_per_ip),
                "producer.id.expiration.ms": str(settings.producer_id_expiration_ms),
            },
        )

    def _serve_socket(self, sock: socket.socket) -> None:
        if self.front is not None:
            self.front.serve(sock, Connection(self))
        else:
            self._spawn(self._serve_by_loop(sock))

    async def _serve_by_loop(self, sock: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: Connection(self), sock)
        except OSError:  # it has gone already
            sock.close()

    @property
    def address(self) -> tuple[str, int]:
        assert self._listener is not None
        return self._listener.address

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Until somebody asks it to stop, or the disk fails."""
        assert self._failed is not None
        stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        await asyncio.wait({stopping, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._failed.done():
            self._failed.result()

    async def stop(self) -> None:
        """Accept nobody new, answer what is under way, make everything durable, and give the directory up."""
        self.ready = False
        if self._listener is not None:
            self._listener.close()
        if hasattr(self, "broker"):
            self.broker.end_waiting()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while any(connection.owes for connection in self._connections):
                    self.want_turn()
                    await asyncio.sleep(0.01)
        await self._close_connections()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.front is not None:
            self.front.close()
        self._chore_thread.shutdown(wait=True)
        self._preload_threads.shutdown(wait=True, cancel_futures=True)
        if hasattr(self, "store"):
            self.loop.remove_reader(self.store.fileno())
            self.store.close()
        self._disk.close()

    async def _close_connections(self) -> None:
        for connection in list(self._connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._connections:
                    await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.abort()  # they do not take what they are still owed
        await asyncio.sleep(0.01)  # whoever was accepted at the last moment is turned away now

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Something went wrong that nobody can mend: end, so that a restart recovers."""
        assert self._failed is not None
        if not self._failed.done():
            self._failed.set_exception(error)
        self.ready = False

    # The turn

    def want_turn(self, connection: Connection | None = None) -> None:
        """Have the turn end soon; a connection that was paused for it is read again after it."""
        if connection is not None:
            self._resting[connection] = None
        if not self._turn_wanted:
            self._turn_wanted = True
            self.loop.call_soon(self._turn)

    def turn_now(self, first: Callable[[], None] | None = None) -> None:
        """Do something that may want a turn, and take it at once."""
        self._turn_wanted = True
        if first is not None:
            first()
        self._turn()

    def _turn(self) -> None:
        self._turn_wanted = False
        front = self.front
        try:
            if front is not None:
                front.finish()
            touched = self.broker.turn()
        except RivvenError as error:
            self._fail(error)
            return
        resting, self._resting = self._resting, {}
        for session in touched:
            resting.pop(cast(Connection, session.connection), None)
            self._serve(session)
        for connection in resting:
            connection.send_ready()
        if front is not None:
            front.send()
        if self.store.has_chores:
            self._chores_wanted.set()
        if self.broker.preloading.wanted:
            for preload in self.broker.preloading.take():
                self._spawn(self._preload(preload))
        if self.broker.due_us < self._timer_us:  # a timer that rings too early does no harm, so it stays
            self._set_timer(self.broker.due_us)

    def _serve(self, session: Session) -> None:
        connection = cast(Connection, session.connection)
        connection.send_ready()
        if session.muted_until_us and not connection.muted:
            wait_s = (session.muted_until_us - self.now_us()) / 1e6
            session.muted_until_us = 0
            if wait_s > 0:
                connection.mute()
                self.loop.call_later(wait_s, connection.unmute)

    def _set_timer(self, due_us: int) -> None:
        """See to it that there is a turn then."""
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(0.0, (due_us - self.now_us()) / 1e6)
        self._timer, self._timer_us = self.loop.call_later(wait_s, self._ring), due_us

    def _ring(self) -> None:
        self._timer, self._timer_us = None, NEVER_US
        self.want_turn()

    def sent(self, replies: list[Reply]) -> None:
        """These have left: account for them."""
        now_us = self.now_us()
        for reply in replies:
            self.ordinary_bytes -= reply.size_bytes
            self.latency_of(reply.kind).observe((now_us - reply.begun_us) / 1e6)
            if self._lent and (buffer := self._lent.pop(reply, None)) is not None:
                self.buffers.give(buffer)

    def dropped(self, replies: Iterable[Reply]) -> None:
        """Nobody is there any more to send these to."""
        for reply in replies:
            self.ordinary_bytes -= reply.size_bytes
            self._lent.pop(reply, None)

    def lend(self, buffer: bytearray, reply: Reply) -> None:
        """The request looks into this buffer; it goes back to the pool with the reply."""
        self._lent[reply] = buffer

    def answer_metrics(self, prefix: str, reply: Reply) -> None:
        reply.kind = "GetMetrics"
        self._spawn(self._answer_metrics(prefix, reply))

    async def _answer_metrics(self, prefix: str, reply: Reply) -> None:
        page = (await scrape(self)).decode()
        wanted = [
            line
            for line in page.splitlines()
            if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(prefix)
        ]
        if reply in reply.session.owed:  # else the client has gone meanwhile
            reply.fulfil(tell.Metrics("\n".join(wanted) + "\n"))
            cast(Connection, reply.session.connection).send_ready()

    @property
    def inflight_bytes(self) -> int:
        """What all requests hold that are under way."""
        return self.ordinary_bytes + (self.front.inflight_bytes if self.front is not None else 0)

    def latency_of(self, kind: str) -> Histogram:
        found = self.latency.get(kind)
        if found is None:
            found = self.latency[kind] = Histogram()
        return found

    def take_counts(self) -> None:
        """The front counts by itself what it answers: take that over."""
        if self.front is not None:
            for kind, latency in self.front.take_counts():
                self.broker.stats.count(kind, latency.count)
                self.latency_of(kind).add(latency)

    # Who may connect

    def admit(self, connection: Connection) -> bool:
        address = connection.address
        here = self._by_address.get(address, 0)
        settings = self.settings
        if (
            not self.ready
            or len(self._connections) >= self._connections_max
            or here >= settings.max_connections_per_ip
        ):
            self.refused_total += 1
            return False
        self._connections[connection] = None
        self._by_address[address] = here + 1
        self.connections_total += 1
        return True

    def forget(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._resting.pop(connection, None)
        left = self._by_address[connection.address] - 1
        if left:
            self._by_address[connection.address] = left
        else:
            del self._by_address[connection.address]

    def close_later(self, connection: Connection, seconds: float) -> None:
        self.loop.call_later(seconds, connection.close)

    # The slow work

    async def _chores_forever(self) -> None:
        while True:
            chores = self.store.chores()
            self.want_turn()  # to begin one may have waited for writes, and whoever sent them waits for an answer
            while chores:
                await self._perform(chores.pop(0))  # and let go of it: a chore holds files open
            self._chores_wanted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._chores_wanted.wait()

    async def _perform(self, chore: Chore) -> None:
        following = [chore]
        while following:
            chore = following.pop()
            error: OSError | SyncFailed | None = None
            try:
                await self.loop.run_in_executor(self._chore_thread, chore.run)
            except (OSError, SyncFailed) as failed:
                error = failed
            following += self.store.finish(chore, error)
            if error is not None:
                await asyncio.sleep(CHORE_RETRY_S)
        self.want_turn()

    async def _preload(self, preload: Preload) -> None:
        """Have it brought into memory, and its readers tried again."""
        await self.loop.run_in_executor(self._preload_threads, preload.run)
        self.turn_now(partial(self.broker.preloading.done, preload))

    async def _sweep_forever(self) -> None:
        """Close the connections that nobody has used for too long, or that trickle a frame for ever."""
        while True:
            await asyncio.sleep(min(SWEEP_S, self.settings.idle_timeout_secs / 2))
            limit_us = self.now_us() - int(self.settings.idle_timeout_secs * 1e6)
            for connection in list(self._connections):
                since_us = connection.idle_since_us()
                if since_us is not None and since_us < limit_us:
                    self.broker.stats.timed_out += 1
                    connection.abort()

    async def _clean_forever(self) -> None:
        """Apply retention and compaction now and then, and forget producers that are silent for long."""
        expiry_s = self.settings.producer_id_expiration_ms / 1000
        expiry_due_s = self.loop.time() + expiry_s
        while True:
            await asyncio.sleep(min(self.settings.clean_interval_secs, expiry_s))
            if self.loop.time() >= expiry_due_s:
                expiry_due_s += expiry_s
                self.store.expire_producers()
            try:
                try:
                    self.store.retain()
                finally:
                    self.want_turn()  # as for chores
                for log in self.store.logs:
                    if (chore := self.store.begin_cleaning(log)) is not None:
                        await self._perform(chore)
            except (DiskFull, Overloaded) as error:
                logger.warning("retention waits for its next turn: %s", error)


def raise_file_limit() -> int:
    """How many files this process may have open, after asking for all that it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20

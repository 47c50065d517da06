"""A broker node without sockets or threads: what `server/` does round the broker, as events of a simulated world.

Frames are cut by the real wire code, requests go to the real broker on the real store, and replies leave in order;
turns, the disk's completions, chores and timers happen when chance says so. The process may die between any two
events and in the middle of any operation on its disk, with or without the power.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random

from rivven.broker import NEVER_US, Broker, BrokerConfig, Preload, Reply, Session
from rivven.errors import DiskFull, Malformed, Overloaded, RivvenError, SyncFailed
from rivven.log import Chore, Store, StoreConfig
from rivven.wire import (
    Dialect,
    Format,
    Piece,
    Response,
    Splitter,
    decode_request,
    dialect_of,
    encode_response,
    refuse_oversized,
)
from rivven.wire import responses as tell

from .agenda import Agenda
from .clock import SimEntropy
from .disk import Halted, SimDisk
from .network import SimNetwork, SimSocket

TURN_REQUESTS = 8
"""So many requests of one connection are handled in a turn, as in the real shell but fewer."""
OWED_MAX = 16
UNSENT_BYTES_MAX = 16 * 1024
FRAME_BYTES_MAX = 256 * 1024
TURN_US_MAX = 200
DISK_US_MAX = 2_000
CHORE_US_MAX = 20_000
PRELOAD_US_MAX = 10_000
CHORE_RETRY_US = 200_000


class SimNode:
    """One data directory and one address through many lives."""

    def __init__(
        self,
        address: str,
        network: SimNetwork,
        disk: SimDisk,
        store_config: StoreConfig,
        broker_config: BrokerConfig,
        *,
        say: Callable[[str], object],
    ) -> None:
        self.address = address
        self.disk = disk
        self.agenda: Agenda = network.agenda
        self.rng: Random = network.rng
        self.network = network
        self.lives = 0
        self.alive = False
        self.inflight_bytes = 0
        self.on_death: list[Callable[[], object]] = []
        self.connections: dict[Connection, None] = {}
        self._entropy = SimEntropy(self.rng)
        self._store_config = store_config
        self._broker_config = broker_config
        self._say = say
        self._turn_wanted = False
        self._timer_us: int | None = None
        self._chores_wanted = False
        self._loses_power = False
        self.store: Store
        self.broker: Broker

    # Lives

    def start(self) -> None:
        """Recover and listen. Whether it came up is in `alive`."""
        assert not self.alive
        self.lives += 1
        self.alive = True
        self._turn_wanted = self._chores_wanted = False
        self._timer_us = None
        self._survive(self._recover)

    def _recover(self) -> None:
        self.store = Store(self.disk, self.agenda.clock, self._entropy, self._store_config)
        assert self.store.recovery.intact, f"a crash is not damage: {self.store.recovery.damage}"
        self.broker = Broker(self.store, self.disk, self.agenda.clock, self._broker_config)
        self.network.listen(self.address, self._accept)
        self._want_chores()

    def die(self, *, power_lost: bool) -> None:
        """The process ends between two events."""
        if not self.alive:
            return
        self.alive = False
        self._say(f"node dies, {'with the power' if power_lost else 'killed'}")
        self.disk.crash() if power_lost else self.disk.kill()
        self.disk.heal()
        self._loses_power = False
        self._leave()

    def _leave(self) -> None:
        for connection in self.connections:
            connection.socket.abandon()
        self.connections.clear()
        self.inflight_bytes = 0
        self.network.stop_listening(self.address)
        for told in self.on_death:
            told()

    def halt_after(self, operations: int, *, power_lost: bool) -> None:
        """Have the process end in the middle of an operation on its disk, once it comes to that one."""
        self._loses_power = power_lost
        self.disk.halt_after(operations)

    def fail_sync(self, errno: int, *, power_lost: bool) -> None:
        """Have the disk refuse its next sync, which is the end of the process that asked for it."""
        if self.alive:
            self._loses_power = power_lost
            self.disk.fail("sync", errno)

    def stop(self) -> None:
        """End in good order: answer whoever waits, make everything durable."""
        if self.alive:
            self._survive(self._stop)

    def _stop(self) -> None:
        self.broker.end_waiting()
        for _ in range(8):
            self._turn()
        self.store.flush()
        self._turn()
        for connection in self.connections:
            connection.socket.close()
        self.store.close()
        self.alive = False
        self._say("node stops in good order")
        self._leave()

    def _survive(self, act: Callable[[], object]) -> None:
        """Do something as this process. What the real shell takes for its end is the end here too."""
        try:
            act()
        except Halted:
            self.die(power_lost=self._loses_power)
        except RivvenError as error:
            self._say(f"node ends: {error}")
            self.die(power_lost=self._loses_power)

    def later(self, wait_us: int, act: Callable[[], object]) -> None:
        """Something this life does; a later one knows nothing of it."""
        life = self.lives

        def happen() -> None:
            if self.alive and self.lives == life:
                self._survive(act)

        self.agenda.after(wait_us, happen)

    # The turn

    def _accept(self, socket: SimSocket) -> None:
        connection = Connection(self, socket)
        self.connections[connection] = None
        socket.received = lambda data: self._survive(partial(connection.receive, data))
        socket.closed = connection.closed
        socket.drained = self.want_turn

    def want_turn(self) -> None:
        if not self._turn_wanted:
            self._turn_wanted = True
            self.later(self.rng.randint(0, TURN_US_MAX), self._turn)

    def _turn(self) -> None:
        self._turn_wanted = False
        for session in self.broker.turn():
            connection = session.connection
            assert isinstance(connection, Connection)
            connection.send_ready()
        for connection in list(self.connections):
            connection.send_ready()
        if self.store.waiting:
            # The real committer says when it is done; here it is asked, and has done its work by then or not.
            self.later(self.rng.randint(20, DISK_US_MAX), self.want_turn)
        if self.store.has_chores:
            self._want_chores()
        for preload in self.broker.preloading.take():
            self.later(self.rng.randint(20, PRELOAD_US_MAX), partial(self._preload, preload))
        self._set_timer()

    def _preload(self, preload: Preload) -> None:
        preload.run()
        self.broker.preloading.done(preload)
        self.want_turn()

    def _set_timer(self) -> None:
        due_us = self.broker.due_us
        if due_us < (NEVER_US if self._timer_us is None else self._timer_us):
            self._timer_us = due_us
            self.later(max(0, due_us - self.agenda.now_us()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer_us = None
        self.want_turn()

    # The slow work

    def _want_chores(self) -> None:
        if not self._chores_wanted:
            self._chores_wanted = True
            self.later(self.rng.randint(0, CHORE_US_MAX), self._begin_chores)

    def _begin_chores(self) -> None:
        self._chores_wanted = False
        for chore in self.store.chores():
            self._perform(chore)

    def _perform(self, chore: Chore) -> None:
        """Begun now, run at some time, finished at another: the world goes on between."""
        self.later(self.rng.randint(0, CHORE_US_MAX), partial(self._run_chore, chore))

    def _run_chore(self, chore: Chore) -> None:
        error: OSError | SyncFailed | None = None
        try:
            chore.run()
        except (OSError, SyncFailed) as failed:
            error = failed
        self.later(self.rng.randint(0, CHORE_US_MAX), partial(self._finish_chore, chore, error))

    def _finish_chore(self, chore: Chore, error: OSError | SyncFailed | None) -> None:
        for following in self.store.finish(chore, error):
            self._perform(following)
        if error is not None:
            self.later(CHORE_RETRY_US, self._want_chores)
        self.want_turn()

    def upkeep(self) -> None:
        """Retention and compaction, with every segment sealed first so that there is something to do."""
        if self.alive:
            self.later(0, self._upkeep)

    def _upkeep(self) -> None:
        try:
            self.store.retain()
            for log in self.store.logs:
                if log.config.compacts and log.high_watermark == log.end > log.start:
                    log.roll()
                if (chore := self.store.begin_cleaning(log, force=True)) is not None:
                    self._perform(chore)
        except (DiskFull, Overloaded) as error:
            self._say(f"upkeep waits: {error}")
        self.want_turn()


class Connection:
    """One client as the node sees it: `server/connection.py` without asyncio."""

    def __init__(self, node: SimNode, socket: SimSocket) -> None:
        self.socket = socket
        self.session = Session(socket.name)
        self.session.connection = self
        self._node = node
        self._splitter = Splitter(frame_bytes_max=FRAME_BYTES_MAX, receive_bytes=4096)
        self._pending: deque[memoryview] = deque()
        self._speaks = False
        self._ending = False

    def receive(self, data: bytes) -> None:
        self._pending.extend(self._splitter.feed(data))
        self._work()
        if self._splitter.oversized is not None:
            self._ending = True
        self._node.want_turn()

    def _work(self) -> None:
        left = TURN_REQUESTS
        while self._pending and left and self._may_work():
            self._request(self._pending.popleft())
            left -= 1
        if self._pending or not self._may_work():
            self.socket.pause()

    def _may_work(self) -> bool:
        return (
            self.socket.is_open
            and not self._ending
            and len(self.session.owed) < OWED_MAX
            and self.socket.unsent_bytes <= UNSENT_BYTES_MAX
        )

    def _request(self, body: memoryview) -> None:
        if not self._speaks and dialect_of(body) is Dialect.KAFKA:
            self._ending = True
            self.socket.close()
            return
        self._speaks = True
        now_us = self._node.agenda.now_us()
        try:
            call = decode_request(body)
        except Malformed as error:
            facts = error.facts
            refused = self.session.expect(
                facts.get("correlation_id", 0), facts.get("format", Format.POSTCARD), now_us, 0
            )
            refused.fulfil(tell.Error(f"INVALID_REQUEST: {facts['reason']}"))
            return
        reply = self.session.expect(call.correlation_id, call.format, now_us, len(body))
        self._node.inflight_bytes += reply.size_bytes
        self._node.broker.handle(call.request, reply)

    def send_ready(self) -> None:
        if not self.socket.is_open:
            return
        for reply in self.session.take_ready():
            self.socket.send(_encoded(reply))
            self._node.inflight_bytes -= reply.size_bytes
        self.session.unsent_bytes = 0
        if self._ending:
            if not self.session.owed:
                if self._splitter.oversized is not None:
                    self.socket.send(refuse_oversized(self._splitter.oversized))
                self.socket.close()
            return
        if self._pending and self._may_work():
            self._work()
            self._node.want_turn()
        if not self._pending and self._may_work():
            self.socket.resume()

    def closed(self) -> None:
        for reply in self.session.owed:
            self._node.inflight_bytes -= reply.size_bytes
        self.session.owed.clear()
        self._pending.clear()
        self._node.connections.pop(self, None)


def _encoded(reply: Reply) -> list[Piece]:
    assert isinstance(reply.response, Response)
    assert isinstance(reply.form, Format)
    return encode_response(reply.response, reply.correlation_id, reply.form)

"""A network in memory that fails in the ways TCP may, and in no other.

Bytes of one connection arrive in their order, in pieces of any length, each after a delay of its own. A connection
may be cut at any byte: either end then has a prefix of what the other sent, and hears of the end when it hears of it.
Whoever does not read makes the other side's bytes wait.
Invariant: what an end received is always a prefix of what the other end sent; after `closed` nothing is received.
Chance comes from `rng` alone, so a seed repeats a history exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from .agenda import Agenda

Bytes = bytes | bytearray | memoryview


def _ignore_bytes(_: bytes) -> None:
    """Nobody is there to take them."""


def _ignore() -> None:
    """Nobody is there to hear of it."""


@dataclass(slots=True)
class Weather:
    """How the network behaves from now on."""

    latency_us_max: int = 1000
    notice_us_max: int = 50_000
    """How long it may take an end to hear that its connection is gone."""
    shreds: float = 0.3
    """The share of deliveries that bring only a part of what is there."""


class SimSocket:
    """One end of a connection. Its owner sets `received` and `closed`, and `drained` if it cares."""

    def __init__(self, network: SimNetwork, name: str) -> None:
        self.name = name
        self.received: Callable[[bytes], object] = _ignore_bytes
        self.closed: Callable[[], object] = _ignore
        self.drained: Callable[[], object] = _ignore
        """Called whenever something that was sent has arrived."""
        self.address = ""
        """The listener's, at both ends."""
        self.is_open = True
        self.accepts = True
        """Whether bytes are taken in now; see `pause`."""
        self._network = network
        self._peer: SimSocket | None = None
        self._unsent = bytearray()
        self._ending = False
        self._moving = False
        self._severed = False

    @property
    def unsent_bytes(self) -> int:
        """What the other end has not received yet."""
        return len(self._unsent)

    @property
    def peer(self) -> SimSocket:
        assert self._peer is not None, "not connected"
        return self._peer

    def join(self, peer: SimSocket) -> None:
        self._peer = peer

    def send(self, pieces: Sequence[Bytes]) -> None:
        """What is sent on a connection that is gone is lost without a word, as it is in a kernel's buffer."""
        if self.is_open and not (self._ending or self._severed):
            for piece in pieces:
                self._unsent += piece
            self._move()

    def close(self) -> None:
        """Everything sent so far still arrives, then the end of the connection."""
        if self.is_open and not self._ending:
            self._ending = True
            self._move()

    def pause(self) -> None:
        self.accepts = False

    def resume(self) -> None:
        if not self.accepts:
            self.accepts = True
            self.peer._move()

    # On the way

    def _move(self) -> None:
        """Have what was sent delivered, a piece at a time."""
        if not self._moving and not self._severed and (self._unsent or self._ending) and self.peer.accepts:
            self._moving = True
            self._network.deliver_later(self._deliver)

    def _deliver(self) -> None:
        self._moving = False
        if not self.is_open or self._severed or not self.peer.accepts:
            return
        if self._unsent:
            count = self._network.piece_bytes(len(self._unsent))
            data = bytes(self._unsent[:count])
            del self._unsent[:count]
            self.peer.received(data)
            self.drained()
        elif self._ending:
            self._network.end(self)
        self._move()

    def sever(self, arriving_bytes: int) -> None:
        """The connection is gone: of what is on its way so much still arrives, if it is taken in."""
        self._severed = True
        data = bytes(self._unsent[:arriving_bytes])
        self._unsent.clear()
        if data and self.peer.is_open and self.peer.accepts:
            self.peer.received(data)

    def hear_of_the_end(self) -> None:
        if self.is_open:
            self.is_open = False
            self._unsent.clear()
            closed = self.closed
            self.abandon()
            closed()

    def abandon(self) -> None:
        """Its process is gone: nobody listens at this end any more."""
        self.received, self.closed, self.drained = _ignore_bytes, _ignore, _ignore


class SimNetwork:
    def __init__(self, agenda: Agenda, rng: Random, weather: Weather | None = None) -> None:
        self.agenda = agenda
        self.rng = rng
        self.weather = weather or Weather()
        self.cuts = 0
        self._listeners: dict[str, Callable[[SimSocket], None]] = {}
        self._callers: dict[SimSocket, None] = {}
        """The connecting end of every connection that is not wholly gone."""
        self._still_until_us = 0
        self._opened = 0

    # What programs do

    def listen(self, address: str, accept: Callable[[SimSocket], None]) -> None:
        assert address not in self._listeners, f"{address} is taken"
        self._listeners[address] = accept

    def connect(self, address: str) -> SimSocket:
        """An end that may be sent on at once. If nobody listens it is closed a moment later."""
        self._opened += 1
        near = SimSocket(self, f"connection {self._opened}")
        far = SimSocket(self, near.name)
        near.address = far.address = address
        near.join(far)
        far.join(near)
        far.pause()  # until somebody has accepted it
        self._callers[near] = None
        self.deliver_later(lambda: self._accept(near))
        return near

    def _accept(self, near: SimSocket) -> None:
        accept = self._listeners.get(near.address)
        if accept is None:
            self.end(near.peer)
        elif near in self._callers:
            accept(near.peer)
            near.peer.resume()

    # What the network does

    def deliver_later(self, act: Callable[[], object]) -> None:
        wait_us = self.rng.randint(0, self.weather.latency_us_max)
        self.agenda.after(max(wait_us, self._still_until_us - self.agenda.now_us()), act)

    def piece_bytes(self, waiting_bytes: int) -> int:
        """How much of what waits arrives at once."""
        if self.rng.random() >= self.weather.shreds:
            return waiting_bytes
        return self.rng.choice((1, self.rng.randint(1, min(16, waiting_bytes)), self.rng.randint(1, waiting_bytes)))

    def end(self, closing: SimSocket) -> None:
        """One end has closed in good order; the other hears of it now."""
        self._callers.pop(closing, None)
        self._callers.pop(closing.peer, None)
        closing.peer.hear_of_the_end()
        closing.hear_of_the_end()

    # The adversary

    @property
    def open_connections(self) -> list[SimSocket]:
        return list(self._callers)

    def cut(self, near: SimSocket) -> None:
        """End a connection: both directions stop at some byte, and the ends hear of it some time later."""
        if self._callers.pop(near, self) is self:
            return
        self.cuts += 1
        for end in (near, near.peer):
            end.sever(self.rng.choice((0, end.unsent_bytes, self.rng.randint(0, end.unsent_bytes))))
            self.agenda.after(self.rng.randint(0, self.weather.notice_us_max), end.hear_of_the_end)

    def stand_still(self, for_us: int) -> None:
        """Nothing that is sent from now on arrives before so much time has passed; nothing is lost."""
        self._still_until_us = max(self._still_until_us, self.agenda.now_us() + for_us)

    def stop_listening(self, address: str) -> None:
        """The process behind an address is gone, and with it its ends of all connections."""
        self._listeners.pop(address, None)
        for near in self.open_connections:
            if near.address == address:
                near.peer.abandon()
                self.cut(near)

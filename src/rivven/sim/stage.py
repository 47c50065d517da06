"""What every actor of a simulated world stands on: the network, chance, the chronicle, and two ways to act.

An `Asker` asks, waits for the answer, and asks again. A `Storyteller` tells a longer story as a generator: it yields
a request and is resumed with the response, or with None if nobody knows what became of it; or it yields a `Pause`.
Whoever drives a story decides how requests travel, so the same story runs over a simulated network and a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from rivven.model import TopicPartition
from rivven.wire import Request, Response

from .chronicle import Anomaly, Chronicle
from .client import SimClient
from .network import SimNetwork


class Actor(Protocol):
    def begin(self) -> None: ...

    def stop(self) -> None:
        """Begin nothing new."""

    @property
    def settled(self) -> bool:
        """Whether nothing of it is under way."""


class Scene:
    """What every actor knows, wherever it plays: chance, the topics, and the chronicle."""

    def __init__(self, rng: Random, chronicle: Chronicle, topics: dict[str, int]) -> None:
        self.rng = rng
        self.chronicle = chronicle
        self.topics = topics
        """How many partitions each has."""
        self.anomalies: list[Anomaly] = []
        """What an actor found wrong by itself."""

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, count in self.topics.items() for number in range(count)]

    def suspect(self, message: str) -> None:
        """An error that a reader was told: no fault of this world explains one about damage."""
        if "unreadable" in message:
            self.anomalies.append(Anomaly("corrupt read", message))

    def wrong(self, kind: str, text: str) -> None:
        self.anomalies.append(Anomaly(kind, text))

    def now_ms(self) -> int:
        raise NotImplementedError

    def haunt(self, request: Request) -> None:
        """Have this request delivered once more, by another way and some time later. Nobody hears the answer."""
        raise NotImplementedError


class Stage(Scene):
    """A scene in simulated time, on a simulated network."""

    def __init__(self, network: SimNetwork, address: str, chronicle: Chronicle, topics: dict[str, int]) -> None:
        super().__init__(network.rng, chronicle, topics)
        self.network = network
        self.agenda = network.agenda
        self.address = address
        self.calm = False
        """Whether nothing is to go wrong any more."""
        self._ghost = SimClient("ghost", network, address)

    def now_ms(self) -> int:
        return self.agenda.clock.now_ms()

    def after_ms(self, least: int, most: int, act: Callable[[], object]) -> None:
        self.agenda.after(self.rng.randint(least * 1000, most * 1000), act)

    def haunt(self, request: Request) -> None:
        if not self.calm:
            self.after_ms(0, self.rng.choice((20, 300, 3000)), lambda: self._ghost.ask(request, lambda _: None))


class Asker:
    """One who asks, waits for the answer, and asks again: `_next`, until it is told to stop."""

    def __init__(self) -> None:
        self._asking = False
        self._stopped = False

    def begin(self) -> None:
        if not self._stopped and not self._asking:
            self._asking = True
            self._next()

    def stop(self) -> None:
        self._stopped = True

    @property
    def settled(self) -> bool:
        return not self._asking

    def _next(self) -> None:
        raise NotImplementedError


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Pause:
    least_ms: int
    most_ms: int


Story = Generator[Request | Pause, Response | None, R]
"""Yields what it wants to ask, or that it wants to wait, and is resumed with the response."""


class Storyteller(Protocol):
    name: str
    stopped: bool
    """Set by whoever drives the story: it is to come to its end."""

    def story(self) -> Story[None]: ...


class Player:
    """Drives a story over the simulated network."""

    def __init__(self, teller: Storyteller, stage: Stage, client: SimClient) -> None:
        self.teller = teller
        self._stage = stage
        self._client = client
        self._story: Story[None] | None = None

    def begin(self) -> None:
        assert self._story is None, "told once"
        self._story = self.teller.story()
        self._go_on(None)

    def stop(self) -> None:
        self.teller.stopped = True

    @property
    def settled(self) -> bool:
        return self._story is None

    def _go_on(self, response: Response | None) -> None:
        assert self._story is not None
        try:
            step = self._story.send(response)
        except StopIteration:
            self._story = None
            return
        if isinstance(step, Pause):
            self._stage.after_ms(step.least_ms, step.most_ms, lambda: self._go_on(None))
        else:
            self._client.ask(step, self._go_on)

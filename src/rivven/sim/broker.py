"""A broker with its clients on a simulated network, disk and clock: a history of faults, and what must hold after it.

For some seconds everybody works while the adversary cuts connections, stalls the network, kills the node, takes its
power, fills its disk and fails its syncs. Then all faults end, and the world must come to rest: every request is
answered, every reader reaches the end, nothing stays in memory. At last the power goes once more, everything is read
again, and the chronicle of what clients did and saw is examined.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import ClassVar, TypeVar

from rivven.broker import BrokerConfig
from rivven.log import CommitLimits, StoreConfig, SyncPolicy
from rivven.model import TopicPartition
from rivven.wire import Format, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .agenda import Agenda
from .checkers import examine
from .chronicle import Anomaly, Chronicle, Final
from .client import SimClient
from .clock import SimClock
from .disk import SimDisk
from .network import SimNetwork, Weather
from .node import SimNode
from .producing import Producer
from .reading import READ_COMMITTED, Auditor, Consumer
from .stage import Actor, Stage
from .topic_maker import Stranger, TopicMaker

ADDRESS = "node-1"
SECOND_US = 1_000_000
REST_US = 90 * SECOND_US
"""How long the world may take to come to rest once nothing goes wrong any more."""
POLICIES = ("every_write", "every_n_writes(5)", "none")


SECONDS = 6
"""How long faults last, unless somebody says otherwise."""


def replay_command(world: str, seed: int, seconds: int = SECONDS, policy: str | None = None) -> str:
    """What must be typed to see this history again."""
    command = f"python -m rivven.sim --world {world} --seed {seed}"
    if seconds != SECONDS:
        command += f" --seconds {seconds}"
    return f"{command} --policy '{policy}'" if policy else command


def differing(partition: TopicPartition, before: Final, after: Final) -> str:
    """What is not as it was before the power went."""
    found = dict(before.found.items() ^ after.found.items())
    hidden, markers = before.hidden ^ after.hidden, before.markers ^ after.markers
    bounds = [(one.start, one.last_stable, one.end) for one in (before, after)]
    return (
        f"{partition} is not what it was before the power went: bounds {bounds[0]}, now {bounds[1]}; "
        f"records {found}, hidden {sorted(hidden)}, markers {sorted(markers)} in one only"
    )


W = TypeVar("W", bound="BrokerWorld")


class BrokerWorld:
    """A node and those who use it. Other worlds have other topics and another cast."""

    name = "broker"
    topics: ClassVar[dict[str, int]] = {"orders": 2, "clicks": 1}
    """How many partitions each has."""

    def __init__(self, seed: int, *, policy: str | None = None, show: Callable[[str], object] | None = None) -> None:
        self.rng = Random(f"{self.name} {seed}")
        drawn = self.rng.choices(POLICIES, weights=(8, 1, 1))[0]
        self.policy = policy or drawn
        self._memory = Random(f"memory {seed}")
        self._show = show
        self.clock = SimClock()
        self.agenda = Agenda(self.clock)
        self.disk = SimDisk(self.rng)
        self.network = SimNetwork(self.agenda, self.rng, self._weather())
        self.chronicle = Chronicle()
        self.node = SimNode(
            ADDRESS, self.network, self.disk, self._store_config(), self._broker_config(), say=self._say
        )
        self.node.on_death.append(self._node_died)
        self.stage = Stage(self.network, ADDRESS, self.chronicle, self.topics)
        self.clients: list[SimClient] = []
        self.consumers: list[Consumer] = []
        self.actors: list[Actor] = self._cast()

    def _cast(self) -> list[Actor]:
        self.consumers = [
            Consumer(name, self.stage, self._client(name), self.stage.partitions) for name in ("anna", "bert")
        ]
        return [
            *(Producer(name, self.stage, self._client(name)) for name in ("p", "q", "r")),
            *self.consumers,
            Auditor(self.stage, self._client("auditor"), [consumer.name for consumer in self.consumers]),
            TopicMaker("brief", self.stage, self._client("maker"), self._client("watcher")),
            Stranger(self.stage),
        ]

    def _weather(self) -> Weather:
        rng = self.rng
        return Weather(
            latency_us_max=rng.choice((200, 2000, 50_000)),
            notice_us_max=rng.choice((1000, 100_000, 3 * SECOND_US)),
            shreds=rng.choice((0.0, 0.2, 0.6)),
        )

    def _store_config(self) -> StoreConfig:
        return StoreConfig(
            sync_policy=SyncPolicy.parse(self.policy),
            commit=CommitLimits(
                group_bytes=8 * 1024, group_writes=8, waiting_bytes_max=16 * 1024, eager=self.rng.random() < 0.8
            ),
            wal_file_bytes=24 * 1024,
            wal_first_file_bytes=12 * 1024,
            wal_files_max=3,
            topic_defaults={"segment.bytes": self.rng.choice(("1024", "4096")), "index.interval.bytes": "256"},
        )

    def _broker_config(self) -> BrokerConfig:
        return BrokerConfig(default_partitions=2, auto_create_topics=False, partitioner_linger_ms=50)

    def _client(self, name: str, form: Format | None = None) -> SimClient:
        drawn = self.rng.choices((Format.POSTCARD, Format.PROTOBUF), weights=(3, 1))[0]
        client = SimClient(name, self.network, ADDRESS, drawn if form is None else form)
        self.clients.append(client)
        return client

    def _say(self, text: str) -> None:
        if self._show is not None:
            self._show(f"{self.agenda.now_us() / 1e6:10.6f} {text}")

    # The history

    def run(self, seconds: int = SECONDS) -> None:
        """Live through it all. Raises AssertionError at the first broken promise."""
        self.node.start()
        self._make_topics()
        for actor in self.actors:
            self.stage.after_ms(0, 50, actor.begin)
        self.stage.after_ms(100, 800, self._strike)
        if self._memory.random() < 0.5:
            self._run_short_of_memory()
        self.agenda.run(seconds * SECOND_US)
        self._come_to_rest()
        self._audit()
        self.node.die(power_lost=self.loses_power)
        self._require("the node comes back", lambda: self.node.alive)
        self._audit()
        self._judge()

    def _make_topics(self) -> None:
        admin = self._client("admin")

        def make(name: str) -> None:
            def answered(response: Response | None) -> None:
                exists = isinstance(response, tell.Error) and "exists" in response.message
                if not isinstance(response, tell.TopicCreated) and not exists:
                    self.stage.after_ms(10, 100, lambda: make(name))

            admin.ask(ask.CreateTopic(name, self.topics[name]), answered)

        for name in self.topics:
            make(name)

    def _node_died(self) -> None:
        self.chronicle.life_ended()
        self.stage.after_ms(0, 1500, self._start_node)

    def _start_node(self) -> None:
        if not self.node.alive:
            if self.rng.random() < 0.2 and not self.stage.calm:
                self.node.halt_after(self.rng.randint(0, 60), power_lost=self._power_goes())
            self.node.start()
            self._say(f"node starts: {'up' if self.node.alive else 'fails'}")

    @property
    def loses_power(self) -> bool:
        """Whether this history may lose the power: only the strictest policy promises to survive that whole."""
        return self.policy == "every_write"

    def _power_goes(self) -> bool:
        return self.loses_power and self.rng.random() < 0.6

    # The adversary

    def _strike(self) -> None:
        if self.stage.calm:
            return
        strikes: list[tuple[int, str, Callable[[], object]]] = [
            (30, "cut", self._cut),
            (8, "cut all", self._cut_all),
            (12, "stall", lambda: self.network.stand_still(self.rng.randint(1, 2 * SECOND_US))),
            (6, "die", lambda: self.node.die(power_lost=self._power_goes())),
            (14, "die in a disk operation", self._halt),
            (3, "failing sync", lambda: self.node.fail_sync(errno.EIO, power_lost=self._power_goes())),
            (3, "stop", self.node.stop),
            (3, "fill the disk", self._fill_disk),
            (4, "jump", lambda: self.clock.jump(self.rng.choice((-3_600_000, -50, 50, 3_600_000)))),
            (8, "upkeep", self.node.upkeep),
        ]
        weights = [weight for weight, _, _ in strikes]
        _, name, strike = self.rng.choices(strikes, weights=weights)[0]
        self._say(f"adversary: {name}")
        strike()
        self.stage.after_ms(1, 500, self._strike)

    def _run_short_of_memory(self) -> None:
        """Again and again, also when all is calm: that is no fault, and nobody may notice."""
        self.disk.evict()
        self.agenda.after(self._memory.randint(0, 300_000), self._run_short_of_memory)

    def _cut(self) -> None:
        if connections := self.network.open_connections:
            self.network.cut(self.rng.choice(connections))

    def _cut_all(self) -> None:
        for connection in self.network.open_connections:
            self.network.cut(connection)

    def _halt(self) -> None:
        if self.node.alive:
            self.node.halt_after(self.rng.randint(0, 40), power_lost=self._power_goes())

    def _fill_disk(self) -> None:
        used_bytes = sum(map(len, self.disk.snapshot().values()))
        self.disk.capacity_bytes = used_bytes + self.rng.choice((0, 300, 5000))
        self.stage.after_ms(50, 1500, self._free_disk)

    def _free_disk(self) -> None:
        self.disk.capacity_bytes = None

    # The end

    def _come_to_rest(self) -> None:
        self.stage.calm = True
        self._say("all is calm")
        self.disk.let_live()
        self._free_disk()
        self._require("the node comes back", lambda: self.node.alive)
        self._recovered()
        impatient = self._impatience()
        for actor in self.actors:
            if actor not in self.consumers:
                actor.stop()
        others = [actor for actor in self.actors if actor not in self.consumers]
        self._require("everything sent is answered", lambda: all(actor.settled for actor in others))
        self._require("every reader reaches the end", lambda: all(map(self._at_end, self.consumers)))
        for consumer in self.consumers:
            consumer.stop()
        self._require("every reader is answered", lambda: all(actor.settled for actor in self.actors))
        self._require("nobody is owed an answer", lambda: not any(client.waiting for client in self.clients))
        assert self._impatience() == impatient, "a request was not answered although nothing went wrong"
        self._require("the node is idle", self._idle)
        self._settle()

    def _recovered(self) -> None:
        """What this world promises of those who are still at work, now that nothing goes wrong any more."""

    def _settle(self) -> None:
        """Wait for whatever else comes to an end by itself in this world."""

    def _require(self, what: str, holds: Callable[[], bool]) -> None:
        if not self.agenda.run(REST_US, holds):
            raise AssertionError(f"liveness: {what}: not within {REST_US // SECOND_US} s without a fault")

    def _impatience(self) -> int:
        return sum(client.impatient for client in self.clients)

    def _at_end(self, consumer: Consumer) -> bool:
        return self.node.alive and all(
            position >= self.node.store.log(*partition).high_watermark
            for partition, position in consumer.positions.items()
        )

    def _idle(self) -> bool:
        node = self.node
        assert node.inflight_bytes >= 0, "more was given back than was taken"
        return node.inflight_bytes == 0 and node.broker.waiting == 0 and node.store.waiting == 0

    def _audit(self) -> None:
        """Read everything from its start, and compare it with what was read before."""
        everything, shown = self._read_all(0), self._read_all(READ_COMMITTED)
        before = self.chronicle.finals
        self.chronicle.finals = {}
        for partition, found in everything.found.items():
            log = self.node.store.log(*partition)
            self.chronicle.finals[partition] = final = Final(
                log.start,
                log.high_watermark,
                found,
                frozenset(found.keys() - shown.found[partition].keys()),
                frozenset(everything.markers[partition]),
                log.last_stable,
            )
            assert before.get(partition, final) == final, differing(partition, before[partition], final)

    def _read_all(self, isolation: int) -> Consumer:
        reader = Consumer("last", self.stage, self._client("last"), self.stage.partitions, isolation, whole=True)
        for partition in reader.positions:
            reader.positions[partition] = self.node.store.log(*partition).start
        reader.begin()
        self._require("the last reader reaches the end", lambda: self._at_end(reader))
        reader.stop()
        self._require("the last reader is answered", lambda: reader.settled)
        return reader

    def _judge(self) -> None:
        anomalies: list[Anomaly] = self.stage.anomalies + examine(self.chronicle)
        facts = self.chronicle
        self._say(
            f"{len(facts.sends)} sends, {len(facts.polls)} polls, {len(facts.commits)} commits, "
            f"{self.node.lives} lives, {self.network.cuts} cuts, {facts.duplicates()} duplicates"
        )
        assert not anomalies, "\n".join([f"{len(anomalies)} anomalies", *map(str, anomalies[:10])])


def run_broker_history(
    seed: int,
    *,
    seconds: int = SECONDS,
    policy: str | None = None,
    show: Callable[[str], object] | None = None,
    world: type[W] = BrokerWorld,  # type: ignore[assignment]  # a default has no way to be generic
) -> W:
    """Live through one history. A broken promise raises AssertionError that ends with how to replay it."""
    lived = world(seed, policy=policy, show=show)
    try:
        lived.run(seconds)
    except Exception as error:
        error.add_note(f"policy {lived.policy}; replay: {replay_command(world.name, seed, seconds, policy)}")
        raise
    return lived

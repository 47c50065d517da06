"""Transactions, decisions and loops of real clients while a real `rivvend` is killed again and again: the simulator's
checkers over what they did and saw. `RIVVEN_SOAK_SEED` chooses the chances taken, `RIVVEN_SOAK_SECONDS` how long it
lasts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from daemon import Daemon, running
from soaking import Actor, Ghost, KafkaReader, KafkaWriter, Line, Player, Poller, RealScene, told

from rivven.model import TopicPartition
from rivven.sim import Chronicle, examine
from rivven.sim.chronicle import Final
from rivven.sim.stage import Storyteller
from rivven.sim.txn_owner import Driver, Ledger, Worker
from rivven.sim.txn_producer import LoopProducer, TxnProducer
from rivven.wire import Format
from rivven.wire import requests as ask
from rivven.wire import responses as tell

TOPICS = {"orders": 2, "inputs": 1, "outputs": 2}
REST_S = 60.0
"""How long the world may take to come to rest once nobody is killed any more."""


class Soak:
    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.daemon = daemon
        self.seed = seed
        self.rng = Random(f"soak {seed}")
        self.chronicle = Chronicle()
        self.ghost = Ghost(lambda: daemon.port)
        self.scenes: list[RealScene] = []
        self.actors: list[Actor] = []

    def scene(self, name: str) -> RealScene:
        scene = RealScene(f"{name} {self.seed}", self.chronicle, TOPICS, self.ghost)
        self.scenes.append(scene)
        return scene

    def play(self, make: Callable[[str, RealScene], Storyteller], name: str) -> None:
        scene = self.scene(name)
        form = self.rng.choice((Format.POSTCARD, Format.POSTCARD, Format.PROTOBUF))
        self.actors.append(Player(make(name, scene), scene.rng, Line(lambda: self.daemon.port, form)))

    def cast(self) -> None:
        orders = [TopicPartition("orders", number) for number in range(TOPICS["orders"])]
        inputs = [TopicPartition("inputs", 0)]
        ledger = Ledger("query")
        self.play(lambda name, scene: TxnProducer(name, scene, [*orders, *inputs]), "t")
        self.play(lambda name, scene: TxnProducer(name, scene, [*orders, *inputs]), "u")
        self.play(lambda name, scene: LoopProducer(name, scene, inputs, "outputs"), "loop")
        self.play(lambda name, scene: Driver(name, scene, ledger), "driver")
        self.play(lambda name, scene: Driver(name, scene, ledger, hesitates=True), "rival")
        for worker in ("w", "x"):
            self.play(lambda name, scene: Worker(name, scene, ledger, orders), worker)
        self.play(lambda name, scene: Poller(name, scene, committed=True), "anna")
        self.play(lambda name, scene: Poller(name, scene, committed=False), "bert")
        self.actors += [KafkaWriter(name, self.scene(name), self.daemon.port, "orders") for name in ("k", "l")]
        self.actors.append(KafkaReader("cleo", self.scene("cleo"), self.daemon.port))

    def run(self, seconds: float, kills: int) -> None:
        line = Line(lambda: self.daemon.port)
        for topic, count in TOPICS.items():
            assert isinstance(line.ask(ask.CreateTopic(topic, count)), tell.TopicCreated)
        line.close()
        self.cast()
        self.ghost.start()
        for actor in self.actors:
            actor.start()
        for _ in range(kills):
            time.sleep(self.rng.uniform(0.5, 1.5) * seconds / kills)
            self.daemon.kill()
            time.sleep(self.rng.choice((0, 0, 0.5)))
            self.daemon.start()
        time.sleep(seconds / kills / 2)
        self.end()

    def end(self) -> None:
        for actor in self.actors:
            actor.stop()
        deadline = time.monotonic() + REST_S
        for actor in self.actors:
            actor.join(max(0.1, deadline - time.monotonic()))
            assert not actor.is_alive(), f"liveness: {actor.name} has not come to an end in {REST_S} s"
            assert actor.failure is None, f"{actor.name}: {actor.failure!r}"
        self.ghost.end()
        self.read_all(deadline)
        self.daemon.kill()
        self.daemon.start()
        before = dict(self.chronicle.finals)
        self.read_all(time.monotonic() + REST_S)
        assert before == self.chronicle.finals, "a kill at rest has changed what is there"

    def read_all(self, deadline: float) -> None:
        """Everything from the start, once nothing is open any more."""
        while not (everything := self.read(committed=False))[1]:
            assert time.monotonic() < deadline, "liveness: transactions are open and do not end"
            time.sleep(0.2)
        reader, (shown, _) = everything[0], self.read(committed=True)
        for partition in reader.positions:
            found, bounds = reader.found[partition], reader.bounds[partition]
            self.chronicle.finals[partition] = Final(
                bounds.log_start_offset,
                bounds.high_watermark,
                found,
                frozenset(found.keys() - shown.found[partition].keys()),
                frozenset(reader.markers[partition]),
                bounds.last_stable_offset,
            )
        line = Line(lambda: self.daemon.port)
        for loop in self.chronicle.loops:
            for partition in loop.inputs:
                answer = line.ask(ask.GetOffset(loop.group, *partition))
                assert isinstance(answer, tell.CommittedOffset), answer
                self.chronicle.final_offsets[loop.group, partition] = answer.offset
        line.close()

    def read(self, *, committed: bool) -> tuple[Poller, bool]:
        """Up to the end, as far as that may be read; and whether it is stable up to there."""
        scene = self.scene("last")
        reader = Poller("last", scene, committed=committed)
        line = Line(lambda: self.daemon.port)
        story = reader.story()
        step = next(story)
        while not (reader.bounds.keys() == reader.positions.keys() and self.at_end(reader, committed)):
            step = story.send(line.ask(step) if not hasattr(step, "least_ms") else None)
        line.close()
        return reader, all(bounds.last_stable_offset == bounds.high_watermark for bounds in reader.bounds.values())

    @staticmethod
    def at_end(reader: Poller, committed: bool) -> bool:
        return all(
            position >= (bounds.last_stable_offset if committed else bounds.high_watermark)
            for partition, position in reader.positions.items()
            for bounds in (reader.bounds[partition],)
        )

    def judge(self) -> None:
        anomalies = [anomaly for scene in self.scenes for anomaly in scene.anomalies] + examine(self.chronicle)
        assert not anomalies, f"seed {self.seed}: {told(anomalies)}"


def soak(home: Path, seed: int, seconds: float, kills: int) -> Chronicle:
    with running(home) as daemon:
        daemon.flags = (*daemon.flags, "--bind", f"127.0.0.1:{daemon.port}")  # where Kafka's clients come back to
        lived = Soak(daemon, seed)
        lived.run(seconds, kills)
        lived.judge()
        return lived.chronicle


def test_transactions_survive_two_kills(tmp_path: Path) -> None:
    chronicle = soak(tmp_path, seed=1, seconds=4.0, kills=2)
    ended = [txn for txn in chronicle.txns if txn.to_commit]
    assert len(ended) > 20
    assert any(txn.name.startswith("k-") for txn in ended), "Kafka's client has committed, too"
    assert any(decision.repeated for decision in chronicle.decisions) or len(chronicle.decisions) > 3


@pytest.mark.soak
def test_transactions_survive_many_kills(tmp_path: Path) -> None:
    seed = int(os.environ.get("RIVVEN_SOAK_SEED", "1000000"))
    seconds = float(os.environ.get("RIVVEN_SOAK_SECONDS", "60"))
    soak(tmp_path, seed, seconds, kills=max(2, int(seconds / 3)))

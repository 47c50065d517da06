"""Consumers that come and go at random while records are written, and an account that knows what they may see.

A driver like the others, in a process of its own: start, crash, calm, settle, state, stop.

Rules of the account, for every record that a member is given:
- it is not older than what was known to be committed when the member got the partition: what a rebalance allows;
- it comes in the order of offsets, and no offset ever holds two values;
- no partition has two owners, but between a crash of the broker and the calm after it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from serving import serve

SESSION_MS, REBALANCE_MS, HEARTBEAT_MS = 10_000, 30_000, 300
COMMIT_S = 0.3
PAUSE_S = 0.002


class Account:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acked: dict[tuple[int, int], str] = {}
        self.given: dict[tuple[int, int], str] = {}
        self.twice = 0
        self.faults: list[str] = []
        self._committed: dict[int, int] = defaultdict(int)
        self._owners: dict[int, set[str]] = defaultdict(set)
        self._position: dict[tuple[str, int], int] = {}
        self.forgiving = False
        """From a crash to the calm: a member may not have heard yet that its partition went to another."""

    def ack(self, partition: int, offset: int, value: str) -> None:
        with self._lock:
            if (partition, offset) in self.acked:
                self.faults.append(f"{partition}:{offset} was acknowledged for two records")
            self.acked[partition, offset] = value

    def gain(self, member: str, partitions: list[int]) -> None:
        with self._lock:
            for partition in partitions:
                others = self._owners[partition] - {member}
                if others and not self.forgiving:
                    self.faults.append(f"{member} got {partition} while {others} had it")
                self._owners[partition].add(member)
                self._position[member, partition] = self._committed[partition]

    def lose(self, member: str, partitions: list[int]) -> None:
        with self._lock:
            for partition in partitions:
                self._owners[partition].discard(member)

    def give(self, member: str, partition: int, offset: int, value: str) -> None:
        with self._lock:
            least = self._position.get((member, partition), 0)
            if offset < least:
                self.faults.append(f"{member} was given {partition}:{offset} again; {least} was next")
            self._position[member, partition] = offset + 1
            self.twice += (partition, offset) in self.given
            known = self.given.setdefault((partition, offset), value)
            if known != value:
                self.faults.append(f"{partition}:{offset} was {known!r}, and then {value!r}")

    def commit(self, places: list[TopicPartition]) -> None:
        with self._lock:
            for place in places:
                if place.error is None and place.offset >= 0:
                    self._committed[place.partition] = max(self._committed[place.partition], place.offset)

    def owners(self) -> dict[int, list[str]]:
        with self._lock:
            return {partition: sorted(members) for partition, members in self._owners.items()}

    def lost(self) -> list[tuple[int, int]]:
        with self._lock:
            return [place for place, value in self.acked.items() if self.given.get(place) != value]


class Churn:
    def __init__(self, servers: str, topic: str, partitions: int, kind: str, consumers: int, seed: int) -> None:
        self._servers, self._topic, self._partitions, self._kind = servers, topic, partitions, kind
        self.account = Account()
        self._stop_writing, self._settle, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._write)]
        self._threads += [
            threading.Thread(target=self._come_and_go, args=(slot, random.Random(seed * 1_000 + slot)))
            for slot in range(consumers)
        ]
        self.failures: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def settle(self) -> None:
        """No more records, and whoever is a member stays one."""
        self._settle.set()
        self._stop_writing.set()
        self._threads[0].join()

    def stop(self) -> None:
        self._stop_writing.set()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    # Writing

    def _write(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        number = 0
        while not self._stop_writing.is_set():
            value = str(number)
            producer.produce(self._topic, value, partition=number % self._partitions, on_delivery=self._delivered)
            producer.poll(PAUSE_S)
            number += 1
        if producer.flush(60):
            self.failures.append("some records were never acknowledged")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.account.ack(message.partition(), message.offset(), message.value().decode())

    # Reading

    def _come_and_go(self, slot: int, rng: random.Random) -> None:
        try:
            life = 0
            while not self._stop.is_set():
                self._stop.wait(rng.uniform(0, 1))
                life += 1
                self._live(f"{slot}.{life}", rng.uniform(1, 5))
        except BaseException as error:
            self.failures.append(repr(error))

    def _live(self, name: str, seconds: float) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": self._servers,
            "group.id": "churn",
            "client.id": name,
            "log_level": 0,  # it would tell that the broker is gone, which we know
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "max.poll.interval.ms": REBALANCE_MS,
        }
        if self._kind == "consumer":
            settings["group.protocol"] = "consumer"
        else:
            settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        consumer = Consumer(settings)

        def lost(_: Consumer, places: list[TopicPartition]) -> None:
            self._commit(consumer)
            self.account.lose(name, [place.partition for place in places])

        consumer.subscribe(
            [self._topic],
            on_assign=lambda _, places: self.account.gain(name, [place.partition for place in places]),
            on_revoke=lost,
            on_lost=lambda _, places: self.account.lose(name, [place.partition for place in places]),
        )
        end, commit_at = time.monotonic() + seconds, time.monotonic() + COMMIT_S
        while not self._stop.is_set() and (time.monotonic() < end or self._settle.is_set()):
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.account.give(name, message.partition(), message.offset(), message.value().decode())
            if time.monotonic() > commit_at:
                self._commit(consumer)
                commit_at = time.monotonic() + COMMIT_S
        consumer.close()

    def _commit(self, consumer: Consumer) -> None:
        """One that fails is one more that a rebalance allows to be given again."""
        try:
            self.account.commit(consumer.commit(asynchronous=False))
        except KafkaException:
            return


plays: list[Churn] = []


def start(servers: str, topic: str, partitions: int, kind: str, consumers: int, seed: int) -> None:
    plays.append(Churn(servers, topic, partitions, kind, consumers, seed))
    plays[0].start()


def crash() -> None:
    plays[0].account.forgiving = True


def calm() -> None:
    plays[0].account.forgiving = False


def state() -> dict[str, Any]:
    account = plays[0].account
    return {
        "owners": {str(partition): members for partition, members in account.owners().items()},
        "lost": len(account.lost()),
        "acked": len(account.acked),
        "twice": account.twice,
        "faults": account.faults,
        "failures": plays[0].failures,
    }


def stop() -> dict[str, Any]:
    plays[0].stop()
    return state()


if __name__ == "__main__":
    serve(
        {
            "start": start,
            "crash": crash,
            "calm": calm,
            "settle": lambda: plays[0].settle(),
            "state": state,
            "stop": stop,
        }
    )

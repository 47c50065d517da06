"""A bank whose accounts live in the partitions of two topics: tellers move money in transactions, an auditor counts.

A transfer is some notes, each a record: who gives or gets how much, and how many notes there are.
A teller is one real client that may be killed with a transfer half written. The auditor reads what is committed all
the time, from the first record to the last, and sees to it that

- no note is there twice, and the notes of a transfer add up to nothing;
- a transfer of which it has read a part is soon there as a whole;
- whenever there is no half transfer, all notes add up to the total that the bank began with.

Partitions are read one after the other, and within one an open transaction holds back whatever follows its first
record, also the rest of another that has ended: this is why a reader sees halves at all, for a while.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from clients import Ended, Peer
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

TOPICS, PARTITIONS, ACCOUNTS, OPENING = ("checking", "savings"), 2, 12, 100
PLACES = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
TOTAL = ACCOUNTS * OPENING
DEPOSIT = "deposit"
TIMEOUT_MS = 20_000
"""Of a transaction; what a teller that was killed has left open is aborted earlier, by its successor."""
HALF_S = 30.0
"""For how long a reader may have a part of a transfer: longer than any transaction can be open."""
KILL_WITHIN_S = 0.03
OPEN_S = 60.0
AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)
Place = tuple[str, int]
Note = tuple[str, int, str]


def notes_of(name: str, changes: list[tuple[int, int]]) -> list[Note]:
    """The records of a transfer: account and change of each."""
    return [
        (
            *PLACES[account % len(PLACES)],
            json.dumps(
                {
                    "transfer": name,
                    "note": number,
                    "notes": len(changes),
                    "account": account,
                    "change": change,
                }
            ),
        )
        for number, (account, change) in enumerate(changes)
    ]


def random_transfer(name: str, rng: Random) -> list[Note]:
    """One account gives to one or more others, some of them perhaps in its own partition."""
    giver, *takers = rng.sample(range(ACCOUNTS), rng.randint(2, 5))
    gifts = [(taker, rng.randint(1, OPENING)) for taker in takers]
    changes = [(giver, -sum(gift for _, gift in gifts)), *gifts]
    rng.shuffle(changes)
    return notes_of(name, changes)


class Teller:
    """One client that makes transfers until it is told to stop, in a thread of the test."""

    def __init__(self, name: str, servers: str, start_peer: Callable[[], Peer], rng: Random, kills: float) -> None:
        self.name = name
        self._servers, self._start_peer, self._rng, self._kills = servers, start_peer, rng, kills
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live)
        self._peer = start_peer()
        self._producer: int | None = None
        self.committed: set[str] = set()
        self.aborted: set[str] = set()
        self.unknown: set[str] = set()
        """Whether they were committed only the broker knows."""
        self.killed = 0
        self.failures: list[str] = []
        """Transfers that the client gave up by itself, with its words."""
        self.crash: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def close(self) -> None:
        """Whatever it is doing."""
        self._stopping.set()
        self._peer.kill()
        if self._thread.is_alive():
            self._thread.join()
        self._peer.close()

    def _live(self) -> None:
        try:
            for number in count():
                producer = self._opened()
                if self._stopping.is_set():
                    break  # whoever was before it has left nothing open
                self._transfer(producer, f"{self.name}-{number}")
        except BaseException as crash:
            self.crash = crash

    def _opened(self) -> int:
        """The producer, once it is ready; a new one finds an end for what the last one has left."""
        opening = {"servers": self._servers, "name": f"teller-{self.name}", "timeout_ms": TIMEOUT_MS}
        deadline_s = time.monotonic() + OPEN_S
        while self._producer is None:
            answer = self._peer.attempt("open", **opening)
            self._producer = answer.get("ok")
            assert time.monotonic() < deadline_s, answer
            if self._producer is None:
                time.sleep(0.2)  # the broker is away, and not every client waits for it to come back
        return self._producer

    def _transfer(self, producer: int, name: str) -> None:
        notes = random_transfer(name, self._rng)
        if self._rng.random() < self._kills:
            self._transfer_and_die(producer, name, notes)
            return
        commit = self._rng.random() < 0.75
        answer = self._peer.attempt("transfer", producer=producer, notes=notes, end="commit" if commit else "abort")
        if "error" not in answer:
            (self.committed if commit else self.aborted).add(name)
            return
        (self.unknown if commit else self.aborted).add(name)
        self.failures.append(answer["error"])
        self._peer.attempt("abandon", producer=producer)
        self._producer = None

    def _transfer_and_die(self, producer: int, name: str, notes: list[Note]) -> None:
        """The client is killed when it has written everything and not ended it, or at any moment."""
        self.killed += 1
        if self._rng.random() < 0.5:
            self._peer.attempt("transfer", producer=producer, notes=notes, end="leave")
            self.aborted.add(name)
            self._peer.kill()
        else:
            timer = threading.Timer(self._rng.uniform(0, KILL_WITHIN_S), self._peer.kill)
            timer.start()
            try:
                answer = self._peer.attempt("transfer", producer=producer, notes=notes, end="commit")
                (self.unknown if "error" in answer else self.committed).add(name)
            except Ended:
                self.unknown.add(name)
            timer.join()
        self._peer.close()
        self._peer, self._producer = self._start_peer(), None


class Auditor:
    """Reads what is committed all the time, in a thread of the test."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live)
        self.books: dict[Place, list[str]] = {place: [] for place in PLACES}
        """The notes of each partition, in order."""
        self.whole: set[str] = set()
        self.faults: list[str] = []
        self.balances = 0
        """How often there was no half transfer, and the sum of everything was looked at."""
        self.crash: BaseException | None = None
        self._parts: dict[str, Half] = {}
        self._sum = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After it has read everything that there is by now."""
        self._stopping.set()
        self._thread.join()

    def close(self) -> None:
        if self._thread.is_alive():
            self.stop()

    def unfinished(self) -> list[str]:
        return sorted(self._parts)

    def _live(self) -> None:
        try:
            with closing(Reader(self._servers)) as reader:
                while not self._stopping.is_set():
                    self._audit(reader.read())
                while not reader.at_end():
                    self._audit(reader.read())
        except BaseException as crash:
            self.crash = crash

    def _audit(self, notes: list[tuple[Place, str]]) -> None:
        for place, text in notes:
            self.books[place].append(text)
            self._enter(place, json.loads(text))
            if not self._parts:
                self.balances += 1
                if self._sum != TOTAL:
                    self.faults.append(f"there is {self._sum} in the bank after {len(self.whole)} transfers")
        late_s = time.monotonic() - HALF_S
        self.faults += [
            f"{name} is half there: {half}" for name, half in self._parts.items() if half.since_s < late_s
        ]

    def _enter(self, place: Place, note: dict[str, Any]) -> None:
        name = note["transfer"]
        half = self._parts.setdefault(name, Half(time.monotonic()))
        if name in self.whole or note["note"] in half.changes:
            self.faults.append(f"{place} has {note} again")
        half.changes[note["note"]] = note["change"]
        self._sum += note["change"]
        if len(half.changes) < note["notes"]:
            return
        if sum(half.changes.values()) != (TOTAL if name == DEPOSIT else 0):
            self.faults.append(f"{name} does not add up: {half}")
        self.whole.add(name)
        del self._parts[name]


@dataclass
class Half:
    """A transfer of which not all notes were read yet: their changes by number."""

    since_s: float
    changes: dict[int, int] = field(default_factory=dict)


class Reader:
    """A read_committed consumer of all partitions, from their beginning."""

    def __init__(self, servers: str) -> None:
        settings = {"bootstrap.servers": servers, "group.id": "auditor", "isolation.level": "read_committed"}
        self._consumer = Consumer(
            {
                **settings,
                "enable.auto.commit": False,
                "enable.partition.eof": True,  # markers count as read when it says so
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(*place, 0) for place in PLACES])
        self._reached = dict.fromkeys(PLACES, 0)

    def read(self) -> list[tuple[Place, str]]:
        """What has come in a moment."""
        found = []
        for message in self._consumer.consume(200, 0.05):
            place, error = (message.topic(), message.partition()), message.error()
            if error is None:
                found.append((place, message.value().decode()))
                self._reached[place] = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._reached[place] = max(self._reached[place], message.offset())
            elif error.code() not in AWAY:
                raise KafkaException(error)
        return found

    def at_end(self) -> bool:
        ends = {place: self._consumer.get_watermark_offsets(TopicPartition(*place), 10)[1] for place in PLACES}
        return all(self._reached[place] >= end for place, end in ends.items())

    def close(self) -> None:
        self._consumer.close()

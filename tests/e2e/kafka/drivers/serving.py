"""What the drivers in Python share: one question a line on stdin, one answer a line on stdout, both JSON.

A driver makes one client library do what the tests ask of all of them; README.md lists the questions.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Protocol

READ_S = 20.0
"""A reader that has not seen everything by then answers with what it has."""
SESSION_MS, HEARTBEAT_MS = 6_000, 300
QUIET_S = 0.3
"""How long a reader that has seen what it was told to expect goes on looking for more."""


def to_text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(bytes(data)).decode()


def to_bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def told(key: bytes | None, value: bytes | None, headers: Any, timestamp_ms: int) -> dict[str, Any]:
    """A record as an answer tells it."""
    pairs = [[name, to_text(data)] for name, data in headers or ()]
    return {"key": to_text(key), "value": to_text(value), "headers": pairs, "timestamp": timestamp_ms}


class Asked:
    """A record as a question tells it."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.key, self.value = to_bytes(record["key"]), to_bytes(record["value"])
        self.headers = [(name, to_bytes(data)) for name, data in record["headers"]]
        self.timestamp_ms = record["timestamp"]


class Seen:
    """What one member of a group has been given: partitions, and records."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._assigned: set[int] = set()
        self._got: list[list[Any]] = []
        self.stopping = threading.Event()

    def assign(self, partitions: set[int]) -> None:
        with self._lock:
            self._assigned = partitions

    def gain(self, partitions: set[int]) -> None:
        with self._lock:
            self._assigned = self._assigned | partitions

    def lose(self, partitions: set[int]) -> None:
        with self._lock:
            self._assigned = self._assigned - partitions

    def get(self, partition: int, offset: int, value: bytes) -> None:
        with self._lock:
            self._got.append([partition, offset, value.decode()])

    def told(self) -> dict[str, Any]:
        with self._lock:
            return {"assigned": sorted(self._assigned), "got": list(self._got)}


class Looked:
    """What a reader finds in some topics: each value of partition 0, and where that ends for its isolation level."""

    def __init__(self, topics: dict[str, int]) -> None:
        self._wanted = topics
        self._values: dict[str, list[str]] = {topic: [] for topic in topics}
        self.ends: dict[str, int] = {}
        self._deadline_s = time.monotonic() + READ_S
        self._done_s: float | None = None

    def see(self, topic: str, value: bytes) -> None:
        self._values[topic].append(value.decode())

    def goes_on(self) -> bool:
        now_s = time.monotonic()
        if self._done_s is None and all(len(self._values[topic]) >= count for topic, count in self._wanted.items()):
            self._done_s = now_s
        return now_s < (self._deadline_s if self._done_s is None else self._done_s + QUIET_S)

    def told(self) -> dict[str, Any]:
        return {topic: {"values": values, "end": self.ends.get(topic)} for topic, values in self._values.items()}


class Transactional(Protocol):
    """A transactional producer of one client, ready to begin."""

    def begin(self) -> None: ...
    def write(self, topic: str, partition: int, values: list[str]) -> None:
        """Returns once all are acknowledged."""

    def end(self, commit: bool) -> None: ...
    def work(self, servers: str, group: str, source: str, target: str, count: int) -> None:
        """As a member of the group, that many records of the source become records of the target."""

    def abandon(self) -> None:
        """Without a word to the broker, as a crash does."""


def transactions(open_one: Callable[[str, str, int], Transactional]) -> dict[str, Callable[..., Any]]:
    """The questions about transactions, for a client that is opened with servers, transactional id and timeout."""
    opened: list[Transactional] = []

    def begin_with(servers: str, name: str, timeout_ms: int) -> int:
        opened.append(open_one(servers, name, timeout_ms))
        return len(opened) - 1

    def transfer(producer: int, notes: list[tuple[str, int, str]], end: str) -> None:
        one = opened[producer]
        one.begin()
        for topic, partition, note in notes:
            one.write(topic, partition, [note])
        finish(one, end)

    def work(producer: int, end: str, **where: Any) -> None:
        one = opened[producer]
        one.begin()
        one.work(**where)
        finish(one, end)

    def finish(one: Transactional, end: str) -> None:
        if end != "leave":
            one.end(end == "commit")

    return {
        "open": begin_with,
        "begin": lambda producer: opened[producer].begin(),
        "write": lambda producer, **what: opened[producer].write(**what),
        "end": lambda producer, commit: opened[producer].end(commit),
        "transfer": transfer,
        "work": work,
        "abandon": lambda producer: opened[producer].abandon(),
    }


def made_of(value: bytes) -> bytes:
    return b"made of " + value


def serve(questions: dict[str, Callable[..., Any]]) -> None:
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"ok": questions[question.pop("op")](**question)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)

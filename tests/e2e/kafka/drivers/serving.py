"""What the drivers in Python share: one question a line on stdin, one answer a line on stdout, both JSON.

A driver makes one client library do what the tests ask of all of them; README.md lists the questions.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

READ_S = 20.0
"""A reader that has not seen everything by then answers with what it has."""
SESSION_MS, HEARTBEAT_MS = 6_000, 300


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


def serve(questions: dict[str, Callable[..., Any]]) -> None:
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"ok": questions[question.pop("op")](**question)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)

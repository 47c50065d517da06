"""kcat by its command line, with the answers of a driver."""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import threading
from itertools import groupby
from pathlib import Path
from typing import Any

from clients import ANSWER_S, kcat_command

BETWEEN = "\x1f"
"""Between key and value, on its input; `\\x1e` ends a record."""
HEAD = re.compile(rb"(-?\d+) (-?\d+) (-?\d+)\n")
REBALANCED = re.compile(r"rebalanced.*: (assigned|revoked): ?(.*)$")


def to_text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def plain(text: str | None) -> bytes:
    return b"" if text is None else base64.b64decode(text)


class Kcat:
    """The same questions that `Peer` takes."""

    def __init__(self, log_path: Path) -> None:
        self._command, env = kcat_command()
        self._env = os.environ | env
        self._log_path = log_path
        self._members: list[Member] = []

    def ask(self, op: str, **question: Any) -> Any:
        return getattr(self, f"_{op}")(**question)

    def close(self) -> None:
        for member in self._members:
            member.end()

    def run(self, *arguments: str, given: bytes = b"") -> bytes:
        done = subprocess.run(
            [*self._command, *arguments],
            input=given,
            env=self._env,
            capture_output=True,
            timeout=ANSWER_S,
            check=False,
        )
        assert done.returncode == 0, f"kcat {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout

    def _version(self) -> str:
        found = re.search(r"Version (\S+)", self.run("-V").decode())
        assert found is not None
        return found[1]

    def _produce(self, servers: str, topic: str, codec: str, records: list[dict[str, Any]], partition: int) -> None:
        """One run for each row of records that have the same headers: it gives them to all that it sends."""
        for headers, group in groupby(records, key=lambda record: record["headers"]):
            given = b"\x1e".join(plain(one["key"]) + BETWEEN.encode() + plain(one["value"]) for one in group)
            marks = [argument for name, data in headers for argument in ("-H", f"{name}={plain(data).decode()}")]
            settings = ["-X", "enable.idempotence=true", "-z", codec, "-Z", "-K", BETWEEN, "-D", "\x1e"]
            place = ["-b", servers, "-t", topic, "-p", str(partition)]
            self.run("-P", *place, *settings, *marks, given=given)

    def _read(self, servers: str, topics: dict[str, int]) -> dict[str, list[Any]]:
        how = ["-o", "beginning", "-e", "-q", "-X", "fetch.wait.max.ms=20", "-f", "%T %K %S\n%k%s\n%h\n"]
        return {topic: parsed(self.run("-C", "-b", servers, "-t", topic, "-p", "0", *how)) for topic in topics}

    def _look(self, servers: str, topics: dict[str, int], committed: bool) -> dict[str, Any]:
        isolation = f"isolation.level={'read_committed' if committed else 'read_uncommitted'}"
        how = ["-o", "beginning", "-e", "-q", "-X", "fetch.wait.max.ms=20", "-X", isolation, "-f", "%s\n"]
        found = {topic: self.run("-C", "-b", servers, "-t", topic, "-p", "0", *how) for topic in topics}
        return {topic: {"values": said.decode().splitlines(), "end": None} for topic, said in found.items()}

    def _join(self, servers: str, group: str, topic: str, kind: str) -> int:
        assert kind == "classic"
        command = [*self._command, "-b", servers, "-G", group, "-u", "-f", "%p %o %s\n"]
        command += ["-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=300"]
        command += ["-X", "auto.offset.reset=earliest", "-X", "fetch.wait.max.ms=100", topic]
        self._members.append(Member(command, self._env))
        return len(self._members) - 1

    def _state(self, member: int) -> dict[str, Any]:
        return self._members[member].told()

    def _leave(self, member: int) -> dict[str, Any]:
        self._members[member].end()
        return self._members[member].told()


class Member:
    """A kcat in a group. It tells its partitions on stderr, as they come and go."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._assigned: set[int] = set()
        self._got: list[list[Any]] = []
        self._lines: list[str] = []
        self._threads = [threading.Thread(target=work) for work in (self._read_records, self._read_news)]
        for thread in self._threads:
            thread.start()

    def _read_records(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            partition, offset, value = line.split()
            self._got.append([int(partition), int(offset), value])

    def _read_news(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)
            found = REBALANCED.search(line)
            if found is not None:
                named = {int(number) for number in re.findall(r"\[(\d+)\]", found[2])}
                self._assigned = named if found[1] == "assigned" else set()

    def told(self) -> dict[str, Any]:
        return {"assigned": sorted(self._assigned), "got": list(self._got)}

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            for thread in self._threads:
                thread.join()
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()


def parsed(output: bytes) -> list[dict[str, Any]]:
    """Records as our format has written them: times and lengths, the data, and the headers."""
    found, at = [], 0
    while at < len(output):
        head = HEAD.match(output, at)
        assert head is not None, output[at : at + 200]
        timestamp, key_bytes, value_bytes = map(int, head.groups())
        at = head.end()
        key = None if key_bytes < 0 else output[at : at + key_bytes]
        at += max(key_bytes, 0)
        value = None if value_bytes < 0 else output[at : at + value_bytes]
        at += max(value_bytes, 0) + 1
        line, _, _ = output[at:].partition(b"\n")
        at += len(line) + 1
        pairs = [pair.partition("=") for pair in line.decode().split(",") if pair]
        headers = [[name, None if data == "NULL" else to_text(data.encode())] for name, _, data in pairs]
        found.append({"key": to_text(key), "value": to_text(value), "headers": headers, "timestamp": timestamp})
    return found

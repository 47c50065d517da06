"""The `rivvend` that the demo starts, kills and starts again: one process at a time, on ports that stay the same."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

READY = re.compile(r"rivvend ready: native protocol on (\S+), .*recovered in (\d+) ms")
READY_S_MAX = 30.0
STOP_S_MAX = 10.0


class Failed(Exception):
    """The demo cannot go on; the text says why."""


class Syncs(NamedTuple):
    """What `/metrics` says about the write-ahead log of one process."""

    number: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0

    def and_then(self, later: Syncs) -> Syncs:
        """With those of the process that came after it."""
        longest_s = max(self.longest_s, later.longest_s)
        return Syncs(self.number + later.number, self.seconds + later.seconds, longest_s)


class Daemon:
    def __init__(self, home: Path, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.bind = "127.0.0.1:0"
        """Where it listens; the port is known once it was ready, and the same ever after."""
        self.recovered_ms = 0
        self.started_s = self.ready_s = self.killed_s = 0.0
        self._http_port = free_port()
        self._said_path = home / "rivvend.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = Syncs()
        """Of the processes before this one."""
        self._syncs = Syncs()

    @property
    def state(self) -> str:
        if self._process is None or self._process.poll() is not None:
            return "dead"
        return "up" if self.ready_s > self.started_s else "starting"

    @property
    def was_killed(self) -> bool:
        """By us, since its last start."""
        return self.killed_s > self.started_s

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self._http_port}/metrics"

    def start(self) -> None:
        """Start it; `check_ready` tells when it serves. Every write is synced before its ack, as is the default."""
        assert self.state == "dead", "one at a time"
        command = [str(Path(sys.executable).with_name("rivvend")), "--data-dir", str(self.data_dir)]
        command += ["--bind", self.bind, "--http-port", str(self._http_port), "--sync-policy", "every_write"]
        self._forget()
        self.started_s = time.monotonic()
        with open(self._said_path, "ab") as said:
            # In a session of its own: Ctrl-C is for the demo, which then ends what it started.
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=said, env=plain_environment(), start_new_session=True
            )

    def check_ready(self, wait_s: float = 0.0) -> bool:
        """Whether it has become ready since the start. Raises `Failed` if it ended or takes too long."""
        if self.state != "starting":
            return self.state == "up"
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], wait_s)
        if readable:
            line = self._process.stdout.readline().decode()
            if (found := READY.match(line)) is None:
                raise Failed(f"rivvend did not start: {line.strip() or self.last_words()}")
            self.bind, self.recovered_ms, self.ready_s = found[1], int(found[2]), time.monotonic()
        elif time.monotonic() - self.started_s > READY_S_MAX:
            raise Failed(f"rivvend was not ready after {READY_S_MAX:.0f} s: {self.last_words()}")
        return bool(readable)

    def last_words(self) -> str:
        lines = self._said_path.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    def kill(self) -> None:
        """SIGKILL: no warning, no handler, no flush."""
        assert self._process is not None
        self.killed_s = time.monotonic()
        self._process.kill()

    def stop(self) -> None:
        """Ask it to stop in good order."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._forget()

    def end(self) -> None:
        """Whatever it is at, let nothing stay behind."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def _forget(self) -> None:
        if self._process is not None:
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
        self._ended, self._syncs = self._ended.and_then(self._syncs), Syncs()

    def syncs(self) -> Syncs:
        """Of all processes so far, as of the last time that one answered."""
        if self.state == "up":
            try:
                with urlopen(self.metrics_url, timeout=2) as page:
                    self._syncs = parse_syncs(page.read().decode())
            except OSError:
                pass  # it has just been killed: the last figures stand
        return self._ended.and_then(self._syncs)


def parse_syncs(page: str) -> Syncs:
    """Of the text that Prometheus reads.

    >>> parse_syncs("rivven_wal_syncs_total 4.0\\nrivven_sync_latency_seconds_sum 0.5")
    Syncs(number=4, seconds=0.5, longest_s=0.0)
    """
    rows = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("rivven_") and " " in line)
    return Syncs(
        int(float(rows.get("rivven_wal_syncs_total", 0))),
        float(rows.get("rivven_sync_latency_seconds_sum", 0)),
        float(rows.get("rivven_sync_latency_max_seconds", 0)),
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def plain_environment() -> dict[str, str]:
    """Ours without the variables that would configure the daemon otherwise than the demo says."""
    return {
        name: text for name, text in os.environ.items() if name == "RIVVEN_PURE" or not name.startswith("RIVVEN_")
    }

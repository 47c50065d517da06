"""A real `rivvend` as a child: started, watched, stopped and killed. No other process is ever touched."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raw import Closed, Raw

READY = re.compile(r"rivvend ready: native protocol on 127\.0\.0\.1:(\d+), ")
START_S = 20.0
STOP_S = 20.0
PROMPT_S = 5.0
"""How soon a small request must be answered whatever else goes on: generous, for machines that are busy."""


class Daemon:
    """One data directory and the process that serves it now. What it says is kept in files beside the data."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.data_dir = home / "data"
        self.flags = flags
        self.port = 0
        self.ready_line = ""
        self.descriptors_max: int | None = None
        """How many descriptors the next process may have; None leaves it at ours."""
        self.environment: dict[str, str] = {}
        """What the next process finds in its environment beside ours."""
        self._errors_path = home / "errors.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Daemon:
        assert self._process is None or self._process.poll() is not None, "one at a time"
        command = [str(Path(sys.executable).with_name("rivvend")), "--data-dir", str(self.data_dir)]
        command += ["--bind", "127.0.0.1:0", "--http-port", "0", *self.flags]
        if self.descriptors_max is not None:
            command = ["sh", "-c", f'ulimit -n {self.descriptors_max}; exec "$0" "$@"', *command]
        with open(self._errors_path, "ab") as errors:
            environment = {**os.environ, **self.environment}
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
        self.ready_line = self._read_line()
        found = READY.match(self.ready_line)
        assert found is not None, f"said {self.ready_line!r} and {self.errors()}"
        self.port = int(found[1])
        return self

    def _read_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S)
        assert readable, f"not ready after {START_S} s: {self.errors()}"
        return self._process.stdout.readline().decode()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def errors(self) -> str:
        return self._errors_path.read_text() if self._errors_path.exists() else ""

    def client(self, timeout_s: float = 30.0) -> Raw:
        return Raw(self.port, timeout_s)

    def rss_bytes(self) -> int:
        return self._memory("VmRSS:")

    def peak_bytes(self) -> int:
        """The most memory it has had since `forget_peak`."""
        return self._memory("VmHWM:")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _memory(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name}")

    def kill(self) -> None:
        """As a power cut does, but for the page cache."""
        self._end(signal.SIGKILL)

    def stop(self) -> float:
        """Ask it to stop; how many seconds that took."""
        begun = time.monotonic()
        code = self._end(signal.SIGTERM)
        assert code == 0, f"ended with {code}: {self.errors()}"
        return time.monotonic() - begun

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        process = self._process
        process.send_signal(number)
        try:
            code = process.wait(STOP_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        return code

    def end(self) -> None:
        if self.alive:
            self.kill()

    def assert_well(self, pid: int) -> None:
        """Still the same process, and it answers a newcomer promptly.

        Whoever hung up counts for its address until that was noticed, so a newcomer may have to ask again.
        """
        assert self.alive, self.errors()
        assert self.pid == pid
        until = time.monotonic() + PROMPT_S
        answer = None
        while answer is None and time.monotonic() < until:
            with self.client(PROMPT_S) as client, suppress(Closed):
                answer = client.call("Ping")
        assert answer == ("Pong", ())
        assert time.monotonic() < until


@contextmanager
def running(home: Path, *flags: str) -> Iterator[Daemon]:
    daemon = Daemon(home, *flags).start()
    try:
        yield daemon
    finally:
        daemon.end()


def descriptors_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

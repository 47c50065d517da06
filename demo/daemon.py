"""The processes that the demo starts, kills and starts again: the broker, and the driver of the pipeline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

READY = b"rivvend ready:"
READY_S_MAX = 30.0
STOP_S_MAX = 30.0


class Failed(Exception):
    """The demo cannot go on; the text says why."""


class Process:
    """One command at a time, in a process group of its own: Ctrl-C is for the demo, and nothing stays behind."""

    def __init__(self, command: list[str], said: Path, environment: dict[str, str]) -> None:
        self._command = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
        self._said = said
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    def start(self) -> None:
        assert self._process is None, "one at a time"
        with open(self._said, "ab") as said:
            self._process = subprocess.Popen(
                self._command,
                stdout=said,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL to it and to whatever it has started: no warning, no handler, no flush."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Ask it to stop in good order."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S_MAX)
            self.kill()

    def last_words(self) -> str:
        lines = self._said.read_text(errors="replace").splitlines() if self._said.exists() else []
        return lines[-1] if lines else "it said nothing"


class Broker(Process):
    """`rivvend`, which syncs every write before it acknowledges it, as is the default."""

    def __init__(self, home: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        flags = ["--data-dir", str(home / "data"), "--bind", self.address, "--http-port", "0"]
        super().__init__(["rivvend", *flags], home / "rivvend.log", plain_environment())

    def start(self) -> None:
        """Start it, and wait until it serves."""
        begun = self._said.stat().st_size if self._said.exists() else 0
        super().start()
        deadline = time.monotonic() + READY_S_MAX
        while READY not in self._said.read_bytes()[begun:]:
            if self.exit_code is not None or time.monotonic() > deadline:
                raise Failed(f"rivvend did not come up: {self.last_words()}")
            time.sleep(0.02)


class Driver(Process):
    """`rivven-connect run`, which holds Spark: the driver, and on this one machine the workers as well."""

    def __init__(self, home: Path, pipeline: Path, environment: dict[str, str]) -> None:
        self._port = free_port()
        command = ["rivven-connect", "run", "--config", str(pipeline), "--port", str(self._port)]
        super().__init__(command, home / "connect.log", {**plain_environment(), **environment})

    def progress(self) -> dict[str, dict[str, Any]]:
        """What each query says of itself, by name; nothing while nobody answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/progress", timeout=2) as page:
                return {row["name"]: row for row in json.load(page)["queries"]}
        except OSError:
            return {}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def plain_environment() -> dict[str, str]:
    """Ours without the variables that would configure the programs otherwise than the demo says."""
    return {
        name: text for name, text in os.environ.items() if name == "RIVVEN_PURE" or not name.startswith("RIVVEN_")
    }

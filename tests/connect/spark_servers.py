"""Spark as it runs elsewhere, from pip's pyspark: a standalone cluster, and a Spark Connect server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

START_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def until(holds: Callable[[], bool], seconds: float, what: str = "it") -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come about in time"
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    """By SIGKILL, with whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def spark_home(*, here: bool = False) -> Path:
    import pyspark

    from rivven.spark import prepare_environment

    prepare_environment(here=here)
    return Path(pyspark.__file__).parent


@contextlib.contextmanager
def cluster(home: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The master's address and two workers of one core, each in a process group with what it starts."""
    spark_class = str(spark_home() / "bin" / "spark-class")
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []

    # None of them lives long enough for the better compiler, nor do the executors
    environment = os.environ | {"SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"]}

    def begin(*words: str) -> subprocess.Popen[bytes]:
        with open(home / f"{len(started)}.log", "wb") as said:
            process = subprocess.Popen(
                [spark_class, *words], stdout=said, stderr=said, start_new_session=True, env=environment
            )
        started.append(process)
        return process

    try:
        place = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port())]
        begin("org.apache.spark.deploy.master.Master", *place)
        until(lambda: answers(port), START_S, "the master")
        workers = [
            begin(
                "org.apache.spark.deploy.worker.Worker",
                *("--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", str(free_port())),
                *("--work-dir", str(home / f"work-{number}"), master),
            )
            for number in range(2)
        ]
        yield master, workers
    finally:
        for process in started:
            end(process)


@contextlib.contextmanager
def connect_server(home: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """The address of a Spark Connect server; it runs in a directory of its own, as it would elsewhere."""
    port = free_port()
    given = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        **settings,
    }
    command = [str(spark_home(here=True) / "sbin" / "start-connect-server.sh"), "--wait", "--master", "local[2, 2]"]
    command += [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
    where = {"SPARK_LOG_DIR": str(home), "SPARK_PID_DIR": str(home)}
    with open(home / "said", "wb") as said:
        process = subprocess.Popen(
            command, cwd=home, stdout=said, stderr=said, start_new_session=True, env=os.environ | where
        )
    try:
        until(lambda: answers(port) or process.poll() is not None, START_S, "the server")
        assert process.poll() is None, (home / "said").read_text()
        yield f"sc://127.0.0.1:{port}"
    finally:
        end(process)

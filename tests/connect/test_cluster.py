"""The same file on a standalone cluster: a master and two workers, one of which is killed on the way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rivven.client import blocking

pytestmark = pytest.mark.soak
ROWS = 200_000
FILE = """
broker: {{bootstrap_servers: ["{servers}"]}}
settings:
  spark: {{spark.executor.memory: 512m, spark.executor.cores: "1", spark.task.maxFailures: "8"}}
sources:
  orders:
    connector: datagen
    topic: orders
    topic_config: {{partitions: 2}}
    envelope: plain
    batch_rows: 20000
    config: {{pattern: orders, events_per_second: 0, max_events: {rows}, seed: 3}}
sinks:
  lake:
    connector: file
    topics: [orders]
    consumer_group: lake
    start_offset: earliest
    batch_rows: 20000
    config: {{path: "{out}", format: jsonl}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def cluster(home: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The master's address and the two workers, each in a process group with what it starts."""
    import pyspark

    from rivven.spark import prepare_environment

    prepare_environment()
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        with open(home / f"{len(started)}.log", "wb") as said:
            process = subprocess.Popen([spark_class, *words], stdout=said, stderr=said, start_new_session=True)
        started.append(process)
        return process

    try:
        place = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port())]
        begin("org.apache.spark.deploy.master.Master", *place)
        until(lambda: answers(port), 60)
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


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def until(holds, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.1)


def test_a_pipeline_outlives_one_of_its_workers(tmp_path: Path) -> None:
    from tables import running_broker

    with running_broker(tmp_path / "data") as servers, cluster(tmp_path) as (master, workers):
        file = tmp_path / "connect.yaml"
        file.write_text(FILE.format(servers=servers, rows=ROWS, out=tmp_path / "out"))
        command = [str(Path(sys.executable).with_name("rivven-connect")), "-c", str(file), "run", "--once"]
        command += ["--master", master, "--state-dir", str(tmp_path / "state")]
        with open(tmp_path / "connect.log", "wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        try:
            with blocking.connect(servers) as client:
                until(lambda: process.poll() is not None or written(client) > ROWS // 4, 240)
                end(workers[0])
                until(lambda: process.poll() is not None, 300)
                assert process.returncode == 0, (tmp_path / "connect.log").read_text()
                topic = [json.loads(value)["order_id"] for value in values(client)]
        finally:
            end(process)  # type: ignore[arg-type]
        lines = [line for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
        assert len(topic) == len(set(topic)) == ROWS
        assert sorted(json.loads(line)["order_id"] for line in lines) == sorted(topic)


def written(client: blocking.RivvenClient) -> int:
    if "orders" not in client.list_topics():
        return 0
    return sum(client.get_offset_bounds("orders", number)[1] for number in range(2))


def values(client: blocking.RivvenClient) -> list[bytes]:
    found: list[bytes] = []
    for number in range(2):
        _, last = client.get_offset_bounds("orders", number)
        with client.consumer("orders", number, start_offset=0) as consumer:
            while consumer.positions()[number] < last:
                found += consumer.fetch_arrow(columns=["value"], until=last, wait_ms=500).column(0).to_pylist()
    return found

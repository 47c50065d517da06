"""Exactly once under fire: drivers and the broker are killed at random, tasks fail, and every record is there once.

One run of many micro-batches, from a source through a transform into a topic and from there into files. Meanwhile the
driver is killed with its JVM and its workers, the broker is killed and started again, and one attempt in four of the
tasks raises. In the end every record is once in the topic, as readers of committed records see it, and once in the
files.

    pytest tests/connect/test_kill.py -m soak -k "seed7"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow.dataset as ds
import pytest

from rivven.client import blocking

sys.path.append(str(Path(__file__).parent))  # `from spark_servers import ...`

from spark_servers import answers, end, free_port, until

pytestmark = pytest.mark.xdist_group("kill")

FILE = """
broker: {{bootstrap_servers: ["{servers}"]}}
settings: {{retry: {{max_retries: 50, max_backoff_ms: 2000}}}}
sources:
  made:
    connector: datagen
    topic: killed
    topic_config: {{partitions: 2}}
    envelope: plain
    trigger: 0s
    batch_rows: 2000
    transforms: [{{type: python, config: {{function: "unruly:raising"}}}}]
    config: {{pattern: orders, max_events: {rows}, events_per_second: {rate}, seed: 1}}
sinks:
  kept:
    connector: file
    topics: [killed]
    consumer_group: kept
    start_offset: earliest
    trigger: 0s
    batch_rows: 2000
    transforms: [{{type: python, config: {{function: "unruly:raising"}}}}]
    config: {{path: ./out, format: parquet}}
"""
UNRULY = '''
"""One in four of the first attempts fails, after it has given its rows; each leaves a line."""
import os
from random import random
from pyspark import TaskContext

def raising(batch):
    task = TaskContext.get()
    if task.attemptNumber() == 0 and random() < 0.25:
        with open(os.environ["UNRULY"], "a") as file:
            file.write(f"{task.taskAttemptId()}\\n")
        raise RuntimeError("an attempt that was meant to fail")
    return batch
'''


@dataclass(frozen=True)
class Round:
    """How much is done, and how often who is killed."""

    seed: int
    rows: int = 60_000
    rate: int = 3_000
    drivers: int = 3
    brokers: int = 2
    """In the life of each driver."""


class Broker:
    """A broker that is killed and comes back at the same address with the same data."""

    def __init__(self, home: Path) -> None:
        self._home, self.port = home, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [str(Path(sys.executable).with_name("rivvend")), "--data-dir", str(self._home / "data")]
        command += ["--bind", f"127.0.0.1:{self.port}", "--http-port", "0"]
        with open(self._home / "broker.log", "ab") as said:
            self._process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        until(lambda: answers(self.port), 60, "the broker")

    def kill(self) -> None:
        assert self._process is not None
        end(self._process)


def seeds(count: int) -> list[object]:
    return [pytest.param(Round(seed), id=f"seed{seed}", marks=pytest.mark.soak) for seed in range(count)]


@pytest.mark.parametrize(
    "play", [pytest.param(Round(100, rows=8_000, rate=1_000, drivers=1, brokers=1), id="short"), *seeds(20)]
)
def test_every_record_is_there_once_whoever_is_killed(tmp_path: Path, play: Round) -> None:
    rng = Random(play.seed)
    broker = Broker(tmp_path)
    (tmp_path / "unruly.py").write_text(UNRULY)
    text = FILE.format(servers=f"127.0.0.1:{broker.port}", rows=play.rows, rate=play.rate)
    (tmp_path / "connect.yaml").write_text(text)
    try:
        for _ in range(play.drivers):
            live_and_die(tmp_path, broker, rng, play.brokers)
        finish(tmp_path, broker, rng)
        with blocking.connect(f"127.0.0.1:{broker.port}") as client:
            assert in_topic(client) == list(range(play.rows))
    finally:
        broker.kill()
    files = ds.dataset(tmp_path / "out").to_table(["order_id"]).column(0).to_pylist()
    assert sorted(files) == list(range(play.rows))
    assert (tmp_path / "failed").read_text(), "no task has failed, so nothing was shown"


def driver(home: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name("rivven-connect")), "run", "--master", "local[2, 4]", "--no-http"]
    environment = os.environ | {"PYTHONPATH": str(home), "UNRULY": str(home / "failed")}
    with open(home / "said", "wb") as said:
        return subprocess.Popen(
            [*command, *more], cwd=home, stdout=said, stderr=said, env=environment, start_new_session=True
        )


def live_and_die(home: Path, broker: Broker, rng: Random, kills: int) -> None:
    """A driver that works for a while, in which the broker goes and comes, and is killed with all that it started."""
    process = driver(home)
    try:
        until(lambda: process.poll() is not None or "made: running" in said(home), 240, "the source")
        for _ in range(kills):
            time.sleep(rng.uniform(0.5, 6.0))
            kill_and_start(broker, rng)
        time.sleep(rng.uniform(0.5, 8.0))
        assert process.poll() is None, said(home)
    finally:
        end(process)


def finish(home: Path, broker: Broker, rng: Random) -> None:
    """The last driver does what is left, and the broker is killed once more."""
    process = driver(home, "--once")
    try:
        until(lambda: process.poll() is not None or "made: running" in said(home), 240, "the source")
        time.sleep(rng.uniform(0.0, 5.0))
        kill_and_start(broker, rng)
        until(lambda: process.poll() is not None, 900, "the end of the run")
        assert process.returncode == 0, said(home)
    finally:
        end(process)


def kill_and_start(broker: Broker, rng: Random) -> None:
    broker.kill()
    time.sleep(rng.uniform(0.0, 3.0))
    broker.start()


def said(home: Path) -> str:
    return (home / "said").read_text(errors="replace")


def in_topic(client: blocking.RivvenClient) -> list[int]:
    found: list[int] = []
    for partition in range(2):
        _, last = client.get_offset_bounds("killed", partition)
        with client.consumer("killed", partition, start_offset=0) as consumer:
            while consumer.positions()[partition] < last:
                table = consumer.fetch_arrow(columns=["value"], until=last, wait_ms=500)
                found += [json.loads(value)["order_id"] for value in table.column(0).to_pylist()]
    return sorted(found)

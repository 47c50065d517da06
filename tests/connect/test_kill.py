"""A run that is killed, again and again, and ends with every record once: in the topic and in the files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pyarrow.dataset as ds
import pytest

from rivven.client import blocking

ROWS = 60_000

FILE = """
broker: {{bootstrap_servers: ["{servers}"]}}
sources:
  made:
    connector: datagen
    topic: killed
    topic_config: {{partitions: 2}}
    trigger: 0s
    config: {{pattern: orders, max_events: {rows}, events_per_second: 3000, seed: 1}}
sinks:
  kept:
    connector: file
    topics: [killed]
    consumer_group: kept
    start_offset: earliest
    trigger: 0s
    config: {{path: ./out, format: parquet}}
"""


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_there_once_whenever_the_run_is_killed(
    servers: str, client: blocking.RivvenClient, tmp_path: Path, seed: int
) -> None:
    rng = Random(seed)
    topic = f"killed-{seed}"
    text = FILE.format(servers=servers, rows=ROWS).replace("killed", topic)
    (tmp_path / "connect.yaml").write_text(text)
    command = [str(Path(sys.executable).with_name("rivven-connect")), "run", "--master", "local[2]", "--no-http"]
    for _ in range(4):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stderr is not None
        for line in process.stderr:
            if "made: running" in line:
                break
        time.sleep(rng.uniform(0.5, 12.0))
        os.killpg(process.pid, signal.SIGKILL)  # the driver, its JVM and its workers
        process.wait()
        process.stderr.close()
    ran = subprocess.run([*command, "--once"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    wanted = list(range(ROWS))
    files = sorted(row["order_id"] for row in ds.dataset(tmp_path / "out").to_table(["order_id"]).to_pylist())
    assert files == wanted
    found = []
    for partition in range(2):
        end = client.get_offset_bounds(topic, partition)[1]
        with client.consumer(topic, partition=partition, start_offset=0, wait_ms=500) as consumer:
            position = 0
            while position < end and (messages := consumer.fetch()):
                found += [json.loads(message.value)["data"]["order_id"] for message in messages]
                position = messages[-1].offset + 1
    assert sorted(found) == wanted

"""The same file on a standalone cluster: a master and two workers, one of which is killed on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rivven.client import blocking

sys.path.append(str(Path(__file__).parent))  # `from spark_servers import ...`

from spark_servers import cluster, end, until

FILE = """
broker: {{bootstrap_servers: ["{servers}"]}}
settings:
  spark:
    spark.executor.memory: 512m
    spark.executor.cores: "1"
    spark.executor.extraJavaOptions: '{java}'
    spark.task.maxFailures: "8"
sources:
  orders:
    connector: datagen
    topic: orders
    topic_config: {{partitions: 2}}
    envelope: plain
    batch_rows: {batch}
    config: {{pattern: orders, events_per_second: 0, max_events: {rows}, seed: 3}}
sinks:
  lake:
    connector: file
    topics: [orders]
    consumer_group: lake
    start_offset: earliest
    batch_rows: {batch}
    config: {{path: "{out}", format: jsonl}}
"""


@pytest.mark.parametrize(
    ("rows", "killed"), [(3_000, False), pytest.param(200_000, True, marks=pytest.mark.soak)], ids=["whole", "killed"]
)
def test_a_pipeline_is_exact_on_a_cluster_also_if_a_worker_is_killed(tmp_path: Path, rows: int, killed: bool) -> None:
    from tables import running_broker

    with running_broker(tmp_path / "data") as servers, cluster(tmp_path) as (master, workers):
        file = tmp_path / "connect.yaml"
        file.write_text(
            FILE.format(
                servers=servers,
                java=os.environ["SPARK_SUBMIT_OPTS"],
                rows=rows,
                batch=rows // (10 if killed else 3),
                out=tmp_path / "out",
            )
        )
        command = [str(Path(sys.executable).with_name("rivven-connect")), "-c", str(file), "run", "--once"]
        command += ["--master", master, "--state-dir", str(tmp_path / "state")]
        with open(tmp_path / "connect.log", "wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        try:
            with blocking.connect(servers) as client:
                if killed:
                    until(lambda: process.poll() is not None or written(client) > rows // 4, 240, "the first quarter")
                    end(workers[0])
                until(lambda: process.poll() is not None, 600, "the end of the run")
                assert process.returncode == 0, (tmp_path / "connect.log").read_text()
                topic = [json.loads(value)["order_id"] for value in values(client)]
        finally:
            end(process)
        lines = [line for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
        assert sorted(topic) == list(range(rows))
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

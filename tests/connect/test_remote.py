"""Through a Spark Connect server: the same file, the same format, and what cannot work there is said in a line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rivven.client import blocking

sys.path.append(str(Path(__file__).parent))  # `from spark_servers import connect_server`

from spark_servers import connect_server, end, until

pytestmark = pytest.mark.xdist_group("spark-connect")

ROWS = 1000
FILE = """
broker: {{bootstrap_servers: ["{servers}"]}}
settings: {{spark: {{spark.executor.memory: 512m}}}}
sources:
  made:
    connector: datagen
    topic: sold
    topic_config: {{partitions: 2}}
    envelope: plain
    batch_rows: 600
    config: {{pattern: orders, max_events: {rows}, events_per_second: 0, seed: 1}}
sinks:
  kept:
    connector: file
    topics: [sold]
    consumer_group: kept
    start_offset: earliest
    config: {{path: ./out, format: jsonl}}
"""
LOOK = """
  look: {connector: stdout, topics: [sold], consumer_group: look, format: text}
"""
COUNT = """
  counted:
    connector: topic
    topics: [sold]
    consumer_group: counted
    start_offset: earliest
    batch_rows: 300
    transforms:
      - type: sql
        config: {query: "SELECT count(*) AS orders FROM input", output_mode: update}
    config: {topic: counts}
"""
PLAIN = """
import sys
from rivven.spark import start_remote

remote, servers, checkpoint = sys.argv[1:]
spark = start_remote(remote)
to = {"servers": servers, "topic": "plain"}
rows = spark.range(20).selectExpr("CAST(id AS STRING) AS value")
rows.write.format("rivven").mode("append").options(**to).save()
read = {"servers": servers, "subscribe": "plain"}
stream = spark.readStream.format("rivven").options(**read, startingOffsets="earliest").load()
query = stream.select("value").writeStream.format("rivven").options(**to, checkpointLocation=checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
table = spark.read.format("rivven").options(**read).load()
print(table.count(), table.where("offset < 5").count(), table.selectExpr("count(DISTINCT value)").first()[0])
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tables import running_broker

    with running_broker(tmp_path_factory.mktemp("broker") / "data") as address:
        yield address


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tables import TUNED

    with connect_server(tmp_path_factory.mktemp("server"), TUNED) as address:
        yield address


def run(home: Path, text: str, remote: str) -> subprocess.CompletedProcess[str]:
    (home / "connect.yaml").write_text(text)
    command = [str(Path(sys.executable).with_name("rivven-connect")), "run", "--once", "--remote", remote]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=300, check=False)


def records(servers: str, topic: str) -> list[str]:
    found: list[str] = []
    with blocking.connect(servers) as client:
        if topic not in client.list_topics():
            return found
        for partition in range(client.get_metadata(topic)[1]):
            _, end = client.get_offset_bounds(topic, partition)
            with client.consumer(topic, partition, start_offset=0) as consumer:
                while consumer.positions()[partition] < end:
                    table = consumer.fetch_arrow(columns=["value"], until=end, wait_ms=500)
                    found += [value.decode() for value in table.column(0).to_pylist()]
    return found


def see_every_order_once(servers: str, home: Path) -> None:
    assert sorted(json.loads(value)["order_id"] for value in records(servers, "sold")) == list(range(ROWS))
    lines = [line for file in (home / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(json.loads(line)["order_id"] for line in lines) == list(range(ROWS))


def test_a_file_runs_through_a_server_but_for_what_would_print_there(
    servers: str, remote: str, tmp_path: Path
) -> None:
    ran = run(tmp_path, FILE.format(servers=servers, rows=ROWS) + LOOK, remote)
    said = ran.stdout + ran.stderr
    see_every_order_once(servers, tmp_path)
    assert "kept: done, 1,000 rows" in said
    assert "spark.executor.memory is left as the server has it" in said
    assert "stdout prints where the queries run, and with --remote that is the server" in said
    assert ran.returncode == 1, said


@pytest.mark.soak
def test_a_client_that_is_killed_begins_again_and_nothing_is_there_twice(remote: str, tmp_path: Path) -> None:
    """Its queries go on at the server, until those of the next run take over their checkpoints."""
    from tables import running_broker

    with running_broker(tmp_path / "data") as servers:
        text = (
            FILE.format(servers=servers, rows=ROWS).replace("events_per_second: 0", "events_per_second: 20") + COUNT
        )
        (tmp_path / "connect.yaml").write_text(text)
        command = [str(Path(sys.executable).with_name("rivven-connect")), "run", "--no-http", "--remote", remote]
        with open(tmp_path / "said", "wb") as output:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True)
        try:
            until(lambda: process.poll() is not None or len(records(servers, "sold")) > 100, 300, "the first batch")
        finally:
            end(process)
        for _ in range(2):
            ran = run(tmp_path, text, remote)
            assert ran.returncode == 0, ran.stdout + ran.stderr
            see_every_order_once(servers, tmp_path)
            assert json.loads(records(servers, "counts")[-1])["orders"] == ROWS


@pytest.mark.soak
def test_the_format_reads_and_writes_through_a_server(servers: str, remote: str, tmp_path: Path) -> None:
    with blocking.connect(servers) as client:
        client.create_topic("plain", 1)
    command = [sys.executable, "-c", PLAIN, remote, servers, str(tmp_path / "checkpoint")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["40", "5", "20"]


@pytest.mark.parametrize(
    ("remote", "said"),
    [
        ("sc://127.0.0.1:1/;token=hidden", "Spark Connect, sc://127.0.0.1:1: nobody answers"),
        ("spark://h;token=hidden", "Spark Connect, spark://h: this is no address of a server; write sc://host:15002"),
        ("localhost:15002", "Spark Connect, localhost:15002: this is no address of a server; write sc://host:15002"),
    ],
)
def test_a_server_that_is_not_there_is_said_at_once(remote: str, said: str, tmp_path: Path) -> None:
    ran = run(tmp_path, FILE.format(servers="127.0.0.1:1", rows=1), remote)
    assert ran.returncode != 0
    assert said in ran.stderr
    assert "hidden" not in ran.stderr
    assert "Traceback" not in ran.stderr

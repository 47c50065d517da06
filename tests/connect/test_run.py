"""Pipelines that run: a real broker, a real Spark, and every record where it belongs, once."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from rivven.client import blocking
from rivven.connect import ArrowSource, Secret, Settings, setting
from rivven.connect.bridge import stream_of
from rivven.connect.config import ConnectConfig, loads
from rivven.connect.plan import make_plan
from rivven.connect.run import Launched, Runner, Work, broker_was_away, may_pass, why
from rivven.connect.scaffold import STARTER
from rivven.connect.state import StateDirectory

PATIENCE_S = 300.0


def read_config(text: str) -> ConnectConfig:
    loaded = loads(text, {})
    assert loaded.errors == []
    assert loaded.config is not None
    return loaded.config


@contextmanager
def runner_of(spark: SparkSession, home: Path, text: str, *, once: bool = True) -> Iterator[Runner]:
    config = read_config(text)
    state = StateDirectory(home / "state")
    state.open()
    runner = Runner(config, make_plan(config), spark, state, once=once)
    try:
        runner.prepare()
        yield runner
    finally:
        runner.stop()
        runner.close()
        state.close()


def until(runner: Runner, done: Callable[[], bool]) -> None:
    """Step until something is so, or nothing is left to do."""
    end_s = time.monotonic() + PATIENCE_S
    while runner.step() and not done():
        assert time.monotonic() < end_s, [(work.plan.name, work.state, work.error) for work in runner.works]
        time.sleep(0.1)


def run_once(spark: SparkSession, home: Path, text: str) -> dict[str, Work]:
    with runner_of(spark, home, text) as runner:
        until(runner, lambda: False)
        return {work.plan.name: work for work in runner.works}


def records(client: blocking.RivvenClient, topic: str) -> list[Any]:
    """All records of a topic, read as a consumer that sees what is committed."""
    _, partitions = client.get_metadata(topic)
    bounds = {part: client.get_offset_bounds(topic, part)[1] for part in range(partitions)}
    found: list[Any] = []
    for part, end in bounds.items():
        if end == 0:
            continue
        with client.consumer(topic, partition=part, start_offset=0, wait_ms=500) as consumer:
            position = 0
            while position < end:
                messages = consumer.fetch()
                if not messages:
                    break
                found += messages
                position = messages[-1].offset + 1
    return found


def parquet(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        ds.dataset(path, partitioning="hive", exclude_invalid_files=False).to_table().to_pylist()
    )
    return rows


def test_a_source_fills_its_topics_and_a_sink_drains_them_once(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    text = f"""
broker: {{bootstrap_servers: ["127.0.0.1:1", "{servers}"]}}
sources:
  shop:
    connector: datagen
    topic: shop
    topic_config: {{partitions: 2}}
    key: [customer_id]
    config: {{pattern: orders, max_events: 600, events_per_second: 0, seed: 1}}
    transforms:
      - {{type: mask, config: {{fields: [email], method: hash}}}}
      - {{type: content_router, config: {{routes: [{{field: country, value: DE, topic: shop-de}}]}}}}
sinks:
  archive:
    connector: file
    topics: [shop, shop-de]
    consumer_group: archive
    start_offset: earliest
    transforms: [{{type: filter, config: {{where: "amount >= 100"}}}}]
    config: {{path: "{tmp_path}/out", format: parquet, partition_by: [country]}}
"""
    works = run_once(spark, tmp_path, text)
    assert {name: work.state for name, work in works.items()} == {"shop": "done", "archive": "done"}, works
    assert works["shop"].progress.rows == 600
    assert client.get_metadata("shop") == ("shop", 2)
    main, german = records(client, "shop"), records(client, "shop-de")
    events = [json.loads(record.value) for record in main + german]
    assert sorted(event["data"]["order_id"] for event in events) == list(range(600))
    assert {json.loads(record.value)["data"]["country"] for record in german} == {"DE"}
    event = events[0]
    assert set(event) == {"event_type", "stream", "namespace", "timestamp", "data", "metadata"}
    assert (event["event_type"], event["stream"], len(event["data"]["email"])) == ("record", "datagen", 64)
    assert main[0].key == str(json.loads(main[0].value)["data"]["customer_id"]).encode()
    rows = parquet(tmp_path / "out")
    wanted = {event["data"]["order_id"] for event in events if event["data"]["amount"] >= 100}
    assert sorted(row["order_id"] for row in rows) == sorted(wanted)
    assert all(row["timestamp"].tzinfo is not None for row in rows), "a time is a time again"

    again = run_once(spark, tmp_path, text)
    assert [work.progress.rows for work in again.values()] == [0, 0]
    assert len(records(client, "shop")) + len(records(client, "shop-de")) == 600
    assert len(parquet(tmp_path / "out")) == len(wanted)


def test_columns_are_found_from_records_and_bad_ones_become_letters(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    client.create_topic("mixed", 1)
    with client.producer("mixed") as producer:
        for value in (
            b'{"id": 1, "tags": ["a"]}',
            b"not json",
            b'{"id": 2, "name": "x"}',
            b'{"id": "no number"}',
            b" ",
        ):
            producer.send(value, key=b"k")
    sink = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
sinks:
  out:
    connector: file
    topics: [mixed]
    consumer_group: mixed-readers
    start_offset: earliest
    schema: "id BIGINT, name STRING, tags ARRAY<STRING>"
    config: {{path: "{tmp_path}/out", format: jsonl}}
"""
    works = run_once(spark, tmp_path / "strict", sink)
    assert works["out"].state == "failed"
    assert works["out"].errors == 1, "no retry mends a record"
    assert works["out"].error == (
        "the record at offset 1 of partition 0 of topic mixed is no JSON with the columns expected: not json"
    )
    works = run_once(spark, tmp_path / "kind", sink + "    dead_letter_topic: mixed-dead\n")
    assert {work.state for work in works.values()} == {"done"}
    lines = [
        json.loads(line) for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()
    ]
    assert sorted(lines, key=lambda row: row["id"]) == [
        {"id": 1, "name": None, "tags": ["a"]},
        {"id": 2, "name": "x", "tags": None},
    ]
    letters = [json.loads(record.value) for record in records(client, "mixed-dead")]
    assert [base64.b64decode(letter["payload_b64"]) for letter in letters] == [
        b"not json",
        b'{"id": "no number"}',
        b" ",
    ]
    assert {key: letters[0][key] for key in ("original_topic", "connector_name", "retry_count")} == {
        "original_topic": "mixed",
        "connector_name": "out",
        "retry_count": 0,
    }
    assert set(letters[0]) == {
        "original_topic",
        "connector_name",
        "payload_b64",
        "error",
        "retry_count",
        "timestamp",
    }


def test_a_sink_waits_for_records_to_learn_from_and_goes_on_with_new_ones(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    text = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
sinks:
  out:
    connector: file
    topics: [later]
    consumer_group: later-readers
    start_offset: earliest
    trigger: 100ms
    config: {{path: "{tmp_path}/out", format: jsonl}}
"""
    out = tmp_path / "out"

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]

    with runner_of(spark, tmp_path, text, once=False) as runner:
        (work,) = runner.works
        until(runner, lambda: work.state == "waiting")
        with client.producer("later") as producer:
            producer.send(b'{"id": 1, "deep": {"x": 0.5}}')
            until(runner, lambda: len(lines()) == 1)
            producer.send(b'{"id": 2, "deep": {"x": 1}, "more": "not in the sample"}')
            until(runner, lambda: len(lines()) == 2)
        until(runner, lambda: work.progress.rows == 2)
        assert (work.state, work.progress.lag) == ("running", 0)
    assert lines() == [{"id": 1, "deep": {"x": 0.5}}, {"id": 2, "deep": {"x": 1.0}}]
    assert (tmp_path / "state" / "learned" / "sinks" / "out" / "columns.json").exists()


SINK_OF_NEW_RECORDS = """
sinks:
  out:
    connector: file
    topics: [{topic}]
    consumer_group: readers-of-new-records
    trigger: 100ms
    config: {{path: "{path}/out", format: jsonl}}
"""


def lines_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(path.glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_a_sink_of_new_records_reads_what_the_first_run_brings(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    client.create_topic("made-now", 2)
    with client.producer("made-now") as producer:
        producer.send(b'{"sequence": -1}')
    text = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
sources:
  numbers:
    connector: datagen
    topic: made-now
    envelope: plain
    config: {{pattern: sequence, events_per_second: 0, max_events: 10, include_timestamp: false}}
""" + SINK_OF_NEW_RECORDS.format(topic="made-now", path=tmp_path)
    works = run_once(spark, tmp_path, text)
    assert {work.state for work in works.values()} == {"done"}
    assert sorted(line["sequence"] for line in lines_in(tmp_path / "out")) == list(range(10))


def test_a_sink_of_new_records_reads_the_first_after_it_has_waited_for_some(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    text = f'broker: {{bootstrap_servers: ["{servers}"]}}'
    text += SINK_OF_NEW_RECORDS.format(topic="empty-at-first", path=tmp_path)
    assert run_once(spark, tmp_path, text)["out"].state == "done"
    with client.producer("empty-at-first") as producer:
        producer.send(b'{"id": 1}')
    client.create_partitions("empty-at-first", 2)
    with client.producer("empty-at-first") as producer:
        producer.send_to_partition(b'{"id": 2}', 1)
    assert run_once(spark, tmp_path, text)["out"].progress.rows == 2
    assert sorted(line["id"] for line in lines_in(tmp_path / "out")) == [1, 2]
    assert run_once(spark, tmp_path, text)["out"].progress.rows == 0


def test_a_sink_whose_records_are_gone_ends_at_once_or_goes_on_with_what_is_left(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    client.create_topic("short-lived", 1)
    with client.producer("short-lived") as producer:
        producer.send(b'{"id": 0}')
    text = f'broker: {{bootstrap_servers: ["{servers}"]}}'
    text += SINK_OF_NEW_RECORDS.format(topic="short-lived", path=tmp_path) + "    start_offset: earliest\n"
    assert run_once(spark, tmp_path, text)["out"].state == "done"
    with client.producer("short-lived") as producer:
        for number in range(1, 5):
            producer.send(b'{"id": %d}' % number)
    client.delete_records("short-lived", 0, 3)
    work = run_once(spark, tmp_path, text)["out"]
    assert (work.state, work.errors) == ("failed", 1), "no retry brings them back"
    assert "short-lived/0: offsets 1 to 2 are gone" in work.error
    assert "fail_on_data_loss: false" in work.error
    work = run_once(spark, tmp_path, text + "    fail_on_data_loss: false\n")["out"]
    assert (work.state, work.progress.rows) == ("done", 2)
    assert [line["id"] for line in lines_in(tmp_path / "out")] == [0, 3, 4]


def test_files_are_read_and_lines_that_cannot_be_become_letters(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1, "name": "ä"}\nnot json\n{"id": 2, "name": "b"}\n')
    text = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
sources:
  lines:
    connector: file
    topic: lines
    envelope: plain
    dead_letter_topic: lines-dead
    config: {{path: "{tmp_path}/in", format: jsonl, schema: "id BIGINT, name STRING", watch: false}}
"""
    assert run_once(spark, tmp_path, text)["lines"].state == "done"
    values = [json.loads(record.value) for record in records(client, "lines")]
    assert sorted(values, key=lambda each: each["id"]) == [{"id": 1, "name": "ä"}, {"id": 2, "name": "b"}]
    (letter,) = records(client, "lines-dead")
    assert base64.b64decode(json.loads(letter.value)["payload_b64"]) == b"not json"
    (tmp_path / "in" / "b.jsonl").write_text('{"id": 3, "name": "c"}\n')
    assert run_once(spark, tmp_path, text)["lines"].progress.rows == 1
    assert len(records(client, "lines")) == 3


def test_time_windows_are_appended_when_no_record_can_change_them(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = f"""
pipelines:
  minutes:
    source:
      connector: file
      config: {{path: "{tmp_path}/in", format: csv, schema: "at TIMESTAMP", header: false}}
    transforms:
      - type: sql
        config:
          query: >-
            SELECT date_format(window.start, 'HH:mm') AS at, count(*) AS n FROM input GROUP BY window(at, '1 minute')
          watermark: {{field: at, delay: 1 minute}}
    sink: {{connector: file, config: {{path: "{tmp_path}/out"}}}}
"""

    def after_file(name: str, *times: str) -> dict[str, int]:
        (tmp_path / "in" / name).write_text("".join(f"2026-01-31T{time}Z\n" for time in times))
        work = run_once(spark, tmp_path, text)["minutes"]
        assert (work.state, work.error) == ("done", "")
        return {line["at"]: line["n"] for line in lines_in(tmp_path / "out")}

    assert after_file("a.csv", "12:00:10", "12:00:20", "12:05:00") == {"12:00": 2}
    assert after_file("b.csv", "12:05:59", "12:10:00") == {"12:00": 2, "12:05": 2}


def test_of_one_file_nothing_else_is_read_whatever_is_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    """A sink below the same directory makes folders that Spark would take for columns."""
    home = tmp_path / "a [b] {c}"
    (home / "older").mkdir(parents=True)
    (home / "in{1}.csv").write_text("id,country\n1,DE\n2,PL\n")
    (home / "older" / "in{1}.csv").write_text("id,country\n0,FR\n")
    text = f"""
pipelines:
  copy:
    source: {{connector: file, config: {{path: "{home}/in{{1}}.csv"}}}}
    sink: {{connector: file, config: {{path: "{home}/deep/out", partition_by: [country]}}}}
"""
    assert run_once(spark, tmp_path, text)["copy"].progress.rows == 2
    (home / "country=IT").mkdir()
    (home / "country=IT" / "in{1}.csv").write_text("id,country\n9,IT\n")
    again = run_once(spark, tmp_path, text)["copy"]
    assert (again.state, again.error, again.progress.rows) == ("done", "", 0)


def test_csv_to_json_without_a_topic_between(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id;name\n1;a\n2;b\n")
    text = f"""
pipelines:
  copy:
    source: {{connector: file, config: {{path: "{tmp_path}/in.csv", delimiter: ";"}}}}
    transforms: [{{type: rename, config: {{from: name, to: title}}}}]
    sink: {{connector: file, config: {{path: "{tmp_path}/out", format: json}}}}
"""
    assert run_once(spark, tmp_path, text)["copy"].state == "done"
    (made,) = (tmp_path / "out").glob("*.json")
    assert json.loads(made.read_text()) == [{"id": 1, "title": "a"}, {"id": 2, "title": "b"}]


FLAKY = """
import pathlib

def fail_first(batch):
    tries = pathlib.Path({path!r})
    count = int(tries.read_text() or 0)
    tries.write_text(str(count + 1))
    if count < 2:  # Spark tries a task twice
        raise RuntimeError("no luck")
    return batch
"""


def test_a_query_that_fails_begins_again_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tries").write_text("")
    (tmp_path / "flaky.py").write_text(FLAKY.format(path=str(tmp_path / "tries")))
    monkeypatch.syspath_prepend(tmp_path)
    spark.sparkContext.addPyFile(str(tmp_path / "flaky.py"))
    text = f"""
pipelines:
  hard:
    source: {{connector: datagen, config: {{pattern: sequence, max_events: 20, events_per_second: 0}}}}
    transforms: [{{type: python, config: {{function: "flaky:fail_first"}}}}]
    sink: {{connector: file, config: {{path: "{tmp_path}/out", format: jsonl}}}}
settings: {{retry: {{max_retries: 5, initial_backoff_ms: 10}}}}
"""
    work = run_once(spark, tmp_path, text)["hard"]
    assert (work.state, work.errors) == ("done", 1)
    assert work.error == "RuntimeError: no luck"
    lines = [line for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 20
    (tmp_path / "tries").write_text("")
    hopeless = text.replace("max_retries: 5", "max_retries: 0")
    assert run_once(spark, tmp_path / "other", hopeless)["hard"].state == "failed"


def test_what_cannot_work_fails_at_once_and_names_the_step(spark: SparkSession, tmp_path: Path) -> None:
    text = f"""
pipelines:
  wrong:
    source: {{connector: datagen, config: {{pattern: orders, max_events: 5}}}}
    transforms: [{{type: mask, config: {{fields: [emial]}}}}]
    sink: {{connector: file, config: {{path: "{tmp_path}/out"}}}}
"""
    work = run_once(spark, tmp_path, text)["wrong"]
    assert (work.state, work.failures) == ("failed", 0)
    assert work.error == "pipelines.wrong.transforms[0] (mask): there is no column 'emial'; did you mean 'email'?"


def test_a_rate_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    text = f"""
pipelines:
  slow:
    source: {{connector: datagen, config: {{pattern: sequence, max_events: 30, events_per_second: 10}}}}
    sink: {{connector: file, config: {{path: "{tmp_path}/out"}}}}
"""
    begun_s = time.monotonic()
    work = run_once(spark, tmp_path, text)["slow"]
    assert (work.state, work.progress.rows) == ("done", 30)
    assert time.monotonic() - begun_s >= 1.0, "the first second's worth comes at once, the rest at its pace"
    assert work.progress.batches >= 2


class Kept(Settings):
    password: Secret = setting("Not for others.")


class Guarded(ArrowSource[Kept]):
    name = "guarded"
    title = "Guarded"
    summary = "Keeps a secret."

    def schema(self) -> pa.Schema:
        return pa.schema([("a", pa.int64())])


def test_no_secret_is_in_a_query_plan(spark: SparkSession, tmp_path: Path) -> None:
    launch = Launched(
        name="x",
        once=True,
        rows_per_second=0,
        batch_rows=1000,
        dead_letter_topic=None,
        trigger_ms=100,
        ends=True,
        checkpoint=str(tmp_path),
        place="x",
        state=StateDirectory(tmp_path),
    )
    source = Guarded.configured({"password": "hunter2"})
    assert isinstance(source, Guarded)
    frame = stream_of(source, spark, launch)
    assert frame.columns == ["a"]
    assert "hunter2" not in frame._jdf.queryExecution().toString()  # what a user sees of it


QUICK_JAVA = {"SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"]}
"""As all tests start it; otherwise these two start with next to nothing in their environment."""


def command_of(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("rivven-connect")), "run", "--master", "local[2]", *arguments]


def test_the_command_runs_a_first_file_to_its_end_and_what_runs_later_adds_nothing(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    from tables import TUNED

    text = STARTER.replace("topic: orders", "topic: first-orders").replace(
        "topics: [orders]", "topics: [first-orders]"
    )
    text = text.replace("events_per_second: 1000", "events_per_second: 0").replace("./out", str(tmp_path / "out"))
    (tmp_path / "connect.yaml").write_text(text + f"  spark: {json.dumps(TUNED)}\n")
    environment = {"RIVVEN_SERVERS": servers, "PATH": os.environ["PATH"], "HOME": str(tmp_path)} | QUICK_JAVA
    ran = subprocess.run(
        command_of("--once", "--state-dir", "state"),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stdout + ran.stderr
    assert ran.stderr.splitlines()[0] == "topic first-orders created"
    assert "orders: done, 10,000 rows" in ran.stderr
    assert "WARN" not in ran.stderr, "Spark is silent"
    rows = parquet(tmp_path / "out" / "orders")
    assert len(records(client, "first-orders")) == 10_000
    assert all(row["amount"] > 100 and len(row["email"]) == 64 for row in rows)

    again = run_once(spark, tmp_path, text.replace("${RIVVEN_SERVERS:-localhost:9092}", servers))
    assert {name: (work.state, work.progress.rows) for name, work in again.items()} == {
        "orders": ("done", 0),
        "archive": ("done", 0),
    }
    assert len(records(client, "first-orders")) == 10_000
    assert len(parquet(tmp_path / "out" / "orders")) == len(rows)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_runs_and_tells_how_it_is_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    from tables import TUNED

    (tmp_path / "connect.yaml").write_text(f"""
settings: {{spark: {json.dumps(TUNED)}}}
pipelines:
  endless:
    source: {{connector: datagen, config: {{pattern: sequence, events_per_second: 100}}}}
    sink: {{connector: file, config: {{path: ./out}}}}
""")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | QUICK_JAVA
    with subprocess.Popen(
        command_of("--port", "0"), cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            address = next(
                found[1] for line in process.stderr if (found := re.match(r"status on (\S+)/health", line))
            )
            end_s = time.monotonic() + PATIENCE_S
            rows = 0
            while rows == 0:
                assert time.monotonic() < end_s, "no row has come"
                time.sleep(0.2)
                with urlopen(f"{address}/progress", timeout=10) as reply:
                    (seen,) = json.loads(reply.read())["queries"]
                rows = seen["events_processed"]
            assert (seen["name"], seen["status"]) == ("endless", "running")
            with urlopen(f"{address}/ready", timeout=10) as reply:
                assert json.loads(reply.read()) == {"ready": True}
            process.send_signal(number)
            said = process.stderr.read()
            assert process.wait(60) == 0, said
            assert re.match(r"✓ [\d,]+ rows in", said.splitlines()[-1]), said
        finally:
            process.kill()
    lines = [line for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) >= rows, "what was told is there"


def test_ctrl_c_while_spark_starts_ends_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "connect.yaml").write_text(STARTER.replace("localhost:9092", "127.0.0.1:1"))
    command = [sys.executable, "-m", "rivven.connect.main", "run", "--master", "local[2]", "--state-dir", "state"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            end_s = time.monotonic() + PATIENCE_S
            while not (tmp_path / "state" / "spark.log").exists():
                assert time.monotonic() < end_s, "Spark was never started"
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "")


def test_ctrl_c_while_the_broker_is_away_does_not_wait_for_the_next_try(tmp_path: Path) -> None:
    retry = "{retry: {initial_backoff_ms: 3600000, max_backoff_ms: 3600000}}"
    (tmp_path / "connect.yaml").write_text(f"""
broker: {{bootstrap_servers: ["127.0.0.1:1"]}}
settings: {retry}
sources:
  numbers: {{connector: datagen, topic: numbers}}
""")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | QUICK_JAVA
    with subprocess.Popen(command_of(), cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline().startswith("no broker yet, again in 3,600,000 ms")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert re.fullmatch(r"numbers: new, 0 rows\n✓ 0 rows in \d+\.\d s\n", err), err


STREAMING = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: boom SQLSTATE: XXKST
=== Streaming Query ===
Identifier: shop [id = 1, runId = 2]
Current Committed Offsets: {}"""

PYTHON = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed:
Traceback (most recent call last):
  File "x.py", line 1, in write
    raise Trouble(
rivven.client.failures.ConfigException: there is no option 'x'; did you mean 'y'?
 SQLSTATE: 38000
\tat org.apache.spark.Somewhere(Here.scala:1)
=== Streaming Query ===
Identifier: shop [id = 1]"""


@pytest.mark.parametrize(
    ("text", "reason", "again"),
    [
        (STREAMING, "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: boom", True),
        (PYTHON, "there is no option 'x'; did you mean 'y'?", False),
        (PYTHON.replace("rivven.client.failures.ConfigException", "KeyError"), "KeyError: there is no option", True),
        (
            "x RIVVEN_UNREADABLE: the record at offset 1 is bad SQLSTATE: P0001\nmore",
            "the record at offset 1 is bad",
            False,
        ),
        (
            PYTHON.replace("ConfigException", "ConnectionException")
            + "\n\nLogical Plan:\nProject [raise_error(concat(RIVVEN_UNREADABLE: a record cannot, __corrupt))]",
            "ConnectionException: there is no option 'x'",
            True,
        ),
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", "[DIVIDE_BY_ZERO] Division by zero.", False),
        ("[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] 12 is", "[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION]", False),
        ("", "PySparkException", True),
    ],
)
def test_the_reason_is_found_in_what_spark_says(text: str, reason: str, again: bool) -> None:
    error = PySparkException(text)
    assert why(error)[: len(reason)] == reason
    assert may_pass(error) is again


def test_a_broker_that_is_away_while_spark_plans_is_no_mistake_of_the_file(spark: SparkSession) -> None:
    reader = spark.read.format("rivven").option("subscribe", "orders")
    with pytest.raises(AnalysisException) as away:
        reader.option("servers", "127.0.0.1:1").load().collect()
    assert broker_was_away(away.value)
    with pytest.raises(AnalysisException) as mistaken:
        reader.option("servers", "127.0.0.1:1").option("startingOffsets", "sometime").load().collect()
    assert not broker_was_away(mistaken.value)

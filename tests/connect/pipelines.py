"""What end-to-end tests of connectors share: a pipeline file run to its end, and the records of a topic."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rivven.client import blocking
from rivven.connect.config import loads
from rivven.connect.plan import make_plan
from rivven.connect.run import Runner, Work
from rivven.connect.state import StateDirectory

PATIENCE_S = 120.0


def run_once(spark: SparkSession, home: Path, text: str) -> dict[str, Work]:
    """Run a file until all that is there is done; the queries by name. State is kept below `home`."""
    loaded = loads(text, {})
    assert loaded.errors == []
    assert loaded.config is not None
    state = StateDirectory(home / "state")
    state.open()
    runner = Runner(loaded.config, make_plan(loaded.config), spark, state, once=True)
    end_s = time.monotonic() + PATIENCE_S
    try:
        runner.prepare()
        while runner.step():
            assert time.monotonic() < end_s, [(work.plan.name, work.state, work.error) for work in runner.works]
            time.sleep(0.05)
        return {work.plan.name: work for work in runner.works}
    finally:
        runner.stop()
        runner.close()
        state.close()


def forget_commit(home: Path, name: str, kind: str = "pipelines") -> None:
    """Leave a pipeline's state as a crash does between the sink's commit and Spark's: the last batch comes again."""
    commits = home / "state" / "checkpoints" / kind / name / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def records(client: blocking.RivvenClient, topic: str) -> list[Any]:
    """The records of a topic's only partition, in order, as one sees them who reads what is committed."""
    _, end = client.get_offset_bounds(topic, 0)
    found: list[Any] = []
    with client.consumer(topic, partition=0, start_offset=0, wait_ms=100) as consumer:
        while end and (messages := consumer.fetch()):
            found += messages
            if messages[-1].offset + 1 >= end:
                break
    return found

"""A stream from topic to topic: every record is there once, although the driver is killed at the worst moments."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from driver import copying
from tables import Topics, values

pytestmark = pytest.mark.xdist_group("spark")


def copy_and_die(topics: Topics, source: str, sink: str, checkpoint: Path, moment: str) -> None:
    """A driver of its own that copies until it is killed at that moment."""
    driver, said = Path(__file__).with_name("driver.py"), checkpoint.with_name(f"{moment}.txt")
    command = [sys.executable, str(driver), topics.servers, source, sink, str(checkpoint), moment]
    with open(said, "wb") as output:
        ended = subprocess.run(command, stdout=output, stderr=output, timeout=600, check=False)
    assert ended.returncode == -signal.SIGKILL, said.read_text()


def copy(topics: Topics, source: str, sink: str, checkpoint: Path) -> None:
    """The same to the end, in our own driver."""
    query = copying(topics.spark, topics.servers, source, sink, str(checkpoint))
    assert query.awaitTermination(300)
    assert query.exception() is None


@pytest.mark.soak  # `tests/connect/test_kill.py` kills a driver in every run of the tests, at a moment of its own
@pytest.mark.parametrize(("moment", "counted"), [("before", 10), ("after", 20)], ids=["before", "after"])
def test_a_driver_that_is_killed_round_the_decision_writes_every_record_once(
    topics: Topics, tmp_path: Path, moment: str, counted: int
) -> None:
    """Before it, batch 1 is written and does not count. After it the batch counts, and Spark does not know yet."""
    source, sink = topics.make(2), topics.make(2)
    sent = [f"{number:02}" for number in range(30)]
    topics.fill(source, 0, sent[::2])
    topics.fill(source, 1, sent[1::2])
    checkpoint = tmp_path / "checkpoint"
    copy_and_die(topics, source, sink, checkpoint, moment)
    assert len(values(topics.read(sink))) == counted
    copy(topics, source, sink, checkpoint)
    assert values(topics.read(sink)) == sent


def test_a_stream_that_goes_on_writes_on(topics: Topics, tmp_path: Path) -> None:
    """The numbers of its batches are its own: a query with a new checkpoint is not taken for another."""
    source, sink = topics.make(), topics.make(3)
    for value, checkpoint in (("1", "a"), ("2", "a"), ("3", "b")):
        topics.fill(source, 0, [value])
        copy(topics, source, sink, tmp_path / checkpoint)
    assert values(topics.read(sink)) == ["1", "1", "2", "2", "3"]

"""`make demo` with few records: it ends well, says so, leaves nothing behind; and its count can tell a loss."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEMO = Path(__file__).parents[2] / "demo"
SECONDS_MAX = 120
RECORDS = 20_000


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"demo_{name}", DEMO / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


orders = load("orders")


def start(tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(DEMO / "demo.py"), *flags]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def assert_gone(said: str) -> None:
    """None of the daemons that it told of is still there."""
    pids = [int(pid) for pid in re.findall(r"(?:ready on \S+|started again), process (\d+)", said)]
    assert pids, said
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_it_kills_the_broker_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "--records", str(RECORDS))
    said, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, said
    told = [line.split("  ", 1)[1] for line in said.splitlines() if re.match(r" +[\d.]+ s  ", line)]
    order = ["is ready on", "SIGKILL", "is started again", "is ready after", "goes on", "producer is done"]
    places = [next(n for n, line in enumerate(told) if words in line) for words in order]
    assert places == sorted(places), said
    for words in ("loss = 0", f"produced  {RECORDS:,}", "reordered  0", "altered  0", "duplicates", "Your turn"):
        assert words in said, said
    assert "\x1b" not in said, "no colours and no cursor movements where nobody looks"
    assert_gone(said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_what_was_started(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "--records", "1000000")
    assert process.stdout is not None
    said = ""
    while "begin" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    process.send_signal(number)
    rest, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130, said + rest
    assert "Traceback" not in rest
    assert_gone(said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--records", "10"], "--records must be at least"), (["--keep", str(DEMO)], "exists already")],
)
def test_bad_options_are_refused(tmp_path: Path, flags: list[str], words: str) -> None:
    process = start(tmp_path, *flags)
    said, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 2
    assert words in said


# The count


def test_a_record_that_was_acknowledged_and_never_read_is_lost() -> None:
    tally = orders.Tally(4)
    tally.add(0, [orders.value_of(number) for number in (0, 3)])
    assert orders.count_lost(bytes([1, 1, 0, 1]), tally.seen) == 1
    assert orders.count_lost(bytes([1, 0, 0, 1]), tally.seen) == 0


def test_a_second_copy_is_a_duplicate_and_not_out_of_order() -> None:
    tally = orders.Tally(6)
    tally.add(0, [orders.value_of(number) for number in (0, 2, 4, 2, 4, 5)])
    tally.add(1, [orders.value_of(number) for number in (1, 3)])
    assert (tally.read, tally.duplicates, tally.reordered, tally.altered) == (8, 2, 0, 0)


def test_a_first_copy_behind_a_later_one_is_out_of_order() -> None:
    tally = orders.Tally(4)
    tally.add(0, [orders.value_of(number) for number in (1, 0)])
    tally.add(0, [orders.value_of(number) for number in (3, 2)])
    assert (tally.duplicates, tally.reordered) == (0, 2)


@pytest.mark.parametrize("value", [None, b"", b"x" * 40, orders.value_of(9), orders.value_of(1)[:-1] + b"!"])
def test_a_record_that_nobody_sent_is_altered(value: bytes | None) -> None:
    tally = orders.Tally(4)
    tally.add(0, [value])
    assert (tally.read, tally.altered, tally.seen.count(1)) == (1, 1, 0)

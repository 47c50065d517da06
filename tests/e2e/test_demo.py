"""`make demo`: it ends well, says so, leaves nothing behind; and its books can tell a loss."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo import books

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 400


def start(tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "demo.demo", *flags]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT
    )


def assert_gone(said: str) -> None:
    """None of the processes that it told of is still there."""
    pids = [int(pid) for pid in re.findall(r"process (\d+)", said)]
    assert pids, said
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.soak
def test_driver_and_broker_are_killed_and_every_row_is_there_once(tmp_path: Path) -> None:
    process = start(tmp_path, "--orders", "60000")
    said, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, said
    told = [line for line in said.splitlines() if re.match(r" +[\d.]+ s  ", line)]
    order = [
        "rivvend serves",
        "SIGKILL to the driver",
        "started again",
        "SIGKILL to the broker",
        "recovered",
        "all is",
    ]
    places = [next(n for n, line in enumerate(told) if words in line) for words in order]
    assert places == sorted(places), said
    assert said.count("exact") >= 4, said
    assert "NOT EXACT" not in said
    assert "Your turn" in said
    assert "\x1b" not in said, "no colours and no cursor movements where nobody looks"
    assert_gone(said)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("rivven-demo")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_what_was_started(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    said = ""
    while "rivven-connect runs" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    process.send_signal(number)
    rest, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130, said + rest
    assert "Traceback" not in rest
    assert_gone(said)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("rivven-demo")] == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--orders", "10"], "--orders must be at least"), (["--keep", str(ROOT)], "exists already")],
)
def test_bad_options_are_refused(tmp_path: Path, flags: list[str], words: str) -> None:
    process = start(tmp_path, *flags)
    said, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 2
    assert words in said


# The books


@pytest.mark.parametrize(
    ("found", "missing", "twice", "other"),
    [([1, 2, 3], 0, 0, 0), ([1, 3], 1, 0, 0), ([1, 2, 2, 3, 3, 3], 0, 3, 0), ([1, 2, 3, 9], 0, 0, 1)],
)
def test_rows_that_are_lost_doubled_or_strange_are_counted(
    found: list[int], missing: int, twice: int, other: int
) -> None:
    counted = books.count("somewhere", {1, 2, 3}, found)
    assert (counted.missing, counted.twice, counted.other) == (missing, twice, other)
    assert counted.is_exact == (found == [1, 2, 3])


def test_totals_are_the_latest_of_each_key_and_must_be_right() -> None:
    rows = [
        {"country": "DE", "orders": 2, "amount": 5.5},
        {"country": "FR", "orders": 1, "amount": 1},
        {"country": "DE", "orders": 3, "amount": "7.25"},
    ]
    found = books.latest_totals(rows)
    assert found == {"DE": (3, Decimal("7.25")), "FR": (1, Decimal("1.00"))}
    assert books.compare_totals(found, found).is_exact
    assert not books.compare_totals({**found, "FR": (2, Decimal("1.00"))}, found).is_exact
    assert books.compare_totals({**found, "IT": (1, Decimal(1))}, found).missing == 1


def test_a_readable_email_is_seen() -> None:
    assert books.unmasked("emails", ["ab12", "cd34"]).is_exact
    assert not books.unmasked("emails", ["ab12", "ann@example.com"]).is_exact


def test_what_is_not_committed_is_no_part_of_the_lake(tmp_path: Path) -> None:
    table = pa.table({"order_id": [1, 2]})
    for place in ("country=DE", "_rivven/staging"):
        (tmp_path / place).mkdir(parents=True)
        pq.write_table(table, tmp_path / place / "part.parquet")
    assert books.values(books.read_lake(tmp_path), "order_id") == [1, 2]


def test_the_books_know_what_the_generator_makes() -> None:
    made = books.made_orders(1000, 7)
    kept, totals = books.orders_kept(made)
    assert made.num_rows == 1000
    assert 0 < len(kept) < 1000
    assert sum(number for number, _ in totals.values()) == len(kept)

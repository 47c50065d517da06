"""A first look: a million durable records, a process killed with no warning, and nothing lost.

It starts a process that appends to four partitions with a sync before every acknowledgement, kills it with SIGKILL
half way, recovers, compares what was acknowledged with what is there, record by record, and lets a second process
write the rest. Everything happens in a temporary directory.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from rivven.log import RecoveryReport
from rivven.log.blocking import BlockingStore
from rivven.record import NATIVE

sys.path.insert(0, str(Path(__file__).parent))
from writer import PARTITIONS, TOPIC, value_of

console = Console(highlight=False)


@dataclass
class Run:
    """One life of the writer: what it acknowledged, and how fast."""

    acked: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    appended: int = 0
    appends: int = 0
    seconds: float = 0.0
    killed: bool = False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="how many in all (default: a million)")
    parser.add_argument("--keep", metavar="DIR", help="write there, and leave the data for `rivven log`")
    chosen = parser.parse_args()
    directory = chosen.keep or tempfile.mkdtemp(prefix="rivven-demo-")
    try:
        return story(directory, max(chosen.records // PARTITIONS, 1000) * PARTITIONS)
    finally:
        if chosen.keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def story(directory: str, records: int) -> int:
    engine = "native" if NATIVE else "pure Python"
    console.print(
        Panel(f"[bold]rivven[/]: {records:,} records, a sync before every ack, {engine} kernel", expand=False)
    )
    kill_at = int(records * random.uniform(0.4, 0.6))
    first = write(directory, records, kill_at, "writing")
    console.print(f"[red]SIGKILL[/] after {sum(first.acked):,} acknowledged records")

    begun = time.perf_counter()
    with BlockingStore(directory) as store:
        recovery_seconds = time.perf_counter() - begun
        report = store.store.recovery
        ends = [store.log(TOPIC, number).end for number in range(PARTITIONS)]
        wrong = check(store, "checking every record")
    show_recovery(first, ends, report, recovery_seconds)

    second = write(directory, records, None, "writing the rest")
    with BlockingStore(directory) as store:
        begun = time.perf_counter()
        wrong += check(store, "checking all of it")
        read_seconds = time.perf_counter() - begun
        total = sum(store.log(TOPIC, number).end for number in range(PARTITIONS))
        size_bytes = sum(store.log(TOPIC, number).size_bytes for number in range(PARTITIONS))
    lost = sum(max(0, acked - end) for acked, end in zip(first.acked, ends, strict=True)) + (records - total)
    show_summary(first, second, total, size_bytes, read_seconds, lost, wrong)
    return 0 if lost == 0 and wrong == 0 else 1


def write(directory: str, records: int, kill_at: int | None, title: str) -> Run:
    """Run the writer, and if asked kill it once it has acknowledged `kill_at` records."""
    command = [sys.executable, str(Path(__file__).with_name("writer.py")), directory, str(records)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    run = Run()
    begun, base = time.perf_counter(), 0
    try:
        with progress() as bar:
            task = bar.add_task(title, total=records, rate="")
            for line in process.stdout:
                run.acked = [int(end) for end in line.split()[1:]]
                if not run.appends:
                    begun, base = time.perf_counter(), sum(run.acked)
                run.appends += 1
                run.appended = sum(run.acked) - base
                run.seconds = max(time.perf_counter() - begun, 1e-9)
                bar.update(task, completed=sum(run.acked), rate=f"{run.appended / run.seconds:,.0f}/s")
                if kill_at is not None and sum(run.acked) >= kill_at and not run.killed:
                    os.kill(process.pid, signal.SIGKILL)  # no warning, no handler, no flush
                    run.killed = True
    finally:
        process.kill()
        code = process.wait()
    if not run.killed and code != 0:
        raise SystemExit(f"the writer failed with code {code}; run it by itself: {' '.join(command)}")
    return run


def progress() -> Progress:
    return Progress(
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn("[cyan]{task.fields[rate]}"),
        console=console,
        transient=not console.is_terminal,
        disable=not console.is_terminal,
    )


def check(store: BlockingStore, title: str) -> int:
    """Read every record back and count those that are not what was written at their offset."""
    wrong = 0
    ends = [store.log(TOPIC, number).end for number in range(PARTITIONS)]
    begun, seen = time.perf_counter(), 0
    with progress() as bar:
        task = bar.add_task(title, total=sum(ends), rate="")
        for number, end in enumerate(ends):
            expected = 0
            for record in store.scan(TOPIC, partition=number):
                wrong += record.offset != expected or record.value != value_of(number, expected)
                expected += 1
                seen += 1
                if seen % 50_000 == 0:
                    bar.update(task, completed=seen, rate=f"{seen / (time.perf_counter() - begun):,.0f}/s")
            wrong += abs(end - expected)
        bar.update(task, completed=seen)
    return wrong


def show_recovery(run: Run, ends: list[int], report: RecoveryReport, seconds: float) -> None:
    table = Table(title=f"recovered in {seconds * 1000:.0f} ms", title_justify="left")
    for column in ("partition", "acknowledged", "recovered", "lost", "more than acked"):
        table.add_column(column, justify="right")
    for number, (acked, end) in enumerate(zip(run.acked, ends, strict=True)):
        table.add_row(
            f"{TOPIC}/{number}", f"{acked:,}", f"{end:,}", f"{max(0, acked - end)}", f"{max(0, end - acked):,}"
        )
    console.print(table)
    cut = sum(item.cut_bytes for item in report.cuts)
    console.print(
        f"checked {report.batches_checked:,} batches, replayed {report.replayed:,} from the write-ahead log "
        f"({report.wal_groups:,} groups), cut {cut:,} torn bytes"
    )


def show_summary(
    first: Run, second: Run, total: int, size_bytes: int, read_seconds: float, lost: int, wrong: int
) -> None:
    written, seconds = first.appended + second.appended, first.seconds + second.seconds
    table = Table.grid(padding=(0, 2))
    table.add_row("records", f"{total:,} in {PARTITIONS} partitions, {size_bytes / 1024**2:.0f} MiB")
    table.add_row("durable writes", f"{written / seconds:,.0f} records/s, each synced before its ack")
    table.add_row("checked reads", f"{total / read_seconds:,.0f} records/s, every one compared")
    table.add_row("lost", f"[bold green]{lost}[/]" if lost == 0 else f"[bold red]{lost}[/]")
    table.add_row("wrong or out of place", f"[bold green]{wrong}[/]" if wrong == 0 else f"[bold red]{wrong}[/]")
    console.print(
        Panel(table, title="one process killed, nothing lost" if lost == 0 else "RECORDS LOST", expand=False)
    )
    console.print(
        "look inside: [bold]make demo ARGS='--keep data'[/] and then [bold].venv/bin/rivven log verify data[/]"
    )


if __name__ == "__main__":
    sys.exit(main())

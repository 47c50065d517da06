"""A first look: a million durable records through a real broker that is killed half way, and nothing lost.

It starts `rivvend` in a temporary directory, makes a topic of four partitions, and has a producer and a consumer work
on it at the same time. In the middle of it the broker gets SIGKILL and is started again on what the disk has; both
clients go on by themselves. At the end every record that was acknowledged must have been read.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from daemon import Daemon, Failed, Syncs
from orders import PARTITIONS, RECORD_BYTES, TOPIC, count_lost
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from screen import Lines, Picture, Scene
from sides import PATIENCE, Reader, Writer

from rivven import RivvenError, blocking
from rivven.record import NATIVE

TICK_S = 0.1
METRICS_S = 0.5
DOWN_S = 1.0
"""How long the broker stays dead, so that one can see it."""
STUCK_S_MAX = 60.0
RECORDS_MIN = 20_000
LOST, INTERRUPTED = 1, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What there is to say at the end."""

    records: int
    acked: int
    read: int
    lost: int
    duplicates: int
    reordered: int
    altered: int
    produce_s: float
    consume_s: float
    start_ms: float
    """From the start of the second process until it served."""
    recovered_ms: int
    """And what of it was recovery."""
    silence_s: float
    """From the kill to the next acknowledgement."""
    syncs: Syncs

    @property
    def is_good(self) -> bool:
        return self.acked == self.records and self.lost == self.reordered == self.altered == 0


class Story:
    """Everything that runs, and the order of events. `end` leaves no process behind, whatever happened before."""

    def __init__(self, home: Path, data_dir: Path, records: int, screen: Picture | Lines) -> None:
        self.daemon = Daemon(home, data_dir)
        self._home = home
        self._records = records
        self._screen = screen
        self._scene = Scene(records)
        self._begun_s = time.monotonic()
        self._metrics_s = 0.0
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._sampled: tuple[float, int, int] = (self._begun_s, 0, 0)

    def tell(self) -> Outcome:
        writer, reader = self._open()
        kill_at = int(self._records * random.uniform(0.45, 0.55))
        writer.alarm_at, writer.alarm = kill_at, self.daemon.kill
        self._metrics_s = 0.0
        begun_s = time.monotonic()
        writer.start()
        acked_again_s = self._watch_the_kill(writer)
        while not writer.is_done:
            self._tick()
        produced_s = time.monotonic()
        if writer.error is not None:
            raise Failed(f"a record could not be delivered: {writer.error}")
        self._happened(f"the producer is done: {writer.count:,} acknowledged")
        self._finish_reading(reader)
        consumed_s = time.monotonic()
        syncs = self.daemon.syncs()
        self._tick()
        return Outcome(
            records=self._records,
            acked=writer.count,
            read=reader.read,
            lost=count_lost(writer.acked, reader.seen_path.read_bytes()),
            duplicates=reader.duplicates,
            reordered=reader.reordered,
            altered=reader.altered,
            produce_s=produced_s - begun_s,
            consume_s=consumed_s - begun_s,
            start_ms=(self.daemon.ready_s - self.daemon.started_s) * 1000,
            recovered_ms=self.daemon.recovered_ms,
            silence_s=acked_again_s - self.daemon.killed_s,
            syncs=syncs,
        )

    def _open(self) -> tuple[Writer, Reader]:
        self.daemon.start()
        while not self.daemon.check_ready(TICK_S):
            self._tick(wait_s=0)
        self._happened(f"rivvend is ready on {self.daemon.bind}, process {self.daemon.pid}")
        client = blocking.connect(self.daemon.bind, options=PATIENCE)
        client.create_topic(TOPIC, PARTITIONS)
        self._client = client
        self._reader = Reader(self.daemon.bind, self._records, self._home)
        self._writer = Writer(client, self._records)
        while not (self._reader.is_ready or self._reader.is_done):
            self._tick(wait_s=0.02)
        self._happened(f"topic {TOPIC} has {PARTITIONS} partitions; a producer and a consumer begin")
        return self._writer, self._reader

    def _watch_the_kill(self, writer: Writer) -> float:
        """From before the kill until records are acknowledged again; when that was."""
        daemon = self.daemon
        while not daemon.killed_s and not writer.is_done:
            self._tick()
        if not daemon.killed_s:
            raise Failed(f"the producer ended before the broker was killed: {writer.error}")
        acked = writer.count
        self._happened(f"[bold red]SIGKILL[/] to process {daemon.pid}, {acked:,} records acknowledged")
        while time.monotonic() < daemon.killed_s + DOWN_S:
            self._tick()
        acked = writer.count  # also what was on its way when the process ended
        daemon.start()
        self._happened(f"rivvend is started again, process {daemon.pid}, same directory, same port")
        while not daemon.check_ready():
            self._tick(wait_s=0.02)
        took_ms = (daemon.ready_s - daemon.started_s) * 1000
        self._happened(f"it is ready after {took_ms:.0f} ms, of which recovery took {daemon.recovered_ms} ms")
        while writer.count == acked and not writer.is_done:
            self._tick(wait_s=0.02)
        acked_again_s = time.monotonic()
        self._happened(f"the producer goes on, {acked_again_s - daemon.killed_s:.1f} s after the kill")
        return acked_again_s

    def _finish_reading(self, reader: Reader) -> None:
        """Tell the reader where the partitions end, and wait until it has been there."""
        ends = [self._client.get_offset_bounds(TOPIC, number)[1] for number in range(PARTITIONS)]
        if not reader.is_done:
            reader.finish_at(ends)
        moved_s, read = time.monotonic(), reader.read
        while not reader.is_done:
            self._tick(wait_s=0.02)
            if reader.read != read:
                moved_s, read = time.monotonic(), reader.read
            if time.monotonic() - moved_s > STUCK_S_MAX:
                raise Failed(f"the reader stands at {reader.positions} and the partitions end at {ends}")
        code, words = reader.result()
        if code != 0:
            raise Failed(words)
        self._happened(f"the consumer is done: {reader.read:,} read")

    # What is shown

    def _happened(self, text: str) -> None:
        self._look()
        self._scene.events.append((self._scene.elapsed_s, text))
        self._screen.happened(self._scene)

    def _tick(self, wait_s: float = TICK_S) -> None:
        time.sleep(wait_s)
        if self.daemon.state == "dead" and not self.daemon.was_killed:
            raise Failed(f"rivvend ended by itself: {self.daemon.last_words()}")
        if time.monotonic() - self._metrics_s > METRICS_S:
            self._metrics_s = time.monotonic()
            self._scene.syncs = self.daemon.syncs()
        self._look()
        self._screen.show(self._scene)

    def _look(self) -> None:
        """Bring the scene up to date."""
        scene, daemon, now_s = self._scene, self.daemon, time.monotonic()
        scene.elapsed_s = now_s - self._begun_s
        scene.daemon = daemon.state
        scene.daemon_text = {
            "up": f"process {daemon.pid}, up for {now_s - daemon.ready_s:.1f} s, {daemon.bind}",
            "starting": f"process {daemon.pid}, recovering what the disk has",
            "dead": f"killed with SIGKILL {now_s - daemon.killed_s:.1f} s ago",
        }[daemon.state]
        if self._writer is not None:
            scene.acked, scene.acked_by_partition = self._writer.count, list(self._writer.by_partition)
        if self._reader is not None:
            scene.read, scene.positions = self._reader.read, self._reader.positions
        self._sample(now_s)

    def _sample(self, now_s: float) -> None:
        scene, (then_s, acked, read) = self._scene, self._sampled
        if now_s - then_s >= TICK_S and self._writer is not None:
            scene.acked_rate = (scene.acked - acked) / (now_s - then_s)
            scene.read_rate = (scene.read - read) / (now_s - then_s)
            scene.rates.append(scene.acked_rate)
            self._sampled = now_s, scene.acked, scene.read

    def end(self) -> None:
        if self._reader is not None:
            self._reader.end()
        self.daemon.end()


def summary(outcome: Outcome) -> Panel:
    megabytes = outcome.acked * RECORD_BYTES / 1e6
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column()

    def verdict(count: int) -> str:
        return f"[bold {'green' if count == 0 else 'red'}]{count:,}[/]"

    for name, count in (("produced", outcome.acked), ("consumed", outcome.read)):
        seconds = outcome.produce_s if name == "produced" else outcome.consume_s
        rate = f"{count / seconds:,.0f} records/s, {megabytes * count / outcome.acked / seconds:.1f} MB/s"
        what = "each acknowledged after its sync" if name == "produced" else "each compared"
        table.add_row(name, f"[bold]{count:,}[/], {what}")
        table.add_row("", rate)
    table.add_row("loss", f"{verdict(outcome.lost)} of what was acknowledged")
    table.add_row("reordered", f"{verdict(outcome.reordered)}, within a partition")
    table.add_row("altered", verdict(outcome.altered))
    table.add_row("duplicates", f"{outcome.duplicates:,}, stored when killed, not yet acknowledged: sent again")
    syncs = outcome.syncs
    average_ms = syncs.seconds / max(1, syncs.number) * 1000
    table.add_row("", "")
    table.add_row("the kill", f"{outcome.silence_s:.1f} s without an ack, {DOWN_S:.0f} s of it left dead on purpose")
    table.add_row("restart", f"{outcome.start_ms:.0f} ms to serve again, {outcome.recovered_ms} ms of it recovery")
    table.add_row(
        "disk",
        f"{syncs.number:,} syncs by /metrics, {average_ms:.1f} ms each, {syncs.longest_s * 1000:.0f} ms at most",
    )
    engine = "native" if NATIVE else "pure Python"
    table.add_row("", f"[dim]{engine} kernel; rates include the outage[/]")
    good = outcome.is_good
    title = f"killed once, loss = {outcome.lost}" + ("" if good else ": THIS IS NOT WHAT WAS PROMISED")
    return Panel(
        table, title=f"[bold]{title}[/]", border_style="green" if good else "red", padding=(0, 2), expand=False
    )


def next_steps(kept: str | None) -> str:
    data_dir = kept or "data"
    lines = [
        f"[bold].venv/bin/rivvend --data-dir {data_dir} &[/]",
        "[bold].venv/bin/rivven topic create teas --partitions 3[/]",
        "[bold].venv/bin/rivven produce teas 'a cup of Assam' --key table-4[/]",
        "[bold].venv/bin/rivven consume teas --follow[/]",
    ]
    if kept:
        lines.insert(0, f"[bold].venv/bin/rivven log verify {kept}[/]")
        lines.insert(2, f"[bold].venv/bin/rivven consume {TOPIC} --max 5[/]")
    tail = "docs/getting-started.md goes on from here"
    if not kept:
        tail += "; [bold]make demo ARGS='--keep data'[/] leaves its data to look at"
    return "\n".join(["", "Your turn:", "", *(f"  {line}" for line in lines), "", f"{tail}."])


def tell(console: Console, home: Path, chosen: argparse.Namespace) -> int:
    screen = Picture(console) if console.is_terminal else Lines(console)
    data_dir = Path(chosen.keep) if chosen.keep else home / "data"
    story = Story(home, data_dir, chosen.records, screen)
    try:
        outcome = story.tell()
        story.daemon.stop()
    finally:
        story.end()
        screen.close()
    console.print(summary(outcome))
    if outcome.is_good:
        console.print(next_steps(chosen.keep), soft_wrap=True)
        return 0
    console.print(
        "[bold red]Records were lost, reordered or altered.[/] Please report it, with the data that this leaves:"
    )
    console.print("[bold]make demo ARGS='--keep data'[/]")
    return LOST


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="how many in all (default: a million)")
    parser.add_argument("--keep", metavar="DIR", help="keep the broker's data there; must not exist yet")
    chosen = parser.parse_args()
    if chosen.records < RECORDS_MIN:
        parser.error(f"--records must be at least {RECORDS_MIN:,}, or all is over before the broker can be killed")
    if chosen.keep and Path(chosen.keep).exists():
        parser.error(f"--keep {chosen.keep} exists already; name a new directory")
    return chosen


def main() -> int:
    chosen = parse()
    console = Console(highlight=False)
    asked_to_stop: list[int] = []

    def stop(signal_number: int, _: object) -> None:
        asked_to_stop.append(signal_number)
        raise KeyboardInterrupt

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, stop)
    home = Path(tempfile.mkdtemp(prefix="rivven-demo-"))
    try:
        return tell(console, home, chosen)
    except (KeyboardInterrupt, RuntimeError):  # inside a lock of Python's own an interrupt comes out as the latter
        if not asked_to_stop:
            raise
        console.print("interrupted; everything that was started has been ended")
        return INTERRUPTED
    except (Failed, RivvenError, OSError) as error:
        console.print(f"[bold red]the demo failed:[/] {error}", soft_wrap=True)
        return LOST
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

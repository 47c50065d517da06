"""The whole story in one command: orders into a topic, Spark out of it, both ends killed on the way, every row once.

It starts `rivvend` in a temporary directory and `rivven-connect` on `pipeline.yaml`: a generator fills the topic
`orders` as fast as it can, one query masks and filters it into parquet files, another sums it up into the topic
`totals`. On the way the driver gets SIGKILL, with Spark and all its workers, and later the broker. Both are started
again. In the end everything is counted, by other means than the pipeline's own.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from demo import books
from demo.books import Count
from demo.daemon import Broker, Driver, Failed
from rivven import Options, RivvenError, blocking

PIPELINE = Path(__file__).with_name("pipeline.yaml")
SEED = 7
ORDERS = 400_000
ORDERS_MIN = 20_000
TICK_S = 0.25
LINE_S = 5.0
SETTLED_S = 2.0
"""How long nothing may be left to do before it is believed."""
STUCK_S_MAX = 240.0
WRONG, INTERRUPTED = 1, 130
PATIENCE = Options(client_id="demo", connect_timeout_ms=1000, request_timeout_ms=2000, attempts_max=1)


@dataclass(slots=True)
class Seen:
    """How far everything is, as the broker tells it: that outlives every driver."""

    orders: int = 0
    lake: int = 0
    totals: int = 0


class Watch:
    """Shows how far it is: bars on a terminal, a line now and then anywhere else."""

    def __init__(self, console: Console, orders: int) -> None:
        self._console = console
        self._orders = orders
        self._begun_s = time.monotonic()
        self._line_s = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Watch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Something happened."""
        self._console.print(f"{time.monotonic() - self._begun_s:7.1f} s  {text}", soft_wrap=True)

    def show(self, seen: Seen, doing: str) -> None:
        rows = (("topic orders", seen.orders), ("lake (parquet)", seen.lake), ("topic totals", seen.totals))
        if self._live is not None:
            table = Table.grid(padding=(0, 2))
            for name, number in rows:
                bar = ProgressBar(total=self._orders, completed=min(number, self._orders), width=40)
                table.add_row(f"          {name}", bar, f"{min(number, self._orders):>9,} orders")
            table.add_row(f"          [dim]{doing}[/]", "", "")
            self._live.update(table, refresh=True)
        elif time.monotonic() - self._line_s >= LINE_S:
            self._line_s = time.monotonic()
            self.say("  ".join(f"{name} {min(number, self._orders):,}" for name, number in rows))


class Story:
    """Everything that runs, and the order of events. `end` leaves no process behind, whatever happened before."""

    def __init__(self, home: Path, orders: int, watch: Watch) -> None:
        self.home = home
        self._orders = orders
        self._watch = watch
        self._seen = Seen()
        self.broker = Broker(home)
        environment = {"DEMO_BROKER": self.broker.address, "DEMO_HOME": str(home), "DEMO_ORDERS": str(orders)}
        environment["DEMO_BATCH_ROWS"] = str(max(5_000, orders // 8))
        self.driver = Driver(home, PIPELINE, environment)
        self._client: blocking.RivvenClient | None = None

    def tell(self) -> list[Count]:
        say, orders = self._watch.say, self._orders
        self.broker.start()
        say(f"rivvend serves on {self.broker.address}, process {self.broker.pid}: every write is synced")
        self.driver.start()
        say(f"rivven-connect runs {PIPELINE.name} on Spark, process {self.driver.pid}")
        self._until(lambda: self._seen.lake >= orders // 4, "Spark is starting; then orders come by micro-batches")
        self.driver.kill()
        say(f"[bold red]SIGKILL[/] to the driver, with Spark and its workers, at {self._seen.lake:,} of {orders:,}")
        self.driver.start()
        say(f"rivven-connect is started again on the same state, process {self.driver.pid}")
        self._until(lambda: self._seen.lake >= orders // 2, "it goes on from its checkpoints")
        self.broker.kill()
        say(f"[bold red]SIGKILL[/] to the broker, at {self._seen.lake:,} of {orders:,}")
        self.broker.start()
        say(f"rivvend has recovered, process {self.broker.pid}; the pipeline goes on by itself")
        self._until(self._is_done(), "the rest")
        self.driver.stop()
        say("all is read; the driver has stopped")
        return self._count()

    def _is_done(self) -> Callable[[], bool]:
        """Whether for a while nothing has been left to do."""
        since: float | None = None

        def done() -> bool:
            nonlocal since
            seen = self._seen
            settled = seen.orders >= self._orders <= min(seen.lake, seen.totals) and self._drained()
            since = None if not settled else since or time.monotonic()
            return since is not None and time.monotonic() - since >= SETTLED_S

        return done

    def _drained(self) -> bool:
        rows = self.driver.progress()
        return bool(rows) and all(row["status"] == "done" or row["lag"] == 0 for row in rows.values())

    def _until(self, holds: Callable[[], bool], doing: str) -> None:
        moved_s, before = time.monotonic(), Seen()
        while not holds():
            if self.driver.exit_code is not None:
                raise Failed(f"the driver has ended: {self.driver.last_words()}")
            if time.monotonic() - moved_s > STUCK_S_MAX:
                raise Failed(f"nothing has moved for {STUCK_S_MAX:.0f} s: {self.driver.last_words()}")
            self._look()
            failed = [row for row in self.driver.progress().values() if row["status"] == "failed"]
            if failed:
                raise Failed(f"{failed[0]['name']} has failed: {failed[0]['last_error']}")
            if self._seen != before:
                moved_s, before = time.monotonic(), Seen(self._seen.orders, self._seen.lake, self._seen.totals)
            self._watch.show(self._seen, doing)
            time.sleep(TICK_S)

    def _look(self) -> None:
        """Offsets count the marks of transactions as well; in the end it is rows that are counted."""
        try:
            if self._client is None:
                self._client = blocking.connect(self.broker.address, options=PATIENCE)
            _, partitions = self._client.get_metadata("orders")
            self._seen.orders = sum(
                self._client.get_offset_bounds("orders", number)[1] for number in range(partitions)
            )
            for group in ("lake", "totals"):
                read = sum(self._client.committed_offsets(group).values())
                setattr(self._seen, group, max(read, getattr(self._seen, group)))
        except RivvenError:
            pass  # the topic is not there yet, or the broker is not

    def _count(self) -> list[Count]:
        self._watch.show(self._seen, "counting")
        made = books.made_orders(self._orders, SEED)
        kept, totals = books.orders_kept(made)
        written = [row["order_id"] for row in books.read_topic(self.broker.address, "orders")]
        lake = books.read_lake(self.home / "lake")
        found = books.latest_totals(books.read_topic(self.broker.address, "totals"))
        return [
            books.count("topic orders", set(books.values(made, "order_id")), written),
            books.count("lake (parquet)", kept, books.values(lake, "order_id")),
            books.compare_totals(totals, found),
            books.unmasked("emails in the lake", books.values(lake, "email")),
        ]

    def end(self) -> None:
        if self._client is not None:
            self._client.close()
        self.driver.kill()
        self.broker.kill()


def verdict(counts: list[Count], console: Console) -> None:
    table = Table(title="Every row once?", title_justify="left", title_style="bold")
    table.add_column("where")
    for name in ("expected", "found", "missing", "twice", "wrong"):
        table.add_column(name, justify="right")
    table.add_column("")
    for each in counts:
        mark = "[green]exact[/]" if each.is_exact else "[bold red]NOT EXACT[/]"
        figures = (each.expected, each.found, each.missing, each.twice, each.other)
        table.add_row(each.place, *(f"{figure:,}" for figure in figures), mark)
    console.print(table)


def where_next(home: Path, *, kept: bool) -> str:
    lines = [
        ("the pipeline", "demo/pipeline.yaml"),
        ("a first one of your own", "docs/connect/first-pipeline.md"),
        ("topics in Spark", "docs/guides/spark.md"),
        ("why it is exact", "docs/guides/exactly-once.md"),
    ]
    if kept:
        lines += [
            ("the parquet files", str(home / "lake")),
            ("the topics, again", f"rivvend --data-dir {home / 'data'}"),
        ]
    else:
        lines.append(("keep what it makes", 'make demo ARGS="--keep some/directory"'))
    return "\n".join(["Your turn:", *(f"  {what:24} {where}" for what, where in lines)])


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--orders", type=int, default=ORDERS, help=f"how many orders to make; {ORDERS:,} by default")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave what was made in this new directory")
    chosen = parser.parse_args(arguments)
    if chosen.orders < ORDERS_MIN:
        parser.error(f"--orders must be at least {ORDERS_MIN:,}, so that there is something to kill in the middle")
    if chosen.keep is not None and chosen.keep.exists():
        parser.error(f"--keep: {chosen.keep} exists already; name a new directory")
    return chosen


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    chosen = parse()
    signal.signal(signal.SIGTERM, interrupted)
    console = Console(highlight=False)
    home = chosen.keep.resolve() if chosen.keep is not None else Path(tempfile.mkdtemp(prefix="rivven-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    story: Story | None = None
    try:
        with Watch(console, chosen.orders) as watch:
            story = Story(home, chosen.orders, watch)
            counts = story.tell()
        verdict(counts, console)
        if not all(each.is_exact for each in counts):
            console.print("[bold red]Something is not as it should be.[/] Please report it, with what is in", home)
            return WRONG
        console.print(where_next(home, kept=chosen.keep is not None))
        return 0
    except (Failed, RivvenError) as error:
        console.print(f"[bold red]The demo could not go on:[/] {error}", style=None)
        return WRONG
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started is ended")
        return INTERRUPTED
    finally:
        if story is not None:
            story.end()
        if chosen.keep is None:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

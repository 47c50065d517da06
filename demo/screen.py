"""What the demo shows while it runs: a picture on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from daemon import Syncs
from orders import PARTITIONS, TOPIC
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_S = 1.0
BAR_WIDTH = 28
PANEL_WIDTH = 92
LINES_BESIDE_EVENTS = 17
BLOCKS = "▁▂▃▄▅▆▇█"
COLOURS = {"up": "green", "starting": "yellow", "dead": "red"}


@dataclass(slots=True)
class Scene:
    """One moment of the demo."""

    records: int
    elapsed_s: float = 0.0
    daemon: str = "starting"
    """up, starting or dead"""
    daemon_text: str = ""
    acked: int = 0
    read: int = 0
    acked_by_partition: Sequence[int] = (0,) * PARTITIONS
    positions: Sequence[int] = (0,) * PARTITIONS
    acked_rate: float = 0.0
    read_rate: float = 0.0
    rates: list[float] = field(default_factory=list)
    """Acknowledged records per second, a sample for each tenth of one."""
    syncs: Syncs = field(default_factory=Syncs)
    events: list[tuple[float, str]] = field(default_factory=list)


def sparkline(rates: Sequence[float], width: int) -> str:
    """A column for each sample, the last ones if there are too many; nothing at all is a dot.

    >>> sparkline([0, 1, 4, 8], width=3)
    '▂▅█'
    """
    shown = rates[-width:]
    top = max(shown, default=0.0)
    return "".join("·" if rate <= 0 else BLOCKS[round(rate / top * (len(BLOCKS) - 1))] for rate in shown)


class Picture:
    """The live picture of a terminal. What happens is kept in it to the end."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, scene: Scene) -> None:
        width, height = self._live.console.size
        self._live.update(draw(scene, min(PANEL_WIDTH, width), max(2, height - LINES_BESIDE_EVENTS)), refresh=True)

    def happened(self, scene: Scene) -> None:
        self.show(scene)

    def close(self) -> None:
        self._live.stop()


class Lines:
    """The same for a file or a pipe: a line a second, and one for whatever happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told_s = time.monotonic()

    def show(self, scene: Scene) -> None:
        if time.monotonic() - self._told_s >= LINE_S:
            self._told_s = time.monotonic()
            counts = f"acknowledged {scene.acked:,}, read {scene.read:,} of {scene.records:,}"
            self._say(scene.elapsed_s, f"{counts}, {scene.syncs.number:,} syncs")

    def happened(self, scene: Scene) -> None:
        self._say(*scene.events[-1])

    def _say(self, elapsed_s: float, text: str) -> None:
        self._console.print(f"{elapsed_s:5.1f} s  {text}", soft_wrap=True)

    def close(self) -> None:
        pass


def draw(scene: Scene, width: int, events_max: int) -> RenderableType:
    """The picture, with no more of the last events than there is room for."""
    colour = COLOURS[scene.daemon]
    parts: list[RenderableType] = [_bars(scene), Text(), _daemon(scene), Text(), _partitions(scene), Text()]
    for at_s, text in scene.events[-events_max:]:
        line = Text.from_markup(f"[dim]{at_s:5.1f} s[/]  {text}", overflow="ellipsis")
        line.no_wrap = True
        parts.append(line)
    title = f"[bold]rivven[/]  {scene.records:,} records, a sync before every ack"
    return Panel(Group(*parts), title=title, border_style=colour, padding=(0, 2), width=width)


def _bars(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=12)
    table.add_column(width=BAR_WIDTH)
    table.add_column(justify="right", width=10)
    table.add_column(justify="right", width=17)
    rows = [("produced", scene.acked, scene.acked_rate, "green"), ("consumed", scene.read, scene.read_rate, "cyan")]
    for name, count, rate, colour in rows:
        bar = ProgressBar(scene.records, min(count, scene.records), BAR_WIDTH, complete_style=colour)
        table.add_row(name, bar, f"{count:,}", Text(f"{rate:,.0f} records/s", style=colour))
    return table


def _daemon(scene: Scene) -> Table:
    colour = COLOURS[scene.daemon]
    sign = "✖" if scene.daemon == "dead" else "●"
    table = Table.grid(padding=(0, 2))
    table.add_column(width=12)
    table.add_column()
    table.add_row("rivvend", Text(f"{sign} {scene.daemon_text}", style=colour))
    syncs = scene.syncs
    average_ms = syncs.seconds / syncs.number * 1000 if syncs.number else 0.0
    table.add_row("disk", f"{syncs.number:,} syncs, {average_ms:.2f} ms each")
    table.add_row("acks", Text(sparkline(scene.rates, 60), style="green"))
    return table


def _partitions(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=12)
    for _ in range(3):
        table.add_column(justify="right", width=16)
    table.add_row("[dim]partition[/]", "[dim]acknowledged[/]", "[dim]read up to[/]", "[dim]behind[/]")
    for number, (acked, position) in enumerate(zip(scene.acked_by_partition, scene.positions, strict=True)):
        table.add_row(f"{TOPIC}/{number}", f"{acked:,}", f"{position:,}", f"{max(0, acked - position):,}")
    return table

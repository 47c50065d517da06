"""What one sees of a run: a table that is renewed on a terminal, and lines elsewhere. Both on stderr."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from . import report

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

LINES_EVERY_S = 10.0


class Screen:
    """Shows snapshots as they come."""

    def __init__(self, *, live: bool | None = None) -> None:
        self._live: Live | None = None
        self._said: dict[str, tuple[str, str | None]] = {}
        self._last_s = time.monotonic()
        wanted = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" if live is None else live
        if wanted:
            self._open()

    def _open(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), refresh_per_second=4)
        self._live.start()

    def say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def show(self, seen: dict[str, Any]) -> None:
        if self._live is not None:
            self._live.update(_table(seen))
            return
        now_s = time.monotonic()
        due = now_s - self._last_s >= LINES_EVERY_S
        if due:
            self._last_s = now_s
        for row in seen["queries"]:
            state = (row["status"], row["last_error"] if row["status"] != "done" else None)
            if self._said.get(row["name"]) != state or (due and row["status"] == "running"):
                self._said[row["name"]] = state
                self.say(report.line(row))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


STYLES = {"running": "green", "done": "bold green", "failed": "bold red", "retrying": "yellow", "waiting": "dim"}


def _table(seen: dict[str, Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    titles, rows = report.table(seen)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, justify="right" if title in ("ROWS", "ROWS/S", "LAG", "BATCH", "ERRORS") else "left")
    for cells, row in zip(rows, seen["queries"], strict=True):
        style = STYLES.get(row["status"], "")
        made.add_row(*[Text(cell, style=style if place == 2 else "") for place, cell in enumerate(cells)])
    errors = [f"{row['name']}: {row['last_error']}" for row in seen["queries"] if row["last_error"]]
    if errors:
        made.caption = Text("\n".join(errors[:5]), style="red")
        made.caption_justify = "left"
    return made

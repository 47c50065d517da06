"""Printing: tables and colours on a terminal, plain aligned text elsewhere, one JSON document if asked for.

What is meant for people and for pipes goes to stdout; progress and remarks go to stderr. `NO_COLOR` is honoured.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from .text import cells, shortened

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 1.0
"""How long work may take before its progress is shown."""

RED, YELLOW, GREEN, BOLD, DIM = "31", "33", "32", "1", "2"


def on_terminal() -> bool:
    return sys.stdout.isatty()


def width() -> int:
    """Columns of the terminal; without one, lines are as long as they are."""
    return shutil.get_terminal_size((100, 24)).columns if on_terminal() else 1_000_000


def tint(text: str, code: str) -> str:
    """The text in a colour, where there are colours."""
    if not on_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def remark(text: str) -> None:
    """Something beside the answer."""
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    flexible: bool = False
    """Gives way, with an ellipsis, where the terminal is too narrow."""


def show_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, total: Sequence[str] | None = None
) -> None:
    """Rows under their titles, with rules on a terminal and without elsewhere; a row of totals may end it."""
    body = [list(map(str, row)) for row in rows]
    everything = [[column.title for column in columns], *body, *([list(total)] if total else [])]
    widths = [max(cells(row[place]) for row in everything) for place in range(len(columns))]
    room = width() - sum(widths) - 2 * (len(widths) - 1)
    for place, column in enumerate(columns):
        if column.flexible and room < 0:
            narrower = max(8, widths[place] + room)
            room += widths[place] - narrower
            widths[place] = narrower
    say(tint(_row(columns, everything[0], widths), BOLD))
    if on_terminal():
        say(tint("─" * min(width(), sum(widths) + 2 * (len(widths) - 1)), DIM))
    for row in body:
        say(_row(columns, row, widths))
    if total:
        say(tint(_row(columns, total, widths), BOLD))


def _row(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for column, text, wide in zip(columns, row, widths, strict=True):
        text = shortened(text, wide)
        gap = " " * (wide - cells(text))
        parts.append(gap + text if column.right else text + gap)
    return "  ".join(parts).rstrip()


def wrapped(text: str, indent: str) -> str:
    """A paragraph below an indent, as wide as the terminal is."""
    import textwrap

    return textwrap.fill(
        text,
        min(width(), 200 if not on_terminal() else width()),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


# JSON


def show_json(document: dict[str, Any]) -> None:
    text = msgspec.json.encode(document).decode()
    say(msgspec.json.format(text, indent=2) if on_terminal() else text)


class JsonList:
    """One document with one long list in it, written as it comes: the list is never held as a whole."""

    def __init__(self, name: str, head: dict[str, Any]) -> None:
        self._name = name
        self._head = head
        self._count = 0
        self.tail: dict[str, Any] = {}
        """What is known only when the list is complete."""

    def __enter__(self) -> JsonList:
        text = "".join(f"{_encoded(key)}:{_encoded(value)}," for key, value in self._head.items())
        sys.stdout.write(f"{{{text}{_encoded(self._name)}:[")
        return self

    def add(self, item: dict[str, Any]) -> None:
        sys.stdout.write(("," if self._count else "") + "\n" + _encoded(item))
        self._count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        text = "".join(f",{_encoded(key)}:{_encoded(value)}" for key, value in self.tail.items())
        if kind is None:
            say(f"\n]{text}}}")


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


# Progress


class Working:
    """A progress bar on stderr, if that is a terminal and the work takes longer than one would wait without."""

    def __init__(self, title: str, total_bytes: int) -> None:
        self._title = title
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._begun_s = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._wanted = sys.stderr.isatty()
        self._calls = 0

    def __enter__(self) -> Working:
        return self

    def done(self, count: int) -> None:
        self._done_bytes += count
        self._calls += 1
        if not self._wanted or self._calls & 63:
            return  # a look at the clock for every batch would cost more than the batch
        if self._bar is None and time.monotonic() - self._begun_s > PATIENCE_S:
            self._open()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done_bytes)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._title, total=self._total_bytes or None)
        self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

"""How the commands print what is no sentence."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer


def print_json(document: Any, *, indent: bool = False) -> None:
    import msgspec

    text = msgspec.json.encode(document)
    wide = indent or sys.stdout.isatty()
    typer.echo((msgspec.json.format(text, indent=2) if wide else text).decode())


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[place]) for row in (titles, *rows)) for place in range(len(titles))]
    for row in (titles, *rows):
        typer.echo("  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip())


def stop_with(what: str, step: str, code: int) -> NoReturn:
    sys.stdout.flush()
    typer.echo(f"error: {what}" + (f"\n{step}" if step else ""), err=True)
    sys.exit(code)

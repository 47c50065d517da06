"""What the commands share: the pipeline file, how its mistakes are told, the queries that it asks for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rivven.connect.config import ConnectConfig, Loaded
    from rivven.connect.plan import QueryPlan

WELL, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
DEFAULT_FILE = "connect.yaml"

ConfigFile = Annotated[
    str | None,
    typer.Option("--config", "-c", help=f"The pipeline file; {DEFAULT_FILE} by default.", show_default=False),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Let Spark speak, and show tracebacks.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Only these sources, sinks and pipelines.", show_default=False),
]


class Misused(Exception):
    """Something that cannot be done as asked."""


class Chosen:
    """What was said before the command."""

    config: str | None = None
    verbose: bool = False


def load_file(config: str | None) -> Loaded:
    from rivven.connect.config import load

    return load(config or Chosen.config or DEFAULT_FILE, os.environ)


def config_of(config: str | None) -> ConnectConfig:
    """A file without mistakes; with some, they are printed and this is the end."""
    loaded = load_file(config)
    print_mistakes(loaded)
    if loaded.config is None:
        raise typer.Exit(MISUSED)
    return loaded.config


def print_mistakes(loaded: Loaded) -> None:
    for each in loaded.mistakes:
        place = f"{loaded.path}:{each.mark.line}:{each.mark.column}" if each.mark else loaded.path
        kind = "warning: " if each.warning else ""
        typer.echo(f"{place}: {kind}{each.path + ': ' if each.path else ''}{each.text}", err=True)


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def plans_of(config: ConnectConfig, names: Sequence[str] | None) -> list[QueryPlan]:
    from rivven.connect.plan import make_plan
    from rivven.connect.settings import unknown

    known = [*config.sources, *config.sinks, *config.pipelines]
    for name in names or ():
        if name not in known:
            raise Misused(unknown("source, sink or pipeline", name, known))
    plans = make_plan(config, frozenset(names or ()))
    if not plans:
        raise Misused("everything in this file is switched off; set enabled: true")
    return plans

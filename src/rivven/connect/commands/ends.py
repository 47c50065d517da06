"""`check` and `discover`: whether both ends of everything can be reached, and what a source offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rivven.errors import RivvenError

from .opening import FAILED, ConfigFile, Misused, config_of, plans_of
from .printing import print_json, print_table, stop_with

if TYPE_CHECKING:
    from rivven.connect.config import ConnectConfig
    from rivven.connect.sdk import Connector, Finding


def check(
    source: Annotated[
        list[str] | None, typer.Option("--source", help="Only this source.", show_default=False)
    ] = None,
    sink: Annotated[list[str] | None, typer.Option("--sink", help="Only this sink.", show_default=False)] = None,
    config: ConfigFile = None,
) -> None:
    """Look whether everything can be reached: the broker, and both ends of every pipeline. Changes nothing."""
    made = config_of(config)
    only = {*(source or ()), *(sink or ())}
    if only:
        plans_of(made, sorted(only))
    problems = 0
    if made.broker is not None and not only:
        problems += _check_broker(made)
    for title, connector in _ends(made, only):
        try:
            findings = connector.check()
        except Exception as error:  # a connector is somebody else's code
            from rivven.connect.sdk import Finding

            findings = [Finding(_told(error))]
        problems += _print_findings(title, findings)
    if problems:
        raise typer.Exit(FAILED)


def _check_broker(config: ConnectConfig) -> int:
    from rivven.connect.topics import connect

    assert config.broker is not None, "the caller has looked"
    servers = ", ".join(config.broker.servers)
    try:
        with connect(config.broker) as client:
            client.ping()
    except (RivvenError, OSError) as error:
        typer.echo(f"✗ broker {servers}: {error}")
        return 1
    typer.echo(f"✓ broker {servers}")
    return 0


def _ends(config: ConnectConfig, only: set[str]) -> Iterator[tuple[str, Connector[Any]]]:
    for name, source in config.sources.items():
        if not only or name in only:
            yield f"source {name} ({source.connector})", source.make()
            for step in source.transforms:
                yield f"source {name}, transform {step.type}", step.make()
    for name, sink in config.sinks.items():
        if not only or name in only:
            yield f"sink {name} ({sink.connector})", sink.make()
            for step in sink.transforms:
                yield f"sink {name}, transform {step.type}", step.make()
    for name, pipeline in config.pipelines.items():
        if not only or name in only:
            yield f"pipeline {name}, source ({pipeline.source.connector})", pipeline.source.make()
            for step in pipeline.transforms:
                yield f"pipeline {name}, transform {step.type}", step.make()
            yield f"pipeline {name}, sink ({pipeline.sink.connector})", pipeline.sink.make()


def _print_findings(title: str, findings: Sequence[Finding]) -> int:
    errors = sum(each.level == "error" for each in findings)
    typer.echo(f"{'✗' if errors else '✓'} {title}")
    for each in findings:
        typer.echo(f"    {each.level}: {each}")
    return errors


def _told(error: Exception) -> str:
    """In one line: some libraries tell a story."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def discover(
    source: Annotated[str, typer.Argument(help="A source or pipeline of the file.")],
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    config: ConfigFile = None,
) -> None:
    """Show what a source offers: its streams and their columns."""
    from rivven.connect.settings import unknown

    if form not in ("json", "table"):
        raise Misused(f"there is no format {form!r}; use json or table")
    made = config_of(config)
    sources = {name: entry.make for name, entry in made.sources.items()}
    sources |= {name: entry.source.make for name, entry in made.pipelines.items()}
    if source not in sources:
        raise Misused(unknown("source", source, sources))
    try:
        streams = sources[source]().discover()
    except RivvenError:
        raise
    except Exception as error:  # a connector is somebody else's code
        stop_with(f"{source}: {_told(error)}", "", FAILED)
    if form == "json":
        listed = [
            {
                "name": stream.name,
                "namespace": stream.namespace or None,
                "key": list(stream.key),
                "columns": [{"name": each.name, "type": str(each.type)} for each in stream.schema],
            }
            for stream in streams
        ]
        print_json({"source": source, "streams": listed})
        return
    if not streams:
        typer.echo(f"{source} cannot tell what it offers; it is known once it runs")
    for stream in streams:
        rows = [[stream.name, each.name, str(each.type)] for each in stream.schema if not each.name.startswith("__")]
        print_table(["STREAM", "COLUMN", "TYPE"], rows)

"""`validate` and `explain`: what is wrong with a file, and what it would run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from .opening import MISUSED, AsJson, ConfigFile, Names, config_of, counted, load_file, plans_of, print_mistakes
from .printing import print_json

if TYPE_CHECKING:
    from rivven.connect.plan import QueryPlan


def validate(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Find every mistake in a file, without starting anything.

    Each is printed with its line and column. Exits with 0 if there is none, and with 2 if there are some.
    """
    loaded = load_file(config)
    if as_json:
        listed = [
            {
                "path": each.path,
                "text": each.text,
                "line": each.mark.line if each.mark else None,
                "column": each.mark.column if each.mark else None,
                "warning": each.warning,
            }
            for each in loaded.mistakes
        ]
        print_json({"file": loaded.path, "valid": loaded.config is not None, "mistakes": listed})
    else:
        print_mistakes(loaded)
    if loaded.config is None:
        if not as_json:
            typer.echo(f"{loaded.path}: {counted(len(loaded.errors), 'mistake')}", err=True)
        raise typer.Exit(MISUSED)
    if not as_json:
        made = loaded.config
        parts = [
            counted(len(made.sources), "source"),
            counted(len(made.sinks), "sink"),
            counted(len(made.pipelines), "pipeline"),
        ]
        typer.echo(f"✓ {loaded.path} is valid: {', '.join(parts)}")


def explain(names: Names = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Print what would run: what each query reads, changes and writes, how often, and with which guarantee."""
    plans = plans_of(config_of(config), names)
    if as_json:
        keys = ("name", "kind", "reads", "changes", "writes", "trigger_ms", "delivery", "bounded", "checkpoint")
        print_json({"queries": [{key: getattr(plan, key) for key in keys} for plan in plans]})
        return
    for plan in plans:
        typer.echo(f"{plan.name} ({plan.kind.replace('_', ' ')})")
        typer.echo(f"  reads    {plan.reads}")
        for change in plan.changes:
            typer.echo(f"  then     {change}")
        typer.echo(f"  writes   {plan.writes}")
        typer.echo(f"  runs     {_rhythm(plan)}, {plan.delivery.replace('_', ' ')}")
        typer.echo(f"  state    {plan.checkpoint}")


def _rhythm(plan: QueryPlan) -> str:
    if plan.bounded:
        return "to its end"
    return f"every {plan.trigger_ms:,} ms" if plan.trigger_ms else "without a pause"

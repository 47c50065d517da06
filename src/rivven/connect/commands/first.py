"""`init` and `prepare`: first steps, on a machine and with a connector of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .opening import DEFAULT_FILE, Misused


def init(
    what: Annotated[str, typer.Argument(help="The file to write, or `connector`.")] = DEFAULT_FILE,
    name: Annotated[str | None, typer.Argument(help="The name of the connector.", show_default=False)] = None,
) -> None:
    """Write a first pipeline file, or with `init connector NAME` a package for a connector of your own."""
    from rivven.connect.scaffold import write_connector, write_starter

    if what != "connector":
        try:
            write_starter(Path(what))
        except FileExistsError:
            raise Misused(f"{what} is there already; name another file") from None
        typer.echo(f"✓ {what} written; next: rivven-connect validate -c {what}")
        return
    if name is None:
        raise Misused("say what it is called: rivven-connect init connector NAME")
    try:
        made = write_connector(name, Path.cwd())
    except FileExistsError:
        raise Misused(f"{name}-connector is there already; choose another name") from None
    except ValueError as error:
        raise Misused(str(error)) from None
    for path in made:
        typer.echo(f"  {path.relative_to(Path.cwd())}")
    typer.echo(f"✓ next: cd {name}-connector && pip install -e . && python -m pytest")


def prepare() -> None:
    """Make Spark start faster on this machine from now on.

    Java keeps the classes that Spark loads, which takes a minute and 170 MB beside Spark's jars.
    """
    from rivven.connect.prepare import keep_classes

    took_s, path = keep_classes(lambda text: typer.echo(text, err=True))
    typer.echo(f"✓ kept {path.stat().st_size / 1e6:,.0f} MB of classes in {took_s:,.0f} s: {path}")

"""`rivven-connect`: check a pipeline file, look at connectors, run pipelines until they end or somebody stops them.

Exit codes: 0 all is well, 1 something failed, 2 used wrongly or a file with mistakes, 130 interrupted. A mistake is a
line that names the place and the way out, never a traceback. Only `run` and its kin start Spark.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rivven import __version__
from rivven.errors import RivvenError

from .commands.connectors import connectors, schema
from .commands.ends import check, discover
from .commands.files import explain, validate
from .commands.first import init, prepare
from .commands.opening import DEFAULT_FILE, FAILED, INTERRUPTED, MISUSED, Chosen, ConfigFile, Misused, Verbose
from .commands.printing import stop_with
from .commands.run import run, run_file, sinks, sources
from .commands.status import status

app = typer.Typer(
    name="rivven-connect",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (validate, explain, connectors, schema, check, discover, init, run):
    app.command()(_command)
app.command("sources", help="Run only the sources of a file.")(sources)
app.command("sinks", help="Run only the sinks of a file.")(sinks)
app.command()(prepare)
app.command()(status)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rivven-connect {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    config: ConfigFile = None,
    verbose: Verbose = False,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """rivven-connect: data pipelines between systems and topics, on Apache Spark.

    A YAML file says what runs; `rivven-connect init` writes a first one. Without a command it is run.
    """
    Chosen.config, Chosen.verbose = config, verbose
    if context.invoked_subcommand is None:
        if config is None and not Path(DEFAULT_FILE).exists():
            typer.echo(context.get_help())
            raise typer.Exit
        run_file(None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    logging.getLogger("rivven").addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    Chosen.config, Chosen.verbose = None, False
    try:
        app(args=None if arguments is None else list(arguments), prog_name="rivven-connect")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Misused as error:
        stop_with(
            f"{error}" if str(error).endswith("?") else f"{error}.",
            "Each command shows what it takes with --help.",
            MISUSED,
        )
    except RivvenError as error:
        stop_with(str(error), "", FAILED)
    except FileNotFoundError as error:
        stop_with(
            f"{error.filename} does not exist.", "Name the file with -c, or write one: rivven-connect init", MISUSED
        )
    except OSError as error:
        stop_with(f"{error.filename or 'the file'}: {error.strerror or error}.", "", MISUSED)


if __name__ == "__main__":
    main()

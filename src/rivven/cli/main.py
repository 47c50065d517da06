"""The entry of `rivven`: the groups, the version, and what becomes of an error.

Exit codes: 0 all is well, 1 something is wrong or was not found, 2 the command cannot be carried out as given,
130 interrupted. A user's mistake is one or two lines on stderr that end with the next step, never a traceback.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from rivven import __version__
from rivven.errors import BadDirectory, DirectoryLocked, OffsetOutOfRange, RivvenError, UnknownTopic

from . import bench, completion, config, group, offsets, quota, server, status, topic, txn
from .consume import consume
from .log import app as log_app
from .opening import Misused
from .produce import produce
from .sql import sql

USAGE = 2
INTERRUPTED = 130
MISTAKES = (UnknownTopic, DirectoryLocked, BadDirectory, OffsetOutOfRange)

app = typer.Typer(
    name="rivven",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich takes a moment to load
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(topic.app, name="topic")
app.command()(produce)
app.command()(consume)
app.command()(sql)
app.add_typer(group.app, name="group")
app.add_typer(txn.app, name="txn")
app.add_typer(offsets.app, name="offsets")
app.add_typer(config.app, name="config")
app.add_typer(quota.app, name="quota")
app.command()(status.ping)
app.command()(status.status)
app.command()(status.metrics)
app.add_typer(bench.app, name="bench")
app.add_typer(log_app, name="log")
app.command("completion")(completion.completion)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rivven {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """rivven: a durable event-streaming platform.

    The commands of a broker, and tools for the data directory of a node. Each command has its own help:

        rivven topic create --help
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    if arguments is None and hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends us quietly, as it does any other tool
    if completion.VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]  # it is, in effect

        completion_init()
    logging.getLogger("rivven").addHandler(logging.NullHandler())  # commands print their findings themselves
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=None if arguments is None else list(arguments), prog_name="rivven")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except RivvenError as error:
        what, step = server.explain(error) or (str(error), _next_step(error))
        _fail(what, step)
        sys.exit(USAGE if isinstance(error, MISTAKES) or server.is_misuse(error) else 1)
    except Misused as error:
        _fail(f"{error}.", "Each command shows what it takes with --help.")
        sys.exit(USAGE)
    except OSError as error:
        _fail(*_explain(error))
        sys.exit(USAGE)


def _open_closed_streams() -> None:
    """Whoever started us may have closed some (`>&-`): then nothing comes, and what we say goes nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # until we end


def _next_step(error: RivvenError) -> str:
    match error:
        case BadDirectory():
            return "Name the data directory of a node: the one that holds topic_metadata.json and topics/."
        case UnknownTopic():
            return "`rivven log verify DIR` lists what the directory holds."
        case OffsetOutOfRange():
            return "Name an offset in that range."
        case _:
            return ""  # the others say it themselves


def _explain(error: OSError) -> tuple[str, str]:
    path = error.filename or "the file"
    match error.errno:
        case errno.ENOENT:
            return f"{path} does not exist.", "Check the path; it names the data directory of a node."
        case errno.EACCES | errno.EPERM:
            return f"{path}: permission denied.", "Run this as the user that the node runs as."
        case errno.ENOTDIR | errno.EISDIR:
            return f"{path}: {error.strerror}.", "Name the data directory of a node, or one of its files."
        case errno.EROFS:
            return f"{path} is on a read-only file system.", "Use --dry-run, or copy the directory elsewhere first."
        case _:
            return f"{path}: {error.strerror or error}.", "Check the disk (dmesg, smartctl), then try again."


def _fail(what: str, step: str) -> None:
    sys.stdout.flush()
    typer.echo(f"error: {what}" + (f"\n{step}" if step else ""), err=True)


if __name__ == "__main__":
    main()

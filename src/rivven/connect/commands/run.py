"""`run`, `sources` and `sinks`: all of a file, what is named of it, or one half."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .opening import INTERRUPTED, Chosen, ConfigFile, Misused, Names, Verbose, config_of, plans_of
from .session import end, session
from .stopping import stopped_by_signals
from .watching import go

if TYPE_CHECKING:
    from rivven.connect.config import ConnectConfig
    from rivven.connect.state import StateDirectory

MASTER = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\]|-cluster\[.+\])?|(spark|k8s)://.+|yarn")


def _master(text: str) -> str:
    if not MASTER.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is none of local[*], local[4], spark://host:7077, yarn, k8s://…")
    return text


Master = Annotated[
    str,
    typer.Option("--master", help="Where Spark runs: local[*], spark://host:7077, yarn, k8s://…", callback=_master),
]
Remote = Annotated[
    str | None, typer.Option("--remote", help="A Spark Connect server: sc://host:15002.", show_default=False)
]
StateDir = Annotated[
    str | None, typer.Option("--state-dir", help="Instead of the file's settings.state_dir.", show_default=False)
]
Once = Annotated[bool, typer.Option("--once", help="End when all that is there is done.")]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=0,
        max=65_535,
        help="Serve status on this port, 0 for a free one; also with --once.",
        show_default=False,
    ),
]
NoHttp = Annotated[bool, typer.Option("--no-http", help="Serve no status.")]


def run(
    names: Names = None,
    config: ConfigFile = None,
    verbose: Verbose = False,
    once: Once = False,
    master: Master = "local[*]",
    remote: Remote = None,
    state_dir: StateDir = None,
    port: Port = None,
    no_http: NoHttp = False,
) -> None:
    """Run the pipelines of a file until they end, or until you stop them.

    With --once, sources run to their end, sinks drain what is there, and it exits. A second run with the same state
    goes on where the first one ended, and adds nothing twice.
    """
    run_file(
        names,
        config=config,
        verbose=verbose,
        once=once,
        master=master,
        remote=remote,
        state_dir=state_dir,
        port=port,
        http=not no_http,
    )


def _half(kinds: tuple[str, ...]) -> Callable[..., None]:
    """`run` for some of a file alone."""

    def half(
        config: ConfigFile = None,
        verbose: Verbose = False,
        once: Once = False,
        master: Master = "local[*]",
        remote: Remote = None,
        state_dir: StateDir = None,
        port: Port = None,
        no_http: NoHttp = False,
    ) -> None:
        where: Any = {"master": master, "remote": remote, "state_dir": state_dir, "port": port, "http": not no_http}
        run_file(None, config=config, verbose=verbose, once=once, kinds=kinds, **where)

    return half


sources = _half(("source",))
sinks = _half(("sink", "dead_letters"))


def run_file(
    names: Sequence[str] | None,
    *,
    config: str | None = None,
    verbose: bool = False,
    once: bool = False,
    master: str = "local[*]",
    remote: str | None = None,
    state_dir: str | None = None,
    port: int | None = None,
    http: bool = True,
    kinds: tuple[str, ...] = (),
) -> None:
    made = config_of(config)
    verbose = verbose or Chosen.verbose
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    plans = [plan for plan in plans_of(made, names) if not kinds or plan.kind in kinds]
    if not plans:
        raise Misused(f"this file has no {kinds[0]} to run")
    state = _open_state(state_dir, made)
    try:
        with stopped_by_signals() as stop:
            spark = session(made, master, remote, state, verbose=verbose)
            stop.listen()  # a session takes SIGINT for itself, to cancel its jobs
            try:
                asked = stop.asked  # while Spark was starting: then there is nothing to end in good order
                code = INTERRUPTED if asked else go(made, plans, spark, state, stop, once=once, port=port, http=http)
            finally:
                end(spark)
    finally:
        state.close()
    raise typer.Exit(code)


def _open_state(state_dir: str | None, config: ConnectConfig) -> StateDirectory:
    from rivven.connect.state import StateDirectory, why_unusable

    said, path = ("--state-dir", state_dir) if state_dir else ("settings.state_dir", config.settings.state_dir)
    state = StateDirectory(path)
    try:
        state.open()
    except OSError as error:
        reason = why_unusable(error)
        raise Misused(
            f"{said} {path} cannot be used: {reason}; name a directory that you may write with --state-dir"
        ) from None
    return state

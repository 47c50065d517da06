"""`rivven-connect`: check a pipeline file, look at connectors, run pipelines until they end or somebody stops them.

Exit codes: 0 all is well, 1 something failed, 2 used wrongly or a file with mistakes, 130 interrupted. A mistake is a
line that names the place and the way out, never a traceback. Only `run` and its kin start Spark.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from rivven import __version__
from rivven.errors import RivvenError

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

    from .config import ConnectConfig, Loaded
    from .plan import QueryPlan
    from .run import Runner
    from .screen import Screen
    from .sdk import Connector, Finding
    from .state import StateDirectory
    from .web import StatusServer

WELL, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
STEP_S = 0.25
STOPPING = (signal.SIGINT, signal.SIGTERM)
DEFAULT_FILE = "connect.yaml"
DEFAULT_URL = "http://127.0.0.1:8083"

app = typer.Typer(
    name="rivven-connect",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigFile = Annotated[
    str | None,
    typer.Option("--config", "-c", help=f"The pipeline file; {DEFAULT_FILE} by default.", show_default=False),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Let Spark speak, and show tracebacks.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
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
        _run(None)


# The file


def _load(config: str | None) -> Loaded:
    from .config import load

    return load(config or Chosen.config or DEFAULT_FILE, os.environ)


def _config(config: str | None) -> ConnectConfig:
    """A file without mistakes; with some, they are printed and this is the end."""
    loaded = _load(config)
    _print_mistakes(loaded)
    if loaded.config is None:
        raise typer.Exit(MISUSED)
    return loaded.config


def _print_mistakes(loaded: Loaded) -> None:
    for each in loaded.mistakes:
        place = f"{loaded.path}:{each.mark.line}:{each.mark.column}" if each.mark else loaded.path
        kind = "warning: " if each.warning else ""
        typer.echo(f"{place}: {kind}{each.path + ': ' if each.path else ''}{each.text}", err=True)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@app.command()
def validate(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Find every mistake in a file, without starting anything.

    Each is printed with its line and column. Exits with 0 if there is none, and with 2 if there are some.
    """
    loaded = _load(config)
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
        _print_json({"file": loaded.path, "valid": loaded.config is not None, "mistakes": listed})
    else:
        _print_mistakes(loaded)
    if loaded.config is None:
        if not as_json:
            typer.echo(f"{loaded.path}: {_counted(len(loaded.errors), 'mistake')}", err=True)
        raise typer.Exit(MISUSED)
    if not as_json:
        made = loaded.config
        parts = [
            _counted(len(made.sources), "source"),
            _counted(len(made.sinks), "sink"),
            _counted(len(made.pipelines), "pipeline"),
        ]
        typer.echo(f"✓ {loaded.path} is valid: {', '.join(parts)}")


@app.command()
def explain(names: Names = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Print what would run: what each query reads, changes and writes, how often, and with which guarantee."""
    plans = _plans(_config(config), names)
    if as_json:
        keys = ("name", "kind", "reads", "changes", "writes", "trigger_ms", "delivery", "bounded", "checkpoint")
        _print_json({"queries": [{key: getattr(plan, key) for key in keys} for plan in plans]})
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


def _plans(config: ConnectConfig, names: Sequence[str] | None) -> list[QueryPlan]:
    from .plan import make_plan
    from .settings import unknown

    known = [*config.sources, *config.sinks, *config.pipelines]
    for name in names or ():
        if name not in known:
            raise Misused(unknown("source, sink or pipeline", name, known))
    plans = make_plan(config, frozenset(names or ()))
    if not plans:
        raise Misused("everything in this file is switched off; set enabled: true")
    return plans


# Looking at connectors


@app.command()
def connectors(
    kind: Annotated[str | None, typer.Argument(help="source, sink or transform.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """List the connectors and transforms there are, those of other packages included."""
    from .registry import KINDS, UnknownConnector, catalogue
    from .settings import unknown

    wanted = kind.removesuffix("s") if kind else None
    if wanted is not None and wanted not in KINDS:
        raise Misused(unknown("kind", kind or "", list(KINDS)))
    found = [each for each in catalogue() if wanted in (None, each[0])]
    if as_json:
        listed = [
            {"kind": each, "name": name, "error": str(made)} if isinstance(made, UnknownConnector) else made.spec()
            for each, name, made in found
        ]
        _print_json({"connectors": listed})
        return
    rows = []
    for each, name, made in found:
        if isinstance(made, UnknownConnector):
            rows.append([each, name, "", str(made)])
            continue
        needs = f" (needs rivven[{made.extra}])" if made.missing() else ""
        rows.append([each, name, getattr(made, "delivery", "").replace("_", " "), made.summary + needs])
    _print_table(["KIND", "NAME", "DELIVERY", "WHAT IT DOES"], rows)


@app.command()
def schema(
    connector: Annotated[str, typer.Argument(help="A name, or kind.name where one name is of two kinds.")],
    form: Annotated[str, typer.Option("--format", help="json or table.")] = "json",
) -> None:
    """Print what a connector or transform takes: its JSON schema, or a table."""
    if form not in ("json", "table"):
        raise Misused(f"there is no format {form!r}; use json or table")
    found = _found(connector)
    if form == "json":
        specs = [made.spec() for made in found]
        _print_json(specs[0] if len(specs) == 1 else {"connectors": specs}, indent=True)
        return
    from .settings import fields_of

    for made in found:
        typer.echo(f"{made.kind} {made.name}: {made.summary}")
        rows = [
            [field.key, field.type_text, "required" if field.required else _default(field.default), field.doc]
            for field in fields_of(made.settings_type)
        ]
        _print_table(["SETTING", "TYPE", "DEFAULT", "WHAT IT IS FOR"], rows)


def _found(name: str) -> list[type[Connector[Any]]]:
    from .registry import KINDS, UnknownConnector, find, names
    from .settings import unknown

    kind, _, rest = name.partition(".")
    if kind in KINDS and rest:
        return [find(kind, rest)]
    found = []
    for each in KINDS:
        try:
            found.append(find(each, name))
        except UnknownConnector as error:
            if "there is no" not in str(error):
                raise
    if not found:
        raise Misused(unknown("connector", name, sorted({other for each in KINDS for other in names(each)})))
    return found


def _default(value: Any) -> str:
    from .settings import Settings

    if isinstance(value, Settings) or value in (None, [], {}):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


@app.command()
def check(
    source: Annotated[
        list[str] | None, typer.Option("--source", help="Only this source.", show_default=False)
    ] = None,
    sink: Annotated[list[str] | None, typer.Option("--sink", help="Only this sink.", show_default=False)] = None,
    config: ConfigFile = None,
) -> None:
    """Look whether everything can be reached: the broker, and both ends of every pipeline. Changes nothing."""
    made = _config(config)
    only = {*(source or ()), *(sink or ())}
    if only:
        _plans(made, sorted(only))
    problems = 0
    if made.broker is not None and not only:
        problems += _check_broker(made)
    for title, connector in _ends(made, only):
        try:
            findings = connector.check()
        except Exception as error:  # a connector is somebody else's code
            from .sdk import Finding

            findings = [Finding(f"{type(error).__name__}: {error}")]
        problems += _print_findings(title, findings)
    if problems:
        raise typer.Exit(FAILED)


def _check_broker(config: ConnectConfig) -> int:
    from .topics import connect

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


@app.command()
def discover(
    source: Annotated[str, typer.Argument(help="A source or pipeline of the file.")],
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    config: ConfigFile = None,
) -> None:
    """Show what a source offers: its streams and their columns."""
    from .settings import unknown

    if form not in ("json", "table"):
        raise Misused(f"there is no format {form!r}; use json or table")
    made = _config(config)
    sources = {name: entry.make for name, entry in made.sources.items()}
    sources |= {name: entry.source.make for name, entry in made.pipelines.items()}
    if source not in sources:
        raise Misused(unknown("source", source, sources))
    streams = sources[source]().discover()
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
        _print_json({"source": source, "streams": listed})
        return
    if not streams:
        typer.echo(f"{source} cannot tell what it offers; it is known once it runs")
    for stream in streams:
        rows = [[stream.name, each.name, str(each.type)] for each in stream.schema if not each.name.startswith("__")]
        _print_table(["STREAM", "COLUMN", "TYPE"], rows)


# First steps


@app.command()
def init(
    what: Annotated[str, typer.Argument(help="The file to write, or `connector`.")] = DEFAULT_FILE,
    name: Annotated[str | None, typer.Argument(help="The name of the connector.", show_default=False)] = None,
) -> None:
    """Write a first pipeline file, or with `init connector NAME` a package for a connector of your own."""
    from .scaffold import write_connector, write_starter

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


# Running


@app.command()
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
    _run(
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
        _run(None, config=config, verbose=verbose, once=once, kinds=kinds, **where)

    return half


app.command("sources", help="Run only the sources of a file.")(_half(("source",)))
app.command("sinks", help="Run only the sinks of a file.")(_half(("sink", "dead_letters")))


def _run(
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
    made = _config(config)
    verbose = verbose or Chosen.verbose
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    plans = [plan for plan in _plans(made, names) if not kinds or plan.kind in kinds]
    if not plans:
        raise Misused(f"this file has no {kinds[0]} to run")
    state = _open_state(state_dir, made)
    try:
        with stopped_by_signals() as stop:
            spark = _session(made, master, remote, state, verbose=verbose)
            stop.listen()  # a session takes SIGINT for itself, to cancel its jobs
            try:
                asked = stop.asked  # while Spark was starting: then there is nothing to end in good order
                code = INTERRUPTED if asked else _go(made, plans, spark, state, stop, once=once, port=port, http=http)
            finally:
                _end(spark)
    finally:
        state.close()
    raise typer.Exit(code)


def _open_state(state_dir: str | None, config: ConnectConfig) -> StateDirectory:
    from .state import StateDirectory, why_unusable

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


class Stop:
    """Whether somebody has asked for an end: the first SIGINT or SIGTERM asks for one in good order, the second ends
    at once, which is safe, too."""

    asked = False

    def listen(self) -> None:
        for number in STOPPING:
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            os._exit(INTERRUPTED)
        self.asked = True

    def wait(self, seconds: float) -> None:
        """So long, or until it is asked: a signal alone does not end a sleep."""
        due_s = time.monotonic() + seconds
        while not self.asked and (rest_s := due_s - time.monotonic()) > 0:
            time.sleep(min(rest_s, STEP_S))


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    stop = Stop()
    before = {number: signal.getsignal(number) for number in STOPPING}
    stop.listen()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _session(
    config: ConnectConfig, master: str, remote: str | None, state: StateDirectory, *, verbose: bool
) -> SparkSession:
    """The Spark session. What the JVM says goes to spark.log in the state directory, unless it may speak."""
    if config.settings.log_level != "debug":
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    settings = {"spark.sql.session.timeZone": "UTC", **config.settings.spark}
    try:
        from rivven.spark import start, start_remote
    except ImportError as error:
        raise Misused(f"Spark is not installed ({error.name or error}); pip install 'rivven[spark]'") from None
    if remote is not None:
        return start_remote(remote, settings, tell=lambda text: typer.echo(text, err=True))
    with _stderr_to(None if verbose else state.path / "spark.log"):
        return start("rivven-connect", master, _local_settings(master) | settings)


def _local_settings(master: str) -> dict[str, str]:
    """For one machine: an aggregation in 200 parts, which is Spark's default, would be 200 tasks for a few rows."""
    if not master.startswith("local"):
        return {}
    return {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Children that start meanwhile write their stderr to a file; our own comes back after that."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    own = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(file)


def _end(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception as error:  # a JVM that a signal has ended cannot say goodbye
        logging.getLogger("rivven.connect").debug("Spark did not stop: %s", error)


def _go(
    config: ConnectConfig,
    plans: Sequence[QueryPlan],
    spark: SparkSession,
    state: StateDirectory,
    stop: Stop,
    *,
    once: bool,
    port: int | None,
    http: bool,
) -> int:
    from .report import snapshot
    from .run import Runner
    from .screen import Screen

    runner = Runner(config, plans, spark, state, once=once)
    begun_s = time.monotonic()
    seen: dict[str, Any] = {}

    def look() -> dict[str, Any]:
        seen["now"] = snapshot(runner.works, time.monotonic() - begun_s, connected=runner.connected, once=once)
        return seen["now"]  # type: ignore[no-any-return]

    look()
    screen = Screen(live=False if any(_prints(plan) for plan in plans) else None)
    servers: list[StatusServer] = []
    try:
        made = _patiently(runner, config, screen, stop)
        for topic in made:
            screen.say(f"topic {topic} created")
        if http and not stop.asked:
            servers = _serve(config, lambda: seen["now"], screen, once=once, port=port)
        while not stop.asked and runner.step():
            screen.show(look())
            stop.wait(STEP_S)
        if stop.asked:
            runner.stop()
        screen.show(look())
    finally:
        screen.close()
        for server in servers:
            server.close()
        runner.close()
    failed = [work for work in runner.works if work.state == "failed"]
    _say_end(seen["now"], bool(failed))
    return FAILED if failed else WELL


def _prints(plan: QueryPlan) -> bool:
    entry: Any = plan.entry
    connector = entry.sink.connector if plan.kind == "pipeline" else entry.connector
    return plan.kind in ("sink", "pipeline") and connector == "stdout"


def _patiently(runner: Runner, config: ConnectConfig, screen: Screen, stop: Stop) -> list[str]:
    """Find the broker, with the patience that the file asks for, unless somebody has none."""
    failures = 0
    while not stop.asked:
        try:
            return runner.prepare()
        except RivvenError as error:
            failures += 1
            retry = config.settings.retry
            if not error.retriable or failures > retry.max_retries:
                raise
            pause_ms = retry.backoff_ms(failures)
            screen.say(f"no broker yet, again in {pause_ms:,} ms: {error}")
            stop.wait(pause_ms / 1000)
    return []


def _serve(config: ConnectConfig, seen: Any, screen: Screen, *, once: bool, port: int | None) -> list[StatusServer]:
    from .web import StatusServer

    health, metrics = config.settings.health, config.settings.metrics
    wanted = health.enabled if health.enabled is not None else not once
    ports = [port] if port is not None else [health.port] if wanted else []
    if metrics.enabled and metrics.port is not None and metrics.port not in ports:
        ports.append(metrics.port)
    servers = []
    for each in ports:
        try:
            servers.append(StatusServer(health.host, each, seen, health.path, metrics=metrics.enabled))
        except OSError as error:
            if port is not None or health.enabled:
                raise Misused(
                    f"status cannot be served on {health.host}:{each}: {error.strerror}; use --port"
                ) from None
            screen.say(f"no status on {health.host}:{each}: {error.strerror}; choose another with --port")
            continue
        screen.say(f"status on http://{servers[-1].address}{health.path}")
    return servers


def _say_end(seen: dict[str, Any], failed: bool) -> None:
    rows = sum(row["events_processed"] for row in seen["queries"])
    for row in seen["queries"]:
        if row["status"] == "failed":
            typer.echo(f"error: {row['name']}: {row['last_error']}", err=True)
    sys.stdout.flush()
    typer.echo(f"{'✗' if failed else '✓'} {rows:,} rows in {seen['uptime_secs']:,.1f} s", err=True)


@app.command()
def prepare() -> None:
    """Make Spark start faster on this machine from now on.

    Java keeps the classes that Spark loads, which takes a minute and 170 MB beside Spark's jars.
    """
    from .prepare import keep_classes

    took_s, path = keep_classes(lambda text: typer.echo(text, err=True))
    typer.echo(f"✓ kept {path.stat().st_size / 1e6:,.0f} MB of classes in {took_s:,.0f} s: {path}")


# Asking a run


@app.command()
def status(
    url: Annotated[str, typer.Option("--url", help="Where the run serves its status.")] = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show how a run is doing, one line for every pipeline.

    Exits with 0 if all is well, and with 1 if something failed or nobody answers.
    """
    import urllib.error
    import urllib.request

    import msgspec

    from . import report
    from .plan import public

    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/progress", timeout=10) as answer:
            seen = msgspec.json.decode(answer.read())
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        _stop(
            f"nobody answers at {public(url)}: {reason}",
            "Is a run going on? Its first lines say where its status is.",
            FAILED,
        )
    if as_json:
        _print_json(seen)
    else:
        _print_table(*report.table(seen))
        for row in seen["queries"]:
            if row["last_error"]:
                typer.echo(f"{row['name']}: {row['last_error']}")
    if seen["status"] != "healthy":
        raise typer.Exit(FAILED)


# Printing


def _print_json(document: Any, *, indent: bool = False) -> None:
    import msgspec

    text = msgspec.json.encode(document)
    wide = indent or sys.stdout.isatty()
    typer.echo((msgspec.json.format(text, indent=2) if wide else text).decode())


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[place]) for row in (titles, *rows)) for place in range(len(titles))]
    for row in (titles, *rows):
        typer.echo("  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip())


def _stop(what: str, step: str, code: int) -> NoReturn:
    sys.stdout.flush()
    typer.echo(f"error: {what}" + (f"\n{step}" if step else ""), err=True)
    sys.exit(code)


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
        _stop(
            f"{error}" if str(error).endswith("?") else f"{error}.",
            "Each command shows what it takes with --help.",
            MISUSED,
        )
    except RivvenError as error:
        _stop(str(error), "", FAILED)
    except FileNotFoundError as error:
        _stop(
            f"{error.filename} does not exist.", "Name the file with -c, or write one: rivven-connect init", MISUSED
        )
    except OSError as error:
        _stop(f"{error.filename or 'the file'}: {error.strerror or error}.", "", MISUSED)


if __name__ == "__main__":
    main()

"""A run from the first look for its broker to the last line: stepped, shown, served over HTTP, stopped."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from rivven.errors import RivvenError

from .opening import FAILED, WELL, Misused
from .stopping import STEP_S, Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rivven.connect.config import ConnectConfig
    from rivven.connect.plan import QueryPlan
    from rivven.connect.run import Runner
    from rivven.connect.screen import Screen
    from rivven.connect.state import StateDirectory
    from rivven.connect.web import StatusServer


def go(
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
    from rivven.connect.report import snapshot
    from rivven.connect.run import Runner
    from rivven.connect.screen import Screen

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
    from rivven.connect.web import StatusServer

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

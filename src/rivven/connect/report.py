"""How a run is doing, as values: for the screen, for `status`, for whoever asks over HTTP. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .plan import QueryPlan
from .progress import Progress

HEALTHY = ("running", "done", "waiting", "new", "stopped")


class Worked(Protocol):
    """One query of a run."""

    plan: QueryPlan
    state: Any
    progress: Progress
    errors: int
    error: str


def snapshot(works: Sequence[Worked], uptime_s: float, *, connected: bool, once: bool) -> dict[str, Any]:
    """Everything that is known of a run, as JSON."""
    rows = [
        {
            "name": work.plan.name,
            "kind": work.plan.kind,
            "status": work.state,
            "delivery": work.plan.delivery,
            "events_processed": work.progress.rows,
            "events_per_second": round(work.progress.rows_per_second, 1),
            "lag": work.progress.lag,
            "batches": work.progress.batches,
            "batch_ms": work.progress.batch_ms,
            "share": round(work.progress.share, 4) if work.progress.share is not None and ends(work, once) else None,
            "errors_count": work.errors,
            "last_error": work.error or None,
        }
        for work in works
    ]
    good = all(row["status"] in HEALTHY for row in rows)
    return {
        "status": "healthy" if good else "unhealthy",
        "broker_connected": connected,
        "uptime_secs": round(uptime_s, 1),
        "queries": rows,
    }


def ends(work: Worked, once: bool) -> bool:
    return once or work.plan.bounded


def health(seen: dict[str, Any]) -> dict[str, Any]:
    """The short form: sources and sinks with what counts."""
    wanted = ("name", "status", "events_processed", "errors_count", "last_error")

    def of(*kinds: str) -> list[dict[str, Any]]:
        return [{key: row[key] for key in wanted} for row in seen["queries"] if row["kind"] in kinds]

    return {
        "status": seen["status"],
        "broker_connected": seen["broker_connected"],
        "sources": of("source"),
        "sinks": of("sink", "dead_letters"),
        "pipelines": of("pipeline"),
        "uptime_secs": seen["uptime_secs"],
    }


METRICS = {
    "rivven_connect_rows_total": ("counter", "Records read since the start of the run.", "events_processed"),
    "rivven_connect_batches_total": ("counter", "Micro-batches done since the start of the run.", "batches"),
    "rivven_connect_errors_total": ("counter", "Failures since the start of the run.", "errors_count"),
    "rivven_connect_rows_per_second": ("gauge", "Speed of the last micro-batch.", "events_per_second"),
    "rivven_connect_lag_rows": ("gauge", "Records that were there and not yet read.", "lag"),
    "rivven_connect_batch_milliseconds": ("gauge", "How long the last micro-batch took.", "batch_ms"),
}


def metrics(seen: dict[str, Any]) -> str:
    """The same in the text format of Prometheus."""
    lines = []
    for name, (kind, words, key) in METRICS.items():
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        for row in seen["queries"]:
            if row[key] is not None:
                lines.append(f'{name}{{pipeline="{row["name"]}",kind="{row["kind"]}"}} {row[key]}')
    lines += ["# HELP rivven_connect_up Whether a pipeline runs or is done.", "# TYPE rivven_connect_up gauge"]
    for row in seen["queries"]:
        up = int(row["status"] in ("running", "done"))
        lines.append(f'rivven_connect_up{{pipeline="{row["name"]}",kind="{row["kind"]}"}} {up}')
    return "\n".join(lines) + "\n"


def ready(seen: dict[str, Any]) -> bool:
    """Whether everything has started and nothing has failed."""
    return all(row["status"] in ("running", "done", "waiting") for row in seen["queries"])


# Texts for people


def line(row: dict[str, Any]) -> str:
    """One query in a line."""
    parts = [f"{row['name']}: {row['status']}", f"{row['events_processed']:,} rows"]
    if row["events_per_second"] and row["status"] == "running":
        parts.append(f"{row['events_per_second']:,.0f}/s")
    if row["lag"] is not None and row["status"] == "running":
        parts.append(f"lag {row['lag']:,}")
    if row["share"] is not None and row["status"] == "running":
        parts.append(f"{row['share']:.0%}")
    if row["errors_count"]:
        parts.append(f"{row['errors_count']} error{'s' * (row['errors_count'] > 1)}")
    if row["last_error"] and row["status"] in ("failed", "retrying"):
        parts.append(str(row["last_error"]))
    return ", ".join(parts)


def table(seen: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Titles and cells: one row per query."""
    titles = ["PIPELINE", "KIND", "STATE", "ROWS", "ROWS/S", "LAG", "BATCH", "DONE", "ERRORS"]
    return titles, [_cells(row) for row in seen["queries"]]


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        row["kind"].replace("_", " "),
        row["status"],
        f"{row['events_processed']:,}",
        f"{row['events_per_second']:,.0f}",
        "" if row["lag"] is None else f"{row['lag']:,}",
        f"{row['batch_ms']:,} ms" if row["batch_ms"] else "",
        "" if row["share"] is None else bar(row["share"]),
        str(row["errors_count"]),
    ]


def bar(share: float, cells: int = 12) -> str:
    full = int(share * cells)
    return "█" * full + "░" * (cells - full) + f" {share:4.0%}"

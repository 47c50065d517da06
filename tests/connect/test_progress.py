"""What progress reports add up to, and how that is told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from rivven.connect import report
from rivven.connect.config import loads
from rivven.connect.plan import QueryPlan, make_plan
from rivven.connect.progress import Progress, total
from rivven.connect.screen import Screen
from rivven.connect.web import StatusServer, answer


def told(batch: int, rows: int, start: object, end: object, latest: object, ms: int = 100) -> dict[str, Any]:
    durations = {"triggerExecution": ms} | ({"addBatch": ms} if rows else {})
    source = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    return {"batchId": batch, "numInputRows": rows, "durationMs": durations, "sources": [source]}


def test_reports_are_counted_once() -> None:
    progress = Progress()
    first = told(0, 10, None, {"t": {"0": 10}}, {"t": {"0": 30}})
    progress.take([first])
    progress.take([first])
    assert progress.rows == 10
    progress.take([first, told(1, 20, {"t": {"0": 10}}, {"t": {"0": 30}}, {"t": {"0": 30}}, ms=50)])
    assert (progress.rows, progress.batches, progress.lag, progress.share) == (30, 2, 0, 1.0)
    assert (progress.batch_ms, progress.rows_per_second) == (50, 400.0)


def test_rows_that_only_the_sources_tell_are_counted() -> None:
    """As through Spark Connect."""
    report = told(0, 10, None, {"row": 10}, {"row": 10}) | {"numInputRows": None}
    report["sources"] = [{**report["sources"][0], "numInputRows": rows} for rows in (4, 6)]
    progress = Progress()
    progress.take([report])
    assert (progress.rows, progress.batches) == (10, 1)


def test_a_look_round_does_not_hide_the_batch_that_follows() -> None:
    progress = Progress()
    progress.take([told(0, 0, {"row": 5}, {"row": 5}, {"row": 5})])
    progress.take([told(0, 7, {"row": 5}, {"row": 12}, {"row": 19})])
    assert (progress.rows, progress.lag, progress.share) == (7, 7, 0.5)


def test_a_run_counts_from_where_it_began() -> None:
    progress = Progress()
    progress.take([told(9, 25, {"row": 100}, {"row": 125}, {"row": 200})])
    assert progress.share == 0.25


def test_offsets_that_are_no_numbers_say_nothing() -> None:
    progress = Progress()
    progress.take([told(0, 3, None, '{"logOffset": "x"}', None)])
    assert (progress.rows, progress.lag, progress.share) == (3, None, None)
    assert total("no json") is None
    assert total(True) is None


@dataclass
class Worked:
    plan: QueryPlan
    state: str = "running"
    progress: Progress = field(default_factory=Progress)
    errors: int = 0
    error: str = ""


def seen(state: str = "running", error: str = "") -> dict[str, Any]:
    text = "pipelines: {copy: {source: {connector: datagen, config: {max_events: 4}}, sink: {connector: stdout}}}"
    config = loads(text, {}).config
    assert config is not None
    (plan,) = make_plan(config)
    work = Worked(plan, state, Progress(rows=1234, lag=5, share=0.5, rows_per_second=99.9), int(bool(error)), error)
    return report.snapshot([work], 12.3, connected=False, once=False)


def test_a_snapshot_is_told_as_a_line_and_as_a_table() -> None:
    (row,) = seen()["queries"]
    assert report.line(row) == "copy: running, 1,234 rows, 100/s, lag 5, 50%"
    titles, cells = report.table(seen())
    assert cells[0][: len(titles)] == [
        "copy",
        "pipeline",
        "running",
        "1,234",
        "100",
        "5",
        "",
        "██████░░░░░░  50%",
        "0",
    ]
    assert "no luck" in report.line(seen("failed", "no luck")["queries"][0])


def test_health_follows_the_state() -> None:
    good, bad = seen(), seen("failed", "no luck")
    assert answer("/health", good, "/health", metrics=True)[0] == 200
    status, _, body = answer("/health?x=1", bad, "/health", metrics=True)
    assert status == 503
    assert json.loads(body)["pipelines"] == [
        {"name": "copy", "status": "failed", "events_processed": 1234, "errors_count": 1, "last_error": "no luck"}
    ]
    assert answer("/ready", bad, "/health", metrics=True)[0] == 503
    assert answer("/ready", good, "/health", metrics=True) == (200, "application/json", b'{"ready":true}')
    assert answer("/live", bad, "/health", metrics=True)[2] == b'{"alive":true}'
    assert answer("/nowhere", good, "/health", metrics=True)[0] == 404
    assert answer("/metrics", good, "/health", metrics=False)[0] == 404


def test_metrics_are_what_prometheus_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    _, kind, body = answer("/metrics", seen(), "/health", metrics=True)
    assert kind.startswith("text/plain")
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    assert found["rivven_connect_rows_total"] == 1234
    assert found["rivven_connect_lag_rows"] == 5
    assert found["rivven_connect_up"] == 1


def test_the_server_answers() -> None:
    from urllib.request import urlopen

    server = StatusServer("127.0.0.1", 0, seen, "/health", metrics=True)
    try:
        with urlopen(f"http://{server.address}/progress", timeout=10) as reply:
            assert json.loads(reply.read())["queries"][0]["name"] == "copy"
    finally:
        server.close()


def test_a_terminal_sees_a_table_and_a_pipe_sees_lines(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(live=False)
    for _ in range(3):
        screen.show(seen())
    screen.show(seen("failed", "no luck"))
    screen.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "copy: running, 1,234 rows, 100/s, lag 5, 50%",
        "copy: failed, 1,234 rows, 1 error, no luck",
    ], "a line when something has changed"
    screen = Screen(live=True)
    screen.show(seen("failed", "no luck"))
    screen.close()
    table = capsys.readouterr().err
    assert "PIPELINE" in table
    assert "copy: no luck" in table

"""What the progress reports of a query add up to: rows, speed, lag, how far a run with an end has come.

Pure. A report is what Spark gives as `StreamingQueryProgress`, as a dict.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Progress:
    """How a query does. Rows are counted from the start of this run."""

    rows: int = 0
    batches: int = 0
    rows_per_second: float = 0.0
    batch_ms: int = 0
    lag: int | None = None
    share: float | None = None
    """Of a run with an end, how much is done; None where that is not known."""
    last_batch: int = -1
    _start: int | None = None

    def take(self, reports: Iterable[dict[str, Any]]) -> None:
        """Count reports that are new."""
        for report in reports:
            if report["batchId"] > self.last_batch:
                self._count(report)

    def restarted(self) -> None:
        """The query begins again: its last batch may be done once more."""
        self.last_batch = -1

    def _count(self, report: dict[str, Any]) -> None:
        if "addBatch" in (report.get("durationMs") or {}):  # else it was a look round, under the next batch's number
            self.last_batch = report["batchId"]
        rows = report.get("numInputRows")
        if rows is None:  # Spark Connect tells them by source alone
            rows = sum(source.get("numInputRows") or 0 for source in report.get("sources") or ())
        duration_ms = (report.get("durationMs") or {}).get("triggerExecution", 0)
        if rows:
            self.rows += rows
            self.batches += 1
            self.batch_ms = duration_ms
            self.rows_per_second = rows * 1000 / duration_ms if duration_ms else 0.0
        ends, latest = [], []
        for source in report.get("sources") or ():
            self._begin(source)
            ends.append(total(source.get("endOffset")))
            latest.append(total(source.get("latestOffset")))
        known = [(end, last) for end, last in zip(ends, latest, strict=True) if end is not None and last is not None]
        if known:
            self.lag = max(0, sum(last - end for end, last in known))
            done, whole = sum(end for end, _ in known), sum(last for _, last in known)
            start = self._start or 0
            self.share = min(1.0, (done - start) / (whole - start)) if whole > start else 1.0

    def _begin(self, source: dict[str, Any]) -> None:
        if self._start is None:
            self._start = total(source.get("startOffset")) or 0


def total(offset: Any) -> int | None:
    """The sum of all numbers of an offset: how far it is, if each of its numbers counts records.

    >>> total('{"orders": {"0": 10, "1": 5}}'), total({"row": 7, "seed": "1", "since_us": 1}), total(None)
    (15, 7, None)
    """
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if isinstance(offset, bool) or offset is None:
        return None
    if isinstance(offset, int):
        return offset
    if not isinstance(offset, dict):
        return None
    if "row" in offset:
        return total(offset["row"])
    found = [number for value in offset.values() if (number := total(value)) is not None]
    return sum(found) if found else None

"""Retention: which segments a log may let go, by age and by size.

Whole segments only, oldest first, and never the active one, nor anything at or above the high watermark or in an open
transaction: of one that commits later, readers would find the rest alone.
"""

from __future__ import annotations

from rivven.model import Offset

from .log import Log


def start_after_retention(log: Log, now_ms: int) -> Offset:
    """Where the log would begin if retention were applied now."""
    if not log.config.deletes:
        return log.start
    excess_bytes = log.size_bytes - log.config.retention_bytes if log.config.retention_bytes >= 0 else 0
    start = log.start
    for segment in log.segments[:-1]:
        log.opened(segment)
        if segment.next_offset > log.last_stable:
            break
        aged = 0 <= log.config.retention_ms < now_ms - segment.max_timestamp_ms
        if not aged and excess_bytes < segment.end_bytes:
            break
        excess_bytes -= segment.end_bytes
        start = Offset(max(start, segment.next_offset))
    return start


def seals_for_retention(log: Log, now_ms: int) -> bool:
    """Whether all of the active segment has outlived `retention.ms`, so that it should be rolled to be let go."""
    active = log.active
    return (
        log.config.deletes
        and 0 <= log.config.retention_ms < now_ms - active.max_timestamp_ms
        and active.end_bytes > 0
        and active.next_offset <= log.last_stable
    )

"""What checking a data directory brings to light, and what to do about it.

A problem is damage: something that was written and synced does not read back. A note is what a crash leaves behind,
or an unusual state that recovery or the next run puts right by itself. Invariant: a finding says what happens next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

REBUILD = "it is rebuilt from the log when next opened; `rivven log rebuild-index` does it now"
RESTORE = "reading these offsets fails and the rest stays readable; restore the partition from a replica or a backup"
START = "start the node: recovery does it"
STRANGER = "it is left alone; remove it if it is not wanted"


class Severity(StrEnum):
    PROBLEM = "problem"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    partition: str
    """Empty for what concerns the whole directory."""
    path: str
    what: str
    then: str
    """What to do next, or what will happen by itself."""
    position: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass(slots=True)
class Tally:
    """What one partition holds."""

    partition: str
    segments: int = 0
    batches: int = 0
    records: int = 0
    length_bytes: int = 0
    start: int = 0
    end: int = 0
    problems: int = 0
    notes: int = 0


def note(partition: str, path: str, what: str, then: str, position: int | None = None) -> Finding:
    return Finding(Severity.NOTE, partition, path, what, then, position)

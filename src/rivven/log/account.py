"""The account of one partition that is kept while it is checked, segment by segment.

Invariant: every finding is counted, and no more than `FINDINGS_MAX` of them are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rivven.ports import Disk

from .compact import CleanerState
from .finding import Finding, Severity, Tally
from .offline import PartitionFiles
from .wal_check import WalEntries

Seen = Callable[[int], object]

FINDINGS_MAX = 50
"""How many findings of one partition are told; the rest is only counted."""


@dataclass(slots=True)
class Account:
    """One partition: what its files are held against, how far the check has come, and what it has found."""

    disk: Disk
    files: PartitionFiles
    wal: WalEntries
    quick: bool
    live: bool
    clean: bool
    seen: Seen
    tally: Tally = field(init=False)
    findings: list[Finding] = field(default_factory=list)
    trusted: int = 0
    start: int = 0
    cleaner: CleanerState | None = None
    next_offset: int = 0
    epoch: int = -1
    stopped: bool = False
    """Whether recovery would cut here, so that what follows does not count."""

    def __post_init__(self) -> None:
        self.start = self.wal.start(self.files.start)
        self.tally = Tally(str(self.files.partition), len(self.files.segments), start=self.start)
        self.trusted = self._trusted()

    def _trusted(self) -> int:
        point = self.files.point
        if point is not None:
            return self.wal.trusted(point.recovery_point)
        return self.files.segments[-1].base_offset if self.files.segments else 0

    def problem(
        self,
        path: str,
        what: str,
        then: str,
        position: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        self._tell(Finding(Severity.PROBLEM, str(self.files.partition), path, what, then, position, first, last))

    def note(
        self,
        path: str,
        what: str,
        then: str,
        position: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        self._tell(Finding(Severity.NOTE, str(self.files.partition), path, what, then, position, first, last))

    def _tell(self, finding: Finding) -> None:
        if finding.severity is Severity.PROBLEM:
            self.tally.problems += 1
        else:
            self.tally.notes += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def told(self) -> list[Finding]:
        left = self.tally.problems + self.tally.notes - len(self.findings)
        if not left:
            return self.findings
        severity = Severity.PROBLEM if self.tally.problems else Severity.NOTE
        what = f"and {left} more findings in this partition"
        return [
            *self.findings,
            Finding(severity, str(self.files.partition), self.files.directory, what, "mend the first ones first"),
        ]

    @property
    def compacted(self) -> bool:
        """Whether offsets may be missing because a record was superseded."""
        return self.files.config.compacts or self.cleaner is not None

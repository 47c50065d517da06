"""Checking the write-ahead log: are its groups whole, and does none miss that somebody was promised?

Invariant: what no checkpoint covers and is readable ends up in `entries`, in the order in which it was written.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from rivven.ports import Disk

from .contents import BadGroup, WalEntry, WalGroup, WalHeader, read_wal_header, wal_group_numbers, wal_groups
from .finding import Finding, Severity, note
from .offline import WAL, DataDirectory
from .wal import Kind


@dataclass(slots=True)
class WalEntries:
    """The entries of one partition that no checkpoint covers: kind, first and next offset of each, in a row."""

    numbers: array[int] = field(default_factory=lambda: array("q"))

    def add(self, entry: WalEntry) -> None:
        self.numbers.extend((entry.kind, entry.first_offset, entry.next_offset))

    def __iter__(self) -> Iterator[tuple[Kind, int, int]]:
        numbers = iter(self.numbers)
        for kind, first, following in zip(numbers, numbers, numbers, strict=True):
            yield Kind(kind), first, following

    def trusted(self, recovery_point: int) -> int:
        """Below which offset the segments are synced and unchanged since."""
        return min([recovery_point, *(first for kind, first, _ in self if kind is Kind.TRUNCATE)])

    def start(self, start: int) -> int:
        """Where the log begins, if the checkpoint says `start`."""
        return max([start, *(first for kind, first, _ in self if kind is Kind.START)])

    def replay(self, end: int, start: int) -> tuple[int, tuple[int, int] | None]:
        """How many appends only the write-ahead log has, and the offsets before one of them that nobody has."""
        replayed = 0
        for first, following in self._kept():
            if following is None:
                end = min(end, first)
            elif following > max(end, start):
                if first > max(end, start):
                    return replayed, (end, first - 1)
                end = following
                replayed += 1
        return replayed, None

    def _kept(self) -> list[tuple[int, int | None]]:
        """The truncations, as (offset, None), and the appends that no later truncation took back."""
        kept: list[tuple[int, int | None]] = []
        for kind, first, following in self:
            if kind is Kind.TRUNCATE:
                kept = [entry for entry in kept if entry[1] is None or entry[0] < first]
                kept.append((first, None))
            elif kind is Kind.APPEND:
                kept.append((first, following))
        return kept


class WalCheck:
    """One run over the write-ahead files. What it leaves in `entries` is what the partitions are held against."""

    def __init__(self, disk: Disk, directory: DataDirectory, *, live: bool) -> None:
        self._disk = disk
        self._directory = directory
        self._live = live
        self.entries: dict[tuple[bytes, int], WalEntries] = {}
        """By topic and partition: what no checkpoint covers."""

    def run(self) -> Iterator[Finding]:
        headers: list[WalHeader] = []
        for name in self._disk.names(WAL):
            if not name.endswith(".wal"):
                continue
            try:
                header = read_wal_header(self._disk, f"{WAL}/{name}")
            except FileNotFoundError:
                continue  # given up after a checkpoint, by the node that runs
            if header.fault == "unused":
                yield note("", header.path, "was never put to use", "start the node: it is used again", 0)
                continue
            if header.fault is not None:
                yield self._bad_wal_file(header)
            if header.sequence:
                headers.append(header)
        last_group = self._directory.checkpoint.group if self._directory.checkpoint is not None else None
        for header in sorted(headers, key=lambda each: each.sequence):
            try:
                last_group = yield from self._groups(header, last_group)
            except FileNotFoundError:
                continue

    def _bad_wal_file(self, header: WalHeader) -> Finding:
        newest = max((number for number in wal_group_numbers(self._disk, header)), default=0)
        covered = self._directory.checkpoint.group if self._directory.checkpoint is not None else 0
        cut_short = header.length_bytes > header.found_bytes
        position = header.found_bytes if cut_short else 0
        what = f"the write-ahead file is damaged: {header.fault}"
        if newest > covered and not self._live:
            then = f"groups up to {newest} may be in it alone, and recovery cannot tell; keep a copy of the directory"
            if header.sequence:
                then = "start the node: recovery goes by its first group instead"
            return Finding(Severity.PROBLEM, "", header.path, what, then, position)
        then = "nothing in it is needed: a checkpoint covers it, or it was being prepared"
        return note("", header.path, what, then, position)

    def _groups(self, header: WalHeader, last_group: int | None) -> Generator[Finding, None, int | None]:
        """Yields findings; returns the last group's number."""
        bad: BadGroup | None = None
        for item in wal_groups(self._disk, header):
            if isinstance(item, BadGroup):
                bad = item
                if item.torn:
                    yield self._torn(header, item, last_group)
                continue
            reported = bad is not None
            if bad is not None:
                yield self._bad_group(header, bad, item, last_group)
                bad = None
            if item.fault is not None:
                yield Finding(Severity.PROBLEM, "", header.path, item.fault, "recovery cannot read it", item.position)
            if last_group is not None and item.number <= last_group:
                continue
            if last_group is not None and item.number > last_group + 1:
                if item.synced <= last_group:
                    return last_group  # a power loss may take one group and leave a later one that no sync covered
                if not reported:
                    what = f"group(s) {last_group + 1} to {item.number - 1} are missing before this one"
                    yield self._lost_groups(header, what, item.position)
            last_group = item.number
            for entry in item.entries:
                self.entries.setdefault((entry.topic_id, entry.partition), WalEntries()).add(entry)
        return last_group

    def _torn(self, header: WalHeader, bad: BadGroup, last_group: int | None) -> Finding:
        what = f"the group after {last_group} was not wholly written, or a checkpoint covers it"
        return note("", header.path, what, "recovery leaves it out: nobody was told that it was kept", bad.position)

    def _bad_group(self, header: WalHeader, bad: BadGroup, after: WalGroup, last_group: int | None) -> Finding:
        what = f"{bad.length_bytes} bytes before group {after.number} are damaged"
        if last_group is not None and after.number - 1 <= last_group:
            return note("", header.path, what, "a checkpoint covers them, so nothing is lost", bad.position)
        if last_group is not None and after.synced <= last_group:
            return note("", header.path, what, "no sync had covered them; recovery leaves them out", bad.position)
        return self._lost_groups(header, what, bad.position)

    def _lost_groups(self, header: WalHeader, what: str, position: int) -> Finding:
        if self._live:
            return note("", header.path, what, "a node is writing here; run this again", position)
        then = "start the node: recovery says which offsets are lost, if the segments are without them too"
        return Finding(Severity.PROBLEM, "", header.path, what, then, position)

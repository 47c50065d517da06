"""Checking a data directory against everything that is known about it, and changing nothing.

Two kinds of findings come out. A problem is damage: something that was written and synced does not read back. A
note is what a crash leaves behind, or an unusual state that recovery or the next run puts right by itself. So a
directory after a crash has notes and no problems, and that holds in the simulator for every crash.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from rivven.errors import InvalidConfig, Malformed
from rivven.model import TopicPartition
from rivven.ports import Disk
from rivven.record import Record, decode

from .bloom import Bloom
from .compact import CLEAN, CLEANER, CleanerState
from .contents import BadGroup, WalEntry, WalGroup, WalHeader, read_wal_header, wal_group_numbers, wal_groups
from .document import read_whole, unseal
from .offline import (
    WAL,
    DataDirectory,
    PartitionFiles,
    SegmentFiles,
    Unreadable,
    WalkedBatch,
    bloom_fault,
    document_fault,
    length_of,
    offset_index,
    read_document,
    read_partition,
    time_index,
    walk_batches,
)
from .recover import CHECKPOINT, Checkpoint
from .snapshot import SUFFIX as STATE
from .snapshot import Snapshot
from .tail import NO_TIMESTAMP
from .topics import METADATA, TOPICS, Topic, TopicList, topic_directory
from .wal import Kind

Seen = Callable[[int], object]

FINDINGS_MAX = 50
"""How many findings of one partition are told; the rest is only counted."""
OFFSET_MAX = 2**63 - 1
TRIES_LIVE = 3
"""How often a partition that a running node changes is read until it holds still."""
KNOWN_NAME = re.compile(r"\d{20}\.(log|idx|tidx|state|bloom)|cleaner\.json(\.bak)?")

INDEXES = {".idx": "offset index", ".tidx": "time index"}
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


@dataclass(slots=True)
class _WalEntries:
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


class Verification:
    """One run over a data directory: `node` first, then `partition` for each that is wanted."""

    def __init__(
        self,
        disk: Disk,
        directory: DataDirectory,
        *,
        quick: bool = False,
        live: bool = False,
        seen: Seen = lambda _: None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._quick = quick
        self._live = live
        self._seen = seen
        self._wal: dict[tuple[bytes, int], _WalEntries] = {}
        self._wal_read = False

    # The whole directory

    def node(self) -> Iterator[Finding]:
        """What concerns no single partition: the documents, the topics' directories, the write-ahead log."""
        yield from self._document("", METADATA, TopicList, "the topics are taken from their directories")
        yield from self._document("", CHECKPOINT, Checkpoint, "recovery checks the last segments whole")
        yield from self._topics()
        yield from self._write_ahead()
        self._wal_read = True

    def _document(self, partition: str, path: str, body_type: type[object], without: str) -> Iterator[Finding]:
        body, fault = read_document(self._disk, path, body_type)
        backup, backup_fault = read_document(self._disk, path + ".bak", body_type)
        missing_is_fine = path.endswith(CLEANER) or not self._disk.names(TOPICS)
        if fault is not None and not (fault == "missing" and missing_is_fine and backup_fault == "missing"):
            then = f"start the node: {'its backup is used' if backup is not None else without}"
            what = "the document is missing" if fault == "missing" else f"the document is damaged: {fault}"
            yield Finding(Severity.PROBLEM, partition, path, what, then, 0)
        if backup_fault not in (None, "missing"):
            then = "nothing needs it now, and the next change replaces it" if body is not None else without
            yield Finding(
                Severity.PROBLEM, partition, path + ".bak", f"the document is damaged: {backup_fault}", then, 0
            )

    def _topics(self) -> Iterator[Finding]:
        for topic in self._directory.topics:
            try:
                _ = topic.config
            except InvalidConfig as error:
                then = "the node will not start with it; restore the document from its backup"
                yield Finding(Severity.PROBLEM, "", METADATA, f"topic {topic.name}: {error}", then)
        for topic in self._directory.deleting:
            yield _note("", METADATA, f"topic {topic.name} is being deleted", START)
        points = self._directory.checkpoint.partitions if self._directory.checkpoint is not None else {}
        known = {name.rpartition("/")[0] for name in points}
        for name in self._directory.strangers:
            if name in known:
                what = f"{METADATA} has lost the topic {name}, which the checkpoint knows"
                then = f"restore {METADATA} before the node starts, else it goes on without this topic"
                yield Finding(Severity.PROBLEM, "", f"{TOPICS}/{name}", what, then)
                continue
            yield _note("", f"{TOPICS}/{name}", "belongs to no topic", STRANGER)
        for topic in self._directory.topics:
            expected = {f"partition-{place.partition}" for place in topic.each()}
            for name in self._disk.names(topic_directory(topic.name)):
                if name not in expected:
                    path = f"{topic_directory(topic.name)}/{name}"
                    yield _note("", path, "belongs to no partition", STRANGER)

    # The write-ahead log

    def _write_ahead(self) -> Iterator[Finding]:
        headers: list[WalHeader] = []
        for name in self._disk.names(WAL):
            if not name.endswith(".wal"):
                continue
            try:
                header = read_wal_header(self._disk, f"{WAL}/{name}")
            except FileNotFoundError:
                continue  # given up after a checkpoint, by the node that runs
            if header.fault == "unused":
                yield _note("", header.path, "was never put to use", "start the node: it is used again", 0)
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
        return _note("", header.path, what, then, position)

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
                self._wal.setdefault((entry.topic_id, entry.partition), _WalEntries()).add(entry)
        return last_group

    def _torn(self, header: WalHeader, bad: BadGroup, last_group: int | None) -> Finding:
        what = f"the group after {last_group} was not wholly written, or a checkpoint covers it"
        return _note("", header.path, what, "recovery leaves it out: nobody was told that it was kept", bad.position)

    def _bad_group(self, header: WalHeader, bad: BadGroup, after: WalGroup, last_group: int | None) -> Finding:
        what = f"{bad.length_bytes} bytes before group {after.number} are damaged"
        if last_group is not None and after.number - 1 <= last_group:
            return _note("", header.path, what, "a checkpoint covers them, so nothing is lost", bad.position)
        if last_group is not None and after.synced <= last_group:
            return _note("", header.path, what, "no sync had covered them; recovery leaves them out", bad.position)
        return self._lost_groups(header, what, bad.position)

    def _lost_groups(self, header: WalHeader, what: str, position: int) -> Finding:
        if self._live:
            return _note("", header.path, what, "a node is writing here; run this again", position)
        then = "start the node: recovery says which offsets are lost, if the segments are without them too"
        return Finding(Severity.PROBLEM, "", header.path, what, then, position)

    # One partition

    def partition(self, topic: Topic, place: TopicPartition) -> tuple[Tally, list[Finding]]:
        assert self._wal_read, "call `node` first"
        for _ in range(TRIES_LIVE if self._live else 1):
            files = read_partition(self._disk, self._directory, topic, place)
            wal = self._wal.get((topic.id_bytes, place.partition), _WalEntries())
            clean = self._directory.clean
            check = _PartitionCheck(self._disk, files, wal, self._quick, self._live, clean, self._seen)
            try:
                check.run()
            except FileNotFoundError as error:
                check.note(str(error.filename), "was removed while it was read", "run this again")
                continue
            if not check.tally.problems:
                break
        return check.tally, check.told()


def _note(partition: str, path: str, what: str, then: str, position: int | None = None) -> Finding:
    return Finding(Severity.NOTE, partition, path, what, then, position)


@dataclass(slots=True)
class _PartitionCheck:
    disk: Disk
    files: PartitionFiles
    wal: _WalEntries
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

    def run(self) -> None:
        self._side_files()
        if not self.files.segments:
            self._no_segments()
            return
        self.next_offset = self.files.segments[0].base_offset
        self._beginning()
        for segment in self.files.segments:
            self._follows(segment)
            if self.stopped:
                break
            self.next_offset = max(self.next_offset, segment.base_offset)
            _SegmentCheck(self, segment, self._bound(segment)).run()
        self._ending()
        self._snapshots()

    def _bound(self, segment: SegmentFiles) -> int:
        """Where the segment's offsets end at the latest, for all that is known."""
        following = [each.base_offset for each in self.files.segments if each.base_offset > segment.base_offset]
        if following:
            return following[0]
        return max(self.trusted, segment.base_offset) if self.clean and not self.live else OFFSET_MAX

    # Telling

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

    # The row of segments

    def _no_segments(self) -> None:
        point = self.files.point
        start, end = (self.wal.start(point.start), self.trusted) if point is not None else (0, 0)
        self.tally.end = start
        if end > start:
            self.problem(self.files.directory, "the segment files are missing", RESTORE, None, start, end - 1)
        elif not self.live:
            self.note(self.files.directory, "has no segment yet", "start the node: it makes one")

    def _beginning(self) -> None:
        point, first = self.files.point, self.files.segments[0]
        start = self.wal.start(point.start) if point is not None else first.base_offset
        last = min(first.base_offset, self.trusted) - 1
        if last >= start and not self.live:
            what = f"the log starts at {start}, but its first segment at {first.base_offset}"
            self.problem(self.files.directory, what, RESTORE, None, start, last)

    def _follows(self, segment: SegmentFiles) -> None:
        due = self.next_offset
        if segment.base_offset == due and not self.stopped:
            return
        if not self.stopped and due < self.trusted:
            first, last = sorted((due, segment.base_offset))
            what = f"begins at offset {segment.base_offset}, but the segment before it ends at {due}"
            if last > self.start:
                self.problem(segment.path, what, RESTORE, 0, max(first, self.start), last - 1)
            return
        what = f"does not follow the segment before it, which ends at {due}"
        then = f"start the node: recovery drops it, {segment.length_bytes} bytes that were never acknowledged"
        self.note(segment.path, what, then, 0)
        self.stopped = True

    def _ending(self) -> None:
        end = self.next_offset
        self.tally.end = end
        last = self.files.segments[-1]
        start = self.start
        if end < self.trusted and start < self.trusted and not self.live:
            what = f"the log ends at {end}, but was synced up to {self.trusted}"
            self.problem(last.path, what, RESTORE, last.length_bytes, max(end, start), self.trusted - 1)
            return
        replayed, gap = self.wal.replay(end, start)
        if gap is not None and not self.live:
            what = "neither the segments nor the write-ahead log have these offsets"
            self.problem(last.path, what, RESTORE, last.length_bytes, *gap)
        if replayed and not self.live:
            what = f"{replayed} batch{'es are' if replayed > 1 else ' is'} in the write-ahead log alone"
            self.note(last.path, what, START)

    # What stands beside the segments

    def _side_files(self) -> None:
        directory = self.files.directory
        for name in self.disk.names(directory):
            path = f"{directory}/{name}"
            if name.endswith(".damaged"):
                what = f"{length_of(self.disk, path)} bytes that an earlier recovery could not read"
                self.note(path, what, "keep it if you mean to look into it, else remove it")
            elif name.endswith((CLEAN, ".tmp")):
                self.note(path, "was left by a process that did not come to its end", f"{START} away with it")
            elif not KNOWN_NAME.fullmatch(name):
                self.note(path, "is not a file of ours", STRANGER)
            elif name.endswith((".idx", ".tidx", ".bloom")) and not self._has_segment(name):
                self.note(path, "belongs to no segment", "nothing reads it; remove it if it is not wanted")
        self._cleaner()

    def _has_segment(self, name: str) -> bool:
        return int(name[:20]) in {segment.base_offset for segment in self.files.segments}

    def _cleaner(self) -> None:
        path = f"{self.files.directory}/{CLEANER}"
        self.cleaner, fault = read_document(self.disk, path, CleanerState)
        backup, backup_fault = read_document(self.disk, path + ".bak", CleanerState)
        if fault not in (None, "missing") or (fault == "missing" and backup is not None):
            then = "its backup is used" if backup is not None else "the next compaction begins at the log's start"
            self.problem(path, f"the document is damaged: {fault}", f"nothing is lost: {then}", 0)
        if backup_fault not in (None, "missing"):
            what = f"the document is damaged: {backup_fault}"
            self.problem(path + ".bak", what, "nothing is lost: the next compaction replaces it", 0)
        self.cleaner = self.cleaner or backup
        if self.cleaner is not None and self.cleaner.swap is not None and not self.live:
            self.note(path, "a compaction was interrupted", "start the node: recovery finishes or forgets it")

    @property
    def compacted(self) -> bool:
        """Whether offsets may be missing because a record was superseded."""
        return self.files.config.compacts or self.cleaner is not None

    def _snapshots(self) -> None:
        for name in self.disk.names(self.files.directory):
            if not name.endswith(STATE) or not KNOWN_NAME.fullmatch(name):
                continue
            self._snapshot(f"{self.files.directory}/{name}", int(name[:20]))

    def _snapshot(self, path: str, upto: int) -> None:
        try:
            data = read_whole(self.disk, path)
        except FileNotFoundError:
            return
        snapshot = unseal(data, Snapshot)
        fault = document_fault(data, Snapshot) if snapshot is None else _snapshot_fault(snapshot, upto)
        if fault is None:
            return
        # It is written without a sync, so a power loss may tear it at any time and leave the log in order.
        torn = b"\0" in data or not data.endswith(b"\n")
        tell = self.problem if self.clean and not torn else self.note
        tell(
            path,
            f"the snapshot is damaged: {fault}",
            "nothing is lost: a start walks the log instead; it may be removed",
            0,
        )


def _snapshot_fault(snapshot: Snapshot, upto: int) -> str | None:
    if snapshot.upto != upto:
        return f"is of offset {snapshot.upto}, unlike its name"
    if any(a[0] >= b[0] or a[1] > b[1] for a, b in zip(snapshot.epochs, snapshot.epochs[1:], strict=False)):
        return f"its leader epochs do not grow: {snapshot.epochs}"
    if any(start > upto for _, start in snapshot.epochs):
        return "a leader epoch begins after its end"
    if any(batch.last_offset >= upto for row in snapshot.producers for batch in row.batches):
        return "a producer's batch is after its end"
    if any(a.last_offset > b.last_offset for a, b in zip(snapshot.aborted, snapshot.aborted[1:], strict=False)):
        return "its aborted transactions are not in order"
    return None


class _SegmentCheck:
    """One segment, its batches in one walk, and its indexes and filter beside them."""

    def __init__(self, owner: _PartitionCheck, segment: SegmentFiles, bound: int) -> None:
        self._owner = owner
        self._segment = segment
        self._bound = bound
        self._offsets = offset_index(owner.disk, segment)
        self._times = time_index(owner.disk, segment)
        self._place = 0
        self._index_good = True
        self._newest_ms = NO_TIMESTAMP
        self._bloom: Bloom | None = None
        self._filter_good = True

    @property
    def _in_flux(self) -> bool:
        """Whether a crash, or a node that runs, explains an index that does not fit."""
        return not self._segment.sealed and (self._owner.live or not self._owner.clean)

    def run(self) -> None:
        owner, segment = self._owner, self._segment
        self._open_filter()
        self._open_indexes()
        file = owner.disk.open(segment.path)
        try:
            for item in walk_batches(file, 0, segment.length_bytes, offset_min=segment.base_offset):
                owner.seen(item.length_bytes if isinstance(item, Unreadable) else item.header.batch_bytes)
                if isinstance(item, Unreadable):
                    self._unreadable(item)
                else:
                    self._batch(item)
                if owner.stopped:
                    break
        finally:
            file.close()
        self._close_indexes()

    # Batches

    def _unreadable(self, item: Unreadable) -> None:
        owner = self._owner
        if owner.next_offset >= owner.trusted:
            self._cut(item.position, item.reason)
        else:
            upto = item.position + item.length_bytes
            what = f"bytes {item.position} to {upto - 1} are not batches: {item.reason}"
            owner.problem(self._segment.path, what, RESTORE, item.position, owner.next_offset)

    def _cut(self, position: int, reason: str) -> None:
        owner, path = self._owner, self._segment.path
        owner.stopped = True
        if owner.live:
            owner.note(path, f"the end is being written ({reason})", "run this again if in doubt", position)
            return
        cut_bytes = self._segment.length_bytes - position
        then = f"start the node: recovery will cut {cut_bytes} bytes, and has from the write-ahead log what was kept"
        what = f"the end was not wholly written: {reason}"
        owner.note(path, what, then, position, owner.next_offset)

    def _batch(self, item: WalkedBatch) -> None:
        owner, header = self._owner, item.header
        fault = item.fault
        if fault is not None and item.crc_ok and header.base_offset == owner.next_offset:
            fault = None  # it only seemed to go back, behind one whose offset is wrong
        elif fault is None and header.last_offset >= self._bound and owner.next_offset < owner.trusted:
            fault = f"offset {header.base_offset} where {owner.next_offset} is due, before {self._bound}"
        if fault is not None and owner.next_offset >= owner.trusted:
            self._cut(item.position, fault)
            return
        first, last = self._span(item)
        if fault is not None:
            what = f"damaged batch: {fault.removeprefix('malformed batch: ')}"
            if min(last, owner.trusted - 1) >= owner.start:
                owner.problem(self._segment.path, what, RESTORE, item.position, first, last)
            else:
                owner.note(self._segment.path, what, "nothing is lost: these offsets were deleted", item.position)
        elif header.base_offset > owner.next_offset and not owner.compacted:
            self._gap(item)
        self._index_entry(item)
        owner.tally.batches += 1
        owner.tally.records += header.count
        owner.tally.length_bytes += header.batch_bytes
        self._newest_ms = max(self._newest_ms, header.max_timestamp_ms)
        owner.next_offset = last + 1
        if fault is None:
            self._epoch(item)
            if not owner.quick:
                self._records(item)

    def _span(self, item: WalkedBatch) -> tuple[int, int]:
        """The offsets that a batch stands for: its own if they can be, else those that are due."""
        due, header = self._owner.next_offset, item.header
        if due <= header.base_offset and header.last_offset < self._bound:
            return header.base_offset, header.last_offset
        return due, due + header.last_offset_delta

    def _gap(self, item: WalkedBatch) -> None:
        owner, first = self._owner, item.header.base_offset
        what = f"offsets jump from {owner.next_offset} to {first}, in a topic that is not compacted"
        if owner.next_offset < owner.trusted:
            owner.problem(self._segment.path, what, RESTORE, item.position, owner.next_offset, first - 1)

    def _epoch(self, item: WalkedBatch) -> None:
        owner, epoch = self._owner, item.header.leader_epoch
        if epoch < owner.epoch:
            what = f"leader epoch {epoch} after {owner.epoch}"
            then = "compare this partition with its replicas: two leaders may have written to it"
            span = item.header.base_offset, item.header.last_offset
            owner.problem(self._segment.path, what, then, item.position, *span)
        owner.epoch = max(epoch, owner.epoch)

    def _records(self, item: WalkedBatch) -> None:
        if item.header.count == 0:
            return
        try:
            records = decode(item.data, verify=False)
        except Malformed as error:
            what = f"its checksum is right, but its records do not decode: {error}"
            then = "consumers cannot read it either; find out which producer wrote it"
            span = item.header.base_offset, item.header.last_offset
            self._owner.problem(self._segment.path, what, then, item.position, *span)
            return
        if self._bloom is not None and self._filter_good:
            self._filter(item, records)

    # The filter

    def _open_filter(self) -> None:
        path = self._segment.side(".bloom")
        try:
            data = read_whole(self._owner.disk, path)
        except FileNotFoundError:
            return
        then = "nothing is lost: remove it, and `rivven log find` or the next compaction makes it again"
        fault = bloom_fault(data)
        if fault is None:
            self._bloom = Bloom.load(self._owner.disk, path)
            return
        tell = self._owner.problem if self._owner.clean else self._owner.note
        tell(path, f"the Bloom filter is damaged: {fault[1]}", then, fault[0])

    def _filter(self, item: WalkedBatch, records: list[Record]) -> None:
        bloom = self._bloom
        assert bloom is not None
        what = ""
        if item.header.control:
            what = (
                "" if bloom.tombstones else "the Bloom filter does not know of the transaction markers in its segment"
            )
        else:
            for record in records:
                if record.key is not None and not bloom.may_hold(record.key):
                    what = f"the Bloom filter denies the key of offset {record.offset}, which is in its segment"
                    break
                if record.value is None and not bloom.tombstones:
                    what = f"the Bloom filter does not know of the tombstone at offset {record.offset}"
                    break
        if what:
            self._filter_good = False
            then = "remove it: a lookup or a compaction that believes it goes wrong"
            self._owner.problem(self._segment.side(".bloom"), what, then, 0)

    # The indexes

    def _open_indexes(self) -> None:
        for content, suffix in ((self._offsets, ".idx"), (self._times, ".tidx")):
            if content.fault == "missing":
                self._missing_index(suffix)
            elif content.fault is not None:
                self._bad_index(suffix, content.fault, content.good_bytes)
        if self._offsets.fault is None and self._times.fault is None:
            counts = len(self._offsets.keys), len(self._times.keys)
            if counts[0] != counts[1]:
                self._bad_index(".tidx", f"it has {counts[1]} entries, and the offset index {counts[0]}", 0)

    def _missing_index(self, suffix: str) -> None:
        self._index_good = False
        owner = self._owner
        long_enough = self._segment.length_bytes >= 2 * owner.files.config.index_interval_bytes
        # Indexes reach the disk with the checkpoint after the roll: before that, nobody misses one.
        if long_enough and self._segment.sealed and self._bound <= owner.trusted and not owner.live:
            self._owner.note(self._segment.side(suffix), f"the {INDEXES[suffix]} is missing", REBUILD)

    def _bad_index(self, suffix: str, what: str, position: int | None) -> None:
        self._index_good = False
        tell = self._owner.note if self._in_flux else self._owner.problem
        what = f"the {INDEXES[suffix]} is damaged: {what}"
        tell(self._segment.side(suffix), what, f"nothing is lost: {REBUILD}", position)

    def _index_entry(self, item: WalkedBatch) -> None:
        """Compare the batch with the index entry for its position, if there is one."""
        if not self._index_good:
            return
        place, relative = self._place, item.header.base_offset - self._segment.base_offset
        if place >= len(self._offsets.values) or self._offsets.values[place] > item.position:
            return
        if self._offsets.values[place] < item.position:
            self._bad_index(".idx", self._points_nowhere(place), None)
        elif self._offsets.keys[place] != relative:
            offset = self._segment.base_offset + self._offsets.keys[place]
            what = f"entry {place} says offset {offset}, and the batch at {item.position} begins at "
            self._bad_index(".idx", what + str(item.header.base_offset), None)
        elif (self._times.keys[place], self._times.values[place]) != (self._newest_ms, relative):
            what = f"entry {place} says time {self._times.keys[place]} before offset "
            what += f"{self._segment.base_offset + self._times.values[place]}; the log says {self._newest_ms} before "
            self._bad_index(".tidx", what + str(item.header.base_offset), None)
        self._place += 1

    def _points_nowhere(self, place: int) -> str:
        return f"entry {place} points to byte {self._offsets.values[place]}, where no batch begins"

    def _close_indexes(self) -> None:
        if self._index_good and self._place < len(self._offsets.values):
            self._bad_index(".idx", self._points_nowhere(self._place), None)

"""Recovery: from whatever a crash left behind to logs that hold everything acknowledged, and a report.

For each partition: (1) the segments that reach beyond the recovery point are checked batch by batch and cut at
the first bad one; (2) the entries of the write-ahead log are replayed in order on top, which brings back what was
acknowledged and not yet synced in its segment; (3) the facts are derived again. Nothing is cut, rebuilt or found
damaged in silence: all of it is in the report.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from rivven.model import Offset, TopicPartition
from rivven.ports import Disk
from rivven.record import parse_header

from .compact import CLEANER, finish_swap, lower_clean_upto
from .config import TopicConfig
from .log import Log
from .segment import Segment
from .snapshot import Facts, drop, saved
from .topics import Topic
from .wal import Entry, Kind, read_offset

CHECKPOINT = "checkpoint.json"
SIDE_SUFFIXES = ("idx", "tidx", "bloom")
NO_SUCH_SNAPSHOT = -2


class Point(msgspec.Struct, frozen=True):
    """What a checkpoint says of one partition."""

    topic_id: str
    start: int
    recovery_point: int
    high_watermark: int
    snapshot_upto: int = -1
    """The newest snapshot, whose facts hold at the recovery point; -1 if there were no facts, `NO_SUCH_SNAPSHOT` if
    there is none with these facts, and the batches must be walked."""


class Checkpoint(msgspec.Struct):
    """Everything below these points is in its segments and synced; the write-ahead log counts after `group`."""

    group: int
    clean: bool
    """Whether the process that wrote this had come to its end in good order."""
    partitions: dict[str, Point]
    wal_from: int = 0
    """Write-ahead files of an earlier sequence hold nothing that is needed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A tail that was never acknowledged, or is in the write-ahead log, and was cut off."""

    partition: str
    path: str
    position: int
    cut_bytes: int
    next_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Damage:
    """Acknowledged records that no longer read back."""

    partition: str
    path: str
    position: int
    first: int
    last: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    clean: bool = False
    """Whether the last shutdown was in good order."""
    topics_from: str = "new"
    partitions: int = 0
    batches_checked: int = 0
    wal_groups: int = 0
    wal_entries: int = 0
    replayed: int = 0
    """Batches that only the write-ahead log still had."""
    elapsed_us: int = 0
    cuts: list[Cut] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Whether everything that was ever acknowledged is still there."""
        return not self.damage

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def recover_log(
    disk: Disk,
    directory: str,
    partition: TopicPartition,
    topic: Topic,
    point: Point | None,
    entries: list[Entry],
    report: RecoveryReport,
    now_ms: int,
) -> Log:
    """Bring one partition back, or make it if it is new."""
    config = topic.config
    entries = _without_undone(entries)
    if not disk.exists(directory):
        disk.make_dirs(directory)
        disk.sync_dir(directory.rpartition("/")[0])
    finish_swap(disk, directory)
    trusted = _trusted(point, entries)
    segments = _find_segments(disk, directory, partition, config)
    known = point.start if point is not None else (segments[0].base_offset if segments else 0)
    start = max([known, *(read_offset(entry) for entry in entries if entry.kind is Kind.START)])
    crcs: dict[int, int] = {}
    cleaned = any(disk.exists(f"{directory}/{CLEANER}{suffix}") for suffix in ("", ".bak"))
    dense = not (cleaned or config.compacts)
    if segments and trusted is not None and segments[0].base_offset > max(trusted, start):
        _discard(segments, report, partition, trusted)  # the names before them never reached the disk
        segments = []
    if segments:
        segments = _check_tail(
            segments, trusted, crcs, report, partition, start=start, touched=bool(entries), dense=dense
        )
    else:
        segments = [_first_segment(disk, directory, partition, config, trusted if trusted is not None else start)]
        if trusted is not None and trusted > start:
            report.damage.append(
                Damage(str(partition), directory, 0, start, trusted - 1, "the segment files are missing")
            )
    log = Log(disk, directory, partition, topic.id_bytes, config, segments, Facts(), start)
    log.dense = dense
    log.recovery_point = Offset(min(trusted or start, log.end))
    # A snapshot beyond what was synced may speak of batches that a crash took; others have their offsets since.
    # Not so up to the start: what is deleted is not written again.
    believed = log.end if trusted is None else max(trusted, start)
    drop(disk, directory, [upto for upto in saved(disk, directory) if upto > believed])
    log.drop_before(log.start)  # segments that were deleted, but whose names came back
    _derive(log, point, trusted)
    if log.end < log.start:
        log.facts.forget_open()  # of what follows, up to the start, nothing is written again: no marker either
    _replay(log, entries, crcs, trusted or 0, report, now_ms)
    if trusted is not None and log.end < trusted:
        _report_lost(log, trusted, report)
        log.roll(trusted)  # offsets that were acknowledged are never given out again
    if log.start > log.end:
        log.roll(log.start)
    log.facts.transactions.forget_ended(lower_clean_upto(disk, directory, log.end))
    log.drop_before(log.start)  # facts and segments that a replay went through on its way to the start
    log.advance(log.end)
    if report.clean and trusted == log.end:
        log.names_are_durable()
    report.partitions += 1
    report.rebuilt.extend(f"{s.path}: {s.rebuilt}" for s in log.segments if s.rebuilt)
    return log


def _report_lost(log: Log, trusted: int, report: RecoveryReport) -> None:
    """A segment that ends between two batches looks whole: only the checkpoint knows that there was more."""
    first, name = max(log.end, log.start), str(log.partition)
    told = any(damage.partition == name and damage.last >= trusted - 1 for damage in report.damage)
    if first < trusted and not told:
        path, position = log.active.path, log.active.end_bytes
        report.damage.append(Damage(name, path, position, first, trusted - 1, "the segment is shorter than it was"))


def _trusted(point: Point | None, entries: Iterable[Entry]) -> int | None:
    """Up to where the segments are known to be synced and unchanged since; None if nothing is known."""
    if point is None:
        return None
    cuts = [read_offset(entry) for entry in entries if entry.kind is Kind.TRUNCATE]
    return min([point.recovery_point, *cuts])


def _without_undone(entries: list[Entry]) -> list[Entry]:
    """The entries less the appends that a later truncation took back: the segments may be without them already."""
    kept: list[Entry] = []
    for entry in entries:
        if entry.kind is Kind.TRUNCATE:
            end = read_offset(entry)
            kept = [e for e in kept if e.kind is not Kind.APPEND or parse_header(e.payload).next_offset <= end]
        kept.append(entry)
    return kept


def _find_segments(disk: Disk, directory: str, partition: TopicPartition, config: TopicConfig) -> list[Segment]:
    names = disk.names(directory)
    bases = [int(n[:-4]) for n in names if n.endswith(".log") and n[:-4].isdigit() and len(n) == 24]
    for name in names:
        stem, _, suffix = name.partition(".")
        stray = suffix in SIDE_SUFFIXES and stem.isdigit() and int(stem) not in bases
        if name.endswith(".tmp") or stray:
            disk.remove(f"{directory}/{name}")
    interval_bytes = config.index_interval_bytes
    return [Segment(disk, directory, partition, base, interval_bytes) for base in sorted(bases)]


def _first_segment(
    disk: Disk, directory: str, partition: TopicPartition, config: TopicConfig, base_offset: int
) -> Segment:
    segment = Segment(disk, directory, partition, base_offset, config.index_interval_bytes)
    segment.create()
    return segment


def _check_tail(
    segments: list[Segment],
    trusted: int | None,
    crcs: dict[int, int],
    report: RecoveryReport,
    partition: TopicPartition,
    *,
    start: int,
    touched: bool,
    dense: bool,
) -> list[Segment]:
    """Check the segments from the one that holds the trusted offset on. Without one, only the last."""
    begin = segments[-1].base_offset if trusted is None else trusted
    # The one that ends there, too: a truncation down to a segment's end may not have reached the disk.
    checked = max((i for i, segment in enumerate(segments) if segment.base_offset < begin), default=0)
    for segment, after in pairwise(segments[: checked + 1]):
        segment.seal(after.base_offset)
        if trusted is None:
            segment.write_again(segment.base_offset)  # for all we know, none of it was ever synced
    for place in range(checked, len(segments)):
        segment = segments[place]
        following = segments[place + 1] if place + 1 < len(segments) else None
        outcome = segment.recover(begin, following.base_offset if following is not None else None, dense=dense)
        crcs.update(outcome.crcs)
        report.batches_checked += len(outcome.crcs)
        report.damage.extend(
            Damage(str(partition), segment.path, position, max(first, start), last, reason)
            for first, last, position, reason in outcome.damage
            if last >= start  # what was deleted is no loss
        )
        if touched or segment.next_offset > begin:
            segment.write_again(begin)
        if outcome.cut_bytes:
            cut = Cut(
                str(partition),
                segment.path,
                segment.end_bytes,
                outcome.cut_bytes,
                segment.next_offset,
                outcome.cut_reason,
            )
            report.cuts.append(cut)
        # Up to the trusted offset a gap is one that an earlier recovery found and left open to see.
        if following is not None and following.base_offset != segment.next_offset and following.base_offset > begin:
            _discard(segments[place + 1 :], report, partition, segment.next_offset)
            return segments[: place + 1]
        if following is not None:
            segment.seal(following.base_offset)
    segments[-1].drop_side_files(keep_indexes=True)  # its filter, of a time when it was sealed
    return segments


def _discard(segments: list[Segment], report: RecoveryReport, partition: TopicPartition, end: int) -> None:
    """Segments after a cut begin at offsets that do not follow: nothing in them was acknowledged."""
    for segment in segments:
        segment.load()
        cut = Cut(str(partition), segment.path, 0, segment.end_bytes, end, "does not follow the segment before it")
        report.cuts.append(cut)
        segment.remove()


def _derive(log: Log, point: Point | None, trusted: int | None) -> None:
    if point is not None and trusted == point.recovery_point:
        log.rebuild_facts(newest=point.snapshot_upto, holds_at=trusted)
    else:
        log.rebuild_facts()


def _replay(
    log: Log, entries: list[Entry], crcs: dict[int, int], trusted: int, report: RecoveryReport, now_ms: int
) -> None:
    for entry in entries:
        report.wal_entries += 1
        if entry.kind is Kind.APPEND:
            _replay_append(log, entry.payload, crcs, trusted, report, now_ms)
        elif entry.kind is Kind.TRUNCATE:
            offset = read_offset(entry)
            if log.start <= offset < log.end:
                log.truncate(offset)


def _replay_append(
    log: Log, payload: memoryview, crcs: dict[int, int], trusted: int, report: RecoveryReport, now_ms: int
) -> None:
    header = parse_header(payload)
    base = header.base_offset
    if base < log.end and (base < trusted or crcs.get(base) == header.crc):
        return
    if header.next_offset <= log.start:
        return
    if base < log.end:
        log.truncate(base)  # something else stood there: a write that a later truncation had taken back
    elif base > log.end:
        first = max(log.end, log.start)
        if first < base:
            reason = "neither the segment nor the write-ahead log has them"
            path, position = log.active.path, log.active.end_bytes
            report.damage.append(Damage(str(log.partition), path, position, first, base - 1, reason))
        log.roll(base)
    log.append_placed(payload, header, now_ms=now_ms)
    crcs[base] = header.crc
    report.replayed += 1

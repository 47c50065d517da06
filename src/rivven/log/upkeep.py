"""Retention, compaction and index rebuilding on demand, one log at a time, and what they would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from rivven.ports import Disk

from .chores import CleanLog
from .compact import Cleaning
from .log import Log
from .offline import IndexContent, PartitionFiles, offset_index, open_offline, time_index
from .retain import seals_for_retention, start_after_retention
from .segment import Segment
from .store import Store

Seen = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Sizes:
    segments: int
    length_bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What cleaning did to one log, or would do."""

    partition: str
    before: Sizes
    after: Sizes | None
    """None where only a real run can tell."""
    start_before: int
    start_after: int
    retention: str
    compaction: str
    note: str = ""

    @property
    def changes(self) -> bool:
        return self.retention.startswith("delete") or self.compaction in ("due", "done")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run of cleaning is asked for."""

    now_ms: int
    retention: bool = True
    compaction: bool = True
    force: bool = False
    """Compact also where too little is dirty to be worth it."""


def plan_cleaning(disk: Disk, files: PartitionFiles, wanted: Wanted) -> Cleaned:
    """What `clean_log` would do, from the files as they lie."""
    log = open_offline(disk, files, facts=True)
    start = _start_wanted(log, wanted)
    gone = [segment for segment in log.segments if log.opened(segment).next_offset <= start and start > log.start]
    before = Sizes(len(log.segments), log.size_bytes, count_records(log))
    gone_records = sum(_count(segment) for segment in gone)
    due = wanted.compaction and log.config.compacts and _is_due(disk, log, wanted)
    left = len(log.segments) - len(gone)
    after = Sizes(max(1, left), before.length_bytes - sum(s.end_bytes for s in gone), before.records - gone_records)
    return Cleaned(
        str(log.partition),
        before,
        None if due else after,
        log.start,
        start,
        _retention_text(log, wanted, len(gone)),
        _compaction_text(log, wanted, "due" if due else "not due"),
    )


def _start_wanted(log: Log, wanted: Wanted) -> int:
    """Where retention would let the log begin; its active segment goes too if all of it has outlived its time."""
    if not wanted.retention:
        return log.start
    start = start_after_retention(log, wanted.now_ms)
    if seals_for_retention(log, wanted.now_ms) and start >= log.active.base_offset:
        return log.end
    return start


def _is_due(disk: Disk, log: Log, wanted: Wanted) -> bool:
    return Cleaning.begin(disk, log, wanted.now_ms, force=wanted.force) is not None


def _retention_text(log: Log, wanted: Wanted, segments: int) -> str:
    if not wanted.retention or not log.config.deletes:
        return "off"
    return f"delete {segments} segment{'s' if segments > 1 else ''}" if segments else "keep all"


def _compaction_text(log: Log, wanted: Wanted, text: str) -> str:
    return text if wanted.compaction and log.config.compacts else "off"


def clean_log(store: Store, log: Log, wanted: Wanted, seen: Seen = lambda _: None) -> Cleaned:
    """Apply retention and compaction to one log of an open store. This waits."""
    start_before, start = log.start, _start_wanted(log, wanted)
    chore = _begin_compaction(store, log, wanted) if start == log.start else None
    if start == log.start and chore is None:
        sizes = Sizes(len(log.segments), log.size_bytes, -1)
        texts = _retention_text(log, wanted, 0), _compaction_text(log, wanted, "not due")
        return Cleaned(str(log.partition), sizes, sizes, start, start, *texts)
    before = Sizes(len(log.segments), log.size_bytes, count_records(log, seen))
    gone = 0
    if start > log.start:
        gone = sum(log.opened(segment).next_offset <= start for segment in log.segments)
        if start > log.active.base_offset:
            log.roll()
        store.delete_before(log, start)
        chore = _begin_compaction(store, log, wanted)
    if chore is not None:
        chore.run()
        store.finish(chore)
    return Cleaned(
        str(log.partition),
        before,
        Sizes(len(log.segments), log.size_bytes, count_records(log, seen)),
        start_before,
        log.start,
        _retention_text(log, wanted, gone).replace("delete ", "deleted "),
        _compaction_text(log, wanted, "not due" if chore is None else "done"),
        chore.cleaning.report.note if chore is not None else "",
    )


def _begin_compaction(store: Store, log: Log, wanted: Wanted) -> CleanLog | None:
    return store.begin_cleaning(log, force=wanted.force, now_ms=wanted.now_ms) if wanted.compaction else None


def count_records(log: Log, seen: Seen = lambda _: None) -> int:
    return sum(_count(log.opened(segment), seen) for segment in log.segments)


def _count(segment: Segment, seen: Seen = lambda _: None) -> int:
    records = 0
    for found in segment.batches(verify=False):
        records += found.header.count
        seen(found.header.batch_bytes)
    return records


# Indexes


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """One segment whose indexes were made again."""

    partition: str
    path: str
    base_offset: int
    was: str
    """What the indexes were before: "good", "missing", or what was wrong with them."""
    length_bytes: int
    entries: int
    unindexed_bytes: int
    """How much at the file's end is not a batch, and is left to recovery or to `verify`."""


def rebuild_indexes(disk: Disk, files: PartitionFiles, seen: Seen = lambda _: None) -> Iterator[Rebuilt]:
    """Make every segment's indexes again from the log. The caller has the directory to itself."""
    for each in files.segments:
        before = offset_index(disk, each), time_index(disk, each)
        for suffix in (".idx", ".tidx"):
            with suppress(FileNotFoundError):
                disk.remove(each.side(suffix))
        segment = Segment(disk, files.directory, files.partition, each.base_offset, files.config.index_interval_bytes)
        segment.load()
        for flush in segment.index_flushes():
            flush.run(disk, sync=True)
            flush.finish()
        entries = len(offset_index(disk, each).keys)
        seen(each.length_bytes)
        was = _state_before(before, entries)
        segment.open_file().close()
        unindexed_bytes = each.length_bytes - segment.end_bytes
        yield Rebuilt(
            str(files.partition), each.path, each.base_offset, was, each.length_bytes, entries, unindexed_bytes
        )
    disk.sync_dir(files.directory)


def _state_before(before: tuple[IndexContent, IndexContent], entries: int) -> str:
    offsets, times = before
    fault = offsets.fault or times.fault
    if fault is not None:
        return "not needed" if fault == "missing" and not entries else fault
    if len(offsets.keys) != entries or len(times.keys) != entries:
        return f"{len(offsets.keys)} and {len(times.keys)} entries"
    return "good"

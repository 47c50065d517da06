"""Compaction: of each key the last value stays, and offsets keep their places.

Only sealed segments below the high watermark, the last stable offset and the recovery point are cleaned. A pass
(1) reads the section written since the last one and notes each key's last offset, (2) copies the segments from
the log's start to there into new files, leaving out what is superseded, and (3) swaps each new file in.

Tombstones and transaction markers stay for `delete.retention.ms` after the first pass that saw them; the moment
they may go is written into their batch. Records of aborted transactions go at once. The last batch of a segment
stays, emptied if need be, so that a segment always ends where the next begins.

The swap survives a crash at any point: the new content takes the first segment's name by one rename, after
`cleaner.json` has noted which segments it replaces; recovery finishes or forgets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from rivven.limits import COMPACT_KEY_BYTES_MAX, COMPACT_KEYS_MAX, MIB, OFFSET_DELTA_MAX
from rivven.ports import Disk, File
from rivven.record import BatchHeader, Record, decode, parse_header, rewrite

from .batches import Batches, Found
from .bloom import Bloom
from .document import Document
from .log import Log
from .segment import Segment, segment_path
from .snapshot import drop

CLEANER = "cleaner.json"
CLEAN = ".clean"
WRITE_BYTES = 4 * MIB


class Swap(msgspec.Struct):
    base: int
    replaced: list[int]
    """The other segments whose content is now in the one that starts at `base`."""


class CleanerState(msgspec.Struct):
    clean_upto: int = 0
    swap: Swap | None = None


def cleaner_document(disk: Disk, directory: str) -> Document[CleanerState]:
    return Document(disk, f"{directory}/{CLEANER}", CleanerState)


def finish_swap(disk: Disk, directory: str) -> None:
    """After a crash: complete the swap that was under way, or forget it. May be repeated."""
    names = disk.names(directory)
    if CLEANER not in names and not any(name.endswith(CLEAN) for name in names):
        return
    document = cleaner_document(disk, directory)
    state = document.load()[0]
    if state is not None and state.swap is not None:
        if f"{state.swap.base:020d}.log{CLEAN}" not in names:
            _remove_replaced(disk, directory, state.swap)
        state.swap = None
        document.save(state)
    for name in names:
        if name.endswith(CLEAN):
            disk.remove(f"{directory}/{name}")


def lower_clean_upto(disk: Disk, directory: str, end: int) -> int:
    """After a truncation: what is written from `end` on has not been cleaned. Returns up to where it has."""
    if not disk.exists(f"{directory}/{CLEANER}"):
        return 0
    document = cleaner_document(disk, directory)
    state = document.load()[0]
    if state is None:
        return 0
    if state.clean_upto > end:
        state.clean_upto = end
        document.save(state)
    return state.clean_upto


def _remove_replaced(disk: Disk, directory: str, swap: Swap) -> None:
    for base in swap.replaced:
        for suffix in (".log", ".idx", ".tidx", ".bloom"):
            with suppress(FileNotFoundError):
                disk.remove(f"{directory}/{base:020d}{suffix}")
    disk.sync_dir(directory)


@dataclass(slots=True)
class CleanReport:
    partition: str
    clean_upto: int
    segments_before: int = 0
    segments_after: int = 0
    segments_skipped: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    note: str = ""


@dataclass(slots=True)
class _Cleaned:
    """A group of old segments and the file that holds what is left of them."""

    old: list[Segment]
    new: Segment
    keys: set[bytes] = field(default_factory=set)
    tombstones: bool = False


class Cleaning:
    """One pass over one partition: `begin`, then `run` on any thread, then `finish` where the log lives."""

    def __init__(self, disk: Disk, log: Log, state: CleanerState, upto: list[Segment], now_ms: int) -> None:
        self._disk = disk
        self.log = log
        self._state = state
        self._segments = upto
        # The open files: the log may give up its own hold on a segment while this runs elsewhere.
        self._files = {segment: segment.open_file() for segment in upto}
        self._now_ms = now_ms
        self._aborted = log.facts.transactions.aborted()
        self._kept_producers = {row.batches[-1].last_offset for row in log.facts.producers.rows() if row.batches}
        self._latest: dict[bytes, int] = {}
        self._cleaned: list[_Cleaned] = []
        self._unended: set[int] = set()
        """Producers of whose present transaction a record was kept."""
        self._unseen = False
        """Whether a segment was skipped, so that nobody knows what transactions it holds."""
        self._config = log.config
        self.report = CleanReport(str(log.partition), state.clean_upto)

    @classmethod
    def begin(cls, disk: Disk, log: Log, now_ms: int, *, force: bool = False) -> Cleaning | None:
        """What there is to clean, if it is worth it: enough of it is dirty, or old, or somebody asks for it."""
        state = cleaner_document(disk, log.directory).load()[0] or CleanerState()
        bound = min(log.high_watermark, log.last_stable, log.recovery_point)
        segments: list[Segment] = []
        for segment in log.segments[:-1]:
            if log.opened(segment).next_offset > bound or segment.dirty:
                break
            if segment.max_timestamp_ms > now_ms - log.config.compaction_lag_min_ms:
                break
            segments.append(segment)
        if not segments:
            return None
        dirty = [segment for segment in segments if segment.next_offset > state.clean_upto]
        ratio = sum(s.end_bytes for s in dirty) / max(1, sum(s.end_bytes for s in segments))
        overdue = any(s.max_timestamp_ms < now_ms - log.config.compaction_lag_max_ms for s in dirty)
        if not force and not overdue and (not dirty or ratio < log.config.dirty_ratio_min):
            return None
        return cls(disk, log, state, segments, now_ms)

    # On any thread: reads sealed files, writes new ones

    def run(self) -> None:
        upto = self._note_latest()
        section = [segment for segment in self._segments if segment.next_offset <= upto]
        self.report.clean_upto = max(upto, self._state.clean_upto)
        for group in self._groups(section):
            self.report.segments_before += len(group)
            self.report.bytes_before += sum(segment.end_bytes for segment in group)
            if len(group) == 1 and self._untouched(group[0]):
                self.report.segments_skipped += 1
                self.report.segments_after += 1
                self.report.bytes_after += group[0].end_bytes
                self._unseen = True
                continue
            if (cleaned := self._copy(group)) is None:
                break
            self._cleaned.append(cleaned)

    def _note_latest(self) -> int:
        """Fill the map of each key's last offset from the dirty section; returns where that section ends."""
        upto = self._segments[0].base_offset
        key_bytes = 0
        for segment in self._segments:
            if segment.next_offset <= self._state.clean_upto:
                upto = segment.next_offset
                continue
            batches = self._batches(segment)
            for found in batches:
                for record in self._live(found):
                    if record.key is not None:
                        key_bytes += 0 if record.key in self._latest else len(record.key)
                        self._latest[record.key] = record.offset
            if batches.bad is not None:
                self.report.note = f"stopped before damage in {segment.path}: {batches.bad}"
                break
            upto = segment.next_offset
            if len(self._latest) > COMPACT_KEYS_MAX or key_bytes > COMPACT_KEY_BYTES_MAX:
                break  # the rest is for the next pass
        return upto

    def _batches(self, segment: Segment) -> Batches:
        return Batches(self._files[segment], 0, segment.end_bytes, offset_min=segment.base_offset)

    def _live(self, found: Found) -> list[Record]:
        """A batch's records, without those of an aborted transaction."""
        header = found.header
        if header.control or header.count == 0:
            return []
        if header.transactional and self._is_aborted(header):
            return []
        return decode(found.data, verify=False)

    def _is_aborted(self, header: BatchHeader) -> bool:
        return any(
            entry.producer_id == header.producer_id and entry.first_offset <= header.base_offset <= entry.last_offset
            for entry in self._aborted
        )

    def _groups(self, segments: list[Segment]) -> Iterator[list[Segment]]:
        """Neighbours that fit into one segment together."""
        group: list[Segment] = []
        for segment in segments:
            whole_bytes = sum(s.end_bytes for s in group) + segment.end_bytes
            if group and (
                whole_bytes > self._config.segment_bytes
                or segment.next_offset - group[0].base_offset > OFFSET_DELTA_MAX
                or segment.base_offset != group[-1].next_offset
            ):
                yield group
                group = []
            group.append(segment)
        if group:
            yield group

    def _untouched(self, segment: Segment) -> bool:
        """Whether a segment that is clean already certainly holds nothing that this pass would drop."""
        if segment.next_offset > self._state.clean_upto:
            return False
        bloom = Bloom.load(self._disk, segment.side(".bloom"))
        return bloom is not None and not bloom.tombstones and not any(map(bloom.may_hold, self._latest))

    def _copy(self, group: list[Segment]) -> _Cleaned | None:
        """What stays of these segments, in a new file; None if one is damaged, for all of it must stay then."""
        new = Segment(
            self._disk,
            self.log.directory,
            self.log.partition,
            group[0].base_offset,
            self._config.index_interval_bytes,
        )
        cleaned = _Cleaned(group, new)
        file = self._disk.open(new.path + CLEAN, create=True)
        file.truncate(0)
        pending = bytearray()
        walks = [self._batches(segment) for segment in group]
        for found in chain.from_iterable(walks):
            last = found.header.last_offset == group[-1].next_offset - 1
            batch = self._clean(found, cleaned, keep_empty=last)
            if batch is None:
                continue
            new.note(parse_header(batch), new.end_bytes)
            pending += batch
            if len(pending) >= WRITE_BYTES:
                _write_out(file, pending, new)
        if bad := next((walk.bad for walk in walks if walk.bad is not None), None):
            file.close()
            self._disk.remove(new.path + CLEAN)
            self.report.note = f"stopped before damage in {new.path} or the segments behind it: {bad}"
            self.report.clean_upto = min(self.report.clean_upto, new.base_offset)
            return None
        _write_out(file, pending, new)
        file.sync()
        file.close()
        self.report.bytes_after += new.end_bytes
        self.report.segments_after += 1
        return cleaned

    def _clean(self, found: Found, cleaned: _Cleaned, *, keep_empty: bool) -> bytes | bytearray | memoryview | None:
        """What stays of one batch: its own bytes where nothing changes, a shorter batch, or nothing."""
        header = found.header
        records = decode(found.data, verify=False) if header.count else []
        self.report.records_before += len(records)
        horizon = header.delete_horizon_ms
        expired = horizon is not None and self._now_ms >= horizon
        if header.control:
            # Without its marker, what is left of a transaction would read as an open one.
            needed = self._unseen or header.producer_id in self._unended
            self._unended.discard(header.producer_id)
            kept = [] if expired and not needed else records
            mortal = bool(kept)
        else:
            live = self._live(found)
            kept = [record for record in live if self._stays(record, expired=expired)]
            mortal = any(record.value is None for record in kept)
            if header.transactional and kept:
                self._unended.add(header.producer_id)
            cleaned.keys.update(record.key for record in kept if record.key is not None)
        self.report.records_after += len(kept)
        cleaned.tombstones = cleaned.tombstones or mortal
        if not kept:
            keep_empty = keep_empty or header.last_offset in self._kept_producers
            return rewrite(found.data, []) if keep_empty else None
        due = self._now_ms + self._config.delete_retention_ms if mortal and horizon is None else None
        if len(kept) == header.count and due is None:
            return found.data
        return rewrite(found.data, kept, delete_horizon_ms=due)

    def _stays(self, record: Record, *, expired: bool) -> bool:
        if record.key is None:
            return True
        if self._latest.get(record.key, -1) > record.offset:
            return False
        return record.value is not None or not expired

    # Where the log lives

    def finish(self) -> CleanReport:
        """Swap the new files in."""
        document = cleaner_document(self._disk, self.log.directory)
        for cleaned in self._cleaned:
            if self._overtaken(cleaned):
                self._disk.remove(cleaned.new.path + CLEAN)
                left = [segment.base_offset for segment in cleaned.old if segment in self.log.segments]
                self.report.clean_upto = min([self.report.clean_upto, *left])
            else:
                self._swap(cleaned, document)
        self._state.clean_upto = self.report.clean_upto
        self._state.swap = None
        document.save(self._state)
        self.log.facts.transactions.forget_ended(self._state.clean_upto)
        return self.report

    def _overtaken(self, cleaned: _Cleaned) -> bool:
        """Whether retention or a truncation took some of the segments away in the meantime."""
        present = set(self.log.segments)
        return not all(segment in present for segment in cleaned.old)

    def _swap(self, cleaned: _Cleaned, document: Document[CleanerState]) -> None:
        disk, directory = self._disk, self.log.directory
        replaced = [segment.base_offset for segment in cleaned.old[1:]]
        self._state.swap = Swap(cleaned.new.base_offset, replaced)
        disk.sync_dir(directory)  # the new file's name must be there before the note of it
        document.save(self._state)
        for segment in cleaned.old:
            segment.drop_side_files()
        disk.sync_dir(directory)  # no index of the old content may outlive it
        disk.rename(cleaned.new.path + CLEAN, segment_path(directory, cleaned.new.base_offset))
        disk.sync_dir(directory)
        for segment in cleaned.old[1:]:
            segment.remove()
        drop(disk, directory, replaced)
        disk.sync_dir(directory)
        self.log.replace(cleaned.old, cleaned.new)
        for flush in cleaned.new.index_flushes():
            flush.run(disk, sync=True)
            flush.finish()
        cleaned.new.seal(cleaned.new.next_offset)
        Bloom.of(cleaned.keys, tombstones=cleaned.tombstones).save(disk, cleaned.new.side(".bloom"))


def _write_out(file: File, pending: bytearray, new: Segment) -> None:
    if pending:
        file.write(bytes(pending), new.end_bytes - len(pending))
        pending.clear()

"""One partition: a row of segments that takes batches at its end and gives them back by offset.

Offsets, oldest to newest: `start` <= `last_stable` <= `high_watermark` <= `durable` <= `end`. Readers see what is
below the high watermark; `durable` is what no crash can take back any more under the sync policy.
Invariant: each segment ends where the next one begins. A segment that ends early has lost acknowledged bytes, and
reading them raises `CorruptLog` instead of skipping over them.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rivven.errors import BatchTooLarge, CorruptLog, DiskFull, Malformed, OffsetOutOfRange
from rivven.limits import PRELOAD_BYTES_MAX, READ_BYTES_MAX, SEALED_OPEN_MAX
from rivven.model import Offset, TopicPartition
from rivven.ports import Disk, File
from rivven.record import PREFIX_BYTES, BatchHeader, decode, parse_header, seek, walk

from .batches import Batches
from .config import TopicConfig
from .index import Flush
from .preload import NotCached
from .segment import Place, Segment
from .snapshot import Facts, Snapshot, drop, load, save, saved, snapshot_path
from .transactions import Aborted

logger = logging.getLogger(__name__)

EMPTY = memoryview(b"")
NO_ROOM = (28, 122)  # ENOSPC, EDQUOT: `errno` itself would do, but these two numbers are all we need of it


class Appended(NamedTuple):
    """Where a batch went: its offsets, and its place in the file of the segment that starts at `segment`."""

    base_offset: int
    next_offset: int
    position: int
    segment: int


class Writer(Protocol):
    """Has some appends written while others are taken; see `later` and `journal`."""

    defer_bytes_max: int
    """What is that short is left to the writer,"""
    later_bytes_min: int
    """and what is that long, and what follows something that is not written yet."""

    def settle(self) -> None:
        """Wait until everything is written."""


_appended = tuple.__new__  # what a named tuple's constructor does, without its frame


class Log:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        partition: TopicPartition,
        topic_id: bytes,
        config: TopicConfig,
        segments: list[Segment],
        facts: Facts,
        start: int,
    ) -> None:
        assert segments, "there is always an active segment"
        self._disk = disk
        self.directory = directory
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.facts = facts
        self._opened: dict[Segment, None] = {}
        self.start = Offset(start)
        self.durable = Offset(start)
        self.high_watermark = Offset(start)
        self.recovery_point = Offset(start)
        """Everything below is synced in its segment and need not be checked at the next start."""
        self.snapshot_upto = -1
        """The newest snapshot file."""
        self.snapshot_holds = True
        """Whether its facts are those at the recovery point, too."""
        self._snapshot_changes = -1
        self.dense = True
        """Whether there is a record at every offset; not any more once the log was compacted."""
        self.deleted = False
        self.writer: Writer | None = None
        """Who writes what is left to it; without one, all is written when it is appended."""
        self.deferred_upto = 0
        """What is below, and not durable, has its place in the file and is still to be written there."""
        self._fresh_names = True
        """Whether the directory has entries that no sync has covered."""

    # Where things stand

    @property
    def end(self) -> Offset:
        """The offset that the next record gets."""
        return Offset(self._segments[-1].next_offset)

    @property
    def last_stable(self) -> Offset:
        """Readers of committed data stop here: before the first open transaction."""
        first_open = self.facts.transactions.first_open_offset()
        return self.high_watermark if first_open is None else min(first_open, self.high_watermark)

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments)

    @property
    def size_bytes(self) -> int:
        return sum(self.sized(segment) for segment in self._segments)

    def sized(self, segment: Segment) -> int:
        if segment.end_bytes == 0 and segment.sealed:
            self.opened(segment)
        return segment.end_bytes

    def opened(self, segment: Segment) -> Segment:
        """The segment with its file and indexes at hand; only so many sealed ones stay that way."""
        if not segment.sealed:
            return segment
        self._opened.pop(segment, None)
        segment.load(dense=self.dense)
        self._opened[segment] = None
        if len(self._opened) > SEALED_OPEN_MAX:
            for oldest in list(self._opened)[:-SEALED_OPEN_MAX]:
                if not oldest.dirty:
                    del self._opened[oldest]
                    oldest.unload()
        return segment

    # Writing

    def append(
        self, batch: bytearray | memoryview, header: BatchHeader, *, now_ms: int, leader_epoch: int = 0
    ) -> Appended:
        """Give a validated batch the next offsets, in place, and write it. Not yet durable, not yet visible."""
        batch_length, last_offset_delta = header[1], header[6]
        batch_bytes = batch_length + PREFIX_BYTES
        config = self.config
        if batch_bytes > config.max_message_bytes:
            raise BatchTooLarge(batch_bytes=batch_bytes, bytes_max=config.max_message_bytes)
        segment = self._segments[-1]
        base = segment.next_offset
        if not segment.takes(batch_bytes, base + last_offset_delta, now_ms, config.segment_bytes, config.segment_ms):
            segment = self._roll_for(now_ms)
        later = self._defer(batch_bytes, segment)
        try:
            position = segment.put(batch, last_offset_delta, header[8], leader_epoch, later)
        except OSError as error:
            raise self._refused(error, segment, batch_bytes) from error
        if later:
            self.deferred_upto = base + last_offset_delta + 1
        facts = self.facts
        if leader_epoch > facts.epochs.latest or header[9] >= 0:  # else the batch adds no fact
            facts.note(BatchHeader._make((base, batch_length, leader_epoch, *header[3:])), batch)
        return _appended(Appended, (base, base + last_offset_delta + 1, position, segment.base_offset))

    def append_run(
        self,
        data: bytearray | memoryview,
        ends: list[int],
        records: int,
        *,
        numbered: bool,
        now_ms: int,
        leader_epoch: int = 0,
    ) -> Appended | None:
        """Validated batches with so many records that stand end to end, each up to one of the `ends`, in one write:
        all of them or none. `numbered` says that a producer has numbered some. None, and nothing is written, if
        they are more than one segment holds."""
        config, run_bytes = self.config, len(data)
        if run_bytes > config.segment_bytes:
            return None
        segment = self._segments[-1]
        base = segment.next_offset
        if not segment.takes(run_bytes, base + records - 1, now_ms, config.segment_bytes, config.segment_ms):
            segment = self._roll_for(now_ms)
        later = self._defer(run_bytes, segment)
        try:
            position = segment.put_run(data, ends, leader_epoch, later=later)
        except OSError as error:
            raise self._refused(error, segment, run_bytes) from error
        if later:
            self.deferred_upto = base + records
        if numbered or leader_epoch > self.facts.epochs.latest:
            self._note_run(data)
        return _appended(Appended, (base, base + records, position, segment.base_offset))

    def _defer(self, length_bytes: int, segment: Segment) -> bool:
        """Whether this is left to the writer, who has room for it. What comes behind such is written behind it."""
        writer = self.writer
        if writer is None or not (
            length_bytes <= writer.defer_bytes_max
            or length_bytes >= writer.later_bytes_min
            or self.deferred_upto > self.durable
        ):
            return False
        if segment.end_bytes + length_bytes <= segment.held_bytes or segment.room_for(length_bytes):
            return True
        self._settle()
        return False

    @property
    def unwritten(self) -> bool:
        """Whether the writer has something left to write."""
        return self.deferred_upto > self.durable

    def _settle(self) -> None:
        if self.deferred_upto > self.durable:
            assert self.writer is not None
            self.writer.settle()

    def _note_run(self, data: bytearray | memoryview) -> None:
        """The batches, which have their offsets by now, may add facts."""
        facts = self.facts
        for position, header in walk(data):
            if header.leader_epoch > facts.epochs.latest or header.producer_id >= 0:
                facts.note(header, memoryview(data)[position : position + header.batch_bytes])

    def append_placed(self, batch: bytes | bytearray | memoryview, header: BatchHeader, *, now_ms: int) -> Appended:
        """Write a batch that has its offsets already, as a follower or a replay does."""
        assert header.base_offset >= self.end, "offsets only grow"
        self._settle()
        config, segment, batch_bytes = self.config, self._segments[-1], header.batch_bytes
        if not segment.takes(batch_bytes, header.last_offset, now_ms, config.segment_bytes, config.segment_ms):
            segment = self._roll_for(now_ms)
        try:
            position = segment.write(batch)
        except OSError as error:
            raise self._refused(error, segment, batch_bytes) from error
        segment.note(header, position)
        self.facts.note(header, batch)
        return Appended(header.base_offset, header.next_offset, position, segment.base_offset)

    def _roll_for(self, now_ms: int) -> Segment:
        segment = self.roll()
        segment.first_append_ms = now_ms
        return segment

    @staticmethod
    def _refused(error: OSError, segment: Segment, batch_bytes: int) -> Exception:
        segment.reserved_bytes = segment.held_bytes = 0  # what was set aside went with what was cut off
        return DiskFull(wanted_bytes=batch_bytes, path=segment.path) if error.errno in NO_ROOM else error

    def roll(self, base_offset: int | None = None) -> Segment:
        """Seal the active segment and begin a new one at the log's end, or after a stretch that was lost."""
        self._settle()  # a crash that left this segment short, with another behind it, would look like a loss
        old = self._segments[-1]
        base = old.next_offset if base_offset is None else base_offset
        if old.end_bytes == 0 and old.base_offset == base:
            return old
        try:
            segment = self._new_segment(base)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise DiskFull(wanted_bytes=0, path=self.directory) from error
            raise
        if old.end_bytes == 0:
            self._segments.pop().remove()
            self._bases.pop()
        else:
            old.seal(base)
            self._opened[old] = None
        self._segments.append(segment)
        self._bases.append(base)
        self.save_snapshot(base)
        return segment

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self._disk, self.directory, self.partition, base_offset, self.config.index_interval_bytes)
        segment.create()
        self._fresh_names = True
        return segment

    def end_after_truncation(self, offset: int) -> Offset:
        """Where the log would end after `truncate(offset)`: batches go as a whole."""
        if offset >= self.end:
            return self.end
        self._settle()
        place = max(0, bisect_right(self._bases, offset) - 1)
        segment = self.opened(self._segments[place])
        return Offset(offset if segment.base_offset >= offset else max(self.start, segment.end_below(offset)))

    def truncate(self, offset: int) -> Offset:
        """Drop every batch that holds an offset at or after `offset`; returns the log's new end."""
        assert offset >= self.start, "records before the start are gone already"
        if offset >= self.end:
            return self.end
        self._settle()
        while len(self._segments) > 1 and self._segments[-1].base_offset >= offset:
            self._drop(len(self._segments) - 1)
        segment = self.opened(self._segments[-1])
        self._opened.pop(segment, None)
        if segment.base_offset >= offset or segment.end_below(offset) < self.start:
            segment.remove()  # nothing readable is left: begin anew, at an offset that was not given out
            self._segments[-1] = self._new_segment(offset)
            self._bases[-1] = offset
        else:
            segment.truncate(offset)
        self._fresh_names = True
        end = self.end
        self.durable = min(self.durable, end)
        self.deferred_upto = 0
        self.high_watermark = min(self.high_watermark, end)
        self.recovery_point = min(self.recovery_point, end)
        drop(self._disk, self.directory, [upto for upto in saved(self._disk, self.directory) if upto > end])
        self.rebuild_facts()
        return end

    def check_start(self, offset: int) -> None:
        """Raise unless the log may begin at `offset`."""
        if not self.start <= offset <= self.high_watermark:
            raise OffsetOutOfRange(offset=offset, partition=self.partition, start=self.start, end=self.high_watermark)

    def drop_before(self, offset: int) -> None:
        """The log begins at `offset`: what is below is no longer readable, and segments wholly below it go.
        A restart must know of it before, or it would miss them: see `Store.delete_before`."""
        self.start = Offset(offset)
        left = max(0, bisect_right(self._bases, offset) - 1)
        if left:
            self._keep_snapshot(self._bases[left])
        for _ in range(left):
            self._drop(0)
        self.facts.epochs.advance_start(offset)
        self.facts.transactions.forget_ended(offset)

    def _keep_snapshot(self, upto: int) -> None:
        """What is about to go may be all that tells some facts, but for the snapshot at its end."""
        try:
            file = self._disk.open(snapshot_path(self.directory, upto))
        except FileNotFoundError:
            return  # there was no room for it
        try:
            file.sync()
        finally:
            file.close()
        self._disk.sync_dir(self.directory)

    def _drop(self, place: int) -> None:
        segment = self._segments.pop(place)
        self._bases.pop(place)
        self._opened.pop(segment, None)
        segment.remove()
        drop(self._disk, self.directory, [segment.base_offset])
        self._fresh_names = True

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Swap neighbouring sealed segments for the one that holds their cleaned content, already in place."""
        self.dense = False
        place = self._segments.index(old[0])
        assert self._segments[place : place + len(old)] == old
        for segment in old:
            self._opened.pop(segment, None)
        self._segments[place : place + len(old)] = [new]
        self._bases = [segment.base_offset for segment in self._segments]

    def close(self) -> None:
        for segment in self._segments:
            segment.close()

    # Durability

    def advance(self, upto: int) -> None:
        """What is below `upto` is durable under the sync policy and may be read."""
        if upto > self.durable:
            self.durable = Offset(upto)
        if upto > self.high_watermark:
            self.high_watermark = Offset(upto)

    def save_snapshot(self, upto: int) -> None:
        try:
            save(self._disk, self.directory, self.facts.snapshot(upto))
        except OSError as error:  # derived, so a full disk does without it
            logger.warning("%s: no snapshot at %d: %s", self.partition, upto, error)
            return
        self.snapshot_upto = upto
        self.snapshot_holds = True
        self._snapshot_changes = self.facts.changes

    def names_are_durable(self) -> None:
        """Nothing was created or removed since the last checkpoint."""
        self._fresh_names = False

    @property
    def sealed_unsynced(self) -> bool:
        """Whether complete segments wait for a checkpoint, which is what has them compacted."""
        sealed = self._segments[:-1]
        return bool(sealed) and (self.active.base_offset > self.recovery_point or any(s.dirty for s in sealed))

    @property
    def needs_checkpoint(self) -> bool:
        return self._fresh_names or self.recovery_point < self.end or any(s.dirty or s.stale for s in self._segments)

    @property
    def _is_short(self) -> bool:
        """Whether it is sooner read than a snapshot, of which there is none yet."""
        return self.snapshot_upto < 0 and self._bases == [0] and self._segments[0].is_short

    def begin_checkpoint(self) -> PartitionCheckpoint:
        """Note what a sync has to cover; `SyncSegments.run` does it, on any thread."""
        assert not self.unwritten, "a sync covers what is written"
        dirty = [segment for segment in self._segments if segment.dirty or segment.stale]
        job = PartitionCheckpoint(self, self.end, fresh_names=self._fresh_names)
        for segment in dirty:
            job.segments.append(segment)
            job.files.append(segment.open_file())
            if not segment.is_short:
                job.flushes.append((segment.index_flushes(), segment.sealed))
            segment.dirty = segment.stale = False
        self._fresh_names = False
        if self.facts.changes != self._snapshot_changes:
            self.snapshot_holds = False
        if not self.snapshot_holds and not self._is_short:
            job.snapshot = self.facts.snapshot(self.end)
            job.snapshot_changes = self.facts.changes
        return job

    def fail_checkpoint(self, job: PartitionCheckpoint) -> None:
        """It did not come about: all of it is still to be done."""
        for segment in job.segments:
            segment.dirty = True
        self._fresh_names = self._fresh_names or job.fresh_names

    def end_checkpoint(self, job: PartitionCheckpoint) -> None:
        for flushes, _ in job.flushes:
            for flush in flushes:
                flush.finish()
        self.recovery_point = min(max(self.recovery_point, job.upto), self.end)
        if job.snapshot is not None and job.upto <= self.end:
            if self.snapshot_upto not in self._bases and self.snapshot_upto != job.upto:
                drop(self._disk, self.directory, [self.snapshot_upto])
            self.snapshot_upto = job.upto
            self.snapshot_holds = True
            self._snapshot_changes = job.snapshot_changes

    def rebuild_facts(self, *, newest: int | None = None, holds_at: int | None = None) -> int:
        """Make the derived facts again from the newest good snapshot and the batches after it.

        If the newest is that of offset `newest`, nothing changed between it and `holds_at`, and the walk begins
        only there. Returns the offset that the walk began at.
        """
        snapshot = None
        for upto in reversed(saved(self._disk, self.directory)):
            if upto > max(self.end, self.start):
                continue
            snapshot = load(self._disk, self.directory, upto)
            if snapshot is not None:
                break
            drop(self._disk, self.directory, [upto])  # torn: it will never be of use
        self.facts = Facts(snapshot)
        self.snapshot_upto = snapshot.upto if snapshot is not None else -1
        self._snapshot_changes = self.facts.changes
        begin = snapshot.upto if snapshot is not None else self._segments[0].base_offset
        if self.snapshot_upto == newest and holds_at is not None and begin <= holds_at <= self.end:
            begin = holds_at
        if begin < self._bases[0]:
            self.facts.forget_open()  # what they had written is gone, and perhaps the marker with it
        for segment in self._segments[max(0, bisect_right(self._bases, begin) - 1) :]:
            self._note_all(self.opened(segment), begin)
        # A newer snapshot may be gone with the power, and an older one that had been dropped back in its place.
        self.snapshot_holds = begin >= self.recovery_point or not self.facts.changes
        return begin

    def _note_all(self, segment: Segment, begin: int) -> None:
        try:
            if segment.next_offset <= begin or (position := segment.position_of(begin)) is None:
                return
            batches = Batches(segment.open_file(), position, segment.end_bytes, verify=False)
            for _, header, data in batches:
                self.facts.note(header, data)
            bad = batches.bad
        except (CorruptLog, Malformed) as error:  # reading it says so too; the rest must be there for that
            bad = str(error)
        if bad is not None:
            logger.error(
                "%s: leader epochs, producers and transactions may lack what is damaged (%s)", segment.path, bad
            )

    # Reading

    def read(self, offset: int, *, bytes_max: int, upto: int | None = None, cached: bool = False) -> memoryview:
        """Whole batches from the one that holds `offset`, as they are on disk, checked against their CRCs.

        At most `bytes_max`, except that the first batch comes whole. Nothing at or after `upto` is shown, by
        default the high watermark, nor what is still to be written. Empty at the end; `OffsetOutOfRange` outside
        the log. With `cached` the medium is not waited for: perhaps less, or `NotCached`.
        """
        limit = self.high_watermark if upto is None else min(upto, self.end)
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(offset=offset, partition=self.partition, start=self.start, end=self.end)
        if limit > self.durable and self.unwritten:
            limit = self.durable
        if offset >= limit:
            return EMPTY
        bytes_max = min(bytes_max, READ_BYTES_MAX)
        place = bisect_right(self._bases, offset) - 1
        if place < 0:
            raise self._lost(offset, self._segments[0].base_offset, "its segment is missing")
        segment = self._opened_at(place, bytes_max, cached=cached)
        data = segment.read(offset, bytes_max, dense=self.dense, cached=cached)
        if data is None:
            assert segment is not self.active, "the active segment reaches to the end"
            raise self._lost(offset, self._bases[place + 1], "the segment ends early", segment)
        if segment.next_offset > limit and (cut := seek(data, 0, limit)) >= 0:
            if cut == 0:
                following = limit if segment.until is None else min(limit, segment.until)
                raise self._lost(offset, following, "the batch says that it begins later", segment)
            return data[:cut]
        return data

    def locate(self, offset: int, *, bytes_max: int, upto: int, cached: bool = False) -> Place | None:
        """Where `read` would find it, for whoever reads the file by himself and checks what he reads. None where only
        `read` can tell: what it gives is nothing, or an error, or is nowhere that others could look."""
        limit = min(upto, self.end)
        place = bisect_right(self._bases, offset) - 1
        if place < 0 or not self.start <= offset < limit:
            return None
        try:
            segment = self._opened_at(place, bytes_max, cached=cached)
            return segment.locate(offset, bytes_max, limit, dense=self.dense, cached=cached)
        except OSError:
            return None

    def _opened_at(self, place: int, bytes_max: int, *, cached: bool) -> Segment:
        """To open a sealed segment its indexes are read: those, too, from memory if `cached`."""
        segment = self._segments[place]
        if cached and segment.sealed and not segment.loaded:
            raise NotCached(*segment.pieces_to_open(min(bytes_max, PRELOAD_BYTES_MAX)))
        return self.opened(segment)

    def _lost(self, offset: int, following: int, reason: str, segment: Segment | None = None) -> CorruptLog:
        return CorruptLog(
            partition=self.partition,
            first=offset,
            last=following - 1,
            path=segment.path if segment is not None else self.directory,
            position=segment.end_bytes if segment is not None else 0,
            reason=reason,
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[Offset, int] | None:
        """The first visible record at or after `timestamp_ms`: its offset and its timestamp."""
        for segment in list(self._segments):
            offset = self.opened(segment).offset_for_timestamp(timestamp_ms, self.high_watermark)
            while offset is not None and (batch := self.read(max(offset, self.start), bytes_max=1)):
                for record in decode(batch):
                    if record.timestamp_ms >= timestamp_ms and record.offset >= self.start:
                        return Offset(record.offset), record.timestamp_ms
                # The batch's maximum spoke for a record that is gone: deleted, or cleaned away.
                following = parse_header(batch).next_offset
                offset = following if following < segment.next_offset else None
        return None

    def timestamp_at(self, offset: int) -> int | None:
        """About when the record at `offset`, or the next there is, was written; None if nothing visible follows."""
        offset = max(offset, self.start)
        if offset >= self.high_watermark:
            return None
        place = max(0, bisect_right(self._bases, offset) - 1)
        found = self.opened(self._segments[place]).timestamp_at(offset)
        return (
            found
            if found is not None or place + 1 == len(self._segments)
            else self.timestamp_at(self._bases[place + 1])
        )

    def newest(self) -> tuple[Offset, int] | None:
        """The visible record with the highest timestamp, the first of them: its offset and its timestamp."""
        highest_ms = max(self.opened(segment).max_timestamp_ms for segment in list(self._segments))
        if (found := self.offset_for_timestamp(highest_ms)) is not None or self.start >= self.high_watermark:
            return found
        # What had it is deleted, or not visible yet: look through the batches that are.
        best: tuple[Offset, int] | None = None
        offset = self.start
        while batch := self.read(offset, bytes_max=1):
            header = parse_header(batch)
            if best is None or header.max_timestamp_ms > best[1]:
                for record in decode(batch):
                    if record.offset >= self.start and (best is None or record.timestamp_ms > best[1]):
                        best = Offset(record.offset), record.timestamp_ms
            offset = Offset(header.next_offset)
        return best

    def aborted_between(self, first: int, last: int) -> list[Aborted]:
        return self.facts.transactions.aborted_between(first, last)


@dataclass(slots=True)
class PartitionCheckpoint:
    """One partition's share of a checkpoint."""

    log: Log
    upto: Offset
    fresh_names: bool
    segments: list[Segment] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    flushes: list[tuple[list[Flush], bool]] = field(default_factory=list)
    snapshot: Snapshot | None = None
    snapshot_changes: int = 0

"""Finding records in a data directory: by key, by offset, by time. Nothing is recovered first, and nothing waits.

By key the newest segment is read first. A sealed segment's Bloom filter may say that the key is not in it, and then
it is skipped; where a sealed segment has none and the caller may write, one is made on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rivven.errors import CorruptLog, Malformed, OffsetOutOfRange
from rivven.limits import COMPACT_KEY_BYTES_MAX, COMPACT_KEYS_MAX
from rivven.model import TopicPartition
from rivven.ports import Disk
from rivven.record import CODEC_MASK, HEADER_BYTES, BatchHeader, Record, decode, parse_header

from .bloom import Bloom
from .log import Log
from .offline import PartitionFiles, SegmentFiles, Unreadable, WalkedBatch, open_offline, segment_batches

Seen = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Match:
    """A record, and where it stands."""

    partition: TopicPartition
    path: str
    position: int
    record: Record
    transaction: str | None = None
    """"committed", "aborted" or "open" for a record of a transaction."""


class Verdicts:
    """How the transactions of one partition ended; the log is asked only if a record of one turns up."""

    def __init__(self, disk: Disk, files: PartitionFiles) -> None:
        self._disk = disk
        self._files = files
        self._log: Log | None = None

    def of(self, header: BatchHeader) -> str | None:
        if not header.transactional:
            return None
        if self._log is None:
            self._log = open_offline(self._disk, self._files, facts=True)
        facts = self._log.facts.transactions
        first_open = facts.open_transactions().get(header.producer_id)
        if first_open is not None and first_open <= header.base_offset:
            return "open"
        aborted = facts.aborted_between(header.base_offset, header.last_offset)
        return "aborted" if any(entry.producer_id == header.producer_id for entry in aborted) else "committed"


@dataclass(slots=True)
class KeyLookup:
    """One search for a key; what it did on the way is in the counts."""

    disk: Disk
    key: bytes
    keeper: Disk | None = None
    """Where to save the filters that are missing; None if nothing may be written."""
    seen: Seen = lambda _: None
    segments_read: int = 0
    segments_skipped: int = 0
    filters_saved: int = 0
    damage: list[str] = field(default_factory=list)
    """What could not be read, and may have held the key."""

    def newest_first(self, files: PartitionFiles) -> Iterator[Match]:
        verdicts = Verdicts(self.disk, files)
        for segment in reversed(files.segments):
            bloom = Bloom.load(self.disk, segment.side(".bloom")) if segment.sealed else None
            if bloom is not None and not bloom.may_hold(self.key):
                self.segments_skipped += 1
                self.seen(segment.length_bytes)
                continue
            self.segments_read += 1
            # Only positions are kept: a segment may hold the key a million times.
            positions = self._positions(segment, makes_filter=segment.sealed and bloom is None)
            for position in reversed(positions):
                yield from self._matches_at(files, segment, position, verdicts)

    def _positions(self, segment: SegmentFiles, *, makes_filter: bool) -> list[int]:
        """Where the batches are that hold the key."""
        gathering = _Gathering() if makes_filter and self.keeper is not None else None
        positions: list[int] = []
        for item in segment_batches(self.disk, segment):
            batch_bytes = item.length_bytes if isinstance(item, Unreadable) else item.header.batch_bytes
            self.seen(batch_bytes)
            try:
                records = self._records(item, decode_all=gathering is not None)
            except Malformed as error:
                self.damage.append(f"{segment.path} at byte {item.position}: {error}")
                gathering = None
                continue
            if gathering is not None and isinstance(item, WalkedBatch) and not gathering.add(item, records):
                gathering = None
            if any(record.key == self.key for record in records) and _carries_keys(item):
                positions.append(item.position)
        if gathering is not None and self.keeper is not None:
            Bloom.of(gathering.keys, tombstones=gathering.mortal).save(self.keeper, segment.side(".bloom"))
            self.filters_saved += 1
        return positions

    def _records(self, item: WalkedBatch | Unreadable, *, decode_all: bool) -> list[Record]:
        if isinstance(item, Unreadable):
            raise Malformed(what="batch", reason=item.reason)
        if item.fault is not None:
            raise Malformed(what="batch", reason=item.fault)
        if item.header.count == 0:
            return []
        plain = not item.header.attributes & CODEC_MASK
        if not decode_all and plain and bytes(item.data).find(self.key) < 0:
            return []
        return decode(item.data, verify=False)

    def _matches_at(
        self, files: PartitionFiles, segment: SegmentFiles, position: int, verdicts: Verdicts
    ) -> Iterator[Match]:
        data = batch_at(self.disk, segment.path, position)
        verdict = verdicts.of(parse_header(data))
        for record in reversed(decode(data)):
            if record.key == self.key and record.offset >= files.start:
                yield Match(files.partition, segment.path, position, record, verdict)


@dataclass(slots=True)
class _Gathering:
    """The keys of a segment on the way to a filter; given up when they are too many to hold."""

    keys: set[bytes] = field(default_factory=set)
    key_bytes: int = 0
    mortal: bool = False

    def add(self, batch: WalkedBatch, records: list[Record]) -> bool:
        if batch.header.control:
            self.mortal = self.mortal or bool(records)
            return True
        for record in records:
            self.mortal = self.mortal or record.value is None
            if record.key is not None and record.key not in self.keys:
                self.keys.add(record.key)
                self.key_bytes += len(record.key)
        return len(self.keys) <= COMPACT_KEYS_MAX and self.key_bytes <= COMPACT_KEY_BYTES_MAX


def _carries_keys(item: WalkedBatch | Unreadable) -> bool:
    return isinstance(item, WalkedBatch) and not item.header.control


def batch_at(disk: Disk, path: str, position: int) -> bytes:
    file = disk.open(path)
    try:
        header = parse_header(file.read(HEADER_BYTES, position))
        return file.read(header.batch_bytes, position)
    finally:
        file.close()


# By offset and by time


def find_offset(disk: Disk, files: PartitionFiles, offset: int) -> Match | None:
    """The record at `offset`, or where compaction took it the next one; `OffsetOutOfRange` outside the log."""
    return _first_at(disk, files, check_offset(disk, files, offset), offset) if files.segments else None


def check_offset(disk: Disk, files: PartitionFiles, offset: int) -> Log:
    """The log, if it holds `offset`; else `OffsetOutOfRange`."""
    log = open_offline(disk, files)
    if not log.start <= offset < log.end:
        raise OffsetOutOfRange(
            offset=offset, partition=files.partition, start=log.start, end=max(log.start, log.end - 1)
        )
    return log


def find_timestamp(disk: Disk, files: PartitionFiles, timestamp_ms: int) -> Match | None:
    """The first record at or after a time, in the order of the log."""
    if not files.segments:
        return None
    log = open_offline(disk, files)
    found = log.offset_for_timestamp(timestamp_ms)
    return None if found is None else _first_at(disk, files, log, found[0])


def _first_at(disk: Disk, files: PartitionFiles, log: Log, offset: int) -> Match | None:
    while offset < log.end:
        batch = log.read(offset, bytes_max=1)
        if not batch:
            return None
        header = parse_header(batch)
        for record in decode(batch, verify=False):
            if record.offset >= offset:
                path, position = _place_of(log, header.base_offset)
                return Match(files.partition, path, position, record, Verdicts(disk, files).of(header))
        offset = header.next_offset
    return None


def _place_of(log: Log, offset: int) -> tuple[str, int]:
    segment = [each for each in log.segments if each.base_offset <= offset][-1]
    position = log.opened(segment).position_of(offset)
    if position is None:
        raise CorruptLog(
            partition=log.partition, first=offset, last=offset, path=segment.path, position=0, reason="it moved"
        )
    return segment.path, position

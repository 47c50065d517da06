"""A data directory read as it lies: no recovery, no lock, and nothing is changed.

What the command line shows of a directory comes from here, whether a node runs on it, has crashed on it, or has
ended well. Damage is not an exception but something to show: a walk goes on behind it if it can.
Invariant: only one read of a file is held in memory at a time, never a segment's records.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import msgspec

from rivven.errors import BadDirectory, BatchTooLarge, InvalidConfig, Malformed, UnknownTopic
from rivven.limits import MIB, OFFSET_DELTA_MAX
from rivven.model import TopicPartition
from rivven.ports import Disk, File
from rivven.record import HEADER_BYTES, BatchHeader, crc32c, parse_header, validate

from .batches import Batches
from .bloom import HASHES, HEADER, MAGIC
from .config import TopicConfig
from .document import Document, read_whole, unseal
from .index import OFFSETS, TIMES, Index, Kind
from .log import Log
from .recover import CHECKPOINT, Checkpoint, Point
from .segment import Segment
from .snapshot import Facts
from .topics import METADATA, TOPICS, Topic, find_topics, partition_directory

T = TypeVar("T")

WAL = "wal"
SEGMENT_NAME = re.compile(r"\d{20}\.log")
MAGIC_AT = 16
"""Where a batch has its magic byte, 2: what a search behind damage looks for."""


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """One segment on disk; its side files have the same name with another suffix."""

    base_offset: int
    path: str
    length_bytes: int
    sealed: bool
    """Whether another one follows. Only the last may still grow."""

    def side(self, suffix: str) -> str:
        return self.path.removesuffix(".log") + suffix


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    partition: TopicPartition
    topic_id: str
    directory: str
    config: TopicConfig
    point: Point | None
    """What the checkpoint says of it; None if there is no checkpoint to ask."""
    segments: tuple[SegmentFiles, ...]

    @property
    def start(self) -> int:
        """The first offset that may be read."""
        first = self.segments[0].base_offset if self.segments else 0
        return max(first, self.point.start) if self.point is not None else first

    @property
    def length_bytes(self) -> int:
        return sum(segment.length_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Which topics a directory holds, and what its checkpoint says."""

    topics: tuple[Topic, ...]
    topics_from: str
    deleting: tuple[Topic, ...]
    strangers: tuple[str, ...]
    checkpoint: Checkpoint | None

    @property
    def clean(self) -> bool:
        """Whether the last process that had it came to its end in good order."""
        return self.checkpoint is not None and self.checkpoint.clean

    def topic(self, name: str) -> Topic:
        for topic in self.topics:
            if topic.name == name:
                return topic
        raise UnknownTopic(partition=f"topic {name!r}{_nearest(name, [topic.name for topic in self.topics])}")

    def partitions(
        self, topic: str | None = None, partition: int | None = None
    ) -> list[tuple[Topic, TopicPartition]]:
        """The partitions chosen by name and number, all of them by default; `UnknownTopic` if there is none such."""
        topics = self.topics if topic is None else (self.topic(topic),)
        chosen = [
            (each, place)
            for each in topics
            for place in each.each()
            if partition is None or place.partition == partition
        ]
        if partition is not None and not chosen:
            counts = ", ".join(f"{each.name} has {each.partitions}" for each in topics) or "there are no topics"
            raise UnknownTopic(partition=f"partition {partition}: {counts}, counted from 0")
        return chosen


def read_directory(disk: Disk) -> DataDirectory:
    """What a directory holds; `BadDirectory` if it is none of ours."""
    if not any(map(disk.exists, (METADATA, METADATA + ".bak", CHECKPOINT, TOPICS))):
        raise BadDirectory(
            path=disk_name(disk), reason=f"not a data directory: it has neither {METADATA} nor {TOPICS}/"
        )
    checkpoint = Document(disk, CHECKPOINT, Checkpoint).load()[0]
    points = checkpoint.partitions if checkpoint is not None else {}
    known_ids = {name.rpartition("/")[0]: point.topic_id for name, point in points.items()}
    found = find_topics(disk, known_ids)
    topics = tuple(sorted(found.listed.topics, key=lambda topic: topic.name))
    return DataDirectory(topics, found.source, tuple(found.listed.deleting), tuple(found.strangers), checkpoint)


def disk_name(disk: Disk) -> str:
    """How people know the directory; a simulated disk has no name."""
    return str(getattr(disk, "root", "the directory"))


def _nearest(name: str, names: Sequence[str]) -> str:
    if close := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f"; did you mean {close[0]!r}?"
    if not names:
        return "; the directory has no topics"
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"; the topics are {listed}"


def read_partition(disk: Disk, directory: DataDirectory, topic: Topic, partition: TopicPartition) -> PartitionFiles:
    place = partition_directory(partition)
    bases = [int(name[:20]) for name in disk.names(place) if SEGMENT_NAME.fullmatch(name)]
    segments: list[SegmentFiles] = []
    for base in bases:
        path = f"{place}/{base:020d}.log"
        with suppress(FileNotFoundError):  # a running node may drop segments at any time
            segments.append(SegmentFiles(base, path, length_of(disk, path), base != bases[-1]))
    point = _point_of(directory.checkpoint, topic, partition)
    return PartitionFiles(partition, topic.id, place, config_of(topic), point, tuple(segments))


def length_of(disk: Disk, path: str) -> int:
    file = disk.open(path)
    try:
        return file.length()
    finally:
        file.close()


def config_of(topic: Topic) -> TopicConfig:
    """The topic's configuration, or the defaults where it makes no sense: that is for `verify` to report."""
    try:
        return topic.config
    except InvalidConfig:
        return TopicConfig()


def _point_of(checkpoint: Checkpoint | None, topic: Topic, partition: TopicPartition) -> Point | None:
    if checkpoint is None:
        return None
    point = checkpoint.partitions.get(str(partition))
    return point if point is not None and point.topic_id == topic.id else Point(topic.id, 0, 0, 0)


def open_offline(disk: Disk, files: PartitionFiles, *, facts: bool = False) -> Log:
    """A log to read from and to plan with, up to what its files hold; the write-ahead log is not replayed."""
    interval_bytes = files.config.index_interval_bytes
    segments = [
        Segment(disk, files.directory, files.partition, each.base_offset, interval_bytes) for each in files.segments
    ]
    if not segments:
        raise BadDirectory(path=files.directory, reason="has no segment files")
    for segment, following in pairwise(segments):
        segment.seal(following.base_offset)
    segments[-1].load()
    log = Log(disk, files.directory, files.partition, bytes(16), files.config, segments, Facts(), files.start)
    log.recovery_point = log.end
    log.advance(log.end)
    if facts:
        with suppress(Malformed):
            log.rebuild_facts()
    return log


# Batches


@dataclass(frozen=True, slots=True)
class WalkedBatch:
    """A batch where it stands. With a `fault` its header makes sense, but something else about it is wrong."""

    position: int
    header: BatchHeader
    data: memoryview
    fault: str | None = None
    crc_ok: bool = True


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A stretch of a file that holds nothing that makes sense."""

    position: int
    length_bytes: int
    reason: str


def walk_batches(
    file: File, position: int = 0, end: int | None = None, *, offset_min: int = 0
) -> Iterator[WalkedBatch | Unreadable]:
    """Every batch of a log file, damaged ones too, and between them what is not a batch at all."""
    end = file.length() if end is None else end
    while position < end:
        batches = Batches(file, position, end, offset_min=offset_min)
        for found in batches:
            yield WalkedBatch(found.position, found.header, found.data)
        if batches.bad is None:
            return
        position, offset_min = batches.position, batches.next_offset
        if (header := _damaged_at(file, position, end)) is not None:
            data = memoryview(file.read(header.batch_bytes, position))
            yield WalkedBatch(position, header, data, batches.bad, _crc_ok(data))
            position, offset_min = position + header.batch_bytes, header.next_offset
            continue
        following = _next_batch(file, position + 1, end, offset_min)
        yield Unreadable(position, following - position, batches.bad)
        position = following


def _crc_ok(data: memoryview) -> bool:
    try:
        validate(data)
    except (Malformed, BatchTooLarge):
        return False
    return True


def _damaged_at(file: File, position: int, end: int) -> BatchHeader | None:
    """The header of a damaged batch, if it can be believed: another batch, or the end, is where it says."""
    try:
        header = parse_header(file.read(HEADER_BYTES, position))
        following = position + header.batch_bytes
        if following == end:
            return header
        if following < end and parse_header(file.read(HEADER_BYTES, following)).base_offset >= header.next_offset:
            return header
    except Malformed:
        pass
    return None


def _next_batch(file: File, position: int, end: int, offset_min: int) -> int:
    """Where the next whole batch with a sensible offset begins, or `end`."""
    while position + HEADER_BYTES <= end:
        chunk = file.read(min(1 * MIB + HEADER_BYTES, end - position), position)
        place = chunk.find(b"\x02", MAGIC_AT)
        while 0 <= place - MAGIC_AT <= len(chunk) - HEADER_BYTES:
            at = place - MAGIC_AT
            if _is_batch(file, chunk, at, position + at, end, offset_min):
                return position + at
            place = chunk.find(b"\x02", place + 1)
        position += max(1, len(chunk) - HEADER_BYTES + 1)
    return end


def _is_batch(file: File, chunk: bytes, at: int, position: int, end: int, offset_min: int) -> bool:
    try:
        header = parse_header(chunk, at)
        if not offset_min <= header.base_offset <= offset_min + OFFSET_DELTA_MAX:
            return False
        if position + header.batch_bytes > end:
            return False
        validate(file.read(header.batch_bytes, position))
    except (Malformed, BatchTooLarge):
        return False
    return True


def position_near(disk: Disk, segment: SegmentFiles, offset: int) -> int:
    """Where to begin a walk that must not miss `offset`: as its index says, if the batch there agrees."""
    index, fault = Index.load(disk, segment.side(".idx"), OFFSETS)
    entry = index.at_or_below(offset - segment.base_offset) if fault is None else None
    if entry is None:
        return 0
    file = disk.open(segment.path)
    try:
        agrees = parse_header(file.read(HEADER_BYTES, entry[1])).base_offset == segment.base_offset + entry[0]
    except Malformed:
        agrees = False
    finally:
        file.close()
    return entry[1] if agrees else 0


def segment_batches(disk: Disk, segment: SegmentFiles, *, from_offset: int = 0) -> Iterator[WalkedBatch | Unreadable]:
    """The batches of one segment from the one that holds `from_offset` on."""
    position = position_near(disk, segment, from_offset) if from_offset > segment.base_offset else 0
    file = disk.open(segment.path)
    try:
        for item in walk_batches(file, position, segment.length_bytes, offset_min=segment.base_offset):
            if isinstance(item, Unreadable) or item.header.last_offset >= from_offset:
                yield item
    finally:
        file.close()


# Documents


def document_fault(data: bytes, body_type: type[object]) -> str | None:
    """Why this is not a whole document of that type, or None."""
    try:
        envelope = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        return f"not a JSON document: {error}"
    if unseal(data, body_type) is not None:
        return None
    if not isinstance(envelope, dict) or envelope.keys() != {"version", "crc32c", "body"}:
        return "not a document of ours"
    if envelope["version"] != 1:
        return f"version {envelope['version']!r} is not known"
    return "its content does not match its checksum"


def read_document(disk: Disk, path: str, body_type: type[T]) -> tuple[T | None, str | None]:
    """The body of a document and what is wrong with the file; ("missing") if there is none."""
    try:
        data = read_whole(disk, path)
    except FileNotFoundError:
        return None, "missing"
    return unseal(data, body_type), document_fault(data, body_type)


# Indexes


@dataclass(frozen=True, slots=True)
class IndexContent:
    keys: Sequence[int]
    values: Sequence[int]
    fault: str | None
    """"missing", or what is wrong with the file from byte `good_bytes` on."""
    good_bytes: int


def read_index(disk: Disk, path: str, kind: Kind) -> IndexContent:
    index, fault = Index.load(disk, path, kind)
    return IndexContent(index.keys, index.values, fault, index._kept_bytes)


def offset_index(disk: Disk, segment: SegmentFiles) -> IndexContent:
    return read_index(disk, segment.side(".idx"), OFFSETS)


def time_index(disk: Disk, segment: SegmentFiles) -> IndexContent:
    return read_index(disk, segment.side(".tidx"), TIMES)


# A Bloom filter


def bloom_fault(data: bytes) -> tuple[int, str] | None:
    """Where and why a Bloom filter's file is damaged, or None."""
    if len(data) < HEADER.size:
        return 0, f"{len(data)} bytes are too short for its header"
    magic, hashes, _, _, bits, crc = HEADER.unpack_from(data)
    if magic != MAGIC or hashes != HASHES:
        return 0, "not the header of a Bloom filter"
    if bits != (len(data) - HEADER.size) * 8 or not bits:
        return HEADER.size, f"{len(data) - HEADER.size} bytes where the header says {bits // 8}"
    if crc32c(data[HEADER.size :]) != crc:
        return HEADER.size, "its bits do not match its checksum"
    return None

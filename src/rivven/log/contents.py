"""What one file of a data directory holds, in rows that can be shown: indexes, snapshots, filters, groups, documents.

A file is known by its name. What is wrong with it is part of the answer, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from rivven.errors import Malformed
from rivven.limits import WAL_HEADER_BYTES
from rivven.ports import Disk
from rivven.record import crc32c, walk

from .bloom import HAS_TOMBSTONES, HEADER
from .compact import CLEANER, CleanerState
from .document import read_whole
from .index import OFFSETS, TIMES
from .offline import bloom_fault, read_document, read_index
from .recover import CHECKPOINT, Checkpoint
from .snapshot import Snapshot
from .topics import METADATA, TopicList
from .wal import ENTRY, FILE, FILE_MAGIC, GROUP, GROUP_CRC_FROM, GROUP_MAGIC, OFFSET, Kind

Cell = str | int | bool | None
DOCUMENTS: dict[str, type[object]] = {METADATA: TopicList, CHECKPOINT: Checkpoint, CLEANER: CleanerState}
"""Those of the log; what the broker keeps beside them is shown as it stands."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """One file: what it is, what is wrong with it, a few facts, and its rows."""

    path: str
    kind: str
    length_bytes: int
    fault: str | None = None
    facts: Mapping[str, Cell] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    rows: Iterator[tuple[Cell, ...]] = field(default_factory=lambda: iter(()))


def read_content(disk: Disk, path: str, topics: Mapping[bytes, str] | None = None) -> FileContent | None:
    """The content of a side file; None for a name that says nothing. `topics` names the ids in groups."""
    name = path.rpartition("/")[2]
    plain = name.removesuffix(".bak")
    if plain.endswith(".json"):
        return _document(disk, path, DOCUMENTS.get(plain, dict))
    match re.fullmatch(r"(\d+)(\.[a-z]+)", name):
        case None:
            return None
        case found:
            number, suffix = int(found[1]), found[2]
    match suffix:
        case ".idx":
            return _offsets(disk, path, number)
        case ".tidx":
            return _times(disk, path, number)
        case ".state":
            return _state(disk, path)
        case ".bloom":
            return _bloom(disk, path)
        case ".wal":
            return _wal(disk, path, topics or {})
        case _:
            return None


def _offsets(disk: Disk, path: str, base: int) -> FileContent:
    index = read_index(disk, path, OFFSETS)
    rows = ((base + key, value) for key, value in zip(index.keys, index.values, strict=True))
    return FileContent(
        path,
        "offset index: where the batch with each of these offsets stands in the log file",
        _length(disk, path),
        _from_byte(index.fault, index.good_bytes),
        {"base_offset": base, "entries": len(index.keys)},
        ("offset", "position"),
        rows,
    )


def _times(disk: Disk, path: str, base: int) -> FileContent:
    index = read_index(disk, path, TIMES)
    rows = ((key, base + value) for key, value in zip(index.keys, index.values, strict=True))
    return FileContent(
        path,
        "time index: the largest timestamp before the batch with each of these offsets",
        _length(disk, path),
        _from_byte(index.fault, index.good_bytes),
        {"base_offset": base, "entries": len(index.keys)},
        ("timestamp_ms", "offset"),
        rows,
    )


def _from_byte(fault: str | None, good_bytes: int) -> str | None:
    return None if fault is None else f"{fault} from byte {good_bytes} on"


def _length(disk: Disk, path: str) -> int:
    return len(read_whole(disk, path))


def _state(disk: Disk, path: str) -> FileContent:
    snapshot, fault = read_document(disk, path, Snapshot)
    kind = "snapshot: the leader epochs, producers and transactions of a partition up to an offset"
    if snapshot is None:
        return FileContent(path, kind, _length(disk, path), fault)
    return FileContent(
        path,
        kind,
        _length(disk, path),
        fault,
        {
            "up_to_offset": snapshot.upto,
            "leader_epochs": len(snapshot.epochs),
            "producers": len(snapshot.producers),
            "open_transactions": len(snapshot.open_transactions),
            "aborted_transactions": len(snapshot.aborted),
        },
        ("what", "id", "epoch", "first_offset", "last_offset", "last_sequence"),
        _state_rows(snapshot),
    )


def _state_rows(snapshot: Snapshot) -> Iterator[tuple[Cell, ...]]:
    for epoch, start in snapshot.epochs:
        yield "leader epoch", None, epoch, start, None, None
    for row in snapshot.producers:
        first = row.batches[0].base_offset if row.batches else None
        last = row.batches[-1] if row.batches else None
        yield (
            "producer",
            row.producer_id,
            row.epoch,
            first,
            last.last_offset if last else None,
            last.last_sequence if last else None,
        )
    for producer_id, first in snapshot.open_transactions.items():
        yield "open transaction", producer_id, None, first, None, None
    for entry in snapshot.aborted:
        yield "aborted transaction", entry.producer_id, None, entry.first_offset, entry.last_offset, None


def _bloom(disk: Disk, path: str) -> FileContent:
    data = read_whole(disk, path)
    fault = bloom_fault(data)
    facts: dict[str, Cell] = {}
    if fault is None:
        _, hashes, flags, keys, bits, _ = HEADER.unpack_from(data)
        filled = sum(byte.bit_count() for byte in data[HEADER.size :])
        facts = {
            "keys": keys,
            "bits": bits,
            "bits_set": f"{100 * filled / bits:.1f} %",
            "hashes": hashes,
            "has_tombstones_or_markers": bool(flags & HAS_TOMBSTONES),
        }
    text = None if fault is None else f"{fault[1]}, at byte {fault[0]}"
    return FileContent(path, "Bloom filter: which keys a sealed segment may hold", len(data), text, facts)


def _document(disk: Disk, path: str, body_type: type[object]) -> FileContent:
    body, fault = read_document(disk, path, body_type)
    rows = iter(()) if body is None else _flat("", msgspec.to_builtins(body))
    return FileContent(path, "document", _length(disk, path), fault, {}, ("name", "value"), rows)


def _flat(name: str, value: object) -> Iterator[tuple[Cell, ...]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from _flat(f"{name}[{place}]", inner)
    else:
        yield name, value if isinstance(value, str | int | None) else msgspec.json.encode(value).decode()


# The write-ahead log


@dataclass(frozen=True, slots=True)
class WalEntry:
    kind: Kind
    topic_id: bytes
    partition: int
    first_offset: int
    """Of an append its first offset, else the offset of the truncation or of the new start."""
    next_offset: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class WalGroup:
    position: int
    length_bytes: int
    number: int
    synced: int
    """The last group that was known to be synced when this one was written."""
    entries: tuple[WalEntry, ...]
    fault: str | None = None
    """What is wrong inside, although the checksum is right."""


@dataclass(frozen=True, slots=True)
class BadGroup:
    position: int
    length_bytes: int
    torn: bool
    """Nothing good follows: it was being written when the process or the machine ended."""


@dataclass(frozen=True, slots=True)
class WalHeader:
    path: str
    sequence: int
    length_bytes: int
    """As the file's header says."""
    found_bytes: int
    fault: str | None
    """"unused" for one that was never finished."""


def read_wal_header(disk: Disk, path: str) -> WalHeader:
    file = disk.open(path)
    try:
        head, found_bytes = file.read(WAL_HEADER_BYTES, 0), file.length()
    finally:
        file.close()
    if not any(head):
        return WalHeader(path, 0, 0, found_bytes, "unused")
    if len(head) < WAL_HEADER_BYTES:
        return WalHeader(path, 0, 0, found_bytes, f"{len(head)} bytes are too short for its header")
    magic, sequence, length_bytes, crc = FILE.unpack_from(head)
    fault = None
    if magic != FILE_MAGIC or crc != crc32c(head[: FILE.size - 4]):
        return WalHeader(
            path, _claimed_sequence(disk, path), 0, found_bytes, "its header does not match its checksum"
        )
    if found_bytes < length_bytes:
        fault = f"cut short: {found_bytes} bytes where its header says {length_bytes}"
    return WalHeader(path, sequence, length_bytes, found_bytes, fault)


def _claimed_sequence(disk: Disk, path: str) -> int:
    """What the first group says in place of a damaged header, as recovery asks it, too; 0 if there is none."""
    data = read_whole(disk, path)
    if len(data) < WAL_HEADER_BYTES + GROUP.size:
        return 0
    sequence: int = GROUP.unpack_from(data, WAL_HEADER_BYTES)[4]
    return sequence if _group_at(data, WAL_HEADER_BYTES, sequence) is not None else 0


def wal_groups(disk: Disk, header: WalHeader) -> Iterator[WalGroup | BadGroup]:
    """The groups of the file's present life, and the damage between them. Holds the file in memory."""
    data = read_whole(disk, header.path)
    position = WAL_HEADER_BYTES
    while position + GROUP.size <= len(data):
        if (group := _group_at(data, position, header.sequence)) is not None:
            yield group
            position += group.length_bytes
            continue
        following = _group_after(data, position, header.sequence)
        if following is not None:
            yield BadGroup(position, following - position, torn=False)
            position = following
            continue
        magic, _, body_bytes, _, sequence, _, _ = GROUP.unpack_from(data, position)
        if magic == GROUP_MAGIC and sequence == header.sequence:
            yield BadGroup(position, min(GROUP.size + body_bytes, len(data) - position), torn=True)
        return


def wal_group_numbers(disk: Disk, header: WalHeader) -> Iterator[int]:
    """The numbers of all whole groups of a file, of whichever life: for a file whose header cannot be trusted."""
    data = read_whole(disk, header.path)
    position = 0
    while (position := data.find(GROUP_MAGIC, position + 1)) >= 0 and position + GROUP.size <= len(data):
        sequence = GROUP.unpack_from(data, position)[4]
        if (group := _group_at(data, position, sequence)) is not None:
            yield group.number


def _group_at(data: bytes, position: int, sequence: int) -> WalGroup | None:
    magic, crc, body_bytes, count, of_file, number, synced = GROUP.unpack_from(data, position)
    end = position + GROUP.size + body_bytes
    if magic != GROUP_MAGIC or of_file != sequence or end > len(data):
        return None
    if crc32c(memoryview(data)[position + GROUP_CRC_FROM : end]) != crc:
        return None
    entries, fault = _entries(memoryview(data)[position + GROUP.size : end], count)
    return WalGroup(position, end - position, number, synced, entries, fault)


def _group_after(data: bytes, position: int, sequence: int) -> int | None:
    while (position := data.find(GROUP_MAGIC, position + 1)) >= 0:
        if position + GROUP.size <= len(data) and _group_at(data, position, sequence) is not None:
            return position
    return None


def _entries(body: memoryview, count: int) -> tuple[tuple[WalEntry, ...], str | None]:
    entries: list[WalEntry] = []
    position = 0
    for number in range(count):
        if position + ENTRY.size > len(body):
            return tuple(entries), f"{number} entries where {count} are due"
        kind, payload_bytes, topic_id, partition = ENTRY.unpack_from(body, position)
        payload = body[position + ENTRY.size : position + ENTRY.size + payload_bytes]
        position += ENTRY.size + payload_bytes
        try:
            spans = _spans(Kind(kind), payload, payload_bytes)
        except (Malformed, ValueError) as error:
            return tuple(entries), f"entry {number}: {error}"
        entries += [WalEntry(Kind(kind), topic_id, partition, *span) for span in spans]
    return tuple(entries), None if position == len(body) else f"{len(body) - position} bytes after its last entry"


def _spans(kind: Kind, payload: memoryview, payload_bytes: int) -> list[tuple[int, int, int]]:
    """First offset, next offset and bytes of each batch that was appended, or of the one thing that was done."""
    if len(payload) != payload_bytes:
        raise ValueError("longer than its group")
    if kind is Kind.APPEND:
        headers = [header for _, header in walk(payload)]
        if not headers or sum(header.batch_bytes for header in headers) != payload_bytes:
            raise ValueError("not a row of whole batches")
        return [(header.base_offset, header.next_offset, header.batch_bytes) for header in headers]
    if payload_bytes != OFFSET.size:
        raise ValueError(f"an offset of {payload_bytes} bytes")
    offset: int = OFFSET.unpack(payload)[0]
    return [(offset, offset, payload_bytes)]


def _wal(disk: Disk, path: str, topics: Mapping[bytes, str]) -> FileContent:
    header = read_wal_header(disk, path)
    facts: dict[str, Cell] = {"sequence": header.sequence, "length_in_header": header.length_bytes}
    unused = header.fault == "unused"
    kind = "write-ahead log: groups of entries, each written and synced together"
    return FileContent(
        path,
        kind + (" (not in use yet)" if unused else ""),
        header.found_bytes,
        None if unused else header.fault,
        facts,
        ("position", "group", "bytes", "entry", "topic", "partition", "first_offset", "last_offset"),
        iter(()) if unused else _wal_rows(disk, header, topics),
    )


def _wal_rows(disk: Disk, header: WalHeader, topics: Mapping[bytes, str]) -> Iterator[tuple[Cell, ...]]:
    for item in wal_groups(disk, header):
        if isinstance(item, BadGroup):
            text = "not wholly written" if item.torn else "damaged"
            yield item.position, None, item.length_bytes, text, None, None, None, None
            continue
        for entry in item.entries:
            yield (
                item.position,
                item.number,
                entry.payload_bytes,
                entry.kind.name.lower(),
                topics.get(entry.topic_id, entry.topic_id.hex()),
                entry.partition,
                entry.first_offset,
                entry.next_offset - 1 if entry.kind is Kind.APPEND else None,
            )
        if item.fault is not None:
            yield item.position, item.number, None, f"damaged: {item.fault}", None, None, None, None

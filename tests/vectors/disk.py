"""The disk formats byte by byte, as the code writes them on a simulated disk.

    python tests/vectors/disk.py              # says which vectors the code no longer writes
    python tests/vectors/disk.py --rewrite    # writes disk/*.txt anew, and the blocks in docs/ that show them

Each file holds one file of a data directory (or a part of one) as hex, with what the bytes mean in the margin.
`00 * 4068` stands for so many zeros. Time, chance and the disk are simulated, so the same code gives the same
bytes. A vector that changes is a format that changes: that needs a decision, and a way to read the old one.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from rivven.log import Store, StoreConfig
from rivven.log.bloom import Bloom
from rivven.log.compact import CleanerState, Swap, cleaner_document
from rivven.record import NewRecord, decode, encode, encode_marker, rewrite, validate
from rivven.sim import SimClock, SimDisk, SimEntropy

HERE = Path(__file__).parent / "disk"
DOCS = Path(__file__).parents[2] / "docs"
SHOWN = re.compile(r'(```text title="tests/vectors/disk/(\w+)\.txt"\n)(.*?)(```\n)', re.DOTALL)
NOW_MS = 1_700_000_000_000
LINE_BYTES = 16
TEXT_LINE_BYTES = 24
ORDERS = "topics/orders/partition-0/00000000000000000000"
HEADER_FIELDS = (
    (8, "base offset"),
    (4, "batch length: what follows this field"),
    (4, "leader epoch"),
    (1, "magic"),
    (4, "CRC-32C of all that follows"),
    (2, "attributes"),
    (4, "last offset delta"),
    (8, "base timestamp"),
    (8, "max timestamp"),
    (8, "producer id"),
    (2, "producer epoch"),
    (4, "base sequence"),
    (4, "records"),
)


class Page:
    """Takes bytes from the front and puts them, with a note, on a line of their own."""

    def __init__(self, data: bytes, *comments: str) -> None:
        self._data = data
        self._at = 0
        self._lines = [f"# {comment}" for comment in comments] + [""]

    def take(self, count: int, note: str, *, line_bytes: int = LINE_BYTES) -> bytes:
        part = self._data[self._at : self._at + count]
        assert len(part) == count, f"{note}: {len(part)} of {count} bytes are left"
        for place in range(0, count, line_bytes):
            line = part[place : place + line_bytes].hex()
            self._lines.append(f"{line:{2 * LINE_BYTES}} | {note}" if place == 0 else line)
        self._at += count
        return part

    def number(self, layout: str, note: str, shown: str = "{}") -> int:
        value: int = struct.unpack_from(layout, self._data, self._at)[0]
        self.take(struct.calcsize(layout), f"{note}: {shown.format(value)}")
        return value

    def zeros(self, count: int, note: str) -> None:
        assert self._data[self._at : self._at + count] == bytes(count), f"{note}: not zeros"
        self._lines.append(f"{f'00 * {count}':{2 * LINE_BYTES}} | {note}")
        self._at += count

    def varint(self, note: str) -> int:
        """A zigzag varint, read here a second time so that the codec is not its own judge."""
        raw = place = 0
        while True:
            byte = self._data[self._at + place]
            raw |= (byte & 0x7F) << (7 * place)
            place += 1
            if byte < 0x80:
                break
        value = (raw >> 1) ^ -(raw & 1)
        self.take(place, f"{note}: {value}")
        return value

    def text(self, count: int) -> None:
        """ASCII, shown beside itself."""
        for place in range(0, count, TEXT_LINE_BYTES):
            part = self._data[self._at : self._at + min(TEXT_LINE_BYTES, count - place)]
            self._lines.append(f"{part.hex():{2 * TEXT_LINE_BYTES}} | {part.decode('ascii').rstrip()}")
            self._at += len(part)

    def heading(self, text: str) -> None:
        self._lines += ["", f"# {text}"] if self._lines[-1] else [f"# {text}"]

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def __str__(self) -> str:
        assert self.left == 0, f"{self.left} bytes have no note"
        return "\n".join(self._lines) + "\n"


def load(name: str) -> bytes:
    """The bytes of a vector."""
    return parse((HERE / f"{name}.txt").read_text())


def parse(text: str) -> bytes:
    data = b""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            digits, _, repeated = line.split("|")[0].partition("*")
            data += bytes.fromhex(digits) * (int(repeated) if repeated else 1)
    return data


# Batches


def fruit() -> bytearray:
    """Two records: one with a header, and a tombstone."""
    rows: list[NewRecord] = [(NOW_MS, b"apple", b"red", (("via", b"web"),)), (NOW_MS + 5, b"pear", None, ())]
    return encode(rows, base_offset=42, leader_epoch=3, producer_id=7, producer_epoch=0, base_sequence=10)


def batch() -> str:
    page = Page(bytes(fruit()), "Two records at offsets 42 and 43: an apple, and a tombstone for the pear.")
    _header(page)
    for _ in range(2):
        _record(page)
    return str(page)


def batch_marker() -> str:
    data = encode_marker(
        commit=False, producer_id=9, producer_epoch=1, timestamp_ms=NOW_MS, base_offset=44, coordinator_epoch=2
    )
    page = Page(bytes(data), "A transaction marker: producer 9 has aborted. 0x30 = transactional, control.")
    _header(page)
    for field in ("record length", "attributes", "timestamp delta", "offset delta", "key length"):
        page.take(1, field)
    page.take(2, "key: version 0")
    page.take(2, "key: 0 = abort, 1 = commit")
    page.take(1, "value length")
    page.take(2, "value: version 0")
    page.take(4, "value: coordinator epoch")
    page.take(1, "headers")
    return str(page)


def batch_cleaned() -> str:
    kept = [record for record in decode(fruit()) if record.key == b"pear"]
    data = rewrite(fruit(), kept, delete_horizon_ms=NOW_MS + 86_400_000)
    page = Page(
        bytes(data),
        "The same batch after compaction: the apple is superseded, the tombstone stays for a day.",
        "Attributes: 0x40 = the base timestamp is the delete horizon. Offset 43 keeps its place.",
    )
    _header(page)
    _record(page)
    return str(page)


def _header(page: Page) -> None:
    for count, note in HEADER_FIELDS:
        page.take(count, note)


def _record(page: Page) -> None:
    page.heading("a record")
    page.varint("length of what follows")
    page.take(1, "attributes, unused")
    page.varint("timestamp delta")
    page.varint("offset delta")
    for field in ("key", "value"):
        length = page.varint(f"{field} length")
        if length > 0:
            page.take(length, field)
    for _ in range(page.varint("headers")):
        page.take(page.varint("name length"), "name")
        page.take(page.varint("value length"), "value")


# A segment and its indexes


def _store(*, topics: dict[str, int], configs: dict[str, str] | None = None) -> tuple[SimDisk, Store]:
    disk = SimDisk(Random(1))
    config = StoreConfig(wal_file_bytes=8192, wal_first_file_bytes=8192)
    store = Store(disk, SimClock(NOW_MS), SimEntropy(Random(2)), config)
    for name, partitions in topics.items():
        store.create_topic(name, partitions, configs)
    return disk, store


def _as_if_long(make: Callable[[], str]) -> Callable[[], str]:
    """Short logs have no such files, and a long one would fill the page."""

    @wraps(make)
    def made() -> str:
        with patch("rivven.log.segment.SHORT_LOG_BYTES", 0):
            return make()

    return made


def _append(
    store: Store, value: bytes, *, partition: int = 0, later_ms: int = 0, epoch: int = 0, **facts: Any
) -> None:
    data = encode([(NOW_MS + later_ms, b"key", value, ())], **facts)
    store.append(store.log("orders", partition), data, validate(data), leader_epoch=epoch)


def _indexed() -> SimDisk:
    """Eight batches of 76 bytes, an index entry for about every 100; a checkpoint after the third and the last."""
    disk, store = _store(topics={"orders": 1}, configs={"index.interval.bytes": "100"})
    for number, later_ms in enumerate((0, 30, 10, 40, 50, 60, 60, 70)):
        _append(store, b"no. %d" % number, later_ms=later_ms)
        if number in (2, 7):
            store.checkpoint()
    return disk


def segment() -> str:
    page = Page(_indexed().snapshot()[f"{ORDERS}.log"], "00000000000000000000.log: eight batches of one record each.")
    at = 0
    while page.left:
        page.heading(f"position {at}")
        offset = page.number(">q", "base offset")
        length = page.number(">i", "batch length")
        page.take(length, f"the rest of the batch with offset {offset}")
        at += 12 + length
    return str(page)


@_as_if_long
def offset_index() -> str:
    page = Page(_indexed().snapshot()[f"{ORDERS}.idx"], "00000000000000000000.idx: one block for each checkpoint.")
    _blocks(page, "RVIX", ("<I", "offset - base offset"), ("<I", "position"))
    return str(page)


@_as_if_long
def time_index() -> str:
    page = Page(_indexed().snapshot()[f"{ORDERS}.tidx"], "00000000000000000000.tidx: as many entries as the .idx.")
    _blocks(page, "RVTX", ("<q", "largest timestamp before the batch"), ("<I", "offset - base offset of the batch"))
    return str(page)


def _blocks(page: Page, magic: str, key: tuple[str, str], value: tuple[str, str]) -> None:
    while page.left:
        page.heading("a block")
        page.take(4, f"magic: {magic}")
        count = page.number("<I", "entries")
        page.take(4, "CRC-32C of the entries")
        page.take(4, "reserved")
        for layout, note in (key, value):
            for _ in range(count):
                page.number(layout, note)


# The write-ahead log


def wal() -> str:
    disk, store = _store(topics={"orders": 2})
    _append(store, b"red")
    _append(store, b"green", partition=1)
    store.flush()
    store.truncate(store.log("orders", 1), 0)
    store.delete_before(store.log("orders", 0), 1)
    page = Page(disk.snapshot()["wal/00000000000000000001.wal"], "00000000000000000001.wal, 8 KiB long.")
    page.take(8, "magic: RIVVENW1")
    page.number("<Q", "sequence")
    page.number("<Q", "length of the file")
    page.take(4, "CRC-32C of the 24 bytes before")
    page.zeros(4096 - 28, "zeros to 4 KiB")
    for number in (1, 2, 3):
        page.heading(f"group {number}")
        _group(page)
    page.zeros(page.left, "zeros to the end: no group begins here")
    return str(page)


def _group(page: Page) -> None:
    page.take(4, "magic: RVWG")
    page.take(4, "CRC-32C of all that follows in the group")
    page.number("<I", "body length")
    count = page.number("<I", "entries")
    page.number("<Q", "sequence of the file")
    page.number("<Q", "number of the group")
    page.number("<Q", "last group known to be synced")
    for _ in range(count):
        kind = page.number("<B", "entry, kind")
        page.take(3, "reserved")
        length = page.number("<I", "payload length")
        page.take(16, "topic id")
        page.number("<I", "partition")
        if kind == 1:
            page.take(length, "payload: the batch as it stands in its segment")
        else:
            page.number("<q", "payload: offset")


# Documents, snapshot, filter


@_as_if_long
def snapshot() -> str:
    disk, store = _store(topics={"orders": 1})
    _append(store, b"plain", epoch=0, producer_id=7, producer_epoch=0, base_sequence=10)
    _append(store, b"taken back", epoch=4, producer_id=9, producer_epoch=1, base_sequence=0, transactional=True)
    marker = encode_marker(commit=False, producer_id=9, producer_epoch=1, timestamp_ms=NOW_MS)
    store.append(store.log("orders", 0), marker, validate(marker), leader_epoch=4)
    _append(store, b"undecided", epoch=4, producer_id=11, producer_epoch=0, base_sequence=0, transactional=True)
    store.checkpoint()
    data = disk.snapshot()["topics/orders/partition-0/00000000000000000004.state"]
    return _document(data, "00000000000000000004.state: what the batches below offset 4 say.")


def topic_metadata() -> str:
    disk, _ = _store(topics={"orders": 2}, configs={"cleanup.policy": "compact"})
    return _document(disk.snapshot()["topic_metadata.json"], "topic_metadata.json: one topic of two partitions.")


@_as_if_long
def checkpoint() -> str:
    disk, store = _store(topics={"orders": 1})
    _append(store, b"red", producer_id=7, producer_epoch=0, base_sequence=0)
    store.close()
    return _document(disk.snapshot()["checkpoint.json"], "checkpoint.json, left by a shutdown in good order.")


def cleaner() -> str:
    disk = SimDisk(Random(1))
    disk.make_dirs("p")
    cleaner_document(disk, "p").save(CleanerState(500, Swap(0, [120, 310])))
    return _document(disk.snapshot()["p/cleaner.json"], "cleaner.json, amid a swap of three segments for one.")


def _document(data: bytes, comment: str) -> str:
    page = Page(data, comment)
    page.text(len(data))
    return str(page)


def bloom() -> str:
    disk = SimDisk(Random(1))
    Bloom.of([b"apple", b"pear", b"plum"], tombstones=True).save(disk, "0.bloom")
    page = Page(disk.snapshot()["0.bloom"], "A filter of the keys apple, pear and plum.")
    page.take(4, "magic: RVBF")
    page.number("<H", "hashes")
    page.number("<H", "flags (1: tombstones or markers)")
    page.number("<Q", "keys")
    page.number("<Q", "bits")
    page.take(4, "CRC-32C of the bits")
    page.take(4, "reserved")
    page.take(page.left, "the bits")
    return str(page)


VECTORS: dict[str, Callable[[], str]] = {
    make.__name__: make
    for make in (
        batch,
        batch_marker,
        batch_cleaned,
        segment,
        offset_index,
        time_index,
        wal,
        snapshot,
        bloom,
        topic_metadata,
        checkpoint,
        cleaner,
    )
}


def blocks(page: str) -> dict[str, str]:
    """The vectors that a page of the docs shows."""
    return {found[2]: found[3] for found in SHOWN.finditer(page)}


def main(arguments: list[str]) -> int:
    wanted = {name: make() for name, make in VECTORS.items()}
    old = {name: path.read_text() for name in wanted if (path := HERE / f"{name}.txt").exists()}
    changed = [name for name, text in wanted.items() if old.get(name) != text]
    if arguments != ["--rewrite"]:
        print("\n".join(f"{name} differs" for name in changed) or "every vector is as it was")
        return bool(changed)
    HERE.mkdir(exist_ok=True)
    for name, text in wanted.items():
        (HERE / f"{name}.txt").write_text(text)
    for path in DOCS.rglob("*.md"):
        page = path.read_text()
        renewed = SHOWN.sub(lambda found: found[1] + wanted[found[2]] + found[4], page)
        if renewed != page:
            path.write_text(renewed)
    print(f"{len(changed)} of {len(wanted)} vectors changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

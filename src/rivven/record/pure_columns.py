"""The pure twin of the columns: batches to the buffers of Arrow's layout, and Arrow's arrays to batches.

Nothing here imports Arrow: buffers go out as bytearrays, and arrays come in with the few methods used of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rivven.errors import BatchTooLarge, Malformed
from rivven.ports import Buffer

from . import pure
from .header import CONTROL, CRC_FROM, HEADER_BYTES, BatchHeader, Record, crc_fault

COLUMN_BYTES_MAX = 2**31 - 1
"""What 32-bit offsets can reach; a fetch holds far less unless it unpacks to a multiple."""

Unpack = Callable[[Buffer, int, BatchHeader], tuple[Buffer, int, int]]


class Selection(NamedTuple):
    """Which records to take, bounds included, and which columns to build of them."""

    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    key: bytes | None
    with_keys: bool
    with_values: bool
    with_headers: bool
    verify: bool


class Binary(NamedTuple):
    """One column of byte strings: a bitmap of those present (or None if all are), 32-bit ends, and the bytes."""

    validity: bytearray | None
    offsets: bytearray
    data: bytearray


class Columns(NamedTuple):
    """All that was gathered. The native twin gives Arrow's own buffers where these are bytearrays."""

    rows: int
    offsets: bytearray
    timestamps_ms: bytearray
    keys: Binary | None
    values: Binary | None
    header_offsets: bytearray | None
    """32-bit places in the two columns below at which each record's headers end."""
    header_names: Binary | None
    header_values: Binary | None


def gather(buffer: Buffer, position: int, end: int, selection: Selection, unpack: Unpack) -> Columns:
    """The selected records of all whole batches in the buffer; control batches are left out."""
    records = list(_selected(buffer, position, min(end, len(buffer)), selection, unpack))
    headers = [header for record in records for header in record.headers]
    ends = _ends(len(record.headers) for record in records)
    with_headers = selection.with_headers
    return Columns(
        rows=len(records),
        offsets=bytearray(array("q", [record.offset for record in records])),
        timestamps_ms=bytearray(array("q", [record.timestamp_ms for record in records])),
        keys=_binary([record.key for record in records]) if selection.with_keys else None,
        values=_binary([record.value for record in records]) if selection.with_values else None,
        header_offsets=ends if with_headers else None,
        header_names=_binary([name.encode() for name, _ in headers]) if with_headers else None,
        header_values=_binary([value for _, value in headers]) if with_headers else None,
    )


def _selected(buffer: Buffer, position: int, end: int, selection: Selection, unpack: Unpack) -> Iterator[Record]:
    while end - position >= HEADER_BYTES:
        header = pure.parse_header(buffer, position)
        if header.batch_bytes > end - position:
            return
        if not _skipped(header, selection):
            if selection.verify:
                _verify(buffer, position, header)
            body, start, body_end = unpack(buffer, position, header)
            for record in pure.decode_records(body, start, body_end, header):
                if _matches(record, selection):
                    yield record
        position += header.batch_bytes


def _skipped(header: BatchHeader, selection: Selection) -> bool:
    """Whether the header alone tells that no record is wanted."""
    return (
        bool(header.attributes & CONTROL)
        or header.last_offset < selection.first_offset
        or header.base_offset > selection.last_offset
        or header.max_timestamp_ms < selection.first_timestamp_ms
    )


def _verify(buffer: Buffer, position: int, header: BatchHeader) -> None:
    found = pure.crc_between(buffer, position + CRC_FROM, position + header.batch_bytes)
    if found != header.crc:
        raise Malformed(what="batch", reason=crc_fault(header.crc, found))


def _matches(record: Record, selection: Selection) -> bool:
    return (
        selection.first_offset <= record.offset <= selection.last_offset
        and selection.first_timestamp_ms <= record.timestamp_ms <= selection.last_timestamp_ms
        and (selection.key is None or selection.key == record.key)
    )


def _binary(cells: Sequence[bytes | None]) -> Binary:
    offsets = _ends(len(cell or b"") for cell in cells)
    data = bytearray(b"".join(cell or b"" for cell in cells))
    if None not in cells:
        return Binary(None, offsets, data)
    validity = bytearray(b"\xff" * ((len(cells) + 7) // 8))
    for row, cell in enumerate(cells):
        if cell is None:
            validity[row >> 3] &= ~(1 << (row & 7))
    return Binary(validity, offsets, data)


def _ends(lengths: Iterable[int]) -> bytearray:
    ends, total = array("i", [0]), 0
    for length in lengths:
        total += length
        if total > COLUMN_BYTES_MAX:
            raise BatchTooLarge(batch_bytes=total, bytes_max=COLUMN_BYTES_MAX)
        ends.append(total)
    return bytearray(ends)


class BegunBatch:
    """A batch without its header that takes the rows of one table after another; `expected_bytes` is a hint."""

    def __init__(self, expected_bytes: int = 0) -> None:
        del expected_bytes  # the native twin makes room by it
        self.batch = bytearray(HEADER_BYTES)
        self.count = self.base_ms = self.max_ms = 0

    def take(self) -> bytearray:
        """The bytes, for good."""
        return self.batch


class Rows:
    """Columns as records to encode.

    `timestamps` are 64-bit milliseconds; without them every record has `timestamp_ms`.
    `headers` are a list array and, as its parts, the arrays of all names and of all values.
    """

    def __init__(
        self,
        count: int,
        timestamps: Any | None,
        keys: Any | None,
        values: Any | None,
        headers: tuple[Any, Any, Any] | None,
        timestamp_ms: int,
    ) -> None:
        nothing = [None] * count
        times = timestamps.to_pylist() if timestamps is not None else [timestamp_ms] * count
        self._records: list[pure.NewRecord] = list(
            zip(
                times,
                [_bytes(key) for key in keys.to_pylist()] if keys is not None else nothing,
                [_bytes(value) for value in values.to_pylist()] if values is not None else nothing,
                _header_rows(headers) if headers is not None else [()] * count,
                strict=True,
            )
        )

    def put(self, begun: BegunBatch, start: int, count_max: int, bytes_max: int) -> int:
        """Put rows from `start` on into the batch, up to so many rows and bytes in it; how many were put. The first
        row of a batch always fits."""
        batch, before = begun.batch, begun.count
        for timestamp_ms, key, value, headers in self._records[start : start + count_max - before]:
            if not begun.count:
                begun.base_ms = begun.max_ms = timestamp_ms
            used = len(batch)
            pure.put_record(batch, timestamp_ms - begun.base_ms, begun.count, key, value, headers)
            if len(batch) > bytes_max and begun.count:
                del batch[used:]
                break
            begun.count += 1
            begun.max_ms = max(begun.max_ms, timestamp_ms)
        return begun.count - before


def _header_rows(headers: tuple[Any, Any, Any]) -> list[Sequence[tuple[str, bytes | None]]]:
    lists, names, values = headers
    pairs = [(name, _bytes(value)) for name, value in zip(names.to_pylist(), values.to_pylist(), strict=True)]
    places = lists.offsets.to_pylist()
    present = lists.is_valid().to_pylist()
    return [pairs[places[row] : places[row + 1]] if there else () for row, there in enumerate(present)]


def _bytes(cell: str | bytes | None) -> bytes | None:
    return cell.encode() if isinstance(cell, str) else cell

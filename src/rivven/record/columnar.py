"""Batches as Arrow columns and back, with no object per record on the native twin.

Invariant: `to_arrow` holds what `decode` would give, row for record, for every record that the arguments select.
Arrow is imported when a function is called, so that a broker never loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from rivven.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, MIB
from rivven.ports import Buffer

from .batch import attributes, finish, unpack
from .header import INT64_MAX, INT64_MIN, MAGIC, BatchHeader, Codec
from .pure_builder import RECORD_OVERHEAD_BYTES
from .pure_columns import Binary, Columns, Selection
from .twin import columns as kernel

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("offset", "timestamp", "key", "value", "headers")
PIECE_BYTES = 4 * MIB
"""About how much of a table is looked at together."""
CHUNK_ROWS_MIN = 1024
"""Chunks smaller than this on average are joined first: each has its arrays to be looked at."""


def to_arrow(
    buffer: Buffer,
    *,
    position: int = 0,
    end: int | None = None,
    from_offset: int = 0,
    until_offset: int | None = None,
    timestamp_from_ms: int | None = None,
    timestamp_until_ms: int | None = None,
    key: bytes | None = None,
    columns: Sequence[str] | None = None,
    verify: bool = True,
) -> pa.RecordBatch:
    """The records of all whole batches in the buffer, without control records. `until` bounds are not included.

    `columns` picks and orders the columns; `key` keeps the records with that key alone.
    """
    import pyarrow as pa

    names = COLUMNS if columns is None else tuple(columns)
    if unknown := set(names) - set(COLUMNS):
        raise ValueError(f"no such column: {', '.join(sorted(unknown))}; there are {', '.join(COLUMNS)}")
    selection = Selection(
        first_offset=from_offset,
        last_offset=INT64_MAX if until_offset is None else until_offset - 1,
        first_timestamp_ms=INT64_MIN if timestamp_from_ms is None else timestamp_from_ms,
        last_timestamp_ms=INT64_MAX if timestamp_until_ms is None else timestamp_until_ms - 1,
        key=key,
        with_keys="key" in names,
        with_values="value" in names,
        with_headers="headers" in names,
        verify=verify,
    )
    found = kernel.gather(buffer, position, len(buffer) if end is None else end, selection, unpack)
    arrow = _arrow()
    return pa.RecordBatch.from_arrays([arrow.column(name, found) for name in names], names=list(names))


class _Arrow:
    """Makes the arrays. It keeps the types, which would cost as much as all else for a few records."""

    def __init__(self) -> None:
        import pyarrow as pa

        self._buffer = pa.py_buffer
        self._array: Callable[..., pa.Array[Any]] = pa.Array.from_buffers
        self._offset, self._timestamp = pa.int64(), pa.timestamp("ms", tz="UTC")
        self._binary, self._string = pa.binary(), pa.string()
        self._pair = pa.struct([("key", self._string), ("value", self._binary)])
        self._headers = pa.list_(self._pair)
        nothing = Binary(None, bytearray(4), bytearray())
        self._no_pairs = self._pairs(0, nothing, nothing)

    def column(self, name: str, found: Columns) -> pa.Array[Any]:
        if name == "offset":
            return self._array(self._offset, found.rows, [None, self._buffer(found.offsets)])
        if name == "timestamp":
            return self._array(self._timestamp, found.rows, [None, self._buffer(found.timestamps_ms)])
        if name == "headers":
            return self._lists(found)
        column = found.keys if name == "key" else found.values
        assert column is not None, "the selection asked for it"
        return self._strings(self._binary, found.rows, column)

    def _strings(self, kind: pa.DataType, count: int, column: Binary) -> pa.Array[Any]:
        validity = None if column.validity is None else self._buffer(column.validity)
        return self._array(kind, count, [validity, self._buffer(column.offsets), self._buffer(column.data)])

    def _lists(self, found: Columns) -> pa.Array[Any]:
        assert found.header_offsets is not None, "the selection asked for them"
        assert found.header_names is not None
        assert found.header_values is not None
        total = len(found.header_names.offsets) // 4 - 1
        pairs = self._pairs(total, found.header_names, found.header_values) if total else self._no_pairs
        return self._array(self._headers, found.rows, [None, self._buffer(found.header_offsets)], children=[pairs])

    def _pairs(self, total: int, names: Binary, values: Binary) -> pa.Array[Any]:
        parts = [self._strings(self._string, total, names), self._strings(self._binary, total, values)]
        return self._array(self._pair, total, [None], children=parts)


_arrow = cache(_Arrow)


def from_arrow(table: pa.Table | pa.RecordBatch, **how: Any) -> list[bytearray]:
    """All batches that `batches_of` makes of a table."""
    return [batch for batch, _ in batches_of(table, **how)]


def batches_of(
    table: pa.Table | pa.RecordBatch,
    *,
    codec: Codec = Codec.NONE,
    records_per_batch: int = 10_000,
    batch_bytes_max: int = 1_000_000,
    timestamp_ms: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    level: int | None = None,
) -> Iterator[tuple[bytearray, int]]:
    """Columns `key`, `value`, `timestamp` and `headers`, each optional, as batches of so many records and bytes; how
    many records each has. A batch is made when it is asked for.

    `batch_bytes_max` counts plain bytes, and a longer record gets a batch of its own. A missing timestamp is
    `timestamp_ms`; an integer column counts milliseconds. Sequences go on from batch to batch and wrap.
    """
    records_max, bytes_max = min(records_per_batch, BATCH_RECORDS_MAX), min(batch_bytes_max, BATCH_BYTES_MAX)
    left_bytes = table.nbytes + table.num_rows * RECORD_OVERHEAD_BYTES
    flags = attributes(codec, False, transactional, False)

    def finished(begun: kernel.BegunBatch) -> bytearray:
        header = BatchHeader(
            base_offset=0,
            batch_length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=flags,
            last_offset_delta=begun.count - 1,
            base_timestamp_ms=begun.base_ms,
            max_timestamp_ms=begun.max_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            count=begun.count,
        )
        return finish(begun.take(), header, level)

    begun = kernel.BegunBatch(min(left_bytes, bytes_max))
    for rows, count in _rows(table, timestamp_ms):
        start = 0
        while start < count:
            start += rows.put(begun, start, records_max, bytes_max)
            if start < count:
                batch = finished(begun)
                yield batch, begun.count
                base_sequence = base_sequence if base_sequence < 0 else (base_sequence + begun.count) % 2**31
                left_bytes -= len(batch)
                begun = kernel.BegunBatch(min(left_bytes, bytes_max))
    if begun.count:
        yield finished(begun), begun.count


def _rows(table: pa.Table | pa.RecordBatch, timestamp_ms: int) -> Iterator[tuple[kernel.Rows, int]]:
    for chunk in _chunks(table):
        columns = dict(zip(chunk.schema.names, chunk.columns, strict=True))
        if unknown := set(columns) - set(COLUMNS):
            raise ValueError(f"no such column: {', '.join(sorted(unknown))}; records have {', '.join(COLUMNS)}")
        rows = kernel.Rows(
            chunk.num_rows,
            _timestamps(columns.get("timestamp"), timestamp_ms),
            _strings(columns.get("key"), "key"),
            _strings(columns.get("value"), "value"),
            _header_parts(columns.get("headers")),
            timestamp_ms,
        )
        yield rows, chunk.num_rows


def _chunks(table: pa.Table | pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of a table; what has to be joined or converted of them is a few megabytes at a time."""
    for piece in pieces(table):
        chunks = piece.to_batches()
        if len(chunks) > 1 and piece.num_rows < CHUNK_ROWS_MIN * len(chunks):
            chunks = piece.combine_chunks().to_batches()
        yield from chunks


def pieces(table: pa.Table | pa.RecordBatch) -> Iterator[pa.Table]:
    """The table in slices of some megabytes, alike in rows, which copies nothing."""
    import pyarrow as pa

    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    rows = whole.num_rows
    step = -(-rows // max(1, round(whole.nbytes / PIECE_BYTES)))
    for start in range(0, rows, max(1, step)):
        yield whole.slice(start, step)


def _timestamps(column: Any | None, timestamp_ms: int) -> Any | None:
    import pyarrow as pa

    if column is None or pa.types.is_null(column.type):
        return None
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    elif not pa.types.is_integer(column.type):
        raise ValueError(f"timestamp is {column.type}; use a timestamp or milliseconds as an integer")
    column = column.cast(pa.int64())
    return column.fill_null(timestamp_ms) if column.null_count else column


def _strings(column: Any | None, name: str) -> Any | None:
    import pyarrow as pa

    if column is None or pa.types.is_null(column.type):
        return None
    kinds = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
    if column.type not in kinds:
        raise ValueError(f"{name} is {column.type}; use {', '.join(map(str, kinds))}")
    return column


def _header_parts(column: Any | None) -> tuple[Any, Any, Any] | None:
    """The list array with its parts. Names must be text that is there; that is checked for the rows in use alone."""
    import pyarrow as pa

    if column is None or pa.types.is_null(column.type):
        return None
    kind = column.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not lists or not pa.types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        raise ValueError(f"headers is {kind}; use list<struct<key: string, value: binary>>")
    used = column.flatten()
    names, values = column.values.field("key"), column.values.field("value")
    if not (pa.types.is_string(names.type) or pa.types.is_large_string(names.type)):
        raise ValueError(f"header names are {names.type}; use string")
    if used.null_count or used.field("key").null_count:
        raise ValueError("a header without a name")
    return column, names, _strings(values, "header value")

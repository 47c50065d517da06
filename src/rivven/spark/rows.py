"""A stretch of a topic as Arrow batches in exactly the schema that Spark expects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rivven.model import TopicPartition
from rivven.record import to_arrow

from .clients import client_of, patiently, settle
from .fetching import Fetcher, Piece, stamped_by_broker
from .filters import AFTER_ALL, BEFORE_ALL, EVERYTHING, Range
from .offsets import Stretch
from .options import Reading
from .planning import Planner

if TYPE_CHECKING:
    import pyarrow as pa

DECODED = ("offset", "timestamp", "key", "value", "headers")
ROWS_MAX = 50_000
"""In one batch for Spark: compressed records may be many more than their bytes suggest."""


def rows_of(
    stretch: Stretch, reading: Reading, schema: StructType, times_ms: Range = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """The records of a stretch, without those outside the times."""
    settle()
    shape = Shape(schema, times_ms)
    for piece in pieces_of(stretch, reading):
        yield from shape.batches(piece, stretch)


def pieces_of(stretch: Stretch, reading: Reading) -> Iterator[Piece]:
    """What the broker has of a stretch. Every offset of it is covered, or its loss is told."""
    where, until = TopicPartition(stretch.topic, stretch.partition), stretch.until
    planner = Planner(reading)
    client = patiently(lambda: client_of(reading.access))
    with Fetcher(client, stretch.topic, stretch.partition, stretch.start, committed=reading.committed) as fetcher:
        while fetcher.position(stretch.partition) < until:
            piece = patiently(lambda: fetcher.next(stretch.partition, until))
            for _, start, earliest in fetcher.take_lost():
                if start < until:
                    planner.lost(where, start, earliest, "retention, or somebody who deleted records, came first")
            if piece is not None:
                yield piece
                continue
            end, position = planner.end_of(fetcher.bounds(stretch.partition)), fetcher.position(stretch.partition)
            if end < until:  # else what was left has been cleaned by compaction
                planner.lost(where, max(position, end), until, f"the partition ends at {end} now")
            break


class Shape:
    """Makes batches of one schema."""

    def __init__(self, schema: StructType, times_ms: Range) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._names: Sequence[str] = schema.fieldNames()
        self._decoded = [name for name in self._names if name in DECODED]
        if "timestampType" in self._names and "offset" not in self._decoded:
            self._decoded.append("offset")
        self._columns: dict[Any, Any] = {}
        self._from_ms = None if times_ms.low == BEFORE_ALL else times_ms.low
        self._until_ms = None if times_ms.high == AFTER_ALL else times_ms.high + 1

    def batches(self, piece: Piece, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        found = to_arrow(
            piece.data,
            from_offset=piece.start,
            until_offset=piece.until,
            timestamp_from_ms=self._from_ms,
            timestamp_until_ms=self._until_ms,
            columns=self._decoded or ["offset"],
            verify=not piece.checked,
        )
        if not found.num_rows:
            return
        arrays = []
        for name, kind in zip(self._names, self._schema.types, strict=True):
            column = self._column(name, found, piece, stretch)
            arrays.append(column if column.type == kind else column.cast(kind))
        whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for start in range(0, whole.num_rows, ROWS_MAX):
            yield whole.slice(start, ROWS_MAX)

    def _repeated(self, value: Any, rows: int) -> Any:
        """The same value in so many rows; made once for the longest so far."""
        import pyarrow as pa

        made = self._columns.get(value)
        if made is None or len(made) < rows:
            made = self._columns[value] = pa.repeat(value, rows)
        return made.slice(0, rows)

    def _column(self, name: str, found: pa.RecordBatch, piece: Piece, stretch: Stretch) -> Any:
        import pyarrow as pa

        match name:
            case "topic":
                return self._repeated(pa.scalar(stretch.topic), found.num_rows)
            case "partition":
                return self._repeated(pa.scalar(stretch.partition, pa.int32()), found.num_rows)
            case "timestampType":
                return _timestamp_types(self._repeated(pa.scalar(0, pa.int32()), found.num_rows), found, piece)
            case _:
                return found.column(name)


def _timestamp_types(kinds: Any, found: pa.RecordBatch, piece: Piece) -> Any:
    """0 where the producer's clock stamped a record, as in all of `kinds`, 1 where the broker's did."""
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets: Any = found.column("offset")
    for first, last in stamped_by_broker(piece.data):
        inside = pc.and_(pc.greater_equal(offsets, pa.scalar(first)), pc.less_equal(offsets, pa.scalar(last)))
        kinds = pc.if_else(inside, pa.scalar(1, pa.int32()), kinds)
    return kinds

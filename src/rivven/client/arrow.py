"""Tables on their way to partitions, and messages of old servers as columns. Arrow is loaded when it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rivven.record import partition_for_key, pieces

from .failures import SerializationException
from .values import Message

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION = "partition"


def placed(
    table: pa.Table | pa.RecordBatch, partitions: int, partition: int | None
) -> Iterator[tuple[int | None, pa.Table | pa.RecordBatch]]:
    """The rows of a table by partition, in their order: as told, by a column `partition`, or by their keys.

    None stands for any partition. Where rows are to be sorted out, that is done for a few megabytes at a time, and a
    key that occurs often is hashed once.
    """
    names = table.schema.names
    by_column, by_key = PARTITION in names, "key" in names and table.column("key").null_count < table.num_rows
    if partition is not None or not (by_column or by_key):
        yield partition, table.drop_columns([PARTITION]) if by_column else table
        return
    for piece in pieces(table):
        yield from _spread_by_column(piece) if by_column else _spread(piece, _by_key(piece.column("key"), partitions))


def _spread_by_column(piece: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
    import pyarrow as pa

    numbers = piece.column(PARTITION).combine_chunks().cast(pa.int64())
    return _spread(piece.drop_columns([PARTITION]), numbers)


def _by_key(column: Any, partitions: int) -> Any:
    import pyarrow as pa

    coded = column.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    keys = coded.dictionary.cast(pa.binary()).to_pylist()
    numbers = pa.array([partition_for_key(key, partitions) for key in keys], pa.int64())
    return numbers.take(coded.indices)


def _spread(rows: pa.Table, numbers: Any) -> Iterator[tuple[int | None, pa.Table]]:
    import pyarrow.compute as pc

    order = pc.array_sort_indices(numbers)  # stable, and nulls stand last
    counts: dict[int | None, int] = {
        entry["values"]: entry["counts"] for entry in pc.value_counts(numbers).to_pylist()
    }
    if len(counts) == 1:
        yield next(iter(counts)), rows
        return
    sorted_rows = rows.take(order)
    start = 0
    for number in [*sorted(number for number in counts if number is not None), *([None] if None in counts else [])]:
        yield number, sorted_rows.slice(start, counts[number])
        start += counts[number]


def messages_to_arrow(messages: Sequence[Message], columns: Sequence[str] | None) -> pa.RecordBatch:
    """What `rivven.record.to_arrow` would make of these."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    made: dict[str, Callable[[], pa.Array[Any]]] = {
        "offset": lambda: pa.array([message.offset for message in messages], pa.int64()),
        "timestamp": lambda: pa.array([message.timestamp for message in messages], pa.timestamp("ms", tz="UTC")),
        "key": lambda: pa.array([message.key for message in messages], pa.binary()),
        "value": lambda: pa.array([message.value for message in messages], pa.binary()),
        "headers": lambda: pa.array(
            [[{"key": name, "value": value} for name, value in message.headers] for message in messages],
            pa.list_(header),
        ),
    }
    names = list(made) if columns is None else list(columns)
    if unknown := set(names) - set(made):
        raise SerializationException(reason=f"no such column: {', '.join(sorted(unknown))}")
    return pa.RecordBatch.from_arrays([made[name]() for name in names], names=names)


def with_partition(batch: pa.RecordBatch, columns: Sequence[str], partition: int) -> pa.RecordBatch:
    """The batch with a column that says where it came from, in the order of `columns`."""
    import pyarrow as pa

    number: Any = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
    arrays = [number if name == PARTITION else batch.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))

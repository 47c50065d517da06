"""Whether a table can take the columns of the records: what the sinks for table formats have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def see_columns(records: pa.Schema, names: Sequence[str], setting: str) -> None:
    """See that the columns named by a setting are there; ValueError otherwise."""
    strangers = [name for name in names if name not in records.names]
    if strangers:
        raise ValueError(f"{setting}: there is no column {', '.join(strangers)}; there is {', '.join(records.names)}")


def new_columns(records: pa.Schema, table: pa.Schema) -> list[str]:
    return [name for name in records.names if name not in table.names]


def changed_columns(records: pa.Schema, table: pa.Schema) -> list[str]:
    """The columns whose values the table's type has no room for."""
    both = [name for name in records.names if name in table.names]
    return [name for name in both if not fits(records.field(name).type, table.field(name).type)]


def lacking_columns(records: pa.Schema, table: pa.Schema) -> list[str]:
    """The columns that the table must have and the records have not."""
    return [field.name for field in table if not field.nullable and field.name not in records.names]


def fits(have: Any, want: Any) -> bool:
    """Whether every value of one type is a value of the other. What is inside a nested one shows when it is cast."""
    import pyarrow as pa

    types = pa.types
    if have.equals(want):
        return True
    for kinds in (types.is_integer, types.is_floating):
        if kinds(have) and kinds(want):
            return bool(have.bit_width <= want.bit_width)
    if types.is_timestamp(have) and types.is_timestamp(want):
        return bool((have.tz is None) == (want.tz is None))
    families = (
        (types.is_string, types.is_large_string),
        (types.is_binary, types.is_large_binary),
        (types.is_list, types.is_large_list),
        (types.is_struct,),
        (types.is_map,),
    )
    return any(any(kind(have) for kind in each) and any(kind(want) for kind in each) for each in families)


def as_in_table(batch: pa.RecordBatch, table: pa.Schema) -> pa.RecordBatch:
    """The batch in the types of the table."""
    import pyarrow as pa

    fields = [table.field(name) for name in batch.schema.names]
    arrays = [array.cast(field.type) for array, field in zip(batch.columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

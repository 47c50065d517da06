"""Merging a micro-batch into a Delta table by key: the last record of each key counts, a delete takes its row out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rivven.connect.sdk import RESERVED

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable

ORDER = ("__partition", "__offset")
"""What tells which of two records of a key is the later one. Records of a key are in one partition of a topic."""
KIND = "__event_type"
GONE = "__gone"
NEEDED = (*ORDER, KIND)
"""The columns about the record that a merge looks at, where they are."""


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last record of each key, in order of the topic, else in the order they came."""
    import numpy as np
    import pyarrow as pa

    for name in key:
        if rows.column(name).null_count:
            raise ValueError(f"key_columns: {name} is null in a record; filter such records out by a transform")
    if all(name in rows.column_names for name in ORDER):
        rows = rows.sort_by([(name, "ascending") for name in ORDER])
    places = pa.array(np.arange(rows.num_rows))
    keys = rows.select(list(key)).append_column("__place", places)
    last: Any = keys.group_by(list(key)).aggregate([("__place", "max")])
    return rows.take(last.column("__place_max"))


def merge(table: DeltaTable, rows: pa.Table, key: Sequence[str], properties: CommitProperties) -> None:
    """One commit that updates, inserts and deletes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = last_of_each(rows, key)
    gone: Any = pa.repeat(pa.scalar(False), rows.num_rows)
    if KIND in rows.column_names:
        kinds: Any = rows.column(KIND)
        gone = pc.fill_null(pc.equal(kinds, pa.scalar("delete")), pa.scalar(False))
    columns = [name for name in rows.column_names if name not in RESERVED]
    source = rows.select(columns).append_column(GONE, gone)
    values = {_quoted(name): f"source.{_quoted(name)}" for name in columns}
    alike = " AND ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in key)
    stays = f"NOT source.{_quoted(GONE)}"
    (
        table.merge(source, alike, source_alias="source", target_alias="target", commit_properties=properties)
        .when_matched_delete(f"source.{_quoted(GONE)}")
        .when_matched_update(values, stays)
        .when_not_matched_insert(values, stays)
        .execute()
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

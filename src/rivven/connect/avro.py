"""Arrow batches as Avro container files: of the formats in `files.py` the one with a schema of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from .files import Compression, Encoder

if TYPE_CHECKING:
    import pyarrow as pa

CODECS = {"default": "deflate", "gzip": "deflate", "none": "null"}
"""The rarer ones need packages that are not always there."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Avro(Encoder):
    """Batches into one file; `target` must be open for reading too, for that is how fastavro adds to a file."""

    def __init__(self, target: IO[bytes], schema: pa.Schema, compression: Compression) -> None:
        from fastavro import parse_schema

        super().__init__(target)
        self._schema = parse_schema(avro_schema(schema))
        self._codec = CODECS[compression]
        self._begun = False

    def write(self, batch: pa.RecordBatch) -> None:
        self._add(batch)

    def _add(self, batch: pa.RecordBatch | None) -> None:
        from fastavro import writer

        rows: Iterator[dict[str, Any]] = iter(batch.to_pylist(maps_as_pydicts="strict") if batch is not None else ())
        before = self._target.tell()
        try:
            writer(self._target, self._schema, rows, codec=self._codec)
        except BaseException:  # all or nothing: blocks that were full have been written already
            self._target.seek(before)
            self._target.truncate()
            raise
        self._begun = True

    def close(self) -> None:
        if not self._begun:
            self._add(None)


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """The Avro schema of Arrow columns; ValueError for what Avro has no word for."""
    return {"type": "record", "name": "Record", "fields": _fields(schema, "Record")}


def _fields(fields: Any, path: str) -> list[dict[str, Any]]:
    made = []
    for field in fields:
        if not NAME.fullmatch(field.name):
            raise ValueError(
                f"format: the column {field.name!r} cannot have that name in Avro; rename it to letters, digits and _"
            )
        kind = _type(field.type, f"{path}_{field.name}")
        if field.nullable:
            made.append({"name": field.name, "type": ["null", kind], "default": None})
        else:
            made.append({"name": field.name, "type": kind})
    return made


def _type(kind: Any, path: str) -> Any:
    """The Avro type; `path` gives each record inside a name of its own, as Avro wants it."""
    import pyarrow as pa

    types = pa.types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind):
        return "int" if kind.bit_width < 32 or types.is_int32(kind) else "long"
    if types.is_float32(kind) or types.is_float16(kind):
        return "float"
    if types.is_floating(kind):
        return "double"
    if types.is_string(kind) or types.is_large_string(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, f"{path}_item")]}
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _type(kind.item_type, f"{path}_value")]}
    if types.is_struct(kind):
        return {"type": "record", "name": path, "fields": _fields(kind, path)}
    raise ValueError(f"format: {path.removeprefix('Record_')} has the type {kind}, for which Avro has none; cast it")

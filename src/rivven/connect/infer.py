"""The columns of JSON records, found from a sample of them: a Spark DDL, and whether an envelope is round the data.

Pure, and in Python, so that the same records give the same columns wherever they are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

ENVELOPE = {"event_type", "stream", "timestamp", "data"}
"""What a record has that a source wrote as `event`."""

Shape = Any
"""The shape of a value: a type's name, ("array", shape), ("struct", {name: shape}), or None for what is null."""

DEPTH_MAX = 64
WIDTHS = ["bigint", "decimal(38,0)", "double"]
"""Numbers, each of which can stand for those before it."""


def is_event(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= ENVELOPE


def parsed(values: Iterable[bytes | None]) -> list[dict[str, Any]]:
    """The records of a sample that are JSON objects."""
    found = []
    for value in values:
        if value is None:
            continue
        try:
            record = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def shape_of(value: Any, depth: int = 0) -> Shape:
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(2**63) <= value < 2**63 else "decimal(38,0)"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str) or depth >= DEPTH_MAX:
        return "string"
    if isinstance(value, list):
        inner: Shape = None
        for item in value:
            inner = merged(inner, shape_of(item, depth + 1))
        return ("array", inner)
    return ("struct", {name: shape_of(item, depth + 1) for name, item in value.items()})


def merged(one: Shape, other: Shape) -> Shape:
    """A shape that holds both; text where nothing else does."""
    if one is None or one == other:
        return other
    if other is None:
        return one
    if isinstance(one, tuple) and isinstance(other, tuple) and one[0] == other[0]:
        if one[0] == "array":
            return ("array", merged(one[1], other[1]))
        fields = dict(one[1])
        for name, shape in other[1].items():
            fields[name] = merged(fields.get(name), shape)
        return ("struct", fields)
    if one in WIDTHS and other in WIDTHS:
        return max(one, other, key=WIDTHS.index)
    return "string"


def ddl_of(shape: Shape) -> str:
    """A shape as a type in DDL; what was always null is text, an empty object is text."""
    if shape is None or shape == ("struct", {}):
        return "string"
    if isinstance(shape, str):
        return shape
    if shape[0] == "array":
        return f"array<{ddl_of(shape[1])}>"
    return f"struct<{', '.join(f'{_quoted(name)}: {ddl_of(inner)}' for name, inner in shape[1].items())}>"


def columns_of(records: Iterable[dict[str, Any]]) -> str:
    """The columns of records as a DDL; empty if there are none."""
    whole: Shape = None
    for record in records:
        whole = merged(whole, shape_of(record))
    if whole is None:
        return ""
    return ", ".join(f"{_quoted(name)} {ddl_of(inner)}" for name, inner in _unlike_but_in_case(whole[1]).items())


def _unlike_but_in_case(fields: dict[str, Shape]) -> dict[str, Shape]:
    """Spark takes `Id` and `id` for the same column: the first of them stays."""
    seen: dict[str, str] = {}
    return {name: shape for name, shape in fields.items() if seen.setdefault(name.lower(), name) == name}


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"

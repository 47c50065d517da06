"""Vocabulary <-> protobuf by shape: fields of the same names are copied, whatever the message.

Protobuf knows no absent number or text, so where the schema has no `optional`, 0 and "" read as None.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from rivven.errors import Malformed

from .bounds import invalid, too_long, too_many, unreadable
from .schema import Message, Shape

Proto: TypeAlias = Any
"""A message of the protobuf run-time, which has no static types here."""

UINT32_MAX = 2**32 - 1
RENAMED = {"expires_in_s": "expires_in"}
"""Fields that carry their unit here and don't there."""


def read(layout: Shape, proto: Proto) -> Message:
    """The message whose fields have the names of the proto's own."""
    known = proto.DESCRIPTOR.fields_by_name
    given = {}
    for part in layout.parts:
        name = RENAMED.get(part.name, part.name)
        if name in known:
            given[part.name] = _value(part, proto, known[name])
        elif part.name == "key" and "record" in known:
            given |= _record(proto)
    return layout.type(**given)  # type: ignore[no-any-return]


def _record(proto: Proto) -> dict[str, Any]:
    if not proto.HasField("record"):
        raise unreadable("Missing record")
    record = proto.record
    return {"key": record.key if record.has_key else None, "value": record.value}


def _value(part: Shape, proto: Proto, field: Any) -> Any:
    value = getattr(proto, field.name)
    if part.kind == "option":
        if not (proto.HasField(field.name) if field.has_presence else value):
            return None
        (part,) = part.parts
    if part.kind == "many":
        (entry,) = part.parts
        return tuple(read(entry, item) for item in value) if entry.type else tuple(value)
    if part.kind == "table":
        return dict(value)
    if part.width and value > part.width.most:
        raise invalid(f"{part.name} {value} exceeds {part.width.name}::MAX ({part.width.most})")
    return value


def write(layout: Shape, message: Any, proto: Proto) -> None:
    known = proto.DESCRIPTOR.fields_by_name
    for part in layout.parts:
        name, value = RENAMED.get(part.name, part.name), getattr(message, part.name)
        if name in known:
            _put(part, value, proto, known[name])
        elif part.name == "key" and "record" in known:
            proto.record.key, proto.record.has_key = value or b"", value is not None
            proto.record.value = message.value
        elif part.name != "value" and value:
            raise Malformed(what=layout.name, reason=f"{part.name} is not available in protobuf; use postcard")


def _put(part: Shape, value: Any, proto: Proto, field: Any) -> None:
    if value is None:
        return
    if part.kind == "option":
        (part,) = part.parts
    if part.kind == "many":
        (entry,) = part.parts
        if entry.type:
            for item in value:
                write(entry, item, getattr(proto, field.name).add())
        else:
            getattr(proto, field.name).extend(value)
    elif part.kind == "table":
        getattr(proto, field.name).update(value)
    elif part.kind == "opaque":
        setattr(proto, field.name, b"".join(value) if type(value) is tuple else bytes(value))
    elif part.width and part.width.name == "u64" and field.type == field.TYPE_UINT32:
        setattr(proto, field.name, min(value, UINT32_MAX))  # a counter: the nearest it can say
    else:
        setattr(proto, field.name, value)


# The bounds that postcard checks as it reads


def check(layout: Shape, value: Any, totals: dict[int, int]) -> None:
    """Refuse what is too long, in the words of `bounds`."""
    if value is None:
        return
    if layout.kind == "struct":
        for part in layout.parts:
            if part.most is not None or part.parts:
                check(part, getattr(value, part.name), totals)
    elif layout.kind == "option":
        check(layout.parts[0], value, totals)
    elif layout.kind in ("many", "table"):
        _check_many(layout, value, totals)
    elif layout.most is not None:
        found = len(value.encode()) if type(value) is str else len(value)
        if found > layout.most:
            raise too_long(layout.label, found, layout.most)


def _check_many(layout: Shape, value: Any, totals: dict[int, int]) -> None:
    found = totals[id(layout)] = totals.get(id(layout), 0) + len(value)
    assert layout.most is not None
    if found > layout.most:
        raise too_many(layout.label, found, layout.most)
    columns = [value] if layout.kind == "many" else [value.keys(), value.values()]
    for part, column in zip(layout.parts, columns, strict=True):
        if part.most is not None or part.parts:
            for entry in column:
                check(part, entry, totals)

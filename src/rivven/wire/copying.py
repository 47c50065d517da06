"""Vocabulary <-> protobuf by shape: fields of the same names are copied, whatever the message.

For each class the copying is worked out once, as one small function per field. Protobuf knows no absent number or
text, so where the schema has no `optional`, 0 and "" read as None.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias

from rivven.errors import Malformed

from .bounds import invalid, too_long, too_many, unreadable
from .schema import Message, Shape

Proto: TypeAlias = Any
"""A message of the protobuf run-time, which has no static types here."""
Getter: TypeAlias = Callable[[Proto], Any]
Putter: TypeAlias = Callable[[Proto, Any], None]

UINT32_MAX = 2**32 - 1
RENAMED = {"expires_in_s": "expires_in"}
"""Fields that carry their unit here and don't there."""

_getters: dict[type[Message], list[Getter]] = {}
_putters: dict[type[Message], list[tuple[str, Putter]]] = {}


def read(layout: Shape, proto: Proto) -> Message:
    """The message whose fields have the names of the proto's own."""
    getters = _getters.get(layout.type)
    if getters is None:
        known = proto.DESCRIPTOR.fields_by_name
        getters = _getters[layout.type] = [_getter(part, known) for part in layout.parts]
    return layout.type(*[get(proto) for get in getters])  # type: ignore[no-any-return]


def write(layout: Shape, message: Message, proto: Proto) -> None:
    putters = _putters.get(layout.type)
    if putters is None:
        known = proto.DESCRIPTOR.fields_by_name
        putters = _putters[layout.type] = [(part.name, _putter(part, known)) for part in layout.parts]
    for name, put in putters:
        put(proto, getattr(message, name))


def _getter(part: Shape, known: Any) -> Getter:
    name = RENAMED.get(part.name, part.name)
    if name not in known:
        return _getter_elsewhere(part, known)
    field, plain = known[name], attrgetter(name)
    if part.kind != "option":
        return _getter_of(part, field, plain)
    value = _getter_of(part.parts[0], field, plain)
    if field.has_presence:
        return lambda proto: value(proto) if proto.HasField(name) else None
    return lambda proto: value(proto) or None


def _getter_of(part: Shape, field: Any, plain: Getter) -> Getter:
    if part.kind == "many":
        (entry,) = part.parts
        if entry.type:
            return lambda proto: tuple([read(entry, item) for item in bounded(part, plain(proto))])
        return lambda proto: tuple(bounded(part, plain(proto)))
    if part.kind == "table":
        return lambda proto: dict(bounded(part, plain(proto)))
    if part.width and part.width.most < UINT32_MAX and field.type == field.TYPE_UINT32:
        return _narrow(part, plain)
    return plain


def bounded(part: Shape, row: Any) -> Any:
    """The same row, if it is not too long for anybody to look at."""
    assert part.most is not None
    if len(row) > part.most:
        raise too_many(part.label, len(row), part.most)
    return row


def _narrow(part: Shape, plain: Getter) -> Getter:
    """A number that protobuf has no type for: it comes in a wider one."""
    width = part.width
    assert width

    def get(proto: Proto) -> int:
        value: int = plain(proto)
        if value > width.most:
            raise invalid(f"{part.name} {value} exceeds {width.name}::MAX ({width.most})")
        return value

    return get


def _getter_elsewhere(part: Shape, known: Any) -> Getter:
    if "record" in known and part.name == "key":
        return _record_key
    if "record" in known and part.name == "value":
        return attrgetter("record.value")
    assert part.kind == "many", f"protobuf has no {part.name}"
    return lambda _: ()


def _record_key(proto: Proto) -> bytes | None:
    if not proto.HasField("record"):
        raise unreadable("Missing record")
    return proto.record.key if proto.record.has_key else None


def _putter(part: Shape, known: Any) -> Putter:
    name = RENAMED.get(part.name, part.name)
    if name not in known:
        return _putter_elsewhere(part, known)
    if part.kind != "option":
        return _putter_of(part, known[name])
    put = _putter_of(part.parts[0], known[name])
    return lambda proto, value: None if value is None else put(proto, value)


def _putter_of(part: Shape, field: Any) -> Putter:
    name = field.name
    if part.kind == "many":
        (entry,) = part.parts
        if entry.type:
            return lambda proto, value: _put_structs(entry, value, getattr(proto, name))
        return lambda proto, value: getattr(proto, name).extend(value)
    if part.kind == "table":
        return lambda proto, value: getattr(proto, name).update(value)
    if part.kind == "opaque":
        return lambda proto, value: setattr(proto, name, b"".join(value) if type(value) is tuple else bytes(value))
    if part.width and part.width.most > UINT32_MAX and field.type == field.TYPE_UINT32:
        return lambda proto, value: setattr(proto, name, min(value, UINT32_MAX))  # the nearest it can say
    return lambda proto, value: setattr(proto, name, value)


def _put_structs(entry: Shape, values: tuple[Message, ...], row: Any) -> None:
    for value in values:
        write(entry, value, row.add())


def _putter_elsewhere(part: Shape, known: Any) -> Putter:
    if "record" in known and part.name == "key":
        return _put_record_key
    if "record" in known and part.name == "value":
        return lambda proto, value: setattr(proto.record, "value", value)

    def put_nothing(_: Proto, value: Any) -> None:
        if value:
            raise Malformed(what="message", reason=f"{part.name} is not available in protobuf; use postcard")

    return put_nothing


def _put_record_key(proto: Proto, key: bytes | None) -> None:
    proto.record.SetInParent()
    if key is not None:
        proto.record.key, proto.record.has_key = key, True


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

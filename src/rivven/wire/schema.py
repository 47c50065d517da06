"""What a message is made of, read from the annotations of its class.

A message is a frozen struct, and its fields in their order are its layout: `topic: Name`, `partition: U32 | None`,
`topics: Names`. The annotations below add to Python's types what the wire must know, the width of a number and
the length that a name or a list may have; `shape` turns them into a small tree that the encodings compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from .bounds import LIST_MAX, NAME_BYTES_MAX, SECRET_BYTES_MAX


class Message(msgspec.Struct, frozen=True, gc=False):
    """A request, a response, or a part of one. Immutable, and compared by value."""


class Width(NamedTuple):
    """How many bits a number has."""

    name: str
    least: int
    most: int


class AtMost(NamedTuple):
    """The most bytes of a name, or entries of a list; `label` is what a refusal calls it, else the field."""

    most: int
    label: str = ""


class Tail(NamedTuple):
    """A number after the last field that the first version knew: left out when 0, and 0 where it is missing."""


class Opaque(NamedTuple):
    """Bytes that are handed on as they lie: a view into the frame when read, a buffer of its own when written."""


def _unsigned(bits: int) -> Width:
    return Width(f"u{bits}", 0, 2**bits - 1)


def _signed(bits: int) -> Width:
    return Width(f"i{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


U8 = Annotated[int, _unsigned(8)]
U16 = Annotated[int, _unsigned(16)]
U32 = Annotated[int, _unsigned(32)]
U64 = Annotated[int, _unsigned(64)]
I16 = Annotated[int, _signed(16)]
I32 = Annotated[int, _signed(32)]
I64 = Annotated[int, _signed(64)]
Capabilities = Annotated[int, _unsigned(64), Tail()]
Name = Annotated[str, AtMost(NAME_BYTES_MAX)]
TopicName = Annotated[str, AtMost(NAME_BYTES_MAX, "topic")]
Secret = Annotated[bytes, AtMost(SECRET_BYTES_MAX)]
Password = Annotated[str, AtMost(SECRET_BYTES_MAX)]
Names = Annotated[tuple[Name, ...], AtMost(LIST_MAX)]
Piece: TypeAlias = bytes | bytearray | memoryview
Pieces: TypeAlias = tuple[Piece, ...]
Batches = Annotated[Piece | Pieces, Opaque()]
"""Record batches as they are on disk, in one piece or several; one that came over the wire is one view."""


class Shape(NamedTuple):
    """One node of a message's layout.

    `kind` is number, tail, flag, text, octets, opaque, option, struct, many or table; `parts` are the fields of a
    struct, the entry of many, the key and the value of a table.
    """

    kind: str
    name: str = ""
    most: int | None = None
    label: str = ""
    type: Any = None
    parts: tuple[Shape, ...] = ()
    width: Width | None = None

    @property
    def bytes_min(self) -> int:
        """The fewest bytes that postcard can say this in."""
        if self.kind == "struct":
            return sum(part.bytes_min for part in self.parts)
        return 0 if self.kind == "tail" else 1

    @property
    def has_opaque(self) -> bool:
        return self.kind == "opaque" or any(part.has_opaque for part in self.parts)


_KINDS = {str: "text", bytes: "octets", bool: "flag"}


@cache
def shape(message: type[Message]) -> Shape:
    """The layout of a message class."""
    hints = get_type_hints(message, include_extras=True)
    fields = tuple(_shape(hints[name], name) for name in message.__struct_fields__)
    return Shape("struct", message.__name__, type=message, parts=fields)


def _shape(hint: Any, name: str) -> Shape:
    if get_origin(hint) is Annotated:
        return _annotated(hint, name)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (inner,) = (arg for arg in args if arg is not NoneType)
        return Shape("option", name, parts=(_shape(inner, name),))
    if origin is tuple:
        return Shape("many", name, LIST_MAX, name, parts=(_shape(args[0], name),))
    if origin is Mapping:
        return Shape("table", name, LIST_MAX, name, parts=(_shape(args[0], name), _shape(args[1], name)))
    if hint in _KINDS:
        return Shape(_KINDS[hint], name)
    assert issubclass(hint, Message), f"{name}: {hint} has no place on the wire"
    return shape(hint)._replace(name=name)


def _annotated(hint: Any, name: str) -> Shape:
    inner, *notes = get_args(hint)
    if any(isinstance(note, Opaque) for note in notes):
        return Shape("opaque", name)
    found = next((note for note in notes if isinstance(note, Width)), None)
    if found:
        kind = "tail" if any(isinstance(note, Tail) for note in notes) else "number"
        return Shape(kind, name, width=found)
    (bound,) = (note for note in notes if isinstance(note, AtMost))
    return _shape(inner, name)._replace(most=bound.most, label=bound.label or name)

"""Writes, for the layout of a message, the straight-line Python that reads and writes its postcard bytes.

A walk over a tree of shapes costs ten times as much per message, and eighty functions by hand would hide the two
that are wrong. The source comes from our own classes alone, never from input, and is made when a kind of message
is met for the first time. `source(shape)` shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from . import postcard
from .bounds import too_long, too_many, unreadable
from .schema import Message, Piece, Shape

Reader: TypeAlias = Callable[[Piece, int, int], Message]
"""(data, position after the tag, end) -> message. Raises IndexError where the data ends early."""
Writer: TypeAlias = Callable[[Any, bytearray, list[Piece]], bytearray]
"""(message, out, parts) -> the buffer that is being filled at the end, which is `out` unless there were opaques.
Raises ValueError where a byte is none or a text cannot be encoded."""


def compile_reader(message: Shape) -> Reader:
    return _compiled(_Reading().function(message), "read", message)  # type: ignore[no-any-return]


def compile_writer(message: Shape, kind: int) -> Writer:
    """`kind` is the number of the message in its enum, which comes first."""
    return _compiled(_Writing().function(message, kind), "write", message)  # type: ignore[no-any-return]


def source(message: Shape) -> str:
    """What is compiled for a message: first its reader, then its writer."""
    return f"{_Reading().function(message)}\n\n{_Writing().function(message, 0)}"


def _compiled(text: str, name: str, message: Shape) -> Any:
    scope: dict[str, Any] = {
        **{kind.__name__: kind for kind in _structs(message)},
        **{name: getattr(postcard, name) for name in ("put", "put_opaque", "tail_of")},
        **{name: getattr(postcard, name) for name in ("short", "rest_of", "BAD_BOOL", "BAD_OPTION")},
        "too_long": too_long,
        "too_many": too_many,
        "unreadable": unreadable,
    }
    exec(compile(text, f"<{name} {message.name}>", "exec"), scope)
    return scope[name]


def _structs(message: Shape) -> set[type[Message]]:
    found = {message.type} if message.type else set()
    return found.union(*map(_structs, message.parts))


class _Source:
    """Lines at a depth, and names that were not used before."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.names = 0

    def say(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"


class _Reading(_Source):
    """`data[pos:end]` becomes values, one variable per field."""

    def function(self, message: Shape) -> str:
        self.totals: list[str] = []
        self.loops = 0
        result = self.struct(message)
        totals = [f"    {name} = 0" for name in self.totals]
        return "\n".join(["def read(data, pos, end):", *totals, *self.lines, f"    return {result}"])

    def read(self, shape: Shape) -> str:
        """Say how to read it; the answer is the expression that holds it then."""
        return str(getattr(self, shape.kind)(shape))

    def struct(self, shape: Shape) -> str:
        return f"{shape.type.__name__}({', '.join([self.read(part) for part in shape.parts])})"

    def unsigned(self, most: int) -> str:
        name = self.name()
        self.say(f"{name} = data[pos]", "pos += 1")
        self.say(f"if {name} > 127:", f"    {name}, pos = rest_of(data, pos, {name}, {most})")
        return name

    def number(self, shape: Shape) -> str:
        assert shape.width
        if shape.width.name == "u8":
            name = self.name()
            self.say(f"{name} = data[pos]", "pos += 1")
            return name
        name = self.unsigned(shape.width.most - shape.width.least)
        return f"({name} >> 1) ^ -({name} & 1)" if shape.width.least else name

    def tail(self, shape: Shape) -> str:
        assert shape.width
        return f"tail_of(data, pos, end, {shape.width.most})"

    def flag(self, _: Shape) -> str:
        name = self.name()
        self.say(f"{name} = data[pos]", "pos += 1", f"if {name} > 1:", "    raise unreadable(BAD_BOOL)")
        return f"{name} == 1"

    def span(self, shape: Shape) -> str:
        length = self.unsigned(2**64 - 1)
        stop = self.name()
        self.say(f"{stop} = pos + {length}", f"if {stop} > end:", "    raise short()")
        if shape.most is not None:
            self.say(f"if {length} > {shape.most}:")
            self.say(f"    raise too_long({shape.label!r}, {length}, {shape.most})")
        return stop

    def cut(self, shape: Shape, expression: str) -> str:
        stop, name = self.span(shape), self.name()
        self.say(f"{name} = {expression.format(f'data[pos:{stop}]')}", f"pos = {stop}")
        return name

    def text(self, shape: Shape) -> str:
        return self.cut(shape, "str({}, 'utf-8')")

    def octets(self, shape: Shape) -> str:
        return self.cut(shape, "bytes({})")

    def opaque(self, shape: Shape) -> str:
        return self.cut(shape, "{}")

    def option(self, shape: Shape) -> str:
        name = self.name()
        self.say(f"{name} = data[pos]", "pos += 1", f"if {name} == 0:", f"    {name} = None", f"elif {name} == 1:")
        self.depth += 1
        self.say(f"{name} = {self.read(shape.parts[0])}")
        self.depth -= 1
        self.say("else:", "    raise unreadable(BAD_OPTION)")
        return name

    def count(self, shape: Shape) -> str:
        """How many follow: no more than is allowed, nor than the bytes that are left can hold."""
        count = bounded = self.unsigned(2**64 - 1)
        if self.loops:
            bounded = f"total{len(self.totals)}"
            self.totals.append(bounded)
            self.say(f"{bounded} += {count}")
        self.say(f"if {count} > (end - pos) // {max(1, sum(part.bytes_min for part in shape.parts))}:")
        self.say("    raise short()", f"if {bounded} > {shape.most}:")
        self.say(f"    raise too_many({shape.label!r}, {bounded}, {shape.most})")
        return count

    def many(self, shape: Shape) -> str:
        count, name = self.count(shape), self.name()
        self.say(f"{name} = []", f"for _ in range({count}):")
        self.nested(lambda: self.say(f"{name}.append({self.read(shape.parts[0])})"))
        return f"tuple({name})"

    def table(self, shape: Shape) -> str:
        count, name = self.count(shape), self.name()
        self.say(f"{name} = {{}}", f"for _ in range({count}):")
        key, value = shape.parts

        def entry() -> None:
            wanted = self.name()
            self.say(f"{wanted} = {self.read(key)}", f"{name}[{wanted}] = {self.read(value)}")

        self.nested(entry)
        return name

    def nested(self, body: Callable[[], None]) -> None:
        self.depth += 1
        self.loops += 1
        body()
        self.loops -= 1
        self.depth -= 1


class _Writing(_Source):
    """Values are appended to `out`."""

    def function(self, message: Shape, kind: int) -> str:
        assert kind < 0x80, "the number of a kind is one byte"
        self.say(f"out.append({kind})")
        for part in message.parts:
            self.write(part, f"value.{part.name}")
        return "\n".join(["def write(value, out, parts):", *self.lines, "    return out"])

    def write(self, shape: Shape, value: str) -> None:
        getattr(self, shape.kind)(shape, value)

    def struct(self, shape: Shape, value: str) -> None:
        name = self.name()
        self.say(f"{name} = {value}")
        for part in shape.parts:
            self.write(part, f"{name}.{part.name}")

    def number(self, shape: Shape, value: str) -> None:
        assert shape.width
        if shape.width.name == "u8":
            self.say(f"out.append({value})")
        elif shape.width.least:
            name = self.name()
            self.say(f"{name} = {value}", f"if 0 <= {name} < 64:", f"    out.append({name} * 2)", "else:")
            zigzag = f"{name} * 2 if {name} >= 0 else {name} * -2 - 1"
            self.say(f"    put(out, {zigzag}, {shape.width.most - shape.width.least}, {shape.name!r})")
        else:
            self.unsigned(value, shape.width.most, shape.name)

    def unsigned(self, value: str, most: int, field: str) -> str:
        name = self.name()
        self.say(f"{name} = {value}", f"if 0 <= {name} < 128:", f"    out.append({name})")
        self.say("else:", f"    put(out, {name}, {most}, {field!r})")
        return name

    def tail(self, shape: Shape, value: str) -> None:
        self.say(f"if {value}:", f"    put(out, {value}, {shape.width.most if shape.width else 0}, {shape.name!r})")

    def flag(self, _: Shape, value: str) -> None:
        self.say(f"out.append(1 if {value} else 0)")

    def octets(self, shape: Shape, value: str) -> None:
        name = self.name()
        self.say(f"{name} = {value}")
        self.unsigned(f"len({name})", 2**64 - 1, shape.name)
        self.say(f"out += {name}")

    def text(self, shape: Shape, value: str) -> None:
        self.octets(shape, f"{value}.encode()")

    def opaque(self, _: Shape, value: str) -> None:
        self.say(f"out = put_opaque(out, parts, {value})")

    def option(self, shape: Shape, value: str) -> None:
        name = self.name()
        self.say(f"{name} = {value}", f"if {name} is None:", "    out.append(0)", "else:", "    out.append(1)")
        self.indented(lambda: self.write(shape.parts[0], name))

    def many(self, shape: Shape, value: str) -> None:
        name, entry = self.name(), self.name()
        self.say(f"{name} = {value}")
        self.unsigned(f"len({name})", 2**64 - 1, shape.name)
        self.say(f"for {entry} in {name}:")
        self.indented(lambda: self.write(shape.parts[0], entry))

    def table(self, shape: Shape, value: str) -> None:
        name, key, entry = self.name(), self.name(), self.name()
        self.say(f"{name} = {value}")
        self.unsigned(f"len({name})", 2**64 - 1, shape.name)
        self.say(f"for {key}, {entry} in {name}.items():")

        def both() -> None:
            self.write(shape.parts[0], key)
            self.write(shape.parts[1], entry)

        self.indented(both)

    def indented(self, body: Callable[[], None]) -> None:
        self.depth += 1
        body()
        self.depth -= 1

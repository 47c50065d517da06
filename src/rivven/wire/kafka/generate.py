"""Writes the codecs in `made/` from `messages.json`, one module per api. A script, for whoever builds the package.

For each message there is one class for all its versions, and for each version straight code that reads and code
that writes it; versions with the same bytes share theirs. Numbers that stand next to one another become one call
of a `Struct`, together with the length that follows them.

What is read is checked against what remains in two ways. A count is compared at once, at the least bytes that an
entry can have, so nothing is allocated or repeated for entries that cannot be there. A length only moves the
position: slices end where the data ends, every read behind the end fails by itself, and whoever called compares
the last position with the end.

It imports nothing of rivven, so that it runs before anything is built.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "messages.json"
RESULT = HERE / "made"

AMONG_BROKERS = {*range(4, 8), 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, *range(82, 88)}
"""What Kafka's own brokers and controllers tell one another, and what was removed: no client sends these."""
DATA = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment", "EndTxnMarker")
"""What is no request and of use all the same."""
OWN_TAGS = {
    ("DescribeTransactionsResponse", "TransactionState"): [
        {"name": "Label", "type": "string", "tag": 100, "versions": "0+", "taggedVersions": "0+"},
        {"name": "Owner", "type": "string", "tag": 101, "versions": "0+", "taggedVersions": "0+"},
        {"name": "Sequence", "type": "int64", "tag": 102, "versions": "0+", "taggedVersions": "0+", "default": "-1"},
        {"name": "Groups", "type": "[]string", "tag": 103, "versions": "0+", "taggedVersions": "0+"},
    ],
}
"""What rivven says beyond Kafka, in tagged fields far from Kafka's own: whoever does not know them passes them over.
They stand here, so that messages.json holds what Kafka says and nothing else. Below 128, where a tag is one byte."""

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
BYTES = {"?": 1, "b": 1, "B": 1, "x": 1, "h": 2, "H": 2, "i": 4, "q": 8, "d": 8, "16s": 16}
PYTHON = {"bool": "bool", "float64": "float", "uuid": "bytes", "string": "str", "bytes": "bytes", "records": "Piece"}
NOTHING = {"bool": "False", "float64": "0.0", "uuid": "NO_ID", "string": '""', "bytes": 'b""', "records": 'b""'}


# What the data says


@dataclass(frozen=True)
class Versions:
    """A range, as "3", "3-5", "3+" or "none"."""

    least: int
    most: int

    @classmethod
    def of(cls, text: str | None) -> Versions:
        if text is None or text == "none":
            return cls(1, 0)
        least, dash, most = text.rstrip("+").partition("-")
        return cls(int(least), int(most) if dash else (10**6 if text.endswith("+") else int(least)))

    def __contains__(self, version: int) -> bool:
        return self.least <= version <= self.most

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.least, self.most + 1))


@dataclass(frozen=True)
class Field:
    """One field of a message: `kind` is a type of the wire, or the name of a struct."""

    name: str
    kind: str
    many: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: str | None
    shape: Shape | None

    def is_null_in(self, version: int) -> bool:
        return version in self.nullable

    @property
    def can_be_null(self) -> bool:
        return self.nullable.least <= self.nullable.most

    @property
    def annotation(self) -> str:
        one = self.shape.name if self.shape else PYTHON.get(self.kind, "int")
        whole = f"list[{one}]" if self.many else one
        return f"{whole} | None" if self.can_be_null or self.default == "null" else whole

    @property
    def default_code(self) -> str:
        if self.default == "null":
            return "None"
        if self.many:
            return "[]"
        if self.shape:
            return f"{self.shape.name}()"
        if self.default is None or self.default == "":
            return NOTHING.get(self.kind, "0")
        if self.kind == "string":
            return repr(self.default)
        if self.kind == "bool":
            return self.default.capitalize()
        return repr(float(self.default)) if self.kind == "float64" else str(int(self.default, 0))


@dataclass
class Shape:
    """A message, or a struct inside of one."""

    name: str
    fields: list[Field] = field(default_factory=list)

    def plain(self, version: int) -> list[Field]:
        return [one for one in self.fields if version in one.versions and version not in one.tagged]

    def tagged(self, version: int) -> list[Field]:
        found = [one for one in self.fields if version in one.versions and version in one.tagged]
        return sorted(found, key=lambda one: one.tag)


@dataclass
class Message:
    """One of the three kinds: request, response or data."""

    kind: str
    name: str
    versions: Versions
    flexible: Versions
    shape: Shape
    shapes: list[Shape]

    @property
    def has_records(self) -> bool:
        return any(one.kind == "records" for shape in self.shapes for one in shape.fields)


def snake(name: str) -> str:
    """`TopicId` as `topic_id`, `ISRNodes` as `isr_nodes`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Schema:
    """The shapes of one message, innermost first; `taken` are names that its neighbour uses for something else."""

    def __init__(self, source: dict[str, Any], taken: Iterable[str] = ()) -> None:
        self._name = source["name"]
        self._kind = source["type"].capitalize()
        self._taken = set(taken)
        self._shared = {one["name"]: one for one in source.get("commonStructs", [])}
        self._known: dict[str, Shape] = {}
        self.shapes: list[Shape] = []
        shape = self._shape(source["name"], source["fields"])
        versions = Versions.of(source["validVersions"])
        self.message = Message(
            source["type"], shape.name, versions, Versions.of(source.get("flexibleVersions")), shape, self.shapes
        )

    def _shape(self, name: str, fields: list[dict[str, Any]]) -> Shape:
        if name in self._known:
            return self._known[name]
        shape = self._known[name] = Shape(f"{self._kind}{name}" if name in self._taken else name)
        shape.fields = [self._field(one) for one in (*fields, *OWN_TAGS.get((self._name, name), ()))]
        self.shapes.append(shape)
        return shape

    def _field(self, source: dict[str, Any]) -> Field:
        kind = source["type"].removeprefix("[]")
        shape = None
        if kind[0].isupper():
            fields = source.get("fields") or self._shared.get(kind, {}).get("fields")
            shape = self._shape(kind, fields) if fields else self._known[kind]
        default = source.get("default")
        return Field(
            snake(source["name"]),
            kind,
            source["type"].startswith("[]"),
            Versions.of(source["versions"]),
            Versions.of(source.get("nullableVersions")),
            Versions.of(source.get("taggedVersions")),
            source.get("tag", 0),
            None if default is None else str(default),
            shape,
        )


def structs_in(source: dict[str, Any]) -> dict[str, str]:
    """The structs of a message by name, each with all it says, to see whether two are the same."""
    found: dict[str, str] = {}

    def walk(fields: list[dict[str, Any]]) -> None:
        for one in fields:
            if one.get("fields"):
                found[one["type"].removeprefix("[]")] = json.dumps(one["fields"], sort_keys=True)
                walk(one["fields"])

    walk(source["fields"])
    for shared in source.get("commonStructs", []):
        found[shared["name"]] = json.dumps(shared["fields"], sort_keys=True)
        walk(shared["fields"])
    return found


# Code that reads and code that writes


def least_bytes(shape: Shape, version: int, flexible: bool) -> int:
    """What an entry has at the very least."""
    found = sum(_least_bytes(one, version, flexible) for one in shape.plain(version)) + flexible
    assert found > 0, f"{shape.name} v{version} has no bytes, so a count of it is unlimited"
    return found


def _least_bytes(one: Field, version: int, flexible: bool) -> int:
    if one.many or one.kind in ("bytes", "records"):
        return 1 if flexible else 4
    if one.kind == "string":
        return 1 if flexible else 2
    if one.shape is None:
        return BYTES[FIXED[one.kind]]
    return 1 if one.is_null_in(version) else least_bytes(one.shape, version, flexible)


class Structs:
    """The `Struct`s of a module, each once."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def name(self, form: str) -> str:
        return self.names.setdefault(form, "_S_" + form.replace("?", "t"))


class Code:
    """Lines with their indentation, names for what lies between, and the run of numbers not yet said."""

    def __init__(self, structs: Structs, version: int, flexible: bool) -> None:
        self.lines: list[str] = []
        self.structs = structs
        self.version = version
        self.flexible = flexible
        self._depth = 1
        self._names = 0
        self._run: list[tuple[str, str]] = []

    def say(self, line: str) -> None:
        self.lines.append("    " * self._depth + line)

    def new(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.flush()
        self.say(opening)
        self._depth += 1
        at = len(self.lines)
        yield
        self.flush()
        if len(self.lines) == at:
            self.say("pass")
        self._depth -= 1

    def number(self, form: str, name: str) -> None:
        """One more of a run: `name` is what is read into, or what is written."""
        self._run.append((form, name))

    def taken_run(self) -> tuple[str, list[str]]:
        run, self._run = self._run, []
        return "".join(form for form, _ in run), [name for form, name in run if form != "x"]

    def flush(self) -> None:
        raise NotImplementedError


class Reading(Code):
    """The body of a function that reads: `data` from `at` on, up to `end`."""

    def __init__(self, structs: Structs, version: int, flexible: bool, viewed: bool) -> None:
        super().__init__(structs, version, flexible)
        self._viewed = viewed

    def flush(self) -> None:
        form, names = self.taken_run()
        if not form:
            return
        if form == "B":
            self.say(f"{names[0]} = data[at]")
        else:
            left = ", ".join(names) if len(names) > 1 else f"({names[0]},)"
            self.say(f"{left} = {self.structs.name(form)}.unpack_from(data, at)")
        self.say(f"at += {sum(BYTES[one] for one in re.findall(r'16s|.', form))}")

    def shape(self, shape: Shape) -> str:
        """Read what a struct is made of; the expression that makes it."""
        parts = [(one.name, self.field(one)) for one in shape.plain(self.version)]
        if self.flexible:
            parts += self.tags(shape)
        return made_of(shape, parts)

    def field(self, one: Field) -> str:
        if one.many:
            return self.array(one)
        if one.shape:
            return self.struct(one, one.shape)
        name = self.new(f"{one.name}_")
        if one.kind in FIXED:
            self.number(FIXED[one.kind], name)
        else:
            self.sized(one, one.kind, one.is_null_in(self.version), name)
        return name

    def length(self, wide: bool) -> tuple[str, str]:
        """Read a length or count, one more in flexible versions: its name, and the test that it is no null."""
        count = self.new("n")
        self.number("B" if self.flexible else "i" if wide else "h", count)
        self.flush()
        if not self.flexible:
            return count, f"{count} >= 0"
        with self.block(f"if {count} > 127:"):
            self.say(f"{count}, at = rest_of(data, at, {count})")
        return count, f"{count}"

    def sized(self, one: Field, kind: str, nullable: bool, name: str) -> None:
        count, there = self.length(wide=kind != "string")
        with self.block(f"if {there}:"):
            self.say(f"stop = at + {count}{' - 1' if self.flexible else ''}")
            declared = f"{name}: {PYTHON[kind]} | None" if nullable else name
            self.say(f"{declared} = {self.slice(kind)}")
            self.say("at = stop")
        self.otherwise(one, nullable, name)

    def slice(self, kind: str) -> str:
        if kind == "string":
            return 'str(data[at:stop], "utf-8")' if self._viewed else "data[at:stop].decode()"
        return "bytes(data[at:stop])" if self._viewed and kind == "bytes" else "data[at:stop]"

    def otherwise(self, one: Field, nullable: bool, name: str) -> None:
        with self.block("else:"):
            self.say(f"{name} = None" if nullable else f'raise null("{one.name}")')

    def array(self, one: Field) -> str:
        name = self.new(f"{one.name}_")
        count, there = self.length(wide=True)
        if one.is_null_in(self.version):
            self.say(f"{name}: {one.annotation}")
        with self.block(f"if {there}:"):
            if self.flexible:
                self.say(f"{count} -= 1")
            least = least_bytes(one.shape, self.version, self.flexible) if one.shape else self.least(one.kind)
            needed = count if least == 1 else f"{count} * {least}"
            with self.block(f"if {needed} > end - at:"):
                self.say(f'raise too_many("{one.name}", {count})')
            self.entries(one, name, count, least)
        self.otherwise(one, one.is_null_in(self.version), name)
        return name

    def least(self, kind: str) -> int:
        return BYTES[FIXED[kind]] if kind in FIXED else (1 if self.flexible else 2 if kind == "string" else 4)

    def entries(self, one: Field, name: str, count: str, least: int) -> None:
        if one.shape and not self.flexible and all_numbers(one.shape, self.version):
            self.rows(one.shape, name, f"{count} * {least}")
        elif one.kind == "uuid":
            cut = "bytes(data[i : i + 16])" if self._viewed else "data[i : i + 16]"
            self.say(f"{name} = [{cut} for i in range(at, at + 16 * {count}, 16)]")
            self.say(f"at += 16 * {count}")
        elif one.kind in FIXED:
            self.say(f'{name} = list(unpack_from(f">{{{count}}}{FIXED[one.kind]}", data, at))')
            self.say(f"at += {count} * {least}" if least > 1 else f"at += {count}")
        else:
            self.say(f"{name} = []")
            with self.block(f"for _ in range({count}):"):
                entry = self.shape(one.shape) if one.shape else self.new("entry")
                if not one.shape:
                    self.sized(one, one.kind, False, entry)
                self.flush()
                self.say(f"{name}.append({entry})")

    def rows(self, shape: Shape, name: str, length: str) -> None:
        """Entries of nothing but numbers, all in one go."""
        fields = shape.plain(self.version)
        form = "".join(FIXED[one.kind] for one in fields)
        names = [self.new("row") for _ in fields]
        self.say(f"stop = at + {length}")
        made = made_of(shape, [(one.name, row) for one, row in zip(fields, names, strict=True)])
        rows = ", ".join(names) if len(names) > 1 else f"({names[0]},)"
        self.say(f"{name} = [{made} for {rows} in {self.structs.name(form)}.iter_unpack(data[at:stop])]")
        self.say("at = stop")

    def struct(self, one: Field, shape: Shape) -> str:
        if not one.is_null_in(self.version):
            return self.shape(shape)
        name, there = self.new(f"{one.name}_"), self.new("there")
        self.number("b", there)
        self.flush()
        self.say(f"{name}: {one.annotation} = None")
        with self.block(f"if {there} >= 0:"):
            made = self.shape(shape)
            self.flush()
            self.say(f"{name} = {made}")
        return name

    def tags(self, shape: Shape) -> list[tuple[str, str]]:
        """Read the tagged fields at the end of a struct; those that nobody knows are passed over."""
        known = shape.tagged(self.version)
        count = self.new("tags")
        self.number("B", count)
        self.flush()
        if not known:
            with self.block(f"if {count}:"):
                self.say("at = skip_tags(data, at - 1)")
            return []
        names = [(one, self.new(f"{one.name}_")) for one in known]
        for one, name in names:
            self.say(f"{name}: {one.annotation} = {default_name(one)}")
        with self.block(f"if {count} > 127:"):
            self.say(f"{count}, at = rest_of(data, at, {count})")
        with self.block(f"for _ in range({count}):"):
            tag, upto = self.new("tag"), self.new("upto")
            self.say(f"{tag}, at = uvarint_at(data, at)")
            self.say(f"{upto}, at = uvarint_at(data, at)")
            self.say(f"{upto} += at")
            for place, (one, name) in enumerate(names):
                with self.block(f"{'el' if place else ''}if {tag} == {one.tag}:"):
                    value = self.field(one)
                    self.flush()
                    self.say(f"{name} = {value}")
                    with self.block(f"if at != {upto}:"):
                        self.say(f'raise wrong_length("{one.name}")')
            with self.block("else:"):
                self.say(f"at = {upto}")
        return [(one.name, name) for one, name in names]


def default_name(one: Field) -> str:
    """The default of a tagged field; that of a struct is made once."""
    return f"_NO_{one.shape.name}" if one.shape and not one.many and one.default is None else one.default_code


def all_numbers(shape: Shape, version: int) -> bool:
    return all(one.kind in FIXED and not one.many for one in shape.plain(version))


def made_of(shape: Shape, parts: list[tuple[str, str]]) -> str:
    """A call of the class: by position as far as no field is left out, then by name."""
    order = [one.name for one in shape.fields]
    values = dict(parts)
    arguments: list[str] = []
    for place, name in enumerate(order):
        if name in values:
            by_position = len(arguments) == place and "=" not in "".join(arguments)
            arguments.append(values[name] if by_position else f"{name}={values[name]}")
    return f"{shape.name}({', '.join(arguments)})"


class Writing(Code):
    """The body of a function that writes: `m` to the end of `out`, with records as they are in `parts`."""

    def __init__(self, structs: Structs, version: int, flexible: bool) -> None:
        super().__init__(structs, version, flexible)
        self._out = "out"

    def flush(self) -> None:
        form, names = self.taken_run()
        if form == "x":
            self.say(f"{self._out}.append(0)")
        elif form:
            self.say(f"{self._out} += {self.structs.name(form)}.pack({', '.join(names)})")

    def shape(self, shape: Shape, value: str) -> None:
        for one in shape.plain(self.version):
            self.field(one, f"{value}.{one.name}")
        if self.flexible:
            self.tags(shape, value)

    def field(self, one: Field, value: str) -> None:
        nullable = one.is_null_in(self.version)
        if one.annotation.endswith("None") and not nullable:
            value = f'{value} or b""' if one.kind == "records" else f'needed({value}, "{one.name}")'
        if one.many:
            self.array(one, value, nullable)
        elif one.shape:
            self.struct(one.shape, value, nullable)
        elif one.kind in FIXED:
            self.number(FIXED[one.kind], f"whole_id({value})" if one.kind == "uuid" else value)
        else:
            self.sized(one.kind, value, nullable)

    def sized(self, kind: str, value: str, nullable: bool) -> None:
        name = self.new("b")
        plain = f"{value}.encode()" if kind == "string" else value
        if not nullable:
            self.say(f"{name} = {plain}")
        elif kind == "string":
            self.say(f'{name} = b"" if {value} is None else {plain}')
        else:
            self.say(f"{name} = {value}")
        length = f"len({name})" if kind == "string" or not nullable else f"len({name} or b'')"
        self.length(length, value if nullable else None, "i" if kind != "string" else "h")
        if kind == "records":
            self.piece(name)
        elif kind == "bytes" and nullable:
            with self.block(f"if {name}:"):
                self.say(f"{self._out} += {name}")
        else:
            self.say(f"{self._out} += {name}")

    def piece(self, name: str) -> None:
        with self.block(f"if {name}:"):
            self.say(f"parts.append({self._out})")
            self.say(f"parts.append({name})")
            self.say(f"{self._out} = bytearray()")

    def length(self, length: str, nullable: str | None, form: str) -> None:
        """Write a length or count, in one call with the numbers before it where it has one byte."""
        if not self.flexible:
            self.number(form, f"-1 if {nullable} is None else {length}" if nullable else length)
            self.flush()
            return
        count = self.new("n")
        self.say(f"{count} = 0 if {nullable} is None else {length} + 1" if nullable else f"{count} = {length} + 1")
        many = "long_string" if form == "h" else "uvarint"
        run, values = self.taken_run()
        with self.block(f"if {count} < 128:"):
            if run:
                self.say(f"{self._out} += {self.structs.name(run + 'B')}.pack({', '.join([*values, count])})")
            else:
                self.say(f"{self._out}.append({count})")
        with self.block("else:"):
            head = f"{self.structs.name(run)}.pack({', '.join(values)}) + " if run else ""
            self.say(f"{self._out} += {head}{many}({count})")

    def array(self, one: Field, value: str, nullable: bool) -> None:
        name, entry = self.new("many"), self.new("x")
        self.say(f"{name} = {value}")
        self.length(f"len({name} or ())" if nullable else f"len({name})", name if nullable else None, "i")
        if one.kind in FIXED and one.kind != "uuid":
            with self.block(f"if {name}:"):
                many = f'pack(f">{{len({name})}}{FIXED[one.kind]}", *{name})'
                # Most lists of numbers are those of a partition's replicas, and one node has one.
                self.say(f'{self._out} += pack(">{FIXED[one.kind]}", {name}[0]) if len({name}) == 1 else {many}')
            return
        with self.block(f"for {entry} in {name} or ():" if nullable else f"for {entry} in {name}:"):
            if one.shape:
                self.shape(one.shape, entry)
            elif one.kind == "uuid":
                self.number("16s", f"whole_id({entry})")
            else:
                self.sized(one.kind, entry, False)

    def struct(self, shape: Shape, value: str, nullable: bool) -> None:
        name = self.new("s")
        self.say(f"{name} = {value}")
        if not nullable:
            self.shape(shape, name)
            return
        with self.block(f"if {name} is None:"):
            self.say(f"{self._out}.append(255)")
        with self.block("else:"):
            self.say(f"{self._out}.append(1)")
            self.shape(shape, name)

    def tags(self, shape: Shape, value: str) -> None:
        """Write the tagged fields that are not at their default."""
        known = shape.tagged(self.version)
        if not known:
            self.number("x", "")
            self.flush()
            return
        self.flush()
        count, tagged = self.new("tags"), self.new("tagged")
        self.say(f"{count} = 0")
        self.say(f"{tagged} = bytearray()")
        for one in known:
            default = default_name(one)
            test = f"{value}.{one.name} {'is not' if default == 'None' else '!='} {default}"
            with self.block(f"if {test}:"):
                self.tag(one, f"{value}.{one.name}", tagged)
                self.say(f"{count} += 1")
        self.say(f"{self._out}.append({count})")
        self.say(f"{self._out} += {tagged}")

    def tag(self, one: Field, value: str, tagged: str) -> None:
        own, outer = self.new("tag"), self._out
        self._out = own
        self.say(f"{own} = bytearray()")
        self.field(one, value)
        self.flush()
        self._out = outer
        self.say(f"{tagged}.append({one.tag})")
        self.say(f"{tagged} += uvarint(len({own}))")
        self.say(f"{tagged} += {own}")


# Modules


def functions(message: Message, structs: Structs) -> list[str]:
    """Two functions for every version that differs from the one before, and two tables of all of them."""
    lines: list[str] = []
    kind = {"request": "request", "response": "response"}.get(message.kind, "data")
    data = "memoryview" if message.has_records else "bytes"
    heads = {
        "decode": f"(data: {data}, at: int, end: int) -> tuple[{message.name}, int]",
        "encode": f"(m: {message.name}, out: bytearray, parts: list[Piece]) -> bytearray",
    }
    for act, head in heads.items():
        seen: dict[str, str] = {}
        table: list[str] = []
        for version in message.versions:
            body = "\n".join(body_of(act, message, version, structs))
            if body not in seen:
                seen[body] = f"_{act}_{kind}_{version}"
                lines += ["", "", f"def {seen[body]}{head}:", body]
            table.append(f"    {version}: {seen[body]},")
        types = re.sub(r"\w+: ", "", head).replace(" -> ", ", ").replace("(", "[[", 1).replace(")", "]", 1)
        lines += ["", "", f"{act.upper()}_{kind.upper()}: Final[dict[int, Callable{types}]]] = {{", *table, "}"]
    return lines


def body_of(act: str, message: Message, version: int, structs: Structs) -> list[str]:
    flexible = version in message.flexible
    if act == "decode":
        reading = Reading(structs, version, flexible, message.has_records)
        made = reading.shape(message.shape)
        reading.flush()
        reading.say(f"return {made}, at")
        return reading.lines
    writing = Writing(structs, version, flexible)
    writing.shape(message.shape, "m")
    writing.flush()
    writing.say("return out")
    return writing.lines


def classes(shapes: list[Shape]) -> list[str]:
    """The classes, inner ones first; a default that is one of them is made once, since nobody can change it."""
    alone = {one.shape.name for shape in shapes for one in shape.fields if one.shape and not one.many}
    lines: list[str] = []
    for shape in shapes:
        lines += ["", "", f"class {shape.name}(Message, frozen=True):"]
        for one in shape.fields:
            lines.append(f"    {one.name}: {one.annotation} = {default_name(one)}")
        if not shape.fields:
            lines.append("    pass")
        if shape.name in alone:
            lines += ["", "", f"_NO_{shape.name}: Final = {shape.name}()"]
    return lines


USED = {
    "rivven.wire.kafka.primitives": (
        "NO_ID long_string needed null rest_of skip_tags too_many uvarint uvarint_at whole_id wrong_length"
    ),
    "rivven.wire.schema": "Message Piece",
}


def module(title: str, key: int, sources: list[dict[str, Any]]) -> str:
    structs, body = Structs(), list[str]()
    clashing = clashes(sources)
    written: set[str] = set()
    shapes: list[Shape] = []
    for source in sources:
        message = Schema(source, clashing).message
        new = [shape for shape in message.shapes if shape.name not in written]
        written |= {shape.name for shape in new}
        shapes += new
        body += functions(message, structs)
    forms = [f'{name}: Final = Struct(">{form}")' for form, name in sorted(structs.names.items())]
    text = "\n".join([*classes(shapes), "", "", *forms, *body])
    return "\n".join([*opening(title, key, text), text]) + "\n"


def opening(title: str, key: int, text: str) -> list[str]:
    """The prose and the imports, of which only those that are used."""

    def used(names: str) -> list[str]:
        return [name for name in names.split() if re.search(rf"\b{name}\b", text)]

    lines = [f'"""{title}: made by generate.py from messages.json. Not to be edited."""', ""]
    lines += ["from __future__ import annotations", "", "from collections.abc import Callable"]
    if found := used("Struct pack unpack_from"):
        found = [name for name in found if name == "Struct" or re.search(rf"(?<!\.)\b{name}\(", text)]
        lines.append(f"from struct import {', '.join(found)}")
    lines += ["from typing import Final", ""]
    for origin, names in USED.items():
        if found := used(names):
            lines.append(f"from {origin} import {', '.join(found)}")
    return [*lines, "", f"API_KEY: Final = {key}"]


def clashes(sources: list[dict[str, Any]]) -> set[str]:
    """Structs that a request and its response name alike and that are not."""
    named = [structs_in(source) for source in sources]
    if len(named) < 2:
        return set()
    return {name for name in named[0].keys() & named[1].keys() if named[0][name] != named[1][name]}


def front_door(names: list[str], mark: str) -> str:
    listed = "".join(f'    "{name}",\n' for name in names)
    imported = "".join(f"    from . import {name} as {name}\n" for name in names)
    return f'''"""One module per api, made by generate.py from messages.json; each is loaded when first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
{imported}
MADE_FROM = "{mark}"

__all__ = [
{listed}]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f".{{name}}", __name__)
    raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
'''


def modules(messages: list[dict[str, Any]]) -> dict[str, str]:
    """The text of every module by its name."""
    by_key: dict[int, list[dict[str, Any]]] = {}
    texts: dict[str, str] = {}
    for source in messages:
        if source["type"] in ("request", "response") and source["apiKey"] not in AMONG_BROKERS:
            by_key.setdefault(source["apiKey"], []).append(source)
        elif source["name"] in DATA:
            texts[snake(source["name"])] = module(source["name"], -1, [source])
    for key, sources in by_key.items():
        sources.sort(key=lambda source: source["type"])
        title = sources[0]["name"].removesuffix("Request")
        texts[snake(title)] = module(f"{title} (api key {key})", key, sources)
    return texts


def generate(*, anew: bool = False) -> bool:
    """Whether there was something to do: not if what is there was made from the same data by the same code."""
    mark = hashlib.sha256(SOURCE.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]
    door = RESULT / "__init__.py"
    if not anew and door.exists() and f'MADE_FROM = "{mark}"' in door.read_text():
        return False
    texts = modules(json.loads(SOURCE.read_text()))
    RESULT.mkdir(exist_ok=True)
    for old in RESULT.glob("*.py"):
        if old.stem not in texts:
            old.unlink()
    for name, text in texts.items():
        (RESULT / f"{name}.py").write_text(text)
    door.write_text(front_door(sorted(texts), mark))  # last: it says that the rest is there
    return True


if __name__ == "__main__":
    generate(anew="--anew" in sys.argv)

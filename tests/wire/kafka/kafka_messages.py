"""A second reading of messages.json, for tests: what may stand in a message, as strategies and as values.

It shares no line with the generator. A message is drawn once, with the fields of all versions, as a dictionary;
`in_version` then says what of it a version can tell, and `made` makes the object of it.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import import_module, resources
from typing import Any, NamedTuple

from hypothesis import strategies as st

from rivven.wire.kafka import APIS, Api

Plain = dict[str, Any]
SOURCES = json.loads(resources.files("rivven.wire.kafka").joinpath("messages.json").read_text())
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
NAMES = ["", "a", "orders", "tøpic ☃", "x" * 126, "y" * 127, "z" * 300]
TAME_CODES = [-1, 0, 3, 35, 79, 100, 113]
"""Error codes that every oracle knows."""
BLANK = {"string": "", "bytes": b"", "records": b"", "uuid": bytes(16), "bool": False, "float64": 0.0}


class Side(NamedTuple):
    """One direction of one api."""

    api: Api
    kind: str

    @property
    def source(self) -> Plain:
        return next(one for one in SOURCES if one.get("apiKey") == self.api.key and one["type"] == self.kind)

    @property
    def module(self) -> Any:
        return import_module(f"rivven.wire.kafka.made.{self.api.module}")

    @property
    def versions(self) -> range:
        return range(self.api.oldest, self.api.newest + 1)

    def __str__(self) -> str:
        return f"{self.api.name}-{self.kind}"


SIDES = [Side(api, kind) for api in APIS.values() for kind in ("request", "response")]


def within(version: int, text: str | None) -> bool:
    """Whether a version is in "3", "3-5", "3+" or "none"."""
    if text in (None, "none"):
        return False
    least, _, most = text.partition("-")
    if least.endswith("+"):
        return version >= int(least[:-1])
    return int(least) <= version <= int(most or least)


def snake(name: str) -> str:
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def struct_of(field: Plain, source: Plain) -> list[Plain] | None:
    """The fields of a struct, wherever they are said; None for what is no struct."""
    kind = field["type"].removeprefix("[]")
    if not kind[0].isupper():
        return None
    if field.get("fields"):
        return field["fields"]
    return next(one["fields"] for one in source["commonStructs"] if one["name"] == kind)


def value_of(field: Plain, source: Plain, tame: bool) -> st.SearchStrategy[Any]:
    kind = field["type"].removeprefix("[]")
    inner = struct_of(field, source)
    one = plain(inner, source, tame) if inner else scalar(kind, snake(field["name"]), tame)
    whole = st.lists(one, max_size=3) if field["type"].startswith("[]") else one
    return st.none() | whole if field.get("nullableVersions") else whole


def scalar(kind: str, name: str, tame: bool) -> st.SearchStrategy[Any]:
    if kind in BITS:
        if tame and "error_code" in name:
            return st.sampled_from(TAME_CODES)
        if tame and kind == "int64" and re.search("time|lifetime|_ms$", name):
            return st.integers(0, 2**41)
        half = 1 << (BITS[kind] - 1)
        return st.sampled_from([0, 1, -1, half - 1, -half]) | st.integers(-half, half - 1)
    return {
        "uint16": st.integers(0, 2**16 - 1),
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "uuid": st.sampled_from([bytes(16), bytes(range(16)), b"\xff" * 16]),
        "string": st.sampled_from(NAMES),
        "bytes": st.sampled_from([b"", b"\0", b"payload", b"x" * 200]),
        "records": st.sampled_from([b"", b"batch", b"b" * 126, b"b" * 127, b"b" * 20_000]),
    }[kind]


def plain(fields: list[Plain], source: Plain, tame: bool) -> st.SearchStrategy[Plain]:
    return st.fixed_dictionaries({one["name"]: value_of(one, source, tame) for one in fields})


@cache
def messages(side: Side, *, tame: bool = False) -> st.SearchStrategy[Plain]:
    """Any message of a side, with the fields of all its versions. `tame`: with values that libraries take too."""
    return plain(side.source["fields"], side.source, tame)


def in_version(value: Plain, fields: list[Plain], source: Plain, version: int) -> Plain:
    """What a version can say of a message: its fields alone, and null only where it has one."""
    found: Plain = {}
    for field in fields:
        if within(version, field["versions"]):
            found[field["name"]] = _in_version(value[field["name"]], field, source, version)
    return found


def _in_version(value: Any, field: Plain, source: Plain, version: int) -> Any:
    inner = struct_of(field, source)
    many = field["type"].startswith("[]")
    if value is None:
        if within(version, field.get("nullableVersions")):
            return None
        if many:
            return []
        assert inner is None, "structs that are null in some versions only are not known here"
        return BLANK.get(field["type"], 0)
    if inner is None:
        return value
    if many:
        return [in_version(one, inner, source, version) for one in value]
    return in_version(value, inner, source, version)


def made(value: Plain, name: str, fields: list[Plain], side: Side) -> Any:
    """The object of the generated class; what the dictionary leaves out stays at its default."""
    kind = getattr(side.module, f"{side.kind.capitalize()}{name}", None) or getattr(side.module, name)
    arguments = {}
    for field in fields:
        if field["name"] in value:
            arguments[snake(field["name"])] = _made(value[field["name"]], field, side)
    return kind(**arguments)


def _made(value: Any, field: Plain, side: Side) -> Any:
    inner = struct_of(field, side.source)
    if inner is None or value is None:
        return value
    name = field["type"].removeprefix("[]")
    if field["type"].startswith("[]"):
        return [made(one, name, inner, side) for one in value]
    return made(value, name, inner, side)


def message(side: Side, drawn: Plain, version: int) -> Any:
    """The object that a version makes of what was drawn."""
    source = side.source
    told = in_version(drawn, source["fields"], source, version)
    return made(told, source["name"], source["fields"], side)

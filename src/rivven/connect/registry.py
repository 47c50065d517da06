"""Which connectors there are: the entry points of the group `rivven.connectors`, ours and everybody else's alike.

An entry point is called `source.NAME`, `sink.NAME` or `transform.NAME`, so that what there is can be listed, and one
connector be loaded, without importing the others. A package that is broken or lacks a module does not hide the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rivven.errors import RivvenError

from .sdk import Connector, Kind, Sink, Source, Transform
from .settings import unknown

GROUP = "rivven.connectors"
KINDS: dict[Kind, type[Connector[Any]]] = {"source": Source, "sink": Sink, "transform": Transform}


class UnknownConnector(RivvenError, code=201):
    """No connector of that kind and name, or one that cannot be loaded."""

    message = "{text}"


@cache
def _found() -> dict[tuple[str, str], EntryPoint]:
    """The entry points by (kind, name); where two packages offer the same, ours is not replaced."""
    made: dict[tuple[str, str], EntryPoint] = {}
    for point in entry_points(group=GROUP):
        kind, _, name = point.name.partition(".")
        if (kind, name) not in made or point.value.startswith("rivven."):
            made[kind, name] = point
    return made


def names(kind: Kind) -> list[str]:
    """The connectors of a kind by their own names, sorted."""
    return sorted(name for each, name in _found() if each == kind)


def find(kind: Kind, name: str) -> type[Connector[Any]]:
    """The connector of a kind by its name or an alias, whatever its case and dashes."""
    folded = name.strip().lower().replace("_", "-")
    for spelling in (name, folded, folded.replace("-", "_")):
        if (kind, spelling) in _found():
            return load(kind, spelling)
    for other in names(kind):
        try:
            made = load(kind, other)
        except UnknownConnector:
            continue
        if folded in {alias.replace("_", "-") for alias in made.aliases}:
            return made
    raise UnknownConnector(text=unknown(kind, name, names(kind)))


def load(kind: Kind, name: str) -> type[Connector[Any]]:
    """The class behind an entry point."""
    point = _found()[kind, name]
    try:
        made = point.load()
    except Exception as error:
        raise UnknownConnector(text=f"{kind} {name!r} ({point.value}) cannot be loaded: {error}") from error
    if not (isinstance(made, type) and issubclass(made, KINDS[kind])):
        raise UnknownConnector(text=f"{kind} {name!r} ({point.value}) is no subclass of {KINDS[kind].__name__}")
    return made


def catalogue() -> Iterator[tuple[Kind, str, type[Connector[Any]] | UnknownConnector]]:
    """Everything there is, by kind and name; in place of what cannot be loaded, why not."""
    for kind in KINDS:
        for name in names(kind):
            try:
                yield kind, name, load(kind, name)
            except UnknownConnector as error:
                yield kind, name, error

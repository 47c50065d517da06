"""Values that know their place in a file, and what is wrong with one; what reads YAML into them is document.py.

Every task reads its settings from such values, and none of them reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Mark(NamedTuple):
    """A place in a file, counted from 1 as editors do."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something in a document that cannot be meant: where, what, and the way out as part of the text."""

    path: str
    text: str
    mark: Mark | None = None
    warning: bool = False

    def __str__(self) -> str:
        at = f"line {self.mark.line}, column {self.mark.column}: " if self.mark else ""
        return f"{at}{self.path}: {self.text}" if self.path else f"{at}{self.text}"


@dataclass(slots=True)
class Node:
    """A value of the document: a scalar, a list of nodes, or a mapping of names to nodes."""

    value: Any
    mark: Mark | None = None
    text: str | None = None
    """A scalar as it was written, before it was taken for a number or a date."""
    variable: bool = False
    """Whether a variable gave it, or a part of it: then it may be a secret, and is not shown."""
    key_marks: dict[str, Mark] = field(default_factory=dict)

    def plain(self) -> Any:
        """The value without its marks."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def node_of(value: Any) -> Node:
    """A plain value as a node without a place."""
    if isinstance(value, Node):
        return value
    if isinstance(value, Mapping):
        return Node({str(name): node_of(item) for name, item in value.items()})
    if isinstance(value, list | tuple):
        return Node([node_of(item) for item in value])
    return Node(value, text=value if isinstance(value, str) else None)

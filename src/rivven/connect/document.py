"""A YAML file as values that know their line and column, with `${VAR}` and `${VAR:-default}` filled in.

Variables are put into values, never into the text: what one holds can neither break the document nor add to it. An
unquoted value is typed after that, so `port: ${PORT:-9092}` is a number. `$${` stands for `${` itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from .nodes import Mark, Mistake, Node

NODES_MAX = 100_000
"""Aliases may repeat a node; this ends the document that is made of nothing else."""
DEPTH_MAX = 64
"""Looked at before anything is built, which is recursion in C: a document that is too deep would end the process."""
BYTES_MAX = 4 << 20


def parse(text: str, environment: Mapping[str, str]) -> tuple[Node | None, list[Mistake]]:
    """The document of a file, or None, and whatever is wrong with it as YAML."""
    if len(text) > BYTES_MAX:
        return None, [Mistake("", f"the file has {len(text):,} characters, and may have {BYTES_MAX:,}")]
    reading = _Reading(environment)
    try:
        hidden = reading.hide(text)
        _look_at_depth(hidden)
        root = yaml.compose(hidden, Loader=_Loader)
        node = reading.node(root, "") if root is not None else Node({}, Mark(1, 1))
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        words = ", ".join(filter(None, (error.context, error.problem)))
        return None, [Mistake("", f"this is no YAML: {reading.show(words)}", _mark(at) if at else None)]
    except yaml.YAMLError as error:
        return None, [Mistake("", f"this is no YAML: {' '.join(reading.show(str(error)).split())}")]
    except (_TooDeep, RecursionError):  # an alias inside of what it stands for goes down for ever
        text = (
            f"the document is nested too deeply: {DEPTH_MAX} levels are possible, and no alias inside its own anchor"
        )
        return None, [Mistake("", text)]
    except _TooLarge:
        return None, [Mistake("", f"the document has more than {NODES_MAX:,} values, aliases included")]
    return node, reading.mistakes


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

VARIABLE = re.compile(r"\$\$\{|\$\{([^{}\n]*)\}")
NAME = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
HIDDEN = re.compile("[\ue000-\uefff]\uf000*")


class _TooLarge(Exception):
    pass


class _TooDeep(Exception):
    pass


def _look_at_depth(text: str) -> None:
    """Count the levels as the parser goes by; it keeps its own stack, and does not recurse."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                raise _TooDeep
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Reading:
    """One pass over a document. Variables are hidden from YAML behind characters of the same length."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.mistakes: list[Mistake] = []
        self._environment = environment
        self._variables: list[str] = []
        self._count = 0
        self._plain: Any = yaml.SafeLoader("")

    def hide(self, text: str) -> str:
        def stand_in(found: re.Match[str]) -> str:
            if len(self._variables) >= 0x1000:
                raise _TooLarge
            self._variables.append(found[0])
            return chr(0xE000 + len(self._variables) - 1) + "\uf000" * (len(found[0]) - 1)

        return VARIABLE.sub(stand_in, HIDDEN.sub("?", text))

    def show(self, text: str) -> str:
        return HIDDEN.sub(lambda found: self._variables[ord(found[0][0]) - 0xE000], text)

    def expand(self, text: str, path: str, mark: Mark) -> str:
        def value(found: re.Match[str]) -> str:
            written = self._variables[ord(found[0][0]) - 0xE000]
            if written == "$${":
                return "${"
            parts = NAME.fullmatch(written[2:-1])
            if parts is None:
                self.mistakes.append(Mistake(path, f"{written} names no variable; write ${{NAME}}", mark))
                return ""
            known = self._environment.get(parts["name"])
            if known is not None and (known or parts["default"] is None):
                return known
            if parts["default"] is None:
                hint = f"set it, or give a default: ${{{parts['name']}:-value}}"
                self.mistakes.append(Mistake(path, f"{parts['name']} is not set in the environment; {hint}", mark))
                return ""
            return parts["default"]

        return HIDDEN.sub(value, text)

    def node(self, node: yaml.Node, path: str) -> Node:
        self._count += 1
        if self._count > NODES_MAX:
            raise _TooLarge
        mark = _mark(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            made = Node({}, mark)
            for name, item, at in self._entries(node, path):
                if name in made.key_marks:
                    again = f"{name!r} is here twice, first in line {made.key_marks[name].line}"
                    self.mistakes.append(Mistake(path, again, at))
                    continue
                made.key_marks[name] = at
                made.value[name] = self.node(item, f"{path}.{name}" if path else name)
            self._merge(node, made, path)
            return made
        if isinstance(node, yaml.SequenceNode):
            return Node([self.node(item, f"{path}[{place}]") for place, item in enumerate(node.value)], mark)
        return self._scalar(node, path, mark)

    def _entries(self, node: yaml.MappingNode, path: str) -> Iterator[tuple[str, yaml.Node, Mark]]:
        for key, item in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            at = _mark(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                self.mistakes.append(Mistake(path, "a key must be a name", at))
                continue
            yield self.expand(key.value, path, at), item, at

    def _merge(self, node: yaml.MappingNode, made: Node, path: str) -> None:
        """What `<<: *anchor` brings, for keys that are not given here."""
        for key, item in node.value:
            if key.tag != "tag:yaml.org,2002:merge":
                continue
            for other in item.value if isinstance(item, yaml.SequenceNode) else [item]:
                if not isinstance(other, yaml.MappingNode):
                    self.mistakes.append(Mistake(path, "`<<` takes a mapping", _mark(key.start_mark)))
                    continue
                merged = self.node(other, path)
                for name, value in merged.value.items():
                    made.value.setdefault(name, value)
                    made.key_marks.setdefault(name, merged.key_marks[name])

    def _scalar(self, node: yaml.Node, path: str, mark: Mark) -> Node:
        written: str = node.value
        text = self.expand(written, path, mark)
        tag, told = node.tag, not self._is_plain(node)
        if text != written and not getattr(node, "style", None):  # unquoted: None or empty, by parser
            tag = self._plain.resolve(yaml.ScalarNode, text, (True, False))
        try:
            value = self._plain.construct_object(yaml.ScalarNode(tag, text))
        except (yaml.YAMLError, ValueError):
            # What only looks like a date or a number is a text. It is not shown: it may be a secret.
            if told:
                self.mistakes.append(Mistake(path, f"this value is no {tag.rpartition(':')[2]}", mark))
            value = text
        return Node(value, mark, text, variable=text != written)

    def _is_plain(self, node: yaml.Node) -> bool:
        """Whether the type of a scalar was guessed by its looks, and not told by a tag like `!!int`."""
        return bool(node.tag == self._plain.resolve(yaml.ScalarNode, node.value, (True, False)))


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)

"""Settings that describe themselves: one class gives a value, its JSON schema, its page and its error messages.

A connector says what it takes as a class of plain annotations:

    class WebhookSettings(Settings):
        url: str = setting("Where the records are posted to.", example="http://localhost:8000/hook")
        token: Secret | None = setting("Sent as bearer token.", default=None)
        batch_rows: int = setting("Records in one request.", default=100, least=1, most=10_000)

Known types: bool, int, float, str, Secret, Literal, other Settings, `X | None`, list, dict with text keys, a union of
Settings that differ in their `union_tag`, Any for whatever JSON can say, and Node for what is read later. Reading
gathers all mistakes, each with its place. A Secret is never shown: not by `repr`, `str`, a format string, a schema
or an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from rivven.errors import RivvenError

from .nodes import Mistake, Node, node_of

S = TypeVar("S", bound="Settings")

HIDDEN = "******"


class Secret:
    """A text that only `reveal()` shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({HIDDEN!r})"

    def __str__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self._value,)


class BadSettings(RivvenError, code=200):
    """Settings that cannot be used; `mistakes` has all of them."""

    message = "{text}"

    def __init__(self, **facts: Any) -> None:
        if "text" not in facts:
            facts["text"] = "\n".join(map(str, facts["mistakes"]))
        super().__init__(**facts)
        self.mistakes: list[Mistake] = facts["mistakes"]


def setting(
    doc: str,
    *,
    default: Any = MISSING,
    factory: Callable[[], Any] | None = None,
    least: float | None = None,
    most: float | None = None,
    check: Callable[[Any], str | None] | None = None,
    example: Any = None,
    ignored: str = "",
    also: tuple[str, ...] = (),
) -> Any:
    """One setting: what it is for, its default (none: it is required), and what it may be.

    `factory` makes the default where it is a list, a dict or other settings. `least` and `most` bound a number, or
    the length of a list or text. `check` looks at a value that has the right type and returns a complaint or None.
    `ignored` says why a setting that other versions know has no effect here: it is accepted, with that as a warning.
    `also` are other names it goes by.
    """
    about = {"doc": doc, "least": least, "most": most, "check": check, "example": example}
    about |= {"ignored": ignored, "also": also}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=about)
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True, slots=True)
class Field:
    """What is known of one setting."""

    name: str
    type: Any
    doc: str
    required: bool
    default: Any
    least: float | None = None
    most: float | None = None
    check: Callable[[Any], str | None] | None = None
    example: Any = None
    ignored: str = ""
    also: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """As it is written in a file: `from_` stands for `from`, which Python keeps for itself."""
        return self.name.removesuffix("_")

    @property
    def type_text(self) -> str:
        return describe(self.type)

    @property
    def secret(self) -> bool:
        return _holds(self.type, Secret)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
class Settings:
    """The base of all settings; a subclass is a frozen dataclass by itself.

    Its methods are here once, and not generated for each of a hundred classes, which would be half of the time that
    it takes to validate a file.
    """

    union_tag: ClassVar[str | None] = None
    """How a union tells this class apart: the value of its key `type`."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.__doc__ = cls.__doc__ or f"{cls.__name__}."  # a dataclass without one writes its signature down
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]  # __init_subclass__ made it one
            if each.name in values:
                value = values.pop(each.name)
            elif each.default_factory is not MISSING:
                value = each.default_factory()
            elif each.default is not MISSING:
                value = each.default
            else:
                raise TypeError(f"{type(self).__name__} needs {each.name!r}")
            object.__setattr__(self, each.name, value)
        if values:
            raise TypeError(f"{type(self).__name__} has no {next(iter(values))!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, each.name) for each in dataclasses.fields(self))  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        names = [each.name for each in dataclasses.fields(self)]  # type: ignore[arg-type]
        pairs = (f"{name}={value!r}" for name, value in zip(names, self._values(), strict=True))
        return f"{type(self).__name__}({', '.join(pairs)})"

    def problems(self) -> Iterable[tuple[str, str]]:
        """Rules over several settings: (the setting at fault, what is wrong and how to mend it)."""
        return ()

    @classmethod
    def finish(cls, values: dict[str, Any], node: Node, path: str, mistakes: list[Mistake]) -> None:
        """Look again at what was read, also where there are mistakes already; may replace values."""

    @classmethod
    def parse(cls: type[S], values: Mapping[str, Any] | Node | None = None, path: str = "") -> S:
        """Settings from plain values or from a node of a document; BadSettings with every mistake."""
        mistakes: list[Mistake] = []
        made = read_settings(cls, node_of(values or {}), path, mistakes)
        if made is None or any(not each.warning for each in mistakes):
            raise BadSettings(mistakes=[each for each in mistakes if not each.warning])
        return made

    def as_dict(self) -> dict[str, Any]:
        """As plain values, secrets hidden: for people to look at."""
        return {field.key: _plain(getattr(self, field.name)) for field in fields_of(type(self))}


def _plain(value: Any) -> Any:
    if isinstance(value, Secret):
        return HIDDEN
    if isinstance(value, Settings):
        return ({"type": value.union_tag} if value.union_tag else {}) | value.as_dict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


_known: dict[type[Settings], tuple[Field, ...]] = {}


def fields_of(cls: type[Settings]) -> tuple[Field, ...]:
    """What is known of each setting. No method of the class, for a setting may be called `fields`, or `schema`."""
    if cls not in _known:
        _known[cls] = _fields(cls)
    return _known[cls]


def _fields(cls: type[Settings]) -> tuple[Field, ...]:
    hints = get_type_hints(cls)
    made = []
    for each in dataclasses.fields(cls):  # type: ignore[arg-type]  # __init_subclass__ made it one
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        about = dict(each.metadata) or {"doc": ""}
        made.append(Field(each.name, hints[each.name], required=default is MISSING, default=default, **about))
    return tuple(made)


# Reading


def read_settings(cls: type[S], node: Node, path: str, mistakes: list[Mistake]) -> S | None:
    """Settings from a node; None after a mistake that leaves nothing to make them of."""
    if node.value is None:
        node = Node({}, node.mark)
    if not isinstance(node.value, dict):
        given = "a list" if isinstance(node.value, list) else "one value"  # which may be the secret that goes below
        mistakes.append(Mistake(path, f"must be a mapping of settings, not {given}", node.mark))
        return None
    before = len(mistakes)
    known = {name: field for field in fields_of(cls) for name in (field.key, *field.also)}
    values: dict[str, Any] = {}
    for name, item in node.value.items():
        at = node.key_marks.get(name, node.mark)
        if name == "type" and cls.union_tag is not None:
            continue
        if name not in known:
            mistakes.append(Mistake(path, unknown("setting", name, [field.key for field in fields_of(cls)]), at))
            continue
        field = known[name]
        whole = join(path, field.key)
        if field.name in values:
            mistakes.append(Mistake(path, f"{name!r} is another name of {field.key!r}; give one of the two", at))
        if field.ignored:
            mistakes.append(Mistake(whole, f"has no effect: {field.ignored}", at, warning=True))
        values[field.name] = _read_field(field, item, whole, mistakes)
    for field in fields_of(cls):
        if field.required and field.name not in values:
            text = f"{field.key!r} is missing: {_lowered(field.doc)}"
            mistakes.append(Mistake(path, text, node.mark))
    cls.finish(values, node, path, mistakes)
    if any(not each.warning for each in mistakes[before:]):
        return None
    made = cls(**values)
    for name, text in made.problems():
        at = node.key_marks.get(name) or node.mark
        mistakes.append(Mistake(join(path, name), text, at))
    return None if any(not each.warning for each in mistakes[before:]) else made


def _read_field(field: Field, node: Node, path: str, mistakes: list[Mistake]) -> Any:
    before = len(mistakes)
    if node.value is None and not field.required and get_origin(field.type) in (dict, list):
        return field.default  # a list or mapping of which every entry is commented out
    value = read_value(field.type, node, path, mistakes)
    if len(mistakes) > before or value is None:
        return value
    if complaint := _out_of_bounds(field, value) or (field.check and field.check(value)):
        mistakes.append(Mistake(path, complaint, node.mark))
    return value


def _out_of_bounds(field: Field, value: Any) -> str | None:
    if isinstance(value, bool) or (field.least is None and field.most is None):
        return None
    counted = not isinstance(value, int | float)
    amount = len(value.reveal() if isinstance(value, Secret) else value) if counted else value
    what = (
        ("must have", " characters" if isinstance(value, str | Secret) else " entries")
        if counted
        else ("must be", "")
    )
    if field.least is not None and amount < field.least:
        if counted and field.least == 1:
            return "must not be empty"
        return f"{what[0]} at least {field.least:,}{what[1]}, not {amount:,}"
    if field.most is not None and amount > field.most:
        return f"{what[0]} at most {field.most:,}{what[1]}, not {amount:,}"
    return None


def read_value(kind: Any, node: Node, path: str, mistakes: list[Mistake]) -> Any:
    """A value of one type from a node; whatever does not fit goes to `mistakes`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_union(parts, node, path, mistakes)
    if kind is Any:
        return node.plain()
    if kind is Node:
        return node
    if isinstance(kind, type) and issubclass(kind, Settings):
        return read_settings(kind, node, path, mistakes)
    if origin is list and isinstance(node.value, list):
        return [read_value(parts[0], item, f"{path}[{place}]", mistakes) for place, item in enumerate(node.value)]
    if origin is dict and isinstance(node.value, dict):
        return {name: read_value(parts[1], item, join(path, name), mistakes) for name, item in node.value.items()}
    if origin is Literal:
        return _read_choice(parts, node, path, mistakes)
    fits, value = _scalar(kind, node)
    if not fits:
        shown = "something else" if _holds(kind, Secret) else _shown(node)
        mistakes.append(Mistake(path, f"must be {describe(kind)}, not {shown}", node.mark))
        return None
    if isinstance(value, str) and "\x00" in value:
        mistakes.append(Mistake(path, "must not have a zero character in it", node.mark))
    return value


def _scalar(kind: Any, node: Node) -> tuple[bool, Any]:
    value = node.value
    if kind in (str, Secret):
        if isinstance(value, dict | list) or value is None:
            return False, None
        text = node.text if node.text is not None else str(value)
        return True, text if kind is str else Secret(text)
    if kind is bool:
        return isinstance(value, bool), value
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return number, float(value) if number else None
    return False, None


def _read_choice(choices: tuple[Any, ...], node: Node, path: str, mistakes: list[Mistake]) -> Any:
    text = node.text if node.text is not None else node.value
    folded = {_folded(choice): choice for choice in choices}
    found = folded.get(_folded(text)) if isinstance(text, str | int) else None
    if found is None:
        if isinstance(text, str) and not node.variable:
            mistakes.append(Mistake(path, unknown("choice", text, list(map(str, choices))), node.mark))
        else:
            mistakes.append(Mistake(path, f"must be {describe(Literal[choices])}, not {_shown(node)}", node.mark))
    return found


def _folded(text: Any) -> str:
    return str(text).lower().replace("-", "_")


def _read_union(parts: tuple[Any, ...], node: Node, path: str, mistakes: list[Mistake]) -> Any:
    if node.value is None and type(None) in parts:
        return None
    rest = [part for part in parts if part is not type(None)]
    if len(rest) == 1:
        return read_value(rest[0], node, path, mistakes)
    tagged = {
        part.union_tag: part
        for part in rest
        if isinstance(part, type) and issubclass(part, Settings) and part.union_tag
    }
    if isinstance(node.value, dict) and tagged:
        chosen = node.value.get("type")
        name = chosen.value if chosen is not None else None
        if name in tagged:
            return read_settings(tagged[name], node, path, mistakes)
        listed = _listed(list(tagged))
        text = f"'type' is one of: {listed}"
        if chosen is None:
            text = f"'type' is missing; it is one of: {listed}"
        elif not chosen.variable:
            text = unknown("type", str(name), list(tagged))
        mistakes.append(Mistake(path, text, chosen.mark if chosen else node.mark))
        return None
    for part in rest:
        found: list[Mistake] = []
        value = read_value(part, node, path, found)
        if not found:
            return value
    kinds = " or ".join(describe(part) for part in rest)
    mistakes.append(Mistake(path, f"must be {kinds}, not {_shown(node)}", node.mark))
    return None


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """That a name is none of those there are, and the nearest that is."""
    names = sorted(valid)
    name = name if len(name) <= 60 else f"{name[:57]}..."
    by_fold = {_folded(each): each for each in names}
    near = difflib.get_close_matches(_folded(name), list(by_fold), n=1, cutoff=0.6)
    if near:
        return f"there is no {what} {name!r}; did you mean {by_fold[near[0]]!r}?"
    return f"there is no {what} {name!r}; there is: {_listed(names) or 'none'}"


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names))


def _lowered(text: str) -> str:
    text = text.strip().rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _shown(node: Node) -> str:
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    if node.value is None:
        return "nothing"
    if node.variable:
        return "what its variable holds"
    shown = repr(node.text if node.text is not None else node.value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def describe(kind: Any) -> str:
    """A type in the words of a reader."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(part) for part in parts if part is not type(None)))
    if origin is Literal:
        return "one of " + _listed(parts)
    if origin is list:
        return f"a list of {_plural(parts[0])}"
    if origin is dict:
        return f"a mapping of names to {_plural(parts[1])}"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Secret: "a secret text"}
    if kind in names:
        return names[kind]
    mapping = isinstance(kind, type) and issubclass(kind, Settings | Node)
    return "a mapping of settings" if mapping else "any value"


def _plural(kind: Any) -> str:
    names = {bool: "true or false", int: "whole numbers", float: "numbers", str: "texts", Secret: "secret texts"}
    if kind in names:
        return names[kind]
    return "mappings" if isinstance(kind, type) and issubclass(kind, Settings) else "values"


def _holds(kind: Any, wanted: type) -> bool:
    return kind is wanted or any(_holds(part, wanted) for part in get_args(kind))


# The JSON schema


def schema_of(cls: type[Settings]) -> dict[str, Any]:
    """The JSON schema (2020-12) of settings."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema(cls)}


def _schema(kind: Any) -> dict[str, Any]:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        rest = [_schema(part) for part in parts]
        return rest[0] if len(rest) == 1 else {"anyOf": rest}
    if kind is type(None):
        return {"type": "null"}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is list:
        return {"type": "array", "items": _schema(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(parts[1])}
    if kind is Secret:
        return {"type": "string", "format": "password", "writeOnly": True}
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    if kind in names:
        return {"type": names[kind]}
    if isinstance(kind, type) and issubclass(kind, Settings):
        return _object_schema(kind)
    return {}


def _object_schema(cls: type[Settings]) -> dict[str, Any]:
    properties = {field.key: _field_schema(field) for field in fields_of(cls)}
    required = [field.key for field in fields_of(cls) if field.required]
    if cls.union_tag is not None:
        properties = {"type": {"const": cls.union_tag}, **properties}
        required = ["type", *required]
    made: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return made | ({"required": required} if required else {})


def _field_schema(field: Field) -> dict[str, Any]:
    made = _schema(field.type)
    if field.doc:
        made["description"] = field.doc
    if not field.required and not isinstance(field.default, Settings):
        made["default"] = _plain(field.default)
    if field.example is not None:
        made["examples"] = [field.example]
    suffix = {"string": "Length", "array": "Items", "object": "Properties"}.get(made.get("type", ""))
    for bound, word in ((field.least, "min"), (field.most, "max")):
        if bound is not None:
            made[f"{word}{suffix}" if suffix else f"{word}imum"] = bound
    if field.ignored:
        made["deprecated"] = True
    return made

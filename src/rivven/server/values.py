"""From text to values: a parser for each form in which a setting may be written.

A parser takes the text as it stands in a flag, a variable or a file, and returns the value or raises ValueError with
the reason and what to write instead. Invariant: text in, a checked value out; a parser asks nobody and keeps nothing.
"""

from __future__ import annotations

import difflib
import os.path
import re
from collections.abc import Callable, Iterable
from typing import Any

from rivven.errors import InvalidConfig
from rivven.limits import GIB, KIB, MIB
from rivven.log import SyncPolicy

Parse = Callable[[str], Any]
UNITS = {"": 1, "B": 1, "KIB": KIB, "MIB": MIB, "GIB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
LEVELS = ("trace", "debug", "info", "warn", "error")


def _between(value: float, low: float, high: float, text: str) -> Any:
    if not low <= value <= high:
        nearest = low if value < low else high
        raise ValueError(f"{text} is outside {low} to {high}; the nearest is {nearest}")
    return value


def number(low: int, high: int, kind: type[int] | type[float] = int) -> Parse:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            what = "whole number" if kind is int else "number"
            raise ValueError(f"{text!r} is not a {what}; write one from {low} to {high}") from None
        return _between(value, low, high, text)

    return parse


def size(low: int, high: int) -> Parse:
    def parse(text: str) -> Any:
        match = re.fullmatch(r"([0-9][0-9_]*)\s*([a-zA-Z]*)", text.strip())
        if match is None or match[2].upper() not in UNITS:
            raise ValueError(f"{text!r} is not a size; write bytes, as 1048576, or a unit, as 1MiB")
        return _between(int(match[1]) * UNITS[match[2].upper()], low, high, text)

    return parse


def optional(parse: Parse) -> Parse:
    return lambda text: None if text.lower() in ("", "none", "off") else parse(text)


def choice(*choices: str) -> Parse:
    def parse(text: str) -> Any:
        if text.lower() in choices:
            return text.lower()
        raise ValueError(f"{text!r} is not one of {', '.join(choices)}{did_you_mean(text.lower(), choices)}")

    return parse


def switch(text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def word(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > 255:
        raise ValueError(f"{text!r} is not a name; write 1 to 255 printable characters")
    return text.strip()


def path(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("the path is empty; write a directory, as ./data")
    return os.path.expanduser(text)


def host(text: str) -> str:
    name = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not re.fullmatch(r"[A-Za-z0-9._:%-]+", name):
        raise ValueError(f"{text!r} is not a host; write a name or an address, as 127.0.0.1")
    return name


def address(text: str) -> tuple[str, int]:
    name, colon, port = text.rpartition(":")
    if not colon or not name or (":" in name and not name.startswith("[")) or not port.isdecimal():
        raise ValueError(f"{text!r} is not an address; write host:port, as 127.0.0.1:9092 or [::1]:9092")
    return host(name), number(0, 65535)(port)


def sync_policy(text: str) -> str:
    """Also as some write it: EveryWrite, EveryNWrites(10), None."""
    snake = re.sub(r"(?<=[a-zA-Z])(?=[A-Z])", "_", text.strip()).lower()
    try:
        return str(SyncPolicy.parse(snake))
    except InvalidConfig as error:
        near = did_you_mean(snake, ("every_write", "every_n_writes(10)", "none"))
        raise ValueError(f"{error.facts['reason']}{near}") from None


def log_level(text: str) -> str:
    """A level, or of a filter such as `hyper=warn,info` the one that is for everything."""
    plain = [part.strip() for part in text.lower().split(",") if "=" not in part]
    level = plain[-1] if plain else text
    return str(choice(*LEVELS)({"warning": "warn", "critical": "error"}.get(level, level)))


def did_you_mean(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def show(value: Any) -> str:
    """As it would be written."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)

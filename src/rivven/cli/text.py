"""Values as text that is safe on a terminal and in JSON: bytes, times, sizes, and how wide a text is."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

from rivven.limits import NUMBER_MAX

ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def readable(data: bytes | None) -> str:
    """UTF-8 if all of it can be printed (line ends and tabs escaped), else hex; nothing that moves a cursor."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    escaped = "".join(ESCAPES.get(char, char) for char in text)
    return escaped if escaped.isprintable() else f"0x{data.hex()}"


def harmless(text: str) -> str:
    """A name from a disk that somebody else may have chosen."""
    return text if text.isprintable() else ascii(text)


def as_json(data: bytes | None) -> tuple[str | None, str | None]:
    """(text, encoding) for JSON: "utf-8", "hex", or null for both."""
    if data is None:
        return None, None
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return data.hex(), "hex"


def when(timestamp_ms: int, *, short: bool = False) -> str:
    """A time in UTC. What lies outside the calendar stays a number."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    return text if short else f"{text}.{timestamp_ms % 1000:03d}"


def parse_when(text: str) -> int:
    """Milliseconds since 1970, or an ISO 8601 time, which is UTC unless it says otherwise. ValueError otherwise."""
    if text.lstrip("-").isdigit():
        return _in_reach(int(text))
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


SPANS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_span(text: str) -> int:
    """A length of time like 500ms, 90s, 15m, 2h or 1d, in milliseconds. ValueError otherwise."""
    digits = text.rstrip("".join(SPANS_MS))
    unit = text[len(digits) :]
    if not digits.isascii() or not digits.isdecimal() or unit not in SPANS_MS:
        raise ValueError(f"{text!r} is no length of time")
    return _in_reach(int(digits) * SPANS_MS[unit])


def _in_reach(time_ms: int) -> int:
    if abs(time_ms) > NUMBER_MAX:
        raise ValueError(f"{time_ms} ms is beyond all times that can be kept")
    return time_ms


def span(length_ms: int) -> str:
    """A length of time for people, in its two largest units: 250ms, 4.2s, 1m 5s, 3h 20m, 2d 4h."""
    if length_ms < 1_000:
        return f"{max(0, length_ms)}ms"
    if length_ms < 60_000:
        return f"{length_ms / 1000:.1f}".removesuffix(".0") + "s" if length_ms < 10_000 else f"{length_ms // 1000}s"
    unit, below = next(pair for pair in (("d", "h"), ("h", "m"), ("m", "s")) if length_ms >= SPANS_MS[pair[0]])
    whole, rest = divmod(length_ms, SPANS_MS[unit])
    more = rest // SPANS_MS[below]
    return f"{whole:,}{unit}" + (f" {more}{below}" if more else "")


def sized(count: int) -> str:
    """Bytes for people: 999 B, 1.5 KiB, 12 MiB."""
    if count < 1024:
        return f"{count} B"
    power = min(4, (count.bit_length() - 1) // 10)
    value = count / 1024**power
    return f"{value:.{int(value < 10)}f} {'BKMGT'[power]}iB"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def cells(text: str) -> int:
    """How many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_char_cells(char) for char in text)


def _char_cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shortened(text: str, width: int) -> str:
    """The text within `width` columns, with an ellipsis where it was cut."""
    if cells(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += _char_cells(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"

"""What the made codecs share: lengths of varying width, tagged fields that nobody knows, and refusals.

Invariant: a position only grows, so whoever reads behind the end of the data fails, or is found there at the end.
"""

from __future__ import annotations

from typing import TypeVar

from rivven.errors import Malformed

from ..schema import Piece

T = TypeVar("T")

NO_ID = bytes(16)
"""The topic id of no topic, and the id of no directory."""
STRING_BYTES_MAX = 2**15 - 1
"""No Kafka client takes a longer string, whatever its length could say."""
UVARINT_BYTES_MAX = 5


def rest_of(data: Piece, at: int, first: int) -> tuple[int, int]:
    """A length of more than one byte whose `first` is read already: the length, and the position behind it."""
    value, shift = first & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift == 7 * UVARINT_BYTES_MAX:
            raise unreadable("a length of more than five bytes")
    if value > 2**32 - 1:
        raise unreadable("a length above 32 bits")
    return value, at


def uvarint_at(data: Piece, at: int) -> tuple[int, int]:
    """An unsigned number, and the position behind it."""
    first = data[at]
    return (first, at + 1) if first < 0x80 else rest_of(data, at + 1, first)


def uvarint(value: int) -> bytes:
    """An unsigned number: seven bits a byte, the least first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def long_string(length_and_one: int) -> bytes:
    """The length of a string that needs more than one byte."""
    if length_and_one > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {length_and_one - 1} bytes, above the {STRING_BYTES_MAX} that clients take")
    return uvarint(length_and_one)


def needed(value: T | None, field: str) -> T:
    """What only other versions may leave out."""
    if value is None:
        raise ValueError(f"{field} is null, which this version cannot say")
    return value


def whole_id(value: bytes) -> bytes:
    """An id as it is: `struct` would fill up a shorter one, and cut a longer."""
    if len(value) != len(NO_ID):
        raise ValueError(f"an id of {len(value)} bytes, where each has {len(NO_ID)}")
    return value


def skip_tags(data: Piece, at: int) -> int:
    """Pass over a section of tagged fields; the position behind it."""
    count, at = uvarint_at(data, at)
    for _ in range(count):
        _, at = uvarint_at(data, at)
        length, at = uvarint_at(data, at)
        at += length
    return at


def unreadable(reason: str) -> Malformed:
    """A refusal; whoever began to read adds of what."""
    return Malformed(what="Kafka message", reason=reason)


def null(field: str) -> Malformed:
    return unreadable(f"{field} is null, and may not be")


def too_many(field: str, count: int) -> Malformed:
    return unreadable(f"{field} claims {count} entries, more than the rest could hold")


def wrong_length(field: str) -> Malformed:
    return unreadable(f"the tagged field {field} is not as long as it says")

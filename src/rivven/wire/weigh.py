"""How many things a protobuf payload holds, counted before anybody makes them.

The protobuf run-time builds a whole message before one can look at it, and an empty entry of a list takes two
bytes on the wire and fifty in memory. So a large payload is walked first, along its schema, and one that holds
more things than any request may is refused.
"""

from __future__ import annotations

from typing import Any

from .bounds import LIST_MAX, NESTED_MAX, too_many, unreadable
from .postcard import rest_of
from .schema import Piece

WEIGHED_BYTES_MIN = 256 * 1024
"""Below this a payload cannot hold enough to matter."""
THINGS_MAX = NESTED_MAX + 5 * LIST_MAX
"""Messages and texts of one request, at all depths together."""

VARINT, FIXED64, SPAN, FIXED32 = 0, 1, 2, 5
BROKEN = "Protobuf decode error: the payload is cut short or damaged"


def weigh(descriptor: Any, payload: Piece) -> None:
    """Refuse a payload for the message of `descriptor` if it holds too much; whether it is sound is not asked."""
    if len(payload) < WEIGHED_BYTES_MIN:
        return
    try:
        _walk(descriptor, payload)
    except IndexError:
        raise unreadable(BROKEN) from None


def _walk(descriptor: Any, payload: Piece) -> None:
    things = 0
    waiting = [(_spans(descriptor), 0, len(payload))]
    while waiting:
        spans, position, end = waiting.pop()
        while position < end:
            tag, position = _number(payload, position)
            kind = tag & 7
            if kind == SPAN:
                length, position = _number(payload, position)
                field = spans.get(tag >> 3)
                if field is not None:
                    things += 1
                    if things > THINGS_MAX:
                        raise too_many(field.name, things, THINGS_MAX)
                    if field.message_type is not None:
                        waiting.append((_spans(field.message_type), position, min(position + length, end)))
                position += length
            elif kind == VARINT:
                _, position = _number(payload, position)
            elif kind in (FIXED64, FIXED32):
                position += 8 if kind == FIXED64 else 4
            else:
                raise unreadable(BROKEN)


def _number(payload: Piece, position: int) -> tuple[int, int]:
    first = payload[position]
    return (first, position + 1) if first < 0x80 else rest_of(payload, position + 1, first, 2**64 - 1)


_known: dict[str, dict[int, Any]] = {}


def _spans(descriptor: Any) -> dict[int, Any]:
    """The fields of a message, by number, that are messages or texts."""
    found = _known.get(descriptor.full_name)
    if found is None:
        found = _known[descriptor.full_name] = {
            field.number: field
            for field in descriptor.fields
            if field.type in (field.TYPE_MESSAGE, field.TYPE_STRING)
        }
    return found

"""The atoms of postcard, the compact encoding of the native protocol, and the words for each way to break it.

The straight-line code that `straight` writes handles the common case of each atom in place, a number below 128 or
a tag that is right, and calls here for the rest. Reading past the end is an IndexError there, or `short` here.
"""

from __future__ import annotations

from rivven.errors import Malformed

from .bounds import unreadable
from .schema import Piece

SHORT = "Hit the end of buffer, expected more data"
BAD_VARIANT = "Serde Deserialization Error"
BAD_BOOL = "Found a bool that wasn't 0 or 1"
BAD_OPTION = "Found an Option discriminant that wasn't 0 or 1"
BAD_VARINT = "Found a varint that didn't terminate. Is the usize too big for this platform?"
BAD_UTF8 = "Tried to parse invalid utf-8"

JOINED_BYTES_MAX = 512
"""Opaque bytes up to here are copied into the bytes around them: one buffer costs less than three."""


def short() -> Malformed:
    return unreadable(SHORT)


def rest_of(data: Piece, position: int, first: int, most: int) -> tuple[int, int]:
    """The number whose first byte, before `position`, said that more follow; and the position after it."""
    byte = data[position]
    if byte < 0x80:
        return first & 0x7F | byte << 7, position + 1  # two bytes fit every width
    number, shift = first & 0x7F, 7
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if number > most:
            raise unreadable(BAD_VARINT)
        if byte < 0x80:
            return number, position
        shift += 7
        if most >> shift == 0:
            raise unreadable(BAD_VARINT)


def put(out: bytearray, number: int, most: int, field: str) -> None:
    """A number as a varint: seven bits to a byte, the low ones first, and the eighth says that more follow."""
    if not 0 <= number <= most:
        raise Malformed(what="message", reason=f"{field} {number} is outside 0..{most}")
    if number < 0x80:
        out.append(number)
    elif number < 0x4000:
        out += bytes((number & 0x7F | 0x80, number >> 7))
    elif number < 0x20_0000:
        out += bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    else:
        while number > 0x3FFF:
            out += bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80))
            number >>= 14
        put(out, number, most, field)


def put_opaque(out: bytearray, parts: list[Piece], pieces: Piece | tuple[Piece, ...]) -> bytearray:
    """A length in `out`, then the pieces as they are, behind it in `parts`; what follows goes to the new `out`."""
    if isinstance(pieces, tuple):
        length = sum([len(piece) for piece in pieces])
    else:
        length, pieces = len(pieces), (pieces,)
    put(out, length, 2**64 - 1, "length")
    if length <= JOINED_BYTES_MAX:
        for piece in pieces:
            out += piece
        return out
    parts.append(out)
    parts += pieces
    return bytearray()


def tail_of(data: Piece, position: int, end: int, most: int) -> int:
    """A number that older peers don't write, and whose place they may have filled with anything."""
    if position == end:
        return 0
    try:
        first = data[position]
        return first if first < 0x80 else rest_of(data, position + 1, first, most)[0]
    except (IndexError, Malformed):
        return 0

"""What members of a classic group tell one another through the broker: their subscription, and their assignment.

The bytes begin with their version. One newer than we know has new fields at the end only, so it is read as the
newest that we do. A broker needs this to describe a group; groups of another protocol type hold other bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rivven.errors import Malformed

from ..schema import Message, Piece
from . import made
from .codec import Reader, Writer, read, written

if TYPE_CHECKING:
    from .made.consumer_protocol_assignment import ConsumerProtocolAssignment
    from .made.consumer_protocol_subscription import ConsumerProtocolSubscription

VERSION = struct.Struct(">h")
NEWEST = 3


def decode_subscription(data: Piece) -> ConsumerProtocolSubscription:
    """What a member wants to read."""
    found: ConsumerProtocolSubscription = _decode(
        "subscription", data, made.consumer_protocol_subscription.DECODE_DATA.get
    )
    return found


def decode_assignment(data: Piece) -> ConsumerProtocolAssignment:
    """What a member was given to read."""
    found: ConsumerProtocolAssignment = _decode("assignment", data, made.consumer_protocol_assignment.DECODE_DATA.get)
    return found


def encode_subscription(value: ConsumerProtocolSubscription, version: int = NEWEST) -> bytes:
    return _encode(value, version, made.consumer_protocol_subscription.ENCODE_DATA[version])


def encode_assignment(value: ConsumerProtocolAssignment, version: int = NEWEST) -> bytes:
    return _encode(value, version, made.consumer_protocol_assignment.ENCODE_DATA[version])


def _decode(what: str, data: Piece, reader_of: Callable[[int], Reader | None]) -> Any:
    plain = bytes(data)
    try:
        (version,) = VERSION.unpack_from(plain)
        reader = reader_of(min(version, NEWEST))
        if reader is None:
            raise Malformed(what=what, reason=f"version {version}")
        return read(reader, plain, VERSION.size)
    except struct.error:
        raise Malformed(what=what, reason="it is cut short") from None
    except Malformed as error:
        raise Malformed(what=what, reason=error.facts["reason"]) from None


def _encode(value: Message, version: int, writer: Writer) -> bytes:
    return b"".join(written(writer, value, version, bytearray(VERSION.pack(version))))

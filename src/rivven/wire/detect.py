"""Who speaks: the first frame of a connection tells the native protocol from Kafka's.

Both begin with a length. Then the native one has a format byte, 0 or 1, and a correlation id; Kafka has an api
key and a version, two bytes each, a correlation id and a client id. A first byte of 1 is protobuf, for no api
key is that large. A first byte of 0 may be either, so a Kafka frame must look like one to its client id; native
clients count their frames from 0, which reads as version 0 of Produce, and that one nobody serves.
"""

from __future__ import annotations

import struct
from enum import Enum

from .frame import LENGTH
from .kafka import API_VERSIONS, APIS
from .schema import Piece


class Dialect(Enum):
    """What a connection speaks."""

    POSTCARD = "postcard"
    PROTOBUF = "protobuf"
    KAFKA = "kafka"


KAFKA_HEAD = struct.Struct(">hhih")
"""Api key, version, correlation id, and the length of the client id."""

NEEDED_BYTES = LENGTH.size + KAFKA_HEAD.size


def detect(first: Piece) -> Dialect | None:
    """The dialect of a connection by its first bytes; None while there are too few of them to tell.

    `NEEDED_BYTES` are always enough, and a whole frame is, however short.
    """
    if len(first) <= LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(first)
    return _judge(memoryview(first)[LENGTH.size :], length)


def dialect_of(body: Piece) -> Dialect:
    """The same by the first frame whole, without its length."""
    return (_judge(body, len(body)) if body else None) or Dialect.POSTCARD


def _judge(body: Piece, length: int) -> Dialect | None:
    if body[0] == 1:
        return Dialect.PROTOBUF
    if length < KAFKA_HEAD.size or body[0] != 0:
        return Dialect.POSTCARD
    if len(body) < KAFKA_HEAD.size:
        return None
    key, version, _, client_id_bytes = KAFKA_HEAD.unpack_from(body)
    fits = -1 <= client_id_bytes <= length - KAFKA_HEAD.size
    return Dialect.KAFKA if fits and _may_open(key, version) else Dialect.POSTCARD


def _may_open(key: int, version: int) -> bool:
    """Whether Kafka has such a request, served or not. Of ApiVersions also in the future: it is answered too."""
    api = APIS.get(key)
    return api is not None and (api.knows(version) or (key == API_VERSIONS and version >= 0))

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
from .schema import Piece


class Dialect(Enum):
    """What a connection speaks."""

    POSTCARD = "postcard"
    PROTOBUF = "protobuf"
    KAFKA = "kafka"


KAFKA_HEAD = struct.Struct(">hhih")
"""Api key, version, correlation id, and the length of the client id."""

ANY = 2**15 - 1
KAFKA_VERSIONS: dict[int, tuple[int, int]] = {
    0: (3, 13),  # Produce; what is older was never a first request
    1: (4, 18),  # Fetch
    2: (1, 11),  # ListOffsets
    3: (0, 13),  # Metadata
    8: (2, 10),  # OffsetCommit
    9: (1, 10),  # OffsetFetch
    10: (0, 6),  # FindCoordinator
    11: (0, 9),  # JoinGroup
    12: (0, 4),  # Heartbeat
    13: (0, 5),  # LeaveGroup
    14: (0, 5),  # SyncGroup
    15: (0, 6),  # DescribeGroups
    16: (0, 5),  # ListGroups
    17: (0, 1),  # SaslHandshake
    18: (0, ANY),  # ApiVersions: a version of the future is answered too, with those that we know
    19: (2, 7),  # CreateTopics
    20: (1, 6),  # DeleteTopics
    21: (0, 2),  # DeleteRecords
    22: (0, 5),  # InitProducerId
    23: (2, 4),  # OffsetForLeaderEpoch
    24: (0, 5),  # AddPartitionsToTxn
    25: (0, 4),  # AddOffsetsToTxn
    26: (0, 5),  # EndTxn
    28: (0, 5),  # TxnOffsetCommit
    29: (1, 3),  # DescribeAcls
    30: (1, 3),  # CreateAcls
    31: (1, 3),  # DeleteAcls
    32: (1, 4),  # DescribeConfigs
    33: (0, 2),  # AlterConfigs
    35: (1, 5),  # DescribeLogDirs
    36: (0, 2),  # SaslAuthenticate
    37: (0, 3),  # CreatePartitions
    42: (0, 2),  # DeleteGroups
    44: (0, 1),  # IncrementalAlterConfigs
    47: (0, 0),  # OffsetDelete
    60: (0, 2),  # DescribeCluster
    68: (0, 1),  # ConsumerGroupHeartbeat
    69: (0, 1),  # ConsumerGroupDescribe
    75: (0, 0),  # DescribeTopicPartitions
}
"""The requests that may open a connection, and their versions."""

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
    least, most = KAFKA_VERSIONS.get(key, (1, 0))
    fits = -1 <= client_id_bytes <= length - KAFKA_HEAD.size
    return Dialect.KAFKA if least <= version <= most and fits else Dialect.POSTCARD

"""Groups as they stand in the compacted topic `__consumer_offsets`, beside their offsets.

A classic group is one record in the layout that Kafka tools read: key (version 2, group), value (version 3, protocol
type, generation, protocol, leader, time of the last change, members). A time of -1 says that the generation has begun
and its leader has not assigned anything yet. Members without a leader are those of a group that was of the consumer
protocol and gathers to find one.

A group of the consumer protocol is several records, with Kafka's key versions and keys: 3 the group and its epoch,
5 a member as it described itself, 6 the epoch of the target assignment, 7 a member's part of the target, 8 what a
member has at present. Their values are ours: JSON, since they are small and people look at them.

Replaying the topic from its start gives the same groups. A tombstone takes away what its key names.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import msgspec

from rivven.errors import Malformed
from rivven.fields import FieldReader

CLASSIC_KEY = 2
CLASSIC_VALUE = 3
CONSUMER_GROUP_KEY = 3
CONSUMER_MEMBER_KEY = 5
TARGET_EPOCH_KEY = 6
TARGET_MEMBER_KEY = 7
CURRENT_MEMBER_KEY = 8
CONSUMER_KEYS = (3, 5, 6, 7, 8)
NOT_ASSIGNED_MS = -1

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_TIMEOUTS = struct.Struct(">ii")

Log = tuple[tuple[bytes, bytes | None], ...]
"""Records: key and value; a value of None is a tombstone."""
Parts = dict[str, list[int]]
"""Partitions by topic, in order."""
V = TypeVar("V", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class KeptMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class KeptGroup:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[KeptMember, ...] = ()


class KeptConsumerGroup(msgspec.Struct, frozen=True):
    epoch: int
    counts: dict[str, int]
    """How many partitions the subscribed topics had when the epoch began."""
    emptied_ms: int = 0


class KeptTargetEpoch(msgspec.Struct, frozen=True):
    epoch: int


class KeptClassic(msgspec.Struct, frozen=True):
    """What a member that speaks the classic protocol says besides."""

    session_timeout_ms: int
    protocols: list[tuple[str, bytes]]


class KeptConsumer(msgspec.Struct, frozen=True):
    """A member as it described itself."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: list[str]
    pattern: str | None
    assignor: str | None
    classic: KeptClassic | None = None


class KeptTarget(msgspec.Struct, frozen=True):
    partitions: Parts


class Standing(Enum):
    """How far a member has come on its way to its part of the target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"


class KeptCurrent(msgspec.Struct, frozen=True):
    """What a member has, and what it has still to give up before its epoch goes on."""

    epoch: int
    previous_epoch: int
    standing: Standing
    assigned: Parts
    revoking: Parts


def key_version(key: bytes) -> int:
    if len(key) < _I16.size:
        raise Malformed(what="group key", reason="it is shorter than its version")
    version: int = _I16.unpack_from(key)[0]
    return version


def group_key(version: int, *names: str) -> bytes:
    return _I16.pack(version) + b"".join(_text(name) for name in names)


def decode_group_key(key: bytes) -> tuple[str, str]:
    """The group, and the member where the key's version has one."""
    reader = _Reader(key, "group key")
    version = reader.i16()
    group = reader.text()
    member = reader.text() if version in (CONSUMER_MEMBER_KEY, TARGET_MEMBER_KEY, CURRENT_MEMBER_KEY) else ""
    return group, member


def encode_json(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value)


def decode_json(data: bytes, kind: type[V]) -> V:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(what=kind.__name__, reason=str(error)) from error


def encode_group(kept: KeptGroup) -> bytes:
    parts = [_I16.pack(CLASSIC_VALUE), _text(kept.protocol_type), _I32.pack(kept.generation)]
    parts += [_text(kept.protocol), _text(kept.leader), _I64.pack(kept.since_ms), _I32.pack(len(kept.members))]
    for member in kept.members:
        parts += [_text(member.member_id), _text(member.instance_id)]
        parts += [_text(member.client_id), _text(member.client_host)]
        parts += [_TIMEOUTS.pack(member.rebalance_timeout_ms, member.session_timeout_ms)]
        parts += [_I32.pack(len(member.subscription)), member.subscription]
        parts += [_I32.pack(len(member.assignment)), member.assignment]
    return b"".join(parts)


def decode_group(data: bytes) -> KeptGroup:
    reader = _Reader(data, "group")
    version = reader.i16()
    if version != CLASSIC_VALUE:
        raise Malformed(what="group", reason=f"version {version} is not known")
    head = (reader.text(), reader.i32(), reader.text_or_none(), reader.text_or_none(), reader.i64())
    count = reader.count()
    return KeptGroup(*head, tuple(_decode_member(reader) for _ in range(count)))


def _decode_member(reader: _Reader) -> KeptMember:
    member_id, instance_id = reader.text(), reader.text_or_none()
    client_id, client_host = reader.text(), reader.text()
    rebalance_timeout_ms, session_timeout_ms = reader.i32(), reader.i32()
    timeouts = (rebalance_timeout_ms, session_timeout_ms)
    return KeptMember(member_id, instance_id, client_id, client_host, *timeouts, reader.data(), reader.data())


def _text(text: str | None) -> bytes:
    if text is None:
        return _I16.pack(-1)
    data = text.encode()
    return _I16.pack(len(data)) + data


class _Reader(FieldReader):
    """Takes fields off bytes, and says what is wrong with them."""

    def count(self) -> int:
        count = self.i32()
        if not 0 <= count <= len(self._data):
            raise Malformed(what=self._what, reason=f"{count} members cannot be in {len(self._data)} bytes")
        return count

    def data(self) -> bytes:
        return self.take(self.i32())

    def text(self) -> str:
        text = self.text_or_none()
        if text is None:
            raise Malformed(what=self._what, reason=f"a text before byte {self._at} is missing")
        return text

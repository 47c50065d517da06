"""Committed offsets of consumer groups, and how they stand in the compacted topic `__consumer_offsets`.

The record's key is (version 1, group, topic, partition), its value (version 3, offset, leader epoch, metadata,
time of the commit), in the layout that Kafka tools read; a tombstone takes an offset away. Replaying the topic from
its start gives the table.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rivven.errors import Malformed

KEY_VERSION = 1
VALUE_VERSION = 3
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_VALUE_HEAD = struct.Struct(">hqi")
_I64 = struct.Struct(">q")


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = 0


class Offsets:
    """The table: the last commit of each group, topic and partition."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[tuple[str, int], CommittedOffset]] = {}

    def get(self, key: OffsetKey) -> CommittedOffset | None:
        return self._by_group.get(key.group, {}).get((key.topic, key.partition))

    def groups(self) -> list[str]:
        return sorted(self._by_group)

    def count(self, group: str) -> int:
        return len(self._by_group.get(group, {}))

    def group_count(self) -> int:
        return len(self._by_group)

    def of_group(self, group: str) -> dict[tuple[str, int], CommittedOffset]:
        return dict(self._by_group.get(group, {}))

    def keys_of_group(self, group: str) -> list[OffsetKey]:
        return [OffsetKey(group, topic, partition) for topic, partition in self._by_group.get(group, {})]

    def apply(self, key: OffsetKey, committed: CommittedOffset | None) -> None:
        """A commit took effect; None takes the offset away."""
        if committed is not None:
            self._by_group.setdefault(key.group, {})[key.topic, key.partition] = committed
            return
        offsets = self._by_group.get(key.group, {})
        offsets.pop((key.topic, key.partition), None)
        if not offsets:
            self._by_group.pop(key.group, None)

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Take one record of the topic into the table; records of other kinds are not ours to read."""
        if key is not None and _I16.unpack_from(key)[0] in (0, KEY_VERSION):
            self.apply(decode_key(key), decode_value(value) if value is not None else None)


def encode_key(key: OffsetKey) -> bytes:
    return _I16.pack(KEY_VERSION) + _text(key.group) + _text(key.topic) + _I32.pack(key.partition)


def encode_value(committed: CommittedOffset) -> bytes:
    head = _VALUE_HEAD.pack(VALUE_VERSION, committed.offset, committed.leader_epoch)
    return head + _text(committed.metadata) + _I64.pack(committed.committed_ms)


def decode_key(data: bytes) -> OffsetKey:
    try:
        group, position = _read_text(data, _I16.size)
        topic, position = _read_text(data, position)
        return OffsetKey(group, topic, _I32.unpack_from(data, position)[0])
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise Malformed(what="offset key", reason=str(error)) from error


def decode_value(data: bytes) -> CommittedOffset:
    try:
        _, offset, epoch = _VALUE_HEAD.unpack_from(data)
        metadata, position = _read_text(data, _VALUE_HEAD.size)
        return CommittedOffset(offset, epoch, metadata, _I64.unpack_from(data, position)[0])
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise Malformed(what="committed offset", reason=str(error)) from error


def _text(text: str) -> bytes:
    data = text.encode()
    return _I16.pack(len(data)) + data


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    length = _I16.unpack_from(data, position)[0]
    start = position + _I16.size
    if length < 0 or start + length > len(data):
        raise IndexError("a text reaches beyond its record")
    return data[start : start + length].decode(), start + length

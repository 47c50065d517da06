"""Transactions and their owners as they stand in the compacted topic `__transaction_state`.

A transactional id is one record in the layout that Kafka tools read: key (version 0, transactional id), value
(version 1: producer id, epoch, timeout, status, partitions by topic, time of the last change, time of the start,
then tagged fields). Tags 0 to 2 are Kafka's: the previous producer id, the next one, the client's transaction
version. Ours begin at 100, and other readers pass over them: 100 the previous epoch, 101 the groups whose offsets are
part of it, 102 the name that a native producer gave it, 103 owner, owner epoch and sequence.

An owner is one record: key (version 100, owner), value (version 0, then JSON): its epoch, the last sequence it has
decided, and its last decisions, each with the producers that committed. Replaying the topic in any order of its
partitions gives the same state; a tombstone takes away what its key names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from rivven.errors import Malformed
from rivven.fields import FieldReader
from rivven.model import NO_EPOCH, NO_PRODUCER, Epoch, ProducerId, TopicPartition

from .txn_state import Txn
from .txn_values import TxnStatus

TXN_KEY = 0
TXN_VALUE = 1
OWNER_KEY = 100
OWNER_VALUE = 0
PREVIOUS_ID_TAG, NEXT_ID_TAG, CLIENT_VERSION_TAG = 0, 1, 2
LAST_EPOCH_TAG, GROUPS_TAG, LABEL_TAG, OWNER_TAG = 100, 101, 102, 103

_I16 = struct.Struct(">h")
_I64 = struct.Struct(">q")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_REGISTERED = struct.Struct(">iq")


class KeptDecision(msgspec.Struct, frozen=True):
    sequence: int
    committed: tuple[tuple[int, int], ...]
    """Producer id and epoch of each transaction that committed; all others of that sequence aborted."""


class KeptOwner(msgspec.Struct, frozen=True):
    epoch: int
    decided: int
    decisions: tuple[KeptDecision, ...]
    """The last ones, oldest first; at least that of `decided`, once there is one."""
    updated_ms: int


def txn_key(transactional_id: str) -> bytes:
    data = transactional_id.encode()
    return _I16.pack(TXN_KEY) + _I16.pack(len(data)) + data


def owner_key(owner: str) -> bytes:
    data = owner.encode()
    return _I16.pack(OWNER_KEY) + _I16.pack(len(data)) + data


def decode_txn_key(key: bytes) -> tuple[int, str]:
    """The key's version, and the transactional id or owner; nothing is read of a version that is not known."""
    reader = _Reader(key, "transaction key")
    version = reader.i16()
    return version, reader.short_text() if version in (TXN_KEY, OWNER_KEY) else ""


def encode_owner(kept: KeptOwner) -> bytes:
    return _I16.pack(OWNER_VALUE) + msgspec.json.encode(kept)


def decode_owner(data: bytes) -> KeptOwner:
    reader = _Reader(data, "owner")
    if (version := reader.i16()) != OWNER_VALUE:
        raise Malformed(what="owner", reason=f"version {version} is not known")
    try:
        return msgspec.json.decode(data[_I16.size :], type=KeptOwner)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(what="owner", reason=str(error)) from error


def encode_txn(txn: Txn) -> bytes:
    parts = [_HEAD.pack(TXN_VALUE, txn.producer_id, txn.epoch, txn.timeout_ms, txn.status.value)]
    parts += [_partitions(txn.partitions), _TIMES.pack(txn.updated_ms, txn.started_ms)]
    tags: list[tuple[int, bytes]] = []
    if txn.last_id != NO_PRODUCER:
        tags.append((PREVIOUS_ID_TAG, _I64.pack(txn.last_id)))
    if txn.next_id != NO_PRODUCER:
        tags.append((NEXT_ID_TAG, _I64.pack(txn.next_id)))
    if txn.version:
        tags.append((CLIENT_VERSION_TAG, _I16.pack(txn.version)))
    if txn.last_epoch != NO_EPOCH:
        tags.append((LAST_EPOCH_TAG, _I16.pack(txn.last_epoch)))
    if txn.groups:
        groups = sorted(txn.groups)
        tags.append((GROUPS_TAG, _varint(len(groups) + 1) + b"".join(_text(group) for group in groups)))
    if txn.label is not None:
        tags.append((LABEL_TAG, _text(txn.label)))
    if txn.owner:
        tags.append((OWNER_TAG, _text(txn.owner) + _REGISTERED.pack(txn.owner_epoch, txn.sequence)))
    parts.append(_varint(len(tags)))
    for tag, data in tags:
        parts += [_varint(tag), _varint(len(data)), data]
    return b"".join(parts)


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    if not topics:
        return _varint(0)
    parts = [_varint(len(topics) + 1)]
    for topic, numbers in topics.items():
        parts += [_text(topic), _varint(len(numbers) + 1), struct.pack(f">{len(numbers)}i", *numbers), _varint(0)]
    return b"".join(parts)


def decode_txn(data: bytes) -> Txn:
    reader = _Reader(data, "transaction")
    if (version := reader.i16()) != TXN_VALUE:
        raise Malformed(what="transaction", reason=f"version {version} is not known")
    producer_id, epoch, timeout_ms = ProducerId(reader.i64()), Epoch(reader.i16()), reader.i32()
    try:
        status = TxnStatus(reader.take(1)[0])
    except ValueError as error:
        raise Malformed(what="transaction", reason=str(error)) from error
    partitions: set[TopicPartition] = set()
    for _ in range(reader.count()):
        topic = reader.text()
        partitions.update(TopicPartition(topic, reader.i32()) for _ in range(reader.count()))
        reader.tags()
    updated_ms, started_ms = reader.i64(), reader.i64()
    tags = reader.tags()
    owner, owner_epoch, sequence = _registered(tags)
    return Txn(
        producer_id,
        epoch,
        timeout_ms,
        updated_ms,
        status,
        frozenset(partitions),
        _groups(tags),
        started_ms,
        ProducerId(tags[PREVIOUS_ID_TAG].i64()) if PREVIOUS_ID_TAG in tags else NO_PRODUCER,
        Epoch(tags[LAST_EPOCH_TAG].i16()) if LAST_EPOCH_TAG in tags else NO_EPOCH,
        ProducerId(tags[NEXT_ID_TAG].i64()) if NEXT_ID_TAG in tags else NO_PRODUCER,
        tags[CLIENT_VERSION_TAG].i16() if CLIENT_VERSION_TAG in tags else 0,
        tags[LABEL_TAG].text() if LABEL_TAG in tags else None,
        owner,
        owner_epoch,
        sequence,
    )


def _groups(tags: dict[int, _Reader]) -> frozenset[str]:
    reader = tags.get(GROUPS_TAG)
    return frozenset() if reader is None else frozenset(reader.text() for _ in range(reader.count()))


def _registered(tags: dict[int, _Reader]) -> tuple[str, int, int]:
    reader = tags.get(OWNER_TAG)
    return ("", -1, -1) if reader is None else (reader.text(), reader.i32(), reader.i64())


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data) + 1) + data


class _Reader(FieldReader):
    """Takes fields off bytes, and says what is wrong with them."""

    def varint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise Malformed(what=self._what, reason=f"a number before byte {self._at} is too long")

    def count(self) -> int:
        """Of an array; null is as good as none."""
        count = max(self.varint() - 1, 0)
        if count > len(self._data):
            raise Malformed(what=self._what, reason=f"{count} entries cannot be in {len(self._data)} bytes")
        return count

    def text(self) -> str:
        return self.text_of(self.varint() - 1)

    def short_text(self) -> str:
        return self.text_of(self.i16())

    def tags(self) -> dict[int, _Reader]:
        found = {}
        for _ in range(self.varint()):
            tag, length = self.varint(), self.varint()
            found[tag] = _Reader(self.take(length), self._what)
        return found

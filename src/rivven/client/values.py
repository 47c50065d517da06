"""What a client hands out: messages, deliveries, the state of an idempotent producer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from operator import index
from typing import Any, NamedTuple

import msgspec

from rivven.errors import RivvenError
from rivven.model import TopicPartition

from .failures import ConfigException, SerializationException

Headers = tuple[tuple[str, bytes | None], ...]
HEADER_OVERHEAD_BYTES = 12


class Message(msgspec.Struct, frozen=True, gc=False):
    """One record as it was read. A `value` of None is a tombstone; `timestamp` counts milliseconds.

    >>> message = Message(b"paid", 7, 1700000000000, 0, "orders", key=b"42")
    >>> message.value_str(), message.key_str(), message.size()
    ('paid', '42', 6)
    """

    value: bytes | None
    offset: int
    timestamp: int
    partition: int
    topic: str
    key: bytes | None = None
    headers: Headers = ()

    def value_str(self) -> str:
        """The value as UTF-8; empty for a tombstone."""
        return (self.value or b"").decode()

    def key_str(self) -> str | None:
        return None if self.key is None else self.key.decode()

    def size(self) -> int:
        """The bytes of key and value."""
        return len(self.value or b"") + len(self.key or b"")


class Delivery(NamedTuple):
    """What became of a record, or of `count` records in a row: their first offset, or the error that stopped them."""

    topic: str
    partition: int
    offset: int
    error: RivvenError | None = None
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which nobody asks a delivery for


OnDelivery = Callable[[Delivery], Any]


class Position(int):
    """An offset that may be awaited as well, for programs that expect a coroutine here."""

    def __await__(self) -> Generator[Any, None, int]:
        yield from ()
        return int(self)


class ProducerState:
    """An idempotent producer's identity. The sequence goes on with every record that was published."""

    __slots__ = ("_next_sequence", "_producer_epoch", "_producer_id")

    def __init__(self, producer_id: int, producer_epoch: int, next_sequence: int = 0) -> None:
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._next_sequence = next_sequence

    @property
    def producer_id(self) -> int:
        return self._producer_id

    @property
    def producer_epoch(self) -> int:
        return self._producer_epoch

    @property
    def next_sequence(self) -> int:
        return self._next_sequence

    def advance(self) -> None:
        self._next_sequence = (self._next_sequence + 1) & 0x7FFFFFFF

    def __repr__(self) -> str:
        return f"ProducerState({self._producer_id}, {self._producer_epoch}, {self._next_sequence})"


class GroupMember(NamedTuple):
    """One member of a consumer group, and what it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class GroupState(NamedTuple):
    """A consumer group as its coordinator sees it. `kind` is "classic" where members assign, "consumer" where the
    broker does, and empty where there is no such group; then `state` is "Dead"."""

    group: str
    kind: str
    state: str
    assignor: str
    members: tuple[GroupMember, ...]


class RebalanceListener:
    """Hears what changes hands in a group. Override what you need; the methods may be coroutines.

    They run while messages are being asked for, and none is handed out meanwhile.
    """

    def on_assigned(self, partitions: list[TopicPartition]) -> Any:
        """These are ours now; their positions are set, and `seek` may change them."""

    def on_revoked(self, partitions: list[TopicPartition]) -> Any:
        """These go to another member: the last moment to commit for them."""

    def on_lost(self, partitions: list[TopicPartition]) -> Any:
        """These are another member's already; nothing can be committed for them. The same as revoked unless told."""
        return self.on_revoked(partitions)


# Transactions, as operators see them

TRANSACTION_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
OPEN_STATES = TRANSACTION_STATES[1:4]
"""In these readers of committed data may be waiting for it."""


class ListedTransaction(NamedTuple):
    """A transactional id, and where its last transaction stands: one of `TRANSACTION_STATES`."""

    transactional_id: str
    producer_id: int
    state: str


class DescribedTransaction(NamedTuple):
    """A transactional id in full. One of a native producer has the `name` that it was begun with, and if an owner
    decides about it, that owner and the `sequence` it belongs to."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """When the open transaction began; None if none is open."""
    partitions: tuple[TopicPartition, ...]
    """What it has written to; offsets of groups lie in `__consumer_offsets`."""
    groups: tuple[str, ...] = ()
    name: str | None = None
    owner: str | None = None
    sequence: int | None = None

    @property
    def is_open(self) -> bool:
        """Readers of committed data may be waiting for it."""
        return self.state in OPEN_STATES


class ActiveProducer(NamedTuple):
    """A producer that a partition remembers."""

    producer_id: int
    producer_epoch: int
    """-1 if the partition has forgotten it."""
    last_sequence: int
    last_write_ms: int
    start_offset: int | None
    """Where its open transaction begins; None if it has none open here."""

    @property
    def is_writing(self) -> bool:
        """Does it have a transaction open here?"""
        return self.start_offset is not None


class HangingTransaction(NamedTuple):
    """A transaction that a partition's log shows as open, and that nobody ends."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    last_write_ms: int
    transactional_id: str | None
    """Its coordinator has it open for longer than any timeout allows; None if no coordinator knows of it."""


def as_number(number: Any, name: str) -> int:
    """The number that whatever is like one stands for."""
    try:
        return index(number)
    except TypeError:
        raise ConfigException(reason=f"{name} is a number, not {number!r:.40}") from None


def as_bytes(data: Any, name: str) -> bytes | None:
    """The bytes of whatever is like bytes."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise SerializationException(reason=f"a {name} is bytes or None, not {type(data).__name__}; encode it first")


def checked_headers(headers: Iterable[Sequence[Any]]) -> tuple[Headers, int]:
    """Headers as the encoder wants them, and the bytes they take at most."""
    pairs: list[tuple[str, bytes | None]] = []
    size_bytes = 0
    for pair in headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SerializationException(reason=f"headers are pairs of a name and bytes, not {pair!r:.40}")
        name, value = pair
        if not isinstance(name, str):
            raise SerializationException(reason=f"a header's name is text, not {type(name).__name__}")
        held = as_bytes(value, "header's value")
        pairs.append((name, held))
        size_bytes += len(name.encode()) + len(held or b"") + HEADER_OVERHEAD_BYTES
    return tuple(pairs), size_bytes

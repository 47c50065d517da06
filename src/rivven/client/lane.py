"""One partition's way out of the outbox: its open batch, those that are sealed, and the numbers that they leave with.

Invariant: a batch keeps its numbers for as long as the server may have it, and the numbers of a lane have no hole: if
one is taken back, so are all behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from rivven.errors import RivvenError
from rivven.record import BatchBuilder, Built, Codec, NewRecord, complete, decode, encode, number

from .retry import Backoff
from .values import Delivery

SEQUENCE_MASK = 0x7FFFFFFF

Watcher = Callable[[Delivery], Any]
Told = list[tuple[Watcher, Delivery]]
"""Whom to tell what, once the caller has no lock any more."""


class Identity(NamedTuple):
    """Who numbers the batches."""

    producer_id: int
    epoch: int
    transactional: bool = False


class Numbers(NamedTuple):
    identity: Identity
    base_sequence: int

    def fields(self) -> dict[str, int]:
        (producer_id, epoch, transactional), sequence = self
        return {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "base_sequence": sequence,
            "transactional": transactional,
        }


class Batch:
    """Records that travel together: as they were gathered until they are encoded for good."""

    __slots__ = (
        *("_written", "born_ms", "built", "count", "encoded", "numbers", "rows", "size_bytes", "tried", "watchers"),
    )

    def __init__(self, count: int, size_bytes: int, born_ms: int, watchers: list[tuple[int, int, Watcher]]) -> None:
        self.count = count
        self.size_bytes = size_bytes
        self.born_ms = born_ms
        self.watchers = watchers
        """The place of the first record, how many, whom to tell. None of them: whoever waits for the whole batch."""
        self.built: Built | None = None
        self.rows: list[NewRecord] | None = None
        self.encoded: bytearray | None = None
        self.numbers: Numbers | None = None
        self._written: Numbers | None = None
        """The numbers that the encoded bytes have."""
        self.tried = False
        """Whether the server may have it already."""

    def encode(self, codec: Codec, level: int | None) -> bytearray:
        numbers = {} if self.numbers is None else self.numbers.fields()
        if self.encoded is None:
            if self.built is not None:
                self.encoded = complete(self.built, codec=codec, level=level, **numbers)  # type: ignore[arg-type]
            else:
                assert self.rows is not None
                self.encoded = encode(self.rows, codec=codec, level=level, **numbers)  # type: ignore[arg-type]
            self.built = self.rows = None
        elif self.numbers != self._written:
            number(self.encoded, **numbers)  # type: ignore[arg-type]
        self._written = self.numbers
        return self.encoded

    def records(self) -> list[NewRecord]:
        if self.rows is not None:
            return self.rows
        encoded = self.encode(Codec.NONE, None)
        return [(record.timestamp_ms, record.key, record.value, record.headers) for record in decode(encoded)]

    def halves(self) -> list[Batch]:
        rows = self.records()
        middle = self.count // 2
        halves = []
        for first, last in ((0, middle), (middle, self.count)):
            watchers = [
                (max(place, first) - first, min(place + count, last) - max(place, first), watcher)
                for place, count, watcher in self.watchers
                if place < last and (place + count > first if count else place >= first)
            ]
            size_bytes = self.size_bytes * (last - first) // self.count
            half = Batch(last - first, size_bytes, self.born_ms, watchers)
            half.rows = rows[first:last]
            halves.append(half)
        halves[1].size_bytes = self.size_bytes - halves[0].size_bytes
        return halves

    def told(self, topic: str, partition: int, base_offset: int, error: RivvenError | None) -> Told:
        return [
            (watcher, Delivery(topic, partition, base_offset + place if error is None else -1, error, count))
            for place, count, watcher in self.watchers
        ]

    @property
    def watched(self) -> bool:
        """Whether somebody hears of every single record."""
        return sum(count for _, count, _ in self.watchers) == self.count


class Lane:
    """One partition's way out."""

    __slots__ = (
        *("backoff", "begun_ms", "builder", "counted_bytes", "identity", "next_sequence", "not_before_ms"),
        *("one_by_one", "parcel", "partition", "ripe", "sealed", "watchers"),
    )

    def __init__(self, partition: int, backoff: Backoff) -> None:
        self.partition = partition
        self.backoff = backoff
        self.builder = BatchBuilder()
        """The open batch; its mark is the size from which on adding a record is more than writing it."""
        self.watchers: list[tuple[int, int, Watcher]] = []
        self.counted_bytes = 0
        """How much of the open batch the outbox knows of."""
        self.ripe = False
        self.begun_ms = 0
        self.sealed: deque[Batch] = deque()
        self.parcel: Parcel | None = None
        """What is under way."""
        self.not_before_ms = 0
        self.one_by_one = False
        """One of several batches was refused for good: send them singly, to find out which."""
        self.identity: Identity | None = None
        self.next_sequence = 0

    def identify(self, identity: Identity) -> None:
        """Number what leaves from now on as somebody who has never written to this partition."""
        self.identity, self.next_sequence = identity, 0

    def number(self, batch: Batch) -> None:
        if batch.numbers is None:
            assert self.identity is not None
            batch.numbers = Numbers(self.identity, self.next_sequence)
            self.next_sequence = (self.next_sequence + batch.count) & SEQUENCE_MASK

    def release(self, batch: Batch) -> None:
        """The server does not have that batch, nor any behind it: the numbers from there on are free again."""
        if batch.numbers is not None and batch.numbers.identity == self.identity:
            self.next_sequence = batch.numbers.base_sequence
            for later in self.sealed:
                later.numbers = None


class Parcel(NamedTuple):
    """Batches of one partition in one request."""

    lane: Lane
    batches: list[Batch]

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)

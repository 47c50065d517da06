"""Whole batches of a topic, as far as they may be seen: what a task reads rows from, and what planning asks.

With every answer a partition tells its bounds. So one request tells where all partitions of a topic end, also for
readers of committed records, and a partition that lost records to retention before they were read is noticed.
A fetcher that was made NOWHERE is for that alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from rivven.client import Bounds, Isolation, Missed, blocking
from rivven.errors import RivvenError
from rivven.limits import MIB
from rivven.record import LOG_APPEND_TIME, walk

FETCH_BYTES = 4 * MIB
"""What is asked for at a time: some 35,000 records of 100 bytes, which Spark takes well."""
STRETCH_BYTES_MAX = 48 * MIB
MISSES_MAX = 3
NOWHERE = 2**62
"""An offset that no partition has: whoever asks for it hears the bounds and gets no records."""


class Piece(NamedTuple):
    """Batches that came in one answer, of which [start, until) is wanted."""

    data: Any
    start: int
    until: int
    checked: bool = False
    """Whether they have been held against their CRCs already."""


class Lost(NamedTuple):
    """Offsets that were asked for and are gone."""

    partition: int
    start: int
    until: int


class Fetcher:
    """A consumer of one topic that hands out batches as they came, and what was said beside them. Those of a single
    partition come out of the broker's files, where it has them on this machine."""

    def __init__(
        self,
        client: blocking.RivvenClient,
        topic: str,
        partitions: int | Iterable[int],
        offset: int,
        *,
        committed: bool,
    ) -> None:
        self.numbers = [partitions] if isinstance(partitions, int) else list(partitions)
        isolation: Isolation = "read_committed" if committed else "read_uncommitted"
        self._near = Near(client, topic, self.numbers[0], isolation) if isinstance(partitions, int) else None
        self._consume = partial(client.consumer, topic, self.numbers, fetch_bytes=FETCH_BYTES, isolation=isolation)
        self._held: blocking.Consumer | None = None
        self._at: int | None = offset
        """Where the next batches begin, if the consumer has not been told yet."""

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            self._held.close()

    @property
    def _consumer(self) -> blocking.Consumer:
        """Made when it is needed, and where it should be."""
        if self._held is None:
            self._held = self._consume(start_offset=self._at)
        elif self._at is not None:
            self._held.seek(self._at)
        self._at = None
        return self._held

    def position(self, partition: int) -> int:
        return self._consumer.positions()[partition] if self._at is None else self._at

    def next(self, partition: int, until: int) -> Piece | None:
        """The next batches of the only partition; None if it has nothing more before `until`."""
        before = self.position(partition)
        if self._near is not None and (near := self._near.next(before)) is not None:
            data, following = near
            self._at = min(following, until)
            return Piece(data, before, until, checked=True)
        taken = self._consumer.fetch_batches(until=until)
        return Piece(taken.chunk.data, before, until) if self.position(partition) > before else None

    def bounds(self, partition: int) -> Bounds:
        """As of the last answer."""
        return self._consumer.bounds()[partition]

    def take_lost(self) -> list[Lost]:
        """What was passed over since the last time."""
        return [] if self._held is None else [Lost(*each) for each in self._held.take_lost()]

    def ask_bounds(self) -> dict[int, Bounds]:
        """The bounds of all partitions, with one request; for a fetcher that is nowhere."""
        self._consumer.fetch_batches()
        return self._consumer.bounds()


def bounds_of(client: blocking.RivvenClient, topic: str) -> dict[int, Bounds]:
    """The bounds of a topic's partitions now."""
    _, count = client.get_metadata(topic)
    with Fetcher(client, topic, range(count), NOWHERE, committed=True) as fetcher:
        return fetcher.ask_bounds()


class Near:
    """A partition in the broker's own files, if they are within reach. What they do not give, the broker does."""

    def __init__(self, client: blocking.RivvenClient, topic: str, partition: int, isolation: Isolation) -> None:
        self._find = partial(client.find_batches, topic, partition, isolation=isolation)
        self._reach = _reaches.setdefault(client, Reach())
        self._bytes = FETCH_BYTES
        self._offset = -1
        self._pieces: Iterator[tuple[Any, int]] = iter(())

    def next(self, offset: int) -> tuple[Any, int] | None:
        """The batches from `offset` on, checked, and the offset behind them."""
        reach = self._reach
        if reach.misses >= MISSES_MAX:
            return None
        try:
            piece = next(self._pieces, None) if offset == self._offset else None
            if piece is None:
                piece = self._look(offset)
        except Missed:
            reach.misses += 1
            return None
        if piece is not None:
            reach.misses = 0
            self._offset = piece[1]
        return piece

    def _look(self, offset: int) -> tuple[Any, int] | None:
        try:
            found = self._find(offset, bytes_max=self._bytes)
        except RivvenError as error:
            if error.retriable:
                raise
            raise Missed from error
        if found is None:
            raise Missed
        self._pieces = found.pieces(FETCH_BYTES)
        piece = next(self._pieces, None)
        if found.part.places:
            self._bytes = min(4 * self._bytes, STRETCH_BYTES_MAX)  # who reads on is told of more at a time
        return piece


class Reach:
    """How often in a row files were not what they should be, or not there; after a few times nobody looks again."""

    def __init__(self) -> None:
        self.misses = 0


_reaches: WeakKeyDictionary[blocking.RivvenClient, Reach] = WeakKeyDictionary()


def stamped_by_broker(data: Any) -> Iterator[tuple[int, int]]:
    """First and last offset of the batches whose records have the broker's time and not their producer's."""
    for _, header in walk(data):
        if header.attributes & LOG_APPEND_TIME:
            yield header.base_offset, header.last_offset

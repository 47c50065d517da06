"""Whole batches of a topic, as far as they may be seen: what a task reads rows from, and what planning asks.

With every answer a partition tells its bounds. So one request tells where all partitions of a topic end, also for
readers of committed records, and a partition that lost records to retention before they were read is noticed.
A fetcher that was made NOWHERE is for that alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rivven.client import Bounds, blocking
from rivven.limits import MIB
from rivven.record import LOG_APPEND_TIME, walk

FETCH_BYTES = 4 * MIB
"""What is asked for at a time: some 35,000 records of 100 bytes, which Spark takes well."""
NOWHERE = 2**62
"""An offset that no partition has: whoever asks for it hears the bounds and gets no records."""


class Piece(NamedTuple):
    """Batches that came in one answer, of which [start, until) is wanted."""

    data: Any
    start: int
    until: int


class Lost(NamedTuple):
    """Offsets that were asked for and are gone."""

    partition: int
    start: int
    until: int


class Fetcher:
    """A consumer of one topic that hands out batches as they came, and what was said beside them."""

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
        self._consumer = client.consumer(
            topic,
            self.numbers,
            start_offset=offset,
            fetch_bytes=FETCH_BYTES,
            isolation="read_committed" if committed else "read_uncommitted",
        )

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def position(self, partition: int) -> int:
        return self._consumer.positions()[partition]

    def next(self, partition: int, until: int) -> Piece | None:
        """The next batches of the only partition; None if it has nothing more before `until`."""
        before = self.position(partition)
        taken = self._consumer.fetch_batches(until=until)
        return Piece(taken.chunk.data, before, until) if self.position(partition) > before else None

    def bounds(self, partition: int) -> Bounds:
        """As of the last answer."""
        return self._consumer.bounds()[partition]

    def take_lost(self) -> list[Lost]:
        """What was passed over since the last time."""
        return [Lost(*each) for each in self._consumer.take_lost()]

    def ask_bounds(self) -> dict[int, Bounds]:
        """The bounds of all partitions, with one request; for a fetcher that is nowhere."""
        self._consumer.fetch_batches()
        return self._consumer.bounds()


def stamped_by_broker(data: Any) -> Iterator[tuple[int, int]]:
    """First and last offset of the batches whose records have the broker's time and not their producer's."""
    for _, header in walk(data):
        if header.attributes & LOG_APPEND_TIME:
            yield header.base_offset, header.last_offset

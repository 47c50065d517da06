"""What a partition remembers of each producer: its epoch, its last five batches, and when it last wrote.

Enough to answer a retried batch with the offset it got the first time, also after a restart: the table is part
of the partition's snapshot and is brought up to date from the log's batch headers.
Invariant: the batches of a producer all carry its present epoch, oldest first, at most five.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from rivven.errors import InvalidProducerEpoch, OutOfOrderSequence
from rivven.limits import PRODUCER_BATCHES_KEPT, PRODUCERS_PER_PARTITION_MAX
from rivven.model import TopicPartition
from rivven.record import BatchHeader

SEQUENCE_MAX = 2**31 - 1


class ProducedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class Producer(NamedTuple):
    """Values as they stand in a snapshot: an immutable row, replaced as a whole."""

    producer_id: int
    epoch: int
    last_timestamp_ms: int
    batches: tuple[ProducedBatch, ...]


def last_sequence_of(header: BatchHeader) -> int:
    """Sequences wrap from 2^31 - 1 to 0."""
    return (header.base_sequence + header.last_offset_delta) & SEQUENCE_MAX


def follows(before: BatchHeader, header: BatchHeader) -> bool:
    """Whether this is the batch that the producer of the one before numbered next."""
    # By place, in both: a broker does this for every batch.
    due = (before[11] + before[6] + 1) & SEQUENCE_MAX
    return before[9] == header[9] and before[10] == header[10] and header[11] == due


class Producers:
    def __init__(self, rows: list[Producer] | None = None) -> None:
        self._by_id = {row.producer_id: row for row in rows or []}
        self._silent: set[int] = set()
        """Those that have not written since `expire` was last called."""

    def __len__(self) -> int:
        return len(self._by_id)

    def ids(self) -> Iterable[int]:
        return self._by_id.keys()

    def get(self, producer_id: int) -> Producer | None:
        return self._by_id.get(producer_id)

    def rows(self) -> list[Producer]:
        return list(self._by_id.values())

    def judge(self, partition: TopicPartition, header: BatchHeader) -> ProducedBatch | None:
        """The batch that this one repeats, or None if it comes next. Raises if it does neither.

        A producer that is not known here may begin with any sequence: what it wrote before may have expired.
        """
        known = self._by_id.get(header.producer_id)
        if known is None:
            return None
        given, facts = header.base_sequence, {"partition": partition, "producer_id": header.producer_id}
        if header.producer_epoch < known.epoch:
            raise InvalidProducerEpoch(present=known.epoch, given=header.producer_epoch, **facts)
        if header.producer_epoch > known.epoch or not known.batches:
            if given != 0 and header.producer_epoch > known.epoch:
                raise OutOfOrderSequence(given=given, due=0, **facts)
            return None
        last_sequence = last_sequence_of(header)
        for produced in known.batches:
            if produced.base_sequence == given and produced.last_sequence == last_sequence:
                return produced
        due = (known.batches[-1].last_sequence + 1) & SEQUENCE_MAX
        if given != due:
            raise OutOfOrderSequence(given=given, due=due, **facts)
        return None

    def note(self, header: BatchHeader) -> None:
        """Take an appended batch into account. Control batches carry an epoch, but no sequence."""
        known = self._by_id.pop(header.producer_id, None)
        self._silent.discard(header.producer_id)
        batches = known.batches if known is not None and known.epoch == header.producer_epoch else ()
        if not header.control and header.base_sequence >= 0:
            produced = ProducedBatch(
                header.base_sequence, last_sequence_of(header), header.base_offset, header.last_offset
            )
            batches = (*batches[-(PRODUCER_BATCHES_KEPT - 1) :], produced)
        epoch = max(header.producer_epoch, known.epoch) if known is not None else header.producer_epoch
        # Popped and put back: the dictionary's order is that of the last write, oldest first.
        self._by_id[header.producer_id] = Producer(header.producer_id, epoch, header.max_timestamp_ms, batches)
        if len(self._by_id) > PRODUCERS_PER_PARTITION_MAX:
            del self._by_id[next(iter(self._by_id))]

    def expire(self, keep: Container[int] = ()) -> int:
        """Forget the producers that have not written since the call before, but for those in `keep`; how many.

        Called once in a while, it lets a producer go that is silent for once to twice as long. The times of its
        records would not do: a producer may write old ones.
        """
        gone = [producer_id for producer_id in self._silent if producer_id in self._by_id and producer_id not in keep]
        for producer_id in gone:
            del self._by_id[producer_id]
        self._silent = set(self._by_id)
        return len(gone)

"""The shared nouns. Each identifies or counts one thing, and none knows anything else of the package."""

from __future__ import annotations

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""Where a record stands in its partition; dense from 0, except where compaction or a marker took a place."""

Epoch = NewType("Epoch", int)
"""How often a partition has changed its leader."""

ProducerId = NewType("ProducerId", int)
NodeId = NewType("NodeId", int)

NO_PRODUCER = ProducerId(-1)
NO_EPOCH = Epoch(-1)


class TopicPartition(NamedTuple):
    """One partition of one topic: the unit of order, of leadership and of storage."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

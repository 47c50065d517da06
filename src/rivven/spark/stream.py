"""A topic as a stream: micro-batches from one offset per partition to the next.

Spark keeps the offsets; what lies between two of them is read again as it was after a crash. Partitions and topics
that appear while the stream runs are read from their beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rivven.client import Bounds
from rivven.errors import RivvenError
from rivven.model import TopicPartition

from .offsets import Document, Offsets, Stretch, from_document, limited, to_document
from .options import Reading
from .planning import Planner, log
from .rows import rows_of

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, in one process for as long as the stream runs; `read` is called in the tasks."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema
        self._planner = Planner(reading)
        self._bounds: dict[TopicPartition, Bounds] = {}
        """As they were when the last batch was planned."""
        self._target: Offsets | None = None
        """Where a run ends that reads what is there and no more."""
        self._published: Offsets = {}

    # Which offsets

    def initialOffset(self) -> Document:  # noqa: N802  # Spark's names, here and below
        return to_document(self._planner.resolve(self._reading.start, self._planner.present_partitions()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._reading.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Document:  # noqa: N802
        begun = from_document(start)
        self._publish(begun)  # the batch that ended here is done; Spark itself says so only when it has another
        ends = self._ends()
        if self._target is not None:
            ends = {each: min(offset, self._target[each]) for each, offset in ends.items() if each in self._target}
        for each, offset in begun.items():
            if each not in ends:
                if each not in self._bounds:
                    self._planner.lost(each, offset, offset + 1, "the topic or the partition was deleted")
                ends[each] = offset
        known = {each: begun.get(each, self._bounds[each].earliest) for each in ends if each in self._bounds}
        if isinstance(limit, ReadMaxRows):
            ends = limited(known, ends, limit.max_rows)
        return to_document(ends)

    def _ends(self) -> Offsets:
        self._bounds = self._planner.bounds(self._planner.partitions())
        return {each: self._planner.end_of(bounds) for each, bounds in self._bounds.items()}

    def reportLatestOffset(self) -> Document | None:  # noqa: N802
        ends = {each: self._planner.end_of(bounds) for each, bounds in self._bounds.items()}
        return to_document(ends) if ends else None

    # Which tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, ends = from_document(start), from_document(end)
        there = self._present(list(ends))
        ranges = {each: self._range(each, begun.get(each), ends[each]) for each in ends if each in there}
        return [*self._planner.stretches(ranges)]

    def _present(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """The bounds of those that are there. After a crash a batch is planned again, and none are known yet."""
        if not set(partitions) <= set(self._bounds):
            found = set(self._planner.partitions())
            self._bounds = self._planner.bounds([each for each in partitions if each in found])
        return self._bounds

    def _range(self, partition: TopicPartition, start: int | None, until: int) -> tuple[int, int]:
        earliest = self._bounds[partition].earliest
        if start is None:
            return earliest, until
        if until < start:
            self._planner.lost(
                partition, until, start, f"the partition ends at {until} now; was the topic made anew?"
            )
            return earliest, until
        if start < earliest and start < until:
            self._planner.lost(partition, start, earliest, "retention came first")
            return earliest, max(earliest, until)
        return start, until

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Stretch)
        yield from rows_of(partition, self._reading, self._schema)

    # What became of them

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything before."""
        self._publish(from_document(end))

    def _publish(self, offsets: Offsets) -> None:
        """Tell it as the progress of the group, if there is one."""
        group = self._reading.group
        if group is None:
            return
        news = {each: offset for each, offset in offsets.items() if self._published.get(each) != offset}
        try:
            for each, offset in news.items():
                self._planner.client.commit_offset(group, *each, offset)
                self._published[each] = offset
        except RivvenError as error:
            log.warning("the progress of group %s is not published: %s", group, error)  # it is with the next batch

    def stop(self) -> None:
        self._planner.close()

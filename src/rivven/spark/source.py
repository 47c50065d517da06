"""The Spark format `rivven`: topics as tables that are read and written, in batches and in streams.

Spark makes a source anew in every process that needs one, from its options alone. So whatever is made here is small,
holds no connection, and checks its options before anybody is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from rivven.model import TopicPartition

from .columns import check_written, columns_of, schema_of
from .filters import Selection, select
from .offsets import Stretch
from .options import Reading, Writing, columns_asked, for_reading, for_writing, normalized, refuse
from .planning import Planner
from .rows import rows_of
from .sink import BatchWriter, StreamWriter
from .stream import StreamReader

if TYPE_CHECKING:
    import pyarrow as pa


class RivvenSource(DataSource):
    """`spark.read.format("rivven")` and its like; `rivven.spark.register` makes it known."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = normalized(options)

    @classmethod
    def name(cls) -> str:
        return "rivven"

    def schema(self) -> StructType:
        return schema_of(columns_asked(self._options))

    def reader(self, schema: StructType) -> DataSourceReader:
        columns_of(schema)
        reading = for_reading(self._options, stream=False)
        return (FilteringReader if reading.takes_filters else BatchReader)(reading, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        columns_of(schema)
        return StreamReader(for_reading(self._options, stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchWriter(self._writing(schema, overwrite, stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return StreamWriter(self._writing(schema, overwrite, stream=True))

    def _writing(self, schema: StructType, overwrite: bool, *, stream: bool) -> Writing:
        writing = for_writing(self._options, stream=stream)
        if overwrite:
            refuse("a topic is only ever appended to; use mode('append'), and in a stream outputMode('append')")
        check_written(schema, writing.topic)
        return writing


class BatchReader(DataSourceReader):
    """Reads what is there between two places."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema
        self._selection = Selection()

    def partitions(self) -> list[InputPartition]:
        planner = Planner(self._reading)
        try:
            return [*planner.stretches(self._ranges(planner))] or [Stretch("", 0, 0, 0)]
        finally:
            planner.close()

    def _ranges(self, planner: Planner) -> dict[TopicPartition, tuple[int, int]]:
        everything = planner.present_partitions()
        starts = planner.resolve(self._reading.start, everything)
        ends = planner.resolve(self._reading.end, everything)
        bounds = planner.bounds(everything)
        offsets, times_ms = self._selection.offsets, self._selection.times_ms
        ranges = {}
        for each in everything:
            if not self._selection.has(*each):
                continue
            start, until = max(starts[each], offsets.low), min(ends[each], offsets.high + 1)
            if start < bounds[each].earliest and until > start:
                if self._reading.start.table is not None:
                    planner.lost(each, start, bounds[each].earliest, "retention came first")
                start = bounds[each].earliest
            if times_ms.low > 0 and start < until:
                start = max(start, planner.at_time(each, times_ms.low, bounds[each]))
            ranges[each] = (start, min(until, planner.end_of(bounds[each])))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Stretch)
        if partition.count:
            yield from rows_of(partition, self._reading, self._schema, self._selection.times_ms)


class FilteringReader(BatchReader):
    """Reads what filters leave. Only for a table that one query uses once, so it must be asked for.

    Spark 4.3 keeps what a reader planned with the table and not with the query. Of a table that is used again, be it
    in the same query, all uses would read what the latest filters have left.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        self._selection, left = select(filters)
        yield from left

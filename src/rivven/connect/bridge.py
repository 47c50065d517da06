"""From the SDK to Spark: an ArrowSource becomes a stream reader, an ArrowSink a stream writer.

Each connector of a run gets a data source class of its own, made here and registered under a name of its own. The
settings travel inside the pickled class, so that no secret becomes an option that a query plan would show.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rivven.spark import Writing, Written, decide, give_up, write_rows, writing_of

from .refusals import Letters
from .sdk import ASIDE, ArrowSink, ArrowSource, Batch, Launch, Position, Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


QUERY_ID = "sql.streaming.queryId"


def _format_name(kind: str, launch: Launch) -> str:
    """Unique in the session: two runs in one process must not share a registration."""
    return f"rivven_{kind}_{re.sub('[^a-zA-Z0-9]', '_', launch.name)}_{uuid4().hex[:8]}"


# Sources


def stream_of(source: ArrowSource[Any], spark: SparkSession, launch: Launch) -> DataFrame:
    """The streaming DataFrame of an ArrowSource."""
    name = _format_name("source", launch)
    rates = [rate for rate in (source.rate(), launch.rows_per_second) if rate > 0]
    rows = min(source.rows_per_batch, launch.batch_rows)
    made = _source_class(name, source, spark_schema(source.schema()), min(rates, default=0.0), rows)
    spark.dataSource.register(made)
    return spark.readStream.format(name).load()


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of Arrow columns, all of which may be null."""
    import pyarrow as pa

    return from_arrow_schema(pa.schema([field.with_nullable(True) for field in schema]))


def _source_class(
    name: str, source: ArrowSource[Any], schema: StructType, rate: float, rows: int
) -> type[DataSource]:
    own_name, own_schema = name, schema

    class ConnectorSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return own_name

        def schema(self) -> StructType:
            return own_schema

        def streamReader(self, schema: StructType) -> Reader:  # noqa: N802
            return Reader(source, schema, rate, rows)

    return ConnectorSource


@dataclass
class Part(InputPartition):
    """One part of a plan, as the source made it."""

    value: Any


class Bucket:
    """A rate as tokens: a micro-batch may have what has gathered since the one before."""

    WORTH_S = 10.0
    """How much may gather: after a slow batch the rate is made up for, within reason."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens = max(1.0, rate)
        self._seen_s = time.monotonic()

    def take_at_most(self) -> int:
        now_s = time.monotonic()
        self._tokens = min(self._tokens + (now_s - self._seen_s) * self._rate, max(1.0, self._rate * self.WORTH_S))
        self._seen_s = now_s
        return int(self._tokens)

    def spend(self, rows: int) -> None:
        self._tokens -= rows

    def wait(self) -> None:
        """Until there is a second's worth, or one record for slow rates."""
        wanted = max(1.0, self._rate)
        time.sleep(max(0.0, (wanted - self._tokens) / self._rate))


class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An ArrowSource for Spark: in the planning process of a query, and in its tasks."""

    def __init__(self, source: ArrowSource[Any], schema: StructType, rate: float, rows: int) -> None:
        self._source = source
        self._rows = rows
        self._schema = schema
        self._bucket = Bucket(rate) if rate else None
        self._once = False
        self._last: Position | None = None
        """Where a run that ends has its end."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._source.start_position()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._once = True
        self._last = self._source.newest_position()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows
        newest = self._last if self._once else self._source.newest_position()
        if newest is not None and self._source.advance(start, newest, rows) == start:
            return start
        if self._bucket is not None:
            if self._once and self._bucket.take_at_most() < 1:
                self._bucket.wait()
            rows = min(rows, self._bucket.take_at_most())
        end = self._source.advance(start, newest, rows) if rows else start
        if self._once and newest is None:
            self._last = end
        if self._bucket is not None and end != start:
            made = self._source.rows_between(start, end)
            self._bucket.spend(rows if made is None else made)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._last if self._once else self._source.newest_position()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [] if start == end else [Part(value) for value in self._source.plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part), "plan() made it"
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        for batch in self._source.read(partition.value):
            if batch.num_rows:
                yield fitted(batch, wanted)

    def commit(self, end: dict[str, Any]) -> None:
        self._source.commit(end)

    def stop(self) -> None:
        self._source.close()


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in exactly the types that Spark reads: it looks at the first batch only, and trusts the rest."""
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    columns = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# Topics


def start_to_topic(frame: DataFrame, launch: Launch, options: Mapping[str, str]) -> StreamingQuery:
    """Start the query that writes records to topics, exactly once.

    Spark lets a sink in Python take appended rows alone. What changes its rows is written batch by batch, under the
    query's own id and number, which comes to the same: a batch that was decided is not written again.
    """
    writer = launch.writer(frame)
    if launch.output_mode == "append":
        return writer.format("rivven").options(**options).start()
    kept = launch.recall("owner", lambda: f"connect/{uuid4()}")

    def write(batch: DataFrame, batch_id: int) -> None:
        numbered = {"ownerId": _owner(batch.sparkSession, kept), "sequence": str(batch_id)}
        batch.write.format("rivven").options(**options, **numbered).mode("append").save()

    return writer.foreachBatch(write).start()


def _owner(spark: SparkSession, kept: str) -> str:
    """The query's id, new with a new checkpoint; where Spark does not tell, what the state directory keeps."""
    try:
        query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkAttributeError:  # a session of Spark Connect has no context
        query_id = None
    return f"spark/{query_id}/rows" if query_id else kept


# Sinks


def start_writing(sink: ArrowSink[Any], frame: DataFrame, launch: Launch) -> StreamingQuery:
    """Start the query that writes a frame to an ArrowSink."""
    name = _format_name("sink", launch)
    sink.prepare(to_arrow_schema(frame.drop(*ASIDE).schema, timezone="UTC"))
    letterbox = None
    if launch.dead_letter_topic is not None:
        letterbox = Letterbox(launch.name, launch.dead_letter_topic, writing_of(launch.broker))
    frame.sparkSession.dataSource.register(_sink_class(name, sink, letterbox))
    return launch.writer(frame).format(name).start()


def _sink_class(name: str, sink: ArrowSink[Any], letterbox: Letterbox | None) -> type[DataSource]:
    own_name = name

    class ConnectorSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return own_name

        def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:  # noqa: ARG002, N802
            return Writer(sink, letterbox)

    return ConnectorSink


@dataclass(frozen=True)
class Letterbox:
    """Where rows go that a sink refuses: one transaction of the broker for each task, as with any other topic.

    Invariant: letters are decided after the sink's own commit, under the same number. A crash in between brings the
    batch again, and with it the same refusals; one after both finds the batch decided, and writes no letter twice.
    """

    connector_name: str
    topic: str
    writing: Writing

    def post(self, letters: Letters, batch: Batch) -> Written | None:
        """Write the letters of a task, for nobody to see yet."""
        if not letters.count:
            return None
        return write_rows(self.writing, f"spark/{batch.query_id}/letters", batch.batch_id, letters.batches())


@dataclass
class Wrote(WriterCommitMessage):
    """A task's receipt, with the query that it belongs to: the driver's side is not told otherwise."""

    receipt: Any
    query_id: str
    letters: Written | None = None


class Writer(DataSourceStreamArrowWriter):
    """An ArrowSink for Spark: `write` in the tasks, the rest in a process beside the driver."""

    def __init__(self, sink: ArrowSink[Any], letterbox: Letterbox | None) -> None:
        self._sink = sink
        self._letterbox = letterbox

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # Spark's own
        context = TaskContext.get()
        assert context is not None, "this runs in a task"
        query_id = context.getLocalProperty(QUERY_ID) or ""
        batch = Batch(query_id, int(context.getLocalProperty("streaming.sql.batchId") or 0))
        place, attempt = context.partitionId(), uuid4().hex
        try:
            if self._letterbox is None:
                return Wrote(self._sink.write(iterator, Task(batch, place, attempt)), query_id)
            with closing(Letters(self._letterbox.connector_name, self._letterbox.topic)) as letters:
                rows = letters.readable(iterator)
                receipt = self._sink.write(rows, Task(batch, place, attempt, letters.refuse))
                deque(rows, 0)  # a sink need not look at a batch that it has already; we do, for its letters
                return Wrote(receipt, query_id, self._letterbox.post(letters, batch))
        finally:
            self._sink.close()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        wrote = [message for message in messages if isinstance(message, Wrote)]
        receipts = [message.receipt for message in wrote if message.receipt is not None]
        try:
            if receipts:
                self._sink.commit(receipts, Batch(wrote[0].query_id, batchId))
            if self._letterbox is not None:
                decide(self._letterbox.writing, [message.letters for message in wrote])
        finally:
            self._sink.close()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        wrote = [message for message in messages if isinstance(message, Wrote)]
        receipts = [message.receipt for message in wrote if message.receipt is not None]
        try:
            if receipts:
                self._sink.abort(receipts, Batch(wrote[0].query_id, batchId))
            if self._letterbox is not None:
                for owner in {
                    message.letters.owner for message in wrote if message.letters and message.letters.owner
                }:
                    give_up(self._letterbox.writing, owner)
        finally:
            self._sink.close()

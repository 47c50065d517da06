"""Rows into topics, exactly once: one transaction for each task, one decision for each batch.

A task writes inside a transaction and leaves it open. When all tasks are done the driver has the broker decide: the
transactions of the tasks that count commit, all others of the batch abort, in one step. A batch that
Spark runs again after a crash finds that it was decided, and writes nothing. (docs/protocols/batch-decisions.md)

Spark makes a writer on the driver and hands copies to the tasks, so nothing is remembered here but what a writer was
made with and what the messages of the tasks carry. A table's writer registers its owner before there are tasks: one
that runs on after Spark has given it up is fenced, and leaves nothing open. A stream's owner only its tasks know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from rivven.client import ConfigException, ServerException, blocking
from rivven.errors import RivvenError

from .clients import client_of, patiently, settle
from .options import Writing

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
ALREADY_DECIDED = "ALREADY_DECIDED"
"""The word with which a broker refuses an attempt that comes too late."""
RECORD = ("key", "value", "headers", "timestamp")
GATHERED_BYTES = 4 * 1024 * 1024

log = logging.getLogger("rivven.spark")


class Registration(NamedTuple):
    owner: str
    epoch: int
    decided: int = -1


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task did. Without an identity there is nothing to decide about: it had no rows, or others decided."""

    rows: int = 0
    owner: str = ""
    epoch: int = -1
    sequence: int = -1
    identity: tuple[int, int] | None = None
    decided: bool = False
    """The batch had been decided before, so the rows were passed over."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a table. The owner is this write alone, unless somebody writes numbered batches under a name."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._sequence = writing.sequence or 0
        name = writing.owner or f"spark/{uuid4()}"
        self._owner = register(writing, name, fence=True) if writing.exactly_once else Registration(name, -1)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]  # as Spark's own does
        return write_rows(self._writing, self._owner, self._sequence, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        decide(self._writing, messages)
        self._forget(self._owner)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        del messages  # a task that was killed sent none, and may have left something open
        self._forget(give_up(self._writing, self._owner.owner))

    def _forget(self, registration: Registration | None) -> None:
        """A named owner stays: its next batches have numbers, too."""
        if registration is not None and self._writing.exactly_once and self._writing.owner is None:
            forget(self._writing, registration)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. The owner is the query, which keeps its id for as long as its checkpoint."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]  # as Spark's own does
        task: Any = TaskContext.get()
        owner = self._writing.owner or f"spark/{task.getLocalProperty(QUERY_ID)}"
        return write_rows(self._writing, owner, int(task.getLocalProperty(BATCH_ID)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's
        assert all(each.sequence in (-1, batchId) for each in _written(messages)), "tasks of another batch"
        decide(self._writing, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId  # whose batch it is, only the tasks know
        for owner in {each.owner for each in _written(messages) if each.owner}:
            give_up(self._writing, owner)


def register(writing: Writing, owner: str, *, fence: bool) -> Registration:
    """Make the owner known, or join it as it is; with `fence`, what others have open under its name aborts."""
    client = patiently(lambda: client_of(writing.access))
    return Registration(*patiently(lambda: client.register_owner(owner, fence=fence)))


# In a task


def write_rows(
    writing: Writing, owner: Registration | str, sequence: int, tables: Iterator[pa.RecordBatch]
) -> Written:
    """Write what comes, if anything does, for an owner that is registered, or for one whose name is joined here."""
    settle()
    first = next((table for table in tables if table.num_rows), None)
    if first is None:
        return Written()
    client = patiently(lambda: client_of(writing.access))
    if not writing.exactly_once:
        return Written(_write_plainly(client, writing, first, tables))
    name, epoch, decided = register(writing, owner, fence=False) if isinstance(owner, str) else owner
    if decided >= sequence:
        return _passed_over(name, epoch, sequence, first, tables)
    try:
        attempt = client.attempt(name, epoch, sequence, timeout_ms=writing.transaction_timeout_ms)
    except ServerException as error:
        if error.word != ALREADY_DECIDED:
            raise
        return _passed_over(name, epoch, sequence, first, tables)
    with attempt:
        rows = _put_all(writing, attempt.producer, first, tables)
        attempt.flush()
        return Written(rows, name, epoch, sequence, attempt.identity)


def _write_plainly(
    client: blocking.RivvenClient, writing: Writing, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
) -> int:
    """Without a transaction: each record is stored before this returns, and again if Spark runs the task again."""
    with ExitStack() as stack:
        made: dict[str, blocking.Producer] = {}

        def producer_of(topic: str, *, compression: str) -> blocking.Producer:
            if topic not in made:
                made[topic] = stack.enter_context(client.producer(topic, compression=compression))
            return made[topic]

        return _put_all(writing, producer_of, first, rest)


def _passed_over(
    owner: str, epoch: int, sequence: int, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
) -> Written:
    """Take the rows and leave them: Spark waits until they are taken."""
    rows = first.num_rows + sum(table.num_rows for table in rest)
    return Written(rows, owner, epoch, sequence, decided=True)


def _put_all(
    writing: Writing,
    producer_of: Callable[..., blocking.Producer],
    first: pa.RecordBatch,
    rest: Iterator[pa.RecordBatch],
) -> int:
    producers: dict[str, blocking.Producer] = {}
    rows = 0
    for table in gathered(chain((first,), rest)):
        for topic, part in by_topic(table, writing.topic):
            if topic not in producers:
                producers[topic] = producer_of(topic, compression=writing.compression)
            for piece in by_placement(part):
                producers[topic].put_arrow(piece)
        rows += table.num_rows
    return rows


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in tables of a few megabytes: Spark hands over 10,000 at a time, however short they are, and no
    batch has rows of two tables."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= GATHERED_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def by_topic(table: pa.Table, default: str | None) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each topic, in their order: a row's own topic, else the one that was given."""
    import pyarrow.compute as pc

    if "topic" not in table.schema.names:
        assert default is not None, "checked with the schema"
        yield default, table
        return
    column: Any = table.column("topic")
    if column.null_count:
        if default is None:
            raise ConfigException(
                reason="a row has no topic; fill the column 'topic', or give option 'topic' for such"
            )
        column = column.fill_null(default)
    names = column.unique().to_pylist()
    for name in names:
        if not name:
            raise ConfigException(reason="a row's topic is an empty text; fill the column 'topic'")
        yield name, table if len(names) == 1 else table.filter(pc.equal(column, name))


def by_placement(table: pa.Table) -> Iterator[pa.Table]:
    """Rows that say where they go, and rows that go by their key, each as a producer takes them."""
    import pyarrow.compute as pc

    names = [name for name in table.schema.names if name in RECORD]
    if "partition" not in table.schema.names:
        yield table.select(names)
        return
    column: Any = table.column("partition")
    lowest = pc.min(column).as_py()
    if lowest is not None and lowest < 0:
        raise ConfigException(
            reason=f"a row's partition is {lowest}; partitions count from 0, and null goes by the key"
        )
    if column.null_count == 0:
        yield table.select([*names, "partition"])
        return
    placed, free = table.filter(column.is_valid()), table.filter(column.is_null())
    if placed.num_rows:
        yield placed.select([*names, "partition"])
    yield free.select(names)


# On the driver


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [each for each in messages if isinstance(each, Written)]


def decide(writing: Writing, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Have what the tasks wrote committed, all at once; it may have been decided before."""
    written = [each for each in _written(messages) if each.identity is not None]
    if not written:
        return
    latest = max(written, key=lambda each: each.epoch)
    identities = [each.identity for each in written if each.identity is not None]
    client = patiently(lambda: client_of(writing.access))
    patiently(lambda: client.decide(latest.owner, latest.epoch, latest.sequence, identities))


def give_up(writing: Writing, owner: str) -> Registration | None:
    """Have open attempts of the owner aborted, as far as the broker can be reached: else their time runs out.

    A new registration does that. Deciding for none of them would too, and the batch could never be written again.
    """
    if not writing.exactly_once:
        return None
    try:
        return Registration(*client_of(writing.access).register_owner(owner, fence=True))
    except RivvenError as error:
        log.warning("what was written for %s stays open until its timeout: %s", owner, error)
        return None


def forget(writing: Writing, registration: Registration) -> None:
    """Have the broker forget an owner that was this write alone; it takes nothing more under that name."""
    try:
        client_of(writing.access).forget_owner(registration.owner, registration.epoch)
    except RivvenError as error:
        log.debug("the owner %s stays behind: %s", registration.owner, error)

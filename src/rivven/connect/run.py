"""Running a plan: each query is started, watched, started again after a failure, and ended with its data done.

`Runner.step` is called again and again by whoever waits; it never waits itself longer than Spark takes to answer.
A query that fails begins again from its checkpoint after a pause that grows; what can never work fails at once.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import AnalysisException, ParseException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from rivven.client import blocking
from rivven.errors import RivvenError

from . import records, starts, topics
from .bridge import start_to_topic
from .config import ConnectConfig, PipelineEntry, SinkEntry, SourceEntry, Step
from .plan import QueryPlan, topics_of
from .progress import Progress
from .sdk import ASIDE, RESERVED, OutputMode, Sink, Transform
from .state import StateDirectory
from .transforms.columns import NoSuchColumn, data_columns, quoted, split
from .transforms.routing import apply_where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("rivven.connect.run")

State = Literal["new", "waiting", "running", "retrying", "done", "failed", "stopped"]
ENDED: tuple[State, ...] = ("done", "failed", "stopped")
SAMPLE_ROWS = 500
"""Records of each partition that a schema is found from."""


class CannotRun(RivvenError, code=204):
    """A pipeline that cannot start as it is; trying again does not help."""

    message = "{text}"


@dataclass(slots=True)
class Launched:
    """What a connector is told about its run."""

    name: str
    once: bool
    rows_per_second: float
    batch_rows: int
    dead_letter_topic: str | None
    trigger_ms: int
    ends: bool
    checkpoint: str
    place: str
    state: StateDirectory
    broker: dict[str, str] = field(default_factory=dict)
    output_mode: OutputMode = "append"
    client: blocking.RivvenClient | None = None

    def writer(self, frame: DataFrame) -> DataStreamWriter:
        made = frame.writeStream.queryName(self.name).option("checkpointLocation", self.checkpoint)
        made = made.outputMode(self.output_mode)
        if self.once or self.ends:
            return made.trigger(availableNow=True)
        return made.trigger(processingTime=f"{self.trigger_ms} milliseconds")

    def recall(self, key: str, make: Callable[[], str]) -> str:
        return self.state.recall(f"{self.place}/{key}", make)

    def record_bytes_max(self, topic: str) -> int:
        assert self.client is not None, "what writes to topics has a broker"
        return topics.record_bytes_max(self.client, topic)


@dataclass(slots=True)
class Work:
    """One query of the run, and how it is."""

    plan: QueryPlan
    state: State = "new"
    query: StreamingQuery | None = None
    progress: Progress = field(default_factory=Progress)
    failures: int = 0
    """In a row, without a batch done in between."""
    errors: int = 0
    error: str = ""
    due_s: float = 0.0

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class Runner:
    """All queries of a run in one Spark session."""

    def __init__(
        self,
        config: ConnectConfig,
        plans: Sequence[QueryPlan],
        spark: SparkSession,
        state: StateDirectory,
        *,
        once: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.works = [Work(plan) for plan in plans]
        self.once = once
        self._config = config
        self._spark = spark
        self._state = state
        self._now_s = now_s
        self._client: blocking.RivvenClient | None = None
        self._written: dict[str, tuple[records.Envelope, StructType]] = {}
        """What this run writes to a topic, by which a sink of the same run knows its columns."""

    def prepare(self) -> list[str]:
        """Look for the broker and the topics, as far as any are needed; which topics were made."""
        plans = [work.plan for work in self.works]
        if not any(plan.topics_read or plan.topics_written for plan in plans):
            return []
        assert self._config.broker is not None, "the file was checked"
        self._client = topics.connect(self._config.broker)
        made = topics.ensure(self._client, self._config, plans)
        for plan in plans:
            if isinstance(plan.entry, SinkEntry) and plan.entry.start_offset == "latest":
                starts.keep(self._state, self._client, plan)
        return made

    @property
    def connected(self) -> bool:
        return self._client is not None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    # One step

    def step(self) -> bool:
        """Start what is due, look at what runs; whether anything is left to do."""
        phase = min((work.plan.phase for work in self.works if not work.ended), default=0)
        for work in self.works:
            if work.ended or (self.once and work.plan.phase > phase):
                continue
            if work.query is None:
                if self._now_s() >= work.due_s:
                    self._start(work)
            else:
                self._look_at(work)
        return not all(work.ended for work in self.works)

    def stop(self) -> None:
        """End all queries; what they have not committed is done by the next run."""
        for work in self.works:
            if work.query is not None and not work.ended:
                try:
                    work.query.stop()
                except PySparkException as error:
                    logger.warning("%s did not stop in time: %s", work.plan.name, why(error))
                work.state = "stopped"

    def _start(self, work: Work) -> None:
        try:
            query = self._build(work)
        except (CannotRun, NoSuchColumn, ValueError, AnalysisException, ParseException) as error:
            if broker_was_away(error):
                self._failed(work, error)
            else:
                self._fail(work, why(error))
            return
        except (RivvenError, PySparkException, OSError) as error:
            self._failed(work, error)
            return
        if query is None:
            if self.once:
                work.state = "done"
            else:
                work.state, work.due_s = "waiting", self._now_s() + 1.0
            return
        work.query, work.state = query, "running"
        work.progress.restarted()

    def _look_at(self, work: Work) -> None:
        query = work.query
        assert query is not None, "the caller has looked"
        active, error = query.isActive, query.exception()
        before = work.progress.batches
        work.progress.take(_new_reports(query, work.progress.last_batch))
        if work.progress.batches > before:
            work.failures = 0
        if active:
            return
        if error is not None:
            self._failed(work, error)
        elif self.once or work.plan.bounded:
            work.state = "done"
        else:
            self._fail(work, "the query was stopped by somebody else")

    def _failed(self, work: Work, error: Exception) -> None:
        text, retry = why(error), self._config.settings.retry
        work.query = None
        work.failures += 1
        if work.failures > retry.max_retries or not may_pass(error):
            self._fail(work, text)
            return
        work.errors += 1
        pause_ms = retry.backoff_ms(work.failures)
        work.state, work.error, work.due_s = "retrying", text, self._now_s() + pause_ms / 1000
        logger.warning("%s failed, again in %d ms: %s", work.plan.name, pause_ms, text)

    def _fail(self, work: Work, text: str) -> None:
        work.errors += 1
        work.state, work.error = "failed", text
        logger.error("%s failed: %s", work.plan.name, text)

    # Building queries

    def _build(self, work: Work) -> StreamingQuery | None:
        """Start the query of a plan; None while what it needs to know is not there yet."""
        plan, entry = work.plan, work.plan.entry
        if isinstance(entry, SourceEntry):
            return self._build_source(plan, entry)
        if isinstance(entry, PipelineEntry):
            return self._build_pipeline(plan, entry)
        frame = self._topic_frame(plan, entry)
        if frame is None:
            return None
        return (
            self._build_letters(plan, entry, frame)
            if plan.kind == "dead_letters"
            else self._build_sink(plan, entry, frame)
        )

    def _launched(self, plan: QueryPlan, rate: float, *, dead_letter_topic: str | None = None) -> Launched:
        return Launched(
            name=plan.name,
            once=self.once,
            rows_per_second=rate,
            batch_rows=plan.entry.batch_rows,
            dead_letter_topic=dead_letter_topic,
            trigger_ms=plan.trigger_ms,
            ends=plan.bounded,
            checkpoint=self._state.below(plan.checkpoint),
            place=f"{plan.kind}s/{plan.name}",
            state=self._state,
            broker=topics.spark_options(self._config.broker) if self._config.broker is not None else {},
            output_mode=plan.output_mode,
            client=self._client,
        )

    def _build_source(self, plan: QueryPlan, entry: SourceEntry) -> StreamingQuery:
        source = entry.make()
        dead = entry.dead_letter_topic
        launch = self._launched(plan, entry.rate_limit.events_per_second, dead_letter_topic=dead)
        given = ready_to_refuse(source.frame(self._spark, launch), entry.transforms, dead)
        frame = changed(given, entry.transforms, f"sources.{plan.name}")
        if not data_columns(frame):
            raise CannotRun(text="no column of the record is left to write; drop fewer")
        for key in entry.key:
            split(frame, key)
        types = StructType([frame.schema[name] for name in data_columns(frame)])
        for topic in plan.topics_written:
            if topic != dead:
                self._written[topic] = (entry.envelope, types)
        shaped = records.to_topic(
            frame,
            name=plan.name,
            topic=entry.topic,
            stream=source.stream or plan.name,
            namespace=source.namespace,
            envelope=entry.envelope,
            key=entry.key,
            dead_letter_topic=dead,
            record_bytes_max=min(launch.record_bytes_max(topic) for topic in plan.topics_written if topic != dead),
        )
        return self._to_topic(shaped, launch, entry.delivery)

    def _to_topic(self, frame: DataFrame, launch: Launched, delivery: str) -> StreamingQuery:
        return start_to_topic(frame, launch, {"delivery": delivery, **launch.broker})

    def _build_pipeline(self, plan: QueryPlan, entry: PipelineEntry) -> StreamingQuery:
        rate, dead = entry.source.rate_limit.events_per_second, entry.dead_letter_topic
        launch = self._launched(plan, rate, dead_letter_topic=dead)
        source = entry.source.make().frame(self._spark, launch)
        if dead is not None:
            source = source.withColumn("__origin", F.lit(None).cast("string"))  # no topic, wherever a router sends it
        source = ready_to_refuse(source, entry.transforms, dead)
        frame = changed(source, entry.transforms, f"pipelines.{plan.name}")
        return self._to_sink(frame, entry.sink.make(), launch, entry.transforms)

    def _build_sink(self, plan: QueryPlan, entry: SinkEntry, frame: DataFrame) -> StreamingQuery:
        launch = self._launched(plan, 0, dead_letter_topic=entry.dead_letter_topic)
        if "__corrupt" in frame.columns:
            frame = records.readable(frame) if entry.dead_letter_topic else records.refused(frame)
        if plan.topics_written or any(topics_of(step.make()) for step in entry.transforms):
            frame = frame.withColumn("__origin", F.col("__topic"))
        sink = entry.make()
        if sink.puts_aside:
            frame = ready_to_refuse(frame, entry.transforms, entry.dead_letter_topic)
        frame = changed(frame, entry.transforms, f"sinks.{plan.name}")
        return self._to_sink(frame, sink, launch, entry.transforms)

    def _to_sink(self, frame: DataFrame, sink: Sink[Any], launch: Launched, steps: Sequence[Step]) -> StreamingQuery:
        if launch.output_mode not in sink.output_modes:
            raise CannotRun(
                text=f"{sink.name} takes new rows alone, and a transform gives rows that replace earlier ones "
                f"(output_mode: {launch.output_mode}); write them to a topic, or append: aggregate by a time window "
                "with a watermark"
            )
        if sink.topics() and not any(topics_of(step.make()) for step in steps):
            frame = frame.drop("__topic")  # where a record came from is not where it goes; a router's word is
        data = data_columns(frame)
        about = [name for name in frame.columns if name in sink.record_columns and name not in ASIDE]
        if not data and not (about and sink.record_columns == RESERVED):
            raise CannotRun(text="no column is left to write; drop fewer")
        if launch.dead_letter_topic is not None:
            about += [name for name in ASIDE if name in frame.columns]
        return sink.start(frame.select(*[quoted(name) for name in (*data, *about)]), launch)

    def _build_letters(self, plan: QueryPlan, entry: SinkEntry, frame: DataFrame) -> StreamingQuery:
        assert entry.dead_letter_topic is not None, "the plan has looked"
        name = plan.name.partition("/")[0]
        shaped = records.letters(frame, name, entry.dead_letter_topic)
        return self._to_topic(shaped, self._launched(plan, 0), "exactly_once")

    # Reading topics

    def _topic_frame(self, plan: QueryPlan, entry: SinkEntry) -> DataFrame | None:
        assert self._config.broker is not None, "the file was checked"
        options = topics.spark_options(self._config.broker) | {"subscribe": ",".join(entry.topics)}
        if not isinstance(entry.start_offset, str):
            options["startingTimestamp"] = entry.start_offset.timestamp
        elif entry.start_offset == "latest":
            assert self._client is not None, "prepare() has connected"
            options["startingOffsets"] = starts.offsets(self._state, self._client, plan)
        elif entry.start_offset == "earliest":
            options["startingOffsets"] = entry.start_offset
        else:
            options["startingTimestamp"] = entry.start_offset
        options["failOnDataLoss"] = str(entry.fail_on_data_loss).lower()
        if plan.kind == "sink":
            options["groupId"] = entry.consumer_group
        rate = entry.rate_limit.events_per_second
        allowed = max(1, rate * plan.trigger_ms // 1000) if rate else entry.batch_rows
        options["maxOffsetsPerTrigger"] = str(min(allowed, entry.batch_rows))
        if entry.format != "json":
            frame = self._spark.readStream.format("rivven").options(**options).load()
            return records.as_text(frame, binary=entry.format == "raw")
        known = self._known(plan, entry)
        if known is None:
            return None
        frame = self._spark.readStream.format("rivven").options(**options).load()
        return records.from_topic(frame, *known)

    def _known(self, plan: QueryPlan, entry: SinkEntry) -> tuple[records.Envelope, StructType] | None:
        """The envelope and the columns of a sink's records: as told, as written by this run, as kept, or as found."""
        written = [self._written[topic] for topic in entry.topics if topic in self._written]
        alike = len(written) == len(entry.topics) and all(each == written[0] for each in written)
        told = records.schema_from(entry.schema) if entry.schema is not None else None
        envelope: records.Envelope | None = entry.envelope if entry.envelope != "auto" else None
        if envelope is None and alike:
            envelope = written[0][0]
        if envelope is not None and told is not None:
            return envelope, told
        if alike and envelope == written[0][0] and told is None:
            return written[0]
        place = f"sinks/{plan.name.partition('/')[0]}/columns.json"
        seen = self._state.known(place)
        if seen is None:
            found = records.learned(self._sample(entry.topics), entry.envelope)
            if found is None:
                return None
            seen = {"envelope": found[0], "schema": records.schema_from(found[1]).json()}
            self._state.keep(place, json.dumps(seen))
        return envelope or seen["envelope"], told or records.schema_from(seen["schema"])

    def _sample(self, names: Sequence[str]) -> list[bytes | None]:
        """The first records of each partition."""
        assert self._client is not None, "prepare() has connected"
        assert self._config.broker is not None, "the file was checked"
        ends: dict[str, dict[str, int]] = {}
        starts: dict[str, dict[str, int]] = {}
        for name in names:
            _, partitions = self._client.get_metadata(name)
            for partition in range(partitions):
                earliest, latest = self._client.get_offset_bounds(name, partition)
                if latest > earliest:
                    starts.setdefault(name, {})[str(partition)] = earliest
                    ends.setdefault(name, {})[str(partition)] = min(latest, earliest + SAMPLE_ROWS)
        if not ends:
            return []
        assign = {name: [int(each) for each in parts] for name, parts in ends.items()}
        options = topics.spark_options(self._config.broker) | {
            "assign": json.dumps(assign),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }
        rows = self._spark.read.format("rivven").options(**options).load().select(F.col("value")).collect()
        return [None if row[0] is None else bytes(row[0]) for row in rows]


def ready_to_refuse(frame: DataFrame, steps: Sequence[Step], dead_letter_topic: str | None) -> DataFrame:
    """The frame with a column for what is wrong with a record, if a transform may find something and there is a topic
    for letters."""
    if dead_letter_topic is None or "__corrupt" in frame.columns or not any(step.make().refuses for step in steps):
        return frame
    return frame.withColumn("__corrupt", F.lit(None).cast("string"))


def changed(frame: DataFrame, steps: Sequence[Step], path: str) -> DataFrame:
    """A frame after its transforms; a column that is not there is named with the step that wants it."""
    for place, step in enumerate(steps):
        transform = step.make()
        try:
            for column in transform.columns():
                split(frame, column)
            frame = _applied(transform, frame, step)
        except (NoSuchColumn, ValueError, AnalysisException, ParseException, ImportError, AttributeError) as error:
            raise CannotRun(text=f"{path}.transforms[{place}] ({step.type}): {why(error)}") from error
    return frame


def _applied(transform: Transform[Any], frame: DataFrame, step: Step) -> DataFrame:
    """A frame after one transform. One that loses sight of what could not be read is given none of it."""
    after = apply_where(transform, frame, step.predicate) if step.predicate else transform.apply(frame)
    if "__corrupt" in after.columns or "__corrupt" not in frame.columns:
        return after
    return _applied(transform, records.read_alone(frame, step.type), step)


def _new_reports(query: StreamingQuery, last_batch: int) -> list[dict[str, Any]]:
    """What a query has reported since a batch. It keeps a hundred reports, which are fetched only if some are new."""
    last = query.lastProgress
    if last is None:
        return []
    report = _report(last)
    done = "addBatch" in (report.get("durationMs") or {})
    if report["batchId"] - (0 if done else 1) > last_batch:
        return [_report(each) for each in query.recentProgress]
    return [] if done else [report]


def _report(progress: Any) -> dict[str, Any]:
    """A progress report as a dict, whichever Spark gives."""
    if isinstance(progress, dict):
        return progress
    made: dict[str, Any] = json.loads(progress.json)
    return made


# What went wrong, in a line

TRACEBACK = "Traceback (most recent call last)"
UNREAD = re.compile(
    rf"{records.UNREADABLE}: ((?:the record at offset \d|a record: it has \d|a record cannot be read,).*)"
)
"""As it is told; in the plan of a query, which may be told as well, the words have no number yet, or stand apart."""
MISSING = re.compile(r"ModuleNotFoundError: No module named '(rivven)(?:\.[\w.]+)?'")
STATE = re.compile(r"\s*SQLSTATE: \w+")
NOISE = re.compile(r"Identifier: |Current (Committed|Available) Offsets|Current State|Thread State")
PLAIN = ("ValueError", "ConfigException", "CannotRun", "RowRefused", "CannotSort")
"""Errors whose words need no name before them."""
HOPELESS = (
    records.UNREADABLE,
    "does not support",
    "[ARITHMETIC_OVERFLOW",
    "[CAST_INVALID_INPUT",
    "[CAST_OVERFLOW",
    "[DIVIDE_BY_ZERO",
    "[INVALID_ARRAY_INDEX",
    "[NUMERIC_VALUE_OUT_OF_RANGE",
    "FAILED_READ_FILE",
    "MALFORMED_RECORD_IN_PARSING",
    "ConfigException",
    "DataLost: ",
    "refusals.RowRefused",
    "files.CannotSort",
    "webhook.Rejected",
)
"""What no restart mends."""
PLAN = "=== Streaming Query ==="
"""What follows is the query's plan, and of what went wrong it says nothing, though it may have the words for it."""
AWAY = ("ConnectionException: ", "TimeoutException: ", "TryAgain: ", "Overloaded: ")


def why(error: BaseException) -> str:
    """The reason of a failure without the traceback round it."""
    text = STATE.sub("", str(error))
    if refused := UNREAD.search(text):
        return refused[1]
    if missing := MISSING.search(text):
        return f"there is no package {missing[1]} where the tasks run; install {missing[1]} there as it is here"
    if isinstance(error, RivvenError | ValueError | OSError) and not isinstance(error, PySparkException):
        return text
    if TRACEBACK in text:
        ending = text[text.rindex(TRACEBACK) :].splitlines()[1:]
        raised = next((line for line in ending if line.strip() and not line[0].isspace()), "")
        name, _, words = raised.partition(": ")
        kind = name.rpartition(".")[2]
        return words if kind in PLAIN and words else f"{kind}: {words}" if words else kind
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("===", "\tat "))]
    first = next((line for line in lines if not NOISE.match(line)), type(error).__name__)
    return first if len(first) <= 500 else first[:497] + "..."


def broker_was_away(error: Exception) -> bool:
    """Whether a broker did not answer. Where Spark plans a read it calls that an error of analysis, like a column
    that does not exist."""
    return why(error).startswith(AWAY)


def may_pass(error: Exception) -> bool:
    """Whether the same may work later."""
    text = str(error).partition(PLAN)[0]
    return not any(mark in text for mark in HOPELESS)

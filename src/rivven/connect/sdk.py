"""What a connector is: sources, sinks and transforms that describe, check and run themselves.

A connector is a class. It says who it is in class attributes, what it takes in a `Settings` class, and does its work
in a few methods. A package offers it to `rivven-connect` by an entry point of the group `rivven.connectors`, whose
name is the kind and the connector's name:

    [project.entry-points."rivven.connectors"]
    "source.weather" = "weather_connector:Weather"

Instances are made anew wherever work is done: in the driver, in Spark's planning process, in every task on every
machine. They are pickled on the way there, so `__init__` keeps the settings, and at most what follows from them; open
what you need in the method that needs it. Nothing here imports Spark, so that a file can be checked without it;
connectors import pyspark, pyarrow and whatever they wrap inside their methods.

Which base to take:

- `ArrowSource` where the outside world has positions: you plan reads between two positions, and read them as Arrow.
- `Source` where Spark can read it already: you return a streaming DataFrame.
- `ArrowSink` to write Arrow batches in parallel tasks, with one commit per micro-batch.
- `Sink` to start the query yourself.
- `Transform` for a DataFrame in, a DataFrame out.

The columns in RESERVED speak about the record and are no part of its data; a source may give them, a transform may
set them, and a topic is written by them: `__key`, `__topic`, `__timestamp`, `__event_type` (record, insert, update,
delete), `__stream`, `__namespace`, `__metadata` (a struct or a map). What comes from a topic has `__partition` and
`__offset` as well, and `__origin` if `__topic` may have become the one that it goes to. ASIDE are those of a record
that is to become a dead letter: `__corrupt` is what could not be read, or what is wrong, and `__refused` where a
record comes from that a transform cannot use, and why.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args, get_origin

from .refusals import POSITION, RowRefused, fail
from .settings import BadSettings, Secret, Settings, schema_of, setting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "ASIDE",
    "POSITION",
    "RESERVED",
    "ArrowSink",
    "ArrowSource",
    "BadSettings",
    "Batch",
    "Connector",
    "Delivery",
    "Finding",
    "Kind",
    "Launch",
    "OutputMode",
    "Position",
    "RowRefused",
    "Secret",
    "Settings",
    "Sink",
    "Source",
    "Stream",
    "Task",
    "Transform",
    "setting",
]

S = TypeVar("S", bound=Settings)

Kind = Literal["source", "sink", "transform"]
Delivery = Literal["exactly_once", "at_least_once"]
OutputMode = Literal["append", "update", "complete"]
Position = dict[str, Any]
"""How far a source was read: a small JSON object. Spark keeps it in its checkpoint and hands it back."""

RESERVED = (
    "__key",
    "__topic",
    "__origin",
    "__partition",
    "__offset",
    "__timestamp",
    "__event_type",
    "__stream",
    "__namespace",
    "__metadata",
    "__corrupt",
    "__refused",
)
"""Columns that speak about the record."""
ASIDE = ("__corrupt", "__refused")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `check` found: an error keeps the pipeline from running, a warning or a note does not."""

    text: str
    level: Literal["error", "warning", "note"] = "error"
    field: str = ""
    """The setting at fault, where there is one."""
    fix: str = ""
    """The next step, as an instruction."""

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.text}" + (f"; {self.fix}" if self.fix else "")


@dataclass(frozen=True, slots=True)
class Stream:
    """Something that a source offers: a table, a topic, a pattern; with the columns it has."""

    name: str
    schema: pa.Schema
    namespace: str = ""
    key: tuple[str, ...] = ()
    """The columns that tell its rows apart, where that is known."""


class Connector(Generic[S]):
    """What sources, sinks and transforms have in common: who they are, what they take, and whether it works."""

    kind: ClassVar[Kind]
    name: ClassVar[str]
    """What stands after `connector:` or `type:`; lower case, words joined by dashes."""
    aliases: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str]
    """Its name for people."""
    summary: ClassVar[str]
    """One sentence: what it does."""
    docs: ClassVar[str] = ""
    """More, in Markdown: goes to the connector's page below the summary."""
    example: ClassVar[str] = ""
    """A few lines of YAML for the page: the whole entry of the connector in a file."""
    extra: ClassVar[str | None] = None
    """The extra of the package that brings what it needs: `pip install 'rivven[EXTRA]'`."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that must be there; `missing()` names those that are not."""
    settings_type: ClassVar[type[Settings]]
    """Taken from the type argument: `class Weather(ArrowSource[WeatherSettings])`."""

    def __init__(self, settings: S) -> None:
        self.settings = settings

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Connector):
                for part in get_args(base):
                    if isinstance(part, type) and issubclass(part, Settings):
                        cls.settings_type = part

    @classmethod
    def configured(cls, values: Mapping[str, Any] | None = None) -> Connector[Any]:
        """A connector from plain values; BadSettings with every mistake."""
        return cls(cls.settings_type.parse(values))  # type: ignore[arg-type]  # the type argument is what it parses

    @classmethod
    def missing(cls) -> list[str]:
        """The modules that it needs and that are not installed."""
        return [module for module in cls.modules if importlib.util.find_spec(module.split(".")[0]) is None]

    @classmethod
    def spec(cls) -> dict[str, Any]:
        """All that is known of it, as JSON: what `rivven-connect schema` prints."""
        return {
            "name": cls.name,
            "kind": cls.kind,
            "title": cls.title,
            "summary": cls.summary,
            "aliases": list(cls.aliases),
            "extra": cls.extra,
            "settings": schema_of(cls.settings_type),
        }

    @classmethod
    def long_docs(cls) -> str:
        return inspect.cleandoc(cls.docs)

    def check(self) -> list[Finding]:
        """Whether it would work: reach the other side, look at rights and names; change nothing.

        Called by `rivven-connect check`, without Spark. Return findings, do not raise for what a user can mend.
        """
        return []

    def close(self) -> None:
        """Let go of whatever was opened; called once the last of its work is done in this process."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings!r})"


# Sources


class Source(Connector[S]):
    """Brings records from outside: the general form, for what Spark can read by itself."""

    kind = "source"
    delivery: Delivery = "exactly_once"
    """`exactly_once` if the same two positions always give the same records, else `at_least_once`. The class says
    what it promises whatever its settings are; where they allow for more, `__init__` sets it for the instance."""

    @classmethod
    def spec(cls) -> dict[str, Any]:
        return super().spec() | {"delivery": cls.delivery}

    @property
    def bounded(self) -> bool:
        """Whether it comes to an end by itself; `run` then ends its query when it is there."""
        return False

    @property
    def stream(self) -> str:
        """The name of what is read, for the envelope; empty takes the name that the file gives the source."""
        return ""

    @property
    def namespace(self) -> str | None:
        """What the stream belongs to, for the envelope: a schema, a database."""
        return None

    def discover(self) -> list[Stream]:
        """What could be read, with its columns; without Spark."""
        return []

    def frame(self, spark: SparkSession, launch: Launch) -> DataFrame:
        """A streaming DataFrame of the records with their own typed columns."""
        raise NotImplementedError


class ArrowSource(Source[S]):
    """A source by positions: plan what stands between two of them, read it as Arrow.

    Everything rests on one promise: between the same two positions there are always the same records. Spark writes
    down the end position of a micro-batch before it reads, and after a crash asks for the same range again. Keep it,
    and what the source writes to a topic is exactly once; if the outside world cannot keep it, say
    `delivery = "at_least_once"`.

    The order of calls, in one process that lives as long as the query: `start_position` once for a new query, then
    for every micro-batch `newest_position`, `advance`, `plan`, and `commit` when the batch is done. `read` is called
    in the tasks, on other machines, perhaps more than once for a part.
    """

    rows_per_batch: ClassVar[int] = 1_000_000
    """The most rows of one micro-batch where no rate says less."""

    def schema(self) -> pa.Schema:
        """The columns, without Spark. Timestamps are read in microseconds, UTC; others are converted on the way."""
        raise NotImplementedError

    def discover(self) -> list[Stream]:
        return [Stream(self.stream or self.name, self.schema(), self.namespace or "")]

    def start_position(self) -> Position:
        """Where a new query begins."""
        raise NotImplementedError

    def newest_position(self) -> Position | None:
        """The furthest position that could be read to now; None where there is no end to it.

        With `--once` it is asked for once, and is where the run ends. A source without an end gives one micro-batch.
        """
        raise NotImplementedError

    def advance(self, start: Position, newest: Position | None, rows: int) -> Position:  # noqa: ARG002
        """Where the next micro-batch ends: after `start`, at most at `newest`, with at most about `rows` records.

        Return `start` if nothing is there. The default goes to `newest` at once.
        """
        return start if newest is None else newest

    def plan(self, start: Position, end: Position) -> Sequence[Any]:
        """The parts to read in parallel, as small values that can be pickled; none if start and end are equal."""
        raise NotImplementedError

    def read(self, part: Any) -> Iterator[pa.RecordBatch]:
        """The records of one part, in batches of `schema()`; 10,000 to 50,000 rows of 100 bytes each are best."""
        raise NotImplementedError

    def commit(self, end: Position) -> None:
        """All before `end` was processed and will not be asked for again: acknowledge, release, forget."""

    def rows_between(self, start: Position, end: Position) -> int | None:  # noqa: ARG002
        """How many records stand between two positions, for lag and progress; None if that is not known."""
        return None

    def rate(self) -> float:
        """Records per second by its own settings, 0 for no limit; the file's `rate_limit` is applied too."""
        return 0.0

    def frame(self, spark: SparkSession, launch: Launch) -> DataFrame:
        from .bridge import stream_of

        return stream_of(self, spark, launch)


# Sinks


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch. After a crash Spark runs the last one again, with the same two ids.

    `query_id` lives as long as the checkpoint; a new checkpoint has a new one and begins at batch 0. So (query_id,
    batch_id) is the key to commit by, and a name alone is not.
    """

    query_id: str
    batch_id: int

    @property
    def key(self) -> str:
        return f"{self.query_id}-{self.batch_id:020d}"


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt to write one partition of a micro-batch."""

    batch: Batch
    partition: int
    attempt: str
    """Unique to this attempt, over retries, restarts and machines: good for the names of temporary files."""
    on_refused: Callable[[pa.RecordBatch, str], None] = field(default=fail, repr=False)

    def refuse(self, rows: pa.RecordBatch, reason: str) -> None:
        """Put aside rows that can never be written, with the columns they came with, and go on with the others.

        They become letters in the sink's dead-letter topic; without one this raises, and the pipeline ends. For what
        may work later raise any other error: the micro-batch comes again after a pause. Refuse the same rows when
        the same batch comes again, also if the rest of it is committed already: only then is each letter there once.
        """
        if rows.num_rows:
            self.on_refused(rows, reason)


class Launch(Protocol):
    """What a connector is told about the run it is part of."""

    @property
    def name(self) -> str:
        """The name that the file gives this source, sink or pipeline."""

    @property
    def once(self) -> bool:
        """Whether the run ends when all that is there was processed."""

    @property
    def rows_per_second(self) -> float:
        """The file's rate limit; 0 for none."""

    @property
    def broker(self) -> dict[str, str]:
        """The options by which the format `rivven` reaches the file's broker; none if it has no broker."""

    @property
    def batch_rows(self) -> int:
        """The most records of one micro-batch."""

    @property
    def output_mode(self) -> OutputMode:
        """Which rows a micro-batch has: `append` unless a transform says otherwise."""

    @property
    def dead_letter_topic(self) -> str | None:
        """Where records go that nobody can use. A source gives one that cannot be read as a row whose column
        `__corrupt` has the text of the record, and nulls; without such a topic it fails. A sink refuses rows."""

    def record_bytes_max(self, topic: str) -> int:
        """The largest record, key and value together, that a topic of the file's broker takes."""

    def recall(self, key: str, make: Callable[[], str]) -> str:
        """A text that is made once and kept in the state directory, such as a schema that was inferred."""

    def writer(self, frame: DataFrame) -> DataStreamWriter:
        """`frame.writeStream` with the name, the trigger and the checkpoint of this run set."""


class Sink(Connector[S]):
    """Takes records outside: the general form, which starts its query itself."""

    kind = "sink"
    delivery: Delivery = "at_least_once"
    """Set by the class, and by `__init__` for an instance whose settings allow for more."""
    record_columns: tuple[str, ...] = ()
    """Which columns about the record it wants besides the data, of those in RESERVED: those that there are come after
    the data, in no fixed order. POSITION is enough to refuse rows by name. Where settings decide, `__init__` does."""

    @classmethod
    def spec(cls) -> dict[str, Any]:
        return super().spec() | {"delivery": cls.delivery}

    puts_aside: ClassVar[bool] = False
    """Whether, in a pipeline with a `dead_letter_topic`, it makes letters of the rows that come with a `__corrupt`:
    every ArrowSink does, without its doing."""

    output_modes: ClassVar[tuple[OutputMode, ...]] = ("append",)
    """Which rows it can take: new ones alone, or also (`update`, `complete`) such as replace earlier ones."""

    def topics(self) -> tuple[str, ...]:
        """The topics of the file's broker that it writes to: they are made before it starts, as sources' are."""
        return ()

    def prepare(self, schema: pa.Schema) -> None:
        """Called once in the driver before the query starts, with the columns to come: create a table, look again."""

    def start(self, frame: DataFrame, launch: Launch) -> StreamingQuery:
        """Start a query that writes the frame; take `launch.writer(frame)` for it."""
        raise NotImplementedError


class ArrowSink(Sink[S]):
    """A sink in two steps: tasks write in parallel and hand in receipts, the driver commits a micro-batch by them.

    What a task wrote must not be seen before `commit`; a task may run more than once, and only the receipt of the
    attempt that won arrives. After a crash the same batch comes again with the same (query id, batch id): if `commit`
    finds that it is done already and does nothing, the sink is exactly once, and may say `delivery = "exactly_once"`.

        def write(self, batches, task):
            name = f"{task.batch.key}-{task.partition}-{task.attempt}"
            ...                                                     # write a temporary file
            return name

        def commit(self, receipts, batch):
            if not self.is_committed(batch):
                self.publish(batch, receipts)

    A sink that cannot hold back (a webhook) does its work in `write` and leaves `commit` alone: at least once.

    Two kinds of failure: what may work later is an exception from any of these methods, and the batch comes again;
    a row that never will is handed to `task.refuse(rows, reason)` in `write`, and the others go through.
    """

    puts_aside = True

    def write(self, batches: Iterator[pa.RecordBatch], task: Task) -> Any:
        """Write what comes and return a receipt, a small value that can be pickled; None if there was nothing.

        Runs in a task. Columns have the types of the frame; `batches` may be empty.
        """
        raise NotImplementedError

    def commit(self, receipts: Sequence[Any], batch: Batch) -> None:
        """Make the batch visible, all of it at once if the other side can; must be idempotent. Runs in the driver.

        `receipts` has what the tasks returned, without the Nones. It is not called for a batch without any.
        """

    def abort(self, receipts: Sequence[Any], batch: Batch) -> None:
        """The batch failed: remove what these receipts name. A crash skips this, so leftovers must do no harm."""

    def start(self, frame: DataFrame, launch: Launch) -> StreamingQuery:
        from .bridge import start_writing

        return start_writing(self, frame, launch)


# Transforms


class Transform(Connector[S]):
    """Changes records on their way: a DataFrame in, a DataFrame out, best by expressions that run in the JVM."""

    kind = "transform"

    @property
    def output_mode(self) -> OutputMode:
        """How a query with it puts out rows: `append`, or `update` or `complete` for an endless aggregation."""
        return "append"

    def apply(self, frame: DataFrame) -> DataFrame:
        """The changed frame. Columns in RESERVED speak about the record; leave them unless you mean them."""
        raise NotImplementedError

    @property
    def refuses(self) -> bool:
        """Whether it may refuse records by `columns.refused`; if there is a topic for those, `__corrupt` is there."""
        return False

    def columns(self) -> tuple[str, ...]:
        """The columns that must be there, for a clear error before the query starts; `a.b` is a field of a struct."""
        return ()

"""Objects in a store, exactly once: S3, Google Cloud Storage, Azure Blob Storage, or a directory treated as one.

Tasks upload below `_rivven/staging`, under names that end in `.part`, so that neither readers that skip hidden
folders nor those that look for an ending take them for data. The commit of a micro-batch creates a manifest named
after query and batch, which a store does for one writer only: that is the decision. Then the objects it lists are
copied to their places inside the store, and the staged ones deleted.

Invariant: staged objects of a batch are deleted only after the last copy is made. So a batch that comes again finds
its manifest, and either all staged objects, to be copied (again), or not all, and then there is nothing left to copy.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar
from uuid import uuid4

import msgspec

from rivven.connect.avro import avro_schema
from rivven.connect.files import Compression, Format, Made, Sorter, complaint_about, look_at_folders, suffix_of
from rivven.connect.sdk import POSITION, RESERVED, ArrowSink, Batch, Finding, Settings, Task, setting
from rivven.connect.stores import Access, finding, open_store, trouble

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import ObjectStore

S = TypeVar("S", bound="ObjectsSettings")

Move = tuple[str, str]
"""Where an object is staged, and where it belongs."""

HIDDEN_FOLDER = "_rivven"
MANIFESTS_KEPT = 100
STAGED_DAYS_MAX = 7
"""What lies staged longer than this was left by a run that never came back."""
REQUESTS_MAX = 8
"""Uploads or copies at the same time."""


class ObjectsSettings(Settings):
    bucket: str = setting("The bucket; it must be there already.", example="my-events", least=1)
    prefix: str = setting("What the names of all objects begin with.", default="", example="raw/orders")
    format: Format = setting(
        "`json` has an array of records in each object, `jsonl` a record in each line; or avro, csv, or parquet.",
        default="json",
    )
    compression: Compression = setting(
        "`default` is snappy for parquet, deflate for avro and none for the others, which take gzip.",
        default="default",
    )
    partitioning: Literal["none", "day", "hour"] = setting(
        "Folders by the time of the record, in UTC: dt=2026-01-31, and hour=23 below it.", default="none"
    )
    time_column: str | None = setting(
        "The column that `partitioning` looks at; without it, the time at which the record was written to its topic.",
        default=None,
        least=1,
    )
    topic_folders: bool = setting("Begin with a folder for each topic.", default=False)
    partition_by: list[str] = setting("Columns that become folders: column=value.", factory=list)
    max_file_bytes: int = setting(
        "A new object is begun above this.", default=128 << 20, least=1024, most=4 << 30
    )  # a copy inside S3 ends at 5 GB
    batch_size: int = setting(
        "Records in an object.", default=1000, least=1, ignored="max_file_bytes and the sink's trigger decide"
    )
    flush_interval_secs: int = setting(
        "Seconds between objects.",
        default=60,
        least=0,
        ignored="every micro-batch is flushed; set the sink's trigger",
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        if complaint := complaint_about(self.format, self.compression):
            yield "compression", complaint
        if self.time_column is not None and self.partitioning == "none":
            yield "time_column", "has no use without partitioning; set partitioning to day or hour"
        if any(part in ("", ".", "..") for part in self.prefix.strip("/").split("/")) and self.prefix.strip("/"):
            yield "prefix", f"must be names joined by single slashes, not {self.prefix!r}"
        if self.prefix.strip("/").split("/")[0] == HIDDEN_FOLDER:
            yield "prefix", f"must not begin with {HIDDEN_FOLDER}, which is for objects that are not committed"

    @property
    def access(self) -> Access:
        raise NotImplementedError

    @property
    def root(self) -> str:
        """The prefix with a slash at its end, or nothing."""
        plain = self.prefix.strip("/")
        return f"{plain}/" if plain else ""

    @property
    def suffix(self) -> str:
        return suffix_of(self.format, self.compression)


class Objects(ArrowSink[S]):
    """What the sinks for object stores have in common, which is all but how to reach the store."""

    docs = """
    Every micro-batch adds objects of its own, `part-BATCH-TASK-NUMBER-QUERY` with the ending of the format. They
    appear when the batch is committed; a batch that Spark runs again after a crash adds nothing twice. Until then
    they are below `_rivven/` in the prefix, where the manifests of the last batches are as well: let no reader and
    no lifecycle rule look there.

    A micro-batch makes at least one object for each folder, so choose a slow `trigger`, such as `1m`, unless fresh
    data matters more than the number of objects. `partitioning`, `topic_folders` and `partition_by` add up, in the
    order topic, time, columns: `raw/orders/dt=2026-01-31/hour=23/country=DE/part-....parquet`.

    A record that the format cannot have, such as a text that is no UTF-8, or whose folder would have a name that is
    too long, is refused: it goes to the `dead_letter_topic`, or without one it stops the pipeline.
    """
    modules = ("obstore", "pyarrow", "fastavro")
    delivery = "exactly_once"

    def __init__(self, settings: S) -> None:
        super().__init__(settings)
        by_time = settings.partitioning != "none" and settings.time_column is None
        self.record_columns = (*POSITION, "__timestamp") if by_time else POSITION

    def _open(self, *, brief: bool = False) -> ObjectStore:
        return open_store(self.settings.access, self.settings.bucket, brief=brief)

    # Before it runs

    def check(self) -> list[Finding]:
        """Write and delete a small object, since rights cannot be asked for."""
        import obstore

        settings = self.settings
        probe = f"{settings.root}{HIDDEN_FOLDER}/probe-{uuid4().hex}"
        try:
            store = self._open(brief=True)
            obstore.put(store, probe, b"rivven-connect check")
            obstore.delete(store, probe)
        except Exception as error:  # a store raises what it likes, and all of it is worth a line
            return [finding(error, settings.access, settings, settings.bucket)]
        return []

    def prepare(self, schema: pa.Schema) -> None:
        settings = self.settings
        data = look_at_folders(schema, settings.partition_by)
        if settings.topic_folders and "__topic" not in schema.names:
            raise ValueError("topic_folders: the records come from no topic; set it to false")
        self._look_at_time(schema, [name for name in schema.names if name not in RESERVED])
        if settings.format == "avro":
            avro_schema(data)
        with trouble(settings, "looking for leftovers"):
            sweep(self._open(), settings.root, datetime.now(UTC) - timedelta(days=STAGED_DAYS_MAX))

    def _look_at_time(self, schema: pa.Schema, data: Sequence[str]) -> None:
        import pyarrow as pa

        if self.settings.partitioning == "none":
            return
        column = self.settings.time_column or "__timestamp"
        if column not in schema.names:
            if self.settings.time_column is None:
                raise ValueError("time_column: name it, since the records have no time of their own")
            raise ValueError(f"time_column: there is no column {column}; there is {', '.join(data)}")
        kind = schema.field(column).type
        if not (pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and self.settings.partitioning == "day")):
            raise ValueError(f"time_column: {column} is {kind}, not a timestamp; convert it by a transform")
        taken = [name for name in self._time_folders if name in data]
        if taken:
            raise ValueError(f"partitioning: its folders are called {', '.join(taken)}, as is a column; rename that")

    # In a task

    @property
    def _time_folders(self) -> list[str]:
        return {"none": [], "day": ["dt"], "hour": ["dt", "hour"]}[self.settings.partitioning]

    @property
    def _folders(self) -> list[str]:
        topic = ["__topic"] if self.settings.topic_folders else []
        return [*topic, *self._time_folders, *self.settings.partition_by]

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the record, with those that make folders by time."""
        import pyarrow.compute as pc

        if self._time_folders:
            times: Any = batch.column(self.settings.time_column or "__timestamp")
            for name, form in zip(self._time_folders, ("%Y-%m-%d", "%H"), strict=False):
                batch = batch.append_column(name, pc.strftime(times, format=form))
        return batch

    def write(self, batches: Iterator[pa.RecordBatch], task: Task) -> list[Move] | None:
        """The objects of one attempt, made on the local disk first: so open folders cost no memory."""
        home = Path(tempfile.mkdtemp(prefix="rivven-objects-"))
        try:
            made = self._make(batches, home, task)
            return self._upload(made, task) if made else None
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def _make(self, batches: Iterator[pa.RecordBatch], home: Path, task: Task) -> list[Made]:
        settings = self.settings

        def open_file(folder: str, number: int) -> tuple[str, IO[bytes]]:  # noqa: ARG001
            path = home / str(number)
            return str(path), open(path, "w+b")

        sorter = Sorter(
            settings.format,
            settings.compression,
            self._folders,
            settings.max_file_bytes,
            open_file,
            task.refuse,
            hidden=RESERVED,
        )
        try:
            for batch in batches:
                if batch.num_rows:
                    sorter.write(self._shaped(batch))
            return sorter.close()
        except BaseException:
            sorter.abandon()
            raise

    def _upload(self, made: Sequence[Made], task: Task) -> list[Move]:
        import obstore

        store, settings = self._open(), self.settings
        drafts = f"{staging(settings.root, task.batch)}/{task.partition}-{task.attempt}"
        query = task.batch.query_id.replace("-", "")[:16]
        moves = []
        for number, each in enumerate(made):
            folder = _without_dots(each.folder.removeprefix("__topic="))
            name = f"part-{task.batch.batch_id:010d}-{task.partition:05d}-{number}-{query}{settings.suffix}"
            place = f"{settings.root}{folder + '/' if folder else ''}{name}"
            moves.append((f"{drafts}/{number}{settings.suffix}.part", place))
        try:
            with (
                trouble(settings, f"writing to the bucket {settings.bucket}"),
                ThreadPoolExecutor(REQUESTS_MAX) as pool,
            ):
                paths = [Path(each.path) for each in made]
                list(pool.map(lambda path, move: obstore.put(store, move[0], path), paths, moves))
        except BaseException:
            with suppress(Exception):
                delete(store, [staged for staged, _ in moves])
            raise
        return moves

    # In the driver

    def commit(self, receipts: Sequence[list[Move]], batch: Batch) -> None:
        store, settings = self._open(), self.settings
        asked = [(staged, place) for receipt in receipts for staged, place in receipt]
        drafts = staging(settings.root, batch)
        with trouble(settings, f"committing to the bucket {settings.bucket}"):
            manifests = Manifests(store, settings.root, batch.query_id)
            moves, fresh = manifests.decide(batch.batch_id, asked)
            if not fresh:  # decided before, and perhaps not brought to its end
                staged = set(names(store, drafts))
                moves = moves if all(old in staged for old, _ in moves) else []
            copy(store, moves)
            delete(store, names(store, drafts))
            manifests.forget(batch.batch_id - MANIFESTS_KEPT)

    def abort(self, receipts: Sequence[list[Move]], batch: Batch) -> None:  # noqa: ARG002
        with trouble(self.settings, "removing what a failed batch has left"):
            delete(self._open(), [staged for receipt in receipts for staged, _ in receipt])


def _without_dots(folder: str) -> str:
    """A folder that leads down: the name of a topic, which stands alone, must not be one that leads up."""
    first, slash, rest = folder.partition("/")
    return f"{first.replace('.', '%2E') if first in ('.', '..') else first}{slash}{rest}"


# What a store is asked for


def staging(root: str, batch: Batch) -> str:
    return f"{root}{HIDDEN_FOLDER}/staging/{batch.query_id}/{batch.batch_id}"


def names(store: ObjectStore, folder: str) -> list[str]:
    import obstore

    return [each["path"] for page in obstore.list(store, folder) for each in page]


def copy(store: ObjectStore, moves: Sequence[Move]) -> None:
    import obstore

    with ThreadPoolExecutor(REQUESTS_MAX) as pool:
        list(pool.map(lambda move: obstore.copy(store, move[0], move[1]), moves))


def delete(store: ObjectStore, paths: Sequence[str]) -> None:
    """Delete objects, of which some may be gone already."""
    import obstore

    if not paths:
        return
    try:
        obstore.delete(store, paths)
    except FileNotFoundError:
        for path in paths:
            with suppress(FileNotFoundError):
                obstore.delete(store, path)


def sweep(store: ObjectStore, root: str, before: datetime) -> None:
    """Delete what was staged before a time and is in no manifest: what is will be copied if its query returns."""
    import obstore

    old: dict[str, list[str]] = {}
    place = f"{root}{HIDDEN_FOLDER}/staging"
    for page in obstore.list(store, place):
        for each in page:
            if each["last_modified"] < before:
                query = PurePosixPath(each["path"]).relative_to(place).parts[0]
                old.setdefault(query, []).append(each["path"])
    for query, paths in old.items():
        decided = Manifests(store, root, query).staged()
        delete(store, [path for path in paths if path not in decided])


class Manifests:
    """What a query has committed: an object for each of its last batches, with the moves that make it visible."""

    def __init__(self, store: ObjectStore, root: str, query_id: str) -> None:
        self._store = store
        self._folder = f"{root}{HIDDEN_FOLDER}/manifests/{query_id}"

    def _path(self, batch_id: int) -> str:
        return f"{self._folder}/{batch_id:020d}"

    def _batches(self) -> list[int]:
        return sorted(int(PurePosixPath(path).name) for path in names(self._store, self._folder))

    def _read(self, batch_id: int) -> list[Move]:
        import obstore

        found = msgspec.json.decode(bytes(obstore.get(self._store, self._path(batch_id)).bytes()))
        return [(staged, place) for staged, place in found["moves"]]

    def decide(self, batch_id: int, moves: Sequence[Move]) -> tuple[list[Move], bool]:
        """The moves of a batch, and whether that is news: those asked for, unless it was decided before; none if a
        later one was."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        known = self._batches()
        if known and known[-1] > batch_id:
            return [], False
        if batch_id not in known:
            text = msgspec.json.encode({"batch": batch_id, "moves": moves})
            try:
                obstore.put(self._store, self._path(batch_id), text, mode="create")
            except AlreadyExistsError:  # by another driver, or by us, if a repeated request was the second to arrive
                pass
            else:
                return list(moves), True
        return self._read(batch_id), False

    def staged(self) -> set[str]:
        return {staged for batch_id in self._batches() for staged, _ in self._read(batch_id)}

    def forget(self, upto: int) -> None:
        delete(self._store, [self._path(batch_id) for batch_id in self._batches() if batch_id <= upto])

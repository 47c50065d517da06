"""Delta Lake tables, exactly once, without a jar.

Tasks write Parquet files into the table's folder, where no reader of the table sees them: what counts is in its log.
The commit of a micro-batch adds all of them to the log in one entry, which also says that this query has come to this
batch. A batch that comes again finds that entry and adds nothing; of two drivers that commit the same batch at once,
the log lets one through.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import unquote
from uuid import uuid4

from rivven.connect.files import NULL_FOLDER, Made, Sorter, absolute
from rivven.connect.sdk import RESERVED, ArrowSink, Batch, Finding, Secret, Settings, Task, setting
from rivven.connect.stores import AzureAccess, GcsAccess, S3Access, StoreTrouble, told

from .delta_merge import NEEDED, merge
from .tables import as_in_table, changed_columns, lacking_columns, new_columns, see_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable
    from pyarrow.fs import FileSystem

STAT_TEXT_MAX = 64
"""Longer texts have no place in the statistics of a file."""
CHUNK_BYTES = 1 << 20


class DeltaSettings(Settings):
    table_uri: str = setting(
        "The table: a directory, s3://bucket/path, gs://bucket/path, or abfss://container@account.dfs.core.windows.net/path.",
        example="s3://lake/orders",
        least=1,
    )
    auto_create_table: bool = setting("Create the table if it is not there.", default=True)
    write_mode: Literal["append", "overwrite", "merge"] = setting(
        "`append` adds the records of every micro-batch, `overwrite` replaces all that is there by them, `merge` "
        "updates the rows that have the same key_columns, inserts the others, and deletes for delete events.",
        default="append",
    )
    key_columns: list[str] = setting("The columns that tell rows apart, for `merge`.", factory=list)
    partition_columns: list[str] = setting(
        "Columns that a new table is partitioned by: texts, whole numbers, dates or booleans.",
        factory=list,
        also=("partition_by",),
    )
    merge_schema: bool = setting("Add columns to the table that the records have and it has not.", default=False)
    target_file_size_mb: int = setting("A new file is begun above this.", default=128, least=1, most=4096)
    compression: Literal["none", "snappy", "gzip", "lz4", "zstd"] = setting(
        "How the files are compressed.", default="snappy"
    )
    max_commit_retries: int = setting(
        "How often a commit is tried again because others commit, too.", default=15, least=0, most=1000
    )
    s3: S3Access | None = setting("How to reach S3.", default=None)
    gcs: GcsAccess | None = setting("How to reach Google Cloud Storage.", default=None)
    azure: AzureAccess | None = setting("How to reach Azure.", default=None)
    storage_options: dict[str, Secret] = setting(
        "More options of the store, by the names that the deltalake package has for them.", factory=dict
    )
    table_properties: dict[str, str] = setting(
        "Properties of a new table.", factory=dict, example={"delta.deletedFileRetentionDuration": "interval 7 days"}
    )
    batch_size: int = setting(
        "Records in a commit.", default=10_000, least=1, ignored="every micro-batch is one commit"
    )
    flush_interval_secs: int = setting(
        "Seconds between commits.", default=60, least=0, ignored="set the sink's trigger"
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.write_mode == "merge" and not self.key_columns:
            yield "key_columns", "is missing: merge needs the columns that tell rows apart"
        if self.key_columns and self.write_mode != "merge":
            yield "key_columns", "has no use unless write_mode is merge"

    def options(self) -> dict[str, str]:
        """What the deltalake package is told about the store; the environment says the rest."""
        found: dict[str, str] = {}
        if self.table_uri.startswith(("s3://", "s3a://")):
            found |= _s3_options(self.s3 or S3Access())
        elif self.table_uri.startswith(("gs://", "gcs://")):
            found |= _prefixed("google_", (self.gcs or GcsAccess()).options())
        elif self.table_uri.startswith(("az://", "azure://", "abfs://", "abfss://", "adl://")):
            access = self.azure or AzureAccess()
            found |= _prefixed("azure_", access.options())
            found |= {"allow_http": "true"} if (access.endpoint or "").startswith("http://") else {}
        return found | {name: value.reveal() for name, value in self.storage_options.items()}


def _s3_options(access: S3Access) -> dict[str, str]:
    found = _prefixed("aws_", access.options())
    if access.access_key_id:
        named = {name: value for name, value in access.credentials().items() if value}
        named["session_token"] = str(named.pop("token", ""))
        found |= _prefixed("aws_", named)
    if (access.endpoint or "").startswith("http://"):
        found["aws_allow_http"] = "true"
    return found | {"aws_conditional_put": "etag"}  # what makes two commits at once safe


def _prefixed(prefix: str, options: Mapping[str, Any]) -> dict[str, str]:
    return {prefix + name: str(value).lower() if value is True else str(value) for name, value in options.items()}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file in the table's folder that no entry of the log names yet."""

    path: str
    bytes: int
    partition_values: dict[str, str | None]
    stats: str


class DeltaSink(ArrowSink[DeltaSettings]):
    name = "delta-lake"
    aliases = ("delta", "delta-lake-sink", "deltalake")
    title = "Delta Lake"
    summary = "Appends records to a Delta table on a disk or in an object store, each record exactly once."
    docs = """
    The table can be read by Spark, DuckDB, Trino, Databricks and whatever else knows Delta. It is created from the
    columns of the records if it is not there; a table that is there must have their columns, or `merge_schema` adds
    them. Columns of the table that the records lack are null.

    Every micro-batch is one commit with the transaction id `rivven-QUERY` and the number of the batch as its version,
    by which a batch that Spark runs again is known. Choose a slow `trigger`, such as `1m`, since every commit adds at
    least one file; `OPTIMIZE` joins small ones. Files that a killed task has left are in no commit and thus in no
    query; `VACUUM` deletes them.

    With `write_mode: merge` the table has the last state of each key: records of the event type `delete` take rows
    out, all others put them in or change them. The order is that of the topic, so records of a key have to be in one
    partition. A merge is made in the driver, which needs the memory for a micro-batch, and rewrites every file that
    has a row to change.
    """
    example = """
    sinks:
      lake:
        connector: delta-lake
        topics: [orders]
        consumer_group: lake
        start_offset: earliest
        trigger: 1m
        config:
          table_uri: s3://lake/orders
          partition_columns: [country]
          s3:
            region: eu-central-1
    """
    extra = "delta"
    modules = ("deltalake", "pyarrow")
    delivery = "exactly_once"

    def __init__(self, settings: DeltaSettings) -> None:
        super().__init__(settings)
        self.record_columns = RESERVED if self._merges else ()

    @property
    def _merges(self) -> bool:
        return self.settings.write_mode == "merge"

    def _table(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.settings.table_uri, storage_options=self.settings.options())

    def _files(self) -> FileSystem:
        """The folder of the table, wherever that is."""
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        handler: Any = DeltaStorageHandler(self.settings.table_uri, self.settings.options())
        return PyFileSystem(handler)

    @contextmanager
    def _trouble(self, what: str) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError) as error:
            text = f"{what} {self.settings.table_uri}: {told(error, self.settings)}"
            raise StoreTrouble(text=text) from None  # the cause would show secrets

    # Before it runs

    def check(self) -> list[Finding]:
        from deltalake import DeltaTable

        settings = self.settings
        try:
            there = DeltaTable.is_deltatable(settings.table_uri, storage_options=settings.options())
        except Exception as error:  # a store raises what it likes, and all of it is worth a line
            return [Finding(told(error, settings), field="table_uri", fix="correct it, or the settings of its store")]
        if not there and not settings.auto_create_table:
            return [Finding("there is no table", field="table_uri", fix="create it, or set auto_create_table: true")]
        return self._probe()

    def _probe(self) -> list[Finding]:
        """Write and delete a small file, since rights cannot be asked for. Names that begin with `_` are not data."""
        where = Path(self.settings.table_uri)
        fresh = [] if "://" in str(self.settings.table_uri) else _missing(where)
        try:
            if fresh:
                where.mkdir(parents=True)
            probe, files = f"_rivven_probe_{time.time_ns()}", self._files()
            with _writing(files, probe) as target:
                target.write(b"rivven-connect check")
            files.delete_file(probe)
        except Exception as error:  # as above
            text = told(error, self.settings)
            return [
                Finding(f"it cannot be written to: {text}", field="table_uri", fix="give rights to write and delete")
            ]
        finally:
            for folder in fresh:
                with suppress(OSError):
                    folder.rmdir()
        return []

    def prepare(self, schema: pa.Schema) -> None:
        import pyarrow as pa
        from deltalake import DeltaTable

        self.settings = settings = replace(self.settings, table_uri=absolute(self.settings.table_uri))
        schema = pa.schema([field for field in schema if field.name not in RESERVED])
        see_columns(schema, settings.key_columns, "key_columns")
        with self._trouble("looking at"):
            there = DeltaTable.is_deltatable(settings.table_uri, storage_options=settings.options())
        if not there:
            if not settings.auto_create_table:
                raise ValueError(f"table_uri: there is no table at {settings.table_uri}; set auto_create_table: true")
            self._create(schema)
        else:
            self._fit(schema)

    def _create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        settings = self.settings
        see_columns(schema, settings.partition_columns, "partition_columns")
        if len(settings.partition_columns) == len(schema.names):
            raise ValueError("partition_columns: at least one column must be left to be written")
        for name in settings.partition_columns:
            _look_at_partition(name, schema.field(name).type)
        with self._trouble("creating"):
            DeltaTable.create(
                settings.table_uri,
                schema,
                mode="ignore",
                partition_by=settings.partition_columns or None,
                configuration=settings.table_properties or None,
                storage_options=settings.options(),
            )

    def _fit(self, schema: pa.Schema) -> None:
        """See that the table can take the records; add columns if that is wanted."""
        from deltalake import Schema

        with self._trouble("looking at"):
            table = self._table()
        have, parts = _columns(table), list(table.metadata().partition_columns)
        if self.settings.partition_columns and self.settings.partition_columns != parts:
            shown = ", ".join(parts) or "nothing"
            raise ValueError(f"partition_columns: the table is partitioned by {shown}; say the same, or leave it out")
        for name in parts:
            if name not in schema.names:
                raise ValueError(f"table_uri: the table is partitioned by {name}, which the records do not have")
            _look_at_partition(name, have.field(name).type)
        new = new_columns(schema, have)
        if new and not self.settings.merge_schema:
            raise ValueError(
                f"merge_schema: the table has no column {', '.join(new)}; set it to true, or drop them by a transform"
            )
        for name in changed_columns(schema, have):
            raise ValueError(
                f"table_uri: {name} is {have.field(name).type} in the table and {schema.field(name).type} in the "
                "records; cast it by a transform"
            )
        if lacking := lacking_columns(schema, have):
            raise ValueError(f"table_uri: the table wants {', '.join(lacking)}, which the records do not have")
        if new:
            import pyarrow as pa

            wanted = pa.schema([schema.field(name).with_nullable(True) for name in new])
            with self._trouble("adding columns to"):
                table.alter.add_columns(list(Schema.from_arrow(wanted).fields))

    # In a task

    def write(self, batches: Iterator[pa.RecordBatch], task: Task) -> list[DataFile] | None:
        """The files of one attempt, written to the local disk first, where their statistics can be read."""
        home = Path(tempfile.mkdtemp(prefix="rivven-delta-"))
        try:
            with self._trouble("reading"):
                table = self._table()
            parts = [] if self._merges else list(table.metadata().partition_columns)
            made = self._make(batches, home, _columns(table), parts, task)
            return self._upload(made, parts, task) if made else None
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def _make(
        self, batches: Iterator[pa.RecordBatch], home: Path, columns: pa.Schema, parts: Sequence[str], task: Task
    ) -> list[Made]:
        def open_file(folder: str, number: int) -> tuple[str, IO[bytes]]:  # noqa: ARG001
            path = home / str(number)
            return str(path), open(path, "wb")

        compression: Any = self.settings.compression
        full_bytes = self.settings.target_file_size_mb << 20
        sorter = Sorter("parquet", compression, parts, full_bytes, open_file, task.refuse)
        try:
            for batch in batches:
                if batch.num_rows:
                    sorter.write(_shaped(batch, columns))
            return sorter.close()
        except BaseException:
            sorter.abandon()
            raise

    def _upload(self, made: Sequence[Made], parts: Sequence[str], task: Task) -> list[DataFile]:
        files, done = self._files(), []
        place = staging(task.batch) if self._merges else ""
        stem = f"part-{task.batch.batch_id:010d}-{task.partition:05d}-{uuid4().hex}"
        try:
            with self._trouble("writing to"):
                for number, each in enumerate(made):
                    values = _values(each.folder, parts)
                    path = f"{place}{_folder(values)}{stem}-{number}.parquet"
                    done.append(DataFile(path, each.bytes, values, _stats(each.path)))
                    with open(each.path, "rb") as source, _writing(files, path) as target:
                        shutil.copyfileobj(source, target, CHUNK_BYTES)
        except BaseException:
            self._delete(done)
            raise
        return done

    # In the driver

    def commit(self, receipts: Sequence[list[DataFile]], batch: Batch) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        app, files = f"rivven-{batch.query_id}", [each for receipt in receipts for each in receipt]
        with self._trouble("committing to"):
            table = self._table()
            if _is_done(table, app, batch):
                self._clear(table, files, batch)
                return
            properties = CommitProperties(
                custom_metadata={"rivven.query-id": batch.query_id, "rivven.batch-id": str(batch.batch_id)},
                max_commit_retries=self.settings.max_commit_retries,
                app_transactions=[Transaction(app, batch.batch_id)],
            )
            try:
                if self._merges:
                    merge(table, self._read(files), self.settings.key_columns, properties)
                else:
                    self._add(table, files, properties)
            except CommitFailedError:  # another driver came first, or our own commit did, and the answer was lost
                table = self._table()
                if not _is_done(table, app, batch):
                    raise
                self._clear(table, files, batch)
            else:
                if self._merges:
                    self._clear(table, files, batch)

    def _add(self, table: DeltaTable, files: Sequence[DataFile], properties: CommitProperties) -> None:
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(each.path, each.bytes, each.partition_values, now_ms, True, each.stats) for each in files
        ]
        parts = list(table.metadata().partition_columns)
        mode = self.settings.write_mode
        table.create_write_transaction(actions, mode, table.schema(), parts, commit_properties=properties)

    def _read(self, files: Sequence[DataFile]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        there = self._files()
        return pa.concat_tables([pq.read_table(each.path, filesystem=there) for each in files])

    def _clear(self, table: DeltaTable, files: Iterable[DataFile], batch: Batch) -> None:
        """Remove what is not needed: files that are not in the table, or all that was staged for a merge."""
        import pyarrow as pa
        from pyarrow.fs import FileSelector

        if not self._merges:
            actions: Any = table.get_add_actions()
            used = set(pa.table(actions).column("path").to_pylist())
            self._delete(each for each in files if each.path not in used)
            return
        there, folder = self._files(), staging(batch)
        with suppress(OSError):
            for each in there.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True)):
                if each.is_file:
                    there.delete_file(each.path)

    def abort(self, receipts: Sequence[list[DataFile]], batch: Batch) -> None:  # noqa: ARG002
        self._delete([each for receipt in receipts for each in receipt])

    def _delete(self, files: Iterable[DataFile]) -> None:
        """Remove files that are in no commit. Those that stay do no harm."""
        there = self._files()
        for each in files:
            with suppress(OSError):
                there.delete_file(each.path)


def _writing(files: FileSystem, path: str) -> Any:
    """A file to write to. The buffer is not for speed: without it deltalake is handed a kind of bytes it refuses."""
    return files.open_output_stream(path, buffer_size=4 * CHUNK_BYTES)


def _is_done(table: DeltaTable, app: str, batch: Batch) -> bool:
    version = table.transaction_version(app)
    return version is not None and version >= batch.batch_id


def _missing(path: Path) -> list[Path]:
    """The folders of a path that are not there, the innermost first."""
    return [each for each in (path.absolute(), *path.absolute().parents) if not each.exists()]


def staging(batch: Batch) -> str:
    """Where records wait that are to be merged. What begins with `_` is no part of a table."""
    return f"_rivven/{batch.query_id}/{batch.batch_id}/"


# Columns


def _shaped(batch: pa.RecordBatch, table: pa.Schema) -> pa.RecordBatch:
    """The columns of the record in the types of the table, and those about the record that a merge looks at."""
    about = [name for name in NEEDED if name in batch.schema.names]
    made = as_in_table(batch.drop_columns([name for name in batch.schema.names if name in RESERVED]), table)
    for name in about:
        made = made.append_column(name, batch.column(name))
    return made


def _columns(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa

    schema: Any = table.schema().to_arrow()
    return pa.schema(schema)


def _look_at_partition(name: str, kind: Any) -> None:
    import pyarrow as pa

    types = pa.types
    fine = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean, types.is_date)
    if not any(each(kind) for each in fine):
        raise ValueError(
            f"partition_columns: {name} is {kind}; texts, whole numbers, dates and booleans can be partitioned by"
        )


def _values(folder: str, parts: Sequence[str]) -> dict[str, str | None]:
    """The values of the partition columns from the folder that the rows were sorted to."""
    texts = [unquote(part.partition("=")[2]) for part in folder.split("/")] if parts else []
    return {name: None if text == NULL_FOLDER else text for name, text in zip(parts, texts, strict=True)}


def _folder(values: Mapping[str, str | None]) -> str:
    """A folder for people to look at: what counts is in the log, so characters with a meaning can be left out."""
    return "".join(
        f"{_plain(name)}={_plain(NULL_FOLDER if value is None else value)}/" for name, value in values.items()
    )


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:100]


def _stats(path: str) -> str:
    """What a reader may skip the file by: rows, nulls, and the least and greatest values of simple columns."""
    import pyarrow.parquet as pq

    found = pq.read_metadata(path)
    names = [found.schema.column(place).path for place in range(found.num_columns)]
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place, name in enumerate(names):
        groups: list[Any] = [found.row_group(group).column(place).statistics for group in range(found.num_row_groups)]
        if "." in name or any(each is None or not each.has_null_count for each in groups):
            continue
        nulls[name] = sum(each.null_count for each in groups)
        bounds = [each for each in groups if each.num_values]
        if bounds and all(each.has_min_max for each in bounds):
            low, high = _stat(min(each.min for each in bounds)), _stat(max(each.max for each in bounds))
            if low is not None and high is not None:
                least[name], most[name] = low, high
    return json.dumps({"numRecords": found.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _stat(value: Any) -> Any:
    """A value as the statistics have it; None for kinds that are not kept there."""
    import datetime as dt

    if isinstance(value, bool | float):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return value if len(value) <= STAT_TEXT_MAX else None
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value.isoformat() if isinstance(value, dt.date) else None

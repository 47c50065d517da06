"""Apache Iceberg tables, exactly once, without a jar.

Tasks write data files into the table's location, where no reader sees them: what counts is in a snapshot. The commit
of a micro-batch appends all of them in one snapshot, whose summary says which query and batch it is. It is based on
the snapshot in which the batch was looked for and not found, and fails if there is another by then: so of two drivers
that commit the same batch at once, one gets through, and the other finds the batch when it looks again.
"""

from __future__ import annotations

import itertools
import random
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from rivven.connect.sdk import ArrowSink, Batch, Finding, Secret, Settings, Task, setting
from rivven.connect.stores import AzureAccess, GcsAccess, S3Access, StoreTrouble, told

from .tables import as_in_table, changed_columns, lacking_columns, new_columns, see_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

QUERY, BATCH = "rivven.query-id", "rivven.batch-id"
"""In the summary of a snapshot."""
COMMIT_TRIES_MAX = 20
PAUSE_S = 0.1


class RestCatalog(Settings):
    uri: str = setting("The address of the catalog.", example="http://localhost:8181", least=1)
    warehouse: str | None = setting("The warehouse, as the catalog calls it.", default=None)
    credential: Secret | None = setting("CLIENT_ID:CLIENT_SECRET, for OAuth2.", default=None)
    token: Secret | None = setting("A bearer token, instead of a credential.", default=None)
    properties: dict[str, Secret] = setting("More properties, as pyiceberg names them.", factory=dict)


class SqlCatalog(Settings):
    uri: Secret = setting(
        "The database that keeps the catalog, as SQLAlchemy writes it.", example="sqlite:////data/catalog.db", least=1
    )
    warehouse: str | None = setting("Where new tables go: a directory or a store.", default=None)


class GlueCatalog(Settings):
    region: str = setting("The region.", default="us-east-1", least=1)
    catalog_id: str | None = setting("The catalog, if it is not that of the account.", default=None)
    access_key_id: Secret | None = setting("The access key; without it the environment's.", default=None)
    secret_access_key: Secret | None = setting("The secret that belongs to the access key.", default=None)
    role_arn: str | None = setting("A role to take on.", default=None)


class HiveCatalog(Settings):
    uri: str = setting("The address of the metastore.", example="thrift://localhost:9083", least=1)
    warehouse: str | None = setting("Where new tables go.", default=None)


class CatalogSettings(Settings):
    type: Literal["rest", "sql", "glue", "hive", "memory"] = setting(
        "What kind of catalog it is; its own settings are below that name.", default="rest"
    )
    name: str = setting(
        "The name of the catalog; one of type sql keeps its tables under it, and readers have to use the same.",
        default="default",
        least=1,
    )
    rest: RestCatalog | None = setting("A catalog that speaks the REST protocol of Iceberg.", default=None)
    sql: SqlCatalog | None = setting("A catalog in a database, such as a SQLite file.", default=None)
    glue: GlueCatalog | None = setting("The catalog of AWS Glue.", default=None)
    hive: HiveCatalog | None = setting("A Hive metastore.", default=None)
    warehouse: str | None = setting("Where new tables go, if the catalog's own settings do not say.", default=None)

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.type == "memory":
            yield "type", "a catalog in memory is gone when its process ends; use sql with a sqlite file"
        elif self.type != "glue" and getattr(self, self.type) is None:
            yield self.type, f"is missing: a catalog of type {self.type} has its settings there"

    def properties(self) -> dict[str, str]:
        own = getattr(self, self.type) or GlueCatalog()
        found: dict[str, Any] = {"type": self.type, "warehouse": getattr(own, "warehouse", None) or self.warehouse}
        if isinstance(own, RestCatalog):
            found |= {"uri": own.uri, "credential": own.credential, "token": own.token} | own.properties
        elif isinstance(own, SqlCatalog | HiveCatalog):
            found |= {"uri": own.uri}
        elif isinstance(own, GlueCatalog):
            found |= {"glue.region": own.region, "glue.id": own.catalog_id, "glue.role-arn": own.role_arn}
            found |= {"glue.access-key-id": own.access_key_id, "glue.secret-access-key": own.secret_access_key}
        return _texts(found)


def _texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value.reveal() if isinstance(value, Secret) else str(value)
        for name, value in found.items()
        if value is not None
    }


class IcebergSettings(Settings):
    catalog: CatalogSettings = setting("Where the table is registered.")
    namespace: str = setting("The namespace of the table; it is created if it is not there.", example="shop", least=1)
    table: str = setting("The name of the table.", example="orders", least=1)
    auto_create_table: bool = setting("Create the table if it is not there.", default=True)
    partitioning: Literal["none", "table_default", "identity", "bucket", "time"] = setting(
        "How a new table is partitioned: by the values of partition_fields, by their hash, or by their time. "
        "A table that is there keeps its own way, which is what `table_default` asks for.",
        default="none",
    )
    partition_fields: list[str] = setting("The columns that a new table is partitioned by.", factory=list)
    num_buckets: int = setting("Buckets of each column, if partitioned by bucket.", default=16, least=1, most=100_000)
    time_unit: Literal["year", "month", "day", "hour"] = setting(
        "The length of a partition, if partitioned by time.", default="day"
    )
    commit_mode: Literal["append", "overwrite"] = setting(
        "`append` adds the records of every micro-batch, `overwrite` replaces all that is there by them.",
        default="append",
    )
    schema_evolution: Literal["strict", "add_columns", "type_widen", "full"] = setting(
        "What may be done to the table if the records differ: nothing, add columns, widen types (int to long, float "
        "to double), or both.",
        default="strict",
    )
    target_file_size_mb: int = setting("A new file is begun above this.", default=128, least=1, most=4096)
    compression: Literal["none", "snappy", "gzip", "lz4", "zstd", "brotli"] = setting(
        "How the files of a new table are compressed.", default="snappy"
    )
    s3: S3Access | None = setting("How to reach S3, if the catalog does not say.", default=None)
    gcs: GcsAccess | None = setting(
        "How to reach Google Cloud Storage.",
        default=None,
        ignored="set GOOGLE_APPLICATION_CREDENTIALS where the pipeline runs",
    )
    azure: AzureAccess | None = setting("How to reach Azure, if the catalog does not say.", default=None)
    write_properties: dict[str, str] = setting("Properties of a new table.", factory=dict)
    batch_size: int = setting(
        "Records in a snapshot.", default=10_000, least=1, ignored="every micro-batch is one snapshot"
    )
    flush_interval_secs: int = setting(
        "Seconds between snapshots.", default=60, least=0, ignored="set the sink's trigger"
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        by_columns = self.partitioning in ("identity", "bucket", "time")
        if by_columns and not self.partition_fields:
            yield "partition_fields", f"is missing: partitioning by {self.partitioning} needs columns"
        if self.partition_fields and not by_columns:
            yield "partition_fields", "has no use unless partitioning is identity, bucket or time"

    def catalog_properties(self) -> dict[str, str]:
        found = self.catalog.properties()
        if self.s3 is not None:
            found |= _texts(
                {
                    "s3.endpoint": self.s3.endpoint,
                    "s3.region": self.s3.region_or_default,
                    "s3.access-key-id": self.s3.access_key_id,
                    "s3.secret-access-key": self.s3.secret_access_key,
                    "s3.session-token": self.s3.session_token,
                    "s3.anonymous": "true" if self.s3.anonymous else None,
                }
            )
        if self.azure is not None:
            found |= _texts(
                {
                    "adls.account-name": self.azure.account,
                    "adls.account-key": self.azure.access_key,
                    "adls.sas-token": self.azure.sas_token,
                }
            )
        return found


class IcebergSink(ArrowSink[IcebergSettings]):
    name = "iceberg"
    aliases = ("apache-iceberg", "iceberg-sink")
    title = "Apache Iceberg"
    summary = "Appends records to an Iceberg table, one snapshot per micro-batch, each record exactly once."
    docs = """
    The table can be read by Spark, Trino, DuckDB, Snowflake and whatever else knows Iceberg. It is created from the
    columns of the records if it is not there; a table that is there must have them, or `schema_evolution` says what
    may be done to it. Columns of the table that the records lack are null.

    The summary of every snapshot has `rivven.query-id` and `rivven.batch-id`, by which a batch that Spark runs again
    is known. So do not expire the last snapshots of a pipeline that has failed before it has run again. Choose a slow
    `trigger`, such as `1m`, since every snapshot adds at least one file for each partition. Files that a killed task
    has left are in no snapshot and thus in no query; removing orphan files deletes them.

    The catalogs `glue` and `hive` need more of pyiceberg: `pip install 'pyiceberg[glue]'` or `'pyiceberg[hive]'`.
    """
    example = """
    sinks:
      lake:
        connector: iceberg
        topics: [orders]
        consumer_group: lake
        start_offset: earliest
        trigger: 1m
        config:
          catalog:
            type: rest
            rest:
              uri: http://localhost:8181
              warehouse: lake
          namespace: shop
          table: orders
          partitioning: time
          partition_fields: [created_at]
    """
    extra = "iceberg"
    modules = ("pyiceberg", "pyiceberg_core", "pyarrow")
    delivery = "exactly_once"

    def _catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        return load_catalog(self.settings.catalog.name, **self.settings.catalog_properties())

    @property
    def _identifier(self) -> tuple[str, ...]:
        return (*self.settings.namespace.split("."), self.settings.table)

    @contextmanager
    def _trouble(self, what: str) -> Iterator[None]:
        """Whatever the catalog or its store complains about, as StoreTrouble; they raise what they like."""
        try:
            yield
        except (ValueError, StoreTrouble):
            raise
        except Exception as error:
            text = f"{what} {'.'.join(self._identifier)}: {type(error).__name__}: {told(error, self.settings)}"
            raise StoreTrouble(text=text) from None  # the cause would show secrets

    # Before it runs

    def check(self) -> list[Finding]:
        settings = self.settings
        try:
            catalog = self._catalog()
            there = catalog.table_exists(self._identifier)
        except ImportError as error:
            fix = f"pip install 'pyiceberg[{settings.catalog.type}]'"
            return [Finding(told(error, settings), field="catalog.type", fix=fix)]
        except Exception as error:  # a catalog raises what it likes, and all of it is worth a line
            where = f"catalog.{settings.catalog.type}"
            return [Finding(told(error, settings), field=where, fix="correct its settings, or start the catalog")]
        if not there and not settings.auto_create_table:
            return [Finding("there is no such table", field="table", fix="create it, or set auto_create_table: true")]
        return self._probe(catalog.load_table(self._identifier)) if there else []

    def _probe(self, table: Table) -> list[Finding]:
        """Write and delete a small file, since rights cannot be asked for."""
        place = f"{table.location()}/metadata/rivven-probe-{uuid4().hex}"
        try:
            with table.io.new_output(place).create() as target:
                target.write(b"rivven-connect check")
            table.io.delete(place)
        except Exception as error:  # as above
            text = f"{table.location()} cannot be written to: {told(error, self.settings)}"
            return [Finding(text, field="table", fix="give rights to write and delete there")]
        return []

    def prepare(self, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

        with self._trouble("preparing"):
            catalog = self._catalog()
            try:
                table = catalog.load_table(self._identifier)
            except NoSuchTableError:
                if not self.settings.auto_create_table:
                    raise ValueError(
                        f"table: there is no {'.'.join(self._identifier)}; create it, or set auto_create_table: true"
                    ) from None
                try:
                    self._create(catalog, schema)
                except TableAlreadyExistsError:
                    table = catalog.load_table(self._identifier)
                else:
                    return
            self._fit(table, schema)

    def _create(self, catalog: Catalog, schema: pa.Schema) -> None:
        import pyarrow as pa

        settings = self.settings
        see_columns(schema, settings.partition_fields, "partition_fields")
        for name in settings.partition_fields:
            kind = schema.field(name).type
            if settings.partitioning == "time" and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
                raise ValueError(f"partition_fields: {name} is {kind}, not a timestamp; convert it by a transform")
        properties = {
            "write.parquet.compression-codec": "uncompressed"
            if settings.compression == "none"
            else settings.compression,
            "write.target-file-size-bytes": str(settings.target_file_size_mb << 20),
        }
        catalog.create_namespace_if_not_exists(self._identifier[:-1])
        transaction = catalog.create_table_transaction(
            self._identifier, schema, properties=properties | settings.write_properties
        )
        with transaction, transaction.update_spec() as spec:
            for name in settings.partition_fields:
                spec.add_field(name, self._transform())

    def _transform(self) -> Any:
        from pyiceberg import transforms

        if self.settings.partitioning == "bucket":
            return transforms.BucketTransform(self.settings.num_buckets)
        if self.settings.partitioning == "identity":
            return transforms.IdentityTransform()
        return transforms.parse_transform(self.settings.time_unit)

    def _fit(self, table: Table, schema: pa.Schema) -> None:
        """See that the table can take the records; change it as far as that is wanted."""
        have, allowed = table.schema().as_arrow(), self.settings.schema_evolution
        new, changed = new_columns(schema, have), changed_columns(schema, have)
        if new and allowed not in ("add_columns", "full"):
            raise ValueError(
                f"schema_evolution: the table has no column {', '.join(new)}; set it to add_columns, or drop them by "
                "a transform"
            )
        if changed and allowed not in ("type_widen", "full"):
            name = changed[0]
            raise ValueError(
                f"schema_evolution: {name} is {have.field(name).type} in the table and {schema.field(name).type} in "
                "the records; cast it by a transform, or set it to type_widen"
            )
        if lacking := lacking_columns(schema, have):
            raise ValueError(f"table: the table wants {', '.join(lacking)}, which the records do not have")
        if new or changed:
            import pyarrow as pa

            wanted = pa.schema([schema.field(name).with_nullable(True) for name in (*new, *changed)])
            with table.update_schema() as update:
                update.union_by_name(wanted)

    # In a task

    def write(self, batches: Iterator[pa.RecordBatch], task: Task) -> list[DataFile] | None:
        files: list[DataFile] = []
        with self._trouble("writing to"):
            table = self._catalog().load_table(self._identifier)
            try:
                for file in self._written(table, batches, task):
                    files.append(file)  # noqa: PERF402  # those made before a failure are to be deleted
            except BaseException:
                _delete(table.io, files)
                raise
        return files or None

    def _written(self, table: Table, batches: Iterator[pa.RecordBatch], task: Task) -> Iterator[DataFile]:  # noqa: ARG002
        """Data files of the rows, as many at a time as fill one."""
        import pyarrow as pa
        from pyiceberg.io.pyarrow import _dataframe_to_data_files  # what Table.append writes by

        columns, most = table.schema().as_arrow(), self.settings.target_file_size_mb << 20
        counter, name = itertools.count(), uuid4()
        held: list[pa.RecordBatch] = []

        def flush() -> Iterator[DataFile]:
            rows = pa.Table.from_batches(held)
            yield from _dataframe_to_data_files(table.metadata, rows, table.io, name, counter)
            held.clear()

        for batch in batches:
            if batch.num_rows:
                held.append(as_in_table(batch, columns))
            if sum(each.nbytes for each in held) >= most:
                yield from flush()
        if held:
            yield from flush()

    # In the driver

    def commit(self, receipts: Sequence[list[DataFile]], batch: Batch) -> None:
        from pyiceberg.exceptions import CommitFailedException

        files = [each for receipt in receipts for each in receipt]
        with self._trouble("committing to"):
            catalog = self._catalog()
            for attempt in range(COMMIT_TRIES_MAX):
                table = catalog.load_table(self._identifier)
                if (done := _found(table, batch)) is not None:
                    used = _added_by(done, table.io)  # all, if these are the receipts that made it
                    _delete(table.io, [each for each in files if each.file_path not in used])
                    return
                try:
                    self._append(table, files, batch)
                    return
                except CommitFailedException:
                    if attempt == COMMIT_TRIES_MAX - 1:
                        raise
                    time.sleep(PAUSE_S * min(2**attempt, 50) * random.uniform(0.5, 1))

    def _append(self, table: Table, files: Sequence[DataFile], batch: Batch) -> None:
        """One snapshot of all files, on top of the one that was looked at."""
        from pyiceberg.expressions import AlwaysTrue

        about = {QUERY: batch.query_id, BATCH: str(batch.batch_id)}
        # pyiceberg would try again on top of any other snapshot, without looking whether that is this batch
        table.metadata.properties["commit.retry.num-retries"] = "0"
        with table.transaction() as transaction:
            if self.settings.commit_mode == "overwrite":
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that there was nothing to delete
                    transaction.delete(AlwaysTrue(), snapshot_properties=about)
            with transaction.update_snapshot(snapshot_properties=about).fast_append() as snapshot:
                for each in files:
                    snapshot.append_data_file(each)

    def abort(self, receipts: Sequence[list[DataFile]], batch: Batch) -> None:  # noqa: ARG002
        with self._trouble("cleaning up in"):
            table = self._catalog().load_table(self._identifier)
            _delete(table.io, [each for receipt in receipts for each in receipt])


def _found(table: Table, batch: Batch) -> Snapshot | None:
    """The snapshot of this batch, else one of a later batch of its query, that the current one is based on."""
    snapshot, found = table.current_snapshot(), None
    while snapshot is not None:
        about = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if about.get(QUERY) == batch.query_id:
            if int(about[BATCH]) < batch.batch_id:
                break
            found = snapshot
            if int(about[BATCH]) == batch.batch_id:
                break
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return found


def _added_by(snapshot: Snapshot, io: FileIO) -> set[str]:
    return {
        entry.data_file.file_path
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(io)
    }


def _delete(io: FileIO, files: Iterable[DataFile]) -> None:
    """Remove files that are in no snapshot. Those that stay do no harm."""
    for each in files:
        with suppress(Exception):
            io.delete(each.file_path)

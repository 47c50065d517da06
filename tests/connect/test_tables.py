"""The sinks for Delta and Iceberg tables; and the way from a topic to each store and table, with a crash in it."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException

from rivven.client import blocking
from rivven.connect import Batch, Task
from rivven.connect.kit import SinkKit
from rivven.connect.sdk import ArrowSink, BadSettings
from rivven.connect.sinks.delta import DeltaSink
from rivven.connect.sinks.iceberg import IcebergSink
from rivven.connect.sinks.objects import names
from rivven.connect.stores import AzureAccess, S3Access, StoreTrouble, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parent))

from object_servers import AZURE_ACCOUNT, AZURE_KEY, azure_server, s3_server

QUERY = "11111111-2222-3333-4444-555555555555"
MOMENT = datetime(2026, 1, 31, 23, 59, 58, 123456, tzinfo=UTC)


def write(sink: ArrowSink[Any], rows: pa.Table, number: int = 0, attempt: str = "a", place: int = 0) -> list[Any]:
    receipt = sink.write(iter(rows.to_batches()), Task(Batch(QUERY, number), place, attempt))
    return pickle.loads(pickle.dumps([receipt])) if receipt is not None else []


def put(sink: ArrowSink[Any], rows: pa.Table, number: int = 0) -> None:
    sink.prepare(rows.schema)
    sink.commit(write(sink, rows, number), Batch(QUERY, number))


EVERY_TYPE = pa.table(
    {
        "flag": pa.array([True, None]),
        "number": pa.array([1, None], pa.int32()),
        "big": pa.array([1 << 40, None], pa.int64()),
        "real": pa.array([1.5, None], pa.float32()),
        "double": pa.array([float("nan"), None]),
        "text": pa.array(["ä" * 100, None]),
        "blob": pa.array([b"\x00\xff", None]),
        "day": pa.array([MOMENT.date(), None]),
        "moment": pa.array([MOMENT, None], pa.timestamp("us", tz="UTC")),
        "amount": pa.array([Decimal("12.30"), None], pa.decimal128(10, 2)),
        "tags": pa.array([["a", None], None], pa.list_(pa.string())),
        "counts": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        "inner": pa.array([{"x": 1, "deep": {"y": "z"}}, None]),
    }
)


def same(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with NaN as a text, since it is not equal to itself, in the order of a column."""
    made = [{name: "nan" if value != value else value for name, value in row.items()} for row in rows]
    return sorted(made, key=lambda row: str(row["number"]))


# Delta


def delta(home: Path, **more: Any) -> DeltaSink:
    made = DeltaSink.configured({"table_uri": str(home / "table"), **more})
    assert isinstance(made, DeltaSink)
    return made


def delta_rows(home: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(home / "table").to_pyarrow_table().to_pylist()
    return rows


class TableKit(SinkKit):
    def test_the_same_receipts_can_be_committed_again(self, tmp_path: Path) -> None:
        sink, batch = self.make(tmp_path), Batch(QUERY, 0)
        sink.prepare(self.sample(0, 1).schema)
        receipts = self._write(sink, batch, "a", self.sample(0, 5), self.sample(5, 5))
        for _ in range(2):
            sink.commit(receipts, batch)
        assert self._ids(tmp_path) == list(range(10))


class TestDelta(TableKit):
    connector = DeltaSink
    bad_settings: ClassVar[Mapping[str, Any] | None] = {"write_mode": "sideways"}

    def make_settings(self, home: Path) -> dict[str, Any]:
        return {"table_uri": str(home / "table")}

    def written(self, home: Path) -> list[dict[str, Any]]:
        return delta_rows(home) if DeltaTable.is_deltatable(str(home / "table")) else []

    def test_a_batch_that_comes_again_leaves_no_file(self, tmp_path: Path) -> None:
        sink, batch = self.make(tmp_path), Batch(QUERY, 0)
        sink.prepare(self.sample(0, 1).schema)
        for attempt in ("a", "b"):
            sink.commit(self._write(sink, batch, attempt, self.sample(0, 5)), batch)
        assert len(list((tmp_path / "table").rglob("*.parquet"))) == 1


def test_delta_has_every_type_that_spark_gives(tmp_path: Path) -> None:
    put(delta(tmp_path), EVERY_TYPE)
    assert same(delta_rows(tmp_path)) == same(EVERY_TYPE.to_pylist())


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("text", ["DE", "a/b ü%=", "", None]),
        ("number", [1, -2, None]),
        ("day", [date(2026, 1, 31), None]),
        ("flag", [True, False, None]),
    ],
)
def test_delta_partitions_read_back(column: str, values: list[Any], tmp_path: Path) -> None:
    rows = pa.table({"id": list(range(len(values))), column: values})
    put(delta(tmp_path, partition_columns=[column]), rows)
    assert DeltaTable(tmp_path / "table").metadata().partition_columns == [column]
    wanted = [None if value == "" else value for value in values]  # Delta knows no empty text here
    assert [row[column] for row in sorted(delta_rows(tmp_path), key=lambda row: row["id"])] == wanted


def test_readers_of_delta_skip_files_by_their_statistics(tmp_path: Path) -> None:
    sink = delta(tmp_path)
    for number in range(3):
        moments = pa.array([MOMENT.replace(day=1 + number)], pa.timestamp("us", tz="UTC"))
        put(sink, pa.table({"id": [number], "name": [f"n{number}"], "moment": moments}), number)
    table = DeltaTable(tmp_path / "table")
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted((each["min.id"], each["max.id"], each["num_records"]) for each in actions) == [
        (0, 0, 1),
        (1, 1, 1),
        (2, 2, 1),
    ]
    for found in (
        [("id", "=", 1)],
        [("name", "=", "n1")],
        [("moment", "=", MOMENT.replace(day=2))],
    ):
        assert [row["id"] for row in table.to_pyarrow_table(filters=found).to_pylist()] == [1]


def test_delta_gains_columns_only_if_asked(tmp_path: Path) -> None:
    put(delta(tmp_path), pa.table({"id": [1]}))
    wider = pa.table({"id": [2], "name": ["b"]})
    with pytest.raises(ValueError, match="merge_schema: the table has no column name; set it to true"):
        delta(tmp_path).prepare(wider.schema)
    put(delta(tmp_path, merge_schema=True), wider, 1)
    put(delta(tmp_path), pa.table({"id": pa.array([3], pa.int32())}), 2)
    found = sorted(delta_rows(tmp_path), key=lambda row: row["id"])
    assert found == [{"id": 1, "name": None}, {"id": 2, "name": "b"}, {"id": 3, "name": None}]


@pytest.mark.parametrize(
    ("settings", "columns", "complaint"),
    [
        ({}, {"id": pa.string()}, "table_uri: id is int64 in the table and string in the records; cast it"),
        ({"partition_columns": ["id"]}, {"id": pa.int64()}, "partition_columns: the table is partitioned by nothing"),
    ],
)
def test_a_delta_table_that_does_not_fit_is_refused(
    settings: dict[str, Any], columns: dict[str, pa.DataType], complaint: str, tmp_path: Path
) -> None:
    put(delta(tmp_path), pa.table({"id": [1]}))
    with pytest.raises(ValueError, match=complaint):
        delta(tmp_path, **settings).prepare(pa.schema(list(columns.items())))


def test_a_new_delta_table_that_cannot_be_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("moment", pa.timestamp("us", "UTC"))])
    for settings, complaint in (
        ({"partition_columns": ["x"]}, "partition_columns: there is no column x; there is id, moment"),
        ({"partition_columns": ["moment"]}, "partition_columns: moment is timestamp"),
        ({"auto_create_table": False}, "there is no table .*; set auto_create_table: true"),
    ):
        with pytest.raises(ValueError, match=complaint):
            delta(tmp_path, **settings).prepare(schema)


def test_overwriting_delta_keeps_the_last_batch(tmp_path: Path) -> None:
    sink = delta(tmp_path, write_mode="overwrite")
    for number in (0, 1, 1):
        put(sink, pa.table({"id": [number]}), number)
    assert delta_rows(tmp_path) == [{"id": 1}]


class TestDeltaMerge(TableKit):
    connector = DeltaSink
    bad_settings: ClassVar[Mapping[str, Any] | None] = {"key_columns": []}

    def make_settings(self, home: Path) -> dict[str, Any]:
        return {"table_uri": str(home / "table"), "write_mode": "merge", "key_columns": ["id"]}

    def written(self, home: Path) -> list[dict[str, Any]]:
        return delta_rows(home)


def changes(*rows: tuple[int, str, str, int]) -> pa.Table:
    ids, names, kinds, offsets = zip(*rows, strict=True)
    return pa.table(
        {
            "My Id": pa.array(ids, pa.int64()),
            "name": names,
            "__topic": ["people"] * len(rows),
            "__partition": pa.array([0] * len(rows), pa.int32()),
            "__offset": pa.array(offsets, pa.int64()),
            "__event_type": kinds,
        }
    )


def test_merging_into_delta_keeps_the_last_state_of_each_key(tmp_path: Path) -> None:
    sink = delta(tmp_path, write_mode="merge", key_columns=["My Id"], partition_columns=["name"])
    assert sink.record_columns
    put(sink, changes((1, "a", "insert", 0), (2, "b", "insert", 1), (3, "c", "insert", 2)))
    later = changes(
        (2, "gone", "delete", 7), (1, "a3", "update", 6), (4, "d", "insert", 8), (9, "never", "delete", 9)
    )
    early = changes((1, "a2", "update", 4), (2, "b2", "update", 5), (4, "", "delete", 3))
    receipts = [*write(sink, later, 1, place=1), *write(sink, early, 1)]  # two tasks, in any order
    write(sink, early, 1, "lost")
    sink.commit(receipts, Batch(QUERY, 1))
    found = sorted(delta_rows(tmp_path), key=lambda row: row["My Id"])
    assert found == [{"My Id": 1, "name": "a3"}, {"My Id": 3, "name": "c"}, {"My Id": 4, "name": "d"}]
    assert [path for path in (tmp_path / "table" / "_rivven").rglob("*") if path.is_file()] == []


def test_a_merge_that_comes_again_does_not_undo_what_came_after(tmp_path: Path) -> None:
    sink = delta(tmp_path, write_mode="merge", key_columns=["My Id"])
    for number, name in ((0, "old"), (1, "new"), (0, "old")):
        put(sink, changes((1, name, "update", number)), number)
    assert delta_rows(tmp_path) == [{"My Id": 1, "name": "new"}]


def test_a_merge_without_a_key_is_refused(tmp_path: Path) -> None:
    sink = delta(tmp_path, write_mode="merge", key_columns=["id"])
    rows = pa.table({"id": pa.array([None], pa.int64()), "name": ["a"]})
    with pytest.raises(ValueError, match="key_columns: id is null in a record"):
        put(sink, rows)
    with pytest.raises(ValueError, match="key_columns: there is no column id; there is name"):
        sink.prepare(pa.schema([("name", pa.string())]))


def test_of_two_drivers_that_commit_to_delta_at_once_one_gets_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = delta(tmp_path), pa.table({"id": [1, 2]})
    sink.prepare(rows.schema)
    first, second = write(sink, rows, attempt="first"), write(sink, rows, attempt="second")
    stale = sink._table()
    sink.commit(first, Batch(QUERY, 0))
    fresh, tables = sink._table, iter([stale])
    monkeypatch.setattr(sink, "_table", lambda: next(tables, None) or fresh())
    sink.commit(second, Batch(QUERY, 0))
    assert sorted(row["id"] for row in delta_rows(tmp_path)) == [1, 2]
    assert len(list((tmp_path / "table").rglob("*.parquet"))) == 1


def test_a_commit_to_delta_whose_answer_was_lost_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = delta(tmp_path), pa.table({"id": [1, 2]})
    sink.prepare(rows.schema)
    add = DeltaSink._add

    def lost(late: DeltaSink, *arguments: Any) -> None:
        add(late, *arguments)
        raise CommitFailedError("Concurrent transaction failed.")

    monkeypatch.setattr(DeltaSink, "_add", lost)
    sink.commit(write(sink, rows), Batch(QUERY, 0))
    assert sorted(row["id"] for row in delta_rows(tmp_path)) == [1, 2]


def test_a_check_of_delta_leaves_nothing_behind(tmp_path: Path) -> None:
    assert delta(tmp_path / "deep").check() == []
    assert list(tmp_path.iterdir()) == []
    (found,) = delta(tmp_path, auto_create_table=False).check()
    assert str(found) == "table_uri: there is no table; create it, or set auto_create_table: true"


def test_delta_in_a_store_that_does_not_answer_is_named_without_secrets(tmp_path: Path) -> None:
    access = {"endpoint": "http://127.0.0.1:1", "access_key_id": "mykeyid", "secret_access_key": "mysecret"}
    options = {"max_retries": "0", "retry_timeout": "1s"}
    sink = delta(tmp_path, table_uri="s3://lake/orders", s3=access, storage_options=options)
    (found,) = sink.check()
    assert found.field == "table_uri"
    with pytest.raises(StoreTrouble) as caught:
        sink.prepare(pa.schema([("id", pa.int64())]))
    assert "mysecret" not in f"{found}{caught.value}"


# Iceberg


def iceberg_settings(home: Path, **more: Any) -> dict[str, Any]:
    catalog = {"type": "sql", "sql": {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/lake"}}
    return {"catalog": catalog, "namespace": "shop", "table": "orders", **more}


def iceberg(home: Path, **more: Any) -> IcebergSink:
    made = IcebergSink.configured(iceberg_settings(home, **more))
    assert isinstance(made, IcebergSink)
    return made


def catalog_of(home: Path, **more: str) -> Catalog:
    return load_catalog("default", type="sql", uri=f"sqlite:///{home}/catalog.db", **more)


def iceberg_rows(home: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = catalog_of(home).load_table("shop.orders").scan().to_arrow().to_pylist()
    return rows


class TestIceberg(TableKit):
    connector = IcebergSink
    bad_settings: ClassVar[Mapping[str, Any] | None] = {"commit_mode": "upsert"}

    def make_settings(self, home: Path) -> dict[str, Any]:
        return iceberg_settings(home)

    def written(self, home: Path) -> list[dict[str, Any]]:
        return iceberg_rows(home)

    def test_a_batch_is_one_snapshot_with_its_name_and_one_that_comes_again_is_none(self, tmp_path: Path) -> None:
        sink, batch = self.make(tmp_path), Batch(QUERY, 7)
        sink.prepare(self.sample(0, 1).schema)
        for attempt in ("a", "b"):
            sink.commit(self._write(sink, batch, attempt, self.sample(0, 5), self.sample(5, 5)), batch)
        (snapshot,) = catalog_of(tmp_path).load_table("shop.orders").snapshots()
        assert snapshot.summary is not None
        assert snapshot.summary["rivven.query-id"] == QUERY
        assert snapshot.summary["rivven.batch-id"] == "7"
        assert len(list((tmp_path / "lake").rglob("*.parquet"))) == 2


def test_iceberg_has_every_type_that_spark_gives(tmp_path: Path) -> None:
    put(iceberg(tmp_path), EVERY_TYPE)
    found = iceberg_rows(tmp_path)
    assert same(
        [{**row, "counts": row["counts"] and [tuple(each) for each in row["counts"]]} for row in found]
    ) == same(EVERY_TYPE.to_pylist())


@pytest.mark.parametrize(
    ("settings", "spec", "files"),
    [
        ({"partitioning": "identity", "partition_fields": ["country"]}, "identity(2)", 3),
        ({"partitioning": "time", "partition_fields": ["moment"]}, "day(3)", 2),
        ({"partitioning": "time", "partition_fields": ["moment"], "time_unit": "month"}, "month(3)", 1),
        ({"partitioning": "bucket", "partition_fields": ["id"], "num_buckets": 2}, "bucket[2](1)", 2),
    ],
)
def test_iceberg_partitions_read_back(settings: dict[str, Any], spec: str, files: int, tmp_path: Path) -> None:
    moments = pa.array([MOMENT, MOMENT, MOMENT.replace(day=1)], pa.timestamp("us", tz="UTC"))
    rows = pa.table({"id": [1, 2, 3], "country": ["DE", "a/b ü", None], "moment": moments})
    put(iceberg(tmp_path, **settings), rows)
    table = catalog_of(tmp_path).load_table("shop.orders")
    (field,) = table.spec().fields
    assert f"{field.transform}({field.source_id})" == spec
    assert len(list(table.scan().plan_files())) == files
    assert sorted(iceberg_rows(tmp_path), key=lambda row: row["id"]) == rows.to_pylist()
    assert [row["id"] for row in table.scan("country = 'DE'").to_arrow().to_pylist()] == [1]


def test_iceberg_evolves_only_as_far_as_asked(tmp_path: Path) -> None:
    put(iceberg(tmp_path), pa.table({"id": pa.array([1], pa.int32())}))
    wider = pa.table({"id": pa.array([2], pa.int64()), "name": ["b"]})
    for allowed, complaint in (
        ("strict", "schema_evolution: the table has no column name; set it to add_columns"),
        ("add_columns", "schema_evolution: id is int32 in the table and int64 in the records; cast it"),
        ("type_widen", "schema_evolution: the table has no column name"),
    ):
        with pytest.raises(ValueError, match=complaint):
            iceberg(tmp_path, schema_evolution=allowed).prepare(wider.schema)
    put(iceberg(tmp_path, schema_evolution="full"), wider, 1)
    put(iceberg(tmp_path), pa.table({"id": pa.array([3], pa.int32())}), 2)
    found = sorted(iceberg_rows(tmp_path), key=lambda row: row["id"])
    assert found == [{"id": 1, "name": None}, {"id": 2, "name": "b"}, {"id": 3, "name": None}]


def test_overwriting_iceberg_keeps_the_last_batch(tmp_path: Path) -> None:
    sink = iceberg(tmp_path, commit_mode="overwrite")
    for number in (0, 1, 1):
        put(sink, pa.table({"id": [number]}), number)
    assert iceberg_rows(tmp_path) == [{"id": 1}]


def test_of_two_drivers_that_commit_to_iceberg_at_once_one_gets_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = iceberg(tmp_path), pa.table({"id": [1, 2]})
    sink.prepare(rows.schema)
    first, second = write(sink, rows, attempt="first"), write(sink, rows, attempt="second")
    append, went = IcebergSink._append, []

    def interrupted(late: IcebergSink, table: Any, files: Any, batch: Batch) -> None:
        if not went:  # another driver commits between this one's look and its own commit
            went.append(True)
            sink.commit(first, batch)
        append(late, table, files, batch)

    monkeypatch.setattr(IcebergSink, "_append", interrupted)
    iceberg(tmp_path).commit(second, Batch(QUERY, 0))
    assert went
    assert sorted(row["id"] for row in iceberg_rows(tmp_path)) == [1, 2]
    assert len(list((tmp_path / "lake").rglob("*.parquet"))) == 1


def test_a_commit_to_iceberg_whose_answer_was_lost_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = iceberg(tmp_path), pa.table({"id": [1, 2]})
    sink.prepare(rows.schema)
    append = IcebergSink._append

    def lost(late: IcebergSink, *arguments: Any) -> None:
        append(late, *arguments)
        raise CommitFailedException("the branch has changed")

    monkeypatch.setattr(IcebergSink, "_append", lost)
    sink.commit(write(sink, rows), Batch(QUERY, 0))
    assert sorted(row["id"] for row in iceberg_rows(tmp_path)) == [1, 2]


def test_other_writers_between_two_batches_do_no_harm(tmp_path: Path) -> None:
    sink, rows = iceberg(tmp_path), pa.table({"id": [1]})
    put(sink, rows)
    catalog_of(tmp_path).load_table("shop.orders").append(pa.table({"id": [2]}))
    put(sink, rows)
    put(sink, pa.table({"id": [3]}), 1)
    assert sorted(row["id"] for row in iceberg_rows(tmp_path)) == [1, 2, 3]


def test_the_properties_of_an_iceberg_table_are_left_alone(tmp_path: Path) -> None:
    put(iceberg(tmp_path, compression="zstd", write_properties={"owner": "me"}), pa.table({"id": [1]}))
    properties = catalog_of(tmp_path).load_table("shop.orders").properties
    assert properties["owner"] == "me"
    assert properties["write.parquet.compression-codec"] == "zstd"
    assert "commit.retry.num-retries" not in properties


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"catalog": {"type": "rest"}}, "catalog.rest: is missing: a catalog of type rest has its settings there"),
        ({"catalog": {"type": "memory"}}, "catalog.type: a catalog in memory is gone"),
        ({"partitioning": "time"}, "partition_fields: is missing"),
        ({"partition_fields": ["a"]}, "partition_fields: has no use"),
    ],
)
def test_bad_settings_of_iceberg_are_named(values: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as caught:
        iceberg(tmp_path, **values)
    assert complaint in str(caught.value)


def test_a_catalog_that_does_not_answer_is_named(tmp_path: Path) -> None:
    catalog = {"type": "rest", "rest": {"uri": "http://127.0.0.1:1", "token": "mysecret"}}
    (found,) = iceberg(tmp_path, catalog=catalog).check()
    assert found.field == "catalog.rest"
    assert "mysecret" not in str(found)


def test_rest_settings_reach_the_catalog() -> None:
    rest = {"uri": "http://c:1", "warehouse": "w", "credential": "id:secret", "properties": {"scope": "all"}}
    access = {"endpoint": "http://s:1", "access_key_id": "k", "secret_access_key": "s", "region": "r"}
    sink = IcebergSink.configured(
        {"catalog": {"type": "rest", "rest": rest}, "namespace": "a.b", "table": "t", "s3": access}
    )
    assert sink.settings.catalog_properties() == {
        "type": "rest",
        "uri": "http://c:1",
        "warehouse": "w",
        "credential": "id:secret",
        "scope": "all",
        "s3.endpoint": "http://s:1",
        "s3.region": "r",
        "s3.access-key-id": "k",
        "s3.secret-access-key": "s",
    }


# From a topic to each store and table, with a crash in between


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as endpoint:
        yield {"endpoint": endpoint, "access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}


@pytest.fixture(scope="module")
def azure() -> Iterator[dict[str, str]]:
    with azure_server() as endpoint:
        yield {"endpoint": endpoint, "account": AZURE_ACCOUNT, "access_key": AZURE_KEY}


class Target:
    """A sink's settings, and how to read what it wrote."""

    def __init__(self, connector: str, topic: str, home: Path, request: pytest.FixtureRequest) -> None:
        self.connector = connector
        self.topic = topic
        self._home = home
        self._access: dict[str, str] = request.getfixturevalue("azure" if connector == "azure-blob" else "s3")

    def config(self) -> dict[str, Any]:
        if self.connector == "s3":
            more = {"format": "jsonl", "topic_folders": True, "partitioning": "day"}
            return {"bucket": "events", "prefix": "raw", **more, "s3": self._access}
        if self.connector == "azure-blob":
            more = {"format": "parquet", "partition_by": ["part"]}
            return {"bucket": "events", "prefix": self.topic, **more, "azure": self._access}
        if self.connector == "delta-lake":
            return {"table_uri": f"s3://events/{self.topic}", "partition_columns": ["part"], "s3": self._access}
        sql = {"uri": f"sqlite:///{self._home}/catalog.db", "warehouse": "s3://events/lake"}
        parts = {"partitioning": "identity", "partition_fields": ["part"]}
        table = {"namespace": "shop", "table": "orders", **parts}
        return {"catalog": {"type": "sql", "sql": sql}, **table, "s3": self._access}

    def ids(self) -> list[int]:
        if self.connector == "delta-lake":
            options = DeltaSink.configured(self.config()).settings.options()
            table = DeltaTable(f"s3://events/{self.topic}", storage_options=options).to_pyarrow_table()
            return sorted(table["id"].to_pylist())
        if self.connector == "iceberg":
            properties = {f"s3.{name.replace('_', '-')}": value for name, value in self._access.items()}
            table = catalog_of(self._home, **properties).load_table("shop.orders").scan().to_arrow()
            return sorted(table["id"].to_pylist())
        return sorted(each for data in self._objects() for each in self._ids_in(data))

    def _objects(self) -> Iterator[bytes]:
        import obstore

        access = S3Access if self.connector == "s3" else AzureAccess
        store = open_store(access.parse(self._access), "events")
        for path in names(store, f"raw/{self.topic}" if self.connector == "s3" else self.topic):
            if "/_rivven/" not in path:
                yield bytes(obstore.get(store, path).bytes())

    def _ids_in(self, data: bytes) -> list[int]:
        if self.connector == "s3":
            return [json.loads(line)["id"] for line in data.splitlines()]
        found: list[int] = pq.read_table(pa.BufferReader(data))["id"].to_pylist()
        return found


def forget_the_last_commit(home: Path) -> None:
    """As if the driver had died after our commit and before Spark's own: the batch will run again."""
    (log,) = (home / "state").rglob("commits")
    last = max((path for path in log.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("connector", ["s3", "azure-blob", "delta-lake", "iceberg"])
def test_from_a_topic_to_a_store_or_table_exactly_once(
    connector: str,
    spark: SparkSession,
    servers: str,
    client: blocking.RivvenClient,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    from pipelines import run_once

    topic = f"to-{connector}"
    client.create_topic(topic, 2 if connector == "s3" else 1)  # a task has much to import
    target = Target(connector, topic, tmp_path, request)
    sink = {"topics": [topic], "consumer_group": topic, "start_offset": "earliest", "config": target.config()}
    text = json.dumps(
        {"broker": {"bootstrap_servers": [servers]}, "sinks": {topic: {"connector": connector, **sink}}}
    )

    def produce(first: int, count: int) -> None:
        with client.producer(topic) as producer:
            for number in range(first, first + count):
                value = {"id": number, "part": f"p{number % 3}", "text": f"text {number}"}
                producer.put(json.dumps(value).encode(), partition=number % 2 if connector == "s3" else 0)

    produce(0, 300)
    assert run_once(spark, tmp_path, text)[topic].state == "done"
    assert target.ids() == list(range(300))
    forget_the_last_commit(tmp_path)
    produce(300, 100)
    assert run_once(spark, tmp_path, text)[topic].state == "done"
    assert target.ids() == list(range(400))

"""The sinks for object stores, against a server that speaks S3, one that speaks Azure's, and a directory."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import fastavro
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivven.connect import Batch, Task
from rivven.connect.kit import SinkKit
from rivven.connect.sdk import BadSettings
from rivven.connect.sinks.azure import AzureSink
from rivven.connect.sinks.gcs import GcsSink
from rivven.connect.sinks.object_storage import ObjectStorageSink
from rivven.connect.sinks.objects import Manifests, Objects, copy, delete, names, staging, sweep
from rivven.connect.sinks.s3 import S3Sink
from rivven.connect.stores import StoreTrouble, open_store

sys.path.append(str(Path(__file__).parent))

from object_servers import AZURE_ACCOUNT, AZURE_KEY, azure_server, gcs_server, s3_server

pytestmark = pytest.mark.xdist_group("stores")  # they share the servers

QUERY = "11111111-2222-3333-4444-555555555555"
UNSIGNED = json.dumps({"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""})
"""A key of Google's for servers that want none."""


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def azure() -> Iterator[str]:
    with azure_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def gcs(s3: str) -> Iterator[str]:
    with gcs_server(s3) as endpoint:
        yield endpoint


def s3_access(endpoint: str) -> dict[str, Any]:
    return {"endpoint": endpoint, "access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}


def azure_access(endpoint: str) -> dict[str, Any]:
    return {"endpoint": endpoint, "account": AZURE_ACCOUNT, "access_key": AZURE_KEY}


def gcs_access(endpoint: str) -> dict[str, Any]:
    return {"endpoint": endpoint, "service_account_key": UNSIGNED}


def objects_of(sink: Objects[Any]) -> dict[str, bytes]:
    """All objects that a reader of the prefix would take for data, by their names below it."""
    settings = sink.settings
    store = open_store(settings.access, settings.bucket)
    found = [path.removeprefix(settings.root) for path in names(store, settings.prefix)]
    visible = [path for path in found if not path.startswith("_")]
    return {path: bytes(obstore.get(store, settings.root + path).bytes()) for path in visible}


def hidden_of(sink: Objects[Any]) -> list[str]:
    settings = sink.settings
    store = open_store(settings.access, settings.bucket)
    return [path.removeprefix(settings.root) for path in names(store, f"{settings.root}_rivven")]


def decoded(name: str, data: bytes) -> list[dict[str, Any]]:
    if name.endswith(".gz"):
        name, data = name.removesuffix(".gz"), gzip.decompress(data)
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in data.splitlines()]
    if name.endswith(".json"):
        made: list[dict[str, Any]] = json.loads(data)
        return made
    if name.endswith(".csv"):
        return list(csv.DictReader(io.StringIO(data.decode())))
    if name.endswith(".avro"):
        return [row for row in fastavro.reader(io.BytesIO(data)) if isinstance(row, dict)]
    return pq.read_table(pa.BufferReader(data)).to_pylist()


def rows_of(sink: Objects[Any]) -> list[dict[str, Any]]:
    return [row for name, data in objects_of(sink).items() for row in decoded(name, data)]


# The conformance kit


class ObjectsKit(SinkKit):
    bad_settings: ClassVar[Mapping[str, Any] | None] = {"prefix": "a//b"}

    def written(self, home: Path) -> list[dict[str, Any]]:
        return rows_of(self.make(home))

    def test_the_same_receipts_can_be_committed_again(self, tmp_path: Path) -> None:
        sink, batch = self.make(tmp_path), Batch(QUERY, 0)
        receipts = self._write(sink, batch, "a", self.sample(0, 5))
        for _ in range(2):
            sink.commit(receipts, batch)
        assert self._ids(tmp_path) == list(range(5))

    def test_nothing_stays_staged(self, tmp_path: Path) -> None:
        sink, batch = self.make(tmp_path), Batch(QUERY, 0)
        self._write(sink, batch, "lost", self.sample(0, 5))
        sink.commit(self._write(sink, batch, "won", self.sample(0, 5)), batch)
        assert [path for path in hidden_of(sink) if "manifests" not in path] == []

    def test_an_old_batch_that_comes_late_adds_nothing(self, tmp_path: Path) -> None:
        sink = self.make(tmp_path)
        for number in (0, 1, 0):
            sink.commit(
                self._write(sink, Batch(QUERY, number), "a", self.sample(number * 5, 5)), Batch(QUERY, number)
            )
        assert self._ids(tmp_path) == list(range(10))


class TestS3(ObjectsKit):
    connector = S3Sink

    @pytest.fixture(autouse=True)
    def _server(self, s3: str) -> None:
        self.endpoint = s3

    def make_settings(self, home: Path) -> dict[str, Any]:
        return {"bucket": "events", "prefix": home.name, "format": "jsonl", "s3": s3_access(self.endpoint)}


class TestAzure(ObjectsKit):
    connector = AzureSink

    @pytest.fixture(autouse=True)
    def _server(self, azure: str) -> None:
        self.endpoint = azure

    def make_settings(self, home: Path) -> dict[str, Any]:
        return {"bucket": "events", "prefix": home.name, "format": "parquet", "azure": azure_access(self.endpoint)}


class TestGcs(ObjectsKit):
    connector = GcsSink

    @pytest.fixture(autouse=True)
    def _server(self, gcs: str) -> None:
        self.endpoint = gcs

    def make_settings(self, home: Path) -> dict[str, Any]:
        prefix = f"gcs-{home.name}"
        return {"bucket": "events", "prefix": prefix, "format": "csv", "gcs": gcs_access(self.endpoint)}


class TestObjectStorage(ObjectsKit):
    connector = ObjectStorageSink

    def make_settings(self, home: Path) -> dict[str, Any]:
        return {"provider": "local", "bucket": "events", "format": "avro", "local": {"root": str(home)}}


# A directory as a store, for what does not depend on which it is


def local(home: Path, **more: Any) -> ObjectStorageSink:
    values = {"provider": "local", "bucket": "events", "local": {"root": str(home)}, **more}
    made = ObjectStorageSink.configured(values)
    assert isinstance(made, ObjectStorageSink)
    return made


def write(sink: Objects[Any], rows: pa.Table, number: int = 0, attempt: str = "a") -> list[Any]:
    receipt = sink.write(iter(rows.to_batches()), Task(Batch(QUERY, number), 0, attempt))
    return [receipt] if receipt is not None else []


def put(sink: Objects[Any], rows: pa.Table) -> None:
    sink.prepare(rows.schema)
    sink.commit(write(sink, rows), Batch(QUERY, 0))


ROWS = {"id": [1, 2, 3], "name": ["a", 'b "quoted"\n', None]}


@pytest.mark.parametrize(
    ("form", "compression", "suffix"),
    [
        ("json", "default", ".json"),
        ("json", "gzip", ".json.gz"),
        ("jsonl", "none", ".jsonl"),
        ("jsonl", "gzip", ".jsonl.gz"),
        ("csv", "gzip", ".csv.gz"),
        ("avro", "default", ".avro"),
        ("avro", "none", ".avro"),
        ("parquet", "zstd", ".parquet"),
    ],
)
def test_a_format_reads_back_as_written(form: str, compression: str, suffix: str, tmp_path: Path) -> None:
    sink = local(tmp_path, format=form, compression=compression)
    put(sink, pa.table(ROWS))
    (name,) = objects_of(sink)
    assert name.startswith("part-0000000000-00000-0-")
    assert name.endswith(suffix)
    rows = rows_of(sink)
    if form == "csv":
        assert [row["id"] for row in rows] == ["1", "2", "3"]
        assert [row["name"] for row in rows] == ["a", 'b "quoted"\n', ""]
    else:
        assert [(row["id"], row["name"]) for row in rows] == list(zip(ROWS["id"], ROWS["name"], strict=True))


def test_avro_has_every_type_that_spark_gives(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 31, 23, 59, 58, 123456, tzinfo=UTC)
    columns = {
        "flag": pa.array([True, None]),
        "small": pa.array([1, None], pa.int8()),
        "big": pa.array([1 << 40, None], pa.int64()),
        "real": pa.array([1.5, None], pa.float32()),
        "double": pa.array([2.5, None]),
        "text": pa.array(["ä", None]),
        "blob": pa.array([b"\x00\xff", None]),
        "day": pa.array([moment.date(), None]),
        "moment": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
        "amount": pa.array([Decimal("12.30"), None], pa.decimal128(10, 2)),
        "tags": pa.array([["a", None], None], pa.list_(pa.string())),
        "counts": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        "inner": pa.array([{"x": 1, "deep": {"y": "z"}}, None]),
    }
    sink = local(tmp_path, format="avro")
    put(sink, pa.table(columns))
    full, empty = rows_of(sink)
    assert full == {
        "flag": True,
        "small": 1,
        "big": 1 << 40,
        "real": 1.5,
        "double": 2.5,
        "text": "ä",
        "blob": b"\x00\xff",
        "day": moment.date(),
        "moment": moment,
        "amount": Decimal("12.30"),
        "tags": ["a", None],
        "counts": {"a": 1},
        "inner": {"x": 1, "deep": {"y": "z"}},
    }
    assert set(empty.values()) == {None}


def test_a_name_that_avro_cannot_have_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"format: the column 'unit price' .* rename it"):
        local(tmp_path, format="avro").prepare(pa.schema([("unit price", pa.int64())]))


def test_objects_are_cut_at_the_size_asked_for(tmp_path: Path) -> None:
    sink = local(tmp_path, format="jsonl", max_file_bytes=1024)
    rows = pa.table({"id": list(range(1000)), "text": ["x" * 50] * 1000})
    sink.prepare(rows.schema)
    batches = iter(rows.to_batches(max_chunksize=100))
    receipt = sink.write(batches, Task(Batch(QUERY, 0), 0, "a"))
    assert receipt is not None
    sink.commit([receipt], Batch(QUERY, 0))
    assert len(objects_of(sink)) == 10
    assert sorted(row["id"] for row in rows_of(sink)) == list(range(1000))


@pytest.mark.parametrize("kind", ["s3", "azure", "gcs"])
def test_an_object_of_many_megabytes_arrives_whole(kind: str, request: pytest.FixtureRequest) -> None:
    """Above five megabytes an object is sent in parts."""
    access = {"s3": s3_access, "azure": azure_access, "gcs": gcs_access}[kind](request.getfixturevalue(kind))
    connector: Any = {"s3": S3Sink, "azure": AzureSink, "gcs": GcsSink}[kind]
    sink = connector.configured({"bucket": "events", "prefix": f"large-{kind}", "format": "jsonl", kind: access})
    rows = pa.table({"id": list(range(120)), "text": [chr(97 + place % 26) * 100_000 for place in range(120)]})
    sink.commit(write(sink, rows), Batch(QUERY, 0))
    assert rows_of(sink) == rows.to_pylist()


def test_folders_by_topic_time_and_column_add_up(tmp_path: Path) -> None:
    moments = [datetime(2026, 1, 31, 23, 59, tzinfo=UTC), datetime(2026, 2, 1, 0, 1, tzinfo=UTC), None]
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "country": ["DE", "a/b", None],
            "__topic": ["orders", "orders", "users"],
            "__timestamp": pa.array(moments, pa.timestamp("us", tz="UTC")),
            "__offset": [0, 1, 2],
        }
    )
    sink = local(
        tmp_path, prefix="/raw/", format="jsonl", topic_folders=True, partitioning="hour", partition_by=["country"]
    )
    put(sink, rows)
    found = {name.rpartition("/")[0]: decoded(name, data) for name, data in objects_of(sink).items()}
    nowhere = "__HIVE_DEFAULT_PARTITION__"
    assert found == {
        "orders/dt=2026-01-31/hour=23/country=DE": [{"id": 1}],
        "orders/dt=2026-02-01/hour=00/country=a%2Fb": [{"id": 2}],
        f"users/dt={nowhere}/hour={nowhere}/country={nowhere}": [{"id": 3}],
    }
    assert (tmp_path / "events" / "raw" / "orders").is_dir(), "the prefix comes first, without the slashes round it"


def test_days_can_be_those_of_a_column(tmp_path: Path) -> None:
    sink = local(tmp_path, format="jsonl", partitioning="day", time_column="born")
    put(sink, pa.table({"id": [1], "born": pa.array([datetime(2001, 2, 3, tzinfo=UTC)], pa.timestamp("us", "UTC"))}))
    (name,) = objects_of(sink)
    assert name.startswith("dt=2001-02-03/part-")


@pytest.mark.parametrize(
    ("settings", "columns", "complaint"),
    [
        ({"partition_by": ["b"]}, {"a": pa.int64()}, "partition_by: there is no column b; there is a"),
        ({"partition_by": ["a"]}, {"a": pa.int64()}, "partition_by: at least one column must be left"),
        (
            {"partition_by": ["a"]},
            {"a": pa.list_(pa.int64()), "b": pa.int64()},
            "partition_by: a is nested; take a field of it out",
        ),
        ({"topic_folders": True}, {"a": pa.int64()}, "topic_folders: the records come from no topic"),
        ({"partitioning": "day"}, {"a": pa.int64()}, "time_column: name it"),
        (
            {"partitioning": "day", "time_column": "a"},
            {"a": pa.int64()},
            "time_column: a is int64, not a timestamp; convert it",
        ),
        (
            {"partitioning": "hour", "time_column": "a"},
            {"a": pa.timestamp("us"), "hour": pa.int64()},
            "partitioning: its folders are called hour, as is a column; rename that",
        ),
    ],
)
def test_folders_that_cannot_be_made_are_refused(
    settings: dict[str, Any], columns: dict[str, pa.DataType], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=complaint):
        local(tmp_path, **settings).prepare(pa.schema(list(columns.items())))


# A crash at every point


class Crash(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        *(("local", point) for point in range(9)),
        *((kind, point) for kind in ("s3", "azure") for point in (1, 3, 6, 7)),
    ],
)
def test_a_commit_that_dies_anywhere_is_completed_by_the_next_run(
    kind: str, point: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies at its n-th request to the store, before or after that is done. Then the batch comes again."""
    place = {"bucket": "events", "prefix": f"{kind}-{tmp_path.name}", "format": "jsonl", "partition_by": ["part"]}
    sink: Objects[Any]
    if kind == "s3":
        sink = S3Sink.configured({**place, "s3": s3_access(request.getfixturevalue("s3"))})  # type: ignore[assignment]
    elif kind == "azure":
        access = azure_access(request.getfixturevalue("azure"))
        sink = AzureSink.configured({**place, "azure": access})  # type: ignore[assignment]
    else:
        sink = local(tmp_path, **place)
    rows = pa.table({"id": [1, 2, 3, 4], "part": ["a", "b", "c", "d"]})
    for after in (False, True):
        number = int(after)
        receipts = write(sink, rows, number, "first")
        with monkeypatch.context() as patched:
            asked = iter(range(1000))
            for name in ("put", "copy", "delete", "list"):
                patched.setattr(obstore, name, dying(getattr(obstore, name), asked, point, after=after))
            with pytest.raises(Crash):
                sink.commit(receipts, Batch(QUERY, number))
        sink.commit(write(sink, rows, number, "second"), Batch(QUERY, number))
        assert sorted(row["id"] for row in rows_of(sink)) == sorted([1, 2, 3, 4] * (number + 1))
        assert [path for path in hidden_of(sink) if "manifests" not in path] == []


def dying(call: Any, asked: Iterator[int], point: int, *, after: bool) -> Any:
    def called(*arguments: Any, **keywords: Any) -> Any:
        number = next(asked)
        if number == point and not after:
            raise Crash
        found = call(*arguments, **keywords)
        if number >= point:  # requests of other threads end, too
            raise Crash
        return found

    return called


def test_what_a_reader_has_taken_away_does_not_come_back(tmp_path: Path) -> None:
    sink, batch, rows = local(tmp_path, format="jsonl"), Batch(QUERY, 0), pa.table(ROWS)
    sink.commit(write(sink, rows), batch)
    store = open_store(sink.settings.access, "events")
    delete(store, list(objects_of(sink)))
    sink.commit(write(sink, rows, attempt="again"), batch)
    assert objects_of(sink) == {}


def test_a_crash_amid_the_deleting_brings_nothing_back(tmp_path: Path) -> None:
    sink, batch = local(tmp_path, format="jsonl", partition_by=["id"]), Batch(QUERY, 0)
    (moves,) = write(sink, pa.table(ROWS))
    store = open_store(sink.settings.access, "events")
    Manifests(store, "", QUERY).decide(0, moves)
    copy(store, moves)
    delete(store, [moves[0][0]])
    delete(store, list(objects_of(sink)))
    sink.commit(write(sink, pa.table(ROWS), attempt="again"), batch)
    assert objects_of(sink) == {}


def test_of_two_drivers_that_commit_at_once_one_decides(tmp_path: Path) -> None:
    """The second looks before the first decides, and decides after it."""
    sink, rows = local(tmp_path, format="jsonl"), pa.table(ROWS)
    store = open_store(sink.settings.access, "events")
    first, second = write(sink, rows, attempt="first")[0], write(sink, rows, attempt="second")[0]

    class Late(Manifests):
        def _batches(self) -> list[int]:
            return []

    assert Manifests(store, "", QUERY).decide(0, first) == (first, True)
    assert Late(store, "", QUERY).decide(0, second) == (first, False)


def test_only_the_last_manifests_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivven.connect.sinks.objects.MANIFESTS_KEPT", 3)
    sink, rows = local(tmp_path, format="jsonl"), pa.table(ROWS)
    for number in range(5):
        sink.commit(write(sink, rows, number), Batch(QUERY, number))
    assert sorted(int(path.rpartition("/")[2]) for path in hidden_of(sink)) == [2, 3, 4]
    before = objects_of(sink)
    assert len(before) == 5
    sink.commit(write(sink, pa.table({"id": [9], "name": ["late"]}), 0, "late"), Batch(QUERY, 0))
    assert objects_of(sink) == before, "a batch without a manifest is known to be old by those that have one"


def test_leftovers_of_runs_that_never_came_back_are_swept(tmp_path: Path) -> None:
    sink, rows = local(tmp_path, format="jsonl"), pa.table(ROWS)
    store = open_store(sink.settings.access, "events")
    (lost,) = write(sink, rows, 0, "lost")
    (decided,) = write(sink, rows, 1, "decided")
    Manifests(store, "", QUERY).decide(1, decided)
    sweep(store, "", datetime.now(UTC) - timedelta(days=1))
    assert names(store, staging("", Batch(QUERY, 0))) == [staged for staged, _ in lost], "it is not old enough"
    sweep(store, "", datetime.now(UTC) + timedelta(seconds=1))
    assert names(store, staging("", Batch(QUERY, 0))) == []
    assert names(store, staging("", Batch(QUERY, 1))) == [staged for staged, _ in decided], "its query may come back"


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    sink = local(tmp_path, format="jsonl")

    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"id": [1]})
        raise Crash

    with pytest.raises(Crash):
        sink.write(broken(), Task(Batch(QUERY, 0), 0, "a"))
    assert hidden_of(sink) == []


# What is wrong is named


def test_a_bucket_that_is_not_there_is_named(s3: str, azure: str) -> None:
    for sink in (
        S3Sink.configured({"bucket": "nowhere", "s3": s3_access(s3)}),
        AzureSink.configured({"bucket": "nowhere", "azure": azure_access(azure)}),
    ):
        (found,) = sink.check()
        assert str(found) == "bucket: there is no bucket 'nowhere'; create it, or correct the name"


def test_a_check_leaves_nothing_behind(s3: str) -> None:
    sink = S3Sink.configured({"bucket": "events", "prefix": "checked", "s3": s3_access(s3)})
    assert sink.check() == []
    assert names(open_store(sink.settings.access, "events"), "checked") == []


def test_a_store_that_does_not_answer_is_named_by_its_endpoint() -> None:
    sink = S3Sink.configured({"bucket": "events", "s3": s3_access("http://127.0.0.1:1")})
    began_s = time.monotonic()
    (found,) = sink.check()
    assert found.field == "s3.endpoint"
    assert "start the store" in found.fix
    assert time.monotonic() - began_s < 30


def test_a_wrong_key_is_named_and_not_shown(azure: str) -> None:
    wrong = "bm90IHRoZSBrZXkgb2YgdGhpcyBhY2NvdW50"
    sink = AzureSink.configured({"bucket": "events", "azure": azure_access(azure) | {"access_key": wrong}})
    (found,) = sink.check()
    assert found.field == "azure.access_key"
    assert wrong not in str(found)


def test_an_error_of_a_run_shows_no_secret(azure: str) -> None:
    token = "sv=2021-08-06&sig=c2VjcmV0c2VjcmV0"
    access = {"endpoint": azure, "account": AZURE_ACCOUNT, "sas_token": token}
    sink = AzureSink.configured({"bucket": "events", "prefix": "x", "azure": access})
    assert isinstance(sink, AzureSink)
    with pytest.raises(StoreTrouble, match="writing to the bucket events") as caught:
        write(sink, pa.table(ROWS))
    assert "c2VjcmV0" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("connector", "values", "complaint"),
    [
        (S3Sink, {"s3": {"access_key_id": "a"}}, "s3.secret_access_key: is missing"),
        (S3Sink, {"s3": {"secret_access_key": "a"}}, "s3.access_key_id: is missing"),
        (S3Sink, {"s3": {"endpoint": "localhost:9000"}}, "s3.endpoint: must begin with http:// or https://"),
        (S3Sink, {"s3": {"regoin": "x"}}, "there is no setting 'regoin'; did you mean 'region'?"),
        (S3Sink, {"prefix": "_rivven/x"}, "prefix: must not begin with _rivven"),
        (S3Sink, {"format": "csv", "compression": "zstd"}, "compression: csv is compressed by gzip or not at all"),
        (S3Sink, {"format": "avro", "compression": "zstd"}, "compression: avro is compressed by gzip"),
        (S3Sink, {"time_column": "a"}, "time_column: has no use without partitioning"),
        (S3Sink, {"max_file_bytes": 5 << 30}, "max_file_bytes: must be at most"),
        (
            AzureSink,
            {"azure": {"access_key": "a", "sas_token": "b"}},
            "azure.sas_token: is given beside access_key; leave out one",
        ),
        (
            GcsSink,
            {"gcs": {"service_account_path": "a", "service_account_key": "b"}},
            "gcs.service_account_key: is given beside service_account_path",
        ),
        (GcsSink, {"gcs": {"use_adc": False}}, "gcs.use_adc: is false, and there is no other way to sign"),
        (ObjectStorageSink, {"provider": "ftp"}, "provider: there is no choice 'ftp'"),
    ],
)
def test_bad_settings_are_named_with_the_fix(connector: Any, values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadSettings) as caught:
        connector.configured({"bucket": "events", **values})
    assert complaint in str(caught.value)


# Which options reach each store


def test_google_is_told_how_to_sign_and_where() -> None:
    sink = GcsSink.configured({"bucket": "events", "gcs": {"service_account_path": "/etc/key.json"}})
    assert sink.settings.access.options() == {"service_account": "/etc/key.json"}
    access = {"service_account_key": UNSIGNED, "endpoint": "http://127.0.0.1:1"}
    (found,) = GcsSink.configured({"bucket": "events", "gcs": access}).check()
    assert found.field == "gcs.endpoint", found


def test_a_key_file_of_google_that_is_not_there_is_named() -> None:
    sink = GcsSink.configured({"bucket": "events", "gcs": {"service_account_path": "/nowhere/key.json"}})
    (found,) = sink.check()
    assert found.field == "gcs.service_account_path"


def test_a_token_in_the_environment_is_not_mixed_with_given_keys(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    sink = S3Sink.configured({"bucket": "events", "s3": s3_access(s3)})
    assert sink.settings.access.credentials()["token"] is None
    assert sink.check() == []


def test_credentials_come_from_the_environment(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert S3Sink.configured({"bucket": "events", "s3": {"endpoint": s3}}).check() == []


def test_the_region_of_the_environment_is_taken_if_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert S3Sink.configured({"bucket": "events"}).settings.access.options()["region"] == "eu-central-1"
    given = S3Sink.configured({"bucket": "events", "s3": {"region": "us-west-2"}})
    assert given.settings.access.options()["region"] == "us-west-2"

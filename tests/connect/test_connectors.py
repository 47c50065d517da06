"""Our own connectors under the conformance kit, and what else each of them promises. Without Spark."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import fastavro
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from rivven.connect import Batch, Task
from rivven.connect.kit import SinkKit, SourceKit, TransformKit, rows_of
from rivven.connect.registry import UnknownConnector, catalogue, find
from rivven.connect.sinks.file import FileSink, Ledger
from rivven.connect.sinks.stdout import Stdout, StdoutSettings, rendered
from rivven.connect.sources.datagen import PATTERNS, Datagen
from rivven.connect.sources.file import FileSource
from rivven.connect.transforms.fields import Mask

# The registry


def test_everything_there_is_can_be_loaded() -> None:
    broken = [str(made) for _, _, made in catalogue() if isinstance(made, UnknownConnector)]
    assert broken == []


def test_an_entry_point_has_the_name_of_its_connector() -> None:
    for kind, name, made in catalogue():
        assert not isinstance(made, UnknownConnector)
        assert (made.kind, made.name) == (kind, name)


def test_no_two_connectors_share_a_name() -> None:
    for kind in ("source", "sink", "transform"):
        names: list[str] = []
        for each, _, made in catalogue():
            if each == kind and not isinstance(made, UnknownConnector):
                names += [name.replace("_", "-") for name in (made.name, *made.aliases)]
        assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [
        ("source", "datagen", "datagen"),
        ("source", "faker", "datagen"),
        ("sink", "console", "stdout"),
        ("transform", "mask_field", "mask"),
        ("transform", "mask-field", "mask"),
        ("transform", "rename_field", "rename"),
        ("transform", "replace_field", "rename"),
        ("transform", "remove_field", "drop"),
        ("transform", "add_field", "insert_field"),
        ("transform", "unwrap", "extract_field"),
        ("transform", "insert-field", "insert_field"),
    ],
)
def test_a_connector_is_found_by_any_of_its_names(kind: Any, name: str, found: str) -> None:
    assert find(kind, name).name == found


SMT_NAMES = [
    "extract_new_record_state",
    "value_to_key",
    "timestamp_converter",
    "timezone_converter",
    "mask_field",
    "filter",
    "flatten",
    "insert_field",
    "rename_field",
    "replace_field",
    "cast",
    "regex_router",
    "content_router",
    "header_to_value",
    "unwrap",
    "set_null",
    "compute_field",
    "externalize_blob",
]


@pytest.mark.parametrize("name", SMT_NAMES)
def test_the_known_transform_names_work(name: str) -> None:
    find("transform", name)


@pytest.mark.parametrize("found", list(catalogue()), ids=lambda each: f"{each[0]}.{each[1]}")
class TestEveryConnector:
    """What the kit asks of all, of all there are."""

    def kit(self, found: Any) -> TransformKit:
        kit = TransformKit()
        kit.connector = found[2]  # type: ignore[misc]
        return kit

    def test_says_who_it_is(self, found: Any) -> None:
        self.kit(found).test_it_says_who_it_is()

    def test_describes_its_settings(self, found: Any) -> None:
        self.kit(found).test_every_setting_is_described()
        self.kit(found).test_the_schema_is_complete()

    def test_has_an_example_that_is_valid(self, found: Any) -> None:
        from inspect import cleandoc

        from rivven.connect.config import loads

        made = found[2]
        text = cleandoc(made.example)
        assert text, "it has an example"
        head = "broker: {bootstrap_servers: [localhost]}\n"
        if made.kind == "transform":
            steps = text.replace("\n", "\n    ")
            text = f"sources:\n  x:\n    connector: datagen\n    topic: t\n    {steps}"
        loaded = loads(head + text, dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "x"))
        problems = [str(each) for each in loaded.errors if "which is not installed" not in str(each)]
        problems = [text for text in problems if "yet to tell the format by" not in text]
        assert problems == []


# datagen


class TestDatagen(SourceKit):
    connector = Datagen
    settings: ClassVar[dict[str, Any]] = {"pattern": "orders", "max_events": 500, "events_per_second": 0, "seed": 1}
    bad_settings: ClassVar[dict[str, Any]] = {"pattern": "odders"}
    rows_expected = 500


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_every_pattern_is_the_same_for_the_same_seed_however_it_is_cut(pattern: str) -> None:
    source = Datagen.configured({"pattern": pattern, "seed": 5, "max_events": 100_000})
    assert isinstance(source, Datagen)
    start = {"row": 0, "seed": "5", "since_us": 0}
    whole = rows_of(source, start, {**start, "row": 300})
    cut = rows_of(source, {**start, "row": 100}, {**start, "row": 200})
    assert cut == whole[100:200]
    other = rows_of(source, start, {**start, "row": 300, "seed": "6"})
    assert pattern == "sequence" or other != whole


def test_big_ranges_are_made_in_parallel_parts_without_a_gap() -> None:
    source = Datagen.configured({"parallelism": 3, "seed": 1})
    assert isinstance(source, Datagen)
    start = source.start_position()
    parts = source.plan(start, {**start, "row": 200_000})
    assert len(parts) == 3
    assert [part.end for part in parts[:-1]] == [part.first for part in parts[1:]]
    assert (parts[0].first, parts[-1].end) == (0, 200_000)
    assert len(source.plan(start, {**start, "row": 10})) == 1


def test_without_a_seed_each_query_makes_others_and_keeps_to_them() -> None:
    source = Datagen.configured({})
    assert isinstance(source, Datagen)
    first, second = source.start_position(), source.start_position()
    assert first["seed"] != second["seed"]
    assert source.advance(first, None, 10)["seed"] == first["seed"]


def test_changes_are_about_rows_that_were_inserted_before() -> None:
    source = Datagen.configured({"pattern": "users", "cdc_mode": True, "seed": 3})
    assert isinstance(source, Datagen)
    start = source.start_position()
    rows = rows_of(source, start, {**start, "row": 1000})
    kinds = [row["__event_type"] for row in rows]
    assert {kind: kinds.count(kind) // 100 for kind in set(kinds)} == pytest.approx(
        {"insert": 6, "update": 3, "delete": 1}, abs=1
    )
    assert all(row["user_id"] <= row["sequence"] for row in rows)


def test_fields_can_be_added_and_left_out() -> None:
    source = Datagen.configured(
        {
            "pattern": "sequence",
            "include_sequence": False,
            "include_timestamp": False,
            "custom_fields": {"site": "north", "level": 3, "tags": ["a"], "none": None},
        }
    )
    assert isinstance(source, Datagen)
    start = source.start_position()
    (row,) = rows_of(source, start, source.advance(start, None, 1))
    del row["__timestamp"]
    assert row == {"n": 0, "site": "north", "level": 3, "tags": '["a"]', "none": None}


# Files


class TestFileSinkJsonLines(SinkKit):
    connector = FileSink
    form: ClassVar[dict[str, Any]] = {"format": "jsonl"}
    bad_settings: ClassVar[dict[str, Any]] = {"max_file_bytes": 1}

    def make_settings(self, home: Path) -> dict[str, Any]:
        return {"path": str(home / "out"), **self.form}

    def files(self, home: Path) -> list[Path]:
        found = (home / "out").rglob("*")
        return sorted(
            each for each in found if each.is_file() and not any(p[0] in "_." for p in each.relative_to(home).parts)
        )

    def written(self, home: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for file in self.files(home) for line in file.read_text().splitlines()]

    def hopeless(self) -> pa.RecordBatch | None:
        """Texts that are none: what a topic of bytes gives if they are read as text."""
        names = pa.array([b"\xff", b"a\x80"], pa.binary()).view(pa.string())
        return pa.RecordBatch.from_pydict({"id": pa.array([90, 91], pa.int64()), "name": names})


class TestFileSinkJson(TestFileSinkJsonLines):
    form: ClassVar[dict[str, Any]] = {"format": "json"}

    def written(self, home: Path) -> list[dict[str, Any]]:
        return [row for file in self.files(home) for row in json.loads(file.read_text())]


class TestFileSinkAvro(TestFileSinkJsonLines):
    form: ClassVar[dict[str, Any]] = {"format": "avro"}

    def written(self, home: Path) -> list[dict[str, Any]]:
        found = [row for file in self.files(home) for row in fastavro.reader(io.BytesIO(file.read_bytes()))]
        return [row for row in found if isinstance(row, dict)]


class TestFileSinkCsv(TestFileSinkJsonLines):
    form: ClassVar[dict[str, Any]] = {"format": "csv", "compression": "gzip"}

    def hopeless(self) -> None:
        """CSV has any text; what is in binary columns is looked at below."""

    def written(self, home: Path) -> list[dict[str, Any]]:
        return [row for file in self.files(home) for row in csv.DictReader(gzip.open(file, "rt"))]


class TestFileSinkParquet(TestFileSinkJsonLines):
    form: ClassVar[dict[str, Any]] = {"format": "parquet"}

    def hopeless(self) -> None:
        """Parquet is Arrow's own, and has whatever comes."""

    def written(self, home: Path) -> list[dict[str, Any]]:
        return [row for file in self.files(home) for row in pq.read_table(file).to_pylist()]


class TestFileSinkFolders(TestFileSinkJsonLines):
    form: ClassVar[dict[str, Any]] = {"format": "parquet", "partition_by": ["name"]}

    def written(self, home: Path) -> list[dict[str, Any]]:
        if not self.files(home):
            return []
        found: list[dict[str, Any]] = ds.dataset(home / "out", partitioning="hive").to_table().to_pylist()
        return found

    def hopeless(self) -> pa.RecordBatch:
        names = pa.array([b"x" * 300, b"\xff", "ä".encode() * 50], pa.binary()).view(pa.string())
        return pa.RecordBatch.from_pydict({"id": pa.array([90, 91, 92], pa.int64()), "name": names})


def file_sink(home: Path, **settings: Any) -> FileSink:
    sink = FileSink.configured({"path": str(home), **settings})
    assert isinstance(sink, FileSink)
    return sink


def test_a_crash_between_the_list_of_moves_and_the_moves_is_made_good(tmp_path: Path) -> None:
    sink, batch = file_sink(tmp_path), Batch("q", 3)
    rows = pa.RecordBatch.from_pydict({"id": [1, 2]})
    receipt = sink.write(iter([rows]), Task(batch, 0, "before"))
    assert receipt is not None
    Ledger(tmp_path, "q").write(3, receipt)  # and then the power went
    again = sink.write(iter([rows]), Task(batch, 0, "after"))
    assert again is not None
    sink.commit([again], batch)
    (file,) = tmp_path.glob("*.jsonl")
    assert file.read_text() == '{"id":1}\n{"id":2}\n'
    assert not (tmp_path / "_temporary").exists()


def test_a_file_ends_where_it_is_full(tmp_path: Path) -> None:
    sink, batch = file_sink(tmp_path, max_file_bytes=1024), Batch("q", 0)
    rows = [pa.RecordBatch.from_pydict({"text": ["x" * 100] * 10}) for _ in range(5)]
    receipt = sink.write(iter(rows), Task(batch, 0, "a"))
    assert receipt is not None
    sink.commit([receipt], batch)
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 5
    assert sum(len(file.read_text().splitlines()) for file in files) == 50


def test_folders_are_named_so_that_no_value_leaves_them(tmp_path: Path) -> None:
    sink, batch = file_sink(tmp_path / "out", partition_by=["place"]), Batch("q", 0)
    places = ["../../up", "a/b", None, "", "..", "a\x00b", "日本", "C:\\x"]
    rows = pa.RecordBatch.from_pydict({"id": range(len(places)), "place": places})
    receipt = sink.write(iter([rows]), Task(batch, 0, "a"))
    assert receipt is not None
    sink.commit([receipt], batch)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name[0] != "_") == [
        "place=" + quote("日本"),
        "place=..",
        "place=..%2F..%2Fup",
        "place=C%3A%5Cx",
        "place=__HIVE_DEFAULT_PARTITION__",
        "place=a%00b",
        "place=a%2Fb",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_folders_of_several_columns_keep_the_order_and_the_rows_apart(tmp_path: Path) -> None:
    sink, batch = file_sink(tmp_path, partition_by=["day", "n"]), Batch("q", 0)
    days = pa.array(["a", "b", "a", None, "a"])
    rows = pa.RecordBatch.from_pydict({"id": [1, 2, 3, 4, 5], "day": days, "n": [1, 1, 2, None, 1]})
    receipt = sink.write(iter([rows]), Task(batch, 0, "a"))
    assert receipt is not None
    sink.commit([receipt], batch)
    found = {
        str(file.parent.relative_to(tmp_path)): [json.loads(line)["id"] for line in file.read_text().splitlines()]
        for file in tmp_path.rglob("*.jsonl")
    }
    null = "__HIVE_DEFAULT_PARTITION__"
    assert found == {"day=a/n=1": [1, 5], "day=b/n=1": [2], "day=a/n=2": [3], f"day={null}/n={null}": [4]}


def test_a_row_is_refused_and_a_column_is_an_error(tmp_path: Path) -> None:
    sink, refused = file_sink(tmp_path, format="csv"), list[str]()
    task = Task(Batch("q", 0), 0, "a", lambda _, why: refused.append(why))
    receipt = sink.write(iter([pa.RecordBatch.from_pydict({"raw": [b"fine", b"\xff", b"well"]})]), task)
    assert receipt is not None
    sink.commit([receipt], task.batch)
    (file,) = tmp_path.glob("*.csv")
    assert list(csv.reader(file.read_text().splitlines())) == [["raw"], ["fine"], ["well"]]
    assert refused == ["csv cannot have it: Invalid UTF8 payload"]
    strange = pa.RecordBatch.from_pydict({"span": pa.array([None], pa.month_day_nano_interval())})
    with pytest.raises(NotImplementedError):
        sink.write(iter([strange]), task)
    assert len(refused) == 1, "a type that CSV has no words for is nobody's row"


def test_a_file_whose_rows_are_all_refused_is_none(tmp_path: Path) -> None:
    sink, refused = file_sink(tmp_path), list[str]()
    bad = pa.RecordBatch.from_pydict({"name": pa.array([b"\xff"], pa.binary()).view(pa.string())})
    assert sink.write(iter([bad]), Task(Batch("q", 0), 0, "a", lambda _, why: refused.append(why))) is None
    assert len(refused) == 1


def test_a_column_to_sort_by_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="partition_by: there is no column contry; there is id, country"):
        file_sink(tmp_path, partition_by=["contry"]).prepare(
            pa.schema([("id", pa.int64()), ("country", pa.string())])
        )


def test_check_looks_at_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (finding,) = file_sink(tmp_path / "file").check()
    assert (finding.field, finding.fix) == ("path", "name a directory")
    assert file_sink(tmp_path / "new" / "deep").check() == []


class TestFileSource(SourceKit):
    connector = FileSource
    bad_settings: ClassVar[dict[str, Any]] = {"format": "xlsx"}

    def make_settings(self, home: Path) -> dict[str, Any]:
        (home / "in.csv").write_text("id,name\n1,a\n2,b\n")
        return {"path": str(home / "in.csv")}

    def test_columns_are_found(self, tmp_path: Path) -> None:
        (stream,) = self.make(tmp_path).discover()
        assert (stream.name, stream.schema.names) == ("in", ["id", "name"])


def test_check_says_what_is_missing(tmp_path: Path) -> None:
    source = FileSource.configured({"path": str(tmp_path / "*.csv")})
    (finding,) = source.check()
    assert (finding.level, finding.field) == ("error", "path")


# stdout


class TestStdout(SinkKit):
    connector = Stdout
    bad_settings: ClassVar[dict[str, Any]] = {"rate_limit": -1}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"format": "json"}, '{"a":1,"b":"x","__about":{"key":"k","topic":"t"}}'),
        ({"format": "json", "include_metadata": False}, '{"a":1,"b":"x"}'),
        ({"format": "tsv"}, "k\tt\t1\tx"),
        ({"format": "text"}, "key=k topic=t a=1 b=x"),
        ({"format": "pretty"}, "key=k topic=t\n  a: 1\n  b: x"),
    ],
)
def test_a_record_is_printed(settings: dict[str, Any], text: str) -> None:
    row = {"a": 1, "b": "x", "__key": b"k", "__topic": "t"}
    if settings["format"] == "json":
        row["__key"] = "k"
    assert rendered(row, StdoutSettings.parse(settings)) == text


class TestMask(TransformKit):
    connector = Mask
    settings: ClassVar[dict[str, Any]] = {"fields": ["a"], "method": "hash"}
    bad_settings: ClassVar[dict[str, Any]] = {"method": "hide"}

"""What each transform makes of records, as Spark sees it."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from rivven.connect import BadSettings
from rivven.connect.config import Predicate, Step
from rivven.connect.registry import find
from rivven.connect.run import CannotRun, changed

MOMENT = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
SCHEMA = """id BIGINT, email STRING, amount DOUBLE, status STRING, note STRING, at TIMESTAMP, millis BIGINT,
  place STRUCT<city: STRING, geo: STRUCT<lat: DOUBLE, lon: DOUBLE>>, __event_type STRING, __stream STRING"""
ROWS = [
    (1, "ada@example.com", 150.0, "paid", "", MOMENT, 1769862600000, ("Berlin", (1.0, 2.0)), "insert", "shop.orders"),
    (2, None, 50.0, "open", "x", MOMENT, 1769862600000, ("Lyon", (3.0, 4.0)), "delete", "shop.orders"),
]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, SCHEMA).coalesce(1).cache()


def step(kind: str, config: dict[str, Any], predicate: dict[str, Any] | None = None) -> Step:
    made = find("transform", kind)
    return Step(
        type=made.name,
        config=made.settings_type.parse(config),
        predicate=Predicate.parse(predicate) if predicate else None,
    )


def after(frame: DataFrame, *steps: Step) -> list[dict[str, Any]]:
    made = changed(frame, steps, "sources.x")
    return (
        [row.asDict(recursive=True) for row in made.orderBy("id").collect()]
        if "id" in made.columns
        else [row.asDict(recursive=True) for row in made.collect()]
    )


def test_mask(frame: DataFrame) -> None:
    hashed = hashlib.sha256(b"saltada@example.com").hexdigest()
    steps = [
        step("insert_field", {"field": "a", "expression": "email"}),
        step("insert_field", {"field": "b", "expression": "email"}),
        step("insert_field", {"field": "c", "expression": "email"}),
        step("mask", {"fields": ["email"], "method": "hash", "salt": "salt"}),
        step("mask_field", {"fields": ["a", "place.city"]}),
        step("mask", {"fields": ["b"], "method": "partial", "keep": 4}),
        step("mask", {"fields": ["c"], "method": "redact", "replacement": "gone"}),
        step("mask", {"fields": ["status"], "method": "partial", "keep": 4}),
    ]
    one, two = after(frame, *steps)
    assert (one["email"], one["a"], one["b"], one["c"]) == (hashed, "*" * 15, "*" * 11 + ".com", "gone")
    assert (one["place"]["city"], one["place"]["geo"]) == ("******", {"lat": 1.0, "lon": 2.0})
    assert one["status"] == "****", "a value that is no longer than what is kept shows nothing"
    assert (two["email"], two["a"], two["b"], two["c"]) == (None, None, None, None)


def test_rename_drop_and_cast(frame: DataFrame) -> None:
    (row, _) = after(
        frame,
        step("rename_field", {"from": "email", "to": "mail"}),
        step("rename", {"renames": {"place.city": "city", "note": "remark"}}),
        step("remove_field", {"field": "place.geo.lon"}),
        step("drop", {"fields": ["status"]}),
        step("cast", {"specs": {"amount": "int32", "millis": "string", "place": "json"}}),
        step("replace_field", {"exclude": ["at"]}),
    )
    assert row == {
        "id": 1,
        "mail": "ada@example.com",
        "amount": 150,
        "remark": "",
        "millis": "1769862600000",
        "place": '{"geo":{"lat":1.0}}',
        "city": "Berlin",
        "__event_type": "insert",
        "__stream": "shop.orders",
    }


def test_a_cast_that_fails_gives_null_if_asked(frame: DataFrame) -> None:
    (row, _) = after(frame, step("cast", {"specs": {"status": "int64"}, "on_error": "null"}))
    assert row["status"] is None


def test_insert_and_compute(frame: DataFrame) -> None:
    (row, _) = after(
        frame,
        step("add_field", {"field": "origin", "value": "web"}),
        step(
            "insert_field", {"static_fields": {"n": 1, "list": ["a"], "deep": {"x": True}}, "timestamp_field": "now"}
        ),
        step("insert_field", {"field": "double", "expression": "amount * 2"}),
        step("add_timestamp", {"field": "seen"}),
        step(
            "compute_field",
            {
                "computations": [
                    {"target": "label", "type": "concat", "parts": ["$status", "/", "$id"]},
                    {"target": "loud", "type": "upper", "source": "status"},
                    {"target": "first", "type": "coalesce", "fields": ["email", "status"]},
                    {"target": "uid", "type": "uuid"},
                ]
            },
        ),
    )
    assert (row["origin"], row["n"], row["list"], row["deep"], row["double"]) == ("web", 1, ["a"], {"x": True}, 300.0)
    assert (row["label"], row["loud"], row["first"], len(row["uid"])) == ("paid/1", "PAID", "ada@example.com", 36)
    assert row["now"] is not None
    assert row["seen"] is not None


def test_times(frame: DataFrame) -> None:
    (row, _) = after(
        frame,
        step("insert_field", {"field": "day", "expression": "at"}),
        step("insert_field", {"field": "berlin", "expression": "at"}),
        step("insert_field", {"field": "text", "expression": "'2026-01-31T12:30:00Z'"}),
        step("timestamp_converter", {"fields": ["at", "text"], "format": "epoch_millis"}),
        step("timestamp_converter", {"fields": ["millis"], "format": "iso8601"}),
        step("timestamp_converter", {"fields": ["day"], "format": "date"}),
        step("timezone_converter", {"fields": ["berlin"], "from": "UTC", "to": "Europe/Berlin"}),
    )
    assert (row["at"], row["text"], row["millis"]) == (1769862600000, 1769862600000, "2026-01-31T12:30:00.000Z")
    assert (row["day"], row["berlin"]) == ("2026-01-31", "2026-01-31T13:30:00")


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({"where": "amount > 100"}, [1]),
        ({"where": "amount > 100", "drop": True}, [2]),
        ({"where": "email = 'x'", "drop": True}, [1, 2]),
        ({"field": "status", "equals": "paid"}, [1]),
        ({"field": "email", "equals": None}, [2]),
        ({"field": "status", "equals": 5}, []),
        ({"field": "status", "equals": False, "drop": True}, [1, 2]),
        ({"field": "id", "equals": "2"}, [2]),
        ({"field": "id", "equals": "two"}, []),
        ({"field": "amount", "equals": 150}, [1]),
        ({"condition": "status = 5"}, []),
        ({"condition": "status != 5"}, [1, 2]),
        ({"condition": "id != two"}, [1, 2]),
        ({"condition": "status = open"}, [2]),
        ({"condition": "status != 'open'"}, [1]),
        ({"condition": "id == 2"}, [2]),
        ({"condition": "email is_null x"}, [2]),
        ({"condition": "email matches ^ada"}, [1]),
        ({"condition": "status in paid,shipped"}, [1]),
        ({"condition": "place.city = 'Lyon' AND amount < 100"}, [2]),
    ],
)
def test_filter(frame: DataFrame, config: dict[str, Any], ids: list[int]) -> None:
    assert [row["id"] for row in after(frame, step("filter", config))] == ids


def test_extract_and_flatten(frame: DataFrame) -> None:
    (flat, _) = after(frame, step("flatten", {"delimiter": "_"}))
    assert (flat["place_city"], flat["place_geo_lat"]) == ("Berlin", 1.0)
    (shallow, _) = after(frame, step("flatten", {"max_depth": 1}))
    assert shallow["place_geo"] == {"lat": 1.0, "lon": 2.0}
    (inner, _) = after(frame, step("unwrap", {"field": "place"}))
    assert inner == {
        "city": "Berlin",
        "geo": {"lat": 1.0, "lon": 2.0},
        "__event_type": "insert",
        "__stream": "shop.orders",
    }


def test_keys_and_routes(frame: DataFrame) -> None:
    routes = {
        "routes": [
            {"field": "status", "value": 7, "topic": "x"},
            {"field": "status", "value": "paid", "topic": "paid"},
            {"when": "amount < 60", "topic": "low"},
        ]
    }
    one, two = after(
        frame,
        step("value_to_key", {"fields": ["id", "status"]}),
        step("content_router", routes),
        step("header_to_value", {"fields": {"table": "origin", "op": "change"}}),
    )
    assert (one["__key"], one["__topic"], one["origin"], one["change"]) == (
        '{"id":1,"status":"paid"}',
        "paid",
        "shop.orders",
        "insert",
    )
    assert two["__topic"] == "low"
    (named, _) = after(frame, step("regex_router", {"routes": [{"pattern": "^shop\\.", "topic": "shop"}]}))
    assert named["__topic"] == "shop"


def test_null_and_new_state(frame: DataFrame) -> None:
    one, two = after(
        frame,
        step("set_null", {"fields": ["note"], "condition": "if_empty"}),
        step("set_null", {"fields": ["status"], "condition": {"equals": "open"}}),
        step("set_null", {"fields": ["status"], "condition": {"equals": 0}}),
        step("extract_new_record_state", {"add_op": True, "add_table": True}),
    )
    assert (one["note"], one["status"], one["__op"], one["__table"]) == (None, "paid", "c", "shop.orders")
    assert (two["note"], two["status"], two["__op"]) == ("x", None, "d")


def test_a_change_becomes_the_row_after_it(spark: SparkSession) -> None:
    row = "STRUCT<id: BIGINT, v: STRING>"
    changes = spark.createDataFrame([((1, "a"), (1, "b")), ((2, "x"), None)], f"before {row}, after {row}")
    made = after(changes, step("extract_new_record_state", {}))
    assert made == [{"id": 1, "v": "b", "__deleted": False}, {"id": 2, "v": "x", "__deleted": True}]


@pytest.mark.parametrize(
    ("predicate", "masked"),
    [
        ({"field_value": {"field": "id", "value": 1}}, [True, False]),
        ({"field_value": {"field": "id", "value": 1}, "negate": True}, [False, True]),
        ({"field_value": {"field": "status", "value": 1}, "negate": True}, [True, True]),
        ({"operations": ["delete"]}, [False, True]),
        ({"table": "^shop"}, [True, True]),
        ({"field_exists": "email"}, [True, False]),
        ({"schema": "other"}, [False, False]),
    ],
)
def test_a_predicate_chooses_records(frame: DataFrame, predicate: dict[str, Any], masked: list[bool]) -> None:
    rows = after(frame, step("mask", {"fields": ["status"], "method": "redact"}, predicate))
    assert [row["status"] == "***" for row in rows] == masked
    assert [row["id"] for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "config", "predicate"),
    [
        ("filter", {"where": "id > 100"}, None),
        ("filter", {"where": "id IS NULL", "drop": True}, None),
        ("filter", {"where": "id > 100"}, {"field_exists": "id", "negate": True}),
        ("extract_new_record_state", {"drop_tombstones": True}, None),
        ("mask", {"fields": ["status"], "method": "redact"}, {"field_exists": "id"}),
    ],
)
def test_what_cannot_be_read_passes_to_become_a_letter(
    spark: SparkSession, kind: str, config: dict[str, Any], predicate: dict[str, Any] | None
) -> None:
    unread = spark.createDataFrame([(None, None, "{")], "id BIGINT, status STRING, __corrupt STRING")
    assert [row["__corrupt"] for row in after(unread, step(kind, config, predicate))] == ["{"]


def test_a_predicate_of_a_filter_lets_the_others_pass(frame: DataFrame) -> None:
    rows = after(frame, step("filter", {"where": "false"}, {"field_value": {"field": "id", "value": 1}}))
    assert [row["id"] for row in rows] == [2]


LOUDER = """
import pyarrow.compute as pc

def louder(batch):
    place = batch.schema.get_field_index("status")
    return batch.set_column(place, "status", pc.utf8_upper(batch.column("status")))
"""


def test_a_function_in_python(
    spark: SparkSession, frame: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud_speech.py").write_text(LOUDER)
    monkeypatch.syspath_prepend(tmp_path)
    spark.sparkContext.addPyFile(str(tmp_path / "loud_speech.py"))
    made = step("python", {"function": "loud_speech:louder"})
    assert made.make().check() == []
    assert [row["status"] for row in after(frame, made)] == ["PAID", "OPEN"]


def test_a_function_that_is_not_there(frame: DataFrame) -> None:
    made = step("python", {"function": "nowhere:x"})
    assert made.make().check()[0].field == "function"
    with pytest.raises(CannotRun, match=r"sources.x.transforms\[0\] \(python\): No module named 'nowhere'"):
        changed(frame, [made], "sources.x")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            step("mask", {"fields": ["emial"]}),
            r"sources.x.transforms\[0\] \(mask\): there is no column 'emial'; did you mean 'email'\?",
        ),
        (step("drop", {"fields": ["place.cty"]}), r"did you mean 'place.city'\?"),
        (step("filter", {"where": "amuont > 1"}), r"transforms\[0\] \(filter\): .*amuont"),
        (step("filter", {"where": "amount >"}), r"transforms\[0\] \(filter\): "),
    ],
)
def test_a_column_that_is_not_there_is_named_with_its_step(frame: DataFrame, made: Step, words: str) -> None:
    with pytest.raises(CannotRun, match=words):
        changed(frame, [made], "sources.x")


def test_a_route_by_a_field_says_what_it_has_to_be() -> None:
    with pytest.raises(BadSettings, match="needs `value` or `pattern`"):
        step("content_router", {"routes": [{"field": "status", "topic": "x"}]})

"""Columns from a sample of JSON records."""

from __future__ import annotations

import pytest

from rivven.connect.infer import columns_of, is_event, merged, parsed, shape_of


@pytest.mark.parametrize(
    ("records", "columns"),
    [
        ([{"a": 1, "b": "x", "c": True, "d": 1.5}], "`a` bigint, `b` string, `c` boolean, `d` double"),
        ([{"a": 1}, {"a": 2.5}], "`a` double"),
        ([{"a": 1}, {"b": 2}], "`a` bigint, `b` bigint"),
        ([{"a": None}, {"a": 1}], "`a` bigint"),
        ([{"a": None}], "`a` string"),
        ([{"a": 1}, {"a": "x"}], "`a` string"),
        ([{"a": {"b": 1}}, {"a": {"c": "x"}}], "`a` struct<`b`: bigint, `c`: string>"),
        ([{"a": [1, 2.5]}, {"a": []}], "`a` array<double>"),
        ([{"a": [{"b": 1}]}], "`a` array<struct<`b`: bigint>>"),
        ([{"a": {}}], "`a` string"),
        ([{"a": 2**63}], "`a` decimal(38,0)"),
        ([{"a": 2**63}, {"a": 1}], "`a` decimal(38,0)"),
        ([{"a": 2**63}, {"a": 0.5}], "`a` double"),
        ([{"a`b": 1}], "`a``b` bigint"),
        ([{"Id": 1, "id": "x"}], "`Id` bigint"),
        ([], ""),
    ],
)
def test_columns(records: list[dict[str, object]], columns: str) -> None:
    assert columns_of(records) == columns


def test_merging_does_not_mind_the_order() -> None:
    values: list[object] = [1, 2.5, "x", None, True, [1], [None], {"a": 1}, {"a": None, "b": [2]}, 2**70]
    for one in values:
        for other in values:
            first, second = shape_of(one), shape_of(other)
            assert columns_of([{"x": one}, {"x": other}]) == columns_of([{"x": other}, {"x": one}]) or isinstance(
                merged(first, second), tuple
            )


def test_what_is_no_object_is_left_out() -> None:
    assert parsed([b"{", None, b"[1]", b"1", b'{"a": 1}', b"\xff"]) == [{"a": 1}]


def test_an_envelope_is_known_by_its_fields() -> None:
    event = {"event_type": "record", "stream": "s", "namespace": None, "timestamp": "t", "data": {}, "metadata": {}}
    assert is_event(event)
    assert not is_event({"data": {}})
    assert not is_event([1])

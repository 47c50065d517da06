"""Settings that describe themselves: reading, mistakes, secrets, the schema."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, Literal

import pytest

from rivven.connect import BadSettings, Secret, Settings, setting
from rivven.connect.config import loads
from rivven.connect.settings import describe, fields_of, schema_of, unknown


class Inner(Settings):
    depth: int = setting("How deep.", least=0, most=10)


class Bearer(Settings):
    union_tag = "bearer"
    token: Secret = setting("The token.")


class Basic(Settings):
    union_tag = "basic"
    user: str = setting("Who.")
    password: Secret = setting("And how.")


class Example(Settings):
    url: str = setting("Where it is.", least=1)
    rows: int = setting("How many.", default=10, least=1, most=100)
    share: float = setting("How much.", default=0.5)
    wanted: bool = setting("Whether.", default=True)
    mode: Literal["read-only", "write"] = setting("Which way.", default="write")
    names: list[str] = setting("Which.", factory=list, most=2)
    labels: dict[str, int] = setting("More.", factory=dict)
    inner: Inner | None = setting("Inside.", default=None)
    auth: Bearer | Basic | None = setting("As whom.", default=None)
    anything: Any = setting("Whatever.", default=None)
    from_: str | None = setting("A word that Python keeps.", default=None, also=("source",))
    old: int = setting("Not used.", default=0, ignored="nobody asks for it")

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.rows == 13:
            yield "rows", "must not be 13"


def refused(**values: object) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        Example.parse(values)
    return [str(each) for each in caught.value.mistakes]


def test_values_are_read_and_defaults_filled_in() -> None:
    made = Example.parse({"url": "x", "rows": 5, "inner": {"depth": 3}, "from": "here", "mode": "READ_ONLY"})
    assert (made.url, made.rows, made.share, made.inner, made.from_) == ("x", 5, 0.5, Inner(depth=3), "here")
    assert made.mode == "read-only", "case, dashes and underscores are forgiven"
    assert made.names == []


def test_another_name_is_accepted_and_both_are_not() -> None:
    assert Example.parse({"url": "x", "source": "a"}).from_ == "a"
    assert refused(url="x", source="a", **{"from": "b"}) == ["'from' is another name of 'from'; give one of the two"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ["'url' is missing: where it is"]),
        ({"url": ""}, ["url: must not be empty"]),
        ({"url": "x", "rowz": 1}, ["there is no setting 'rowz'; did you mean 'rows'?"]),
        ({"url": "x", "rows": "ten"}, ["rows: must be a whole number, not 'ten'"]),
        ({"url": "x", "rows": True}, ["rows: must be a whole number, not True"]),
        ({"url": "x", "rows": 0}, ["rows: must be at least 1, not 0"]),
        ({"url": "x", "rows": 1000}, ["rows: must be at most 100, not 1,000"]),
        ({"url": "x", "rows": 13}, ["rows: must not be 13"]),
        ({"url": "x", "share": float("inf")}, ["share: must be a number, not inf"]),
        ({"url": "x", "wanted": "yes"}, ["wanted: must be true or false, not 'yes'"]),
        ({"url": "x", "mode": "writ"}, ["mode: there is no choice 'writ'; did you mean 'write'?"]),
        ({"url": "x", "mode": 3.5}, ["mode: must be one of read-only, write, not 3.5"]),
        ({"url": "x", "names": "a"}, ["names: must be a list of texts, not 'a'"]),
        ({"url": "x", "names": ["a", "b", "c"]}, ["names: must have at most 2 entries, not 3"]),
        ({"url": "x", "labels": {"a": "b"}}, ["labels.a: must be a whole number, not 'b'"]),
        ({"url": "x", "inner": {"depth": 11}}, ["inner.depth: must be at most 10, not 11"]),
        ({"url": "x", "inner": [1]}, ["inner: must be a mapping of settings, not a list"]),
        ({"url": "x", "auth": {"type": "bare"}}, ["auth: there is no type 'bare'; did you mean 'bearer'?"]),
        ({"url": "x", "auth": {"user": "u"}}, ["auth: 'type' is missing; it is one of: bearer, basic"]),
    ],
)
def test_a_mistake_names_the_setting_and_the_way_out(values: dict[str, object], words: list[str]) -> None:
    assert refused(**values) == words


def test_all_mistakes_come_at_once() -> None:
    assert len(refused(rows=0, mode="x", names=[[]], inner={})) == 5


def test_a_union_is_told_apart_by_its_type() -> None:
    made = Example.parse({"url": "x", "auth": {"type": "basic", "user": "u", "password": "p"}})
    assert made.auth == Basic(user="u", password=Secret("p"))


def test_a_number_will_do_for_a_text() -> None:
    assert Example.parse({"url": 8080}).url == "8080"


def test_what_has_no_effect_is_accepted() -> None:
    assert Example.parse({"url": "x", "old": 3}).old == 3


def test_what_a_variable_gave_is_not_shown_in_a_complaint() -> None:
    for file in ("auth: ${PW}", "auth: {type: '${PW}'}", "settings: ${PW}", "settings: {log_level: '${PW}'}"):
        text = f"pipelines: {{p: {{source: {{connector: http, config: {{url: 'http://h', {file}}}}}}}}}"
        loaded = loads(text if file.startswith("auth") else file, {"PW": "hunter2"})
        assert loaded.mistakes
        assert "hunter2" not in str(loaded.mistakes)


def test_a_secret_is_never_shown() -> None:
    made = Bearer.parse({"token": "hunter2"})
    for text in (
        repr(made),
        str(made),
        f"{made.token}",
        f"{made.token!r}",
        str(made.as_dict()),
        str(schema_of(Bearer)),
    ):
        assert "hunter2" not in text
    assert made.token.reveal() == "hunter2"
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(BadSettings) as caught:
        Bearer.parse({"token": ["hunter2"]})
    assert "hunter2" not in str(caught.value)


def test_the_schema_says_what_reading_asks_for() -> None:
    schema = schema_of(Example)
    assert schema["required"] == ["url"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["rows"] == {
        "type": "integer",
        "description": "How many.",
        "default": 10,
        "minimum": 1,
        "maximum": 100,
    }
    assert schema["properties"]["names"]["maxItems"] == 2
    assert schema["properties"]["from"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert schema_of(Bearer)["properties"]["token"]["writeOnly"] is True
    assert schema["properties"]["auth"]["anyOf"][0]["properties"]["type"] == {"const": "bearer"}


def test_fields_are_in_the_order_they_were_written() -> None:
    assert [field.key for field in fields_of(Example)][:3] == ["url", "rows", "share"]
    assert describe(dict[str, int]) == "a mapping of names to whole numbers"


def test_the_nearest_name_is_offered_and_else_all_of_them() -> None:
    assert unknown("sink", "S3", ["s3", "gcs"]) == "there is no sink 'S3'; did you mean 's3'?"
    assert unknown("sink", "zzz", ["s3", "gcs"]) == "there is no sink 'zzz'; there is: gcs, s3"

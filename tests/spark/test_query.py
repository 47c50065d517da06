"""Questions in SQL: topics as tables by their names, and what the command prints."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import Row, SparkSession
from tables import Topics

from rivven.cli.sql import _write_csv, _write_table
from rivven.spark.query import Answer, QueryFailed, answered, explained, named_in, plain

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def fruit(topics: Topics) -> str:
    topic = topics.make(1, "fruit-1")
    topics.fill(topic, 0, [json.dumps({"name": name, "n": n}) for name, n in (("apple", 3), ("pear", 5))])
    return topic


def ask(topics: Topics, spark: SparkSession, question: str, **more: int) -> Answer:
    return answered(spark, question, topics.servers, topics.client.list_topics(), **more)


def test_a_topic_is_a_table_of_its_name(topics: Topics, spark: SparkSession, fruit: str) -> None:
    question = "SELECT offset, get_json_object(value, '$.name') AS name FROM `fruit-1` ORDER BY offset"
    assert ask(topics, spark, question) == Answer(["offset", "name"], [[0, "apple"], [1, "pear"]], False)
    assert ask(topics, spark, question, rows_max=1) == Answer(["offset", "name"], [[0, "apple"]], True)
    assert fruit


def test_bytes_stay_bytes_if_asked(topics: Topics, spark: SparkSession, fruit: str) -> None:
    found = answered(spark, f"SELECT value FROM `{fruit}`", topics.servers, [fruit], binary=True, rows_max=1)
    assert found.rows[0][0].startswith("7b 22 6e")


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("SELECT * FROM nowhere", "there is no topic 'nowhere'; `rivven topic list` shows the topics there are"),
        ("SELEKT 1", "Syntax error at or near 'SELEKT'"),
        ("SELECT valu FROM `fruit-1`", "with name `valu` cannot be resolved"),
    ],
)
def test_what_spark_does_not_understand_is_said_in_a_line(
    topics: Topics, spark: SparkSession, fruit: str, question: str, message: str
) -> None:
    with pytest.raises(QueryFailed) as refused:
        ask(topics, spark, question)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert fruit


def test_names_are_found_as_words() -> None:
    there = ["orders", "order", "a-b", "b", "x.y", "x"]
    assert named_in("SELECT * FROM orders JOIN `a-b` USING (key)", there) == ["orders", "a-b"]
    assert named_in("select 1 from ORDERS", there) == ["orders"]
    assert named_in("SELECT x.value FROM x", there) == ["x"]
    assert named_in("SELECT 1 FROM `x.y`", there) == ["x.y"]


def test_our_own_words_are_shown_rather_than_sparks() -> None:
    text = "[PYTHON] An exception was thrown\nTraceback\n  File x\nrivven.client.failures.ConfigException: say more\n"
    assert explained(text) == "say more"


def test_values_become_plain() -> None:
    moment = datetime(2025, 3, 1, tzinfo=UTC)
    row = [None, True, 1.5, b"\x00a", moment, Row(a=1, b=[b"x"]), {"k": moment}]
    assert [plain(value) for value in row] == [
        *(None, True, 1.5, "00 61", "2025-03-01T00:00:00+00:00"),
        *({"a": 1, "b": ["78"]}, {"k": "2025-03-01T00:00:00+00:00"}),
    ]


def test_an_answer_is_a_table_or_csv(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer(["name", "n"], [["apple", 3], [None, 12], ["a\tb", 7]], False)
    _write_table(answer)
    assert capsys.readouterr().out == "name    n\napple   3\nnull   12\na\\tb    7\n"
    _write_csv(answer)
    assert capsys.readouterr().out == "name,n\napple,3\n,12\na\tb,7\n"

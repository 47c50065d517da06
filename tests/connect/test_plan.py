"""From a file to queries, without running any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rivven.connect.config import loads
from rivven.connect.plan import QueryPlan, in_phases, make_plan, public

FILE = """
broker: {bootstrap_servers: [x]}
sources:
  orders:
    connector: datagen
    topic: orders
    config: {pattern: orders, max_events: 10}
    key: [order_id]
    rate_limit: {events_per_second: 7}
    transforms:
      - {type: mask, config: {fields: [email], method: hash, salt: pepper}}
      - {type: content_router, config: {routes: [{when: "amount > 1", topic: large}]}}
  fast: {connector: datagen, topic: fast, delivery: at_least_once, trigger: 0s}
  off: {connector: datagen, topic: off, enabled: false}
sinks:
  out:
    connector: file
    topics: [orders, large]
    consumer_group: g
    config: {path: ./out}
    rate_limit: {events_per_second: 5}
    dead_letter_topic: dead
pipelines:
  show: {source: {connector: datagen}, sink: {connector: stdout}}
"""


def plans(text: str = FILE, *only: str) -> dict[str, QueryPlan]:
    config = loads(text, {}).config
    assert config is not None
    return {plan.name: plan for plan in make_plan(config, frozenset(only))}


def test_there_is_a_query_for_each_source_sink_and_pipeline_and_for_dead_letters() -> None:
    assert list(plans()) == ["orders", "fast", "show", "out", "out/dead-letters"]


def test_a_pipeline_says_where_its_dead_letters_go_and_has_that_topic_made() -> None:
    text = FILE.replace("connector: stdout}}", "connector: file, config: {path: ./o}}, dead_letter_topic: lost}")
    plan = plans(text)["show"]
    assert plan.writes == "file (path=./o); what cannot be read and what it refuses to topic lost"
    assert plan.topics_written == ("lost",)


def test_some_can_be_chosen() -> None:
    assert list(plans(FILE, "out", "show")) == ["show", "out", "out/dead-letters"]


def test_a_source_says_what_it_reads_changes_and_writes() -> None:
    plan = plans()["orders"]
    assert plan.reads == "datagen (pattern=orders, max_events=10), at most 7/s"
    assert plan.changes == (
        "mask (fields=email, method=hash, salt=******)",
        "content_router (routes=1 of them)",
    )
    assert plan.writes == "topic orders and by content large as event JSON, key from order_id"
    assert plan.topics_written == ("orders", "large")
    assert plan.bounded


def test_the_guarantee_is_the_weaker_of_both_ends() -> None:
    delivery = {name: plan.delivery for name, plan in plans().items()}
    assert delivery == {
        "orders": "exactly_once",
        "fast": "at_least_once",
        "show": "at_least_once",
        "out": "exactly_once",
        "out/dead-letters": "exactly_once",
    }


def test_what_fills_topics_comes_before_what_drains_them() -> None:
    assert {name: plan.phase for name, plan in plans().items()} == {
        "orders": 0,
        "fast": 0,
        "show": 0,
        "out": 1,
        "out/dead-letters": 1,
    }


def test_a_topic_between_two_sinks_is_filled_before_it_is_drained() -> None:
    one, two, three = (QueryPlan(name, "sink", *[None] * 4, 0, "", "exactly_once", False) for name in "abc")  # type: ignore[arg-type]
    chain = [
        replace(one, topics_read=("x",), topics_written=("y",)),
        replace(two, topics_read=("z",)),
        replace(three, topics_read=("y",), topics_written=("z",)),
    ]
    assert {plan.name: plan.phase for plan in in_phases(chain)} == {"a": 1, "c": 2, "b": 3}
    circle = [
        replace(one, topics_read=("x",), topics_written=("y",)),
        replace(two, topics_read=("y",), topics_written=("x",)),
    ]
    assert all(plan.phase <= 2 for plan in in_phases(circle))


def test_a_rate_needs_a_rhythm() -> None:
    assert plans()["out"].trigger_ms == 1000
    assert plans()["fast"].trigger_ms == 0


def test_every_query_has_a_checkpoint_of_its_own() -> None:
    places = [plan.checkpoint for plan in plans().values()]
    assert len(set(places)) == len(places)


def test_no_secret_is_in_a_plan() -> None:
    assert "pepper" not in str(list(plans().values()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://alice:pepper@host/path?token=pepper&x=1", "https://host/path?..."),
        ("postgres://host:5432/db", "postgres://host:5432/db"),
        ("what? no address", "what? no address"),
    ],
)
def test_an_address_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert public(text) == shown


def test_of_headers_only_the_names_are_shown() -> None:
    file = """
    pipelines:
      p:
        source: {connector: http, config: {url: "http://h/x?token=pepper", headers: {Authorization: Bearer pepper}}}
        sink: {connector: stdout}
    """
    plan = plans(file)["p"]
    assert "headers={Authorization}" in plan.reads
    assert "pepper" not in plan.reads

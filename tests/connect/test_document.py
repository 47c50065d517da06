"""A YAML file as values with places, and variables that cannot break out of theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.connect.document import BYTES_MAX, parse
from rivven.connect.nodes import Mark


def plain(text: str, **environment: str) -> object:
    node, mistakes = parse(text, environment)
    assert mistakes == []
    assert node is not None
    return node.plain()


def mistakes_of(text: str, **environment: str) -> list[str]:
    return [str(each) for each in parse(text, environment)[1]]


def test_values_have_their_types() -> None:
    assert plain("a: 1\nb: [x, 2.5, true, null]\nc: {d: '1'}") == {
        "a": 1,
        "b": ["x", 2.5, True, None],
        "c": {"d": "1"},
    }


def test_every_value_knows_its_place() -> None:
    node, _ = parse("a:\n  - b: 1\n", {})
    assert node is not None
    inner = node.value["a"].value[0].value["b"]
    assert inner.mark == Mark(2, 8)
    assert node.value["a"].value[0].key_marks["b"] == Mark(2, 5)


def test_a_variable_is_filled_in_and_typed_if_it_is_not_quoted() -> None:
    text = "port: ${PORT}\ntext: '${PORT}'\nwhole: http://${HOST}:${PORT}/"
    assert plain(text, PORT="9092", HOST="h") == {"port": 9092, "text": "9092", "whole": "http://h:9092/"}


def test_a_default_stands_in_for_what_is_not_set_or_empty() -> None:
    assert plain("a: ${A:-1}\nb: [${B:-localhost:9092}]", A="") == {"a": 1, "b": ["localhost:9092"]}


def test_a_variable_without_a_value_is_named_with_its_line() -> None:
    (text,) = mistakes_of("a: 1\nb: ${NOWHERE}")
    assert (
        text
        == "line 2, column 4: b: NOWHERE is not set in the environment; set it, or give a default: ${NOWHERE:-value}"
    )


def test_two_dollars_stand_for_one() -> None:
    assert plain("a: $${HOME}", HOME="/h") == {"a": "${HOME}"}


def test_what_a_variable_holds_cannot_add_to_the_document() -> None:
    evil = "x\nadmin: true # }]"
    assert plain("a: ${A}\nb: [${A}]\nc: {d: ${A}}", A=evil) == {"a": evil, "b": [evil], "c": {"d": evil}}


def test_columns_are_right_beside_variables() -> None:
    node, _ = parse("[${A:-1}, x]", {})
    assert node is not None
    assert [item.mark for item in node.value] == [Mark(1, 2), Mark(1, 11)]


def test_a_comment_is_not_filled_in() -> None:
    assert plain("a: 1 # ${NOWHERE}") == {"a": 1}


def test_a_key_that_is_there_twice_is_found() -> None:
    assert mistakes_of("a: 1\nb: 2\na: 3") == ["line 3, column 1: 'a' is here twice, first in line 1"]


def test_anchors_and_merges_work() -> None:
    assert plain("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}") == {"x": {"a": 1, "b": 2}, "y": {"b": 3, "a": 1}}


def test_what_is_no_yaml_says_where() -> None:
    (text,) = mistakes_of("a: [1\nb: 2")
    assert text.startswith("line 2, column 2: this is no YAML: ")


def test_aliases_cannot_make_it_endless() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 8))
    assert mistakes_of(bomb) == ["the document has more than 100,000 values, aliases included"]


@pytest.mark.parametrize("text", ["[" * 5000, "x" * (BYTES_MAX + 1), "a: !!python/object:os.system x"])
def test_what_is_not_meant_is_a_mistake(text: str) -> None:
    assert len(mistakes_of(text)) == 1


@given(st.text(alphabet="ab:-[]{}'\"#&*!|>%@`,? \n\t${}0\ue000\uf000", max_size=60))
def test_garbage_gives_mistakes_and_nothing_else(text: str) -> None:
    node, mistakes = parse(text, {"a": "b"})
    assert node is not None or mistakes

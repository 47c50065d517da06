"""Patterns match what Python's do, never take long, and say what is wrong with them."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.coordinator.pattern import Pattern
from rivven.errors import InvalidRegularExpression

ATOM = st.sampled_from(
    ["(^)", "($)", "(^a)", "(b$)", "a", "b", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\.", "-", r"\w", r"[\d-]"]
)
SIGN = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])


def repeated(part):
    return st.tuples(part, SIGN).map("".join)


def grown(inner):
    sequence = st.lists(repeated(inner), min_size=1, max_size=3).map("".join)
    choice = st.lists(sequence, min_size=1, max_size=3).map("|".join)
    return choice.map(lambda text: f"({text})") | choice.map(lambda text: f"(?:{text})")


# Small ones: Python's own matching, which is the judge here, takes for ever on large ones. Ours does not.
PATTERNS = st.lists(repeated(st.recursive(ATOM, grown, max_leaves=3)), max_size=3).map("".join)
NAMES = st.text(alphabet="abc.-1_", max_size=5)


@given(text=PATTERNS, names=st.lists(NAMES, min_size=1, max_size=5))
def test_it_matches_what_python_matches(text, names):
    pattern = Pattern(text)
    for name in names:
        assert pattern.matches(name) == (re.fullmatch(text, name) is not None), (text, name)


@pytest.mark.parametrize("text", ["(a*)*b", "(a|a)*b", "(.*.*.*.*)*x", "(a+){50}b", ".*.*.*.*.*.*.*.*=.*"])
def test_no_pattern_takes_long(text):
    pattern = Pattern(text)
    for _ in range(20):
        assert not pattern.matches("a" * 249)


@pytest.mark.parametrize("text", ["^orders-.*$", "^(orders|payments)-.*", "orders-.*$|^x", "(?:^orders-eu$)"])
def test_anchors_stand_at_the_ends(text):
    assert Pattern(text).matches("orders-eu")
    assert not Pattern(text).matches("my-orders-eu")


def test_an_anchor_in_the_middle_matches_nothing():
    assert not Pattern("a^b").matches("ab")
    assert not Pattern("a(x|^b)").matches("ab")
    assert Pattern("^$").matches("")


def test_the_whole_name_must_match():
    assert not Pattern("orders").matches("orders-eu")
    assert not Pattern("eu").matches("orders-eu")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(a", "never closed"),
        ("a)", "closes nothing"),
        ("*a", "repeats nothing"),
        ("a**", "in a row"),
        ("[a", "ends too early"),
        ("[c-a]", "below its start"),
        ("a{2,1}", "below its start"),
        ("a{x}", "is not {m}"),
        ("a{", "is not {m}"),
        (r"(a)\1", "not served"),
        ("(?=a)", "of (? groups"),
        ("a\\", "ends too early"),
        ("[[:alpha:]]", "named classes"),
        ("((a{30}){30}){30}", "too large"),
        ("(" * 40 + ")" * 40, "nests deeper"),
        ("a" * 257, "longer than 256"),
    ],
)
def test_what_cannot_be_used_is_explained(text, reason):
    with pytest.raises(InvalidRegularExpression, match=re.escape(reason)):
        Pattern(text)


@given(text=st.text(max_size=30))
def test_garbage_is_refused_or_used_and_nothing_else(text):
    with suppress(InvalidRegularExpression):
        Pattern(text).matches("orders")

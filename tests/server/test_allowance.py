"""Requests per address: both twins let the same ones through, and never more than the rate allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.server.allowance import ADDRESSES_MAX, Allowance, Allowances, PureAllowance

TWINS = {PureAllowance: "pure", Allowance: "native"}  # one and the same where nothing was built


@pytest.mark.parametrize("twin", TWINS, ids=TWINS.values())
def test_a_second_is_had_at_once_and_more_only_as_time_goes_by(twin: type[PureAllowance]) -> None:
    allowance = twin(10, 0)
    assert [allowance.take(0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert not allowance.take(99_999)
    assert allowance.take(200_000)
    assert [allowance.take(60_000_000) for _ in range(12)] == [True] * 10 + [False] * 2, "no more for having waited"


@given(st.integers(1, 1000), st.lists(st.integers(0, 300_000), max_size=60))
def test_twins_agree_and_keep_the_rate(rate: int, steps: list[int]) -> None:
    pure, other, now_us, taken = PureAllowance(rate, 0), Allowance(rate, 0), 0, 0
    for step in steps:
        now_us += step
        found = pure.take(now_us)
        assert other.take(now_us) == found
        taken += found
    assert taken <= rate + now_us * rate / 1e6 + 1


def test_an_address_keeps_its_allowance_and_no_limit_has_none() -> None:
    allowances = Allowances(5)
    assert allowances.of("a", 0) is allowances.of("a", 1)
    assert allowances.of("a", 0) is not allowances.of("b", 0)
    assert Allowances(0).of("a", 0) is None


def test_only_so_many_addresses_are_remembered() -> None:
    allowances = Allowances(5)
    first = allowances.of("0", 0)
    for number in range(ADDRESSES_MAX + 1):
        allowances.of(str(number), 0)
    assert allowances.of("0", 0) is not first

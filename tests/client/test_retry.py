"""Backoff, breaker and roster: when to try again, and whom."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rivven.client.options import Address, Options
from rivven.client.retry import Backoff, Breaker, Roster

ONE, TWO = Address("one", 1), Address("two", 2)


@given(st.integers(0, 2**32), st.integers(1, 500), st.integers(1, 5000))
def test_waits_double_up_to_the_maximum_with_jitter(seed, first_ms, most_ms):
    backoff = Backoff(Random(seed), first_ms=first_ms, most_ms=most_ms)
    for tries in range(40):
        length_ms = min(max(first_ms, most_ms), first_ms * 2**tries)
        assert max(1, length_ms // 2) <= backoff.next_ms() <= max(1, length_ms)
    backoff.reset()
    assert backoff.next_ms() <= first_ms


def test_a_breaker_opens_lets_one_try_and_closes_when_that_works():
    breaker = Breaker(failures_max=2, open_ms=100)
    for _ in range(2):
        assert breaker.try_now(0)
        breaker.failed(0)
    assert not breaker.try_now(99)
    assert breaker.wait_ms(40) == 60
    assert breaker.try_now(100)
    assert not breaker.try_now(100), "one at a time while it is half open"
    breaker.failed(100)
    assert not breaker.try_now(150)
    assert breaker.try_now(200)
    breaker.succeeded()
    assert breaker.try_now(200)
    assert breaker.try_now(200)


def test_a_try_that_was_given_up_leaves_the_breaker_as_it_was():
    breaker = Breaker(failures_max=1, open_ms=100)
    breaker.failed(0)
    assert breaker.try_now(100)
    breaker.abandoned()
    assert breaker.try_now(100)


def test_the_address_that_worked_last_comes_first():
    roster = Roster([ONE, TWO], Options(breaker_failures=2, breaker_open_ms=50))
    assert roster.candidates() == [ONE, TWO]
    roster.failed(ONE, 0)
    roster.succeeded(TWO)
    assert roster.candidates() == [TWO, ONE]
    roster.failed(TWO, 0)
    assert roster.candidates() == [ONE, TWO]
    roster.failed(ONE, 0)
    assert not roster.try_now(ONE, 10)
    assert roster.wait_ms(10) == 0, "the other one may be tried"

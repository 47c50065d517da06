"""What many rounds come to: percentiles that were seen, ratios that read the same way, rounds that take turns."""

import pytest
from bench.spread import Spread, alone, percentile, significant, take_turns, versus
from hypothesis import given
from hypothesis import strategies as st

values = st.lists(st.floats(0.001, 1e9), min_size=1)


def test_a_percentile_is_a_value_that_was_seen():
    ordered = list(range(1, 1001))
    assert percentile(ordered, 0.5) == 500
    assert percentile(ordered, 0.99) == 990
    assert percentile(ordered, 0.999) == 999
    assert percentile(ordered, 1.0) == 1000
    assert percentile([7.5], 0.999) == 7.5


@given(values, st.floats(0.001, 1.0))
def test_at_least_the_share_asked_for_does_not_exceed_it(seen, share):
    found = percentile(sorted(seen), share)
    assert found in seen
    assert sum(value <= found for value in seen) >= share * len(seen)
    assert sum(value < found for value in seen) < share * len(seen)


@given(values)
def test_a_median_lies_within_its_spread(seen):
    spread = Spread.of(seen)
    assert spread.low <= spread.median <= spread.high


@pytest.mark.parametrize(
    ("value", "shown"), [(0, 0), (0.0123456, 0.01235), (12.3456, 12.35), (999.96, 1000), (1234567.8, 1235000)]
)
def test_four_digits_are_kept(value, shown):
    assert significant(value) == shown


def test_a_ratio_above_one_is_good_for_us_whatever_is_measured():
    faster = versus("rate", "records/s", [200.0], "other", [100.0])
    sooner = versus("wait", "ms", [5.0], "other", [10.0], less_is_better=True)
    assert (faster["ratio"], sooner["ratio"]) == (2.0, 2.0)


def test_spreads_that_overlap_are_told():
    assert versus("rate", "", [90, 100, 110], "other", [105, 120, 130])["within_spread"]
    assert not versus("rate", "", [90, 100, 110], "other", [111, 120, 130])["within_spread"]


@pytest.mark.parametrize(("target", "met"), [(1.9, True), (2.0, True), (2.1, False)])
def test_a_target_is_a_least_ratio(target, met):
    result = versus("wait", "ms", [5.0], "other", [10.0], less_is_better=True, target=target)
    assert (result["target"], result["met"]) == (target, met)


def test_without_a_target_there_is_no_verdict():
    assert "met" not in versus("wait", "ms", [5.0], "other", [10.0])
    assert "ratio" not in alone("wait", "ms", [5.0])


def test_rounds_take_turns_and_the_first_is_not_counted():
    order = []

    def way(name):
        order.append(name)
        return len(order)

    seen = take_turns({"a": lambda: way("a"), "b": lambda: way("b")}, rounds=2, warmups=1)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert seen == {"a": [4, 5], "b": [3, 6]}

"""What many rounds come to: a median that never stands without its spread, and percentiles that are exact.

A ratio always reads "how many times better rivvend is": above 1 it is ahead, below it is behind, whether more is
better (records a second) or less (milliseconds, megabytes). Where the spreads of two contenders overlap, neither won.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

Result = dict[str, Any]
R = TypeVar("R")
DIGITS = 4
"""Figures are not better than that."""


class Spread(NamedTuple):
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        seen = list(values)
        return cls(*map(significant, (statistics.median(seen), min(seen), max(seen))))

    def overlaps(self, other: Spread) -> bool:
        return self.low <= other.high and other.low <= self.high


def significant(value: float) -> float:
    """Rounded to four digits that mean something; large numbers lose their fraction, and stay whole."""
    if value == 0 or not math.isfinite(value):
        return value
    rounded = round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))
    return int(rounded) if abs(rounded) >= 10 ** (DIGITS - 1) else rounded


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed: one that was seen, none in between."""
    assert ordered, "there is nothing to take a percentile of"
    assert 0 < share <= 1
    return ordered[math.ceil(share * len(ordered)) - 1]


def take_turns(ways: Mapping[str, Callable[[], R]], *, rounds: int, warmups: int = 0) -> dict[str, list[R]]:
    """Each way once a round, the next round in the opposite order; what the warm-up rounds measured is dropped."""
    seen: dict[str, list[R]] = {name: [] for name in ways}
    order = list(ways)
    for number in range(-warmups, rounds):
        for name in order:
            measured = ways[name]()
            if number >= 0:
                seen[name].append(measured)
        order.reverse()
    return seen


def alone(bench: str, unit: str, ours: Iterable[float], **more: Any) -> Result:
    """A figure that nobody else has."""
    return {"bench": bench, "unit": unit, **_told(Spread.of(ours)), **more}


def _told(spread: Spread) -> Result:
    return {"value": spread.median, "low": spread.low, "high": spread.high}


def versus(
    bench: str,
    unit: str,
    ours: Iterable[float],
    rival: str,
    theirs: Iterable[float],
    *,
    less_is_better: bool = False,
    target: float | None = None,
    **more: Any,
) -> Result:
    """Our median over a rival's, with the spreads of both."""
    one, other = Spread.of(ours), Spread.of(theirs)
    better, worse = (other.median, one.median) if less_is_better else (one.median, other.median)
    result = {
        "bench": bench,
        "unit": unit,
        **_told(one),
        "rival": rival,
        "against": other.median,
        "against_low": other.low,
        "against_high": other.high,
        "ratio": round(better / worse, 2) if worse else None,
        "within_spread": one.overlaps(other),
        **more,
    }
    return result if target is None or not worse else {**result, "target": target, "met": better / worse >= target}


def left_out(bench: str, reasons: Iterable[str]) -> list[Result]:
    return [{"bench": bench, "note": f"left out: {reason}"} for reason in reasons]

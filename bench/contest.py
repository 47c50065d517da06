"""Rounds that take turns, and what is made of them: medians, ratios, verdicts.

The machine is shared, so a slow minute has to fall on everybody: each round measures all contenders, the next one in
the opposite order, and what counts is the ratio of two medians of the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench import frames, load
from bench.load import Figures, Shape
from bench.peers import Peer

Result = dict[str, Any]
Rounds = dict[str, list[Figures]]


def contest(contenders: Mapping[str, Callable[[], Figures]], *, rounds: int) -> Rounds:
    seen: Rounds = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(rounds):
        for name in order:
            seen[name].append(contenders[name]())
        order.reverse()
    return seen


def one_in_flight(peer: Peer, *, connections: int, seconds: float, partitions: int = 1) -> Figures:
    """Clients that wait for each answer: 100 B a request."""
    plan = frames.single(peer.speaks, 100, connections=connections, partitions=partitions)
    return load.run(peer, plan, Shape(connections=connections, seconds=seconds))


def compare(bench: str, rounds: Rounds, ours: str, targets: dict[str, float | None], unit: str) -> list[Result]:
    """Our median over that of each contender; a target of None only shows the figure."""
    return [
        ratio(f"{bench}, over {name}", rounds[ours], rounds[name], target, unit)
        for name, target in targets.items()
        if name in rounds
    ]


def ratio(
    bench: str, ours: list[Figures], others: list[Figures], target: float | None, unit: str = "requests/s"
) -> Result:
    figure = "records_per_s" if unit == "records/s" else "frames_per_s"
    value, against = median(ours, figure), median(others, figure)
    result: Result = {
        "bench": bench,
        "unit": unit,
        "value": round(value),
        "against": round(against),
        "ratio": round(value / against, 2),
        **latencies(ours),
        **{f"against_{name}": number for name, number in latencies(others).items()},
        **load.doubts(*ours, *others),
    }
    return result if target is None else {**result, "target": target, "met": value / against >= target}


def latencies(figures: list[Figures]) -> dict[str, float]:
    names = ("p50_us", "p99_us", "p999_us", "load_cpu", "peer_cpu", "peer_cpu_us")
    return {name: round(median(figures, name), 2) for name in names}


def median(figures: Iterable[Figures], name: str) -> float:
    return float(statistics.median(getattr(figure, name) for figure in figures))


def left_out(bench: str, reasons: Iterable[str]) -> list[Result]:
    return [{"bench": bench, "note": f"left out: {reason}"} for reason in reasons]

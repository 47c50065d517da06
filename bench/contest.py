"""Rounds of the load generator that take turns, and what is made of them: medians with their spread, and ratios.

The machine may be shared, so a slow minute has to fall on everybody: each round measures all contenders, the next one
in the opposite order, and what counts is the ratio of two medians of the same run. The first round is for warming up
and is not counted; before it, everybody gets a few seconds of load, since a Java broker compiles itself meanwhile.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec

from bench import confluent, frames, load
from bench.load import Figures, LoadFailed, Shape
from bench.peers import MOCK_PARTITIONS, Peer
from bench.spread import Result, take_turns, versus

Rounds = dict[str, list[Figures]]
CLIENT = "bench/load.c"
READ_RECORDS = 200_000


def contest(contenders: Mapping[str, Callable[[], Figures]], *, rounds: int) -> Rounds:
    return take_turns(contenders, rounds=rounds, warmups=1 if rounds > 1 else 0)


def warm(peers: Iterable[Peer], *, quick: bool) -> None:
    """The same load for everybody, for a while: small requests, then batches, then what confluent-kafka does."""
    seconds = 0.3 if quick else 4.0
    for peer in peers:
        peer.reset(MOCK_PARTITIONS)
        single = frames.single(peer.speaks, 100, connections=16)
        with suppress(LoadFailed):  # a busy disk may hold up a whole short warm-up; what is measured has to answer
            load.run(peer, single, Shape(connections=16, seconds=seconds))
            if peer.speaks in ("native", "kafka"):  # the others know no batches
                bulk = frames.bulk(peer.speaks, 100, 100, connections=MOCK_PARTITIONS)
                load.run(peer, bulk, Shape(connections=MOCK_PARTITIONS, seconds=seconds / 2))
        if not quick and peer.serves_kafka_clients and find_spec("confluent_kafka"):
            peer.reset(MOCK_PARTITIONS)
            confluent.put_many(peer.port, bytes(100), READ_RECORDS, partitions=MOCK_PARTITIONS)
            confluent.read(peer.port, READ_RECORDS, partitions=MOCK_PARTITIONS)


def one_in_flight(
    peer: Peer, *, connections: int, seconds: float, partitions: int = 1, speaks: str | None = None
) -> Figures:
    """Clients that wait for each answer: 100 B a request."""
    plan = frames.single(speaks or peer.speaks, 100, connections=connections, partitions=partitions)
    return load.run(peer, plan, Shape(connections=connections, seconds=seconds))


def small_ways(peers: Iterable[Peer], *, connections: int, seconds: float) -> dict[str, Callable[[], Figures]]:
    return {peer.name: partial(one_in_flight, peer, connections=connections, seconds=seconds) for peer in peers}


def compare(
    bench: str, rounds: Rounds, ours: str, targets: Mapping[str, float | None], unit: str = "requests/s"
) -> list[Result]:
    """Our median over that of each contender; a target of None only shows the figure."""
    return [
        ratio(bench, rounds[ours], name, rounds[name], target, unit)
        for name, target in targets.items()
        if name in rounds
    ]


def ratio(
    bench: str, ours: list[Figures], rival: str, others: list[Figures], target: float | None, unit: str = "requests/s"
) -> Result:
    figure = "records_per_s" if unit == "records/s" else "frames_per_s"
    return versus(
        bench,
        unit,
        (getattr(each, figure) for each in ours),
        rival,
        (getattr(each, figure) for each in others),
        target=target,
        client=CLIENT,
        **latencies(ours),
        **{f"against_{name}": number for name, number in latencies(others).items()},
        **load.doubts(*ours, *others),
    )


def latencies(figures: list[Figures]) -> Result:
    names = ("p50_us", "p99_us", "p999_us", "load_cpu", "peer_cpu", "peer_cpu_us")
    return {name: round(median(figures, name), 2) for name in names}


def median(figures: Iterable[Figures], name: str) -> float:
    return float(statistics.median(getattr(figure, name) for figure in figures))

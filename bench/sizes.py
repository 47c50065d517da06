"""How many records go in and come out, small and large, in few partitions and in many, with each codec?

confluent-kafka sends and reads; nobody syncs before it answers: rivvend has the policy `none`, Kafka its default, and
librdkafka's mock broker writes nothing at all. Each round starts from an empty topic; what was just sent is what is
read, out of the page cache. The mock broker has four partitions at most and forgets what it was sent, so it is only
beside us where that is no matter. How many cores the client used, of ours and theirs, stands in the last column:
where that is near a whole core or more, the client is the limit and the ratio says little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from bench.contest import warm
from bench.kraft import Kafka
from bench.peers import MOCK_PARTITIONS, MockBroker, Peer, Rivvend, running
from bench.spread import Result, alone, left_out, take_turns, versus
from bench.transfer import Amount, Rate, busy, put, read

SIZES = {"10 B": 10, "100 B": 100, "1 KB": 1000, "100 KB": 100_000}
PARTITIONS = (1, 12, 1000)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
QUICK_CODECS = ("none", "lz4")
MB = 1_000_000


class Case(NamedTuple):
    """One workload: what it is called, in which pictures it stands and where, and how much of what."""

    bench: str
    chart: str
    x: str
    amount: Amount


class Trip(NamedTuple):
    put: Rate
    read: Rate | None


def cases(*, quick: bool) -> list[Case]:
    sent_bytes, records_max = (5 * MB, 50_000) if quick else (100 * MB, 500_000)
    amount = partial(Amount, sent_bytes=sent_bytes, records_max=records_max)
    sizes = [
        Case(f"{shown}, 4 partitions", "sizes", shown, amount(value_bytes=size)) for shown, size in SIZES.items()
    ]
    partitions = [
        Case(f"100 B, partitions: {count:,}", "partitions", f"{count:,}", amount(value_bytes=100, partitions=count))
        for count in (PARTITIONS[:2] if quick else PARTITIONS)
    ]
    codecs = [
        Case(f"1 KB, 4 partitions, codec {codec}", "codecs", codec, amount(value_bytes=1000, codec=codec))
        for codec in (QUICK_CODECS if quick else CODECS)
    ]
    return sizes + partitions + codecs


def run(*, quick: bool = False) -> list[Result]:
    results: list[Result] = []
    with running(Rivvend, Kafka, MockBroker) as (peers, missing):
        warm(peers, quick=quick)
        for case in cases(quick=quick):
            able = [peer for peer in peers if _can(peer, case.amount)]
            results += measured(case, able, rounds=1 if quick else 3)
    return results + left_out("produce and consume", missing)


def _can(peer: Peer, amount: Amount) -> bool:
    return not isinstance(peer, MockBroker) or amount.partitions <= MOCK_PARTITIONS


def measured(case: Case, peers: Iterable[Peer], *, rounds: int) -> list[Result]:
    ways: dict[str, Callable[[], Trip]] = {peer.name: partial(trip, peer, case.amount) for peer in peers}
    seen = take_turns(ways, rounds=rounds, warmups=1 if rounds > 1 else 0)
    ours = seen.pop("rivvend")
    puts = {rival: [each.put for each in trips] for rival, trips in seen.items()}
    reads = {rival: _reads(trips) for rival, trips in seen.items() if _reads(trips)}
    return [
        *compared("produce", case, [each.put for each in ours], puts),
        *compared("consume", case, _reads(ours), reads),
    ]


def trip(peer: Peer, amount: Amount) -> Trip:
    sent = put(peer, amount)
    return Trip(sent, None if isinstance(peer, MockBroker) else read(peer, amount))


def _reads(trips: list[Trip]) -> list[Rate]:
    return [each.read for each in trips if each.read is not None]


def compared(way: str, case: Case, ours: list[Rate], rivals: dict[str, list[Rate]]) -> list[Result]:
    """Beside each rival, and alone where there is none."""
    bench, rates = f"{way} {case.bench}", rates_of(ours)
    place = {"chart": f"{way}-{case.chart}", "x": case.x}
    if not rivals:
        return [alone(bench, "records/s", rates) | place]
    return [
        versus(bench, "records/s", rates, rival, (each.records_per_s for each in theirs), **busy(ours, theirs))
        | place
        for rival, theirs in rivals.items()
    ]


def rates_of(seen: list[Rate]) -> list[float]:
    return [each.records_per_s for each in seen]

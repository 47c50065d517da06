"""How long does a record take from the moment it is due until a consumer has it, at 1,000 to 100,000 a second?

Records of 100 B, one partition, one producer and one consumer in processes of their own. The schedule is fixed before
the first record goes: whoever holds the producer up pays for all that had to wait (open loop, no coordinated
omission). A producer waits up to 1 ms for company, the consumer asks for whatever there is. Kafka and rivvend are
driven by the same confluent-kafka, rivvend also by our own client; how late the producer itself was is a part of
every figure and stands beside it. Once without a sync, which is how Kafka is installed, and once with a sync before
every answer, which is how we are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bench.contest import warm
from bench.kraft import Kafka
from bench.pace import CONFLUENT, OURS, Delivered, Traffic, measure
from bench.peers import Peer, Rivvend, running
from bench.spread import Result, alone, left_out, take_turns, versus

RATES = (1_000, 10_000, 100_000)
SYNCED_RATES = (1_000, 10_000)
QUICK_RATES = (1_000, 100_000)
SHOWN = {"50": "p50", "99": "p99", "99.9": "p99.9"}
KAFKA = "Apache Kafka"
NO_SYNC, SYNC = "no sync", "sync before answer"


def run(*, quick: bool = False) -> list[Result]:
    ours_synced, kafka_synced = partial(Rivvend, policy="every_write"), partial(Kafka, sync_always=True)
    promises = (
        (NO_SYNC, QUICK_RATES if quick else RATES, Rivvend, Kafka),
        (SYNC, QUICK_RATES[:1] if quick else SYNCED_RATES, ours_synced, kafka_synced),
    )
    results: list[Result] = []
    for durability, rates, ours, kafka in promises:
        with running(ours, kafka) as (peers, missing):
            warm(peers, quick=quick)
            for rate in rates:
                results += at_rate(peers, rate, durability, quick=quick)
        results += left_out(f"latency, {durability}", missing)
    return results


def at_rate(peers: Sequence[Peer], rate: int, durability: str, *, quick: bool) -> list[Result]:
    rounds, seconds, warmup_s = (1, 0.5, 0.2) if quick else (3, 3.0, 1.0)
    ways: dict[str, Callable[[], Delivered]] = {}
    for peer in peers:
        for client in (CONFLUENT, OURS) if isinstance(peer, Rivvend) else (CONFLUENT,):
            traffic = Traffic(client=client, rate=rate, seconds=seconds, warmup_s=warmup_s)
            name = f"rivvend, {client}" if isinstance(peer, Rivvend) else peer.name
            ways[name] = partial(measure, peer, traffic)
    seen = take_turns(ways, rounds=rounds, warmups=0 if quick else 1)
    kafka = seen.pop(KAFKA, None)
    results = []
    for name, ours in seen.items():
        client = name.removeprefix("rivvend, ")
        for share, shown in SHOWN.items():
            bench = f"end to end at {rate:,}/s, {durability}, {client}, {shown}"
            results.append(compared(bench, share, ours, kafka) | {"client": client})
        place = {"chart": "latency", "x": f"{rate:,}", "durability": durability, "ours": name}
        results[-1] |= place | {"percentiles": middles(ours)}
        if kafka:
            results[-1]["against_percentiles"] = middles(kafka)
    return results


def compared(bench: str, share: str, ours: list[Delivered], kafka: list[Delivered] | None) -> Result:
    values = [each.percentiles[share] for each in ours]
    more = {"load_cpu": middle([each.put_cpu + each.take_cpu for each in ours]), **doubts(ours)}
    if kafka is None:
        return alone(bench, "ms", values, **more)
    theirs = [each.percentiles[share] for each in kafka]
    more["against_load_cpu"] = middle([each.put_cpu + each.take_cpu for each in kafka])
    return versus(bench, "ms", values, KAFKA, theirs, less_is_better=True, **more)


def doubts(seen: list[Delivered]) -> Result:
    """What never came is a loss, and a producer that was late itself is a doubt."""
    missing = sum(each.missing for each in seen)
    late_ms = middle([each.late_p99_ms for each in seen])
    note = f"{missing:,} records never came; " if missing else ""
    return {"note": f"{note}producer late by {late_ms:.2f} ms at p99", "late_p99_ms": late_ms}


def middles(seen: list[Delivered]) -> dict[str, float]:
    return {share: middle([each.percentiles[share] for each in seen]) for share in seen[0].percentiles}


def middle(values: list[float]) -> float:
    return float(alone("", "", values)["value"])

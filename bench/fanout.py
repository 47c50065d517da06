"""What does it take to hand each record to 50 consumers? How long they wait, and what it costs the broker.

One producer sends 500 records of 1 KB a second, so 25 MB leave the broker every second; the schedule is fixed (open
loop). The 50 consumers are confluent-kafka's, each with connections of its own, in one process, which is busier than
the broker and a part of what is measured; the broker's own share is its processor time per gigabyte delivered, as
exact as the kernel counts it. rivvend has the policy `none`, Kafka its default.
"""

from __future__ import annotations

from functools import partial

from bench.contest import warm
from bench.kraft import Kafka
from bench.pace import CONFLUENT, Delivered, Traffic, measure
from bench.peers import Rivvend, running
from bench.spread import Result, alone, left_out, take_turns, versus

CONSUMERS = 50
RATE = 500
VALUE_BYTES = 1000
GB_PER_S = RATE * VALUE_BYTES * CONSUMERS / 1e9
KAFKA = "Apache Kafka"


def run(*, quick: bool = False) -> list[Result]:
    rounds, seconds, warmup_s = (1, 1.0, 0.5) if quick else (5, 4.0, 1.0)
    traffic = Traffic(
        client=CONFLUENT,
        rate=RATE,
        seconds=seconds,
        warmup_s=warmup_s,
        value_bytes=VALUE_BYTES,
        consumers=CONSUMERS,
    )
    with running(Rivvend, Kafka) as (peers, missing):
        warm(peers, quick=quick)
        seen = take_turns(
            {peer.name: partial(measure, peer, traffic) for peer in peers}, rounds=rounds, warmups=0 if quick else 1
        )
    ours, theirs = seen["rivvend"], seen.get(KAFKA)
    bench = f"1 producer, {CONSUMERS} consumers, {RATE * CONSUMERS:,} deliveries/s of 1 KB"
    results = [
        result(f"{bench}, p50", "ms", [each.percentiles["50"] for each in ours], waits(theirs, "50")),
        result(f"{bench}, p99", "ms", [each.percentiles["99"] for each in ours], waits(theirs, "99")),
        result(f"{bench}, broker", "CPU s/GB", costs(ours), costs(theirs) if theirs else None),
    ]
    client = round(sum(each.take_cpu for each in ours) / len(ours), 2)
    lost = sum(each.missing for each in (*ours, *(theirs or ())))
    more = {"client": f"{CONFLUENT}, {client} cores"} | ({"note": f"{lost:,} deliveries never came"} if lost else {})
    return [*(each | more for each in results), *left_out(bench, missing)]


def waits(seen: list[Delivered] | None, share: str) -> list[float] | None:
    return None if seen is None else [each.percentiles[share] for each in seen]


def costs(seen: list[Delivered]) -> list[float]:
    return [each.peer_cpu / GB_PER_S for each in seen]


def result(bench: str, unit: str, ours: list[float], theirs: list[float] | None) -> Result:
    if theirs is None:
        return alone(bench, unit, ours)
    return versus(bench, unit, ours, KAFKA, theirs, less_is_better=True)

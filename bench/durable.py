"""What does it cost to sync before every answer? Ours, Redis, NATS and Kafka, and a thousand partitions over one.

Everybody has promised the same when the answer comes: that the record is on the disk. We have the policy
`every_write`, Redis `appendfsync always`, NATS `sync_interval: always`, Kafka `log.flush.interval.messages=1`.
"""

from __future__ import annotations

from functools import partial

from bench.contest import compare, contest, one_in_flight, ratio, small_ways, warm
from bench.kraft import Kafka
from bench.peers import Nats, Redis, Rivvend, running
from bench.spread import Result, left_out

CLIENTS = (1, 16, 64, 256)
BUDGETED = (16, 64)
"""For so many clients there are targets."""
PARTITIONS = 1000
TARGETS = {"Redis": 0.9, "NATS JetStream": None, "Apache Kafka": None}
PARTITIONS_TARGET = 0.7


def run(*, quick: bool = False) -> list[Result]:
    rounds, seconds = (1, 0.4) if quick else (5, 1.2)
    ours, redis = partial(Rivvend, policy="every_write"), partial(Redis, appendfsync="always")
    results: list[Result] = []
    others = (redis, partial(Nats, sync_always=True), partial(Kafka, sync_always=True))
    with running(ours, ours, *others) as ((many, *peers), missing):
        warm(peers, quick=quick)
        many.reset(PARTITIONS)
        for peer in peers:
            peer.reset(1)
        for clients in BUDGETED if quick else CLIENTS:
            contenders = small_ways(peers, connections=clients, seconds=seconds)
            contenders["1,000 partitions"] = partial(
                one_in_flight, many, connections=clients, seconds=seconds, partitions=PARTITIONS
            )
            seen = contest(contenders, rounds=rounds)
            bench = f"sync before answer, {clients} clients, 100 B"
            is_held = clients in BUDGETED
            beside = compare(bench, seen, "rivvend", TARGETS if is_held else dict.fromkeys(TARGETS))
            results += [result | {"chart": "clients-synced", "x": f"{clients:,}"} for result in beside]
            target = PARTITIONS_TARGET if is_held else None
            many_bench = f"{bench}, 1,000 partitions"
            results.append(
                ratio(many_bench, seen["1,000 partitions"], "rivvend, 1 partition", seen["rivvend"], target)
            )
    return results + left_out("sync before answer", missing)

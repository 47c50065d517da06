"""What does it cost to sync before every answer? Against Redis with `appendfsync always`, and a thousand partitions
against one."""

from __future__ import annotations

from functools import partial

from bench.contest import Result, compare, contest, left_out, one_in_flight, ratio
from bench.peers import Nats, Redis, Rivvend, running

CLIENTS = (16, 64)
PARTITIONS = 1000
TARGETS = {"Redis": 0.9, "NATS JetStream": None}
PARTITIONS_TARGET = 0.7


def run(*, quick: bool = False) -> list[Result]:
    rounds, seconds = (3, 0.8) if quick else (9, 2.0)
    ours, redis = partial(Rivvend, policy="every_write"), partial(Redis, appendfsync="always")
    results: list[Result] = []
    with running(ours, ours, redis, partial(Nats, sync_always=True)) as ((many, *peers), missing):
        many.reset(PARTITIONS)
        for peer in peers:
            peer.reset(1)
        for clients in CLIENTS:
            measure = partial(one_in_flight, connections=clients, seconds=seconds)
            contenders = {peer.name: partial(measure, peer) for peer in peers}
            contenders["1,000 partitions"] = partial(measure, many, partitions=PARTITIONS)
            seen = contest(contenders, rounds=rounds)
            bench = f"sync before answer, {clients} clients"
            results += compare(bench, seen, "rivvend", TARGETS, "requests/s")
            partitions = f"{bench}, 1,000 partitions over 1"
            results.append(ratio(partitions, seen["1,000 partitions"], seen["rivvend"], PARTITIONS_TARGET))
    return results + left_out("sync before answer", missing)

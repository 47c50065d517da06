"""How many requests does a broker answer, and how soon, as clients grow from 1 to 256, each with one in flight?

The load generator in C sends records of 100 B, one a request, to rivvend in both of its protocols, to Kafka, Redis
Streams and NATS JetStream; nobody syncs before it answers. The same with a sync is asked by the part `durable`.
"""

from __future__ import annotations

from functools import partial

from bench.contest import contest, one_in_flight, ratio, small_ways, warm
from bench.kraft import Kafka
from bench.peers import Nats, Redis, Rivvend, running
from bench.spread import Result, left_out

CLIENTS = (1, 16, 64, 256)
QUICK_CLIENTS = (1, 256)
OURS = {"native": "rivvend, native protocol", "kafka": "rivvend, Kafka protocol"}


def run(*, quick: bool = False) -> list[Result]:
    rounds, seconds = (1, 0.3) if quick else (3, 1.2)
    results: list[Result] = []
    with running(Rivvend, Redis, Nats, Kafka) as ((ours, *rivals), missing):
        warm([ours, *rivals], quick=quick)
        for clients in QUICK_CLIENTS if quick else CLIENTS:
            for peer in (ours, *rivals):
                peer.reset(1)
            ways = small_ways(rivals, connections=clients, seconds=seconds)
            for speaks, name in OURS.items():
                ways[name] = partial(one_in_flight, ours, connections=clients, seconds=seconds, speaks=speaks)
            seen = contest(ways, rounds=rounds)
            place = {"chart": "clients", "x": f"{clients:,}"}
            results += [
                ratio(f"{clients} clients, {speaks} protocol", seen[name], rival.name, seen[rival.name], None)
                | place
                | {"ours": name}
                for speaks, name in OURS.items()
                for rival in rivals
            ]
    return results + left_out("clients with one request in flight", missing)

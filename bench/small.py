"""How many small requests does a broker answer when 16 clients wait for their answers, and nobody for a disk?"""

from __future__ import annotations

from functools import partial

from bench.contest import compare, contest, small_ways, warm
from bench.kraft import Kafka
from bench.peers import Least, MockBroker, Nats, Redis, Rivvend, running
from bench.spread import Result, left_out

CLIENTS = 16
TARGETS = {  # see docs/decisions/009-budgets.md
    "Redis": 1.1,
    "NATS JetStream": 2.0,
    "Apache Kafka": None,
    "librdkafka's mock broker": None,
    "the least in C": None,
    "Redis in memory only": None,
}


def run(*, quick: bool = False) -> list[Result]:
    rounds, seconds = (1, 0.3) if quick else (5, 1.5)
    in_memory = partial(Redis, appendfsync=None)
    with running(Rivvend, Redis, Nats, MockBroker, Least, in_memory, Kafka) as (peers, missing):
        warm(peers, quick=quick)
        for peer in peers:
            peer.reset(1)
        seen = contest(small_ways(peers, connections=CLIENTS, seconds=seconds), rounds=rounds)
    return [
        *compare("16 clients, one request in flight, 100 B, no sync", seen, "rivvend", TARGETS),
        *left_out("16 clients, one request in flight", missing),
    ]

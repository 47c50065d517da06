"""How many small requests does a broker answer when 16 clients wait for their answers, and nobody for a disk?"""

from __future__ import annotations

from functools import partial

from bench.contest import Result, compare, contest, left_out, one_in_flight
from bench.peers import MockBroker, Nats, Redis, Rivvend, running

CLIENTS = 16
TARGETS = {"Redis": 1.3, "NATS JetStream": 2.0, "librdkafka's mock broker": None, "Redis in memory only": None}


def run(*, quick: bool = False) -> list[Result]:
    rounds, seconds = (3, 0.8) if quick else (9, 2.0)
    in_memory = partial(Redis, appendfsync=None)
    with running(Rivvend, Redis, Nats, MockBroker, in_memory) as (peers, missing):
        for peer in peers:
            peer.reset(1)
        contenders = {peer.name: partial(one_in_flight, peer, connections=CLIENTS, seconds=seconds) for peer in peers}
        seen = contest(contenders, rounds=rounds)
    return [
        *compare("16 clients, one request in flight, 100 B", seen, "rivvend", TARGETS, "requests/s"),
        *left_out("16 clients, one request in flight", missing),
    ]

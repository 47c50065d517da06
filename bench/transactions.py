"""What do transactions cost? Produce with a commit every 100 ms beside plain durable produce, how long a commit
takes, and reading committed records beside reading whatever is there.

The broker syncs before it answers. Both producers are ours, with equal settings, into the same 12 partitions; the
plain one numbers its batches as well, as it does by default. What is read was written in transactions, and none of
them was aborted, so both readers are handed the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from bench.peers import TOPIC, Peer, Rivvend, running
from bench.spread import Result, alone, percentile, versus
from rivven import blocking
from rivven.client.inbox import Isolation

PARTITIONS = 12
VALUE = bytes(100)
COMMIT_S = 0.1
BATCH_BYTES, LINGER_MS = 1_000_000, 5


def run(*, quick: bool = False) -> list[Result]:
    rounds, seconds, commits = (1, 0.5, 50) if quick else (9, 3.0, 1000)
    with running(partial(Rivvend, policy="every_write")) as ((peer,), _):
        peer.reset(PARTITIONS)
        ways = {
            "plain": partial(plain, peer, seconds),
            "transactional": partial(transactional, peer, seconds),
            "read_uncommitted": partial(read, peer, "read_uncommitted"),
            "read_committed": partial(read, peer, "read_committed"),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        order = list(ways)
        for _ in range(rounds):
            peer.reset(PARTITIONS)
            transactional(peer, seconds / 2)  # so that whoever reads first has something
            for name in order:
                rates[name].append(ways[name]())
            order.reverse()
        peer.reset(PARTITIONS)
        waits = commit_times(peer, commits)
    committed, uncommitted = rates["read_committed"], rates["read_uncommitted"]
    put, plain_put = rates["transactional"], rates["plain"]
    waits_ms = sorted(wait * 1000 for wait in waits)
    return [
        versus("produce with 100 ms commits", "records/s", put, "rivvend, no transactions", plain_put, target=0.8),
        versus("read committed", "records/s", committed, "rivvend, read uncommitted", uncommitted, target=0.95),
        *(
            alone(f"commit of one record, {shown}", "ms", [percentile(waits_ms, share)])
            for shown, share in (("p50", 0.5), ("p99", 0.99))
        ),
    ]


@contextmanager
def producing(peer: Peer, **more: Any) -> Iterator[blocking.Producer]:
    with (
        blocking.connect(f"127.0.0.1:{peer.port}") as client,
        client.producer(TOPIC, BATCH_BYTES, LINGER_MS, **more) as producer,
    ):
        yield producer


def plain(peer: Peer, seconds: float) -> float:
    with producing(peer) as producer:
        begun = time.perf_counter()
        count = put_until(producer.put, begun + seconds)
        producer.flush()
        return count / (time.perf_counter() - begun)


def transactional(peer: Peer, seconds: float) -> float:
    with producing(peer, transactional_id="bench") as producer:
        begun = time.perf_counter()
        count, until = 0, begun + seconds
        while (now := time.perf_counter()) < until:
            with producer.transaction():
                count += put_until(producer.put, min(until, now + COMMIT_S))
        return count / (time.perf_counter() - begun)


def put_until(put: Callable[[bytes], None], until: float) -> int:
    count, clock, value = 0, time.perf_counter, VALUE
    while clock() < until:
        for _ in range(100):
            put(value)
        count += 100
    return count


def read(peer: Peer, isolation: Isolation) -> float:
    """All that the topic has, as columns, partition after partition."""
    with blocking.connect(f"127.0.0.1:{peer.port}") as client:
        ends = {number: client.get_offset_bounds(TOPIC, number)[1] for number in range(PARTITIONS)}
        seen, begun = 0, time.perf_counter()
        with client.consumer(TOPIC, None, start_offset=0, isolation=isolation) as consumer:
            while any(consumer.positions()[number] < end for number, end in ends.items()):
                seen += consumer.fetch_arrow(wait_ms=100).num_rows
        return seen / (time.perf_counter() - begun)


def commit_times(peer: Peer, count: int) -> list[float]:
    """One record at a time, from the moment it is stored to the moment it counts."""
    waits = []
    with producing(peer, transactional_id="bench") as producer:
        for _ in range(count):
            transaction = producer.transaction()
            transaction.__enter__()
            producer.send(VALUE)
            begun = time.perf_counter()
            transaction.__exit__(None, None, None)
            waits.append(time.perf_counter() - begun)
    return waits

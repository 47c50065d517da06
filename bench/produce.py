"""How fast does a broker take batches, when nobody waits for a disk? Ours, Kafka, a C mock broker, NATS, Redis.

Four producers, each with a partition of its own and five requests in flight, as producers have them. Kafka and the
mock broker get the very same batches in Kafka's Produce: of 16 KB, where our client and Java's start from, and of
1 MB, where librdkafka does. Redis and NATS get as many commands in a row as make 16 KB, sent at once: they take them
one by one, and hardly faster if more are sent, so this is what stands beside 1 MB, too. Kafka and NATS do not sync
before they answer, Redis has `appendfsync no`, we have the policy `none`: each of the four writes a file into the
page cache. The mock broker writes nothing, checks nothing and forgets all but the last few megabytes; the least in C
writes and checks, and does nothing else (`least.c`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench import frames, load
from bench.contest import compare, contest, warm
from bench.kraft import Kafka
from bench.load import Figures, Plan, Shape
from bench.peers import Least, MockBroker, Nats, Peer, Redis, Rivvend, running
from bench.spread import Result, left_out

ROUND_S = 0.7
"""So that the fastest writes less in a round than the kernel holds before it turns to the disk, which by default is a
tenth of the memory: what a disk takes is no part of the question."""
PRODUCERS = 4
IN_FLIGHT = 5
DIALECTS = ("native", "kafka")
"""In which of our protocols batches come. In Kafka's they are the very frames that the mock broker gets."""
SMALL_BATCH, LARGE_BATCH = "16 KB", "1 MB"
BATCH_BYTES = {SMALL_BATCH: 16_384, LARGE_BATCH: 1_000_000}
BATCH_HEAD_BYTES, RECORD_HEAD_BYTES = 61, 12
VALUE_BYTES = {"100 B": 100, "1 KB": 1000}
MOCK = "librdkafka's mock broker"
KAFKA = "Apache Kafka"
LEAST = "the least in C"
LEAST_TARGET = 0.75
TARGETS = {SMALL_BATCH: {"100 B": 5.0, "1 KB": 3.5}, LARGE_BATCH: {"100 B": 5.0, "1 KB": 5.0}}
"""Over NATS and Redis; see `docs/decisions/009-budgets.md`."""


def run(*, quick: bool = False) -> list[Result]:
    rounds, seconds = (1, 0.3) if quick else (7, ROUND_S)
    in_memory = partial(Redis, appendfsync=None)
    results: list[Result] = []
    with running(Rivvend, MockBroker, Least, Nats, Redis, in_memory, Kafka) as (peers, missing):
        warm(peers, quick=quick)
        for shown, value_bytes in VALUE_BYTES.items():
            contenders: dict[str, Callable[[], Figures]] = {}
            for peer in peers:
                contenders |= ways(peer, value_bytes, seconds)
            seen = contest(contenders, rounds=rounds)
            for dialect in DIALECTS:
                for batch in BATCH_BYTES:
                    targets: dict[str, float | None] = {f"{LEAST}, {batch}": LEAST_TARGET}
                    targets |= dict.fromkeys((f"{MOCK}, {batch}", f"{KAFKA}, {batch}", "Redis in memory only"))
                    targets |= dict.fromkeys(("NATS JetStream", "Redis"), TARGETS[batch][shown])
                    bench = f"produce {shown} in batches of {batch}, {dialect} protocol, no sync"
                    results += compare(bench, seen, f"rivvend {dialect}, {batch}", targets, "records/s")
    return results + left_out("produce in batches", missing)


def ways(peer: Peer, value_bytes: int, seconds: float) -> dict[str, Callable[[], Figures]]:
    """How one peer is asked: in each of its dialects, with batches of each size if it knows batches."""
    made: dict[str, Callable[[], Figures]] = {}
    is_ours = isinstance(peer, Rivvend)
    for dialect in DIALECTS if is_ours else (peer.speaks,):
        knows_batches = dialect in ("native", "kafka")
        for batch in BATCH_BYTES if knows_batches else (SMALL_BATCH,):
            records = (BATCH_BYTES[batch] - BATCH_HEAD_BYTES) // (value_bytes + RECORD_HEAD_BYTES)
            plan = frames.bulk(dialect, value_bytes, records, connections=PRODUCERS)
            name = f"rivvend {dialect}" if is_ours else peer.name
            made[f"{name}, {batch}" if knows_batches else name] = partial(measured, peer, plan, seconds=seconds)
    return made


def measured(peer: Peer, plan: Plan, *, seconds: float) -> Figures:
    """One round, from an empty topic: what was written before must not fill the disk or the memory."""
    peer.reset(PRODUCERS)
    return load.run(peer, plan, Shape(connections=PRODUCERS, depth=IN_FLIGHT, seconds=seconds, warmup_s=seconds / 4))

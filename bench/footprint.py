"""What does a broker hold and use? Memory with 10,000 idle connections and with 10,000 partitions, and processor
time for a gigabyte in and out.

Memory is what the kernel says is resident, before and after, of the broker's process alone. An idle connection has
been greeted and is silent. Kafka's memory is for the most part its heap, which is as large as its start script makes
it, and grows into it whether it has to or not; what a connection adds is the fairer figure. A gigabyte is sent and
read by confluent-kafka in records of 1 KB, without a codec and without a sync.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from functools import partial

from bench.contest import warm
from bench.files import PARTITION_FILES, affordable
from bench.kraft import Kafka
from bench.peers import START_S, Peer, Rivvend, create_many, running
from bench.spread import Result, alone, left_out, take_turns, versus
from bench.transfer import CLIENT, Amount, put, read
from rivven.wire.kafka import encode_request
from rivven.wire.kafka.made.api_versions import ApiVersionsRequest

CONNECTIONS = 10_000
PARTITIONS = 10_000
QUICK = 500
SETTLE_S, QUICK_SETTLE_S = 1.0, 0.1
GREETING = b"".join(encode_request(ApiVersionsRequest(), 0, 0, "bench"))
KAFKA = "Apache Kafka"
GB = 1_000_000_000


def run(*, quick: bool = False) -> list[Result]:
    wanted, partitions = (QUICK, QUICK) if quick else (CONNECTIONS, PARTITIONS)
    settle_s = QUICK_SETTLE_S if quick else SETTLE_S
    connections, connections_note = affordable(wanted, files_each=1)
    partitions, partitions_note = affordable(partitions, files_each=PARTITION_FILES)
    crowd = ("--max-connections-per-ip", str(wanted + 100), "--max-total-connections", str(wanted + 100))
    with running(lambda home: Rivvend(home, *crowd), Kafka) as (peers, missing):
        warm(peers, quick=quick)
        held = {peer.name: idle_connections(peer, connections, settle_s) for peer in peers}
        spent = costs(peers, quick=quick)
        grown = {peer.name: [resident_with(peer, partitions, settle_s) / 1e6] for peer in peers}
    without = {name: [before / 1e6] for name, (before, _) in held.items()}
    with_all = {name: [after / 1e6] for name, (_, after) in held.items()}
    added = {name: [(after - before) / connections / 1e3] for name, (before, after) in held.items()}
    return [
        compared("resident after some load, no connections", "MB", without),
        compared(f"resident with {connections:,} idle connections", "MB", with_all) | connections_note,
        compared("an idle connection adds", "KB", added) | connections_note,
        compared(f"resident with {partitions:,} partitions, empty, after a start", "MB", grown) | partitions_note,
        *spent,
        *left_out("footprint", missing),
    ]


def idle_connections(peer: Peer, count: int, settle_s: float) -> tuple[int, int]:
    """Resident bytes before and with them."""
    time.sleep(settle_s)
    before = peer.rss_bytes()
    with ExitStack() as stack:
        for _ in range(count):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", peer.port), timeout=START_S))
            link.sendall(GREETING)
            if not link.recv(4096):
                raise RuntimeError(f"{peer.name} closed an idle connection: {peer.complaints()}")
        time.sleep(settle_s)
        return before, peer.rss_bytes()


def resident_with(peer: Peer, partitions: int, settle_s: float) -> int:
    create_many(peer, partitions)
    peer.stop()
    peer.start()
    time.sleep(settle_s)
    return peer.rss_bytes()


def costs(peers: list[Peer], *, quick: bool) -> list[Result]:
    """Processor seconds of the broker for a gigabyte: steadier than a rate, since nobody else's load is in it."""
    rounds = 1 if quick else 3
    amount = Amount(value_bytes=1000, sent_bytes=GB // 50 if quick else GB)
    ways = {peer.name: partial(cost, peer, amount) for peer in peers}
    seen = take_turns(ways, rounds=rounds, warmups=1 if rounds > 1 else 0)
    return [
        compared(bench, "CPU s/GB", {name: [each[place] for each in pairs] for name, pairs in seen.items()})
        | {"client": CLIENT}
        for place, bench in enumerate(("broker, records of 1 KB produced", "broker, records of 1 KB consumed"))
    ]


def cost(peer: Peer, amount: Amount) -> tuple[float, float]:
    return put(peer, amount).peer_cpu_s_per_gb, read(peer, amount).peer_cpu_s_per_gb


def compared(bench: str, unit: str, seen: dict[str, list[float]]) -> Result:
    if KAFKA not in seen:
        return alone(bench, unit, seen["rivvend"])
    if min(seen[KAFKA]) <= 0:  # it took what it needed from the heap that it had already
        return alone(bench, unit, seen["rivvend"], note="Kafka's heap had room for it: nothing to compare")
    return versus(bench, unit, seen["rivvend"], KAFKA, seen[KAFKA], less_is_better=True)

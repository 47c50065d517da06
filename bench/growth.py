"""What do partitions cost, from one to ten thousand? How fast batches go in, and how long a start takes.

The load generator in C sends batches of ten records of 100 B, in Kafka's Produce, over four connections with five
requests in flight each, to all partitions in turn, a thousand in a topic at most: the same bytes to rivvend and to
Kafka, which do not sync before they answer, once each partition has had its first batch. Then the broker is stopped
and started again on what it has, until every partition answers: rivvend says so itself, and Kafka is asked for its
leaders.
"""

from __future__ import annotations

import time
from functools import partial

from bench import frames, load
from bench.contest import CLIENT, warm
from bench.files import PARTITION_FILES, affordable
from bench.kraft import Kafka
from bench.load import Shape
from bench.peers import Peer, Rivvend, create_many, running
from bench.spread import Result, alone, left_out, take_turns, versus

PARTITIONS = (1, 10, 100, 1_000, 10_000)
QUICK_PARTITIONS = (100,)
RECORDS = 10
CONNECTIONS, IN_FLIGHT = 4, 5
FIRST_S_MAX = 120.0
KAFKA = "Apache Kafka"


def run(*, quick: bool = False) -> list[Result]:
    wanted = QUICK_PARTITIONS if quick else PARTITIONS
    most, note = affordable(wanted[-1], files_each=PARTITION_FILES)
    counts = [*wanted[:-1], most]
    with running(Rivvend, Kafka, afresh=True) as (peers, missing):
        results = [result for count in counts for result in grown(peers, count, quick=quick)]
    results = [noted(result, note if result["x"] == f"{most:,}" else {}) for result in results]
    return results + left_out("growth", missing)


def noted(result: Result, note: Result) -> Result:
    notes = [each["note"] for each in (result, note) if "note" in each]
    return result | note | ({"note": "; ".join(notes)} if notes else {})


def grown(peers: list[Peer], partitions: int, *, quick: bool) -> list[Result]:
    """With so many partitions. All are warmed before: a Java that was started anew is slow for a while."""
    warm(peers, quick=quick)
    ready, note = [], {}
    for peer in peers:
        places = create_many(peer, partitions)  # the same everywhere
        if go_through(peer, places, quick=quick):
            ready.append(peer)
        else:
            note = {"note": f"{peer.name} left out: not every partition had its first batch in time"}
    return [produced(ready, places, quick=quick) | note, started(peers, partitions, quick=quick)]


def go_through(peer: Peer, places: list[tuple[str, int]], *, quick: bool) -> bool:
    """Whether every partition has had a batch: the first is dear to a broker that keeps files for each. Kafka takes
    some 30 ms for it, and is a hundred times faster from then on."""
    seconds, deadline = (0.3, 10.0) if quick else (5.0, FIRST_S_MAX)
    begun = time.perf_counter()
    while time.perf_counter() - begun < deadline:
        if produce(peer, places, seconds) * seconds / RECORDS >= 2 * len(places):
            return True
    return False


def produced(peers: list[Peer], places: list[tuple[str, int]], *, quick: bool) -> Result:
    rounds, seconds = (1, 0.3) if quick else (3, 2.0)
    partitions = len(places)
    seen = take_turns({peer.name: partial(produce, peer, places, seconds) for peer in peers}, rounds=rounds)
    place = {"chart": "growth-produce", "x": f"{partitions:,}", "client": CLIENT}
    return compared(f"produce, partitions: {partitions:,}", "records/s", seen, less_is_better=False) | place


def produce(peer: Peer, places: list[tuple[str, int]], seconds: float) -> float:
    plan = frames.kafka_produce_in_turn(frames.batch_of(RECORDS, 100), RECORDS, places)
    return load.run(peer, plan, Shape(connections=CONNECTIONS, depth=IN_FLIGHT, seconds=seconds)).records_per_s


def started(peers: list[Peer], partitions: int, *, quick: bool) -> Result:
    """After an orderly stop."""
    seen = take_turns({peer.name: partial(restart, peer) for peer in peers}, rounds=1 if quick else 3)
    place = {"chart": "growth-start", "x": f"{partitions:,}"}
    return compared(f"start, partitions: {partitions:,}", "s", seen, less_is_better=True) | place


def restart(peer: Peer) -> float:
    peer.stop()
    begun = time.perf_counter()
    peer.start()
    return time.perf_counter() - begun


def compared(bench: str, unit: str, seen: dict[str, list[float]], *, less_is_better: bool) -> Result:
    if KAFKA not in seen:
        return alone(bench, unit, seen["rivvend"])
    return versus(bench, unit, seen["rivvend"], KAFKA, seen[KAFKA], less_is_better=less_is_better)

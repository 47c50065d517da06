"""How fast is the Python client, tables and single records, and is it as fast as confluent-kafka?

The broker runs beside it with the policy `none`. Single records go with equal settings: batches up to 1 MB, 5 ms of
linger, no callbacks, and the clock stops when the last one is stored. confluent-kafka sends to rivvend, in Kafka's
dialect, and to its own mock broker, which is the kinder of the two to it. Both clients read the same topic of
rivvend; what is written to the mock broker is forgotten too soon to be read back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from bench import confluent
from bench.peers import TOPIC, MockBroker, Peer, Rivvend, running
from bench.spread import Result, alone, versus
from rivven import blocking

VALUE = bytes(100)


def run(*, quick: bool = False) -> list[Result]:
    rounds, tables, records = (1, 1, 100_000) if quick else (5, 5, 1_000_000)
    table = pa.table({"value": pa.array([VALUE] * 500_000, pa.binary())})
    with running(Rivvend, MockBroker) as (peers, missing):
        ours, mock = peers[0], next(iter(peers[1:]), None)
        ways: dict[str, Callable[[], float]] = {
            "from Arrow": lambda: from_arrow(ours, table, tables),
            "into Arrow": lambda: into_arrow(ours),
            "read": lambda: read(ours, records),
            "put": lambda: put(ours, records),
        }
        if mock is not None:  # then confluent-kafka is here
            ways[f"confluent read, {ours.name}"] = lambda: confluent.read(ours.port, records, partitions=1)
            ways[f"confluent put, {ours.name}"] = lambda: confluent.put(ours.port, VALUE, records)
            ways[f"confluent put, {mock.name}"] = lambda: confluent.put(mock.port, VALUE, records)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            ours.reset(1)  # what is written from Arrow is what the readers after it read
            for name, way in ways.items():
                rates[name].append(way())
    results = [
        figure("from Arrow, 100 B", rates["from Arrow"], 2_000_000),
        figure("into Arrow, 100 B", rates["into Arrow"], 3_000_000),
    ]
    if mock is None:
        alone = figure("read record by record, 100 B", rates["read"], None)
        return [*results, alone, *({"bench": "put record by record", "note": f"left out: {why}"} for why in missing)]
    results.append(beside("read", rates, ours.name, None))
    return [*results, *(beside("put", rates, peer.name, 1.0) for peer in (ours, mock))]


def beside(way: str, rates: dict[str, list[float]], place: str, target: float | None) -> Result:
    """Ours over confluent-kafka's at that broker."""
    rival = f"confluent-kafka at {place}"
    theirs = rates[f"confluent {way}, {place}"]
    bench = f"our client: {way} record by record, 100 B"
    return versus(bench, "records/s", rates[way], rival, theirs, target=target)


def figure(bench: str, rates: list[float], target: int | None) -> Result:
    result = alone(f"our client: {bench}", "records/s", rates)
    return result if target is None else {**result, "target": target, "met": result["value"] >= target}


def from_arrow(peer: Peer, table: pa.Table, times: int) -> float:
    with blocking.connect(f"127.0.0.1:{peer.port}") as client, client.producer(TOPIC) as producer:
        begun = time.perf_counter()
        for _ in range(times):
            producer.put_arrow(table, partition=0)
        producer.flush()
        return times * table.num_rows / (time.perf_counter() - begun)


def into_arrow(peer: Peer) -> float:
    with blocking.connect(f"127.0.0.1:{peer.port}") as client:
        _, end = client.get_offset_bounds(TOPIC, 0)
        with client.consumer(TOPIC, 0, start_offset=0) as consumer:
            seen, begun = 0, time.perf_counter()
            while seen < end:
                batch = consumer.fetch_arrow(wait_ms=1000)
                assert batch.num_rows, "the topic ended early"
                seen += batch.num_rows
            return seen / (time.perf_counter() - begun)


def read(peer: Peer, records: int) -> float:
    with (
        blocking.connect(f"127.0.0.1:{peer.port}") as client,
        client.consumer(TOPIC, 0, start_offset=0) as consumer,
    ):
        seen, begun = 0, time.perf_counter()
        for message in consumer:
            assert message.value is not None
            seen += 1
            if seen == records:
                break
        return seen / (time.perf_counter() - begun)


def put(peer: Peer, records: int) -> float:
    with (
        blocking.connect(f"127.0.0.1:{peer.port}") as client,
        client.producer(TOPIC, confluent.BATCH_BYTES, confluent.LINGER_MS) as producer,
    ):
        hand_over = producer.put
        begun = time.perf_counter()
        for _ in range(records):
            hand_over(VALUE)
        producer.flush()
        return records / (time.perf_counter() - begun)

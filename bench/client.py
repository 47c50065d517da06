"""How fast is the Python client, tables and single records, and is it as fast as confluent-kafka?

The broker runs beside it with the policy `none`. Single records go with equal settings: batches up to 1 MB, 5 ms of
linger, no callbacks, and the clock stops when the last one is stored. confluent-kafka sends to its own mock broker as
long as rivvend does not speak Kafka, which is the kinder of the two to it. What is written there is forgotten too
soon to be read back, so reading has no comparison yet.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from bench.peers import TOPIC, MockBroker, Peer, Rivvend, running
from rivven import blocking

VALUE = bytes(100)
BATCH_BYTES = 1_000_000
LINGER_MS = 5
QUEUE_RECORDS_MAX = 1_000_000
KAFKA_AT = "librdkafka's mock broker"
"""Where confluent-kafka sends to. Once rivvend speaks Kafka, this becomes its port, beside the mock broker's."""
Result = dict[str, Any]


def run(*, quick: bool = False) -> list[Result]:
    rounds, tables, records = (3, 2, 200_000) if quick else (9, 5, 1_000_000)
    table = pa.table({"value": pa.array([VALUE] * 500_000, pa.binary())})
    with running(Rivvend, MockBroker) as (peers, missing):
        ours, mock = peers[0], next(iter(peers[1:]), None)
        ways: dict[str, Callable[[], float]] = {
            "from Arrow": lambda: from_arrow(ours, table, tables),
            "into Arrow": lambda: into_arrow(ours),
            "read": lambda: read(ours, records),
            "put": lambda: put(ours, records),
        }
        if mock is not None:
            ways["confluent"] = lambda: confluent(mock.port, records)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            ours.reset(1)  # what is written from Arrow is what the two after it read
            for name, way in ways.items():
                rates[name].append(way())
    medians = {name: statistics.median(values) for name, values in rates.items()}
    results = [
        figure("from Arrow, 100 B", medians["from Arrow"], 2_000_000),
        figure("into Arrow, 100 B", medians["into Arrow"], 3_000_000),
        figure("read record by record, 100 B", medians["read"], None),
    ]
    if mock is None:
        return [*results, *({"bench": "put record by record", "note": f"left out: {why}"} for why in missing)]
    value, against = medians["put"], medians["confluent"]
    bench = f"put record by record, 100 B, over confluent-kafka at {KAFKA_AT}"
    compared = {"against": round(against), "ratio": round(value / against, 2), "target": 1.0}
    return [*results, {**figure(bench, value, None), **compared, "met": value >= against}]


def figure(bench: str, value: float, target: int | None) -> Result:
    result = {"bench": bench, "unit": "records/s", "value": round(value)}
    return result if target is None else {**result, "target": target, "met": value >= target}


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
        client.producer(TOPIC, BATCH_BYTES, LINGER_MS) as producer,
    ):
        hand_over = producer.put
        begun = time.perf_counter()
        for _ in range(records):
            hand_over(VALUE)
        producer.flush()
        return records / (time.perf_counter() - begun)


def confluent(port: int, records: int) -> float:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
            "log_level": 0,
        }
    )
    producer.list_topics(TOPIC, timeout=10)  # connected before the clock starts, as ours is
    produce, poll = producer.produce, producer.poll
    begun = time.perf_counter()
    for _ in range(records):
        try:
            produce(TOPIC, VALUE, partition=0)
        except BufferError:
            poll(0.1)
            produce(TOPIC, VALUE, partition=0)
    left = producer.flush(60)
    assert left == 0, f"{left} records were not stored"
    return records / (time.perf_counter() - begun)

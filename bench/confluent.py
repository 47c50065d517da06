"""confluent-kafka, which is librdkafka in Python, as a producer and a consumer: records a second.

The clock starts when the client is connected and stops when the last record is stored, or in hand. Batches are of up
to 1 MB, a record waits 5 ms for company, nothing is compressed unless a codec is named, and all copies acknowledge,
of which there is one.
"""

from __future__ import annotations

import time
from typing import Any

from bench.peers import TOPIC

BATCH_BYTES = 1_000_000
LINGER_MS = 5
QUEUE_RECORDS_MAX = 1_000_000
HANDED_OVER = 1000
"""Records in one call that puts many."""
TAKEN_MAX = 10_000
"""Records that one call to read may bring."""
PATIENCE_S = 60.0


def put(port: int, value: bytes, records: int) -> float:
    """Into one partition, a call for each record: what an application does that has one record at a time."""
    producer = _producer(port)
    produce, poll = producer.produce, producer.poll
    begun = time.perf_counter()
    for _ in range(records):
        try:
            produce(TOPIC, value, partition=0)
        except BufferError:
            poll(0.1)
            produce(TOPIC, value, partition=0)
    _flush(producer)
    return records / (time.perf_counter() - begun)


def put_many(port: int, value: bytes, records: int, *, partitions: int) -> float:
    """Into all partitions in turn, many records a call: the least that this client can cost."""
    return put_rows(port, [value] * HANDED_OVER, records // HANDED_OVER, partitions=partitions)


def put_rows(port: int, values: list[bytes], calls: int, *, partitions: int, codec: str = "none") -> float:
    """The same values in every call, each call to the next partition."""
    producer = _producer(port, codec)
    rows = [{"value": value} for value in values]
    begun = time.perf_counter()
    for number in range(calls):
        while len(producer) > QUEUE_RECORDS_MAX - len(rows):
            producer.poll(0.01)
        taken = producer.produce_batch(TOPIC, rows, partition=number % partitions)
        assert taken == len(rows), rows[0]
    _flush(producer)
    return calls * len(rows) / (time.perf_counter() - begun)


def read(port: int, records: int, *, partitions: int) -> float:
    """Of what is in the topic, so many from the start."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "bench",  # it insists on one; there is no group
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "queued.min.messages": QUEUE_RECORDS_MAX,
            "log_level": 0,
        }
    )
    try:
        consumer.list_topics(TOPIC, timeout=10)
        begun = time.perf_counter()
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(partitions)])
        seen = 0
        while seen < records:
            for message in consumer.consume(min(TAKEN_MAX, records - seen), timeout=1.0):
                assert message.error() is None, message.error()
                assert message.value() is not None
                seen += 1
            assert time.perf_counter() - begun < PATIENCE_S, f"only {seen} of {records} records came"
        return seen / (time.perf_counter() - begun)
    finally:
        consumer.close()


def _producer(port: int, codec: str = "none") -> Any:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "compression.type": codec,
            "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
            "log_level": 0,
        }
    )
    producer.list_topics(TOPIC, timeout=10)  # connected before the clock starts, as ours is
    return producer


def _flush(producer: Any) -> None:
    left = producer.flush(PATIENCE_S)
    assert left == 0, f"{left} records were not stored"

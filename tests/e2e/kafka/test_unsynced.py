"""A broker that syncs nothing, and is killed while librdkafka pours records in: what it answered is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from daemon import Daemon, running

PARTITIONS = 2
VALUE_BYTES = 2_000
ROUND_RECORDS = 6_000


def value_of(number: int) -> bytes:
    return (b"%d " % number).ljust(VALUE_BYTES, b"x")


def pour(daemon: Daemon, first: int, acked: dict[tuple[int, int], int]) -> int:
    """Send records as fast as they are taken, and kill the broker on the way. The number after the last."""
    heard = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal heard
        if error is None:
            acked[message.partition(), message.offset()] = int(message.value().split()[0])
            heard += 1

    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{daemon.port}",
            "batch.size": 1_000_000,
            "linger.ms": 1,
            "acks": 1,
            "message.timeout.ms": 5_000,
            "log_level": 0,
        }
    )
    number = first
    while heard < ROUND_RECORDS:
        try:
            producer.produce("t", value_of(number), partition=number % PARTITIONS, on_delivery=delivered)
            number += 1
        except BufferError:
            producer.poll(0.1)
        producer.poll(0)
    daemon.kill()
    producer.purge()
    producer.flush(10)
    return number


def kept(daemon: Daemon, partition: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{daemon.port}", "group.id": "g", "log_level": 0})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition("t", partition), timeout=30)
        assert low == 0
        consumer.assign([TopicPartition("t", partition, 0)])
        found: list[int] = []
        while len(found) < high:
            message = consumer.poll(30)
            assert message is not None, f"nothing after {len(found)} of {high}"
            assert message.error() is None, message.error()
            assert message.offset() == len(found), "a hole"
            assert message.value() == value_of(int(message.value().split()[0]))
            found.append(int(message.value().split()[0]))
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("flags", [(), ("--max-segment-size", "4MiB")], ids=["", "rolling"])
def test_what_was_answered_survives_the_end_of_the_process(tmp_path: Path, flags: tuple[str, ...]) -> None:
    acked: dict[tuple[int, int], int] = {}
    following = 0
    with running(tmp_path, "--sync-policy", "none", *flags) as daemon:
        with daemon.client() as client:
            client.call("CreateTopic", "t", PARTITIONS)
        for _ in range(3):
            following = pour(daemon, following, acked)
            daemon.start()
            rows = {partition: kept(daemon, partition) for partition in range(PARTITIONS)}
            for (partition, offset), number in acked.items():
                assert offset < len(rows[partition]), f"lost: {partition}@{offset}"
                assert rows[partition][offset] == number
            for numbers in rows.values():
                assert numbers == sorted(set(numbers)), "in the order in which they were sent, and once"

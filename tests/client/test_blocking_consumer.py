"""The consumer for threads: iterating, and what it heard of its partitions."""

from __future__ import annotations

import threading
from typing import Any


def test_iteration_waits_and_ends_with_close(client):
    client.create_topic("t", 1)
    consumer = client.consumer("t", wait_ms=10_000)
    seen: list[Any] = []

    def read() -> None:
        for message in consumer:
            seen.append(message.value)
            if len(seen) == 2:
                reached.set()

    reached = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    client.publish("t", b"a")
    client.publish("t", b"b")
    assert reached.wait(20)
    consumer.close()
    reader.join(20)
    assert not reader.is_alive()
    assert seen == [b"a", b"b"]


def test_a_consumer_tells_what_it_heard_of_its_partitions(client):
    client.create_topic("heard", 2)
    with client.producer("heard") as producer:
        for number in range(10):
            producer.put(b"%d" % number, partition=0)
    client.delete_records("heard", 0, 4)
    with client.consumer("heard", [0, 1], start_offset=1) as consumer:
        assert consumer.bounds() == {}
        taken = consumer.fetch_batches(until=10)
        assert (taken.partition, consumer.positions()[0]) == (0, 10)
        assert consumer.bounds()[0] == (4, 10, 10)
        assert consumer.take_lost() == [(0, 1, 4)]
        assert consumer.take_lost() == []

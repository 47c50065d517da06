"""The producer for threads: tables, many threads at once, and a buffer that is full."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import rivven
from rivven import BufferFull, Closed, ConfigException, Delivery, Options, blocking
from rivven.client.loop_thread import loop_thread
from rivven.client.producer import Producer
from rivven.client.sending import Sending
from rivven.client.shell import Cluster


def test_tables_go_where_they_say_however_many_partitions_there_are_by_now(client):
    client.create_topic("t", 1)
    with client.producer("t") as producer:
        client.create_partitions("t", 3)
        assert producer.put_arrow(pa.table({"value": [b"a", b"b"], "partition": [0, 2]})) == 2
        assert producer.put_arrow(pa.table({"value": [b"c"]}), partition=1) == 1
        for nowhere in ({"partition": [3]}, {}):
            with pytest.raises(ConfigException, match="no partition 3"):
                producer.put_arrow(pa.table({"value": [b"d"], **nowhere}), partition=None if nowhere else 3)
        with pytest.raises(ConfigException, match="partition"):
            producer.put_arrow(pa.table({"value": [b"d"]}), partition="1")  # type: ignore[arg-type]
        producer.flush()
    assert [client.get_offset_bounds("t", number)[1] for number in range(3)] == [1, 1, 1]


def test_a_table_without_rows_makes_no_topic_and_one_with_rows_does(client):
    empty, full = pa.table({"value": pa.array([], pa.binary())}), pa.table({"value": [b"a"]})
    with client.producer("later") as producer:
        assert producer.put_arrow(empty) == 0
        assert producer.send_arrow(empty) == []
        assert "later" not in client.list_topics()
        assert producer.put_arrow(full) == 1
        producer.flush()
    assert "later" in client.list_topics()


@pytest.mark.parametrize("rows", [0, 1, 40_000], ids=["none", "a few", "more than there is room for"])
def test_a_table_for_a_transaction_that_is_over_is_refused(client, rows):
    client.create_topic("t", 1)
    attempt = client.attempt("mine", client.register_owner("mine").epoch, 0)
    producer = attempt.producer("t")
    attempt.close()
    with pytest.raises(Closed):
        producer.put_arrow(pa.table({"value": [bytes(1_000)] * rows}, schema=pa.schema([("value", pa.binary())])))
    with pytest.raises(Closed):
        producer.put(b"nor this")


def test_many_threads_share_a_producer_and_each_keeps_its_order(client):
    client.create_topic("t", 2)
    with client.producer("t", buffer_bytes=200_000) as producer:

        def put(thread: int) -> None:
            for number in range(3000):
                producer.put(b"%d:%d" % (thread, number) + b"x" * 50, b"%d" % thread)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, range(4)))
    by_thread: dict[int, list[int]] = {}
    with client.consumer("t", None, batch_size=5000) as consumer:
        while messages := consumer.fetch():
            for message in messages:
                thread, number = message.value.rstrip(b"x").split(b":")
                by_thread.setdefault(int(thread), []).append(int(number))
    assert by_thread == {thread: list(range(3000)) for thread in range(4)}


def test_watched_records_hear_their_own_offset_though_other_threads_add_in_between(client):
    client.create_topic("t", 1)
    heard: dict[bytes, int] = {}
    with client.producer("t") as producer:

        def put(thread: int) -> None:
            for number in range(2000):
                value = b"%d:%d" % (thread, number)
                watch = number % 3 == thread
                producer.put(value, on_delivery=partial(note, value) if watch else None)

        def note(value: bytes, delivery: Delivery) -> None:
            heard[value] = delivery.offset

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(put, range(3)))
    found: dict[int, bytes | None] = {}
    with client.consumer("t", 0, batch_size=10_000) as consumer:
        while messages := consumer.fetch():
            found.update({message.offset: message.value for message in messages})
    assert len(found) == 6000
    assert len(heard) == 2000
    assert all(found[offset] == value for value, offset in heard.items())


def test_a_full_buffer_makes_put_wait_and_close_releases_it():
    # It has nobody to send to: nothing ever leaves.
    thread = loop_thread()

    async def make() -> Producer:
        return Producer(
            Cluster([], Options()), "t", Sending(buffer_bytes=1000, batch_bytes=100, delivery_timeout_ms=1000)
        )

    inner = thread.run(make())
    inner._outbox.place(1)
    inner._mend = lambda: None  # type: ignore[method-assign]
    producer = blocking.Producer(inner, thread)
    failed: list[Any] = []

    def put() -> None:
        try:
            for _ in range(100):
                producer.put(b"x" * 50)
        except Closed as error:
            failed.append(error)

    putting = threading.Thread(target=put)
    putting.start()
    putting.join(0.2)
    assert putting.is_alive()
    with pytest.raises(BufferFull):
        producer.put_nowait(b"x")
    with pytest.raises(rivven.TimeoutException):
        producer.close()
    putting.join(20)
    assert not putting.is_alive()
    assert failed
    with pytest.raises(Closed):
        producer.put(b"x")

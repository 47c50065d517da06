"""The blocking client: a node in a thread, and calls from plain threads, forks and subprocesses."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from serving import served

import rivven
from rivven import BufferFull, Closed, ConfigException, ConnectionException, Delivery, Options, blocking
from rivven.client.blocking import _loop_thread
from rivven.client.producer import Producer
from rivven.client.sending import Sending
from rivven.client.shell import Cluster
from rivven.record import partition_for_key


@pytest.fixture
def client(tmp_path):
    with served(tmp_path) as address, blocking.connect(address) as client:
        yield client


def test_everything_the_other_has_is_here_too():
    for name in ("RivvenClient", "Producer", "Consumer", "GroupConsumer"):
        there, here = getattr(rivven, name), getattr(blocking, name)
        public = {member for member in dir(there) if not member.startswith("_")}
        assert {member for member in public if not hasattr(here, member)} == set()
        for member in public:
            if inspect.isfunction(getattr(there, member)):
                ours = inspect.signature(getattr(here, member)).parameters
                assert list(ours) == list(inspect.signature(getattr(there, member)).parameters), member
                assert not inspect.iscoroutinefunction(getattr(here, member)), member
    assert list(inspect.signature(blocking.connect).parameters) == ["address", "options"]


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


def test_records_go_out_and_come_back(client):
    assert client.create_topic("t", 3) == 3
    heard: list[Delivery] = []
    with client.producer("t") as producer:
        assert producer.send(b"a", b"k", headers=(("h", b"1"),)) == 0
        assert producer.send_batch([(b"b", b"k"), (b"c", b"k")]) == [1, 2]
        assert producer.submit(b"d", b"k").result(20) == 3
        producer.put(b"e", b"k", on_delivery=heard.append)
        producer.put_nowait(b"f", b"k")
        producer.flush()
        assert heard[0].offset == 4
        assert producer.send_to_partition(b"x", 1) >= 0
        assert producer.topic == "t"
    home = partition_for_key(b"k", 3)
    with client.consumer("t", home, group="g", batch_size=4) as consumer:
        messages = consumer.fetch()
        assert [message.value for message in messages][:4] == [b"a", b"b", b"c", b"d"]
        assert messages[0].headers == (("h", b"1"),)
        assert [next(iter(consumer)).value, consumer.current_offset()] == [b"e", 5]
        consumer.seek(1)
        assert consumer.fetch(1)[0].value == b"b"
        consumer.commit()
    assert client.describe_group("g") == {"t": {home: 2}}
    client.ping()


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
    thread = _loop_thread()

    async def make() -> Producer:
        return Producer(
            Cluster([], Options()), "t", Sending(buffer_bytes=1000, batch_bytes=100, delivery_timeout_ms=50)
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


def test_nobody_there_is_told():
    with pytest.raises(ConnectionException):
        blocking.connect("127.0.0.1:1")


FORK = """
import os, sys
from rivven import blocking
client = blocking.connect(sys.argv[1])
child = os.fork()
if child == 0:
    with blocking.connect(sys.argv[1]) as other:
        os._exit(0 if other.list_topics() == ["t"] else 1)
_, status = os.waitpid(child, 0)
client.ping()
client.close()
sys.exit(status)
"""


def test_a_forked_child_has_a_loop_of_its_own(client):
    """As Spark's workers are made: by forks of a process that may have loaded the client, and used it."""
    client.create_topic("t", 1)
    address = str(client._inner._cluster._roster.addresses[0])
    subprocess.run([sys.executable, "-c", FORK, address], check=True, timeout=60)


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

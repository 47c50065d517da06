"""The blocking client: a node in a thread, and calls from plain threads and subprocesses."""

from __future__ import annotations

import inspect

import pytest

import rivven
from rivven import ConnectionException, Delivery, blocking
from rivven.record import partition_for_key


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


def test_nobody_there_is_told():
    with pytest.raises(ConnectionException):
        blocking.connect("127.0.0.1:1")

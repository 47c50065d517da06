"""Frames out of many connections' streams, which share one buffer and one pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.server.receive import BufferPool, Receiver
from rivven.wire import TRUSTED_BYTES


def frames(bodies: list[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def receive(receiver: Receiver, data: bytes) -> list[bytes]:
    """As a socket would: no more than there is room for, and used up before anybody else receives."""
    found: list[bytes] = []
    while data and receiver.oversized is None and not receiver.full:
        room = receiver.buffer()
        assert len(room) > 0
        count = min(len(room), len(data))
        room[:count] = data[:count]
        found += [bytes(body) for body, _ in receiver.received(count)]
        data = data[count:]
    return found


@given(
    st.lists(st.lists(st.binary(max_size=40) | st.integers(0, 3000).map(bytes), max_size=6), min_size=1, max_size=4),
    st.lists(st.integers(1, 90), min_size=1, max_size=30),
    st.integers(8, 64),
)
def test_frames_of_connections_that_take_turns_come_whole_and_in_order(connections, cuts, shared_bytes):
    shared, pool = memoryview(bytearray(shared_bytes)), BufferPool()
    receivers = [Receiver(shared, pool, 10_000) for _ in connections]
    streams = [frames(bodies) for bodies in connections]
    found: list[list[bytes]] = [[] for _ in connections]
    while any(streams):
        for cut in cuts:
            for place, receiver in enumerate(receivers):
                found[place] += receive(receiver, streams[place][:cut])
                streams[place] = streams[place][cut:]
    assert found == connections
    assert pool.receiving_bytes == 0


def test_a_length_above_the_limit_is_told_and_what_came_before_it_is_served():
    receiver = Receiver(memoryview(bytearray(64)), BufferPool(), 10)
    assert receive(receiver, frames([b"one"]) + (11).to_bytes(4, "big") + b"rest") == [b"one"]
    assert receiver.oversized == 11


def test_a_length_reserves_no_more_than_is_trusted_until_bytes_arrive():
    pool = BufferPool()
    receiver = Receiver(memoryview(bytearray(64)), pool, 1 << 30)
    receive(receiver, (1 << 29).to_bytes(4, "big") + b"x")
    assert pool.receiving_bytes == TRUSTED_BYTES
    receiver.release()
    assert pool.receiving_bytes == 0


def test_frames_that_have_begun_may_hold_so_much_together():
    pool = BufferPool(receiving_bytes_max=2000)
    shared = memoryview(bytearray(64))
    one, two = Receiver(shared, pool, 10_000), Receiver(shared, pool, 10_000)
    receive(one, (1500).to_bytes(4, "big"))
    receive(two, (1500).to_bytes(4, "big"))
    assert (one.full, two.full) == (False, True)


@pytest.mark.parametrize("watched", [True, False])
def test_a_buffer_is_lent_again_only_when_nobody_looks_into_it(watched):
    pool = BufferPool()
    buffer = pool.take(100)
    view = memoryview(buffer) if watched else None
    pool.give(buffer)
    assert (pool.take(100) is buffer) is not watched
    del view

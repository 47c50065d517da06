"""Frames come out of a stream whole, in order, uncopied, however it was cut; and no more is kept than may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.errors import Malformed
from rivven.wire import Format, Splitter, decode_request, decode_response, refuse, requests
from rivven.wire.frame import TRUSTED_BYTES, read_head


def frames(bodies: list[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def copied(bodies: list[memoryview]) -> list[bytes]:
    return [bytes(body) for body in bodies]


def receive(splitter: Splitter, data: bytes) -> list[memoryview]:
    """As a socket would: no more than there is room for."""
    bodies = []
    while data and splitter.oversized is None:
        room = splitter.buffer()
        assert len(room) > 0
        count = min(len(room), len(data))
        room[:count] = data[:count]
        room.release()
        bodies += splitter.received(count)
        data = data[count:]
    return bodies


@given(
    st.lists(st.binary(max_size=40) | st.integers(0, 300).map(bytes), max_size=12),
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.integers(8, 64),
)
def test_frames_come_whole_and_in_order_however_the_stream_is_cut(bodies, cuts, receive_bytes):
    stream, splitter, found = frames(bodies), Splitter(receive_bytes=receive_bytes), []
    while stream:
        for cut in cuts:
            found += copied(receive(splitter, stream[:cut]))
            stream = stream[cut:]
    assert found == bodies


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(8, 64))
def test_a_body_stays_as_it_is_for_as_long_as_it_is_held(bodies, receive_bytes):
    splitter, held = Splitter(receive_bytes=receive_bytes), []
    for byte in frames(bodies):
        held += receive(splitter, bytes([byte]))
    assert copied(held) == bodies


def test_feeding_is_the_same_as_receiving():
    stream = frames([b"one", bytes(100_000), b"", b"four"])
    assert (
        copied(Splitter().feed(stream))
        == copied(receive(Splitter(), stream))
        == [b"one", bytes(100_000), b"", b"four"]
    )


def test_the_receive_buffer_is_used_again_when_nobody_looks_into_it():
    splitter = Splitter()
    first = splitter.buffer().obj
    assert copied(splitter.feed(frames([b"one"]))) == [b"one"]
    assert splitter.buffer().obj is first


def test_the_receive_buffer_is_left_alone_while_somebody_looks_into_it():
    splitter = Splitter()
    (body,) = splitter.feed(frames([b"one"]))
    splitter.feed(frames([b"two"]))
    assert bytes(body) == b"one"
    assert splitter.buffer().obj is not body.obj


def test_frames_lie_in_the_receive_buffer_uncopied_and_can_be_patched():
    splitter = Splitter()
    room = splitter.buffer()
    buffer = room.obj
    room[:14] = frames([b"one", b"two"])
    room.release()
    one, two = splitter.received(14)
    assert one.obj is two.obj is buffer
    assert not one.readonly


def test_a_large_frame_is_received_into_a_buffer_of_its_own_size():
    splitter = Splitter()
    splitter.feed((200_000).to_bytes(4, "big") + b"begun")
    room = splitter.buffer()
    assert len(room) == 200_000 - 5
    room.release()
    (body,) = splitter.feed(bytes(200_000 - 5))
    assert body == b"begun" + bytes(200_000 - 5)
    assert copied(splitter.feed(frames([b"next"]))) == [b"next"]


def test_a_length_alone_reserves_little():
    splitter = Splitter()
    splitter.feed((10_000_000).to_bytes(4, "big"))
    assert len(splitter.buffer()) <= TRUSTED_BYTES
    (body,) = splitter.feed(bytes(10_000_000))
    assert len(body) == 10_000_000


def test_a_large_frame_grows_though_somebody_kept_a_view():
    splitter, data, kept, bodies = Splitter(), bytes(range(250)) * 20_000, [], []
    splitter.feed(len(data).to_bytes(4, "big"))
    at = 0
    while not bodies:
        room = splitter.buffer()
        kept.append(room)
        room[:] = data[at : at + len(room)]
        at += len(room)
        bodies = splitter.received(len(room))
    assert bodies == [data]


def test_a_frame_of_just_the_limit_is_taken():
    splitter = Splitter(frame_bytes_max=10)
    assert copied(splitter.feed(frames([bytes(10)]))) == [bytes(10)]
    assert splitter.oversized is None


def test_a_frame_above_the_limit_is_told_from_its_length_after_those_before_it():
    splitter = Splitter(frame_bytes_max=10)
    assert copied(splitter.feed(frames([b"good"]) + (11).to_bytes(4, "big"))) == [b"good"]
    assert splitter.oversized == 11


def test_nothing_is_read_after_a_frame_above_the_limit():
    splitter = Splitter(frame_bytes_max=10)
    splitter.feed(frames([bytes(11)]))
    assert splitter.feed(frames([b"late"])) == []
    with splitter.buffer() as room:
        room[:8] = frames([b"late"])
    assert splitter.received(8) == []


@given(st.binary(max_size=300))
def test_any_stream_gives_frames_or_an_oversized_one(data):
    splitter = Splitter(frame_bytes_max=100, receive_bytes=16)
    assert sum(len(body) + 4 for body in splitter.feed(data)) <= len(data)


# The head of a native frame


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x00\x00\x00"])
def test_a_body_without_a_head_is_refused_without_a_correlation_id(body):
    with pytest.raises(Malformed) as error:
        decode_request(body)
    words = "Serialization error: Wire data too short (need format byte + correlation_id)"
    assert error.value.facts["reason"] == words
    assert b"".join(refuse(error.value))[4:9] == bytes(5)


def test_a_head_is_the_format_and_the_correlation_id():
    assert read_head(bytes.fromhex("01 fffffffe")) == (Format.PROTOBUF, 2**32 - 2)


@pytest.mark.parametrize("form", Format)
def test_a_bad_payload_is_refused_in_its_own_format_with_its_own_correlation_id(form):
    with pytest.raises(Malformed) as error:
        decode_request(bytes([form]) + (77).to_bytes(4, "big") + b"\xff")
    assert b"".join(refuse(error.value))[4:9] == bytes([form]) + (77).to_bytes(4, "big")


@given(st.binary(max_size=60))
def test_any_body_is_a_call_or_malformed(body):
    try:
        answer = decode_request(body).request
    except Malformed as error:
        answer = decode_response(b"".join(refuse(error))[4:]).response
    assert isinstance(answer, requests.Request) or answer.message.startswith("INVALID_REQUEST: ")


def test_large_buffers_are_used_again_once_nobody_looks_into_them():
    size = 3 * TRUSTED_BYTES
    splitter = Splitter(trusted_bytes=2 * size, spare_bytes_max=4 * size)
    stream = [frames([bytes([number]) * (size - number)]) for number in range(6)]
    (first,) = receive(splitter, stream[0])
    (second,) = receive(splitter, stream[1])
    assert bytes(first) == bytes(size)
    assert first.obj is not second.obj, "the first is still looked at"
    owner = first.obj
    assert isinstance(owner, bytearray)
    first.release()
    (third,) = receive(splitter, stream[2])
    assert third.obj is owner
    assert (len(third), bytes(third)) == (size - 2, bytes([2]) * (size - 2)), "and nothing of what was there before"
    assert bytes(second) == bytes([1]) * (size - 1)


def test_no_more_is_kept_than_was_allowed():
    size = 2 * TRUSTED_BYTES
    splitter = Splitter(trusted_bytes=size, spare_bytes_max=2 * size)
    held = [receive(splitter, frames([bytes([number]) * size]))[0] for number in range(5)]
    assert [bytes(body[:1]) for body in held] == [bytes([number]) for number in range(5)]
    owners = {id(body.obj) for body in held}
    for body in held:
        body.release()
    seen = {id(receive(splitter, frames([bytes(size)]))[0].obj) for _ in range(5)}
    assert len(seen & owners) <= 2


def test_a_length_that_is_not_trusted_reserves_little_with_spares_too():
    splitter = Splitter(frame_bytes_max=2**31, trusted_bytes=TRUSTED_BYTES, spare_bytes_max=8 * TRUSTED_BYTES)
    assert splitter.feed((2**31).to_bytes(4, "big") + bytes(100)) == []
    assert len(splitter.buffer()) <= TRUSTED_BYTES

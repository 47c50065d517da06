"""Messages in frames: limits of both sides, batches that are never copied, capabilities that nobody has to know."""

from __future__ import annotations

import subprocess
import sys

import pytest
import samples

from rivven.errors import Malformed
from rivven.wire import (
    CAPABILITIES,
    REPLY_BYTES_MAX,
    Answer,
    Capability,
    Format,
    Splitter,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    fitting,
    greet,
    refuse_oversized,
    requests,
    responses,
)

MIB = 1024 * 1024


def fetched(*batches) -> responses.FetchedBatches:
    partitions = tuple(
        responses.PartitionFetched(place, 0, None, 9, 9, 0, (), piece) for place, piece in enumerate(batches)
    )
    return responses.FetchedBatches((responses.TopicFetched("t", partitions),))


def batches_of(body: bytes) -> list[bytes]:
    response = decode_response(body).response
    assert isinstance(response, responses.FetchedBatches)
    return [bytes(entry.batches) for entry in response.topics[0].partitions]


# Opaque batches


def test_large_batches_are_handed_on_as_the_very_buffers_they_came_in():
    pieces = [memoryview(bytearray(b"a" * 5000)), b"b" * 600, bytearray(b"c" * 70_000)]
    frame = encode_response(fetched(*pieces), 7)
    assert [part for part in frame if any(part is piece for piece in pieces)] == pieces
    joined = b"".join(frame)
    assert len(joined) == 4 + int.from_bytes(joined[:4], "big")
    assert batches_of(joined[4:]) == [bytes(piece) for piece in pieces]


def test_batches_in_several_pieces_arrive_as_one():
    frame = encode_response(fetched((b"a" * 1000, memoryview(b"b" * 1000)), (b"c", b"d"), ()), 7)
    assert batches_of(b"".join(frame)[4:]) == [b"a" * 1000 + b"b" * 1000, b"cd", b""]


def test_small_batches_go_with_the_bytes_around_them():
    assert len(encode_response(fetched(b"a" * 512, b"b"), 7)) == 1


def test_small_batches_that_came_in_do_not_change_with_the_buffer_they_came_in():
    batches = requests.PartitionBatches(0, bytes(100))
    request = requests.ProduceBatches(-1, 1000, (requests.TopicBatches("t", (batches,)),))
    body = bytearray(b"".join(encode_request(request, 7)))[4:]
    received = decode_request(memoryview(body)).request.topics[0].partitions[0].batches
    body[:] = b"\xff" * len(body)  # the next client's bytes
    assert received == bytes(100)
    received[0] = 1  # and they can be patched


def test_large_batches_that_came_in_are_views_into_the_frame_that_can_be_patched():
    batches = requests.PartitionBatches(0, bytes(5000))
    request = requests.ProduceBatches(-1, 1000, (requests.TopicBatches("t", (batches,)),))
    (body,) = Splitter().feed(b"".join(encode_request(request, 7)))
    received = decode_request(body).request.topics[0].partitions[0].batches
    received[0] = 0xFF
    assert body[-5001:-1] == b"\xff" + bytes(4999)  # the last byte says that there is no transaction


def test_a_large_publish_is_read_from_a_view_alike():
    request = requests.Publish("t", 1, b"k", bytes(range(256)) * 100)
    body = memoryview(bytearray(b"".join(encode_request(request, 7))))[4:]
    assert decode_request(body).request == request
    assert type(decode_request(body).request.value) is bytes


# Limits


def test_a_reply_that_no_client_would_take_becomes_an_error():
    reply = responses.Messages((responses.MessageData(0, 0, None, bytes(5 * MIB), 0),) * 2)
    (frame,) = encode_response(reply, 7)
    error = responses.Error("INTERNAL_ERROR: response send failed")
    assert decode_response(frame[4:]) == Answer(Format.POSTCARD, 7, error)


def test_fetched_batches_may_be_larger_than_other_replies():
    body = b"".join(encode_response(fetched(bytes(20 * MIB)), 7))[4:]
    assert batches_of(body) == [bytes(20 * MIB)]


def test_a_request_above_the_limit_is_not_sent():
    with pytest.raises(Malformed, match="10485760"):
        encode_request(requests.Publish("t", None, None, bytes(10 * MIB)), 0)


def test_a_request_of_just_the_limit_is_sent():
    around = len(encode_request(requests.Publish("t", None, None, bytes(9 * MIB)), 0)[0]) - 9 * MIB - 4
    frame = encode_request(requests.Publish("t", None, None, bytes(10 * MIB - around)), 0)
    assert len(frame[0]) == 10 * MIB + 4


@pytest.mark.parametrize("form", Format)
@pytest.mark.parametrize("value_bytes", [0, 100, 1000, 200_000])
def test_messages_that_were_made_to_fit_do(form, value_bytes):
    header = responses.MessageHeader("größe", b"12345")
    each = responses.MessageData(2**64 - 1, 2**32 - 1, b"key", bytes(value_bytes), -(2**63), (header,))
    count = 3 * MIB // (value_bytes + 20)
    fit = fitting(responses.Messages((each,) * count), bytes_max=MIB)
    assert 0 < len(fit.messages) < count
    (frame,) = encode_response(fit, 7, form)
    assert len(frame) <= MIB


def test_a_message_that_fits_no_reply_is_sent_by_itself():
    large = responses.MessageData(0, 0, None, bytes(10 * MIB), 0)
    fit = fitting(responses.Messages((large, large)))
    assert fit == responses.Messages((large,))
    assert decode_response(encode_response(fit, 7)[0][4:]).response == fit


def test_messages_that_fit_are_left_alone():
    reply = samples.RESPONSES["Messages"]
    assert fitting(reply, bytes_max=REPLY_BYTES_MAX) is reply


# The handshake


def test_an_older_server_reads_our_handshake_as_one_of_its_own():
    plain, ours = (b"".join(encode_request(requests.Handshake(2, "c", bits), 0))[9:] for bits in (0, CAPABILITIES))
    assert ours == plain + bytes([CAPABILITIES])  # and what follows a message is ignored


def test_an_older_client_sees_the_handshake_result_that_it_knows():
    (frame,) = encode_response(responses.HandshakeResult(2, True, "OK"), 0)
    assert frame[9:].hex() == "230201024f4b"


@pytest.mark.parametrize("form", Format)
def test_capabilities_come_back_in_either_format(form):
    body = b"".join(encode_request(requests.Handshake(2, "c", CAPABILITIES), 0, form))[4:]
    assert Capability(decode_request(body).request.capabilities) == CAPABILITIES
    body = b"".join(encode_response(responses.HandshakeResult(2, True, "OK", Capability.BATCHES), 0, form))[4:]
    assert Capability(decode_response(body).response.capabilities) is Capability.BATCHES


def test_a_server_greets_with_what_both_know():
    assert greet(requests.Handshake(2, "c")) == responses.HandshakeResult(2, True, "OK")
    assert greet(requests.Handshake(2, "c", 2**40 | Capability.BATCHES)).capabilities == Capability.BATCHES
    assert greet(requests.Handshake(1, "c")) == responses.HandshakeResult(
        2, False, "Version mismatch: client=1, server=2"
    )


def test_a_capability_of_the_future_is_carried_and_harmless():
    body = b"".join(encode_request(requests.Handshake(2, "c", 2**63), 0))[4:]
    assert decode_request(body).request.capabilities & CAPABILITIES == 0


# Without the protobuf run-time


def test_a_protobuf_frame_is_refused_in_postcard_where_the_run_time_is_missing():
    code = """
import sys
sys.modules["google.protobuf"] = None
from rivven.errors import Malformed
from rivven.wire import decode_request, refuse
try:
    decode_request(bytes.fromhex("01000000070a020802f20100"))
except Malformed as error:
    sys.stdout.buffer.write(b"".join(refuse(error)))
"""
    reply = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout
    words = "INVALID_REQUEST: Serialization error: Protobuf support requires the 'protobuf' feature"
    assert decode_response(reply[4:]) == Answer(Format.POSTCARD, 7, responses.Error(words))


# A conversation


def test_a_pipelined_conversation_is_answered_call_by_call():
    server, client = Splitter(), Splitter()
    asked = [requests.Handshake(2, "c"), requests.Publish("t", None, None, b"v"), requests.Ping()]
    stream = b"".join(b"".join(encode_request(request, place)) for place, request in enumerate(asked))
    replies = [responses.HandshakeResult(2, True, "OK"), responses.Published(0, 1), responses.Pong()]
    calls = [decode_request(body) for body in server.feed(stream)]
    assert [call.request for call in calls] == asked
    stream = b"".join(
        b"".join(encode_response(reply, call.correlation_id, call.format))
        for call, reply in zip(calls, replies, strict=True)
    )
    answers = [decode_response(body) for body in client.feed(stream)]
    assert [(answer.correlation_id, answer.response) for answer in answers] == list(enumerate(replies))


def test_a_connection_that_asks_too_much_is_told_so():
    splitter = Splitter()
    assert splitter.feed(b"GET / HTTP/1.1\r\n") == []
    (frame,) = refuse_oversized(splitter.oversized)
    assert decode_response(frame[4:]).response.message.startswith("MESSAGE_TOO_LARGE: 1195725856 bytes")

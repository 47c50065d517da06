"""Bytes that were promised: each vector reads as its message, and the message writes as the vector."""

from __future__ import annotations

import pytest
import samples

from rivven.errors import Malformed
from rivven.wire import (
    Answer,
    Call,
    Format,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    refuse,
    refuse_oversized,
    requests,
    responses,
)
from rivven.wire.native import _REQUESTS, _RESPONSES, _protobuf

POSTCARD = [
    ("requests.txt", samples.REQUESTS, _REQUESTS),
    ("responses.txt", samples.RESPONSES, _RESPONSES),
    ("batches.txt", samples.OUR_REQUESTS, _REQUESTS),
    ("batches.txt", samples.OUR_RESPONSES, _RESPONSES),
]
EACH = [
    pytest.param(samples.load(file)[name], message, codec, id=name)
    for file, messages, codec in POSTCARD
    for name, message in messages.items()
]


@pytest.mark.parametrize(("vector", "message", "codec"), EACH)
def test_a_vector_reads_as_its_message(vector, message, codec):
    assert codec.decode(vector) == message
    assert type(codec.decode(vector)) is type(message)


@pytest.mark.parametrize(("vector", "message", "codec"), EACH)
def test_a_message_writes_as_its_vector(vector, message, codec):
    assert codec.encode(message, bytearray(), []).hex() == vector.hex()


@pytest.mark.parametrize(("vector", "message", "codec"), EACH)
def test_a_vector_reads_alike_from_bytes_a_bytearray_and_a_view(vector, message, codec):
    assert codec.decode(bytearray(vector)) == codec.decode(memoryview(vector)) == message


@pytest.mark.parametrize(("vector", "message", "codec"), EACH)
def test_a_vector_may_be_followed_by_anything(vector, message, codec):
    # Where capabilities would stand, an over-long number is none
    assert codec.decode(vector + b"\xff" * 11) == message


def test_every_message_has_a_vector():
    named = {name.split("/")[0] for messages in (samples.REQUESTS, samples.OUR_REQUESTS) for name in messages}
    assert named == {kind.__name__ for kind in requests.REQUESTS}
    named = {name.split("/")[0] for messages in (samples.RESPONSES, samples.OUR_RESPONSES) for name in messages}
    assert named == {kind.__name__ for kind in responses.RESPONSES}


def test_every_vector_has_a_message():
    assert samples.load("requests.txt").keys() == samples.REQUESTS.keys()
    assert samples.load("responses.txt").keys() == samples.RESPONSES.keys()
    assert samples.load("batches.txt").keys() == samples.OUR_REQUESTS.keys() | samples.OUR_RESPONSES.keys()


def test_there_are_forty_requests_and_forty_two_responses_and_ours_come_after_them():
    assert [kind.__name__ for kind in requests.REQUESTS[40:]] == [
        "ProduceBatches",
        "FetchBatches",
        "PublishRecords",
        "GetMetrics",
        "RegisterOwner",
        "BeginOwnedTransaction",
        "Decide",
        "ForgetOwner",
        "FindBatches",
    ]
    assert [kind.__name__ for kind in responses.RESPONSES[42:]] == [
        "ProducedBatches",
        "FetchedBatches",
        "Metrics",
        "OwnerRegistered",
        "Decided",
        "FoundBatches",
    ]


@pytest.mark.parametrize("name", samples.PROTOBUF_REQUESTS)
def test_a_protobuf_request_reads_and_writes_as_its_vector(name):
    vector, request = samples.load("protobuf_requests.txt")[name], samples.PROTOBUF_REQUESTS[name]
    assert _protobuf().decode_request(vector) == request
    assert _protobuf().encode_request(request).hex() == vector.hex()


@pytest.mark.parametrize("name", samples.PROTOBUF_RESPONSES)
def test_a_protobuf_response_reads_and_writes_as_its_vector(name):
    vector, response = samples.load("protobuf_responses.txt")[name], samples.PROTOBUF_RESPONSES[name]
    assert _protobuf().decode_response(vector) == response
    assert _protobuf().encode_response(response).hex() == vector.hex()


# Whole frames

FRAMES = samples.load("frames.txt")


@pytest.mark.parametrize(("name", "form"), [("ping", Format.POSTCARD), ("ping in protobuf", Format.PROTOBUF)])
def test_a_frame_holds_its_length_format_correlation_id_and_payload(name, form):
    frame = FRAMES[name]
    assert b"".join(encode_request(requests.Ping(), 1, form)) == frame
    assert decode_request(frame[4:]) == Call(form, 1, requests.Ping())


def test_a_response_comes_back_as_it_was_sent():
    (frame,) = encode_response(responses.Pong(), 2**32 - 1)
    assert decode_response(frame[4:]) == Answer(Format.POSTCARD, 2**32 - 1, responses.Pong())


def test_a_frame_above_the_limit_is_refused_with_its_length():
    assert b"".join(refuse_oversized(10_485_761)) == FRAMES["too large"]


def test_a_refusal_names_the_frame_that_it_is_about():
    with pytest.raises(Malformed) as error:
        decode_request(bytes.fromhex("02 00000007 0d"))
    assert b"".join(refuse(error.value)) == FRAMES["unknown format"]


def test_the_frame_of_a_pipelined_client_of_old_reads_as_a_login_of_nobody():
    # It puts a request id of eight bytes in front, which nobody serves on this port
    frame = (1).to_bytes(8, "big") + bytes.fromhex("00 00000000 0d")
    call = decode_request(frame)
    assert call.request == requests.Authenticate("", "\0", False)

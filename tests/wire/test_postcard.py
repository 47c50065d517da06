"""Postcard: whatever is written reads back, whatever is garbage is Malformed in the protocol's own words."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import pytest
import samples
import second_reader
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import any_message, any_request, any_response

from rivven.errors import Malformed
from rivven.wire import decode_request, encode_request, requests, responses
from rivven.wire.native import _REQUESTS, _RESPONSES
from rivven.wire.postcard import put, rest_of
from rivven.wire.requests import REQUESTS
from rivven.wire.responses import RESPONSES
from rivven.wire.schema import Message, shape
from rivven.wire.straight import source

SHORT = "Hit the end of buffer, expected more data"
VARINT = "Found a varint that didn't terminate. Is the usize too big for this platform?"


def written(message: Message) -> bytes:
    codec = _REQUESTS if isinstance(message, requests.Request) else _RESPONSES
    parts: list = []
    out = codec.encode(message, bytearray(), parts)
    return b"".join([*parts, out])


def reason(payload: bytes) -> str:
    with pytest.raises(Malformed) as error:
        _REQUESTS.decode(payload)
    return error.value.facts["reason"]


# Numbers


@pytest.mark.parametrize(
    ("number", "octets"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (5000, "8827"), (60000, "e0d403"), (2**21, "80808001")],
)
def test_a_number_takes_seven_bits_to_a_byte(number, octets):
    out = bytearray()
    put(out, number, 2**64 - 1, "n")
    assert out.hex() == octets


@pytest.mark.parametrize(
    ("number", "octets"),
    [
        (1, "02"),
        (-1, "01"),
        (64, "8001"),
        (27, "36"),
        (1_700_000_000_000, "80a0abfef962"),
        (-(2**63), "ff" * 9 + "01"),
    ],
)
def test_a_signed_number_zig_zags(number, octets):
    assert written(requests.GetOffsetForTimestamp("", 0, number)).hex() == f"120000{octets}"


@given(st.sampled_from([16, 32, 64]), st.data())
def test_every_number_of_a_width_comes_back(bits, data):
    number = data.draw(st.integers(128, 2**bits - 1))
    out = bytearray()
    put(out, number, 2**bits - 1, "n")
    assert rest_of(out, 1, out[0], 2**bits - 1) == (number, len(out))


@pytest.mark.parametrize(
    ("bits", "octets", "number"),
    [
        (16, "8000", 0),
        (16, "ff8000", 127),
        (32, "8080808000", 0),
        (16, "ffff03", 2**16 - 1),
        (32, "ffffffff0f", 2**32 - 1),
        (64, "ff" * 9 + "01", 2**64 - 1),
    ],
)
def test_a_number_may_be_longer_than_it_needs_but_not_than_its_width(bits, octets, number):
    data = bytes.fromhex(octets)
    assert rest_of(data, 1, data[0], 2**bits - 1) == (number, len(data))


@pytest.mark.parametrize(
    ("bits", "octets"),
    [
        (16, "ffff04"),
        (16, "80808000"),
        (32, "ffffffff10"),
        (32, "808080808000"),
        (64, "ff" * 9 + "02"),
        (64, "80" * 10 + "00"),
    ],
)
def test_a_number_beyond_its_width_is_malformed(bits, octets):
    data = bytes.fromhex(octets)
    with pytest.raises(Malformed, match="varint"):
        rest_of(data, 1, data[0], 2**bits - 1)


@pytest.mark.parametrize(
    "message",
    [
        requests.Publish("t", 2**32, None, b""),
        requests.Publish("t", -1, None, b""),
        requests.GetOffsetForTimestamp("t", 0, 2**63),
        requests.IdempotentPublish("t", 0, None, b"", 1, 2**16, 0),
        requests.Consume("t", 0, 0, 1, 256),
        requests.Consume("t", 0, 0, 1, -1),
        requests.DeleteTopic("\ud800"),
    ],
)
def test_what_the_wire_cannot_say_is_not_written(message):
    with pytest.raises(Malformed):
        encode_request(message, 0)


# Any message


@given(any_request)
@example(samples.OUR_REQUESTS["PublishRecords"])
def test_every_request_comes_back(request):
    assert _REQUESTS.decode(written(request)) == request


@given(any_response)
def test_every_response_comes_back(response):
    assert _RESPONSES.decode(written(response)) == response


def plain(value):
    """A message as the second reader gives it."""
    if isinstance(value, Message):
        return tuple(plain(getattr(value, field)) for field in value.__struct_fields__)
    return [plain(entry) for entry in value] if isinstance(value, tuple) else value


@given(any_message(tuple(REQUESTS[kind] for kind in second_reader.KNOWN)))
def test_a_second_reader_reads_the_same(request):
    name, *fields = second_reader.request(written(request))
    assert (name, tuple(fields)) == (type(request).__name__, plain(request))


@pytest.mark.parametrize("kind", [*REQUESTS, *RESPONSES], ids=lambda kind: kind.__name__)
def test_the_code_for_a_message_can_be_read(kind):
    assert source(shape(kind)).startswith("def read(data, pos, end):")


# Garbage


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        ("", SHORT),
        ("0402", SHORT),
        ("04017400", SHORT),
        ("04ffffffffffffffffff01", SHORT),
        ("31", "Serde Deserialization Error"),
        ("ffffffff0f", "Serde Deserialization Error"),
        ("ffffffff1f", VARINT),
        ("00000002", "Found a bool that wasn't 0 or 1"),
        ("04017402", "Found an Option discriminant that wasn't 0 or 1"),
        ("0401740180808080800000", VARINT),
        ("0802fffe", "Tried to parse invalid utf-8"),
        ("0803eda080", "Tried to parse invalid utf-8"),
        ("0cffffffff0f", SHORT),
    ],
)
def test_garbage_is_refused_in_these_words(octets, why):
    assert reason(bytes.fromhex(octets)) == f"Serialization error: {why}"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_malformed(data):
    for codec in (_REQUESTS, _RESPONSES):
        with suppress(Malformed):
            codec.decode(data)


@given(any_request | any_response, st.data())
def test_a_damaged_message_is_another_one_or_malformed(message, data):
    octets = bytearray(written(message))
    codec = _REQUESTS if isinstance(message, requests.Request) else _RESPONSES
    for _ in range(data.draw(st.integers(1, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Malformed):
        codec.decode(bytes(octets))


@given(any_request, st.data())
def test_a_message_that_ends_early_is_malformed(request, data):
    octets = written(request)
    cut = data.draw(st.integers(0, len(octets) - 1))
    if type(request) is requests.Handshake and cut >= len(written(requests.Handshake(*plain(request)[:2]))):
        return  # only the capabilities are missing, as from an older client
    with pytest.raises(Malformed, match=SHORT):
        _REQUESTS.decode(octets[:cut])


FULL = 10 * 1024 * 1024


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0c" + b"\xff\xff\xff\xff\x0f" + bytes(100),  # a count that no bytes stand behind
        b"\x0c" + b"\x80\x80\x80\x04" + bytes(FULL),  # eight million empty names
        b"\x23\x01g\x01\x01m\x01\x01m" + b"\x80\x80\x80\x02" + bytes(FULL),  # four million empty topics
        b"\x26\x01t\x00" + b"\x80\x80\x80\x02" + bytes(FULL),  # four million empty records
        b"\x28\x00\x00\x01\x01t" + b"\x80\x80\x80\x02" + bytes(FULL),  # as many partitions
    ],
)
def test_no_frame_takes_more_memory_than_its_bytes_justify(payload):
    body = bytes(5) + payload
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            decode_request(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 * 1024


# Limits


@pytest.mark.parametrize(("request_", "why"), samples.TOO_LONG, ids=lambda value: value if type(value) is str else "")
def test_what_is_too_long_is_refused_in_these_words(request_, why):
    assert reason(written(request_)) == f"Invalid message format: {why}"


@pytest.mark.parametrize(
    "request_",
    [
        requests.Publish("n" * 256, None, None, bytes(100_000)),
        requests.Authenticate("n" * 256, "p" * 65_536, True),
        requests.GetClusterMetadata(("t",) * 10_000),
        requests.GetOffsetBounds("n" * 1000, 0),
        requests.AddOffsetsToTxn("x", 0, 0, "g" * 1000, (requests.TxnOffset("n" * 1000, 0, 0),)),
        requests.DescribeQuotas((requests.QuotaEntity("n" * 1000, "n" * 1000),)),
        requests.AlterTopicConfig("t", (requests.TopicConfigEntry("n" * 1000, "n" * 1000),)),
    ],
    ids=lambda request: type(request).__name__,
)
def test_what_is_just_long_enough_or_has_no_limit_is_read(request_):
    assert _REQUESTS.decode(written(request_)) == request_


def test_a_client_takes_no_more_messages_than_one_reply_may_hold():
    octets = written(responses.Messages((responses.MessageData(0, 0, None, b"", 0),) * 100_001))
    with pytest.raises(Malformed) as error:
        _RESPONSES.decode(octets)
    assert error.value.facts["reason"] == "Invalid message format: messages list exceeds max length (100001 > 100000)"

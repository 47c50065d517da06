"""Every message of every version comes back as it went, and nothing but `Malformed` comes of anything else."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_messages import SIDES, Side, message, messages

from rivven.broker.kafka.opening import versions
from rivven.errors import Malformed
from rivven.wire import kafka
from rivven.wire.kafka import APIS, SERVED, decode_request, decode_response, encode_request, encode_response
from rivven.wire.kafka.codec import codec_of

EACH_SIDE = pytest.mark.parametrize("side", SIDES, ids=str)
made = kafka.made


def frame(side: Side, value, version: int) -> bytes:
    parts = (
        encode_request(value, version, 7, "me")
        if side.kind == "request"
        else encode_response(value, side.api.key, version, 7)
    )
    whole = b"".join(parts)
    assert struct.unpack(">i", whole[:4])[0] == len(whole) - 4
    return whole[4:]


def read(side: Side, body, version: int):
    if side.kind == "request":
        call = decode_request(body, apis=APIS)
        assert (call.api_key, call.version, call.correlation_id) == (side.api.key, version, 7)
        return call.request
    correlation_id, response = decode_response(body, side.api.key, version)
    assert correlation_id == 7
    return response


@EACH_SIDE
@settings(max_examples=8)
@given(data=st.data())
def test_a_message_comes_back_as_it_went_in_every_version(side, data):
    drawn = data.draw(messages(side))
    for version in side.versions:
        value = message(side, drawn, version)
        body = frame(side, value, version)
        assert read(side, body, version) == value
        assert read(side, memoryview(bytearray(body)), version) == value
        assert read(side, body + b"garbage behind it", version) == value


@EACH_SIDE
@settings(max_examples=3)
@given(data=st.data())
def test_a_frame_that_is_cut_anywhere_is_malformed(side, data):
    version = data.draw(st.sampled_from(side.versions))
    body = frame(side, message(side, data.draw(messages(side)), version), version)
    cuts = {0, 1, 7, 9, len(body) - 1} | set(range(0, len(body), 1 + len(body) // 40))
    for cut in sorted(one for one in cuts if one < len(body)):
        with pytest.raises(Malformed):
            read(side, body[:cut], version)


WRONG = [b"", b"\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff\x0f", b"\xff" * 6]


@EACH_SIDE
@settings(max_examples=4)
@given(data=st.data())
def test_a_frame_with_wrong_bytes_is_read_or_malformed_and_nothing_else(side, data):
    drawn, rng = data.draw(messages(side)), Random(data.draw(st.integers(0, 2**32)))
    for version in side.versions:
        body = frame(side, message(side, drawn, version), version)[:4000]
        for _ in range(15):
            wrong = bytearray(body)
            at = rng.randrange(4 if side.kind == "response" else 10, max(11, len(body)))
            wrong[at : at + rng.randrange(5)] = rng.choice(WRONG) or rng.randbytes(3)
            with suppress(Malformed):
                read(side, wrong, version)


@EACH_SIDE
def test_no_count_makes_more_than_the_frame_could_hold(side):
    codec_of(side.api.key)  # to load it is not to read
    tracemalloc.start()
    try:
        for version in side.versions:
            head = struct.pack(">hhih", side.api.key, version, 7, -1) if side.kind == "request" else b"\0\0\0\7"
            for lie in (b"\x7f", b"\xff\xff\xff\xff\x07", b"\0\x7f\xff\xff", b"\0", b"\xff", b"\1", b"\0\0\0\1"):
                for body in (head + lie * 40, head + b"\0" + lie * 40):
                    with suppress(Malformed):
                        read(side, body, version)
        assert tracemalloc.get_traced_memory()[1] < 2**20  # 200 bytes never become a megabyte
    finally:
        tracemalloc.stop()


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_garbage_is_malformed_with_facts_or_a_request(body):
    malformed = None
    try:
        assert decode_request(body).api_key in SERVED
    except Malformed as error:
        malformed = error
    assert malformed is None or {"api_key", "version", "correlation_id"} <= malformed.facts.keys()


# Headers


def test_a_header_without_tags_and_one_with_them_are_both_read():
    old = decode_request(bytes.fromhex("0003 0001 00000005 0002 6d65 ffffffff"))
    assert (old.client_id, old.request) == ("me", made.metadata.MetadataRequest(None))
    flexible = decode_request(bytes.fromhex("0003 000c 00000005 0002 6d65 00 00 01 00 00"))
    assert (flexible.client_id, flexible.request.topics) == ("me", None)


def test_unknown_tags_are_passed_over_in_the_header_and_in_the_body():
    plain = decode_request(bytes.fromhex("000c 0004 00000005 ffff 00 02 67 00000001 02 6d 00 00"))
    tagged = decode_request(
        bytes.fromhex("000c 0004 00000005 ffff 01 05 03 aabbcc 02 67 00000001 02 6d 00 02 07 00 8101 01 ff")
    )
    assert plain.request == tagged.request == made.heartbeat.HeartbeatRequest("g", 1, "m", None)


def test_a_client_without_a_name_has_none():
    assert decode_request(bytes.fromhex("0012 0000 00000005 ffff")).client_id is None


def test_a_client_name_that_is_no_utf8_is_read_all_the_same():
    assert decode_request(bytes.fromhex("0012 0000 00000005 0002 61ff")).client_id == "a\ufffd"


def test_the_answer_to_api_versions_has_a_header_without_tags_in_every_version():
    for version in range(5):
        frame = b"".join(encode_response(made.api_versions.ApiVersionsResponse(35), 18, version, 9))
        assert frame[4:10] == bytes.fromhex("00000009 0023")
    other = b"".join(encode_response(made.heartbeat.HeartbeatResponse(), 12, 4, 9))
    assert other[4:] == bytes.fromhex("00000009 00 00000000 0000 00")


# What is refused, and how


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ("0012 0009 00000005 ffff", (18, 9, 5)),  # ApiVersions of the future: answered with version 0 and error 35
        ("0000 0002 00000005 ffff", (0, 2, 5)),  # Produce 2 is advertised, and refused
        ("0018 0000 00000005 ffff", (24, 0, 5)),  # transactions are not served yet
        ("03e7 0000 00000005 ffff", (999, 0, 5)),
        ("fffe ffff ffffffff ffff", (-2, -1, -1)),
        ("0012 0003 00000005", (18, 3, 5)),
        ("0012 0003 0000", (18, 3, None)),
        ("0012 00", (18, None, None)),
        ("", (None, None, None)),
    ],
)
def test_a_refusal_tells_as_much_of_the_header_as_there_was(body, facts):
    with pytest.raises(Malformed) as refused:
        decode_request(bytes.fromhex(body))
    told = refused.value.facts
    assert (told["api_key"], told["version"], told["correlation_id"]) == facts


def test_api_versions_of_the_future_is_answered_in_version_0_with_what_there_is():
    with pytest.raises(Malformed) as refused:
        decode_request(bytes.fromhex("0012 0009 00000005 ffff 00"))
    assert kafka.asks_for_versions(refused.value)
    frame = b"".join(encode_response(versions(kafka.Error.UNSUPPORTED_VERSION), 18, 0, 5))
    correlation_id, response = decode_response(frame[4:], 18, 0)
    assert (correlation_id, response.error_code) == (5, 35)
    offered = {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}
    assert offered == {key: api.advertised for key, api in SERVED.items()}
    assert offered[0] == (0, 13)


@pytest.mark.parametrize(
    "body", ["", "0012 0009", "0000 0002 00000005 ffff", "0012 0003 00000005 ffff", "03e7 0000 00000005"]
)
def test_any_other_refusal_has_no_answer(body):
    with pytest.raises(Malformed) as refused:
        decode_request(bytes.fromhex(body))
    assert not kafka.asks_for_versions(refused.value)


def test_what_is_not_served_can_be_read_by_whoever_asks_for_it():
    assert decode_request(bytes.fromhex("0011 0000 00000005 ffff 0005 504c41494e"), apis=APIS)
    assert 17 not in SERVED


def test_a_string_that_is_no_utf8_is_malformed():
    with pytest.raises(Malformed, match="UTF-8"):
        decode_request(bytes.fromhex("000a 0000 00000005 ffff 0001 ff"))


def test_null_where_there_is_none_is_malformed():
    with pytest.raises(Malformed, match="key is null"):
        decode_request(bytes.fromhex("000a 0000 00000005 ffff ffff"))
    with pytest.raises(Malformed, match="topics is null"):
        decode_request(bytes.fromhex("0003 0000 00000005 ffff ffffffff"))


def test_a_tagged_field_that_lies_about_its_length_is_malformed():
    fetch = "0001 000c 00000005 ffff 00 ffffffff 00000000 00000000 00000000 00 00000000 ffffffff 01 01 01"
    good = decode_request(bytes.fromhex(f"{fetch} 01 00 02 02 63"))
    assert good.request.cluster_id == "c"
    with pytest.raises(Malformed, match="cluster_id"):
        decode_request(bytes.fromhex(f"{fetch} 01 00 03 02 63 00"))


@pytest.mark.parametrize(
    ("value", "version", "reason"),
    [
        (made.heartbeat.HeartbeatRequest("g", 2**31, "m"), 0, "format"),
        (made.heartbeat.HeartbeatRequest("g" * 40_000, 1, "m"), 0, "format"),
        (made.heartbeat.HeartbeatRequest("g" * 40_000, 1, "m"), 4, "string of 40000 bytes"),
        (made.metadata.MetadataRequest(None), 0, "topics is null"),
        (made.metadata.MetadataRequest([made.metadata.MetadataRequestTopic(b"short")]), 12, "an id of 5 bytes"),
    ],
)
def test_what_a_version_cannot_say_is_not_written(value, version, reason):
    with pytest.raises(Malformed, match=reason):
        encode_request(value, version, 1, None)


# Records


def test_records_are_views_into_the_frame_and_pieces_of_the_answer():
    request = made.produce.ProduceRequest(
        None,
        -1,
        1000,
        [made.produce.TopicProduceData("t", partition_data=[made.produce.PartitionProduceData(0, b"r" * 9)])],
    )
    body = bytearray(b"".join(encode_request(request, 9, 1, None))[4:])
    read = decode_request(body).request.topic_data[0].partition_data[0].records
    assert isinstance(read, memoryview)
    body[body.index(b"r")] = ord("R")
    assert bytes(read) == b"Rrrrrrrrr"

    records = memoryview(b"z" * 100)
    data = made.fetch.PartitionData(3, high_watermark=8, records=records)
    response = made.fetch.FetchResponse(responses=[made.fetch.FetchableTopicResponse("t", partitions=[data])])
    for version in (4, 11, 12, 17):
        assert any(piece is records for piece in encode_response(response, 1, version, 1))

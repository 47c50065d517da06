"""The first frame tells who speaks."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import any_request

from rivven.errors import Malformed
from rivven.wire import Dialect, Format, detect, dialect_of, encode_request, requests
from rivven.wire.detect import NEEDED_BYTES
from rivven.wire.kafka import APIS


def kafka(key: int, version: int, *, client: bytes | None = b"rdkafka", correlation_id: int = 1) -> bytes:
    name = struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    body = struct.pack(">hhi", key, version, correlation_id) + name + bytes(20)
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("key", APIS)
@pytest.mark.parametrize("client", [b"rdkafka", b"", None])
def test_a_kafka_request_that_is_served_is_kafka(key, client):
    for version in {APIS[key].oldest, APIS[key].newest}:
        assert detect(kafka(key, version, client=client)) is Dialect.KAFKA


@pytest.mark.parametrize(("key", "version"), [(0, 2), (1, 3), (4, 0), (3, 14), (93, 0), (256, 0)])
def test_a_kafka_request_that_is_not_served_is_not_kafka(key, version):
    assert detect(kafka(key, version)) is not Dialect.KAFKA


def test_a_future_version_of_api_versions_is_kafka_all_the_same():
    assert detect(kafka(18, 9)) is Dialect.KAFKA


@given(any_request, st.integers(0, 767))
def test_a_native_client_that_counts_from_nought_is_native(request, correlation_id):
    try:
        assert detect(b"".join(encode_request(request, correlation_id))) is Dialect.POSTCARD
        assert detect(b"".join(encode_request(request, correlation_id, Format.PROTOBUF))) is Dialect.PROTOBUF
    except Malformed:
        pass  # protobuf cannot say everything


@given(st.integers(0, 2**32 - 1))
def test_a_handshake_is_native_whatever_its_correlation_id(correlation_id):
    for client in ("rivven-client", "", "py"):
        first = b"".join(encode_request(requests.Handshake(2, client), correlation_id))
        assert detect(first) is Dialect.POSTCARD


@given(st.integers(0, 2**32 - 1))
def test_a_ping_is_native_whatever_its_correlation_id(correlation_id):
    assert detect(b"".join(encode_request(requests.Ping(), correlation_id))) is Dialect.POSTCARD


@given(any_request, st.integers(0, 10))
def test_more_bytes_never_change_the_answer(request, correlation_id):
    first = b"".join(encode_request(request, correlation_id))
    answers = [detect(first[:count]) for count in range(len(first) + 1)]
    known = [answer for answer in answers if answer is not None]
    assert set(known) == {detect(first)}
    assert answers[len(answers) - len(known) :] == known


@given(st.binary(min_size=NEEDED_BYTES, max_size=NEEDED_BYTES))
def test_so_many_bytes_are_always_enough(first):
    assert detect(first) is not None


@given(st.binary(max_size=30))
def test_a_whole_frame_is_judged_like_its_bytes(body):
    assert dialect_of(body) is (detect(struct.pack(">I", len(body)) + body) or Dialect.POSTCARD)


def test_a_format_that_nobody_knows_is_for_the_native_protocol_to_refuse():
    assert detect(bytes.fromhex("00000006 02")) is Dialect.POSTCARD

"""The native Produce and Fetch are the made ones, only faster: the same objects, bytes and refusals."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_messages import SIDES, Side, message, messages

from rivven.errors import Malformed
from rivven.wire.kafka import made
from rivven.wire.kafka.codec import codec_of
from rivven.wire.kafka.twin import native

needs_native = pytest.mark.skipif(native(0) is None, reason="the native twin was not built, or is not wanted")
MADE = {0: made.produce, 1: made.fetch}
TWINNED = {str(side): side for side in SIDES if side.api.key in MADE}


def outcome(reader, data, at: int):
    """What a reader makes of some bytes: the message and the position, or the kind of its refusal."""
    try:
        return reader(data, at, len(data))
    except (Malformed, IndexError, struct.error, UnicodeDecodeError) as error:
        return type(error)


def body(side: Side, value, version: int) -> bytes:
    parts: list = []
    parts.append(MADE[side.api.key].ENCODE_REQUEST[version](value, bytearray(b"head"), parts))
    return b"".join(parts)


@needs_native
@pytest.mark.parametrize("side", [TWINNED["Produce-request"], TWINNED["Fetch-request"]], ids=str)
@settings(max_examples=30)
@given(data=st.data())
def test_the_native_twin_reads_alike_also_what_is_wrong(side, data):
    drawn, rng = data.draw(messages(side)), Random(data.draw(st.integers(0, 2**32)))
    for version in side.versions:
        right = body(side, message(side, drawn, version), version)
        view = memoryview if side.api.key == 0 else bytes
        fast, slow = codec_of(side.api.key).read_request[version], MADE[side.api.key].DECODE_REQUEST[version]
        assert fast is not slow
        assert outcome(fast, view(right), 4) == outcome(slow, view(right), 4)
        for _ in range(10):
            wrong = bytearray(right[: rng.randrange(4, len(right) + 1)])
            at = rng.randrange(4, len(wrong) + 1)
            wrong[at : at + rng.randrange(4)] = rng.choice(
                [b"", b"\xff", b"\x7f\xff\xff\xff", rng.randbytes(3), bytes(4)]
            )
            assert outcome(fast, view(bytes(wrong)), 4) == outcome(slow, view(bytes(wrong)), 4)


@needs_native
@pytest.mark.parametrize("side", [TWINNED["Produce-response"], TWINNED["Fetch-response"]], ids=str)
@settings(max_examples=40)
@given(data=st.data(), plain=st.booleans())
def test_the_native_twin_writes_alike(side, data, plain):
    drawn = data.draw(messages(side))
    if plain:
        without_the_unusual(drawn)
    for version in side.versions:
        value = message(side, drawn, version)
        fast, slow = codec_of(side.api.key).write_response[version], MADE[side.api.key].ENCODE_RESPONSE[version]
        assert fast is not slow
        pieces: list = []
        expected: list = []
        last = fast(value, bytearray(b"head"), pieces)
        expected_last = slow(value, bytearray(b"head"), expected)
        assert [bytes(one) for one in [*pieces, last]] == [bytes(one) for one in [*expected, expected_last]]


def without_the_unusual(drawn) -> None:
    """Leave only what the native twin writes by itself."""
    drawn["NodeEndpoints"] = []
    for topic in drawn["Responses"]:
        for one in topic.get("PartitionResponses") or topic.get("Partitions") or []:
            if "RecordErrors" in one:
                one.update(RecordErrors=[], ErrorMessage=None, CurrentLeader={"LeaderId": -1, "LeaderEpoch": -1})
            else:
                one["AbortedTransactions"] = None if one["AbortedTransactions"] is None else []
                one["DivergingEpoch"] = {"Epoch": -1, "EndOffset": -1}
                one["CurrentLeader"] = {"LeaderId": -1, "LeaderEpoch": -1}
                one["SnapshotId"] = {"EndOffset": -1, "Epoch": -1}


@needs_native
@pytest.mark.parametrize("version", [9, 13])
def test_what_a_number_cannot_hold_is_refused_by_both(version):
    for value in (2**31, -(2**31) - 1, None, "1"):
        part = made.produce.PartitionProduceResponse(value)
        response = made.produce.ProduceResponse([made.produce.TopicProduceResponse("t", partition_responses=[part])])
        for writer in (codec_of(0).write_response[version], made.produce.ENCODE_RESPONSE[version]):
            with pytest.raises(struct.error):
                writer(response, bytearray(), [])


@needs_native
def test_objects_of_the_wrong_kind_do_no_harm():
    topic = made.fetch.FetchableTopicResponse
    for responses in (
        None,
        [None],
        [topic(None)],
        [topic("t", None)],
        [topic("t", b"short")],
        [topic("t", partitions=[0])],
    ):
        for version in (4, 12, 17):
            with suppress(struct.error, TypeError, AttributeError, ValueError):
                codec_of(1).write_response[version](made.fetch.FetchResponse(responses=responses), bytearray(), [])


def test_the_pure_one_is_chosen_on_demand():
    program = (
        "from rivven.wire.kafka import made\n"
        "from rivven.wire.kafka.codec import codec_of\n"
        "assert codec_of(0).read_request == made.produce.DECODE_REQUEST\n"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "RIVVEN_PURE": "1"}, check=True, timeout=60)

"""Protobuf says the same as postcard wherever it can, in its own picture where not; garbage is Malformed."""

from __future__ import annotations

from contextlib import suppress

import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from strategies import any_message, any_response

from rivven.errors import Malformed
from rivven.wire import Format, decode_request, encode_request, requests, responses
from rivven.wire.generate import RESULT, SOURCE
from rivven.wire.native import _REQUESTS, _RESPONSES, _protobuf
from rivven.wire.odd import node_number
from rivven.wire.postcard import put
from rivven.wire.protobuf import ANSWERS, load
from rivven.wire.requests import REQUESTS
from rivven.wire.responses import RESPONSES
from rivven.wire.weigh import WEIGHED_BYTES_MIN

MISSING = {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "PublishBatch", "IdempotentPublishBatch"}
SAID = tuple(kind for kind in REQUESTS if kind.__name__ not in MISSING)
LOSSY = {responses.Metadata, responses.ClusterMetadata, responses.CommittedOffset}
ANSWERED = tuple(kind for kind in ANSWERS.values() if kind not in LOSSY)
CLASSES = load()


def proto(kind: str, field: str, **values) -> bytes:
    envelope = CLASSES[kind]()
    message = getattr(envelope, field)
    message.SetInParent()
    for name, value in values.items():
        if isinstance(value, list):
            getattr(message, name).extend(value)
        elif isinstance(value, dict):
            for inner, entry in value.items():
                setattr(getattr(message, name), inner, entry)
            getattr(message, name).SetInParent()
        else:
            setattr(message, name, value)
    return envelope.SerializeToString()


def parsed(response: responses.Response):
    envelope = CLASSES["Response"].FromString(_protobuf().encode_response(response))
    return getattr(envelope, envelope.WhichOneof("response_type"))


def in_protobuf(request: requests.Request) -> requests.Request:
    """What is left of a request in protobuf's picture of it."""
    match request:
        case requests.CreatePartitions(topic, count):
            return requests.CreatePartitions(topic, count)
        case requests.CreateTopic(name, 0):
            return requests.CreateTopic(name, None)
        case requests.Consume(topic, partition, offset, most, 0, wait):
            return requests.Consume(topic, partition, offset, most, None, wait)
    return request


@given(any_message(SAID))
def test_a_request_is_the_same_in_both_encodings(request):
    if type(request) is requests.SaslAuthenticate:
        request = requests.SaslAuthenticate(b"PLAIN", request.auth_bytes)  # there the mechanism is text
    request = in_protobuf(request)
    parts: list = []
    out = _REQUESTS.encode(request, bytearray(), parts)
    from_postcard = _REQUESTS.decode(b"".join([*parts, out]))
    assert _protobuf().decode_request(_protobuf().encode_request(from_postcard)) == request


@given(any_message(ANSWERED))
def test_a_response_is_the_same_in_both_encodings(response):
    from_postcard = _RESPONSES.decode(_RESPONSES.encode(response, bytearray(), []))
    again = _protobuf().decode_response(_protobuf().encode_response(from_postcard))
    match response:
        case responses.RecordsDeleted(topic, results):
            row = tuple(
                responses.DeleteRecordsResult(one.partition, one.low_watermark, one.error or None) for one in results
            )
            assert again == responses.RecordsDeleted(topic, row)
        case responses.Authenticated(session, expires):
            assert again == responses.Authenticated(session, min(expires, 2**32 - 1))
        case responses.PartitionsAddedToTxn(txn, count):
            assert again == responses.PartitionsAddedToTxn(txn, min(count, 2**32 - 1))
        case responses.TopicConfigAltered(topic, count):
            assert again == responses.TopicConfigAltered(topic, min(count, 2**32 - 1))
        case responses.QuotasAltered(count):
            assert again == responses.QuotasAltered(min(count, 2**32 - 1))
        case _:
            assert again == response


@given(any_response)
def test_every_response_is_written_or_said_to_be_impossible(response):
    with suppress(Malformed):
        _protobuf().decode_response(_protobuf().encode_response(response))


def test_a_topic_of_too_many_partitions_is_refused_before_they_are_made():
    """Each is a message of its own here, so four thousand million of them would be the end of the process."""
    with pytest.raises(Malformed, match="partitions"):
        _protobuf().encode_response(responses.Metadata("t", 2**32 - 1))


def test_what_is_not_in_protobuf_is_known():
    sample = {
        "JoinGroup": requests.JoinGroup("g", "", 0, 0, "", ()),
        "SyncGroup": requests.SyncGroup("g", 0, "m", ()),
        "Heartbeat": requests.Heartbeat("g", 0, "m"),
        "LeaveGroup": requests.LeaveGroup("g", "m"),
        "PublishBatch": requests.PublishBatch("t", None, ()),
        "IdempotentPublishBatch": requests.IdempotentPublishBatch("t", None, (), 0, 0, 0),
    }
    assert sample.keys() == MISSING
    for request in sample.values():
        with pytest.raises(Malformed, match="not available in protobuf"):
            encode_request(request, 0, Format.PROTOBUF)
    absent = {kind.__name__ for kind in RESPONSES} - {kind.__name__ for kind in ANSWERS.values()}
    assert absent == {
        "JoinGroupResult",
        "SyncGroupResult",
        "HeartbeatResult",
        "LeaveGroupResult",
        "IdempotentPublishedBatch",
    }


def test_replicas_cannot_be_assigned_in_protobuf():
    with pytest.raises(Malformed, match="assignments is not available"):
        encode_request(requests.CreatePartitions("t", 3, (("n1",),)), 0, Format.PROTOBUF)


# Protobuf's own picture


@pytest.mark.parametrize(
    ("payload", "request_"),
    [
        (
            proto("Request", "publish", topic="t", record={"key": b"k", "value": b"v"}),
            requests.Publish("t", None, None, b"v"),
        ),
        (
            proto("Request", "publish", topic="t", record={"has_key": True, "value": b"v", "timestamp": 5}),
            requests.Publish("t", None, b"", b"v"),
        ),
        (
            proto("Request", "create_topic", name="t", replication_factor=3),
            requests.CreateTopic("t", None),
        ),
        (proto("Request", "list_topics", prefix="a"), requests.ListTopics()),
        (proto("Request", "get_metadata", topics=["a", "b"]), requests.GetMetadata("a")),
        (proto("Request", "get_metadata"), requests.GetMetadata("")),
        (proto("Request", "consume", topic="t", max_bytes=9), requests.Consume("t", 0, 0, 0, None, None)),
        (proto("Request", "consume", isolation_level=1), requests.Consume("", 0, 0, 0, 1, None)),
        (
            proto("Request", "authenticate", plain={"username": "u", "password": "p", "require_tls": True}),
            requests.Authenticate("u", "p", True),
        ),
        (
            proto("Request", "authenticate", scram={"mechanism": "PLAIN", "client_first": b"x"}),
            requests.SaslAuthenticate(b"PLAIN", b"x"),
        ),
    ],
)
def test_a_request_is_read_as_protobuf_means_it(payload, request_):
    assert _protobuf().decode_request(payload) == request_


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "Serialization error: Missing request_type"),
        (CLASSES["Request"]().SerializeToString(), "Serialization error: Missing request_type"),
        (proto("Request", "publish", topic="t"), "Serialization error: Missing record"),
        (proto("Request", "authenticate"), "Serialization error: Missing mechanism"),
        (
            proto("Request", "commit_transaction", producer_epoch=65_536),
            "Invalid message format: producer_epoch 65536 exceeds u16::MAX (65535)",
        ),
        (
            proto("Request", "consume", isolation_level=256),
            "Invalid message format: isolation_level 256 exceeds u8::MAX (255)",
        ),
    ],
)
def test_a_request_that_protobuf_cannot_mean_is_refused_in_these_words(payload, why):
    with pytest.raises(Malformed) as error:
        _protobuf().decode_request(payload)
    assert error.value.facts["reason"] == why


@pytest.mark.parametrize("payload", [b"\xff", b"\x52\x05\x0a", b"\x52\x03\x0a\x01\xff"])
def test_bytes_that_are_not_protobuf_are_refused_with_the_reason(payload):
    with pytest.raises(Malformed) as error:
        decode_request(b"\x01\x00\x00\x00\x07" + payload)
    assert error.value.facts["reason"].startswith("Serialization error: Protobuf decode error: ")
    assert error.value.facts["correlation_id"] == 7


def test_an_error_always_has_the_code_1():
    assert (parsed(responses.Error("bad")).code, parsed(responses.Error("bad")).message) == (1, "bad")


def test_the_metadata_of_a_topic_is_invented_partition_by_partition():
    (topic,) = parsed(responses.Metadata("t", 2)).topics
    assert [(one.id, one.leader, [*one.replicas], [*one.isr]) for one in topic.partitions] == [
        (0, 0, [0], [0]),
        (1, 0, [0], [0]),
    ]
    again = _protobuf().decode_response(_protobuf().encode_response(responses.Metadata("t", 2)))
    assert again == responses.Metadata("t", 2)


def test_an_offset_that_is_missing_is_minus_one():
    for offset in (None, 0, 2**63 - 1):
        again = _protobuf().decode_response(_protobuf().encode_response(responses.CommittedOffset(offset)))
        assert again == responses.CommittedOffset(offset)
    with pytest.raises(Malformed, match="exceeds i64::MAX"):
        _protobuf().encode_response(responses.CommittedOffset(2**63))


def test_the_high_watermark_of_messages_is_past_the_last_of_them():
    row = tuple(responses.MessageData(offset, 0, None, b"", 0) for offset in (4, 9, 7))
    assert parsed(responses.Messages(row)).high_watermark == 10
    assert parsed(responses.Messages(())).high_watermark == 0


@pytest.mark.parametrize(
    ("node_id", "number"),
    [
        ("0", 0),
        ("17", 17),
        ("4294967295", 2**32 - 1),
        ("node-1", 1_422_144_387),
        ("٣", node_number("٣") & 0x7FFFFFFF),
    ],
)
def test_a_node_is_a_number_or_the_hash_of_its_name(node_id, number):
    assert node_number(node_id) == number


def test_the_cluster_comes_with_numbers_for_nodes_and_offline_where_there_is_no_leader():
    there = responses.PartitionMetadata(0, "node-1", ("node-1", "2"), ("2",), False)
    gone = responses.PartitionMetadata(1, None, (), (), True)
    brokers = (responses.BrokerInfo("2", "h", 9092, "r"), responses.BrokerInfo("node-1", "i", 9093, None))
    cluster = responses.ClusterMetadata("node-1", brokers, (responses.TopicMetadata("t", True, (there, gone)),))
    assert _protobuf().decode_response(_protobuf().encode_response(cluster)) == responses.ClusterMetadata(
        "node-1",
        (responses.BrokerInfo("2", "h", 9092, "r"), responses.BrokerInfo("1422144387", "i", 9093, None)),
        (
            responses.TopicMetadata(
                "t",
                True,
                (responses.PartitionMetadata(0, "1422144387", ("1422144387", "2"), ("2",), False), gone),
            ),
        ),
    )


# Limits and garbage


@pytest.mark.parametrize(
    ("request_", "why"),
    [(request, why) for request, why in samples.TOO_LONG if type(request).__name__ not in MISSING],
    ids=lambda value: value if type(value) is str else "",
)
def test_what_is_too_long_is_refused_as_in_postcard(request_, why):
    with pytest.raises(Malformed) as error:
        _protobuf().decode_request(_protobuf().encode_request(request_))
    assert error.value.facts["reason"] == f"Invalid message format: {why}"


def test_a_digit_of_another_script_is_a_name():
    assert node_number("٣") > 3


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_malformed(payload):
    with suppress(Malformed):
        _protobuf().decode_request(payload)
    with suppress(Malformed):
        _protobuf().decode_response(payload)


@given(any_message(SAID), st.data())
def test_a_damaged_request_is_another_one_or_malformed(request, data):
    with suppress(Malformed):
        payload = bytearray(_protobuf().encode_request(request))
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
        _protobuf().decode_request(bytes(payload))


def spanned(tag: int, inner: bytes) -> bytes:
    out = bytearray()
    put(out, tag << 3 | 2, 2**32, "tag")
    put(out, len(inner), 2**32, "length")
    return bytes(out + inner)


MANY = 5_000_000


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (spanned(80, b"\x0a\x00" * MANY), "entities"),
        (spanned(31, b"\x0a\x00" * MANY), "topics"),
        (spanned(100, spanned(3, b"\x12\x00" * MANY)), "partitions"),
        (spanned(12, b"\x22\x00" * MANY), "config"),
        (b"\x0a\x00" * MANY, "header"),
    ],
    ids=lambda value: value if type(value) is str else "",
)
def test_a_payload_of_too_many_things_is_refused_before_they_are_made(payload, field):
    with pytest.raises(Malformed) as error:
        decode_request(b"\x01\x00\x00\x00\x00" + payload)
    assert error.value.facts["reason"] == f"Invalid message format: {field} list exceeds max length (250001 > 250000)"


def test_a_large_publish_is_weighed_and_read():
    request = requests.Publish("t", 1, b"k" * 100_000, bytes(1_000_000), 2**63)
    assert _protobuf().decode_request(_protobuf().encode_request(request)) == request


@given(st.binary(max_size=40))
def test_any_large_payload_is_a_request_or_malformed(noise):
    with suppress(Malformed):
        _protobuf().decode_request(noise + spanned(12, noise) + spanned(200, bytes(WEIGHED_BYTES_MIN)) + noise)


def test_the_compiled_schema_is_that_of_the_source(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc")
    anew = tmp_path / "anew.desc"
    assert protoc.main(["protoc", f"-I{SOURCE.parent}", f"--descriptor_set_out={anew}", str(SOURCE)]) == 0
    assert anew.read_bytes() == RESULT.read_bytes()

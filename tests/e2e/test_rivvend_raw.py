"""Every request of the native protocol in both encodings, as bytes that nothing of ours has made, to `rivvend`."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest
from daemon import PROMPT_S, Daemon, running
from raw import FORMATS, POSTCARD, PROTOBUF, Raw, frame, postcard, protobuf, request

EITHER = pytest.mark.parametrize("form", FORMATS, ids=["postcard", "protobuf"])


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("raw")) as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Raw]:
    with daemon.client() as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest, client: Raw) -> str:
    """A topic of two partitions, named after the test."""
    name = "".join(char if char.isalnum() else "-" for char in request.node.name).strip("-")[-200:]
    assert client.call("CreateTopic", name, 2) == ("TopicCreated", (name, 2))
    return name


# The bytes themselves


@pytest.mark.parametrize(
    ("fields", "vector"),
    [
        (("Publish", "t", 3, b"k", b"hello", None), "040174010301016b0568656c6c6f00"),
        (("Publish", "t", None, None, b"", 300), "04017400000001ac02"),
        (("Consume", "t", 200, 300, 500, 1, 5000), "050174c801ac02f4030101018827"),
        (("CreateTopic", "orders", 3), "06066f72646572730103"),
        (("ListTopics",), "07"),
        (("DeleteTopic", "t"), "080174"),
        (("CommitOffset", "g", "t", 0, 128), "0901670174008001"),
        (("GetOffset", "g", "t", 0), "0a0167017400"),
        (("GetMetadata", "t"), "0b0174"),
        (("Ping",), "0d"),
        (("GetOffsetBounds", "t", 1), "0e017401"),
        (("ListGroups",), "0f"),
        (("DescribeGroup", "g"), "100167"),
        (("DeleteGroup", "g"), "110167"),
        (("GetOffsetForTimestamp", "t", 0, 1700000000000), "1201740080a0abfef962"),
        (("GetOffsetForTimestamp", "t", 0, -1), "1201740001"),
        (("DescribeQuotas", [("user", "al"), ("user", None)]), "1b0204757365720102616c047573657200"),
        (
            ("AlterQuotas", [("user", "al", "request_rate", 1000)]),
            "1c0104757365720102616c0c726571756573745f7261746501e807",
        ),
        (
            ("AlterTopicConfig", "t", [("retention.ms", "1"), ("a", None)]),
            "1d0174020c726574656e74696f6e2e6d73010131016100",
        ),
        (("CreatePartitions", "t", 6, [["n1", "n2"]]), "1e0174060102026e31026e32"),
        (("DeleteRecords", "t", [(0, 100), (1, 200)]), "1f017402006401c801"),
        (("DescribeTopicConfigs", ["t"]), "20010174"),
        (("Handshake", 2, "rivven-client"), "21020d72697676656e2d636c69656e74"),
        (("PublishBatch", "t", 0, [(None, b"a"), (b"k", b"bc")], None), "26017401000200016101016b02626300"),
    ],
)
def test_our_postcard_is_the_protocols(fields: tuple[str], vector: str) -> None:
    assert postcard(*fields).hex() == vector


@pytest.mark.parametrize(
    ("fields", "vector"),
    [
        (("Ping",), "0a020802f20100"),
        (("Handshake", 2, "py"), "0a020802d20506080212027079"),
        (
            ("Publish", "t", 0, b"k", b"hello", None),
            "0a02080252130a017410001a0c0a016b120568656c6c6f2801",
        ),
        (("Consume", "t", 0, 300, 500, None, 5000), "0a0208025a0c0a017418ac0220f403388827"),
    ],
)
def test_our_protobuf_is_the_protocols(fields: tuple[str], vector: str) -> None:
    assert protobuf(*fields).hex() == vector


def test_a_ping_is_ten_bytes_and_so_is_its_reply(client: Raw) -> None:
    client.send(bytes.fromhex("00000006 00 00000001 0d"))
    assert client.exactly(10) == bytes.fromhex("00000006 00 00000001 0c")


# Each request


@EITHER
def test_a_handshake_of_version_2_fits_and_another_is_told_so(client: Raw, form: int) -> None:
    assert client.call("Handshake", 2, "py", form=form) == ("HandshakeResult", (2, True, "OK"))
    told = (2, False, "Version mismatch: client=1, server=2")
    assert client.call("Handshake", 1, "py", form=form) == ("HandshakeResult", told)
    assert client.call("Ping", form=form) == ("Pong", ())


@EITHER
def test_a_topic_is_made_listed_described_and_deleted(client: Raw, form: int) -> None:
    name = f"life-{form}"
    assert client.call("CreateTopic", name, 2, form=form) == ("TopicCreated", (name, 2))
    assert client.error("CreateTopic", name, 2, form=form) == f"Topic '{name}' already exists"
    assert client.call("GetMetadata", name, form=form) == ("Metadata", (name, 2))
    assert name in client.call("ListTopics", form=form)[1][0]
    assert client.call("DeleteTopic", name, form=form) == ("TopicDeleted", ())
    assert client.error("DeleteTopic", name, form=form) == f"Topic not found: {name}"
    assert client.error("GetMetadata", name, form=form) == f"Topic not found: {name}"
    assert name not in client.call("ListTopics", form=form)[1][0]


@EITHER
def test_a_topic_that_does_not_say_gets_three_partitions(client: Raw, form: int) -> None:
    assert client.call("CreateTopic", f"three-{form}", None, form=form) == ("TopicCreated", (f"three-{form}", 3))


@EITHER
def test_a_topic_that_is_made_again_begins_anew(client: Raw, topic: str, form: int) -> None:
    client.call("Publish", topic, 0, None, b"old", None, form=form)
    client.call("DeleteTopic", topic, form=form)
    client.call("CreateTopic", topic, 2, form=form)
    assert client.call("GetOffsetBounds", topic, 0, form=form) == ("OffsetBounds", (0, 0))
    assert client.call("Consume", topic, 0, 0, 10, None, None, form=form) == ("Messages", ((),))


@EITHER
def test_what_is_published_comes_back(client: Raw, topic: str, form: int) -> None:
    before_ms = time.time_ns() // 1_000_000
    rows = [(b"k", b"hello"), (None, b""), (b"", bytes(range(256))), (None, b"x" * 100_000)]
    for offset, (key, value) in enumerate(rows):
        assert client.call("Publish", topic, 1, key, value, None, form=form) == ("Published", (offset, 1))
    for other in FORMATS:
        name, (messages,) = client.call("Consume", topic, 1, 0, 100, None, None, form=other)
        assert name == "Messages"
        assert [message[:4] for message in messages] == [(at, 1, *row) for at, row in enumerate(rows)]
        assert all(before_ms <= message[4] <= before_ms + 60_000 and message[5] == () for message in messages)


@EITHER
def test_a_read_begins_where_it_is_asked_to_and_ends_after_as_many(client: Raw, topic: str, form: int) -> None:
    client.call("PublishBatch", topic, 0, [(None, b"%d" % number) for number in range(10)], None)
    _, (messages,) = client.call("Consume", topic, 0, 4, 3, None, 0, form=form)
    assert [(message[0], message[3]) for message in messages] == [(4, b"4"), (5, b"5"), (6, b"6")]
    assert client.call("Consume", topic, 0, 10, 3, None, 0, form=form) == ("Messages", ((),))
    assert client.call("Consume", topic, 0, 2**63 - 1, 3, 1, 0, form=form) == ("Messages", ((),))


def test_a_batch_has_its_offsets_in_a_row_and_an_empty_one_none(client: Raw, topic: str) -> None:
    assert client.call("PublishBatch", topic, 1, [(None, b"a"), (b"k", b"bc")], None) == ("PublishedBatch", (0, 1, 2))
    assert client.call("PublishBatch", topic, 1, [(None, b"d")], None) == ("PublishedBatch", (2, 1, 1))
    assert client.call("PublishBatch", topic, 1, [], None) == ("PublishedBatch", (0, 0, 0))


@pytest.mark.parametrize(("key", "hash_"), [(b"", 275646681), (b"hello", 2132663229), (b"kafka", 3496464228)])
def test_a_key_chooses_its_partition_by_murmur2(client: Raw, topic: str, key: bytes, hash_: int) -> None:
    client.call("CreatePartitions", topic, 7, [])
    assert client.call("Publish", topic, None, key, b"v", None)[1][1] == (hash_ & 0x7FFFFFFF) % 7


@EITHER
def test_a_publish_makes_the_topic_and_a_read_does_not(client: Raw, form: int) -> None:
    assert client.error("Consume", f"made-{form}", 0, 0, 1, None, None, form=form) == f"Topic not found: made-{form}"
    assert client.call("Publish", f"made-{form}", 0, None, b"v", None, form=form) == ("Published", (0, 0))
    assert client.call("GetMetadata", f"made-{form}", form=form) == ("Metadata", (f"made-{form}", 3))


@EITHER
def test_a_groups_offsets_are_committed_described_and_deleted(client: Raw, topic: str, form: int) -> None:
    group = f"readers-{form}"
    client.call("PublishBatch", topic, 1, [(None, b"v")] * 200, None)
    assert client.call("GetOffset", group, topic, 1, form=form) == ("Offset", (None,))
    assert client.call("CommitOffset", group, topic, 1, 128, form=form) == ("OffsetCommitted", ())
    assert client.call("CommitOffset", group, topic, 0, 0, form=form) == ("OffsetCommitted", ())
    assert client.call("GetOffset", group, topic, 1, form=form) == ("Offset", (128,))
    assert client.call("GetOffset", group, "no-such-topic", 1, form=form) == ("Offset", (None,))
    assert group in client.call("ListGroups", form=form)[1][0]
    assert client.call("DescribeGroup", group, form=form) == ("GroupDescription", (group, {topic: {0: 0, 1: 128}}))
    assert client.call("DeleteGroup", group, form=form) == ("GroupDeleted", ())
    assert client.call("GetOffset", group, topic, 1, form=form) == ("Offset", (None,))
    for name in ("DescribeGroup", "DeleteGroup"):
        assert client.error(name, group, form=form) == f"Consumer group '{group}' not found"


@EITHER
def test_an_offset_is_found_by_its_time(client: Raw, topic: str, form: int) -> None:
    client.call("Publish", topic, 0, None, b"v", None)
    assert client.call("GetOffsetForTimestamp", topic, 0, 0, form=form) == ("OffsetForTimestamp", (0,))
    assert client.call("GetOffsetForTimestamp", topic, 0, -1, form=form) == ("OffsetForTimestamp", (0,))
    assert client.call("GetOffsetForTimestamp", topic, 0, 2**62, form=form) == ("OffsetForTimestamp", (None,))


@EITHER
def test_deleted_records_are_gone_and_each_partition_is_answered_for_itself(
    client: Raw, topic: str, form: int
) -> None:
    client.call("PublishBatch", topic, 0, [(None, b"v")] * 5, None)
    assert client.call("DeleteRecords", topic, [(0, 3), (1, 9), (7, 1)], form=form) == (
        "RecordsDeleted",
        (
            topic,
            (
                (0, 3, None),
                (1, 0, "OFFSET_OUT_OF_RANGE: Target offset 9 exceeds latest offset 0"),
                (7, 0, "UNKNOWN_TOPIC_OR_PARTITION: Partition 7 not found"),
            ),
        ),
    )
    assert client.call("GetOffsetBounds", topic, 0, form=form) == ("OffsetBounds", (3, 5))
    _, (messages,) = client.call("Consume", topic, 0, 0, 10, None, None, form=form)
    assert [message[0] for message in messages] == [3, 4]


@EITHER
def test_partitions_are_added_and_never_taken_away(client: Raw, topic: str, form: int) -> None:
    assert client.call("CreatePartitions", topic, 4, [], form=form) == ("PartitionsCreated", (topic, 4))
    assert client.call("Publish", topic, 3, None, b"v", None, form=form) == ("Published", (0, 3))
    refused = "INVALID_PARTITIONS: New partition count 4 must be greater than current count 4"
    assert client.error("CreatePartitions", topic, 4, [], form=form) == refused
    missing = "UNKNOWN_TOPIC_OR_PARTITION: Topic 'nowhere' not found"
    assert client.error("CreatePartitions", "nowhere", 4, [], form=form) == missing


@EITHER
def test_a_topics_configuration_is_altered_and_described(client: Raw, topic: str, form: int) -> None:
    chosen = [("retention.ms", "60000"), ("max.message.bytes", "2000")]
    assert client.call("AlterTopicConfig", topic, chosen, form=form) == ("TopicConfigAltered", (topic, 2))
    ((name, values),) = client.call("DescribeTopicConfigs", [topic], form=form)[1][0]
    assert name == topic
    assert values["retention.ms"] == ("60000", False, False, False)
    assert client.call("AlterTopicConfig", topic, [("retention.ms", None)], form=form)[1] == (topic, 1)
    ((_, values),) = client.call("DescribeTopicConfigs", [topic], form=form)[1][0]
    assert values["retention.ms"][1] is True
    assert client.error("AlterTopicConfig", topic, [("bogus", "1")], form=form).startswith("INVALID_CONFIG: ")
    assert client.error("AlterTopicConfig", topic, [("retention.ms", "x")], form=form).startswith("INVALID_CONFIG: ")
    assert client.error("Publish", topic, 0, None, bytes(3000), None, form=form).startswith("MESSAGE_TOO_LARGE: ")


@EITHER
def test_quotas_are_altered_and_described(client: Raw, form: int) -> None:
    user = f"al-{form}"
    rows = [("user", user, "request_rate", 1000), ("user", user, "bogus", 1), ("bogus", None, "request_rate", 1)]
    assert client.call("AlterQuotas", rows, form=form) == ("QuotasAltered", (1,))
    entry = ("user", user, {"request_rate": 1000})
    assert client.call("DescribeQuotas", [("user", user)], form=form) == ("QuotasDescribed", ((entry,),))
    assert entry in client.call("DescribeQuotas", [], form=form)[1][0]
    assert client.call("AlterQuotas", [("user", user, "request_rate", None)], form=form) == ("QuotasAltered", (1,))
    assert client.call("DescribeQuotas", [], form=form) == ("QuotasDescribed", ((),))


# Errors that clients read


@EITHER
def test_refusals_have_the_texts_that_clients_know(client: Raw, topic: str, form: int) -> None:
    assert client.error("Consume", topic, 9, 0, 1, None, None, form=form).startswith("Partition 9 not found")
    assert client.error("GetOffsetBounds", topic, 9, form=form) == f"Partition 9 not found for topic '{topic}'"
    assert client.error("GetOffsetBounds", "nowhere", 0, form=form) == "Topic not found: nowhere"
    assert client.error("GetOffsetForTimestamp", "nowhere", 0, 0, form=form) == "Topic not found: nowhere"
    assert client.error("CommitOffset", "g", "nowhere", 0, 0, form=form) == (
        "UNKNOWN_TOPIC: topic 'nowhere' does not exist"
    )
    assert client.error("CommitOffset", "g", topic, 9, 0, form=form) == (
        f"UNKNOWN_PARTITION: partition 9 does not exist in topic '{topic}'"
    )
    assert client.error("CommitOffset", "g", topic, 0, 9, form=form) == (
        "OFFSET_OUT_OF_RANGE: offset 9 exceeds latest offset 0 for partition 0"
    )
    assert client.error("CreateTopic", "many", 1001, form=form) == (
        "INVALID_PARTITION_COUNT: must be between 1 and 1000, got 1001"
    )
    for name in ("", "a/b", "..", "a" * 256):
        assert client.error("CreateTopic", name, 1, form=form).startswith("INVALID_TOPIC_NAME: "), name
        assert client.error("Publish", name, 0, None, b"", None, form=form).startswith("INVALID_TOPIC_NAME: "), name


@EITHER
def test_a_publish_beyond_the_last_partition_is_told_how_many_there_are(client: Raw, topic: str, form: int) -> None:
    text = client.error("Publish", topic, 5, None, b"v", None, form=form)
    assert text == "INVALID_PARTITION: Invalid partition 5: must be < 2"


@EITHER
@pytest.mark.parametrize("group", ["", "a/b", "..", "\x00", "a" * 256])
def test_a_group_whose_name_is_none_is_refused(client: Raw, topic: str, form: int, group: str) -> None:
    assert client.error("CommitOffset", group, topic, 0, 0, form=form).startswith("INVALID_CONSUMER_GROUP: ")


@EITHER
def test_a_name_or_a_list_beyond_its_bound_is_refused(client: Raw, form: int) -> None:
    long = client.error("CreateTopic", "a" * 257, 1, form=form)
    assert long.startswith("INVALID_REQUEST: Invalid message format: ")
    assert long.endswith("exceeds max length (257 > 256)")
    many = client.error("DescribeTopicConfigs", ["a"] * 10_001, form=form)
    assert many.startswith("INVALID_REQUEST: Invalid message format: ")
    assert many.endswith("list exceeds max length (10001 > 10000)")


# Frames


@pytest.mark.parametrize(
    ("body", "form", "reason"),
    [
        ("", POSTCARD, "Wire data too short (need format byte + correlation_id)"),
        ("00000001", POSTCARD, "Wire data too short (need format byte + correlation_id)"),
        ("02000000070d", POSTCARD, "Unknown wire format: 0x02"),
        ("0000000007", POSTCARD, "Hit the end of buffer, expected more data"),
        ("00000000077f", POSTCARD, "Serde Deserialization Error"),
        ("00000000070405", POSTCARD, "Hit the end of buffer, expected more data"),
        ("0000000007060161020000", POSTCARD, "Found an Option discriminant that wasn't 0 or 1"),
        ("00000000070801ff", POSTCARD, "Tried to parse invalid utf-8"),
        ("000000000708ffffffffffffffffffffff", POSTCARD, "Found a varint that didn't terminate"),
        ("0100000007", PROTOBUF, "Missing request_type"),
        ("01000000070a020802", PROTOBUF, "Missing request_type"),
        ("010000000752030a0174", PROTOBUF, "Missing record"),
        ("0100000007ff", PROTOBUF, "Protobuf decode error"),
    ],
)
def test_a_bad_frame_is_refused_with_its_own_id_and_the_connection_goes_on(
    client: Raw, body: str, form: int, reason: str
) -> None:
    data = bytes.fromhex(body)
    client.send(frame(data) + request("Ping", cid=8))
    answered_form, cid, name, (text,) = client.reply()
    assert (answered_form, cid, name) == (form, 7 if len(data) >= 5 else 0, "Error")
    assert text.startswith(f"INVALID_REQUEST: Serialization error: {reason}"), text
    assert client.reply() == (POSTCARD, 8, "Pong", ())


def test_a_frame_that_is_too_large_is_refused_and_the_connection_closed(client: Raw) -> None:
    client.send(struct.pack(">I", 10 * 1024 * 1024 + 1))
    assert client.reply() == (POSTCARD, 0, "Error", ("MESSAGE_TOO_LARGE: 10485761 bytes exceeds limit",))
    assert client.is_closed()


def test_what_was_asked_before_a_frame_that_is_too_large_is_answered_first(client: Raw, topic: str) -> None:
    asked = b"".join(request("Publish", topic, 0, None, b"v", None, cid=cid) for cid in range(5))
    client.send(asked + struct.pack(">I", 2**32 - 1))
    assert [client.reply() for _ in range(5)] == [(POSTCARD, cid, "Published", (cid, 0)) for cid in range(5)]
    assert client.reply()[1:] == (0, "Error", (f"MESSAGE_TOO_LARGE: {2**32 - 1} bytes exceeds limit",))
    assert client.is_closed()


def test_a_frame_may_come_byte_by_byte(client: Raw) -> None:
    for byte in request("Ping", cid=3) + request("Ping", cid=4, form=PROTOBUF):
        client.send(bytes([byte]))
    assert client.reply() == (POSTCARD, 3, "Pong", ())
    assert client.reply() == (PROTOBUF, 4, "Pong", ())


# Pipelining


def test_replies_come_in_the_order_of_their_requests(client: Raw, topic: str) -> None:
    """Some are known at once, some after a sync: neither overtakes."""
    asked = b""
    for cid in range(0, 600, 3):
        asked += request("Publish", topic, 0, None, b"%d" % cid, None, cid=cid)
        asked += request("Ping", cid=cid + 1, form=PROTOBUF)
        asked += request("GetMetadata", "nowhere", cid=cid + 2)
    client.send(asked)
    for cid in range(0, 600, 3):
        assert client.reply() == (POSTCARD, cid, "Published", (cid // 3, 0))
        assert client.reply() == (PROTOBUF, cid + 1, "Pong", ())
        assert client.reply() == (POSTCARD, cid + 2, "Error", ("Topic not found: nowhere",))


def test_two_thousand_requests_in_one_go_are_all_answered(client: Raw, topic: str) -> None:
    client.send(b"".join(request("Publish", topic, 1, None, b"v", None, cid=cid) for cid in range(2000)))
    assert [client.reply()[1:] for _ in range(2000)] == [(cid, "Published", (cid, 1)) for cid in range(2000)]


def test_requests_of_many_connections_at_once_keep_their_own_values(daemon: Daemon, topic: str) -> None:
    """All are received into one buffer: nobody may find another's bytes in theirs."""
    clients = [daemon.client() for _ in range(20)]
    for _ in range(5):
        for number, client in enumerate(clients):
            value = bytes([65 + number]) * (200 * number + 1)
            client.send(b"".join(request("Publish", topic, 0, value[:5], value, None, cid=cid) for cid in range(10)))
        for client in clients:
            assert [client.reply()[1] for _ in range(10)] == list(range(10))
    seen, offset = 0, 0
    while seen < 1000:
        _, (messages,) = clients[0].call("Consume", topic, 0, offset, 1000, None, None)
        for message in messages:
            assert message[3] == message[3][:1] * (200 * (message[3][0] - 65) + 1)
            assert message[2] == message[3][:5]
        seen, offset = seen + len(messages), messages[-1][0] + 1
    for client in clients:
        client.close()


@EITHER
def test_a_long_poll_holds_back_its_own_connection_alone(daemon: Daemon, client: Raw, topic: str, form: int) -> None:
    with daemon.client() as other:
        client.send(request("Consume", topic, 0, 0, 10, None, 30_000, cid=1, form=form) + request("Ping", cid=2))
        begun = time.monotonic()
        assert other.call("Ping") == ("Pong", ())
        client.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.socket.recv(1)
        client.socket.settimeout(30)
        assert other.call("Publish", topic, 0, b"k", b"now", None)[0] == "Published"
        answered_form, cid, name, (messages,) = client.reply()
        assert (answered_form, cid, name) == (form, 1, "Messages")
        assert [message[2:4] for message in messages] == [(b"k", b"now")]
        assert client.reply() == (POSTCARD, 2, "Pong", ())
        assert time.monotonic() - begun < PROMPT_S


@EITHER
def test_a_long_poll_ends_empty_at_its_deadline(client: Raw, topic: str, form: int) -> None:
    begun = time.monotonic()
    assert client.call("Consume", topic, 0, 0, 10, None, 200, form=form) == ("Messages", ((),))
    assert 0.19 < time.monotonic() - begun < PROMPT_S


def test_a_long_poll_of_a_topic_that_goes_is_answered(daemon: Daemon, client: Raw, topic: str) -> None:
    client.send(request("Consume", topic, 0, 0, 10, None, 30_000, cid=1))
    with daemon.client() as other:
        assert other.call("DeleteTopic", topic) == ("TopicDeleted", ())
    begun = time.monotonic()
    assert client.reply()[1] == 1
    assert time.monotonic() - begun < PROMPT_S

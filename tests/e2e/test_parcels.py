"""Whole batches for one partition have a way of their own where the native code was built, in both dialects.

The same bytes go to a node with that way and to one without it, as in `test_express.py`. Among them is all that the
short way must leave to the other: several partitions, Kafka's transactions, old versions, broken batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from daemon import Daemon
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from raw import Closed, request
from two_ways import PARTITIONS, cut, cuts, kept, make_topic, names, talk, two_ways

from rivven.record import NATIVE, Codec, encode
from rivven.wire import Format, Request, Response, decode_response, encode_request, kafka
from rivven.wire import requests as ask
from rivven.wire import responses as tell
from rivven.wire.kafka.made.api_versions import ApiVersionsRequest
from rivven.wire.kafka.made.metadata import MetadataRequest, MetadataRequestTopic
from rivven.wire.kafka.made.produce import PartitionProduceData, ProduceRequest, TopicProduceData

if not NATIVE:
    pytest.skip("no native code was built: there is only the ordinary way", allow_module_level=True)

TIME_MS = 1_700_000_000_000
METADATA_VERSION = 12
NO_TOPIC_ID = bytes(16)
HELLO = 99_999
ERROR = 18


@pytest.fixture(scope="module", params=["every_write", "none"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    with two_ways(tmp_path_factory.mktemp("native"), tmp_path_factory.mktemp("pure"), request.param) as daemons:
        yield daemons


def broken(batch: bytes, place: int) -> bytes:
    data = bytearray(batch)
    data[place % len(data)] ^= 0x41
    return bytes(data)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """What may stand where batches are expected: mostly one that is right."""
    values = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=4))
    batch = bytes(
        encode(
            [(TIME_MS, b"key", value, ()) for value in values],
            codec=draw(st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.ZSTD])),
            producer_id=(producer_id := draw(st.sampled_from([-1, -1, -1, 7]))),
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=draw(st.sampled_from([0, 0, 1, 5])) if producer_id >= 0 else -1,
            transactional=producer_id >= 0 and draw(st.integers(0, 9)) == 0,
        )
    )
    match draw(st.integers(0, 19)):
        case 0:
            return broken(batch, draw(st.integers(0, 10_000)))
        case 1:
            return batch[: draw(st.integers(0, len(batch)))]
        case 2:
            return batch + batch
        case 3:
            return bytes(encode([(TIME_MS, None, bytes(3_000), ())]))
        case 4:
            return b""
    return batch


class Wanted(NamedTuple):
    parts: list[tuple[str, int, bytes]]
    """What is behind the topic's name, a partition, and batches for it."""
    acks: int
    transactional_id: str | None
    version: int


wanted_parts = st.tuples(
    st.sampled_from(["", "", "", "", "", "", "-unknown"]),
    st.sampled_from([0, 0, 0, 0, 1, 2, PARTITIONS, 2**31 - 1]),
    batches(),
)
wanteds = st.lists(
    st.builds(
        Wanted,
        st.lists(wanted_parts, min_size=1, max_size=1) | st.lists(wanted_parts, max_size=3),
        st.sampled_from([1, -1, -1, 2]),
        st.sampled_from([None] * 9 + ["txn"]),
        st.sampled_from([3, 5, 6, 7, 8, 9, 10, 11, 12, 13]),
    ),
    max_size=20,
)


def native_frame(topic: str, wanted: Wanted, cid: int) -> bytes:
    topics = tuple(
        ask.TopicBatches(topic + suffix, (ask.PartitionBatches(partition, data),))
        for suffix, partition, data in wanted.parts
    )
    return native(ask.ProduceBatches(wanted.acks, 30_000, topics, wanted.transactional_id), cid)


def native(asked: Request, cid: int) -> bytes:
    return b"".join(map(bytes, encode_request(asked, cid, Format.POSTCARD)))


def asked_one(daemon: Daemon, asked: Request) -> Response:
    return decode_response(talk(daemon, [native(asked, 1)], 1)[0]).response


def kafka_frame(topic: str, topic_id: bytes, wanted: Wanted, cid: int) -> bytes:
    topics = [
        TopicProduceData(
            topic + suffix if wanted.version < 13 else "",
            NO_TOPIC_ID if wanted.version < 13 else bytes(15) + b"\x01" if suffix else topic_id,
            [PartitionProduceData(partition, data)],
        )
        for suffix, partition, data in wanted.parts
    ]
    asked = ProduceRequest(wanted.transactional_id, wanted.acks, 30_000, topics)
    return b"".join(map(bytes, kafka.encode_request(asked, wanted.version, cid, "tester")))


def made_topic(both: tuple[Daemon, Daemon]) -> str:
    name = next(names)
    for daemon in both:
        with daemon.client() as client:
            make_topic(client, name)
    return name


def topic_id_of(daemon: Daemon, name: str) -> bytes:
    asked = MetadataRequest([MetadataRequestTopic(name=name)], False)
    sent = b"".join(map(bytes, kafka.encode_request(asked, METADATA_VERSION, 1, None)))
    _, found = kafka.decode_response(talk(daemon, [sent], 1, kafka_hello())[0], 3, METADATA_VERSION)
    return bytes(found.topics[0].topic_id)


def kafka_hello() -> bytes:
    return b"".join(map(bytes, kafka.encode_request(ApiVersionsRequest(), 0, HELLO, "tester")))


@settings(max_examples=60)
@given(wanteds, cuts)
def test_both_ways_answer_native_clients_alike(
    both: tuple[Daemon, Daemon], wanted: list[Wanted], shares: list[float] | None
) -> None:
    topic = made_topic(both)
    stream = b"".join(native_frame(topic, one, cid) for cid, one in enumerate(wanted))
    answers = [talk(daemon, cut(stream, shares), len(wanted)) for daemon in both]
    assert answers[0] == answers[1]
    assert kept(both[0], topic) == kept(both[1], topic)


@settings(max_examples=60)
@given(wanteds, cuts)
def test_both_ways_answer_kafka_clients_alike(
    both: tuple[Daemon, Daemon], wanted: list[Wanted], shares: list[float] | None
) -> None:
    topic = made_topic(both)
    answers = []
    for daemon in both:
        topic_id = topic_id_of(daemon, topic)
        stream = b"".join(kafka_frame(topic, topic_id, one, cid) for cid, one in enumerate(wanted))
        found = talk(daemon, cut(stream, shares), len(wanted), kafka_hello())
        answers.append([reply.replace(topic_id, NO_TOPIC_ID) for reply in found])
    assert answers[0] == answers[1]
    assert kept(both[0], topic) == kept(both[1], topic)


class Step(NamedTuple):
    """A batch on its way into a transaction, mostly the one that is due."""

    partition: int
    ahead: int
    """How far its number is beyond the one that is due there."""
    epoch: int
    transactional: bool
    name: str


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from([0, 0, 0, 1, PARTITIONS]),
        st.sampled_from([0] * 9 + [-1, 1]),
        st.sampled_from([0] * 9 + [1]),
        st.sampled_from([True] * 9 + [False]),
        st.sampled_from(["mine"] * 9 + ["", "another", "m\u00efne", "m" * 256, "m" * 257]),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(steps, st.booleans(), st.booleans(), cuts)
def test_both_ways_take_batches_of_a_transaction_alike(
    both: tuple[Daemon, Daemon], steps: list[Step], added: bool, commits: bool, shares: list[float] | None
) -> None:
    """Of partitions that the broker has yet to add only one: what is sent behind it may find it added, or not."""
    topic = made_topic(both)
    partitions = tuple(ask.TxnPartition(topic, number) for number in range(PARTITIONS))
    steps = steps if added else steps[:1]
    answers = []
    for daemon in both:
        producer = asked_one(daemon, ask.InitProducerId(None))
        assert isinstance(producer, tell.ProducerIdInitialized)
        producer_id = producer.producer_id
        begin = ask.BeginTransaction("mine", producer_id, 0, 60_000)
        assert asked_one(daemon, begin) == tell.TransactionStarted("mine")
        if added:
            asked_one(daemon, ask.AddPartitionsToTxn("mine", producer_id, 0, partitions))
        due = dict.fromkeys(range(PARTITIONS + 1), 0)
        stream = b""
        for cid, (partition, ahead, epoch, transactional, name) in enumerate(steps):
            number = max(0, due[partition] + ahead)
            due[partition] = max(due[partition], number + 1)
            batch = encode(
                [(TIME_MS, b"key", b"%d" % cid, ())],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=number,
                transactional=transactional,
            )
            stream += native_frame(topic, Wanted([("", partition, bytes(batch))], -1, name, 0), cid)
        ends = ask.CommitTransaction if commits else ask.AbortTransaction
        found = talk(daemon, cut(stream, shares), len(steps))
        found.append(repr(asked_one(daemon, ends("mine", producer_id, 0))).encode())
        answers.append([reply.replace(b"%d" % producer_id, b"me") for reply in found])
    assert answers[0] == answers[1]
    assert kept(both[0], topic) == kept(both[1], topic)


@settings(max_examples=100)
@given(batches(), st.integers(0, 200), st.integers(0, 255), st.integers(7, 12))
def test_a_byte_that_is_wrong_is_seen_alike(
    both: tuple[Daemon, Daemon], batch: bytes, place: int, byte: int, version: int
) -> None:
    """Before the batch, or just behind it: a node may hang up, but then both do."""
    assume(byte not in b"0123456789")  # it would make a topic that a later example wants to make
    topic = made_topic(both)
    wanted = Wanted([("", 0, batch)], -1, None, version)
    for sent, hello, kind in (
        (native_frame(topic, wanted, 1), request("Ping", cid=HELLO), {9}),
        (kafka_frame(topic, NO_TOPIC_ID, wanted, 1), kafka_hello(), {4, 5}),
    ):
        data = bytearray(sent)
        before = range(4, data.find(batch) if batch else len(data))
        outside = sorted({*before, *range(len(data) - 3, len(data))} - kind)  # it stays a produce request
        data[outside[place % len(outside)]] = byte
        assert told(both[0], hello, bytes(data)) == told(both[1], hello, bytes(data))
    assert kept(both[0], topic) == kept(both[1], topic)


def told(daemon: Daemon, hello: bytes, sent: bytes) -> list[bytes]:
    """What comes back for a frame of which nobody knows what it says, up to the answer to a question behind it."""
    with daemon.client() as client:
        client.send(hello)
        greeting = client.body()
        client.send(sent + hello)
        found = []
        try:
            while (body := client.body()) != greeting:
                found.append(body)
        except Closed:
            found.append(b"closed")
        return found


def test_long_and_short_parcels_in_a_row_are_answered_in_order(both: tuple[Daemon, Daemon]) -> None:
    """More than the room of a receive, with ends of frames anywhere, and some that go the other way."""
    daemon = both[0]
    with daemon.client() as client:
        topic = next(names)
        assert client.call("CreateTopic", topic, 1)[0] == "TopicCreated"
    sizes = [10, 100_000, 200_000, 3_000, 131_000, 60_000, 900_000, 130_900, 131_200] * 8
    frames = []
    for number, size in enumerate(sizes):
        batch = bytes(encode([(TIME_MS, b"%d" % number, bytes(size), ())]))
        frames.append(native_frame(topic, Wanted([("", 0, batch)], -1, None, 0), number))
    stream = b"".join(frames)
    pieces = [stream[at : at + 77_777] for at in range(0, len(stream), 77_777)]
    found = talk(daemon, pieces, len(frames))
    assert [struct.unpack_from(">I", reply, 1)[0] for reply in found] == list(range(len(frames)))
    with daemon.client() as client:
        offset, keys = 0, []
        while offset < len(sizes):
            for message in client.call("Consume", topic, 0, offset, 10, None, None)[1][0]:
                keys.append(int(bytes(message[2])))
                offset = message[0] + 1
    assert keys == list(range(len(sizes)))


def test_a_parcel_before_a_frame_that_is_too_long_is_answered(both: tuple[Daemon, Daemon]) -> None:
    """Also if the line took it, and it is not durable yet when the other begins."""
    topic = made_topic(both)
    batch = bytes(encode([(TIME_MS, b"key", b"value", ())]))
    sent = kafka_frame(topic, NO_TOPIC_ID, Wanted([("", 0, batch)], -1, None, 7), 5) + struct.pack(">I", 2**31)
    answers = [talk(daemon, [sent], 1, kafka_hello()) for daemon in both]
    assert answers[0] == answers[1]
    assert struct.unpack_from(">I", answers[0][0]) == (5,)


def test_a_single_record_and_a_parcel_behind_it_keep_their_order(both: tuple[Daemon, Daemon]) -> None:
    topic = made_topic(both)
    batch = bytes(encode([(TIME_MS, b"key", b"parcel", ())]))
    stream = b""
    for cid in range(50):
        stream += request("Publish", topic, 0, None, b"single", None, cid=cid)
        stream += native_frame(topic, Wanted([("", 0, batch)], -1, None, 0), cid)
    talk(both[0], [stream], 100)
    values = [bytes(message[3]) for message in kept(both[0], topic)[0]]  # type: ignore[call-overload]
    assert values == [b"single", b"parcel"] * 50


def test_a_topic_that_wants_no_codec_gets_none(both: tuple[Daemon, Daemon]) -> None:
    topic = made_topic(both)
    batch = bytes(encode([(TIME_MS, b"key", b"value" * 50, ())], codec=Codec.GZIP))
    stored = []
    for daemon in both:
        with daemon.client() as client:
            altered = client.call("AlterTopicConfig", topic, [("compression.type", "none")])
            assert altered[0] == "TopicConfigAltered"
        talk(daemon, [native_frame(topic, Wanted([("", 0, batch)], -1, None, 0), 1)], 1)
        stored.append(
            b"".join(path.read_bytes() for path in sorted(daemon.data_dir.glob(f"topics/{topic}/**/*.log")))
        )
    assert stored[0] == stored[1]
    assert b"value" * 50 in stored[0]


def test_names_that_nobody_has_are_not_kept(both: tuple[Daemon, Daemon]) -> None:
    """Each is refused, and takes no room afterwards."""
    daemon = both[0]
    batch = bytes(encode([(TIME_MS, None, b"", ())]))
    before = daemon.rss_bytes()
    with daemon.client() as client:
        client.send(request("Ping"))
        client.body()
        for number in range(1_000):
            name = f"{number:06}" * 20_000
            client.send(native_frame(name, Wanted([("", 0, batch)], -1, None, 0), 1))
            assert client.body()[5] == ERROR
    assert daemon.rss_bytes() - before < 60_000_000, "120 MB of names have come"


def test_a_frame_that_never_ends_is_not_kept_for_ever(both: tuple[Daemon, Daemon]) -> None:
    """What has come of it goes with its connection."""
    daemon = both[0]
    topic = made_topic(both)
    batch = bytes(encode([(TIME_MS, None, bytes(120_000), ())]))
    begun = native_frame(topic, Wanted([("", 0, batch)], -1, None, 0), 1)[:-1]
    before = daemon.rss_bytes()
    for _ in range(20):
        clients = [daemon.client() for _ in range(50)]
        for client in clients:
            client.send(request("Ping"))
            client.body()
            client.send(begun)
        for client in clients:
            client.socket.close()
    daemon.assert_well(daemon.pid)
    assert daemon.rss_bytes() - before < 60_000_000, "120 MB have come"

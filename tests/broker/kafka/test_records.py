"""Produce, Fetch, ListOffsets and OffsetForLeaderEpoch, in every version, and what goes wrong with them."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Client, versions
from simulated import World

from rivven.broker.kafka.records import RecordRequests
from rivven.record import Codec, decode, encode, walk
from rivven.wire import requests as native
from rivven.wire.kafka import Error
from rivven.wire.kafka.made import fetch, list_offsets, offset_for_leader_epoch, produce


def newest_and_older(key: int) -> list[int]:
    return [version for _, version in versions(key)]


@pytest.fixture
def world() -> World:
    world = World()
    world.ask(native.CreateTopic("t", 2))
    return world


@pytest.fixture
def client(world: World) -> Client:
    return Client(world, RecordRequests)


def batch(*values: bytes, codec: Codec = Codec.NONE, at_ms: int = 1000, **rest: Any) -> bytes:
    rows = [(at_ms + place, b"k%d" % place, value, ()) for place, value in enumerate(values)]
    return bytes(encode(rows, codec=codec, **rest))


def producing(world: World, *parts: tuple[int, bytes], acks: int = -1, topic: str = "t") -> produce.ProduceRequest:
    """Named both ways, so that it goes in every version."""
    found = next((each.id_bytes for each in world.broker.topics if each.name == topic), bytes(15) + b"x")
    data = [produce.PartitionProduceData(number, records) for number, records in parts]
    return produce.ProduceRequest(None, acks, 1000, [produce.TopicProduceData(topic, found, data)])


def fetching(world: World, *parts: tuple[int, int], topic: str = "t", **rest: Any) -> fetch.FetchRequest:
    found = next((each.id_bytes for each in world.broker.topics if each.name == topic), bytes(15) + b"x")
    wanted = [fetch.FetchPartition(number, fetch_offset=at, partition_max_bytes=1 << 20) for number, at in parts]
    return fetch.FetchRequest(topics=[fetch.FetchTopic(topic, found, wanted)], **rest)


def first(response: Any) -> Any:
    """Of the first topic the first partition."""
    topic = (response.responses if hasattr(response, "responses") else response.topics)[0]
    return (topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions)[0]


def values(data: Any) -> list[bytes]:
    return [record.value for place, _ in walk(data) for record in decode(data, place)]


@pytest.mark.parametrize("version", newest_and_older(0))
def test_what_is_produced_in_any_version_is_there(version, world, client):
    answer = client.ask(producing(world, (0, batch(b"a", b"b")), (1, batch(b"c"))), version)
    assert [part.error_code for part in answer.responses[0].partition_responses] == [0, 0]
    answer = client.ask(producing(world, (0, batch(b"d"))), version)
    assert first(answer).base_offset == 2
    found = client.ask(fetching(world, (0, 0)))
    assert values(first(found).records) == [b"a", b"b", b"d"]


@pytest.mark.parametrize("version", newest_and_older(1))
def test_every_version_of_fetch_brings_the_same_records(version, world, client):
    client.ask(producing(world, (0, batch(b"a", b"b"))))
    answer = client.ask(fetching(world, (0, 1), (1, 0)), version)
    parts = answer.responses[0].partitions
    assert values(parts[0].records) == [b"a", b"b"], "the whole batch, though the offset is inside it"
    assert (parts[0].high_watermark, parts[0].error_code, bytes(parts[1].records)) == (2, 0, b"")


def test_a_topic_that_is_named_by_an_unknown_id_is_told_so(world, client):
    assert (
        first(client.ask(producing(world, (0, batch(b"a")), topic="none"), 13)).error_code == Error.UNKNOWN_TOPIC_ID
    )
    assert first(client.ask(fetching(world, (0, 0), topic="none"), 13)).error_code == Error.UNKNOWN_TOPIC_ID


def test_a_partition_that_there_is_not_is_told_beside_the_others(world, client):
    answer = client.ask(producing(world, (0, batch(b"a")), (9, batch(b"b"))))
    assert [part.error_code for part in answer.responses[0].partition_responses] == [0, 3]
    answer = client.ask(fetching(world, (9, 0), (0, 0)))
    assert [part.error_code for part in answer.responses[0].partitions] == [3, 0]


def test_acks_that_nobody_knows_are_refused(world, client):
    assert first(client.ask(producing(world, (0, batch(b"a")), acks=2))).error_code == Error.INVALID_REQUIRED_ACKS
    assert bytes(first(client.ask(fetching(world, (0, 0)))).records) == b""


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"", Error.CORRUPT_MESSAGE),
        (b"garbage", Error.CORRUPT_MESSAGE),
        (batch(b"a")[:-1], Error.CORRUPT_MESSAGE),
        (batch(b"a") + b"x", Error.CORRUPT_MESSAGE),
        (batch(b"x" * 2_000_000), Error.MESSAGE_TOO_LARGE),
    ],
)
def test_bad_batches_are_refused_and_leave_nothing(records, code, world, client):
    assert first(client.ask(producing(world, (0, records)))).error_code == code
    assert first(client.ask(fetching(world, (0, 0)))).high_watermark == 0


def test_a_record_without_a_key_has_no_place_in_a_compacted_topic(world, client):
    world.ask(native.AlterTopicConfig("t", (native.TopicConfigEntry("cleanup.policy", "compact"),)))
    keyless = bytes(encode([(1, None, b"v", ())]))
    refused = first(client.ask(producing(world, (0, keyless))))
    assert (refused.error_code, len(refused.record_errors)) == (Error.INVALID_RECORD, 1)


def test_zstd_is_for_versions_that_know_it(world, client):
    packed = batch(b"a" * 100, codec=Codec.ZSTD)
    assert first(client.ask(producing(world, (0, packed)), 6)).error_code == Error.UNSUPPORTED_COMPRESSION_TYPE
    assert first(client.ask(producing(world, (0, packed)), 7)).error_code == 0
    assert first(client.ask(fetching(world, (0, 0)), 9)).error_code == Error.UNSUPPORTED_COMPRESSION_TYPE
    assert values(first(client.ask(fetching(world, (0, 0)), 10)).records) == [b"a" * 100]


def test_a_fetch_beyond_the_end_is_out_of_range(world, client):
    assert first(client.ask(fetching(world, (0, 5)))).error_code == Error.OFFSET_OUT_OF_RANGE


def test_a_leader_epoch_of_the_future_is_unknown(world, client):
    request = fetching(world, (0, 0))
    newer = fetch.FetchPartition(0, current_leader_epoch=4, partition_max_bytes=100)
    request.topics[0].partitions[0] = newer
    assert first(client.ask(request)).error_code == Error.UNKNOWN_LEADER_EPOCH


def test_a_fetch_session_is_never_known(world, client):
    answer = client.ask(fetching(world, (0, 0), session_id=5, session_epoch=3))
    assert answer.error_code == Error.FETCH_SESSION_ID_NOT_FOUND
    assert client.ask(fetching(world, (0, 0), session_epoch=0)).session_id == 0


def test_the_first_batch_comes_whole_and_the_limit_ends_the_rest(world, client):
    for number in (0, 1):
        client.ask(producing(world, (number, batch(b"x" * 5000))))
    request = fetching(world, (0, 0), (1, 0), max_bytes=1000)
    parts = client.ask(request).responses[0].partitions
    assert [bool(len(part.records)) for part in parts] == [True, False]


# Idempotence


def numbered(*sent: bytes, sequence: int, producer_id: int = 5, epoch: int = 0) -> bytes:
    return batch(*sent, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_that_is_sent_again_is_answered_with_its_first_offset(world, client):
    for sequence in range(5):
        client.ask(producing(world, (0, numbered(b"v%d" % sequence, sequence=sequence))))
    again = [first(client.ask(producing(world, (0, numbered(b"v%d" % n, sequence=n))))) for n in range(5)]
    assert [(part.error_code, part.base_offset) for part in again] == [(0, n) for n in range(5)]
    assert first(client.ask(fetching(world, (0, 0)))).high_watermark == 5


def test_a_batch_that_is_sent_again_is_known_after_a_restart(world):
    client = Client(world, RecordRequests)
    client.ask(producing(world, (0, numbered(b"a", b"b", sequence=0))))
    world.restart()
    client = Client(world, RecordRequests)
    again = first(client.ask(producing(world, (0, numbered(b"a", b"b", sequence=0)))))
    assert (again.error_code, again.base_offset) == (0, 0)
    following = first(client.ask(producing(world, (0, numbered(b"c", sequence=2)))))
    assert (following.error_code, following.base_offset) == (0, 2)


def test_a_gap_and_an_old_life_are_refused(world, client):
    client.ask(producing(world, (0, numbered(b"a", sequence=0, epoch=1))))
    gap = first(client.ask(producing(world, (0, numbered(b"c", sequence=2, epoch=1)))))
    assert gap.error_code == Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    old = first(client.ask(producing(world, (0, numbered(b"c", sequence=1, epoch=0)))))
    assert old.error_code == Error.INVALID_PRODUCER_EPOCH
    late = first(client.ask(producing(world, (0, numbered(b"c", sequence=1, epoch=2)))))
    assert late.error_code == Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert first(client.ask(producing(world, (0, numbered(b"c", sequence=0, epoch=2))))).error_code == 0


def test_a_sequence_goes_from_the_highest_to_zero(world, client):
    client.ask(producing(world, (0, numbered(b"a", b"b", sequence=2**31 - 2))))
    assert first(client.ask(producing(world, (0, numbered(b"c", sequence=0))))).base_offset == 2


# Offsets


@pytest.mark.parametrize("version", newest_and_older(2))
def test_offsets_are_listed_by_time_and_by_the_special_times(version, world, client):
    client.ask(producing(world, (0, batch(b"a", b"b", b"c", at_ms=1000))))
    asked = [list_offsets.ListOffsetsPartition(0, -1, at) for at in (-2, -1, 1001, 5000)]
    response = client.ask(
        list_offsets.ListOffsetsRequest(topics=[list_offsets.ListOffsetsTopic("t", asked)]), version
    )
    found = [(part.error_code, part.offset) for part in response.topics[0].partitions]
    assert found == [(0, 0), (0, 3), (0, 1), (0, -1)]


def test_the_highest_timestamp_has_an_offset_and_what_is_tiered_has_none(world, client):
    client.ask(producing(world, (0, batch(b"a", at_ms=9000))))
    client.ask(producing(world, (0, batch(b"b", at_ms=1000))))
    asked = [list_offsets.ListOffsetsPartition(0, -1, at) for at in (-3, -4, -5, -6)]
    response = client.ask(list_offsets.ListOffsetsRequest(topics=[list_offsets.ListOffsetsTopic("t", asked)]))
    found = [(part.timestamp, part.offset) for part in response.topics[0].partitions]
    assert found == [(9000, 0), (-1, 0), (-1, -1), (-1, -1)]


def test_offsets_of_what_there_is_not_are_refused_one_by_one(client):
    asked = [list_offsets.ListOffsetsPartition(number, -1, -1) for number in (0, 7)]
    topics = [list_offsets.ListOffsetsTopic("t", asked), list_offsets.ListOffsetsTopic("none", asked[:1])]
    response = client.ask(list_offsets.ListOffsetsRequest(topics=topics))
    assert [part.error_code for topic in response.topics for part in topic.partitions] == [0, 3, 3]


@pytest.mark.parametrize("version", newest_and_older(23))
def test_the_end_of_an_epoch_is_told(version, world, client):
    client.ask(producing(world, (0, batch(b"a", b"b"))))
    kind = offset_for_leader_epoch
    asked = [kind.OffsetForLeaderPartition(0, -1, 0), kind.OffsetForLeaderPartition(7, -1, 0)]
    topics = [kind.OffsetForLeaderTopic("t", asked)]
    answer = client.ask(kind.OffsetForLeaderEpochRequest(topics=topics), version)
    found = [(part.error_code, part.leader_epoch, part.end_offset) for part in answer.topics[0].partitions]
    assert found == [(0, 0, 2), (3, -1, -1)]

"""Every request that the broker serves, on a simulated disk."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from simulated import World

from rivven.broker import NEVER_US, BrokerStats
from rivven.broker.fetch import DECODED_BYTES_MAX, Reader
from rivven.limits import QUOTA_ENTITIES_MAX
from rivven.log import Log
from rivven.log.document import write_whole
from rivven.record import Codec, decode, encode, walk
from rivven.wire import CAPABILITIES, Capability
from rivven.wire import requests as ask
from rivven.wire import responses as tell


@pytest.fixture
def world() -> World:
    return World()


def values(response: object) -> list[bytes]:
    assert isinstance(response, tell.Messages)
    return [message.value for message in response.messages]


# Publishing


def test_a_publish_is_answered_only_once_it_is_durable(world: World) -> None:
    world.ask(ask.CreateTopic("t", 1))
    world.disk.auto_complete = False
    reply = world.send(ask.Publish("t", 0, b"k", b"v"))
    world.broker.turn()
    assert reply.response is None
    world.disk.step()
    world.broker.turn()
    assert reply.response == tell.Published(0, 0)


def test_publishes_of_one_turn_share_one_batch_and_one_sync(world: World) -> None:
    world.ask(ask.CreateTopic("t", 1))
    groups = world.broker.store.wal_stats.groups
    replies = [world.send(ask.Publish("t", 0, None, b"%d" % n)) for n in range(50)]
    world.settle()
    assert [reply.response for reply in replies] == [tell.Published(n, 0) for n in range(50)]
    assert world.broker.store.wal_stats.groups == groups + 1
    data = world.broker.store.log("t", 0).read(0, bytes_max=1 << 20)
    assert len(list(walk(data))) == 1


def test_a_publish_makes_a_missing_topic_and_a_consume_does_not(world: World) -> None:
    assert isinstance(world.ask(ask.Consume("new", 0, 0, 1)), tell.Error)
    assert isinstance(world.ask(ask.Publish("new", None, None, b"v")), tell.Published)
    assert world.ask(ask.GetMetadata("new")) == tell.Metadata("new", 3)


def test_keys_go_where_murmur2_says_and_keyless_ones_stick_together(world: World) -> None:
    world.ask(ask.CreateTopic("t", 7))
    keyed = {world.ask(ask.Publish("t", None, b"hello", b"v")).partition for _ in range(3)}
    assert keyed == {(2132663229 & 0x7FFFFFFF) % 7}
    keyless = {world.ask(ask.Publish("t", None, None, b"v")).partition for _ in range(5)}
    assert len(keyless) == 1
    world.clock.advance(ms=101)
    assert world.ask(ask.Publish("t", None, None, b"v")).partition not in keyless


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ask.Publish("t", 9, None, b"v"), "INVALID_PARTITION: Invalid partition 9: must be < 2"),
        (ask.Publish("bad/name", 0, None, b"v"), "INVALID_TOPIC_NAME"),
        (ask.Publish("__consumer_offsets", 0, None, b"v"), "INVALID_TOPIC_NAME"),
        (ask.Publish("t", 0, None, b"v" * (2 << 20)), "MESSAGE_TOO_LARGE"),
        (ask.Publish("keyed", 0, None, b"v"), "INVALID_RECORD"),
        (ask.Authenticate("u", "pw", False), "UNSUPPORTED: Authenticate"),
    ],
)
def test_what_cannot_be_done_says_why(world: World, request_: ask.Request, text: str) -> None:
    world.ask(ask.CreateTopic("t", 2))
    world.ask(ask.CreateTopic("keyed", 1))
    world.ask(ask.AlterTopicConfig("keyed", (ask.TopicConfigEntry("cleanup.policy", "compact"),)))
    response = world.ask(request_)
    assert isinstance(response, tell.Error)
    assert text in response.message


def test_records_keep_their_headers_and_timestamps(world: World) -> None:
    record = ask.NewRecord(b"k", b"v", (ask.Header("h", b"1"), ask.Header("h", None)), 1234)
    assert world.ask(ask.PublishRecords("t", 0, (record,))) == tell.PublishedBatch(0, 0, 1)
    (message,) = world.ask(ask.Consume("t", 0, 0, 10)).messages
    assert (message.timestamp_ms, [(h.name, h.value) for h in message.headers]) == (1234, [("h", b"1"), ("h", b"")])


def test_a_full_disk_is_told_and_reading_goes_on(world: World) -> None:
    world.ask(ask.Publish("t", 0, None, b"before"))
    world.disk.capacity_bytes = sum(map(len, world.disk.snapshot().values()))
    response = world.ask(ask.Publish("t", 0, None, b"x" * 20_000))
    assert isinstance(response, tell.Error)
    assert response.message.startswith("DISK_FULL")
    assert values(world.ask(ask.Consume("t", 0, 0, 10))) == [b"before"]
    world.disk.capacity_bytes = None
    assert world.ask(ask.Publish("t", 0, None, b"after")) == tell.Published(1, 0)


# Opaque batches


def produce(topic: str, partition: int, batch: bytes | bytearray) -> ask.ProduceBatches:
    return ask.ProduceBatches(-1, 1000, (ask.TopicBatches(topic, (ask.PartitionBatches(partition, batch),)),))


def fetch(topic: str, partition: int, offset: int, *, wait_ms: int = 0, max_bytes: int = 1 << 20) -> ask.FetchBatches:
    part = ask.PartitionFetch(partition, offset, max_bytes)
    return ask.FetchBatches(wait_ms, 1, max_bytes, 0, (ask.TopicFetch(topic, (part,)),))


def test_batches_come_back_as_they_were_but_for_their_offsets(world: World) -> None:
    world.ask(ask.CreateTopic("t", 1))
    batch = encode([(5, b"k", b"v" * 200, (("h", b"x"),)) for _ in range(10)], codec=Codec.ZSTD)
    for turn in range(2):
        produced = world.ask(produce("t", 0, bytearray(batch))).topics[0].partitions[0]
        assert (produced.error, produced.base_offset) == (0, turn * 10)
    fetched = world.ask(fetch("t", 0, 10)).topics[0].partitions[0]
    assert fetched.high_watermark == 20
    assert [record.offset for record in decode(fetched.batches)] == list(range(10, 20))
    assert bytes(fetched.batches[21:]) == bytes(batch[21:])


# Places, for clients on the same machine


def test_what_is_found_is_what_is_fetched_where_there_are_no_places(world: World) -> None:
    world.ask(ask.CreateTopic("t", 2))
    world.ask(ask.Publish("t", 0, None, b"v"))
    for is_local in (True, False):
        world.session.is_local = is_local
        request = fetch("t", 0, 0)
        found = world.ask(ask.FindBatches(*msgspec.structs.astuple(request))).topics[0].partitions[0]
        fetched = world.ask(request).topics[0].partitions[0]
        assert (bytes(found.batches), found.places) == (bytes(fetched.batches), ())
        assert (found.high_watermark, found.log_start_offset) == (1, 0)


def test_what_is_sent_and_has_no_place_is_sent_in_small_parts() -> None:
    world = World(policy="none")
    world.ask(ask.CreateTopic("t", 1))
    for _ in range(8):
        world.ask(produce("t", 0, encode([(5, None, bytes(900_000), ())])))
    world.session.is_local = True
    request = fetch("t", 0, 0, max_bytes=48 << 20)
    found = world.ask(ask.FindBatches(*msgspec.structs.astuple(request))).topics[0].partitions[0]
    assert 1_000_000 < len(found.batches) <= 2 << 20
    assert world.ask(request).topics[0].partitions[0].batches == found.batches


def test_only_who_is_near_is_offered_places(world: World) -> None:
    hello = ask.Handshake(2, "c", int(CAPABILITIES))
    assert world.ask(hello).capabilities == CAPABILITIES & ~Capability.PLACES
    world.session.is_local = True
    assert world.ask(hello).capabilities == CAPABILITIES
    assert world.ask(ask.Handshake(2, "c", int(Capability.BATCHES))).capabilities == Capability.BATCHES


GOOD = bytes(encode([(5, b"k", b"v", ())]))


@pytest.mark.parametrize("batch", [GOOD[:-1], GOOD + b"x", b"", GOOD[:30] + b"\xff" + GOOD[31:]])
def test_a_bad_batch_is_refused_whole(world: World, batch: bytes) -> None:
    world.ask(ask.CreateTopic("t", 1))
    produced = world.ask(produce("t", 0, batch)).topics[0].partitions[0]
    assert produced.error
    assert world.ask(ask.GetOffsetBounds("t", 0)) == tell.OffsetBounds(0, 0)


def test_the_topic_may_insist_on_a_codec_and_on_its_own_clock(world: World) -> None:
    world.ask(ask.CreateTopic("t", 1))
    entries = (
        ask.TopicConfigEntry("compression.type", "lz4"),
        ask.TopicConfigEntry("message.timestamp.type", "LogAppendTime"),
    )
    world.ask(ask.AlterTopicConfig("t", entries))
    world.ask(produce("t", 0, encode([(5, b"k", b"v" * 100, ())])))
    fetched = world.ask(fetch("t", 0, 0)).topics[0].partitions[0]
    ((_, header),) = walk(fetched.batches)
    assert header.codec is Codec.LZ4
    assert decode(fetched.batches)[0].timestamp_ms == world.clock.now_ms()


def test_a_fetch_names_what_it_cannot_read(world: World) -> None:
    world.ask(ask.CreateTopic("t", 1))
    unknown = world.ask(fetch("nope", 0, 0)).topics[0].partitions[0]
    beyond = world.ask(fetch("t", 0, 99)).topics[0].partitions[0]
    assert unknown.error == 21
    assert beyond.error == 10


def test_a_batch_beside_the_transaction_that_its_request_names_is_refused(world: World) -> None:
    world.ask(ask.CreateTopic("t", 1))
    request = ask.ProduceBatches(-1, 1, (ask.TopicBatches("t", (ask.PartitionBatches(0, GOOD),)),), "txn")
    assert "not part of a transaction" in world.ask(request).topics[0].partitions[0].error_message
    assert world.ask(ask.GetOffsetBounds("t", 0)) == tell.OffsetBounds(0, 0)


# Few records out of large batches


class Counting:
    """A log that counts how often it is read."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, offset: int, *, bytes_max: int, upto: int | None = None, cached: bool = False) -> memoryview:
        self.reads += 1
        return self._log.read(offset, bytes_max=bytes_max, upto=upto, cached=cached)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_record_at_a_time_out_of_one_batch_reads_the_batch_once(world: World, codec: Codec) -> None:
    world.ask(ask.CreateTopic("t", 1))
    world.ask(produce("t", 0, encode([(n, None, b"%d" % n, ()) for n in range(500)], codec=codec)))
    log = Counting(world.broker.store.log("t", 0))
    reader = Reader(BrokerStats())
    found = [
        reader.records(log, offset, records_max=1, bytes_max=100, isolation=None)[0][0].value  # type: ignore[arg-type]
        for offset in range(500)
    ]
    assert found == [b"%d" % n for n in range(500)]
    assert log.reads == 1


def test_what_is_kept_of_batches_is_bounded_and_ends_with_the_turn(world: World) -> None:
    world.ask(ask.CreateTopic("t", 40))
    reader = Reader(BrokerStats())
    logs = [world.broker.store.log("t", number) for number in range(40)]
    for number in range(40):
        world.ask(produce("t", number, encode([(0, None, bytes(1000), ())] * 900, codec=Codec.ZSTD)))
    for log in logs:
        reader.records(log, 0, records_max=1, bytes_max=100, isolation=None)
        assert reader.decoded_bytes <= DECODED_BYTES_MAX
    bomb = encode([(0, None, bytes(40 << 20), ())], codec=Codec.ZSTD)
    world.ask(produce("t", 0, bomb))
    ((record,), _) = reader.records(logs[0], 900, records_max=1, bytes_max=100, isolation=None)
    assert len(record.value or b"") > DECODED_BYTES_MAX
    assert reader.decoded_bytes > DECODED_BYTES_MAX, "the next request of this turn may want it"
    reader.end_turn()
    assert reader.decoded_bytes == 0


def test_a_reader_sees_neither_what_was_deleted_nor_a_topic_of_the_same_name(world: World) -> None:
    world.ask(ask.PublishBatch("t", 0, tuple(ask.BatchRecord(None, b"%d" % n) for n in range(5))))
    assert values(world.ask(ask.Consume("t", 0, 1, 1))) == [b"1"]
    world.ask(ask.DeleteRecords("t", (ask.PartitionOffset(0, 3),)))
    assert values(world.ask(ask.Consume("t", 0, 1, 1))) == [b"3"]
    world.ask(ask.DeleteTopic("t"))
    world.ask(ask.Publish("t", 0, None, b"new"))
    assert values(world.ask(ask.Consume("t", 0, 0, 5))) == [b"new"]


# Waiting


def test_whoever_waits_for_the_disk_hears_of_a_sync_that_another_request_needed(world: World) -> None:
    for topic in ("t", "other"):
        world.ask(ask.CreateTopic(topic, 1))
    world.ask(ask.Publish("other", 0, None, b"v"))
    written = world.send(ask.Publish("t", 0, None, b"v"))
    polling = world.send(ask.Consume("t", 0, 0, 10, None, 5000))
    world.broker.turn()
    assert written.response is None
    world.send(ask.DeleteRecords("other", (ask.PartitionOffset(0, 1),)))
    world.broker.turn()
    assert isinstance(written.response, tell.Published)
    assert values(polling.response) == [b"v"]


def test_a_long_poll_is_answered_when_something_comes(world: World) -> None:
    world.ask(ask.CreateTopic("t", 1))
    waiting = [world.send(ask.Consume("t", 0, 0, 10, None, 5000)), world.send(fetch("t", 0, 0, wait_ms=5000))]
    world.settle()
    assert [reply.response for reply in waiting] == [None, None]
    assert world.broker.due_us < NEVER_US
    world.ask(ask.Publish("t", 0, None, b"v"))
    assert values(waiting[0].response) == [b"v"]
    assert isinstance(waiting[1].response, tell.FetchedBatches)
    assert len(waiting[1].response.topics[0].partitions[0].batches)
    assert world.broker.waiting == 0


def test_a_long_poll_ends_at_its_deadline_with_nothing(world: World) -> None:
    world.ask(ask.CreateTopic("t", 1))
    reply = world.send(ask.Consume("t", 0, 0, 10, None, 5000))
    world.clock.advance(ms=4999)
    world.settle()
    assert reply.response is None
    world.clock.advance(ms=1)
    world.settle()
    assert values(reply.response) == []


def test_deleting_a_topic_answers_whoever_waits_for_it(world: World) -> None:
    world.ask(ask.CreateTopic("t", 1))
    reply = world.send(ask.Consume("t", 0, 0, 10, None, 5000))
    assert world.ask(ask.DeleteTopic("t")) == tell.TopicDeleted()
    assert reply.response is not None


# Topics and offsets


def test_topics_are_made_listed_changed_and_deleted(world: World) -> None:
    assert world.ask(ask.CreateTopic("t", None)) == tell.TopicCreated("t", 3)
    assert "exists" in world.ask(ask.CreateTopic("t", 1)).message
    assert "INVALID_PARTITION_COUNT" in world.ask(ask.CreateTopic("u", 0)).message
    assert world.ask(ask.CreatePartitions("t", 5)) == tell.PartitionsCreated("t", 5)
    assert "INVALID_PARTITIONS" in world.ask(ask.CreatePartitions("t", 5)).message
    assert world.ask(ask.ListTopics()) == tell.Topics(("t",))
    assert world.ask(ask.DeleteTopic("t")) == tell.TopicDeleted()
    assert world.ask(ask.DeleteTopic("t")) == tell.Error("Topic not found: t")


def test_topic_configuration_survives_a_restart_and_names_mistakes(world: World) -> None:
    world.ask(ask.CreateTopic("t", 1))
    entry = ask.TopicConfigEntry("retention.ms", "60000")
    assert world.ask(ask.AlterTopicConfig("t", (entry,))) == tell.TopicConfigAltered("t", 1)
    wrong = world.ask(ask.AlterTopicConfig("t", (ask.TopicConfigEntry("retention.msec", "1"),)))
    assert "did you mean retention.ms" in wrong.message
    world.restart()
    (described,) = world.ask(ask.DescribeTopicConfigs(("t",))).configs
    assert described.configs["retention.ms"] == tell.TopicConfigValue("60000", False, False, False)
    assert described.configs["segment.bytes"].is_default


def test_the_nodes_own_defaults_apply_to_topics_that_chose_nothing_also_when_they_change() -> None:
    world = World(defaults={"segment.bytes": "4096"})
    world.ask(ask.CreateTopic("t", 1))
    world.ask(ask.CreateTopic("chosen", 1))
    world.ask(ask.AlterTopicConfig("chosen", (ask.TopicConfigEntry("segment.bytes", "2048"),)))

    def segment_bytes() -> list[tuple[str, bool, int]]:
        described = world.ask(ask.DescribeTopicConfigs(("t", "chosen"))).configs
        found = [(each.topic, each.configs["segment.bytes"]) for each in described]
        logs = world.broker.store
        return [(each.value, each.is_default, logs.log(name, 0).config.segment_bytes) for name, each in found]

    assert segment_bytes() == [("4096", True, 4096), ("2048", False, 2048)]
    world.restart(defaults={"segment.bytes": "8192"})
    assert segment_bytes() == [("8192", True, 8192), ("2048", False, 2048)]
    world.ask(ask.AlterTopicConfig("chosen", (ask.TopicConfigEntry("segment.bytes", None),)))
    assert segment_bytes() == [("8192", True, 8192)] * 2


def test_offsets_are_found_by_bounds_and_by_time(world: World) -> None:
    for place in range(3):
        world.ask(ask.PublishRecords("t", 0, (ask.NewRecord(None, b"v", (), 1000 * place),)))
    assert world.ask(ask.GetOffsetForTimestamp("t", 0, 1500)) == tell.OffsetForTimestamp(2)
    assert world.ask(ask.GetOffsetForTimestamp("t", 0, 9999)) == tell.OffsetForTimestamp(None)
    deleted = world.ask(ask.DeleteRecords("t", (ask.PartitionOffset(0, 2), ask.PartitionOffset(0, 99))))
    assert [(r.low_watermark, r.error is None) for r in deleted.results] == [(2, True), (2, False)]
    assert world.ask(ask.GetOffsetBounds("t", 0)) == tell.OffsetBounds(2, 3)


def test_committed_offsets_survive_a_restart_and_can_be_deleted(world: World) -> None:
    world.ask(ask.PublishBatch("t", 0, tuple(ask.BatchRecord(None, b"v") for _ in range(5))))
    assert world.ask(ask.CommitOffset("g", "t", 0, 4)) == tell.OffsetCommitted()
    assert "OFFSET_OUT_OF_RANGE" in world.ask(ask.CommitOffset("g", "t", 0, 6)).message
    assert "UNKNOWN_TOPIC" in world.ask(ask.CommitOffset("g", "nope", 0, 0)).message
    world.restart()
    assert world.ask(ask.GetOffset("g", "t", 0)) == tell.CommittedOffset(4)
    assert world.ask(ask.GetOffset("other", "t", 0)) == tell.CommittedOffset(None)
    assert world.ask(ask.ListGroups()) == tell.Groups(("g",))
    assert world.ask(ask.DescribeGroup("g")) == tell.GroupDescription("g", {"t": {0: 4}})
    assert world.ask(ask.DeleteGroup("g")) == tell.GroupDeleted()
    world.restart()
    assert world.ask(ask.ListGroups()) == tell.Groups(())


def test_what_is_not_durable_yet_cannot_be_committed(world: World) -> None:
    world.ask(ask.Publish("t", 0, None, b"v"))
    world.disk.auto_complete = False
    world.send(ask.Publish("t", 0, None, b"w"))
    world.broker.turn()
    assert world.broker.store.log("t", 0).end == 2
    early = world.send(ask.CommitOffset("g", "t", 0, 2))
    assert isinstance(early.response, tell.Error)
    assert "OFFSET_OUT_OF_RANGE: offset 2 exceeds latest offset 1" in early.response.message
    world.settle()
    assert world.ask(ask.CommitOffset("g", "t", 0, 2)) == tell.OffsetCommitted()


def test_deleting_a_topic_deletes_what_was_committed_for_it_and_nothing_else(world: World) -> None:
    for topic in ("t", "u"):
        world.ask(ask.PublishBatch(topic, 0, tuple(ask.BatchRecord(None, b"v") for _ in range(5))))
    for group in ("g", "h"):
        world.ask(ask.CommitOffset(group, "t", 0, 4))
    world.ask(ask.CommitOffset("g", "u", 0, 3))
    underway = world.send(ask.CommitOffset("late", "t", 0, 5))
    assert world.ask(ask.DeleteTopic("t")) == tell.TopicDeleted()
    assert underway.response == tell.OffsetCommitted()
    for _ in range(2):
        assert world.ask(ask.ListGroups()) == tell.Groups(("g",))
        assert world.ask(ask.DescribeGroup("g")) == tell.GroupDescription("g", {"u": {0: 3}})
        world.restart()
    world.ask(ask.CreateTopic("t", 1))
    assert world.ask(ask.GetOffset("g", "t", 0)) == tell.CommittedOffset(None)


def test_offsets_of_a_topic_that_went_in_a_crash_go_at_the_next_start(world: World) -> None:
    for topic in ("t", "u"):
        world.ask(ask.Publish(topic, 0, None, b"v"))
        world.ask(ask.CommitOffset("g", topic, 0, 1))
    world.disk.auto_complete = False
    reply = world.send(ask.DeleteTopic("t"))
    world.broker.turn()
    assert reply.response is None, "it waits until the offsets are gone for good"
    world.restart()
    world.disk.auto_complete = True
    assert world.ask(ask.ListTopics()) == tell.Topics(("u",))
    assert world.ask(ask.DescribeGroup("g")) == tell.GroupDescription("g", {"u": {0: 1}})
    world.restart()
    world.ask(ask.CreateTopic("t", 1))
    assert world.ask(ask.GetOffset("g", "t", 0)) == tell.CommittedOffset(None)


# Limits


def test_there_is_a_most_of_entities_with_quotas(world: World) -> None:
    def limits(names: range, value: int | None) -> tuple[ask.QuotaAlteration, ...]:
        return tuple(ask.QuotaAlteration("user", f"u{name}", "request_rate", value) for name in names)

    assert world.ask(ask.AlterQuotas(limits(range(QUOTA_ENTITIES_MAX), 9))).altered_count == QUOTA_ENTITIES_MAX
    refused = world.ask(ask.AlterQuotas(limits(range(QUOTA_ENTITIES_MAX, QUOTA_ENTITIES_MAX + 1), 9)))
    assert isinstance(refused, tell.Error)
    assert refused.message.startswith(f"LIMIT_REACHED: there are {QUOTA_ENTITIES_MAX} users")
    assert world.ask(ask.AlterQuotas(limits(range(1), 10))) == tell.QuotasAltered(1)
    assert world.ask(ask.AlterQuotas(limits(range(1), None))) == tell.QuotasAltered(1)
    assert world.ask(ask.AlterQuotas(limits(range(7, 8), 1))) == tell.QuotasAltered(1)


# Quotas and the handshake


def test_a_client_over_its_quota_is_held_up_and_quotas_survive_a_restart(world: World) -> None:
    change = ask.QuotaAlteration("client-id", "greedy", "produce_bytes_rate", 1000)
    assert world.ask(
        ask.AlterQuotas((change, ask.QuotaAlteration("planet", "x", "produce_bytes_rate", 1)))
    ) == tell.QuotasAltered(1)
    world.restart()
    world.ask(ask.Handshake(2, "greedy"))
    world.ask(ask.Publish("t", 0, None, b"x" * 900))
    assert world.session.muted_until_us == 0
    world.ask(ask.Publish("t", 0, None, b"x" * 1100))
    assert world.session.muted_until_us == world.clock.now_us() + 1_000_000
    (row,) = world.ask(ask.DescribeQuotas(())).entries
    assert row == tell.QuotaEntry("client-id", "greedy", {"produce_bytes_rate": 1000})


@pytest.mark.parametrize("name", ["quotas.json", "cluster.json"])
def test_a_document_that_cannot_be_read_is_told(world: World, caplog: pytest.LogCaptureFixture, name: str) -> None:
    world.ask(ask.AlterQuotas((ask.QuotaAlteration("client-id", "greedy", "produce_bytes_rate", 1000),)))
    for copy in (name, f"{name}.bak"):
        write_whole(world.disk, copy, b"[1]")
    world.restart()
    assert f"{name} and its copy cannot be read" in caplog.text


def test_the_handshake_agrees_on_what_both_know(world: World) -> None:
    assert world.ask(ask.Handshake(2, "c", 1)) == tell.HandshakeResult(2, True, "OK", 1)
    assert world.ask(ask.Handshake(1, "c")) == tell.HandshakeResult(2, False, "Version mismatch: client=1, server=2")


@pytest.mark.parametrize("policy", ["every_write", "every_n_writes(3)", "none"])
def test_whatever_the_policy_a_round_trip_works_and_survives_a_kill(policy: str) -> None:
    world = World(policy=policy)
    for place in range(10):
        assert world.ask(ask.Publish("t", 0, None, b"%d" % place)) == tell.Published(place, 0)
    world.restart()
    assert values(world.ask(ask.Consume("t", 0, 0, 100))) == [b"%d" % place for place in range(10)]

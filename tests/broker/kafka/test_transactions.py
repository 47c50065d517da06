"""Transactions in Kafka's words: both versions of the protocol, what readers see, and what a crash leaves."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Client, versions
from simulated import World

from rivven.broker.kafka import Kafka
from rivven.coordinator import Commit, CommittedOffset
from rivven.model import Epoch, ProducerId, TopicPartition
from rivven.record import decode, encode, walk
from rivven.wire import requests as native
from rivven.wire.kafka import Error, decode_request, encode_request
from rivven.wire.kafka.made import add_partitions_to_txn as add
from rivven.wire.kafka.made import (
    describe_producers,
    describe_transactions,
    fetch,
    list_offsets,
    list_transactions,
    offset_fetch,
    produce,
    txn_offset_commit,
    write_txn_markers,
)
from rivven.wire.kafka.made.add_offsets_to_txn import AddOffsetsToTxnRequest
from rivven.wire.kafka.made.end_txn import EndTxnRequest
from rivven.wire.kafka.made.init_producer_id import InitProducerIdRequest


class All:
    def __init__(self, broker: Any) -> None:
        self._kafka = Kafka(broker)

    def handlers(self) -> Any:
        return self._kafka.load()


class Producer:
    """A transactional producer of the second version, with its numbers in order."""

    def __init__(self, world: World, name: str = "x", *, timeout_ms: int = 60_000) -> None:
        self.world, self.name = world, name
        self.client = Client(world, All)
        answer = self.client.ask(InitProducerIdRequest(name, timeout_ms))
        while answer.error_code == Error.CONCURRENT_TRANSACTIONS:
            answer = self.client.ask(InitProducerIdRequest(name, timeout_ms))
        assert answer.error_code == 0, answer
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences: dict[int, int] = {}

    def send(self, *values: bytes, partition: int = 0, version: int | None = None) -> int:
        """The error code."""
        sequence = self.sequences.get(partition, 0)
        rows = [(1000, b"k", value, ()) for value in values]
        numbers = {"producer_id": self.id, "producer_epoch": self.epoch, "base_sequence": sequence}
        batch = bytes(encode(rows, transactional=True, **numbers))
        data = produce.PartitionProduceData(partition, batch)
        topic = produce.TopicProduceData("t", self.world.broker.topics.get("t").id_bytes, [data])
        answer = self.client.ask(produce.ProduceRequest(self.name, -1, 1000, [topic]), version)
        code = int(answer.responses[0].partition_responses[0].error_code)
        if code == 0:
            self.sequences[partition] = sequence + len(values)
        return code

    def end(self, commit: bool, version: int | None = None) -> int:
        answer = self.client.ask(EndTxnRequest(self.name, self.id, self.epoch, commit), version)
        if answer.error_code == 0 and answer.producer_id >= 0:
            if answer.producer_epoch != self.epoch or answer.producer_id != self.id:
                self.sequences.clear()
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)


@pytest.fixture
def world() -> World:
    world = World(host="h", port=9)
    world.ask(native.CreateTopic("t", 2))
    return world


def seen(world: World, *, committed: bool, partition: int = 0) -> list[bytes]:
    """What a reader makes of the partition, aborted batches left out as its client does."""
    want = fetch.FetchPartition(partition, partition_max_bytes=1 << 20)
    topic = fetch.FetchTopic("t", world.broker.topics.get("t").id_bytes, [want])
    answer = Client(world, All).ask(fetch.FetchRequest(topics=[topic], isolation_level=int(committed)))
    found = answer.responses[0].partitions[0]
    assert found.error_code == 0
    aborted = {entry.producer_id: entry.first_offset for entry in found.aborted_transactions or ()}
    values, dropping = [], set()
    for place, header in walk(found.records):
        if header.control:
            dropping.discard(header.producer_id)
            aborted = {who: at for who, at in aborted.items() if at > header.base_offset or who != header.producer_id}
            continue
        if header.transactional and aborted.get(header.producer_id, 1 << 62) <= header.base_offset:
            dropping.add(header.producer_id)
        if not committed or header.producer_id not in dropping:
            values += [record.value for record in decode(found.records, place)]
    return values


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(world):
    producer = Producer(world)
    assert producer.send(b"a", b"b") == 0
    assert seen(world, committed=True) == []
    assert producer.end(commit=True) == 0
    assert producer.send(b"c") == 0
    assert producer.end(commit=False) == 0
    assert producer.send(b"d") == 0
    assert seen(world, committed=True) == [b"a", b"b"]
    assert seen(world, committed=False) == [b"a", b"b", b"c", b"d"]
    assert producer.end(commit=True) == 0
    assert seen(world, committed=True) == [b"a", b"b", b"d"]


def test_the_second_version_takes_the_producer_to_its_next_epoch_with_every_end(world):
    producer = Producer(world)
    producer.send(b"a")
    before = producer.epoch
    late = EndTxnRequest("x", producer.id, before, False)
    producer.end(commit=True)
    assert producer.epoch == before + 1
    producer.send(b"b")
    assert producer.client.ask(late).error_code != 0, "an end that is late must not hit the next transaction"
    producer.end(commit=True)
    assert seen(world, committed=True) == [b"a", b"b"]


@pytest.mark.parametrize("version", [version for _, version in versions(24)])
def test_the_first_version_adds_its_partitions_before(world, version):
    producer = Producer(world)
    assert producer.send(b"a", version=11) != 0, "nobody has added the partition"
    topics = [add.AddPartitionsToTxnTopic("t", [0])]
    whom = ("x", producer.id, producer.epoch)
    request = add.AddPartitionsToTxnRequest([add.AddPartitionsToTxnTransaction(*whom, False, topics)], *whom, topics)
    answer = producer.client.ask(request, version)
    results = answer.results_by_transaction[0].topic_results if version >= 4 else answer.results_by_topic_v3_and_below
    assert results[0].results_by_partition[0].partition_error_code == 0
    assert producer.send(b"a", version=11) == 0
    epoch = producer.epoch
    assert producer.end(commit=True, version=4) == 0
    assert producer.epoch == epoch
    assert seen(world, committed=True) == [b"a"]


def test_a_partition_that_there_is_not_spoils_the_whole_request(world):
    producer = Producer(world)
    topics = [add.AddPartitionsToTxnTopic("t", [0, 9])]
    request = add.AddPartitionsToTxnRequest([], "x", producer.id, producer.epoch, topics)
    (topic,) = producer.client.ask(request, 3).results_by_topic_v3_and_below
    codes = [part.partition_error_code for part in topic.results_by_partition]
    assert codes == [Error.OPERATION_NOT_ATTEMPTED, Error.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("version", [version for _, version in versions(26)])
def test_a_transaction_ends_in_every_version(world, version):
    producer = Producer(world)
    producer.send(b"a")
    assert producer.end(commit=True, version=version) == 0
    assert seen(world, committed=True) == [b"a"]


def test_who_takes_over_an_id_ends_what_was_open_and_fences_who_had_it(world):
    old = Producer(world)
    old.send(b"zombie")
    new = Producer(world)
    assert old.send(b"more") == Error.INVALID_PRODUCER_EPOCH
    assert old.end(commit=True) == Error.PRODUCER_FENCED
    assert old.client.ask(EndTxnRequest("x", old.id, old.epoch, True), 1).error_code == Error.INVALID_PRODUCER_EPOCH
    new.send(b"new")
    new.end(commit=True)
    assert seen(world, committed=True) == [b"new"]


def test_a_transaction_that_takes_too_long_is_aborted(world):
    producer = Producer(world, timeout_ms=5_000)
    producer.send(b"slow")
    world.clock.advance(6_000)
    world.settle()
    world.settle()
    assert producer.end(commit=True) != 0
    assert seen(world, committed=True) == []
    stable = [list_offsets.ListOffsetsPartition(0, -1, -1)]
    asked = list_offsets.ListOffsetsRequest(isolation_level=1, topics=[list_offsets.ListOffsetsTopic("t", stable)])
    assert producer.client.ask(asked).topics[0].partitions[0].offset == 2, "the marker took an offset, and ended it"


def test_a_verdict_survives_a_kill_and_an_open_transaction_does_too(world):
    done, half = Producer(world, "done"), Producer(world, "half")
    done.send(b"a")
    half.send(b"b", partition=1)
    done.end(commit=True)
    world.restart()
    half.client = Client(world, All)
    assert seen(world, committed=True) == [b"a"]
    assert seen(world, committed=True, partition=1) == []
    assert half.end(commit=True) == 0
    assert seen(world, committed=True, partition=1) == [b"b"]


# Offsets


def commit_offsets(producer: Producer, offset: int, version: int) -> int:
    kind = txn_offset_commit
    parts = [kind.TxnOffsetCommitRequestPartition(0, offset, -1, "m")]
    topics = [kind.TxnOffsetCommitRequestTopic("t", parts)]
    asked = kind.TxnOffsetCommitRequest("x", "g", producer.id, producer.epoch, topics=topics)
    return int(producer.client.ask(asked, version).topics[0].partitions[0].error_code)


def committed_offset(world: World, *, stable: bool = False) -> tuple[int, int]:
    topics = [offset_fetch.OffsetFetchRequestTopics("t", world.broker.topics.get("t").id_bytes, [0])]
    groups = [offset_fetch.OffsetFetchRequestGroup("g", topics=topics)]
    answer = Client(world, All).ask(offset_fetch.OffsetFetchRequest(groups=groups, require_stable=stable))
    part = answer.groups[0].topics[0].partitions[0]
    return part.committed_offset, part.error_code


@pytest.mark.parametrize("version", [version for _, version in versions(28)])
def test_offsets_count_when_their_transaction_commits(world, version):
    producer = Producer(world)
    if version < 5:
        assert commit_offsets(producer, 3, version) != 0, "the group is not part of it"
        asked = AddOffsetsToTxnRequest("x", producer.id, producer.epoch, "g")
        assert producer.client.ask(asked).error_code == 0
    assert commit_offsets(producer, 3, version) == 0
    assert committed_offset(world) == (-1, 0)
    assert committed_offset(world, stable=True)[1] == Error.UNSTABLE_OFFSET_COMMIT
    assert producer.end(commit=True) == 0
    assert committed_offset(world, stable=True) == (3, 0)
    world.restart()
    assert committed_offset(world) == (3, 0)


def test_offsets_of_an_aborted_transaction_are_forgotten_also_by_a_restart(world):
    producer = Producer(world)
    commit_offsets(producer, 3, 5)
    producer.end(commit=True)
    commit_offsets(producer, 7, 5)
    producer.end(commit=False)
    assert committed_offset(world, stable=True) == (3, 0)
    world.restart()
    assert committed_offset(world, stable=True) == (3, 0)


# What tools look at


def test_transactions_are_listed_and_described(world):
    producer = Producer(world)
    producer.send(b"a", partition=1)
    client = producer.client
    (one,) = client.ask(list_transactions.ListTransactionsRequest(["Ongoing"])).transaction_states
    assert (one.transactional_id, one.producer_id) == ("x", producer.id)
    assert (
        client.ask(list_transactions.ListTransactionsRequest(["Ongoing"], [producer.id + 1])).transaction_states == []
    )
    odd = client.ask(list_transactions.ListTransactionsRequest(["Odd"]))
    assert odd.unknown_state_filters == ["Odd"]
    bad = client.ask(list_transactions.ListTransactionsRequest(transactional_id_pattern="(a+)+b"))
    assert bad.error_code == Error.INVALID_REGULAR_EXPRESSION
    asked = describe_transactions.DescribeTransactionsRequest(["x", "none"])
    found, missing = client.ask(asked).transaction_states
    assert (found.transaction_state, found.topics[0].topic, found.topics[0].partitions) == ("Ongoing", "t", [1])
    assert missing.error_code == Error.TRANSACTIONAL_ID_NOT_FOUND
    topics = [describe_producers.TopicRequest("t", [1])]
    (part,) = client.ask(describe_producers.DescribeProducersRequest(topics)).topics[0].partitions
    (state,) = part.active_producers
    assert (state.producer_id, state.current_txn_start_offset, state.last_sequence) == (producer.id, 0, 0)


def test_an_operator_ends_only_what_nobody_else_would(world):
    producer = Producer(world)
    producer.send(b"a")
    kind = write_txn_markers
    topics = [kind.WritableTxnMarkerTopic("t", [0])]
    asked = kind.WriteTxnMarkersRequest([kind.WritableTxnMarker(producer.id, producer.epoch, False, topics)])
    (result,) = producer.client.ask(asked).markers
    assert result.topics[0].partitions[0].error_code == Error.INVALID_TXN_STATE
    log = world.broker.store.log("t", 1)
    stray = encode([(1, b"k", b"stray", ())], producer_id=999, producer_epoch=0, base_sequence=0, transactional=True)
    world.broker._publisher.append_batches(log, memoryview(stray), lambda *_: None, lambda *_: None)
    world.settle()
    assert [one.producer_id for one in world.broker.transactions.hanging()] == [999]
    topics = [kind.WritableTxnMarkerTopic("t", [1])]
    asked = kind.WriteTxnMarkersRequest([kind.WritableTxnMarker(999, 0, False, topics)])
    (result,) = producer.client.ask(asked).markers
    assert result.topics[0].partitions[0].error_code == 0
    assert world.broker.transactions.hanging() == []


def test_offsets_belong_to_the_transaction_that_commits_them(world):
    """It writes to `__consumer_offsets`, which whoever looks for hanging ones must know."""
    producer = Producer(world)
    assert commit_offsets(producer, 3, 5) == 0
    assert world.broker.transactions.hanging() == []
    (found,) = producer.client.ask(describe_transactions.DescribeTransactionsRequest(["x"])).transaction_states
    home = world.broker.groups.log_of("g").partition
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [(home.topic, [home.partition])]
    assert (found.groups, found.label, found.owner, found.sequence) == (["g"], "", "", -1)
    assert end_by_hand(producer, home.topic, home.partition, producer.id, producer.epoch) == Error.INVALID_TXN_STATE
    assert producer.end(commit=True) == 0
    assert committed_offset(world, stable=True) == (3, 0)


def end_by_hand(producer: Producer, topic: str, number: int, whose: int, epoch: int) -> int:
    """The error code of an operator's abort."""
    kind = write_txn_markers
    marker = kind.WritableTxnMarker(whose, epoch, False, [kind.WritableTxnMarkerTopic(topic, [number])])
    (result,) = producer.client.ask(kind.WriteTxnMarkersRequest([marker])).markers
    return int(result.topics[0].partitions[0].error_code)


def test_offsets_that_nobody_will_commit_are_given_up_by_an_operator(world):
    producer = Producer(world)
    home = world.broker.groups.log_of("g").partition
    offsets = ((TopicPartition("t", 0), CommittedOffset(7, committed_ms=1)),)
    lost = Commit("g", offsets, unchecked=True, producer_id=ProducerId(999), producer_epoch=Epoch(0))
    world.broker.groups.ask(lost, lambda _: None)
    world.settle()
    assert committed_offset(world, stable=True)[1] == Error.UNSTABLE_OFFSET_COMMIT
    assert [(one.partition, one.producer_id) for one in world.broker.transactions.hanging()] == [(home, 999)]
    assert end_by_hand(producer, *home, 999, 0) == 0
    assert committed_offset(world, stable=True) == (-1, 0), "nobody waits for them any more"
    world.restart()
    assert committed_offset(world, stable=True) == (-1, 0)


def stray(world: World, epoch: int) -> None:
    """A batch in partition 1 whose transaction nobody knows of."""
    batch = encode([(1, b"k", b"v", ())], producer_id=999, producer_epoch=epoch, base_sequence=0, transactional=True)
    log = world.broker.store.log("t", 1)
    world.broker._publisher.append_batches(log, memoryview(batch), lambda *_: None, lambda *_: None)
    world.settle()


def test_an_earlier_epoch_ends_nothing_by_hand(world):
    producer = Producer(world)
    stray(world, 4)
    assert end_by_hand(producer, "t", 1, 999, 3) == Error.INVALID_PRODUCER_EPOCH
    assert world.broker.transactions.hanging() != []
    assert end_by_hand(producer, "t", 1, 999, 4) == 0
    assert world.broker.transactions.hanging() == []


def test_what_a_forgotten_producer_left_open_is_told_all_the_same(world):
    producer = Producer(world)
    stray(world, 4)
    producers = world.broker.store.log("t", 1).facts.producers
    assert (producers.expire(), producers.expire()) == (0, 1)
    topics = [describe_producers.TopicRequest("t", [1])]
    (part,) = producer.client.ask(describe_producers.DescribeProducersRequest(topics)).topics[0].partitions
    (left,) = part.active_producers
    assert (left.producer_id, left.producer_epoch, left.current_txn_start_offset) == (999, -1, 0)
    assert end_by_hand(producer, "t", 1, 999, 0) == 0
    assert world.broker.transactions.hanging() == []


def test_a_native_transaction_is_described_with_its_name_and_owner(world):
    registered = world.ask(native.RegisterOwner("query-7"))
    begin = native.BeginOwnedTransaction("attempt-1", 5, 0, 60_000, "query-7", registered.owner_epoch, 12)
    world.ask(begin)
    client = Client(world, All)
    (found,) = client.ask(describe_transactions.DescribeTransactionsRequest(["native:5"])).transaction_states
    assert (found.label, found.owner, found.sequence) == ("attempt-1", "query-7", 12)


def test_nothing_waits_for_a_turn_that_nobody_asks_for(world):
    """Whatever a verdict makes the coordinator write is on its way to the disk when the turn ends."""
    producer = Producer(world)
    producer.send(b"a")
    kafka, reply = Kafka(world.broker), world.session.expect(1, None)
    frame = b"".join(encode_request(EndTxnRequest("x", producer.id, producer.epoch, True), 5, 1, None))
    kafka.handle(decode_request(frame[4:]), reply)
    world.broker.turn()
    for _ in range(20):
        if reply.response is not None:
            return
        assert world.disk.step(), "nothing is on its way to the disk, and nobody is answered"
        world.broker.turn()
    raise AssertionError("it takes too long")

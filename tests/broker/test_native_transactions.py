"""Producers that count, transactions and decisions in the native dialect, and what a crash leaves of them."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import World

from rivven.broker.transactions import TOPIC
from rivven.coordinator import TxnConfig
from rivven.log.document import write_whole
from rivven.record import encode
from rivven.wire import requests as ask
from rivven.wire import responses as tell


class Calm(World):
    """A node that comes to rest after every request: a decision is several writes, one after another."""

    def settle(self) -> None:
        for _ in range(3):
            super().settle()


@pytest.fixture
def world() -> World:
    world = Calm()
    world.ask(ask.CreateTopic("t", 2))
    return world


def publish(
    world: World, sequence: int, value: bytes = b"v", *, partition: int | None = 0, who: int = 1, epoch: int = 0
) -> Any:
    return world.ask(ask.IdempotentPublish("t", partition, None, value, who, epoch, sequence))


def publish_in(
    world: World,
    sequence: int,
    value: bytes,
    *,
    partition: int | None = 0,
    who: int = 1,
    epoch: int = 0,
    x: str = "x",
) -> Any:
    return world.ask(ask.TransactionalPublish(x, "t", partition, None, value, who, epoch, sequence))


def begin(world: World, x: str = "x", *, who: int = 1, epoch: int = 0, timeout_ms: int | None = None) -> Any:
    return world.ask(ask.BeginTransaction(x, who, epoch, timeout_ms))


def add(world: World, *partitions: int, x: str = "x", who: int = 1, epoch: int = 0) -> Any:
    return world.ask(ask.AddPartitionsToTxn(x, who, epoch, tuple(ask.TxnPartition("t", each) for each in partitions)))


def end(world: World, *, commit: bool = True, x: str = "x", who: int = 1, epoch: int = 0) -> Any:
    return world.ask((ask.CommitTransaction if commit else ask.AbortTransaction)(x, who, epoch))


def read(world: World, partition: int = 0, *, committed: bool = True) -> list[bytes]:
    found = world.ask(ask.Consume("t", partition, 0, 100, int(committed)))
    return [message.value for message in found.messages]


def produce(world: World, batch: bytes, x: str | None, partition: int = 0) -> Any:
    topics = (ask.TopicBatches("t", (ask.PartitionBatches(partition, batch),)),)
    return world.ask(ask.ProduceBatches(-1, 1, topics, x)).topics[0].partitions[0]


def batch_of(*values: bytes, sequence: int = 0, who: int = 1, epoch: int = 0) -> bytes:
    rows = [(1000, b"k", value, ()) for value in values]
    numbers = {"producer_id": who, "producer_epoch": epoch, "base_sequence": sequence}
    return bytes(encode(rows, transactional=True, **numbers))


def new_producer(world: World) -> int:
    answer = world.ask(ask.InitProducerId(None))
    assert answer.producer_epoch == 0
    return answer.producer_id


# Producers and their ids


def test_every_producer_gets_an_id_of_its_own_also_after_a_restart(world: World) -> None:
    ids = [new_producer(world), new_producer(world)]
    world.restart()
    ids.append(new_producer(world))
    assert len(set(ids)) == 3
    assert 0 not in ids


@pytest.mark.parametrize("lost", ["removed", "damaged"])
def test_a_lost_file_of_ids_makes_nobody_another_producer(
    world: World, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    who = new_producer(world)
    publish(world, 0, who=who)
    for name in ("producer_ids.json", "producer_ids.json.bak"):
        if lost == "removed":
            world.disk.remove(name)
        else:
            write_whole(world.disk, name, b"x")
    world.restart()
    other = new_producer(world)
    assert other > who
    assert publish(world, 0, who=other) == tell.IdempotentPublished(1, 0, False)
    assert f"producer ids go on above {who}" in caplog.text


def test_nor_one_that_has_a_name_and_has_written_nothing_yet(world: World) -> None:
    named = new_producer(world)
    begin(world, "x", who=named)
    for name in ("producer_ids.json", "producer_ids.json.bak"):
        world.disk.remove(name)
    world.restart()
    assert world.broker.producer_ids.next() > named, "as a client of Kafka would get it"


def test_an_absurd_id_in_the_logs_leaves_room_for_others(world: World) -> None:
    absurd = bytes(encode([(0, None, b"v", ())], producer_id=2**63 - 1, producer_epoch=0, base_sequence=0))
    produce(world, absurd, None)
    for name in ("producer_ids.json", "producer_ids.json.bak"):
        if world.disk.exists(name):
            world.disk.remove(name)
    world.restart()
    assert new_producer(world) < 2**62


def test_a_producer_that_comes_again_gets_the_next_epoch_and_fences_the_one_before(world: World) -> None:
    who = new_producer(world)
    publish(world, 0, who=who)
    assert world.ask(ask.InitProducerId(who)) == tell.ProducerIdInitialized(who, 1)
    text = "PRODUCER_FENCED: producer has been fenced (current epoch: 1, received: 0)"
    assert publish(world, 1, who=who) == tell.Error(text)
    assert publish(world, 0, who=who, epoch=1) == tell.IdempotentPublished(1, 0, False)


def test_epochs_that_were_written_with_are_known_after_a_restart(world: World) -> None:
    who = new_producer(world)
    world.ask(ask.InitProducerId(who))
    publish(world, 0, who=who, epoch=1)
    world.restart()
    assert publish(world, 0, who=who, partition=1).message.startswith("PRODUCER_FENCED: ")
    assert world.ask(ask.InitProducerId(who)) == tell.ProducerIdInitialized(who, 2)


def test_an_id_that_nobody_gave_is_taken_when_it_is_brought_and_given_to_nobody_else(world: World) -> None:
    assert world.ask(ask.InitProducerId(2)) == tell.ProducerIdInitialized(2, 0)
    assert [new_producer(world), new_producer(world)] == [1, 3]


def test_a_producer_beyond_the_last_epoch_becomes_another(world: World) -> None:
    who = new_producer(world)
    publish(world, 0, who=who, epoch=32_766)
    again = world.ask(ask.InitProducerId(who))
    assert again.producer_id != who
    assert again.producer_epoch == 0


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ask.IdempotentPublish("t", 0, None, b"v", 5000, 0, 0), "UNKNOWN_PRODUCER_ID: producer 5000 not initialized"),
        (ask.IdempotentPublish("t", 0, None, b"v", 2**63, 0, 0), "INVALID_REQUEST: the producer id"),
        (ask.IdempotentPublish("t", 0, None, b"v", 1, 32_767, 0), "INVALID_PRODUCER_EPOCH: 32767"),
        (ask.IdempotentPublish("t", 0, None, b"v", 1, 0, -1), "OUT_OF_ORDER_SEQUENCE: expected sequence 0, got -1"),
        (ask.IdempotentPublish("t", 9, None, b"v", 1, 0, 0), "INVALID_PARTITION: Invalid partition 9: must be < 2"),
        (ask.IdempotentPublish("t", 0, None, b"v" * (2 << 20), 1, 0, 0), "MESSAGE_TOO_LARGE"),
        (ask.InitProducerId(2**63), "INVALID_REQUEST: the producer id"),
        (ask.BeginTransaction("x", 2**63, 0), "INVALID_REQUEST: the producer id"),
        (ask.BeginTransaction("x", 1, 65_535), "INVALID_PRODUCER_EPOCH: 65535"),
        (ask.BeginTransaction("x", 1, 0, 0), "INVALID_TRANSACTION_TIMEOUT: "),
        (ask.BeginTransaction("", 1, 0), "INVALID_REQUEST: "),
        (ask.AddPartitionsToTxn("x", 1, 0, ()), "INVALID_TXN_ID: transaction 'x' not found"),
        (ask.CommitTransaction("x", 1, 0), "INVALID_TXN_ID: transaction 'x' not found"),
        (ask.AbortTransaction("x", 1, 0), "INVALID_TXN_ID: transaction 'x' not found"),
        (ask.TransactionalPublish("x", "t", 0, None, b"v", 1, 0, 0), "INVALID_TXN_ID: transaction 'x' not found"),
        (ask.AddOffsetsToTxn("x", 1, 0, "g", ()), "INVALID_TXN_ID: transaction 'x' not found"),
        (ask.AddOffsetsToTxn("x", 1, 0, "bad group", ()), "INVALID_CONSUMER_GROUP: "),
        (ask.AddOffsetsToTxn("x", 1, 0, "g", (ask.TxnOffset("t", 0, -1),)), "OFFSET_OUT_OF_RANGE: offset -1"),
        (ask.AddOffsetsToTxn("x", 1, 0, "g", (ask.TxnOffset("no", 0, 1),)), "UNKNOWN_TOPIC: topic 'no'"),
        (ask.AddOffsetsToTxn("x", 1, 0, "g", (ask.TxnOffset("t", 9, 1),)), "UNKNOWN_PARTITION: partition 9"),
        (ask.BeginOwnedTransaction("x", 1, 0, None, "", 0, 0), "INVALID_REQUEST: the owner is empty"),
        (ask.BeginOwnedTransaction("x", 1, 0, None, "query", 0, 0), "UNKNOWN_OWNER: "),
        (ask.Decide("query", 0, 0, ()), "UNKNOWN_OWNER: "),
        (ask.RegisterOwner(""), "INVALID_REQUEST: "),
    ],
)
def test_what_cannot_be_says_why_and_writes_nothing(world: World, request_: ask.Request, text: str) -> None:
    new_producer(world)
    answer = world.ask(request_)
    assert isinstance(answer, tell.Error)
    assert answer.message.startswith(text), answer.message
    assert read(world, committed=False) == []


# Records that come again


@pytest.mark.parametrize("restart", [False, True])
def test_what_comes_again_is_answered_as_the_first_time_and_written_once(world: World, restart: bool) -> None:
    who = new_producer(world)
    assert [publish(world, n, b"%d" % n, who=who) for n in range(3)] == [
        tell.IdempotentPublished(n, 0, False) for n in range(3)
    ]
    if restart:
        world.restart()
    assert publish(world, 1, b"1", who=who) == tell.IdempotentPublished(1, 0, True)
    assert publish(world, 3, b"3", who=who) == tell.IdempotentPublished(3, 0, False)
    assert read(world) == [b"0", b"1", b"2", b"3"]


def test_a_repetition_is_answered_only_when_the_first_one_is_durable(world: World) -> None:
    who = new_producer(world)
    first = world.send(ask.IdempotentPublish("t", 0, None, b"v", who, 0, 0))
    again = world.send(ask.IdempotentPublish("t", 0, None, b"v", who, 0, 0))
    assert (first.response, again.response) == (None, None)
    world.settle()
    assert (first.response, again.response) == (
        tell.IdempotentPublished(0, 0, False),
        tell.IdempotentPublished(0, 0, True),
    )


@pytest.mark.parametrize("restart", [False, True])
def test_a_batch_comes_once_with_all_its_records(world: World, restart: bool) -> None:
    who = new_producer(world)
    records = tuple(ask.BatchRecord(None, value) for value in (b"a", b"b"))
    request = ask.IdempotentPublishBatch("t", 0, records, who, 0, 0)
    assert world.ask(request) == tell.IdempotentPublishedBatch(0, 0, 2, False)
    if restart:
        world.restart()
    assert world.ask(request) == tell.IdempotentPublishedBatch(0, 0, 2, True)
    assert publish(world, 2, b"c", who=who) == tell.IdempotentPublished(2, 0, False)
    gap = ask.IdempotentPublishBatch("t", 0, records, who, 0, 5)
    assert world.ask(gap) == tell.Error("OUT_OF_ORDER_SEQUENCE: expected 3, got 5")
    assert world.ask(ask.IdempotentPublishBatch("t", 0, (), who, 0, 5)) == tell.IdempotentPublishedBatch(
        0, 0, 0, False
    )
    assert read(world) == [b"a", b"b", b"c"]


def test_a_gap_is_refused_and_any_beginning_is_taken(world: World) -> None:
    who = new_producer(world)
    assert publish(world, 1, who=who) == tell.IdempotentPublished(0, 0, False)
    assert publish(world, 3, who=who) == tell.Error("OUT_OF_ORDER_SEQUENCE: expected sequence 2, got 3")
    world.ask(ask.InitProducerId(who))
    assert publish(world, 1, who=who, epoch=1) == tell.IdempotentPublished(1, 0, False)


def test_partitions_and_topics_are_counted_apart(world: World) -> None:
    who = new_producer(world)
    assert publish(world, 0, partition=0, who=who) == tell.IdempotentPublished(0, 0, False)
    assert publish(world, 0, partition=1, who=who) == tell.IdempotentPublished(0, 1, False)
    other = world.ask(ask.IdempotentPublish("u", 0, None, b"v", who, 0, 0))
    assert other == tell.IdempotentPublished(0, 0, False)


@pytest.mark.parametrize("restart", [False, True])
def test_one_row_of_numbers_over_all_partitions_is_taken_and_repetitions_are_found(
    world: World, restart: bool
) -> None:
    who = new_producer(world)
    first = []
    for number in range(8):
        first.append(publish(world, number, b"%d" % number, partition=None, who=who))
        world.clock.advance(ms=101)  # the next record without a key goes to another partition
    assert {answer.partition for answer in first} == {0, 1}
    if restart:
        world.restart()
    again = publish(world, 6, b"6", partition=None, who=who)
    assert again == tell.IdempotentPublished(first[6].offset, first[6].partition, True)
    assert sorted(read(world, 0) + read(world, 1)) == [b"%d" % number for number in range(8)]


# Transactions


@pytest.mark.parametrize("commit", [True, False])
def test_readers_of_committed_data_see_a_transaction_when_it_commits(world: World, commit: bool) -> None:
    who = new_producer(world)
    assert begin(world, who=who) == tell.TransactionStarted("x")
    assert add(world, 0, 1, who=who) == tell.PartitionsAddedToTxn("x", 2)
    assert publish_in(world, 0, b"a", who=who) == tell.TransactionalPublished(0, 0, 0)
    assert publish_in(world, 0, b"b", partition=1, who=who) == tell.TransactionalPublished(0, 1, 0)
    world.ask(ask.Publish("t", 0, None, b"later"))
    assert read(world) == [], "nothing behind an open transaction is certain"
    assert read(world, committed=False) == [b"a", b"later"]
    done = tell.TransactionCommitted("x") if commit else tell.TransactionAborted("x")
    assert end(world, commit=commit, who=who) == done
    assert end(world, commit=commit, who=who) == done, "its answer was lost"
    for _ in range(2):
        assert read(world) == ([b"a", b"later"] if commit else [b"later"])
        assert read(world, 1) == ([b"b"] if commit else [])
        world.restart()


def test_a_producer_goes_from_one_transaction_to_the_next(world: World) -> None:
    for number in range(3):
        name = f"x{number}"
        begin(world, name, who=7)
        add(world, 0, x=name, who=7)
        assert publish_in(world, number, b"%d" % number, who=7, x=name).sequence == number
        end(world, x=name, who=7, commit=number != 1)
    assert read(world) == [b"0", b"2"]


def test_a_transaction_takes_what_was_added_and_no_more(world: World) -> None:
    begin(world)
    add(world, 0)
    refused = tell.Error("PARTITION_NOT_IN_TXN: t:1 not added to transaction")
    assert publish_in(world, 0, b"v", partition=1) == refused
    assert publish_in(world, 0, b"v", x="y") == tell.Error("INVALID_TXN_ID: transaction 'y' not found")
    end(world)
    late = publish_in(world, 0, b"v")
    assert late.message.startswith("INVALID_TXN_STATE: transaction in CompleteCommit, expected Ongoing")
    assert read(world, committed=False) == read(world, 1, committed=False) == []


def test_a_partition_that_the_broker_chose_is_added_by_the_broker(world: World) -> None:
    begin(world)
    requests = [ask.TransactionalPublish("x", "t", None, None, b"%d" % n, 1, 0, n) for n in range(3)]
    replies = [world.send(request) for request in requests]
    world.settle()
    answers = [reply.response for reply in replies]
    assert [answer.sequence for answer in answers] == [0, 1, 2]
    assert [answer.offset for answer in answers] == [0, 1, 2]
    end(world)
    assert read(world, answers[0].partition) == [b"0", b"1", b"2"]


def test_a_record_of_a_transaction_that_comes_again_is_written_once(world: World) -> None:
    begin(world)
    add(world, 0)
    publish_in(world, 0, b"v")
    assert publish_in(world, 0, b"v") == tell.TransactionalPublished(0, 0, 0)
    assert publish_in(world, 2, b"v") == tell.Error("OUT_OF_ORDER_SEQUENCE: expected 1, got 2")
    end(world)
    assert read(world) == [b"v"]


def test_a_producer_has_one_transaction_at_a_time(world: World) -> None:
    begin(world)
    assert begin(world) == tell.TransactionStarted("x"), "beginning it again is no other one"
    text = "CONCURRENT_TRANSACTIONS: producer already has an active transaction"
    assert begin(world, "y").message.startswith(text)
    assert begin(world, "y", who=2) == tell.TransactionStarted("y")


def test_a_later_life_of_a_producer_aborts_what_the_earlier_left_open_and_fences_it(world: World) -> None:
    who = new_producer(world)
    begin(world, who=who)
    add(world, 0, who=who)
    publish_in(world, 0, b"lost", who=who)
    world.ask(ask.Publish("t", 0, None, b"later"))
    assert world.ask(ask.InitProducerId(who)) == tell.ProducerIdInitialized(who, 1)
    assert read(world) == [b"later"], "readers wait for nobody"
    assert publish_in(world, 1, b"lost", who=who) == tell.Error("PRODUCER_FENCED: current epoch 1, received 0")
    fenced = tell.Error("PRODUCER_FENCED: expected epoch 1, got 0")
    assert end(world, who=who) == begin(world, "y", who=who) == add(world, 1, who=who) == fenced
    assert begin(world, "y", who=who, epoch=1) == tell.TransactionStarted("y")
    add(world, 0, x="y", who=who, epoch=1)
    publish_in(world, 0, b"kept", x="y", who=who, epoch=1)
    end(world, x="y", who=who, epoch=1)
    assert read(world) == [b"later", b"kept"]


def test_beginning_with_a_higher_epoch_is_a_later_life_too(world: World) -> None:
    begin(world)
    assert begin(world, "y", epoch=1).message.startswith("CONCURRENT_TRANSACTIONS: ")
    assert begin(world, "y", epoch=1) == tell.TransactionStarted("y")
    assert end(world) == tell.Error("PRODUCER_FENCED: expected epoch 1, got 0")


def test_a_transaction_without_a_sign_of_life_is_aborted(world: World) -> None:
    begin(world, timeout_ms=1000)
    add(world, 0)
    publish_in(world, 0, b"v")
    world.clock.advance(ms=1001)
    world.settle()
    assert end(world).message.startswith("INVALID_TXN_STATE: transaction in CompleteAbort, expected Ongoing")
    assert read(world) == []
    assert begin(world, "y") == tell.TransactionStarted("y")


def test_there_is_a_limit_to_open_transactions() -> None:
    world = World(transactions=TxnConfig(open_max=1))
    world.ask(ask.CreateTopic("t", 1))
    begin(world)
    assert begin(world, who=2).message.startswith("TRANSACTION_ERROR: TooManyTransactions")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("restart", [True, False])
def test_offsets_of_a_transaction_count_when_it_commits(world: World, commit: bool, restart: bool) -> None:
    for _ in range(5):
        world.ask(ask.Publish("t", 1, None, b"v"))
    begin(world)
    request = ask.AddOffsetsToTxn("x", 1, 0, "g", (ask.TxnOffset("t", 1, 4),))
    assert world.ask(request) == tell.OffsetsAddedToTxn("x")
    assert world.ask(ask.GetOffset("g", "t", 1)) == tell.CommittedOffset(None)
    if restart:
        world.restart()
    end(world, commit=commit)
    assert world.ask(ask.GetOffset("g", "t", 1)) == tell.CommittedOffset(4 if commit else None)


def test_whole_batches_join_a_transaction_by_being_written(world: World) -> None:
    begin(world)
    assert produce(world, batch_of(b"a", b"b"), "x", 1).base_offset == 0
    assert produce(world, batch_of(b"a", b"b"), "x", 1).base_offset == 0, "it was there"
    assert produce(world, batch_of(b"c", sequence=2), "x", 1).base_offset == 2
    assert read(world, 1) == []
    end(world)
    assert read(world, 1) == [b"a", b"b", b"c"]


def test_the_partitions_of_one_request_join_together(world: World) -> None:
    begin(world)
    store = world.broker.store
    state = [store.log(TOPIC, number) for number in range(store.topic(TOPIC).partitions)]
    before = sum(log.end for log in state)
    parts = tuple(ask.PartitionBatches(number, batch_of(b"%d" % number)) for number in range(2))
    answer = world.ask(ask.ProduceBatches(-1, 1, (ask.TopicBatches("t", parts),), "x"))
    assert [part.error for part in answer.topics[0].partitions] == [0, 0]
    assert sum(log.end for log in state) == before + 1, "each would cost a sync of its own"
    end(world)
    assert [read(world, number) for number in range(2)] == [[b"0"], [b"1"]]


def test_whole_batches_need_the_transaction_that_they_name(world: World) -> None:
    begin(world)
    assert produce(world, batch_of(b"v"), "y").error_message == "there is no transaction 'y'"
    assert "does not belong" not in produce(world, batch_of(b"v", who=2), "x").error_message
    assert "the request names none" in produce(world, batch_of(b"v"), None).error_message
    end(world)
    assert "it has no open transaction" in produce(world, batch_of(b"v"), "x").error_message
    world.ask(ask.InitProducerId(1))
    assert "epoch" in produce(world, batch_of(b"v"), "x").error_message
    assert "record batches" in produce(world, b"", "x").error_message
    assert produce(world, b"\0" * 70, "x").error != 0
    assert read(world, committed=False) == []


# Decisions


def register(world: World) -> Any:
    return world.ask(ask.RegisterOwner("query"))


def attempt(world: World, who: int, sequence: int, *, owner_epoch: int = 0) -> Any:
    """A task writes its id to partition 0, in a transaction for its owner to decide."""
    name = f"s{sequence}"
    begun = world.ask(ask.BeginOwnedTransaction(name, who, 0, None, "query", owner_epoch, sequence))
    if begun == tell.TransactionStarted(name):
        written = produce(world, batch_of(b"%d/%d" % (sequence, who), who=who, sequence=sequence), name)
        assert written.error == 0, written
    return begun


def decide_request(sequence: int, *who: int, owner_epoch: int = 0) -> ask.Decide:
    return ask.Decide("query", owner_epoch, sequence, tuple(ask.TxnProducer(each, 0) for each in who))


def decided(sequence: int, *who: int, repeated: bool = False) -> tell.Decided:
    return tell.Decided(sequence, True, tuple(ask.TxnProducer(each, 0) for each in who), repeated)


def test_a_decision_commits_those_it_names_and_aborts_the_others(world: World) -> None:
    assert register(world) == tell.OwnerRegistered(0, None)
    for who in (1, 2, 3):
        attempt(world, who, 0)
    assert read(world) == []
    assert world.ask(decide_request(0, 1, 3)) == decided(0, 1, 3)
    assert read(world) == [b"0/1", b"0/3"]
    assert register(world) == tell.OwnerRegistered(1, 0)


def test_a_decision_that_comes_again_changes_nothing(world: World) -> None:
    register(world)
    attempt(world, 1, 0)
    attempt(world, 2, 0)
    world.ask(decide_request(0, 1))
    assert world.ask(decide_request(0, 1)) == decided(0, 1, repeated=True)
    assert world.ask(decide_request(0, 2)) == decided(0, 1, repeated=True), "nor does another one"
    world.restart()
    assert world.ask(decide_request(0, 2)) == decided(0, 1, repeated=True)
    assert read(world) == [b"0/1"]


def test_earlier_sequences_stay_decided_and_those_passed_over_have_aborted(world: World) -> None:
    register(world)
    attempt(world, 1, 3)
    attempt(world, 2, 5)
    assert world.ask(decide_request(3, 1)) == decided(3, 1)
    attempt(world, 1, 4)
    assert world.ask(decide_request(5, 2)) == decided(5, 2)
    assert world.ask(decide_request(3)) == decided(3, 1, repeated=True)
    assert world.ask(decide_request(4, 1)) == decided(4, repeated=True)
    assert world.ask(decide_request(2)) == tell.Decided(2, False, (), True)
    assert attempt(world, 3, 5).message.startswith("ALREADY_DECIDED: ")
    assert read(world) == [b"3/1", b"5/2"]


def test_a_later_registration_fences_the_owner_and_aborts_what_it_left(world: World) -> None:
    register(world)
    attempt(world, 1, 0)
    assert register(world) == tell.OwnerRegistered(1, None)
    assert world.ask(decide_request(0, 1)).message.startswith("OWNER_FENCED: ")
    assert attempt(world, 2, 0).message.startswith("OWNER_FENCED: ")
    assert world.ask(decide_request(0, 1, owner_epoch=1)).message.startswith("DECISION_REFUSED: ")
    attempt(world, 3, 0, owner_epoch=1)
    assert world.ask(decide_request(0, 3, owner_epoch=1)) == decided(0, 3)
    assert read(world) == [b"0/3"]


def test_only_the_owner_commits_and_the_producer_may_abort(world: World) -> None:
    register(world)
    attempt(world, 1, 0)
    assert end(world, x="s0").message.startswith("INVALID_TXN_STATE: ")
    assert end(world, x="s0", commit=False) == tell.TransactionAborted("s0")
    assert world.ask(decide_request(0, 1)).message.startswith("DECISION_REFUSED: ")
    assert world.ask(decide_request(0)) == decided(0)
    assert read(world) == []


@pytest.mark.parametrize("turns", range(12))
def test_a_crash_at_any_turn_of_a_decision_leaves_all_of_it_or_nothing(world: World, turns: int) -> None:
    register(world)
    for who in (1, 2, 3):
        attempt(world, who, 0)
    reply = world.send(decide_request(0, 1, 2))
    for turn in range(turns):
        world.broker.turn() if turn % 2 == 0 else world.disk.step()
    heard = reply.response is not None
    world.restart()
    world.settle()
    if heard:
        assert read(world) == [b"0/1", b"0/2"], "what was told holds"
    answer = world.ask(decide_request(0, 1, 2))
    assert answer in (decided(0, 1, 2), decided(0, 1, 2, repeated=True))
    assert read(world) == [b"0/1", b"0/2"]
    assert register(world) == tell.OwnerRegistered(1, 0)


def test_what_was_decided_before_a_crash_is_carried_out_after_it(world: World) -> None:
    register(world)
    for who in (1, 2):
        attempt(world, who, 0)
    reply = world.send(decide_request(0, 2))
    while not any(owner.decided == 0 for owner in world.broker.transactions._transactions.owners()):
        world.broker.turn()
        world.disk.step()
    assert reply.response is None, "the markers are not written yet"
    world.restart()
    world.settle()
    assert read(world) == [b"0/2"], "though nobody asked again"

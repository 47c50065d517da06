"""Records on their way into a transaction, and what readers of committed records find of it while it is open."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import World

from rivven.broker.kafka import Kafka
from rivven.record import encode
from rivven.wire import requests as native
from rivven.wire.kafka import APIS, Error, decode_request, encode_request
from rivven.wire.kafka.made import list_offsets, produce
from rivven.wire.kafka.made.end_txn import EndTxnRequest
from rivven.wire.kafka.made.init_producer_id import InitProducerIdRequest

PRODUCE, LIST_OFFSETS, INIT_PRODUCER_ID, END = 0, 2, 22, 26


@pytest.fixture
def world() -> World:
    world = World(host="h", port=9)
    world.ask(native.CreateTopic("t", 1))
    return world


class Line:
    """One connection on which requests follow one another without a pause."""

    def __init__(self, world: World) -> None:
        self._world, self._kafka = world, Kafka(world.broker)
        self._sent = 0

    def send(self, request: Any, key: int) -> Any:
        """The place where the answer will be."""
        self._sent += 1
        frame = b"".join(encode_request(request, APIS[key].newest, self._sent, None))
        reply = self._world.session.expect(self._sent, None)
        self._kafka.handle(decode_request(frame[4:]), reply)
        return reply

    def ask(self, request: Any, key: int) -> Any:
        reply = self.send(request, key)
        self.settle()
        return reply.response

    def settle(self) -> None:
        for _ in range(4):
            self._world.settle()

    def send_batch(self, whom: tuple[int, int], sequence: int) -> Any:
        numbers = {"producer_id": whom[0], "producer_epoch": whom[1], "base_sequence": sequence}
        batch = bytes(encode([(1000 + sequence, b"k", b"v", ())], transactional=True, **numbers))
        data = produce.PartitionProduceData(0, batch)
        topic = produce.TopicProduceData("t", self._world.broker.topics.get("t").id_bytes, [data])
        return self.send(produce.ProduceRequest("x", -1, 1000, [topic]), PRODUCE)


def outcome(reply: Any) -> tuple[int, int]:
    """Error and offset."""
    part = reply.response.responses[0].partition_responses[0]
    return part.error_code, part.base_offset


def known(line: Line) -> tuple[int, int]:
    """A producer that the partition knows from its first transaction. Its second did nothing here, so that its third
    begins with an epoch that is new to the partition."""
    now = line.ask(InitProducerIdRequest("x", 60_000), INIT_PRODUCER_ID)
    line.send_batch((now.producer_id, now.producer_epoch), 0)
    line.settle()
    for commit in (True, False):
        now = line.ask(EndTxnRequest("x", now.producer_id, now.producer_epoch, commit), END)
        assert now.error_code == 0
    return now.producer_id, now.producer_epoch


def test_batches_that_follow_the_first_of_a_partition_wait_until_it_is_part_of_the_transaction(world):
    """A client of version 2 sends them one after the other, and no word before the first."""
    line = Line(world)
    whom = known(line)
    replies = [line.send_batch(whom, sequence) for sequence in range(3)]
    line.settle()
    assert [outcome(reply) for reply in replies] == [(0, 2), (0, 3), (0, 4)]


def test_a_batch_that_is_missing_is_missed_in_a_transaction_too(world):
    line = Line(world)
    reply = line.send_batch(known(line), 1)
    line.settle()
    assert outcome(reply)[0] == Error.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(("isolation", "found"), [(0, [0, 2, 2]), (1, [0, -1, -1])])
def test_a_time_within_an_open_transaction_is_found_by_readers_of_everything_alone(world, isolation, found):
    line = Line(world)
    for timestamp_ms in (500, 600):
        data = produce.PartitionProduceData(0, bytes(encode([(timestamp_ms, None, b"v", ())])))
        topic = produce.TopicProduceData("t", world.broker.topics.get("t").id_bytes, [data])
        line.ask(produce.ProduceRequest(None, -1, 1000, [topic]), PRODUCE)
    begun = line.ask(InitProducerIdRequest("x", 60_000), INIT_PRODUCER_ID)
    line.send_batch((begun.producer_id, begun.producer_epoch), 0)
    line.settle()
    wanted = [list_offsets.ListOffsetsPartition(0, -1, at) for at in (500, 1000, -3)]
    asked = list_offsets.ListOffsetsRequest(-1, isolation, [list_offsets.ListOffsetsTopic("t", wanted)])
    answer = line.ask(asked, LIST_OFFSETS)
    assert [part.offset for part in answer.topics[0].partitions] == found

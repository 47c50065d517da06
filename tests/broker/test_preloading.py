"""What is not in memory is brought there by another thread: the broker's own never waits for the medium."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import World

from rivven.broker import Reply, Session
from rivven.record import encode, walk
from rivven.wire import requests as ask
from rivven.wire import responses as tell

MANY = 1 << 20


@pytest.fixture
def world() -> World:
    """A topic of two partitions, with batches in several segments each, none of them in memory."""
    world = World(defaults={"segment.bytes": "4096", "index.interval.bytes": "512"})
    for topic in ("cold", "warm"):
        world.ask(ask.CreateTopic(topic, 2))
        for partition in (0, 1):
            for n in range(12):
                world.ask(produce(topic, partition, [(n, None, b"%d" % n + bytes(900), ())]))
    world.disk.evict()
    world.disk.evicted = {path: 0 for path in world.disk.evicted if "/cold/" in path}
    world.disk.waits = 0
    return world


def produce(topic: str, partition: int, records: list[Any]) -> ask.ProduceBatches:
    return ask.ProduceBatches(
        -1, 1000, (ask.TopicBatches(topic, (ask.PartitionBatches(partition, encode(records)),)),)
    )


def fetch(*parts: tuple[str, int], offset: int = 0, bytes_min: int = 1, wait_ms: int = 0) -> ask.FetchBatches:
    wanted = tuple(ask.TopicFetch(topic, (ask.PartitionFetch(part, offset, MANY),)) for topic, part in parts)
    return ask.FetchBatches(wait_ms, bytes_min, MANY, 0, wanted)


def values(response: object) -> list[bytes]:
    assert isinstance(response, tell.Messages)
    return [message.value.rstrip(b"\0") for message in response.messages]


def offsets(response: object) -> dict[tuple[str, int], list[int]]:
    assert isinstance(response, tell.FetchedBatches), response
    return {
        (topic.topic, part.partition): [header.base_offset for _, header in walk(memoryview(part.batches))]
        for topic in response.topics
        for part in topic.partitions
    }


def all_offsets(world: World, topic: str, partition: int) -> list[int]:
    found: list[int] = []
    while len(found) < 12:
        new = offsets(world.ask(fetch((topic, partition), offset=len(found))))[topic, partition]
        assert new, "a reader gets on"
        found += new
    return found


def turn_without_the_disk(world: World, reply: Reply) -> object:
    for _ in range(3):
        world.broker.turn()
    return reply.response


def test_a_fetch_waits_for_the_other_thread_and_the_broker_does_not(world: World) -> None:
    reply = world.send(fetch(("cold", 0)))
    assert turn_without_the_disk(world, reply) is None
    assert world.disk.waits == 0
    assert offsets(world.ask(fetch(("warm", 0))))["warm", 0], "others are served meanwhile"
    world.settle()
    assert offsets(reply.response)["cold", 0][0] == 0
    assert world.disk.waits == 0


def test_all_of_a_cold_partition_is_read_from_segment_to_segment_without_waiting(world: World) -> None:
    assert all_offsets(world, "cold", 0) == list(range(12))
    assert world.disk.waits == 0
    assert all_offsets(world, "cold", 1) == list(range(12))


def test_a_consume_gives_as_many_records_as_there_are(world: World) -> None:
    assert values(world.ask(ask.Consume("cold", 0, 0, 5))) == [b"%d" % n for n in range(5)]
    assert world.disk.waits == 0


def test_who_asks_for_the_same_meanwhile_waits_for_the_same_read(world: World) -> None:
    replies = [world.send(fetch(("cold", 0)), Session(f"127.0.0.{n}")) for n in range(1, 5)]
    world.broker.turn()
    (preload,) = world.broker.preloading.take()
    assert len(world.broker.preloading) == 4
    preload.run()
    world.broker.preloading.done(preload)
    world.settle()
    assert {next(iter(offsets(reply.response)["cold", 0])) for reply in replies} == {0}
    assert len(world.broker.preloading) == 0


def test_a_partition_in_memory_is_given_at_once_and_the_other_one_the_next_time(world: World) -> None:
    reply = world.send(fetch(("cold", 0), ("warm", 0)))
    found = offsets(turn_without_the_disk(world, reply))
    assert found["warm", 0]
    assert not found["cold", 0]
    world.settle()
    again = world.send(fetch(("cold", 0), ("warm", 0)))
    assert offsets(turn_without_the_disk(world, again))["cold", 0]
    assert world.disk.waits == 0


def test_a_reader_gets_on_though_the_memory_is_gone_again_each_time(world: World) -> None:
    """With one batch at a time, which is waited for: better than to never read it."""
    fetched = world.send(fetch(("cold", 0)))
    consumed = world.send(ask.Consume("cold", 1, 0, 5))
    for _ in range(12):
        world.broker.turn()
        for preload in world.broker.preloading.take():
            preload.run()
            world.disk.evict()
            world.broker.preloading.done(preload)
    assert offsets(fetched.response)["cold", 0] == [0]
    assert values(consumed.response) == [b"0"]


@pytest.mark.parametrize("request_", [fetch(("cold", 0)), ask.Consume("cold", 0, 0, 5)])
def test_a_topic_that_goes_meanwhile_is_told(world: World, request_: Any) -> None:
    reply = world.send(request_)
    world.broker.turn()
    world.disk.auto_complete = True
    (preload,) = world.broker.preloading.take()
    world.ask(ask.DeleteTopic("cold"), Session("127.0.0.9"))
    preload.run()
    world.broker.preloading.done(preload)
    world.settle()
    assert "UNKNOWN_TOPIC" in str(reply.response) or "there is no" in str(reply.response)


def test_a_long_poll_for_many_bytes_is_answered(world: World) -> None:
    reply = world.send(fetch(("cold", 0), bytes_min=MANY, wait_ms=500))
    assert turn_without_the_disk(world, reply) is None
    world.settle()
    world.clock.advance(ms=600)
    world.settle()
    assert offsets(reply.response)["cold", 0][0] == 0
    assert world.disk.waits == 0

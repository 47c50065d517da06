"""Consumer groups against a real `rivvend`: members of ours among themselves, and together with Kafka's."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import rivven
from rivven import ConfigException, GroupConsumer, Message, RebalanceListener, TopicPartition, TryAgain, blocking
from rivven.assign import ASSIGNORS

WAIT_S = 30
QUICK = {"heartbeat_interval_ms": 100, "session_timeout_ms": 3_000, "wait_ms": 100}
"""Options of a member that hears of changes soon."""


@contextmanager
def running(home: Path, port: int = 0) -> Iterator[str]:
    """The address of a broker whose groups do not wait for company."""
    flags = ("--group-initial-rebalance-delay-ms", "0", "--group-min-session-timeout-ms", "100")
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "rivven.server.main", "--data-dir", str(home / "data")),
                *("--bind", f"127.0.0.1:{port}", "--http-port", "0", *flags),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        found = re.search(r"native protocol on (\S+),", process.stdout.readline())
        assert found, (home / "log").read_text()
        yield found[1]
    finally:
        process.terminate()
        process.wait(WAIT_S)
        process.stdout.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("broker")) as found:
        yield found


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic and a group of the test's own."""
    return re.sub(r"\W", "-", request.node.name)[:80]


def play(address: str, story: Callable[[rivven.RivvenClient], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(2 * WAIT_S), await rivven.connect(address) as client:
            await story(client)

    asyncio.run(whole())


async def fill(client: rivven.RivvenClient, topic: str, count: int, *, partitions: int = 4, first: int = 0) -> None:
    if topic not in await client.list_topics():
        await client.create_topic(topic, partitions)
    async with await client.producer(topic) as producer:
        for number in range(first, first + count):
            await producer.put(b"%d" % number, partition=number % partitions)


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(message.value or b"-1") for message in messages)


async def until(holds: Callable[[], bool], *consumers: GroupConsumer) -> list[Message]:
    """Let the members read until it holds; what they read."""
    read: list[Message] = []
    async with asyncio.timeout(WAIT_S):
        while not holds():
            for messages in await asyncio.gather(*(consumer.poll(50) for consumer in consumers)):
                read += messages
    return read


def shares(*consumers: GroupConsumer) -> list[int]:
    return sorted(len(consumer.assignment) for consumer in consumers)


# Among ourselves


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_share_the_partitions_and_every_record_is_read_once(address, name, assignor):
    async def story(client):
        await fill(client, name, 100)
        options = {"group": name, "topics": [name], "assignor": assignor, **QUICK}
        first = await client.consumer(**options)
        read = await until(lambda: shares(first) == [4], first)
        second = await client.consumer(**options)
        read += await until(lambda: shares(first, second) == [2, 2], first, second)
        assert set(first.assignment).isdisjoint(second.assignment)
        await fill(client, name, 100, first=100)
        read += await until(lambda: behind(first) + behind(second) == 0, first, second)
        await first.close()
        await fill(client, name, 100, first=200)
        read += await until(lambda: shares(second) == [4] and behind(second) == 0, second)
        await second.close()
        assert numbers(read) == list(range(300))
        assert sum((await client.committed_offsets(name)).values()) == 300

    def behind(consumer: GroupConsumer) -> int:
        """What is known to be unread."""
        return sum(
            max(0, shelf.end_offset - shelf.position) + (shelf.end_offset < 0)
            for shelf in consumer._inbox.shelves.values()
        )

    play(address, story)


def test_who_reads_what_is_told_and_seen(address, name):
    async def story(client):
        await fill(client, name, 4)
        heard: list[tuple[str, int]] = []

        class Ear(RebalanceListener):
            async def on_assigned(self, partitions):
                await asyncio.sleep(0)
                heard.append(("assigned", len(partitions)))

            def on_revoked(self, partitions):
                heard.append(("revoked", len(partitions)))

        first = await client.consumer(group=name, **QUICK)
        with pytest.raises(ConfigException, match="subscribe"):
            await first.poll(1)
        await first.subscribe(name, listener=Ear())
        await until(lambda: shares(first) == [4], first)
        async with await client.consumer(group=name, topics=name, **QUICK) as second:
            await until(lambda: shares(first, second) == [2, 2], first, second)
            state = await client.describe_members(name)
            assert (state.kind, state.assignor, len(state.members)) == ("classic", "cooperative-sticky", 2)
            assert {each.partitions for each in state.members} == {
                tuple(first.assignment),
                tuple(second.assignment),
            }
        await first.close()
        assert heard[:2] == [("assigned", 4), ("revoked", 2)]
        assert heard[-1][0] == "revoked"
        assert (await client.describe_members(name)).members == ()
        assert (await client.describe_members(f"{name}-never")).state == "Dead"

    play(address, story)


def test_several_topics_and_a_pattern_that_finds_one_more(address, name):
    async def story(client):
        await fill(client, f"{name}.a", 4)
        await fill(client, f"{name}.b", 2, partitions=2)
        pattern = re.compile(re.escape(name) + r"\.[a-c]")
        async with await client.consumer(group=name, pattern=pattern, refresh_interval_ms=100, **QUICK) as consumer:
            read = await until(lambda: shares(consumer) == [6], consumer)
            await fill(client, f"{name}.c", 1, partitions=1)
            await fill(client, f"{name}.d", 1, partitions=1)
            read += await until(lambda: shares(consumer) == [7], consumer)
            while len(read) < 7:
                read += await consumer.poll(500)
            assert consumer.topics == [f"{name}.{letter}" for letter in "abc"]
            assert {message.topic for message in read} == set(consumer.topics)

    play(address, story)


def test_what_was_not_committed_is_read_again(address, name):
    async def story(client):
        await fill(client, name, 8, partitions=1)
        place = TopicPartition(name, 0)
        options = {"group": name, "topics": name, "auto_commit": False, **QUICK}
        async with await client.consumer(**options) as consumer:
            assert numbers(await consumer.poll(10_000, 3)) == [0, 1, 2]
            await consumer.commit()
            assert numbers(await consumer.poll(10_000, 3)) == [3, 4, 5]
            with pytest.raises(ConfigException, match="not assigned"):
                await consumer.commit(offsets={TopicPartition("other", 0): 1})
        assert await client.committed_offsets(name) == {place: 3}
        async with await client.consumer(**options) as consumer:
            assert numbers(await consumer.poll(10_000, 3)) == [3, 4, 5]
            await consumer.commit(offsets={place: 5})
            assert await consumer.lag() == {place: 2}
        async with await client.consumer(**options) as consumer:
            assert numbers(await consumer.poll(10_000)) == [5, 6, 7]
            consumer.commit_soon()
            while await client.committed_offsets(name) != {place: 8}:
                await asyncio.sleep(0.01)

    play(address, story)


def test_commits_follow_the_reading_at_their_interval(address, name):
    async def story(client):
        await fill(client, name, 8, partitions=1)
        options = {"group": name, "topics": name, "auto_commit_interval_ms": 0, **QUICK}
        async with await client.consumer(**options) as consumer:
            await consumer.poll(10_000, 3)
            assert await client.committed_offsets(name) == {}
            while not await client.committed_offsets(name):
                await consumer.poll(0, 1)

    play(address, story)


def test_where_to_begin_without_an_offset(address, name):
    async def story(client):
        await fill(client, name, 3, partitions=1)
        async with await client.consumer(
            group=f"{name}-1", topics=name, auto_offset_reset="latest", **QUICK
        ) as consumer:
            await until(lambda: shares(consumer) == [1], consumer)
            assert consumer.positions() == {TopicPartition(name, 0): 3}
        async with await client.consumer(
            group=f"{name}-2", topics=name, auto_offset_reset="error", **QUICK
        ) as consumer:
            with pytest.raises(ConfigException, match="has no offset for"):
                await consumer.poll(10_000)

    play(address, story)


def test_an_offset_that_is_gone_is_made_up_for(address, name):
    async def story(client):
        await fill(client, name, 6, partitions=1)
        await client.reset_offsets(name, {TopicPartition(name, 0): 1})
        await client.delete_records(name, 0, 4)
        async with await client.consumer(group=name, topics=name, **QUICK) as consumer:
            assert numbers(await consumer.poll(10_000)) == [4, 5]

    play(address, story)


def test_a_paused_partition_waits(address, name):
    async def story(client):
        await fill(client, name, 40, partitions=2)
        async with await client.consumer(group=name, topics=name, batch_size=4, **QUICK) as consumer:
            read = await until(lambda: shares(consumer) == [2], consumer)
            consumer.pause(TopicPartition(name, 0))
            while len(read) < 20 + sum(message.partition == 0 for message in read):
                more = await consumer.poll(5_000)
                assert {message.partition for message in more} == {1}
                read += more
            assert await consumer.poll(0) == []
            consumer.resume()
            while len(read) < 40:
                read += await consumer.poll(5_000)
            assert numbers(read) == list(range(40))

    play(address, story)


def test_who_does_not_read_for_too_long_loses_its_place_and_finds_back(address, name):
    async def story(client):
        await fill(client, name, 4)
        lost: list[list[TopicPartition]] = []
        slow = await client.consumer(
            group=name, topics=name, max_poll_interval_ms=300, on_lost=lost.append, auto_commit=False, **QUICK
        )
        await until(lambda: shares(slow) == [4], slow)
        async with await client.consumer(group=name, topics=name, **QUICK) as quick:
            await until(lambda: shares(quick) == [4], quick)
            with pytest.raises(TryAgain):
                await slow.commit(offsets={TopicPartition(name, 0): 1})
            await until(lambda: shares(slow, quick) == [2, 2], slow, quick)
            assert [len(each) for each in lost] == [4]
            await slow.close()

    play(address, story)


def test_a_static_member_comes_back_to_what_it_had_without_a_rebalance(address, name):
    async def story(client):
        await fill(client, name, 4)
        options = {"group": name, "topics": name, **QUICK, "session_timeout_ms": 20_000}
        stays = await client.consumer(instance_id="stays", **options)
        goes = await client.consumer(instance_id="goes", **options)
        await until(lambda: shares(stays, goes) == [2, 2], stays, goes)
        had, generation = goes.assignment, stays.generation
        await goes.close()
        async with await client.consumer(instance_id="goes", **options) as back:
            await until(lambda: shares(back) == [2], stays, back)
            assert (back.assignment, stays.generation, back.generation) == (had, generation, generation)
        await stays.close()

    play(address, story)


def test_another_with_the_same_instance_id_stops_the_first(address, name):
    async def story(client):
        await fill(client, name, 4)
        options = {"group": name, "topics": name, "instance_id": "one", **QUICK}
        first = await client.consumer(**options)
        await until(lambda: shares(first) == [4], first)
        async with await client.consumer(**options) as second:
            with pytest.raises(rivven.ServerException, match=r"FENCED_INSTANCE_ID.*instance_id"):
                await until(lambda: False, first, second)
        await first.close()

    play(address, story)


def test_a_member_that_uses_another_assignor_is_refused(address, name):
    async def story(client):
        await fill(client, name, 4)
        async with await client.consumer(group=name, topics=name, assignor="range", **QUICK) as first:
            await until(lambda: shares(first) == [4], first)
            async with await client.consumer(group=name, topics=name, assignor="sticky", **QUICK) as second:
                with pytest.raises(rivven.ServerException, match="assignors"):
                    await until(lambda: False, first, second)

    play(address, story)


def test_a_member_reads_columns(address, name):
    async def story(client):
        await fill(client, name, 100)
        async with await client.consumer(group=name, topics=name, **QUICK) as consumer:
            rows = 0
            while rows < 100:
                rows += (await consumer.fetch_arrow(wait_ms=5_000)).num_rows
        assert sum((await client.committed_offsets(name)).values()) == 100

    play(address, story)


def test_a_group_outlives_its_broker(tmp_path, name):
    async def story() -> None:
        async with asyncio.timeout(2 * WAIT_S):
            with running(tmp_path) as address:
                client = await rivven.connect(address, options=rivven.Options(backoff_ms=5, breaker_open_ms=20))
                await fill(client, name, 40)
                consumer = await client.consumer(group=name, topics=name, **QUICK)
                read = [await anext(consumer) for _ in range(40)]
            with running(tmp_path, int(address.rpartition(":")[2])):
                await fill(client, name, 40, first=40)
                while set(numbers(read)) != set(range(80)):  # what was not committed in time comes again
                    read.append(await anext(consumer))
                await consumer.close()
                await client.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"assignor": "best"}, "no assignor 'best'"),
        ({"pattern": "("}, "no regular expression"),
        ({"topics": ["a"], "pattern": "b"}, "topics or to a pattern"),
        ({"topics": ["a"], "auto_offset_reset": "begin"}, "auto_offset_reset is one of earliest"),
        ({"topics": ["a"], "speed": 3}, "takes no speed"),
        ({"topics": ["a"], "listener": RebalanceListener(), "on_lost": print}, "not both"),
        ({"topic": "a", "assignor": "range"}, "assignor: for members"),
        ({"topics": ["a"], "start_offset": 3}, "name a topic"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(address, options, says):
    async def story(client):
        with pytest.raises(ConfigException, match=re.escape(says)):
            await client.consumer(group="g", **options)

    play(address, story)


# Without an event loop


def test_a_blocking_member_hears_and_commits(address, name):
    with blocking.connect(address) as client:
        client.create_topic(name, 2)
        with client.producer(name) as producer:
            for number in range(20):
                producer.put(b"%d" % number)
        heard: list[str] = []

        def revoked(partitions: list[TopicPartition]) -> None:
            consumer.commit()  # it is the caller who waits, not the loop
            heard.append(f"revoked {len(partitions)}")

        consumer = client.consumer(
            group=name,
            topics=[name],
            auto_commit=False,
            on_assigned=lambda partitions: heard.append(f"assigned {len(partitions)}"),
            on_revoked=revoked,
            **QUICK,
        )
        with consumer:
            read = [message for _, message in zip(range(20), consumer, strict=False)]
            assert numbers(read) == list(range(20))
            assert sum(consumer.lag().values()) == 0
        assert heard == ["assigned 2", "revoked 2"]
        assert sum(client.committed_offsets(name).values()) == 20


# With Kafka's clients


class Theirs:
    """A member that is no client of ours, reading in a thread."""

    def __init__(self, address: str, group: str, topic: str, assignor: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "partition.assignment.strategy": assignor,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 200,
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])
        self.read: list[bytes] = []

    async def poll(self) -> None:
        message = await asyncio.to_thread(self._consumer.poll, 0.05)
        if message is not None and message.error() is None:
            self.read.append(message.value())
            await asyncio.to_thread(self._consumer.commit, message, asynchronous=False)

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted(TopicPartition(each.topic, each.partition) for each in self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize("leads", ["ours", "theirs"])
@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_members_of_ours_and_of_kafka_make_one_group(address, name, assignor, leads):
    async def story(client):
        await fill(client, name, 40)
        options: dict[str, Any] = {"group": name, "topics": name, "assignor": assignor, **QUICK}
        theirs: Theirs | None = Theirs(address, name, name, assignor) if leads == "theirs" else None
        while theirs is not None and len(theirs.assignment) < 4:
            await theirs.poll()
        ours = await client.consumer(**options)
        read: list[Message] = []
        if theirs is None:
            read += await until(lambda: shares(ours) == [4], ours)
            theirs = Theirs(address, name, name, assignor)
        while (len(ours.assignment), len(theirs.assignment)) != (2, 2) or len(read) + len(theirs.read) < 40:
            read += await ours.poll(50)
            await theirs.poll()
        assert set(ours.assignment).isdisjoint(theirs.assignment)
        assert sorted({*numbers(read), *map(int, theirs.read)}) == list(range(40))
        state = await client.describe_members(name)
        assert (len(state.members), state.assignor) == (2, assignor)
        await asyncio.to_thread(theirs.close)
        await until(lambda: shares(ours) == [4], ours)
        await ours.close()
        assert sum((await client.committed_offsets(name)).values()) == 40

    play(address, story)

"""The consumer against a real server: where it starts, what it hands out, what it commits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from serving import QUICK, Actor, address_of, connected, eventually, settings, stop

import rivven
from rivven import Closed, ConfigException, Message, Options, SerializationException, ServerException
from rivven.client.inbox import Inbox, Shelf
from rivven.record import Codec, crc32c, encode
from rivven.server.node import Node
from rivven.wire import CAPABILITIES
from rivven.wire import requests as ask
from rivven.wire import responses as tell

NOW_MS = 1_700_000_000_000


async def fill(client: rivven.RivvenClient, count: int, *, partitions: int = 1, topic: str = "t") -> None:
    """Records 0, 1, 2 and so on, a second apart, one partition after another."""
    await client.create_topic(topic, partitions)
    async with await client.producer(topic, batch_size=300) as producer:
        for number in range(count):
            await producer.put(b"%d" % number, partition=number % partitions, timestamp_ms=NOW_MS + 1000 * number)


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.value or b"-1") for message in messages]


def test_fetch_hands_out_what_there_is_and_then_nothing(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 250)
            async with await client.consumer("t") as consumer:
                assert (consumer.topic, consumer.partition, consumer.group, consumer.is_closed) == (
                    "t",
                    0,
                    None,
                    False,
                )
                assert numbers(await consumer.fetch()) == list(range(100))
                assert numbers(await consumer.fetch(7)) == list(range(100, 107))
                assert consumer.current_offset() == await consumer.current_offset() == 107
                assert numbers(await consumer.fetch(1000)) == list(range(107, 250))
                assert await consumer.fetch() == []
                assert await consumer.fetch(0) == []
                assert await client.publish("t", b"250") == 250
                assert numbers(await consumer.fetch()) == [250]
            assert consumer.is_closed

    asyncio.run(play())


def test_iteration_waits_for_more(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 120)
            consumer = await client.consumer("t", batch_size=50)
            seen: list[int] = []
            async for message in consumer:
                seen += numbers([message])
                if len(seen) == 120:
                    late = asyncio.create_task(client.publish("t", b"120"))
                if len(seen) == 121:
                    break
            await late
            assert seen == list(range(121))
            await consumer.close()

    asyncio.run(play())


def test_closing_ends_an_iteration_that_waits(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 1)
            consumer = await client.consumer("t", wait_ms=10_000)
            assert numbers([await anext(consumer)]) == [0]
            waiting = asyncio.create_task(anext(consumer, "over"))
            await eventually(lambda: consumer._flight is not None)
            await consumer.close()
            assert await waiting == "over"
            await consumer.close()
            with pytest.raises(Closed):
                await consumer.fetch()

    asyncio.run(play())


def test_the_first_message_after_close_is_none_and_then_it_is_over(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 3)
            consumer = await client.consumer("t")
            await anext(consumer)
            await consumer.close()
            assert await anext(consumer) is None
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)

    asyncio.run(play())


def test_seeking(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 100)
            async with await client.consumer("t", start_offset=90) as consumer:
                assert numbers(await consumer.fetch(3)) == [90, 91, 92]
                await consumer.seek(40)
                assert numbers(await consumer.fetch(3)) == [40, 41, 42]
                await consumer.seek_to_beginning()
                assert numbers(await consumer.fetch(2)) == [0, 1]
                await consumer.seek_to_end()
                assert await consumer.fetch() == []
                assert consumer.current_offset() == 100
                await consumer.seek_to_timestamp(NOW_MS + 55_500)
                assert numbers(await consumer.fetch(1)) == [56]
                await consumer.seek_to_timestamp(NOW_MS + 10**9)
                assert await consumer.fetch() == []
                assert await consumer.get_offset_bounds() == (0, 100)
                await consumer.seek(5000)
                assert await consumer.fetch() == []
                for odd in ("7", 1.5, -5):
                    with pytest.raises(ConfigException, match="offset is"):
                        await consumer.seek(odd)  # type: ignore[arg-type]
                await consumer.seek(7)
                assert numbers(await consumer.fetch(1)) == [7]
            with pytest.raises(ConfigException, match="partition is a number"):
                await client.consumer("t", ["0"])  # type: ignore[list-item]

    asyncio.run(play())


def test_a_seek_during_iteration_counts_at_once(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 100)
            async with await client.consumer("t") as consumer:
                assert numbers([await anext(consumer), await anext(consumer)]) == [0, 1]
                assert consumer.current_offset() == 2
                await consumer.seek(77)
                assert numbers([await anext(consumer)]) == [77]
                assert numbers(await consumer.fetch(2)) == [78, 79]

    asyncio.run(play())


def test_reading_from_before_the_beginning_starts_at_the_beginning(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 100)
            assert await client.delete_records("t", 0, 30) == 30
            async with await client.consumer("t") as consumer:
                assert numbers(await consumer.fetch(2)) == [30, 31]

    asyncio.run(play())


def test_all_partitions_are_read_each_in_its_order(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 900, partitions=3)
            async with await client.consumer("t", None, batch_size=70) as consumer:
                assert consumer.partitions == [0, 1, 2]
                found: list[Message] = []
                while messages := await consumer.fetch():
                    found += messages
                assert sorted(numbers(found)) == list(range(900))
                for partition in range(3):
                    part = numbers([message for message in found if message.partition == partition])
                    assert part == list(range(partition, 900, 3))
                assert consumer.positions() == {0: 300, 1: 300, 2: 300}
                with pytest.raises(ConfigException, match="which partition"):
                    consumer.current_offset()
                await consumer.seek(299, partition=1)
                assert consumer.current_offset(1) == 299
                assert numbers(await consumer.fetch()) == [898]
                await consumer.assign([2], start_offset=298)
                assert numbers(await consumer.fetch()) == [896, 899]

    asyncio.run(play())


def test_a_group_goes_on_where_it_was(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 100)
            async with await client.consumer("t", group="g") as consumer:
                assert numbers(await consumer.fetch(10)) == list(range(10))
            assert await client.get_offset("g", "t", 0) == 10
            async with await client.consumer("t", group="g", auto_commit=False) as consumer:
                assert numbers(await consumer.fetch(10)) == list(range(10, 20))
            async with await client.consumer("t", group="g", auto_commit=False) as consumer:
                assert numbers(await consumer.fetch(10)) == list(range(10, 20))
                await consumer.commit()
                await consumer.fetch(50)
            async with await client.consumer("t", group="g") as consumer:
                seen = [await anext(consumer) for _ in range(5)]
                assert numbers(seen) == list(range(20, 25))
            assert await client.get_offset("g", "t", 0) == 25, "what was read ahead does not count"
            async with await client.consumer("t", group="g", start_offset=3) as consumer:
                assert numbers(await consumer.fetch(1)) == [3]
            async with await client.consumer("t", group="other") as consumer:
                assert numbers(await consumer.fetch(1)) == [0]
            with pytest.raises(ConfigException, match="group"):
                async with await client.consumer("t") as consumer:
                    await consumer.commit()

    asyncio.run(play())


def test_commits_happen_as_reading_goes_on(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 100)
            consumer = await client.consumer("t", group="g", batch_size=10)
            for _ in range(11):
                await anext(consumer)
            async with asyncio.timeout(20):
                while await client.get_offset("g", "t", 0) != 10:
                    await asyncio.sleep(0.001)
            await consumer.close()

    asyncio.run(play())


def test_reading_goes_on_after_a_restart_of_the_server(tmp_path):
    async def play():
        node = Node(settings(tmp_path))
        await node.start()
        port = node.address[1]
        client = await rivven.connect(address_of(node), options=Options(**QUICK))
        await fill(client, 50)
        consumer = await client.consumer("t", group="g", batch_size=5, wait_ms=20)
        seen = [await anext(consumer) for _ in range(50)]
        await stop(node)
        waiting = asyncio.create_task(anext(consumer))
        node = Node(settings(tmp_path, port=port))
        await node.start()
        assert await client.publish("t", b"50") == 50
        seen.append(await waiting)
        assert numbers(seen) == list(range(51))
        await consumer.close()
        assert await client.get_offset("g", "t", 0) == 51
        await client.close()
        await stop(node)

    asyncio.run(play())


def test_what_is_not_there_is_told(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            async with await client.consumer("nowhere") as consumer:
                with pytest.raises(ServerException, match="nowhere"):
                    await consumer.fetch()
            with pytest.raises(ServerException):
                await client.consumer("nowhere", None)
            with pytest.raises(ConfigException):
                await client.consumer("t", batch_size=0)

    asyncio.run(play())


def test_more_is_fetched_while_the_caller_is_busy(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 400)
            async with await client.consumer("t", fetch_bytes=1000) as consumer:
                await consumer.fetch(1)
                await eventually(lambda: len(consumer._inbox.shelf(0).chunks) == 2)
                seen = 1
                while messages := await consumer.fetch():
                    seen += len(messages)
                assert seen == 400

    asyncio.run(play())


def test_a_fetch_that_was_under_way_during_a_seek_does_not_count():
    async def play():
        gate = asyncio.Event()

        async def slow(request: Any) -> Any:
            if not isinstance(request, ask.FetchBatches):
                return None
            (part,) = request.topics[0].partitions
            if part.fetch_offset == 0:
                await gate.wait()
            batch = encode([(1, None, b"%d" % part.fetch_offset, ())], base_offset=part.fetch_offset)
            found = tell.PartitionFetched(0, 0, None, 100, 100, 0, (), bytes(batch))
            return tell.FetchedBatches((tell.TopicFetched("t", (found,)),))

        async with Actor(slow, capabilities=int(CAPABILITIES)) as actor:
            client = await rivven.connect(actor.address)
            consumer = await client.consumer("t")
            fetching = asyncio.create_task(consumer.fetch())
            await eventually(lambda: len(actor.of(ask.FetchBatches)) == 1)
            await consumer.seek(50)
            gate.set()
            assert numbers(await fetching)[:1] == [50]
            await consumer.close()
            await client.close()

    asyncio.run(play())


# The shelf by itself


def test_a_shelf_skips_what_was_before_its_position_and_control_batches():
    shelf = Shelf("t", 0, 2)
    rows: list[Any] = [(NOW_MS, None, b"%d" % number, ()) for number in range(4)]
    data = (
        bytes(encode(rows))
        + bytes(encode(rows[:1], base_offset=4, control=True))
        + bytes(encode(rows, base_offset=5))
    )
    shelf.add(data)
    assert shelf.fetch_offset == 9
    assert [message.offset for message in shelf.take(3)] == [2, 3, 5]
    assert shelf.position == 6
    assert [message.offset for message in shelf.take(30)] == [6, 7, 8]
    assert shelf.position == 9


def unreadable(base_offset: int) -> bytes:
    """Four records, of which the compressed bytes are none though the checksum is right."""
    whole = encode([(NOW_MS, None, bytes(50), ())] * 4, codec=Codec.GZIP, base_offset=base_offset)
    return bytes(complete(bytearray(whole)[:-8] + bytes(8)))


def complete(batch: bytearray) -> bytearray:
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return batch


def test_what_comes_before_a_batch_that_cannot_be_read_is_handed_out_and_then_it_stops_there():
    rows: list[Any] = [(NOW_MS, None, b"%d" % number, ()) for number in range(4)]
    inbox = Inbox("t", 1000)
    inbox.assign({0: 0, 1: 0})
    inbox.shelves[0].add(bytes(encode(rows)))
    inbox.shelves[1].add(bytes(encode(rows)) + unreadable(4) + bytes(encode(rows, base_offset=8)))
    taken = inbox.take(100)
    assert [(each.partition, each.offset) for each in taken] == [(part, n) for part in (0, 1) for n in range(4)]
    for _ in range(2):
        with pytest.raises(SerializationException, match=r"t/1 cannot be read from offset 4: .*seek to 8"):
            inbox.take(100)
        assert inbox.shelves[1].position == 4


def test_a_group_does_not_commit_what_could_not_be_read(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await fill(client, 4)
            batches = (ask.TopicBatches("t", (ask.PartitionBatches(0, unreadable(0)),)),)
            await client._channel.ask(ask.ProduceBatches(-1, 1000, batches), tell.ProducedBatches)
            consumer = await client.consumer("t", group="g")
            assert numbers(await consumer.fetch(100)) == [0, 1, 2, 3]
            for _ in range(2):
                with pytest.raises(SerializationException, match="seek to 8"):
                    await consumer.fetch(100)
            await consumer.close()
            assert await client.get_offset("g", "t", 0) == 4
            columns = await client.consumer("t", group="columns")
            for _ in range(2):
                with pytest.raises(SerializationException, match="from offset 0 on"):
                    await columns.fetch_arrow()
            await columns.close()
            assert not await client.get_offset("columns", "t", 0)

    asyncio.run(play())


def test_a_control_batch_at_the_end_moves_the_position_on():
    shelf = Shelf("t", 0, 0)
    shelf.add(bytes(encode([(1, None, b"", ())], control=True)))
    assert shelf.take(5) == []
    assert shelf.position == 1


def test_an_inbox_asks_for_what_has_room_and_ahead_only_for_what_is_known_to_be_there():
    inbox = Inbox("t", 1000)
    inbox.assign({0: 0, 1: 5})
    assert inbox.plan(ahead=True).shelves == []
    plan = inbox.plan(ahead=False)
    request = inbox.request(plan, 7)
    assert [(part.partition, part.fetch_offset) for part in request.topics[0].partitions] == [(0, 0), (1, 5)]
    inbox.shelf(1).end_offset = 9
    assert [shelf.partition for shelf in inbox.plan(ahead=True).shelves] == [1]

"""Tables in, columns out."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from serving import connected, served

from rivven import Options, blocking
from rivven.client.arrow import placed
from rivven.record import partition_for_key, pieces

NOW_MS = 1_700_000_000_000


def table(count: int, *, keys: int = 0, **more: Any) -> pa.Table:
    columns: dict[str, Any] = {"value": pa.array([b"%d" % number for number in range(count)], pa.binary())}
    if keys:
        columns["key"] = pa.array([b"key-%d" % (number % keys) for number in range(count)], pa.binary())
    return pa.table({**columns, **more})


@pytest.mark.parametrize("capabilities", [7, 0])
def test_a_table_comes_back_row_for_row(tmp_path, capabilities):
    """Servers of the first version know neither headers nor tombstones, and stamp records themselves."""
    headers = [[{"key": "a", "value": b"1"}], [], None, [{"key": "b", "value": None}]] if capabilities else [None] * 4
    values = [b"a", b"", None, b"d"] if capabilities else [b"a", b"", b"c", b"d"]
    kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    sent = pa.table(
        {
            "key": pa.array([b"k", None, b"", b"k"], pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array([NOW_MS + number for number in range(4)], pa.timestamp("ms", tz="UTC")),
            "headers": pa.array(headers, kind),
        }
    )

    async def play():
        async with connected(tmp_path, Options(capabilities=capabilities)) as client:
            await client.create_topic("t", 2)
            async with await client.producer("t") as producer:
                (delivery,) = await producer.send_arrow(sent, partition=1)
                assert (delivery.partition, delivery.offset, delivery.count) == (1, 0, 4)
                assert await producer.send_arrow(sent.slice(0, 0)) == []
            async with await client.consumer("t", 1) as consumer:
                found = await consumer.fetch_arrow()
                assert found.schema.metadata == {b"topic": b"t", b"partition": b"1"}
                assert found.column("offset").to_pylist() == [0, 1, 2, 3]
                assert found.column("key").to_pylist() == [b"k", None, b"", b"k"]
                assert found.column("value").to_pylist() == values
                if capabilities:
                    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [NOW_MS + n for n in range(4)]
                    assert found.column("headers").to_pylist() == [entry or [] for entry in headers]
                assert (await consumer.fetch_arrow()).num_rows == 0
                await consumer.seek(1)
                some = await consumer.fetch_arrow(columns=["value", "partition", "offset"], until=3)
                assert some.to_pydict() == {"value": values[1:3], "partition": [1, 1], "offset": [1, 2]}
                assert consumer.current_offset() == 3
                assert (await consumer.fetch_arrow(until=3)).num_rows == 0
                assert [message.value for message in await consumer.fetch()] == [b"d"]

    asyncio.run(play())


def test_rows_go_by_their_keys_as_records_do_and_keep_their_order(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await client.create_topic("t", 4)
            async with await client.producer("t", compression="lz4") as producer:
                deliveries = await producer.send_arrow(table(20_000, keys=31))
                assert sum(delivery.count for delivery in deliveries) == 20_000
            for partition in range(4):
                async with await client.consumer("t", partition) as consumer:
                    rows: list[tuple[Any, int]] = []
                    while (batch := await consumer.fetch_arrow(columns=["key", "value"])).num_rows:
                        rows += [(row["key"], int(row["value"])) for row in batch.to_pylist()]
                    assert rows
                    assert {partition_for_key(key, 4) for key, _ in rows} == {partition}
                    assert [number for _, number in rows] == sorted(number for _, number in rows)

    asyncio.run(play())


def test_rows_may_say_where_they_go(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await client.create_topic("t", 3)
            async with await client.producer("t") as producer:
                await producer.send_arrow(table(9, partition=pa.array([2, 0, 1] * 3, pa.int32())))
            async with await client.consumer("t", 2) as consumer:
                assert (await consumer.fetch_arrow()).column("value").to_pylist() == [b"0", b"3", b"6"]

    asyncio.run(play())


def test_a_table_for_a_topic_that_is_not_there(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            async with await client.producer("new") as producer:
                assert sum(d.count for d in await producer.send_arrow(table(100, keys=10))) == 100
            async with await client.consumer("new", None) as consumer:
                messages = await consumer.fetch(1000)
            assert sorted(int(message.value or b"") for message in messages) == list(range(100))
            assert all(message.partition == partition_for_key(message.key or b"", 3) for message in messages)

    asyncio.run(play())


def test_rows_and_records_of_one_producer_keep_their_order(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await client.create_topic("t", 1)
            async with await client.producer("t", linger_ms=1000) as producer:
                await producer.put(b"before")
                await producer.put_arrow(table(2))
                await producer.put(b"after")
            async with await client.consumer("t") as consumer:
                values = [message.value for message in await consumer.fetch()]
                assert values == [b"before", b"0", b"1", b"after"]

    asyncio.run(play())


def test_columns_after_an_iteration_begin_where_it_stopped(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await client.create_topic("t", 1)
            async with await client.producer("t") as producer:
                await producer.send_arrow(table(50))
            async with await client.consumer("t") as consumer:
                await anext(consumer)
                assert (await consumer.fetch_arrow()).column("offset").to_pylist() == list(range(1, 50))

    asyncio.run(play())


def test_what_is_no_column_is_refused(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await client.create_topic("t", 1)
            async with await client.producer("t") as producer, await client.consumer("t") as consumer:
                with pytest.raises(ValueError, match="no such column"):
                    await producer.send_arrow(table(3, colour=pa.array([1, 2, 3])))
                with pytest.raises(ValueError, match="no such column"):
                    await consumer.fetch_arrow(columns=["colour"])

    asyncio.run(play())


def test_rows_that_were_asked_for_in_no_columns_there_are_come_with_the_next_call(tmp_path):
    with served(tmp_path) as address, blocking.connect(address) as client:
        client.create_topic("t", 1)
        with client.producer("t") as producer:
            producer.send_arrow(table(300))
        with client.consumer("t") as consumer:
            with pytest.raises(ValueError, match="no such column"):
                consumer.fetch_arrow(columns=["colour"])
            assert consumer.current_offset() == 0
            assert consumer.fetch_arrow(wait_ms=500).num_rows == 300
            with pytest.raises(ValueError, match="no such column"):
                consumer.fetch_arrow(columns=["colour"])
            assert consumer.current_offset() == 300

    async def play():
        async with connected(tmp_path / "other") as client:
            await client.create_topic("t", 1)
            async with await client.producer("t") as producer, await client.consumer("t") as consumer:
                await producer.send_arrow(table(300))
                with pytest.raises(ValueError, match="no such column"):
                    await consumer.fetch_arrow(columns=["colour"])
                assert (await consumer.fetch_arrow(wait_ms=500)).num_rows == 300

    asyncio.run(play())


def test_blocking_columns(tmp_path):
    with served(tmp_path) as address, blocking.connect(address) as client:
        client.create_topic("t", 2)
        with client.producer("t") as producer:
            assert producer.put_arrow(table(5000), partition=0) == 5000
            producer.flush()
            producer.send_arrow(table(1000), partition=1)
        with client.consumer("t", None, group="g") as consumer:
            rows = 0
            while (batch := consumer.fetch_arrow(columns=["offset", "partition"])).num_rows:
                rows += batch.num_rows
            assert rows == 6000
        assert client.describe_group("g") == {"t": {0: 5000, 1: 1000}}


def test_a_table_is_cut_without_losing_a_row():
    whole = pa.table({"value": pa.array([b"x" * 1000] * 20_000, pa.binary())})
    parts = list(pieces(whole))
    assert len(parts) > 3
    assert sum(part.num_rows for part in parts) == 20_000
    assert list(pieces(whole.slice(0, 0))) == []


def test_rows_without_a_key_go_anywhere():
    rows = table(4, key=pa.array([None, b"a", None, b"a"], pa.binary()))
    found = {number: part.column("value").to_pylist() for number, part in placed(rows, 5, None)}
    assert found == {partition_for_key(b"a", 5): [b"1", b"3"], None: [b"0", b"2"]}
    ((number, part),) = placed(table(3), 5, None)
    assert (number, part.num_rows) == (None, 3)
    strings = table(2, key=pa.array(["a", "a"]))
    assert [number for number, _ in placed(strings, 5, None)] == [partition_for_key(b"a", 5)]

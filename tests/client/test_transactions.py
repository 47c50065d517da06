# ruff: noqa: PT012 - a transaction is a block, and what is raised is raised in it
"""Transactions of our client against a real node: all or nothing, one producer for each id, nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from serving import QUICK, Actor, address_of, connected, eventually, served, serving, settings, stop, stored

import rivven
from rivven import TopicPartition
from rivven.client import Options
from rivven.client.transform import outputs
from rivven.server.node import Node
from rivven.wire import Capability
from rivven.wire import requests as ask
from rivven.wire import responses as tell


def play(scene: Any) -> None:
    asyncio.run(asyncio.wait_for(scene, 60))


async def everything(
    client: rivven.RivvenClient, topic: str, isolation: Any = "read_committed"
) -> list[bytes | None]:
    """What a reader sees right now, partition by partition."""
    async with await client.consumer(topic, None, isolation=isolation) as consumer:
        seen = []
        while found := await consumer.poll(50):
            seen += found
    return [message.value for message in sorted(seen, key=lambda each: (each.partition, each.offset))]


def test_what_commits_is_seen_and_what_aborts_is_not(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path) as client:
            await client.create_topic("t", 2)
            async with await client.producer("t", transactional_id="x") as producer:
                async with producer.transaction() as first:
                    await producer.put(b"one", partition=0)
                    await producer.put(b"two", partition=1)
                with pytest.raises(ZeroDivisionError):
                    async with producer.transaction():
                        await producer.send(b"never", partition=0)
                        raise ZeroDivisionError
                async with producer.transaction() as third:
                    await producer.put(b"three", partition=0)
                assert (first.sequence, third.sequence) == (0, 2)
                assert producer.last_committed == third.sequence
            assert await everything(client, "t") == [b"one", b"three", b"two"]
            assert await everything(client, "t", "read_uncommitted") == [b"one", b"never", b"three", b"two"]

    play(scene())


def test_a_reader_waits_for_the_end_of_a_transaction_and_then_sees_all_of_it(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path) as client:
            await client.create_topic("t", 1)
            await client.create_topic("u", 1)
            async with await client.producer("t", transactional_id="x") as producer:
                async with producer.transaction() as transaction:
                    await producer.send(b"open")
                    other = await transaction.producer("u")
                    await other.send(b"as well")
                    await client.publish("t", b"behind it")
                    assert await everything(client, "t") == []
                    assert await everything(client, "u") == []
                    assert await everything(client, "t", "read_uncommitted") == [b"open", b"behind it"]
                assert await everything(client, "t") == [b"open", b"behind it"]
                assert await everything(client, "u") == [b"as well"]
                async with producer.transaction() as transaction:
                    assert await transaction.producer("u") is other, "it takes part in later ones, too"
                    await other.put(b"again")
            assert await everything(client, "u") == [b"as well", b"again"]

    play(scene())


def test_offsets_count_with_the_records_that_were_made_of_them(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path) as client:
            await client.create_topic("in", 1)
            await client.create_topic("out", 1)
            for number in range(6):
                await client.publish("in", b"%d" % number)
            producer = await client.producer("out", transactional_id="x")
            consumer = await client.consumer("in", group="g", auto_commit=False, batch_size=2)
            (first, second) = await consumer.fetch()
            async with producer.transaction() as transaction:
                await producer.put(first.value + second.value)
                await transaction.send_offsets(consumer)
                assert await client.get_offset("g", "in", 0) is None
            assert await client.get_offset("g", "in", 0) == 2
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction() as transaction:
                    await consumer.fetch()
                    await transaction.send_offsets(consumer)
                    raise ZeroDivisionError
            assert await client.get_offset("g", "in", 0) == 2
            async with producer.transaction() as transaction:
                await transaction.send_offsets("g", {TopicPartition("in", 0): 5})
            assert await client.get_offset("g", "in", 0) == 5
            await consumer.close()
            await producer.close()

    play(scene())


def test_a_member_s_offsets_count_only_while_it_is_one(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path, group_initial_rebalance_delay_ms=0) as client:
            await client.create_topic("in", 1)
            for number in range(3):
                await client.publish("in", b"%d" % number)
            producer = await client.producer("out", transactional_id="x")
            member = await client.consumer(group="g", topics="in", auto_commit=False, session_timeout_ms=6000)
            seen = []
            while len(seen) < 3:
                seen += await member.poll(100)
            async with producer.transaction() as transaction:
                await producer.put(b"made of three")
                await transaction.send_offsets(member)
            assert await client.committed_offsets("g") == {TopicPartition("in", 0): 3}
            member._membership.generation -= 1  # it missed that the group has begun anew
            with pytest.raises(rivven.RivvenException):
                async with producer.transaction() as transaction:
                    await producer.put(b"a zombie's")
                    await transaction.send_offsets(member, {TopicPartition("in", 0): 1})
            member._membership.generation += 1
            assert await client.committed_offsets("g") == {TopicPartition("in", 0): 3}
            assert await everything(client, "out") == [b"made of three"]
            await member.close()
            await producer.close()

    play(scene())


def test_a_new_producer_fences_the_one_before_and_ends_what_it_left(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path) as client:
            await client.create_topic("t", 1)
            zombie = await client.producer("t", transactional_id="x")
            heir = None
            with pytest.raises(rivven.Fenced):
                async with zombie.transaction():
                    await zombie.send(b"left behind")
                    heir = await client.producer("t", transactional_id="x")
                    async with heir.transaction():
                        await heir.put(b"the heir's")
            assert heir is not None
            assert await everything(client, "t") == [b"the heir's"]
            with pytest.raises(rivven.Fenced):
                async with zombie.transaction():
                    pass
            await zombie.close()
            await heir.close()

    play(scene())


def test_a_producer_that_comes_back_knows_what_has_committed(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path) as client:
            async with await client.producer("t", transactional_id="x") as producer:
                assert producer.last_committed == -1
                async with producer.transaction() as transaction:
                    await producer.put(b"one")
            async with await client.producer("t", transactional_id="x") as again:
                assert again.last_committed == transaction.sequence
                async with again.transaction():
                    await again.put(b"two")
            assert sorted(await everything(client, "t")) == [b"one", b"two"]

    play(scene())


def test_records_need_a_transaction(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path) as client:
            producer = await client.producer("t", transactional_id="x")
            for attempt in (producer.put(b"a"), producer.send(b"a")):
                with pytest.raises(rivven.TransactionClosed, match="begin a transaction first"):
                    await attempt
            async with producer.transaction() as transaction:
                with pytest.raises(rivven.ConfigException, match="one at a time"):
                    async with producer.transaction():
                        pass
                await producer.put(b"a")
            late = await transaction.producer("u")
            with pytest.raises(rivven.TransactionClosed):
                await late.put(b"late")
            await producer.close()
            plain = await client.producer("t")
            with pytest.raises(rivven.ConfigException, match="transactional_id"):
                plain.transaction()
            await plain.close()
            with pytest.raises(rivven.ConfigException, match="idempotent"):
                await client.producer("t", transactional_id="x", acks=0)
            assert await everything(client, "t") == [b"a"]

    play(scene())


def test_a_record_that_fails_dooms_the_transaction(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path) as client:
            await client.create_topic("t", 1)
            await client.alter_topic_config("t", [("max.message.bytes", "2000")])
            async with await client.producer("t", transactional_id="x") as producer:
                with pytest.raises(rivven.ServerException):
                    async with producer.transaction():
                        await producer.put(b"fits")
                        await producer.put(bytes(5000))
                async with producer.transaction():
                    await producer.put(b"after")
            assert await everything(client, "t") == [b"after"]

    play(scene())


def test_a_transaction_that_took_too_long_is_told_so_and_the_next_one_works(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path) as client:
            async with await client.producer("t", transactional_id="x", transaction_timeout_ms=200) as producer:
                with pytest.raises(rivven.ServerException):
                    async with producer.transaction():
                        await producer.send(b"too slow")
                        await asyncio.sleep(1.5)
                async with producer.transaction():
                    await producer.put(b"quick")
            assert await everything(client, "t") == [b"quick"]

    play(scene())


def test_closing_aborts_what_is_open(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path) as client:
            producer = await client.producer("t", transactional_id="x")
            transaction = producer.transaction()
            await transaction.__aenter__()
            await producer.send(b"never")
            await producer.close()
            await client.publish("t", b"behind")
            assert await everything(client, "t") == [b"behind"]

    play(scene())


def test_owners_decide_over_the_attempts_of_many(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path) as client:
            await client.create_topic("t", 1)
            owner = await client.register_owner("query")
            assert owner == rivven.Owner("query", 0, -1)
            attempts = []
            for number in range(3):
                attempt = await client.attempt("query", owner.epoch, 0)
                await (await attempt.producer("t")).put(b"%d" % number)
                await attempt.flush()
                attempts.append(attempt)
                await attempt.close()
            winners = [attempts[0].identity, attempts[2].identity]
            assert await client.decide("query", 0, 0, winners) == rivven.Decision(0, True, tuple(winners), False)
            again = await client.decide("query", 0, 0, [attempts[1].identity])
            assert again == rivven.Decision(0, True, tuple(winners), True)
            assert await everything(client, "t") == [b"0", b"2"]
            joined = await client.register_owner("query", fence=False)
            assert joined == rivven.Owner("query", 0, 0)
            with pytest.raises(rivven.ServerException, match="ALREADY_DECIDED"):
                await client.attempt("query", 0, 0)
            async with await client.attempt("query", 0, 1) as left:
                await (await left.producer("t")).put(b"flushed and left")
                await left.flush()
            with pytest.raises(ZeroDivisionError):
                async with await client.attempt("query", 0, 1) as failed:
                    await (await failed.producer("t")).put(b"never")
                    raise ZeroDivisionError
            with pytest.raises(rivven.ServerException, match="CONCURRENT_TRANSACTIONS"):
                await client.forget_owner("query", 0)
            await client.decide("query", 0, 1, [left.identity])
            assert await everything(client, "t") == [b"0", b"2", b"flushed and left"]
            assert (await client.register_owner("query")).epoch == 1
            with pytest.raises(rivven.Fenced):
                await client.decide("query", 0, 2, [])
            for _ in range(2):
                await client.forget_owner("query", 1)
            assert await client.register_owner("query") == rivven.Owner("query", 0, -1)

    play(scene())


def test_a_commit_whose_answer_is_lost_is_asked_for_again():
    decided: list[ask.Decide] = []

    async def scene() -> None:
        def act(request: Any) -> Any:
            match request:
                case ask.RegisterOwner():
                    return tell.OwnerRegistered(0, None)
                case ask.GetMetadata():
                    return tell.Metadata("t", 1)
                case ask.BeginOwnedTransaction():
                    return tell.TransactionStarted(request.txn_id)
                case ask.ProduceBatches():
                    return stored(request)
                case ask.Decide():
                    decided.append(request)
                    if len(decided) == 1:
                        actor.hang_up()
                        return None
                    return tell.Decided(request.sequence, True, request.committing, True)
            return None

        async with Actor(act, capabilities=int(Capability.BATCHES | Capability.DECISIONS)) as actor:
            client = await rivven.connect(actor.address, options=Options(**QUICK))
            producer = await client.producer("t", transactional_id="x")
            async with producer.transaction():
                await producer.send(b"a")
            assert producer.last_committed == 0
            await producer.close()
            await client.close()

    play(scene())
    assert len(decided) == 2
    assert decided[0] == decided[1]


def test_a_producer_goes_through_a_restart_in_the_middle_of_a_transaction(tmp_path):
    async def scene() -> None:
        node = Node(settings(tmp_path, sync_policy="every_write"))
        await node.start()
        port = node.address[1]
        client = await rivven.connect(address_of(node), options=Options(**QUICK))
        await client.create_topic("t", 2)
        producer = await client.producer("t", transactional_id="x")
        async with producer.transaction():
            await producer.send(b"before", partition=0)
            await stop(node)
            node = Node(settings(tmp_path, port=port, sync_policy="every_write"))
            await node.start()
            await producer.put(b"after", partition=0)
            await producer.put(b"after", partition=1)
        assert await everything(client, "t") == [b"before", b"after", b"after"]
        await producer.close()
        await client.close()
        await stop(node)

    play(scene())


def test_a_producer_without_transactions_stores_once_what_it_sends_again(tmp_path):
    """The server takes the batch, and its answer is lost on the way; a plain producer would store it twice."""

    async def scene() -> None:
        async with serving(tmp_path) as node:
            cut = asyncio.Event()

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                upstream = await asyncio.open_connection(*node.address)

                async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
                    with contextlib.suppress(ConnectionError):
                        while data := await source.read(65536):
                            if answers and cut.is_set():
                                cut.clear()
                                break
                            sink.write(data)
                    writer.transport.abort()
                    upstream[1].transport.abort()

                await asyncio.gather(
                    pump(reader, upstream[1], answers=False), pump(upstream[0], writer, answers=True)
                )

            proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
            port = proxy.sockets[0].getsockname()[1]
            async with await rivven.connect(address_of(node)) as direct:
                await direct.create_topic("t", 1)
                for idempotent in (True, False):
                    client = await rivven.connect(f"127.0.0.1:{port}", options=Options(**QUICK))
                    producer = await client.producer("t", idempotent=idempotent)
                    assert producer.is_idempotent is idempotent
                    cut.set()
                    offset = await producer.send(b"idempotent" if idempotent else b"plain")
                    assert offset == (0 if idempotent else 2)
                    await producer.close()
                    await client.close()
                assert await everything(direct, "t") == [b"idempotent", b"plain", b"plain"]
            proxy.close()
            await proxy.wait_closed()

    play(scene())


def test_messages_are_transformed_once_though_rounds_fail(tmp_path):
    async def scene() -> None:
        async with connected(tmp_path, group_initial_rebalance_delay_ms=0) as client:
            await client.create_topic("in", 2)
            await client.create_topic("out", 1)
            await client.create_topic("odd", 1)
            for number in range(40):
                await client.publish("in", b"%d" % number)
            failures = iter([7, 11])
            failing = next(failures)

            async def change(message: rivven.Message) -> Any:
                nonlocal failing
                number = int(message.value_str())
                if number == failing:
                    failing = next(failures, -1)
                    raise ZeroDivisionError
                if number == 20:
                    return None
                return rivven.Output(b"%d" % number, topic="odd") if number % 2 else [b"%d" % number, b"twice"]

            for life in range(3):
                member = await client.consumer(group="g", topics="in", auto_commit=False)
                producer = await client.producer("out", transactional_id="x")
                work = producer.transform(member, change, idle_ms=700, round_messages=8)
                if life < 2:
                    with pytest.raises(ZeroDivisionError):
                        await work
                else:
                    await work
                await member.close()
                await producer.close()
            evens = [number for number in range(0, 40, 2) if number != 20]
            out = await everything(client, "out")
            assert sorted(int(value) for value in out if value != b"twice") == evens
            assert out.count(b"twice") == len(evens)
            assert sorted(map(int, await everything(client, "odd"))) == list(range(1, 40, 2))
            committed = await client.committed_offsets("g")
            assert sum(committed.values()) == 40

    play(scene())


@pytest.mark.parametrize("changed", ["text", 5, [b"fine", 5]])
def test_a_change_gives_records(changed):
    with pytest.raises(rivven.SerializationException, match="a change gives bytes"):
        outputs(changed)


def test_blocking_transactions(tmp_path: Path):
    with served(tmp_path) as address, rivven.blocking.connect(address) as client:
        with client.producer("t", transactional_id="x") as producer:
            with producer.transaction() as transaction:
                producer.put(b"one")
                transaction.producer("u").put(b"two")
            with pytest.raises(ZeroDivisionError), producer.transaction():
                producer.send(b"never")
                raise ZeroDivisionError
            with pytest.raises(rivven.TransactionClosed):
                producer.put(b"outside")
            assert producer.last_committed == transaction.sequence
        reader = client.consumer("t", None, "g", auto_commit=False)
        with client.producer("copy", transactional_id="y") as copier:
            assert copier.transform(reader, lambda message: message.value, idle_ms=300) == 1
        reader.close()
        owner = client.register_owner("q", fence=False)
        with client.attempt(owner.owner, owner.epoch, 0) as attempt:
            attempt.producer("t").put(b"three")
            attempt.flush()
        client.decide(owner.owner, owner.epoch, 0, [attempt.identity])
        for topic, wanted in (("t", [b"one", b"three"]), ("u", [b"two"]), ("copy", [b"one"])):
            with client.consumer(topic, None) as consumer:
                seen = []
                while found := consumer.poll(50):
                    seen += [message.value for message in found]
                assert sorted(seen) == wanted


def test_producers_that_are_silent_for_long_are_forgotten(tmp_path):
    async def scene() -> None:
        expiring = serving(tmp_path, producer_id_expiration_ms=200)
        async with expiring as node, await rivven.connect(address_of(node)) as client:
            await client.create_topic("t", 1)
            plain = await client.producer("t")
            await plain.send(b"a")
            open_one = await client.producer("t", transactional_id="x")
            async with open_one.transaction():
                await open_one.send(b"b")
                producers = node.store.log("t", 0).facts.producers
                await eventually(lambda: len(producers) == 1)
                assert producers.get(open_one._outbox.identity.producer_id) is not None, "it has something open"
                await plain.send(b"c")
            await plain.close()
            await open_one.close()
            assert await everything(client, "t") == [b"a", b"b", b"c"]

    play(scene())

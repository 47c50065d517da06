"""Everything a client can ask, against a real server."""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode, b64encode
from hashlib import pbkdf2_hmac, sha256
from hmac import digest
from typing import Any

import pytest
from serving import Actor, connected

import rivven
from rivven import Message, RivvenError, RivvenException, ServerException
from rivven.client import failures
from rivven.wire import requests as ask
from rivven.wire import responses as tell


def test_topics(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            assert await client.create_topic("a") == 3
            assert await client.create_topic("b", 5) == 5
            assert sorted(await client.list_topics()) == ["a", "b"]
            with pytest.raises(ServerException, match="exists"):
                await client.create_topic("a")
            assert await client.get_metadata("b") == ("b", 5)
            assert await client.create_partitions("b", 7) == 7
            assert await client.get_metadata("b") == ("b", 7)
            await client.delete_topic("a")
            assert await client.list_topics() == ["b"]
            with pytest.raises(ServerException, match="not found") as raised:
                await client.delete_topic("a")
            assert not raised.value.retriable

    asyncio.run(play())


def test_topic_configs(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await client.create_topic("t", 1)
            default = (await client.describe_topic_configs("t"))["retention.ms"]
            assert await client.alter_topic_config("t", [("retention.ms", "1000")]) == 1
            assert (await client.describe_topic_configs("t"))["retention.ms"] == "1000"
            await client.alter_topic_config("t", [("retention.ms", None)])
            assert (await client.describe_topic_configs("t"))["retention.ms"] == default
            with pytest.raises(ServerException) as raised:
                await client.alter_topic_config("t", [("nonsense", "1")])
            assert await client.alter_topic_config("t", {"retention.ms": "1000"}) == 1
            for wrong in (
                [("retention.ms", 1000)],
                [(b"retention.ms", "1000")],
                ["retention.ms"],
                {"retention.ms": 1},
            ):
                with pytest.raises(rivven.ConfigException, match="a topic"):
                    await client.alter_topic_config("t", wrong)
            assert raised.value.word == "INVALID_CONFIG"

    asyncio.run(play())


def test_a_topic_is_created_with_its_settings_or_not_at_all(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            assert await client.create_topic("t", 2, configs={"retention.ms": "1000"}) == 2
            entries = await client.describe_topic_config_entries("t")
            assert (entries["retention.ms"].value, entries["retention.ms"].is_default) == ("1000", False)
            assert entries["segment.bytes"].is_default
            with pytest.raises(ServerException, match=r"did you mean retention\.ms"):
                await client.create_topic("u", configs={"retention.msec": "1"})
            assert await client.list_topics() == ["t"]

    asyncio.run(play())


def test_single_records_offsets_and_deletion(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await client.create_topic("t", 1)
            before_ms = int(time.time() * 1000)
            assert [await client.publish("t", b"%d" % number, key=b"k") for number in range(5)] == [0, 1, 2, 3, 4]
            messages = await client.consume("t", 0, 2, 2)
            assert [(message.value, message.key, message.offset) for message in messages] == [
                (b"2", b"k", 2),
                (b"3", b"k", 3),
            ]
            assert isinstance(messages[0], Message)
            assert await client.get_offset_bounds("t", 0) == (0, 5)
            assert await client.get_offset_for_timestamp("t", 0, before_ms - 1000) == 0
            assert await client.get_offset_for_timestamp("t", 0, before_ms + 10**7) is None
            assert await client.delete_records("t", 0, 3) == 3
            assert await client.get_offset_bounds("t", 0) == (3, 5)
            with pytest.raises(ServerException, match="OFFSET_OUT_OF_RANGE"):
                await client.delete_records("t", 0, 50)
            results = await client.delete_records_batch("t", [(0, 4), (9, 0)])
            assert results[0] == (0, 4, None)
            assert results[1][0] == 9
            assert "UNKNOWN" in (results[1][2] or "")

    asyncio.run(play())


def test_groups(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await client.create_topic("t", 2)
            await client.publish("t", b"v")
            assert await client.get_offset("g", "t", 0) is None
            await client.commit_offset("g", "t", 0, 0)
            await client.commit_offset("g", "t", 1, 0)
            assert await client.list_groups() == ["g"]
            assert await client.describe_group("g") == {"t": {0: 0, 1: 0}}
            assert await client.get_offset("g", "t", 1) == 0
            await client.delete_group("g")
            assert await client.list_groups() == []
            with pytest.raises(ServerException, match="not found"):
                await client.describe_group("g")

    asyncio.run(play())


def test_quotas_and_the_cluster(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await client.create_topic("t", 2)
            assert await client.alter_quotas([("user", "al", "request_rate", 1000)]) == 1
            assert ("user", "al", {"request_rate": 1000}) in await client.describe_quotas()
            ((kind, name, limits),) = await client.describe_quotas([("user", "al")])
            assert (kind, name, limits["request_rate"]) == ("user", "al", 1000)
            cluster = await client.get_cluster_metadata(["t"])
            assert [topic.name for topic in cluster.topics] == ["t"]
            assert len(cluster.brokers) == 1
            await client.ping()

    asyncio.run(play())


def test_metrics_are_the_server_s_words():
    async def play():
        def metrics(request: Any) -> Any:
            return tell.Metrics(f"rivven_up 1 # {request.prefix}")

        async with Actor(metrics) as actor, await rivven.connect(actor.address) as client:
            assert await client.get_metrics("rivven_") == "rivven_up 1 # rivven_"

    asyncio.run(play())


def test_what_the_server_does_not_serve_is_told(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            with pytest.raises(ServerException) as raised:
                await client.authenticate("u", "p")
            assert raised.value.word == "UNSUPPORTED"

    asyncio.run(play())


def test_idempotent_and_transactional_requests_are_asked_as_they_should():
    async def play():
        def play_along(request: Any) -> Any:
            match request:
                case ask.InitProducerId():
                    return tell.ProducerIdInitialized(7, 1)
                case ask.IdempotentPublish(sequence=sequence):
                    return tell.IdempotentPublished(40 + sequence, 0, False)
                case ask.BeginTransaction():
                    return tell.TransactionStarted("x")
                case ask.AddPartitionsToTxn(partitions=partitions):
                    return tell.PartitionsAddedToTxn("x", len(partitions))
                case ask.CommitTransaction():
                    return tell.TransactionCommitted("x")
            return tell.TransactionAborted("x")

        async with Actor(play_along) as actor, await rivven.connect(actor.address) as client:
            state = await client.init_producer_id(6)
            assert (state.producer_id, state.producer_epoch, state.next_sequence) == (7, 1, 0)
            assert [await client.publish_idempotent("t", b"v", state, key=b"k") for _ in range(3)] == [40, 41, 42]
            assert state.next_sequence == 3
            await client.begin_transaction("x", state, 5000)
            assert await client.add_partitions_to_txn("x", state, [("t", 0), ("u", 1)]) == 2
            await client.commit_transaction("x", state)
            await client.abort_transaction("x", state)
            assert actor.heard[0] == ask.InitProducerId(6)
            assert actor.heard[4] == ask.BeginTransaction("x", 7, 1, 5000)
            with pytest.raises(AttributeError):
                state.producer_id = 8  # type: ignore[misc]

    asyncio.run(play())


def test_logging_in_by_scram_and_again_on_every_new_connection():
    """The server's half is written here from the standard, so that the two do not share a mistake."""
    salt, rounds, password = b"0123456789abcdef", 4096, b"Secret-1"
    seen: dict[str, str] = {}

    def server(request: Any) -> Any:
        match request:
            case ask.ScramClientFirst(message=message):
                seen["bare"] = message.decode().removeprefix("n,,")
                nonce = seen["bare"].split("r=")[1] + "server"
                seen["first"] = f"r={nonce},s={b64encode(salt).decode()},i={rounds}"
                return tell.ScramServerFirst(seen["first"].encode())
            case ask.ScramClientFinal(message=message):
                bare, proof = message.decode().rsplit(",p=", 1)
                signed = f"{seen['bare']},{seen['first']},{bare}".encode()
                salted = pbkdf2_hmac("sha256", password, salt, rounds)
                client_key = digest(salted, b"Client Key", "sha256")
                signature = digest(sha256(client_key).digest(), signed, "sha256")
                if bytes(a ^ b for a, b in zip(b64decode(proof), signature, strict=True)) != client_key:
                    return tell.ScramServerFinal(b"e=invalid-proof")
                verifier = digest(digest(salted, b"Server Key", "sha256"), signed, "sha256")
                return tell.ScramServerFinal(b"v=" + b64encode(verifier), "ab", 3600)
            case ask.GetMetadata():
                return tell.Metadata("t", 1)
        return tell.Pong()

    async def play():
        async with Actor(server) as actor, await rivven.connect(actor.address) as client:
            with pytest.raises(ServerException, match="invalid-proof"):
                await client.authenticate_scram("u", "wrong")
            assert await client.authenticate_scram("u", "Secret-1") == ("ab", 3600)
            async with await client.producer("t"):
                assert len(actor.of(ask.ScramClientFinal)) == 3

    asyncio.run(play())


def test_every_error_is_of_the_one_tree_and_says_whether_to_try_again():
    assert RivvenException is RivvenError
    kinds = [value for value in vars(failures).values() if isinstance(value, type) and issubclass(value, RivvenError)]
    retriable = {kind.__name__ for kind in kinds if kind.retriable}
    assert retriable == {"ConnectionException", "TimeoutException", "TryAgain", "BufferFull"}
    for name in ("Connection", "Server", "Timeout", "Serialization", "Config"):
        assert issubclass(getattr(rivven, f"{name}Exception"), rivven.RivvenException)


@pytest.mark.parametrize(
    ("text", "retriable"),
    [
        ("BUFFER_FULL: Server publish buffer is full, retry later", True),
        ("NOT_LEADER_FOR_PARTITION: Not leader for partition 1", True),
        ("MESSAGE_TOO_LARGE: 5 bytes", False),
        ("PRODUCER_FENCED: no", False),
        ("Topic not found: x", False),
        ("", False),
    ],
)
def test_a_server_s_words_say_whether_to_try_again(text, retriable):
    assert failures.server_error(text).retriable is retriable

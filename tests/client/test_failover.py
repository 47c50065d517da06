"""Servers that are dead, silent or flapping: failover, timeouts, reconnection, the circuit breaker."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from serving import QUICK, Actor, address_of, connected, serving

import rivven
from rivven import ConfigException, ConnectionException, Options, TimeoutException
from rivven.client.options import Address, parse_addresses
from rivven.wire import requests as ask
from rivven.wire import responses as tell


def dead_address() -> str:
    """Where nobody listens."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{door.getsockname()[1]}"


def pong(_: Any) -> Any:
    return tell.Pong()


def test_a_dead_server_is_passed_over(tmp_path):
    async def play():
        async with serving(tmp_path) as node:
            for address in (f"{dead_address()},{address_of(node)}", [dead_address(), address_of(node)]):
                async with await rivven.connect(address) as client:
                    await client.ping()

    asyncio.run(play())


def test_no_server_at_all_is_told_at_once():
    async def play():
        with pytest.raises(ConnectionException, match="no connection") as raised:
            await rivven.connect([dead_address(), dead_address()])
        assert raised.value.retriable

    asyncio.run(play())


def test_a_client_moves_to_the_other_server_when_its_own_goes_away():
    async def play():
        async with Actor(pong) as first, Actor(pong) as second:
            client = await rivven.connect([first.address, second.address], options=Options(**QUICK))
            await client.ping()
            first._server.close()
            first.hang_up()
            await client.ping()
            assert len(second.heard) == 1
            await client.close()

    asyncio.run(play())


def test_a_silent_server_times_out():
    async def play():
        async with Actor(lambda _: None) as actor:
            client = await rivven.connect(actor.address, options=Options(request_timeout_ms=40, attempts_max=1))
            with pytest.raises(TimeoutException, match="did not answer Ping") as raised:
                await client.ping()
            assert raised.value.retriable
            await client.close()

    asyncio.run(play())


def test_a_server_that_does_not_even_shake_hands_times_out():
    async def play():
        with socket.create_server(("127.0.0.1", 0)) as door:
            address = f"127.0.0.1:{door.getsockname()[1]}"
            with pytest.raises(ConnectionException, match="did not answer Handshake"):
                await rivven.connect(address, options=Options(connect_timeout_ms=40))

    asyncio.run(play())


def test_an_answer_out_of_turn_ends_the_connection_and_all_are_asked_again():
    async def play():
        skipped: list[Any] = []

        def skip_once(request: Any) -> Any:
            if isinstance(request, ask.ListTopics):
                if not skipped:
                    return skipped.append(request)
                return tell.Topics(("t",))
            return tell.Pong()

        async with Actor(skip_once) as actor:
            client = await rivven.connect(actor.address, options=Options(**QUICK))
            topics, _ = await asyncio.gather(client.list_topics(), client.ping())
            assert topics == ["t"]
            assert actor.connected == 2
            await client.close()

    asyncio.run(play())


def test_safe_requests_are_repeated_and_others_are_not():
    async def play():
        async with Actor(pong) as actor:

            def hang_up(request: Any) -> Any:
                if len(actor.of(type(request))) < 3:
                    actor.hang_up()
                    return None
                return tell.Topics(("t",))

            actor._play = hang_up
            client = await rivven.connect(actor.address, options=Options(**QUICK))
            assert await client.list_topics() == ["t"]
            assert len(actor.of(ask.ListTopics)) == 3
            with pytest.raises(ConnectionException, match="lost"):
                await client.publish("t", b"v")
            assert len(actor.of(ask.Publish)) == 1
            await client.close()

    asyncio.run(play())


def test_errors_that_pass_are_waited_out():
    async def play():
        answers = [tell.Error("BUFFER_FULL: x"), tell.Throttled(1, "request_rate", "x"), tell.Published(5, 0)]
        async with Actor(lambda _: answers.pop(0)) as actor:
            client = await rivven.connect(actor.address, options=Options(**QUICK))
            assert await client.publish("t", b"v") == 5
            await client.close()

    asyncio.run(play())


def test_the_breaker_opens_after_several_failures_and_closes_again():
    async def play():
        async with Actor(pong) as actor:
            options = Options(breaker_failures=3, breaker_open_ms=60_000, attempts_max=1)
            client = await rivven.connect(actor.address, options=options)
            actor._server.close()
            actor.hang_up()
            for _ in range(3):
                with pytest.raises(ConnectionException, match=r"no connection|lost"):
                    await client.ping()
            while True:
                with pytest.raises(ConnectionException) as raised:
                    await client.ping()
                if "every server failed" in str(raised.value):
                    break
            assert raised.value.facts["retry_ms"] > 30_000
            client._cluster._roster._breakers[parse_addresses(actor.address)[0]].succeeded()
            with pytest.raises(ConnectionException, match="no connection"):
                await client.ping()
            await client.close()

    asyncio.run(play())


def test_an_idle_connection_is_made_anew():
    async def play():
        async with Actor(pong) as actor:
            client = await rivven.connect(actor.address, options=Options(idle_ms_max=-1))
            await client.ping()
            await client.ping()
            assert actor.connected == 3
            await client.close()

    asyncio.run(play())


def test_a_server_of_another_version_is_refused():
    async def play():
        async with Actor(pong) as actor:

            async def mismatch(_: Any) -> Any:
                return tell.HandshakeResult(3, False, "Version mismatch: client=2, server=3")

            actor._answer = mismatch  # type: ignore[method-assign]
            with pytest.raises(ConfigException, match="Version mismatch"):
                await rivven.connect(actor.address)

    asyncio.run(play())


def test_a_server_that_wants_to_know_first_who_asks_is_still_connected_to():
    async def play():
        async with Actor(pong) as actor:

            async def shy(request: Any) -> Any:
                if isinstance(request, ask.Ping):
                    return tell.Pong()
                return tell.Error("AUTHENTICATION_REQUIRED: Please authenticate first")

            actor._answer = shy  # type: ignore[method-assign]
            async with await rivven.connect(actor.address) as client:
                await client.ping()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a", [("a", 9092)]),
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (["a", "b:2"], [("a", 9092), ("b", 2)]),
        ("[::1]:5", [("::1", 5)]),
        ("::1", [("::1", 9092)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_addresses_are_read(text, addresses):
    assert list(parse_addresses(text)) == addresses
    assert parse_addresses([str(address) for address in parse_addresses(text)]) == parse_addresses(text)


@pytest.mark.parametrize("text", ["", ",", "a:b", "a:0", "a:70000", ":5", []])
def test_addresses_that_are_none_are_refused(text):
    with pytest.raises(ConfigException):
        parse_addresses(text)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ConfigException, match="attempts_max"):
        Options(attempts_max=0)
    assert str(Address("::1", 5)) == "[::1]:5"


def test_a_client_that_is_closed_says_so(tmp_path):
    async def play():
        async with connected(tmp_path) as client:
            await client.close()
            with pytest.raises(rivven.Closed):
                await client.ping()

    asyncio.run(play())

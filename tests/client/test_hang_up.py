"""A connection that ends while requests are being written to it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from serving import QUICK, Actor, stored

import rivven
from rivven import Options
from rivven.wire import CAPABILITIES
from rivven.wire import requests as ask
from rivven.wire import responses as tell

PARTITIONS = 4
SECONDS_MAX = 10


@contextmanager
def an_end() -> Iterator[None]:
    """A loop that never yields cannot be timed out from within; an interrupt is all that it lets through."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(SECONDS_MAX)
    try:
        yield
    except KeyboardInterrupt:
        pytest.fail("the event loop was not let go")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def broker(request: Any) -> Any:
    return stored(request) if isinstance(request, ask.ProduceBatches) else tell.Metadata("orders", PARTITIONS)


def test_a_producer_whose_write_finds_the_connection_gone_goes_on_with_the_next_one():
    """One pump has a request for each partition; the server is gone before the first of them is written."""

    async def play():
        async with Actor(broker, capabilities=int(CAPABILITIES)) as actor:
            client = await rivven.connect(actor.address, options=Options(**QUICK))
            producer = await client.producer(
                "orders", batch_size=1, linger_ms=0, batch_bytes_max=1, request_bytes_max=1
            )
            actor.hang_up()
            waiting = [producer.submit(b"a cup", partition=number) for number in range(PARTITIONS)]
            assert await asyncio.gather(*waiting) == [0] * PARTITIONS
            assert actor.connected == 3, "the client, the producer, and the producer again"
            await producer.close()
            await client.close()

    with an_end():
        asyncio.run(play())

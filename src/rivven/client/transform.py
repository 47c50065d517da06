"""Read, change, write: what became of each message is stored once, and so is that the message was read.

Every round is one transaction: some messages, what was made of them, and the offsets of their group. If anything goes
wrong none of it counts, and the consumer goes back to where the round began.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from rivven.errors import RivvenError

from .failures import ConfigException, SerializationException
from .group_consumer import GroupConsumer
from .retry import Backoff
from .values import Headers, Message

if TYPE_CHECKING:
    from .consumer import Consumer
    from .producer import Producer

WAIT_MS = 200


class Output(NamedTuple):
    """A record to be written. Without a topic it goes to that of the producer."""

    value: bytes | None
    key: bytes | None = None
    topic: str | None = None
    partition: int | None = None
    headers: Headers = ()


Changed = bytes | Output | Iterable[bytes | Output] | None
Change = Callable[[Message], Changed] | Callable[[Message], Awaitable[Changed]]
ChangeAll = Callable[[list[Message]], Awaitable[list[Output]]]


def outputs(changed: Any) -> list[Output]:
    """What a function gave back, as records; None and nothing is none."""
    if changed is None:
        return []
    if isinstance(changed, Output):
        return [changed]
    if isinstance(changed, (bytes, bytearray, memoryview)):
        return [Output(bytes(changed))]
    if isinstance(changed, str) or not isinstance(changed, Iterable):
        kind = type(changed).__name__
        raise SerializationException(reason=f"a change gives bytes, an Output, several of these or None, not {kind}")
    return [output for each in changed for output in outputs(each)]


async def change_all(change: Change, messages: list[Message]) -> list[Output]:
    made: list[Output] = []
    for message in messages:
        changed = change(message)
        made += outputs(await changed if inspect.isawaitable(changed) else changed)
    return made


async def transform(
    producer: Producer,
    consumer: Consumer | GroupConsumer,
    change: ChangeAll,
    *,
    stop: asyncio.Event | threading.Event | None,
    idle_ms: int | None,
    round_messages: int,
) -> int:
    if consumer.group is None or consumer._auto_commit:
        reason = (
            "a consumer whose messages are transformed has a group and auto_commit=False: the transaction commits"
        )
        raise ConfigException(reason=reason)
    options = producer._channel.cluster.options
    backoff = Backoff(producer._channel.cluster.rng, first_ms=options.backoff_ms, most_ms=options.backoff_ms_max)
    loop, done = asyncio.get_running_loop(), 0
    busy = loop.time()
    while (stop is None or not stop.is_set()) and (idle_ms is None or loop.time() - busy < idle_ms / 1000):
        begun = consumer.positions()
        try:
            messages = await consumer.poll(WAIT_MS, round_messages)
            if isinstance(consumer, GroupConsumer) and not consumer.is_settled:
                busy = loop.time()  # who waits for its share of the group is not idle
            if messages:
                await _write(producer, consumer, await change(messages))
                done += len(messages)
                busy = loop.time()
                backoff.reset()
        except BaseException as error:
            await _go_back(consumer, begun)
            if not isinstance(error, RivvenError) or not error.retriable:
                raise
            await asyncio.sleep(backoff.next_ms() / 1000)
    return done


async def _write(producer: Producer, consumer: Consumer | GroupConsumer, made: list[Output]) -> None:
    async with producer.transaction() as transaction:
        for value, key, topic, partition, headers in made:
            to = producer if topic is None else await transaction.producer(topic)
            await to.put(value, key, partition=partition, headers=headers)
        await transaction.send_offsets(consumer)


async def _go_back(consumer: Any, begun: dict[Any, int]) -> None:
    """To where the round began, in the partitions that are still ours; others begin at what was committed."""
    held = consumer.positions()
    for partition, offset in begun.items():
        if partition in held and held[partition] != offset:
            await consumer.seek(offset, partition=partition)

"""The consumer: reads one topic's partitions ahead of its caller, and remembers for its group how far it got.

Two connections: fetches wait at the server until there is something, and nothing else shall wait behind them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rivven.errors import RivvenError
from rivven.limits import MIB
from rivven.wire import Capability, Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .failures import Closed, ConfigException
from .inbox import NOTHING, Inbox, Taken
from .retry import Backoff
from .shell import Channel, Cluster, gone
from .values import Message, Position

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R", bound=Response)
FETCH_BYTES = 4 * MIB
WAIT_MS = 500
OLD_MESSAGES_MAX = 10_000


class Consumer:
    """Reads records of one topic. Made by `RivvenClient.consumer`.

        consumer = await client.consumer("orders", group="billing")
        async for message in consumer:
            print(message.offset, message.value)
            if message.value == b"last":
                break
        await consumer.close()

    With a group, offsets are committed as reading goes on: what was handed out counts as done when the next is
    asked for, and at `close`. `auto_commit=False` leaves it to `commit`.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        group: str | None,
        batch_size: int,
        auto_commit: bool,
        fetch_bytes: int = FETCH_BYTES,
        wait_ms: int = WAIT_MS,
    ) -> None:
        if batch_size < 1 or fetch_bytes < 1 or wait_ms < 0:
            raise ConfigException(reason="batch_size and fetch_bytes are at least 1, and wait_ms 0")
        self._topic = topic
        self._group = group
        self._batch_size = batch_size
        self._auto_commit = auto_commit and group is not None
        self._wait_ms = wait_ms
        self._fetching = Channel(cluster)
        self._control = Channel(cluster)
        self._inbox = Inbox(topic, fetch_bytes)
        self._handed: deque[Message] = deque()
        """Taken from the inbox for the iteration, and not given to the caller yet."""
        self._committed: dict[int, int] = {}
        self._flight: asyncio.Task[RivvenError | None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._closed = False
        self._ended = False

    async def _start(self, partitions: int | Iterable[int] | None, start_offset: int | None) -> None:
        try:
            await self.assign(partitions, start_offset=start_offset)
        except BaseException:
            self._fetching.close()
            self._control.close()
            raise

    async def _ask(self, request: Request, kind: type[R]) -> R:
        return await self._control.ask(request, kind)

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def partition(self) -> int:
        """The partition that is read; the lowest where there are several."""
        return min(self._inbox.shelves, default=0)

    @property
    def partitions(self) -> list[int]:
        return sorted(self._inbox.shelves)

    @property
    def group(self) -> str | None:
        return self._group

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Where it reads

    async def assign(self, partitions: int | Iterable[int] | None = None, *, start_offset: int | None = None) -> None:
        """Read these partitions from now on, None being all: from `start_offset`, else from what the group has
        committed, else from the beginning."""
        self._check_open()
        if partitions is None:
            count = (await self._ask(ask.GetMetadata(self._topic), tell.Metadata)).partitions
            numbers = list(range(count))
        else:
            numbers = [partitions] if isinstance(partitions, int) else sorted(set(partitions))
        offsets = dict.fromkeys(numbers, start_offset or 0)
        if start_offset is None and self._group is not None:
            for number in numbers:
                request = ask.GetOffset(self._group, self._topic, number)
                committed = (await self._ask(request, tell.CommittedOffset)).offset
                if committed is not None:
                    offsets[number] = self._committed[number] = committed
        self._handed.clear()
        self._inbox.assign(offsets)

    def current_offset(self, partition: int | None = None) -> Position:
        """The offset of the next message that will be handed out. May be awaited."""
        return Position(self.positions()[self._inbox.shelf(partition).partition])

    def positions(self) -> dict[int, int]:
        """The same for every partition."""
        positions = {number: shelf.position for number, shelf in sorted(self._inbox.shelves.items())}
        for message in reversed(self._handed):
            positions[message.partition] = message.offset
        return positions

    async def seek(self, offset: int, *, partition: int | None = None) -> None:
        """Go on at an offset, in one partition or in all."""
        self._check_open()
        for shelf in self._inbox.chosen(partition):
            self._go_to(shelf.partition, offset)

    def _go_to(self, partition: int, offset: int) -> None:
        self._handed = deque(message for message in self._handed if message.partition != partition)
        self._inbox.shelf(partition).seek(offset)

    async def seek_to_beginning(self, *, partition: int | None = None) -> None:
        for shelf in self._inbox.chosen(partition):
            self._go_to(shelf.partition, (await self.get_offset_bounds(partition=shelf.partition))[0])

    async def seek_to_end(self, *, partition: int | None = None) -> None:
        for shelf in self._inbox.chosen(partition):
            self._go_to(shelf.partition, (await self.get_offset_bounds(partition=shelf.partition))[1])

    async def seek_to_timestamp(self, timestamp_ms: int, *, partition: int | None = None) -> None:
        """Go to the first message that is not older, or to the end."""
        self._check_open()
        for shelf in self._inbox.chosen(partition):
            request = ask.GetOffsetForTimestamp(self._topic, shelf.partition, timestamp_ms)
            found = (await self._ask(request, tell.OffsetForTimestamp)).offset
            if found is None:
                found = (await self.get_offset_bounds(partition=shelf.partition))[1]
            self._go_to(shelf.partition, found)

    async def get_offset_bounds(self, *, partition: int | None = None) -> tuple[int, int]:
        """The first offset that is there, and the next one to be written."""
        self._check_open()
        number = self._inbox.shelf(partition).partition
        answer = await self._ask(ask.GetOffsetBounds(self._topic, number), tell.OffsetBounds)
        return answer.earliest, answer.latest

    # Messages out

    async def fetch(self, max_messages: int | None = None) -> list[Message]:
        """The next messages, `batch_size` unless told; none if there are none right now."""
        return await self._fetch(max_messages, 0)

    async def poll(self, timeout_ms: int, max_messages: int | None = None) -> list[Message]:
        """`fetch` that waits for the first message, up to `timeout_ms`."""
        return await self._fetch(max_messages, timeout_ms)

    async def _fetch(self, max_messages: int | None, wait_ms: int) -> list[Message]:
        self._check_open()
        self._commit_soon()
        count = self._batch_size if max_messages is None else max_messages
        messages = self._take(count)
        if not messages and count > 0:
            await self._fill(wait_ms)
            messages = self._take(count)
        self._read_ahead()
        return messages

    def _take(self, count: int) -> list[Message]:
        taken: list[Message] = []
        while self._handed and len(taken) < count:
            taken.append(self._handed.popleft())
        return taken + self._inbox.take(count - len(taken)) if len(taken) < count else taken

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message | None:
        """The next message. The first after `close` is None, then the iteration is over."""
        if self._handed and not self._closed:
            return self._handed.popleft()
        if self._closed and not self._ended:
            self._ended = True
            return None
        while not self._closed:
            if await self._refill():
                return self._handed.popleft()
        raise StopAsyncIteration

    async def _refill(self) -> bool:
        """Wait for messages to hand out; errors that pass are waited out."""
        self._commit_soon()
        backoff = self._backoff()
        while not self._closed:
            self._handed.extend(self._inbox.take(self._batch_size))
            if self._handed:
                self._read_ahead()
                return True
            try:
                await self._fill(self._wait_ms)
            except RivvenError as error:
                if isinstance(error, Closed):
                    break
                if not error.retriable:
                    raise
                await asyncio.sleep(max(backoff.next_ms(), error.facts.get("retry_ms", 0)) / 1000)
        return False

    def _backoff(self) -> Backoff:
        options = self._fetching.cluster.options
        return Backoff(self._fetching.cluster.rng, first_ms=options.backoff_ms, most_ms=options.backoff_ms_max)

    async def fetch_arrow(
        self, *, columns: Sequence[str] | None = None, until: int | None = None, wait_ms: int = 0
    ) -> pa.RecordBatch:
        """The next records as columns `offset`, `timestamp`, `key`, `value` and `headers`, with no object for each.

        They are of one partition, which the schema's metadata names, and so does the column `partition` if it is
        asked for. `until` is an offset to stop before. No rows: there is nothing right now.
        """
        return (await self._next_chunk(until, wait_ms)).to_arrow(columns)

    async def _next_chunk(self, until: int | None, wait_ms: int) -> Taken:
        self._check_open()
        self._commit_soon()
        for partition, offset in self.positions().items() if self._handed else ():
            self._go_to(partition, offset)
        taken = self._inbox.take_chunk(until)
        if taken is None and any(until is None or offset < until for offset in self.positions().values()):
            await self._fill(wait_ms)
            taken = self._inbox.take_chunk(until)
        self._read_ahead()
        return taken or Taken(self._topic, self.partition, NOTHING, 0, None)

    # Fetching

    def _read_ahead(self) -> None:
        """Ask for more while the caller is busy, if the server is known to have it."""
        if (
            not self._closed
            and (self._flight is None or self._flight.done())
            and self._inbox.plan(ahead=True).shelves
        ):
            self._flight = asyncio.get_running_loop().create_task(self._fly(0, ahead=True))

    async def _fill(self, wait_ms: int) -> None:
        """Have the inbox filled by a fetch that began no earlier than the inbox was empty."""
        if self._flight is not None:
            await self._land()
            if any(shelf.chunks for shelf in self._inbox.shelves.values()):
                return
        if not self._closed:
            self._flight = asyncio.get_running_loop().create_task(self._fly(wait_ms, ahead=False))
            await self._land()

    async def _land(self) -> None:
        flight = self._flight
        assert flight is not None
        error = await asyncio.shield(flight)
        if self._flight is flight:
            self._flight = None
        if error is not None:
            raise error

    async def _fly(self, wait_ms: int, *, ahead: bool) -> RivvenError | None:
        """One round of fetching. An error is given back, since nobody may be waiting for it yet."""
        try:
            for _ in range(3):
                again = await self._fly_once(wait_ms, ahead=ahead)
                if not again:
                    break
        except RivvenError as error:
            return Closed(what="consumer") if self._closed else error
        return None

    async def _fly_once(self, wait_ms: int, *, ahead: bool) -> bool:
        inbox, channel = self._inbox, self._fetching
        plan = inbox.plan(ahead=ahead)
        if not plan.shelves:
            return False
        timeout_ms = channel.cluster.options.request_timeout_ms + wait_ms
        connection = await channel.connection()
        if connection.capabilities & Capability.BATCHES:
            request = inbox.request(plan, wait_ms)
            answer = await channel.ask(request, tell.FetchedBatches, timeout_ms=timeout_ms)
            again, error = inbox.fetched(plan, answer)
            if error is not None:
                raise error
            return again
        for shelf, generation, old in inbox.old_requests(plan, wait_ms, OLD_MESSAGES_MAX):
            inbox.fetched_old(shelf, generation, await channel.ask(old, tell.Messages, timeout_ms=timeout_ms))
        return False

    # Commits

    async def commit(self) -> None:
        """Remember for the group what was handed out so far."""
        self._check_open()
        if self._group is None:
            raise ConfigException(reason="a consumer without a group has nothing to commit for")
        await gone(self._committing)
        await self._commit(self.positions())

    async def _commit(self, positions: dict[int, int]) -> None:
        assert self._group is not None
        for partition, offset in positions.items():
            if self._committed.get(partition, 0) != offset:
                request = ask.CommitOffset(self._group, self._topic, partition, offset)
                await self._ask(request, tell.OffsetCommitted)
                self._committed[partition] = offset

    def _commit_soon(self) -> None:
        """Commit in the background, one commit at a time; one that fails is made up for by the next."""
        if not self._auto_commit or (self._committing is not None and not self._committing.done()):
            return
        positions = self.positions()
        if any(self._committed.get(partition, 0) != offset for partition, offset in positions.items()):
            self._committing = asyncio.get_running_loop().create_task(self._commit_quietly(positions))

    async def _commit_quietly(self, positions: dict[int, int]) -> None:
        with contextlib.suppress(RivvenError):
            await self._commit(positions)

    # The end

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(what="consumer")

    async def close(self) -> None:
        """Commit if that is automatic, and hang up. A second call does nothing."""
        if self._closed:
            return
        try:
            if self._auto_commit:
                await self.commit()
        finally:
            self._closed = True
            self._fetching.close()
            self._control.close()
            await gone(self._committing)
            if self._flight is not None:
                await asyncio.shield(self._flight)
                self._flight = None

"""What every consumer does: reads ahead of its caller, hands out, goes elsewhere, commits.

Two connections: fetches wait at the server until there is something, and nothing else shall wait behind them.
Which partitions are read, what they are known by, and where their offsets are kept is left to the kinds of consumers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from rivven.errors import RivvenError
from rivven.limits import MIB
from rivven.wire import Capability, Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .failures import Closed, ConfigException, SerializationException
from .inbox import NOTHING, Shelf, Shelves, Taken
from .retry import Backoff
from .shell import Channel, Cluster, gone, monotonic_ms
from .values import Message, Position, as_number

if TYPE_CHECKING:
    from typing import Self

    import pyarrow as pa

K = TypeVar("K")
R = TypeVar("R", bound=Response)
FETCH_BYTES = 4 * MIB
WAIT_MS = 500
OLD_MESSAGES_MAX = 10_000


class Reader(Generic[K]):
    """A consumer whose partitions are known by `K`."""

    def __init__(
        self,
        cluster: Cluster,
        inbox: Shelves[K],
        *,
        group: str | None,
        batch_size: int,
        auto_commit: bool,
        wait_ms: int = WAIT_MS,
    ) -> None:
        if batch_size < 1 or wait_ms < 0:
            raise ConfigException(reason="batch_size is at least 1, and wait_ms 0")
        self._group = group
        self._batch_size = batch_size
        self._auto_commit = auto_commit and group is not None
        self._wait_ms = wait_ms
        self._fetching = Channel(cluster)
        self._control = Channel(cluster)
        self._inbox = inbox
        self._handed: deque[Message] = deque()
        """Taken from the inbox for the iteration, and not given to the caller yet."""
        self._due = False
        """Whether `_attend` has something to do before another message may be given to the caller."""
        self._committed: dict[K, int] = {}
        self._flight: asyncio.Task[RivvenError | None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._closed = False
        self._ended = False

    async def _ask(self, request: Request, kind: type[R]) -> R:
        return await self._control.ask(request, kind)

    @property
    def group(self) -> str | None:
        return self._group

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Where it reads

    def current_offset(self, partition: K | None = None) -> Position:
        """The offset of the next message that will be handed out. May be awaited."""
        return Position(self.positions()[self._key(self._inbox.shelf(partition))])

    def positions(self) -> dict[K, int]:
        """The same for every partition."""
        inbox = self._inbox
        positions = {key: shelf.position for key, shelf in _in_order(inbox.shelves)}
        for message in reversed(self._handed):
            positions[inbox.key(message.topic, message.partition)] = message.offset
        return positions

    def _key(self, shelf: Shelf) -> K:
        return self._inbox.key(shelf.topic, shelf.partition)

    async def seek(self, offset: int, *, partition: K | None = None) -> None:
        """Go on at an offset, in one partition or in all."""
        self._check_open()
        if (offset := as_number(offset, "offset")) < 0:
            raise ConfigException(reason=f"offset is 0 or more, not {offset}; seek_to_end goes behind the last")
        for shelf in self._inbox.chosen(partition):
            self._go_to(shelf, offset)

    def _go_to(self, shelf: Shelf, offset: int) -> None:
        place = (shelf.topic, shelf.partition)
        self._handed = deque(each for each in self._handed if (each.topic, each.partition) != place)
        shelf.seek(offset)

    async def seek_to_beginning(self, *, partition: K | None = None) -> None:
        for shelf in self._inbox.chosen(partition):
            self._go_to(shelf, (await self._bounds(shelf))[0])

    async def seek_to_end(self, *, partition: K | None = None) -> None:
        for shelf in self._inbox.chosen(partition):
            self._go_to(shelf, (await self._bounds(shelf))[1])

    async def seek_to_timestamp(self, timestamp_ms: int, *, partition: K | None = None) -> None:
        """Go to the first message that is not older, or to the end."""
        self._check_open()
        for shelf in self._inbox.chosen(partition):
            request = ask.GetOffsetForTimestamp(shelf.topic, shelf.partition, timestamp_ms)
            found = (await self._ask(request, tell.OffsetForTimestamp)).offset
            self._go_to(shelf, (await self._bounds(shelf))[1] if found is None else found)

    async def get_offset_bounds(self, *, partition: K | None = None) -> tuple[int, int]:
        """The first offset that is there, and the next one to be written."""
        return await self._bounds(self._inbox.shelf(partition))

    async def _bounds(self, shelf: Shelf) -> tuple[int, int]:
        self._check_open()
        answer = await self._ask(ask.GetOffsetBounds(shelf.topic, shelf.partition), tell.OffsetBounds)
        return answer.earliest, answer.latest

    async def lag(self) -> dict[K, int]:
        """How many messages each partition has that were not handed out yet."""
        behind: dict[K, int] = {}
        for key, position in self.positions().items():
            earliest, latest = await self._bounds(self._inbox.shelf(key))
            behind[key] = max(0, latest - max(position, earliest))
        return behind

    def pause(self, *partitions: K) -> None:
        """Hand out nothing more of these partitions, or of any, until `resume`."""
        self._check_open()
        positions = self.positions()
        for key in partitions or tuple(positions):
            self._go_to(self._inbox.shelf(key), positions[key])
            self._inbox.paused.add(key)

    def resume(self, *partitions: K) -> None:
        self._inbox.paused.difference_update(partitions or tuple(self._inbox.paused))

    # Messages out

    async def _attend(self) -> None:
        """Whatever has to be done before messages are given to the caller, who is done with those before."""
        raise NotImplementedError

    async def fetch(self, max_messages: int | None = None) -> list[Message]:
        """The next messages, `batch_size` unless told; none if there are none right now."""
        return await self._fetch(max_messages, 0)

    async def poll(self, timeout_ms: int, max_messages: int | None = None) -> list[Message]:
        """`fetch` that waits for the first message, up to `timeout_ms`."""
        return await self._fetch(max_messages, timeout_ms)

    async def _fetch(self, max_messages: int | None, wait_ms: int) -> list[Message]:
        self._check_open()
        await self._attend()
        count = self._batch_size if max_messages is None else max_messages
        messages = self._take(count)
        due_ms = monotonic_ms() + wait_ms
        while not messages and count > 0 and await self._fill(max(0, due_ms - monotonic_ms())):
            messages = self._take(count)
        self._read_ahead()
        return messages

    def _take(self, count: int) -> list[Message]:
        taken: list[Message] = []
        while self._handed and len(taken) < count:
            taken.append(self._handed.popleft())
        if len(taken) < count:
            try:
                taken += self._inbox.take(count - len(taken))
            except SerializationException:
                if not taken:
                    raise
        return taken

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message | None:
        """The next message. The first after `close` is None, then the iteration is over."""
        if self._handed and not self._due and not self._closed:
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
        backoff = self._backoff()
        while not self._closed:
            try:
                await self._attend()
                if not self._handed:
                    self._handed.extend(self._inbox.take(self._batch_size))
                if self._handed:
                    self._read_ahead()
                    return True
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
        taken = await self._next_chunk(until, wait_ms)
        try:
            return taken.to_arrow(columns)
        except Exception:
            self._give_back(taken)
            raise

    async def _next_chunk(self, until: int | None, wait_ms: int) -> Taken:
        """The next batches as they came, for whoever makes columns of them; without data if there is nothing now."""
        self._check_open()
        await self._attend()
        for key, offset in self.positions().items() if self._handed else ():
            self._go_to(self._inbox.shelf(key), offset)
        taken = self._inbox.take_chunk(until)
        due_ms = monotonic_ms() + wait_ms
        while taken is None and (until is None or any(offset < until for offset in self.positions().values())):
            if not await self._fill(max(0, due_ms - monotonic_ms())):
                break
            taken = self._inbox.take_chunk(until)
        self._read_ahead()
        return taken or self._no_chunk()

    def _give_back(self, taken: Taken) -> None:
        """Nothing could be made of it: that has not been handed out."""
        shelf = self._inbox.shelves.get(self._inbox.key(taken.topic, taken.partition))
        if shelf is not None and taken.chunk is not NOTHING and shelf.position > taken.from_offset:
            self._go_to(shelf, taken.from_offset)

    def _no_chunk(self) -> Taken:
        topic, partition = next(((each.topic, each.partition) for _, each in _in_order(self._inbox.shelves)), ("", 0))
        return Taken(topic, partition, NOTHING, 0, None)

    # Fetching

    def _read_ahead(self) -> None:
        """Ask for more while the caller is busy, if the server is known to have it."""
        if (
            not self._closed
            and (self._flight is None or self._flight.done())
            and self._inbox.plan(ahead=True).shelves
        ):
            self._flight = asyncio.get_running_loop().create_task(self._fly(0, ahead=True))

    async def _fill(self, wait_ms: int) -> bool:
        """Have the inbox filled by a fetch that began no earlier than the inbox was empty. Whether anything came;
        that may be nothing to hand out, such as an aborted transaction."""
        if self._flight is not None:
            await self._land()
            if self._inbox.has_chunks:
                return True
        if not self._closed:
            self._flight = asyncio.get_running_loop().create_task(self._fly(wait_ms, ahead=False))
            await self._land()
        return self._inbox.has_chunks

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

    async def commit(self, *, offsets: Mapping[K, int] | None = None) -> None:
        """Remember for the group what was handed out so far, or that it goes on at these offsets; wait for it."""
        self._check_open()
        self._check_group()
        await gone(self._committing)
        await self._commit(self.positions() if offsets is None else dict(offsets))

    async def _commit(self, positions: dict[K, int]) -> None:
        raise NotImplementedError

    def _is_news(self, key: K, offset: int) -> bool:
        """Whether the group does not know yet that it goes on there."""
        return self._committed.get(key, 0) != offset

    def commit_soon(self) -> None:
        """The same without waiting, one commit at a time; one that fails is made up for by the next."""
        self._check_group()
        if self._committing is not None and not self._committing.done():
            return
        positions = self.positions()
        if any(self._is_news(key, offset) for key, offset in positions.items()):
            self._committing = asyncio.get_running_loop().create_task(self._commit_quietly(positions))

    async def _commit_quietly(self, positions: dict[K, int]) -> None:
        with contextlib.suppress(RivvenError):
            await self._commit(positions)

    # The end

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(what="consumer")

    def _check_group(self) -> None:
        if self._group is None:
            raise ConfigException(reason="a consumer without a group has nothing to commit for")

    async def close(self) -> None:
        """Commit if that is automatic, and hang up. A second call does nothing."""
        if self._closed:
            return
        try:
            if self._auto_commit:
                await self.commit()
        finally:
            await self._hang_up()

    async def _hang_up(self) -> None:
        self._closed = True
        self._fetching.close()
        self._control.close()
        await gone(self._committing)
        if self._flight is not None:
            landing = asyncio.shield(self._flight)
            await asyncio.gather(landing, return_exceptions=True)  # whatever it brings, nobody wants it any more
            self._flight = None


def _in_order(shelves: dict[K, Shelf]) -> list[tuple[K, Shelf]]:
    return sorted(shelves.items(), key=lambda item: (item[1].topic, item[1].partition))

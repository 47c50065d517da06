"""The consumer of one topic: reads the partitions it was given, and remembers for its group how far it got."""

from __future__ import annotations

from collections.abc import Iterable

from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .failures import ConfigException
from .inbox import Inbox, Isolation
from .reader import FETCH_BYTES, WAIT_MS, Reader
from .shell import Cluster
from .values import as_number

__all__ = ["FETCH_BYTES", "WAIT_MS", "Consumer"]


class Consumer(Reader[int]):
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

    _inbox: Inbox

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
        isolation: Isolation = "read_committed",
    ) -> None:
        if fetch_bytes < 1:
            raise ConfigException(reason="batch_size and fetch_bytes are at least 1, and wait_ms 0")
        super().__init__(
            cluster,
            Inbox(topic, fetch_bytes, isolation),
            group=group,
            batch_size=batch_size,
            auto_commit=auto_commit,
            wait_ms=wait_ms,
        )
        self._topic = topic

    async def _start(self, partitions: int | Iterable[int] | None, start_offset: int | None) -> None:
        try:
            await self.assign(partitions, start_offset=start_offset)
        except BaseException:
            self._fetching.close()
            self._control.close()
            raise

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

    async def assign(self, partitions: int | Iterable[int] | None = None, *, start_offset: int | None = None) -> None:
        """Read these partitions from now on, None being all: from `start_offset`, else from what the group has
        committed, else from the beginning."""
        self._check_open()
        if partitions is None:
            count = (await self._ask(ask.GetMetadata(self._topic), tell.Metadata)).partitions
            numbers = list(range(count))
        else:
            some = partitions if isinstance(partitions, Iterable) else [partitions]
            numbers = sorted({as_number(number, "partition") for number in some})
        offsets = dict.fromkeys(numbers, start_offset or 0)
        if start_offset is None and self._group is not None:
            for number in numbers:
                request = ask.GetOffset(self._group, self._topic, number)
                committed = (await self._ask(request, tell.CommittedOffset)).offset
                if committed is not None:
                    offsets[number] = self._committed[number] = committed
        self._handed.clear()
        self._inbox.assign(offsets)

    async def _attend(self) -> None:
        if self._auto_commit:
            self.commit_soon()

    async def _commit(self, positions: dict[int, int]) -> None:
        assert self._group is not None
        for partition, offset in positions.items():
            if self._is_news(partition, offset):
                request = ask.CommitOffset(self._group, self._topic, partition, offset)
                await self._ask(request, tell.OffsetCommitted)
                self._committed[partition] = offset

"""Who waits for deliveries in an event loop: for that of one record, or for so many.

Invariant: whoever waits goes on as soon as everything has been told, be it stored or failed.
"""

from __future__ import annotations

import asyncio

from rivven.errors import RivvenError

from .values import Delivery


class Collected:
    """Waits for so many deliveries."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.expected = 0
        self.deliveries: list[Delivery] = []
        self._settled = 0
        self._done: asyncio.Future[None] = loop.create_future()
        self._error: RivvenError | None = None

    def add(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self.count(delivery, delivery.count)

    def count_one(self, _: Delivery) -> None:
        self.count(None, 1)

    def count(self, delivery: Delivery | None, count: int) -> None:
        self._settled += count
        if delivery is not None and delivery.error is not None:
            self._error = self._error or delivery.error
        self._look()

    def _look(self) -> None:
        if self._settled >= self.expected and not self._done.done():
            self._done.set_result(None)

    async def settled(self) -> None:
        if self._settled < self.expected:
            if self._done.done():
                self._done = self._done.get_loop().create_future()
            await self._done

    async def wait(self) -> None:
        await self.settled()
        if self._error is not None:
            raise self._error


def keep(offsets: list[int], place: int, collected: Collected, delivery: Delivery) -> None:
    offsets[place] = delivery.offset
    collected.count(delivery, 1)


def resolve(delivered: asyncio.Future[int], delivery: Delivery) -> None:
    if delivered.done():
        return  # cancelled
    if delivery.error is not None:
        delivered.set_exception(delivery.error)
    else:
        delivered.set_result(delivery.offset)

"""Records out, at once or when there are some: reading, and the requests that wait for more.

A long poll waits by notification: it is filed under each log it reads, tried again when that log's readable end
moves, and answered with what there is at its deadline.
Invariant: every waiting request is in `_deadlines` until it is answered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count

from rivven.log import Log
from rivven.record import BatchHeader, Record, decode, walk

from .stats import BrokerStats

READ_COMMITTED = 1
Try = Callable[[bool], bool]
"""Answer if there is enough, or in any case when the argument is True; whether it answered."""


def _answered(_: bool) -> bool:
    return True


class _Wait:
    __slots__ = ("attempt", "done", "logs")

    def __init__(self, logs: list[Log], attempt: Try) -> None:
        self.logs = logs
        self.attempt = attempt
        self.done = False


class Waiting:
    """The long polls."""

    def __init__(self) -> None:
        self._by_log: dict[Log, dict[_Wait, None]] = {}
        self._deadlines: list[tuple[int, int, _Wait]] = []
        self._order = count()

    def __len__(self) -> int:
        return sum(not wait.done for _, _, wait in self._deadlines)

    def add(self, logs: list[Log], deadline_us: int, attempt: Try) -> None:
        wait = _Wait(logs, attempt)
        for log in logs:
            self._by_log.setdefault(log, {})[wait] = None
        heapq.heappush(self._deadlines, (deadline_us, next(self._order), wait))

    def due_us(self) -> int | None:
        while self._deadlines and self._deadlines[0][2].done:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def wake(self, logs: Iterable[Log]) -> None:
        """The readable end of these logs has moved."""
        for log in logs:
            for wait in list(self._by_log.get(log, ())):
                if wait.attempt(False):
                    self._forget(wait)

    def expire(self, now_us: int) -> None:
        while (due := self.due_us()) is not None and due <= now_us:
            wait = heapq.heappop(self._deadlines)[2]
            wait.attempt(True)
            self._forget(wait)

    def expire_all(self) -> None:
        while self._deadlines:
            self.expire(self._deadlines[0][0])

    def end(self, log: Log) -> None:
        """The log is gone: whoever waits for it is answered now."""
        for wait in list(self._by_log.get(log, ())):
            wait.attempt(True)
            self._forget(wait)

    def _forget(self, wait: _Wait) -> None:
        wait.done = True
        logs, wait.logs, wait.attempt = wait.logs, [], _answered  # it stays in the heap, but keeps nothing alive
        for log in logs:
            waits = self._by_log.get(log)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self._by_log[log]


class Reader:
    """Reading for both kinds of request: whole batches as they are, or records one by one."""

    def __init__(self, stats: BrokerStats) -> None:
        self._stats = stats

    @staticmethod
    def readable_end(log: Log, isolation: int | None) -> int:
        return log.last_stable if isolation == READ_COMMITTED else log.high_watermark

    def batches(self, log: Log, offset: int, bytes_max: int, isolation: int | None) -> memoryview:
        return log.read(offset, bytes_max=bytes_max, upto=self.readable_end(log, isolation))

    def count_out(self, data: memoryview) -> None:
        self._stats.bytes_out += len(data)
        self._stats.messages_out += sum(header.count for _, header in walk(data))

    def records(
        self, log: Log, offset: int, *, records_max: int, bytes_max: int, isolation: int | None
    ) -> list[Record]:
        """Up to so many records from `offset` on, without control records and, where asked, without aborted ones."""
        end = self.readable_end(log, isolation)
        offset = max(offset, log.start)
        found: list[Record] = []
        size_bytes = 0
        while offset < end and len(found) < records_max:
            data = log.read(offset, bytes_max=max(1, bytes_max - size_bytes), upto=end)
            if not len(data):
                break
            for position, header in walk(data):
                if not header.control and not self._hidden(log, header, isolation):
                    for record in decode(data, position, verify=False):
                        if record.offset < offset:
                            continue
                        record_bytes = len(record.key or b"") + len(record.value or b"")
                        if len(found) >= records_max or (found and size_bytes + record_bytes > bytes_max):
                            return self._counted(found, size_bytes)
                        found.append(record)
                        size_bytes += record_bytes
                offset = header.next_offset
        return self._counted(found, size_bytes)

    def _counted(self, found: list[Record], size_bytes: int) -> list[Record]:
        self._stats.messages_out += len(found)
        self._stats.bytes_out += size_bytes
        return found

    @staticmethod
    def _hidden(log: Log, header: BatchHeader, isolation: int | None) -> bool:
        """Whether a reader of committed data must not see this batch."""
        if isolation != READ_COMMITTED or not header.transactional:
            return False
        aborted = log.aborted_between(header.base_offset, header.last_offset)
        return any(entry.producer_id == header.producer_id for entry in aborted)

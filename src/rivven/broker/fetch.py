"""Records out, at once or when there are some: reading, and the requests that wait for more.

A long poll waits by notification: it is filed under each log it reads, tried again when that log's readable end
moves, and answered with what there is at its deadline.
Invariant: every waiting request is in `_deadlines` until it is answered.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import count, islice
from operator import attrgetter
from typing import NamedTuple

from rivven.limits import MIB, PLACE_BYTES_MIN
from rivven.log import Log, NotCached, Place
from rivven.record import BatchHeader, Record, decode, walk

from .stats import BrokerStats

READ_COMMITTED = 1
DECODED_BYTES_MAX = 16 * MIB
"""How much batches may hold that were taken apart and are kept for the next reader."""
RECORD_BYTES = 300
"""About what a record takes in memory beside its key and value."""
_OFFSET = attrgetter("offset")
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
        self.by_log: dict[Log, dict[_Wait, None]] = {}
        """Whom to wake when a log has more."""
        self._deadlines: list[tuple[int, int, _Wait]] = []
        self._order = count()

    def __len__(self) -> int:
        return sum(not wait.done for _, _, wait in self._deadlines)

    def add(self, logs: list[Log], deadline_us: int, attempt: Try) -> None:
        wait = _Wait(logs, attempt)
        for log in logs:
            self.by_log.setdefault(log, {})[wait] = None
        heapq.heappush(self._deadlines, (deadline_us, next(self._order), wait))

    def due_us(self) -> int | None:
        while self._deadlines and self._deadlines[0][2].done:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def wake(self, logs: Iterable[Log]) -> None:
        """The readable end of these logs has moved."""
        for log in logs:
            for wait in list(self.by_log.get(log, ())):
                if wait.attempt(False):
                    self._forget(wait)

    def expire(self, now_us: int) -> None:
        while (due := self.due_us()) is not None and due <= now_us:
            self._end_first()

    def expire_all(self) -> None:
        while self._deadlines:
            self._end_first()

    def _end_first(self) -> None:
        wait = heapq.heappop(self._deadlines)[2]
        wait.attempt(True)
        self._forget(wait)

    def end(self, log: Log) -> None:
        """The log is gone: whoever waits for it is answered now."""
        for wait in list(self.by_log.get(log, ())):
            wait.attempt(True)
            self._forget(wait)

    def _forget(self, wait: _Wait) -> None:
        wait.done = True
        logs, wait.logs, wait.attempt = wait.logs, [], _answered  # it stays in the heap, but keeps nothing alive
        for log in logs:
            waits = self.by_log.get(log)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self.by_log[log]


class _Decoded(NamedTuple):
    """A batch taken apart."""

    header: BatchHeader
    records: list[Record]
    size_bytes: int


class Reader:
    """Reading for both kinds of request: whole batches as they are, or records one by one.

    Whoever reads a record or two at a time would have the same batch read, checked and taken apart again and again:
    so the last one of each log is kept, within `DECODED_BYTES_MAX` in all; while a turn lasts, the last of all in
    any case.
    """

    def __init__(self, stats: BrokerStats) -> None:
        self._stats = stats
        self._decoded: OrderedDict[Log, _Decoded] = OrderedDict()
        self.decoded_bytes = 0

    @staticmethod
    def readable_end(log: Log, isolation: int | None) -> int:
        return log.last_stable if isolation == READ_COMMITTED else log.high_watermark

    def batches(
        self, log: Log, offset: int, bytes_max: int, isolation: int | None, *, cached: bool = True
    ) -> memoryview:
        return log.read(offset, bytes_max=bytes_max, upto=self.readable_end(log, isolation), cached=cached)

    def place(self, log: Log, offset: int, bytes_max: int, isolation: int | None) -> Place | None:
        """Where that many bytes stand that it is worth to look for them there."""
        place = log.locate(offset, bytes_max=bytes_max, upto=self.readable_end(log, isolation), cached=True)
        if place is None or place.length_bytes < PLACE_BYTES_MIN:
            return None
        self._stats.bytes_out += place.length_bytes
        self._stats.messages_out += place.next_offset - offset
        return place

    def count_out(self, data: memoryview) -> None:
        self._stats.bytes_out += len(data)
        self._stats.messages_out += sum(header.count for _, header in walk(data))

    def count_records(self, records: list[Record]) -> None:
        self._stats.messages_out += len(records)
        self._stats.bytes_out += sum(len(record.key or b"") + len(record.value or b"") for record in records)

    def records(
        self,
        log: Log,
        offset: int,
        *,
        records_max: int,
        bytes_max: int,
        isolation: int | None,
        cached: bool = True,
    ) -> tuple[list[Record], NotCached | None]:
        """Up to so many records from `offset` on, without control records and, where asked, without aborted ones.
        If only what is `cached` is wanted, perhaps fewer, and then why."""
        end = self.readable_end(log, isolation)
        offset = max(offset, log.start)
        found: list[Record] = []
        size_bytes = 0
        while offset < end and len(found) < records_max:
            try:
                batches = self._batches_from(log, offset, max(1, bytes_max - size_bytes), end, cached=cached)
            except NotCached as missing:
                return found, missing
            if not batches:
                break
            for batch in batches:
                if not self._hidden(log, batch.header, isolation):
                    for record in islice(batch.records, bisect_left(batch.records, offset, key=_OFFSET), None):
                        record_bytes = len(record.key or b"") + len(record.value or b"")
                        if len(found) >= records_max or (found and size_bytes + record_bytes > bytes_max):
                            return found, None
                        found.append(record)
                        size_bytes += record_bytes
                offset = batch.header.next_offset
        return found, None

    def _batches_from(self, log: Log, offset: int, bytes_max: int, end: int, *, cached: bool) -> Iterable[_Decoded]:
        """Batches taken apart, from the one that holds `offset`: the kept one, or those that are read now."""
        kept = self._decoded.get(log)
        if kept is not None and kept.header.base_offset <= offset < kept.header.next_offset <= end:
            self._decoded.move_to_end(log)
            return (kept,)
        data = log.read(offset, bytes_max=bytes_max, upto=end, cached=cached)
        return (self._keep(log, header, data, position) for position, header in walk(data)) if len(data) else ()

    def _keep(self, log: Log, header: BatchHeader, data: memoryview, position: int) -> _Decoded:
        records = decode(data, position, verify=False) if not header.control else []
        size_bytes = RECORD_BYTES * len(records) + sum(
            len(record.key or b"") + len(record.value or b"") for record in records
        )
        decoded = _Decoded(header, records, size_bytes)
        self.forget(log)
        self._decoded[log] = decoded
        self.decoded_bytes += decoded.size_bytes
        self._let_go(keep=1)
        return decoded

    def _let_go(self, keep: int) -> None:
        while self.decoded_bytes > DECODED_BYTES_MAX and len(self._decoded) > keep:
            self.forget(next(iter(self._decoded)))

    def forget(self, log: Log) -> None:
        """The log is gone, or no longer holds what it held at these offsets."""
        decoded = self._decoded.pop(log, None)
        if decoded is not None:
            self.decoded_bytes -= decoded.size_bytes

    def end_turn(self) -> None:
        if self.decoded_bytes > DECODED_BYTES_MAX:
            self._let_go(keep=0)

    @staticmethod
    def _hidden(log: Log, header: BatchHeader, isolation: int | None) -> bool:
        """Whether a reader of committed data must not see this batch."""
        if isolation != READ_COMMITTED or not header.transactional:
            return False
        aborted = log.aborted_between(header.base_offset, header.last_offset)
        return any(entry.producer_id == header.producer_id for entry in aborted)

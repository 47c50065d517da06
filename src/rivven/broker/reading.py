"""Reading, as an operation: records one by one or batches as they are, at once or when there are enough.

A reader names partitions and how long it would wait; `answer` is called once, now or in a later turn, with what
there is by then. What is wrong with one partition is told beside the others' batches. Nobody waits for the medium on
the broker's thread: what is not in memory is brought there first (`preloading`). Only a reader for whom that was done
in vain, because the memory was wanted for something else, has one batch read at once: it must get on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from rivven.coordinator import CONSUME
from rivven.errors import RivvenError, UnknownTopic
from rivven.log import Aborted, Log, NotCached, Place, Store
from rivven.ports import Clock
from rivven.record import Record

from .admit import Admission
from .fetch import Reader, Waiting
from .preloading import Preloading
from .session import Session
from .topics import Topics

CONSUME_RECORDS_MAX = 10_000
CONSUME_BYTES_PER_RECORD = 4096
CONSUME_BYTES_MAX = 8 * 1024 * 1024
"""Well below the largest reply, whatever the records' own lengths take."""
CONSUME_PRELOADS_MAX = 4
"""So often the medium is waited for to give as many records as there are; after that, fewer."""
WAIT_MS_MAX = 30_000
FETCH_BYTES_MAX = 2 * 1024 * 1024
"""What one answer brings, however much was asked for: it is read, checked and sent in one go, and all others wait
for that. A reader that is told a place is told of no more while there are quotas, which hold nobody up for long."""
PLACES_BYTES_MAX = 50 * 1024 * 1024
NOTHING = memoryview(b"")


class Bounds(NamedTuple):
    start: int
    high_watermark: int
    last_stable: int


class Wanted(NamedTuple):
    """What a fetch asks of one partition."""

    topic: str
    partition: int
    offset: int
    bytes_max: int


class Fetched(NamedTuple):
    """What a fetch found in one partition: its batches, or an error and no batches."""

    batches: memoryview
    bounds: Bounds
    aborted: Sequence[Aborted] = ()
    """Which producers' records in the batches were taken back, where only committed ones are wanted."""
    error: RivvenError | None = None
    place: Place | None = None
    """Where the batches stand, instead of them."""
    missing: NotCached | None = None
    """Why there are no batches yet."""

    @property
    def place_bytes(self) -> int:
        return self.place.length_bytes if self.place is not None else 0


UNKNOWN = Bounds(-1, -1, -1)


class Reading:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        topics: Topics,
        reader: Reader,
        waiting: Waiting,
        preloading: Preloading,
        admission: Admission,
    ) -> None:
        self._store = store
        self._clock = clock
        self._topics = topics
        self._reader = reader
        self._waiting = waiting
        self._preloading = preloading
        self._admission = admission
        self._stopping = False

    def end_waiting(self) -> None:
        """Answer whoever waits with what there is, now and from now on."""
        self._stopping = True
        self._waiting.expire_all()

    # Offsets

    def bounds(self, topic: str, partition: int) -> Bounds:
        """Where a partition begins, and up to where it can be read."""
        return _bounds_of(self._topics.log(topic, partition))

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """The first visible record at or after a time: its offset and its timestamp."""
        return self._topics.log(topic, partition).offset_for_timestamp(timestamp_ms)

    # Records

    def consume(
        self,
        session: Session,
        topic: str,
        partition: int,
        offset: int,
        *,
        records_max: int,
        wait_ms: int,
        isolation: int | None,
        answer: Callable[[list[Record], RivvenError | None], None],
    ) -> None:
        """Up to so many records from `offset` on; waits until there is one."""
        log = self._topics.log(topic, partition)
        records_max = min(records_max, CONSUME_RECORDS_MAX)
        bytes_max = min(max(1, records_max * CONSUME_BYTES_PER_RECORD), CONSUME_BYTES_MAX)

        def read(bytes_max: int, *, cached: bool = True) -> tuple[list[Record], NotCached | None]:
            if log.deleted:
                raise UnknownTopic(partition=f"partition {log.partition}: its topic was deleted")
            return self._reader.records(
                log, offset, records_max=records_max, bytes_max=bytes_max, isolation=isolation, cached=cached
            )

        def attempt(last: bool, preloads: int = 0) -> bool:
            if not last and offset >= self._reader.readable_end(log, isolation):
                return False
            try:
                records, missing = read(bytes_max)
                if missing is not None and preloads < CONSUME_PRELOADS_MAX:
                    self._preloading.want(missing, partial(attempt, True, preloads + 1))
                    return True
                if missing is not None and not records:
                    records, _ = read(1, cached=False)
            except RivvenError as error:
                answer([], error)
                return True
            self._reader.count_records(records)
            self._charge(session, sum(len(record.value or b"") for record in records))
            answer(records, None)
            return True

        self._try_until([log], wait_ms, attempt)

    # Batches

    def fetch(
        self,
        session: Session,
        wanted: Sequence[Wanted],
        *,
        wait_ms: int,
        bytes_min: int,
        bytes_max: int,
        isolation: int,
        answer: Callable[[list[Fetched]], None],
        by_place: bool = False,
    ) -> None:
        """Whole batches of these partitions, in their order; waits until together they have `bytes_min`. `by_place`:
        many bytes may stay where they are, and the reader is told where that is."""
        logs = [self._find(want) for want in wanted]

        def attempt(last: bool, *, preloaded: bool = False) -> bool:
            if not last and not self._enough(wanted, logs, bytes_min, isolation):
                return False
            most = PLACES_BYTES_MAX if by_place and not self._admission.is_limiting else FETCH_BYTES_MAX
            found = self._fetched(wanted, min(bytes_max, most), isolation, by_place=by_place, must_give=preloaded)
            if self._waits_for_medium(found, partial(attempt, True, preloaded=True)):
                return True
            self._charge(session, sum(len(each.batches) for each in found))
            if by_place:
                self._admission.charge(session, CONSUME, sum(each.place_bytes for each in found))
            answer(found)
            return True

        known = [log for log in logs if log is not None]
        self._try_until(known, wait_ms if len(known) == len(logs) else 0, attempt)

    def _try_until(self, logs: list[Log], wait_ms: int, attempt: Callable[[bool], bool]) -> None:
        wait_ms = 0 if self._stopping else min(wait_ms, WAIT_MS_MAX)
        if not attempt(wait_ms <= 0):
            self._waiting.add(logs, self._clock.now_us() + wait_ms * 1000, attempt)

    def _find(self, want: Wanted) -> Log | None:
        try:
            return self._store.log(want.topic, want.partition)
        except UnknownTopic:
            return None

    def _enough(self, wanted: Sequence[Wanted], logs: list[Log | None], bytes_min: int, isolation: int) -> bool:
        """Whether the partitions together have what was asked for, by a cheap estimate that is never too high by
        more than a batch: any readable record counts as one byte if only one is asked for."""
        have_bytes = 0
        for want, log in zip(wanted, logs, strict=True):
            if log is None or want.offset < log.start or want.offset > log.end:
                return True  # an error to tell at once
            if want.offset >= self._reader.readable_end(log, isolation):
                continue
            if bytes_min <= 1:
                return True
            try:
                most = min(want.bytes_max, bytes_min - have_bytes)
                have_bytes += len(self._reader.batches(log, want.offset, most, isolation))
            except (RivvenError, NotCached):
                return True
            if have_bytes >= bytes_min:
                return True
        return False

    def _waits_for_medium(self, found: list[Fetched], again: Callable[[], object]) -> bool:
        """Have brought into memory what is not there; whether the reader is to be tried again after that. One that
        gets something gets it now, and the rest when it asks the next time."""
        missing = [each.missing for each in found if each.missing is not None]
        waits = bool(missing) and not any(len(each.batches) or each.place or each.error for each in found)
        for place, each in enumerate(missing):
            self._preloading.want(each, again if waits and place == 0 else None)
        return waits

    def _fetched(
        self, wanted: Sequence[Wanted], bytes_max: int, isolation: int, *, by_place: bool, must_give: bool
    ) -> list[Fetched]:
        found: list[Fetched] = []
        given_bytes = 0
        for want in wanted:
            # The first batch comes whole, whatever the limits: a reader must always get on.
            budget = min(want.bytes_max, bytes_max - given_bytes)
            each = self._fetch_one(want, budget, isolation, first=given_bytes == 0, by_place=by_place)
            given_bytes += len(each.batches) + each.place_bytes
            found.append(each)
        if must_give and not given_bytes:
            for place, each in enumerate(found):
                if each.missing is not None:
                    found[place] = self._fetch_one(
                        wanted[place], 1, isolation, first=True, by_place=False, cached=False
                    )
                    break
        return found

    def _fetch_one(
        self, want: Wanted, bytes_max: int, isolation: int, *, first: bool, by_place: bool, cached: bool = True
    ) -> Fetched:
        try:
            log = self._store.log(want.topic, want.partition)
        except UnknownTopic as unknown:
            return Fetched(NOTHING, UNKNOWN, error=unknown)
        if bytes_max <= 0 and not first:
            return Fetched(NOTHING, _bounds_of(log))
        place = None
        try:
            if by_place:
                place = self._reader.place(log, want.offset, max(1, bytes_max), isolation)
            if place is None:
                most = max(1, min(bytes_max, FETCH_BYTES_MAX))
                data = self._reader.batches(log, want.offset, most, isolation, cached=cached)
                self._reader.count_out(data)
            else:
                data = NOTHING
        except NotCached as missing:
            return Fetched(NOTHING, _bounds_of(log), missing=missing)
        except RivvenError as error:
            return Fetched(NOTHING, _bounds_of(log), error=error)
        is_empty = place is None and not len(data)
        aborted = log.aborted_between(want.offset, log.last_stable) if isolation and not is_empty else ()
        return Fetched(data, _bounds_of(log), aborted, place=place)

    def _charge(self, session: Session, size_bytes: int) -> None:
        session.unsent_bytes += size_bytes
        self._admission.charge(session, CONSUME, size_bytes)


def _bounds_of(log: Log) -> Bounds:
    return Bounds(log.start, log.high_watermark, log.last_stable)

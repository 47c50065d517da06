"""What a producer holds until the server has it: records gathered into batches, partition by partition.

A record is written into its partition's open batch at once, and no object is kept for it. A batch is ripe with
`batch_bytes` or after `linger_ms`; while the partition waits for an answer its open batch may grow further, up to
`batch_bytes_max`, so that a slow server is sent few large batches and an idle one small ones at once.
Invariant: a partition has at most one parcel under way, and what is refused goes back to the front. So records of
one partition arrive in the order in which they were added, whatever is tried again.

Batches are numbered when they leave, so that the server recognises one that comes again. A batch keeps its numbers
for as long as the server may have it. If one is given up in that doubt, the partition needs another identity before
it goes on: nobody could tell any more which number is due. A transaction has no such doubt to live with: whatever
fails dooms it as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from rivven.errors import BatchTooLarge, InvalidProducerEpoch, OutOfOrderSequence, RivvenError
from rivven.limits import KIB, MIB, PRODUCER_BATCHES_KEPT
from rivven.record import RECORD_OVERHEAD_BYTES, NewRecord, Sorter, partition_for_key

from .failures import BufferFull, ConfigException, SerializationException, TimeoutException, TryAgain, word_of
from .lane import Batch, Identity, Lane, Parcel, Told, Watcher
from .retry import Backoff
from .sending import Sending
from .values import Delivery, Headers, as_bytes, as_number, checked_headers

RECORD_BYTES_MAX = 10 * MIB - 4 * KIB
"""No request can carry a longer one."""
NEVER_MS = 2**62

LOST_COUNT = frozenset({OutOfOrderSequence.code, InvalidProducerEpoch.code})
"""What a server says that expects another number."""


class Unplaced(NamedTuple):
    """A record for a topic that the server does not have yet, so that nobody knows its partitions."""

    row: NewRecord
    partition: int | None
    size_bytes: int
    watcher: Watcher | None
    born_ms: int


class Outbox:
    def __init__(
        self, topic: str, partitions: int, sending: Sending, clock_ms: Callable[[], int], rng: Random
    ) -> None:
        self.topic = topic
        self.sending = sending
        self.waiting_bytes = 0
        self.waiting_bytes_max = sending.buffer_bytes
        self.unplaced: deque[Unplaced] = deque()
        self.refusal: RivvenError | None = None
        """What whoever adds is told, if nothing may be added now."""
        self.doom: RivvenError | None = None
        """What a transaction has to abort for."""
        self.identity: Identity | None = None
        """Who numbers the batches; None: nobody does."""
        self.needs_identity = False
        """Whether a partition waits for a new one."""
        self.error: RivvenError | None = None
        """The first failure of a record that nobody watched."""
        self._clock_ms = clock_ms
        self._rng = rng
        self._batch_bytes = sending.batch_bytes
        self._seal_bytes = max(sending.batch_bytes, sending.batch_bytes_max)
        self._request_bytes_max = max(sending.request_bytes_max, self._seal_bytes)
        self._lanes: list[Lane] = []
        self._active: dict[Lane, None] = {}
        """Lanes with something in them."""
        self._sticky: Lane | None = None
        self.sorter = Sorter()
        """The quick way in, for plain records into batches that have begun. It is shut while the box is full."""
        self.is_closed = False
        if partitions:
            self.place(partitions)

    @property
    def partitions(self) -> int:
        return len(self._lanes)

    @property
    def is_empty(self) -> bool:
        return not self._active and not self.unplaced

    # In

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Headers,
        timestamp_ms: int,
        watcher: Watcher | None = None,
    ) -> bool:
        """Take a record. Whether there is news for the caller: a batch has begun or is ripe, or the box is full.

        Callers try `sorter.add` first. Bytes are counted, and the bound on them is looked at, whenever a batch has
        grown by `batch_bytes`.
        """
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        if type(value) is not bytes:
            value = as_bytes(value, "value")
        if type(key) is not bytes:
            key = as_bytes(key, "key")
        size_bytes = len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES
        if headers:
            headers, headers_bytes = checked_headers(headers)
            size_bytes += headers_bytes
        if partition is not None:
            partition = as_number(partition, "partition")
        row = (timestamp_ms, key, value, headers)
        if not self._lanes or size_bytes > RECORD_BYTES_MAX:
            return self._add_unplaced(Unplaced(row, partition, size_bytes, watcher, self._clock_ms()))
        lane = self._lane_for(partition, key)
        mark, lane.builder.mark = lane.builder.mark, 0  # nobody adds by the quick way meanwhile
        if lane.builder.size_bytes + size_bytes >= mark:
            return self._add_slowly(lane, row, size_bytes, watcher)
        self._put(lane, row, size_bytes, watcher)
        lane.builder.mark = mark
        return False

    def _lane_for(self, partition: int | None, key: bytes | None) -> Lane:
        lanes = self._lanes
        if partition is None:
            assert self._sticky is not None, "one is sticky where there are any"
            return self._sticky if key is None else lanes[partition_for_key(key, len(lanes))]
        if not 0 <= partition < len(lanes):
            raise ConfigException(reason=f"no partition {partition} in {self.topic}: there are {len(lanes)}")
        return lanes[partition]

    @staticmethod
    def _put(lane: Lane, row: NewRecord, size_bytes: int, watcher: Watcher | None) -> None:
        try:
            place = lane.builder.put(*row, size_bytes)
        except (TypeError, ValueError, OverflowError) as error:
            raise SerializationException(reason=f"a record cannot be written: {error}") from None
        if watcher is not None:
            lane.watchers.append((place, 1, watcher))

    def _add_slowly(self, lane: Lane, row: NewRecord, size_bytes: int, watcher: Watcher | None) -> bool:
        builder, news = lane.builder, False
        if builder.count and builder.size_bytes + size_bytes > self._seal_bytes:
            self._seal(lane)
            news = True
        begins = not builder.count
        self._put(lane, row, size_bytes, watcher)
        if begins:
            lane.begun_ms = self._clock_ms()
            self._active[lane] = None
            news = True
        held_bytes = builder.size_bytes
        self._count(lane, held_bytes)
        if held_bytes >= self._batch_bytes:
            builder.mark = min(held_bytes + self._batch_bytes, self._seal_bytes)
            if not lane.ripe:
                lane.ripe = news = True
                self._stick_elsewhere(lane)
        else:
            builder.mark = self._batch_bytes
        return self.look_for_room() or news

    def _count(self, lane: Lane, held_bytes: int) -> None:
        self.waiting_bytes += held_bytes - lane.counted_bytes
        lane.counted_bytes = held_bytes

    def look_for_room(self) -> bool:
        """Whether the box is full; the quick way in is shut while it is, and for good once the box is closed."""
        full = self.waiting_bytes >= self.waiting_bytes_max
        self.sorter.shut = full or self.is_closed or self.refusal is not None
        return full

    def close(self) -> None:
        """Take no more by the quick way; whoever adds by the other has looked whether the box is closed."""
        self.is_closed = True
        self.sorter.shut = True

    def refuse(self, error: RivvenError) -> None:
        """Take nothing from now on: whoever adds is told why."""
        self.refusal = error
        self.sorter.shut = True

    def give_up(self, error: RivvenError) -> Told:
        """Take and send nothing from now on: all that waits has failed, and what is under way is not sent again."""
        self.doom = error
        self.refuse(error)
        return self.expire(error)

    def admit(self) -> None:
        """Take records again; nothing that went wrong before counts any more."""
        self.refusal = self.doom = self.error = None
        self.look_for_room()

    def _add_unplaced(self, record: Unplaced) -> bool:
        if record.size_bytes > RECORD_BYTES_MAX:
            reason = f"a record of {record.size_bytes} bytes is above the {RECORD_BYTES_MAX} that a request can carry"
            raise SerializationException(reason=reason)
        self.waiting_bytes += record.size_bytes
        self.unplaced.append(record)
        self.look_for_room()
        return True

    def add_batch(self, partition: int | None, encoded: bytearray, count: int, watcher: Watcher | None) -> None:
        """Take a batch that is encoded already, behind whatever was added before."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        if partition is not None and not 0 <= partition < len(self._lanes):
            raise ConfigException(reason=f"no partition {partition} in {self.topic}: there are {len(self._lanes)}")
        lane = self._sticky if partition is None else self._lanes[partition]
        assert lane is not None, "ask for partitions first"
        if lane.builder.count:
            self._seal(lane)
        batch = Batch(count, len(encoded), self._clock_ms(), [] if watcher is None else [(0, count, watcher)])
        batch.encoded = encoded
        lane.sealed.append(batch)
        self._active[lane] = None
        self.waiting_bytes += len(encoded)
        self.look_for_room()
        self._stick_elsewhere(lane)

    @property
    def is_full(self) -> bool:
        return self.waiting_bytes >= self.waiting_bytes_max

    def require_room(self) -> None:
        if self.waiting_bytes >= self.waiting_bytes_max:
            raise BufferFull(waiting_bytes=self.waiting_bytes, bytes_max=self.waiting_bytes_max)

    def place(self, partitions: int) -> Told:
        """The topic has so many partitions: new ones take part from now on, and fewer are never believed."""
        for partition in range(len(self._lanes), partitions):
            lane = Lane(partition, Backoff(self._rng, first_ms=50, most_ms=2_000))
            if self.identity is not None:
                lane.identify(self.identity)
            self._lanes.append(lane)
            self.sorter.extend(lane.builder)
        if self._sticky is None and self._lanes:
            self._stick(self._rng.choice(self._lanes))
        told: Told = []
        while self.unplaced and self._lanes:
            (timestamp_ms, key, value, headers), chosen, size_bytes, watcher, _ = self.unplaced[0]
            try:
                self.add(value, key, chosen, tuple(headers), timestamp_ms, watcher)
            except RivvenError as error:
                told += self.placed_first(-1, -1, error)
            else:
                self.unplaced.popleft()
                self.waiting_bytes -= size_bytes
        return told

    def placed_first(self, partition: int, offset: int, error: RivvenError | None) -> Told:
        """What became of the oldest unplaced record, which was sent by itself."""
        first = self.unplaced.popleft()
        self.waiting_bytes -= first.size_bytes
        if error is not None:
            self._note(error)
        if first.watcher is None:
            self.error = self.error or error
            return []
        return [(first.watcher, Delivery(self.topic, partition, offset, error))]

    def _stick_elsewhere(self, lane: Lane) -> None:
        if lane is self._sticky:
            self._stick(self._lanes[(lane.partition + 1) % len(self._lanes)])

    def _stick(self, lane: Lane) -> None:
        self._sticky, self.sorter.sticky = lane, lane.builder

    def _seal(self, lane: Lane) -> None:
        built = lane.builder.take()
        self._count(lane, built.size_bytes)
        batch = Batch(built.count, built.size_bytes, lane.begun_ms, lane.watchers)
        batch.built = built
        lane.sealed.append(batch)
        lane.watchers, lane.ripe, lane.counted_bytes = [], False, 0
        self._stick_elsewhere(lane)

    # Who we are

    @property
    def is_transactional(self) -> bool:
        return self.identity is not None and self.identity.transactional

    def identify(self, identity: Identity) -> None:
        """Number batches by this identity, in every partition that has none. It must not have been used here."""
        self.identity, self.needs_identity = identity, False
        for lane in self._lanes:
            if lane.identity is None:
                lane.identify(identity)

    def identify_anew(self, identity: Identity) -> None:
        """The same in all partitions. What was numbered before must have been given up."""
        assert self.is_empty, "what waits has numbers that may count"
        for lane in self._lanes:
            lane.identity = None
        self.identify(identity)

    def _doubt(self, lane: Lane) -> None:
        """It cannot be known which number is due in this partition."""
        if lane.identity is not None:
            lane.identity = None
            self.needs_identity = not self.is_transactional
            for batch in lane.sealed:
                batch.numbers = None
                batch.tried = False

    # Out

    def take(self, *, single: bool = False) -> list[Parcel]:
        """What can be sent now in one request; `single`: one batch of one partition, and without numbers."""
        now_ms = self._clock_ms()
        numbered = self.identity is not None and not single
        parcels: list[Parcel] = []
        room_bytes = self._request_bytes_max
        for lane in list(self._active):
            if lane.parcel is not None or lane.not_before_ms > now_ms or (numbered and lane.identity is None):
                continue
            if lane.builder.count and (lane.ripe or lane.begun_ms + self.sending.linger_ms <= now_ms):
                self._seal(lane)
            batches: list[Batch] = []
            while lane.sealed and (lane.sealed[0].size_bytes <= room_bytes or not (parcels or batches)):
                batch = lane.sealed.popleft()
                room_bytes -= batch.size_bytes
                batches.append(batch)
                if numbered:
                    lane.number(batch)
                    if batch.tried or len(batches) == PRODUCER_BATCHES_KEPT:
                        break  # one that comes again tells its own offset; of more the first may be forgotten
                if single or lane.one_by_one:
                    break
            if not batches:
                continue
            lane.parcel = Parcel(lane, batches)
            parcels.append(lane.parcel)
            del self._active[lane]  # to the end of the row
            self._active[lane] = None
            if single or room_bytes <= 0:
                break
        return parcels

    def due_ms(self) -> int | None:
        """When `take` will have something, unless more comes in or an answer does."""
        linger_ms = self.sending.linger_ms
        due = NEVER_MS
        for lane in self._active:
            if lane.parcel is None and (self.identity is None or lane.identity is not None):
                ready_ms = 0 if lane.sealed or lane.ripe else lane.begun_ms + linger_ms
                due = min(due, max(ready_ms, lane.not_before_ms))
        return None if due == NEVER_MS else due

    def expires_ms(self) -> int | None:
        """When `expire` will have something to give up, unless it is sent before."""
        idle = [lane for lane in self._active if lane.parcel is None]
        born = [lane.sealed[0].born_ms if lane.sealed else lane.begun_ms for lane in idle]
        if self.unplaced:
            born.append(self.unplaced[0].born_ms)
        return min(born) + self.sending.delivery_timeout_ms + 1 if born else None

    def hurry(self) -> None:
        """Somebody waits for what is here: it is ripe, whatever its size."""
        for lane in self._active:
            if lane.builder.count:
                lane.ripe = True

    def seal_all(self) -> None:
        """Send everything without waiting for more."""
        for lane in self._active:
            if lane.builder.count:
                self._seal(lane)

    def watch_all(self, watcher: Watcher) -> int:
        """Have `watcher` told once by every batch that is held now; how many there are."""
        self.seal_all()
        held = [batch for lane in self._active for batch in lane.sealed]
        held += [batch for lane in self._active if lane.parcel for batch in lane.parcel.batches]
        for batch in held:
            batch.watchers.append((batch.count - 1, 0, watcher))
        return len(held)

    # What became of it

    def delivered(self, parcel: Parcel, base_offset: int) -> Told:
        lane, told = self._landed(parcel), []
        lane.backoff.reset()
        lane.one_by_one = lane.one_by_one and bool(lane.sealed)
        for batch in parcel.batches:
            told += self._settle(lane, batch, base_offset, None)
            base_offset += batch.count
        self._rest(lane)
        return told

    def refused(self, parcel: Parcel, error: RivvenError) -> Told:
        """Send it again if that can help, else tell whoever watches."""
        lane, told = self._landed(parcel), []
        batches = parcel.batches
        if _too_large(error) and len(batches) == 1 and batches[0].count > 1:
            lane.release(batches[0])
            lane.sealed.extendleft(reversed(self._smaller(batches[0])))
        elif error.retriable:
            lane.sealed.extendleft(reversed(batches))
            for batch in batches:
                batch.tried = True
            if isinstance(error, TryAgain):
                wait_ms = max(error.facts.get("retry_ms", 0), lane.backoff.next_ms())
                lane.not_before_ms = self._clock_ms() + wait_ms
        elif len(batches) > 1:
            lane.sealed.extendleft(reversed(batches))
            for batch in batches:
                batch.tried = True  # the first of them may be there
            lane.one_by_one = True
        elif error.facts.get("error") in LOST_COUNT and not self.is_transactional and batches[0].numbers is not None:
            # The server forgot what it had, so it does not have this one: it may go as somebody else's first.
            lane.sealed.appendleft(batches[0])
            self._doubt(lane)
        else:
            lane.release(batches[0])
            told = self._settle(lane, batches[0], -1, error)
        self._rest(lane)
        return told + self._doomed()

    def _landed(self, parcel: Parcel) -> Lane:
        lane = parcel.lane
        assert lane.parcel is parcel, "a parcel lands once"
        lane.parcel = None
        return lane

    def _smaller(self, batch: Batch) -> list[Batch]:
        """The same records in two batches; half of the size is the limit from now on."""
        limit_bytes = max(1, batch.size_bytes // 2)
        self._seal_bytes = min(self._seal_bytes, limit_bytes)
        self._batch_bytes = min(self._batch_bytes, limit_bytes)
        self._request_bytes_max = max(limit_bytes, min(self._request_bytes_max, 2 * batch.size_bytes))
        return batch.halves()

    def fail(self, parcel: Parcel, failed: Batch, error: RivvenError) -> Told:
        """One batch of a parcel cannot even be written; the others wait for their next turn."""
        lane, place = self._landed(parcel), parcel.batches.index(failed)
        lane.sealed.extendleft(reversed(parcel.batches[place + 1 :]))
        lane.release(failed)
        lane.sealed.extendleft(reversed(parcel.batches[:place]))
        told = self._settle(lane, failed, -1, error)
        self._rest(lane)
        return told + self._doomed()

    def expire(self, error: RivvenError | None = None) -> Told:
        """Give up what has waited too long, or everything that is not under way if there is an error to tell."""
        limit_ms = NEVER_MS if error else self._clock_ms() - self.sending.delivery_timeout_ms
        told: Told = []
        for lane in [lane for lane in self._active if lane.parcel is None]:
            if lane.builder.count and lane.begun_ms < limit_ms:
                self._seal(lane)
            in_doubt = False
            while lane.sealed and (lane.sealed[0].born_ms < limit_ms or (in_doubt and lane.sealed[0].tried)):
                batch = lane.sealed.popleft()
                in_doubt = in_doubt or (batch.tried and batch.numbers is not None)
                told += self._settle(lane, batch, -1, error or self._expired())
            if in_doubt:
                self._doubt(lane)
            self._rest(lane)
        while self.unplaced and self.unplaced[0].born_ms < limit_ms:
            told += self.placed_first(-1, -1, error or self._expired())
        return told if error else told + self._doomed()

    def _doomed(self) -> Told:
        """With the first failure of a transaction all that waits has failed."""
        return [] if self.doom is None else self.expire(self.doom)

    def _expired(self) -> TimeoutException:
        waited_ms = self.sending.delivery_timeout_ms
        return TimeoutException(reason=f"not delivered to {self.topic} within {waited_ms} ms")

    def _settle(self, lane: Lane, batch: Batch, base_offset: int, error: RivvenError | None) -> Told:
        self.waiting_bytes -= batch.size_bytes
        if error is not None:
            self._note(error)
            if not batch.watched:
                self.error = self.error or error
        return batch.told(self.topic, lane.partition, base_offset, error)

    def _note(self, error: RivvenError) -> None:
        if self.doom is None and self.is_transactional:
            self.doom = error
            self.refuse(error)

    def _rest(self, lane: Lane) -> None:
        if not lane.builder.count and not lane.sealed and lane.parcel is None:
            self._active.pop(lane, None)


def _too_large(error: RivvenError) -> bool:
    code, word = error.facts.get("error"), word_of(str(error.facts.get("reason", "")))
    return code == BatchTooLarge.code or word in ("MESSAGE_TOO_LARGE", "RECORD_TOO_LARGE")

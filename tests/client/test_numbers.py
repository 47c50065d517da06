"""Numbered batches: stored once and in order, whatever is lost, forgotten, refused, halved or given up.

The server's side is the partition's own memory of producers, `rivven.log.producers`, so both ends of the bargain are
the real ones.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.client.failures import ConnectionException, SerializationException, ServerException, TryAgain, coded_error
from rivven.client.lane import Identity, Parcel
from rivven.client.outbox import Outbox
from rivven.client.sending import Sending
from rivven.errors import BatchTooLarge, RivvenError
from rivven.limits import PRODUCER_BATCHES_KEPT
from rivven.log.producers import Producers
from rivven.model import TopicPartition
from rivven.record import Codec, decode, parse_header

LOST = ConnectionException(reason="lost")
LATER = TryAgain(reason="later")
REFUSED = ServerException(reason="INVALID_RECORD: no")
BAD = b"bad"


class Clock:
    now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


class Partition:
    """What a broker does with batches that come."""

    def __init__(self, number: int, *, batch_bytes_max: int = 1 << 30) -> None:
        self.partition = TopicPartition("t", number)
        self.batch_bytes_max = batch_bytes_max
        self.producers = Producers()
        self.log: list[bytes] = []

    def append(self, parcel: Parcel, count: int | None = None) -> int:
        """The first offset; raises as the server's answer would. Batches before the guilty one stay."""
        first = -1
        for batch in parcel.batches[:count]:
            encoded = batch.encode(Codec.NONE, None)
            header = parse_header(encoded)
            values = [record.value or b"" for record in decode(encoded)]
            if len(encoded) > self.batch_bytes_max:
                raise coded_error(BatchTooLarge.code, "too large")
            try:
                known = self.producers.judge(self.partition, header)
            except RivvenError as error:
                raise coded_error(error.code, str(error)) from None
            if BAD in values:
                raise REFUSED
            if known is None:
                self.producers.note(header._replace(base_offset=len(self.log)))
                offset = len(self.log)
                self.log += values
            else:
                offset = known.base_offset
            first = offset if first < 0 else first
        return first


class World:
    def __init__(self, partitions: int, *, too_large: int = 1 << 30, **sending: Any) -> None:
        self.clock = Clock()
        self.box = Outbox("t", partitions, Sending(**sending), self.clock, Random(1))
        self.identities = 0
        self.identify()
        self.partitions = [Partition(number, batch_bytes_max=too_large) for number in range(partitions)]
        self.under_way: list[Parcel] = []
        self.told: dict[bytes, tuple[int, Any]] = {}

    def identify(self) -> None:
        self.identities += 1
        self.box.identify(Identity(self.identities, 0))

    def put(self, value: bytes, partition: int) -> None:
        def hear(delivery: Any) -> None:
            assert value not in self.told, "told once"
            self.told[value] = (delivery.offset, delivery.error)

        self.box.add(value, None, partition, (), 1, hear)

    def take(self) -> None:
        if self.box.needs_identity:
            self.identify()
        for parcel in self.box.take():
            assert len(parcel.batches) <= PRODUCER_BATCHES_KEPT
            self.under_way.append(parcel)

    def land(self, place: int, fate: str) -> None:
        parcel = self.under_way.pop(place % len(self.under_way))
        partition = self.partitions[parcel.lane.partition]
        outcome: Any
        if fate == "lost before":
            outcome = self.box.refused(parcel, LOST)
        elif fate == "later":
            outcome = self.box.refused(parcel, LATER)
        else:
            lost = fate != "lands"
            try:
                offset = partition.append(parcel, 1 if fate == "lost within" else None)
            except RivvenError as error:
                outcome = self.box.refused(parcel, LOST if lost else error)
            else:
                outcome = self.box.refused(parcel, LOST) if lost else self.box.delivered(parcel, offset)
        for watcher, delivery in outcome:
            watcher(delivery)

    def drain(self) -> None:
        for _ in range(2_000):
            if self.box.is_empty:
                return
            self.clock.now_ms += 50
            self.take()
            while self.under_way:
                self.land(0, "lands")
        raise AssertionError("it does not come to an end")


FATES = ["lands", "lands", "lands", "lost before", "lost within", "lost after", "later"]
STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 2), st.integers(0, 60)),
    st.tuples(st.just("take")),
    st.tuples(st.just("land"), st.integers(0, 5), st.sampled_from(FATES)),
    st.tuples(st.just("wait"), st.integers(1, 30)),
)


@given(
    st.lists(STEPS, max_size=120),
    st.integers(1, 150),
    st.integers(1, 300),
    st.sampled_from([1 << 30, 150]),
    st.booleans(),
)
def test_every_record_is_stored_once_and_in_order(steps, batch_bytes, batch_bytes_max, too_large, forgetful):
    world = World(3, batch_bytes=batch_bytes, batch_bytes_max=batch_bytes_max, linger_ms=1, too_large=too_large)
    added: list[list[bytes]] = [[], [], []]
    for number, step in enumerate(steps):
        match step:
            case ("put", partition, pad):
                value = b"%d" % number + b"." * pad
                world.put(value, partition)
                added[partition].append(value)
            case ("take",):
                world.take()
            case ("land", place, fate) if world.under_way:
                world.land(place, fate)
            case ("wait", ms):
                world.clock.now_ms += ms
                if forgetful and not world.under_way and not any(lane.sealed for lane in world.box._lanes):
                    # The broker has expired what it knew of producers; nothing is in doubt, so nothing is lost.
                    world.partitions[ms % 3].producers = Producers()
    world.drain()
    for partition, values in zip(world.partitions, added, strict=True):
        assert partition.log == values
        assert [world.told[value] for value in values] == [(offset, None) for offset in range(len(values))]


def test_a_batch_that_comes_again_tells_the_offset_it_got_the_first_time():
    world = World(1, batch_bytes=1, batch_bytes_max=1, linger_ms=0)
    for value in (b"a", b"b", b"c"):
        world.put(value, 0)
    world.take()
    assert len(world.under_way[0].batches) == 3
    world.land(0, "lost within")
    world.partitions[0].log.append(b"somebody else's")
    world.drain()
    assert world.partitions[0].log == [b"a", b"somebody else's", b"b", b"c"]
    assert [world.told[value][0] for value in (b"a", b"b", b"c")] == [0, 2, 3]


def test_no_more_batches_travel_than_the_server_remembers():
    world = World(1, batch_bytes=1, batch_bytes_max=1, linger_ms=0)
    values = [b"%d" % number for number in range(3 * PRODUCER_BATCHES_KEPT)]
    for value in values:
        world.put(value, 0)
    world.take()
    world.land(0, "lost after")
    world.drain()
    assert world.partitions[0].log == values
    assert world.identities == 1


def test_the_numbers_of_a_refused_batch_go_to_the_next():
    world = World(1, batch_bytes=1, batch_bytes_max=1, linger_ms=0)
    for value in (b"good", BAD, b"also good"):
        world.put(value, 0)
    world.drain()
    assert world.partitions[0].log == [b"good", b"also good"]
    assert world.told[BAD][1] is REFUSED
    assert world.identities == 1


def test_what_is_given_up_in_doubt_costs_the_identity_and_never_a_duplicate():
    world = World(1, batch_bytes=1, batch_bytes_max=1, linger_ms=0, delivery_timeout_ms=100)
    for value in (b"a", b"b"):
        world.put(value, 0)
    world.take()
    world.land(0, "lost after")
    world.clock.now_ms += 101
    world.put(b"c", 0)
    for watcher, delivery in world.box.expire():
        watcher(delivery)
    assert world.told[b"a"][1] is not None
    assert world.told[b"b"][1] is not None
    assert world.box.take() == [], "nobody knows which number is due"
    world.drain()
    assert world.partitions[0].log == [b"a", b"b", b"c"]
    assert world.identities == 2


def test_a_younger_batch_that_may_be_there_is_given_up_with_the_older_one():
    world = World(1, batch_bytes=1, batch_bytes_max=1, linger_ms=0, delivery_timeout_ms=100)
    world.put(b"a", 0)
    world.clock.now_ms += 60
    world.put(b"b", 0)
    world.take()
    world.land(0, "lost after")
    world.clock.now_ms += 60
    for watcher, delivery in world.box.expire():
        watcher(delivery)
    assert set(world.told) == {b"a", b"b"}, "sent as somebody else's, b would be stored twice"
    world.drain()
    assert world.partitions[0].log == [b"a", b"b"]


def test_a_server_that_lost_count_gets_the_batch_from_somebody_new():
    world = World(1, linger_ms=0)
    world.put(b"a", 0)
    world.drain()
    world.put(b"b", 0)
    world.drain()
    partition = world.partitions[0]
    header = parse_header(batch_of(b"x", base_sequence=0))
    partition.producers = Producers()
    partition.producers.note(header)  # as if it had lost what it said it had
    partition.log.clear()
    world.put(b"c", 0)
    world.drain()
    assert partition.log == [b"c"]
    assert world.told[b"c"] == (0, None)
    assert world.identities == 2


def batch_of(value: bytes, *, base_sequence: int) -> bytearray:
    from rivven.record import encode

    return encode([(1, None, value, ())], producer_id=1, producer_epoch=0, base_sequence=base_sequence)


def test_sequences_begin_again_after_the_last():
    world = World(1, linger_ms=0)
    lane = world.box._lanes[0]
    lane.next_sequence = 2**31 - 2
    for value in (b"a", b"b", b"c"):
        world.put(value, 0)
    (parcel,) = world.box.take()
    world.under_way.append(parcel)
    assert lane.next_sequence == 1
    world.land(0, "lost after")
    world.put(b"d", 0)
    world.drain()
    assert world.partitions[0].log == [b"a", b"b", b"c", b"d"]


def test_a_batch_that_cannot_be_written_leaves_no_gap():
    world = World(1, batch_bytes=1, batch_bytes_max=1, linger_ms=0)
    for value in (b"a", b"b", b"c"):
        world.put(value, 0)
    (parcel,) = world.box.take()
    told = world.box.fail(parcel, parcel.batches[1], SerializationException(reason="no"))
    for watcher, delivery in told:
        watcher(delivery)
    world.drain()
    assert world.partitions[0].log == [b"a", b"c"]


class InTransaction:
    """An outbox that sends as part of a transaction."""

    def __init__(self) -> None:
        self.box = Outbox("t", 2, Sending(linger_ms=0), Clock(), Random(1))
        self.box.identify(Identity(1, 0, transactional=True))


def test_one_failure_dooms_all_that_waits_and_all_that_comes():
    box = InTransaction().box
    heard: list[Any] = []
    for partition in (0, 1):
        box.add(b"a", None, partition, (), 1, heard.append)
    parcels = box.take()
    box.add(b"later", None, 1, (), 1, heard.append)
    told = box.refused(parcels[0], REFUSED)
    for watcher, delivery in told:
        watcher(delivery)
    assert [delivery.error for delivery in heard] == [REFUSED], "the other lane is under way"
    for watcher, delivery in box.refused(parcels[1], LOST):
        watcher(delivery)
    assert [delivery.error for delivery in heard] == [REFUSED] * 3
    assert box.doom is REFUSED
    with pytest.raises(ServerException, match="INVALID_RECORD"):
        box.add(b"b", None, 0, (), 1)
    assert not box.sorter.add(b"b", None, 1), "the quick way is shut as well"
    assert box.is_empty
    box.identify_anew(Identity(1, 1, transactional=True))
    box.admit()
    box.add(b"b", None, 0, (), 1)
    (parcel,) = box.take()
    header = parse_header(parcel.batches[0].encode(Codec.NONE, None))
    assert (header.producer_epoch, header.base_sequence, header.transactional) == (1, 0, True)

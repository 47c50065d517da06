"""The outbox: order per partition whatever is refused, bounds on every size, and everybody told once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.client.failures import (
    BufferFull,
    ConfigException,
    ConnectionException,
    SerializationException,
    ServerException,
    TimeoutException,
    TryAgain,
)
from rivven.client.lane import Parcel, Told
from rivven.client.outbox import RECORD_OVERHEAD_BYTES, Outbox
from rivven.client.sending import Sending
from rivven.errors import BatchTooLarge
from rivven.record import decode, partition_for_key

TOO_LARGE = ServerException(reason="too large", error=BatchTooLarge.code)
REFUSED = ServerException(reason="INVALID_RECORD: no")
LOST = ConnectionException(reason="lost")


class Clock:
    now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


def outbox(partitions: int = 3, *, clock: Clock | None = None, **sending: Any) -> Outbox:
    return Outbox("t", partitions, Sending(**sending), clock or Clock(), Random(1))


def values(parcel: Parcel) -> list[bytes | None]:
    return [row[2] for batch in parcel.batches for row in batch.records()]


def tell(told: Told) -> None:
    for watcher, delivery in told:
        watcher(delivery)


def test_a_record_waits_for_its_linger():
    clock = Clock()
    box = outbox(clock=clock, linger_ms=5)
    assert box.add(b"a", None, None, (), 1)
    assert box.take() == []
    assert box.due_ms() == 1005
    clock.now_ms = 1005
    (parcel,) = box.take()
    assert values(parcel) == [b"a"]


def test_a_batch_that_is_large_enough_does_not_wait():
    box = outbox(1, batch_bytes=100, linger_ms=1000)
    box.add(b"x" * 60, None, None, (), 1)
    assert box.take() == []
    assert box.add(b"y" * 60, None, None, (), 1)
    assert len(box.take()) == 1


def test_whoever_waits_makes_it_ripe():
    box = outbox(1, linger_ms=1000)
    box.add(b"a", None, None, (), 1)
    box.hurry()
    assert len(box.take()) == 1


def test_a_partition_has_one_parcel_under_way_and_grows_its_batch_meanwhile():
    box = outbox(1, batch_bytes=100, linger_ms=0)
    box.add(b"a", None, None, (), 1)
    (first,) = box.take()
    for _ in range(20):
        box.add(b"b" * 50, None, None, (), 1)
    assert box.take() == []
    box.delivered(first, 0)
    (second,) = box.take()
    assert [batch.count for batch in second.batches] == [20]


def test_keys_go_where_every_client_would_send_them():
    box = outbox(5, linger_ms=0)
    keys = [b"key-%d" % number for number in range(50)]
    for key in keys:
        box.add(b"v", key, None, (), 1)
    for parcel in box.take():
        rows = [row for batch in parcel.batches for row in batch.records()]
        assert {partition_for_key(key, 5) for _, key, _, _ in rows if key} == {parcel.lane.partition}


def test_records_without_a_key_stick_to_a_partition_until_its_batch_is_ripe():
    box = outbox(3, batch_bytes=10 * (RECORD_OVERHEAD_BYTES + 1), linger_ms=0)
    for _ in range(30):
        box.add(b"v", None, None, (), 1)
    assert sorted(sum(batch.count for batch in parcel.batches) for parcel in box.take()) == [10, 10, 10]


def test_new_partitions_take_part():
    box = outbox(1, linger_ms=0)
    with pytest.raises(ConfigException, match="there are 1"):
        box.add(b"v", None, 1, (), 1)
    box.place(2)
    box.add(b"v", None, 1, (), 1)
    assert [parcel.lane.partition for parcel in box.take()] == [1]


def test_records_for_an_unknown_topic_are_placed_once_it_is_known():
    box = outbox(0, linger_ms=0)
    heard: list[Any] = []
    for number, partition in ((0, None), (1, 1), (2, 9)):
        assert box.add(b"%d" % number, b"k", partition, (), 1, heard.append)
    assert box.take() == []
    tell(box.placed_first(1, 7, None))
    tell(box.place(2))
    assert [(delivery.offset, type(delivery.error)) for delivery in heard] == [(7, type(None)), (-1, ConfigException)]
    assert [values(parcel) for parcel in box.take()] == [[b"1"]]


def test_a_full_box_says_so():
    box = outbox(1, buffer_bytes=1000, batch_bytes=100)
    while not box.is_full:
        box.add(b"x" * 50, None, None, (), 1)
    with pytest.raises(BufferFull):
        box.require_room()
    assert box.waiting_bytes < 1000 + 100 + 82


@pytest.mark.parametrize(
    ("value", "key", "headers"),
    [("text", None, ()), (b"v", "text", ()), (b"v", None, [(b"name", b"v")]), (b"v", None, [("n", "text")])],
)
def test_what_is_not_bytes_is_refused_at_the_door(value, key, headers):
    box = outbox()
    with pytest.raises(SerializationException):
        box.add(value, key, None, headers, 1)
    assert box.is_empty


def test_what_is_like_bytes_is_taken():
    box = outbox(1, linger_ms=0)
    box.add(bytearray(b"v"), memoryview(b"k"), None, [("h", bytearray(b"w"))], 5)  # type: ignore[arg-type]
    (parcel,) = box.take()
    assert parcel.batches[0].records() == [(5, b"k", b"v", (("h", b"w"),))]


@pytest.mark.parametrize("timestamp_ms", [1.5, 2**63, -(2**63) - 1])
def test_a_timestamp_that_cannot_be_written_is_refused_at_the_door(timestamp_ms):
    box = outbox(1, linger_ms=0)
    for first in (True, False):
        with pytest.raises(SerializationException, match="cannot be written"):
            box.add(b"v", None, None, (), timestamp_ms)
        assert box.is_empty is first
        box.add(b"w", None, None, (), 1)
    (parcel,) = box.take()
    assert values(parcel) == [b"w", b"w"]


def test_the_quick_way_leads_into_batches_that_have_begun_and_is_shut_while_the_box_is_full():
    box = outbox(1, linger_ms=0, batch_bytes=1000, buffer_bytes=1500)
    assert not box.sorter.add(b"v", None, 1_000_000)
    assert box.add(b"v", None, None, (), 1)
    assert box.sorter.add(b"quick", b"k", 2_999_999)
    assert box.add(b"x" * 1500, None, None, (), 3)
    assert box.is_full
    assert not box.sorter.add(b"w", None, 1_000_000)
    (parcel,) = box.take()
    assert [row[:2] for batch in parcel.batches for row in batch.records()] == [(1, None), (2, b"k"), (3, None)]
    box.delivered(parcel, 0)
    assert box.waiting_bytes == 0
    assert not box.look_for_room()
    box.add(b"v", None, None, (), 1)
    assert box.sorter.add(b"w", None, 1_000_000)
    box.close()
    assert not box.sorter.add(b"w", None, 1_000_000)
    box.look_for_room()
    assert not box.sorter.add(b"w", None, 1_000_000)


def test_a_record_that_no_request_can_carry_is_refused():
    with pytest.raises(SerializationException, match="above"):
        outbox().add(b"x" * (10 << 20), None, None, (), 1)


def test_what_passes_is_sent_again_after_a_while_and_what_was_lost_at_once():
    clock = Clock()
    box = outbox(1, clock=clock, linger_ms=0)
    box.add(b"a", None, None, (), 1)
    box.refused(box.take()[0], LOST)
    (again,) = box.take()
    box.refused(again, TryAgain(reason="BUFFER_FULL", retry_ms=300))
    assert box.take() == []
    assert box.due_ms() == 1300
    clock.now_ms = 1300
    assert values(box.take()[0]) == [b"a"]


def test_a_batch_that_is_too_large_is_halved_until_it_fits():
    box = outbox(1, linger_ms=0)
    heard: list[int] = []
    for number in range(9):
        box.add(b"%d" % number, None, None, (), 1, lambda delivery: heard.append(delivery.offset))
    box.watch_all(lambda _: heard.append(-5))
    sent: list[bytes | None] = []
    while parcels := box.take():
        (parcel,) = parcels
        if any(batch.count > 2 for batch in parcel.batches):
            tell(box.refused(parcel, TOO_LARGE))
        else:
            tell(box.delivered(parcel, len(sent)))
            sent += values(parcel)
    assert sent == [b"%d" % number for number in range(9)]
    assert heard == [*range(9), -5]
    assert box.waiting_bytes == 0


def test_a_single_record_that_is_too_large_fails():
    box = outbox(1, linger_ms=0)
    box.add(b"a", None, None, (), 1)
    box.refused(box.take()[0], TOO_LARGE)
    assert box.error is TOO_LARGE
    assert box.is_empty


def test_of_several_batches_only_the_guilty_one_fails():
    box = outbox(1, linger_ms=0, batch_bytes=1, batch_bytes_max=40)
    heard: dict[bytes, Any] = {}
    for value in (b"good", b"bad", b"also good"):
        box.add(value, None, None, (), 1, lambda delivery, value=value: heard.update({value: delivery.error}))
    (parcel,) = box.take()
    assert len(parcel.batches) == 3
    tell(box.refused(parcel, REFUSED))
    while parcels := box.take():
        (parcel,) = parcels
        outcome = box.refused(parcel, REFUSED) if b"bad" in values(parcel) else box.delivered(parcel, 0)
        tell(outcome)
    assert heard == {b"good": None, b"bad": REFUSED, b"also good": None}


def test_what_waits_too_long_fails_and_says_so():
    clock = Clock()
    box = outbox(1, clock=clock, delivery_timeout_ms=100)
    heard: list[Any] = []
    box.add(b"a", None, None, (), 1, heard.append)
    box.add(b"b", None, None, (), 1)
    clock.now_ms = 1101
    tell(box.expire())
    assert isinstance(heard[0].error, TimeoutException)
    assert isinstance(box.error, TimeoutException)
    assert box.is_empty
    assert box.waiting_bytes == 0


def test_encoded_batches_stand_behind_earlier_records():
    box = outbox(1, linger_ms=1000)
    box.add(b"first", None, None, (), 1)
    other = outbox(1, linger_ms=0)
    other.add(b"second", None, None, (), 1)
    encoded = other.take()[0].batches[0].encode(other.sending.codec, None)
    box.add_batch(0, encoded, 1, None)
    (parcel,) = box.take()
    assert values(parcel) == [b"first", b"second"]


class Model:
    """A server that takes, refuses or loses parcels as it is told, and remembers what it took."""

    def __init__(self, box: Outbox) -> None:
        self.box = box
        self.under_way: list[Parcel] = []
        self.logs: dict[int, list[bytes]] = {}
        self.told: list[tuple[bytes, Any]] = []

    def take(self) -> None:
        parcels = self.box.take()
        limit = self.box._request_bytes_max
        assert len(parcels) <= 1 or sum(parcel.size_bytes for parcel in parcels) <= limit
        for parcel in parcels:
            assert parcel.lane not in [other.lane for other in self.under_way]
            for batch in parcel.batches:
                assert batch.count == 1 or batch.size_bytes <= self.box._seal_bytes
                assert len(decode(batch.encode(self.box.sending.codec, None))) == batch.count
        self.under_way += parcels

    def land(self, place: int, error: Any) -> None:
        parcel = self.under_way.pop(place % len(self.under_way))
        if error is None:
            log = self.logs.setdefault(parcel.lane.partition, [])
            outcome = self.box.delivered(parcel, len(log))
            log += [value for value in values(parcel) if value is not None]
        else:
            outcome = self.box.refused(parcel, error)
        tell(outcome)


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 40), st.one_of(st.none(), st.binary(max_size=2)), st.booleans()),
    st.tuples(st.just("take")),
    st.tuples(st.just("wait"), st.integers(1, 20)),
    st.tuples(st.just("land"), st.integers(0, 5), st.sampled_from([None, None, LOST, TryAgain(reason="x")])),
)


@given(
    st.lists(STEPS, max_size=80),
    st.integers(1, 4),
    st.integers(1, 200),
    st.integers(1, 400),
    st.integers(0, 10),
    st.integers(1, 500),
)
def test_order_and_bounds_hold_whatever_happens(steps, partitions, batch_bytes, batch_bytes_max, linger_ms, request):
    clock = Clock()
    box = outbox(
        partitions,
        clock=clock,
        batch_bytes=batch_bytes,
        batch_bytes_max=batch_bytes_max,
        linger_ms=linger_ms,
        request_bytes_max=request,
    )
    model = Model(box)
    added: list[tuple[bytes, bytes | None]] = []
    watched: list[bytes] = []
    for step in steps:
        match step:
            case ("add", size, key, watch):
                value = b"%08d" % len(added) + b"x" * size
                added.append((value, key))
                if watch:
                    watched.append(value)
                    box.add(
                        value, key, None, (), 1, lambda delivery, value=value: model.told.append((value, delivery))
                    )
                elif not box.sorter.add(value, key, 1_000_000):
                    box.add(value, key, None, (), 1)
            case ("take",):
                model.take()
            case ("wait", length_ms):
                clock.now_ms += length_ms
            case ("land", place, error) if model.under_way:
                model.land(place, error)
    box.seal_all()
    while not box.is_empty:
        clock.now_ms += 5_000
        model.take()
        while model.under_way:
            model.land(0, None)
    for log in model.logs.values():
        assert log == sorted(log), "records of a partition in the order in which they were added"
    assert sorted(value for log in model.logs.values() for value in log) == [value for value, _ in added]
    for value, key in added:
        if key is not None:
            assert value in model.logs[partition_for_key(key, partitions)]
    assert sorted(value for value, _ in model.told) == watched
    assert all(model.logs[delivery.partition][delivery.offset] == value for value, delivery in model.told)
    assert box.waiting_bytes == 0

"""The end of a segment, in both twins: batches get their place, and a refused write leaves no trace."""

from __future__ import annotations

import errno
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.limits import OFFSET_DELTA_MAX
from rivven.log.tail import PureTail
from rivven.record import encode, parse_header, validate

try:
    from rivven.log._tail import Tail as NativeTail
except ImportError:
    NativeTail = None

TWINS = [pytest.param(twin, id=name) for name, twin in (("pure", PureTail), ("native", NativeTail)) if twin]


class Room:
    """A file in memory that may be out of room."""

    path = "room"

    def __init__(self):
        self.content = bytearray()
        self.full = False
        self.writes = 0

    def write(self, data, position):
        self.writes += 1
        assert position == len(self.content)
        if self.full:
            self.content += bytes(data[:10])
            raise OSError(errno.ENOSPC, "no room")
        self.content += data

    def truncate(self, length_bytes):
        del self.content[length_bytes:]
        self.synced = None

    def sync(self):
        self.synced = bytes(self.content)


def ends_of(*batches):
    return list(accumulate(map(len, batches)))


def tail_at(twin, base_offset=0, interval_bytes=4096):
    class Indexed(twin):
        @property
        def entries(self):
            keys, positions, newest, offsets = self.columns
            assert keys == offsets
            return list(zip(keys, positions, newest, strict=True))

        def reserve(self, upto):
            self.reserved_bytes = upto + 1000

    tail = Indexed(base_offset, interval_bytes)
    tail.file = Room()
    return tail


def batch_of(count, newest_ms=1000):
    return bytearray(encode([(newest_ms, b"k", b"v" * 50, ()) for _ in range(count)]))


@pytest.mark.parametrize("twin", TWINS)
def test_a_batch_gets_the_next_offset_and_the_epoch_and_stays_valid(twin):
    tail = tail_at(twin, base_offset=2**40)
    for count in (3, 1, 7):
        batch, base = batch_of(count), tail.next_offset
        position = tail.put(batch, count - 1, 1000, 9)
        header = validate(memoryview(tail.file.content), position)
        assert (header.base_offset, header.leader_epoch, header.last_offset_delta) == (base, 9, count - 1)
        assert bytes(batch) == bytes(tail.file.content[position:])
    assert (tail.next_offset, tail.end_bytes, tail.dirty) == (2**40 + 11, len(tail.file.content), True)


@pytest.mark.parametrize("twin", TWINS)
def test_a_refused_write_leaves_everything_as_it_was(twin):
    tail = tail_at(twin)
    tail.put(batch_of(2), 1, 1000, 0)
    before = bytes(tail.file.content), tail.end_bytes, tail.next_offset, tail.unindexed_bytes
    tail.file.full = True
    with pytest.raises(OSError, match="no room"):
        tail.put(batch_of(2), 1, 2000, 0)
    assert before == (bytes(tail.file.content), tail.end_bytes, tail.next_offset, tail.unindexed_bytes)
    assert tail.max_timestamp_ms == 1000
    tail.file.full = False
    assert tail.put(batch_of(1), 0, 2000, 0) == before[1]


@pytest.mark.parametrize("twin", TWINS)
def test_a_run_is_one_write_of_what_would_have_been_many(twin):
    counts, singly, together = (3, 1, 7, 2), tail_at(twin, 40, 100), tail_at(twin, 40, 100)
    batches = [batch_of(count, newest_ms=count * 100) for count in counts]
    run = bytearray().join(batches)
    headers = [parse_header(batch) for batch in batches]
    for batch, header in zip(batches, headers, strict=True):
        singly.put(batch, header.last_offset_delta, header.max_timestamp_ms, 9)
    assert together.put_run(run, ends_of(*batches), 9) == 0
    assert together.file.content == singly.file.content == run
    assert together.file.writes == 1
    assert together.entries == singly.entries
    for fact in ("end_bytes", "next_offset", "max_timestamp_ms", "unindexed_bytes", "dirty"):
        assert getattr(together, fact) == getattr(singly, fact)
    more = [batch_of(1), batch_of(1)]
    assert together.put_run(bytearray().join(more), ends_of(*more), 9) == len(run)


@pytest.mark.parametrize("twin", TWINS)
def test_a_run_that_is_written_later_has_its_place_and_its_offsets_now(twin):
    at_once, later = tail_at(twin, 40, 100), tail_at(twin, 40, 100)
    batches = [batch_of(count, newest_ms=count * 100) for count in (3, 1, 7)]
    runs = bytearray().join(batches), bytearray().join(batches)
    assert at_once.put_run(runs[0], ends_of(*batches), 9) == later.put_run(runs[1], ends_of(*batches), 9, later=True)
    assert runs[0] == runs[1]
    assert not later.file.content
    assert later.entries == at_once.entries
    for fact in ("end_bytes", "next_offset", "max_timestamp_ms", "unindexed_bytes", "dirty"):
        assert getattr(later, fact) == getattr(at_once, fact)


@pytest.mark.parametrize("twin", TWINS)
def test_a_refused_run_leaves_nothing_of_any_of_its_batches(twin):
    tail = tail_at(twin)
    tail.put(batch_of(2), 1, 1000, 0)
    before = bytes(tail.file.content), tail.end_bytes, tail.next_offset, tail.unindexed_bytes, list(tail.entries)
    tail.file.full = True
    with pytest.raises(OSError, match="no room"):
        tail.put_run(batch_of(2) + batch_of(3), ends_of(batch_of(2), batch_of(3)), 0)
    assert before == (bytes(tail.file.content), tail.end_bytes, tail.next_offset, tail.unindexed_bytes, tail.entries)
    assert tail.file.synced == before[0], "no loss of power brings it back"


@pytest.mark.parametrize("twin", TWINS)
def test_a_run_is_nothing_but_its_batches(twin):
    tail = tail_at(twin)
    with pytest.raises((AssertionError, ValueError)):
        tail.put_run(batch_of(2) + b"x", ends_of(batch_of(2)), 0)
    assert not tail.file.content


@pytest.mark.parametrize("twin", TWINS)
def test_a_batch_that_cannot_be_patched_is_refused(twin):
    with pytest.raises((BufferError, TypeError)):
        tail_at(twin).put(bytes(batch_of(1)), 0, 1000, 0)


@pytest.mark.parametrize("twin", TWINS)
def test_an_empty_segment_takes_whatever_comes_and_a_used_one_what_fits(twin):
    tail = tail_at(twin, base_offset=100)
    assert tail.takes(10_000, 100, 5, 1024, -1)
    tail.put(batch_of(1), 0, 1000, 0)
    room = 1024 - tail.end_bytes
    assert tail.takes(room, 101, 5, 1024, -1)
    assert not tail.takes(room + 1, 101, 5, 1024, -1)
    assert tail.takes(1, 100 + OFFSET_DELTA_MAX, 5, 1024, -1)
    assert not tail.takes(1, 101 + OFFSET_DELTA_MAX, 5, 1024, -1)


@pytest.mark.parametrize("twin", TWINS)
def test_a_segment_that_is_too_old_takes_no_more(twin):
    tail = tail_at(twin)
    tail.takes(1, 0, 1000, 1024, 500)
    tail.put(batch_of(1), 0, 1000, 0)
    assert tail.takes(1, 1, 1499, 1024, 500)
    assert not tail.takes(1, 1, 1500, 1024, 500)
    assert tail.takes(1, 1, 10**9, 1024, -1)


@pytest.mark.skipif(NativeTail is None, reason="the native twin is not built")
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-1, 2**40)), max_size=30),
    st.integers(0, 2**62),
    st.integers(1, 500),
)
def test_both_twins_do_the_same(batches, base_offset, interval_bytes):
    tails = [tail_at(twin, base_offset, interval_bytes) for twin in (PureTail, NativeTail)]
    for count, newest_ms in batches:
        for tail in tails:
            tail.put(batch_of(count), count - 1, newest_ms, count)
    seen = [
        (bytes(t.file.content), t.entries, t.end_bytes, t.next_offset, t.max_timestamp_ms, t.unindexed_bytes)
        for t in tails
    ]
    assert seen[0] == seen[1]
    assert parse_header(seen[0][0]).base_offset == base_offset if batches else not seen[0][0]

"""What a partition remembers of its producers: enough to know a retry when it sees one, and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rivven.limits import PRODUCER_BATCHES_KEPT, PRODUCERS_PER_PARTITION_MAX
from rivven.log.producers import ProducedBatch, Producer, Producers, last_sequence_of
from rivven.record import BatchHeader, encode, encode_marker, parse_header


def header(
    offset: int, sequence: int, *, count: int = 1, producer: int = 7, epoch: int = 0, at: int = 5
) -> BatchHeader:
    batch = encode(
        [(at, None, b"v", ())] * count,
        base_offset=offset,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return parse_header(batch)


def marker(offset: int, *, epoch: int) -> BatchHeader:
    batch = encode_marker(commit=True, producer_id=7, producer_epoch=epoch, timestamp_ms=9, base_offset=offset)
    return parse_header(batch)


def test_an_unknown_producer_is_none():
    assert Producers().get(7) is None


def test_the_last_five_batches_are_kept_oldest_first():
    producers = Producers()
    for turn in range(8):
        producers.note(header(turn * 2, turn * 2, count=2))
    row = producers.get(7)
    assert row.batches == tuple(ProducedBatch(n, n + 1, n, n + 1) for n in (6, 8, 10, 12, 14))
    assert len(row.batches) == PRODUCER_BATCHES_KEPT


def test_a_new_epoch_forgets_the_batches_of_the_old_one():
    producers = Producers()
    producers.note(header(0, 0, epoch=0))
    producers.note(header(1, 0, epoch=1))
    assert (producers.get(7).epoch, producers.get(7).batches) == (1, (ProducedBatch(0, 0, 1, 1),))


def test_a_marker_carries_an_epoch_but_no_batch():
    producers = Producers()
    producers.note(header(0, 0, epoch=0))
    producers.note(marker(1, epoch=0))
    assert producers.get(7).batches == (ProducedBatch(0, 0, 0, 0),)
    producers.note(marker(2, epoch=1))
    assert (producers.get(7).epoch, producers.get(7).batches, producers.get(7).last_timestamp_ms) == (1, (), 9)


def test_sequences_wrap_to_zero():
    assert last_sequence_of(header(0, 2**31 - 1, count=1)) == 2**31 - 1
    assert last_sequence_of(header(0, 2**31 - 1, count=3)) == 1


def test_idle_producers_expire():
    producers = Producers()
    for number in (1, 2, 3):
        producers.note(header(0, 0, producer=number, at=10))
    assert producers.expire() == 0, "all have written since nobody ever called"
    producers.note(header(1, 1, producer=2, at=1))
    assert producers.expire(keep={3}) == 1
    assert [row.producer_id for row in producers.rows()] == [3, 2]
    assert producers.expire() == 2
    producers.note(header(2, 0, producer=1, at=10))
    assert producers.expire() == 0, "one that comes back is new"


def test_the_one_that_wrote_longest_ago_makes_room():
    producers = Producers([Producer(number, 0, 5, ()) for number in range(PRODUCERS_PER_PARTITION_MAX)])
    producers.note(header(1, 1, producer=0))
    producers.note(header(2, 0, producer=PRODUCERS_PER_PARTITION_MAX))
    assert len(producers) == PRODUCERS_PER_PARTITION_MAX
    assert (producers.get(0) is not None, producers.get(1)) == (True, None)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=30))
def test_rows_carry_everything_to_the_next_life(writes):
    producers, again, sequences = Producers(), Producers(), dict.fromkeys(range(3), 0)
    for offset, (producer, count) in enumerate(writes):
        note = header(offset * 10, sequences[producer], count=count, producer=producer)
        sequences[producer] += count
        producers.note(note)
        again = Producers(again.rows())
        again.note(note)
    assert again.rows() == producers.rows()

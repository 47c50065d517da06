"""The transactions of a partition: open ones hold readers back, aborted ones are named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rivven.log import Aborted
from rivven.log.transactions import Transactions
from rivven.record import BatchHeader, encode, parse_header


def header(offset: int, producer: int, *, count: int = 1) -> BatchHeader:
    return parse_header(encode([(0, None, b"", ())] * count, base_offset=offset, producer_id=producer))


def test_the_first_batch_opens_and_the_marker_ends_it():
    transactions = Transactions()
    assert transactions.first_open_offset() is None
    transactions.note(header(3, 7), commit=None)
    transactions.note(header(4, 7), commit=None)
    transactions.note(header(5, 8), commit=None)
    assert (transactions.first_open_offset(), transactions.open_transactions()) == (3, {7: 3, 8: 5})
    transactions.note(header(6, 7), commit=True)
    assert (transactions.first_open_offset(), transactions.aborted()) == (5, [])


def test_an_aborted_one_is_named_with_its_offsets():
    transactions = Transactions()
    transactions.note(header(3, 7), commit=None)
    transactions.note(header(9, 7), commit=False)
    assert transactions.aborted() == [Aborted(7, 3, 9)]
    assert transactions.first_open_offset() is None


def test_a_marker_that_ends_nothing_changes_nothing():
    transactions = Transactions()
    transactions.note(header(3, 7), commit=False)
    assert (transactions.aborted(), transactions.open_transactions()) == ([], {})


def test_a_new_start_forgets_what_ended_before_it():
    transactions = Transactions(aborted=[Aborted(1, 0, 4), Aborted(2, 2, 6)])
    transactions.forget_ended(5)
    assert transactions.aborted() == [Aborted(2, 2, 6)]
    transactions.forget_ended(6)
    assert transactions.aborted() == [Aborted(2, 2, 6)]


steps = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, None, True, False])), max_size=40)


@given(steps, st.integers(0, 45), st.integers(0, 45))
def test_a_reader_is_told_every_aborted_transaction_in_its_range(story, one, other):
    first, last = sorted((one, other))
    transactions, opened, aborted = Transactions(), {}, []
    for offset, (producer, commit) in enumerate(story):
        transactions.note(header(offset, producer), commit=commit)
        if commit is None:
            opened.setdefault(producer, offset)
        elif producer in opened:
            begun = opened.pop(producer)
            if not commit:
                aborted.append(Aborted(producer, begun, offset))
    overlapping = [entry for entry in aborted if entry.first_offset <= last and entry.last_offset >= first]
    assert transactions.aborted_between(first, last) == sorted(overlapping, key=lambda entry: entry.first_offset)
    assert transactions.first_open_offset() == min(opened.values(), default=None)

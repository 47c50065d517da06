"""The history of leader epochs: which wrote what, and where each ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.log.epochs import LeaderEpochs
from rivven.model import Offset

HISTORY = [(0, 0), (2, 10), (5, 30)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(-1, (-1, -1)), (0, (0, 10)), (1, (0, 10)), (2, (2, 30)), (4, (2, 30)), (5, (5, 42)), (9, (5, 42))],
)
def test_an_epoch_ends_where_the_next_one_begins(asked, answer):
    assert LeaderEpochs(HISTORY).end_of(asked, Offset(42)) == answer


def test_without_a_history_nothing_is_known():
    epochs = LeaderEpochs()
    assert (epochs.latest, epochs.end_of(3, Offset(7))) == (-1, (-1, -1))


def test_only_a_newer_epoch_is_news():
    epochs = LeaderEpochs()
    assert [epochs.assign(3, 0), epochs.assign(3, 5), epochs.assign(2, 6), epochs.assign(4, 7)] == [
        True,
        False,
        False,
        True,
    ]
    assert epochs.entries() == [(3, 0), (4, 7)]


@pytest.mark.parametrize(
    ("end", "left"), [(42, HISTORY), (31, HISTORY), (30, HISTORY[:2]), (10, HISTORY[:1]), (1, HISTORY[:1]), (0, [])]
)
def test_truncation_forgets_what_begins_at_or_after_the_end(end, left):
    epochs = LeaderEpochs(HISTORY)
    epochs.truncate(end)
    assert epochs.entries() == left


@pytest.mark.parametrize(
    ("start", "left"),
    [(0, HISTORY), (5, [(0, 5), *HISTORY[1:]]), (10, HISTORY[1:]), (29, [(2, 29), (5, 30)]), (40, [(5, 40)])],
)
def test_a_new_start_forgets_the_epochs_that_ended_before_it(start, left):
    epochs = LeaderEpochs(HISTORY)
    epochs.advance_start(start)
    assert epochs.entries() == left


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30).map(sorted), st.integers(-1, 8))
def test_the_end_of_an_epoch_is_that_of_a_linear_search(written, asked):
    epochs = LeaderEpochs()
    for offset, epoch in enumerate(written):
        epochs.assign(epoch, offset)
    at_most = [epoch for epoch in written if epoch <= asked]
    ends = max((offset + 1 for offset, epoch in enumerate(written) if epoch <= asked), default=-1)
    assert epochs.end_of(asked, Offset(len(written))) == (at_most[-1] if at_most else -1, ends)

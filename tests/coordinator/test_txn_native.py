"""Transactions of native producers: named ones, one at a time, timed by their last sign of life."""

from __future__ import annotations

import pytest
from txn_desk import T0, T1, Desk

from rivven.coordinator import AbortTxn, Added, AddPartitions, BeginTxn, Begun, Ended, native_id
from rivven.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
    TransactionNotFound,
)


def test_a_native_transaction_begins_grows_and_commits_with_the_same_epoch():
    desk = Desk()
    assert desk.begin(7) == Begun("native:7")
    assert desk.native_add(7, T0) == Added()
    desk.txns.admit(7, 0, T0, desk.now_ms, label="one")
    assert desk.native_end(7) == Ended(7, 0)
    assert desk.verdicts() == {(7, T0): True}
    assert desk.native_end(7) == Ended(7, 0), "its answer was lost"
    assert desk.begin(7, "two") == Begun("native:7")


def test_beginning_again_is_no_second_transaction():
    desk = Desk()
    desk.begin(7)
    desk.native_add(7, T0)
    assert desk.begin(7) == Begun("native:7")
    assert desk.txns.describe("native:7").partitions == (T0,)
    assert isinstance(desk.begin(7, "two"), ConcurrentTransactions)


def test_two_producers_may_give_the_same_name():
    desk = Desk()
    desk.begin(7)
    desk.begin(8)
    desk.native_add(7, T0)
    desk.native_add(8, T0)
    desk.native_end(7)
    desk.native_end(8, commit=False)
    assert desk.verdicts() == {(7, T0): True, (8, T0): False}


def test_a_request_for_another_name_finds_nothing():
    desk = Desk()
    assert isinstance(desk.native_add(7, T0), TransactionNotFound)
    desk.begin(7)
    assert isinstance(desk.native_add(7, T0, label="two"), TransactionNotFound)
    assert isinstance(desk.native_end(7, label="two"), TransactionNotFound)
    assert isinstance(desk.ask(AddPartitions(native_id(7), 7, 0, (T0,))), TransactionNotFound), "without a name"
    with pytest.raises(TransactionNotFound):
        desk.txns.admit(7, 0, T0, desk.now_ms, label="two")


def test_a_native_transaction_is_begun_before_it_grows():
    desk = Desk()
    desk.begin(7)
    desk.native_end(7, commit=False)
    assert isinstance(desk.native_add(7, T0), InvalidTransactionState)
    assert isinstance(desk.native_end(7), InvalidTransactionState), "it was aborted"


def test_a_later_life_of_the_producer_aborts_what_the_earlier_left_and_fences_it():
    desk = Desk()
    desk.begin(7)
    desk.native_add(7, T0)
    assert isinstance(desk.begin(7, "two", epoch=1), ConcurrentTransactions)
    assert desk.begin(7, "two", epoch=1) == Begun("native:7")
    assert desk.verdicts() == {(7, T0): False}
    assert isinstance(desk.begin(7, "one", epoch=0), ProducerFenced)


def test_the_timeout_counts_from_the_last_sign_of_life():
    desk = Desk()
    desk.begin(7, timeout_ms=1_000)
    desk.native_add(7, T0)
    desk.pass_time(900)
    desk.txns.admit(7, 0, T0, desk.now_ms, label="one")
    desk.pass_time(900)
    desk.native_add(7, T0)
    desk.pass_time(999)
    assert desk.status("native:7") == "Ongoing"
    desk.pass_time(1)
    assert desk.verdicts() == {(7, T0): False}
    assert isinstance(desk.native_end(7), InvalidTransactionState)
    assert desk.begin(7, "two") == Begun("native:7"), "it goes on with the epoch it has"


def test_a_stranger_is_no_sign_of_life():
    desk = Desk()
    desk.begin(7, timeout_ms=1_000, epoch=1)
    desk.native_add(7, T0, epoch=1)
    desk.pass_time(999)
    desk.native_add(7, T0, epoch=0)
    desk.pass_time(1)
    assert desk.verdicts() == {(7, T0): False}


def test_a_restart_gives_native_transactions_their_whole_time_again():
    desk = Desk()
    desk.begin(7, timeout_ms=1_000)
    desk.native_add(7, T0)
    desk.now_ms += 5_000
    desk.crash()
    desk.pass_time(999)
    assert desk.native_end(7) == Ended(7, 0)


def test_a_native_id_is_forgotten_soon_after_its_transaction():
    desk = Desk()
    desk.begin(7)
    desk.native_end(7)
    desk.pass_time(desk.config.native_expiration_ms)
    assert desk.txns.list() == []


def test_an_operator_fences_a_native_producer():
    desk = Desk()
    desk.begin(7)
    desk.native_add(7, T1)
    assert desk.ask(AbortTxn("native:7")) == Ended(7, 1)
    assert isinstance(desk.begin(7, "two"), ProducerFenced)
    assert desk.begin(7, "two", epoch=1) == Begun("native:7")


def test_nobody_begins_with_the_producer_id_of_a_transactional_id():
    desk = Desk()
    desk.init()
    assert isinstance(desk.begin(100), InvalidProducerIdMapping)


def test_a_fresh_id_is_none_that_a_native_producer_brought():
    desk = Desk()
    desk.begin(100)
    assert desk.init().producer_id == 101


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (BeginTxn(7, 0, "one", timeout_ms=0), InvalidTransactionTimeout),
        (BeginTxn(7, 0, ""), InvalidTransactionRequest),
        (BeginTxn(7, 32_767, "one"), InvalidTransactionRequest),
        (BeginTxn(7, -1, "one"), InvalidTransactionRequest),
        (BeginTxn(-1, 0, "one"), InvalidTransactionRequest),
        (BeginTxn(2**63, 0, "one"), InvalidTransactionRequest),
        (BeginTxn(7, 0, "one", owner="query", owner_epoch=0), InvalidTransactionRequest),
    ],
)
def test_a_beginning_that_cannot_be_is_refused(request_, error):
    assert isinstance(Desk().ask(request_), error)

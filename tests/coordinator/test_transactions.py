"""Transactions of Kafka's dialect: epochs, beginnings, ends, timeouts, limits, and crashes at every step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from txn_desk import MINUTE_MS, T0, T1, U0, Desk

from rivven import limits
from rivven.coordinator import (
    EPOCH_LAST,
    AbortTxn,
    Added,
    AddPartitions,
    Ended,
    EndTxn,
    Initialized,
    InitProducer,
    OpenInLog,
    TxnConfig,
    TxnPersist,
    TxnStatus,
    WriteMarkers,
)
from rivven.errors import (
    ConcurrentTransactions,
    DiskFull,
    InvalidProducerIdMapping,
    InvalidTransactionRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    PartitionNotInTransaction,
    ProducerFenced,
    TooManyTransactions,
    TransactionNotFound,
    TransactionTooLarge,
)
from rivven.model import TopicPartition

DAY_MS = 24 * 3600 * 1000


def at(producer_id: int, epoch: int) -> Initialized:
    return Initialized(producer_id, epoch)


# A producer comes


def test_a_new_id_gets_a_fresh_producer_at_epoch_0():
    desk = Desk()
    assert desk.init() == at(100, 0)
    assert desk.init("y") == at(101, 0)


def test_a_new_instance_gets_the_next_epoch_and_the_old_one_is_fenced():
    desk = Desk()
    old, new = desk.init(), desk.init()
    assert new == at(100, 1)
    assert isinstance(desk.add(old, T0), ProducerFenced)
    assert isinstance(desk.end(old), ProducerFenced)
    assert desk.add(new, T0) == Added()


def test_a_new_instance_first_aborts_what_the_old_one_left_open():
    desk = Desk()
    old = desk.init()
    desk.add(old, T0)
    desk.hold(markers=True)
    assert isinstance(desk.init(), ConcurrentTransactions)
    assert desk.status() == "PrepareAbort"
    assert isinstance(desk.init(), ConcurrentTransactions), "its markers are still being written"
    with pytest.raises(ProducerFenced):
        desk.admit(old)
    desk.let_go()
    assert desk.init() == at(100, 2)
    assert desk.verdicts() == {(100, T0): False}
    assert desk.markers[0].producer_epoch == 1, "the marker fences the old one in the partition, too"
    assert isinstance(desk.end(old, commit=False), ProducerFenced)


def test_a_timeout_outside_the_bounds_is_refused():
    desk = Desk()
    assert isinstance(desk.init(timeout_ms=0), InvalidTransactionTimeout)
    assert isinstance(desk.init(timeout_ms=desk.config.timeout_ms_max + 1), InvalidTransactionTimeout)


def test_a_producer_that_names_itself_gets_its_next_epoch():
    desk = Desk()
    first = desk.init()
    assert desk.init(producer_id=first.producer_id, producer_epoch=0) == at(100, 1)
    assert desk.init(producer_id=first.producer_id, producer_epoch=0) == at(100, 1), "asked again: told again"


def test_a_producer_that_names_what_another_has_replaced_is_fenced():
    desk = Desk()
    first = desk.init()
    desk.init()
    assert isinstance(desk.init(producer_id=first.producer_id, producer_epoch=0), ProducerFenced)
    assert isinstance(desk.init(producer_id=999, producer_epoch=0), ProducerFenced)


def test_a_late_wish_for_an_epoch_does_not_abort_the_transaction_begun_since():
    desk = Desk()
    first = desk.init()
    second = desk.init(producer_id=100, producer_epoch=0)
    desk.add(second, T0)
    assert isinstance(desk.init(producer_id=first.producer_id, producer_epoch=0), ProducerFenced)
    assert desk.status() == "Ongoing"


def test_a_wish_for_an_epoch_aborts_ones_own_open_transaction():
    desk = Desk()
    first = desk.init()
    desk.add(first, T0)
    assert isinstance(desk.init(producer_id=100, producer_epoch=0), ConcurrentTransactions)
    assert desk.init(producer_id=100, producer_epoch=0) == at(100, 1)
    assert desk.verdicts() == {(100, T0): False}


def test_epochs_that_have_run_out_are_followed_by_a_new_producer_id():
    desk = Desk()
    desk.init()
    for _ in range(EPOCH_LAST):
        last = desk.init()
    assert last == at(100, EPOCH_LAST)
    desk.add(last, T0)
    assert isinstance(desk.init(), ConcurrentTransactions)
    assert desk.markers[-1].producer_epoch == EPOCH_LAST + 1, "one epoch is left to fence it"
    assert desk.init() == at(101, 0)
    assert isinstance(desk.end(last), InvalidProducerIdMapping)


def test_the_ids_of_native_producers_are_theirs():
    assert isinstance(Desk().init("native:7"), InvalidTransactionRequest)


@pytest.mark.parametrize("name", ["", "x" * (limits.TRANSACTIONAL_ID_BYTES_MAX + 1)])
def test_an_id_has_a_length(name):
    assert isinstance(Desk().init(name), InvalidTransactionRequest)


# A transaction grows


def test_the_first_partition_begins_a_transaction_and_known_ones_cost_no_write():
    desk = Desk()
    producer = desk.init()
    assert desk.add(producer, T0, T1) == Added()
    assert desk.status() == "Ongoing"
    written = len(desk.log)
    assert desk.add(producer, T1) == Added()
    assert len(desk.log) == written
    assert desk.add(producer, U0) == Added()
    assert desk.txns.describe("x").partitions == (T0, T1, U0)


def test_verifying_adds_nothing_and_names_what_is_missing():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    assert desk.add(producer, T0, T1, verify_only=True) == Added(frozenset({T1}))
    assert desk.txns.describe("x").partitions == (T0,)


def test_only_the_one_who_has_the_id_adds_to_it():
    desk = Desk()
    producer = desk.init()
    assert isinstance(desk.add(producer, T0, name="unknown"), InvalidProducerIdMapping)
    assert isinstance(desk.add(at(999, 0), T0), InvalidProducerIdMapping)
    assert isinstance(desk.add(at(100, 1), T0), ProducerFenced)


def test_writing_is_admitted_to_the_partitions_and_groups_of_the_open_transaction():
    desk = Desk()
    producer = desk.init()
    with pytest.raises(InvalidTransactionState):
        desk.admit(producer)
    desk.add(producer, T0)
    desk.add_offsets(producer, "g")
    desk.admit(producer)
    desk.admit(producer, "g")
    with pytest.raises(PartitionNotInTransaction):
        desk.admit(producer, T1)
    with pytest.raises(PartitionNotInTransaction):
        desk.admit(producer, "other")
    with pytest.raises(InvalidProducerIdMapping):
        desk.admit(at(5, 0))


@pytest.mark.parametrize("writes", [True, False])
def test_nothing_is_admitted_once_an_end_is_decided(writes):
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    desk.hold(writes=writes, markers=True)
    desk.end(producer, version=1)
    with pytest.raises(InvalidTransactionState):
        desk.admit(producer)


def test_a_request_waits_while_a_change_is_being_written():
    desk = Desk()
    producer = desk.init()
    desk.hold(writes=True)
    first, second = (desk.send(AddPartitions("x", 100, 0, (one,))) for one in (T0, T1))
    assert desk.answers.get(second) is None
    desk.let_go()
    assert desk.answers[first] == desk.answers[second] == Added()
    assert desk.txns.describe("x").partitions == (T0, T1)
    assert producer == at(100, 0)


def test_the_line_before_an_id_has_an_end(monkeypatch):
    monkeypatch.setattr(limits, "TRANSACTION_WAITING_MAX", 1)
    desk = Desk()
    desk.init()
    desk.hold(writes=True)
    desk.send(AddPartitions("x", 100, 0, (T0,)))
    desk.send(AddPartitions("x", 100, 0, (T0,)))
    assert isinstance(desk.ask(AddPartitions("x", 100, 0, (T0,))), TooManyTransactions)


# It ends


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_writes_its_verdict_then_its_markers_then_that_it_is_complete(commit):
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0, U0)
    desk.add_offsets(producer, "g")
    desk.hold(writes=True, markers=True)
    reply_id = desk.send(EndTxn("x", 100, 0, commit))
    assert isinstance(desk.held[0], TxnPersist)
    desk.do_next()
    assert desk.status() == ("PrepareCommit" if commit else "PrepareAbort")
    assert desk.held == [WriteMarkers(desk.held[0].token, "x", 100, 1, commit, (T0, U0), ("g",))]
    assert reply_id not in desk.answers
    desk.do_next()
    assert desk.answers[reply_id] == Ended(100, 1), "the producer reads what it wrote"
    desk.do_next()
    assert desk.status() == ("CompleteCommit" if commit else "CompleteAbort")
    assert desk.held == []


def test_who_does_not_want_to_wait_is_answered_when_the_verdict_is_durable():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    desk.hold(markers=True)
    assert desk.end(producer, wait=False) == Ended(100, 1)
    assert isinstance(desk.add(at(100, 1), T0), ConcurrentTransactions), "markers are being written"


def test_version_1_keeps_its_epoch():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0, version=1)
    assert desk.end(producer, version=1) == Ended(100, 0)
    assert desk.markers[-1].producer_epoch == 0
    assert desk.end(producer, version=1) == Ended(100, 0), "the same end again"
    assert isinstance(desk.end(producer, commit=False, version=1), InvalidTransactionState)
    assert len(desk.markers) == 1


def test_version_1_ends_only_what_it_began():
    desk = Desk()
    producer = desk.init()
    assert isinstance(desk.end(producer, version=1), InvalidTransactionState)
    assert isinstance(desk.end(producer, commit=False, version=1), InvalidTransactionState)


def test_an_end_of_version_2_that_is_repeated_is_answered_with_the_same_epoch():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    assert desk.end(producer) == desk.end(producer) == Ended(100, 1)
    assert isinstance(desk.end(producer, commit=False), InvalidTransactionState)
    assert len(desk.markers) == 1


def test_an_end_that_is_repeated_while_markers_are_written_is_told_to_try_again():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    desk.hold(markers=True)
    desk.end(producer)
    assert isinstance(desk.end(producer), ConcurrentTransactions)
    assert isinstance(desk.end(producer, commit=False), InvalidTransactionState)


def test_an_end_of_version_2_that_comes_after_the_next_beginning_is_fenced():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    desk.end(producer)
    desk.add(at(100, 1), T1)
    assert isinstance(desk.end(producer), ProducerFenced)
    assert isinstance(desk.end(producer, commit=False), ProducerFenced)
    assert desk.status() == "Ongoing"


def test_version_2_may_abort_nothing_and_may_not_commit_it():
    desk = Desk()
    producer = desk.init()
    assert isinstance(desk.end(producer), InvalidTransactionState)
    assert desk.end(producer, commit=False) == Ended(100, 1)
    assert desk.end(at(100, 1), commit=False) == Ended(100, 2)
    assert desk.end(at(100, 1), commit=False) == Ended(100, 2), "repeated"
    assert desk.markers == []


def test_an_end_with_the_last_epoch_goes_on_with_a_new_producer_id():
    desk = Desk()
    producer = desk.init()
    for _ in range(EPOCH_LAST):
        producer = desk.init()
    desk.add(producer, T0)
    desk.hold(markers=True)
    desk.end(producer)
    desk.crash()
    desk.let_go()
    assert desk.end(producer) == Ended(101, 0), "repeated after the crash"
    assert (desk.markers[-1].producer_id, desk.markers[-1].producer_epoch) == (100, EPOCH_LAST + 1)
    assert desk.add(at(101, 0), T0) == Added()
    assert isinstance(desk.end(producer), InvalidProducerIdMapping)


def test_markers_that_cannot_be_written_are_tried_again_and_nobody_waits_for_them():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    desk.hold(markers=True)
    reply_id = desk.send(EndTxn("x", 100, 0, commit=True))
    desk.fail_next()
    assert desk.answers[reply_id] == Ended(100, 1), "the verdict is final"
    assert isinstance(desk.add(at(100, 1), T0), ConcurrentTransactions)
    desk.pass_time(desk.config.retry_ms)
    desk.fail_next()
    desk.hold()
    desk.pass_time(desk.config.retry_ms)
    assert desk.status() == "CompleteCommit"


@pytest.mark.parametrize("request_", [InitProducer("x", MINUTE_MS), EndTxn("x", 100, 0, commit=True)])
def test_what_cannot_be_written_has_not_happened(request_):
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    before = desk.txns.describe("x")
    desk.hold(writes=True)
    reply_id = desk.send(request_)
    desk.fail_next()
    assert isinstance(desk.answers[reply_id], DiskFull)
    assert desk.txns.describe("x") == before
    desk.hold()
    desk.admit(producer)
    assert desk.end(producer) == Ended(100, 1)


def test_an_id_whose_first_record_cannot_be_written_does_not_exist():
    desk = Desk()
    desk.hold(writes=True)
    desk.init()
    waiting = desk.send(AddPartitions("x", 100, 0, (T0,)))
    desk.fail_next()
    assert isinstance(desk.answers[waiting], InvalidProducerIdMapping)
    assert desk.txns.list() == []


# Time


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(version):
    desk = Desk()
    producer = desk.init(timeout_ms=1_000)
    desk.add(producer, T0, version=version)
    desk.pass_time(999)
    assert desk.status() == "Ongoing"
    desk.pass_time(1)
    assert desk.status() == "CompleteAbort"
    assert desk.verdicts() == {(100, T0): False}
    with pytest.raises(ProducerFenced):
        desk.admit(producer)
    assert isinstance(desk.add(producer, T0), ProducerFenced)
    refused = InvalidTransactionState if version == 2 else ProducerFenced
    assert isinstance(desk.end(producer, version=version), refused), "it cannot commit what was aborted"


def test_a_producer_whose_transaction_timed_out_goes_on_when_it_aborts():
    desk = Desk()
    producer = desk.init(timeout_ms=1_000)
    desk.add(producer, T0)
    desk.pass_time(1_000)
    assert desk.end(producer, commit=False) == Ended(100, 1)
    assert desk.init(producer_id=100, producer_epoch=0, timeout_ms=1_000) == at(100, 1)
    assert desk.add(at(100, 1), T0) == Added()


def test_a_timeout_waits_for_the_write_under_way():
    desk = Desk()
    producer = desk.init(timeout_ms=1_000)
    desk.add(producer, T0)
    desk.hold(writes=True)
    desk.send(EndTxn("x", 100, 0, commit=True))
    desk.now_ms += 2_000
    desk.perform(desk.txns.tick(desk.now_ms))
    desk.let_go()
    desk.pass_time(1_000)
    assert desk.status() == "CompleteCommit"
    assert desk.verdicts() == {(100, T0): True}


def test_a_timeout_that_cannot_be_written_is_tried_again():
    desk = Desk()
    producer = desk.init(timeout_ms=1_000)
    desk.add(producer, T0)
    desk.hold(writes=True)
    desk.pass_time(1_000)
    desk.fail_next()
    desk.hold()
    desk.pass_time(desk.config.retry_ms)
    assert desk.status() == "CompleteAbort"


def test_an_id_that_nobody_uses_is_forgotten():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    desk.end(producer)
    desk.pass_time(7 * DAY_MS - 1)
    assert len(desk.txns.list()) == 1
    desk.hold(writes=True)
    desk.pass_time(1)
    desk.fail_next()
    assert len(desk.txns.list()) == 1
    desk.hold()
    desk.pass_time(desk.config.expiration_check_ms)
    assert desk.txns.list() == []
    assert desk.log[-1][1] is None
    desk.crash()
    assert desk.txns.list() == []


# Crashes


def commit_some(desk: Desk) -> None:
    producer = desk.init(timeout_ms=1_000)
    desk.add(producer, T0, U0)
    desk.add_offsets(producer, "g")
    desk.send(EndTxn("x", 100, 0, commit=True))


@pytest.mark.parametrize("steps", range(6))
def test_a_transaction_finishes_by_itself_whatever_step_the_crash_came_after(steps):
    desk = Desk()
    desk.hold(writes=True, markers=True)
    desk.send(InitProducer("x", 1_000))
    desk.send(AddPartitions("x", 100, 0, (T0, U0)))
    desk.send(EndTxn("x", 100, 0, commit=True))
    for _ in range(steps):
        desk.do_next()
    desk.hold()
    desk.crash()
    desk.pass_time(1_000)
    if steps >= 3:
        assert desk.verdicts() == {(100, T0): True, (100, U0): True}
    elif steps == 2:
        assert desk.verdicts() == {(100, T0): False, (100, U0): False}
    assert desk.txns.open_count() == 0


def test_markers_are_written_again_after_a_crash_before_they_were_known_to_be_written():
    desk = Desk()
    desk.hold(writes=False, markers=False)
    desk.init()
    desk.add(at(100, 0), T0)
    desk.hold(markers=True)
    desk.end(at(100, 0))
    desk.markers.append(desk.held[0])  # written, and then the node went down
    desk.hold()
    desk.crash()
    first, second = desk.markers
    assert replace(first, token=0) == replace(second, token=0)
    assert desk.end(at(100, 0)) == Ended(100, 1)


def test_replay_gives_the_same_transactions():
    desk = Desk()
    commit_some(desk)
    desk.init("y")
    desk.add(at(101, 0), T1, name="y")
    before = desk.txns.list()
    desk.crash()
    assert desk.txns.list() == before
    assert desk.txns.open_count() == 1


def test_records_of_unknown_kinds_are_passed_over():
    desk = Desk()
    desk.txns.replay(None, b"")
    desk.txns.replay(b"\x00\x63rest", b"")
    assert desk.txns.list() == []


# Operators


def test_an_operator_aborts_a_transaction_and_fences_its_producer():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    assert desk.ask(AbortTxn("x")) == Ended(100, 1)
    assert desk.verdicts() == {(100, T0): False}
    assert isinstance(desk.end(producer, commit=False), ProducerFenced)
    assert isinstance(desk.ask(AbortTxn("x")), InvalidTransactionState)
    assert isinstance(desk.ask(AbortTxn("y")), TransactionNotFound)


def test_describing_tells_where_a_transaction_stands():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    found = desk.txns.describe("x")
    assert (found.status, found.started_ms, found.timeout_ms) == (TxnStatus.ONGOING, desk.now_ms, MINUTE_MS)
    with pytest.raises(TransactionNotFound):
        desk.txns.describe("y")


def test_a_transaction_in_a_log_that_nobody_will_end_is_hanging():
    desk = Desk()
    producer = desk.init()
    desk.add(producer, T0)
    fine, elsewhere, stranger = OpenInLog(T0, 100), OpenInLog(T1, 100), OpenInLog(T0, 7)
    assert desk.txns.hanging([fine, elsewhere, stranger]) == [elsewhere, stranger]
    desk.hold(markers=True)
    desk.end(producer)
    assert desk.txns.hanging([fine]) == [], "its markers are under way"
    desk.let_go()
    assert desk.txns.hanging([fine]) == [fine]


# Limits


def test_a_transaction_writes_so_many_bytes_and_no_more():
    desk = Desk(TxnConfig(pending_bytes_max=100))
    producer = desk.init()
    desk.add(producer, T0)
    desk.admit(producer, batch_bytes=60)
    with pytest.raises(TransactionTooLarge):
        desk.admit(producer, batch_bytes=41)
    desk.admit(producer, batch_bytes=40)
    assert desk.end(producer, commit=False) == Ended(100, 1)
    desk.add(at(100, 1), T0)
    desk.admit(at(100, 1), batch_bytes=100)


def test_a_node_has_so_many_open_transactions():
    desk = Desk(TxnConfig(open_max=1))
    one, two = desk.init("one"), desk.init("two")
    desk.add(one, T0, name="one")
    assert isinstance(desk.add(two, T0, name="two"), TooManyTransactions)
    assert desk.add(one, T1, name="one") == Added()
    desk.end(one, name="one")
    assert desk.add(two, T0, name="two") == Added()


def test_a_node_keeps_so_many_ids(monkeypatch):
    monkeypatch.setattr(limits, "TRANSACTIONAL_IDS_MAX", 1)
    desk = Desk()
    desk.init("one")
    assert isinstance(desk.init("two"), TooManyTransactions)


def test_a_transaction_has_so_many_partitions_and_groups(monkeypatch):
    monkeypatch.setattr(limits, "TRANSACTION_PARTITIONS_MAX", 2)
    monkeypatch.setattr(limits, "TRANSACTION_GROUPS_MAX", 1)
    desk = Desk()
    producer = desk.init()
    assert isinstance(desk.add(producer, T0, T1, U0), TransactionTooLarge)
    assert desk.add(producer, T0, T1) == Added()
    assert desk.add_offsets(producer, "g") == Added()
    assert isinstance(desk.add_offsets(producer, "h"), TransactionTooLarge)


def test_a_partition_that_cannot_be_is_refused():
    desk = Desk()
    producer = desk.init()
    for wrong in (TopicPartition("", 0), TopicPartition("t" * 300, 0), TopicPartition("t", -1)):
        assert isinstance(desk.add(producer, wrong), InvalidTransactionRequest)

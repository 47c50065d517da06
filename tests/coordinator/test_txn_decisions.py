"""Owners: one word for many transactions, said once, and kept through crashes at every step."""

from __future__ import annotations

import pytest
from txn_desk import T0, T1, U0, Desk

from rivven import limits
from rivven.coordinator import (
    NO_SEQUENCE,
    AbortTxn,
    BeginTxn,
    Begun,
    Decide,
    Decided,
    DescribedOwner,
    Ended,
    ForgetOwner,
    Forgotten,
    Registered,
    RegisterOwner,
    TxnPersist,
)
from rivven.errors import (
    AlreadyDecided,
    ConcurrentTransactions,
    DecisionRefused,
    DiskFull,
    InvalidTransactionRequest,
    InvalidTransactionState,
    OwnerFenced,
    OwnerNotFound,
    TooManyTransactions,
)


def ready(**more) -> Desk:
    """Producers 1 to 3 have written under sequence 0."""
    desk = Desk(**more)
    desk.register()
    desk.attempt(1, 0, T0)
    desk.attempt(2, 0, T0, U0)
    desk.attempt(3, 0, T1)
    return desk


def test_what_is_named_commits_and_everything_else_aborts():
    desk = ready()
    assert desk.decide(0, 1, 2) == Decided(0, ((1, 0), (2, 0)))
    assert desk.verdicts() == {(1, T0): True, (2, T0): True, (2, U0): True, (3, T1): False}
    assert desk.txns.list() == [], "the owner remembers; nobody else needs to"
    assert desk.txns.owners() == [DescribedOwner("query", 0, 0, 0)]


def test_nothing_may_commit():
    desk = ready()
    assert desk.decide(0) == Decided(0, ())
    assert set(desk.verdicts().values()) == {False}


def test_a_repeat_answers_what_was_decided_and_changes_nothing():
    desk = ready()
    desk.decide(0, 1)
    markers, log = list(desk.markers), list(desk.log)
    assert desk.decide(0, 1) == Decided(0, ((1, 0),), repeated=True)
    assert desk.decide(0, 2, 3) == Decided(0, ((1, 0),), repeated=True), "whatever it names"
    assert (desk.markers, desk.log) == (markers, log)


def test_whoever_joins_takes_part_in_the_present_registration():
    desk = Desk()
    assert desk.ask(RegisterOwner("query", join=True)) == Registered(0, NO_SEQUENCE), "the first makes one"
    desk.attempt(1, 4, T0)
    desk.decide(4, 1)
    desk.attempt(2, 5, T0)
    log = list(desk.log)
    assert desk.ask(RegisterOwner("query", join=True)) == Registered(0, 4)
    assert desk.log == log, "nothing is written"
    assert desk.decide(5, 2) == Decided(5, ((2, 0),)), "and nothing was aborted"


def test_older_sequences_answer_what_was_decided_as_far_as_is_remembered():
    desk = ready()
    desk.decide(0, 1)
    for sequence in range(2, 2 + limits.OWNER_DECISIONS_KEPT - 1):
        desk.decide(sequence)
    assert desk.decide(0) == Decided(0, ((1, 0),), repeated=True)
    assert desk.decide(1) == Decided(1, (), repeated=True), "it was passed over"
    desk.decide(100)
    assert desk.decide(0) == Decided(0, None, repeated=True)
    assert desk.decide(1) == Decided(1, None, repeated=True)
    assert desk.decide(2) == Decided(2, (), repeated=True)


def test_what_is_remembered_of_earlier_decisions_is_bounded(monkeypatch):
    monkeypatch.setattr(limits, "OWNER_DECIDED_KEPT", 1)
    desk = ready()
    desk.decide(0, 1, 2)
    desk.decide(1)
    assert desk.decide(0) == Decided(0, None, repeated=True)


def test_deciding_a_sequence_aborts_what_was_left_of_earlier_ones_and_leaves_later_ones_alone():
    desk = ready()
    desk.attempt(4, 5, T0)
    assert desk.decide(3) == Decided(3, ())
    assert desk.verdicts() == {(1, T0): False, (2, T0): False, (2, U0): False, (3, T1): False}
    assert desk.status("native:4") == "Ongoing"
    assert desk.decide(5, 4) == Decided(5, ((4, 0),))


def test_nothing_begins_under_a_sequence_that_was_decided():
    desk = ready()
    desk.decide(0, 1)
    assert isinstance(desk.begin(9, owner="query", owner_epoch=0, sequence=0), AlreadyDecided)
    assert desk.begin(9, owner="query", owner_epoch=0, sequence=1) == Begun("native:9")


def test_a_decision_that_names_what_cannot_commit_changes_nothing():
    desk = ready()
    desk.attempt(4, 1, T0)
    desk.begin(5)
    before = desk.txns.list()
    for wrong in ((1, 4), (1, 5), (1, 99)):
        assert isinstance(desk.decide(0, *wrong), DecisionRefused)
    assert isinstance(desk.ask(Decide("query", 0, 0, ((1, 1),))), DecisionRefused), "another epoch"
    assert desk.txns.list() == before
    assert desk.markers == []
    assert desk.decide(0, 1, 2, 3, 1) == Decided(0, ((1, 0), (2, 0), (3, 0)))


def test_a_transaction_that_was_aborted_meanwhile_refuses_the_decision():
    desk = ready()
    desk.native_end(1, commit=False)
    assert isinstance(desk.decide(0, 1, 2), DecisionRefused)
    desk.hold(markers=True)
    desk.native_end(2, commit=False)
    assert isinstance(desk.decide(0, 2), DecisionRefused)


def test_only_the_owner_commits():
    desk = ready()
    assert isinstance(desk.native_end(1), InvalidTransactionState)
    assert desk.native_end(1, commit=False) == desk.native_end(1, commit=False) == Ended(1, 0)


def test_a_new_registration_fences_the_earlier_and_aborts_what_it_left():
    desk = ready()
    assert desk.register() == Registered(1, NO_SEQUENCE)
    assert set(desk.verdicts().values()) == {False}
    assert isinstance(desk.decide(0, 1), OwnerFenced)
    assert isinstance(desk.begin(9, owner="query", owner_epoch=0, sequence=0), OwnerFenced)
    desk.attempt(4, 0, T0, owner_epoch=1)
    assert desk.decide(0, 4, owner_epoch=1) == Decided(0, ((4, 0),))
    assert desk.register() == Registered(2, 0), "told how far its predecessor came"


def test_an_owner_is_registered_before_anything_else():
    desk = Desk()
    assert isinstance(desk.decide(0), OwnerNotFound)
    assert isinstance(desk.begin(1, owner="query", owner_epoch=0, sequence=0), OwnerNotFound)
    desk.register()
    assert isinstance(desk.decide(0, owner_epoch=1), OwnerNotFound)


def test_a_decision_is_answered_when_all_its_markers_are_written():
    desk = ready()
    desk.hold(markers=True)
    reply_id = desk.send(Decide("query", 0, 0, ((1, 0),)))
    again = desk.send(Decide("query", 0, 0, ((2, 0),)))
    for _ in range(3):
        assert reply_id not in desk.answers
        desk.do_next()
    assert desk.answers[reply_id] == Decided(0, ((1, 0),))
    assert desk.answers[again] == Decided(0, ((1, 0),), repeated=True)


def test_a_decision_is_not_kept_waiting_by_markers_that_fail():
    desk = ready()
    desk.hold(markers=True)
    reply_id = desk.send(Decide("query", 0, 0, ((1, 0),)))
    desk.fail_next()
    desk.do_next()
    desk.fail_next()
    assert desk.answers[reply_id] == Decided(0, ((1, 0),))
    assert desk.register() is None, "the next one waits for what is still to be written"
    desk.hold()
    desk.pass_time(desk.config.retry_ms)
    assert desk.verdicts() == {(1, T0): True, (2, T0): False, (2, U0): False, (3, T1): False}
    assert desk.answers[desk.replies] == Registered(1, 0)


def test_a_decision_that_cannot_be_written_was_not_made():
    desk = ready()
    desk.hold(writes=True)
    reply_id = desk.send(Decide("query", 0, 0, ((1, 0),)))
    desk.fail_next()
    desk.hold()
    assert isinstance(desk.answers[reply_id], DiskFull)
    assert desk.status("native:1") == "Ongoing"
    assert desk.decide(0, 2) == Decided(0, ((2, 0),))


def test_while_a_decision_is_written_nothing_else_can_end_what_it_commits():
    desk = ready()
    desk.hold(writes=True)
    decision = desk.send(Decide("query", 0, 0, ((1, 0),)))
    abort = desk.send(AbortTxn("native:1"))
    late = desk.send(BeginTxn(9, 0, "late", owner="query", owner_epoch=0, sequence=0))
    fence = desk.send(RegisterOwner("query"))
    with pytest.raises(InvalidTransactionState):
        desk.txns.admit(1, 0, T0, desk.now_ms, label="one")
    desk.now_ms += 10 * 60_000
    desk.perform(desk.txns.tick(desk.now_ms))
    desk.let_go()
    assert desk.answers[decision] == Decided(0, ((1, 0),))
    assert desk.verdicts()[1, T0] is True
    assert isinstance(desk.answers[abort], ConcurrentTransactions)
    assert isinstance(desk.answers[late], AlreadyDecided)
    assert desk.answers[fence] == Registered(1, 0)


def test_a_decision_does_not_overtake_a_write_of_what_it_commits():
    desk = ready()
    desk.hold(writes=True)
    desk.native_add(1, U0)
    assert isinstance(desk.decide(0, 1), ConcurrentTransactions)
    desk.let_go()
    assert desk.decide(0, 1) == Decided(0, ((1, 0),))


def test_a_transaction_that_begins_while_its_sequence_is_decided_aborts():
    desk = ready()
    desk.hold(writes=True)
    late = desk.send(BeginTxn(9, 0, "one", owner="query", owner_epoch=0, sequence=0))
    decision = desk.send(Decide("query", 0, 0, ((1, 0),)))
    desk.do(desk.held.pop(1))  # the decision is durable first
    assert desk.answers.get(late) is None
    desk.let_go()
    assert desk.answers[late] == Begun("native:9")
    assert desk.answers[decision] == Decided(0, ((1, 0),))
    assert desk.txns.list() == []


def test_a_transaction_that_cannot_begin_while_its_sequence_is_decided_holds_nobody_up():
    desk = ready()
    desk.hold(writes=True)
    late = desk.send(BeginTxn(9, 0, "one", owner="query", owner_epoch=0, sequence=0))
    decision = desk.send(Decide("query", 0, 0, ()))
    desk.do(desk.held.pop(1))
    desk.fail_next()
    desk.let_go()
    assert isinstance(desk.answers[late], DiskFull)
    assert desk.answers[decision] == Decided(0, ())


def test_a_verdict_that_cannot_be_written_into_a_transaction_is_tried_again():
    desk = ready()
    desk.hold(writes=True)
    decision = desk.send(Decide("query", 0, 0, ((1, 0), (2, 0))))
    desk.do_next()
    desk.fail_next()  # of producer 1
    assert isinstance(desk.native_add(1, U0), ConcurrentTransactions)
    waiting = desk.send(RegisterOwner("query"))
    desk.let_go()
    assert desk.answers[decision] == Decided(0, ((1, 0), (2, 0))), "it holds all the same"
    assert waiting not in desk.answers, "its record must not be covered before all have taken it over"
    desk.pass_time(desk.config.retry_ms)
    assert desk.answers[waiting] == Registered(1, 0)
    assert desk.verdicts() == {(1, T0): True, (2, T0): True, (2, U0): True, (3, T1): False}


def test_a_verdict_follows_at_once_when_the_write_before_it_fails():
    desk = ready()
    desk.hold(writes=True)
    desk.native_add(3, U0)
    desk.decide(0, 1)
    desk.do(desk.held.pop(1))  # the decision is durable first
    desk.fail_next()  # what producer 3 wanted to add
    desk.let_go()
    assert desk.txns.list() == []
    assert desk.verdicts() == {(1, T0): True, (2, T0): False, (2, U0): False, (3, T1): False}


@pytest.mark.parametrize("steps", range(12))
def test_a_decision_holds_whatever_step_the_crash_came_after(steps):
    desk = ready()
    desk.hold(writes=True, markers=True)
    desk.send(Decide("query", 0, 0, ((1, 0), (2, 0))))
    for _ in range(min(steps, 10)):
        if desk.held:
            desk.do_next()
    desk.hold()
    desk.crash()
    if steps == 0:
        assert desk.decide(0, 3) == Decided(0, ((3, 0),)), "it was not made"
        return
    assert desk.decide(0, 3) == Decided(0, ((1, 0), (2, 0)), repeated=True)
    assert desk.verdicts() == {(1, T0): True, (2, T0): True, (2, U0): True, (3, T1): False}
    assert desk.txns.list() == []


@pytest.mark.parametrize("steps", range(8))
def test_a_registration_aborts_what_dangles_whatever_step_the_crash_came_after(steps):
    desk = ready()
    desk.hold(writes=True, markers=True)
    desk.send(RegisterOwner("query"))
    for _ in range(steps):
        if desk.held:
            desk.do_next()
    desk.hold()
    desk.crash()
    if steps == 0:
        assert desk.register() == Registered(1, NO_SEQUENCE)
    assert set(desk.verdicts().values()) == {False}
    assert desk.txns.list() == []


def test_an_attempt_that_is_never_decided_times_out():
    desk = ready()
    desk.pass_time(desk.config.timeout_ms_default)
    assert set(desk.verdicts().values()) == {False}
    assert isinstance(desk.decide(0, 1), DecisionRefused)
    assert desk.decide(0) == Decided(0, ())


@pytest.mark.parametrize("crash", [False, True])
def test_an_attempt_that_has_aborted_does_not_come_to_life_again(crash):
    """A beginning that was sent twice must not leave the owner to commit the second half of what was written."""
    desk = ready()
    desk.pass_time(desk.config.timeout_ms_default)
    if crash:
        desk.crash()
    again = {"owner": "query", "owner_epoch": 0, "sequence": 0}
    assert isinstance(desk.begin(1, **again), InvalidTransactionState)
    assert isinstance(desk.begin(1, "two", **again), InvalidTransactionState)
    assert isinstance(desk.native_add(1, T0), InvalidTransactionState)
    assert desk.begin(1, epoch=1, **again) == Begun("native:1"), "in its next life"
    assert desk.begin(2, owner="query", owner_epoch=0, sequence=1) == Begun("native:2")
    desk.decide(0)
    desk.pass_time(0)
    assert [one.transactional_id for one in desk.txns.list()] == ["native:2"], "now the owner remembers"
    assert isinstance(desk.begin(3, **again), AlreadyDecided)


def test_what_an_owner_need_not_remember_any_more_is_forgotten_when_it_registers_again():
    desk = ready()
    desk.pass_time(desk.config.timeout_ms_default)
    assert len(desk.txns.list()) == 3
    desk.register()
    desk.pass_time(0)
    assert desk.txns.list() == []


def test_an_operator_aborts_what_an_owner_has_open():
    desk = ready()
    assert desk.ask(AbortTxn("native:1")) == Ended(1, 0)
    assert isinstance(desk.decide(0, 1), DecisionRefused)


def test_an_owner_is_forgotten_on_request_once_nothing_of_it_is_open():
    desk = ready()
    assert isinstance(desk.ask(ForgetOwner("query")), ConcurrentTransactions)
    desk.decide(0)
    assert desk.ask(ForgetOwner("query")) == Forgotten("query")
    assert isinstance(desk.ask(ForgetOwner("query")), OwnerNotFound)
    desk.crash()
    assert desk.txns.owners() == []


def test_an_owner_is_forgotten_by_its_present_registration_alone():
    desk = ready()
    desk.register()
    assert isinstance(desk.ask(ForgetOwner("query", 0)), OwnerFenced)
    assert isinstance(desk.ask(ForgetOwner("query", 2)), OwnerNotFound), "nobody has that epoch yet"
    assert desk.ask(ForgetOwner("query", 1)) == Forgotten("query")


def test_what_comes_late_from_an_owner_that_was_forgotten_commits_nothing():
    desk = ready()
    desk.decide(0, 1, 2)
    desk.ask(ForgetOwner("query", 0))
    assert isinstance(desk.decide(0, 1, 2), OwnerNotFound)
    assert isinstance(desk.begin(3, owner="query", owner_epoch=0, sequence=0), OwnerNotFound)
    markers = list(desk.markers)
    desk.register()
    desk.attempt(4, 0, T0)
    assert isinstance(desk.decide(0, 1, 2), DecisionRefused), "those it names are not open"
    desk.pass_time(desk.config.timeout_ms_default)
    assert desk.markers[len(markers) :] != []
    assert desk.verdicts()[(4, T0)] is False, "nobody decides for it"


def test_an_owner_that_decides_nothing_for_a_year_is_forgotten():
    desk = ready()
    desk.decide(0, 1)
    desk.pass_time(desk.config.owner_expiration_ms - 1)
    assert len(desk.txns.owners()) == 1
    desk.hold(writes=True)
    desk.pass_time(1)
    desk.fail_next()
    desk.hold()
    assert len(desk.txns.owners()) == 1
    desk.pass_time(desk.config.expiration_check_ms)
    assert desk.txns.owners() == []


def test_an_owner_whose_first_record_cannot_be_written_does_not_exist():
    desk = Desk()
    desk.hold(writes=True)
    desk.register()
    assert [type(one) for one in desk.held] == [TxnPersist]
    desk.fail_next()
    assert desk.txns.owners() == []


def test_owners_and_what_they_have_open_are_bounded(monkeypatch):
    monkeypatch.setattr(limits, "TRANSACTION_OWNERS_MAX", 1)
    monkeypatch.setattr(limits, "OWNER_TRANSACTIONS_MAX", 3)
    desk = ready()
    assert isinstance(desk.register("other"), TooManyTransactions)
    assert isinstance(desk.begin(9, owner="query", owner_epoch=0, sequence=0), TooManyTransactions)
    assert desk.begin(1, owner="query", owner_epoch=0, sequence=0) == Begun("native:1"), "it is one of them"
    assert isinstance(desk.decide(0, 1, 2, 3, 4), InvalidTransactionRequest)


def test_a_sequence_is_not_negative():
    desk = ready()
    assert isinstance(desk.decide(-1), InvalidTransactionRequest)

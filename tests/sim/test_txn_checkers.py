"""Each checker of transactions, decisions and groups finds its anomaly in a history made for it, and none in a good
one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rivven.model import TopicPartition
from rivven.sim import Chronicle, examine
from rivven.sim.chronicle import Decision, Fate, Final, Look, Loop, Poll, Seat, Send, Txn, Writer

HERE = TopicPartition("orders", 0)
THERE = TopicPartition("orders", 1)
OUT = TopicPartition("outputs", 0)
GROUP = "loop"


class History:
    """A chronicle in the making, and the partitions as they will be at the end."""

    def __init__(self) -> None:
        self.chronicle = Chronicle()
        self.rows: dict[TopicPartition, list[bytes | None]] = {HERE: [], THERE: [], OUT: []}
        """None is a marker."""
        self.hidden: dict[TopicPartition, set[int]] = {HERE: set(), THERE: set(), OUT: set()}
        self.last_stable: dict[TopicPartition, int] = {}

    def txn(self, name: str, *, owner: str = "", sequence: int = -1, writer: Writer = (1, 0)) -> Txn:
        return self.chronicle.txn(name, writer, owner, sequence)

    def write(self, txn: Txn, where: TopicPartition, value: bytes) -> Send:
        send = self.chronicle.send(value, *where, txn)
        send.offset = len(self.rows[where])
        self.rows[where].append(value)
        self.chronicle.end(send, Fate.DONE)
        return send

    def end(self, txn: Txn, fate: Fate, *, to_commit: bool, hide: bool) -> None:
        """How the client ends it, and what the log makes of it."""
        txn.to_commit = to_commit
        self.chronicle.end(txn, fate)
        for send in txn.writes:
            if hide:
                self.hidden[send.place].add(send.offset)
        for where in {send.place for send in txn.writes}:
            self.rows[where].append(None)

    def commit(self, txn: Txn) -> None:
        self.end(txn, Fate.DONE, to_commit=True, hide=False)

    def abort(self, txn: Txn) -> None:
        self.end(txn, Fate.REFUSED, to_commit=False, hide=True)

    def poll(self, where: TopicPartition, *offsets: int, committed: bool = True, stable: int | None = None) -> None:
        chronicle = self.chronicle
        found = tuple((offset, self.rows[where][offset] or b"") for offset in offsets)
        mark = len(self.rows[where])
        stable = mark if stable is None else stable
        chronicle.polls.append(
            Poll(chronicle.tick(), chronicle.tick(), "anna", where, offsets[0], found, mark, committed, stable)
        )

    def decide(
        self, sequence: int, naming: set[Writer], committed: set[Writer], *, repeated: bool = False
    ) -> Decision:
        fact = self.chronicle.decision("query", sequence, frozenset(naming))
        fact.committed, fact.repeated = frozenset(committed), repeated
        self.chronicle.end(fact, Fate.DONE)
        return fact

    def examined(self) -> list[str]:
        for where, rows in self.rows.items():
            found = {offset: value for offset, value in enumerate(rows) if value is not None}
            markers = frozenset(offset for offset, value in enumerate(rows) if value is None)
            stable = self.last_stable.get(where, len(rows))
            self.chronicle.finals[where] = Final(0, len(rows), found, frozenset(self.hidden[where]), markers, stable)
        return [anomaly.kind for anomaly in examine(self.chronicle)]


def good() -> History:
    """One that committed, one that aborted, one whose end nobody heard of, a decision, and a loop's step."""
    history = History()
    committed, aborted, unheard = history.txn("c"), history.txn("a"), history.txn("u")
    for where in (HERE, THERE):
        for txn in (committed, aborted, unheard):
            history.write(txn, where, b"%s in %d" % (txn.name.encode(), where.partition))
    history.commit(committed)
    history.abort(aborted)
    history.end(unheard, Fate.OPEN, to_commit=True, hide=False)
    history.poll(HERE, 0, 2)
    history.poll(HERE, 0, 1, 2, committed=False)
    won = history.txn("w", owner="query", sequence=0, writer=(5, 0))
    lost = history.txn("l", owner="query", sequence=0, writer=(6, 0))
    history.write(won, HERE, b"won here")
    history.write(won, THERE, b"won there")
    history.write(lost, THERE, b"lost there")
    history.end(won, Fate.OPEN, to_commit=True, hide=False)
    history.abort(lost)
    history.decide(0, {(5, 0)}, {(5, 0)})
    history.decide(0, set(), {(5, 0)}, repeated=True)
    loop_here(history, history.txn("s"), 0, upto=1)
    history.chronicle.loops.append(Loop(GROUP, (HERE,), "outputs"))
    history.chronicle.seats += [Seat("g", 1, "anna", frozenset({HERE})), Seat("g", 1, "bert", frozenset({THERE}))]
    history.chronicle.seats.append(Seat("g", 2, "bert", frozenset({HERE, THERE})))
    return history


def loop_here(history: History, txn: Txn, source: int, *, upto: int) -> None:
    """An output for one input, and the offset that goes with it."""
    send = history.write(txn, OUT, b"output of %d by %s" % (source, txn.name.encode()))
    send.source = (HERE, source)
    txn.offsets[GROUP, HERE] = upto
    history.commit(txn)
    history.chronicle.final_offsets[GROUP, HERE] = upto


def test_a_good_history_holds_no_anomaly() -> None:
    assert good().examined() == []


def one(history: History, name: str) -> Txn:
    return next(txn for txn in history.chronicle.txns if txn.name == name)


# Transactions


def show_what_was_aborted(history: History) -> None:
    history.hidden[HERE].discard(1)
    history.hidden[THERE].discard(1)


def show_it_to_a_reader_and_hide_it_again(history: History) -> None:
    history.poll(HERE, 1, 2)


def read_above_the_stable_offset(history: History) -> None:
    history.poll(HERE, 0, 2, stable=2)


def hide_a_part(history: History) -> None:
    history.hidden[THERE].add(0)


def hide_a_part_of_what_nobody_heard_of(history: History) -> None:
    history.hidden[THERE].add(2)


def hide_all_that_was_committed(history: History) -> None:
    history.hidden[HERE].add(0)
    history.hidden[THERE].add(0)


def pass_over_what_is_committed(history: History) -> None:
    chronicle = history.chronicle
    found = ((2, b"u in 0"),)
    chronicle.polls.append(Poll(chronicle.tick(), chronicle.tick(), "bert", HERE, 0, found, None, True))


def go_back_in_a_poll(history: History) -> None:
    chronicle = history.chronicle
    found = ((2, b"u in 0"), (0, b"c in 0"))
    chronicle.polls.append(Poll(chronicle.tick(), chronicle.tick(), "bert", HERE, 2, found, None, True))


def write_twice(history: History) -> None:
    history.rows[HERE].append(b"c in 0")


def go_back_with_a_write(history: History) -> None:
    txn = history.txn("n")
    later, earlier = history.write(txn, HERE, b"later"), history.write(txn, HERE, b"earlier")
    for send in (later, earlier):
        send.connection = "producer (1, 0)"
    history.rows[HERE][-2:] = [b"earlier", b"later"]
    later.offset, earlier.offset = earlier.offset, later.offset
    history.commit(txn)


def hang(history: History) -> None:
    history.last_stable[THERE] = 2


def lower_the_stable_offset(history: History) -> None:
    history.poll(THERE, 0, 2)
    history.poll(THERE, 0, stable=1)


def stable_above_the_watermark(history: History) -> None:
    history.poll(THERE, 0, stable=99)


# Loops


def commit_offsets_without_output(history: History) -> None:
    history.chronicle.final_offsets[GROUP, HERE] = 3


def commit_output_without_offsets(history: History) -> None:
    history.chronicle.final_offsets[GROUP, HERE] = 0


def make_an_output_twice(history: History) -> None:
    loop_here(history, history.txn("s2"), 0, upto=1)


def forget_the_offsets_of_a_transaction(history: History) -> None:
    chronicle = history.chronicle
    chronicle.looks.append(Look(chronicle.tick(), chronicle.tick(), GROUP, HERE, None))


def keep_the_offsets_of_one_that_aborted(history: History) -> None:
    chronicle = history.chronicle
    one(history, "a").offsets[GROUP, HERE] = 9
    chronicle.looks.append(Look(chronicle.tick(), chronicle.tick(), GROUP, HERE, 9))


# Decisions


def show_what_was_not_decided(history: History) -> None:
    history.hidden[THERE].clear()
    history.hidden[THERE].add(1)
    one(history, "l").to_commit = True
    one(history, "l").fate = Fate.OPEN


def hide_what_was_decided(history: History) -> None:
    for send in one(history, "w").writes:
        history.hidden[send.place].add(send.offset)


def answer_in_another_way(history: History) -> None:
    history.decide(0, set(), set(), repeated=True)


def decide_again(history: History) -> None:
    history.decide(0, {(5, 0)}, {(5, 0)})


def decide_something_else_than_asked(history: History) -> None:
    history.decide(1, {(7, 0)}, set())


def mix_two_decisions_that_nobody_answered(history: History) -> None:
    for number in (8, 9):
        txn = history.txn(f"m{number}", owner="query", sequence=2, writer=(number, 0))
        history.write(txn, HERE, b"m%d" % number)
        history.end(txn, Fate.OPEN, to_commit=True, hide=False)
        history.chronicle.decision("query", 2, frozenset({(number, 0)}))


# Groups


def share_a_partition(history: History) -> None:
    history.chronicle.seats.append(Seat("g", 2, "anna", frozenset({HERE})))


def change_a_seat(history: History) -> None:
    history.chronicle.seats.append(Seat("g", 1, "anna", frozenset()))


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (show_what_was_aborted, "aborted read"),
        (show_it_to_a_reader_and_hide_it_again, "aborted read"),
        (read_above_the_stable_offset, "aborted read"),
        (hide_a_part, "torn transaction"),
        (hide_a_part_of_what_nobody_heard_of, "torn transaction"),
        (hide_all_that_was_committed, "lost write"),
        (pass_over_what_is_committed, "poll skip"),
        (go_back_in_a_poll, "nonmonotonic poll"),
        (write_twice, "duplicate"),
        (go_back_with_a_write, "nonmonotonic send"),
        (hang, "hanging last stable offset"),
        (lower_the_stable_offset, "stable offset regress"),
        (stable_above_the_watermark, "stable offset regress"),
        (commit_offsets_without_output, "inconsistent offsets"),
        (commit_output_without_offsets, "inconsistent offsets"),
        (make_an_output_twice, "duplicate"),
        (forget_the_offsets_of_a_transaction, "committed offset regress"),
        (keep_the_offsets_of_one_that_aborted, "committed offset regress"),
        (show_what_was_not_decided, "decision"),
        (hide_what_was_decided, "decision"),
        (answer_in_another_way, "decision"),
        (decide_again, "decision"),
        (decide_something_else_than_asked, "decision"),
        (mix_two_decisions_that_nobody_answered, "decision"),
        (share_a_partition, "shared partition"),
        (change_a_seat, "changed assignment"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_harm_is_seen(harm: Callable[[History], None], kind: str) -> None:
    history = good()
    harm(history)
    assert kind in history.examined()


def test_a_commit_that_nobody_heard_of_may_have_failed_as_a_whole() -> None:
    history = good()
    history.hidden[HERE].add(2)
    history.hidden[THERE].add(2)
    history.chronicle.polls.clear()
    assert history.examined() == []

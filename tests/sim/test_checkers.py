"""Each checker finds its anomaly in a history made for it, and none in a good one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rivven.model import TopicPartition
from rivven.sim import Chronicle, examine
from rivven.sim.chronicle import Commit, Fate, Final, Look, Poll, Send

HERE = TopicPartition("orders", 0)


def send(chronicle: Chronicle, value: bytes, offset: int | None = None, *, connection: str = "a") -> Send:
    """A value that got an offset, or one whose answer never came."""
    fact = chronicle.send(value, "orders", 0)
    fact.connection = connection
    if offset is not None:
        fact.offset = offset
        chronicle.end(fact, Fate.DONE)
    return fact


def poll(
    chronicle: Chronicle, position: int, *values: bytes, mark: int | None = None, begun: int | None = None
) -> None:
    begun = chronicle.tick() if begun is None else begun
    found = tuple(enumerate(values, position))
    chronicle.polls.append(Poll(begun, chronicle.tick(), "anna", HERE, position, found, mark))


def commit(chronicle: Chronicle, offset: int, fate: Fate = Fate.DONE) -> Commit:
    fact = chronicle.commit("anna", HERE, offset)
    chronicle.end(fact, fate)
    return fact


def look(chronicle: Chronicle, offset: int | None) -> None:
    chronicle.looks.append(Look(chronicle.tick(), chronicle.tick(), "anna", HERE, offset))


def rest(chronicle: Chronicle, *values: bytes, start: int = 0) -> None:
    """All that is there at the end."""
    found = dict(enumerate(values, start))
    chronicle.finals[HERE] = Final(start, start + len(values), found)


def good() -> Chronicle:
    chronicle = Chronicle()
    send(chronicle, b"one", 0)
    send(chronicle, b"two", 1)
    send(chronicle, b"three")
    send(chronicle, b"three", 3)
    commit(chronicle, 1)
    look(chronicle, 1)
    poll(chronicle, 0, b"one", b"two", mark=4)
    poll(chronicle, 2, b"three", b"three", mark=4)
    rest(chronicle, b"one", b"two", b"three", b"three")
    return chronicle


def test_a_good_history_holds_no_anomaly_and_its_retries_are_counted() -> None:
    assert examine(good()) == []
    assert good().duplicates() == 1


def lose_a_write(chronicle: Chronicle) -> None:
    rest(chronicle, b"one", b"two", b"three")


def change_a_write(chronicle: Chronicle) -> None:
    rest(chronicle, b"one", b"three", b"three", b"three")


def invent(chronicle: Chronicle) -> None:
    rest(chronicle, b"one", b"two", b"three", b"three", b"never sent")


def show_what_was_refused(chronicle: Chronicle) -> None:
    chronicle.end(send(chronicle, b"refused"), Fate.REFUSED)
    rest(chronicle, b"one", b"two", b"three", b"three", b"refused")


def repeat(chronicle: Chronicle) -> None:
    rest(chronicle, b"one", b"two", b"three", b"three", b"one")


def take_back(chronicle: Chronicle) -> None:
    send(chronicle, b"four")
    poll(chronicle, 4, b"four")


def skip(chronicle: Chronicle) -> None:
    chronicle.polls.append(Poll(chronicle.tick(), chronicle.tick(), "anna", HERE, 0, ((1, b"two"),), None))


def send_out_of_order(chronicle: Chronicle) -> None:
    send(chronicle, b"five", 5)
    send(chronicle, b"four", 4)
    rest(chronicle, b"one", b"two", b"three", b"three", b"four", b"five")


def acknowledge_nowhere(chronicle: Chronicle) -> None:
    send(chronicle, b"nowhere", -1, connection="b")


def lower_the_watermark(chronicle: Chronicle) -> None:
    poll(chronicle, 0, b"one", mark=2)


def hide_an_acknowledged_write(chronicle: Chronicle) -> None:
    send(chronicle, b"four", 4)
    rest(chronicle, b"one", b"two", b"three", b"three", b"four")
    poll(chronicle, 4, mark=4)


def read_above_the_watermark(chronicle: Chronicle) -> None:
    poll(chronicle, 2, b"three", b"three", mark=3)


def forget_a_commit(chronicle: Chronicle) -> None:
    look(chronicle, None)


def return_to_an_older_commit(chronicle: Chronicle) -> None:
    commit(chronicle, 3)
    look(chronicle, 1)


def return_from_what_was_read(chronicle: Chronicle) -> None:
    commit(chronicle, 3, Fate.OPEN)
    look(chronicle, 3)
    look(chronicle, 1)


def leave_a_hole(chronicle: Chronicle) -> None:
    found = {0: b"one", 1: b"two", 3: b"three"}
    chronicle.finals[HERE] = Final(0, 4, found)


def start_too_late(chronicle: Chronicle) -> None:
    rest(chronicle, b"three", b"three", start=2)


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (lose_a_write, "lost write"),
        (change_a_write, "inconsistent offsets"),
        (invent, "invented"),
        (show_what_was_refused, "invented"),
        (repeat, "duplicate"),
        (take_back, "taken back"),
        (skip, "poll skip"),
        (send_out_of_order, "nonmonotonic send"),
        (acknowledge_nowhere, "spurious offset"),
        (lower_the_watermark, "watermark"),
        (hide_an_acknowledged_write, "watermark"),
        (read_above_the_watermark, "watermark"),
        (forget_a_commit, "committed offset regress"),
        (return_to_an_older_commit, "committed offset regress"),
        (return_from_what_was_read, "committed offset regress"),
        (leave_a_hole, "hole"),
        (start_too_late, "start"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_harm_is_seen(harm: Callable[[Chronicle], None], kind: str) -> None:
    chronicle = good()
    harm(chronicle)
    assert kind in {anomaly.kind for anomaly in examine(chronicle)}


def test_a_commit_whose_answer_never_came_may_count_or_not_until_the_process_has_gone() -> None:
    chronicle = good()
    commit(chronicle, 3, Fate.OPEN)
    look(chronicle, 1)
    look(chronicle, 3)
    assert examine(chronicle) == []
    chronicle.life_ended()
    commit(chronicle, 4)
    look(chronicle, 3)
    assert [anomaly.kind for anomaly in examine(chronicle)] == ["committed offset regress"]


def test_an_open_commit_may_still_arrive_while_its_process_lives() -> None:
    chronicle = good()
    commit(chronicle, 2, Fate.OPEN)
    commit(chronicle, 4)
    look(chronicle, 2)
    assert examine(chronicle) == []


def test_what_was_deleted_on_demand_is_missed_by_nobody() -> None:
    chronicle = good()
    chronicle.end(chronicle.trim(HERE, 2), Fate.DONE)
    rest(chronicle, b"three", b"three", start=2)
    chronicle.polls.append(Poll(chronicle.tick(), chronicle.tick(), "bert", HERE, 0, ((2, b"three"),), 4))
    assert examine(chronicle) == []

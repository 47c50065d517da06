"""Events happen in the order of their time, and time passes only between them."""

from __future__ import annotations

from rivven.sim import Agenda, SimClock


def test_events_come_in_the_order_of_their_time_and_then_of_their_asking() -> None:
    agenda, happened = Agenda(SimClock()), []
    for wait_us, name in ((30, "late"), (10, "first"), (20, "second"), (20, "third")):
        agenda.after(wait_us, lambda name=name: happened.append((name, agenda.now_us())))
    begun_us = agenda.now_us()
    while agenda.step():
        pass
    assert happened == [
        ("first", begun_us + 10),
        ("second", begun_us + 20),
        ("third", begun_us + 20),
        ("late", begun_us + 30),
    ]


def test_running_stops_where_the_condition_holds_or_the_time_is_over() -> None:
    agenda, happened = Agenda(SimClock()), []
    for wait_us in (10, 20, 30):
        agenda.after(wait_us, lambda: happened.append(1))
    begun_us = agenda.now_us()
    assert agenda.run(1000, lambda: len(happened) == 2)
    assert agenda.now_us() == begun_us + 20
    assert not agenda.run(5, lambda: len(happened) == 3)
    assert agenda.now_us() == begun_us + 25

"""Deadlines come due in time, once, and wherever they were last moved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rivven.coordinator.timers import Timers

NAMES = [("g", "session", member) for member in "abc"]
STEPS = st.lists(
    st.tuples(st.just("set"), st.sampled_from(NAMES), st.integers(0, 50))
    | st.tuples(st.just("clear"), st.sampled_from(NAMES), st.just(0))
    | st.tuples(st.just("wait"), st.just(NAMES[0]), st.integers(0, 20)),
    max_size=40,
)


@given(steps=STEPS)
def test_every_deadline_comes_due_once_and_in_time(steps):
    timers, wanted, now_ms = Timers(), {}, 0
    for step, name, value in steps:
        if step == "set":
            timers.set(name, now_ms + value)
            wanted[name] = now_ms + value
        elif step == "clear":
            timers.clear(name)
            wanted.pop(name, None)
        else:
            now_ms += value
            found = set()
            while (popped := timers.pop(now_ms)) is not None:
                assert popped not in found
                found.add(popped)
            assert found == {one for one, due_ms in wanted.items() if due_ms <= now_ms}
            wanted = {one: due_ms for one, due_ms in wanted.items() if due_ms > now_ms}
        next_ms = timers.next_ms()
        assert (next_ms is None) == (not wanted)
        assert next_ms is None or next_ms <= min(wanted.values())
        assert all(timers.has(one) == (one in wanted) for one in NAMES)


def test_moving_a_deadline_a_thousand_times_keeps_little():
    timers = Timers()
    for now_ms in range(1_000):
        timers.set(NAMES[0], now_ms + 100)
        timers.set(NAMES[1], 2_000 - now_ms)
    assert len(timers._heap) < 200

"""Time and chance in the simulator."""

from __future__ import annotations

from random import Random

import pytest

from rivven.ports import Clock, Entropy
from rivven.sim import SimClock, SimEntropy


def test_time_stands_still_until_it_is_advanced() -> None:
    clock: Clock = SimClock()
    assert clock.now_ms() == clock.now_ms() == 1_700_000_000_000
    assert clock.now_us() == clock.now_us() > 0


def test_both_clocks_advance_together() -> None:
    clock = SimClock(start_ms=5)
    before_us = clock.now_us()
    clock.advance(ms=2, us=999)
    assert (clock.now_ms(), clock.now_us() - before_us) == (7, 2999)
    clock.advance(us=1)
    assert (clock.now_ms(), clock.now_us() - before_us) == (8, 3000)


@pytest.mark.parametrize("jump_ms", [-3600_000, 3600_000])
def test_only_the_wall_clock_jumps(jump_ms: int) -> None:
    clock = SimClock()
    before_ms, before_us = clock.now_ms(), clock.now_us()
    clock.jump(jump_ms)
    assert (clock.now_ms() - before_ms, clock.now_us()) == (jump_ms, before_us)


def test_time_never_passes_backward() -> None:
    with pytest.raises(AssertionError, match="forward"):
        SimClock().advance(ms=-1)


def test_a_seed_repeats_its_entropy() -> None:
    one: Entropy = SimEntropy(Random(7))
    other = SimEntropy(Random(7))
    first = one.bytes(16)
    assert first == other.bytes(16)
    assert len(first) == 16
    assert one.bytes(16) != first

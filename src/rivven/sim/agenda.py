"""What is still to happen, in the order of its time: the one loop of a simulated world.

Invariant: the clock moves only here, from one event to the next; of two events at one instant the one that was
asked for first comes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from .clock import SimClock


class Agenda:
    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._order = count()

    def now_us(self) -> int:
        return self.clock.now_us()

    def after(self, wait_us: int, act: Callable[[], object]) -> None:
        assert wait_us >= 0, "nothing happens in the past"
        heapq.heappush(self._events, (self.now_us() + wait_us, next(self._order), act))

    def step(self) -> bool:
        """Let the next event happen; False if there is none."""
        if not self._events:
            return False
        due_us, _, act = heapq.heappop(self._events)
        self.clock.advance(us=due_us - self.now_us())
        act()
        return True

    def run(self, within_us: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Go on until the condition holds or so much time has passed; whether it holds."""
        end_us = self.now_us() + within_us
        while not until():
            if not self._events or self._events[0][0] > end_us:
                self.clock.advance(us=end_us - self.now_us())
                return until()
            self.step()
        return True

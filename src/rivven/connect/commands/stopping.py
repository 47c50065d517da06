"""How a run is asked to end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .opening import INTERRUPTED

if TYPE_CHECKING:
    from types import FrameType

STEP_S = 0.25
STOPPING = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether somebody has asked for an end: the first SIGINT or SIGTERM asks for one in good order, the second ends
    at once, which is safe, too."""

    asked = False

    def listen(self) -> None:
        for number in STOPPING:
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            os._exit(INTERRUPTED)
        self.asked = True

    def wait(self, seconds: float) -> None:
        """So long, or until it is asked: a signal alone does not end a sleep."""
        due_s = time.monotonic() + seconds
        while not self.asked and (rest_s := due_s - time.monotonic()) > 0:
            time.sleep(min(rest_s, STEP_S))


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    stop = Stop()
    before = {number: signal.getsignal(number) for number in STOPPING}
    stop.listen()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

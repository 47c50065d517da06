"""Time and chance that a test holds in its hand.

Invariant: monotonic time never goes back; the wall clock may, but only by `jump`.
"""

from __future__ import annotations

import builtins
from random import Random

BOOT_US = 1_000_000
"""Where monotonic time starts: not at zero, so that nobody mistakes an instant for "never"."""


class SimClock:
    """A `Clock` that stands still until told to move."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._wall_us = start_ms * 1000
        self._monotonic_us = BOOT_US

    def now_ms(self) -> int:
        return self._wall_us // 1000

    def now_us(self) -> int:
        return self._monotonic_us

    def advance(self, ms: int = 0, us: int = 0) -> None:
        """Let time pass, on the wall and within."""
        passed_us = ms * 1000 + us
        assert passed_us >= 0, "time passes forward; the wall clock alone can jump back"
        self._wall_us += passed_us
        self._monotonic_us += passed_us

    def jump(self, ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP may."""
        self._wall_us += ms * 1000


class SimEntropy:
    """An `Entropy` that a seed repeats."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def bytes(self, count: int) -> builtins.bytes:
        return self._rng.randbytes(count)

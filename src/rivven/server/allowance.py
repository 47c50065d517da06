"""How many requests an address may still ask for: a bucket that fills at a steady rate, up to one second's worth.

There are two twins, this one and `_lines.pyx`, where requests are taken that never come to Python. All connections of
an address share one, so more of them get no more; it outlives them for a while, so coming back does not help either.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rivven.record import NATIVE

ADDRESSES_MAX = 10_000


class PureAllowance:
    __slots__ = ("_at_us", "_left", "_rate")

    def __init__(self, rate: int, now_us: int) -> None:
        self._rate = float(rate)
        self._left = float(rate)
        self._at_us = now_us

    def take(self, now_us: int) -> bool:
        """One request more: whether it is within the limit."""
        if now_us > self._at_us:
            self._left = min(self._rate, self._left + (now_us - self._at_us) * self._rate / 1e6)
            self._at_us = now_us
        if self._left < 1:
            return False
        self._left -= 1
        return True


Allowance = PureAllowance
if not TYPE_CHECKING and NATIVE:
    with suppress(ImportError):  # it was not built, and then nothing asks for it
        from ._lines import Allowance


class Allowances:
    """One for each address; at most so many are remembered."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._by_address: dict[str, PureAllowance] = {}

    def of(self, address: str, now_us: int) -> PureAllowance | None:
        """None if there is no limit."""
        if self._rate == 0:
            return None
        found = self._by_address.get(address)
        if found is None:
            if len(self._by_address) >= ADDRESSES_MAX:
                self._by_address.clear()  # all start anew, rather than a table that grows with every address
            found = self._by_address[address] = Allowance(self._rate, now_us)
        return found

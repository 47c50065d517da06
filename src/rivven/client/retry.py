"""When to try again, and whom: backoff with jitter, a circuit breaker per address, failover among addresses.

Time and chance are arguments. Invariant: an address whose breaker is open is not tried before its time, and then by
one attempt alone until that has succeeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from .options import Address, Options


class Backoff:
    """Waits that double up to a maximum; each is drawn between half of its length and all of it."""

    def __init__(self, rng: Random, *, first_ms: int, most_ms: int) -> None:
        self._rng = rng
        self._first_ms = first_ms
        self._most_ms = max(first_ms, most_ms)
        self._tries = 0

    def next_ms(self) -> int:
        length_ms = min(self._most_ms, self._first_ms << min(self._tries, 30))
        self._tries += 1
        return max(1, int(length_ms * self._rng.uniform(0.5, 1.0)))

    def reset(self) -> None:
        self._tries = 0


class Breaker:
    """Closed, it lets everybody try; open, nobody; half open, one."""

    def __init__(self, *, failures_max: int, open_ms: int) -> None:
        self._failures_max = failures_max
        self._open_ms = open_ms
        self._failures = 0
        self._open_until_ms = 0
        self._trying = False

    def wait_ms(self, now_ms: int) -> int:
        """How long until a try is allowed; 0 for now."""
        if self._failures < self._failures_max:
            return 0
        if self._trying:
            return self._open_ms
        return max(0, self._open_until_ms - now_ms)

    def try_now(self, now_ms: int) -> bool:
        """Whether the caller may try; then it must say how it went."""
        if self.wait_ms(now_ms):
            return False
        self._trying = self._failures >= self._failures_max
        return True

    def succeeded(self) -> None:
        self._failures, self._trying = 0, False

    def failed(self, now_ms: int) -> None:
        self._failures += 1
        self._trying = False
        self._open_until_ms = now_ms + self._open_ms

    def abandoned(self) -> None:
        """The try was given up before it could tell anything."""
        self._trying = False


class Roster:
    """The bootstrap addresses, the last one that worked first."""

    def __init__(self, addresses: Sequence[Address], options: Options) -> None:
        self.addresses = tuple(addresses)
        self._breakers = {
            address: Breaker(failures_max=options.breaker_failures, open_ms=options.breaker_open_ms)
            for address in self.addresses
        }
        self._preferred = 0

    def candidates(self) -> list[Address]:
        """Every address in the order to try them; ask `try_now` before each."""
        return [*self.addresses[self._preferred :], *self.addresses[: self._preferred]]

    def try_now(self, address: Address, now_ms: int) -> bool:
        return self._breakers[address].try_now(now_ms)

    def succeeded(self, address: Address) -> None:
        self._breakers[address].succeeded()
        self._preferred = self.addresses.index(address)

    def failed(self, address: Address, now_ms: int) -> None:
        self._breakers[address].failed(now_ms)
        if self.addresses[self._preferred] == address:
            self._preferred = (self._preferred + 1) % len(self.addresses)

    def abandoned(self, address: Address) -> None:
        self._breakers[address].abandoned()

    def wait_ms(self, now_ms: int) -> int:
        """How long until any address may be tried."""
        return min(breaker.wait_ms(now_ms) for breaker in self._breakers.values())

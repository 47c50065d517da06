"""The demo's records, and the count of what came back of them. Nothing here waits or opens anything.

Every record says its number, so that a reader can tell a lost one, a second one and one out of place without asking
the producer. Invariant of a `Tally`: `read` = distinct numbers seen + duplicates + altered.
"""

from __future__ import annotations

from collections.abc import Iterable

TOPIC = "orders"
PARTITIONS = 4
CUSTOMERS = 10_000
NUMBER = slice(10, 22)
"""Where a value has its number."""


def key_of(number: int) -> bytes:
    return b"customer-%d" % (number % CUSTOMERS)


def value_of(number: int) -> bytes:
    """About a hundred bytes of JSON, as an order might look.

    >>> int(value_of(41)[NUMBER])
    41
    """
    return b'{"order": %012d, "item": "a teapot", "cups": %d, "note": "handle with care, and mind the lid"}' % (
        number,
        number % 7,
    )


RECORD_BYTES = len(key_of(CUSTOMERS - 1)) + len(value_of(0))


class Tally:
    """What a reader saw of the records numbered from 0 up to `records`."""

    def __init__(self, records: int) -> None:
        self.seen = bytearray(records)
        """1 for each number that was read."""
        self.read = 0
        self.duplicates = 0
        self.reordered = 0
        self.altered = 0
        self._highest = [-1] * PARTITIONS

    def add(self, partition: int, values: Iterable[bytes | None]) -> None:
        """Count records in the order in which the partition has them."""
        seen, highest = self.seen, self._highest[partition]
        for value in values:
            self.read += 1
            number = self._number(value)
            if number is None:
                self.altered += 1
            elif seen[number]:
                self.duplicates += 1
            else:
                seen[number] = 1
                if number < highest:
                    self.reordered += 1
                else:
                    highest = number
        self._highest[partition] = highest

    def _number(self, value: bytes | None) -> int | None:
        """The record's number, if it is to the last byte what was sent under it."""
        digits = (value or b"")[NUMBER]
        if not digits.isdigit():
            return None
        number = int(digits)
        return number if number < len(self.seen) and value == value_of(number) else None


def count_lost(acked: bytes | bytearray, seen: bytes | bytearray) -> int:
    """How many numbers were acknowledged and never read; each argument has one byte for each number, 0 or 1."""
    assert len(acked) == len(seen)
    both = int.from_bytes(acked) & int.from_bytes(seen)
    return acked.count(1) - both.bit_count()

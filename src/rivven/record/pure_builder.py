"""Batches that are written record by record, as they come; and the choice among them by key, in plain Python.

Invariant: `mark` is 0 in a builder that holds nothing, so nothing gets into it by the quick way, `Sorter.add`, before
somebody has put the first record there and raised the mark. The native twin's `add` and `take` are atomic: a thread
may add while another takes, with no lock between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .header import HEADER_BYTES, INT64_MAX, INT64_MIN
from .pure import murmur2, put_record

RECORD_OVERHEAD_BYTES = 32
"""At most what a record takes beside its key, value and headers."""
ATOMIC = False
"""Whether `Sorter.add` and `BatchBuilder.take` need no lock."""


class Built(NamedTuple):
    """Records after room for a header, which is all that is missing."""

    batch: bytearray
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks a batch for
    size_bytes: int
    base_timestamp_ms: int
    max_timestamp_ms: int


class BatchBuilder:
    """One batch under construction, and after `take` the next."""

    __slots__ = ("_base_ms", "_made", "_max_ms", "count", "mark", "size_bytes")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._made = bytearray(HEADER_BYTES)
        self._base_ms = self._max_ms = 0
        self.count = 0
        self.size_bytes = 0
        """At most what the records take; the sum of what was said when they were put."""
        self.mark = 0
        """The size below which the quick way stays."""

    def put(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        size_bytes: int,
    ) -> int:
        """Write a record whatever the mark; its place in the batch."""
        if not isinstance(timestamp_ms, int):
            raise TypeError(f"a timestamp is a whole number of milliseconds, not {timestamp_ms!r}")
        if not INT64_MIN <= timestamp_ms <= INT64_MAX:
            raise OverflowError(f"timestamp {timestamp_ms} does not fit into 64 bits")
        base_ms = self._base_ms if self.count else timestamp_ms
        put_record(self._made, timestamp_ms - base_ms, self.count, key, value, headers)
        self._max_ms = max(self._max_ms, timestamp_ms) if self.count else timestamp_ms
        self._base_ms = base_ms
        self.count += 1
        self.size_bytes += size_bytes
        return self.count - 1

    def take(self) -> Built:
        """What was put, and begin anew."""
        built = Built(self._made, self.count, self.size_bytes, self._base_ms, self._max_ms)
        self._begin()
        return built


class Sorter:
    """Puts a record with its partition's others, if it is of the plain sort and they have not reached their mark."""

    __slots__ = ("_builders", "shut", "sticky")

    def __init__(self) -> None:
        self._builders: list[BatchBuilder] = []
        self.sticky: BatchBuilder | None = None
        """Where records without a key go for now."""
        self.shut = False
        """Nothing goes in by the quick way."""

    def extend(self, builder: BatchBuilder) -> None:
        """One more partition."""
        self._builders.append(builder)

    def add(self, value: bytes | None, key: bytes | None, now_ns: int) -> bool:
        """Whether the record was taken; if not, nothing has happened, and `BatchBuilder.put` is the way."""
        if self.shut or not self._builders or type(value) is not bytes:
            return False
        size_bytes = len(value) + RECORD_OVERHEAD_BYTES
        if key is None:
            builder = self.sticky
        elif type(key) is bytes:
            builder = self._builders[(murmur2(key) & 0x7FFFFFFF) % len(self._builders)]
            size_bytes += len(key)
        else:
            return False
        if builder is None or builder.size_bytes + size_bytes >= builder.mark:
            return False
        try:
            builder.put(now_ns // 1_000_000, key, value, (), size_bytes)
        except OverflowError:  # too far from the first timestamp of the batch
            return False
        return True

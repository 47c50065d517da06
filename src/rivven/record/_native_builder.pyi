from collections.abc import Sequence

from .pure_builder import Built

ATOMIC: bool

class BatchBuilder:
    count: int
    size_bytes: int
    mark: int
    def put(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        size_bytes: int,
    ) -> int: ...
    def take(self) -> Built: ...

class Sorter:
    sticky: BatchBuilder | None
    shut: bool
    def extend(self, builder: BatchBuilder) -> None: ...
    def add(self, value: bytes | None, key: bytes | None, now_ns: int) -> bool: ...

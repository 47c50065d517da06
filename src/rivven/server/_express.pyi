"""What is published, taken where it lies; see `_express.pyx`."""

from collections.abc import Callable
from typing import Any

from ._lines import Taker
from .front import Front

Heard = Callable[[int, Any], None]

class Express(Taker):
    inflight_bytes_max: int
    def __init__(
        self, front: Front, *, frame_bytes_max: int, produce_newest: int, bounds_s: tuple[float, ...]
    ) -> None: ...
    @property
    def inflight_bytes(self) -> int: ...
    def forget(self) -> None: ...
    def finish(self) -> None: ...
    def take_counts(self) -> dict[int, tuple[list[int], float]]: ...

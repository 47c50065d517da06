"""Small publishes, taken where they lie; see `_express.pyx`."""

from collections.abc import Callable
from typing import Any

from ._lines import Taker

Heard = Callable[[int, Any], None]

class Express(Taker):
    inflight_bytes_max: int
    def __init__(
        self,
        *,
        find: Callable[[bytes, int], tuple[Any, int, int] | None],
        append: Callable[[Any, bytearray, Heard, int], None],
        refuse: Callable[[int, Any], bytes],
        observe: Callable[[list[tuple[int, int]], int], None],
        failed: Callable[[int], None],
        now_ms: Callable[[], int],
        frame_bytes_max: int,
    ) -> None: ...
    @property
    def inflight_bytes(self) -> int: ...
    def forget(self) -> None: ...
    def finish(self) -> None: ...

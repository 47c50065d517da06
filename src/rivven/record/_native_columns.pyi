from typing import Any

from rivven.ports import Buffer

from .pure_columns import Columns, Selection, Unpack

def gather(buffer: Buffer, position: int, end: int, selection: Selection, unpack: Unpack) -> Columns: ...

class Rows:
    def __init__(
        self,
        count: int,
        timestamps: Any | None,
        keys: Any | None,
        values: Any | None,
        headers: tuple[Any, Any, Any] | None,
        timestamp_ms: int,
    ) -> None: ...
    def encode(self, start: int, count_max: int, bytes_max: int) -> tuple[bytearray, int, int, int]: ...

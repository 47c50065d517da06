"""Fields in a row, taken off bytes that somebody else may have made: big-endian numbers, and texts by their length.

Invariant: no bytes make a reader raise anything but `Malformed`, nor take more than there is.
"""

from __future__ import annotations

from .errors import Malformed


class FieldReader:
    def __init__(self, data: bytes, what: str) -> None:
        """`what` is what the bytes are meant to be, for whoever is told that they are not."""
        self._data = data
        self._at = 0
        self._what = what

    def take(self, length: int) -> bytes:
        start, self._at = self._at, self._at + length
        if length < 0 or self._at > len(self._data):
            raise Malformed(what=self._what, reason=f"a field at byte {start} reaches beyond its end")
        return self._data[start : self._at]

    def i16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def i32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def i64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def text_of(self, length: int) -> str:
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise Malformed(what=self._what, reason=str(error)) from error

    def text_or_none(self) -> str | None:
        """A text behind its length in two bytes; a length of -1 is none."""
        length = self.i16()
        return None if length == -1 else self.text_of(length)

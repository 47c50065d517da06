"""How a refusal is told: a code that Kafka's clients know, and a text that says what to do instead.

The text may quote what a client sent, so it has an end: no client takes a string of any length.
"""

from __future__ import annotations

from typing import Final

from rivven.errors import RivvenError
from rivven.wire.kafka import Error, code_of

TEXT_CHARS_MAX: Final = 1_000


class Refused(Exception):
    """A mistake that only Kafka's requests can have, so that the error tree has no place for it."""

    def __init__(self, code: Error, text: str) -> None:
        super().__init__(text)
        self.code = code


REFUSALS: Final = (Refused, RivvenError)
"""What the handling of one part of a request may end in."""


def told(refusal: Exception) -> tuple[Error, str]:
    """The code and the text of any of `REFUSALS`."""
    text = str(refusal)
    if len(text) > TEXT_CHARS_MAX:
        text = f"{text[: TEXT_CHARS_MAX - 1]}…"
    if isinstance(refusal, Refused):
        return refusal.code, text
    assert isinstance(refusal, RivvenError)
    return code_of(refusal), text

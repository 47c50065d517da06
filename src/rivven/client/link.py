"""One connection without its socket: requests to bytes, bytes to answers, each answer to whoever asked.

Answers come in the order of their requests; one that does not means that the stream cannot be trusted any more.
Invariant: `_owed` holds every request that has neither been answered nor given up, oldest first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rivven.errors import Malformed, RivvenError
from rivven.limits import KIB, MIB
from rivven.wire import ANSWER_BYTES_MAX, Piece, Request, Response, Splitter, decode_response, encode_request
from rivven.wire import responses as tell

from .failures import ConnectionException, SerializationException

Done = Callable[[Response | RivvenError], None]
"""Called once: with the answer, which may be an `Error`, or with what kept it from coming."""

RECEIVE_BYTES = 256 * KIB
TRUSTED_BYTES = 8 * MIB
"""A server that we asked ourselves may say how long its answer is."""
SPARE_BYTES_MAX = 16 * MIB
"""For a consumer that reads 4 MiB at a time: one in use, one in reserve, one that is on its way."""


class _Owed(NamedTuple):
    correlation_id: int
    done: Done
    due_ms: int
    name: str


class Link:
    def __init__(self) -> None:
        self._splitter = Splitter(
            frame_bytes_max=ANSWER_BYTES_MAX,
            receive_bytes=RECEIVE_BYTES,
            trusted_bytes=TRUSTED_BYTES,
            spare_bytes_max=SPARE_BYTES_MAX,
        )
        self._owed: deque[_Owed] = deque()
        self._next_id = 1
        self.buffer = self._splitter.buffer
        """Where to receive next."""

    def ask(self, request: Request, done: Done, due_ms: int) -> list[Piece]:
        """The bytes of a request. Nothing is owed if it cannot be written."""
        correlation_id = self._next_id
        try:
            pieces = encode_request(request, correlation_id)
        except Malformed as error:
            raise SerializationException(reason=str(error)) from None
        self._next_id = correlation_id % 0xFFFFFFFF + 1
        self._owed.append(_Owed(correlation_id, done, due_ms, type(request).__name__))
        return pieces

    def received(self, count: int) -> None:
        """So many bytes lie in the buffer: hand the answers that are whole now to those who asked.

        Raises `ConnectionException` if the stream makes no sense; then call `lost` and hang up.
        """
        for body in self._splitter.received(count):
            try:
                answer = decode_response(body)
            except Malformed as error:
                raise ConnectionException(reason=f"an answer cannot be read: {error}") from None
            self._answered(answer.correlation_id, answer.response)
        if self._splitter.oversized is not None:
            raise ConnectionException(reason=self._splitter.about_oversized())

    def _answered(self, correlation_id: int, response: Response) -> None:
        # A server that could not read a frame says so with the id 0.
        unread = correlation_id == 0 and isinstance(response, tell.Error)
        if not self._owed or not (unread or self._owed[0].correlation_id == correlation_id):
            raise ConnectionException(reason=f"an answer to {correlation_id}, which was not asked")
        self._owed.popleft().done(response)

    @property
    def owed(self) -> int:
        return len(self._owed)

    @property
    def due_ms(self) -> int | None:
        """When the oldest request has waited long enough."""
        return self._owed[0].due_ms if self._owed else None

    @property
    def waits_for(self) -> str:
        """The name of the oldest request."""
        return self._owed[0].name if self._owed else ""

    def lost(self, first: RivvenError, rest: RivvenError | None = None) -> None:
        """No more answers will come: tell everybody, the oldest why, and the others the same or `rest`."""
        owed, self._owed = self._owed, deque()
        for place, entry in enumerate(owed):
            entry.done(first if place == 0 or rest is None else rest)

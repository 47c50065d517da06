"""A client's end of the wire: requests go out in frames, answers come back in the same order, or the connection ends.

Every request is answered exactly once: by a response, or by None if its connection was lost or the client lost its
patience, and then nobody knows whether it was done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rivven.wire import (
    CAPABILITIES,
    PROTOCOL_VERSION,
    REPLY_BYTES_MAX,
    Format,
    Request,
    Response,
    Splitter,
    decode_response,
    encode_request,
)
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .network import SimNetwork, SimSocket

Answered = Callable[[Response | None], object]
PATIENCE_US = 8_000_000


@dataclass(slots=True, eq=False)
class _Asked:
    correlation_id: int
    answered: Answered


class SimClient:
    """One connection at a time to one address; a new one is opened for the next request after it was lost."""

    def __init__(self, name: str, network: SimNetwork, address: str, form: Format = Format.POSTCARD) -> None:
        self.name = name
        self.impatient = 0
        """How often it gave up waiting."""
        self._network = network
        self._address = address
        self.form = form
        self._socket: SimSocket | None = None
        self._splitter = Splitter(frame_bytes_max=REPLY_BYTES_MAX, receive_bytes=4096)
        self._row: deque[_Asked] = deque()

    @property
    def waiting(self) -> int:
        return len(self._row)

    def ask(self, request: Request, answered: Answered) -> str:
        """Send a request. Returns the name of the connection it went out on."""
        socket = self._socket or self._connect()
        self._send(socket, request, self._network.rng.getrandbits(32), answered)
        return f"{self.name} on {socket.name}"

    def _connect(self) -> SimSocket:
        socket = self._socket = self._network.connect(self._address)
        socket.received = self._received
        socket.closed = self._lost
        self._splitter = Splitter(frame_bytes_max=REPLY_BYTES_MAX, receive_bytes=4096)
        greeting = ask.Handshake(PROTOCOL_VERSION, self.name, int(CAPABILITIES))
        self._send(socket, greeting, 0, self._greeted)
        return socket

    def _greeted(self, response: Response | None) -> None:
        if response is not None:
            assert isinstance(response, tell.HandshakeResult), f"{self.name}: a handshake was answered by {response}"
            assert response.compatible

    def _send(self, socket: SimSocket, request: Request, correlation_id: int, answered: Answered) -> None:
        asked = _Asked(correlation_id, answered)
        self._row.append(asked)
        socket.send(encode_request(request, correlation_id, self.form))
        self._network.agenda.after(PATIENCE_US, lambda: self._lose_patience(asked))

    def _received(self, data: bytes) -> None:
        for body in self._splitter.feed(data):
            answer = decode_response(body)
            assert self._row, f"{self.name}: an answer that nobody asked for: {answer}"
            asked = self._row.popleft()
            assert answer.correlation_id == asked.correlation_id, f"{self.name}: an answer out of order: {answer}"
            assert answer.format is self.form, f"{self.name}: answered in {answer.format.name}"
            asked.answered(answer.response)
        assert self._splitter.oversized is None, f"{self.name}: an answer of {self._splitter.oversized} bytes"

    def _lose_patience(self, asked: _Asked) -> None:
        if asked in self._row:
            self.impatient += 1
            self.close()

    def close(self) -> None:
        if self._socket is not None:
            socket = self._socket
            socket.abandon()
            socket.close()
            self._lost()

    def _lost(self) -> None:
        self._socket = None
        row, self._row = self._row, deque()
        for asked in row:
            asked.answered(None)

"""The native protocol: messages in frames, both ways, in postcard or protobuf.

A server decodes calls and encodes responses, a client the reverse. A bad frame is `Malformed` with the reason in
the protocol's own words; `refuse` turns that into the frame that says so.
"""

from __future__ import annotations

from enum import IntFlag
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from rivven.errors import Malformed

from . import postcard, responses
from .bounds import (
    BATCHES_REPLY_BYTES_MAX,
    FRAME_HEADER_BYTES,
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    unreadable,
)
from .frame import LENGTH, WHOLE_HEAD, Format, about, read_head
from .requests import REQUESTS, Handshake, Request
from .responses import RESPONSES, FetchedBatches, FoundBatches, HandshakeResult, Messages, Response
from .schema import Message, Piece, shape
from .straight import Reader, Writer, compile_reader, compile_writer

if TYPE_CHECKING:
    from .protobuf import Protobuf

PROTOCOL_VERSION = 2
COPIED_BYTES_MAX = 4096
"""A frame up to here is read from a copy: slices of bytes are cheaper than those of a view, and who receives may use
the buffer again while the batches of the frame still wait for their sync."""


class Capability(IntFlag):
    """What a peer knows beyond version 2. Both sides name theirs in the handshake; what both named may be used."""

    BATCHES = 1
    """`ProduceBatches` and `FetchBatches`"""
    RECORDS = 2
    """`PublishRecords`"""
    METRICS = 4
    """`GetMetrics`"""
    DECISIONS = 8
    """`RegisterOwner`, `BeginOwnedTransaction`, `Decide` and `ForgetOwner`"""
    PLACES = 16
    """`FindBatches`; for clients on the server's own machine"""


CAPABILITIES = ~Capability(0)

M = TypeVar("M", bound=Message)


class Call(msgspec.Struct, frozen=True, gc=False):
    """One request as it came in; answer it with the same format and correlation id."""

    format: Format
    correlation_id: int
    request: Request


class Answer(msgspec.Struct, frozen=True, gc=False):
    """One response as it came back."""

    format: Format
    correlation_id: int
    response: Response


class Postcard(Generic[M]):
    """One enum of messages in postcard: the number of a kind, then its fields."""

    def __init__(self, kinds: tuple[type[M], ...]) -> None:
        self._kinds = kinds
        self._opaque: set[int] = set()
        self._readers: list[Reader | None] = [None] * len(kinds)
        self._writers: dict[type[Message], Writer] = {}

    def decode(self, data: Piece, position: int = 0) -> M:
        """The message at `position`; what follows it is ignored."""
        try:
            kind = data[position]
            position += 1
            if kind > 0x7F:
                kind, position = postcard.rest_of(data, position, kind, 2**32 - 1)
            if kind >= len(self._kinds):
                raise unreadable(postcard.BAD_VARIANT)
            reader = self._readers[kind] or self._reader(kind)
            if kind in self._opaque:
                data = memoryview(data if len(data) > COPIED_BYTES_MAX else bytearray(data))
            elif type(data) is not bytes and len(data) <= COPIED_BYTES_MAX:
                data = bytes(data)
            return reader(data, position, len(data))  # type: ignore[return-value]
        except IndexError:
            raise postcard.short() from None
        except UnicodeDecodeError:
            raise unreadable(postcard.BAD_UTF8) from None

    def encode(self, message: M, out: bytearray, parts: list[Piece]) -> bytearray:
        """Append the message to `out`; opaque bytes go to `parts`, after what was filled before them."""
        writer = self._writers.get(type(message)) or self._writer(type(message))
        try:
            return writer(message, out, parts)
        except ValueError as error:
            raise Malformed(what=type(message).__name__, reason=str(error)) from None

    def _reader(self, kind: int) -> Reader:
        layout = shape(self._kinds[kind])
        if layout.has_opaque:
            self._opaque.add(kind)
        reader = self._readers[kind] = compile_reader(layout)
        return reader

    def _writer(self, message: type[M]) -> Writer:
        writer = self._writers[message] = compile_writer(shape(message), self._kinds.index(message))
        return writer


_REQUESTS = Postcard(REQUESTS)
_RESPONSES = Postcard(RESPONSES)


def decode_request(body: Piece) -> Call:
    """The request in a frame; `body` is what follows the length. Opaque batches are views into a large one."""
    form, correlation_id = read_head(body)
    try:
        if form is Format.POSTCARD:
            return Call(form, correlation_id, _REQUESTS.decode(body, FRAME_HEADER_BYTES))
        return Call(form, correlation_id, _protobuf().decode_request(_payload(body)))
    except Malformed as error:
        raise about(error, form, correlation_id) from None


def decode_response(body: Piece) -> Answer:
    """The response in a frame; `body` is what follows the length. Opaque batches are views into it."""
    form, correlation_id = read_head(body)
    try:
        if form is Format.POSTCARD:
            return Answer(form, correlation_id, _RESPONSES.decode(body, FRAME_HEADER_BYTES))
        return Answer(form, correlation_id, _protobuf().decode_response(_payload(body)))
    except Malformed as error:
        raise about(error, form, correlation_id) from None


def encode_request(
    request: Request, correlation_id: int, form: Format = Format.POSTCARD, *, bytes_max: int = REQUEST_BYTES_MAX
) -> list[Piece]:
    """A whole frame, as buffers to be written one after another. Above the limit it is `Malformed`."""
    out: bytearray = bytearray(WHOLE_HEAD.size)
    parts: list[Piece] = []
    if form is Format.POSTCARD:
        out = _REQUESTS.encode(request, out, parts)
    else:
        out += _protobuf().encode_request(request)
    length = _seal(parts, out, form, correlation_id)
    if length > bytes_max:
        raise Malformed(what=type(request).__name__, reason=f"{length} bytes, above the {bytes_max} of a request")
    return parts


def encode_response(response: Response, correlation_id: int, form: Format = Format.POSTCARD) -> list[Piece]:
    """A whole frame, as buffers to be written one after another. One that no client would take becomes an Error."""
    out: bytearray = bytearray(WHOLE_HEAD.size)
    parts: list[Piece] = []
    if form is Format.POSTCARD:
        out = _RESPONSES.encode(response, out, parts)
    else:
        out += _protobuf().encode_response(response)
    length = _seal(parts, out, form, correlation_id)
    if length > REPLY_BYTES_MAX and length > reply_bytes_max(response):
        return encode_response(responses.Error("INTERNAL_ERROR: response send failed"), correlation_id, form)
    return parts


def _seal(parts: list[Piece], out: bytearray, form: Format, correlation_id: int) -> int:
    """Finish a frame with what is left in `out`, and put the head in front, now that the length is known."""
    if out:
        parts.append(out)
    length = (len(out) if len(parts) == 1 else sum(map(len, parts))) - LENGTH.size
    WHOLE_HEAD.pack_into(parts[0], 0, length, form, correlation_id)
    return length


def reply_bytes_max(response: Response) -> int:
    """What one answer may have. A single message goes out however large it is, or nobody would ever get past it."""
    match response:
        case FetchedBatches() | FoundBatches() | Messages(messages=(_,)):
            return BATCHES_REPLY_BYTES_MAX
        case _:
            return REPLY_BYTES_MAX


def fitting(response: Messages, *, bytes_max: int = REPLY_BYTES_MAX) -> Messages:
    """As many of the messages, from the first on, as one reply can carry in either format; at least the first."""
    left = bytes_max - FRAME_HEADER_BYTES - 64  # what stands in front of the messages
    for place, message in enumerate(response.messages):
        left -= 64 + len(message.key or b"") + len(message.value)
        left -= sum(4 * len(header.name) + len(header.value) + 32 for header in message.headers)
        if left < 0:
            return Messages(response.messages[: max(1, place)])
    return response


def greet(handshake: Handshake, capabilities: Capability = CAPABILITIES) -> HandshakeResult:
    """The answer to a handshake: whether the versions are equal, and the capabilities that both sides have."""
    known, asked = PROTOCOL_VERSION, handshake.protocol_version
    words = "OK" if asked == known else f"Version mismatch: client={asked}, server={known}"
    return HandshakeResult(known, asked == known, words, handshake.capabilities & capabilities)


def refuse(error: Malformed) -> list[Piece]:
    """The frame that tells a client what was wrong with its own; the connection goes on."""
    form, correlation_id = error.facts.get("format", Format.POSTCARD), error.facts.get("correlation_id", 0)
    return encode_response(responses.Error(f"INVALID_REQUEST: {error.facts['reason']}"), correlation_id, form)


def refuse_oversized(length: int) -> list[Piece]:
    """The frame that tells a client that its own is too long; the connection ends after it."""
    return encode_response(responses.Error(f"MESSAGE_TOO_LARGE: {length} bytes exceeds limit"), 0)


def _payload(body: Piece) -> Piece:
    return memoryview(body)[FRAME_HEADER_BYTES:]


@cache
def _protobuf() -> Protobuf:
    """Loaded when the first protobuf frame comes: most servers never see one."""
    try:
        from .protobuf import Protobuf

        return Protobuf()
    except (ImportError, FileNotFoundError):
        error = unreadable("Protobuf support requires the 'protobuf' feature")
        error.facts["format"] = Format.POSTCARD  # what the refusal can be said in
        raise error from None

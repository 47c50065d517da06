"""Bytes <-> frames <-> requests: one vocabulary for all dialects, and the native protocol that speaks it."""

from . import kafka, requests, responses
from .bounds import ANSWER_BYTES_MAX, BATCHES_REPLY_BYTES_MAX, REPLY_BYTES_MAX, REQUEST_BYTES_MAX
from .detect import Dialect, detect, dialect_of
from .frame import Format, Splitter
from .native import (
    CAPABILITIES,
    PROTOCOL_VERSION,
    Answer,
    Call,
    Capability,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    fitting,
    greet,
    refuse,
    refuse_oversized,
)
from .requests import Request
from .responses import Response
from .schema import Piece

__all__ = [
    "ANSWER_BYTES_MAX",
    "BATCHES_REPLY_BYTES_MAX",
    "CAPABILITIES",
    "PROTOCOL_VERSION",
    "REPLY_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "Answer",
    "Call",
    "Capability",
    "Dialect",
    "Format",
    "Piece",
    "Request",
    "Response",
    "Splitter",
    "decode_request",
    "decode_response",
    "detect",
    "dialect_of",
    "encode_request",
    "encode_response",
    "fitting",
    "greet",
    "kafka",
    "refuse",
    "refuse_oversized",
    "requests",
    "responses",
]

"""Bytes <-> frames <-> requests: one vocabulary for all dialects, and the native protocol that speaks it."""

from . import kafka, requests, responses
from .bounds import ANSWER_BYTES_MAX, BATCHES_REPLY_BYTES_MAX, REPLY_BYTES_MAX, REQUEST_BYTES_MAX
from .detect import Dialect, detect, dialect_of
from .frame import LENGTH, TRUSTED_BYTES, Format, Splitter, cut, is_watched
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
    "LENGTH",
    "PROTOCOL_VERSION",
    "REPLY_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "TRUSTED_BYTES",
    "Answer",
    "Call",
    "Capability",
    "Dialect",
    "Format",
    "Piece",
    "Request",
    "Response",
    "Splitter",
    "cut",
    "decode_request",
    "decode_response",
    "detect",
    "dialect_of",
    "encode_request",
    "encode_response",
    "fitting",
    "greet",
    "is_watched",
    "kafka",
    "refuse",
    "refuse_oversized",
    "requests",
    "responses",
]

"""The Kafka dialect on the wire: one table of apis, and codecs for each of their versions, loaded when asked for.

`made.produce.ProduceRequest` and its like are the messages; `decode_request` and its three siblings are the frames.
"""

from . import made
from .apis import API_VERSIONS, APIS, SERVED, Api, Stage
from .codec import Call, asks_for_versions, decode_request, decode_response, encode_request, encode_response
from .errors import Error, code_of
from .primitives import NO_ID

__all__ = [
    "APIS",
    "API_VERSIONS",
    "NO_ID",
    "SERVED",
    "Api",
    "Call",
    "Error",
    "Stage",
    "asks_for_versions",
    "code_of",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "made",
]

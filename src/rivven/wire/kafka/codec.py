"""Kafka's frames: a header and a message, both ways, in any version of any api that has codecs.

A server decodes calls and encodes responses, a client the reverse. Records are never copied: they are views into
the frame that came, and pieces of their own in the frame that goes. Whatever is wrong with a frame is `Malformed`
with as much of its header as could be read among the facts; bytes behind a message are ignored, as Kafka does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from rivven.errors import Malformed

from ..schema import Message, Piece
from .apis import API_VERSIONS, APIS, SERVED, Api
from .primitives import skip_tags, unreadable
from .twin import readers, writers

if TYPE_CHECKING:
    pass

LENGTH = struct.Struct(">i")
REQUEST_HEAD = struct.Struct(">hhih")
"""Api key, version, correlation id, and the length of the client id."""
RESPONSE_HEAD = struct.Struct(">ii")
CORRELATION_ID = struct.Struct(">i")
CUT_SHORT = "it is cut short"

Reader: TypeAlias = Callable[[Any, int, int], tuple[Any, int]]
Writer: TypeAlias = Callable[[Any, bytearray, list[Piece]], bytearray]


class Call(msgspec.Struct, frozen=True, gc=False):
    """One request as it came in; answer it with the same api, version and correlation id."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    request: Any


class Codec(NamedTuple):
    """How the messages of one api are read and written, by version, and which have records inside."""

    api: Api
    read_request: dict[int, Reader]
    write_request: dict[int, Writer]
    read_response: dict[int, Reader]
    write_response: dict[int, Writer]
    has_records: tuple[bool, bool]


_CODECS: dict[int, Codec] = {}
_KEYS: dict[str, int] = {f"{api.name}Request": api.key for api in APIS.values()}
HOLDS_RECORDS = {0: (True, False), 1: (False, True), 78: (False, True)}
"""Which have records, the request or the response."""


def codec_of(key: int) -> Codec:
    """The codec of an api that has one, loaded when first asked for."""
    found = _CODECS.get(key)
    if found is None:
        api = APIS[key]
        module = import_module(f".made.{api.module}", __package__)
        found = _CODECS[key] = Codec(
            api,
            readers(key, module.DECODE_REQUEST),
            module.ENCODE_REQUEST,
            module.DECODE_RESPONSE,
            writers(key, module.ENCODE_RESPONSE),
            HOLDS_RECORDS.get(key, (False, False)),
        )
    return found


# The server's side


def decode_request(body: Piece, *, apis: Mapping[int, Api] = SERVED) -> Call:
    """The request in a frame; `body` is what follows the length. Of `apis` alone, in their versions."""
    if len(body) < REQUEST_HEAD.size:
        raise Malformed(what="Kafka request", reason="its header is cut short", **_facts(body))
    key, version, correlation_id, id_bytes = REQUEST_HEAD.unpack_from(body)
    api = apis.get(key)
    if api is None or not api.oldest <= version <= api.newest:
        named = f"api {key}" if api is None else api.name
        raise Malformed(what="Kafka request", reason=f"{named} version {version} is not served", **_facts(body))
    codec = _CODECS.get(key) or codec_of(key)
    try:
        data = memoryview(body) if codec.has_records[0] else bytes(body)
        client_id, at = _client_id(data, REQUEST_HEAD.size, id_bytes)
        if version >= api.flexible:
            at = at + 1 if data[at] == 0 else skip_tags(data, at)
        request = read(codec.read_request[version], data, at)
    except (Malformed, IndexError, struct.error) as error:
        reason = error.facts["reason"] if isinstance(error, Malformed) else CUT_SHORT
        what = f"{api.name} request of version {version}"
        raise Malformed(what=what, reason=reason, **_facts(body)) from None
    return Call(key, version, correlation_id, client_id, request)


def encode_response(response: Message, api_key: int, version: int, correlation_id: int) -> list[Piece]:
    """A whole frame, as buffers to be written one after another."""
    codec = _CODECS.get(api_key) or codec_of(api_key)
    out = bytearray(RESPONSE_HEAD.size)
    if version >= codec.api.flexible and api_key != API_VERSIONS:
        out.append(0)
    parts = written(codec.write_response[version], response, version, out)
    length = (len(parts[0]) if len(parts) == 1 else sum(map(len, parts))) - LENGTH.size
    RESPONSE_HEAD.pack_into(parts[0], 0, length, correlation_id)
    return parts


def asks_for_versions(error: Malformed) -> bool:
    """Whether it was ApiVersions of a version that nobody knows yet, which is answered in version 0: every client
    reads that. To any other request that was not taken there is no answer, and the connection has to end."""
    facts = error.facts
    whole = facts.get("api_key") == API_VERSIONS and facts.get("correlation_id") is not None
    return whole and not APIS[API_VERSIONS].knows(facts["version"])


# The client's side


def encode_request(request: Message, version: int, correlation_id: int, client_id: str | None) -> list[Piece]:
    """A whole frame, as buffers to be written one after another."""
    codec = codec_of(_KEYS[type(request).__name__])
    named = b"" if client_id is None else client_id.encode()
    out = bytearray(LENGTH.size)
    out += REQUEST_HEAD.pack(codec.api.key, version, correlation_id, -1 if client_id is None else len(named))
    out += named
    if version >= codec.api.flexible:
        out.append(0)
    parts = written(codec.write_request[version], request, version, out)
    LENGTH.pack_into(parts[0], 0, sum(map(len, parts)) - LENGTH.size)
    return parts


def decode_response(body: Piece, api_key: int, version: int) -> tuple[int, Any]:
    """The correlation id and the response in a frame; `body` is what follows the length."""
    codec = codec_of(api_key)
    what = f"{codec.api.name} response of version {version}"
    try:
        data = memoryview(body) if codec.has_records[1] else bytes(body)
        (correlation_id,) = CORRELATION_ID.unpack_from(data)
        at = CORRELATION_ID.size
        if version >= codec.api.flexible and api_key != API_VERSIONS:
            at = skip_tags(data, at)
        return correlation_id, read(codec.read_response[version], data, at)
    except (Malformed, IndexError, struct.error) as error:
        reason = error.facts["reason"] if isinstance(error, Malformed) else CUT_SHORT
        raise Malformed(what=what, reason=reason) from None


# Both


def read(reader: Reader, data: Piece, at: int) -> Any:
    end = len(data)
    try:
        message, at = reader(data, at, end)
    except UnicodeDecodeError:
        raise unreadable("a string is not UTF-8") from None
    if at > end:
        raise unreadable(CUT_SHORT)
    return message


def written(writer: Writer, message: Message, version: int, out: bytearray) -> list[Piece]:
    """What a message and the head before it become. A value that the version cannot say is `Malformed`."""
    parts: list[Piece] = []
    try:
        out = writer(message, out, parts)
    except (struct.error, ValueError) as error:
        raise Malformed(what=f"{type(message).__name__} of version {version}", reason=str(error)) from None
    if out:
        parts.append(out)
    return parts


def _client_id(data: Piece, at: int, length: int) -> tuple[str | None, int]:
    """The name that a client gives itself, which decides nothing: what is not UTF-8 in it is replaced."""
    if length < 0:
        return None, at
    stop = at + length
    return str(data[at:stop], "utf-8", "replace"), stop


def _facts(body: Piece) -> dict[str, int | None]:
    """As much of a header as there is."""
    data = bytes(body[:8])
    names = (("api_key", 0, 2), ("version", 2, 4), ("correlation_id", 4, 8))
    return {
        name: int.from_bytes(data[first:last], "big", signed=True) if len(data) >= last else None
        for name, first, last in names
    }

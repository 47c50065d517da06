"""The protobuf encoding of the native protocol: the messages of `rivven.proto` to the vocabulary and back.

Most messages have the fields of their class under the same names, and are copied by the class's shape. Those that
differ, where protobuf came to another picture of the same thing, stand in `odd`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, EncodeError

from rivven.errors import Malformed

from . import responses
from .bounds import unreadable
from .copying import Proto, check, read, write
from .odd import ODD, Way, read_authenticate
from .requests import REQUESTS, Request
from .responses import RESPONSES, Response
from .schema import Message, Piece, shape
from .weigh import weigh

PROTOCOL_VERSION = 2
ANSWERS: dict[str, type[Response]] = {
    "publish": responses.Published,
    "consume": responses.Messages,
    "create_topic": responses.TopicCreated,
    "delete_topic": responses.TopicDeleted,
    "list_topics": responses.Topics,
    "get_metadata": responses.Metadata,
    "commit_offset": responses.OffsetCommitted,
    "get_offset": responses.CommittedOffset,
    "authenticate": responses.Authenticated,
    "ping": responses.Pong,
    "get_cluster_metadata": responses.ClusterMetadata,
    "get_offset_bounds": responses.OffsetBounds,
    "list_groups": responses.Groups,
    "describe_group": responses.GroupDescription,
    "delete_group": responses.GroupDeleted,
    "get_offset_for_timestamp": responses.OffsetForTimestamp,
    "init_producer_id": responses.ProducerIdInitialized,
    "idempotent_publish": responses.IdempotentPublished,
    "begin_transaction": responses.TransactionStarted,
    "commit_transaction": responses.TransactionCommitted,
    "abort_transaction": responses.TransactionAborted,
    "partitions_added_to_txn": responses.PartitionsAddedToTxn,
    "transactional_publish": responses.TransactionalPublished,
    "offsets_added_to_txn": responses.OffsetsAddedToTxn,
    "alter_topic_config": responses.TopicConfigAltered,
    "describe_topic_configs": responses.TopicConfigsDescribed,
    "create_partitions": responses.PartitionsCreated,
    "delete_records": responses.RecordsDeleted,
    "scram_server_first": responses.ScramServerFirst,
    "scram_server_final": responses.ScramServerFinal,
    "quotas_described": responses.QuotasDescribed,
    "quotas_altered": responses.QuotasAltered,
    "throttled": responses.Throttled,
    "handshake_result": responses.HandshakeResult,
    "ok": responses.Ok,
    "error": responses.Error,
    "produced_batches": responses.ProducedBatches,
    "fetched_batches": responses.FetchedBatches,
    "published_records": responses.PublishedBatch,
    "metrics": responses.Metrics,
    "owner_registered": responses.OwnerRegistered,
    "decided": responses.Decided,
    "found_batches": responses.FoundBatches,
}


class Protobuf:
    """Both directions of both halves of the vocabulary."""

    def __init__(self) -> None:
        classes = load()
        self._request, self._response = classes["Request"], classes["Response"]
        known = self._request.DESCRIPTOR.oneofs_by_name["request_type"].fields
        fields = {field.name for field in known} | {"sasl_authenticate"}
        self._asked = _ways({name: kind for kind in REQUESTS if (name := snake(kind)) in fields}, ODD)
        self._answered = _ways(ANSWERS, ODD)
        self._readers = {way.field: way.read for way in self._asked.values()} | {"authenticate": read_authenticate}
        self._answer_readers = {way.field: way.read for way in self._answered.values()}

    def decode_request(self, payload: Piece) -> Request:
        weigh(self._request.DESCRIPTOR, payload)
        envelope = _parsed(self._request, payload)
        field = envelope.WhichOneof("request_type")
        if field is None:
            raise unreadable("Missing request_type")
        request = self._readers[field](getattr(envelope, field))
        check(shape(type(request)), request, {})
        return request  # type: ignore[return-value]

    def decode_response(self, payload: Piece) -> Response:
        envelope = _parsed(self._response, payload)
        field = envelope.WhichOneof("response_type")
        if field is None:
            raise unreadable("Missing response_type")
        response = self._answer_readers[field](getattr(envelope, field))
        check(shape(type(response)), response, {})
        return response  # type: ignore[return-value]

    def encode_request(self, request: Request) -> bytes:
        return _written(self._request, self._asked, request)

    def encode_response(self, response: Response) -> bytes:
        return _written(self._response, self._answered, response)


def load() -> dict[str, Any]:
    """The classes of the schema, in a pool of their own: another package may know the same names."""
    compiled = descriptor_pb2.FileDescriptorSet()
    compiled.ParseFromString(Path(__file__).with_name("rivven.desc").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in compiled.file:
        pool.Add(file)
    wanted = [pool.FindMessageTypeByName(f"{file.package}.{kind}") for kind in ("Request", "Response")]
    return {found.name: message_factory.GetMessageClass(found) for found in wanted}


def snake(kind: type[Message]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _ways(kinds: dict[str, Any], odd: dict[type[Message], Way]) -> dict[type[Message], Way]:
    return {kind: odd.get(kind) or plain(name, kind) for name, kind in kinds.items()}


def plain(field: str, kind: type[Message]) -> Way:
    layout = shape(kind)
    return Way(field, lambda proto: read(layout, proto), lambda value, proto: write(layout, value, proto))


def _parsed(kind: Any, payload: Piece) -> Proto:
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise unreadable(f"Protobuf decode error: {error}") from None


def _written(kind: Any, ways: dict[type[Message], Way], message: Message) -> bytes:
    way = ways.get(type(message))
    if way is None:
        raise Malformed(what=type(message).__name__, reason="not available in protobuf; use postcard")
    envelope = kind()
    envelope.header.version = PROTOCOL_VERSION
    proto = getattr(envelope, way.field)
    proto.SetInParent()
    try:
        way.write(message, proto)
        return envelope.SerializeToString()  # type: ignore[no-any-return]
    except (ValueError, TypeError, EncodeError) as error:
        raise Malformed(what=type(message).__name__, reason=str(error)) from None


assert set(ANSWERS.values()) <= set(RESPONSES)

"""Everything a broker can answer, to whichever dialect: the other half of the vocabulary.

As in `requests`, a class is its own layout, and new answers come at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from .bounds import HEADERS_MAX, LIST_MAX, MESSAGES_MAX, NESTED_MAX
from .requests import TopicAssignment, TxnProducer
from .schema import I32, I64, U16, U32, U64, AtMost, Batches, Capabilities, Message, Name, Names


class Response(Message, frozen=True):
    """What a broker answers."""


# Who speaks


class Authenticated(Response, frozen=True):
    session_id: str
    expires_in_s: U64


class ScramServerFirst(Response, frozen=True):
    message: bytes


class ScramServerFinal(Response, frozen=True):
    """A failure has neither session nor expiry, and says why in its message."""

    message: bytes
    session_id: str | None = None
    expires_in_s: U64 | None = None


# Records in and out


class Published(Response, frozen=True):
    offset: U64
    partition: U32


class MessageHeader(Message, frozen=True):
    name: str
    value: bytes


class MessageData(Message, frozen=True):
    """One record as it is read."""

    offset: U64
    partition: U32
    key: bytes | None
    value: bytes
    timestamp_ms: I64
    headers: Annotated[tuple[MessageHeader, ...], AtMost(HEADERS_MAX)] = ()


class Messages(Response, frozen=True):
    messages: Annotated[tuple[MessageData, ...], AtMost(MESSAGES_MAX)]


# Topics, groups' offsets and the cluster


class TopicCreated(Response, frozen=True):
    name: str
    partitions: U32


class Topics(Response, frozen=True):
    topics: Names


class TopicDeleted(Response, frozen=True):
    pass


class OffsetCommitted(Response, frozen=True):
    pass


class CommittedOffset(Response, frozen=True):
    """`Offset` on the wire. None where the group never committed one."""

    offset: U64 | None


class Metadata(Response, frozen=True):
    name: str
    partitions: U32


class BrokerInfo(Message, frozen=True):
    node_id: str
    host: str
    port: U16
    rack: str | None = None


class PartitionMetadata(Message, frozen=True):
    partition: U32
    leader: str | None
    replicas: Annotated[tuple[str, ...], AtMost(NESTED_MAX)]
    isr: Annotated[tuple[str, ...], AtMost(NESTED_MAX)]
    offline: bool = False


class TopicMetadata(Message, frozen=True):
    name: str
    is_internal: bool
    partitions: Annotated[tuple[PartitionMetadata, ...], AtMost(NESTED_MAX)]


class ClusterMetadata(Response, frozen=True):
    controller_id: str | None
    brokers: Annotated[tuple[BrokerInfo, ...], AtMost(LIST_MAX)]
    topics: Annotated[tuple[TopicMetadata, ...], AtMost(LIST_MAX)]


class Pong(Response, frozen=True):
    pass


class OffsetBounds(Response, frozen=True):
    """`latest` is the next offset to be written."""

    earliest: U64
    latest: U64


class Groups(Response, frozen=True):
    groups: Names


class GroupDescription(Response, frozen=True):
    """Committed offsets by topic and partition."""

    consumer_group: str
    offsets: Annotated[
        Mapping[str, Annotated[Mapping[U32, U64], AtMost(NESTED_MAX, "offsets")]], AtMost(MESSAGES_MAX)
    ]


class GroupDeleted(Response, frozen=True):
    pass


class OffsetForTimestamp(Response, frozen=True):
    offset: U64 | None


class Error(Response, frozen=True):
    """The request failed; the text begins with a code in capitals."""

    message: str


class Ok(Response, frozen=True):
    pass


# Idempotent producers and transactions


class ProducerIdInitialized(Response, frozen=True):
    producer_id: U64
    producer_epoch: U16


class IdempotentPublished(Response, frozen=True):
    offset: U64
    partition: U32
    duplicate: bool


class TransactionStarted(Response, frozen=True):
    txn_id: str


class PartitionsAddedToTxn(Response, frozen=True):
    txn_id: str
    partition_count: U64


class TransactionalPublished(Response, frozen=True):
    offset: U64
    partition: U32
    sequence: I32


class OffsetsAddedToTxn(Response, frozen=True):
    txn_id: str


class TransactionCommitted(Response, frozen=True):
    txn_id: str


class TransactionAborted(Response, frozen=True):
    txn_id: str


# Quotas, topic configuration, partitions


class QuotaEntry(Message, frozen=True):
    entity_type: str
    entity_name: str | None
    quotas: Annotated[Mapping[str, U64], AtMost(NESTED_MAX)]


class QuotasDescribed(Response, frozen=True):
    entries: Annotated[tuple[QuotaEntry, ...], AtMost(MESSAGES_MAX)]


class QuotasAltered(Response, frozen=True):
    altered_count: U64


class Throttled(Response, frozen=True):
    throttle_time_ms: U64
    quota_type: str
    entity: str


class TopicConfigAltered(Response, frozen=True):
    topic: str
    changed_count: U64


class PartitionsCreated(Response, frozen=True):
    topic: str
    new_partition_count: U32


class DeleteRecordsResult(Message, frozen=True):
    partition: U32
    low_watermark: U64
    error: str | None = None


class RecordsDeleted(Response, frozen=True):
    topic: str
    results: Annotated[tuple[DeleteRecordsResult, ...], AtMost(LIST_MAX)]


class TopicConfigValue(Message, frozen=True):
    value: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool


class TopicConfigDescription(Message, frozen=True):
    topic: str
    configs: Annotated[Mapping[str, TopicConfigValue], AtMost(HEADERS_MAX)]


class TopicConfigsDescribed(Response, frozen=True):
    configs: Annotated[tuple[TopicConfigDescription, ...], AtMost(LIST_MAX)]


class HandshakeResult(Response, frozen=True):
    """`capabilities` is ours: what both sides know, written only to a client that named some."""

    server_version: U32
    compatible: bool
    message: str
    capabilities: Capabilities = 0


# Consumer groups


class GroupMember(Message, frozen=True):
    member_id: str
    subscriptions: Annotated[tuple[Name, ...], AtMost(NESTED_MAX)]


class JoinGroupResult(Response, frozen=True):
    generation_id: U32
    protocol_type: str
    member_id: str
    leader_id: str
    members: Annotated[tuple[GroupMember, ...], AtMost(LIST_MAX)]


class SyncGroupResult(Response, frozen=True):
    assignments: Annotated[tuple[TopicAssignment, ...], AtMost(LIST_MAX)]


class HeartbeatResult(Response, frozen=True):
    """27 asks the member to join again."""

    error_code: I32


class LeaveGroupResult(Response, frozen=True):
    pass


# Many records at once


class PublishedBatch(Response, frozen=True):
    base_offset: U64
    partition: U32
    record_count: U32


class IdempotentPublishedBatch(Response, frozen=True):
    base_offset: U64
    partition: U32
    record_count: U32
    duplicate: bool


# Ours from here on: known to peers that shook hands on it


class PartitionProduced(Message, frozen=True):
    """`error` is a code of `rivven.errors`, 0 for none; with one the offsets are -1. No append time is -1."""

    partition: U32
    error: U16
    error_message: str | None
    base_offset: I64
    log_append_time_ms: I64
    log_start_offset: I64


class TopicProduced(Message, frozen=True):
    topic: str
    partitions: Annotated[tuple[PartitionProduced, ...], AtMost(NESTED_MAX)]


class ProducedBatches(Response, frozen=True):
    topics: Annotated[tuple[TopicProduced, ...], AtMost(LIST_MAX)]


class AbortedTransaction(Message, frozen=True):
    producer_id: U64
    first_offset: U64


class PartitionFetched(Message, frozen=True):
    """`batches` as on disk: whole ones, from the one that holds the offset."""

    partition: U32
    error: U16
    error_message: str | None
    high_watermark: I64
    last_stable_offset: I64
    log_start_offset: I64
    aborted: Annotated[tuple[AbortedTransaction, ...], AtMost(NESTED_MAX)]
    batches: Batches


class TopicFetched(Message, frozen=True):
    topic: str
    partitions: Annotated[tuple[PartitionFetched, ...], AtMost(NESTED_MAX)]


class FetchedBatches(Response, frozen=True):
    topics: Annotated[tuple[TopicFetched, ...], AtMost(LIST_MAX)]


class Place(Message, frozen=True):
    """Whole batches in a file of the server's machine, both known by more than a name. If `dense`, each begins where
    the one before it ends."""

    machine: str
    path: str
    device: U64
    inode: U64
    position: U64
    length: U32
    dense: bool


class PartitionFound(PartitionFetched, frozen=True):
    """`batches` or, where that would be many bytes, the `places` where they stand, one behind the other."""

    places: Annotated[tuple[Place, ...], AtMost(NESTED_MAX)] = ()


class TopicFound(Message, frozen=True):
    topic: str
    partitions: Annotated[tuple[PartitionFound, ...], AtMost(NESTED_MAX)]


class FoundBatches(Response, frozen=True):
    topics: Annotated[tuple[TopicFound, ...], AtMost(LIST_MAX)]


class Metrics(Response, frozen=True):
    """In the Prometheus text format."""

    text: str


class OwnerRegistered(Response, frozen=True):
    """`decided` is the last sequence that was decided, where one was."""

    owner_epoch: U64
    decided: U64 | None


class Decided(Response, frozen=True):
    """What was committed under the sequence, now or when it was decided; not `known` if that is too long ago.
    `repeated` says that it had been decided before, and that nothing has changed."""

    sequence: U64
    known: bool
    committed: Annotated[tuple[TxnProducer, ...], AtMost(LIST_MAX)]
    repeated: bool


RESPONSES: tuple[type[Response], ...] = (
    *(Authenticated, ScramServerFirst, ScramServerFinal, Published, Messages, TopicCreated, Topics),
    *(TopicDeleted, OffsetCommitted, CommittedOffset, Metadata, ClusterMetadata, Pong, OffsetBounds, Groups),
    *(GroupDescription, GroupDeleted, OffsetForTimestamp, Error, Ok, ProducerIdInitialized),
    *(IdempotentPublished, TransactionStarted, PartitionsAddedToTxn, TransactionalPublished),
    *(OffsetsAddedToTxn, TransactionCommitted, TransactionAborted, QuotasDescribed, QuotasAltered, Throttled),
    *(TopicConfigAltered, PartitionsCreated, RecordsDeleted, TopicConfigsDescribed, HandshakeResult),
    *(JoinGroupResult, SyncGroupResult, HeartbeatResult, LeaveGroupResult),
    *(PublishedBatch, IdempotentPublishedBatch),
    *(ProducedBatches, FetchedBatches, Metrics),
    *(OwnerRegistered, Decided),
    FoundBatches,
)
"""In the order of their numbers on the wire."""

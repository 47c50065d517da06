"""Everything a client can ask, whichever dialect it speaks: the one vocabulary of the data plane.

The classes stand in the order of the native protocol, and their fields in the order of its bytes: a class is its
own layout, so a field may be renamed here and never moved. New requests come at the end.
"""

from __future__ import annotations

from typing import Annotated

from .bounds import HEADERS_MAX, LIST_MAX, NESTED_MAX, SECRET_BYTES_MAX
from .schema import (
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    AtMost,
    Batches,
    Capabilities,
    Message,
    Name,
    Names,
    Password,
    Secret,
    TopicName,
)


class Request(Message, frozen=True):
    """What a client asks."""


# Who speaks


class Authenticate(Request, frozen=True):
    username: Name
    password: Password
    require_tls: bool


class SaslAuthenticate(Request, frozen=True):
    mechanism: Annotated[bytes, AtMost(256)]
    auth_bytes: Secret


class ScramClientFirst(Request, frozen=True):
    message: Annotated[bytes, AtMost(SECRET_BYTES_MAX)]


class ScramClientFinal(Request, frozen=True):
    message: Annotated[bytes, AtMost(SECRET_BYTES_MAX)]


# Records in and out


class Publish(Request, frozen=True):
    """One record. Without a partition the broker chooses one, by the key if there is one."""

    topic: Name
    partition: U32 | None
    key: bytes | None
    value: bytes
    leader_epoch: U64 | None = None


class Consume(Request, frozen=True):
    """Records from an offset on. `isolation_level` 1 hides what is not committed."""

    topic: Name
    partition: U32
    offset: U64
    max_messages: U32
    isolation_level: U8 | None = None
    max_wait_ms: U64 | None = None


# Topics, groups' offsets and the cluster


class CreateTopic(Request, frozen=True):
    name: TopicName
    partitions: U32 | None = None


class ListTopics(Request, frozen=True):
    pass


class DeleteTopic(Request, frozen=True):
    name: TopicName


class CommitOffset(Request, frozen=True):
    consumer_group: Name
    topic: Name
    partition: U32
    offset: U64


class GetOffset(Request, frozen=True):
    consumer_group: Name
    topic: Name
    partition: U32


class GetMetadata(Request, frozen=True):
    topic: Name


class GetClusterMetadata(Request, frozen=True):
    """No topics named: all of them."""

    topics: Names


class Ping(Request, frozen=True):
    pass


class GetOffsetBounds(Request, frozen=True):
    topic: str
    partition: U32


class ListGroups(Request, frozen=True):
    pass


class DescribeGroup(Request, frozen=True):
    consumer_group: Name


class DeleteGroup(Request, frozen=True):
    consumer_group: Name


class GetOffsetForTimestamp(Request, frozen=True):
    topic: Name
    partition: U32
    timestamp_ms: I64


# Idempotent producers and transactions


class InitProducerId(Request, frozen=True):
    producer_id: U64 | None = None


class IdempotentPublish(Request, frozen=True):
    topic: Name
    partition: U32 | None
    key: bytes | None
    value: bytes
    producer_id: U64
    producer_epoch: U16
    sequence: I32
    leader_epoch: U64 | None = None


class BeginTransaction(Request, frozen=True):
    txn_id: Name
    producer_id: U64
    producer_epoch: U16
    timeout_ms: U64 | None = None


class TxnPartition(Message, frozen=True):
    topic: str
    partition: U32


class AddPartitionsToTxn(Request, frozen=True):
    txn_id: Name
    producer_id: U64
    producer_epoch: U16
    partitions: Annotated[tuple[TxnPartition, ...], AtMost(LIST_MAX)]


class TransactionalPublish(Request, frozen=True):
    txn_id: Name
    topic: Name
    partition: U32 | None
    key: bytes | None
    value: bytes
    producer_id: U64
    producer_epoch: U16
    sequence: I32
    leader_epoch: U64 | None = None


class TxnOffset(Message, frozen=True):
    topic: str
    partition: U32
    offset: I64


class AddOffsetsToTxn(Request, frozen=True):
    txn_id: Name
    producer_id: U64
    producer_epoch: U16
    group_id: str
    offsets: Annotated[tuple[TxnOffset, ...], AtMost(LIST_MAX)]


class CommitTransaction(Request, frozen=True):
    txn_id: Name
    producer_id: U64
    producer_epoch: U16


class AbortTransaction(Request, frozen=True):
    txn_id: Name
    producer_id: U64
    producer_epoch: U16


# Quotas, topic configuration, partitions


class QuotaEntity(Message, frozen=True):
    entity_type: str
    entity_name: str | None = None


class DescribeQuotas(Request, frozen=True):
    entities: Annotated[tuple[QuotaEntity, ...], AtMost(LIST_MAX)]


class QuotaAlteration(Message, frozen=True):
    """A value of None takes the quota away."""

    entity_type: str
    entity_name: str | None
    quota_key: str
    quota_value: U64 | None = None


class AlterQuotas(Request, frozen=True):
    alterations: Annotated[tuple[QuotaAlteration, ...], AtMost(LIST_MAX)]


class TopicConfigEntry(Message, frozen=True):
    """A value of None restores the default."""

    key: str
    value: str | None = None


class AlterTopicConfig(Request, frozen=True):
    topic: Name
    configs: Annotated[tuple[TopicConfigEntry, ...], AtMost(LIST_MAX)]


class CreatePartitions(Request, frozen=True):
    """`assignments` names the replicas of each new partition; empty, the broker places them."""

    topic: Name
    new_partition_count: U32
    assignments: Annotated[
        tuple[Annotated[tuple[Name, ...], AtMost(NESTED_MAX, "assignments")], ...], AtMost(LIST_MAX)
    ] = ()


class PartitionOffset(Message, frozen=True):
    partition: U32
    offset: U64


class DeleteRecords(Request, frozen=True):
    topic: Name
    partition_offsets: Annotated[tuple[PartitionOffset, ...], AtMost(LIST_MAX)]


class DescribeTopicConfigs(Request, frozen=True):
    topics: Names


class Handshake(Request, frozen=True):
    """The first frame of a connection. `capabilities` is ours: see `Capability`, and 0 from older clients."""

    protocol_version: U32
    client_id: Name
    capabilities: Capabilities = 0


# Consumer groups


class JoinGroup(Request, frozen=True):
    group_id: Name
    member_id: Name
    session_timeout_ms: U32
    rebalance_timeout_ms: U32
    protocol_type: Name
    subscriptions: Names


class TopicAssignment(Message, frozen=True):
    topic: Name
    partitions: Annotated[tuple[U32, ...], AtMost(NESTED_MAX)]


class MemberAssignment(Message, frozen=True):
    member_id: Name
    topics: Annotated[tuple[TopicAssignment, ...], AtMost(NESTED_MAX)]


class SyncGroup(Request, frozen=True):
    group_id: Name
    generation_id: U32
    member_id: Name
    assignments: Annotated[tuple[MemberAssignment, ...], AtMost(LIST_MAX)]


class Heartbeat(Request, frozen=True):
    group_id: Name
    generation_id: U32
    member_id: Name


class LeaveGroup(Request, frozen=True):
    group_id: Name
    member_id: Name


# Many records at once


class BatchRecord(Message, frozen=True):
    key: bytes | None
    value: bytes


class PublishBatch(Request, frozen=True):
    """Records for one partition, chosen by the first one's key where it is not given."""

    topic: Name
    partition: U32 | None
    records: Annotated[tuple[BatchRecord, ...], AtMost(LIST_MAX)]
    leader_epoch: U64 | None = None


class IdempotentPublishBatch(Request, frozen=True):
    topic: Name
    partition: U32 | None
    records: Annotated[tuple[BatchRecord, ...], AtMost(LIST_MAX)]
    producer_id: U64
    producer_epoch: U16
    base_sequence: I32
    leader_epoch: U64 | None = None


# Ours from here on: known to peers that shook hands on it


class PartitionBatches(Message, frozen=True):
    """Whole record batches for one partition, end to end."""

    partition: U32
    batches: Batches


class TopicBatches(Message, frozen=True):
    topic: Name
    partitions: Annotated[tuple[PartitionBatches, ...], AtMost(NESTED_MAX)]


class ProduceBatches(Request, frozen=True):
    """`acks` -1 waits for all in-sync replicas, 1 for the leader; 0 is answered too, before anything is certain.
    `transactional_id` is the `txn_id` of the transaction that the batches belong to, where they belong to one."""

    acks: I16
    timeout_ms: U32
    topics: Annotated[tuple[TopicBatches, ...], AtMost(LIST_MAX)]
    transactional_id: Name | None = None


class PartitionFetch(Message, frozen=True):
    """`current_leader_epoch` -1 where the client does not know it."""

    partition: U32
    fetch_offset: U64
    partition_max_bytes: U32
    current_leader_epoch: I32 = -1


class TopicFetch(Message, frozen=True):
    topic: Name
    partitions: Annotated[tuple[PartitionFetch, ...], AtMost(NESTED_MAX)]


class FetchBatches(Request, frozen=True):
    """Waits up to `max_wait_ms` for `min_bytes` in all. `isolation` 1 hides what is not committed."""

    max_wait_ms: U32
    min_bytes: U32
    max_bytes: U32
    isolation: U8
    topics: Annotated[tuple[TopicFetch, ...], AtMost(LIST_MAX)]


class FindBatches(FetchBatches, frozen=True):
    """`FetchBatches` of a client on the server's machine, which may be told where batches stand instead."""


class Header(Message, frozen=True):
    name: str
    value: bytes | None


class NewRecord(Message, frozen=True):
    """A record with all that a batch can hold: no value is a tombstone, no timestamp the broker's clock."""

    key: bytes | None
    value: bytes | None
    headers: Annotated[tuple[Header, ...], AtMost(HEADERS_MAX)] = ()
    timestamp_ms: I64 | None = None


class PublishRecords(Request, frozen=True):
    """`PublishBatch` with headers, tombstones and timestamps; answered alike."""

    topic: Name
    partition: U32 | None
    records: Annotated[tuple[NewRecord, ...], AtMost(LIST_MAX)]
    leader_epoch: U64 | None = None


class GetMetrics(Request, frozen=True):
    """The metrics whose names begin with `prefix`; empty, all of them."""

    prefix: Name = ""


class RegisterOwner(Request, frozen=True):
    """Become the one who decides for this owner; earlier registrations are fenced, what they left open aborts.
    With `join` take part in the present registration instead, if there is one."""

    owner: Name
    join: bool = False


class BeginOwnedTransaction(Request, frozen=True):
    """`BeginTransaction` for an owner that will decide under `sequence`; answered alike."""

    txn_id: Name
    producer_id: U64
    producer_epoch: U16
    timeout_ms: U64 | None
    owner: Name
    owner_epoch: U64
    sequence: U64


class TxnProducer(Message, frozen=True):
    """Whose transaction: a producer has one at most."""

    producer_id: U64
    producer_epoch: U16


class Decide(Request, frozen=True):
    """Of all transactions begun under the owner and the sequence, these commit and all others abort."""

    owner: Name
    owner_epoch: U64
    sequence: U64
    committing: Annotated[tuple[TxnProducer, ...], AtMost(LIST_MAX)]


class ForgetOwner(Request, frozen=True):
    """Give up an owner whose work is done and whose name is not used again; answered by `Ok`, also if it is unknown.
    Refused while one of its transactions is open."""

    owner: Name
    owner_epoch: U64


REQUESTS: tuple[type[Request], ...] = (
    *(Authenticate, SaslAuthenticate, ScramClientFirst, ScramClientFinal, Publish, Consume, CreateTopic),
    *(ListTopics, DeleteTopic, CommitOffset, GetOffset, GetMetadata, GetClusterMetadata, Ping),
    *(GetOffsetBounds, ListGroups, DescribeGroup, DeleteGroup, GetOffsetForTimestamp, InitProducerId),
    *(IdempotentPublish, BeginTransaction, AddPartitionsToTxn, TransactionalPublish, AddOffsetsToTxn),
    *(CommitTransaction, AbortTransaction, DescribeQuotas, AlterQuotas, AlterTopicConfig, CreatePartitions),
    *(DeleteRecords, DescribeTopicConfigs, Handshake, JoinGroup, SyncGroup, Heartbeat, LeaveGroup),
    *(PublishBatch, IdempotentPublishBatch),
    *(ProduceBatches, FetchBatches, PublishRecords, GetMetrics),
    *(RegisterOwner, BeginOwnedTransaction, Decide, ForgetOwner),
    FindBatches,
)
"""In the order of their numbers on the wire."""

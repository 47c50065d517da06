"""The messages that look different in protobuf: each is read and written by hand here.

Protobuf's picture is the older one: node ids are numbers, an offset that is missing is -1, a topic's metadata is
invented partition by partition. What it cannot say is lost on the way there, as it always was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from rivven.errors import Malformed
from rivven.limits import PARTITIONS_PER_TOPIC_MAX

from . import requests, responses
from .bounds import invalid, unreadable
from .copying import Proto, bounded, read, write
from .requests import GetMetadata
from .responses import (
    BrokerInfo,
    ClusterMetadata,
    CommittedOffset,
    GroupDescription,
    MessageData,
    MessageHeader,
    Messages,
    Metadata,
    PartitionMetadata,
    TopicConfigDescription,
    TopicConfigsDescribed,
    TopicConfigValue,
    TopicMetadata,
)
from .schema import Message, shape

Map: TypeAlias = dict[Any, Any]

UINT16_MAX = 2**16 - 1
UINT32_MAX = 2**32 - 1
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1


class Way(NamedTuple):
    """How one kind of message crosses over, and the field of the envelope that holds it."""

    field: str
    read: Callable[[Proto], Message]
    write: Callable[[Any, Proto], None]


# Who speaks


def read_authenticate(proto: Proto) -> Message:
    """One field for two requests: its mechanism says which."""
    match proto.WhichOneof("mechanism"):
        case "plain":
            return read(shape(requests.Authenticate), proto.plain)
        case "scram":
            return requests.SaslAuthenticate(proto.scram.mechanism.encode(), proto.scram.client_first)
        case _:
            raise unreadable("Missing mechanism")


def _write_plain(value: requests.Authenticate, proto: Proto) -> None:
    write(shape(requests.Authenticate), value, proto.plain)
    proto.plain.SetInParent()


def _write_sasl(value: requests.SaslAuthenticate, proto: Proto) -> None:
    try:
        proto.scram.mechanism = value.mechanism.decode()
    except UnicodeDecodeError:
        raise Malformed(what="SaslAuthenticate", reason="the mechanism is not text") from None
    proto.scram.client_first = value.auth_bytes


def _not_read(_: Proto) -> Message:
    raise AssertionError("the field `authenticate` is read by its mechanism")


# Messages and offsets


(_MESSAGES,) = shape(Messages).parts


def _read_messages(proto: Proto) -> Messages:
    return Messages(
        tuple(
            MessageData(
                record.offset,
                record.partition,
                record.key if record.has_key else None,
                record.value,
                record.timestamp,
                tuple(MessageHeader(header.key, header.value) for header in record.headers),
            )
            for record in bounded(_MESSAGES, proto.records)
        )
    )


def _write_messages(value: Messages, proto: Proto) -> None:
    for message in value.messages:
        record = proto.records.add()
        record.offset, record.partition, record.timestamp = message.offset, message.partition, message.timestamp_ms
        record.value = message.value
        if message.key is not None:
            record.key, record.has_key = message.key, True
        for header in message.headers:
            record.headers.add(key=header.name, value=header.value)
    proto.high_watermark = min(max((message.offset + 1 for message in value.messages), default=0), UINT64_MAX)


def _read_committed(proto: Proto) -> CommittedOffset:
    return CommittedOffset(proto.offset if proto.offset >= 0 else None)


def _write_committed(value: CommittedOffset, proto: Proto) -> None:
    if value.offset is not None and value.offset > INT64_MAX:
        raise invalid(f"offset {value.offset} exceeds i64::MAX ({INT64_MAX})")
    proto.offset = -1 if value.offset is None else value.offset


def _read_group(proto: Proto) -> GroupDescription:
    offsets: Map = {
        topic.topic: {entry.partition: entry.offset for entry in topic.partition_offsets}
        for topic in proto.topic_offsets
    }
    return GroupDescription(proto.consumer_group, offsets)


def _write_group(value: GroupDescription, proto: Proto) -> None:
    proto.consumer_group = value.consumer_group
    for topic, partitions in value.offsets.items():
        entry = proto.topic_offsets.add(topic=topic)
        for partition, offset in partitions.items():
            entry.partition_offsets.add(partition=partition, offset=offset)


def _write_error(value: responses.Error, proto: Proto) -> None:
    proto.code = 1
    proto.message = value.message


# Topics and the cluster


def _read_get_metadata(proto: Proto) -> GetMetadata:
    return GetMetadata(proto.topics[0] if proto.topics else "")


def _write_get_metadata(value: GetMetadata, proto: Proto) -> None:
    proto.topics.append(value.topic)


def _read_metadata(proto: Proto) -> Metadata:
    if not proto.topics:
        return Metadata("", 0)
    return Metadata(proto.topics[0].name, len(proto.topics[0].partitions))


def _write_metadata(value: Metadata, proto: Proto) -> None:
    if value.partitions > PARTITIONS_PER_TOPIC_MAX:  # here each of them takes room
        raise invalid(f"{value.partitions} partitions, of at most {PARTITIONS_PER_TOPIC_MAX}")
    topic = proto.topics.add(name=value.name)
    for partition in range(value.partitions):
        topic.partitions.add(id=partition, leader=0, replicas=[0], isr=[0])


def node_number(node_id: str) -> int:
    """A node's name as protobuf's number: itself if it is one, else its FNV-1a hash in 31 bits."""
    if node_id.isascii() and node_id.isdecimal() and len(node_id) <= 64 and int(node_id) <= UINT32_MAX:
        return int(node_id)
    number = 0x811C9DC5
    for byte in node_id.encode():
        number = (number ^ byte) * 0x01000193 & UINT32_MAX
    return number & 0x7FFFFFFF


def _read_cluster(proto: Proto) -> ClusterMetadata:
    return ClusterMetadata(
        proto.controller_id if proto.HasField("controller_id") else None,
        tuple(_read_broker(broker) for broker in proto.brokers),
        tuple(
            TopicMetadata(topic.name, topic.internal, tuple(map(_read_partition, topic.partitions)))
            for topic in proto.topics
        ),
    )


def _read_broker(proto: Proto) -> BrokerInfo:
    if proto.port > UINT16_MAX:
        raise invalid(f"port {proto.port} exceeds u16::MAX ({UINT16_MAX})")
    return BrokerInfo(str(proto.id), proto.host, proto.port, proto.rack or None)


def _read_partition(proto: Proto) -> PartitionMetadata:
    leader = str(proto.leader) if proto.HasField("leader") else None
    replicas, isr = tuple(map(str, proto.replicas)), tuple(map(str, proto.isr))
    return PartitionMetadata(proto.id, leader, replicas, isr, offline=leader is None)


def _write_cluster(value: ClusterMetadata, proto: Proto) -> None:
    if value.controller_id is not None:
        proto.controller_id = value.controller_id
    for broker in value.brokers:
        number = node_number(broker.node_id)
        proto.brokers.add(id=number, host=broker.host, port=broker.port, rack=broker.rack or "")
    for topic in value.topics:
        named = proto.topics.add(name=topic.name, internal=topic.is_internal)
        for partition in topic.partitions:
            entry = named.partitions.add(id=partition.partition)
            if partition.leader is not None:
                entry.leader = node_number(partition.leader)
            entry.replicas.extend(map(node_number, partition.replicas))
            entry.isr.extend(map(node_number, partition.isr))


def _read_configs(proto: Proto) -> TopicConfigsDescribed:
    layout = shape(TopicConfigValue)
    return TopicConfigsDescribed(
        tuple(
            TopicConfigDescription(topic.topic, {entry.key: read(layout, entry) for entry in topic.entries})  # type: ignore[misc]
            for topic in proto.configs
        )
    )


def _write_configs(value: TopicConfigsDescribed, proto: Proto) -> None:
    layout = shape(TopicConfigValue)
    for topic in value.configs:
        named = proto.configs.add(topic=topic.topic)
        for key, config in topic.configs.items():
            write(layout, config, named.entries.add(key=key))


ODD: dict[type[Message], Way] = {
    requests.Authenticate: Way("authenticate", _not_read, _write_plain),
    requests.SaslAuthenticate: Way("authenticate", _not_read, _write_sasl),
    GetMetadata: Way("get_metadata", _read_get_metadata, _write_get_metadata),
    Metadata: Way("get_metadata", _read_metadata, _write_metadata),
    Messages: Way("consume", _read_messages, _write_messages),
    CommittedOffset: Way("get_offset", _read_committed, _write_committed),
    ClusterMetadata: Way("get_cluster_metadata", _read_cluster, _write_cluster),
    GroupDescription: Way("describe_group", _read_group, _write_group),
    TopicConfigsDescribed: Way("describe_topic_configs", _read_configs, _write_configs),
    responses.Error: Way("error", lambda proto: responses.Error(proto.message), _write_error),
}
"""By the class of the message; the rest is copied by its shape."""

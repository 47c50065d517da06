"""Whether a request may go on: what it would need permission for, and whether its sender is within its quota.

`resolve` is the one place that says what a request touches and how; authorisation will ask it. `Admission` is the
one place that counts towards quotas: once per request, and once per reply that carries records.
"""

from __future__ import annotations

from typing import NamedTuple

from rivven.coordinator import Quotas
from rivven.wire import Request
from rivven.wire import requests as ask

from .session import Session


class Need(NamedTuple):
    """A permission: the kind of resource, its name, and what would be done to it."""

    resource: str
    name: str
    action: str


CLUSTER = "default"


def resolve(request: Request) -> list[Need]:
    """What a request needs permission for; empty for those that anybody may send."""
    match request:
        case ask.Publish(topic=topic) | ask.PublishBatch(topic=topic) | ask.PublishRecords(topic=topic):
            return [Need("topic", topic, "write")]
        case ask.IdempotentPublish(topic=topic) | ask.IdempotentPublishBatch(topic=topic):
            return [Need("cluster", CLUSTER, "idempotent_write"), Need("topic", topic, "write")]
        case ask.TransactionalPublish(topic=topic):
            return [Need("cluster", CLUSTER, "idempotent_write"), Need("topic", topic, "write")]
        case ask.ProduceBatches(topics=topics):
            return [Need("topic", entry.topic, "write") for entry in topics]
        case ask.Consume(topic=topic):
            return [Need("topic", topic, "read")]
        case ask.FetchBatches(topics=topics):
            return [Need("topic", entry.topic, "read") for entry in topics]
        case ask.CreateTopic(name=name):
            return [Need("topic", name, "create")]
        case ask.DeleteTopic(name=name) | ask.DeleteRecords(topic=name):
            return [Need("topic", name, "delete")]
        case ask.AlterTopicConfig(topic=topic) | ask.CreatePartitions(topic=topic):
            return [Need("topic", topic, "alter")]
        case ask.GetMetadata(topic=topic) | ask.GetOffsetBounds(topic=topic) | ask.GetOffsetForTimestamp(topic=topic):
            return [Need("topic", topic, "describe")]
        case ask.CommitOffset(consumer_group=group, topic=topic):
            return [Need("group", group, "write"), Need("topic", topic, "read")]
        case ask.GetOffset(consumer_group=group, topic=topic):
            return [Need("group", group, "read"), Need("topic", topic, "read")]
        case ask.DescribeGroup(consumer_group=group):
            return [Need("group", group, "describe")]
        case ask.DeleteGroup(consumer_group=group):
            return [Need("group", group, "delete")]
        case (
            ask.JoinGroup(group_id=group)
            | ask.SyncGroup(group_id=group)
            | ask.Heartbeat(group_id=group)
            | ask.LeaveGroup(group_id=group)
        ):
            return [Need("group", group, "write")]
        case (
            ask.InitProducerId()
            | ask.BeginTransaction()
            | ask.AddPartitionsToTxn()
            | ask.AddOffsetsToTxn()
            | ask.CommitTransaction()
            | ask.AbortTransaction()
        ):
            return [Need("cluster", CLUSTER, "idempotent_write")]
        case ask.AlterQuotas():
            return [Need("cluster", CLUSTER, "alter")]
        case (
            ask.ListTopics()
            | ask.GetClusterMetadata()
            | ask.ListGroups()
            | ask.DescribeQuotas()
            | ask.DescribeTopicConfigs()
            | ask.GetMetrics()
        ):
            return [Need("cluster", CLUSTER, "describe")]
        case _:
            return []  # the handshake, a ping, and whoever is about to say who they are


class Admission:
    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas

    def charge(self, session: Session, key: str, amount: int, now_us: int) -> bool:
        """Count, and hold the client up if it had too much. Whether it is held up."""
        wait_ms = self.quotas.charge(key, amount, session.user, session.client_id, now_us)
        if wait_ms:
            session.muted_until_us = max(session.muted_until_us, now_us + wait_ms * 1000)
        return wait_ms > 0

"""Whether a request may go on: what it would need permission for, and whether its sender is within its quota.

`resolve` is the one place that says what a request touches and how; authorisation will ask it. `Admission` is the
one place that counts towards quotas: once per request, and once per reply that carries records.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rivven.coordinator import Quotas, QuotaTable
from rivven.errors import LimitReached
from rivven.limits import QUOTA_ENTITIES_MAX
from rivven.log import Document
from rivven.ports import Clock, Disk
from rivven.wire import Request
from rivven.wire import requests as ask

from .session import Session
from .stats import BrokerStats

logger = logging.getLogger(__name__)

QUOTAS = "quotas.json"


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
            | ask.RegisterOwner()
            | ask.BeginOwnedTransaction()
            | ask.Decide()
            | ask.ForgetOwner()
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


class Limit(NamedTuple):
    """A change of one quota: of whom, which, and how much; None takes it away."""

    entity_type: str
    entity_name: str | None
    key: str
    value: int | None


class Admission:
    """Counts what clients have towards their quotas, and keeps these in a file."""

    def __init__(self, disk: Disk, clock: Clock, stats: BrokerStats, defaults: Mapping[str, int]) -> None:
        self._clock = clock
        self._stats = stats
        self._file = Document(disk, QUOTAS, QuotaTable)
        table, came_from = self._file.load()
        if came_from == "damaged":
            logger.warning(
                "%s and its copy cannot be read; quotas are those of the configuration until set anew", QUOTAS
            )
        self._quotas = Quotas.from_table(table or QuotaTable(), dict(defaults))
        self.changes = 0
        """Goes up whenever limits are set or taken away."""
        self.is_limiting = self._quotas.is_limiting
        """Whether anybody has a limit."""

    def charge(self, session: Session, key: str, amount: int) -> None:
        """Count, and hold the client up if it had too much."""
        if not self.is_limiting:
            return
        now_us = self._clock.now_us()
        wait_ms = self._quotas.charge(key, amount, session.user, session.client_id, now_us)
        if wait_ms:
            session.muted_until_us = max(session.muted_until_us, now_us + wait_ms * 1000)
            self._stats.count_throttled(key, wait_ms)

    def stored(self) -> dict[tuple[str, str | None], dict[str, int]]:
        """The limits that were set, by entity type and name."""
        return self._quotas.stored()

    def effective(self, user: str | None, client_id: str | None) -> dict[str, int]:
        """The limits that apply to this user and client."""
        return self._quotas.effective(user, client_id)

    def alter(self, changes: Sequence[Limit]) -> int:
        """Set and take away limits, durably; how many there were that make sense."""
        here = self._quotas.stored()
        added = {(each.entity_type, each.entity_name) for each in changes if each.value is not None} - here.keys()
        if added and len(here) + len(added) > QUOTA_ENTITIES_MAX:
            remedy = "take some away first, or set a default for all"
            raise LimitReached(
                count=len(here), what="users, clients and groups with quotas", most=QUOTA_ENTITIES_MAX, remedy=remedy
            )
        altered = sum(self._quotas.alter(*change) for change in changes)
        if altered:
            self.changes += 1
            self.is_limiting = self._quotas.is_limiting
            self._file.save(self._quotas.to_table())
        return altered

"""What can be asked about topics, groups, transactions, quotas and the cluster: no state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rivven.wire import Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .failures import ConfigException, server_error
from .transactions_admin import TransactionsAdmin

R = TypeVar("R", bound=Response)


class Admin(TransactionsAdmin):
    """The administrative half of a client.

    Errors of the server are `ServerException`; whatever says `retriable` may be tried again.
    """

    async def _ask(self, request: Request, kind: type[R], *, repeat: bool = True) -> R:
        raise NotImplementedError

    # Topics

    async def create_topic(
        self, name: str, partitions: int | None = None, *, configs: Mapping[str, str] | None = None
    ) -> int:
        """Create a topic; how many partitions it has. None leaves that to the server.

        With `configs` it is made first and configured then, two requests in all; if the second fails the topic is
        deleted again.
        """
        count = (await self._ask(ask.CreateTopic(name, partitions), tell.TopicCreated, repeat=False)).partitions
        if configs:
            try:
                await self.alter_topic_config(name, configs.items())
            except BaseException:
                await self.delete_topic(name)
                raise
        return count

    async def list_topics(self) -> list[str]:
        return list((await self._ask(ask.ListTopics(), tell.Topics)).topics)

    async def delete_topic(self, name: str) -> None:
        await self._ask(ask.DeleteTopic(name), tell.TopicDeleted, repeat=False)

    async def get_metadata(self, name: str) -> tuple[str, int]:
        """The topic's name and how many partitions it has."""
        answer = await self._ask(ask.GetMetadata(name), tell.Metadata)
        return answer.name, answer.partitions

    async def create_partitions(self, topic: str, new_total: int) -> int:
        """Add partitions until there are `new_total`. Keys move to other partitions by that."""
        request = ask.CreatePartitions(topic, new_total)
        return (await self._ask(request, tell.PartitionsCreated, repeat=False)).new_partition_count

    async def describe_topic_configs(self, topic: str) -> dict[str, str]:
        """Every setting of a topic with its value, chosen or default."""
        return {key: entry.value for key, entry in (await self.describe_topic_config_entries(topic)).items()}

    async def describe_topic_config_entries(self, topic: str) -> dict[str, tell.TopicConfigValue]:
        """The same with what is known of each setting: its `value`, and whether that `is_default`."""
        answer = await self._ask(ask.DescribeTopicConfigs((topic,)), tell.TopicConfigsDescribed)
        return {key: entry for described in answer.configs for key, entry in described.configs.items()}

    async def alter_topic_config(
        self, topic: str, configs: Iterable[tuple[str, str | None]] | Mapping[str, str | None]
    ) -> int:
        """Change settings of a topic; None restores the default. How many were changed."""
        entries = tuple(_config_entries(configs.items() if isinstance(configs, Mapping) else configs))
        return (await self._ask(ask.AlterTopicConfig(topic, entries), tell.TopicConfigAltered)).changed_count

    # Offsets and records

    async def get_offset_bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that is there, and the next one to be written."""
        answer = await self._ask(ask.GetOffsetBounds(topic, partition), tell.OffsetBounds)
        return answer.earliest, answer.latest

    async def get_offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset whose timestamp is not before this; None if there is none."""
        request = ask.GetOffsetForTimestamp(topic, partition, timestamp_ms)
        return (await self._ask(request, tell.OffsetForTimestamp)).offset

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete what stands before an offset; the low watermark after that."""
        ((_, low_watermark, error),) = await self.delete_records_batch(topic, [(partition, before_offset)])
        if error is not None:
            raise server_error(error)
        return low_watermark

    async def delete_records_batch(
        self, topic: str, partition_offsets: Iterable[tuple[int, int]]
    ) -> list[tuple[int, int, str | None]]:
        """The same for several partitions: (partition, low watermark, error) of each."""
        entries = tuple(ask.PartitionOffset(partition, offset) for partition, offset in partition_offsets)
        answer = await self._ask(ask.DeleteRecords(topic, entries), tell.RecordsDeleted)
        return [(result.partition, result.low_watermark, result.error or None) for result in answer.results]

    # Groups

    async def list_groups(self) -> list[str]:
        return list((await self._ask(ask.ListGroups(), tell.Groups)).groups)

    async def describe_group(self, group: str) -> dict[str, dict[int, int]]:
        """Committed offsets by topic and partition."""
        answer = await self._ask(ask.DescribeGroup(group), tell.GroupDescription)
        return {topic: dict(offsets) for topic, offsets in answer.offsets.items()}

    async def delete_group(self, group: str) -> None:
        await self._ask(ask.DeleteGroup(group), tell.GroupDeleted, repeat=False)

    async def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        await self._ask(ask.CommitOffset(group, topic, partition, offset), tell.OffsetCommitted)

    async def get_offset(self, group: str, topic: str, partition: int) -> int | None:
        """What the group has committed; None if nothing."""
        return (await self._ask(ask.GetOffset(group, topic, partition), tell.CommittedOffset)).offset

    # Quotas

    async def describe_quotas(
        self, entities: Sequence[tuple[str, str | None]] = ()
    ) -> list[tuple[str, str | None, Mapping[str, int]]]:
        """(type, name, limits) of the entities, or of all that have some."""
        request = ask.DescribeQuotas(tuple(ask.QuotaEntity(kind, name) for kind, name in entities))
        answer = await self._ask(request, tell.QuotasDescribed)
        return [(entry.entity_type, entry.entity_name, dict(entry.quotas)) for entry in answer.entries]

    async def alter_quotas(self, alterations: Iterable[tuple[str, str | None, str, int | None]]) -> int:
        """Set (type, name, key, limit), where None takes the limit away; how many were changed."""
        request = ask.AlterQuotas(tuple(ask.QuotaAlteration(*alteration) for alteration in alterations))
        return (await self._ask(request, tell.QuotasAltered)).altered_count

    # The cluster

    async def get_cluster_metadata(self, topics: Sequence[str] = ()) -> tell.ClusterMetadata:
        """The servers, and who leads which partition; of all topics unless some are named."""
        return await self._ask(ask.GetClusterMetadata(tuple(topics)), tell.ClusterMetadata)

    async def get_metrics(self, prefix: str = "") -> str:
        """The server's metrics in the Prometheus text format."""
        return (await self._ask(ask.GetMetrics(prefix), tell.Metrics)).text

    async def ping(self) -> None:
        await self._ask(ask.Ping(), tell.Pong)


def _config_entries(configs: Iterable[tuple[str, str | None]]) -> Iterator[ask.TopicConfigEntry]:
    for entry in configs:
        if not (isinstance(entry, tuple | list) and len(entry) == 2):
            raise ConfigException(
                reason=f'a topic is configured by pairs like ("retention.ms", "1000"), not {entry!r}'
            )
        key, value = entry
        if not (isinstance(key, str) and isinstance(value, str | None)):
            raise ConfigException(
                reason=f"a topic's settings and their values are texts or None, not {key!r}: {value!r}"
            )
        yield ask.TopicConfigEntry(key, value)

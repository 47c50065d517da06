"""Committed offsets in Kafka's words: commit, fetch, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivven import coordinator as ask
from rivven.broker.groups import GroupKeeper
from rivven.errors import InvalidGroupRequest, RivvenError
from rivven.model import TopicPartition
from rivven.wire.kafka import NO_ID, Error, code_of
from rivven.wire.kafka.made import offset_fetch
from rivven.wire.kafka.made.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from rivven.wire.kafka.made.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from .dialect import Asked, Handler

if TYPE_CHECKING:
    from rivven.broker.broker import Broker

OFFSET_COMMIT, OFFSET_FETCH, OFFSET_DELETE = 8, 9, 47
BY_ID_FROM = 10
"""The first version of OffsetCommit and OffsetFetch that names topics by their ids."""


class OffsetRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def _groups(self) -> GroupKeeper:
        return self._broker.groups

    def handlers(self) -> dict[int, Handler]:
        return {
            OFFSET_COMMIT: self._commit,
            OFFSET_FETCH: self._fetch_offsets,
            OFFSET_DELETE: self._delete_offsets,
        }

    def _commit(self, request: OffsetCommitRequest, asked: Asked) -> None:
        by_id = asked.version >= BY_ID_FROM
        names = [self._topic_name(topic.name, topic.topic_id, by_id) for topic in request.topics]
        refused: dict[tuple[int, int], Error] = {}
        offsets = []
        for place, (topic, name) in enumerate(zip(request.topics, names, strict=True)):
            for part in topic.partitions:
                fault = self._commit_fault(name, part.partition_index, by_id)
                if fault is not None:
                    refused[place, part.partition_index] = fault
                    continue
                assert name is not None
                committed = ask.CommittedOffset(
                    part.committed_offset,
                    part.committed_leader_epoch,
                    part.committed_metadata or "",
                    self._groups.now_ms(),
                )
                offsets.append((TopicPartition(name, part.partition_index), committed))

        def told(result: object) -> None:
            asked.answer(_commit_response(request.topics, names, refused, result))

        commit = ask.Commit(
            request.group_id,
            tuple(offsets),
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
        )
        if offsets or not request.topics:
            self._groups.ask(commit, told)
        else:
            told(ask.Committed())

    def _commit_fault(self, topic: str | None, partition: int, by_id: bool) -> Error | None:
        if topic is None:
            return Error.UNKNOWN_TOPIC_ID if by_id else Error.UNKNOWN_TOPIC_OR_PARTITION
        try:
            self._broker.topics.log(topic, partition)
        except RivvenError as error:
            return code_of(error)
        return None

    def _topic_name(self, name: str, topic_id: bytes, by_id: bool) -> str | None:
        if not by_id:
            return name
        topic = self._broker.topics.by_id(topic_id)
        return None if topic is None else topic.name

    def _fetch_offsets(self, request: offset_fetch.OffsetFetchRequest, asked: Asked) -> object:
        if asked.version >= 8:
            return offset_fetch.OffsetFetchResponse(
                groups=[self._fetch_group(group, request.require_stable, asked) for group in request.groups]
            )
        topics = request.topics if request.topics is not None or asked.version < 2 else None
        group = offset_fetch.OffsetFetchRequestGroup(
            request.group_id,
            topics=None
            if topics is None
            else [offset_fetch.OffsetFetchRequestTopics(t.name, NO_ID, t.partition_indexes) for t in topics],
        )
        found = self._fetch_group(group, request.require_stable, asked)
        return offset_fetch.OffsetFetchResponse(
            error_code=found.error_code,
            topics=[
                offset_fetch.OffsetFetchResponseTopic(
                    topic.name,
                    [
                        offset_fetch.OffsetFetchResponsePartition(
                            part.partition_index,
                            part.committed_offset,
                            part.committed_leader_epoch,
                            part.metadata,
                            part.error_code,
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in found.topics
            ],
        )

    def _fetch_group(
        self, group: offset_fetch.OffsetFetchRequestGroup, stable_only: bool, asked: Asked
    ) -> offset_fetch.OffsetFetchResponseGroup:
        by_id = asked.version >= BY_ID_FROM
        named: list[tuple[str | None, bytes, list[int]]] | None = None
        if group.topics is not None:
            named = [
                (self._topic_name(topic.name, topic.topic_id, by_id), topic.topic_id, topic.partition_indexes)
                for topic in group.topics
            ]
        wanted = None
        if named is not None:
            wanted = tuple(
                TopicPartition(name, number) for name, _, numbers in named if name is not None for number in numbers
            )
        try:
            found = self._groups.fetch(
                ask.FetchOffsets(group.group_id, wanted, group.member_id, group.member_epoch, stable_only)
            )
        except RivvenError as error:
            return offset_fetch.OffsetFetchResponseGroup(group.group_id, error_code=code_of(error))
        if named is None:
            named = self._all_topics(found)
        topics = [
            offset_fetch.OffsetFetchResponseTopics(
                name or "", topic_id, [_fetched_offset(name, number, found) for number in numbers]
            )
            for name, topic_id, numbers in named
        ]
        return offset_fetch.OffsetFetchResponseGroup(group.group_id, topics)

    def _all_topics(self, found: ask.Fetched) -> list[tuple[str | None, bytes, list[int]]]:
        ids = {topic.name: topic.id_bytes for topic in self._broker.topics}
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(found.offsets):
            by_topic.setdefault(topic, []).append(partition)
        return [(name, ids.get(name, NO_ID), numbers) for name, numbers in by_topic.items()]

    def _delete_offsets(self, request: OffsetDeleteRequest, asked: Asked) -> None:
        partitions = tuple(
            TopicPartition(topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
        )

        def told(result: object) -> None:
            if not isinstance(result, ask.Deleted):
                asked.answer(OffsetDeleteResponse(_code(result)))
                return
            topics = [
                OffsetDeleteResponseTopic(
                    topic.name,
                    [
                        OffsetDeleteResponsePartition(
                            part.partition_index,
                            _code(result.errors.get(TopicPartition(topic.name, part.partition_index))),
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
            asked.answer(OffsetDeleteResponse(topics=topics))

        self._groups.ask(ask.DeleteOffsets(request.group_id, partitions), told)


def _code(result: object) -> Error:
    return code_of(result) if isinstance(result, RivvenError) else Error.NONE


def _commit_response(
    topics: list[OffsetCommitRequestTopic],
    names: list[str | None],
    refused: dict[tuple[int, int], Error],
    result: object,
) -> OffsetCommitResponse:
    if isinstance(result, InvalidGroupRequest):
        whole: Error | None = Error.INVALID_GROUP_ID
    else:
        whole = _code(result) if isinstance(result, RivvenError) else None
    errors = result.errors if isinstance(result, ask.Committed) else {}
    answered = []
    for place, (topic, name) in enumerate(zip(topics, names, strict=True)):
        parts = []
        for part in topic.partitions:
            number = part.partition_index
            code = refused.get((place, number)) or whole
            if code is None:
                code = _code(errors.get(TopicPartition(name or "", number)))
            parts.append(OffsetCommitResponsePartition(number, code))
        answered.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, parts))
    return OffsetCommitResponse(topics=answered)


def _fetched_offset(name: str | None, number: int, found: ask.Fetched) -> offset_fetch.OffsetFetchResponsePartitions:
    if name is None:
        return offset_fetch.OffsetFetchResponsePartitions(number, -1, -1, "", Error.UNKNOWN_TOPIC_ID)
    partition = TopicPartition(name, number)
    if partition in found.unstable:
        return offset_fetch.OffsetFetchResponsePartitions(number, -1, -1, "", Error.UNSTABLE_OFFSET_COMMIT)
    committed = found.offsets.get(partition)
    if committed is None:
        return offset_fetch.OffsetFetchResponsePartitions(number, -1, -1, "")
    return offset_fetch.OffsetFetchResponsePartitions(
        number, committed.offset, committed.leader_epoch, committed.metadata
    )

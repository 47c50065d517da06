"""Groups in the words of the native protocol, decided by the same coordinator as Kafka's.

A member says which topics it reads and is told its partitions; inside, both are the bytes that Kafka's consumers
exchange, so members of either dialect can share a group. Offsets are committed by whoever asks: this protocol ties
them to no member.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rivven import coordinator as groups
from rivven.assign import Subscription, decode_assignment, decode_subscription, encode_assignment, encode_subscription
from rivven.errors import GroupNotFound, Malformed, RebalanceInProgress, RivvenError, UnknownPartition, UnknownTopic
from rivven.model import TopicPartition
from rivven.wire import Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .session import Reply
from .texts import told

if TYPE_CHECKING:
    from .broker import Broker

GROUP = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,254}")
PROTOCOL = "range"
SESSION_MS, REBALANCE_MS = 10_000, 30_000
"""For a member that does not say."""
REBALANCE_MS_MAX = 20_000
"""Clients give a request 30 seconds, and a join is answered when the rebalance is over."""
JOIN_AGAIN = 27

Handler = Callable[[Any, Reply], Response | None]


class NativeGroups:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[type[Request], Handler]:
        return {
            ask.JoinGroup: self._join,
            ask.SyncGroup: self._sync,
            ask.Heartbeat: self._heartbeat,
            ask.LeaveGroup: self._leave,
            ask.CommitOffset: self._commit_offset,
            ask.GetOffset: self._get_offset,
            ask.ListGroups: self._list,
            ask.DescribeGroup: self._describe,
            ask.DeleteGroup: self._delete,
        }

    def _ask(self, request: groups.Ask, reply: Reply, say: Callable[[Any], Response]) -> None:
        self._broker.groups.ask(request, lambda result: self._fulfil(reply, say(result)))

    def _fulfil(self, reply: Reply, response: Response) -> None:
        self._broker.fulfil(reply, response, failed=type(response) is tell.Error)

    # Members

    def _join(self, request: ask.JoinGroup, reply: Reply) -> None:
        config = self._broker.config.groups
        session_ms = request.session_timeout_ms or SESSION_MS
        join = groups.Join(
            request.group_id,
            request.member_id,
            client_id=request.protocol_type,
            client_host=reply.session.address,
            protocol_type=request.protocol_type,
            protocols=((PROTOCOL, encode_subscription(Subscription(request.subscriptions))),),
            session_timeout_ms=min(max(session_ms, config.session_timeout_ms_min), config.session_timeout_ms_max),
            rebalance_timeout_ms=min(request.rebalance_timeout_ms or REBALANCE_MS, REBALANCE_MS_MAX),
            id_required=False,
            adopt_id=True,
            initial_delay_ms=0,
            members_to_all=True,
        )
        self._ask(join, reply, _joined)

    def _sync(self, request: ask.SyncGroup, reply: Reply) -> None:
        assignments = tuple(
            (
                member.member_id,
                encode_assignment(
                    TopicPartition(topic.topic, number) for topic in member.topics for number in topic.partitions
                ),
            )
            for member in request.assignments
        )
        sync = groups.Sync(
            request.group_id,
            request.generation_id,
            request.member_id,
            assignments=assignments,
            known_members_only=True,
        )
        self._ask(sync, reply, _synced)

    def _heartbeat(self, request: ask.Heartbeat, reply: Reply) -> None:
        def say(result: object) -> Response:
            if isinstance(result, RebalanceInProgress):
                return tell.HeartbeatResult(JOIN_AGAIN)
            return _failed("HEARTBEAT_FAILED", result) or tell.HeartbeatResult(0)

        self._ask(groups.Heartbeat(request.group_id, request.generation_id, request.member_id), reply, say)

    def _leave(self, request: ask.LeaveGroup, reply: Reply) -> None:
        def say(result: object) -> Response:
            one = result.members[0].error if isinstance(result, groups.Left) and result.members else result
            return _failed("LEAVE_GROUP_FAILED", one) or tell.LeaveGroupResult()

        self._ask(groups.Leave(request.group_id, ((request.member_id, None),)), reply, say)

    # Offsets

    def _commit_offset(self, request: ask.CommitOffset, reply: Reply) -> Response | None:
        if not is_group(request.consumer_group):
            return bad_group("INVALID_CONSUMER_GROUP", request.consumer_group)
        number = request.partition
        try:
            latest = self._broker.reading.bounds(request.topic, number).high_watermark
        except UnknownPartition:
            return tell.Error(f"UNKNOWN_PARTITION: partition {number} does not exist in topic '{request.topic}'")
        except UnknownTopic:
            return tell.Error(f"UNKNOWN_TOPIC: topic '{request.topic}' does not exist")
        if request.offset > latest:
            return tell.Error(
                f"OFFSET_OUT_OF_RANGE: offset {request.offset} exceeds latest offset {latest} for partition {number}"
            )
        committed = groups.CommittedOffset(request.offset, committed_ms=self._broker.groups.now_ms())
        partition = TopicPartition(request.topic, number)

        def say(result: object) -> Response:
            one = result.errors.get(partition) if isinstance(result, groups.Committed) else result
            return told(one) if isinstance(one, RivvenError) else tell.OffsetCommitted()

        self._ask(groups.Commit(request.consumer_group, ((partition, committed),), unchecked=True), reply, say)
        return None

    def _get_offset(self, request: ask.GetOffset, _: Reply) -> Response:
        if not is_group(request.consumer_group):
            return bad_group("INVALID_CONSUMER_GROUP", request.consumer_group)
        key = groups.OffsetKey(request.consumer_group, request.topic, request.partition)
        found = self._broker.groups.offsets.get(key)
        return tell.CommittedOffset(found.offset if found is not None else None)

    # Looking at groups

    def _list(self, _: ask.ListGroups, __: Reply) -> Response:
        return tell.Groups(tuple(each.group for each in self._broker.groups.list()))

    def _describe(self, request: ask.DescribeGroup, _: Reply) -> Response:
        name = request.consumer_group
        if not is_group(name):
            return bad_group("INVALID_GROUP_ID", name)
        try:
            self._broker.groups.describe(name)
        except GroupNotFound:
            return group_not_found(name)
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), committed in sorted(self._broker.groups.offsets.of_group(name).items()):
            by_topic.setdefault(topic, {})[partition] = committed.offset
        return tell.GroupDescription(name, by_topic)

    def _delete(self, request: ask.DeleteGroup, reply: Reply) -> Response | None:
        name = request.consumer_group
        if not is_group(name):
            return bad_group("INVALID_GROUP_ID", name)

        def say(result: object) -> Response:
            if isinstance(result, GroupNotFound):
                return group_not_found(name)
            return told(result) if isinstance(result, RivvenError) else tell.GroupDeleted()

        self._ask(groups.DeleteGroup(name), reply, say)
        return None


def is_group(name: str) -> bool:
    return GROUP.fullmatch(name) is not None and ".." not in name


def bad_group(code: str, name: str) -> tell.Error:
    return tell.Error(f"{code}: Invalid consumer group ID: {name}")


def group_not_found(name: str) -> tell.Error:
    return tell.Error(f"Consumer group '{name}' not found")


def _failed(request: str, result: object) -> tell.Error | None:
    """What went wrong, behind the name of what was asked; None if nothing did."""
    if not isinstance(result, RivvenError):
        return None
    return tell.Error(f"{request}: {told(result).message}")


def _joined(result: object) -> Response:
    if isinstance(result, RivvenError):
        return tell.Error(f"JOIN_GROUP_FAILED: {told(result).message}")
    assert isinstance(result, groups.Joined)
    members = tuple(tell.GroupMember(each.member_id, _topics_of(each.metadata)) for each in result.members)
    return tell.JoinGroupResult(result.generation, result.protocol_type, result.member_id, result.leader, members)


def _topics_of(metadata: bytes) -> tuple[str, ...]:
    try:
        return decode_subscription(metadata).topics
    except Malformed:
        return ()  # a member that talks of something else


def _synced(result: object) -> Response:
    if isinstance(result, RivvenError):
        return tell.Error(f"SYNC_GROUP_FAILED: {told(result).message}")
    assert isinstance(result, groups.Synced)
    by_topic: dict[str, list[int]] = {}
    if result.assignment:
        for topic, number in decode_assignment(result.assignment):
            by_topic.setdefault(topic, []).append(number)
    return tell.SyncGroupResult(
        tuple(ask.TopicAssignment(topic, tuple(numbers)) for topic, numbers in by_topic.items())
    )

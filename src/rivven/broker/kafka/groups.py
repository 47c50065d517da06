"""Groups in Kafka's words: classic members, members that the broker assigns (KIP-848), and who looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rivven import coordinator as ask
from rivven.broker.groups import GroupKeeper
from rivven.errors import GroupNotFound, RivvenError
from rivven.model import TopicPartition
from rivven.wire.kafka import Error, code_of
from rivven.wire.kafka.made import consumer_group_describe as described
from rivven.wire.kafka.made.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from rivven.wire.kafka.made.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from rivven.wire.kafka.made.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from rivven.wire.kafka.made.heartbeat import HeartbeatRequest, HeartbeatResponse
from rivven.wire.kafka.made.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from rivven.wire.kafka.made.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from rivven.wire.kafka.made.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from rivven.wire.kafka.made.sync_group import SyncGroupRequest, SyncGroupResponse

from .dialect import Asked, Handler

if TYPE_CHECKING:
    from rivven.broker.broker import Broker

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS = 15, 16, 42
CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 68, 69
ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8
"""Read, delete and describe: what may be done to a group."""
NOT_ASKED = -(2**31)
MEMBER_TYPES = {"classic": 0, "consumer": 1}


class GroupRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def _groups(self) -> GroupKeeper:
        return self._broker.groups

    def handlers(self) -> dict[int, Handler]:
        return {
            JOIN_GROUP: self._join,
            SYNC_GROUP: self._sync,
            HEARTBEAT: self._heartbeat,
            LEAVE_GROUP: self._leave,
            LIST_GROUPS: self._list,
            DESCRIBE_GROUPS: self._describe,
            DELETE_GROUPS: self._delete,
            CONSUMER_GROUP_HEARTBEAT: self._consumer_heartbeat,
            CONSUMER_GROUP_DESCRIBE: self._describe_consumers,
        }

    # Classic members

    def _join(self, request: JoinGroupRequest, asked: Asked) -> None:
        session = asked.session

        def told(result: object) -> None:
            match result:
                case ask.Joined():
                    members = [
                        JoinGroupResponseMember(m.member_id, m.instance_id, m.metadata) for m in result.members
                    ]
                    response = JoinGroupResponse(
                        generation_id=result.generation,
                        protocol_type=result.protocol_type,
                        protocol_name=result.protocol,
                        leader=result.leader,
                        skip_assignment=result.skip_assignment,
                        member_id=result.member_id,
                        members=members,
                    )
                case RivvenError():
                    # Before version 7 the name may not be null.
                    name = None if asked.version >= 7 else ""
                    member_id = str(result.facts.get("member", request.member_id))
                    response = JoinGroupResponse(error_code=code_of(result), protocol_name=name, member_id=member_id)
            asked.answer(response)

        self._groups.ask(
            ask.Join(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                session.client_id,
                session.address,
                request.protocol_type,
                tuple((each.name, each.metadata) for each in request.protocols),
                request.session_timeout_ms,
                request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms,
                id_required=asked.version >= 4,
                can_skip_assignment=asked.version >= 9,
            ),
            told,
        )

    def _sync(self, request: SyncGroupRequest, asked: Asked) -> None:
        def told(result: object) -> None:
            match result:
                case ask.Synced():
                    response = SyncGroupResponse(
                        protocol_type=result.protocol_type,
                        protocol_name=result.protocol,
                        assignment=result.assignment,
                    )
                case RivvenError():
                    response = SyncGroupResponse(error_code=code_of(result))
            asked.answer(response)

        self._groups.ask(
            ask.Sync(
                request.group_id,
                request.generation_id,
                request.member_id,
                request.group_instance_id,
                request.protocol_type,
                request.protocol_name,
                tuple((each.member_id, each.assignment) for each in request.assignments),
            ),
            told,
        )

    def _heartbeat(self, request: HeartbeatRequest, asked: Asked) -> None:
        beat = ask.Heartbeat(request.group_id, request.generation_id, request.member_id, request.group_instance_id)
        self._groups.ask(beat, lambda result: asked.answer(HeartbeatResponse(error_code=_code(result))))

    def _leave(self, request: LeaveGroupRequest, asked: Asked) -> None:
        one = asked.version < 3
        leaving = (
            [(request.member_id, None)] if one else [(m.member_id, m.group_instance_id) for m in request.members]
        )

        def told(result: object) -> None:
            if not isinstance(result, ask.Left):
                asked.answer(LeaveGroupResponse(error_code=_code(result)))
                return
            members = [MemberResponse(m.member_id, m.instance_id, _code(m.error)) for m in result.members]
            error = members[0].error_code if one and members else Error.NONE
            asked.answer(LeaveGroupResponse(error_code=error, members=members))

        self._groups.ask(ask.Leave(request.group_id, tuple(leaving)), told)

    # Members that the broker assigns

    def _consumer_heartbeat(self, request: ConsumerGroupHeartbeatRequest, asked: Asked) -> None:
        session = asked.session

        def told(result: object) -> None:
            match result:
                case ask.ConsumerAlive():
                    assignment = result.assignment
                    response = ConsumerGroupHeartbeatResponse(
                        member_id=result.member_id,
                        member_epoch=result.member_epoch,
                        heartbeat_interval_ms=result.heartbeat_ms,
                        assignment=None if assignment is None else Assignment(self._by_topic_id(assignment)),
                    )
                case RivvenError():
                    response = ConsumerGroupHeartbeatResponse(
                        error_code=code_of(result), error_message=str(result), member_id=request.member_id
                    )
            asked.answer(response)

        owned = request.topic_partitions
        topics = request.subscribed_topic_names
        self._groups.ask(
            ask.ConsumerHeartbeat(
                request.group_id,
                request.member_id,
                request.member_epoch,
                request.instance_id,
                request.rack_id,
                session.client_id,
                session.address,
                request.rebalance_timeout_ms,
                None if topics is None else tuple(topics),
                request.subscribed_topic_regex,
                request.server_assignor,
                None if owned is None else frozenset(self._named(owned)),
            ),
            told,
        )

    def _by_topic_id(self, partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
        ids = {topic.name: topic.id_bytes for topic in self._broker.topics}
        by_id: dict[bytes, list[int]] = {}
        for topic, partition in sorted(partitions):
            if topic in ids:
                by_id.setdefault(ids[topic], []).append(partition)
        return [TopicPartitions(topic_id, numbers) for topic_id, numbers in by_id.items()]

    def _named(self, owned: list[TopicPartitions]) -> list[TopicPartition]:
        """What a member says it has; of topics that are no more it cannot have anything."""
        found = []
        for entry in owned:
            topic = self._broker.topics.by_id(entry.topic_id)
            if topic is not None:
                found += [TopicPartition(topic.name, partition) for partition in entry.partitions]
        return found

    def _describe_consumers(self, request: described.ConsumerGroupDescribeRequest, _: Asked) -> object:
        groups = []
        for name in request.group_ids:
            try:
                found = self._groups.describe(name)
                if not isinstance(found, ask.DescribedConsumerGroup):
                    raise GroupNotFound(group=name, kind="consumer")
            except RivvenError as error:
                groups.append(described.DescribedGroup(code_of(error), str(error), name))
                continue
            groups.append(
                described.DescribedGroup(
                    group_id=name,
                    group_state=found.phase.value,
                    group_epoch=found.epoch,
                    assignment_epoch=found.target_epoch,
                    assignor_name=found.assignor,
                    members=[self._described_consumer(member) for member in found.members],
                    authorized_operations=_operations(request.include_authorized_operations),
                )
            )
        return described.ConsumerGroupDescribeResponse(groups=groups)

    def _described_consumer(self, member: ask.DescribedConsumer) -> described.Member:
        return described.Member(
            member.member_id,
            member.instance_id,
            member.rack_id,
            member.member_epoch,
            member.client_id,
            member.client_host,
            list(member.topics),
            member.pattern,
            self._described_assignment(member.assignment),
            self._described_assignment(member.target),
            MEMBER_TYPES[member.kind],
        )

    def _described_assignment(self, partitions: Iterable[TopicPartition]) -> described.Assignment:
        names = {topic.id_bytes: topic.name for topic in self._broker.topics}
        return described.Assignment(
            [
                described.TopicPartitions(entry.topic_id, names[entry.topic_id], entry.partitions)
                for entry in self._by_topic_id(partitions)
            ]
        )

    # Looking at groups

    def _list(self, request: ListGroupsRequest, _: Asked) -> ListGroupsResponse:
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        groups = [
            ListedGroup(each.group, each.protocol_type, each.phase.value, each.kind)
            for each in self._groups.list()
            if (not states or each.phase.value.lower() in states) and (not types or each.kind.lower() in types)
        ]
        return ListGroupsResponse(groups=groups)

    def _describe(self, request: DescribeGroupsRequest, asked: Asked) -> DescribeGroupsResponse:
        wants = request.include_authorized_operations
        return DescribeGroupsResponse(groups=[self._describe_one(name, asked, wants) for name in request.groups])

    def _describe_one(self, name: str, asked: Asked, wants_operations: bool) -> DescribedGroup:
        operations = _operations(wants_operations)
        try:
            found = self._groups.describe(name)
            if not isinstance(found, ask.DescribedGroup):
                raise GroupNotFound(group=name, kind="classic")
        except GroupNotFound as error:
            # Whoever asks in an older version is told that the group is dead, not that there is none.
            known = asked.version >= 6
            return DescribedGroup(
                Error.GROUP_ID_NOT_FOUND if known else Error.NONE,
                str(error) if known else None,
                name,
                ask.Phase.DEAD.value,
                authorized_operations=operations,
            )
        except RivvenError as error:
            return DescribedGroup(code_of(error), str(error), name)
        members = [
            DescribedGroupMember(m.member_id, m.instance_id, m.client_id, m.client_host, m.metadata, m.assignment)
            for m in found.members
        ]
        return DescribedGroup(
            group_id=name,
            group_state=found.phase.value,
            protocol_type=found.protocol_type,
            protocol_data=found.protocol,
            members=members,
            authorized_operations=operations,
        )

    def _delete(self, request: DeleteGroupsRequest, asked: Asked) -> object | None:
        names = request.groups_names
        if not names:
            return DeleteGroupsResponse()
        results: dict[int, Error] = {}

        def told_of(place: int) -> Callable[[object], None]:
            def told(result: object) -> None:
                results[place] = _code(result)
                if len(results) == len(names):
                    found = [DeletableGroupResult(name, results[at]) for at, name in enumerate(names)]
                    asked.answer(DeleteGroupsResponse(results=found))

            return told

        for place, name in enumerate(names):
            self._groups.ask(ask.DeleteGroup(name), told_of(place))
        return None


def _code(result: object) -> Error:
    return code_of(result) if isinstance(result, RivvenError) else Error.NONE


def _operations(wanted: bool) -> int:
    return ALL_OPERATIONS if wanted else NOT_ASKED

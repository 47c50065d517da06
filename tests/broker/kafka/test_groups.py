"""Groups and their offsets in Kafka's words, in every version."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Client, versions
from simulated import World

from rivven.assign import Subscription, decode_assignment, encode_subscription
from rivven.broker.kafka import Kafka
from rivven.coordinator import GroupConfig
from rivven.wire import requests as native
from rivven.wire.kafka import SERVED, Error
from rivven.wire.kafka.made import consumer_group_describe, offset_commit, offset_fetch
from rivven.wire.kafka.made.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from rivven.wire.kafka.made.delete_groups import DeleteGroupsRequest
from rivven.wire.kafka.made.describe_groups import DescribeGroupsRequest
from rivven.wire.kafka.made.find_coordinator import FindCoordinatorRequest
from rivven.wire.kafka.made.heartbeat import HeartbeatRequest
from rivven.wire.kafka.made.init_producer_id import InitProducerIdRequest
from rivven.wire.kafka.made.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from rivven.wire.kafka.made.leave_group import LeaveGroupRequest, MemberIdentity
from rivven.wire.kafka.made.list_groups import ListGroupsRequest
from rivven.wire.kafka.made.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from rivven.wire.kafka.made.sync_group import SyncGroupRequest, SyncGroupRequestAssignment


class All:
    """Every family together."""

    def __init__(self, broker: Any) -> None:
        self._kafka = Kafka(broker)

    def handlers(self) -> Any:
        return self._kafka.load()


def newest_and_older(key: int) -> list[int]:
    return [version for _, version in versions(key)]


@pytest.fixture
def world() -> World:
    world = World(groups=GroupConfig(initial_rebalance_delay_ms=0), host="h", port=9)
    world.ask(native.CreateTopic("t", 3))
    return world


@pytest.fixture
def client(world: World) -> Client:
    return Client(world, All)


def topic_id(world: World, name: str = "t") -> bytes:
    return world.broker.topics.get(name).id_bytes


def join(client: Client, member_id: str = "", version: int | None = None, group: str = "g", **rest: Any) -> Any:
    protocols = [JoinGroupRequestProtocol("range", b"subscription")]
    request = JoinGroupRequest(
        group, 10_000, 10_000, member_id, protocol_type="consumer", protocols=protocols, **rest
    )
    return client.ask(request, version)


def joined(client: Client, version: int | None = None, group: str = "g") -> Any:
    answer = join(client, "", version, group)
    if answer.error_code == Error.MEMBER_ID_REQUIRED:
        answer = join(client, answer.member_id, version, group)
    assert answer.error_code == 0, answer
    return answer


def stable(client: Client, group: str = "g") -> Any:
    """A group with one member that has its assignment."""
    member = joined(client, group=group)
    assigned = [SyncGroupRequestAssignment(member.member_id, b"assignment")]
    request = SyncGroupRequest(group, member.generation_id, member.member_id, None, "consumer", "range", assigned)
    assert client.ask(request).assignment == b"assignment"
    return member


@pytest.mark.parametrize("version", newest_and_older(11))
def test_a_member_joins_in_every_version_and_leads_when_it_is_alone(version, client):
    member = joined(client, version)
    assert (member.leader, member.generation_id, member.protocol_name) == (member.member_id, 1, "range")
    assert [each.metadata for each in member.members] == [b"subscription"]


def test_a_new_member_gets_its_id_first_from_version_4_on(client):
    assert join(client, version=3).error_code == 0
    answer = join(client, version=4, group="other")
    assert (answer.error_code, bool(answer.member_id)) == (Error.MEMBER_ID_REQUIRED, True)


@pytest.mark.parametrize(("key", "version"), versions(14, 12, 13))
def test_sync_heartbeat_and_leave_in_every_version(key, version, client):
    member = joined(client)
    whom = ("g", member.generation_id, member.member_id)
    assigned = [SyncGroupRequestAssignment(member.member_id, b"x")]
    sync = SyncGroupRequest(*whom, None, "consumer", "range", assigned)
    assert client.ask(sync, version if key == 14 else None).assignment == b"x"
    assert client.ask(HeartbeatRequest(*whom), version if key == 12 else None).error_code == 0
    leave = LeaveGroupRequest("g", member.member_id, [MemberIdentity(member.member_id)])
    assert client.ask(leave, version if key == 13 else None).error_code == 0
    assert client.ask(HeartbeatRequest(*whom)).error_code == Error.UNKNOWN_MEMBER_ID


def test_an_unknown_member_and_a_wrong_generation_are_told_apart(client):
    member = stable(client)
    assert client.ask(HeartbeatRequest("g", 1, "who")).error_code == Error.UNKNOWN_MEMBER_ID
    assert client.ask(HeartbeatRequest("g", 7, member.member_id)).error_code == Error.ILLEGAL_GENERATION


# Offsets


def commit(world: World, offset: int, member: Any = None, group: str = "g", number: int = 0) -> Any:
    part = offset_commit.OffsetCommitRequestPartition(number, offset, 0, "note")
    topic = offset_commit.OffsetCommitRequestTopic("t", topic_id(world), [part])
    whom = (member.generation_id, member.member_id) if member is not None else (-1, "")
    return offset_commit.OffsetCommitRequest(group, *whom, topics=[topic])


def code_of(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


def fetched(client: Client, world: World, version: int, group: str = "g") -> tuple[int, int, str, int]:
    """Offset, leader epoch, metadata and error of partition 0."""
    if version < 8:
        asked = offset_fetch.OffsetFetchRequest(group, [offset_fetch.OffsetFetchRequestTopic("t", [0])])
        part = client.ask(asked, version).topics[0].partitions[0]
    else:
        topics = [offset_fetch.OffsetFetchRequestTopics("t", topic_id(world), [0])]
        asked = offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup(group, topics=topics)])
        part = client.ask(asked, version).groups[0].topics[0].partitions[0]
    return part.committed_offset, part.committed_leader_epoch, part.metadata, part.error_code


@pytest.mark.parametrize(("key", "version"), versions(8, 9))
def test_what_is_committed_in_any_version_is_fetched_in_any(key, version, world, client):
    assert code_of(client.ask(commit(world, 5), version if key == 8 else None)) == 0
    offset, epoch, metadata, error = fetched(client, world, version if key == 9 else 8)
    assert (offset, metadata, error) == (5, "note", 0)
    if version >= 6 if key == 8 else version >= 5:
        assert epoch == 0


def test_a_group_that_nobody_knows_has_no_offsets_and_no_error(world, client):
    for version in (1, 7, 8, 10):
        assert fetched(client, world, version, "unheard-of") == (-1, -1, "", 0)


def test_all_offsets_of_a_group_come_when_none_are_named(world, client):
    client.ask(commit(world, 5, number=0))
    client.ask(commit(world, 6, number=2))
    asked = offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup("g", topics=None)])
    (topic,) = client.ask(asked).groups[0].topics
    assert [(part.partition_index, part.committed_offset) for part in topic.partitions] == [(0, 5), (2, 6)]
    assert [t.name for t in client.ask(offset_fetch.OffsetFetchRequest("g", None), 7).topics] == ["t"]


def test_commits_of_strangers_are_refused_while_the_group_has_members(world, client):
    member = stable(client)
    assert code_of(client.ask(commit(world, 5, member))) == 0
    assert code_of(client.ask(commit(world, 6))) == Error.UNKNOWN_MEMBER_ID
    assert fetched(client, world, 9)[0] == 5


def test_commits_for_what_there_is_not_are_refused_one_by_one(world, client):
    request = commit(world, 5, number=9)
    assert code_of(client.ask(request, 9)) == Error.UNKNOWN_TOPIC_OR_PARTITION
    request.topics[0] = offset_commit.OffsetCommitRequestTopic("", b"y" * 16, request.topics[0].partitions)
    assert code_of(client.ask(request, 10)) == Error.UNKNOWN_TOPIC_ID


def test_offsets_and_groups_survive_a_kill(world):
    client = Client(world, All)
    member = stable(client)
    client.ask(commit(world, 5, member))
    world.restart()
    client = Client(world, All)
    assert fetched(client, world, 9) == (5, 0, "note", 0)
    assert client.ask(HeartbeatRequest("g", member.generation_id, member.member_id)).error_code == 0


def test_offsets_are_deleted_unless_the_group_reads_the_topic(world, client):
    client.ask(commit(world, 5, group="idle"))
    parts = [OffsetDeleteRequestPartition(0)]
    request = OffsetDeleteRequest("idle", [OffsetDeleteRequestTopic("t", parts)])
    assert code_of(client.ask(request)) == 0
    assert fetched(client, world, 9, "idle")[0] == -1
    assert client.ask(request).error_code == Error.GROUP_ID_NOT_FOUND


# Looking


@pytest.mark.parametrize(("key", "version"), versions(16, 15))
def test_groups_are_listed_and_described_in_every_version(key, version, client):
    member = stable(client)
    if key == 16:
        (listed,) = client.ask(ListGroupsRequest(), version).groups
        assert (listed.group_id, listed.protocol_type) == ("g", "consumer")
    else:
        (found,) = client.ask(DescribeGroupsRequest(["g"]), version).groups
        assert (found.group_state, found.protocol_data) == ("Stable", "range")
        assert [each.member_id for each in found.members] == [member.member_id]
        assert found.members[0].member_assignment == b"assignment"


def test_groups_are_listed_by_state_and_type(client):
    stable(client)
    assert client.ask(ListGroupsRequest(["empty"])).groups == []
    assert len(client.ask(ListGroupsRequest(["stable"], ["classic"])).groups) == 1
    assert client.ask(ListGroupsRequest([], ["consumer"])).groups == []


def test_an_unknown_group_is_dead_or_not_found_by_the_version(client):
    (found,) = client.ask(DescribeGroupsRequest(["none"]), 5).groups
    assert (found.error_code, found.group_state) == (0, "Dead")
    (found,) = client.ask(DescribeGroupsRequest(["none"]), 6).groups
    assert found.error_code == Error.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", newest_and_older(42))
def test_a_group_is_deleted_when_nobody_is_in_it(version, world, client):
    stable(client)
    client.ask(commit(world, 5, group="idle"))
    results = client.ask(DeleteGroupsRequest(["g", "idle", "none"]), version).results
    assert [each.error_code for each in results] == [Error.NON_EMPTY_GROUP, 0, Error.GROUP_ID_NOT_FOUND]
    assert client.ask(DeleteGroupsRequest([]), version).results == []


# Members that the broker assigns


@pytest.mark.parametrize(("key", "version"), versions(68, 69))
def test_the_broker_assigns_all_to_a_member_that_is_alone(key, version, world, client):
    beat = ConsumerGroupHeartbeatRequest(
        "c", "m-1", 0, rebalance_timeout_ms=5000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    answer = client.ask(beat, version if key == 68 else None)
    assert answer.error_code == 0
    (assigned,) = answer.assignment.topic_partitions
    assert (assigned.topic_id, assigned.partitions) == (topic_id(world), [0, 1, 2])
    owned = [TopicPartitions(topic_id(world), [0, 1, 2])]
    again = client.ask(
        ConsumerGroupHeartbeatRequest("c", answer.member_id, answer.member_epoch, topic_partitions=owned)
    )
    assert again.error_code == 0
    asked = consumer_group_describe.ConsumerGroupDescribeRequest(["c", "none"])
    found, missing = client.ask(asked, version if key == 69 else None).groups
    assert (found.group_state, found.members[0].subscribed_topic_names) == ("Stable", ["t"])
    assert found.members[0].assignment.topic_partitions[0].topic_name == "t"
    assert missing.error_code == Error.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", newest_and_older(69))
def test_a_group_of_both_protocols_tells_who_speaks_which(version, client):
    first = ConsumerGroupHeartbeatRequest(
        "c", "m-1", 0, rebalance_timeout_ms=5000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert client.ask(first).error_code == 0
    protocols = [JoinGroupRequestProtocol("range", encode_subscription(Subscription(("t",))))]
    request = JoinGroupRequest("c", 10_000, 10_000, protocol_type="consumer", protocols=protocols)
    member = client.ask(request, 3)
    assert (member.error_code, member.leader, member.members) == (0, "", [])
    synced = client.ask(SyncGroupRequest("c", member.generation_id, member.member_id))
    assert (synced.error_code, decode_assignment(synced.assignment)) == (0, ())
    (found,) = client.ask(consumer_group_describe.ConsumerGroupDescribeRequest(["c"]), version).groups
    types = {each.member_id: each.member_type for each in found.members}
    assert types == {member.member_id: 0 if version else -1, "m-1": 1 if version else -1}


# Opening


@pytest.mark.parametrize("version", newest_and_older(10))
def test_this_node_coordinates_everything(version, client):
    answer = client.ask(FindCoordinatorRequest("g", 0, ["g", "h"]), version)
    found = answer.coordinators if version >= 4 else [answer]
    assert {(each.error_code, each.host, each.port) for each in found} == {(0, "h", 9)}
    assert len(found) == (2 if version >= 4 else 1)


@pytest.mark.parametrize("version", newest_and_older(22))
def test_every_producer_gets_an_id_of_its_own_also_after_a_kill(version, world):
    seen = []
    for _ in range(3):
        client = Client(world, All)
        seen += [client.ask(InitProducerIdRequest(None), version).producer_id for _ in range(2)]
        world.restart()
    assert len(set(seen)) == 6
    assert min(seen) >= 0


def test_everything_that_is_served_has_a_handler(world):
    assert set(Kafka(world.broker).load()) == set(SERVED)

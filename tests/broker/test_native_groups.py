"""Groups in the native protocol: the coordinator's decisions in that protocol's words."""

from __future__ import annotations

import pytest
from simulated import World

from rivven.broker import Reply, Session
from rivven.wire import requests as ask
from rivven.wire import responses as tell


@pytest.fixture
def world() -> World:
    world = World()
    world.ask(ask.CreateTopic("t", 2))
    return world


def join(world: World, member_id: str = "", session: Session | None = None) -> Reply:
    return world.send(ask.JoinGroup("g", member_id, 10_000, 10_000, "consumer", ("t",)), session)


def joined(world: World, member_id: str = "") -> tell.JoinGroupResult:
    reply = join(world, member_id)
    world.settle()
    assert isinstance(reply.response, tell.JoinGroupResult), reply.response
    return reply.response


def share(*members: tuple[str, int]) -> tuple[ask.MemberAssignment, ...]:
    return tuple(ask.MemberAssignment(name, (ask.TopicAssignment("t", (number,)),)) for name, number in members)


def test_a_member_that_is_alone_leads_and_gets_what_it_assigns(world: World) -> None:
    member = joined(world)
    assert member.member_id.startswith("consumer-")
    assert (member.leader_id, member.members) == (member.member_id, (tell.GroupMember(member.member_id, ("t",)),))
    given = ask.SyncGroup("g", member.generation_id, member.member_id, share((member.member_id, 1)))
    assert world.ask(given) == tell.SyncGroupResult((ask.TopicAssignment("t", (1,)),))
    beat = ask.Heartbeat("g", member.generation_id, member.member_id)
    assert world.ask(beat) == tell.HeartbeatResult(0)
    assert world.ask(ask.LeaveGroup("g", member.member_id)) == tell.LeaveGroupResult()
    assert world.ask(beat).message.startswith("HEARTBEAT_FAILED: UNKNOWN_MEMBER_ID")


def test_a_follower_that_waits_is_released_by_the_leaders_sync(world: World) -> None:
    leader = joined(world)
    world.ask(ask.SyncGroup("g", leader.generation_id, leader.member_id, share((leader.member_id, 0))))
    follower = join(world, "m-2", Session("10.0.0.2"))
    world.settle()
    assert follower.response is None, "it waits for the leader to join again"
    assert world.ask(ask.Heartbeat("g", leader.generation_id, leader.member_id)) == tell.HeartbeatResult(27)
    again = joined(world, leader.member_id)
    assert isinstance(follower.response, tell.JoinGroupResult)
    assert {member.member_id for member in follower.response.members} == {leader.member_id, "m-2"}
    waiting = world.send(ask.SyncGroup("g", again.generation_id, "m-2", ()), Session("10.0.0.2"))
    world.settle()
    assert waiting.response is None
    given = share((leader.member_id, 0), ("m-2", 1))
    world.ask(ask.SyncGroup("g", again.generation_id, leader.member_id, given))
    assert waiting.response == tell.SyncGroupResult((ask.TopicAssignment("t", (1,)),))


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ask.SyncGroup("none", 1, "m", ()), "SYNC_GROUP_FAILED: UNKNOWN_MEMBER_ID"),
        (ask.Heartbeat("none", 1, "m"), "HEARTBEAT_FAILED: UNKNOWN_MEMBER_ID"),
        (ask.LeaveGroup("none", "m"), "LEAVE_GROUP_FAILED: UNKNOWN_MEMBER_ID"),
    ],
)
def test_who_is_in_no_group_is_told_so(world: World, request_: ask.Request, text: str) -> None:
    assert world.ask(request_).message.startswith(text)


def test_an_assignment_to_a_stranger_and_an_old_generation_are_refused(world: World) -> None:
    member = joined(world)
    stranger = ask.SyncGroup("g", member.generation_id, member.member_id, share(("who", 0)))
    assert world.ask(stranger).message.startswith("SYNC_GROUP_FAILED: INCONSISTENT_GROUP_PROTOCOL")
    old = ask.SyncGroup("g", member.generation_id + 5, member.member_id, ())
    assert world.ask(old).message.startswith("SYNC_GROUP_FAILED: ILLEGAL_GENERATION")


def test_offsets_are_committed_by_whoever_asks_though_the_group_has_members(world: World) -> None:
    joined(world)
    world.ask(ask.Publish("t", 0, None, b"v"))
    assert world.ask(ask.CommitOffset("g", "t", 0, 1)) == tell.OffsetCommitted()
    world.restart()
    assert world.ask(ask.GetOffset("g", "t", 0)) == tell.CommittedOffset(1)
    assert world.ask(ask.ListGroups()) == tell.Groups(("g",))
    assert world.ask(ask.DeleteGroup("g")).message.startswith("GROUP_NOT_EMPTY")


def test_how_far_a_group_is_behind_is_told_in_records_and_in_time(world: World) -> None:
    for value in (b"a", b"b", b"c"):
        world.ask(ask.Publish("t", 0, None, value))
        world.clock.advance(1000)
    world.ask(ask.CommitOffset("g", "t", 0, 1))
    world.ask(ask.CommitOffset("g", "t", 1, 0))
    behind, level = world.broker.lags()
    assert (behind.records, behind.waiting_ms) == (2, 2000)
    assert (level.partition, level.records, level.waiting_ms) == (1, 0, 0)

"""Groups with members of both protocols: limits and corners; the plays in tests/scenarios tell how they move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_table import Table

from rivven import limits
from rivven.assign import Subscription, decode_assignment, encode_assignment, encode_subscription
from rivven.coordinator import (
    Alive,
    Commit,
    Committed,
    CommittedOffset,
    ConsumerAlive,
    ConsumerHeartbeat,
    DescribedConsumerGroup,
    DescribedGroup,
    FetchOffsets,
    GroupConfig,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Sync,
)
from rivven.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupRequest,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from rivven.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
WANTS_T = (("range", encode_subscription(Subscription(("t",)))),)
JOIN = Join("g", protocols=WANTS_T, id_required=False, session_timeout_ms=10_000)
NEW = ConsumerHeartbeat("g", "x", 0, rebalance_timeout_ms=30_000, topics=("t",), owned=frozenset())


def table_with(config: GroupConfig | None = None) -> Table:
    table = Table(config or GroupConfig(initial_rebalance_delay_ms=0))
    table.groups.topics_changed({"t": 2})
    return table


@pytest.fixture
def table() -> Table:
    return table_with()


def lead(table: Table, *partitions: TopicPartition, **more: object) -> Joined:
    """A classic member that is alone, with what it assigned to itself."""
    joined = table.ask(replace(JOIN, **more))
    given = ((joined.member_id, encode_assignment(partitions)),)
    table.ask(Sync("g", joined.generation, joined.member_id, assignments=given))
    return joined


def claiming(*owned: TopicPartition, generation: int) -> tuple[tuple[str, bytes], ...]:
    subscription = Subscription(("t",), owned=owned, generation=generation)
    return (("cooperative-sticky", encode_subscription(subscription)),)


def members_of(table: Table):
    found = table.groups.describe("g")
    assert isinstance(found, DescribedConsumerGroup)
    return {member.member_id: member for member in found.members}


def test_a_refused_heartbeat_leaves_a_classic_group_as_it_was(table):
    lead(table, T0, T1)
    assert isinstance(table.ask(replace(NEW, topics=None)), InvalidGroupRequest)
    assert isinstance(table.groups.describe("g"), DescribedGroup)


def test_whoever_is_no_member_cannot_take_a_classic_group_along(table):
    lead(table, T0, T1)
    assert isinstance(table.ask(replace(NEW, member_epoch=3)), UnknownMember)
    assert isinstance(table.groups.describe("g"), DescribedGroup)


@pytest.mark.parametrize("metadata", [b"", b"meta", b"\x00\x03\x7f\xff\xff\xff"])
def test_a_group_whose_members_cannot_be_read_stays_classic(table, metadata):
    lead(table, protocols=(("range", metadata),))
    assert isinstance(table.ask(NEW), InconsistentGroupProtocol)
    assert isinstance(table.groups.describe("g"), DescribedGroup)


def test_a_group_whose_assignment_cannot_be_read_stays_classic(table):
    joined = table.ask(JOIN)
    table.ask(Sync("g", 1, joined.member_id, assignments=((joined.member_id, b"own words"),)))
    assert isinstance(table.ask(NEW), InconsistentGroupProtocol)


def test_a_member_that_cannot_be_read_may_not_join_a_consumer_group(table):
    table.ask(NEW)
    assert isinstance(table.ask(replace(JOIN, protocols=(("range", b"meta"),))), InconsistentGroupProtocol)
    assert members_of(table).keys() == {"x"}


def test_a_partition_that_a_leader_gave_twice_is_taken_over_once(table):
    first = lead(table, T0)
    second = table.ask(JOIN)
    assert second is None
    joined = table.ask(replace(JOIN, member_id=first.member_id))
    other = next(one.member_id for one in joined.members if one.member_id != first.member_id)
    both = encode_assignment([T0, T1])
    table.ask(Sync("g", 2, first.member_id, assignments=((first.member_id, both), (other, both))))
    table.ask(NEW)
    held = [partition for member in members_of(table).values() for partition in member.assignment]
    assert sorted(held) == [T0, T1]


def test_what_cooperative_members_own_is_theirs_also_while_nothing_is_assigned(table):
    """The group is taken over between the joins and what the leader assigns."""
    first = lead(table, T0, T1, protocols=claiming(generation=-1))
    table.ask(replace(JOIN, member_id=first.member_id, protocols=claiming(T0, T1, generation=1)))
    answer = table.ask(NEW)
    assert answer.assignment == frozenset()
    assert members_of(table)[first.member_id].assignment == {T0, T1}
    assert isinstance(table.ask(Sync("g", 2, first.member_id)), RebalanceInProgress)


def test_of_two_that_claim_a_partition_the_later_generation_has_it(table):
    first = lead(table, T0, T1, protocols=claiming(generation=-1))
    table.ask(replace(JOIN, protocols=claiming(T0, generation=0)))
    table.ask(replace(JOIN, member_id=first.member_id, protocols=claiming(T0, generation=1)))
    table.ask(NEW)
    assert members_of(table)[first.member_id].assignment == {T0}
    assert sum(len(member.assignment) for member in members_of(table).values()) == 1


def test_members_of_both_protocols_count_towards_the_limit():
    table = table_with(GroupConfig(initial_rebalance_delay_ms=0, members_max=2))
    lead(table, T0, T1)
    table.ask(NEW)
    assert isinstance(table.ask(JOIN), GroupFull)
    assert isinstance(table.ask(replace(NEW, member_id="y")), GroupFull)


def test_ids_that_were_given_out_count_until_they_expire():
    table = table_with(GroupConfig(initial_rebalance_delay_ms=0, members_max=2))
    table.ask(NEW)
    assert isinstance(table.ask(replace(JOIN, id_required=True)), MemberIdRequired)
    assert isinstance(table.ask(JOIN), GroupFull)
    table.perform(table.groups.tick(10_000), 10_000)
    assert isinstance(table.ask(JOIN, 10_000), Joined)


def test_an_id_that_a_classic_group_gave_out_is_welcome_in_the_consumer_group(table):
    lead(table, T0, T1)
    given = table.ask(replace(JOIN, id_required=True)).facts["member"]
    table.ask(NEW)
    assert table.ask(replace(JOIN, member_id=given, id_required=True)).member_id == given


def test_classic_members_say_no_more_than_fits(table):
    table.ask(NEW)
    big = (("range", WANTS_T[0][1] + b"x" * (limits.GROUP_BYTES_MAX // 2)),)
    assert isinstance(table.ask(replace(JOIN, protocols=big)), Joined)
    assert isinstance(table.ask(replace(JOIN, protocols=big)), GroupFull)


def test_a_member_has_no_more_topics_than_the_limit(table, monkeypatch):
    monkeypatch.setattr(limits, "MEMBER_TOPICS_MAX", 1)
    table.ask(NEW)
    many = (("range", encode_subscription(Subscription(("t", "u")))),)
    assert isinstance(table.ask(replace(JOIN, protocols=many)), GroupFull)


def test_a_sync_names_the_protocol_of_its_join(table):
    table.ask(NEW)
    joined = table.ask(JOIN)
    sync = Sync("g", joined.generation, joined.member_id, None, "consumer", "range")
    assert decode_assignment(table.ask(sync).assignment) == ()
    assert isinstance(table.ask(replace(sync, protocol="sticky")), InconsistentGroupProtocol)
    assert isinstance(table.ask(replace(sync, protocol_type="connect")), InconsistentGroupProtocol)


def test_a_static_member_that_was_replaced_is_fenced_wherever_it_speaks(table):
    table.ask(NEW)
    old = table.ask(replace(JOIN, instance_id="i"))
    new = table.ask(replace(JOIN, instance_id="i"))
    assert new.generation == old.generation
    speaks = [
        replace(JOIN, instance_id="i", member_id=old.member_id),
        Sync("g", old.generation, old.member_id, "i"),
        Heartbeat("g", old.generation, old.member_id, "i"),
        Commit("g", ((T0, CommittedOffset(1)),), old.member_id, "i", old.generation),
    ]
    assert [type(table.ask(request)) for request in speaks] == [FencedInstance] * 4
    assert isinstance(table.ask(Heartbeat("g", new.generation, new.member_id, "i")), Alive)


def test_an_operator_removes_static_members_of_both_protocols(table):
    lead(table, T0, T1, instance_id="old")
    table.ask(replace(NEW, instance_id="new"))
    table.ask(replace(NEW, member_id="y"))
    left = table.ask(Leave("g", (("", "old"), ("", "new"), ("", "none"))))
    assert [None if one.error is None else type(one.error) for one in left.members] == [None, None, UnknownMember]
    assert members_of(table).keys() == {"y"}


def test_the_same_member_may_change_its_protocol_and_take_the_group_back(table):
    table.ask(NEW)
    joined = table.ask(replace(JOIN, member_id="x"))
    assert isinstance(joined, Joined)
    assert isinstance(table.groups.describe("g"), DescribedGroup)
    assert isinstance(table.ask(Sync("g", joined.generation, "x")), RebalanceInProgress)
    assert table.ask(replace(JOIN, member_id="x")).leader == "x"
    assert isinstance(table.ask(NEW), ConsumerAlive)
    assert [member.kind for member in members_of(table).values()] == ["consumer"]


def test_offsets_are_fetched_and_committed_under_the_members_own_epoch(table):
    joined = lead(table, T0, T1)
    table.ask(NEW)
    commit = Commit("g", ((T0, CommittedOffset(4)),), joined.member_id, None, joined.generation)
    assert isinstance(table.ask(commit), Committed)
    assert isinstance(table.ask(replace(commit, generation=9)), IllegalGeneration)
    with pytest.raises(IllegalGeneration):
        table.groups.fetch(FetchOffsets("g", (T0,), joined.member_id, 9))


def test_while_a_change_of_protocol_is_written_the_group_is_told_as_it_was(table):
    joined = lead(table, T0, T1)
    table.kept_back = []
    assert table.ask(NEW) is None
    assert isinstance(table.groups.describe("g"), DescribedGroup)
    assert [one.kind for one in table.groups.list()] == ["classic"]
    assert table.groups.fetch(FetchOffsets("g", (T0,), joined.member_id, 9)).offsets == {T0: None}


def test_a_replay_gives_the_same_group_at_every_turn(table):
    joined = lead(table, T0, T1)
    for request in (
        NEW,
        replace(JOIN, member_id=joined.member_id),
        Sync("g", 2, joined.member_id),
        replace(NEW, member_epoch=2, owned=frozenset()),
        replace(NEW, member_epoch=-1),
        replace(JOIN, member_id=joined.member_id),
    ):
        table.ask(request)
        assert table.replayed().describe("g") == table.groups.describe("g")
        assert table.replayed().list() == table.groups.list()

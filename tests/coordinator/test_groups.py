"""The table of groups: limits, transactions, lines, and what is told; the plays in tests/scenarios tell the rest."""

from __future__ import annotations

import pytest
from group_table import CONFIG, Table

from rivven import limits
from rivven.coordinator import (
    Alive,
    Commit,
    Committed,
    CommittedOffset,
    ConsumerAlive,
    ConsumerHeartbeat,
    DescribedGroup,
    FetchOffsets,
    GroupConfig,
    Groups,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Phase,
    Sync,
)
from rivven.errors import (
    DiskFull,
    GroupFull,
    GroupNotFound,
    InconsistentGroupProtocol,
    InvalidGroupRequest,
    OffsetMetadataTooLarge,
    StaleMemberEpoch,
    UnknownMember,
)
from rivven.model import Epoch, ProducerId, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
JOIN = Join("g", protocols=(("range", b"meta"),), id_required=False, session_timeout_ms=10_000)


@pytest.fixture
def table() -> Table:
    return Table()


def commit(*offsets, **more) -> Commit:
    return Commit("g", tuple((where, CommittedOffset(offset)) for where, offset in offsets), **more)


def offset_of(groups: Groups, where: TopicPartition) -> int | None:
    found = groups.fetch(FetchOffsets("g", (where,))).offsets[where]
    return None if found is None else found.offset


def test_a_member_reads_its_own_metadata_back(table):
    joined = table.ask(JOIN)
    assert isinstance(joined, Joined)
    assert [one.metadata for one in joined.members] == [b"meta"]


def test_every_id_is_new(table):
    assert (
        len({table.ask(Join(f"g{n}", protocols=JOIN.protocols, id_required=False)).member_id for n in range(50)})
        == 50
    )


def test_a_group_has_as_many_members_as_the_configuration_says():
    table = Table(GroupConfig(initial_rebalance_delay_ms=0, members_max=1))
    table.ask(JOIN)
    assert isinstance(table.ask(JOIN), GroupFull)


def test_a_group_holds_no_more_metadata_than_fits_its_record(table):
    big = Join("g", protocols=(("range", b"x" * (limits.GROUP_BYTES_MAX // 2)),), id_required=False)
    table.ask(big)
    table.ask(big)
    assert isinstance(table.ask(big), GroupFull)


def test_an_assignment_that_is_too_large_is_refused_and_the_leader_may_try_again(table):
    joined = table.ask(JOIN)
    huge = Sync("g", 1, joined.member_id, assignments=((joined.member_id, b"x" * limits.GROUP_BYTES_MAX),))
    assert isinstance(table.ask(huge), GroupFull)
    assert table.ask(Sync("g", 1, joined.member_id, assignments=((joined.member_id, b"x"),))).assignment == b"x"


@pytest.mark.parametrize("request_of", [JOIN, Heartbeat("", 1, "m"), commit()])
def test_a_group_has_a_name(table, request_of):
    for name in ("", "x" * (limits.GROUP_ID_BYTES_MAX + 1)):
        values = {field: getattr(request_of, field) for field in request_of.__dataclass_fields__} | {"group": name}
        assert isinstance(table.ask(type(request_of)(**values)), InvalidGroupRequest)


def test_a_name_that_is_too_long_is_refused_by_its_field(table):
    answer = table.ask(Join("g", client_id="x" * 2_000, protocols=JOIN.protocols))
    assert isinstance(answer, InvalidGroupRequest)
    assert "client id" in str(answer)


def test_a_refused_join_leaves_no_group_behind(table):
    assert isinstance(table.ask(Join("g")), InconsistentGroupProtocol)
    assert table.groups.list() == []


def test_the_line_before_a_group_has_an_end(table, monkeypatch):
    monkeypatch.setattr(limits, "GROUP_WAITING_MAX", 2)
    table.kept_back = []
    table.ask(JOIN)
    assert [table.ask(Heartbeat("g", 1, "m")) for _ in range(2)] == [None, None]
    assert isinstance(table.ask(Heartbeat("g", 1, "m")), GroupFull)


def test_groups_do_not_wait_for_one_another(table):
    table.kept_back = []
    table.ask(JOIN)
    table.kept_back = None
    assert isinstance(table.ask(Join("other", protocols=JOIN.protocols, id_required=False)), Joined)


def test_one_offset_too_many_is_refused_by_itself(table, monkeypatch):
    monkeypatch.setattr(limits, "OFFSETS_PER_GROUP_MAX", 1)
    answer = table.ask(commit((T0, 1), (T1, 2)))
    assert isinstance(answer, Committed)
    assert {where: type(error) for where, error in answer.errors.items()} == {T1: GroupFull}
    assert (offset_of(table.groups, T0), offset_of(table.groups, T1)) == (1, None)


def test_metadata_that_is_too_long_is_refused_by_itself(table):
    long = CommittedOffset(5, metadata="x" * (limits.OFFSET_METADATA_BYTES_MAX + 1))
    answer = table.ask(Commit("g", ((T0, long), (T1, CommittedOffset(6)))))
    assert isinstance(answer.errors[T0], OffsetMetadataTooLarge)
    assert (offset_of(table.groups, T0), offset_of(table.groups, T1)) == (None, 6)


def test_metadata_and_leader_epoch_come_back_also_after_a_replay(table):
    kept = CommittedOffset(5, 3, "ünïcode", 77)
    table.ask(Commit("g", ((T0, kept),)))
    for groups in (table.groups, table.replayed()):
        assert groups.fetch(FetchOffsets("g")).offsets == {T0: kept}


def test_an_unknown_group_has_no_offsets_and_that_is_no_error(table):
    assert table.groups.fetch(FetchOffsets("nobody", (T0,))).offsets == {T0: None}
    with pytest.raises(GroupNotFound):
        table.groups.describe("nobody")


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_of_a_transaction_count_when_it_commits(table, committed):
    table.ask(commit((T0, 1)))
    table.ask(commit((T0, 9), producer_id=ProducerId(4), producer_epoch=Epoch(0)))
    for groups in (table.groups, table.replayed()):
        assert offset_of(groups, T0) == 1
        assert groups.fetch(FetchOffsets("g", (T0, T1), stable_only=True)).unstable == {T0}
        groups.end_transaction(ProducerId(4), committed=committed)
        assert offset_of(groups, T0) == (9 if committed else 1)
        assert groups.fetch(FetchOffsets("g", (T0,), stable_only=True)).unstable == frozenset()


def test_a_transaction_may_commit_for_a_group_in_use_without_being_a_member(table):
    table.ask(JOIN)
    assert isinstance(table.ask(commit((T0, 9), producer_id=ProducerId(4))), Committed)


def test_a_heartbeat_to_nobody_is_answered(table):
    assert isinstance(table.ask(Heartbeat("g", 1, "m")), UnknownMember)
    assert isinstance(table.ask(Leave("g", (("m", None),))), UnknownMember)


def test_a_session_ends_when_it_should_and_not_before(table):
    joined = table.ask(JOIN)
    table.ask(Sync("g", 1, joined.member_id))
    assert isinstance(table.ask(Heartbeat("g", 1, joined.member_id), 9_000), Alive)
    for now_ms in (10_000, 18_999):
        table.perform(table.groups.tick(now_ms), now_ms)
        assert table.groups.describe("g").phase is Phase.STABLE
    table.perform(table.groups.tick(19_000), 19_000)
    assert table.groups.describe("g").phase is Phase.EMPTY


def test_when_to_look_again_is_never_too_late(table):
    joined = table.ask(JOIN, 1_000)
    table.ask(Sync("g", 1, joined.member_id), 1_000)
    assert table.groups.due_ms() <= 11_000


def test_an_assignment_to_a_stranger_is_refused_where_that_was_asked_for(table):
    joined = table.ask(JOIN)
    strict = Sync("g", 1, joined.member_id, assignments=(("ghost", b""),), known_members_only=True)
    assert isinstance(table.ask(strict), InconsistentGroupProtocol)


def test_a_group_is_described_with_its_members(table):
    joined = table.ask(JOIN)
    table.ask(Sync("g", 1, joined.member_id, assignments=((joined.member_id, b"mine"),)))
    described = table.groups.describe("g")
    assert isinstance(described, DescribedGroup)
    assert (described.phase, described.protocol, described.leader) == (Phase.STABLE, "range", joined.member_id)
    assert [(one.metadata, one.assignment) for one in described.members] == [(b"meta", b"mine")]
    assert table.replayed().describe("g") == described


def test_a_consumer_reads_offsets_with_its_own_epoch_alone(table):
    table.groups.topics_changed({"t": 2})
    beat = ConsumerHeartbeat("g", "m", 0, rebalance_timeout_ms=1, topics=("t",), owned=frozenset())
    assert table.ask(beat) == ConsumerAlive("m", 1, CONFIG.consumer_heartbeat_ms, frozenset({T0, T1}))
    table.groups.fetch(FetchOffsets("g", (T0,), "m", 1))
    with pytest.raises(StaleMemberEpoch):
        table.groups.fetch(FetchOffsets("g", (T0,), "m", 2))
    with pytest.raises(UnknownMember):
        table.groups.fetch(FetchOffsets("g", (T0,), "n", 1))


def test_a_commit_that_a_new_epoch_overtook_counts_for_what_the_member_still_holds(table):
    table.groups.topics_changed({"t": 2})
    first, second = (
        ConsumerHeartbeat("g", name, 0, rebalance_timeout_ms=1, topics=("t",), owned=frozenset()) for name in "mn"
    )
    assert table.ask(first).member_epoch == 1
    assert table.ask(second).member_epoch == 2
    kept = table.ask(ConsumerHeartbeat("g", "m", 1, owned=frozenset({T0, T1}))).assignment
    assert table.ask(ConsumerHeartbeat("g", "m", 1, owned=kept)).member_epoch == 2
    (mine,), (theirs,) = kept, {T0, T1} - kept
    assert not isinstance(table.ask(commit((mine, 5), member_id="m", generation=1)), StaleMemberEpoch)
    assert offset_of(table.groups, mine) == 5
    for overtaken in (
        commit((theirs, 5), member_id="m", generation=1),
        commit((mine, 6), (theirs, 6), member_id="m", generation=1),
        commit((mine, 6), member_id="m", generation=0),
        commit((mine, 6), member_id="m", generation=3),
        commit((theirs, 6), member_id="n", generation=1),
    ):
        assert isinstance(table.ask(overtaken), StaleMemberEpoch), overtaken
    assert offset_of(table.groups, mine) == 5


def test_a_write_that_fails_for_an_ended_session_is_tried_again(table):
    table.groups.topics_changed({"t": 2})
    table.ask(ConsumerHeartbeat("g", "m", 0, rebalance_timeout_ms=1, topics=("t",), owned=frozenset()))
    table.kept_back = []
    table.perform(table.groups.tick(45_000), 45_000)
    (write,) = table.kept_back
    table.perform(table.groups.failed(write.token, DiskFull(wanted_bytes=1, path="x"), 45_000))
    assert table.groups.describe("g").members
    table.kept_back = None
    table.perform(table.groups.tick(90_000), 90_000)
    assert not table.groups.describe("g").members

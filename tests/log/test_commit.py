"""Group commit: many writes, one sync, in the order they came."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rivven.errors import Overloaded
from rivven.log import CommitLimits, SyncPolicy
from rivven.log.commit import Commit

LIMITS = CommitLimits(window_us=200, group_bytes=100, group_writes=5, waiting_bytes_max=300)


def commit_with(*sizes: int, policy: int = 1, eager: bool = True, now_us: int = 0) -> Commit[int]:
    """Writes numbered from 0, all added at `now_us`."""
    limits = CommitLimits(200, 100, 5, 300, eager=eager)
    commit: Commit[int] = Commit(SyncPolicy(policy), limits)
    for number, size_bytes in enumerate(sizes):
        commit.add(number, size_bytes, now_us)
    return commit


def test_one_sync_covers_the_whole_group():
    commit = commit_with(10, 10, 10)
    group = commit.take(0)
    assert (group.writes, group.size_bytes, group.sync) == ([0, 1, 2], 30, True)
    assert (commit.busy, len(commit)) == (True, 0)
    assert commit.done() is group
    assert not commit.busy


def test_nothing_waits_for_nothing():
    commit = commit_with()
    assert (commit.take(0), commit.take(0, force=True), commit.due_us(), commit.next_bytes()) == (None, None, None, 0)


def test_an_idle_disk_is_never_made_to_wait():
    assert commit_with(1).take(0).writes == [0]


def test_what_comes_while_the_disk_is_busy_forms_the_next_group():
    commit = commit_with(10)
    commit.take(0)
    commit.add(1, 10, 5)
    commit.add(2, 10, 6)
    assert commit.take(1_000_000, force=True) is None
    commit.done()
    assert commit.take(7).writes == [1, 2]


def test_a_group_closes_at_its_count():
    commit = commit_with(*[1] * 7)
    assert commit.take(0).writes == [0, 1, 2, 3, 4]
    commit.done()
    assert commit.take(0).writes == [5, 6]


def test_a_group_closes_at_its_bytes():
    commit = commit_with(60, 40, 1)
    assert commit.take(0).writes == [0, 1]


def test_a_write_larger_than_any_group_goes_alone():
    commit = commit_with(500, 1)
    assert commit.next_bytes() == 500
    assert commit.take(0).writes == [0]


def test_a_patient_commit_waits_for_its_window():
    commit = commit_with(1, eager=False, now_us=1000)
    assert (commit.take(1199), commit.due_us()) == (None, 1200)
    assert commit.take(1200).writes == [0]


def test_a_patient_commit_does_not_wait_when_the_group_is_full():
    assert commit_with(*[1] * 5, eager=False).take(0) is not None
    assert commit_with(60, 40, eager=False).take(0) is not None
    assert commit_with(60, 39, eager=False).take(0) is None


def test_force_makes_it_due():
    assert commit_with(1, eager=False).take(0, force=True).writes == [0]


def test_every_write_is_synced_by_default():
    commit = commit_with(1, 1)
    assert commit.take(0).sync


def test_every_nth_write_asks_for_a_sync():
    commit = commit_with(policy=3)
    asked = []
    for number in range(9):
        commit.add(number, 1, 0)
        asked.append(commit.take(0).sync)
        commit.done()
    assert asked == [False, False, True] * 3


def test_a_group_that_crosses_the_nth_write_asks_for_a_sync():
    commit = commit_with(1, 1, policy=4)
    assert not commit.take(0).sync
    commit.done()
    commit.add(2, 1, 0)
    commit.add(3, 1, 0)
    commit.add(4, 1, 0)
    assert commit.take(0).sync
    commit.done()
    commit.add(5, 1, 0)
    assert not commit.take(0).sync


def test_the_policy_none_never_asks_for_a_sync_but_a_caller_may():
    commit = commit_with(1, policy=0)
    assert not commit.take(0).sync
    commit.done()
    commit.add(1, 1, 0)
    assert commit.take(0, sync=True).sync


def test_too_much_waiting_refuses_the_next():
    commit = commit_with(200)
    commit.admit(100)
    with pytest.raises(Overloaded) as caught:
        commit.admit(101)
    assert caught.value.retriable
    assert caught.value.facts == {"waiting_bytes": 200, "retry_ms": 1}


def test_what_is_under_way_still_waits():
    commit = commit_with(250)
    commit.take(0)
    with pytest.raises(Overloaded):
        commit.admit(100)
    commit.done()
    commit.admit(100)


def test_a_write_larger_than_the_limit_is_let_in_when_nothing_waits():
    commit_with().admit(10_000)


def test_nothing_can_be_done_that_was_not_taken():
    with pytest.raises(AssertionError):
        commit_with(1).done()


class CommitMachine(RuleBasedStateMachine):
    """Against a plain list: order is kept, one group at a time, limits hold, syncs come when they must."""

    @initialize(policy=st.sampled_from([0, 1, 2, 7]), eager=st.booleans())
    def start(self, policy, eager):
        self.policy, self.now_us, self.number = policy, 0, 0
        self.commit: Commit[int] = Commit(SyncPolicy(policy), CommitLimits(200, 100, 5, 300, eager))
        self.waiting: list[tuple[int, int, int]] = []
        self.group = None
        self.done: list[int] = []
        self.unsynced = 0
        self.eager = eager

    @rule(size_bytes=st.integers(1, 150))
    def add(self, size_bytes):
        held_bytes = sum(write[1] for write in self.waiting) + (self.group.size_bytes if self.group else 0)
        try:
            self.commit.admit(size_bytes)
        except Overloaded:
            assert held_bytes + size_bytes > 300
            return
        assert held_bytes + size_bytes <= 300 or held_bytes == 0
        self.commit.add(self.number, size_bytes, self.now_us)
        self.waiting.append((self.number, size_bytes, self.now_us))
        self.number += 1

    @rule(us=st.integers(0, 150))
    def wait(self, us):
        self.now_us += us

    @rule(force=st.booleans(), sync=st.booleans())
    def take(self, force, sync):
        bound = self.commit.next_bytes()
        group = self.commit.take(self.now_us, force=force, sync=sync)
        due = force or self.eager or len(self.waiting) >= 5 or self._bytes() >= 100 or self._aged()
        if self.group is not None or not self.waiting or not due:
            assert group is None
            return
        assert group is not None
        count = len(group.writes)
        taken = self.waiting[:count]
        assert group.writes == [write[0] for write in taken]
        assert group.size_bytes == sum(write[1] for write in taken) <= bound
        assert count == 1 or (group.size_bytes <= 100 and count <= 5)
        if count < min(5, len(self.waiting)):
            assert group.size_bytes + self.waiting[count][1] > 100, "it could have taken one more"
        assert group.sync == (sync or 0 < self.policy <= self.unsynced + count)
        self.waiting = self.waiting[count:]
        self.group = group

    def _bytes(self):
        return sum(write[1] for write in self.waiting)

    def _aged(self):
        return bool(self.waiting) and self.now_us >= self.waiting[0][2] + 200

    @precondition(lambda self: getattr(self, "group", None) is not None)
    @rule()
    def finish(self):
        assert self.commit.done() is self.group
        self.done += self.group.writes
        self.unsynced = 0 if self.group.sync else self.unsynced + len(self.group.writes)
        self.group = None

    @invariant()
    def nothing_is_lost_or_overtaken(self):
        if hasattr(self, "commit"):
            assert self.done == list(range(len(self.done)))
            assert (len(self.commit), self.commit.busy) == (len(self.waiting), self.group is not None)
            held_bytes = self._bytes() + (self.group.size_bytes if self.group else 0)
            assert self.commit.waiting_bytes == held_bytes
            if self.policy > 1:
                assert self.unsynced < self.policy


TestCommitMachine = CommitMachine.TestCase
TestCommitMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

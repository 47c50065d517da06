"""Both protocols under loss, delay, slow disks, silence and restarts: what must hold always, and in the end."""

from __future__ import annotations

import pytest
from group_world import ALL, GROUP, SESSION_MS, ClassicClient, ConsumerClient, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rivven.coordinator import DescribedConsumerGroup, Phase

WHICH = st.integers(0, 3)
CLIENTS_MAX = 4


class Play(RuleBasedStateMachine):
    """What can happen to either protocol; the clients differ."""

    across_generations = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World(across_generations=self.across_generations)
        self.names = 0

    def pick(self, which: int):
        return self.world.clients[which % len(self.world.clients)]

    @initialize(kinds=st.lists(st.booleans(), max_size=3))
    def some_are_there_already(self, kinds):
        for kind in kinds:
            self.comes(kind)
        self.world.settle()

    @precondition(lambda self: len(self.world.clients) < CLIENTS_MAX)
    @rule(static=st.booleans())
    def a_client_comes(self, static):
        self.comes(static)

    def comes(self, static):
        raise NotImplementedError

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_acts(self, which):
        self.world.act(self.pick(which))

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_acts_and_is_served(self, which):
        self.world.act(self.pick(which))
        self.world.serve()

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_commits_and_is_served(self, which):
        self.world.commit(self.pick(which))
        self.world.serve()

    @precondition(lambda self: len(self.world.clients) > 1)
    @rule(which=WHICH, rounds=st.sampled_from([1, 5, 12, 35]))
    def the_others_go_on_without_one(self, which, rounds):
        self.world.go_on(rounds, self.pick(which))

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_commits(self, which):
        self.world.commit(self.pick(which))

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_gives_up_waiting(self, which):
        client = self.pick(which)
        if client.waiting is not None:
            self.world.give_up_waiting(client)

    @precondition(lambda self: len(self.world.clients) > 1)
    @rule(which=WHICH)
    def a_client_dies(self, which):
        client = self.pick(which)
        client.alive = False
        client.let_go()

    @precondition(lambda self: self.world.requests)
    @rule(which=WHICH)
    def a_request_arrives(self, which):
        self.world.deliver_request(which % len(self.world.requests))

    @precondition(lambda self: self.world.answers)
    @rule(which=WHICH)
    def an_answer_arrives(self, which):
        self.world.deliver_answer(which % len(self.world.answers))

    @precondition(lambda self: self.world.requests)
    @rule(which=WHICH)
    def a_request_is_lost(self, which):
        self.world.lose_request(which % len(self.world.requests))

    @precondition(lambda self: self.world.answers)
    @rule(which=WHICH)
    def an_answer_is_lost(self, which):
        self.world.lose_answer(which % len(self.world.answers))

    @precondition(lambda self: self.world.writes)
    @rule()
    def a_write_is_durable(self):
        self.world.write()

    @precondition(lambda self: self.world.writes)
    @rule()
    def a_write_fails(self):
        self.world.fail_write()

    @rule(step_ms=st.sampled_from([1, 400, 3_000, SESSION_MS]))
    def time_goes_by(self, step_ms):
        self.world.pass_time(step_ms)

    @rule()
    def the_node_restarts(self):
        self.world.restart()

    @rule()
    def all_goes_well_for_a_while(self):
        self.world.settle()

    @invariant()
    def a_partition_has_one_owner(self):
        self.world.check_one_owner(across_generations=self.across_generations)

    @invariant()
    def no_committed_offset_goes_back(self):
        self.world.check_offsets_only_grow()

    def teardown(self):
        self.world.settle()
        self.world.check_one_owner(across_generations=True)
        described = [one for one in self.world.groups.list() if one.group == GROUP]
        if any(client.alive for client in self.world.clients):
            assert [one.phase for one in described] == [Phase.STABLE]
        self.replay_gives_the_same()

    def replay_gives_the_same(self):
        before = self.what_is_kept()
        self.world.restart()
        assert before == self.what_is_kept()

    def what_is_kept(self):
        """One without members is of whichever protocol somebody last tried to join by, until one of them has."""
        described = [self.world.groups.describe(one.group) for one in self.world.groups.list()]
        return [one if one.members else (one.group, one.phase, age_of(one)) for one in described]


def age_of(group):
    return group.epoch if isinstance(group, DescribedConsumerGroup) else group.generation


class ClassicPlay(Play):
    def comes(self, static):
        self.names += 1
        self.world.clients.append(ClassicClient(f"c{self.names}", f"i{self.names}" if static else None))

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_static_client_restarts(self, which):
        """The process ends without a word, and another one takes its place."""
        client = self.pick(which)
        if client.instance_id is not None:
            client.alive = False
            client.let_go()
            self.world.clients.remove(client)
            self.names += 1
            self.world.clients.append(ClassicClient(f"c{self.names}", client.instance_id))

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_leaves(self, which):
        if self.pick(which).instance_id is None:
            self.world.leave(self.pick(which))


class ConsumerPlay(Play):
    across_generations = True

    def comes(self, _static):
        self.names += 1
        self.world.clients.append(ConsumerClient(f"c{self.names}", member_id=f"c{self.names}"))

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_does_what_it_was_told(self, which):
        self.pick(which).work()

    @invariant()
    def the_group_gives_a_partition_to_one_member(self):
        for listed in self.world.groups.list():
            group = self.world.groups.describe(listed.group)
            if isinstance(group, DescribedConsumerGroup):
                given = [partition for member in group.members for partition in member.assignment]
                assert len(given) == len(set(given))
                target = [partition for member in group.members for partition in member.target]
                assert len(target) == len(set(target))
                assert set(target) <= ALL


class MixedPlay(ConsumerPlay):
    """Members of both protocols: the group goes from one to the other, and back, whenever it has to."""

    cooperative = False

    def comes(self, classic):
        self.names += 1
        name = f"c{self.names}"
        # A member may be as slow as its session allows: whoever is out of the group then knows it.
        slow = {"rebalance_ms": 3_600_000, "cooperative": self.cooperative}
        self.world.clients.append(ClassicClient(name, **slow) if classic else ConsumerClient(name, member_id=name))

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_does_what_it_was_told(self, which):
        if isinstance(client := self.pick(which), ConsumerClient):
            client.work()

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_leaves(self, which):
        if isinstance(client := self.pick(which), ClassicClient):
            self.world.leave(client)

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_comes_back_in_the_other_protocol(self, which):
        """As a rolling restart does it: it may say that it goes, and may not."""
        client = self.pick(which)
        client.let_go()
        client.alive = False
        self.world.clients.remove(client)
        self.comes(isinstance(client, ConsumerClient))


class CooperativePlay(MixedPlay):
    cooperative = True


ClassicPlay.TestCase.settings = settings(max_examples=40, stateful_step_count=50)
ConsumerPlay.TestCase.settings = settings(max_examples=40, stateful_step_count=50)
MixedPlay.TestCase.settings = settings(max_examples=40, stateful_step_count=50)
CooperativePlay.TestCase.settings = settings(max_examples=40, stateful_step_count=50)
TestClassicPlay = ClassicPlay.TestCase
TestConsumerPlay = ConsumerPlay.TestCase
TestMixedPlay = MixedPlay.TestCase
TestCooperativePlay = CooperativePlay.TestCase


@pytest.mark.soak
@pytest.mark.parametrize("play", [ClassicPlay, ConsumerPlay, MixedPlay, CooperativePlay])
def test_the_same_for_a_long_time(play):
    run_state_machine_as_test(play, settings=settings(max_examples=1_500, stateful_step_count=120))

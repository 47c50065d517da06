"""Transactions under zombies, delays, doubles, failing disks and crashes: what must hold always, and in the end."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from txn_world import PARTITIONS, TIMEOUT_MS, Driver, Instance, World, play

WHICH = st.integers(0, 9)
WHAT = st.sampled_from(["write", "write", "write", "commit", "commit", "abort"])
WHERE = st.sampled_from(PARTITIONS)


class Play(RuleBasedStateMachine):
    """What can happen to producers and owners alike."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def pick(self, which: int):
        """The youngest most of the time: they have the most to do."""
        return self.world.clients[-1 - which % len(self.world.clients)]

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH, what=WHAT, where=WHERE)
    def a_client_acts(self, which, what, where):
        self.world.act(self.pick(which), what, where)

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH, what=WHAT, where=WHERE)
    def a_client_acts_and_all_goes_well(self, which, what, where):
        world = self.world
        world.act(self.pick(which), what, where)
        while world.network or world.writes or world.marking:
            for waiting, step in ((world.network, world.deliver), (world.writes, world.write)):
                while waiting:
                    step(0)
            while world.marking:
                world.write_marker(0)

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_gives_up_waiting(self, which):
        self.world.give_up_waiting(self.pick(which))

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def a_client_dies(self, which):
        self.pick(which).alive = False

    @precondition(lambda self: self.world.network)
    @rule(which=WHICH, keep=st.booleans())
    def a_request_arrives_perhaps_not_for_the_last_time(self, which, keep):
        self.world.deliver(which % len(self.world.network), keep=keep)

    @precondition(lambda self: self.world.network)
    @rule(which=WHICH)
    def a_request_is_lost(self, which):
        self.world.lose(which % len(self.world.network))

    @precondition(lambda self: self.world.writes)
    @rule(which=WHICH)
    def a_write_is_durable(self, which):
        self.world.write(which % len(self.world.writes))

    @precondition(lambda self: self.world.writes)
    @rule(which=WHICH)
    def a_write_fails(self, which):
        self.world.fail_write(which % len(self.world.writes))

    @precondition(lambda self: self.world.marking)
    @rule(which=WHICH)
    def a_marker_is_written(self, which):
        self.world.write_marker(which % len(self.world.marking))

    @precondition(lambda self: self.world.marking)
    @rule(which=WHICH)
    def markers_fail(self, which):
        self.world.fail_markers(which % len(self.world.marking))

    @rule(step_ms=st.sampled_from([1, 100, TIMEOUT_MS // 2, TIMEOUT_MS]))
    def time_goes_by(self, step_ms):
        self.world.pass_time(step_ms)

    @rule(reached_disk=st.integers(0, 3))
    def the_node_crashes(self, reached_disk):
        self.world.crash(reached_disk)

    @invariant()
    def every_transaction_has_one_verdict_and_none_that_nobody_asked_for(self):
        self.world.check()

    def teardown(self):
        check_the_end(self.world)


def check_the_end(world: World) -> None:
    world.settle()
    world.check()
    before = (world.txns.list(), world.txns.owners())
    world.crash(0)
    assert (world.txns.list(), world.txns.owners()) == before, "the log tells something else"
    assert (world.writes, world.marking) == ([], []), "there was something left to do"


class ProducerPlay(Play):
    @precondition(lambda self: len(self.world.clients) < 8)
    @rule(name=st.sampled_from(["x", "y"]), version=st.sampled_from([1, 2, 2]))
    def an_instance_comes_perhaps_for_an_id_that_another_has(self, name, version):
        self.world.clients.append(Instance(name=name, version=version, keeps_order=version == 1))

    @rule(name=st.sampled_from(["x", "y"]))
    def an_operator_aborts(self, name):
        self.world.abort_by_operator(name)


class OwnerPlay(Play):
    @precondition(lambda self: len(self.world.clients) < 12)
    @rule()
    def the_owner_runs_anew(self):
        self.world.clients.append(Driver())

    @precondition(lambda self: any(isinstance(one, Driver) for one in self.world.clients))
    @rule(which=WHICH, what=WHAT, where=WHERE)
    def an_owner_acts(self, which, what, where):
        drivers = [one for one in self.world.clients if isinstance(one, Driver)]
        self.world.act(drivers[-1 - which % len(drivers)], what, where)


ProducerPlay.TestCase.settings = settings(max_examples=30, stateful_step_count=50)
OwnerPlay.TestCase.settings = settings(max_examples=30, stateful_step_count=50)
TestProducerPlay = ProducerPlay.TestCase
TestOwnerPlay = OwnerPlay.TestCase


@pytest.mark.parametrize("owners", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_chance_finds_nothing(seed, owners):
    """The same, longer and thicker than hypothesis makes it."""
    check_the_end(play(Random(seed), 1_000, owners=owners))


@pytest.mark.soak
@pytest.mark.parametrize("owners", [False, True])
def test_chance_finds_nothing_for_a_long_time(owners):
    for seed in range(1_000, 4_000):
        try:
            check_the_end(play(Random(seed), 1_500, owners=owners))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.soak
@pytest.mark.parametrize("machine", [ProducerPlay, OwnerPlay])
def test_the_same_for_a_long_time(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=1_000, stateful_step_count=120))

"""The assignors: every partition once, balanced, and as little moved as balance allows; and their bytes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.assign import (
    ASSIGNORS,
    Subscription,
    assign_cooperative,
    assign_range,
    assign_round_robin,
    assign_sticky,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from rivven.errors import Malformed
from rivven.model import TopicPartition

TOPICS = ["a", "b", "c"]
COUNTS = st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS})
PARTITION = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 8))
NAMES = st.sampled_from(["m1", "m2", "m3", "m4", "m5"])
SUBSCRIPTION = st.builds(
    Subscription,
    st.lists(st.sampled_from(TOPICS), unique=True).map(tuple),
    st.just(b""),
    st.lists(PARTITION, unique=True, max_size=8).map(tuple),
    st.integers(-1, 3),
)
SUBSCRIPTIONS = st.dictionaries(NAMES, SUBSCRIPTION, max_size=5)
ALIKE = st.dictionaries(NAMES, SUBSCRIPTION.map(lambda one: one._replace(topics=("a", "b"))), min_size=1, max_size=5)


def parts(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def wanted(subscriptions, counts) -> list[TopicPartition]:
    topics = sorted({topic for one in subscriptions.values() for topic in one.topics})
    return [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]


@pytest.mark.parametrize("assign", [assign_range, assign_round_robin, assign_sticky])
@given(subscriptions=SUBSCRIPTIONS, counts=COUNTS)
def test_every_partition_goes_to_one_member_that_wants_it(assign, subscriptions, counts):
    found = assign(subscriptions, counts)
    assert found.keys() == subscriptions.keys()
    assert sorted(one for given in found.values() for one in given) == wanted(subscriptions, counts)
    assert all(one.topic in subscriptions[member].topics for member, given in found.items() for one in given)


@pytest.mark.parametrize("assign", [assign_round_robin, assign_sticky])
@given(subscriptions=ALIKE, counts=COUNTS)
def test_members_that_want_the_same_differ_by_one_at_most(assign, subscriptions, counts):
    loads = [len(given) for given in assign(subscriptions, counts).values()]
    assert max(loads) - min(loads) <= 1


@given(subscriptions=SUBSCRIPTIONS, counts=COUNTS)
def test_sticky_leaves_nobody_two_behind_somebody_who_could_give(subscriptions, counts):
    found = assign_sticky(subscriptions, counts)
    for giver, has in found.items():
        for taker, subscription in subscriptions.items():
            if len(has) - len(found[taker]) >= 2:
                assert not {one.topic for one in has} & set(subscription.topics), (giver, taker)


@given(subscriptions=SUBSCRIPTIONS, counts=COUNTS)
def test_sticky_moves_nothing_when_nothing_changed(subscriptions, counts):
    found = assign_sticky(subscriptions, counts)
    again = {member: Subscription(one.topics, owned=tuple(found[member])) for member, one in subscriptions.items()}
    assert assign_sticky(again, counts) == found


@given(subscriptions=ALIKE, counts=COUNTS)
def test_sticky_moves_no_more_than_a_newcomer_needs(subscriptions, counts):
    before = assign_sticky(subscriptions, counts)
    topics = ("a", "b")
    owned = {member: Subscription(topics, owned=tuple(given)) for member, given in before.items()}
    after = assign_sticky({**owned, "newcomer": Subscription(topics)}, counts)
    moved = [one for member, given in before.items() for one in given if one not in after[member]]
    assert len(moved) == len(after["newcomer"])


@given(subscriptions=SUBSCRIPTIONS, counts=COUNTS)
def test_cooperative_gives_nobody_what_another_still_owns(subscriptions, counts):
    found = assign_cooperative(subscriptions, counts)
    given = [one for partitions in found.values() for one in partitions]
    assert len(given) == len(set(given))
    for member, partitions in found.items():
        for one in partitions:
            others = [name for name, said in subscriptions.items() if name != member and one in said.owned]
            mine = one in subscriptions[member].owned
            assert mine or not [name for name in others if one.topic in subscriptions[name].topics]


@given(subscriptions=ALIKE, counts=COUNTS)
def test_cooperative_arrives_at_the_sticky_assignment_in_two_steps(subscriptions, counts):
    target = assign_sticky(subscriptions, counts)
    first = assign_cooperative(subscriptions, counts)
    owned = {member: Subscription(("a", "b"), owned=tuple(given)) for member, given in first.items()}
    second = assign_cooperative(owned, counts)
    assert sorted(len(given) for given in second.values()) == sorted(len(given) for given in target.values())
    assert sum(len(given) for given in second.values()) == counts["a"] + counts["b"]


def test_range_gives_runs_of_neighbours():
    both = {"y": Subscription(("t", "u")), "x": Subscription(("t",))}
    assert assign_range(both, {"t": 5, "u": 2}) == {
        "x": parts("t", 0, 1, 2),
        "y": parts("t", 3, 4) + parts("u", 0, 1),
    }


def test_a_later_generation_wins_a_claim():
    late = Subscription(("t",), owned=tuple(parts("t", 0)), generation=5)
    early = Subscription(("t",), owned=tuple(parts("t", 0, 1)), generation=4)
    assert assign_sticky({"early": early, "late": late}, {"t": 2}) == {"early": parts("t", 1), "late": parts("t", 0)}


def test_clients_know_the_assignors_by_name():
    assert sorted(ASSIGNORS) == ["cooperative-sticky", "range", "roundrobin", "sticky"]


@given(subscription=SUBSCRIPTION, user_data=st.binary(max_size=9), rack=st.none() | st.text(max_size=5))
def test_a_subscription_survives_its_bytes(subscription, user_data, rack):
    said = subscription._replace(user_data=user_data, rack=rack, owned=tuple(sorted(subscription.owned)))
    assert decode_subscription(encode_subscription(said)) == said


@given(partitions=st.lists(PARTITION, unique=True))
def test_an_assignment_survives_its_bytes(partitions):
    assert decode_assignment(encode_assignment(partitions)) == tuple(sorted(partitions))


def test_no_bytes_are_no_partitions():
    assert decode_assignment(b"") == ()


def test_the_bytes_are_those_of_the_public_protocol():
    assert encode_assignment(parts("t", 1, 0)).hex() == "00030000000100017400000002000000000000000100000000"
    old = bytes.fromhex("000000000001000174ffffffff")
    assert decode_subscription(old) == Subscription(("t",))


@given(data=st.binary(max_size=60))
def test_garbage_is_malformed_and_nothing_else(data):
    for decode in (decode_subscription, decode_assignment):
        with suppress(Malformed):
            decode(data)

"""Groups in the log: the public layout, round trips, and garbage."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.coordinator.consumer_state import (
    Classic,
    ConsumerMember,
    ConsumerState,
    Current,
    Described,
    Recalled,
    difference,
    tombstones,
)
from rivven.coordinator.group_log import (
    CLASSIC_KEY,
    KeptGroup,
    KeptMember,
    Standing,
    decode_group,
    decode_group_key,
    encode_group,
    group_key,
    key_version,
)
from rivven.errors import Malformed
from rivven.model import TopicPartition

TEXT = st.text(max_size=6)
MAYBE = st.none() | TEXT
MS = st.integers(0, 2**31 - 1)
MEMBER = st.builds(KeptMember, TEXT, MAYBE, TEXT, TEXT, MS, MS, st.binary(max_size=5), st.binary(max_size=5))
GROUP = st.builds(KeptGroup, TEXT, MS, MAYBE, MAYBE, st.integers(-1, 2**60), st.lists(MEMBER, max_size=3).map(tuple))

PARTITIONS = st.frozensets(st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 3)))
PROTOCOLS = st.lists(st.tuples(TEXT, st.binary(max_size=5)), max_size=2).map(tuple)
SPOKEN = st.none() | st.builds(Classic, MS, PROTOCOLS)
TOPICS = st.lists(TEXT, max_size=2).map(tuple)
SAID = st.builds(Described, MAYBE, MAYBE, TEXT, TEXT, MS, TOPICS, MAYBE, MAYBE, SPOKEN)
CURRENT = st.builds(Current, MS, MS, st.sampled_from(Standing), PARTITIONS, PARTITIONS)
CONSUMER_MEMBER = ConsumerMember(Described(topics=("t",)), Current(1, 1))
MEMBERS = st.dictionaries(st.sampled_from("abc"), st.builds(ConsumerMember, SAID, CURRENT))


@st.composite
def states(draw) -> ConsumerState:
    members = draw(MEMBERS)
    target = {name: draw(PARTITIONS) for name in members if draw(st.booleans())}
    counts = draw(st.dictionaries(st.sampled_from("tu"), MS))
    return ConsumerState(draw(st.integers(1, 100)), counts, draw(MS), target, members)


@given(kept=GROUP)
def test_a_classic_group_survives_its_bytes(kept):
    assert decode_group(encode_group(kept)) == kept


def test_the_bytes_are_those_that_kafka_tools_read():
    member = KeptMember("m", None, "c", "h", 1, 2, b"s", b"as")
    assert group_key(CLASSIC_KEY, "g").hex() == "0002000167"
    assert encode_group(KeptGroup("consumer", 3, "range", "m", 5, (member,))).hex() == (
        "0003" "0008636f6e73756d6572" "00000003" "000572616e6765" "00016d" "0000000000000005" "00000001"
        "00016d" "ffff" "000163" "000168" "00000001" "00000002" "00000001" "73" "00000002" "6173"
    )  # fmt: skip


@given(steps=st.lists(states(), min_size=1, max_size=4))
def test_replaying_every_difference_gives_the_last_state(steps):
    recalled, before = Recalled(), ConsumerState()
    for state in steps:
        # A target is never taken from a member that stays; the next one replaces it.
        kept = {name: one for name, one in before.target.items() if name in state.members}
        wanted = ConsumerState(state.epoch, state.counts, state.target_epoch, kept | state.target, state.members)
        for key, value in difference("g", before, wanted):
            recalled.take(key, value)
        before = wanted
    assert recalled.state() == before


@given(state=states())
def test_tombstones_leave_nothing(state):
    recalled = Recalled()
    for key, value in difference("g", ConsumerState(), state) + tombstones("g", state):
        recalled.take(key, value)
    assert recalled.state() is None


@given(data=st.binary(max_size=80))
def test_garbage_is_malformed_and_nothing_else(data):
    for decode in (
        decode_group,
        decode_group_key,
        key_version,
        lambda value: Recalled().take(group_key(3, "g"), value),
    ):
        with suppress(Malformed):
            decode(data)


def test_a_member_written_before_there_were_classic_ones_speaks_the_consumer_protocol():
    recalled = Recalled()
    for key, value in difference("g", ConsumerState(), ConsumerState(1, {}, 1, {}, {"a": CONSUMER_MEMBER})):
        if value is not None:
            value = value.replace(b',"classic":null', b"")
        recalled.take(key, value)
    assert recalled.state().members == {"a": CONSUMER_MEMBER}


def test_a_version_from_the_future_is_named():
    with pytest.raises(Malformed, match="version 9 is not known"):
        decode_group(b"\x00\x09")

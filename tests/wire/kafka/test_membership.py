"""What members of a classic group say of themselves: our reading against that of kafka-python, and old versions."""

from __future__ import annotations

import contextlib
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.errors import Malformed
from rivven.wire.kafka import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    made,
)

with warnings.catch_warnings():  # kafka-python reads its data by a function that Python has put aside
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as TheirAssignment
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as TheirSubscription

subscription, assignment = made.consumer_protocol_subscription, made.consumer_protocol_assignment
ConsumerProtocolSubscription = subscription.ConsumerProtocolSubscription
ConsumerProtocolAssignment = assignment.ConsumerProtocolAssignment

topics = st.lists(st.text(max_size=5), max_size=3)
partitions = st.lists(st.integers(0, 2**31 - 1), max_size=3)
user_data = st.none() | st.binary(max_size=10)


@given(topics, user_data, st.lists(st.tuples(st.text(max_size=4), partitions), max_size=2), st.integers(-1, 9))
def test_a_subscription_comes_back_as_far_as_its_version_goes(names, user, owned, generation):
    owned_partitions = [subscription.TopicPartition(topic, numbers) for topic, numbers in owned]
    whole = ConsumerProtocolSubscription(names, user, owned_partitions, generation, "rack")
    assert decode_subscription(encode_subscription(whole)) == whole
    assert decode_subscription(encode_subscription(whole, 0)) == ConsumerProtocolSubscription(names, user)
    assert decode_subscription(b"\x00\x09" + encode_subscription(whole)[2:] + b"of the future") == whole


@given(st.lists(st.tuples(st.text(max_size=4), partitions), max_size=2), user_data, st.integers(0, 3))
def test_an_assignment_comes_back_in_every_version(assigned, user, version):
    given_ = [assignment.TopicPartition(topic, numbers) for topic, numbers in assigned]
    whole = ConsumerProtocolAssignment(given_, user)
    assert decode_assignment(encode_assignment(whole, version)) == whole


def test_kafka_python_reads_ours():
    ours = ConsumerProtocolSubscription(["a", "b"], b"u", [subscription.TopicPartition("a", [1])])
    theirs = TheirSubscription.decode(encode_subscription(ours, 1))
    assert (list(theirs.topics), theirs.user_data, theirs.owned_partitions[0].partitions) == (["a", "b"], b"u", [1])
    given_ = ConsumerProtocolAssignment([assignment.TopicPartition("a", [1, 2])], None)
    read = TheirAssignment.decode(encode_assignment(given_, 1))
    assert (read.assigned_partitions[0].topic, read.assigned_partitions[0].partitions) == ("a", [1, 2])


@pytest.mark.parametrize(
    "data", ["", "00", "0000", "ffff 00000000 ffffffff", "0000 7fffffff", "0000 00000001 0009 61"]
)
def test_what_is_none_is_malformed(data):
    with pytest.raises(Malformed):
        decode_subscription(bytes.fromhex(data))
    with pytest.raises(Malformed):
        decode_assignment(bytes.fromhex(data))


@given(st.binary(max_size=40))
def test_garbage_is_read_or_malformed(data):
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(Malformed):
            decode(data)

"""What members of a classic group say of themselves: ours against the generated codecs and kafka-python."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.assign import Subscription, decode_assignment, decode_subscription, encode_assignment, encode_subscription
from rivven.errors import Malformed
from rivven.model import TopicPartition
from rivven.wire.kafka import made
from rivven.wire.kafka.codec import read, written

with warnings.catch_warnings():  # kafka-python reads its data by a function that Python has put aside
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as TheirAssignment
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as TheirSubscription

subscribing, assigning = made.consumer_protocol_subscription, made.consumer_protocol_assignment
names = st.text(max_size=5)
owned = st.dictionaries(names, st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3, unique=True), max_size=2)


def flat(by_topic):
    return tuple(TopicPartition(topic, number) for topic, numbers in by_topic.items() for number in numbers)


def generated(kind, message, version):
    return version.to_bytes(2, "big") + b"".join(written(kind.ENCODE_DATA[version], message, version, bytearray()))


@given(st.lists(names, max_size=3), st.binary(max_size=10), owned, st.integers(-1, 9), st.integers(0, 3))
def test_a_subscription_is_read_as_far_as_its_version_goes(topics, user, held, generation, version):
    parts = [subscribing.TopicPartition(topic, numbers) for topic, numbers in held.items()]
    whole = subscribing.ConsumerProtocolSubscription(topics, user, parts, generation, "rack")
    found = decode_subscription(generated(subscribing, whole, version))
    assert (found.topics, found.user_data) == (tuple(topics), user)
    assert found.owned == (flat(held) if version >= 1 else ())
    assert found.generation == (generation if version >= 2 else -1)
    assert found.rack == ("rack" if version >= 3 else None)
    future = b"\x00\x09" + generated(subscribing, whole, 3)[2:] + b"of the future"
    assert decode_subscription(future) == decode_subscription(generated(subscribing, whole, 3))


@given(st.lists(names, max_size=3), st.binary(max_size=10), owned)
def test_the_generated_codec_reads_our_subscription(topics, user, held):
    ours = encode_subscription(Subscription(tuple(topics), user, flat(held), 4, "r"))
    theirs = read(subscribing.DECODE_DATA[3], ours, 2)
    assert (theirs.topics, theirs.user_data, theirs.generation_id, theirs.rack_id) == (topics, user, 4, "r")
    assert {part.topic: sorted(part.partitions) for part in theirs.owned_partitions} == {
        topic: sorted(numbers) for topic, numbers in held.items()
    }


@given(owned, st.integers(0, 3))
def test_an_assignment_is_read_and_written_in_every_version(held, version):
    parts = [assigning.TopicPartition(topic, numbers) for topic, numbers in held.items()]
    whole = assigning.ConsumerProtocolAssignment(parts, None)
    assert decode_assignment(generated(assigning, whole, version)) == flat(held)
    theirs = read(assigning.DECODE_DATA[3], encode_assignment(flat(held)), 2)
    assert sorted(flat({part.topic: part.partitions for part in theirs.assigned_partitions})) == sorted(flat(held))


def test_kafka_python_reads_ours():
    theirs = TheirSubscription.decode(encode_subscription(Subscription(("a", "b"), b"u", (TopicPartition("a", 1),))))
    assert (list(theirs.topics), theirs.user_data, theirs.owned_partitions[0].partitions) == (["a", "b"], b"u", [1])
    read_ = TheirAssignment.decode(encode_assignment((TopicPartition("a", 1), TopicPartition("a", 2))))
    assert (read_.assigned_partitions[0].topic, read_.assigned_partitions[0].partitions) == ("a", [1, 2])


@pytest.mark.parametrize("data", ["00", "0000", "0000 7fffffff", "0000 00000001 0009 61"])
def test_what_is_none_is_malformed(data):
    for decode in (decode_subscription, decode_assignment):
        with pytest.raises(Malformed):
            decode(bytes.fromhex(data))

"""Keys go where every Kafka client would send them."""

from __future__ import annotations

import warnings
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, while it is imported
    from kafka.partitioner.default import murmur2 as foreign_murmur2

KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KNOWN)
def test_hashes_are_those_that_the_java_client_tests_for(record: ModuleType, key):
    assert record.murmur2(key) == KNOWN[key]


@given(key=st.binary(max_size=70))
def test_hashes_are_those_of_kafka_python(record: ModuleType, key):
    assert record.murmur2(key) & 0xFFFFFFFF == foreign_murmur2(key) & 0xFFFFFFFF


def test_a_key_with_a_negative_hash_has_a_partition_too(record: ModuleType):
    assert record.partition_for_key(b"foobar", 12) == (-790332482 & 0x7FFFFFFF) % 12
    assert record.partition_for_key(b"foobar", 1) == 0

"""Transactions and owners in the log: the bytes, what Kafka's own layout says of them, and garbage."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.coordinator.txn_log import (
    KeptDecision,
    KeptOwner,
    decode_owner,
    decode_txn,
    decode_txn_key,
    encode_owner,
    encode_txn,
    owner_key,
    txn_key,
)
from rivven.coordinator.txn_state import Txn
from rivven.coordinator.txn_values import TxnStatus
from rivven.errors import Malformed
from rivven.model import TopicPartition

NAMES = st.text(min_size=1, max_size=20)
IDS = st.integers(-1, 2**63 - 1)
EPOCHS = st.integers(-1, 32_767)
TXNS = st.builds(
    Txn,
    producer_id=IDS,
    epoch=EPOCHS,
    timeout_ms=st.integers(0, 2**31 - 1),
    updated_ms=IDS,
    status=st.sampled_from(TxnStatus),
    partitions=st.frozensets(st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1)), max_size=8),
    groups=st.frozensets(NAMES, max_size=4),
    started_ms=IDS,
    last_id=IDS,
    last_epoch=EPOCHS,
    next_id=IDS,
    version=st.integers(0, 2),
    label=st.none() | st.text(max_size=20),
)
OWNED = st.builds(
    lambda txn, owner, epoch, sequence: Txn(
        **{one.name: getattr(txn, one.name) for one in fields(Txn)}
        | {"owner": owner, "owner_epoch": epoch, "sequence": sequence}
    ),
    TXNS,
    NAMES,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
)

GOLDEN = Txn(
    12,
    2,
    14,
    123,
    TxnStatus.PREPARE_COMMIT,
    frozenset({TopicPartition("t", 0), TopicPartition("t", 5), TopicPartition("u", 1)}),
    started_ms=13,
    last_id=11,
    last_epoch=1,
    next_id=10,
    version=2,
)
GOLDEN_BYTES = (
    "0001"  # value version
    "000000000000000c" "0002"  # producer id, epoch
    "0000000e" "02"  # timeout, status
    "03"  # two topics
    "0274" "03" "00000000" "00000005" "00"
    "0275" "02" "00000001" "00"
    "000000000000007b" "000000000000000d"  # last change, start
    "04"  # four tagged fields
    "0008" "000000000000000b"  # tag 0: the previous producer id
    "0108" "000000000000000a"  # tag 1: the next one
    "0202" "0002"  # tag 2: the client's transaction version
    "6402" "0001"  # tag 100, ours: the previous epoch
)  # fmt: skip


def test_a_transaction_is_written_in_the_layout_that_kafka_tools_read():
    assert encode_txn(GOLDEN).hex() == GOLDEN_BYTES
    assert txn_key("ab").hex() == "000000026162"
    assert owner_key("ab").hex() == "006400026162"


@given(TXNS | OWNED)
def test_a_transaction_reads_back_as_it_was_written(txn):
    assert decode_txn(encode_txn(txn)) == txn


@given(NAMES)
def test_a_key_reads_back_as_it_was_written(name):
    assert decode_txn_key(txn_key(name)) == (0, name)
    assert decode_txn_key(owner_key(name)) == (100, name)


def test_an_owner_reads_back_as_it_was_written():
    kept = KeptOwner(3, 7, (KeptDecision(5, ()), KeptDecision(7, ((1, 0), (2**62, 9)))), 1_000)
    assert decode_owner(encode_owner(kept)) == kept


def test_a_tag_of_a_later_version_is_passed_over():
    data = bytearray(encode_txn(GOLDEN))
    at = data.index(bytes.fromhex("0400080000"))
    data[at] += 1
    assert decode_txn(bytes(data) + bytes.fromhex("7f03aabbcc")) == GOLDEN


@given(st.binary(max_size=80))
def test_garbage_is_malformed_and_nothing_else(data):
    for decode in (decode_txn, decode_owner, decode_txn_key):
        for prefix in (b"", struct.pack(">h", 0), struct.pack(">h", 1)):
            with suppress(Malformed):
                decode(prefix + data)


@given(TXNS, st.data())
def test_a_record_that_was_cut_is_malformed(txn, data):
    whole = encode_txn(txn)
    with pytest.raises(Malformed):
        decode_txn(whole[: data.draw(st.integers(0, len(whole) - 1))])

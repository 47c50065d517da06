"""Transaction markers, as every Kafka client reads them."""

from __future__ import annotations

from types import ModuleType

import pytest

from rivven.errors import Malformed


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_says_how_the_transaction_ended(record: ModuleType, commit):
    batch = record.encode_marker(
        commit=commit, producer_id=7, producer_epoch=2, timestamp_ms=99, base_offset=5, coordinator_epoch=3
    )
    header = record.validate(batch)
    assert (header.control, header.transactional, header.producer_id, header.producer_epoch) == (True, True, 7, 2)
    assert (header.base_offset, header.base_sequence, header.count) == (5, -1, 1)
    assert record.decode_marker(b"." + batch, 1) == (commit, 3)
    assert record.decode(batch)[0].key == (b"\0\0\0\1" if commit else b"\0\0\0\0")


@pytest.mark.parametrize(
    ("key", "value", "flags"),
    [
        (b"\0\0\0\1", b"\0\0\0\0\0\0", {"control": False, "transactional": True}),
        (b"\0\0\0\2", b"\0\0\0\0\0\0", {"control": True, "transactional": True}),
        (b"\0\1\0\1", b"\0\0\0\0\0\0", {"control": True, "transactional": True}),
        (b"\0\0\0", b"\0\0\0\0\0\0", {"control": True, "transactional": True}),
        (None, b"\0\0\0\0\0\0", {"control": True, "transactional": True}),
        (b"\0\0\0\1", b"\0\0", {"control": True, "transactional": True}),
        (b"\0\0\0\1", None, {"control": True, "transactional": True}),
    ],
)
def test_what_is_no_marker_is_malformed(record: ModuleType, key, value, flags):
    with pytest.raises(Malformed):
        record.decode_marker(record.encode([(1, key, value, ())], **flags))


def test_two_records_are_no_marker(record: ModuleType):
    row = (1, b"\0\0\0\1", b"\0\0\0\0\0\0", ())
    with pytest.raises(Malformed):
        record.decode_marker(record.encode([row, row], control=True, transactional=True))

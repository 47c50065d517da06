"""Whole batches: what is checked, what is patched, and what is left of one after compaction."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.errors import BatchTooLarge, Malformed
from rivven.limits import BATCH_BYTES_MAX

fields = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=20), fields), max_size=3)
timestamps = st.integers(-(2**61), 2**61) | st.integers(1_700_000_000_000, 1_700_000_100_000)
new_records = st.lists(st.tuples(timestamps, fields, fields, headers), min_size=1, max_size=30)

ROWS = [(1000, b"a", b"one", ()), (990, None, b"two", [("h", None), ("h", b"x")]), (1005, b"a", None, ())]
DECODED = [
    (0, 1000, b"a", b"one", ()),
    (1, 990, None, b"two", (("h", None), ("h", b"x"))),
    (2, 1005, b"a", None, ()),
]


@given(rows=new_records, codec=st.sampled_from(range(5)), base_offset=st.integers(0, 2**62))
def test_records_come_back_as_they_went_in(record: ModuleType, rows, codec, base_offset):
    batch = record.encode(rows, codec=record.Codec(codec), base_offset=base_offset)
    assert record.decode(batch) == [
        (base_offset + delta, timestamp_ms, key, value, tuple(headers))
        for delta, (timestamp_ms, key, value, headers) in enumerate(rows)
    ]


@given(rows=new_records)
def test_both_twins_write_the_same_bytes(pure: ModuleType, native: ModuleType, rows):
    assert native.encode(rows) == pure.encode(rows)


@given(rows=new_records, data=st.data())
def test_both_twins_rewrite_to_the_same_bytes(pure: ModuleType, native: ModuleType, rows, data):
    batch = pure.encode(rows, base_offset=70)
    kept = [one for one in pure.decode(batch) if data.draw(st.booleans())]
    assert native.rewrite(batch, kept) == pure.rewrite(batch, kept)


def test_the_header_says_what_encode_was_told(record: ModuleType):
    batch = record.encode(
        ROWS, base_offset=7, producer_id=11, producer_epoch=3, base_sequence=5, transactional=True, leader_epoch=9
    )
    header = record.validate(batch)
    assert type(header) is record.BatchHeader
    assert (header.base_offset, header.last_offset, header.next_offset, header.count) == (7, 9, 10, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 3, 5)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1000, 1005)
    assert (header.transactional, header.control, header.log_append_time) == (True, False, False)
    assert (header.leader_epoch, header.magic, header.batch_bytes) == (9, 2, len(batch))


def test_a_buffer_may_stand_anywhere_in_a_longer_one(record: ModuleType):
    batch = record.encode(ROWS)
    for buffer in (b"xyz" + batch + b"zz", memoryview(b"xyz" + batch + b"zz"), bytearray(b"xyz" + batch)):
        assert record.decode(buffer, 3) == DECODED
        assert record.validate(buffer, 3) == record.validate(batch)


def test_keys_may_be_any_buffer_but_nothing_else(record: ModuleType):
    assert record.decode(record.encode([(1, bytearray(b"k"), memoryview(b"v"), ())]))[0][2:4] == (b"k", b"v")
    for wrong in ("text", 5):
        with pytest.raises(TypeError):
            record.encode([(1, wrong, b"v", ())])


@pytest.mark.parametrize("rows", [[], ()])
def test_an_empty_batch_is_not_encoded(record: ModuleType, rows):
    with pytest.raises(ValueError, match="1 to"):
        record.encode(rows)


@pytest.mark.parametrize("times", [(2**63,), (-(2**63), 2**63 - 1), (0, 2**63)])
def test_timestamps_beyond_64_bits_are_refused(record: ModuleType, times):
    with pytest.raises(OverflowError):
        record.encode([(timestamp_ms, None, None, ()) for timestamp_ms in times])


@pytest.mark.parametrize("timestamp_ms", [1.5, None, "1"])
def test_a_timestamp_is_a_whole_number(record: ModuleType, timestamp_ms):
    with pytest.raises(TypeError):
        record.encode([(timestamp_ms, None, None, ())])


@pytest.mark.parametrize("row", [(), (1, None, None), (1, None, None, (), 5)])
def test_a_record_has_four_fields(record: ModuleType, row):
    with pytest.raises(ValueError, match=r"values|unpack"):
        record.encode([(1, None, None, ()), row])


def test_a_batch_above_the_limit_of_any_topic_is_not_encoded(record: ModuleType):
    with pytest.raises(BatchTooLarge):
        record.encode([(1, None, bytes(BATCH_BYTES_MAX), ())])


def test_a_batch_above_the_given_limit_is_refused_by_name(record: ModuleType):
    batch = record.encode(ROWS)
    assert record.validate(batch, bytes_max=len(batch)).count == 3
    with pytest.raises(BatchTooLarge, match=f"a batch of {len(batch)} bytes"):
        record.validate(batch, bytes_max=len(batch) - 1)


def test_every_flipped_bit_under_the_crc_is_found_and_both_crcs_are_named(record: ModuleType):
    batch = record.encode(ROWS)
    for place in range(61, len(batch)):
        broken = bytearray(batch)
        broken[place] ^= 0x10
        with pytest.raises(Malformed, match=r"CRC 0x[0-9a-f]{8} where 0x[0-9a-f]{8} is stored"):
            record.validate(broken)
        with pytest.raises(Malformed):
            record.decode(broken)


def test_decode_without_verify_leaves_the_crc_alone(record: ModuleType):
    batch = record.encode(ROWS)
    batch[17] ^= 0xFF
    assert record.decode(batch, verify=False) == DECODED


def test_a_cut_batch_is_malformed_but_its_header_parses(record: ModuleType):
    batch = record.encode(ROWS)
    assert record.parse_header(batch[:61]).batch_bytes == len(batch)
    for act in (record.validate, record.decode, lambda cut: record.decode(cut, verify=False)):
        with pytest.raises(Malformed):
            act(batch[:-1])
    with pytest.raises(Malformed):
        record.parse_header(batch[:60])


@pytest.mark.parametrize(
    ("place", "field", "reason"),
    [
        (16, "01", "magic 1"),
        (8, "00000030", "shorter than a header"),
        (8, "ffffffff", "shorter than a header"),
        (8, "7fffffff", "above the"),
        (21, "0005", "unknown codec 5"),
        (0, "8000000000000000", "base offset"),
        (0, "7fffffffffffffff", "base offset"),
        (23, "ffffffff", "last offset delta -1"),
        (57, "ffffffff", "-1 records"),
        (57, "00000004", "4 records on 3 offsets"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused_with_the_reason(record: ModuleType, place, field, reason):
    batch = record.encode(ROWS)
    batch[place : place + len(field) // 2] = bytes.fromhex(field)
    with pytest.raises(Malformed, match=reason):
        record.parse_header(batch)
    with pytest.raises(Malformed, match=reason):
        list(record.walk(batch))
    assert reason in record.scan(batch, 0, len(batch), verify=True)[2]


@pytest.mark.parametrize("position", [-1, 10**6])
def test_a_position_outside_the_buffer_is_malformed(record: ModuleType, position):
    with pytest.raises(Malformed):
        record.parse_header(record.encode(ROWS), position)


def test_a_patch_changes_the_place_and_not_the_crc(record: ModuleType):
    batch = record.encode(ROWS)
    buffer = bytearray(b"....") + batch
    record.patch(buffer, base_offset=2**40, leader_epoch=6, position=4)
    header = record.validate(buffer, 4)
    assert (header.base_offset, header.leader_epoch) == (2**40, 6)
    assert header.crc == record.validate(batch).crc
    assert [one.offset for one in record.decode(buffer, 4)] == [2**40, 2**40 + 1, 2**40 + 2]


def test_a_stamp_gives_every_record_the_time_of_its_append(record: ModuleType):
    batch = record.encode(ROWS, codec=record.Codec.LZ4)
    buffer = memoryview(bytearray(b"....") + batch)
    record.stamp(buffer, 123_456, position=4)
    assert record.validate(buffer, 4).log_append_time
    assert [one.timestamp_ms for one in record.decode(buffer, 4)] == [123_456] * 3


@pytest.mark.parametrize("transactional", [False, True])
def test_a_batch_can_be_numbered_after_it_was_made(record: ModuleType, transactional):
    numbers = {"producer_id": 2**40, "producer_epoch": 3, "base_sequence": 2**31 - 1, "transactional": transactional}
    made = record.encode(ROWS, codec=record.Codec.LZ4, **numbers)
    batch = record.encode(ROWS, codec=record.Codec.LZ4, producer_id=1, base_sequence=5, transactional=True)
    buffer = bytearray(b"....") + batch
    record.number(buffer, position=4, **numbers)
    assert buffer[4:] == made


def test_walk_gives_whole_batches_and_stops_at_a_partial_one(record: ModuleType):
    batches = [record.encode(ROWS[:count], base_offset=10 * count) for count in (1, 2, 3)]
    buffer = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    assert [(at, header.count) for at, header in record.walk(buffer)] == list(zip(starts, (1, 2, 3), strict=True))
    assert [at for at, _ in record.walk(buffer[:-1])] == starts[:2]
    assert [at for at, _ in record.walk(buffer, starts[1], starts[2])] == starts[1:2]
    assert list(record.walk(buffer[:60])) == []


# Compaction


@pytest.mark.parametrize("codec", range(5))
def test_a_rewrite_keeps_offsets_and_envelope(record: ModuleType, codec):
    batch = record.encode(
        ROWS,
        base_offset=50,
        codec=record.Codec(codec),
        producer_id=4,
        producer_epoch=1,
        base_sequence=9,
        leader_epoch=2,
    )
    kept = record.decode(batch)[1:2]
    thin = record.rewrite(batch, kept)
    old, new = record.validate(batch), record.validate(thin)
    assert record.decode(thin) == kept
    assert (new.count, new.max_timestamp_ms) == (1, 990)
    same = ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
    assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]
    assert new.codec == old.codec


def test_a_rewrite_to_nothing_holds_the_place(record: ModuleType):
    batch = record.encode(ROWS, base_offset=50, codec=record.Codec.GZIP, producer_id=4)
    empty = record.rewrite(b"...." + batch, [], position=4)
    header = record.validate(empty)
    assert (header.count, header.next_offset, header.max_timestamp_ms, len(empty)) == (0, 53, 1005, 61)
    assert record.decode(empty) == []
    assert record.to_arrow(empty).num_rows == 0


def test_a_delete_horizon_is_written_read_and_kept(record: ModuleType):
    batch = record.encode(ROWS)
    kept = record.decode(batch)[2:]
    first = record.rewrite(batch, kept, delete_horizon_ms=5_000)
    again = record.rewrite(first, kept)
    later = record.rewrite(again, kept, delete_horizon_ms=9_000)
    assert record.parse_header(batch).delete_horizon_ms is None
    assert [record.validate(one).delete_horizon_ms for one in (first, again, later)] == [5_000, 5_000, 9_000]
    assert [record.decode(one) for one in (first, again, later)] == [kept] * 3


def test_a_rewrite_of_stamped_records_keeps_their_time(record: ModuleType):
    batch = record.encode(ROWS)
    record.stamp(batch, 77_000)
    thin = record.rewrite(batch, record.decode(batch)[:1], delete_horizon_ms=5)
    assert record.decode(thin) == [(0, 77_000, b"a", b"one", ())]

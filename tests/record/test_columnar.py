"""Batches as Arrow columns and back: the same records as `decode` gives, whichever way they went."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.errors import BatchTooLarge, Malformed

fields = st.none() | st.binary(max_size=50)
headers = st.lists(st.tuples(st.text(max_size=8), fields), max_size=3)
new_records = st.lists(st.tuples(st.integers(-(2**40), 2**50), fields, fields, headers), min_size=1, max_size=20)

ROWS = [(1000 + place, b"k%d" % (place % 3), b"v%d" % place, ()) for place in range(9)]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)


def tuples(table: pa.RecordBatch) -> list[tuple[object, ...]]:
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    return [
        (row["offset"], time, row["key"], row["value"], tuple((one["key"], one["value"]) for one in row["headers"]))
        for row, time in zip(table.drop_columns(["timestamp"]).to_pylist(), times, strict=True)
    ]


def decoded(record: ModuleType, batches: list[bytearray]) -> list[tuple[object, ...]]:
    """Every record without its offset, which starts anew in every batch."""
    return [one[1:] for batch in batches for one in record.decode(batch)]


@given(parts=st.lists(new_records, max_size=4), codec=st.integers(0, 4), tail=st.integers(0, 60))
def test_rows_are_the_records_that_decode_gives(record: ModuleType, parts, codec, tail):
    batches = [
        record.encode(rows, base_offset=100 * place, codec=record.Codec(codec)) for place, rows in enumerate(parts)
    ]
    table = record.to_arrow(b"".join(batches) + record.encode(ROWS)[:tail])
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert tuples(table) == [one for batch in batches for one in record.decode(batch)]


@given(rows=new_records, codec=st.integers(0, 4), records_per_batch=st.integers(1, 25), cut=st.integers(0, 3))
def test_rows_become_the_records_they_were(record: ModuleType, rows, codec, records_per_batch, cut):
    table = record.to_arrow(record.encode(rows)).slice(cut)
    batches = record.from_arrow(table, codec=record.Codec(codec), records_per_batch=records_per_batch)
    assert decoded(record, batches) == [(*row[:3], tuple(row[3])) for row in rows[cut:]]
    assert [record.validate(batch).count <= records_per_batch for batch in batches] == [True] * len(batches)


@given(rows=new_records, bytes_max=st.integers(61, 400))
def test_both_twins_cut_the_same_batches(pure: ModuleType, native: ModuleType, rows, bytes_max):
    table = pure.to_arrow(pure.encode(rows))
    batches = native.from_arrow(table, batch_bytes_max=bytes_max)
    assert batches == pure.from_arrow(table, batch_bytes_max=bytes_max)
    for batch in batches:
        assert len(batch) <= bytes_max or native.parse_header(batch).count == 1


def test_one_batch_of_arrow_is_the_batch_that_encode_writes(record: ModuleType):
    batch = record.encode(ROWS, producer_id=3, producer_epoch=1, base_sequence=7, transactional=True)
    (again,) = record.from_arrow(
        record.to_arrow(batch), producer_id=3, producer_epoch=1, base_sequence=7, transactional=True
    )
    assert again == batch


def test_sequences_go_on_from_batch_to_batch_and_wrap(record: ModuleType):
    table = record.to_arrow(record.encode(ROWS))
    batches = record.from_arrow(table, producer_id=1, producer_epoch=0, base_sequence=2**31 - 4, records_per_batch=4)
    assert [record.parse_header(batch).base_sequence for batch in batches] == [2**31 - 4, 0, 4]
    assert {record.parse_header(batch).base_sequence for batch in record.from_arrow(table, records_per_batch=4)} == {
        -1
    }


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        ({"from_offset": 12}, range(12, 19)),
        ({"until_offset": 12}, range(10, 12)),
        ({"from_offset": 11, "until_offset": 12}, [11]),
        ({"until_offset": 11}, [10]),
        ({"from_offset": 18}, [18]),
        ({"from_offset": 19}, []),
        ({"until_offset": 10}, []),
        ({"timestamp_from_ms": 1007}, [17, 18]),
        ({"timestamp_until_ms": 1002}, [10, 11]),
        ({"timestamp_from_ms": 1002, "timestamp_until_ms": 1003}, [12]),
        ({"key": b"k1"}, [11, 14, 17]),
        ({"key": b"k1", "from_offset": 15}, [17]),
        ({"key": b""}, []),
    ],
)
def test_a_selection_takes_these_offsets(record: ModuleType, arguments, offsets):
    batch = record.encode(ROWS, base_offset=10)
    assert record.to_arrow(batch, **arguments)["offset"].to_pylist() == list(offsets)


def test_columns_are_picked_and_ordered(record: ModuleType):
    table = record.to_arrow(record.encode(ROWS), columns=["value", "offset"])
    assert table.schema.names == ["value", "offset"]
    assert table.to_pylist()[8] == {"value": b"v8", "offset": 8}
    with pytest.raises(ValueError, match="no such column: size"):
        record.to_arrow(b"", columns=["size"])


def test_an_empty_buffer_has_every_column_and_no_row(record: ModuleType):
    table = record.to_arrow(b"")
    table.validate(full=True)
    assert (table.schema, table.num_rows) == (SCHEMA, 0)


def test_only_what_stands_between_position_and_end_is_read(record: ModuleType):
    first, second = record.encode(ROWS), record.encode(ROWS, base_offset=9)
    log = first + second
    assert record.to_arrow(log, position=len(first))["offset"].to_pylist() == list(range(9, 18))
    assert record.to_arrow(log, end=len(log) - 1)["offset"].to_pylist() == list(range(9))


def test_markers_are_no_rows(record: ModuleType):
    marker = record.encode_marker(commit=True, producer_id=1, producer_epoch=0, timestamp_ms=5)
    assert record.to_arrow(record.encode(ROWS) + marker).num_rows == 9


def test_stamped_batches_have_one_timestamp(record: ModuleType):
    batch = record.encode(ROWS)
    record.stamp(batch, 5_000)
    assert set(record.to_arrow(batch)["timestamp"].cast(pa.int64()).to_pylist()) == {5_000}


def test_a_broken_batch_is_malformed_unless_nobody_asks(record: ModuleType):
    batch = record.encode(ROWS)
    batch[-2] ^= 1
    with pytest.raises(Malformed, match="CRC"):
        record.to_arrow(batch)
    assert record.to_arrow(batch, verify=False).num_rows == 9


def test_nonsense_is_malformed(record: ModuleType):
    with pytest.raises(Malformed):
        record.to_arrow(record.encode(ROWS) + bytes(61))


# What Arrow may bring


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_keys_and_values_may_be_text_or_bytes_of_either_width(record: ModuleType, kind):
    cells = pa.array(["xxx", "a", None, "", "ünï"], kind)
    table = pa.table({"key": cells, "value": cells}).slice(1)
    texts = ("a", None, "", "ünï")
    cells_bytes = [None if text is None else text.encode() for text in texts]
    assert [one[1:3] for one in decoded(record, record.from_arrow(table))] == [(one, one) for one in cells_bytes]


@pytest.mark.parametrize(("unit", "per_ms"), [("s", 0.001), ("ms", 1), ("us", 1000), ("ns", 1_000_000)])
def test_timestamps_may_have_any_unit_and_be_missing(record: ModuleType, unit, per_ms):
    times = pa.array([int(5_000 * per_ms), None, int(7_000 * per_ms)], pa.int64()).cast(pa.timestamp(unit))
    batches = record.from_arrow(pa.table({"timestamp": times}), timestamp_ms=99)
    assert [one[0] for one in decoded(record, batches)] == [5_000, 99, 7_000]


def test_without_a_timestamp_column_all_have_the_default(record: ModuleType):
    batches = record.from_arrow(pa.table({"value": [b"a", b"b"]}), timestamp_ms=42)
    assert decoded(record, batches) == [(42, None, b"a", ()), (42, None, b"b", ())]


@pytest.mark.parametrize("chunks", [1, 2, 5, 2000])
def test_chunks_are_encoded_in_their_order(record: ModuleType, chunks):
    parts = [pa.table({"value": pa.array([b"%d" % (2 * part), b"%d" % (2 * part + 1)])}) for part in range(chunks)]
    batches = record.from_arrow(pa.concat_tables(parts))
    assert [one[2] for one in decoded(record, batches)] == [b"%d" % number for number in range(2 * chunks)]
    assert len(batches) == 1


@given(
    rows=new_records,
    cuts=st.lists(st.integers(0, 20), max_size=4),
    bytes_max=st.integers(61, 400),
    records_max=st.integers(1, 30),
)
def test_batches_do_not_care_where_chunks_end(
    pure: ModuleType, native: ModuleType, rows, cuts, bytes_max, records_max
):
    whole = pa.Table.from_batches([pure.to_arrow(pure.encode(rows))])
    places = sorted({0, *(min(cut, len(rows)) for cut in cuts), len(rows)})
    parts = pa.Table.from_batches([whole.slice(a, b - a).to_batches()[0] for a, b in pairwise(places)])
    limits = {"batch_bytes_max": bytes_max, "records_per_batch": records_max}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native.columnar, "CHUNK_ROWS_MIN", 0)
        patch.setattr(pure.columnar, "CHUNK_ROWS_MIN", 0)
        expected = pure.from_arrow(whole, **limits)
        assert native.from_arrow(parts, **limits) == pure.from_arrow(parts, **limits) == expected


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_headers_may_be_sliced_null_and_empty(record: ModuleType, kind):
    pairs = kind(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = [
        [{"key": "gone", "value": b"0"}],
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        None,
        [],
        [{"key": "c", "value": b""}],
    ]
    table = pa.table({"headers": pa.array(rows, pairs)}).slice(1)
    found = [one[3] for one in decoded(record, record.from_arrow(table))]
    assert found == [(("a", b"1"), ("b", None)), (), (), (("c", b""),)]


@pytest.mark.parametrize(
    "table",
    [
        {"key": [1, 2]},
        {"value": [1.5]},
        {"timestamp": ["yesterday"]},
        {"headers": [["a"]]},
        {"other": [b"x"]},
    ],
)
def test_columns_of_another_kind_are_refused(record: ModuleType, table):
    with pytest.raises(ValueError, match=f"{next(iter(table))}"):
        record.from_arrow(pa.table(table))


def test_a_header_without_a_name_is_refused(record: ModuleType):
    table = pa.table({"headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS)})
    with pytest.raises(ValueError, match="without a name"):
        record.from_arrow(table)


def test_a_row_above_any_batch_is_too_large(record: ModuleType):
    with pytest.raises(BatchTooLarge):
        record.from_arrow(pa.table({"value": [bytes(33 * 1024 * 1024)]}))


def test_an_empty_table_makes_no_batch(record: ModuleType):
    assert record.from_arrow(SCHEMA.empty_table()) == []

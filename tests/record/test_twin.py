"""The twins agree on every byte, also on bytes that nobody in their right mind would send."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from random import Random
from types import ModuleType

import crc32c as foreign
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rivven.errors import Malformed
from rivven.record import Record

ROWS = [(1000, b"a", b"one", ()), (990, None, b"two", [("h", None), ("hé", b"x" * 70)]), (1005, b"a", None, ())]


def outcome(act, *arguments, **keywords):
    """What came back, or that it was Malformed; anything else raised is a failure of the test."""
    try:
        return act(*arguments, **keywords)
    except Malformed:
        return Malformed


def varint(value: int) -> bytes:
    bits, out = (value << 1) ^ (value >> 63), bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*out, bits])


def sealed(record: ModuleType, body: bytes, *, count: int, last_offset_delta: int, codec: int = 0) -> bytearray:
    """A batch with a true length and CRC round any bytes at all."""
    batch = record.encode([(0, None, None, ())])[:61] + body
    batch[21:23] = codec.to_bytes(2, "big")
    batch[23:27] = last_offset_delta.to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = foreign.crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return batch


@given(data=st.binary(max_size=300), crc=st.integers(0, 2**32 - 1))
def test_crc_is_that_of_the_crc32c_package(record: ModuleType, data, crc):
    assert record.crc32c(data, crc) == foreign.crc32c(data, crc)


@given(before=st.binary(max_size=80), seed=st.integers(0, 99), rest=st.integers(0, 5_000) | st.just(1_000_003))
def test_a_crc_follows_what_has_changed_at_the_begin(record: ModuleType, before, seed, rest):
    after, tail = Random(seed).randbytes(len(before)), Random(seed + 1).randbytes(rest)
    changed = record.twin.kernel.crc_changed(foreign.crc32c(before + tail), before, after, rest)
    assert changed == foreign.crc32c(after + tail)


def test_a_plain_run_is_counted_and_nothing_else_is_plain(record: ModuleType):
    plain, other = record.encode(ROWS), record.encode(ROWS[:1], codec=record.Codec.GZIP)
    run, ends = plain + other, [len(plain), len(plain) + len(other)]
    assert record.plain_run(run, ends, 10_000) == (4, True)
    assert record.plain_run(plain, ends[:1], 10_000) == (3, False)
    assert record.plain_run(run, ends, len(plain) - 1) is None, "too long"
    assert record.plain_run(run, ends[:1], 10_000) is None, "more than was announced"
    assert record.plain_run(run, [ends[0] + 1, ends[1]], 10_000) is None, "they end elsewhere"
    assert record.plain_run(run, [ends[0], ends[1] + 1], 10_000) is None, "not all there"
    for odd in (
        record.encode(ROWS, producer_id=7, producer_epoch=0, base_sequence=0),
        record.encode(ROWS, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
        record.encode_marker(commit=True, producer_id=7, producer_epoch=0, timestamp_ms=0),
        sealed(record, b"", count=0, last_offset_delta=3),
        bytearray(70),
    ):
        assert record.plain_run(plain + odd, [len(plain), len(plain) + len(odd)], 10_000) is None


@given(flips=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=3), cut=st.integers(0, 3))
def test_a_run_is_plain_to_both_or_to_neither(pure: ModuleType, native: ModuleType, flips, cut):
    batches = [pure.encode(ROWS), pure.encode(ROWS[:2])]
    run, ends = bytearray().join(batches), [len(batches[0]), len(batches[0]) + len(batches[1])]
    for place, mask in flips:
        run[place % len(run)] ^= mask
    del run[len(run) - cut :]
    assert pure.plain_run(run, ends, 10_000) == native.plain_run(run, ends, 10_000)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 3071, 3072, 3073, 6143, 6144, 6145, 12_288, 100_001])
def test_crc_of_long_data_is_the_same_however_many_lanes_it_takes(record: ModuleType, length):
    data = Random(length).randbytes(length)
    assert record.crc32c(data) == foreign.crc32c(data)
    assert record.crc32c(b"123456789") == 0xE3069283


@given(
    length=st.integers(0, 20_000), start=st.integers(0, 70), seed=st.integers(0, 99), crc=st.integers(0, 2**32 - 1)
)
def test_every_way_to_a_crc_ends_alike(native: ModuleType, length, start, seed, crc):
    data = memoryview(Random(seed).randbytes(start + length))[start:]
    ways = native.twin.kernel.crc32c_each_way(data, crc)
    assert set(ways) == {foreign.crc32c(data, crc)}


@given(buffer=st.binary(max_size=400), position=st.integers(-5, 410), end=st.integers(-5, 500), verify=st.booleans())
def test_garbage_is_scanned_alike(pure: ModuleType, native: ModuleType, buffer, position, end, verify):
    assert native.scan(buffer, position, end, verify=verify) == pure.scan(buffer, position, end, verify=verify)
    for name, argument in (("seek", 3), ("fit", 200)):
        assert outcome(getattr(native, name), buffer, position, argument) == outcome(
            getattr(pure, name), buffer, position, argument
        )
    for act in ("parse_header", "validate", "decode", "decode_marker"):
        assert outcome(getattr(native, act), buffer, position) == outcome(getattr(pure, act), buffer, position)


@given(
    counts=st.lists(st.integers(1, 3), max_size=6),
    flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 7)), max_size=2),
    cut=st.integers(0, 100),
    offset=st.integers(-1, 40),
    bytes_max=st.integers(-1, 900),
)
def test_logs_with_flipped_bits_are_scanned_alike(pure, native, counts, flips, cut, offset, bytes_max):
    log = bytearray()
    for place, count in enumerate(counts):
        log += pure.encode(ROWS[:count], base_offset=5 * place)
    for place, bit in flips:
        if log:
            log[place % len(log)] ^= 1 << bit
    log = log[: max(0, len(log) - cut)]
    for verify in (True, False):
        assert native.scan(log, 0, len(log), verify=verify) == pure.scan(log, 0, len(log), verify=verify)
    assert outcome(native.seek, log, 0, offset) == outcome(pure.seek, log, 0, offset)
    assert outcome(native.fit, log, 0, bytes_max) == outcome(pure.fit, log, 0, bytes_max)
    assert outcome(lambda: list(native.walk(log))) == outcome(lambda: list(pure.walk(log)))


@given(place=st.integers(61, 400), byte=st.integers(0, 255), codec=st.integers(0, 4))
def test_a_corrupted_body_under_a_true_crc_is_decoded_alike_or_malformed(pure, native, reseal, place, byte, codec):
    batch = pure.encode(ROWS, codec=pure.Codec(codec))
    batch[61 + (place - 61) % (len(batch) - 61)] = byte
    reseal(batch)
    assert outcome(native.decode, batch) == outcome(pure.decode, batch)


@given(
    body=st.binary(max_size=120),
    count=st.integers(0, 2**31 - 1) | st.integers(0, 4),
    last_offset_delta=st.integers(0, 2**31 - 1) | st.integers(0, 4),
    codec=st.integers(0, 7),
)
@example(body=b"\x0e\0\0\0\1\1\0\0", count=1, last_offset_delta=0, codec=0)
def test_any_body_is_decoded_alike_or_malformed(pure, native, body, count, last_offset_delta, codec):
    batch = sealed(pure, body, count=count, last_offset_delta=last_offset_delta, codec=codec)
    assert outcome(native.decode, batch) == outcome(pure.decode, batch)


numbers = st.sampled_from([-(2**63), -(2**31), -2, -1, 0, 1, 2, 5, 2**31 - 1, 2**31, 2**63 - 1])


@given(numbers=st.tuples(numbers, numbers, numbers, numbers, numbers), data=st.binary(max_size=12))
def test_any_lengths_in_a_record_are_decoded_alike_or_malformed(pure, native, numbers, data):
    timestamp, offset, key, value, headers = map(varint, numbers)
    body = b"\0" + timestamp + offset + key + data + value + data + headers + data
    batch = sealed(pure, varint(len(body)) + body, count=1, last_offset_delta=2)
    assert outcome(native.decode, batch) == outcome(pure.decode, batch)
    assert outcome(lambda: native.to_arrow(batch).to_pylist()) == outcome(lambda: pure.to_arrow(batch).to_pylist())


BODY = b"\0\0\0\1\1\0"
BAD_BODIES = {
    "a trailing byte after the last record": (varint(len(BODY)) + BODY + b"\0", 1),
    "a trailing byte in a record": (varint(len(BODY) + 1) + BODY + b"\0", 1),
    "a record fewer than counted": (varint(len(BODY)) + BODY, 2),
    "a record of no bytes": (b"\0" * 7, 1),
    "a record longer than the batch": (varint(50) + BODY, 1),
    "a negative length": (varint(-2) + BODY, 1),
    "a key of length -2": (b"\x0c\0\0\0\3\1\0", 1),
    "a key beyond the record": (b"\x0c\0\0\0\x40\1\0", 1),
    "a negative header count": (b"\x0c\0\0\0\1\1\1", 1),
    "more headers than bytes": (b"\x0e\0\0\0\1\1\x04\0", 1),
    "a header without a name": (b"\x10\0\0\0\1\1\2\1\1", 1),
    "a header name that is not UTF-8": (b"\x12\0\0\0\1\1\2\2\xff\1", 1),
    "a negative offset delta": (b"\x0c\0\0\1\1\1\0", 1),
    "an offset delta past the last": (b"\x0c\0\0\4\1\1\0", 1),
    "an offset twice": ((b"\x0c\0\0\0\1\1\0") * 2, 2),
    "a varint of six bytes": (b"\x14\0\0\x80\x80\x80\x80\x80\0\1\1\0", 1),
    "a varint of 33 bits": (b"\x14\0\0\x80\x80\x80\x80\x10\1\1\0", 1),
    "a timestamp past 64 bits": (b"\x1e\0\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x02\0\1\1\0", 1),
}


@pytest.mark.parametrize("what", BAD_BODIES)
def test_a_body_is_refused_for(record: ModuleType, what):
    body, count = BAD_BODIES[what]
    batch = sealed(record, body, count=count, last_offset_delta=1)
    record.validate(batch)
    with pytest.raises(Malformed):
        record.decode(batch)
    with pytest.raises(Malformed):
        record.to_arrow(batch)


def test_a_timestamp_beyond_64_bits_is_malformed(record: ModuleType, reseal):
    batch = record.encode([(5, None, None, ()), (6, None, None, ())])
    batch[27:35] = (2**63 - 1).to_bytes(8, "big")
    reseal(batch)
    with pytest.raises(Malformed):
        record.decode(batch)
    with pytest.raises(Malformed):
        record.to_arrow(batch)


def test_a_delta_of_65_bits_is_malformed_even_where_the_sum_would_fit(record: ModuleType, reseal):
    batch = sealed(record, b"\x1e\0" + b"\x80" * 9 + b"\x02" + b"\0\1\1\0", count=1, last_offset_delta=0)
    batch[27:35] = (-(2**63)).to_bytes(8, "big", signed=True)
    reseal(batch)
    with pytest.raises(Malformed):
        record.decode(batch)


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_room_is_made(record: ModuleType):
    batch = sealed(record, b"\0" * 100, count=8 * 1024 * 1024, last_offset_delta=2**31 - 1)
    with pytest.raises(Malformed, match="do not fit into 100 bytes"):
        record.decode(batch)


# Walking a log


def log_of(record: ModuleType) -> tuple[bytes, list[int]]:
    batches = [record.encode(ROWS, base_offset=offset) for offset in (0, 3, 10, 13)]
    ends = [sum(map(len, batches[: count + 1])) for count in range(4)]
    return b"".join(batches), ends


def test_scan_ends_after_the_last_whole_batch(record: ModuleType):
    log, ends = log_of(record)
    assert record.scan(log, 0, len(log), verify=True) == (ends[3], 16, None)
    assert record.scan(log[:-1], 0, 10**9, verify=True) == (ends[2], 13, None)
    assert record.scan(log, ends[0], ends[2], verify=True) == (ends[2], 13, None)
    assert record.scan(log, 0, 60, verify=True) == (0, -1, None)


def test_scan_says_why_it_stopped(record: ModuleType):
    log, ends = log_of(record)
    broken = bytearray(log)
    broken[ends[1] - 1] ^= 1
    end, next_offset, bad = record.scan(broken, 0, len(log), verify=True)
    assert (end, next_offset, bad[:4]) == (ends[0], 3, "CRC ")
    assert record.scan(broken, 0, len(log), verify=False) == (ends[3], 16, None)
    assert record.scan(log[ends[0] :] + log, 0, 10**6, verify=True)[2] == "base offset 0 after offset 15"
    overlap = log[: ends[0]] + record.encode(ROWS, base_offset=2)
    assert record.scan(overlap, 0, 10**6, verify=True) == (ends[0], 3, "base offset 2 after offset 2")
    assert record.scan(log + bytes(61), 0, 10**6, verify=True) == (ends[3], 16, "magic 0 instead of 2")


@pytest.mark.parametrize(("offset", "place"), [(-1, 0), (0, 0), (2, 0), (3, 1), (6, 2), (10, 2), (13, 3), (15, 3)])
def test_seek_finds_the_first_batch_that_ends_at_or_after(record: ModuleType, offset, place):
    log, ends = log_of(record)
    assert record.seek(log, 0, offset) == [0, *ends][place]
    assert record.seek(log, ends[0], offset) == max([0, *ends][place], ends[0])


def test_seek_past_the_end_or_into_a_cut_batch_finds_nothing(record: ModuleType):
    log, ends = log_of(record)
    assert record.seek(log, 0, 16) == -1
    assert record.seek(log[: ends[3] - 1], 0, 13) == -1


def test_fit_takes_whole_batches_but_always_the_first(record: ModuleType):
    log, ends = log_of(record)
    assert record.fit(log, 0, 0) == ends[0]
    assert record.fit(log, 0, ends[1]) == ends[1]
    assert record.fit(log, 0, ends[1] - 1) == ends[0]
    assert record.fit(log, ends[0], ends[2] - ends[0]) == ends[2]
    assert record.fit(log[: ends[0] - 1], 0, 10**6) == 0
    assert record.fit(log + bytes(61), 0, 10**6) == ends[3]


def test_seek_and_fit_refuse_to_start_at_nonsense(record: ModuleType):
    for act in (record.seek, record.fit):
        with pytest.raises(Malformed):
            act(bytes(100), 0, 1)


# Which twin runs


def stderr_of(code: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stderr


def test_the_environment_picks_the_pure_twin_in_silence():
    assert stderr_of("import rivven.record as r; assert not r.NATIVE", RIVVEN_PURE="1") == ""


def test_a_missing_native_twin_is_said_once():
    hide = "import sys; sys.modules['rivven.record._native'] = None; import rivven.record as r; assert not r.NATIVE"
    assert stderr_of(hide, RIVVEN_PURE="").count("running on the pure twin") == 1


def test_the_broker_does_not_load_arrow():
    assert stderr_of("import sys, rivven.record; assert 'pyarrow' not in sys.modules") == ""


# Records that die


class Marked(Record):
    """A record with room for more, as a subclass has."""


def test_the_memory_of_dead_records_makes_new_ones_whatever_died(record: ModuleType):
    batch = record.encode([(place, b"%d" % place, b"v" * place, ()) for place in range(40)])
    expected = list(record.decode(batch))
    for _ in range(3):
        for length in (0, 1, 4, 6, 20):
            tuple.__new__(record.Record, range(length))  # no `Record` that anyone should make, but one can
        Marked(1, 2, b"k", b"v").note = "gone with it"
        assert record.decode(batch) == expected
    assert all(type(found) is record.Record and len(found) == 5 for found in record.decode(batch))


def test_dead_records_let_go_of_what_they_held(record: ModuleType):
    batch = record.encode([(1, b"k", b"v", ())] * 100)
    value, before = b"held by many", sys.getrefcount(record.Record)
    held = [record.Record(place, 0, None, value) for place in range(100)]
    records = [record.decode(batch) for _ in range(100)]
    assert sys.getrefcount(value) > 100
    del held, records
    assert sys.getrefcount(value) < 10
    assert sys.getrefcount(record.Record) < before + 10


def test_records_nested_beyond_reason_die_without_overflowing_the_stack(record: ModuleType):
    nested = None
    for _ in range(200_000):
        nested = record.Record(0, 0, None, nested)
    del nested
    assert record.decode(record.encode([(1, None, b"v", ())]))[0].value == b"v"


def test_a_record_in_a_cycle_is_collected(record: ModuleType):
    cycle: list[object] = []
    cycle.append(record.Record(0, 0, None, cycle))
    gc.collect()
    del cycle
    assert gc.collect() >= 2


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 255, 256, 257, 1000])
def test_columns_hold_strings_of_any_length_to_the_last_byte(record: ModuleType, length):
    value = bytes(place * 7 & 0xFF for place in range(length))
    batch = record.encode([(1, value[:5], value, ())] * 3 + [(1, None, value, ()), (1, value, None, ())])
    rows = record.to_arrow(batch)
    assert rows["value"].to_pylist() == [value] * 4 + [None]
    assert rows["key"].to_pylist() == [value[:5]] * 3 + [None, value]

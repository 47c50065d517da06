"""Compression by every codec: there and back, bounded, and `Malformed` for whatever is not its output."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.errors import Malformed

PACKED = range(1, 5)
MIB = 1024 * 1024


@pytest.mark.parametrize("codec", range(5))
@given(data=st.binary(max_size=2000))
def test_what_was_packed_unpacks(record: ModuleType, codec, data):
    codec = record.Codec(codec)
    assert bytes(record.decompress(codec, record.compress(codec, data), len(data))) == data


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_higher_level_packs_tighter(record: ModuleType, codec):
    codec, data = (
        record.Codec(codec),
        b"".join(b"%d %d\n" % (place % 91, place * place % 1013) for place in range(9000)),
    )
    packed = {level: record.compress(codec, data, level) for level in (1, 9)}
    assert len(packed[9]) < len(packed[1])
    assert record.decompress(codec, packed[9], len(data)) == data


@pytest.mark.parametrize("codec", range(5))
def test_one_byte_above_the_limit_is_refused(record: ModuleType, codec):
    codec = record.Codec(codec)
    packed = record.compress(codec, b"x" * 1000)
    assert len(record.decompress(codec, packed, 1000)) == 1000
    with pytest.raises(Malformed, match="more than 999 bytes"):
        record.decompress(codec, packed, 999)


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_is_refused_in_bounded_memory(record: ModuleType, codec):
    codec = record.Codec(codec)
    bomb = record.compress(codec, bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            record.decompress(codec, bomb, MIB)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * MIB


@pytest.mark.parametrize("codec", PACKED)
def test_every_cut_and_every_tail_is_malformed(record: ModuleType, codec):
    codec = record.Codec(codec)
    packed = record.compress(codec, b"some text, some text, some more text" * 5)
    for length in range(len(packed)):
        with pytest.raises(Malformed):
            record.decompress(codec, packed[:length], 10_000)
    with pytest.raises(Malformed):
        record.decompress(codec, packed + b"\0tail", 10_000)


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.binary(max_size=200), flip=st.integers(0, 10_000))
def test_garbage_unpacks_within_the_limit_or_is_malformed(record: ModuleType, codec, data, flip):
    codec = record.Codec(codec)
    packed = bytearray(record.compress(codec, data * 3))
    packed[flip // 8 % len(packed)] ^= 1 << flip % 8
    for broken in (data, bytes(packed)):
        with contextlib.suppress(Malformed):
            assert len(record.decompress(codec, broken, 1000)) <= 1000


# Snappy's two ways


def xerial(*blocks: bytes) -> bytes:
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(one)) + one for one in blocks)


def test_snappy_in_blocks_as_java_writes_it_is_read(record: ModuleType):
    snappy = record.Codec.SNAPPY
    blocks = [record.compress(snappy, part) for part in (b"first " * 50, b"", b"second")]
    assert bytes(record.decompress(snappy, xerial(*blocks), 306)) == b"first " * 50 + b"second"
    with pytest.raises(Malformed):
        record.decompress(snappy, xerial(*blocks), 305)


@pytest.mark.parametrize("tail", [b"\0", b"\0\0\0\x09abc", b"\xff\xff\xff\xff", b"\0\0\0\0"])
def test_snappy_blocks_that_do_not_add_up_are_malformed(record: ModuleType, tail):
    with pytest.raises(Malformed):
        record.decompress(record.Codec.SNAPPY, xerial() + tail, 1000)


def test_a_snappy_length_is_not_believed(record: ModuleType):
    for claim in (b"\xff\xff\xff\x7f\0", b"\xff\xff\xff\xff\xff\0", b"\x80\x80\x80"):
        with pytest.raises(Malformed):
            record.decompress(record.Codec.SNAPPY, claim, 2**31)


def test_lz4_blocks_are_independent_since_java_reads_no_others(record: ModuleType):
    assert record.compress(record.Codec.LZ4, b"x" * 200_000)[4] & 0x20

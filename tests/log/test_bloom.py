"""Bloom filters: "no" is certain, "maybe" is seldom wrong, and a damaged one is none."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rivven.log.bloom import HEADER, Bloom
from rivven.sim import SimDisk

keys = st.sets(st.binary(max_size=12), max_size=60)


@given(keys)
def test_what_it_holds_it_never_denies(held):
    bloom = Bloom.of(held)
    assert all(map(bloom.may_hold, held))


@given(keys, st.booleans())
def test_it_says_the_same_after_a_restart(held, tombstones):
    disk = SimDisk(Random(0))
    Bloom.of(held, tombstones=tombstones).save(disk, "a.bloom")
    bloom = Bloom.load(disk, "a.bloom")
    assert bloom.tombstones == tombstones
    assert all(map(bloom.may_hold, held))


def test_it_is_wrong_about_once_in_a_hundred_times():
    bloom = Bloom.of(b"in %d" % n for n in range(2000))
    wrong = sum(bloom.may_hold(b"out %d" % n) for n in range(10_000))
    assert wrong < 200


def test_an_empty_one_holds_nothing():
    assert not Bloom.of([]).may_hold(b"a")


def test_a_missing_or_short_one_is_none():
    disk = SimDisk(Random(0))
    assert Bloom.load(disk, "a.bloom") is None
    Bloom.of([b"a"]).save(disk, "a.bloom")
    for length_bytes in (HEADER.size + 3, HEADER.size, 5, 0):
        disk.cut("a.bloom", length_bytes)
        assert Bloom.load(disk, "a.bloom") is None


def test_no_flipped_bit_makes_it_deny_a_key():
    held = [b"a", b"b", b"c"]
    for place in range(8 * (HEADER.size + 8)):
        disk = SimDisk(Random(0))
        Bloom.of(held).save(disk, "a.bloom")
        disk.flip("a.bloom", place // 8, place % 8)
        bloom = Bloom.load(disk, "a.bloom")
        assert bloom is None or all(map(bloom.may_hold, held)), place

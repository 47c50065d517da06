"""A small document on disk: old or new, whatever happens, and never a broken one taken for good."""

from __future__ import annotations

from errno import ENOSPC
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivven.log.document import Document, read_whole, seal, unseal, write_whole
from rivven.sim import Halted, SimDisk


class Body(msgspec.Struct):
    name: str
    count: int = 0


def document(disk: SimDisk) -> Document[Body]:
    return Document(disk, "dir/doc.json", Body)


def disk_with(*bodies: Body, seed: int = 0) -> SimDisk:
    disk = SimDisk(Random(seed))
    disk.make_dirs("dir")
    disk.sync_dir("")
    for body in bodies:
        document(disk).save(body)
    return disk


def test_what_is_saved_is_loaded():
    assert document(disk_with(Body("ä", 7))).load() == (Body("ä", 7), "file")


def test_before_the_first_save_there_is_none():
    assert document(disk_with()).load() == (None, "missing")


def test_it_says_its_version_and_its_checksum():
    data = msgspec.json.decode(read_whole(disk_with(Body("a")), "dir/doc.json"))
    assert (data["version"], data["body"]) == (1, {"name": "a", "count": 0})
    assert len(data["crc32c"]) == 8


def test_the_backup_is_as_new_as_the_document():
    disk = disk_with(Body("a"), Body("b"), Body("c"))
    disk.remove("dir/doc.json")
    assert document(disk).load() == (Body("c"), "backup")


def test_a_backup_that_cannot_be_written_does_not_matter():
    disk = disk_with(Body("a"), Body("b"))
    disk.fail("write", ENOSPC, path_contains=".bak")
    document(disk).save(Body("c"))
    assert document(disk).load() == (Body("c"), "file")


def test_with_both_damaged_it_says_so():
    disk = disk_with(Body("a"), Body("b"))
    disk.flip("dir/doc.json", 50)
    disk.cut("dir/doc.json.bak", 10)
    assert document(disk).load() == (None, "damaged")


def test_when_save_returns_no_crash_takes_it_back():
    for seed in range(50):
        disk = disk_with(Body("a"), Body("b"), seed=seed)
        disk.crash()
        assert document(disk).load() == (Body("b"), "file")


@pytest.mark.parametrize("end", ["crash", "kill"])
def test_at_every_moment_it_holds_the_old_or_the_new(end):
    found = set()
    for operations in range(40):
        for seed in range(8):
            disk = disk_with(Body("a"), Body("b"), seed=seed)
            disk.halt_after(operations)
            try:
                document(disk).save(Body("c"))
                finished = True
            except Halted:
                finished = False
            getattr(disk, end)()
            body, source = document(disk).load()
            assert source == "file", (operations, seed)
            found.add((finished, body.name))
    assert found == {(False, "b"), (False, "c"), (True, "c")}


@given(data=st.data())
@settings(max_examples=200)
def test_no_flipped_bit_goes_unnoticed(data):
    good = seal(Body("name", 123456))
    place = data.draw(st.integers(0, len(good) * 8 - 1))
    bad = bytearray(good)
    bad[place // 8] ^= 1 << place % 8
    assert unseal(bytes(bad), Body) in (None, Body("name", 123456))


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_garbage_is_no_document(data):
    assert unseal(data, Body) is None


def test_another_version_or_another_body_is_no_document():
    assert unseal(seal(Body("a")).replace(b'"version":1', b'"version":2'), Body) is None
    assert unseal(seal({"name": 5}), Body) is None


def test_a_file_is_replaced_whole():
    disk = SimDisk(Random(0))
    write_whole(disk, "a", b"long content")
    write_whole(disk, "a", b"short")
    assert (read_whole(disk, "a"), disk.names("")) == (b"short", ["a"])

"""Batches out of the server's files: what it tells on its own machine, and what is believed of what stands there."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from serving import served

from rivven.client import Found, Missed, Options, blocking
from rivven.record import decode, encode, encode_marker, rewrite, walk
from rivven.system import machine_id
from rivven.wire import CAPABILITIES, Capability
from rivven.wire import responses as tell

PIECE = 64 * 1024


def offsets(pieces) -> list[int]:
    return [record.offset for data, _ in pieces for at, _ in walk(data) for record in decode(data, at)]


def written(path: Path, batches: list[bytes], *, first: int = 0, dense: bool = True, **more: Any) -> Found:
    """A file with these batches one behind the other, and what a server would tell of it."""
    data, offset = bytearray(), first
    for batch in batches:
        data += struct.pack(">q", offset) + batch[8:]
        offset += struct.unpack(">i", batch[23:27])[0] + 1
    path.write_bytes(data)
    status = path.stat()
    told = {
        "machine": machine_id(),
        "device": status.st_dev,
        "inode": status.st_ino,
        "position": 0,
        "length": len(data),
    } | more
    place = tell.Place(
        str(told["machine"]), str(path), told["device"], told["inode"], told["position"], told["length"], dense
    )
    return Found(tell.PartitionFound(0, 0, None, offset, offset, 0, (), b"", (place,)), first)


def batches_of(count: int, value_bytes: int = 1000) -> list[bytes]:
    return [bytes(encode([(0, None, bytes(value_bytes), ())] * 3)) for _ in range(count)]


@pytest.fixture
def filled(tmp_path):
    with served(tmp_path / "data") as address, blocking.connect(address) as client:
        client.create_topic("t", 1)
        with client.producer("t", batch_bytes_max=16_384) as producer:
            for number in range(500):
                producer.put(b"%d" % number + bytes(1000), partition=0)
        yield client


def test_what_is_found_is_what_a_consumer_reads(filled):
    found = filled.find_batches("t", 0, 7, bytes_max=1 << 20)
    (place,) = found.part.places
    assert Path(place.path).stat().st_ino == place.inode
    seen = offsets(found.pieces(PIECE))
    assert seen[0] <= 7
    assert seen[-1] == 499
    assert seen == list(range(seen[0], 500))
    assert (found.bounds.earliest, found.bounds.latest) == (0, 500)


def test_little_is_sent_and_nothing_is_nothing(filled):
    found = filled.find_batches("t", 0, 490, bytes_max=1 << 20)
    assert found.part.places == ()
    assert offsets(found.pieces(PIECE))[-1] == 499
    assert list(filled.find_batches("t", 0, 500, bytes_max=1 << 20).pieces(PIECE)) == []


def test_what_goes_wrong_is_left_to_a_consumer(filled):
    assert filled.find_batches("t", 0, 9999, bytes_max=1 << 20) is None
    assert filled.find_batches("none", 0, 0, bytes_max=1 << 20) is None


def test_a_server_that_does_not_want_it_tells_nothing(tmp_path):
    with served(tmp_path / "data", local_reads=False) as address, blocking.connect(address) as client:
        client.create_topic("t", 1)
        assert client.find_batches("t", 0, 0, bytes_max=1 << 20) is None


def test_nobody_is_told_of_much_at_a_time_while_there_are_quotas(tmp_path):
    with served(tmp_path / "data", quota_consume_bytes_rate=10**12) as address, blocking.connect(address) as client:
        client.create_topic("t", 1)
        with client.producer("t") as producer:
            for _ in range(6_000):
                producer.put(bytes(1000), partition=0)
        (place,) = client.find_batches("t", 0, 0, bytes_max=48 << 20).part.places
    assert 1 << 20 < place.length <= 2 << 20


def test_a_client_that_does_not_know_it_is_not_told(tmp_path):
    old = Options(capabilities=int(CAPABILITIES & ~Capability.PLACES))
    with served(tmp_path / "data") as address, blocking.connect(address, options=old) as client:
        client.create_topic("t", 1)
        assert client.find_batches("t", 0, 0, bytes_max=1 << 20) is None


def test_a_file_that_was_deleted_while_it_is_read_is_read_to_its_end(filled):
    found = filled.find_batches("t", 0, 0, bytes_max=1 << 20)
    pieces = found.pieces(PIECE)
    first = next(pieces)
    filled.delete_topic("t")
    assert not Path(found.part.places[0].path).exists()
    assert offsets([first, *pieces]) == list(range(500))
    with pytest.raises(Missed):
        next(found.pieces(PIECE))


# What is believed


@pytest.mark.parametrize("bytes_max", [1, 100, 5_000, 1 << 20])
def test_batches_come_whole_however_long_they_are(tmp_path, bytes_max):
    found = written(tmp_path / "log", batches_of(20))
    pieces = list(found.pieces(bytes_max))
    assert offsets(pieces) == list(range(60))
    assert [following for _, following in pieces][-1] == 60
    assert all(len(data) <= max(bytes_max, 3200) for data, _ in pieces)


@pytest.mark.parametrize(
    "told",
    [
        {"machine": "another"},
        {"machine": ""},
        {"device": 1},
        {"inode": 1},
        {"position": 2**63},
        {"length": 10**6},
        {"length": 5000},
        {"position": 7},
        {"length": 2**32 - 1},
        {"length": 40},
    ],
    ids=str,
)
def test_another_file_or_place_is_missed(tmp_path, told):
    with pytest.raises(Missed):
        list(written(tmp_path / "log", batches_of(4), **told).pieces(PIECE))


@pytest.mark.parametrize("place", [3, 8, 16, 20, 60, 61, 3000, 7000])
def test_a_flipped_byte_is_missed_and_what_is_before_it_is_not(tmp_path, place):
    found = written(tmp_path / "log", batches_of(4))
    with (tmp_path / "log").open("r+b") as file:
        byte = os.pread(file.fileno(), 1, place)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 0x10]), place)
    pieces = found.pieces(1)
    seen = []
    with pytest.raises(Missed):
        seen.extend(pieces)
    assert offsets(seen) == list(range(3 * (place // 3100)))


def test_a_path_that_cannot_be_one_is_missed(tmp_path):
    found = written(tmp_path / "log", batches_of(1))
    place = msgspec.structs.replace(found.part.places[0], path="/tmp/\0")
    with pytest.raises(Missed):
        list(Found(msgspec.structs.replace(found.part, places=(place,)), 0).pieces(PIECE))


def test_each_piece_begins_where_the_one_before_ended(tmp_path):
    found = written(tmp_path / "log", batches_of(3))
    with (tmp_path / "log").open("r+b") as file:  # the offset of the second batch, which is outside its CRC
        os.pwrite(file.fileno(), struct.pack(">q", 2), len(batches_of(1)[0]))
    pieces = found.pieces(1)
    assert offsets([next(pieces)]) == [0, 1, 2]
    with pytest.raises(Missed):
        next(pieces)


def test_a_marker_that_compaction_emptied_ends_what_it_ended(tmp_path):
    aborted, later = (
        bytes(encode([(0, None, b"v", ())], producer_id=7, base_sequence=number, transactional=True))
        for number in range(2)
    )
    marker = bytes(rewrite(encode_marker(commit=False, producer_id=7, producer_epoch=0, timestamp_ms=0), []))
    found = written(tmp_path / "log", [aborted, marker, later])
    part = msgspec.structs.replace(found.part, aborted=(tell.AbortedTransaction(7, 0),))
    assert offsets(Found(part, 0).pieces(PIECE)) == [2]


def test_a_batch_of_another_offset_is_missed_where_they_count_up(tmp_path):
    first, second = batches_of(2)
    with pytest.raises(Missed):
        list(Found(written(tmp_path / "log", [first, second], first=5).part, 3).pieces(PIECE))
    gap = written(tmp_path / "log", [first, second], first=5, dense=False)
    assert offsets(Found(gap.part, 3).pieces(PIECE)) == list(range(5, 11))
    with pytest.raises(Missed):
        list(Found(gap.part, 11).pieces(PIECE))


@pytest.mark.parametrize("kind", ["fifo", "symlink", "directory", "nothing"])
def test_what_is_no_plain_file_is_missed_and_never_waited_for(tmp_path, kind):
    found = written(tmp_path / "log", batches_of(1))
    place = found.part.places[0]
    (tmp_path / "log").rename(tmp_path / "kept")
    match kind:
        case "fifo":
            os.mkfifo(tmp_path / "log")
        case "symlink":
            (tmp_path / "log").symlink_to(tmp_path / "kept")
        case "directory":
            (tmp_path / "log").mkdir()
    with pytest.raises(Missed):
        next(found.pieces(PIECE))
    assert place.path == str(tmp_path / "log")


def test_aborted_transactions_and_marks_are_left_out_over_all_pieces(tmp_path):
    def of(producer: int) -> bytes:
        return bytes(encode([(0, None, b"v", ())], producer_id=producer, base_sequence=0, transactional=True))

    def mark(producer: int, *, commit: bool) -> bytes:
        return bytes(encode_marker(commit=commit, producer_id=producer, producer_epoch=0, timestamp_ms=0))

    batches = [of(7), of(8), mark(7, commit=False), of(7), mark(7, commit=True), of(7), mark(8, commit=True)]
    found = written(tmp_path / "log", [*batches, mark(7, commit=False), *batches_of(1)])
    aborted = (tell.AbortedTransaction(7, 0), tell.AbortedTransaction(7, 5))
    part = found.part
    known = tell.PartitionFound(0, 0, None, 11, 11, 0, aborted, b"", part.places)
    for bytes_max in (1, 200, PIECE):
        assert offsets(Found(known, 0).pieces(bytes_max)) == [1, 3, 8, 9, 10]
        assert [*Found(known, 0).pieces(bytes_max)][-1][1] == 11


def test_no_file_stays_open(tmp_path):
    found = written(tmp_path / "log", batches_of(4))
    before = len(os.listdir("/proc/self/fd"))
    list(found.pieces(PIECE))
    abandoned = found.pieces(1)
    next(abandoned)
    abandoned.close()
    with pytest.raises(Missed):
        list(written(tmp_path / "log", batches_of(4), inode=1).pieces(PIECE))
    assert len(os.listdir("/proc/self/fd")) == before

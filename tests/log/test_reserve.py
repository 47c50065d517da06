"""Room ahead of a growing segment: found in large pieces, and given back when it is sealed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rivven.log.segment import RESERVE_BYTES_MAX, RESERVE_FROM_BYTES, Segment
from rivven.model import TopicPartition
from rivven.record import NATIVE, encode, parse_header
from rivven.system import SystemDisk

BLOCK_BYTES = 512
"""What `st_blocks` counts in."""
SLACK_BYTES = 64 * 1024
"""What a file system may need beside the content."""

needs_fallocate = pytest.mark.skipif(not NATIVE, reason="Python knows no fallocate that leaves the length alone")


def grown(tmp_path: Path, upto: int) -> tuple[Segment, Path]:
    disk = SystemDisk(tmp_path)
    segment = Segment(disk, "", TopicPartition("t", 0), 0, 4096)
    segment.path = segment.path.lstrip("/")
    segment.create()
    while segment.end_bytes < upto:
        batch = encode([(0, None, bytes(100_000), ())])
        segment.put(batch, 0, parse_header(batch).max_timestamp_ms, 0)
    return segment, tmp_path / segment.path


def held_bytes(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # blocks are found late
        return os.fstat(descriptor).st_blocks * BLOCK_BYTES
    finally:
        os.close(descriptor)


@needs_fallocate
def test_a_large_segment_has_room_ahead_and_gives_it_back(tmp_path: Path) -> None:
    segment, path = grown(tmp_path, 4 * RESERVE_FROM_BYTES)
    assert held_bytes(path) > path.stat().st_size + SLACK_BYTES
    assert held_bytes(path) <= 2 * path.stat().st_size + SLACK_BYTES
    assert path.stat().st_size == segment.end_bytes, "nobody sees it"
    segment.seal(segment.next_offset)
    assert held_bytes(path) <= path.stat().st_size + SLACK_BYTES
    assert path.stat().st_size == segment.end_bytes


def test_a_small_segment_takes_what_it_has(tmp_path: Path) -> None:
    segment, path = grown(tmp_path, RESERVE_FROM_BYTES // 2)
    assert held_bytes(path) <= segment.end_bytes + SLACK_BYTES


@needs_fallocate
def test_what_an_earlier_life_reserved_is_given_back(tmp_path: Path) -> None:
    segment, path = grown(tmp_path, 4 * RESERVE_FROM_BYTES)
    assert held_bytes(path) > path.stat().st_size + SLACK_BYTES
    again = Segment(SystemDisk(tmp_path), "", TopicPartition("t", 0), 0, 4096)
    again.path = segment.path
    again.load()
    again.seal(again.next_offset)
    assert held_bytes(path) <= path.stat().st_size + SLACK_BYTES


@needs_fallocate
def test_no_segment_reserves_more_than_so_much(tmp_path: Path) -> None:
    segment, path = grown(tmp_path, 2 * RESERVE_BYTES_MAX)
    assert held_bytes(path) <= segment.end_bytes + RESERVE_BYTES_MAX + SLACK_BYTES


@needs_fallocate
def test_what_is_truncated_is_reserved_anew(tmp_path: Path) -> None:
    segment, path = grown(tmp_path, 4 * RESERVE_FROM_BYTES)
    segment.truncate(3)
    assert held_bytes(path) <= segment.end_bytes + SLACK_BYTES
    batch = encode([(0, None, bytes(2 * RESERVE_FROM_BYTES), ())])
    segment.put(batch, 0, 0, 0)
    assert held_bytes(path) > segment.end_bytes + SLACK_BYTES

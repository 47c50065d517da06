"""What `rivven log dump` prints: batches and records of segments, and the content of any other file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rivven.errors import RivvenError
from rivven.log import (
    FileContent,
    PartitionFiles,
    SegmentFiles,
    Unreadable,
    read_content,
    read_directory,
    segment_batches,
)
from rivven.system import SystemDisk

from . import show
from .batches import batch_json, batch_lines, records_json, show_records, titles, unreadable_line
from .opening import read_only, root_of, usage
from .text import harmless, when


@dataclass(slots=True)
class Limits:
    """What to show, and how much of it is left."""

    from_offset: int
    left: int
    records: bool
    full: bool


def segments_from(files: PartitionFiles, offset: int) -> list[SegmentFiles]:
    later = [segment.base_offset for segment in files.segments[1:]]
    return [
        segment
        for segment, following in zip(files.segments, [*later, None], strict=True)
        if following is None or following > offset
    ]


def dump_file(path: str, limits: Limits, *, as_json: bool) -> None:
    root, relative = root_of(path)
    disk = read_only(root)
    name = os.path.basename(path)
    if name.endswith((".log", ".damaged", ".clean")):
        base = int(name[:20]) if name[:20].isdigit() and name.endswith(".log") else 0
        segment = SegmentFiles(base, relative, os.stat(path).st_size, sealed=True)
        dump_segments(disk, iter([(None, segment)]), limits, {"directory": root}, as_json=as_json)
        return
    with open(path, "rb"):
        pass  # says so if it may not be read
    content = read_content(disk, relative, _topic_names(disk))
    if content is None:
        usage(f"{harmless(name)} cannot be shown; what can ends in .log, .idx, .tidx, .state, .bloom, .wal, .json")
    _show_content(content, limits, as_json=as_json)


def _topic_names(disk: SystemDisk) -> dict[bytes, str]:
    try:
        return {topic.id_bytes: topic.name for topic in read_directory(disk).topics}
    except (RivvenError, ValueError):
        return {}


def dump_segments(
    disk: SystemDisk,
    parts: Iterator[tuple[str | None, SegmentFiles]],
    limits: Limits,
    head: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    if as_json:
        with show.JsonList("batches", head) as written:
            written.tail["faults"] = _dump_json(disk, parts, limits, written)
        return
    for partition, segment in parts:
        if limits.left <= 0:
            break
        _dump_segment(disk, partition, segment, limits)


def _dump_segment(disk: SystemDisk, partition: str | None, segment: SegmentFiles, limits: Limits) -> None:
    title = f"{partition}  {os.path.basename(segment.path)}" if partition else segment.path
    if segment.length_bytes == 0:
        show.say(show.tint(f"{title}, empty", show.BOLD))
        return
    show.say(show.tint(f"{title}, {segment.length_bytes:,} bytes", show.BOLD))
    show.say(show.tint(titles(), show.DIM))
    for item in segment_batches(disk, segment, from_offset=limits.from_offset):
        if limits.left <= 0:
            break
        if isinstance(item, Unreadable):
            show.say(unreadable_line(item))
            continue
        for line in batch_lines(item):
            show.say(line)
        if not limits.records:
            limits.left -= 1
        elif item.fault is None:
            limits.left -= show_records(item, from_offset=limits.from_offset, count_max=limits.left, full=limits.full)


def _dump_json(
    disk: SystemDisk, parts: Iterator[tuple[str | None, SegmentFiles]], limits: Limits, written: show.JsonList
) -> int:
    faults = 0
    for partition, segment in parts:
        for item in segment_batches(disk, segment, from_offset=limits.from_offset):
            if limits.left <= 0:
                return faults
            line = batch_json(partition, segment.path, item)
            faults += line["fault"] is not None
            if not isinstance(item, Unreadable):
                if limits.records and item.fault is None:
                    line["records"] = records_json(item, from_offset=limits.from_offset, count_max=limits.left)
                limits.left -= len(line["records"]) if "records" in line else not limits.records
            written.add(line)
    return faults


def _show_content(content: FileContent, limits: Limits, *, as_json: bool) -> None:
    head = {
        "file": content.path,
        "kind": content.kind,
        "bytes": content.length_bytes,
        "fault": content.fault,
        "facts": dict(content.facts),
    }
    if as_json:
        with show.JsonList("rows", head) as written:
            for row in content.rows:
                written.add(dict(zip(content.columns, row, strict=True)))
        return
    show.say(show.tint(f"{content.path}, {content.length_bytes:,} bytes", show.BOLD))
    show.say(content.kind)
    if content.fault is not None:
        show.say(show.tint(f"damaged: {content.fault}", show.RED))
    for name, value in content.facts.items():
        show.say(f"  {name.replace('_', ' ')}: {'-' if value is None else value}")
    rows = []
    for row, _ in zip(content.rows, range(limits.left), strict=False):
        rows.append([_cell(name, value) for name, value in zip(content.columns, row, strict=True)])
    if rows:
        numbers = {"position", "offset", "first_offset", "last_offset", "bytes", "group", "partition", "id", "epoch"}
        show.show_table([show.Column(name, right=name in numbers) for name in content.columns], rows)


def _cell(name: str, value: str | int | bool | None) -> str:
    if name == "timestamp_ms" and isinstance(value, int):
        return f"{value} ({when(value)})"
    return "-" if value is None else harmless(str(value))

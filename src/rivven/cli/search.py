"""What `rivven log find` does and prints."""

from __future__ import annotations

from itertools import islice
from typing import Any

import typer

from rivven.errors import OffsetOutOfRange
from rivven.log import KeyLookup, Match, find_offset, find_timestamp
from rivven.record import partition_for_key

from . import show
from .batches import match_json, show_match
from .opening import files_of, keeper, open_directory
from .text import counted, readable, when

NOT_FOUND = 1


def find_key(
    path: str, topic: str, partition: int | None, key: bytes, *, every: bool, full: bool, as_json: bool
) -> None:
    disk, directory = open_directory(path)
    home = partition_for_key(key, directory.topic(topic).partitions)
    files = files_of(disk, directory, topic, partition)
    files.sort(key=lambda each: (each.partition.partition != home, each.partition.partition))
    total_bytes = sum(each.length_bytes for each in files)
    found_in: set[int] = set()
    with keeper(path, directory) as kept, show.Working("searching", total_bytes) as working:
        lookup = KeyLookup(disk, key, kept, working.done)
        matches = (match for each in files for match in lookup.newest_first(each))
        shown = matches if every else islice(matches, 1)
        if as_json:
            with show.JsonList("matches", {}) as written:
                for match in shown:
                    found_in.add(match.partition.partition)
                    written.add(match_json(match))
                written.tail = {"found": bool(found_in), "expected_partition": home, **_counts(lookup)}
        else:
            for match in shown:
                found_in.add(match.partition.partition)
                show_match(match, full=full)
    if not as_json:
        _remark_lookup(readable(key), topic, home, found_in, lookup)
    raise typer.Exit(0 if found_in else NOT_FOUND)


def _counts(lookup: KeyLookup) -> dict[str, Any]:
    return {
        "segments_read": lookup.segments_read,
        "segments_skipped": lookup.segments_skipped,
        "filters_saved": lookup.filters_saved,
        "damage": lookup.damage,
    }


def _remark_lookup(key: str, topic: str, home: int, found_in: set[int], lookup: KeyLookup) -> None:
    if not found_in:
        show.remark(f"no record of {topic} has the key {key}")
    elif strangers := sorted(found_in - {home}):
        listed = ", ".join(map(str, strangers))
        show.remark(
            f"found in partition {listed}, although the key belongs to partition {home}: its producer chose so"
        )
    text = f"read {counted(lookup.segments_read, 'segment')}, {lookup.segments_skipped} skipped by Bloom filters"
    show.remark(text + (f", {counted(lookup.filters_saved, 'filter')} made" if lookup.filters_saved else ""))
    for damage in lookup.damage:
        show.remark(f"could not read {damage}; run `rivven log verify`")


def find_place(
    path: str,
    topic: str,
    partition: int | None,
    offset: int | None,
    timestamp_ms: int | None,
    *,
    full: bool,
    as_json: bool,
) -> None:
    disk, directory = open_directory(path)
    found: list[Match] = []
    outside: list[str] = []
    for each in files_of(disk, directory, topic, partition):
        try:
            match = (
                find_offset(disk, each, offset)
                if offset is not None
                else find_timestamp(disk, each, timestamp_ms or 0)
            )
        except OffsetOutOfRange as error:
            outside.append(str(error))
            continue
        if match is not None:
            found.append(match)
    if as_json:
        show.show_json({"found": bool(found), "matches": [match_json(match) for match in found]})
    for match in found if not as_json else []:
        show_match(match, full=full)
        if offset is not None and match.record.offset != offset:
            show.remark(f"offset {offset} of {match.partition} was removed by compaction; this is the next one")
    if not found:
        for text in outside[:3]:
            show.remark(f"not found: {text}")
        if not outside:
            at = (
                f"at or after offset {offset}" if offset is not None else f"at or after {when(timestamp_ms or 0)} UTC"
            )
            show.remark(f"not found: {topic} has no record {at}")
    raise typer.Exit(0 if found else NOT_FOUND)

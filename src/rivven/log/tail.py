"""The end of a segment: where the next batch goes, what it is given on the way, and when it is indexed.

A broker does this for every batch, so there are two twins: this one, and `_tail.pyx` where it was built.
Invariant: bytes [0, end_bytes) are accounted for; a write that the disk refuses leaves all of it as it was.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from rivven.limits import OFFSET_DELTA_MAX
from rivven.ports import Buffer, File
from rivven.record import NATIVE, PREFIX_BYTES

Columns = tuple["array[int]", "array[int]", "array[int]", "array[int]"]

NO_TIMESTAMP = -1
PLACE = struct.Struct(">qii")
"""How a batch begins: base offset, length, leader epoch. Written over it in one go."""
DELTA, DELTA_AT = struct.Struct(">i"), 23
NEWEST, NEWEST_AT = struct.Struct(">q"), 35
"""Where its header says how many offsets it takes, and its newest timestamp."""


class PureTail:
    __slots__ = (
        "base_offset",
        "columns",
        "dirty",
        "end_bytes",
        "file",
        "first_append_ms",
        "interval_bytes",
        "max_timestamp_ms",
        "next_offset",
        "reserved_bytes",
        "unindexed_bytes",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.dirty = False
        """Whether the file holds bytes that no sync has covered."""
        self.first_append_ms = -1
        """When this process first appended to it; -1 if it has not yet."""
        self.columns: Columns = array("I"), array("I"), array("q"), array("I")
        """Of the offset index and of the time index: keys and values of each. Where a batch begins is noted there."""
        self.reset()

    def reset(self) -> None:
        self.file: File | None = None
        self.unindexed_bytes = 0
        self.reserved_bytes = 0
        """Up to here room has been found for the file, or it is too small to care."""
        self.end_bytes = 0
        self.next_offset = self.base_offset
        self.max_timestamp_ms = NO_TIMESTAMP

    def reserve(self, upto: int) -> None:
        """The next write will reach that far, and nothing is reserved for it; for whoever knows how files grow."""
        raise NotImplementedError

    def takes(self, batch_bytes: int, last_offset: int, now_ms: int, segment_bytes: int, segment_ms: int) -> bool:
        """Whether one more batch may go here: it would not make the segment too long, nor is that too old.
        A batch larger than a segment gets one of its own."""
        if self.end_bytes == 0 or self.first_append_ms < 0:
            self.first_append_ms = now_ms
        return self.end_bytes == 0 or not (
            self.end_bytes + batch_bytes > segment_bytes
            or last_offset - self.base_offset > OFFSET_DELTA_MAX
            or 0 <= segment_ms <= now_ms - self.first_append_ms
        )

    def put(
        self,
        batch: bytearray | memoryview,
        last_offset_delta: int,
        newest_ms: int,
        leader_epoch: int,
        later: bool = False,
    ) -> int:
        """Give a batch the next offset, in place, and write it; returns its position. With `later` the caller has it
        written."""
        batch_bytes, position = len(batch), self.end_bytes
        PLACE.pack_into(batch, 0, self.next_offset, batch_bytes - PREFIX_BYTES, leader_epoch)
        if later:
            self.dirty = True
        else:
            self.write(batch)
        self.took(position, batch_bytes, self.next_offset, last_offset_delta, newest_ms)
        return position

    def put_run(
        self, data: bytearray | memoryview, ends: Sequence[int], leader_epoch: int, *, later: bool = False
    ) -> int:
        """Give batches that stand end to end, each up to one of the `ends`, the next offsets, in place, and write
        them as one; their position. With `later` the caller has them written."""
        at, offset = 0, self.next_offset
        for end in ends:
            PLACE.pack_into(data, at, offset, end - at - PREFIX_BYTES, leader_epoch)
            offset += int(DELTA.unpack_from(data, at + DELTA_AT)[0]) + 1
            at = end
        assert at == len(data), "nothing but the batches"
        position = self.end_bytes
        if later:
            self.dirty = True
        else:
            self._write_run(data)
        at = 0
        for end in ends:
            (delta,), (newest_ms,) = DELTA.unpack_from(data, at + DELTA_AT), NEWEST.unpack_from(data, at + NEWEST_AT)
            self.took(position + at, end - at, self.next_offset, delta, newest_ms)
            at = end
        return position

    def _write_run(self, data: Buffer) -> None:
        try:
            self.write(data)
        except OSError:
            # Whole batches of it may be there, and a loss of power could bring them back: unlike the part of one
            # batch, they would be believed.
            assert self.file is not None
            self.file.truncate(self.end_bytes)
            self.file.sync()
            raise

    def write(self, batch: Buffer) -> int:
        """Write one batch at the end as it is; returns its position. `took` must follow.

        If the disk refuses, nothing of the batch remains and the OSError goes on to the caller.
        """
        assert self.file is not None
        position = self.end_bytes
        if position + len(batch) > self.reserved_bytes:
            self.reserve(position + len(batch))
        try:
            self.file.write(batch, position)
        except OSError:
            with suppress(OSError):  # recovery cuts the rest if even this fails
                self.file.truncate(position)
            raise
        self.dirty = True
        return position

    def took(self, position: int, batch_bytes: int, base_offset: int, last_offset_delta: int, newest_ms: int) -> None:
        """A batch stands at `position`: count it and, when an entry is due, index it."""
        if self.unindexed_bytes >= self.interval_bytes:
            relative_offset = base_offset - self.base_offset
            for column, value in zip(
                self.columns, (relative_offset, position, self.max_timestamp_ms, relative_offset), strict=True
            ):
                column.append(value)
            self.unindexed_bytes = 0
        self.unindexed_bytes += batch_bytes
        self.end_bytes = position + batch_bytes
        self.next_offset = base_offset + last_offset_delta + 1
        if newest_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = newest_ms


Tail = PureTail

if not TYPE_CHECKING and NATIVE:
    with suppress(ImportError):
        from ._tail import Tail  # noqa: F401

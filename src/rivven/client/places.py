"""Batches out of the server's own files, where client and server share a machine.

A server that is asked by `FindBatches` tells where many bytes stand instead of sending them. What is read there is
believed only if it is the very file that was meant and all of it is as batches must be: whole, true to their CRCs, at
the offsets that are due. If anything is different, `Missed` is raised, and the server is asked to send them: it alone
can say what is wrong.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from rivven.errors import Malformed
from rivven.record import HEADER_BYTES, fit, parse_header, scan
from rivven.wire import ANSWER_BYTES_MAX, Piece
from rivven.wire import responses as tell

from .inbox import Bounds, Visible
from .shell import is_this_machine

FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Missed(Exception):
    """What stands there is not what was meant, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a partition has what was asked for, from `offset` on."""

    part: tell.PartitionFound
    offset: int

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.part.log_start_offset, self.part.high_watermark, self.part.last_stable_offset)

    def pieces(self, bytes_max: int) -> Iterator[tuple[Piece, int]]:
        """Batches that have been checked, and the offset behind them; at most so many bytes at a time, except for a
        batch that is longer. Waits for the disk."""
        visible, due, sent = Visible(self.part.aborted), self.offset, self.part.batches
        assert not isinstance(sent, tuple), "only what is sent comes in pieces"
        if sent:  # there was not enough of it to tell a place
            due = _checked(sent, due, dense=False, first=True)
            yield visible.of(sent)
        for place in self.part.places:
            try:
                file = _open(place)
            except (OSError, ValueError) as error:  # the second for a path that cannot be one
                raise Missed from error
            try:
                for piece in _pieces_at(file, place, bytes_max):
                    due = _checked(piece, due, dense=place.dense, first=due == self.offset)
                    yield visible.of(piece)
            finally:
                os.close(file)


def _open(place: tell.Place) -> int:
    if not is_this_machine(place.machine):
        raise Missed
    file = os.open(place.path, FLAGS)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != (place.device, place.inode):
        os.close(file)
        raise Missed
    return file


def _pieces_at(file: int, place: tell.Place, bytes_max: int) -> Iterator[Piece]:
    position, end = place.position, place.position + place.length
    while position < end:
        data = _read(file, min(max(bytes_max, HEADER_BYTES), end - position), position)
        try:
            whole = fit(data, 0, bytes_max) or parse_header(data).batch_bytes
        except Malformed as error:
            raise Missed from error
        if whole > len(data):  # a batch that is longer than we like
            if whole > min(end - position, ANSWER_BYTES_MAX):
                raise Missed
            data = _read(file, whole, position)
        yield memoryview(data)[:whole] if whole < len(data) else data
        position += whole


def _read(file: int, length_bytes: int, position: int) -> bytes:
    try:
        data = os.pread(file, length_bytes, position)
    except (OSError, OverflowError) as error:
        raise Missed from error
    if len(data) < length_bytes:
        raise Missed
    return data


def _checked(data: Piece, due: int, *, dense: bool, first: bool) -> int:
    """The offset behind these batches, if they are all right and hold the offset that is due. `dense` ones begin with
    it, all but the `first`."""
    good_end, following, _ = scan(data, 0, len(data), verify=True, dense=dense)
    if not data or good_end < len(data):
        raise Missed
    header = parse_header(data)
    if header.last_offset < due or (dense and (header.base_offset > due or (header.base_offset < due and not first))):
        raise Missed
    return following

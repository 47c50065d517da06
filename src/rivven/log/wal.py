"""The write-ahead log of a node: groups of entries in zero-filled files that are used again and again.

A file is a 4 KiB header (magic, sequence, length, CRC) and groups one after the other. A group is 40 bytes
(magic, CRC-32C of all that follows, body length, entries, file sequence, group number, last synced group) and its
entries: 28 bytes (kind, payload length, topic id, partition) and the payload. Because the CRC covers the file's
sequence and the group's number, what an earlier life of the file left behind never reads as a group.

Group n + 1 is written only after group n is done. So a group that fails its CRC at the end of the log was never
acknowledged; one that is followed by a good group which knew it synced is damage, and is reported.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import msgspec

from rivven.limits import MIB, WAL_HEADER_BYTES
from rivven.ports import Buffer, Completion, Disk, File
from rivven.record import crc32c

from .document import read_whole, seal, unseal, write_whole

FILE = struct.Struct("<8sQQI")
FILE_MAGIC = b"RIVVENW1"
GROUP = struct.Struct("<4sIIIQQQ")
GROUP_MAGIC = b"RVWG"
GROUP_CRC_FROM = 8
ENTRY = struct.Struct("<BxxxI16sI")
ENTRY_BYTES = ENTRY.size
FILL = bytes(1 * MIB)
JOIN_BYTES = 16 * 1024
"""Entries smaller than this on average are joined into one buffer; larger ones are written as they are."""


class Kind(IntEnum):
    APPEND = 1
    TRUNCATE = 2
    START = 3


class Entry(NamedTuple):
    kind: Kind
    topic_id: bytes
    partition: int
    payload: memoryview


OFFSET = struct.Struct("<q")


def read_offset(entry: Entry) -> int:
    """The offset that a TRUNCATE or START entry carries."""
    offset: int = OFFSET.unpack(entry.payload)[0]
    return offset


@dataclass(slots=True)
class WalFile:
    file: File
    sequence: int
    length_bytes: int
    end: int = WAL_HEADER_BYTES


@dataclass(slots=True)
class WalStats:
    """Counts of what succeeded."""

    groups: int = 0
    writes: int = 0
    bytes_written: int = 0
    syncs: int = 0
    sync_us_total: int = 0
    sync_us_max: int = 0
    rotations: int = 0


class Wal:
    """The files and where the next group goes. It writes nothing itself but headers and zeros."""

    def __init__(self, disk: Disk, directory: str, *, file_bytes: int, files_max: int) -> None:
        self._disk = disk
        self.directory = directory
        self._file_bytes = file_bytes
        self._files_max = files_max
        self._current: WalFile | None = None
        self._spares: list[WalFile] = []
        self.used: list[WalFile] = []
        """Full, and needed until a checkpoint covers what they hold."""
        self._free: list[WalFile] = []
        self._preparing: set[int] = set()
        self._next_sequence = 1
        self.group_number = 0
        """The number of the last group that was framed."""
        self.synced_number = 0
        self.stats = WalStats()

    def adopt(self, files: list[WalFile], group_number: int, sequence: int) -> None:
        """Take over the files that recovery found, all of them free for use again."""
        self._free = files
        self.group_number = self.synced_number = group_number
        self._next_sequence = sequence + 1

    # Placing groups

    def wrote(self, writes: int, group_bytes: int, completion: Completion) -> None:
        """Account for the group that was framed last, now that it is written."""
        stats = self.stats
        stats.groups += 1
        stats.writes += writes
        stats.bytes_written += group_bytes
        if completion.synced:
            stats.syncs += 1
            stats.sync_us_total += completion.elapsed_us
            stats.sync_us_max = max(stats.sync_us_max, completion.elapsed_us)
            self.synced_number = self.group_number

    def has_room(self, group_bytes: int) -> bool:
        return self._fits(self._current, group_bytes) or any(self._fits(f, group_bytes) for f in self._spares)

    @staticmethod
    def _fits(file: WalFile | None, group_bytes: int) -> bool:
        return file is not None and file.end + group_bytes <= file.length_bytes

    def sync_before_leaving(self, group_bytes: int) -> None:
        """Sync the present file if a group of this size will leave it, and unsynced groups in it, behind: the next
        sync is of another file. This waits, once for a file, and under `every_n_writes` alone."""
        if self._current is None or self._fits(self._current, group_bytes) or self.synced_number == self.group_number:
            return
        self._current.file.sync()
        self.stats.syncs += 1
        self.synced_number = self.group_number

    def place(self, group_bytes: int) -> tuple[File, int]:
        """The file and position for a group; moves on to a spare file when this one is full."""
        while not self._fits(self._current, group_bytes):
            assert self._spares, "has_room said so"
            if self._current is not None:
                self.used.append(self._current)
                self.stats.rotations += 1
            self._current = self._spares.pop(0)
        current = self._current
        assert current is not None
        position = current.end
        current.end += group_bytes
        return current.file, position

    def frame(self, parts: Sequence[Buffer], count: int) -> tuple[File, int, list[Buffer]]:
        """Number a group, and return where it goes and the buffers to write there."""
        body_bytes = sum(map(len, parts))
        file, position = self.place(GROUP.size + body_bytes)
        assert self._current is not None
        self.group_number += 1
        rest = GROUP.pack(
            GROUP_MAGIC, 0, body_bytes, count, self._current.sequence, self.group_number, self.synced_number
        )[GROUP_CRC_FROM:]
        if body_bytes <= JOIN_BYTES * len(parts):
            body = b"".join((rest, *parts))
            head = GROUP_MAGIC + struct.pack("<I", crc32c(body))
            return file, position, [head, body]
        crc = crc32c(rest)
        for part in parts:
            crc = crc32c(part, crc)
        return file, position, [GROUP_MAGIC + struct.pack("<I", crc) + rest, *parts]

    def unframe(self, position: int) -> None:
        """Take back the last group, which was never wholly written: the next one has its number and its place."""
        assert self._current is not None
        self._current.end = position
        self.group_number -= 1

    # Files

    @property
    def needs_spare(self) -> bool:
        return not self._spares and self.files_in_use < self._files_max

    def needs_spare_for(self, lacking_bytes: int) -> bool:
        """Whether to make one more: there is none, or a group waits that is too large for all there are."""
        return self.needs_spare or (lacking_bytes > 0 and self.files_in_use < self._files_max)

    @property
    def files_in_use(self) -> int:
        return len(self.used) + (self._current is not None)

    @property
    def current_sequence(self) -> int:
        """No group to come goes into a file before this one. Until the first group is placed that says nothing:
        spares have numbers already, and will be written."""
        return self._current.sequence if self._current is not None else 0

    @property
    def needed_from(self) -> int:
        """Whatever is written from now on is in a file of this sequence or a later one. A file that is still being
        made ready counts: one that was begun after it may be in use before it."""
        ready = [file.sequence for file in (self._current, *self._spares) if file is not None]
        return min([*ready, *self._preparing], default=self._next_sequence)

    def prepare(self, file_bytes: int | None = None) -> Prepare:
        """A job that makes one more spare, from a free file that is long enough or a new one."""
        wanted = file_bytes or self._file_bytes
        sequence = self._next_sequence
        self._next_sequence += 1
        self._preparing.add(sequence)
        free = next((file for file in self._free if file.length_bytes >= wanted), None)
        if free is not None:
            self._free.remove(free)
        return Prepare(self._disk, self.directory, sequence, wanted, free)

    def prepared(self, job: Prepare) -> None:
        assert job.made is not None
        self._preparing.discard(job.sequence)
        self._spares.append(job.made)

    def unprepared(self, job: Prepare) -> None:
        """It did not come about; a file that was to be used again still may be."""
        self._preparing.discard(job.sequence)
        if job.free is not None:
            self._free.append(job.free)

    def release(self, before_sequence: int) -> list[WalFile]:
        """A checkpoint covers every file before this one. One is kept for reuse; the others are returned, to be
        removed."""
        freed = [file for file in self.used if file.sequence < before_sequence]
        self.used = [file for file in self.used if file.sequence >= before_sequence]
        self._free.extend(file for file in freed if file.length_bytes == self._file_bytes)
        surplus = [file for file in freed if file.length_bytes != self._file_bytes] + self._free[1:]
        del self._free[1:]
        return surplus

    def close(self) -> None:
        for file in [*self.used, *self._spares, *self._free, *filter(None, [self._current])]:
            file.file.close()


@dataclass(slots=True)
class Prepare:
    """Make a file ready: zeros over its length, so that later syncs commit no metadata, and a synced header."""

    disk: Disk
    directory: str
    sequence: int
    file_bytes: int
    free: WalFile | None
    made: WalFile | None = field(default=None)

    def run(self) -> None:
        if self.free is not None:
            made = self._headed(self.free.file, self.free.length_bytes)
            self._note(made)
            self.made = made
            return
        path = f"{self.directory}/{self.sequence:020d}.wal"
        file = self.disk.open(path, create=True)
        try:
            for position in range(0, self.file_bytes, len(FILL)):
                file.write(memoryview(FILL)[: min(len(FILL), self.file_bytes - position)], position)
            made = self._headed(file, self.file_bytes)
            # Before there is a note: of two names that wait for a sync, a power loss may keep the note's alone.
            self.disk.sync_dir(self.directory)
            self._note(made)
        except OSError:
            file.close()
            for name in (note_path(path) + ".tmp", note_path(path)):
                with suppress(OSError):
                    self.disk.remove(name)
            self.disk.remove(path)
            raise
        self.made = made

    def _headed(self, file: File, length_bytes: int) -> WalFile:
        header = FILE.pack(FILE_MAGIC, self.sequence, length_bytes, 0)[:-4]
        file.write(header + struct.pack("<I", crc32c(header)), 0)
        file.sync()
        return WalFile(file, self.sequence, length_bytes)

    def _note(self, made: WalFile) -> None:
        """Write down, beside the file, that it is there: should it be lost, its loss shall be known."""
        write_whole(self.disk, note_path(made.file.path), seal(Made(made.sequence, made.length_bytes)))
        self.disk.sync_dir(self.directory)


class Made(msgspec.Struct, frozen=True):
    """What is written down of a file that is ready."""

    sequence: int
    length_bytes: int


def note_path(path: str) -> str:
    return path.removesuffix(".wal") + ".made"


def remove_file(disk: Disk, file: WalFile) -> None:
    """The note first: a file without one is used again, a note without its file may tell of a loss."""
    file.file.close()
    with suppress(FileNotFoundError):
        disk.remove(note_path(file.file.path))
    disk.remove(file.file.path)


# Reading it back


def lost_files(disk: Disk, directory: str, files: list[WalFile], needed_from: int) -> list[str]:
    """What became of files that were ready, may hold groups that nothing else holds, and are not what they were."""
    found = {file.file.path: file for file in files}
    lost = []
    for name in disk.names(directory):
        if not name.endswith(".made"):
            continue
        made = unseal(read_whole(disk, f"{directory}/{name}"), Made)
        if made is None or made.sequence < needed_from:
            continue
        path = f"{directory}/{name.removesuffix('.made')}.wal"
        file = found.get(path)
        if file is None:
            lost.append(f"{path} is missing: what was in it alone is lost")
        elif file.sequence < made.sequence:
            lost.append(f"{path} cannot be read: what was in it alone is lost")
        elif file.length_bytes < made.length_bytes:
            left, had = file.length_bytes, made.length_bytes
            lost.append(f"{path}: {left} bytes are left of the {had} that it was made with")
    return lost


@dataclass(slots=True)
class WalContent:
    """What the files held: whole groups in order, where the log was damaged, and the files themselves."""

    groups: list[tuple[int, memoryview, int]] = field(default_factory=list)
    """Group number, body, number of entries."""
    damage: list[str] = field(default_factory=list)
    files: list[WalFile] = field(default_factory=list)
    torn: str | None = None
    last_group: int | None = None
    last_sequence: int = 0

    def entries(self) -> Iterator[Entry]:
        for _, body, count in self.groups:
            yield from _entries(body, count)


def read_wal(disk: Disk, directory: str, after_group: int | None, *, headers_only: bool = False) -> WalContent:
    """Read every file in sequence. Groups up to `after_group` are covered by a checkpoint and are left out;
    without a checkpoint the first that is found begins the log. After a clean end the headers are enough."""
    content = WalContent(last_group=after_group)
    datas: list[tuple[WalFile, memoryview]] = []
    for name in disk.names(directory):
        if name.endswith(".wal"):
            file = disk.open(f"{directory}/{name}")
            length_bytes = file.length()
            data = memoryview(file.read(WAL_HEADER_BYTES if headers_only else length_bytes, 0))
            found = WalFile(file, _file_sequence(data), length_bytes)
            content.files.append(found)
            # Its name counts too: a file that was never finished has no sequence, but must not be made over.
            named = int(name[:-4]) if name[:-4].isdecimal() else 0
            content.last_sequence = max(content.last_sequence, found.sequence, named)
            if found.sequence:
                datas.append((found, data))
    found_groups = [group for wal_file, data in datas for group in _groups_in(wal_file, data, content)]
    # In the order of their numbers: two files may have been made ready in another order than they were used in.
    found_groups.sort(key=lambda group: group[0])
    proven = max((synced for _, synced, _, _, _ in found_groups), default=0)
    for number, _, count, body, place in found_groups:
        last = content.last_group
        if last is not None and number <= last:
            continue
        if last is not None and number > last + 1:
            if proven <= last:
                break  # not damage: under `every_n_writes` a power loss may take the one and leave the other
            content.damage.append(f"{place}: group(s) {last + 1} to {number - 1}, due before, are unreadable")
        content.groups.append((number, body, count))
        content.last_group = number
    if found_groups:
        # What was left out counts too: its number must not be given out again while its file may come back.
        content.last_group = max(content.last_group or 0, found_groups[-1][0])
    return content


def _file_header(data: memoryview) -> tuple[int, int] | None:
    """The sequence and the length in a file's header, if it is a good one."""
    if len(data) < WAL_HEADER_BYTES:
        return None
    magic, sequence, made_bytes, crc = FILE.unpack_from(data)
    return (sequence, made_bytes) if magic == FILE_MAGIC and crc == crc32c(data[: FILE.size - 4]) else None


def _file_sequence(data: memoryview) -> int:
    """The sequence in a file's header or, if that is damaged, in its first group; 0 for a file never finished."""
    if (header := _file_header(data)) is not None:
        return header[0]
    if len(data) < WAL_HEADER_BYTES + GROUP.size:
        return 0
    claimed = int(GROUP.unpack_from(data, WAL_HEADER_BYTES)[4])
    return claimed if _group_at(data, WAL_HEADER_BYTES, claimed) is not None else 0


def _groups_in(
    file: WalFile, data: memoryview, content: WalContent
) -> Iterator[tuple[int, int, int, memoryview, str]]:
    """(number, last synced, entries, body, place) of every good group in a file, also beyond a bad one."""
    position = WAL_HEADER_BYTES
    while found := _group_at(data, position, file.sequence) or _group_after(data, position, file.sequence):
        start, number, synced, count, position = found
        yield number, synced, count, data[start + GROUP.size : position], f"{file.file.path} at byte {start}"
    if position + GROUP.size <= len(data) and GROUP.unpack_from(data, position)[4] == file.sequence:
        content.torn = f"{file.file.path}: the group at byte {position} was not wholly written"


def _group_at(data: memoryview, position: int, sequence: int) -> tuple[int, int, int, int, int] | None:
    """(start, number, last synced, entries, end) of the good group at `position`."""
    if position + GROUP.size > len(data):
        return None
    magic, crc, body_bytes, count, of_file, number, durable = GROUP.unpack_from(data, position)
    end = position + GROUP.size + body_bytes
    if magic != GROUP_MAGIC or of_file != sequence or end > len(data):
        return None
    if crc32c(data[position + GROUP_CRC_FROM : end]) != crc:
        return None
    return position, number, durable, count, end


def _group_after(data: memoryview, position: int, sequence: int) -> tuple[int, int, int, int, int] | None:
    """The first good group beyond a bad one."""
    whole = data.obj
    assert isinstance(whole, bytes)
    place = position
    while (place := whole.find(GROUP_MAGIC, place + 1)) >= 0:
        if (found := _group_at(data, place, sequence)) is not None:
            return found
    return None


def _entries(body: memoryview, count: int) -> Iterator[Entry]:
    position = 0
    for _ in range(count):
        kind, payload_bytes, topic_id, partition = ENTRY.unpack_from(body, position)
        start = position + ENTRY.size
        position = start + payload_bytes
        yield Entry(Kind(kind), topic_id, partition, body[start:position])

"""One segment: a file of record batches with an offset index and a time index beside it.

Batches are appended at the end and never changed. The segment that takes appends is the active one; a sealed one
is complete, and opens its file and loads its indexes only when somebody asks for them.
Invariant: bytes [0, end_bytes) are whole batches whose offsets grow and lie in [base_offset, next_offset).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from rivven.errors import CorruptLog, Malformed
from rivven.limits import KIB, LATER_BYTES_MIN, MIB, PRELOAD_BYTES_MAX, SHORT_LOG_BYTES, SHORT_LOG_ENTRIES
from rivven.model import TopicPartition
from rivven.ports import Disk, File, Whereabouts
from rivven.record import HEADER_BYTES, BatchHeader, fit, parse_header, scan, seek, walk

from .batches import CHUNK_BYTES, Batches, Offsets
from .document import write_whole
from .index import OFFSETS, TIMES, Flush, Index
from .preload import NotCached, Piece
from .tail import NO_TIMESTAMP, Tail

logger = logging.getLogger(__name__)

RESERVE_FROM_BYTES = 1 * MIB
RESERVE_BYTES_MIN = 4 * KIB
RESERVE_BYTES_MAX = 16 * MIB
GIVE_BACK_FROM_BYTES = LATER_BYTES_MIN
"""Nothing is reserved behind the end of a file that is shorter."""


@dataclass(slots=True)
class Recovered:
    """What checking a segment's tail found."""

    crcs: dict[int, int] = field(default_factory=dict)
    """CRC by base offset, of the batches that were checked."""
    cut_bytes: int = 0
    cut_reason: str = ""
    damage: list[tuple[int, int, int, str]] = field(default_factory=list)
    """First offset, last offset, position and reason of acknowledged batches that no longer read back."""


class Place(NamedTuple):
    """Whole batches in a file, for whoever reads it by himself. If it is `dense`, each begins where the one before
    ends."""

    where: Whereabouts
    position: int
    length_bytes: int
    next_offset: int
    dense: bool


def segment_path(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020d}.log"


class Segment(Tail):
    __slots__ = (
        "_directory",
        "_disk",
        "_offsets",
        "_partition",
        "_times",
        "held_bytes",
        "path",
        "rebuilt",
        "sealed",
        "stale",
        "until",
    )

    def __init__(
        self, disk: Disk, directory: str, partition: TopicPartition, base_offset: int, interval_bytes: int
    ) -> None:
        super().__init__(base_offset, interval_bytes)
        self._disk = disk
        self._directory = directory
        self._partition = partition
        self.path = segment_path(directory, base_offset)
        self.sealed = False
        self.until: int | None = None
        """Where the next segment begins, once there is one."""
        self.stale = False
        """Whether the index files lag behind the indexes in memory though nothing was written: they were damaged."""
        self.rebuilt: str | None = None
        """Why the indexes had to be made again, if they had to."""
        self._offsets, self._times = Index(OFFSETS), Index(TIMES)
        self._forget()

    def _forget(self) -> None:
        self.reset()
        self.held_bytes = 0
        """Up to here the file system has set room aside."""
        self._start_indexes_anew()

    def _start_indexes_anew(self) -> None:
        """Whatever their files hold will be written over."""
        offsets, times = Index(OFFSETS), Index(TIMES)
        offsets.saved, times.saved = self._offsets.saved, self._times.saved
        self._use(offsets, times)

    def _use(self, offsets: Index, times: Index) -> None:
        self._offsets, self._times = offsets, times
        self.columns = offsets.keys, offsets.values, times.keys, times.values

    # Opening

    @property
    def loaded(self) -> bool:
        return self.file is not None

    def create(self) -> None:
        self.file = self._disk.open(self.path, create=True)
        self.file.truncate(0)
        self.dirty = True

    def load(self, *, dense: bool = False) -> None:
        """Open the file and its indexes; an index that fails its checks is made again from the log."""
        if self.file is not None:
            return
        self.file = self._disk.open(self.path)
        length_bytes = self.file.length()
        problem = self._load_indexes() or self._resume(length_bytes, dense=dense)
        if problem is not None:
            self._rebuild(length_bytes, problem, dense=dense)

    def pieces_to_open(self, bytes_max: int) -> tuple[Piece, ...]:
        """What `load` reads, and then most likely a reader, who comes from the segment before."""
        first = Piece(self.path, 0, max(HEADER_BYTES, bytes_max))
        return Piece(self.side(".idx"), 0, PRELOAD_BYTES_MAX), Piece(self.side(".tidx"), 0, PRELOAD_BYTES_MAX), first

    def _load_indexes(self) -> str | None:
        offsets, offsets_bad = Index.load(self._disk, self.side(".idx"), OFFSETS)
        times, times_bad = Index.load(self._disk, self.side(".tidx"), TIMES)
        self._use(offsets, times)
        return offsets_bad or times_bad

    def recover(self, trusted_offset: int, until: int | None = None, *, dense: bool = False) -> Recovered:
        """Open the file and check every batch that reaches beyond `trusted_offset`, up to the file's end or to the
        offset that the next segment begins at: a batch from there on is of a time before a truncation.

        What is bad beyond that offset was never acknowledged (or is in the write-ahead log) and is cut off. What
        is bad below it is damage: a batch whose header still makes sense stays, and reading it raises; anything
        else is put aside in a `.damaged` file.
        """
        self.file = self._disk.open(self.path)
        length_bytes = self.file.length()
        problem = self._load_indexes()
        outcome = Recovered()
        keep = self._offsets.at_or_below(trusted_offset - self.base_offset)
        self._offsets.cut(keep[1] if keep is not None else -1)
        if (mismatch := self._resume(keep[1] if keep is not None else 0)) is not None:
            problem = problem or mismatch
            self._start_indexes_anew()
            self._resume(0)
        while True:
            bad = self._check(length_bytes, outcome, until, dense=dense)
            if bad is None or not self._step_over(bad, length_bytes, trusted_offset, outcome, dense=dense):
                break
        if self.end_bytes < length_bytes:
            self._cut(length_bytes, trusted_offset, outcome, bad or "")
        if problem is not None and (problem != "missing" or self._is_index_due(trusted_offset)):
            self.rebuilt = problem
            self.stale = True
            for index in (self._offsets, self._times):
                index.distrust_file()
        return outcome

    def _is_index_due(self, trusted_offset: int) -> bool:
        """Whether what is trusted is more than a short segment has."""
        entry = self._offsets.at_or_below(trusted_offset - self.base_offset)
        if entry is None:
            return False
        entries = bisect_right(self._offsets.values, entry[1])
        return entry[1] >= SHORT_LOG_BYTES or entries >= SHORT_LOG_ENTRIES

    def write_again(self, offset: int) -> None:
        """Write what stands from `offset` on once more, in its place.

        A sync that failed in an earlier life may have left pages that read well, count as written, and will never
        reach the medium. Only a new write makes the next sync take them along.
        """
        file = self._require_file()
        position = self.position_of(offset)
        file.truncate(self.end_bytes)
        while position is not None and position < self.end_bytes:
            data = file.read(min(CHUNK_BYTES, self.end_bytes - position), position)
            file.write(data, position)
            position += len(data)
        self.dirty = True

    def _check(self, length_bytes: int, outcome: Recovered, until: int | None, *, dense: bool) -> str | None:
        file = self._require_file()
        offsets = Offsets.DENSE if dense else Offsets.GROWING
        batches = Batches(file, self.end_bytes, length_bytes, offset_min=self.next_offset, offsets=offsets)
        for position, header, _ in batches:
            if until is not None and header.last_offset >= until:
                return f"offset {header.last_offset} is beyond the next segment's begin"
            outcome.crcs[header.base_offset] = header.crc
            self.note(header, position)
        return batches.bad

    def _step_over(
        self, bad: str, length_bytes: int, trusted_offset: int, outcome: Recovered, *, dense: bool
    ) -> bool:
        """Keep a damaged batch in its place if it was trusted and its header tells where the next begins."""
        try:
            header = parse_header(self._require_file().read(HEADER_BYTES, self.end_bytes))
        except Malformed:
            return False
        if dense:
            header = header._replace(base_offset=self.next_offset)  # whatever it says
        end = self.end_bytes + header.batch_bytes
        if not self.next_offset <= header.base_offset <= header.last_offset < trusted_offset or end > length_bytes:
            return False
        outcome.damage.append((header.base_offset, header.last_offset, self.end_bytes, bad))
        self.note(header, self.end_bytes)
        return True

    def _cut(self, length_bytes: int, trusted_offset: int, outcome: Recovered, bad: str) -> None:
        file = self._require_file()
        if self.next_offset < trusted_offset:
            outcome.damage.append((self.next_offset, trusted_offset - 1, self.end_bytes, bad))
            tail = file.read(length_bytes - self.end_bytes, self.end_bytes)
            write_whole(self._disk, self.path + ".damaged", tail)
        outcome.cut_bytes = length_bytes - self.end_bytes
        outcome.cut_reason = bad
        file.truncate(self.end_bytes)
        self.dirty = True

    def _resume(self, trusted: int, *, dense: bool = False) -> str | None:
        """Walk from the last index entry to `trusted`; says what is wrong if the entry or the walk is."""
        last = self._offsets.last()
        key, position = last if last is not None else (0, 0)
        self.end_bytes = position
        self.next_offset = self.base_offset + key
        self.unindexed_bytes = 0
        self._times.cut(key)
        if len(self._times) != len(self._offsets):
            return "the indexes disagree"
        before = self._times.last()
        self.max_timestamp_ms = before[0] if before is not None else NO_TIMESTAMP
        if last is not None and not self._begins_at(position, self.next_offset):
            return "it points to another batch, or to none"
        self._account(position, trusted, dense=dense)
        return None

    def _account(self, position: int, end: int, *, dense: bool) -> None:
        """Note the batches between the two. In a dense log it does not matter what offset one says, as long as their
        number brings us to the next segment; it does when it is read."""
        file = self._require_file()
        counted = dense and self.next_offset + self._records_between(position, end) == self.until
        offsets = Offsets.ANY if counted else Offsets.GROWING
        batches = Batches(file, position, end, verify=False, offset_min=self.next_offset, offsets=offsets)
        for at, header, _ in batches:
            self.note(header._replace(base_offset=self.next_offset) if counted else header, at)

    def _begins_at(self, position: int, offset: int) -> bool:
        """Whether a batch with this base offset stands there; after a crash an index may be of other content."""
        try:
            return parse_header(self._require_file().read(HEADER_BYTES, position)).base_offset == offset
        except Malformed:
            return False

    def _rebuild(self, trusted: int, problem: str, *, dense: bool) -> None:
        file = self._require_file()
        self._forget()
        self.file = file
        self._account(0, trusted, dense=dense)
        if len(self._offsets) or problem != "missing":  # an index without entries has no file
            logger.warning("%s: index rebuilt from the log (%s)", self.path, problem)
            self.rebuilt = problem
            self.stale = True

    def unload(self) -> None:
        """Give up the open file and the indexes; `load` brings them back. For sealed segments."""
        assert self.sealed, "the active segment stays open"
        assert not self.dirty, "unsynced bytes need their file"
        end_bytes, next_offset, newest = self.end_bytes, self.next_offset, self.max_timestamp_ms
        self._forget()
        self.end_bytes, self.next_offset, self.max_timestamp_ms = end_bytes, next_offset, newest

    def side(self, suffix: str) -> str:
        return self.path[: -len(".log")] + suffix

    def _require_file(self) -> File:
        if self.file is None:
            self.load()
            assert self.file is not None
        return self.file

    # Writing

    def reserve(self, upto: int) -> None:
        """Room that was found for many pages at once makes each write cheaper by a quarter. Files that are small, of
        which there may be thousands, do without; a large one is never reserved more than it has."""
        if upto < RESERVE_FROM_BYTES:
            self.reserved_bytes = RESERVE_FROM_BYTES
            return
        self.room_for(upto - self.end_bytes)

    def room_for(self, length_bytes: int) -> bool:
        """Whether a write of this length at the end will find its room set aside; that is done now if need be."""
        upto = self.end_bytes + length_bytes
        if upto > self.held_bytes:
            self.reserved_bytes = upto + max(RESERVE_BYTES_MIN, min(upto, RESERVE_BYTES_MAX))
            if self._require_file().reserve(self.reserved_bytes - self.end_bytes, self.end_bytes):
                self.held_bytes = self.reserved_bytes
        return upto <= self.held_bytes

    def note(self, header: BatchHeader, position: int) -> None:
        """Take a batch that stands at `position` into the account."""
        self.took(position, header.batch_bytes, header.base_offset, header.last_offset_delta, header.max_timestamp_ms)

    def seal(self, until: int) -> None:
        """No more appends; the next segment begins at `until`."""
        self.sealed = True
        self.until = until
        self.dirty = self.dirty or self._offsets.lacks_file  # from now on it has indexes in files
        is_held = self.held_bytes > self.end_bytes or self.end_bytes >= GIVE_BACK_FROM_BYTES  # an earlier life's, too
        if is_held and self.file is not None:
            with suppress(OSError):  # a little room that nobody gets is no reason to fail
                self.file.truncate(self.end_bytes)

    @property
    def is_short(self) -> bool:
        """Whether it takes appends and is sooner read than its indexes, of which there is no file yet. A node may
        have thousands of such segments, and a file takes longer to make than to fill."""
        saved = self._offsets.saved or self._times.saved
        few = self.end_bytes < SHORT_LOG_BYTES and len(self._offsets) < SHORT_LOG_ENTRIES
        return few and not saved and not self.sealed

    def index_flushes(self) -> list[Flush]:
        return [self._offsets.flush(self.side(".idx")), self._times.flush(self.side(".tidx"))]

    def open_file(self) -> File:
        return self._require_file()

    def truncate(self, offset: int) -> None:
        """Drop every batch that holds an offset at or after `offset`; appends go on from there."""
        file = self._require_file()
        position = self.position_of(offset)
        self.sealed = False
        self.until = None
        self.drop_side_files(keep_indexes=position != 0)
        if position is None:
            return
        file.truncate(position)
        self.dirty = True
        self.reserved_bytes = self.held_bytes = 0
        self._offsets.cut(position - 1)
        problem = self._resume(position)
        assert problem is None, problem

    def end_below(self, offset: int) -> int:
        """Where the segment would end after `truncate(offset)`."""
        file = self._require_file()
        entry = self._offsets.below(offset - self.base_offset)
        while True:
            end = None
            start = entry[1] if entry is not None else 0
            for _, header, _ in Batches(file, start, self.end_bytes, verify=False, offset_min=self.base_offset):
                if header.last_offset >= offset:
                    break
                end = header.next_offset
            if end is not None or entry is None:
                return self.base_offset if end is None else end
            entry = self._offsets.below(entry[0])  # the batch at that entry reaches `offset`: look before it

    def drop_side_files(self, *, keep_indexes: bool = False) -> None:
        for suffix in (".bloom",) if keep_indexes else (".bloom", ".idx", ".tidx"):
            with suppress(FileNotFoundError):
                self._disk.remove(self.side(suffix))

    def close(self) -> None:
        """Give the file up for good."""
        if self.file is not None:
            self.file.close()

    def remove(self) -> None:
        """Delete the files. Whoever still reads holds the file open, and it goes when they are done."""
        self.drop_side_files()
        with suppress(FileNotFoundError):
            self._disk.remove(self.path)
        self._forget()

    # Reading

    def position_of(self, offset: int) -> int | None:
        """Where the first batch stands whose last offset is at or after `offset`; None if there is none."""
        found = self._locate(offset)
        return None if found is None else found[0]

    def _locate(self, offset: int, *, cached: bool = False) -> tuple[int, bytes, int] | None:
        """As `position_of`, with the bytes that were read on the way and the batch's place in them."""
        file = self._require_file()
        read = file.read_cached if cached else file.read
        entry = self._offsets.at_or_below(offset - self.base_offset)
        position = entry[1] if entry is not None else 0
        while position < self.end_bytes:
            chunk_bytes = min(self.interval_bytes + HEADER_BYTES, self.end_bytes - position)
            data = read(chunk_bytes, position)
            place = _seek_header(data, offset)
            if place < 0 and len(data) < chunk_bytes and cached:
                raise NotCached(Piece(self.path, position, chunk_bytes))
            if place >= 0:
                return position + place, data, place
            stepped = -place - 1
            if stepped == 0:
                raise self._damage(offset, position, "no batch where one is due")
            position += stepped
        return None

    def timestamp_at(self, offset: int) -> int | None:
        """When the batch begins that holds `offset`, or the next there is, by its header alone."""
        found = self._locate(offset)
        return None if found is None else parse_header(found[1], found[2]).base_timestamp_ms

    def read(self, offset: int, bytes_max: int, *, dense: bool = False, cached: bool = False) -> memoryview | None:
        """Whole batches from the one that holds `offset` (or the next there is), checked, at most `bytes_max`
        long except that the first comes whole; None if the segment has nothing at or after `offset`. If only what is
        `cached` is wanted, it may be less, and `NotCached` where that is not one batch.

        A batch's offset is outside its CRC. Where the log is `dense` each must begin where the one before ends;
        in any log the one that the index names must be there."""
        entry = self._offsets.at_or_below(offset - self.base_offset)
        indexed, position = entry if entry is not None else (0, 0)
        wanted = min(max(bytes_max, HEADER_BYTES) + self.interval_bytes, self.end_bytes - position)
        data = self._pread(wanted, position, offset, cached=cached)
        if len(data) < wanted and cached and not _holds(data, offset):
            raise NotCached(Piece(self.path, position, min(wanted, PRELOAD_BYTES_MAX)))
        known = self.base_offset + indexed
        if not dense and entry is not None and int.from_bytes(data[:8], "big") != known:
            raise self._damage(offset, position, "the batch is not the one that the index names")
        try:
            start = seek(data, 0, offset)
        except Malformed:
            start = -1
        if dense and not _counts_up(data, known, start):
            place, last = _counted(data, known, offset)
            if place < 0 and (start >= 0 or last is not None):
                raise self._damage(offset, position - place - 1, "a batch says another offset than is due", last)
            start = place
        if start < 0:
            # Not within one index interval: a very large batch, a stretch emptied by compaction, or damage.
            found = self._locate(offset, cached=cached)
            if found is None:
                if dense and offset < self.next_offset:
                    raise self._damage(offset, position, "no batch says that it holds it")
                return None
            header = parse_header(found[1], found[2])
            if dense and header.base_offset != known + self._records_between(position, found[0]):
                raise self._damage(offset, found[0], "the batch says another offset than is due")
            position, start = found[0], 0
            wanted = min(max(bytes_max, header.batch_bytes), self.end_bytes - position)
            data = self._pread(wanted, position, offset, cached=cached)
            if len(data) < min(wanted, header.batch_bytes) and cached:
                raise NotCached(Piece(self.path, position, max(header.batch_bytes, min(wanted, PRELOAD_BYTES_MAX))))
        end = fit(data, start, bytes_max)
        good_end, _, bad = scan(data, start, end, verify=True, dense=dense)
        if dense and int.from_bytes(data[start : start + 8], "big") > offset:
            good_end, bad = start, "the batch says that it begins later"
        if good_end == start:
            raise self._damage(offset, position + start, bad or "the file is shorter than it was")
        return memoryview(data)[start:good_end]

    def locate(
        self, offset: int, bytes_max: int, limit: int, *, dense: bool = False, cached: bool = False
    ) -> Place | None:
        """Where `read` would find what it gives, by headers and the index alone: nothing is checked. Up to `limit`,
        an offset that a batch begins at; within `bytes_max`, but for one batch that is longer."""
        where = self._disk.whereabouts(self._require_file())
        found = self._locate(offset, cached=cached)
        last = None
        if self.next_offset > limit:  # what is behind may not be written yet
            last = self._locate(limit - 1, cached=cached)
        if where is None or found is None:
            return None
        position, end, next_offset = found[0], self.end_bytes, self.next_offset
        if last is not None:
            header = parse_header(last[1], last[2])
            end, next_offset = last[0] + header.batch_bytes, header.next_offset
        if end - position > bytes_max:
            header = parse_header(found[1], found[2])
            end, next_offset = position + header.batch_bytes, header.next_offset
            entry = self._offsets.before_position(position + bytes_max)
            if entry is not None and entry[1] > end:
                end, next_offset = entry[1], self.base_offset + entry[0]
        return Place(where, position, end - position, next_offset, dense) if next_offset <= limit else None

    def _records_between(self, position: int, end: int) -> int:
        """How many offsets the batches take that stand there."""
        batches = Batches(self._require_file(), position, end, verify=False, offsets=Offsets.ANY)
        return sum(header.last_offset_delta + 1 for _, header, _ in batches)

    def _pread(self, length_bytes: int, position: int, offset: int, *, cached: bool = False) -> bytes:
        file = self._require_file()
        try:
            return (file.read_cached if cached else file.read)(length_bytes, position)
        except OSError as error:
            raise self._damage(offset, position, f"the disk cannot read it: {error}") from error

    def _damage(self, offset: int, position: int, reason: str, known_last: int | None = None) -> CorruptLog:
        following = self._offsets.above(offset - self.base_offset)
        end = self.next_offset if self.until is None else self.until
        last = max(offset, (self.base_offset + following[0] if following is not None else end) - 1)
        if known_last is not None:
            last = known_last
        else:
            with suppress(Malformed, OSError):
                header = parse_header(self._require_file().read(HEADER_BYTES, position))
                if header.base_offset <= offset <= header.last_offset <= last:
                    last = header.last_offset
        return CorruptLog(
            partition=self._partition, first=offset, last=last, path=self.path, position=position, reason=reason
        )

    def offset_for_timestamp(self, timestamp_ms: int, upto: int) -> int | None:
        """The base offset of the first batch that holds a record at or after `timestamp_ms`. What begins at `upto` or
        behind it may be without its bytes yet, and is not looked at."""
        file = self._require_file()
        if self.max_timestamp_ms < timestamp_ms:
            return None
        entry = self._times.below(timestamp_ms)
        if entry is not None and self.base_offset + entry[1] >= upto:
            return None
        start = self.position_of(self.base_offset + entry[1]) if entry is not None else 0
        if start is None:
            return None
        for _, header, _ in Batches(file, start, self.end_bytes, verify=False, offset_min=self.base_offset):
            if header.max_timestamp_ms >= timestamp_ms:
                return header.base_offset
        return None

    def batches(self, *, verify: bool = True) -> Batches:
        """All of this segment's batches, for cleaning and checking."""
        file = self._require_file()
        return Batches(file, 0, self.end_bytes, verify=verify, offset_min=self.base_offset)


def _holds(data: bytes, offset: int) -> bool:
    """Whether the batch of this offset is all there."""
    try:
        return seek(data, 0, offset) >= 0
    except Malformed:
        return False


def _counts_up(data: bytes, known: int, place: int) -> bool:
    """Whether the batches from the first, which is at the known offset, to the one at `place` leave no gap."""
    if place < 0 or int.from_bytes(data[:8], "big") != known:
        return False
    if place == 0:
        return True
    end = place + parse_header(data, place).batch_bytes
    return scan(data, 0, end, verify=False, dense=True)[0] == end


def _counted(data: bytes, known: int, offset: int) -> tuple[int, int | None]:
    """Where the batch stands that holds the offset, though some header is wrong; if it is its own, -place - 1 and the
    last offset that it holds.

    What a batch says is believed if the batches before it count up to that, or if the one before it ends there.
    """
    due = ended = known
    found: tuple[int, int | None] = -1, None
    with suppress(Malformed):
        for place, header in walk(data):
            if header.base_offset in (due, ended) and header.base_offset <= offset <= header.last_offset:
                return place, header.last_offset
            following = due + header.last_offset_delta + 1
            if due <= offset < following:
                found = -place - 1, following - 1
            due, ended = following, header.next_offset
    return found


def _seek_header(data: bytes, offset: int) -> int:
    """The place of the first header in `data` whose batch reaches `offset`; else -(bytes stepped over) - 1.

    Unlike `seek` it needs only headers to be whole, so it steps over batches longer than `data`.
    """
    place = 0
    while place + HEADER_BYTES <= len(data):
        try:
            header = parse_header(data, place)
        except Malformed:
            break
        if header.last_offset >= offset:
            return place
        place += header.batch_bytes
    return -place - 1

"""Checking one segment: its batches in one walk, and its indexes and filter beside them.

Invariant: the walk goes on behind damage, so that all of it is found; it stops where recovery would cut.
"""

from __future__ import annotations

from rivven.errors import Malformed
from rivven.record import Record, decode

from .account import Account
from .bloom import Bloom
from .document import read_whole
from .finding import REBUILD, RESTORE
from .offline import SegmentFiles, Unreadable, WalkedBatch, bloom_fault, offset_index, time_index, walk_batches
from .tail import NO_TIMESTAMP

INDEXES = {".idx": "offset index", ".tidx": "time index"}


class SegmentCheck:
    """One segment, its batches in one walk, and its indexes and filter beside them."""

    def __init__(self, account: Account, segment: SegmentFiles, bound: int) -> None:
        self._account = account
        self._segment = segment
        self._bound = bound
        self._offsets = offset_index(account.disk, segment)
        self._times = time_index(account.disk, segment)
        self._place = 0
        self._index_good = True
        self._newest_ms = NO_TIMESTAMP
        self._bloom: Bloom | None = None
        self._filter_good = True

    @property
    def _in_flux(self) -> bool:
        """Whether a crash, or a node that runs, explains an index that does not fit."""
        return not self._segment.sealed and (self._account.live or not self._account.clean)

    def run(self) -> None:
        account, segment = self._account, self._segment
        self._open_filter()
        self._open_indexes()
        file = account.disk.open(segment.path)
        try:
            for item in walk_batches(file, 0, segment.length_bytes, offset_min=segment.base_offset):
                account.seen(item.length_bytes if isinstance(item, Unreadable) else item.header.batch_bytes)
                if isinstance(item, Unreadable):
                    self._unreadable(item)
                else:
                    self._batch(item)
                if account.stopped:
                    break
        finally:
            file.close()
        self._close_indexes()

    # Batches

    def _unreadable(self, item: Unreadable) -> None:
        account = self._account
        if account.next_offset >= account.trusted:
            self._cut(item.position, item.reason)
        else:
            upto = item.position + item.length_bytes
            what = f"bytes {item.position} to {upto - 1} are not batches: {item.reason}"
            account.problem(self._segment.path, what, RESTORE, item.position, account.next_offset)

    def _cut(self, position: int, reason: str) -> None:
        account, path = self._account, self._segment.path
        account.stopped = True
        if account.live:
            account.note(path, f"the end is being written ({reason})", "run this again if in doubt", position)
            return
        cut_bytes = self._segment.length_bytes - position
        then = f"start the node: recovery will cut {cut_bytes} bytes, and has from the write-ahead log what was kept"
        what = f"the end was not wholly written: {reason}"
        account.note(path, what, then, position, account.next_offset)

    def _batch(self, item: WalkedBatch) -> None:
        account, header = self._account, item.header
        fault = item.fault
        if fault is not None and item.crc_ok and header.base_offset == account.next_offset:
            fault = None  # it only seemed to go back, behind one whose offset is wrong
        elif fault is None and header.last_offset >= self._bound and account.next_offset < account.trusted:
            fault = f"offset {header.base_offset} where {account.next_offset} is due, before {self._bound}"
        if fault is not None and account.next_offset >= account.trusted:
            self._cut(item.position, fault)
            return
        first, last = self._span(item)
        if fault is not None:
            what = f"damaged batch: {fault.removeprefix('malformed batch: ')}"
            if min(last, account.trusted - 1) >= account.start:
                account.problem(self._segment.path, what, RESTORE, item.position, first, last)
            else:
                account.note(self._segment.path, what, "nothing is lost: these offsets were deleted", item.position)
        elif header.base_offset > account.next_offset and not account.compacted:
            self._gap(item)
        self._index_entry(item)
        account.tally.batches += 1
        account.tally.records += header.count
        account.tally.length_bytes += header.batch_bytes
        self._newest_ms = max(self._newest_ms, header.max_timestamp_ms)
        account.next_offset = last + 1
        if fault is None:
            self._epoch(item)
            if not account.quick:
                self._records(item)

    def _span(self, item: WalkedBatch) -> tuple[int, int]:
        """The offsets that a batch stands for: its own if they can be, else those that are due."""
        due, header = self._account.next_offset, item.header
        if due <= header.base_offset and header.last_offset < self._bound:
            return header.base_offset, header.last_offset
        return due, due + header.last_offset_delta

    def _gap(self, item: WalkedBatch) -> None:
        account, first = self._account, item.header.base_offset
        what = f"offsets jump from {account.next_offset} to {first}, in a topic that is not compacted"
        if account.next_offset < account.trusted:
            account.problem(self._segment.path, what, RESTORE, item.position, account.next_offset, first - 1)

    def _epoch(self, item: WalkedBatch) -> None:
        account, epoch = self._account, item.header.leader_epoch
        if epoch < account.epoch:
            what = f"leader epoch {epoch} after {account.epoch}"
            then = "compare this partition with its replicas: two leaders may have written to it"
            span = item.header.base_offset, item.header.last_offset
            account.problem(self._segment.path, what, then, item.position, *span)
        account.epoch = max(epoch, account.epoch)

    def _records(self, item: WalkedBatch) -> None:
        if item.header.count == 0:
            return
        try:
            records = decode(item.data, verify=False)
        except Malformed as error:
            what = f"its checksum is right, but its records do not decode: {error}"
            then = "consumers cannot read it either; find out which producer wrote it"
            span = item.header.base_offset, item.header.last_offset
            self._account.problem(self._segment.path, what, then, item.position, *span)
            return
        if self._bloom is not None and self._filter_good:
            self._filter(item, records)

    # The filter

    def _open_filter(self) -> None:
        path = self._segment.side(".bloom")
        try:
            data = read_whole(self._account.disk, path)
        except FileNotFoundError:
            return
        then = "nothing is lost: remove it, and `rivven log find` or the next compaction makes it again"
        fault = bloom_fault(data)
        if fault is None:
            self._bloom = Bloom.load(self._account.disk, path)
            return
        tell = self._account.problem if self._account.clean else self._account.note
        tell(path, f"the Bloom filter is damaged: {fault[1]}", then, fault[0])

    def _filter(self, item: WalkedBatch, records: list[Record]) -> None:
        bloom = self._bloom
        assert bloom is not None
        what = ""
        if item.header.control:
            what = (
                "" if bloom.tombstones else "the Bloom filter does not know of the transaction markers in its segment"
            )
        else:
            for record in records:
                if record.key is not None and not bloom.may_hold(record.key):
                    what = f"the Bloom filter denies the key of offset {record.offset}, which is in its segment"
                    break
                if record.value is None and not bloom.tombstones:
                    what = f"the Bloom filter does not know of the tombstone at offset {record.offset}"
                    break
        if what:
            self._filter_good = False
            then = "remove it: a lookup or a compaction that believes it goes wrong"
            self._account.problem(self._segment.side(".bloom"), what, then, 0)

    # The indexes

    def _open_indexes(self) -> None:
        for content, suffix in ((self._offsets, ".idx"), (self._times, ".tidx")):
            if content.fault == "missing":
                self._missing_index(suffix)
            elif content.fault is not None:
                self._bad_index(suffix, content.fault, content.good_bytes)
        if self._offsets.fault is None and self._times.fault is None:
            counts = len(self._offsets.keys), len(self._times.keys)
            if counts[0] != counts[1]:
                self._bad_index(".tidx", f"it has {counts[1]} entries, and the offset index {counts[0]}", 0)

    def _missing_index(self, suffix: str) -> None:
        self._index_good = False
        account = self._account
        long_enough = self._segment.length_bytes >= 2 * account.files.config.index_interval_bytes
        # Indexes reach the disk with the checkpoint after the roll: before that, nobody misses one.
        if long_enough and self._segment.sealed and self._bound <= account.trusted and not account.live:
            self._account.note(self._segment.side(suffix), f"the {INDEXES[suffix]} is missing", REBUILD)

    def _bad_index(self, suffix: str, what: str, position: int | None) -> None:
        self._index_good = False
        tell = self._account.note if self._in_flux else self._account.problem
        what = f"the {INDEXES[suffix]} is damaged: {what}"
        tell(self._segment.side(suffix), what, f"nothing is lost: {REBUILD}", position)

    def _index_entry(self, item: WalkedBatch) -> None:
        """Compare the batch with the index entry for its position, if there is one."""
        if not self._index_good:
            return
        place, relative = self._place, item.header.base_offset - self._segment.base_offset
        if place >= len(self._offsets.values) or self._offsets.values[place] > item.position:
            return
        if self._offsets.values[place] < item.position:
            self._bad_index(".idx", self._points_nowhere(place), None)
        elif self._offsets.keys[place] != relative:
            offset = self._segment.base_offset + self._offsets.keys[place]
            what = f"entry {place} says offset {offset}, and the batch at {item.position} begins at "
            self._bad_index(".idx", what + str(item.header.base_offset), None)
        elif (self._times.keys[place], self._times.values[place]) != (self._newest_ms, relative):
            what = f"entry {place} says time {self._times.keys[place]} before offset "
            what += f"{self._segment.base_offset + self._times.values[place]}; the log says {self._newest_ms} before "
            self._bad_index(".tidx", what + str(item.header.base_offset), None)
        self._place += 1

    def _points_nowhere(self, place: int) -> str:
        return f"entry {place} points to byte {self._offsets.values[place]}, where no batch begins"

    def _close_indexes(self) -> None:
        if self._index_good and self._place < len(self._offsets.values):
            self._bad_index(".idx", self._points_nowhere(self._place), None)

"""Checking one partition: do its segments follow one another, up to what was promised, and what stands beside them?

Invariant: whatever recovery would cut or mend by itself is a note; an offset that is gone is a problem.
"""

from __future__ import annotations

import re

from .account import Account
from .compact import CLEAN, CLEANER, CleanerState
from .document import read_whole, unseal
from .finding import RESTORE, START, STRANGER
from .offline import SegmentFiles, document_fault, length_of, read_document
from .segment_check import SegmentCheck
from .snapshot import SUFFIX as STATE
from .snapshot import Snapshot

OFFSET_MAX = 2**63 - 1
KNOWN_NAME = re.compile(r"\d{20}\.(log|idx|tidx|state|bloom)|cleaner\.json(\.bak)?")


class PartitionCheck:
    def __init__(self, account: Account) -> None:
        self._account = account

    def run(self) -> None:
        account = self._account
        self._side_files()
        if not account.files.segments:
            self._no_segments()
            return
        account.next_offset = account.files.segments[0].base_offset
        self._beginning()
        for segment in account.files.segments:
            self._follows(segment)
            if account.stopped:
                break
            account.next_offset = max(account.next_offset, segment.base_offset)
            SegmentCheck(account, segment, self._bound(segment)).run()
        self._ending()
        self._snapshots()

    def _bound(self, segment: SegmentFiles) -> int:
        """Where the segment's offsets end at the latest, for all that is known."""
        account = self._account
        following = [each.base_offset for each in account.files.segments if each.base_offset > segment.base_offset]
        if following:
            return following[0]
        return max(account.trusted, segment.base_offset) if account.clean and not account.live else OFFSET_MAX

    # The row of segments

    def _no_segments(self) -> None:
        account = self._account
        point = account.files.point
        start, end = (account.wal.start(point.start), account.trusted) if point is not None else (0, 0)
        account.tally.end = start
        if end > start:
            account.problem(account.files.directory, "the segment files are missing", RESTORE, None, start, end - 1)
        elif not account.live:
            account.note(account.files.directory, "has no segment yet", "start the node: it makes one")

    def _beginning(self) -> None:
        account = self._account
        point, first = account.files.point, account.files.segments[0]
        start = account.wal.start(point.start) if point is not None else first.base_offset
        last = min(first.base_offset, account.trusted) - 1
        if last >= start and not account.live:
            what = f"the log starts at {start}, but its first segment at {first.base_offset}"
            account.problem(account.files.directory, what, RESTORE, None, start, last)

    def _follows(self, segment: SegmentFiles) -> None:
        account = self._account
        due = account.next_offset
        if segment.base_offset == due and not account.stopped:
            return
        if not account.stopped and due < account.trusted:
            first, last = sorted((due, segment.base_offset))
            what = f"begins at offset {segment.base_offset}, but the segment before it ends at {due}"
            if last > account.start:
                account.problem(segment.path, what, RESTORE, 0, max(first, account.start), last - 1)
            return
        what = f"does not follow the segment before it, which ends at {due}"
        then = f"start the node: recovery drops it, {segment.length_bytes} bytes that were never acknowledged"
        account.note(segment.path, what, then, 0)
        account.stopped = True

    def _ending(self) -> None:
        account = self._account
        end = account.next_offset
        account.tally.end = end
        last = account.files.segments[-1]
        start = account.start
        if end < account.trusted and start < account.trusted and not account.live:
            what = f"the log ends at {end}, but was synced up to {account.trusted}"
            account.problem(last.path, what, RESTORE, last.length_bytes, max(end, start), account.trusted - 1)
            return
        replayed, gap = account.wal.replay(end, start)
        if gap is not None and not account.live:
            what = "neither the segments nor the write-ahead log have these offsets"
            account.problem(last.path, what, RESTORE, last.length_bytes, *gap)
        if replayed and not account.live:
            what = f"{replayed} batch{'es are' if replayed > 1 else ' is'} in the write-ahead log alone"
            account.note(last.path, what, START)

    # What stands beside the segments

    def _side_files(self) -> None:
        account = self._account
        directory = account.files.directory
        for name in account.disk.names(directory):
            path = f"{directory}/{name}"
            if name.endswith(".damaged"):
                what = f"{length_of(account.disk, path)} bytes that an earlier recovery could not read"
                account.note(path, what, "keep it if you mean to look into it, else remove it")
            elif name.endswith((CLEAN, ".tmp")):
                account.note(path, "was left by a process that did not come to its end", f"{START} away with it")
            elif not KNOWN_NAME.fullmatch(name):
                account.note(path, "is not a file of ours", STRANGER)
            elif name.endswith((".idx", ".tidx", ".bloom")) and not self._has_segment(name):
                account.note(path, "belongs to no segment", "nothing reads it; remove it if it is not wanted")
        self._cleaner()

    def _has_segment(self, name: str) -> bool:
        account = self._account
        return int(name[:20]) in {segment.base_offset for segment in account.files.segments}

    def _cleaner(self) -> None:
        account = self._account
        path = f"{account.files.directory}/{CLEANER}"
        account.cleaner, fault = read_document(account.disk, path, CleanerState)
        backup, backup_fault = read_document(account.disk, path + ".bak", CleanerState)
        if fault not in (None, "missing") or (fault == "missing" and backup is not None):
            then = "its backup is used" if backup is not None else "the next compaction begins at the log's start"
            account.problem(path, f"the document is damaged: {fault}", f"nothing is lost: {then}", 0)
        if backup_fault not in (None, "missing"):
            what = f"the document is damaged: {backup_fault}"
            account.problem(path + ".bak", what, "nothing is lost: the next compaction replaces it", 0)
        account.cleaner = account.cleaner or backup
        if account.cleaner is not None and account.cleaner.swap is not None and not account.live:
            account.note(path, "a compaction was interrupted", "start the node: recovery finishes or forgets it")

    def _snapshots(self) -> None:
        account = self._account
        for name in account.disk.names(account.files.directory):
            if not name.endswith(STATE) or not KNOWN_NAME.fullmatch(name):
                continue
            self._snapshot(f"{account.files.directory}/{name}", int(name[:20]))

    def _snapshot(self, path: str, upto: int) -> None:
        account = self._account
        try:
            data = read_whole(account.disk, path)
        except FileNotFoundError:
            return
        snapshot = unseal(data, Snapshot)
        fault = document_fault(data, Snapshot) if snapshot is None else _snapshot_fault(snapshot, upto)
        if fault is None:
            return
        # It is written without a sync, so a power loss may tear it at any time and leave the log in order.
        torn = b"\0" in data or not data.endswith(b"\n")
        tell = account.problem if account.clean and not torn else account.note
        tell(
            path,
            f"the snapshot is damaged: {fault}",
            "nothing is lost: a start walks the log instead; it may be removed",
            0,
        )


def _snapshot_fault(snapshot: Snapshot, upto: int) -> str | None:
    if snapshot.upto != upto:
        return f"is of offset {snapshot.upto}, unlike its name"
    if any(a[0] >= b[0] or a[1] > b[1] for a, b in zip(snapshot.epochs, snapshot.epochs[1:], strict=False)):
        return f"its leader epochs do not grow: {snapshot.epochs}"
    if any(start > upto for _, start in snapshot.epochs):
        return "a leader epoch begins after its end"
    if any(batch.last_offset >= upto for row in snapshot.producers for batch in row.batches):
        return "a producer's batch is after its end"
    if any(a.last_offset > b.last_offset for a, b in zip(snapshot.aborted, snapshot.aborted[1:], strict=False)):
        return "its aborted transactions are not in order"
    return None

"""The facts derived from a partition's batches, as of one offset, in a file beside the segments.

`<offset>.state` holds the leader epochs, the producers and the transactions after all batches below that offset.
One is written at every roll, and at checkpoints where something changed unless the log is short. Like an index it is
derived: a missing or damaged one costs a longer walk over the log at start, never a fact. Only where the begin of the
log was deleted it is all that is left of that, and is synced before.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from rivven.ports import Disk
from rivven.record import BatchHeader, decode_marker

from .document import read_whole, seal, unseal, write_whole
from .epochs import LeaderEpochs
from .producers import Producer, Producers
from .transactions import Aborted, Transactions

SUFFIX = ".state"


class Snapshot(msgspec.Struct, frozen=True):
    upto: int
    epochs: list[tuple[int, int]]
    producers: list[Producer]
    open_transactions: dict[int, int]
    aborted: list[Aborted]


class Facts:
    """The derived facts, kept up to date batch by batch."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.epochs = LeaderEpochs(snapshot.epochs if snapshot else None)
        self.producers = Producers(snapshot.producers if snapshot else None)
        self.transactions = Transactions(
            snapshot.open_transactions if snapshot else None, snapshot.aborted if snapshot else None
        )
        self.changes = 0
        """Grows whenever a fact changed: what a checkpoint compares to skip an unchanged snapshot."""

    def note(self, header: BatchHeader, batch: memoryview | bytes | bytearray) -> None:
        """Take one appended batch into account."""
        if header.leader_epoch > self.epochs.latest and self.epochs.assign(header.leader_epoch, header.base_offset):
            self.changes += 1
        if header.producer_id >= 0:
            self.changes += 1
            self.producers.note(header)
            # A batch that cleaning emptied opens nothing; an emptied marker still ends what it ended.
            if header.transactional and (header.count or header.control):
                emptied = header.count == 0
                commit = (emptied or decode_marker(batch)[0]) if header.control else None
                self.transactions.note(header, commit=commit)

    def expire_producers(self) -> int:
        """Forget the producers that have written nothing since the call before and have nothing open; how many."""
        gone = self.producers.expire(self.transactions.open_transactions())
        self.changes += bool(gone)
        return gone

    def forget_open(self) -> None:
        """All batches so far are deleted. A transaction that is still open shows itself by its next batch."""
        if self.transactions.forget_open():
            self.changes += 1

    def snapshot(self, upto: int) -> Snapshot:
        return Snapshot(
            upto,
            self.epochs.entries(),
            self.producers.rows(),
            self.transactions.open_transactions(),
            self.transactions.aborted(),
        )


def snapshot_path(directory: str, upto: int) -> str:
    return f"{directory}/{upto:020d}{SUFFIX}"


def save(disk: Disk, directory: str, snapshot: Snapshot) -> None:
    """Write without a sync: after a power loss a torn file fails its CRC, and the walk is longer."""
    write_whole(disk, snapshot_path(directory, snapshot.upto), seal(snapshot), sync=False)


def load(disk: Disk, directory: str, upto: int) -> Snapshot | None:
    try:
        data = read_whole(disk, snapshot_path(directory, upto))
    except FileNotFoundError:
        return None
    snapshot = unseal(data, Snapshot)
    return snapshot if snapshot is not None and snapshot.upto == upto else None


def saved(disk: Disk, directory: str) -> list[int]:
    """The offsets that snapshots exist for, in order."""
    return [
        int(name[: -len(SUFFIX)])
        for name in disk.names(directory)
        if name.endswith(SUFFIX) and name[: -len(SUFFIX)].isdigit()
    ]


def drop(disk: Disk, directory: str, offsets: list[int]) -> None:
    for offset in offsets:
        with suppress(FileNotFoundError):
            disk.remove(snapshot_path(directory, offset))

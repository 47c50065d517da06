"""Work that may take long and need not be done at once: preparing write-ahead files, checkpoints, cleaning.

A chore is begun where the store lives, `run` on any thread (it touches only files and what it was given), and
finished where the store lives again, by `Store.finish`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from rivven.errors import SyncFailed
from rivven.ports import Disk

from .compact import Cleaning
from .document import Document
from .log import PartitionCheckpoint
from .recover import Checkpoint
from .snapshot import save
from .wal import Prepare


@dataclass(slots=True)
class PrepareSpare:
    """Zero-fill the next write-ahead file before it is needed."""

    job: Prepare

    def run(self) -> None:
        self.job.run()


@dataclass(slots=True)
class SyncSegments:
    """The first half of a checkpoint: bring what the segments hold onto the medium.

    A sync that fails is `SyncFailed` and ends the store. Anything else, a full disk above all, is an OSError:
    the checkpoint did not come about, and the next one covers what it would have.
    """

    disk: Disk
    parts: list[PartitionCheckpoint]
    group: int
    """The last write-ahead group that these parts cover."""
    before_sequence: int
    """Write-ahead files before this one will not be needed any more."""
    needed_from: int
    """Nor will what files before this one hold, though they stay: spares have numbers, too."""
    clean: bool = False

    def run(self) -> None:
        batch = self.disk.batch()
        for part in self.parts:
            for file in part.files:
                batch.sync(file)
        for outcome in batch.run():
            if isinstance(outcome, OSError):
                raise SyncFailed(path="the segments", reason=str(outcome)) from outcome
        for part in self.parts:
            with suppress(FileNotFoundError):  # its topic was deleted in the meantime
                self._save_derived(part)

    def _save_derived(self, part: PartitionCheckpoint) -> None:
        for flushes, sealed in part.flushes:
            for flush in flushes:
                flush.run(self.disk, sync=sealed)
        if part.snapshot is not None:
            save(self.disk, part.log.directory, part.snapshot)
        if part.fresh_names:
            self.disk.sync_dir(part.log.directory)


@dataclass(slots=True)
class SaveCheckpoint:
    """The second half: write down how far the segments can be trusted from now on."""

    document: Document[Checkpoint]
    checkpoint: Checkpoint
    before_sequence: int

    def run(self) -> None:
        self.document.save(self.checkpoint)


@dataclass(slots=True)
class CleanLog:
    """One compaction pass over one partition."""

    cleaning: Cleaning

    def run(self) -> None:
        self.cleaning.run()


Chore = PrepareSpare | SyncSegments | SaveCheckpoint | CleanLog


@dataclass(slots=True)
class ChoreList:
    """What is due and what is under way; at most one of a kind runs at a time."""

    running: set[type[Chore]] = field(default_factory=set)

    def free(self, *kinds: type[Chore]) -> bool:
        return not self.running.intersection(kinds)

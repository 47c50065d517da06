"""Checking a data directory against everything that is known about it, and changing nothing.

Two kinds of findings come out. A problem is damage: something that was written and synced does not read back. A
note is what a crash leaves behind, or an unusual state that recovery or the next run puts right by itself. So a
directory after a crash has notes and no problems, and that holds in the simulator for every crash.
"""

from __future__ import annotations

from collections.abc import Iterator

from rivven.errors import InvalidConfig
from rivven.model import TopicPartition
from rivven.ports import Disk

from .account import Account, Seen
from .finding import START, STRANGER, Finding, Severity, Tally, note
from .offline import DataDirectory, read_document, read_partition
from .partition_check import PartitionCheck
from .recover import CHECKPOINT, Checkpoint
from .topics import METADATA, TOPICS, Topic, TopicList, topic_directory
from .wal_check import WalCheck, WalEntries

TRIES_LIVE = 3
"""How often a partition that a running node changes is read until it holds still."""


class Verification:
    """One run over a data directory: `node` first, then `partition` for each that is wanted."""

    def __init__(
        self,
        disk: Disk,
        directory: DataDirectory,
        *,
        quick: bool = False,
        live: bool = False,
        seen: Seen = lambda _: None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._quick = quick
        self._live = live
        self._seen = seen
        self._wal: dict[tuple[bytes, int], WalEntries] = {}
        self._wal_read = False

    # The whole directory

    def node(self) -> Iterator[Finding]:
        """What concerns no single partition: the documents, the topics' directories, the write-ahead log."""
        yield from self._document(METADATA, TopicList, "the topics are taken from their directories")
        yield from self._document(CHECKPOINT, Checkpoint, "recovery checks the last segments whole")
        yield from self._topics()
        wal = WalCheck(self._disk, self._directory, live=self._live)
        yield from wal.run()
        self._wal = wal.entries
        self._wal_read = True

    def _document(self, path: str, body_type: type[object], without: str) -> Iterator[Finding]:
        body, fault = read_document(self._disk, path, body_type)
        backup, backup_fault = read_document(self._disk, path + ".bak", body_type)
        missing_is_fine = not self._disk.names(TOPICS)
        if fault is not None and not (fault == "missing" and missing_is_fine and backup_fault == "missing"):
            then = f"start the node: {'its backup is used' if backup is not None else without}"
            what = "the document is missing" if fault == "missing" else f"the document is damaged: {fault}"
            yield Finding(Severity.PROBLEM, "", path, what, then, 0)
        if backup_fault not in (None, "missing"):
            then = "nothing needs it now, and the next change replaces it" if body is not None else without
            what = f"the document is damaged: {backup_fault}"
            yield Finding(Severity.PROBLEM, "", path + ".bak", what, then, 0)

    def _topics(self) -> Iterator[Finding]:
        for topic in self._directory.topics:
            try:
                _ = topic.config
            except InvalidConfig as error:
                then = "the node will not start with it; restore the document from its backup"
                yield Finding(Severity.PROBLEM, "", METADATA, f"topic {topic.name}: {error}", then)
        for topic in self._directory.deleting:
            yield note("", METADATA, f"topic {topic.name} is being deleted", START)
        points = self._directory.checkpoint.partitions if self._directory.checkpoint is not None else {}
        known = {name.rpartition("/")[0] for name in points}
        for name in self._directory.strangers:
            if name in known:
                what = f"{METADATA} has lost the topic {name}, which the checkpoint knows"
                then = f"restore {METADATA} before the node starts, else it goes on without this topic"
                yield Finding(Severity.PROBLEM, "", f"{TOPICS}/{name}", what, then)
                continue
            yield note("", f"{TOPICS}/{name}", "belongs to no topic", STRANGER)
        for topic in self._directory.topics:
            expected = {f"partition-{place.partition}" for place in topic.each()}
            for name in self._disk.names(topic_directory(topic.name)):
                if name not in expected:
                    path = f"{topic_directory(topic.name)}/{name}"
                    yield note("", path, "belongs to no partition", STRANGER)

    # One partition

    def partition(self, topic: Topic, place: TopicPartition) -> tuple[Tally, list[Finding]]:
        assert self._wal_read, "call `node` first"
        for _ in range(TRIES_LIVE if self._live else 1):
            files = read_partition(self._disk, self._directory, topic, place)
            wal = self._wal.get((topic.id_bytes, place.partition), WalEntries())
            clean = self._directory.clean
            account = Account(self._disk, files, wal, self._quick, self._live, clean, self._seen)
            try:
                PartitionCheck(account).run()
            except FileNotFoundError as error:
                account.note(str(error.filename), "was removed while it was read", "run this again")
                continue
            if not account.tally.problems:
                break
        return account.tally, account.told()

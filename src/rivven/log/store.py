"""One node's storage: the data directory, its topics and partitions, and the write-ahead log they share.

Nothing here waits, except where it says so. `append` gives a batch its place in a segment and queues an entry for the
write-ahead log; `pump` hands the next group to the committer and takes finished groups back, which makes their
batches durable and visible. Long batches are written to the segment at once, short ones by the committer. Under the
policy `none` there are no groups, and only what is large waits for its thread (see `later`). `chores` names the slow
work that is due, to be run on any thread.

The order that makes it safe: an entry is in its segment before its group is written; a group is acknowledged after
its sync; a write-ahead file is given up only after a checkpoint that syncs every segment it covers; a truncation or a
new start is in the write-ahead log before files change. A failed sync ends the store: what the cache holds can no
longer be trusted to reach the medium.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from rivven.errors import (
    DiskFull,
    InvalidTopic,
    Overloaded,
    RivvenError,
    StoreClosed,
    SyncFailed,
    TopicExists,
    UnknownTopic,
)
from rivven.limits import (
    DEFER_BYTES_MAX,
    LATER_BYTES_MIN,
    PARTITIONS_MAX,
    WAL_FILE_BYTES,
    WAL_FILES_MAX,
    WAL_FIRST_FILE_BYTES,
    WAL_HEADER_BYTES,
)
from rivven.model import Offset, TopicPartition
from rivven.ports import Buffer, Clock, Disk, Entropy
from rivven.record import BatchHeader, walk

from . import topics as topic_files
from .chores import Chore, ChoreList, CleanLog, PrepareSpare, SaveCheckpoint, SyncSegments
from .commit import CommitLimits, SyncPolicy
from .compact import Cleaning, CleanReport, lower_clean_upto
from .config import TopicConfig
from .document import Document
from .journal import Journal
from .later import Later
from .log import NO_ROOM, Appended, Log
from .recover import CHECKPOINT, NO_SUCH_SNAPSHOT, Checkpoint, Damage, Point, RecoveryReport, recover_log
from .retain import seals_for_retention, start_after_retention
from .topics import Topic, TopicList
from .wal import OFFSET, Entry, Kind, Wal, WalStats, lost_files, read_wal, remove_file

logger = logging.getLogger(__name__)

NO_LIMIT = 2**62
WAL = "wal"
LOCK = "lock"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    sync_policy: SyncPolicy = field(default_factory=SyncPolicy)
    commit: CommitLimits = field(default_factory=CommitLimits)
    wal_file_bytes: int = WAL_FILE_BYTES
    wal_first_file_bytes: int = WAL_FIRST_FILE_BYTES
    wal_files_max: int = WAL_FILES_MAX
    later_bytes_min: int = LATER_BYTES_MIN
    """What is that long is written by another thread under the policy `none`,"""
    defer_bytes_max: int = DEFER_BYTES_MAX
    """and what is that short under the others."""
    partitions_max: int = PARTITIONS_MAX
    """Each holds a file open, so what a node can take depends on where it runs."""
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """The node's own, for whatever a topic does not choose; they apply as they are now, also to older topics."""


class Store:
    def __init__(self, disk: Disk, clock: Clock, entropy: Entropy, config: StoreConfig | None = None) -> None:
        """Open the data directory, alone, and recover whatever the last process left. This waits."""
        self._disk = disk
        self._clock = clock
        self.entropy = entropy
        self.config = config or StoreConfig()
        self._policy = self.config.sync_policy
        self._lock = disk.lock(LOCK)
        self._closed: str | None = None
        self._logs: dict[TopicPartition, Log] = {}
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] | None = None
        """Made when it is asked for, and given up whenever a topic changes."""
        self.topic_changes = 0
        """Goes up whenever a topic is made, grown, configured or deleted."""
        self._chores = ChoreList()
        self._checkpoint_wanted = False
        self._syncing: SyncSegments | None = None
        """The first half of a checkpoint, begun and not finished."""
        self._wal = Wal(disk, WAL, file_bytes=self.config.wal_file_bytes, files_max=self.config.wal_files_max)
        self._journal = Journal(self._wal, disk.committer(), clock, self._policy, self.config.commit, self._make_room)
        self._later = None if self._policy.writes else Later(disk.committer(), clock, self._written)
        self.later_bytes_min = NO_LIMIT if self._policy.writes else self.config.later_bytes_min
        self.defer_bytes_max = self.config.defer_bytes_max if self._policy.writes else 0
        self.due_us: Callable[[], int | None] = self._journal.due_us if self._later is None else self._later.due_us
        """When `pump` should be called at the latest, on the clock's monotonic time; None if nothing is due."""
        self._checkpoints = Document(disk, CHECKPOINT, Checkpoint)
        self.recovery = RecoveryReport()
        try:
            self._recover()
        except BaseException as error:
            self._close_files()
            self._lock.release()
            if isinstance(error, OSError):
                self._refused(error, "the data directory")
            raise

    # Opening

    def _recover(self) -> None:
        begun_us = self._clock.now_us()
        for directory in (WAL, topic_files.TOPICS):
            self._disk.make_dirs(directory)
        report = self.recovery
        checkpoint, source = self._checkpoints.load()
        if checkpoint is None and source == "damaged":
            report.notes.append(f"{CHECKPOINT} and its backup are damaged: the last segments are checked whole")
        elif source == "backup":
            report.notes.append(f"{CHECKPOINT} is damaged or missing: its backup was used")
        report.clean = checkpoint is not None and checkpoint.clean and source == "file"  # a backup knows less
        self._recover_topics(checkpoint, report)
        content = read_wal(
            self._disk, WAL, checkpoint.group if checkpoint is not None else None, headers_only=report.clean
        )
        report.wal_groups = len(content.groups)
        needed_from = checkpoint.wal_from if checkpoint is not None else 0
        if not report.clean:
            content.damage += lost_files(self._disk, WAL, content.files, needed_from)
        report.damage.extend(Damage("", WAL, 0, -1, -1, text) for text in content.damage)
        if content.torn is not None:
            report.notes.append(content.torn)
        by_partition = self._sort_entries(content.entries(), report)
        for topic in self._topics.values():
            self._disk.make_dirs(topic_files.topic_directory(topic.name))
            for partition in topic.each():
                point = _point_of(checkpoint, topic, partition)
                self._open_log(topic, partition, point, by_partition.get(partition, []))
        # Sequences never go back, though the latest file may be gone: its note would seem to tell of one to come.
        self._wal.adopt(content.files, content.last_group or 0, max(content.last_sequence, needed_from - 1))
        for directory in ("", WAL, topic_files.TOPICS):
            self._disk.sync_dir(directory)
        self._checkpoint_now(clean=False)
        if self._policy.writes:
            self._prepare_spare_now()
        report.elapsed_us = self._clock.now_us() - begun_us
        self._log_report(report)

    def _recover_topics(self, checkpoint: Checkpoint | None, report: RecoveryReport) -> None:
        points = checkpoint.partitions if checkpoint is not None else {}
        known_ids = {name.rpartition("/")[0]: point.topic_id for name, point in points.items()}
        found = topic_files.find_topics(self._disk, known_ids)
        report.topics_from = found.source
        if found.source == "directories":
            report.notes.append(
                f"{topic_files.METADATA} is lost: {len(found.listed.topics)} topic(s) taken from their directories, "
                "without their configuration; nothing expires until it is set again"
            )
        for name in found.strangers:
            report.notes.append(f"{topic_files.TOPICS}/{name} belongs to no topic and is left alone")
        self._topics = {topic.name: self._with_id(topic) for topic in found.listed.topics}
        for topic in found.listed.deleting:
            topic_files.finish_deleting(self._disk, topic)
        if found.listed.deleting or found.source in ("directories", "backup", "new"):
            self._save_topics()

    def _with_id(self, topic: Topic) -> Topic:
        if topic.id:
            return topic
        return Topic(topic.name, self._new_id(), topic.partitions, topic.created_ms, topic.configs)

    def _new_id(self) -> str:
        return self.entropy.bytes(16).hex()

    def _sort_entries(self, entries: Iterable[Entry], report: RecoveryReport) -> dict[TopicPartition, list[Entry]]:
        names = {topic.id_bytes: topic.name for topic in self._topics.values()}
        by_partition: dict[TopicPartition, list[Entry]] = defaultdict(list)
        orphans = 0
        for entry in entries:
            name = names.get(entry.topic_id)
            if name is None:
                orphans += 1
            else:
                by_partition[TopicPartition(name, entry.partition)] += _batch_by_batch(entry)
        if orphans:
            report.notes.append(f"{orphans} write-ahead entries belong to topics that are deleted")
        return by_partition

    def _open_log(self, topic: Topic, partition: TopicPartition, point: Point | None, entries: list[Entry]) -> None:
        log = recover_log(
            self._disk,
            topic_files.partition_directory(partition),
            partition,
            topic,
            point,
            entries,
            self.recovery,
            self._clock.now_ms(),
        )
        log.config = self._config_of(topic.configs)
        log.writer = self
        self._logs[partition] = log

    def _config_of(self, chosen: Mapping[str, str]) -> TopicConfig:
        return TopicConfig.from_map({**self.config.topic_defaults, **chosen})

    def _log_report(self, report: RecoveryReport) -> None:
        for cut in report.cuts:
            logger.warning("recovery cut %s", cut)
        for damage in report.damage:
            logger.error("recovery found damage: %s", damage)
        for note in (*report.rebuilt, *report.notes):
            logger.warning("recovery: %s", note)

    # Topics

    @property
    def topics(self) -> list[Topic]:
        return [self._topics[name] for name in sorted(self._topics)]

    def topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(partition=f"topic {name!r}")
        return topic

    def topic_of_id(self, topic_id: bytes) -> Topic | None:
        if self._by_id is None:
            self._by_id = {topic.id_bytes: topic for topic in self._topics.values()}
        return self._by_id.get(topic_id)

    def log(self, topic: str, partition: int) -> Log:
        log = self._logs.get(TopicPartition(topic, partition))
        if log is None:
            raise UnknownTopic(partition=f"partition {topic}/{partition}")
        return log

    @property
    def logs(self) -> list[Log]:
        return list(self._logs.values())

    def create_topic(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> Topic:
        """Waits for the disk: when it returns the topic survives a crash."""
        self._require_open()
        topic_files.check_name(name)
        topic_files.check_partitions(name, partitions)
        TopicConfig.from_map(configs or {})
        if name in self._topics:
            raise TopicExists(topic=name)
        self._check_room(name, partitions)
        if self._disk.exists(topic_files.topic_directory(name)):
            directory = topic_files.topic_directory(name)
            raise InvalidTopic(topic=name, reason=f"{directory} holds files of no known topic; move it away first")
        topic = Topic(name, self._new_id(), partitions, self._clock.now_ms(), dict(configs or {}))
        self._save_topic(topic)
        self._open_partitions(topic)
        return topic

    def _check_room(self, name: str, more: int) -> None:
        most = self.config.partitions_max
        if len(self._logs) + more > most:
            reason = f"this node can hold {most} partitions and has {len(self._logs)}; allow it more open files"
            raise InvalidTopic(topic=name, reason=reason)

    def _open_partitions(self, topic: Topic, old: Topic | None = None) -> None:
        """Make the partitions that a new or larger topic has and `old` had not. All of them or none."""
        partitions = topic.each()[old.partitions if old is not None else 0 :]
        try:
            self._disk.make_dirs(topic_files.topic_directory(topic.name))
            self._disk.sync_dir(topic_files.TOPICS)
            for partition in partitions:
                self._open_log(topic, partition, None, [])
        except (OSError, DiskFull) as error:
            if isinstance(error, OSError) and error.errno not in NO_ROOM:
                self._end(error, topic_files.topic_directory(topic.name))
            for partition in partitions:
                self._logs.pop(partition, None)
            self._take_back(topic, old)
            raise DiskFull(wanted_bytes=0, path=topic_files.topic_directory(topic.name)) from error
        self._checkpoint_wanted = True

    def _take_back(self, topic: Topic, old: Topic | None) -> None:
        """There was room for the list but not for what it lists: list what there was before."""
        try:
            if old is not None:
                self._save_topic(old)
                return
            del self._topics[topic.name]
            self._save_topics(deleting=topic)
            topic_files.finish_deleting(self._disk, topic)
            self._save_topics()
        except (OSError, DiskFull) as error:
            self._closed = f"the list of topics names one that could not be made: {error}"
            raise

    def _save_topic(self, topic: Topic) -> None:
        before = dict(self._topics)
        self._topics[topic.name] = topic
        try:
            self._save_topics()
        except BaseException:
            self._topics, self._by_id = before, None
            raise

    def _save_topics(self, deleting: Topic | None = None) -> None:
        self._by_id = None
        self.topic_changes += 1
        try:
            listed = TopicList(self.topics, [deleting] if deleting is not None else [])
            topic_files.document(self._disk).save(listed)
        except OSError as error:
            self._refused(error, topic_files.METADATA)

    def add_partitions(self, name: str, partitions: int) -> Topic:
        """Grow a topic to `partitions`. Waits for the disk."""
        self._require_open()
        old = self.topic(name)
        topic_files.check_partitions(name, partitions)
        if partitions <= old.partitions:
            raise InvalidTopic(topic=name, reason=f"it has {old.partitions} partitions and can only get more")
        self._check_room(name, partitions - old.partitions)
        topic = Topic(name, old.id, partitions, old.created_ms, old.configs)
        self._save_topic(topic)
        self._open_partitions(topic, old)
        return topic

    def configure(self, name: str, configs: dict[str, str]) -> Topic:
        """Replace a topic's configuration. Waits for the disk; takes effect at once."""
        self._require_open()
        old = self.topic(name)
        parsed = self._config_of(configs)
        topic = Topic(name, old.id, old.partitions, old.created_ms, dict(configs))
        self._save_topic(topic)
        for partition in topic.each():
            log = self._logs[partition]
            log.config = parsed
            log.dense = log.dense and not parsed.compacts
        return topic

    def delete_topic(self, name: str) -> None:
        """Waits for the disk: when it returns the files are gone, and no crash brings them back."""
        self._require_open()
        topic = self.topic(name)
        self._flush_journal()  # a replay would ignore what is queued for it, but its files must not be in use
        del self._topics[name]
        try:
            self._save_topics(deleting=topic)
        except BaseException:
            self._topics[name], self._by_id = topic, None
            raise
        logs = {self._logs.pop(partition) for partition in topic.each()}
        for log in logs:
            log.deleted = True
        if self._later is not None:
            try:
                self._later.forget(logs)
            except SyncFailed as error:
                self._end(error, topic_files.topic_directory(name))
        try:
            topic_files.finish_deleting(self._disk, topic)
        except OSError as error:
            self._end(error, topic_files.topic_directory(name))
        with suppress(DiskFull):  # the next change, or the next start, takes it off the list
            self._save_topics()

    # Writing

    def append(
        self,
        log: Log,
        batch: bytearray | memoryview,
        header: BatchHeader,
        *,
        leader_epoch: int = 0,
        now_ms: int | None = None,
    ) -> Appended:
        """Append a validated batch, which gets its offsets in place. It is durable, and visible to readers, once
        `log.durable` has reached `next_offset`: see `pump`. The caller leaves the batch as it is until then."""
        (done,) = self.append_each([(log, batch, header, None)], leader_epoch=leader_epoch, now_ms=now_ms)
        if isinstance(done, RivvenError):
            raise done
        return done

    def _appended(self, log: Log, done: Appended, data: Buffer) -> None:
        """Under the policy `none`."""
        base_offset, next_offset, position, _ = done
        if log.deferred_upto == next_offset:
            assert self._later is not None
            self._later.add(log, next_offset, log.active.open_file(), position, data)
        else:
            log.advance(next_offset)
            self._journal.moved[log] = next_offset
        if position == 0 and base_offset > log.start:
            self._checkpoint_wanted = True  # the segment before it is complete, and wants its sync

    def _written(self, log: Log, upto: int) -> None:
        log.advance(upto)
        self._journal.moved[log] = upto

    def append_each(
        self,
        batches: Iterable[tuple[Log, bytearray | memoryview, BatchHeader, object]],
        *,
        leader_epoch: int = 0,
        now_ms: int | None = None,
    ) -> list[Appended | RivvenError]:
        """As `append`, for batches of many partitions, each by itself: what became of every one of them. What they
        bring beyond that is the caller's own."""
        outcomes: list[Appended | RivvenError] = []
        journal, syncs = self._journal, self._policy.writes != 0
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        room_bytes = journal.room_bytes if syncs else NO_LIMIT
        for log, batch, header, _ in batches:
            try:
                if self._closed is not None:
                    raise StoreClosed(reason=self._closed)
                if log.deleted:
                    raise UnknownTopic(partition=f"partition {log.partition}: its topic was deleted")
                if (room_bytes := room_bytes - len(batch)) < 0:
                    journal.admit(len(batch))
                done = log.append(batch, header, now_ms=now_ms, leader_epoch=leader_epoch)
                if not syncs:
                    self._appended(log, done, batch)
                elif log.deferred_upto == done[1]:
                    journal.queue(log, Kind.APPEND, batch, done[1], log.active.file, done[2])
                else:
                    journal.queue(log, Kind.APPEND, batch, done[1])
                outcomes.append(done)
            except RivvenError as error:
                outcomes.append(error)
            except OSError as error:  # a full disk is no OSError any more at this point
                outcomes.append(self._ended(error, log.active.path))
        return outcomes

    def append_run(
        self,
        log: Log,
        data: bytearray | memoryview,
        ends: list[int],
        records: int,
        *,
        numbered: bool,
        leader_epoch: int = 0,
    ) -> Appended | None:
        """As `append`, for batches that stand end to end: one write, and all of them or none; see `Log.append_run`.
        None, too, if they are more than a group of the write-ahead log holds."""
        self._require_open()
        if log.deleted:
            raise UnknownTopic(partition=f"partition {log.partition}: its topic was deleted")
        syncs = self._policy.writes != 0
        if syncs:
            if len(data) > self.config.commit.group_bytes:
                return None
            self._journal.admit(len(data))
        try:
            done = log.append_run(
                data, ends, records, numbered=numbered, now_ms=self._clock.now_ms(), leader_epoch=leader_epoch
            )
        except OSError as error:  # a full disk is no OSError any more at this point
            self._end(error, log.active.path)
        if done is None:
            return None
        file = log.active.file if log.deferred_upto == done.next_offset else None
        if self._policy.writes == 1:
            self._journal.queue(log, Kind.APPEND, data, done[1], file, done.position)
        elif syncs:
            for at, header in walk(data):  # each of them counts
                batch = memoryview(data)[at : at + header.batch_bytes]
                self._journal.queue(log, Kind.APPEND, batch, header.next_offset, file, done.position + at)
        else:
            self._appended(log, done, data)
        return done

    # As the writer of its logs

    def settle(self) -> None:
        """Wait until the segments have everything that was appended to them."""
        try:
            if self._later is not None:
                self._later.settle()
            else:
                self._journal.settle()
        except SyncFailed as error:
            self._end(error, topic_files.TOPICS)

    def truncate(self, log: Log, offset: int) -> Offset:
        """Drop every batch that reaches `offset` or beyond. Waits until a crash can no longer undo it."""
        self._require_open()
        offset = log.end_after_truncation(max(offset, log.start))
        if offset < log.end:
            self._require_no_checkpoint()
            self._note_and_flush([(log, Kind.TRUNCATE, offset)])
            log.truncate(offset)
            lower_clean_upto(self._disk, log.directory, offset)
            if self._policy.writes == 0:
                self._checkpoint_now(clean=False)  # or a replay would take back what is appended from here on
        return log.end

    def delete_before(self, log: Log, offset: int) -> Offset:
        """Make `offset` the first readable one. Waits until a crash can no longer undo it."""
        self._require_open()
        log.check_start(offset)
        self._note_and_flush([(log, Kind.START, offset)])
        self._drop_before(log, offset)
        return log.start

    def _drop_before(self, log: Log, offset: int) -> None:
        try:
            log.drop_before(offset)
        except OSError as error:
            self._end(error, log.directory)

    def retain(self, now_ms: int | None = None) -> dict[TopicPartition, Offset]:
        """Apply retention everywhere; returns the new start of each log that lost something. Waits."""
        self._require_open()
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        starts: list[tuple[Log, Kind, int]] = []
        if self._later is None:
            with suppress(DiskFull):  # those that it concerns are looked at the next time
                self.settle()
        for log in self.logs:
            if not log.unwritten and seals_for_retention(log, now_ms):
                log.roll()
            if (start := start_after_retention(log, now_ms)) > log.start:
                starts.append((log, Kind.START, start))
        if starts:
            self._note_and_flush(starts)
        for log, _, offset in starts:
            self._drop_before(log, offset)
        return {log.partition: log.start for log, _, _ in starts}

    def expire_producers(self) -> int:
        """Forget the producers that have written nothing to a partition since the call before; how many."""
        return sum(log.facts.expire_producers() for log in self.logs)

    def _note_and_flush(self, notes: list[tuple[Log, Kind, int]]) -> None:
        """Put facts about logs into the write-ahead log, behind everything queued, and wait for the sync. They are of
        what is written, so that nothing waits for `later`: it may be for them that there will be room."""
        self._flush_journal()
        for log, kind, offset in notes:
            self._journal.queue(log, kind, OFFSET.pack(offset), log.durable)
        try:
            self._flush_journal(sync=True)
        except (DiskFull, Overloaded):
            self._journal.withdraw()  # the caller is told that it did not happen: so it must not happen later
            raise

    # Committing

    @property
    def waiting(self) -> int:
        """How many writes are not durable yet, a group under way counted as one."""
        return self._journal.waiting + (self._later.unwritten if self._later is not None else 0)

    @property
    def wal_stats(self) -> WalStats:
        return self._wal.stats

    def fileno(self) -> int:
        """Readable when `pump` has something to take."""
        return self._journal.fileno() if self._later is None else self._later.fileno()

    def pump(self) -> list[Log]:
        """Take the group that is done, if one is, and hand over the next. Never waits. Returns the logs whose
        durable offset has moved since the last time, be it by a sync, by a flush or, under `none`, by an append."""
        if self._closed is not None:
            raise StoreClosed(reason=self._closed)
        try:
            if self._later is not None and self._later.unwritten:
                self._later.pump()
            return self._journal.pump()
        except SyncFailed as error:
            self._end(error, WAL)

    def flush(self, *, sync: bool = False) -> None:
        """Wait until everything queued is done; with `sync` also onto the medium, whatever the policy says."""
        self._require_open()
        self.settle()
        self._flush_journal(sync=sync)

    def _flush_journal(self, *, sync: bool = False) -> None:
        try:
            self._journal.flush(sync=sync)
        except SyncFailed as error:
            self._end(error, WAL)

    def _make_room(self, bytes_min: int) -> None:
        """Without a spare at hand: finish a checkpoint if the files are all in use, and prepare one. Waits."""
        if not self._wal.needs_spare:
            self._require_no_checkpoint()
            self._checkpoint_now(clean=False)
        self._prepare_spare_now(bytes_min)

    def _refused(self, error: OSError, path: str, wanted_bytes: int = 0) -> NoReturn:
        if error.errno in NO_ROOM:
            raise DiskFull(wanted_bytes=wanted_bytes, path=path) from error
        self._end(error, path)

    def _require_open(self) -> None:
        if self._closed is not None:
            raise StoreClosed(reason=self._closed)

    # Slow work

    @property
    def has_chores(self) -> bool:
        """Whether `chores` would name any."""
        wal = self._wal
        if (self._checkpoint_wanted or wal.used) and self._chores.free(SyncSegments, SaveCheckpoint):
            return True
        return self._policy.writes != 0 and wal.needs_spare and self._chores.free(PrepareSpare)

    def chores(self) -> list[Chore]:
        """What is due now, each begun and waiting to be `run` and then given to `finish`."""
        self._require_open()
        due: list[Chore] = []
        lacking_bytes = self._journal.lacking_bytes  # a group larger than every spare would wait for ever
        if self._policy.writes and self._wal.needs_spare_for(lacking_bytes) and self._chores.free(PrepareSpare):
            due.append(PrepareSpare(self._wal.prepare(self._spare_bytes(lacking_bytes))))
        wanted = self._checkpoint_wanted or bool(self._wal.used)
        if wanted and self._chores.free(SyncSegments, SaveCheckpoint):
            with suppress(DiskFull):  # not all that it would cover can be written now
                due.append(self._begin_checkpoint(clean=False))
        self._chores.running.update(type(chore) for chore in due)
        return due

    def finish(self, chore: Chore, error: OSError | SyncFailed | None = None) -> list[Chore]:
        """Take a chore back, with the error it ended in if it did. Returns what follows from it, to be run."""
        self._chores.running.discard(type(chore))
        if chore is self._syncing:
            self._syncing = None
        if error is not None:
            self._chore_failed(chore, error)
            return []
        match chore:
            case PrepareSpare(job):
                self._wal.prepared(job)
            case SyncSegments():
                following = self._end_sync(chore)
                self._chores.running.add(SaveCheckpoint)
                return [following]
            case SaveCheckpoint():
                self._end_checkpoint(chore)
            case CleanLog(cleaning) if cleaning.log in self.logs:  # else its topic is deleted
                try:
                    cleaning.finish()
                except OSError as refused:
                    self._refused(refused, cleaning.log.directory)
        return []

    def _chore_failed(self, chore: Chore, error: OSError | SyncFailed) -> None:
        if isinstance(chore, CleanLog) and chore.cleaning.log not in self.logs:
            return  # its topic, and the files, are deleted
        if isinstance(error, SyncFailed) or error.errno not in NO_ROOM:
            self._end(error, type(chore).__name__)
        if isinstance(chore, SyncSegments):
            for part in chore.parts:
                part.log.fail_checkpoint(part)
        if isinstance(chore, SyncSegments | SaveCheckpoint):
            self._checkpoint_wanted = True
        if isinstance(chore, PrepareSpare):
            self._wal.unprepared(chore.job)
        logger.error("%s: no room on the disk; it will be tried again", type(chore).__name__)

    def _end(self, error: OSError | SyncFailed, what: str) -> NoReturn:
        """The disk has failed in a way that leaves its cache in doubt."""
        raise self._ended(error, what) from error

    def _ended(self, error: OSError | SyncFailed, what: str) -> SyncFailed:
        self._closed = f"the disk failed: {error}"
        return error if isinstance(error, SyncFailed) else SyncFailed(path=what, reason=str(error))

    def _begin_checkpoint(self, *, clean: bool) -> SyncSegments:
        self.settle()
        self._checkpoint_wanted = False
        parts = [log.begin_checkpoint() for log in self.logs if log.needs_checkpoint]
        # A group under way is in its segments already, but only what is done may be forgotten.
        groups, needed_from = self._journal.groups_done, self._wal.needed_from
        # Only what it says is not needed may go, and a spare that others have overtaken keeps them needed.
        before_sequence = min(self._wal.current_sequence, needed_from)
        self._syncing = SyncSegments(self._disk, parts, groups, before_sequence, needed_from, clean)
        return self._syncing

    def _end_sync(self, chore: SyncSegments) -> SaveCheckpoint:
        for part in chore.parts:
            part.log.end_checkpoint(part)
        points = {str(partition): self._point(log) for partition, log in self._logs.items()}
        checkpoint = Checkpoint(chore.group, chore.clean, points, chore.needed_from)
        return SaveCheckpoint(self._checkpoints, checkpoint, chore.before_sequence)

    def _point(self, log: Log) -> Point:
        topic_id = self._topics[log.partition.topic].id
        snapshot_upto = log.snapshot_upto if log.snapshot_holds else NO_SUCH_SNAPSHOT
        return Point(topic_id, log.start, log.recovery_point, log.high_watermark, snapshot_upto)

    def _end_checkpoint(self, chore: SaveCheckpoint) -> None:
        for file in self._wal.release(chore.before_sequence):
            remove_file(self._disk, file)

    def checkpoint(self) -> None:
        """Sync every segment and write a checkpoint. Waits."""
        self._require_open()
        self._require_no_checkpoint()
        self.flush()
        self._checkpoint_now(clean=False)

    def _require_no_checkpoint(self) -> None:
        """One checkpoint at a time: an older one saved late would undo the newer."""
        if not self._chores.free(SyncSegments, SaveCheckpoint):
            raise Overloaded(waiting_bytes=self._journal.waiting_bytes, retry_ms=100)

    def _checkpoint_now(self, *, clean: bool) -> None:
        following: list[Chore] = [self._begin_checkpoint(clean=clean)]
        while following:
            chore = following.pop()
            try:
                chore.run()
            except (OSError, SyncFailed) as error:
                self.finish(chore, error)  # which raises unless it was for want of room
                raise DiskFull(wanted_bytes=0, path=CHECKPOINT) from error
            following = self.finish(chore)

    def _spare_bytes(self, group_bytes: int) -> int:
        return max(self.config.wal_file_bytes, group_bytes + WAL_HEADER_BYTES)

    def _prepare_spare_now(self, bytes_min: int = 0) -> None:
        """A spare at once: a small one if that will do, so that a new store starts without delay."""
        small_bytes = self.config.wal_first_file_bytes
        first = self._wal.files_in_use == 0 and bytes_min + WAL_HEADER_BYTES <= small_bytes
        job = self._wal.prepare(small_bytes if first else self._spare_bytes(bytes_min))
        try:
            job.run()
        except OSError as error:
            self._wal.unprepared(job)
            self._refused(error, WAL, job.file_bytes)
        self._wal.prepared(job)

    def begin_cleaning(self, log: Log, *, force: bool = False, now_ms: int | None = None) -> CleanLog | None:
        """A compaction pass over one log, if there is something to clean and none is under way."""
        self._require_open()
        if not log.config.compacts or not self._chores.free(CleanLog):
            return None
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        cleaning = Cleaning.begin(self._disk, log, now_ms, force=force)
        if cleaning is None:
            self._checkpoint_wanted = self._checkpoint_wanted or log.sealed_unsynced
            return None
        self._chores.running.add(CleanLog)
        return CleanLog(cleaning)

    def clean(self, *, force: bool = False, now_ms: int | None = None) -> list[CleanReport]:
        """Compact every log that asks for it, now. Waits."""
        reports = []
        for log in self.logs:
            if (chore := self.begin_cleaning(log, force=force, now_ms=now_ms)) is not None:
                try:
                    chore.run()
                except OSError as failed:
                    self.finish(chore, failed)
                    raise DiskFull(wanted_bytes=0, path=log.directory) from failed
                self.finish(chore)
                reports.append(chore.cleaning.report)
        return reports

    # Closing

    def close(self) -> None:
        """Flush, sync everything, leave the mark of a good end, and give the directory up. Waits.
        Chores that were begun are over: none of them may run, or be finished, from here on."""
        if self._closed is None:
            self._take_back_checkpoint()
            try:
                self.flush()
                self._checkpoint_now(clean=True)
            except DiskFull as error:
                logger.warning("%s; what was acknowledged is there, and the next start looks through it", error)
        self.abandon("closed")

    def _take_back_checkpoint(self) -> None:
        """What a checkpoint under way has promised to sync is still to be synced, since nobody will finish it."""
        if self._syncing is not None:
            for part in self._syncing.parts:
                part.log.fail_checkpoint(part)
            self._syncing = None
        self._chores.running -= {SyncSegments, SaveCheckpoint}

    def abandon(self, reason: str = "abandoned") -> None:
        """Give the directory up as it is, without writing anything more."""
        if self._closed is None or not self._closed.startswith(("closed", "abandoned")):
            self._closed = reason
            self._close_files()
            for log in self._logs.values():
                log.close()
            self._lock.release()

    def _close_files(self) -> None:
        self._journal.close()
        if self._later is not None:
            self._later.close()


def _batch_by_batch(entry: Entry) -> list[Entry]:
    """An append of several batches as one of each."""
    if entry.kind is not Kind.APPEND:
        return [entry]
    return [
        entry._replace(payload=entry.payload[position : position + header.batch_bytes])
        for position, header in walk(entry.payload)
    ]


def _point_of(checkpoint: Checkpoint | None, topic: Topic, partition: TopicPartition) -> Point | None:
    """What is known of a partition; None only if the checkpoint is lost. A topic younger than it begins at 0."""
    if checkpoint is None:
        return None
    point = checkpoint.partitions.get(str(partition))
    return point if point is not None and point.topic_id == topic.id else Point(topic.id, 0, 0, 0)

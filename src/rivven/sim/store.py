"""A store on the simulated disk beside a plain model of what it promised, and the comparison of the two.

Each method of `StoreWorld` is one thing that may happen: appends, group commits, chores, rolls, cleaning,
truncation, deletion, a full disk, a failing sync, the death of the process, the loss of power; also in the middle
of any of the others. After each restart, and whenever asked, everything in the store is read back.

The promises: nothing acknowledged is lost or changed, nothing is invented, order is kept, offsets are dense except
where compaction removed, and a crash alone is never reported as damage.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from rivven.errors import DiskFull, Overloaded, SyncFailed
from rivven.log import Appended, CommitLimits, Log, Store, StoreConfig, SyncPolicy, Topic
from rivven.record import decode, encode, walk

from .clock import SimClock, SimEntropy
from .disk import Halted, SimDisk

KEYS = 6
Value = tuple[bytes | None, bytes | None]


@dataclass(slots=True)
class Expected:
    """What the model knows of one partition."""

    compacts: bool
    sent: dict[int, Value] = field(default_factory=dict)
    """What was appended at each offset last."""
    maybe: dict[int, set[Value]] = field(default_factory=dict)
    """What an interrupted truncation may have left or taken."""
    bases: set[int] = field(default_factory=set)
    """The offsets that batches began at."""
    acked: int = 0
    """Everything below was acknowledged."""
    start: int = 0
    start_max: int = 0
    """Where an interrupted deletion may have moved the start to."""

    def candidates(self, offset: int) -> set[Value]:
        known = {self.sent[offset]} if offset in self.sent else set()
        return known | self.maybe.get(offset, set())


class StoreWorld:
    """One data directory through many lives."""

    def __init__(self, seed: int, *, policy: str = "every_write") -> None:
        self._rng = Random(seed)
        self.disk = SimDisk(self._rng)
        self.clock = SimClock()
        self._entropy = SimEntropy(self._rng)
        self._policy = SyncPolicy.parse(policy)
        self._config = StoreConfig(
            sync_policy=self._policy,
            commit=CommitLimits(group_bytes=8 * 1024, group_writes=8, waiting_bytes_max=64 * 1024),
            wal_file_bytes=24 * 1024,
            wal_first_file_bytes=12 * 1024,
            wal_files_max=3,
            later_bytes_min=150,
        )
        self._sent_count = 0
        self.topics: dict[str, bool] = {}
        """Whether each topic is certain to exist; one in the middle of being made or deleted is not."""
        self.expected: dict[tuple[str, int], Expected] = {}
        self.store: Store = self._open()
        for name, policy_text in (("plain", "delete"), ("keyed", "compact")):
            self.create_topic(name, 2, {"cleanup.policy": policy_text, "segment.bytes": "1024"})

    def _open(self) -> Store:
        return Store(self.disk, self.clock, self._entropy, self._config)

    # What may happen

    def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        if name in self.topics:
            return
        compacts = "compact" in configs.get("cleanup.policy", "")
        for number in range(partitions):
            self.expected[name, number] = Expected(compacts)
        self.topics[name] = False
        try:
            self.store.create_topic(name, partitions, configs | {"index.interval.bytes": "256"})
            self.topics[name] = True
        except DiskFull:
            self._forget(name)

    def delete_topic(self, name: str) -> None:
        if name in self.topics:
            self.topics[name] = False
            try:
                self.store.delete_topic(name)
                self._forget(name)
            except DiskFull:
                self.topics[name] = True

    def _forget(self, name: str) -> None:
        self.topics.pop(name)
        for key in [key for key in self.expected if key[0] == name]:
            del self.expected[key]

    def append(self, name: str, partition: int, keys: list[int], value_bytes: int = 20) -> None:
        """A batch of records with these keys; a negative key is a tombstone for its absolute value."""
        self.append_run(name, partition, [keys], value_bytes)

    def append_run(self, name: str, partition: int, batches: list[list[int]], value_bytes: int = 20) -> None:
        """Batches of records with these keys, in one write."""
        if name not in self.topics:
            return
        log, expected = self.store.log(name, partition), self.expected[name, partition]
        data = bytearray()
        values: list[Value] = []
        bases: list[int] = []
        for keys in batches:
            bases.append(log.end + len(values))
            new = [self._value(key, value_bytes) for key in keys]
            data += encode([(self.clock.now_ms() + i, key, value, ()) for i, (key, value) in enumerate(new)])
            values += new
        base = log.end
        # Noted before it is asked for: a process that dies in the middle may have done any part of it.
        for place, value_pair in enumerate(values):
            expected.maybe.setdefault(base + place, set()).add(value_pair)
        with suppress(DiskFull, Overloaded):
            headers = [header for _, header in walk(data)]
            if len(headers) == 1:
                done: Appended | None = self.store.append(log, data, headers[0])
            else:
                ends = list(accumulate(header.batch_bytes for header in headers))
                done = self.store.append_run(log, data, ends, len(values), numbered=False)
            if done is not None:  # else it is too much for a segment, and nothing was written
                assert (done.base_offset, done.next_offset) == (base, base + len(values)), "offsets are dense"
                expected.bases.update(bases)
                for place, value_pair in enumerate(values):
                    expected.sent[base + place] = value_pair
        self._note_acks()

    def _value(self, key: int, value_bytes: int) -> Value:
        self._sent_count += 1
        value = b"%d:" % self._sent_count + b"x" * value_bytes
        return b"key-%d" % abs(key), None if key < 0 else value

    def pump(self) -> None:
        self.store.pump()
        self._note_acks()

    def flush(self) -> None:
        with suppress(DiskFull):
            self.store.flush()
        self._note_acks()

    def chores(self) -> None:
        """Everything that is due."""
        for chore in self.store.chores():
            following = [chore]
            while following:
                chore = following.pop()
                try:
                    chore.run()
                except (OSError, SyncFailed) as error:
                    self.store.finish(chore, error)
                    break
                following = self.store.finish(chore)

    def checkpoint(self) -> None:
        with suppress(DiskFull):
            self.store.checkpoint()
        self._note_acks()

    def roll(self, name: str, partition: int) -> None:
        if name in self.topics:
            with suppress(DiskFull):
                self.store.log(name, partition).roll()

    def clean(self, *, force: bool = True) -> None:
        with suppress(DiskFull, OSError):
            self.store.clean(force=force)

    def retain(self, advance_ms: int) -> None:
        """Let time pass and apply retention."""
        self.clock.advance(ms=advance_ms)
        for (name, number), expected in self.expected.items():
            if not expected.compacts and self.topics.get(name):
                expected.start_max = max(expected.start_max, self.store.log(name, number).end)
        with suppress(DiskFull):
            self.store.retain()
            self._settle_starts()
        self._note_acks()

    def truncate(self, name: str, partition: int, back: int) -> None:
        """Drop the last `back` offsets, as a follower does that finds itself diverged."""
        if name not in self.topics:
            return
        log, expected = self.store.log(name, partition), self.expected[name, partition]
        # Where there is compaction never below the high watermark, as no follower does: what a later record made
        # superfluous is gone, and must not be missed when that record goes as well.
        offset = max(log.start, log.end - back, log.high_watermark if expected.compacts else 0)
        # If it is interrupted, what it would have dropped may be there or not. Whole batches go; where compaction
        # has emptied the log before them, so do the offsets that nothing holds any more.
        try:
            base = log.end_after_truncation(offset)
        except DiskFull:  # it waits for what is to be written, and is refused like the truncation itself
            self._note_acks()
            return
        assert base <= offset
        expected.acked = min(expected.acked, base)
        for place in range(base, log.end):
            if place in expected.sent:
                expected.maybe.setdefault(place, set()).add(expected.sent[place])
        with suppress(DiskFull):
            self.store.truncate(log, offset)
            for place in [place for place in expected.sent if place >= log.end]:
                del expected.sent[place]
            for place in [place for place in expected.maybe if place >= log.end]:
                del expected.maybe[place]
        self._note_acks()

    def delete_before(self, name: str, partition: int, back: int) -> None:
        if name not in self.topics:
            return
        log, expected = self.store.log(name, partition), self.expected[name, partition]
        offset = max(log.start, log.high_watermark - back)
        expected.start_max = max(expected.start_max, offset)
        with suppress(DiskFull):
            self.store.delete_before(log, offset)
            self._settle_starts()
        self._note_acks()

    def _settle_starts(self) -> None:
        for (name, number), expected in self.expected.items():
            if self.topics.get(name):
                expected.start = expected.start_max = self.store.log(name, number).start

    def fill_disk(self, spare_bytes: int) -> None:
        self.disk.capacity_bytes = sum(map(len, self.disk.snapshot().values())) + spare_bytes

    def free_disk(self) -> None:
        self.disk.capacity_bytes = None

    def restart(self) -> None:
        """A shutdown in good order."""
        self.flush()
        self.free_disk()
        self.store.close()
        self._reopen(power_lost=False)
        assert self.store.recovery.clean

    def kill(self) -> None:
        self.disk.kill()
        self._reopen(power_lost=False)

    def crash(self) -> None:
        self.disk.crash()
        self._reopen(power_lost=True)

    def interrupted(self, action: Callable[[], object], after: int, *, power_lost: bool) -> None:
        """Do something and die in the middle of it, at its `after`-th operation on the disk (or just after)."""
        self.disk.halt_after(after)
        with suppress(Halted):
            action()
        self.crash() if power_lost else self.kill()

    def interrupted_start(self, after: int, *, power_lost: bool) -> None:
        """Die, and again in the middle of the start that follows, at its `after`-th operation (or just after)."""
        self.disk.crash() if power_lost else self.disk.kill()
        self.disk.heal()
        self.free_disk()
        self.disk.halt_after(after)
        with suppress(Halted):
            self._open()
        self.crash() if power_lost else self.kill()

    def failing_sync(self, action: Callable[[], object], *, power_lost: bool) -> None:
        """The disk refuses a sync: the store ends, and so does the process."""
        self.disk.fail("sync", errno.EIO)
        with suppress(SyncFailed, OSError):
            action()
        self.disk.heal()
        self.crash() if power_lost else self.kill()

    # The comparison

    def _note_acks(self) -> None:
        for (name, number), expected in self.expected.items():
            if self.topics.get(name):
                expected.acked = max(expected.acked, self.store.log(name, number).durable)

    def _reopen(self, *, power_lost: bool) -> None:
        self.disk.heal()
        self.free_disk()
        self.store = self._open()
        report = self.store.recovery
        assert report.intact, f"a crash is not damage: {report.damage}"
        present = {topic.name: topic for topic in self.store.topics}
        for name, certain in list(self.topics.items()):
            assert name in present or not certain, f"topic {name} is lost"
            if name not in present:
                self._forget(name)
        lost_writes = sum(self._compare_life(topic, power_lost=power_lost) for topic in present.values())
        if power_lost and self._policy.writes > 1:
            assert lost_writes < self._policy.writes, f"{lost_writes} acknowledged writes lost"

    def _compare_life(self, topic: Topic, *, power_lost: bool) -> int:
        """Compare a topic with the model after a restart, and begin the model anew from what is there.
        Returns how many acknowledged batches a lenient policy has lost."""
        assert topic.name in self.topics, f"topic {topic.name} was deleted"
        self.topics[topic.name] = True
        lost = 0
        for partition in topic.each():
            expected = self.expected[partition]
            log = self.store.log(*partition)
            found = read_all(log)
            strict = not power_lost or self._policy.writes == 1
            lost += self._check(str(partition), log, expected, found, strict=strict)
            self.expected[partition] = Expected(
                expected.compacts, dict(found), acked=log.end, start=log.start, start_max=log.start
            )
        return lost

    def _check(self, name: str, log: Log, expected: Expected, found: dict[int, Value], *, strict: bool) -> int:
        assert expected.start <= log.start <= max(expected.start, expected.start_max), f"{name}: start {log.start}"
        assert log.durable == log.end or not strict
        for offset, value in found.items():
            assert value in expected.candidates(offset), f"{name}: {value!r} at {offset} was never sent there"
        missing = [
            offset
            for offset in expected.sent
            if log.start <= offset < expected.acked
            and offset not in found
            and not (expected.compacts and superseded(offset, expected, found))
        ]
        assert not (strict and missing), f"{name}: acknowledged offsets {missing[:5]} are lost"
        if not expected.compacts:
            assert list(found) == list(range(log.start, log.end)), f"{name}: offsets are not dense"
        assert log.end >= expected.acked or not strict, f"{name}: the end went back to {log.end}"
        return len(expected.bases.intersection(missing))

    def check(self) -> None:
        """Read everything that is visible now and compare it with the model."""
        for (name, number), expected in self.expected.items():
            if self.topics.get(name):
                log = self.store.log(name, number)
                found = read_all(log, upto=log.high_watermark)
                for offset, value in found.items():
                    assert value == expected.sent.get(offset), f"{name}/{number}: {value!r} at {offset}"
                expected_offsets = range(log.start, log.high_watermark)
                assert expected.compacts or list(found) == list(expected_offsets), f"{name}/{number}: not dense"
                for offset in expected_offsets:
                    assert offset in found or superseded(offset, expected, found), f"{name}/{number}: {offset}"


def superseded(offset: int, expected: Expected, found: dict[int, Value]) -> bool:
    """Whether compaction may have removed this offset: a later record of its key is there, or it was a tombstone,
    or nothing is known of it any more."""
    if offset not in expected.sent:
        return True
    key, value = expected.sent[offset]
    if value is None:
        return True
    return any(place > offset and other == key for place, (other, _) in found.items()) or any(
        place > offset and other == key for place, (other, gone) in expected.sent.items() if gone is None
    )


def read_all(log: Log, upto: int | None = None) -> dict[int, Value]:
    """Every record from the log's start on, by offset, read in odd steps."""
    limit = log.end if upto is None else upto
    found: dict[int, Value] = {}
    offset = int(log.start)
    while offset < limit:
        data = log.read(offset, bytes_max=700, upto=limit)
        assert len(data), f"{log.partition}: nothing at {offset}, below {limit}"
        for position, header in walk(data):
            for record in decode(data, position):
                if record.offset >= log.start:
                    assert record.offset not in found
                    found[record.offset] = (record.key, record.value)
            assert header.next_offset > offset
            offset = header.next_offset
    return found

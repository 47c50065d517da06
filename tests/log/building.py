"""A store on a simulated disk, small enough to look through, and words for what tests do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rivven.errors import CorruptLog
from rivven.limits import DEFER_BYTES_MAX, KIB
from rivven.log import Appended, CommitLimits, Log, Store, StoreConfig, SyncPolicy
from rivven.record import BatchHeader, NewRecord, Record, decode, encode, encode_marker, validate, walk
from rivven.sim import Halted, SimClock, SimDisk, SimEntropy

NOW_MS = 1_700_000_000_000
SMALL = {"segment.bytes": "1024", "index.interval.bytes": "200"}


def rows(*values: bytes | None, key: bytes | None = None, timestamp_ms: int = NOW_MS) -> list[NewRecord]:
    return [(timestamp_ms, key, value, ()) for value in values]


def batch_of(*values: bytes | None, key: bytes | None = None, timestamp_ms: int = NOW_MS, **more: Any) -> bytearray:
    """One batch with a record for each value."""
    return encode(rows(*values, key=key, timestamp_ms=timestamp_ms), **more)


LATER_BYTES = 300
"""Appends of so many bytes are written later, under the policy `none`."""


def small_config(
    policy: str = "every_write", *, defer_bytes_max: int = DEFER_BYTES_MAX, **commit: Any
) -> StoreConfig:
    return StoreConfig(
        sync_policy=SyncPolicy.parse(policy),
        commit=CommitLimits(**commit),
        wal_file_bytes=256 * KIB,
        wal_first_file_bytes=64 * KIB,
        later_bytes_min=LATER_BYTES,
        defer_bytes_max=defer_bytes_max,
    )


def finish_chores(store: Store) -> int:
    """Run whatever is due, and what follows from it, until nothing is; returns how many there were."""
    count = 0
    while due := store.chores():
        while due:
            chore = due.pop()
            chore.run()
            due += store.finish(chore)
            count += 1
    return count


@dataclass
class World:
    """A disk, a clock and the store of the moment."""

    disk: SimDisk
    clock: SimClock = field(default_factory=SimClock)
    config: StoreConfig = field(default_factory=small_config)
    entropy_seed: int = 1
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> Store:
        self.entropy_seed += 1
        self.store = Store(self.disk, self.clock, SimEntropy(Random(self.entropy_seed)), self.config)
        return self.store

    def reopen(self, end: str = "close") -> Store:
        """End this life by `close`, `kill` (the process) or `crash` (the power), and begin the next."""
        self.end(end)
        return self.open()

    def end(self, end: str) -> None:
        {"close": self.store.close, "kill": self.disk.kill, "crash": self.disk.crash}[end]()

    def log(self, topic: str = "t", partition: int = 0) -> Log:
        return self.store.log(topic, partition)

    def put(self, batch: bytearray, *, topic: str = "t", partition: int = 0, **options: Any) -> Appended:
        """Append without waiting for anything."""
        return self.store.append(self.log(topic, partition), batch, validate(batch), **options)

    def write(self, *values: bytes | None, topic: str = "t", partition: int = 0, **options: Any) -> Appended:
        """Append a batch and wait until it is durable."""
        epoch = options.pop("leader_epoch", 0)
        done = self.put(batch_of(*values, **options), topic=topic, partition=partition, leader_epoch=epoch)
        self.store.flush()
        return done

    def mark(self, producer_id: int, *, commit: bool) -> Appended:
        """End a producer's transaction."""
        marker = encode_marker(commit=commit, producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW_MS)
        done = self.put(marker)
        self.store.flush()
        return done


def new_world(
    seed: int = 0,
    *,
    configs: dict[str, str] | None = None,
    policy: str = "every_write",
    capacity_bytes: int | None = None,
    topic: bool = True,
    **commit: Any,
) -> World:
    """An open store with the topic `t` of one partition, whose segments and index intervals are tiny. With
    `defer_bytes_max=0` all is written to its segment when it is appended."""
    world = World(SimDisk(Random(seed), capacity_bytes=capacity_bytes), config=small_config(policy, **commit))
    if topic:
        world.store.create_topic("t", 1, SMALL if configs is None else SMALL | configs)
    return world


def transactional(*, producer_id: int = 7, base_sequence: int = 0, **options: Any) -> dict[str, Any]:
    """What makes `write` write for a transaction."""
    return {
        "producer_id": producer_id,
        "producer_epoch": 0,
        "base_sequence": base_sequence,
        "transactional": True,
        **options,
    }


# What a log holds


def headers_of(log: Log) -> list[BatchHeader]:
    """The headers of all visible batches, in order, read from the start to the high watermark."""
    found: list[BatchHeader] = []
    offset = int(log.start)
    while offset < log.high_watermark:
        data = log.read(offset, bytes_max=700)
        assert data, f"nothing at {offset}, below the high watermark {log.high_watermark}"
        found += (header for _, header in walk(data))
        offset = found[-1].next_offset
    return found


def records_of(log: Log) -> list[Record]:
    """All visible records, without markers."""
    found: list[Record] = []
    offset = int(log.start)
    while offset < log.high_watermark:
        data = log.read(offset, bytes_max=700)
        assert data, f"nothing at {offset}, below the high watermark {log.high_watermark}"
        for position, header in walk(data):
            if not header.control:
                found += (record for record in decode(data, position) if record.offset >= log.start)
            offset = header.next_offset
    return found


def values_of(log: Log) -> list[bytes | None]:
    return [record.value for record in records_of(log)]


def survey(log: Log) -> tuple[dict[int, Record], list[CorruptLog]]:
    """Every record that can be read, by offset, and the errors met on the way; each names what it covers."""
    found: dict[int, Record] = {}
    errors: list[CorruptLog] = []
    offset = int(log.start)
    while offset < log.high_watermark:
        try:
            data = log.read(offset, bytes_max=700)
            assert data, f"nothing at {offset}, below the high watermark {log.high_watermark}"
            for position, header in walk(data):
                if not header.control:
                    found.update({record.offset: record for record in decode(data, position)})
                offset = header.next_offset
        except CorruptLog as error:
            errors.append(error)
            offset = max(offset, error.facts["last"]) + 1
    return found, errors


def facts_of(log: Log) -> dict[str, Any]:
    """The derived facts as plain values; producers by id, since their order means only who goes first."""
    facts = log.facts.snapshot(0)
    return {
        "epochs": facts.epochs,
        "producers": {row.producer_id: row for row in facts.producers},
        "open": facts.open_transactions,
        "aborted": facts.aborted,
        "last_stable": log.last_stable,
    }


def names_of(disk: SimDisk, suffix: str, under: str = "topics") -> list[str]:
    return [path for path in disk.snapshot() if path.endswith(suffix) and path.startswith(under)]


def remove_all(disk: SimDisk, suffix: str) -> list[str]:
    """Delete all files of a kind, as a careless hand might."""
    paths = names_of(disk, suffix)
    for path in paths:
        disk.remove(path)
    return paths


def copy_of(files: dict[str, bytes], seed: int = 0) -> SimDisk:
    """A disk that holds these files, all durable."""
    disk = SimDisk(Random(seed))
    directories = {""}
    for path, content in files.items():
        directory = path.rpartition("/")[0]
        disk.make_dirs(directory)
        parts = directory.split("/")
        directories.update("/".join(parts[:depth]) for depth in range(len(parts) + 1))
        file = disk.open(path, create=True)
        file.write(content, 0)
        file.sync()
        file.close()
    for directory in directories:
        disk.sync_dir(directory)
    return disk


def at_every_halt(
    build: Callable[[int], World],
    act: Callable[[World], object],
    check: Callable[[World], None],
    *,
    seeds: int = 2,
    stride: int = 1,
) -> int:
    """Play `act` and stop it after 0, 1, 2... operations; let the power or the process go, reopen, and check.
    Returns how many operations `act` takes."""
    operations = 0
    while True:
        finished = False
        for seed in range(seeds):
            for end in ("crash", "kill"):
                world = build(operations * seeds + seed)
                world.disk.halt_after(operations)
                try:
                    act(world)
                    finished = True
                except Halted:
                    pass
                world.end(end)
                world.open()
                check(world)
                world.store.close()
        if finished:
            return operations
        operations += stride

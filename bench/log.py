"""What does durability cost, and what does it not? Group commit, a thousand partitions, reading, recovery.

Each question is a ratio of two figures measured in the same run, in rounds that take turns, because the machine is
shared: a slow minute falls on both. `run()` returns one result per question; `python -m bench log` prints them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.spread import Result, versus
from rivven.limits import MIB
from rivven.log import Log, Store, StoreConfig, SyncPolicy
from rivven.record import encode, validate, walk
from rivven.system import SystemClock, SystemDisk, SystemEntropy

ROUND_WRITERS = 64
PARTITIONS = 1000


def batch_of(count: int, value_bytes: int) -> bytearray:
    records = [(1_700_000_000_000 + i, b"key-%06d" % i, b"v" * value_bytes, ()) for i in range(count)]
    return bytearray(encode(records))


def run(*, quick: bool = False) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix=".bench-log-", dir=".") as root:
        return [*commits(root, quick=quick), reading(root, quick=quick), *recovery(root, quick=quick)]


@contextmanager
def store_of(root: str, partitions: int, policy: str = "every_write") -> Iterator[tuple[Store, list[Log]]]:
    path = tempfile.mkdtemp(dir=root)
    disk = SystemDisk(path)
    store = Store(disk, SystemClock(), SystemEntropy(), StoreConfig(sync_policy=SyncPolicy.parse(policy)))
    store.create_topic("bench", partitions)
    do_chores(store)
    try:
        yield store, [store.log("bench", number) for number in range(partitions)]
    finally:
        store.close()
        disk.close()
        shutil.rmtree(path)


def do_chores(store: Store) -> None:
    following = store.chores()
    while following:
        chore = following.pop()
        chore.run()
        following += store.finish(chore)


def per_second(action: Callable[[], int], seconds: float) -> float:
    """How much `action` does per second; it returns how much it did."""
    done = 0
    begun = time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds:
        done += action()
    return done / passed


# Group commit


def commits(root: str, *, quick: bool) -> list[Result]:
    """64 writers a round, as many requests arrive together: each waits until its append is durable."""
    rounds, seconds = (2, 0.3) if quick else (7, 1.0)
    prototype = batch_of(1, 100)
    with store_of(root, 1) as (one, one_logs), store_of(root, PARTITIONS) as (many, many_logs):
        alone = [SystemDisk(root).open(f"alone-{i}", create=True) for i in range(PARTITIONS)]
        places = [0] * PARTITIONS
        turn = 0

        def group(store: Store, logs: list[Log]) -> int:
            nonlocal turn
            for _ in range(ROUND_WRITERS):
                turn += 1
                batch = bytearray(prototype)
                store.append(logs[turn % len(logs)], batch, validate(batch))
            store.flush()
            return ROUND_WRITERS

        def sync_each(files: int) -> int:
            """One fsync per append, each to its own file: what a log per partition costs without a shared journal."""
            nonlocal turn
            for _ in range(8):
                turn += 1
                place = turn % files
                alone[place].write(prototype, places[place])
                alone[place].sync()
                places[place] += len(prototype)
            return 8

        ways: dict[str, Callable[[], int]] = {
            "group_1": lambda: group(one, one_logs),
            "group_1000": lambda: group(many, many_logs),
            "fsync_each_1": lambda: sync_each(1),
            "fsync_each_1000": lambda: sync_each(PARTITIONS),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            per_second(way, seconds / 4)  # warm up
        for _ in range(rounds):
            for name, way in ways.items():
                rates[name].append(per_second(way, seconds))
                do_chores(one)
                do_chores(many)
        syncs = one.wal_stats
    one_rates, many_rates = rates["group_1"], rates["group_1000"]
    return [
        ratio("group commit, 64 writers", one_rates, "one fsync per append", rates["fsync_each_1"], 20),
        ratio("durable append, 1,000 partitions", many_rates, "1 partition", one_rates, 0.6),
        ratio("durable append, 1,000 partitions", many_rates, "syncing each file", rates["fsync_each_1000"], 15),
        {
            "bench": "write and sync of a group of 64",
            "unit": "us",
            "value": round(syncs.sync_us_total / max(1, syncs.syncs)),
        },
    ]


def ratio(
    bench: str, ours: list[float], other: str, theirs: list[float], target: float, unit: str = "appends/s"
) -> Result:
    return versus(bench, unit, ours, f"rivven's log, {other}", theirs, target=target)


# Reading


def reading(root: str, *, quick: bool) -> Result:
    """A warm log from end to end through `Log.read`, checked, beside plain preads of the same bytes."""
    total_bytes = (32 if quick else 256) * MIB
    batch = batch_of(1000, 1000)
    with store_of(root, 1, "none") as (store, (log,)):
        for _ in range(total_bytes // len(batch)):
            copy = bytearray(batch)
            store.append(log, copy, validate(copy))
        path = f"{store._disk.root}/{log.active.path}"  # type: ignore[attr-defined]
        fd = os.open(path, os.O_RDONLY)

        def ours() -> int:
            offset, seen = 0, 0
            while offset < log.high_watermark:
                data = log.read(offset, bytes_max=MIB)
                seen += len(data)
                for _, header in walk(data):
                    offset = header.next_offset
                del data  # or the next read finds no warm memory, unlike the plain one
            return seen

        def plain() -> int:
            return sum(len(os.pread(fd, MIB, position)) for position in range(0, log.size_bytes, MIB))

        ours(), plain()
        rates: dict[str, list[float]] = {"ours": [], "plain": []}
        for _ in range(2 if quick else 9):
            rates["ours"].append(per_second(ours, 0.3))
            rates["plain"].append(per_second(plain, 0.3))
        os.close(fd)
    ours_rates, plain_rates = ([rate / MIB for rate in rates[name]] for name in ("ours", "plain"))
    return ratio("sequential read of a warm log", ours_rates, "plain pread", plain_rates, 0.5, "MiB/s")


# Recovery


def recovery(root: str, *, quick: bool) -> list[Result]:
    """Start with 1,000 partitions and 10 GB on disk (0.5 GB with --quick), after a bad end and after a good one."""
    total_bytes = (256 if quick else 10 * 1024) * MIB
    if shutil.disk_usage(root).free < 2 * total_bytes:
        return [{"bench": "recovery", "note": "left out: not enough room on this disk"}]
    path = tempfile.mkdtemp(dir=root)
    disk = SystemDisk(path)
    store = Store(disk, SystemClock(), SystemEntropy(), StoreConfig())
    store.create_topic("bench", PARTITIONS)
    batch = batch_of(500, 1000)
    filled = 0
    while filled < total_bytes:
        for number in range(PARTITIONS):
            copy = bytearray(batch)
            store.append(store.log("bench", number), copy, validate(copy))
            filled += len(copy)
            if store._journal.waiting_bytes > 16 * MIB:
                store.flush()
        do_chores(store)
    store.flush()
    store.abandon()  # as a kill leaves it: no checkpoint, no mark
    results = []
    for name in ("after a stop without a checkpoint", "after a clean end"):
        begun = time.perf_counter()
        store = Store(disk, SystemClock(), SystemEntropy(), StoreConfig())
        passed = time.perf_counter() - begun
        store.close()
        results.append(
            {
                "bench": f"start with 1,000 partitions, {filled / 1024**3:.1f} GiB, {name}",
                "unit": "s",
                "value": round(passed, 2),
                "target": 3,
                "met": passed <= 3,
                "checked": store.recovery.batches_checked,
                "replayed": store.recovery.replayed,
            }
        )
    disk.close()
    shutil.rmtree(path)
    return results

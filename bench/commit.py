"""What does one durable group cost, and what do a thousand syncs or reads? Each way that we have.

The rounds of the candidates
are interleaved and each figure is the median of its rounds, since whatever else the machine does falls on all
alike. The files lie below the current directory, which therefore has to be on the disk that is meant.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from rivven.limits import MIB
from rivven.ports import Committer
from rivven.system import BatchKind, CommitterKind, SystemDisk, SystemFile, new_committer

GROUP = [bytes([65 + i % 26]) * 200 for i in range(64)]
GROUP_BYTES = sum(map(len, GROUP))
FILE_BYTES = 64 * MIB
GROUPS_PER_ROUND = 200
COMMIT_ROUNDS = 7
COMMIT_SECONDS_MAX = 10.0

FILES = 1000
BATCH_ROUNDS = 5
BATCH_SECONDS_MAX = 8.0
BATCH_BENCHES = ("sync_1000", "read_1000_cold", "read_1000_warm")

KINDS: tuple[CommitterKind, ...] = ("thread", "native", "uring")
BATCHES: tuple[BatchKind, ...] = ("plain", "uring")

Commit = Callable[[SystemFile, int], None]
Way = tuple[str, str]


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix=".bench-commit-", dir=".") as root:
        return [*committers(root, quick=quick), *batches(root, quick=quick)]


def committers(root: str, *, quick: bool) -> list[dict[str, Any]]:
    """Write and sync one group after the other, each way in turn, into a file whose blocks are all there.

    `commit_group` waits for each; in `commit_group_busy` the caller's thread computes in Python meanwhile, as
    an event loop under load does, and looks for the completion every few microseconds.
    """
    disk = SystemDisk(root)
    file = _zero_filled(disk)
    available, refused = _available_committers()
    ways: dict[Way, Commit] = {("commit_group", "inline"): _commit_inline}
    for kind, committer in available.items():
        ways["commit_group", kind] = _commit_with(committer)
        ways["commit_group_busy", kind] = _commit_beside_work(committer)
    rounds_us: dict[Way, list[list[float]]] = {way: [] for way in sorted(ways)}
    position = 0
    deadline = time.monotonic() + COMMIT_SECONDS_MAX
    for _ in range(1 if quick else COMMIT_ROUNDS):
        for way in rounds_us:
            commit = ways[way]
            taken_us = []
            for _ in range(GROUPS_PER_ROUND):
                position = position + GROUP_BYTES if position + 2 * GROUP_BYTES <= FILE_BYTES else 0
                start_ns = time.perf_counter_ns()
                commit(file, position)
                taken_us.append((time.perf_counter_ns() - start_ns) / 1000)
            rounds_us[way].append(taken_us)
        if time.monotonic() > deadline:
            break
    for committer in available.values():
        committer.close()
    file.close()
    disk.close()
    return [_commit_figures(way, rounds) for way, rounds in rounds_us.items()] + refused


def batches(root: str, *, quick: bool) -> list[dict[str, Any]]:
    """A thousand files: sync them all when all are dirty, then read from each what is not in the cache, and
    then what is; one by one, and with each kind of batch."""
    disks, refused = _available_batches(root)
    rounds_ms: dict[Way, list[float]] = {(bench, way): [] for bench in BATCH_BENCHES for way in disks}
    files = [disks["sequential"].open(f"file-{number:04}", create=True) for number in range(FILES)]
    length_bytes = 0
    deadline = time.monotonic() + BATCH_SECONDS_MAX
    for _ in range(1 if quick else BATCH_ROUNDS):
        for way, disk in disks.items():
            for file in files:
                file.write(b"x" * 4096, length_bytes)  # growing, as segments are: each sync needs the journal
            length_bytes += 4096
            in_batch = way != "sequential"
            rounds_ms["sync_1000", way].append(_timed_ms(lambda: _sync_all(disk, files, in_batch)))  # noqa: B023
            for file in files:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for bench in ("read_1000_cold", "read_1000_warm"):
                rounds_ms[bench, way].append(_timed_ms(lambda: _read_all(disk, files, in_batch)))  # noqa: B023
        if time.monotonic() > deadline:
            break
    for file in files:
        file.close()
    for disk in disks.values():
        disk.close()
    return [_batch_figures(way, rounds) for way, rounds in rounds_ms.items()] + refused


def _available_batches(root: str) -> tuple[dict[str, SystemDisk], list[dict[str, Any]]]:
    disks = {"sequential": SystemDisk(root)}
    refused: list[dict[str, Any]] = []
    for kind in BATCHES:
        disk = SystemDisk(root, batch=kind)
        try:
            disk.batch()
            disks[kind] = disk
        except OSError as error:
            refused.append({"bench": "sync_1000", "way": kind, "refused": str(error)})
    return disks, refused


def _timed_ms(act: Callable[[], None]) -> float:
    start_ns = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - start_ns) / 1e6


def _sync_all(disk: SystemDisk, files: list[SystemFile], in_batch: bool) -> None:
    if not in_batch:
        for file in files:
            file.sync()
        return
    batch = disk.batch()
    for file in files:
        batch.sync(file)
    failures = [result for result in batch.run() if result is not None]
    assert not failures, failures


def _read_all(disk: SystemDisk, files: list[SystemFile], in_batch: bool) -> None:
    if not in_batch:
        for file in files:
            file.read(4096, 0)
        return
    batch = disk.batch()
    for file in files:
        batch.read(file, 4096, 0)
    batch.run()


def _batch_figures(way: Way, rounds_ms: list[float]) -> dict[str, Any]:
    return {
        "bench": way[0],
        "way": way[1],
        "ms": round(statistics.median(rounds_ms), 1),
        "best_ms": round(min(rounds_ms), 1),
        "rounds": len(rounds_ms),
    }


def _commit_inline(file: SystemFile, position: int) -> None:
    os.pwritev(file.fileno(), GROUP, position)
    os.fdatasync(file.fileno())


def _commit_with(committer: Committer) -> Commit:
    def commit(file: SystemFile, position: int) -> None:
        committer.submit(file, GROUP, position, sync=True)
        completion = committer.wait(10_000)
        assert completion is not None
        assert completion.synced, completion

    return commit


def _commit_beside_work(committer: Committer) -> Commit:
    def commit(file: SystemFile, position: int) -> None:
        committer.submit(file, GROUP, position, sync=True)
        while (completion := committer.completed()) is None:
            sum(range(200))
        assert completion.synced, completion

    return commit


def _available_committers() -> tuple[dict[str, Committer], list[dict[str, Any]]]:
    available: dict[str, Committer] = {}
    refused: list[dict[str, Any]] = []
    for kind in KINDS:
        try:
            available[kind] = new_committer(kind)
        except OSError as error:
            refused.append({"bench": "commit_group", "way": kind, "refused": str(error)})
    return available, refused


def _commit_figures(way: Way, rounds_us: list[list[float]]) -> dict[str, Any]:
    ordered = [sorted(taken_us) for taken_us in rounds_us]
    return {
        "bench": way[0],
        "way": way[1],
        "p50_us": round(statistics.median(taken[len(taken) // 2] for taken in ordered)),
        "p99_us": round(statistics.median(taken[len(taken) * 99 // 100] for taken in ordered)),
        "groups_per_s": round(statistics.median(len(taken) * 1e6 / sum(taken) for taken in ordered)),
        "rounds": len(rounds_us),
    }


def _zero_filled(disk: SystemDisk) -> SystemFile:
    file = disk.open("zeroes", create=True)
    for position in range(0, FILE_BYTES, MIB):
        file.write(bytes(MIB), position)
    file.sync()
    return file

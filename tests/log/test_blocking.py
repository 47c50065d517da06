"""A store for ordinary threads, on real files: many append, few sync, and whatever fails reaches everyone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import EIO
from pathlib import Path

import pytest
from building import NOW_MS, batch_of, rows

from rivven.errors import DirectoryLocked, RivvenError, StoreClosed, SyncFailed
from rivven.limits import KIB, MIB
from rivven.log import StoreConfig, SyncPolicy
from rivven.log.blocking import BlockingStore
from rivven.record import Codec
from rivven.system import SystemDisk

CONFIG = StoreConfig(wal_file_bytes=1 * MIB, wal_first_file_bytes=256 * KIB)
THREADS, EACH = 8, 40


def test_what_is_appended_is_read_back(tmp_path: Path):
    with BlockingStore(tmp_path, CONFIG) as store:
        store.create_topic("t", 2)
        assert store.append("t", rows(b"a", b"b")) == 0
        assert store.append("t", rows(b"c"), codec=Codec.ZSTD) == 2
        assert store.append("t", rows(b"other"), partition=1) == 0
        assert [record.value for record in store.read("t", 1)] == [b"b", b"c"]
        assert [record.value for record in store.scan("t")] == [b"a", b"b", b"c"]
        assert [record.value for record in store.scan("t", offset=2)] == [b"c"]
    with BlockingStore(tmp_path, CONFIG) as store:
        assert store.store.recovery.clean
        assert [record.value for record in store.scan("t")] == [b"a", b"b", b"c"]


def test_many_threads_append_and_one_sync_covers_many(tmp_path: Path):
    offsets: list[list[int]] = [[] for _ in range(THREADS)]
    with BlockingStore(tmp_path, CONFIG) as store:
        store.create_topic("t", 2)
        ready = threading.Barrier(THREADS)

        def work(number: int) -> None:
            ready.wait(timeout=30)
            for turn in range(EACH):
                record = rows(b"%d %d" % (number, turn))
                offsets[number].append(store.append("t", record, partition=number % 2))
                assert store.log("t", number % 2).durable > offsets[number][-1]

        with ThreadPoolExecutor(THREADS) as pool:
            for future in [pool.submit(work, number) for number in range(THREADS)]:
                future.result(timeout=60)
        stats = store.store.wal_stats
        assert stats.writes == THREADS * EACH
        assert 0 < stats.syncs < stats.writes
        found = {
            (partition, record.offset): record.value
            for partition in range(2)
            for record in store.scan("t", partition=partition)
        }
    assert found == {
        (number % 2, offset): b"%d %d" % (number, turn)
        for number in range(THREADS)
        for turn, offset in enumerate(offsets[number])
    }


def test_many_batches_may_be_appended_together(tmp_path: Path):
    with BlockingStore(tmp_path, CONFIG) as store:
        store.create_topic("t", 3)
        logs = [store.log("t", number) for number in range(3)]
        done = store.append_batches([(log, batch_of(b"v")) for log in logs for _ in range(5)])
        assert [appended.base_offset for appended in done] == [0, 1, 2, 3, 4] * 3
        assert store.store.wal_stats.syncs <= 2


def test_what_was_acknowledged_is_there_without_a_good_end(tmp_path: Path):
    """A second process would find this: files as they are while the first one still runs."""
    store = BlockingStore(tmp_path, CONFIG)
    store.create_topic("t")
    for number in range(20):
        store.append("t", rows(b"%d" % number))
    store.store.abandon()
    store.close()
    with BlockingStore(tmp_path, CONFIG) as again:
        assert not again.store.recovery.clean
        assert [record.value for record in again.scan("t")] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("policy", ["every_write", "every_n_writes(10)", "none"])
def test_every_policy_keeps_everything_over_a_good_end(tmp_path: Path, policy: str):
    config = StoreConfig(SyncPolicy.parse(policy), wal_file_bytes=1 * MIB, wal_first_file_bytes=256 * KIB)
    with BlockingStore(tmp_path, config) as store:
        store.create_topic("t")
        for number in range(50):
            store.append("t", rows(b"%d" % number))
    with BlockingStore(tmp_path, config) as store:
        assert len(list(store.scan("t"))) == 50


def test_write_ahead_files_rotate_and_are_given_up_meanwhile(tmp_path: Path):
    with BlockingStore(tmp_path, CONFIG) as store:
        store.create_topic("t")
        for _ in range(120):
            store.append("t", rows(bytes(50_000)))
        assert store.store.wal_stats.rotations >= 4
        assert sum(path.stat().st_size for path in (tmp_path / "wal").iterdir()) <= 9 * MIB


def test_a_batch_larger_than_the_first_file_does_not_wait_for_ever(tmp_path: Path):
    with BlockingStore(tmp_path, CONFIG) as store:
        store.create_topic("t")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(store.append, "t", rows(bytes(600_000))).result(timeout=30) == 0


def test_a_second_store_is_refused_while_the_first_is_open(tmp_path: Path):
    with BlockingStore(tmp_path, CONFIG) as store:
        with pytest.raises(DirectoryLocked):
            BlockingStore(tmp_path, CONFIG)
        store.create_topic("t")
        store.append("t", rows(b"still works"))
    BlockingStore(tmp_path, CONFIG).close()


def test_to_close_is_clean_and_may_be_repeated(tmp_path: Path):
    before = threading.active_count()
    store = BlockingStore(tmp_path, CONFIG)
    store.create_topic("t")
    store.append("t", rows(b"a"))
    store.close()
    store.close()
    assert threading.active_count() == before
    with pytest.raises((StoreClosed, RivvenError)):
        store.append("t", rows(b"b"))


class FailingDisk(SystemDisk):
    """A real disk whose committer reports, once told to, that the medium refused a sync."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.broken = False

    def committer(self):
        return FailingCommitter(self, super().committer())


class FailingCommitter:
    def __init__(self, disk: FailingDisk, real) -> None:
        self._disk, self._real = disk, real

    def __getattr__(self, name: str):
        return getattr(self._real, name)

    def _spoil(self, completion):
        if completion is None or not self._disk.broken:
            return completion
        return replace(completion, synced=False, error=OSError(EIO, "refused"), failed_sync=True)

    def completed(self):
        return self._spoil(self._real.completed())

    def wait(self, timeout_ms: int):
        return self._spoil(self._real.wait(timeout_ms))


def test_a_failure_of_the_disk_reaches_every_waiting_thread(tmp_path: Path):
    disk = FailingDisk(tmp_path)
    store = BlockingStore(tmp_path, CONFIG, disk=disk)
    store.create_topic("t")
    store.append("t", rows(b"good"))
    disk.broken = True
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(store.append, "t", rows(b"lost")) for _ in range(THREADS)]
        errors = [future.exception(timeout=30) for future in futures]
    assert all(isinstance(error, SyncFailed | StoreClosed) for error in errors), errors
    assert any(isinstance(error, SyncFailed) for error in errors)
    with pytest.raises((SyncFailed, StoreClosed)):
        store.append("t", rows(b"after"))
    assert [record.value for record in store.read("t", 0)] == [b"good"]
    store.close()
    with BlockingStore(tmp_path, CONFIG) as again:
        assert next(again.scan("t")).value == b"good"


def test_records_carry_their_timestamps_and_keys(tmp_path: Path):
    with BlockingStore(tmp_path, CONFIG) as store:
        store.create_topic("t")
        store.append("t", [(NOW_MS, b"k", None, [("h", b"v")])])
        (record,) = store.read("t", 0)
        assert (record.timestamp_ms, record.key, record.value, record.headers) == (NOW_MS, b"k", None, (("h", b"v"),))

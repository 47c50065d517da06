"""What a store takes from the system and gives back: descriptors, memory, threads, and files somebody still reads."""

from __future__ import annotations

import os
import threading
import tracemalloc
from pathlib import Path

import pytest
from writing import SMALL, WAIT_S, reopened

from rivven.errors import RivvenError, StoreClosed
from rivven.log import StoreConfig, SyncPolicy
from rivven.log.blocking import BlockingStore
from rivven.record import encode

NO_SYNC = StoreConfig(sync_policy=SyncPolicy(0), wal_file_bytes=64 * 1024, wal_first_file_bytes=64 * 1024)
ROLLING = {"segment.bytes": "1024"}
VALUE = bytes(400)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def fill(store: BlockingStore, topic: str, partition: int, batches: int) -> None:
    for _ in range(batches):
        store.append(topic, [(0, None, VALUE, [])], partition=partition)


def test_a_store_that_is_opened_and_closed_again_and_again_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    threads, counts = threading.active_count(), []
    for _ in range(20):
        with reopened(tmp_path / "data", NO_SYNC) as store:
            if not store.store.topics:
                store.create_topic("t", 50, ROLLING)
                for partition in range(50):
                    fill(store, "t", partition, 6)
            for partition in range(50):
                assert len(list(store.scan("t", partition=partition))) == 6
        counts.append(open_descriptors())
    assert counts[-1] <= counts[0], counts
    assert threading.active_count() < threads + 10, threading.enumerate()


def test_a_log_of_many_segments_holds_few_of_them_open(tmp_path: Path) -> None:
    with reopened(tmp_path / "data", NO_SYNC) as store:
        store.create_topic("t", 1, ROLLING)
        before = open_descriptors()
        fill(store, "t", 0, 200)
        with store._mutex:
            store.checkpoint()  # from here on no segment but the last has anything unsynced
        for _ in range(3):
            assert len(list(store.scan("t"))) == 200
        assert len(store.log("t").segments) > 90
        assert open_descriptors() - before < 30


def test_a_store_that_does_not_open_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    with reopened(tmp_path / "data"):
        before = open_descriptors()
        for _ in range(5):
            with pytest.raises(RivvenError):
                BlockingStore(tmp_path / "data", SMALL)
        assert open_descriptors() == before


def test_a_scan_holds_little_of_the_log_in_memory(tmp_path: Path) -> None:
    with reopened(tmp_path / "data", NO_SYNC) as store:
        store.create_topic("t", 1, {"segment.bytes": str(8 * 1024 * 1024)})
        batch = [(0, None, bytes(64 * 1024), []) for _ in range(8)]
        for _ in range(60):
            store.append("t", batch)
        tracemalloc.start()
        try:
            count = sum(1 for _ in store.scan("t"))
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert count == 480
    assert peak_bytes < 8 * 1024 * 1024, f"{peak_bytes} bytes for a log of {60 * 8 * 64 * 1024}"


# A topic that goes while somebody holds it


def test_a_reader_of_a_topic_that_is_deleted_keeps_what_it_has_and_then_ends_or_is_told(tmp_path: Path) -> None:
    with reopened(tmp_path / "data") as store:
        store.create_topic("t", 1, ROLLING)
        fill(store, "t", 0, 60)
        held = store.log("t").read(0, bytes_max=900)
        copy = bytes(held)
        reader = store.scan("t")
        read = [next(reader)]
        with store._mutex:
            store.store.delete_topic("t")
        assert bytes(held) == copy
        try:
            read += reader
        except RivvenError:
            pass
        else:
            assert len(read) == 60, "it ended early, and nobody was told"
        with pytest.raises(RivvenError, match="there is no partition t/0"):
            store.read("t", 0)
        assert not (tmp_path / "data" / "topics" / "t").exists()
        store.create_topic("t")  # the name is free for another
        store.append("t", [(0, None, b"new", [])])
        assert [record.value for record in store.scan("t")] == [b"new"]


@pytest.mark.parametrize("config", [SMALL, NO_SYNC], ids=["every_write", "none"])
def test_a_writer_to_a_topic_that_is_deleted_is_refused(tmp_path: Path, config: StoreConfig) -> None:
    with reopened(tmp_path / "data", config) as store:
        store.create_topic("t")
        log = store.log("t")
        with store._mutex:
            store.store.delete_topic("t")
        with pytest.raises(RivvenError):
            store.append_batches([(log, encode([(0, None, b"to nowhere", [])]))])


# A store that closes while somebody writes


def test_writers_that_are_at_it_when_the_store_closes_all_come_back(tmp_path: Path) -> None:
    store = reopened(tmp_path / "data")
    store.create_topic("t")
    acknowledged: list[int] = []
    ends: list[BaseException] = []
    begun = threading.Event()

    def write() -> None:
        try:
            while True:
                acknowledged.append(int(store.append("t", [(0, None, b"x", [])])))
                begun.set()
        except BaseException as error:
            ends.append(error)

    threads = [threading.Thread(target=write, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(WAIT_S)
    store.close()
    for thread in threads:
        thread.join(2)
    hanging = sum(thread.is_alive() for thread in threads)
    assert not hanging, f"{hanging} of 4 writers wait for ever"
    assert [type(error) for error in ends] == [StoreClosed] * 4
    with reopened(tmp_path / "data") as again:
        assert set(acknowledged) <= {record.offset for record in again.scan("t")}

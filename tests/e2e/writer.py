"""A program to be killed: it appends numbered values to a data directory and says what was acknowledged.

Each line goes to stdout in one write, and an `ack` line only after the append has returned, so whoever reads the
pipe to its end knows everything that was promised, however the process ended:

    ready <pid>
    ack <topic> <partition> <base offset> <count> <first value>
    full <topic> <partition> <first value>          refused for want of room; its values are not used again
    read <records>                                  after a refusal, or with --read: how many records there are
    refused                                         the topic, at first, for want of room
    cleaned <passes>
    done

A value is `<run>.<thread>.<batch>.<index>.` and filling. A thread has one append under way at a time, so what a
log holds beyond the acknowledged is known as well. Errors are one line on stderr, and the exit status is 3.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from rivven.errors import DiskFull, RivvenError
from rivven.log import StoreConfig, SyncPolicy
from rivven.log.blocking import BlockingStore
from rivven.record import NewRecord, encode
from rivven.system import SystemDisk

KEYS = 20
FAILED = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--run", type=int, default=0, help="goes into every value, so that runs tell apart")
    parser.add_argument("--topic", default="events")
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--appends", type=int, default=0, help="per thread; 0 for no end")
    parser.add_argument("--group", type=int, default=1, help="batches per append, on neighbouring partitions")
    parser.add_argument("--records", type=int, default=3, help="per batch")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--sync-policy", default="every_write")
    parser.add_argument("--committer", default="auto")
    parser.add_argument("--segment-bytes", type=int, default=4096)
    parser.add_argument("--wal-file-bytes", type=int, default=64 * 1024)
    parser.add_argument("--compact", action="store_true", help="a compacted topic, cleaned all the time")
    parser.add_argument(
        "--on-full", choices=("end", "retry", "ask"), default="end", help="ask: wait for a line on stdin"
    )
    parser.add_argument("--read", action="store_true", help="count the records at the end")
    return parser.parse_args()


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


class Program:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        config = StoreConfig(
            sync_policy=SyncPolicy.parse(options.sync_policy),
            wal_file_bytes=options.wal_file_bytes,
            wal_first_file_bytes=options.wal_file_bytes,
        )
        disk = SystemDisk(options.directory, committer=options.committer)
        self.store = BlockingStore(options.directory, config, disk=disk)
        self.failure: BaseException | None = None
        self.stopped = threading.Event()

    def run(self) -> None:
        options = self.options
        with self.store:
            if options.topic not in {topic.name for topic in self.store.store.topics}:
                configs = {"segment.bytes": str(options.segment_bytes), "index.interval.bytes": "512"}
                if options.compact:
                    configs["cleanup.policy"] = "compact"
                self.create_topic(configs)
            say(f"ready {os.getpid()}")
            threads = [threading.Thread(target=self.guard, args=(number,)) for number in range(options.threads)]
            for thread in threads:
                thread.start()
            if options.compact:
                self.clean()
            for thread in threads:
                thread.join()
            if self.failure is not None:
                raise self.failure
            if options.read:
                self.read()
        say("done")

    def create_topic(self, configs: dict[str, str]) -> None:
        try:
            self.store.create_topic(self.options.topic, self.options.partitions, configs)
        except DiskFull:
            if self.options.on_full == "end":
                raise
            say("refused")
            self.store.create_topic(self.options.topic, self.options.partitions, configs)

    def guard(self, thread: int) -> None:
        try:
            self.write(thread)
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            self.stopped.set()

    def write(self, thread: int) -> None:
        batch = 0
        appends = 0
        while self.failure is None and (not self.options.appends or appends < self.options.appends):
            names = [f"{self.options.run}.{thread}.{batch + place}" for place in range(self.options.group)]
            partitions = [(thread + batch + place) % self.options.partitions for place in range(self.options.group)]
            appends += self.append(list(zip(partitions, names, strict=True)))
            batch += self.options.group

    def append(self, batches: list[tuple[int, str]]) -> bool:
        """Whether they were taken."""
        topic, count = self.options.topic, self.options.records
        try:
            done = self.store.append_batches(
                [(self.store.log(topic, partition), encode(self.records(name))) for partition, name in batches]
            )
        except DiskFull:
            if self.options.on_full == "end":
                raise
            for partition, name in batches:
                say(f"full {topic} {partition} {name}.0.")
            self.read()
            if self.options.on_full == "ask":
                sys.stdin.readline()
            return False
        for (partition, name), appended in zip(batches, done, strict=True):
            say(f"ack {topic} {partition} {appended.base_offset} {count} {name}.0.")
        return True

    def records(self, name: str) -> list[NewRecord]:
        key = f"key-{int(name.rpartition('.')[2]) % KEYS}".encode()
        values = (f"{name}.{index}.".encode() for index in range(self.options.records))
        return [(0, key, value.ljust(self.options.value_bytes, b"-"), []) for value in values]

    def read(self) -> None:
        scans = [self.store.scan(self.options.topic, partition=number) for number in range(self.options.partitions)]
        say(f"read {sum(1 for scan in scans for _ in scan)}")

    def clean(self) -> None:
        """Compaction again and again, while the threads write."""
        passes = 0
        while not self.stopped.wait(0.002):
            with self.store._mutex:
                reports = self.store.store.clean(force=True)
            if reports:
                passes += len(reports)
                say(f"cleaned {passes}")


def main() -> int:
    try:
        Program(arguments()).run()
    except (RivvenError, OSError) as error:
        print(f"writer: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())

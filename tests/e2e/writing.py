"""Starting `writer.py`, listening to it, ending it, and checking a data directory against all that it promised.

Invariant: whatever was started here is ended by its process id, on success and on failure, and every wait ends.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rivven.errors import CorruptLog
from rivven.log import StoreConfig
from rivven.log.blocking import BlockingStore
from rivven.record import Record, decode, walk

WRITER = Path(__file__).parent / "writer.py"
WAIT_S = 20
"""Longer than any disk takes; whoever waits this long has failed."""
TOPIC = "events"
READ_BYTES = 100_000
SMALL = StoreConfig(wal_file_bytes=64 * 1024, wal_first_file_bytes=64 * 1024)


class Ack(NamedTuple):
    topic: str
    partition: int
    base_offset: int
    count: int
    value: str


class Origin(NamedTuple):
    """What a value says of itself."""

    run: int
    thread: int
    batch: int
    index: int


def origin(value: bytes | None) -> Origin:
    assert value is not None
    return Origin(*map(int, value.decode().split(".")[:4]))


@dataclass
class History:
    """Everything that all runs on one directory were promised, and were refused."""

    acks: list[Ack] = field(default_factory=list)
    refused: set[Origin] = field(default_factory=set)
    cleanings: int = 0
    in_flight: int = 1
    """How many batches one thread may have under way."""

    def last_batches(self) -> dict[tuple[int, int], int]:
        """The last batch that each thread of each run heard of."""
        last: dict[tuple[int, int], int] = defaultdict(lambda: -1)
        heard = [origin(ack.value.encode()) for ack in self.acks]
        for run, thread, batch, _ in (*heard, *self.refused):
            last[run, thread] = max(last[run, thread], batch)
        return last


class Writer:
    """A running `writer.py`; what it says goes into the history."""

    def __init__(self, directory: Path, history: History, *options: object, prefix: list[str], pure: bool) -> None:
        self.history = history
        self.lines: list[str] = []
        self._text = b""
        self._errors_path = directory.with_name(directory.name + f".stderr-{time.monotonic_ns()}")
        environment = {name: text for name, text in os.environ.items() if name != "RIVVEN_PURE"}
        with self._errors_path.open("wb") as errors:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, str(WRITER), str(directory), *map(str, options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment | ({"RIVVEN_PURE": "1"} if pure else {}),
            )

    @property
    def errors(self) -> str:
        return self._errors_path.read_text()

    def of_kind(self, kind: str) -> list[str]:
        return [line for line in self.lines if line.startswith(kind + " ") or line == kind]

    def next_line(self, wanted: str = "a line") -> str | None:
        """The next line it says; None once it has said everything."""
        assert self.process.stdout is not None
        deadline_s = time.monotonic() + WAIT_S
        while b"\n" not in self._text:
            left_s = deadline_s - time.monotonic()
            ready = select.select([self.process.stdout], [], [], max(0.0, left_s))[0]
            assert ready, f"waited {WAIT_S} s for {wanted}; last said: {self.lines[-3:]}; stderr: {self.errors}"
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return None
            self._text += data
        line, _, self._text = self._text.partition(b"\n")
        return self._heard(line.decode())

    def _heard(self, line: str) -> str:
        self.lines.append(line)
        kind, *rest = line.split(" ")
        if kind == "ack":
            self.history.acks.append(Ack(rest[0], *map(int, rest[1:4]), rest[4]))
        elif kind == "cleaned":
            self.history.cleanings += 1
        elif kind == "full":
            self.history.refused.add(origin(rest[2].encode()))
        return line

    def wait_for(self, kind: str, count: int = 1) -> None:
        """Listen until it has said that many lines of a kind from now on."""
        while count:
            line = self.next_line(f"{count} more {kind!r}")
            assert line is not None, f"it ended before it said {kind!r}: {self.lines[-3:]}; stderr: {self.errors}"
            count -= line.split(" ")[0] == kind

    def wait_for_end(self) -> int:
        """Listen to the end, and return the exit status."""
        deadline_s = time.monotonic() + WAIT_S
        while self.next_line("its end") is not None:
            assert time.monotonic() < deadline_s, f"after {WAIT_S} s it still says {self.lines[-1]!r}"
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        """SIGKILL; what it had said by then still counts."""
        self.process.send_signal(signal.SIGKILL)
        self.wait_for_end()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()


@contextmanager
def writing(
    directory: Path, history: History, *options: object, prefix: list[str] | None = None, pure: bool = False
) -> Iterator[Writer]:
    writer = Writer(directory, history, *options, prefix=prefix or [], pure=pure)
    try:
        yield writer
    finally:
        writer.process.kill()
        writer.process.wait(WAIT_S)
        for pipe in (writer.process.stdin, writer.process.stdout):
            assert pipe is not None
            pipe.close()


# Reading it back


def drain(store: BlockingStore, topic: str, partition: int) -> tuple[dict[int, Record], list[CorruptLog]]:
    """Every record that can be read, by offset, and the error for each stretch that cannot."""
    records: dict[int, Record] = {}
    lost: list[CorruptLog] = []
    log = store.log(topic, partition)
    offset, end = int(log.start), log.high_watermark
    while offset < end:
        following = offset
        try:
            with store._mutex:
                data = log.read(offset, bytes_max=READ_BYTES)
        except CorruptLog as error:
            lost.append(error)
            following = error.facts["last"] + 1
        else:
            for place, header in walk(data):
                following = header.next_offset
                if not header.control:
                    records |= {record.offset: record for record in decode(data, place) if record.offset >= offset}
        assert following > offset, f"{topic}/{partition}: no way forward from offset {offset}; lost: {lost[-1:]}"
        offset = following
    return records, lost


def check(store: BlockingStore, history: History, topic: str = TOPIC) -> int:
    """Every acknowledged record at its offset, offsets dense, order kept, nothing invented. Counts the records."""
    assert store.store.recovery.intact, store.store.recovery.damage
    last = history.last_batches()
    held: dict[int, dict[int, Record]] = {}
    seen: set[Origin] = set()
    for partition in range(store.store.topic(topic).partitions):
        records, lost = drain(store, topic, partition)
        assert not lost, lost
        assert list(records) == list(range(len(records))), f"{topic}/{partition}: the offsets have gaps"
        held[partition] = records
        _check_order(f"{topic}/{partition}", records, last, history, seen)
    for ack in history.acks:
        first = origin(ack.value.encode())
        for index in range(ack.count):
            record = held[ack.partition].get(ack.base_offset + index)
            assert record is not None, f"lost: {ack}, record {index}"
            assert origin(record.value) == first._replace(index=index), f"{ack}: {record!r} in its place"
    return len(seen)


def _check_order(
    where: str, records: dict[int, Record], last: dict[tuple[int, int], int], history: History, seen: set[Origin]
) -> None:
    before: dict[tuple[int, int], Origin] = {}
    refused = {each[:3] for each in history.refused}
    for offset, record in records.items():
        now = origin(record.value)
        thread = now[:2]
        assert now not in seen, f"{where} offset {offset}: {now} is there twice"
        seen.add(now)
        assert now.batch <= last[thread] + history.in_flight, f"{where} offset {offset}: nobody wrote {now}"
        assert now[:3] not in refused, f"{where} offset {offset}: {now} was refused"
        assert thread not in before or before[thread] < now, f"{where} offset {offset}: {now} is out of order"
        if now.index:
            assert before[thread] == now._replace(index=now.index - 1), f"{where}: a batch came apart at {offset}"
        before[thread] = now


def check_compacted(store: BlockingStore, history: History, topic: str = TOPIC) -> int:
    """Of every key the last acknowledged value, or a later one; at acknowledged offsets nothing else."""
    assert store.store.recovery.intact, store.store.recovery.damage
    promised = {
        (ack.partition, ack.base_offset + index): origin(ack.value.encode())._replace(index=index)
        for ack in history.acks
        for index in range(ack.count)
    }
    newest: dict[tuple[int, int], int] = {}
    for (partition, offset), value in promised.items():
        key = (partition, value.batch % 20)
        newest[key] = max(newest.get(key, -1), offset)
    count = 0
    for partition in range(store.store.topic(topic).partitions):
        records, lost = drain(store, topic, partition)
        assert not lost, lost
        count += len(records)
        latest = {record.key: offset for offset, record in records.items()}
        for (of_partition, number), offset in newest.items():
            if of_partition == partition:
                found = latest.get(f"key-{number}".encode(), -1)
                assert found >= offset, (
                    f"{topic}/{partition}: key-{number} was acknowledged at {offset}, found {found}"
                )
        for offset, record in records.items():
            due = promised.get((partition, offset), origin(record.value))
            assert origin(record.value) == due, f"{topic}/{partition}: {record!r} where {due} is due"
    return count


def reopened(directory: Path, config: StoreConfig = SMALL) -> BlockingStore:
    return BlockingStore(directory, config)

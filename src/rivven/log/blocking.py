"""A store for ordinary threads: calls that wait, and two threads of its own.

`append` returns when the batch is durable; what many threads append together becomes one group and one sync. One
thread of the store's pumps groups through the committer, another does the chores. A failed sync ends the store:
every call raises from then on, and the process should end.
Invariant: the store is touched only under `_mutex`.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from rivven.errors import Overloaded, RivvenError, StoreClosed, SyncFailed
from rivven.model import Offset
from rivven.record import Codec, NewRecord, Record, decode, encode, validate, walk
from rivven.system import SystemClock, SystemDisk, SystemEntropy

from .chores import Chore
from .log import Appended, Log
from .store import Store, StoreConfig
from .topics import Topic

RETRY_S = 0.2
"""How long a chore that failed for want of room waits before it is due again."""
READ_BYTES = 1024 * 1024


class BlockingStore:
    """Open a data directory: `with BlockingStore("data") as store: ...`"""

    def __init__(
        self, path: str | Path, config: StoreConfig | None = None, *, disk: SystemDisk | None = None
    ) -> None:
        self._disk = disk or SystemDisk(path)
        self._mutex = threading.RLock()
        self._durable = threading.Condition(self._mutex)
        self._chore_due = threading.Condition(self._mutex)
        self._failure: BaseException | None = None
        self._closing = False
        self._stopping = False
        self.store = Store(self._disk, SystemClock(), SystemEntropy(), config)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=f"rivven-{name}", daemon=True)
            for name, work in (("pump", self._pump_forever), ("chores", self._chore_forever))
        ]
        for thread in self._threads:
            thread.start()

    # Topics

    def create_topic(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> Topic:
        with self._mutex:
            return self.store.create_topic(name, partitions, configs)

    def log(self, topic: str, partition: int = 0) -> Log:
        with self._mutex:
            return self.store.log(topic, partition)

    # Writing and reading

    def append(
        self, topic: str, records: Sequence[NewRecord], *, partition: int = 0, codec: Codec = Codec.NONE
    ) -> Offset:
        """Append records `(timestamp_ms, key, value, headers)` as one batch; returns its first offset, once the
        batch is durable under the sync policy."""
        batch = encode(records, codec=codec)
        return Offset(self.append_batches([(self.log(topic, partition), batch)])[0].base_offset)

    def append_batches(self, batches: Sequence[tuple[Log, bytearray]]) -> list[Appended]:
        """Append encoded batches together and wait until all of them are durable."""
        with self._mutex:
            self._require_alive()
            try:
                done = [self.store.append(log, batch, validate(batch)) for log, batch in batches]
            finally:
                os.eventfd_write(self._wake_fd, 1)  # if one was refused, those before it are on their way
            if not self.store.waiting:
                return done
            last = {log: appended.next_offset for (log, _), appended in zip(batches, done, strict=True)}
            self._durable.wait_for(lambda: self._failure or all(log.durable >= upto for log, upto in last.items()))
            if self._failure is not None:
                self._require_alive()
            return done

    def read(self, topic: str, offset: int, *, partition: int = 0, bytes_max: int = READ_BYTES) -> list[Record]:
        """The visible records from `offset` on, as many as fit into about `bytes_max`."""
        with self._mutex:
            data = self.store.log(topic, partition).read(offset, bytes_max=bytes_max)
        batches = (decode(data, position) for position, header in walk(data) if not header.control)
        return [record for records in batches for record in records if record.offset >= offset]

    def scan(self, topic: str, *, partition: int = 0, offset: int | None = None) -> Iterator[Record]:
        """Every visible record from `offset` (by default the log's start) to the present end."""
        log = self.log(topic, partition)
        position = log.start if offset is None else offset
        end = log.high_watermark
        while position < end:
            with self._mutex:
                data = log.read(position, bytes_max=READ_BYTES)
            for place, header in walk(data):
                if not header.control:
                    yield from (record for record in decode(data, place) if record.offset >= position)
                position = Offset(header.next_offset)

    def checkpoint(self) -> None:
        """Sync every segment now, and note it, so that the next start has less to check."""
        with self._mutex:
            self._require_alive()
            while True:
                try:
                    self.store.checkpoint()
                except Overloaded:  # one is under way: it may have begun before what the caller wants covered
                    self._chore_due.wait(timeout=RETRY_S)
                    continue
                self._durable.notify_all()
                return

    # The threads

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            with self._mutex:
                self._failure = self._failure or error
                self._durable.notify_all()
                self._chore_due.notify_all()

    def _pump_forever(self) -> None:
        poller = select.poll()
        for fd in (self._wake_fd, self.store.fileno()):
            poller.register(fd, select.POLLIN)
        timeout_ms: int | None = None
        while True:
            poller.poll(timeout_ms)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
            with self._mutex:
                if self._stopping:
                    return
                if self.store.pump():
                    self._durable.notify_all()
                self._chore_due.notify_all()
                timeout_ms = 1 if self.store.waiting else None

    def _chore_forever(self) -> None:
        with self._mutex:
            while not self._stopping:
                chores = self.store.chores()
                if not chores:
                    self._chore_due.wait(timeout=1)
                while chores:
                    self._perform(chores.pop(0))  # and let go of it: a chore holds files open

    def _perform(self, chore: Chore) -> None:
        following = [chore]
        while following:
            chore = following.pop()
            error: OSError | SyncFailed | None = None
            self._mutex.release()
            try:
                chore.run()
            except (OSError, SyncFailed) as failed:
                error = failed
            finally:
                self._mutex.acquire()
            following += self.store.finish(chore, error)
            if error is not None:
                self._chore_due.wait(timeout=RETRY_S)
        os.eventfd_write(self._wake_fd, 1)  # a group may have waited for the file that is ready now

    def _require_alive(self) -> None:
        if self._closing:
            raise StoreClosed(reason="it is being closed")
        if isinstance(self._failure, RivvenError):
            raise self._failure
        if self._failure is not None:
            raise StoreClosed(reason=f"a thread of it failed: {self._failure!r}") from self._failure

    # Closing

    def close(self) -> None:
        """Make everything durable, leave the mark of a good end, and give the directory up. Whoever still waits
        for an append hears of it first; whoever comes later is refused."""
        with self._mutex:
            if self._closing:
                return
            self._closing = True
            self._durable.wait_for(lambda: self._failure or not self.store.waiting)
            self._stopping = True
            self._chore_due.notify_all()
            os.eventfd_write(self._wake_fd, 1)
        for thread in self._threads:
            thread.join()
        self.store.close()
        os.close(self._wake_fd)
        self._disk.close()

    def __enter__(self) -> BlockingStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

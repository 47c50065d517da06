"""The two sides of the topic, as the demo drives them: a producer in a thread, and a consumer in a process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from orders import PARTITIONS, RECORD_BYTES, TOPIC, key_of, value_of

from rivven import Delivery, Options, RivvenError, blocking

REQUEST_BYTES = 1024 * 1024
PATIENCE = Options(client_id="demo-writer", backoff_ms_max=100, breaker_open_ms=100)
"""A broker that comes back is noticed within a tenth of a second, instead of the seconds that suit real outages."""


class Writer:
    """Puts every record once, and marks each one whose acknowledgement came. Sending again is the client's affair."""

    def __init__(self, client: blocking.RivvenClient, records: int) -> None:
        self.records = records
        self.acked = bytearray(records)
        self.count = 0
        self.by_partition = [0] * PARTITIONS
        self.error: RivvenError | None = None
        self.alarm_at = records + 1
        self.alarm: Callable[[], None] = lambda: None
        """Called at once when so many are acknowledged; in the client's thread, so it must not wait."""
        # Some forty requests at least, so that the kill finds some under way.
        request_bytes = min(REQUEST_BYTES, records * RECORD_BYTES // 40)
        self._producer = client.producer(
            TOPIC,
            linger_ms=2,
            buffer_bytes=8 * request_bytes,
            batch_bytes_max=request_bytes // PARTITIONS,
            request_bytes_max=request_bytes,
        )
        self._thread = threading.Thread(target=self._run, name="demo-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def waiting_bytes(self) -> int:
        return self._producer.waiting_bytes

    def _run(self) -> None:
        put, told = self._producer.put, self._told
        try:
            for number in range(self.records):
                put(value_of(number), key=key_of(number), on_delivery=partial(told, number))
            self._producer.close()
        except RivvenError as error:
            self.error = self.error or error

    def _told(self, number: int, delivery: Delivery) -> None:
        if delivery.error is not None:
            self.error = self.error or delivery.error
            return
        self.acked[number] = 1
        self.by_partition[delivery.partition] += 1
        self.count += 1
        if self.count == self.alarm_at:
            self.alarm()


class Reader:
    """`reader.py` as a child, and the last that it said."""

    def __init__(self, address: str, records: int, home: Path) -> None:
        self.seen_path = home / "seen"
        self.read = self.duplicates = self.reordered = self.altered = self.failures = 0
        self.positions = [0] * PARTITIONS
        self.is_ready = False
        """It is connected, and waits for records."""
        self._errors_path = home / "reader.log"
        command = [sys.executable, str(Path(__file__).with_name("reader.py"))]
        command += [address, str(records), str(self.seen_path)]
        with open(self._errors_path, "wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        self._thread = threading.Thread(target=self._listen, name="demo-reader", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            for name, value in json.loads(line).items():
                setattr(self, name, value)
            self.is_ready = True

    def finish_at(self, ends: Sequence[int]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"until {' '.join(map(str, ends))}\n".encode())
        self._process.stdin.flush()

    def result(self) -> tuple[int, str]:
        """How it ended, and its last words."""
        code = self._process.wait()
        words = self._errors_path.read_text(errors="replace").splitlines()
        return code, words[-1] if words else f"it ended with code {code}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

"""The consumer of the demo, a process of its own: reads every partition, counts, and waits out a broker that died.

python demo/reader.py ADDRESS RECORDS SEEN_FILE: one line of JSON on stdout now and then, with what was read so far.
A line `until OFFSET OFFSET ...` on stdin tells where each partition ends; once it has read so far it writes one byte
for each record number to SEEN_FILE and ends. It ends as well when stdin is closed, since then nobody listens.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path

from orders import PARTITIONS, TOPIC, Tally

from rivven import Options, RivvenError, blocking

WAIT_MS = 100
RETRY_S = 0.05
REPORT_S = 0.05
PATIENCE = Options(client_id="demo-reader", attempts_max=1, breaker_open_ms=100)
"""It does its waiting here, where it can say so."""


class Reader:
    def __init__(self, consumer: blocking.Consumer, records: int) -> None:
        self.tally = Tally(records)
        self._consumer = consumer
        self._heard = b""
        self._until: list[int] | None = None
        self._failures = 0
        self._reported_s = 0.0

    def run(self) -> None:
        self.report()
        while not self._is_done():
            self._listen()
            self._read_some()
            if time.monotonic() - self._reported_s > REPORT_S:
                self.report()
        self.report()

    def _is_done(self) -> bool:
        positions = self._consumer.positions()
        return self._until is not None and all(positions[n] >= end for n, end in enumerate(self._until))

    def _read_some(self) -> None:
        try:
            batch = self._consumer.fetch_arrow(columns=["partition", "value"], wait_ms=WAIT_MS)
        except RivvenError as error:
            if not error.retriable:
                raise
            self._failures += 1
            self.report()
            time.sleep(RETRY_S)
        else:
            if batch.num_rows:
                self.tally.add(batch.column("partition")[0].as_py(), batch.column("value").to_pylist())

    def _listen(self) -> None:
        if not select.select([0], [], [], 0)[0]:
            return
        heard = os.read(0, 4096)
        if not heard:
            raise SystemExit(1)
        self._heard += heard
        if self._heard.endswith(b"\n"):
            self._until = [int(word) for word in self._heard.split()[1:]]

    def report(self) -> None:
        tally, positions = self.tally, self._consumer.positions()
        facts = {
            "read": tally.read,
            "duplicates": tally.duplicates,
            "reordered": tally.reordered,
            "altered": tally.altered,
            "failures": self._failures,
            "positions": [positions[number] for number in range(PARTITIONS)],
        }
        print(json.dumps(facts), flush=True)
        self._reported_s = time.monotonic()


def main(address: str, records: int, seen_path: str) -> None:
    with (
        blocking.connect(address, options=PATIENCE) as client,
        client.consumer(TOPIC, partition=None, start_offset=0) as consumer,
    ):
        reader = Reader(consumer, records)
        reader.run()
        Path(seen_path).write_bytes(reader.tally.seen)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    except RivvenError as failed:
        sys.exit(f"the reader cannot go on: {failed}")

"""The process that the demo kills: appends numbered records and reports each append once it is durable.

python demo/writer.py DIRECTORY RECORDS: one line `acked P0 P1 P2 P3` on stdout per durable append, the end of each
partition. Record n of a partition is at offset n and says so, so that a reader can tell a wrong one.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from rivven.errors import TopicExists
from rivven.log.blocking import BlockingStore
from rivven.record import encode

TOPIC = "orders"
PARTITIONS = 4
BATCH = 250


def value_of(partition: int, offset: int) -> bytes:
    return b'{"order": %012d, "partition": %d, "item": "teapot", "note": "' % (offset, partition) + b"." * 40 + b'"}'


def main(directory: str, records: int) -> None:
    with BlockingStore(directory) as store:
        with suppress(TopicExists):
            store.create_topic(TOPIC, PARTITIONS)
        logs = [store.log(TOPIC, number) for number in range(PARTITIONS)]
        print("acked", *(log.durable for log in logs), flush=True)
        while min(log.end for log in logs) < records // PARTITIONS:
            now_ms = time.time_ns() // 1_000_000
            batches = []
            for number, log in enumerate(logs):
                numbers = range(log.end, min(log.end + BATCH, records // PARTITIONS))
                if numbers:
                    rows = [(now_ms, b"customer-%d" % (n % 1000), value_of(number, n), ()) for n in numbers]
                    batches.append((log, bytearray(encode(rows))))
            store.append_batches(batches)
            print("acked", *(log.durable for log in logs), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

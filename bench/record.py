"""What does one record cost between its batch, its tuple and its Arrow row? One JSON line per measurement.

python bench/record.py [--quick]
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable

import pyarrow as pa

from rivven import record
from rivven.record import Codec

RECORDS = 10_000
BATCHES_SMALL = 10_000
VALUE_BYTES = 100
ROUNDS = 3 if "--quick" in sys.argv else 21
REPEATS = 1 if "--quick" in sys.argv else 5


def measure(bench: str, act: Callable[[], object], *, units: int, unit: str = "record") -> None:
    """The median of many rounds per unit, and the best round, which a busy machine disturbs least."""
    for _ in range(3):
        act()
    times_ns = []
    for _ in range(ROUNDS):
        gc.collect()
        start = time.perf_counter_ns()
        for _ in range(REPEATS):
            act()
        times_ns.append((time.perf_counter_ns() - start) / REPEATS / units)
    median_ns, best_ns = round(statistics.median(times_ns), 1), round(min(times_ns), 1)
    line = {"bench": bench, "native": record.NATIVE, f"ns_per_{unit}": median_ns, f"best_ns_per_{unit}": best_ns}
    print(json.dumps(line))


def new_records(*, headers: bool = False) -> list[record.NewRecord]:
    pairs = (("trace", b"0123456789abcdef"), ("source", b"bench")) if headers else ()
    value = bytes(range(VALUE_BYTES))
    return [(1_700_000_000_000 + place // 7, f"key-{place:08d}".encode(), value, pairs) for place in range(RECORDS)]


def records() -> None:
    for name, rows in (("", new_records()), ("_headers", new_records(headers=True))):
        batch = record.encode(rows)
        arrow = record.to_arrow(batch)
        measure(f"encode{name}", lambda rows=rows: record.encode(rows), units=RECORDS)
        measure(f"decode{name}", lambda batch=batch: record.decode(batch), units=RECORDS)
        measure(f"to_arrow{name}", lambda batch=batch: record.to_arrow(batch), units=RECORDS)
        measure(f"from_arrow{name}", lambda arrow=arrow: record.from_arrow(arrow), units=RECORDS)


def projections() -> None:
    batch = record.encode(new_records())
    measure("to_arrow_value_only", lambda: record.to_arrow(batch, columns=["value"]), units=RECORDS)
    measure("to_arrow_one_key", lambda: record.to_arrow(batch, key=b"key-00000007"), units=RECORDS)
    kept = record.decode(batch)[::2]
    measure("rewrite_half", lambda: record.rewrite(batch, kept), units=len(kept))


def codecs() -> None:
    rows = new_records()
    for codec in Codec:
        batch = record.encode(rows, codec=codec)
        name = codec.name.lower()
        measure(f"encode_{name}", lambda codec=codec: record.encode(rows, codec=codec), units=RECORDS)
        measure(f"decode_{name}", lambda batch=batch: record.decode(batch), units=RECORDS)


def batches() -> None:
    """What a log does to batches of one record each, the smallest there are."""
    rows = new_records()[:1]
    small = b"".join(record.encode(rows, base_offset=offset) for offset in range(BATCHES_SMALL))
    end, count = len(small), BATCHES_SMALL
    one = record.encode(rows)
    walks: dict[str, Callable[[], object]] = {
        "scan_verify": lambda: record.scan(small, 0, end, verify=True),
        "scan": lambda: record.scan(small, 0, end, verify=False),
        "seek_last": lambda: record.seek(small, 0, count - 1),
        "fit_all": lambda: record.fit(small, 0, end),
        "walk": lambda: sum(1 for _ in record.walk(small)),
        "to_arrow_small": lambda: record.to_arrow(small),
        "validate": lambda: [record.validate(one) for _ in range(count)],
        "encode_one": lambda: [record.encode(rows) for _ in range(count)],
        "decode_one": lambda: [record.decode(one) for _ in range(count)],
    }
    for bench, act in walks.items():
        measure(bench, act, units=count, unit="batch")


def bytes_only() -> None:
    block = bytes(1 << 20)
    measure("crc32c_1mib", lambda: record.crc32c(block), units=len(block) // 1024, unit="kib")
    key = b"key-00000007"
    measure("partition_for_key", lambda: [record.partition_for_key(key, 12) for _ in range(RECORDS)], units=RECORDS)


if __name__ == "__main__":
    pa.set_cpu_count(1)
    records()
    projections()
    codecs()
    batches()
    bytes_only()

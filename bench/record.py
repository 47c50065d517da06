"""What does one record cost between its batch, its tuple and its Arrow row?

Each figure is the median of many rounds; the best round stands beside it, since a busy machine disturbs it least.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from bench.spread import Result, alone
from rivven import record
from rivven.record import Codec

RECORDS = 10_000
BATCHES_SMALL = 10_000
VALUE_BYTES = 100
TARGETS_NS = {"encode": 60, "decode": 250, "to_arrow": 40}


def run(*, quick: bool = False) -> list[Result]:
    pa.set_cpu_count(1)
    meter = Meter(rounds=2 if quick else 21, repeats=1 if quick else 5)
    for part in (records, projections, codecs, batches, bytes_only):
        part(meter)
    return meter.results


class Meter:
    def __init__(self, *, rounds: int, repeats: int) -> None:
        self._rounds = rounds
        self._repeats = repeats
        self.results: list[Result] = []

    def measure(self, bench: str, act: Callable[[], object], *, units: int, unit: str = "record") -> None:
        for _ in range(3):
            act()
        times_ns = []
        for _ in range(self._rounds):
            gc.collect()
            act()  # the collector has been everywhere, and left nothing of ours in the caches
            start = time.perf_counter_ns()
            for _ in range(self._repeats):
                act()
            times_ns.append((time.perf_counter_ns() - start) / self._repeats / units)
        median_ns = statistics.median(times_ns)
        result = alone(bench, f"ns/{unit}", times_ns)
        if record.NATIVE and bench in TARGETS_NS:
            result |= {"target": TARGETS_NS[bench], "met": median_ns <= TARGETS_NS[bench]}
        self.results.append(result if record.NATIVE else result | {"native": False})


def new_records(*, headers: bool = False) -> list[record.NewRecord]:
    pairs = (("trace", b"0123456789abcdef"), ("source", b"bench")) if headers else ()
    value = bytes(range(VALUE_BYTES))
    return [(1_700_000_000_000 + place // 7, f"key-{place:08d}".encode(), value, pairs) for place in range(RECORDS)]


def records(meter: Meter) -> None:
    for name, rows in (("", new_records()), ("_headers", new_records(headers=True))):
        batch = record.encode(rows)
        arrow = record.to_arrow(batch)
        meter.measure(f"encode{name}", partial(record.encode, rows), units=RECORDS)
        meter.measure(f"decode{name}", partial(record.decode, batch), units=RECORDS)
        meter.measure(f"to_arrow{name}", partial(record.to_arrow, batch), units=RECORDS)
        meter.measure(f"from_arrow{name}", partial(record.from_arrow, arrow), units=RECORDS)


def projections(meter: Meter) -> None:
    batch = record.encode(new_records())
    meter.measure("to_arrow_value_only", lambda: record.to_arrow(batch, columns=["value"]), units=RECORDS)
    meter.measure("to_arrow_one_key", lambda: record.to_arrow(batch, key=b"key-00000007"), units=RECORDS)
    kept = record.decode(batch)[::2]
    meter.measure("rewrite_half", lambda: record.rewrite(batch, kept), units=len(kept))


def codecs(meter: Meter) -> None:
    rows = new_records()
    for codec in Codec:
        batch = record.encode(rows, codec=codec)
        name = codec.name.lower()
        meter.measure(f"encode_{name}", partial(record.encode, rows, codec=codec), units=RECORDS)
        meter.measure(f"decode_{name}", partial(record.decode, batch), units=RECORDS)


def batches(meter: Meter) -> None:
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
        meter.measure(bench, act, units=count, unit="batch")


def bytes_only(meter: Meter) -> None:
    block = bytes(1 << 20)
    meter.measure("crc32c_1mib", lambda: record.crc32c(block), units=len(block) // 1024, unit="kib")
    key = b"key-00000007"
    meter.measure(
        "partition_for_key", lambda: [record.partition_for_key(key, 12) for _ in range(RECORDS)], units=RECORDS
    )

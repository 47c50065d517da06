"""What happens to live traffic while a cold topic is read from the start, and how fast is it read?

A topic is filled, synced and dropped from the page cache (`posix_fadvise`), so that its reader has to go to the disk;
how much really came from the disk stands beside it, as the kernel counted it for the broker. Beside it runs live
traffic in a topic of its own: 5,000 records of 100 B a second on a fixed schedule (open loop), one producer, one
consumer. First alone, then with the reader; the clients are confluent-kafka. rivvend has the policy `none`, Kafka its
default.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import confluent
from bench.contest import warm
from bench.kraft import Kafka
from bench.pace import CONFLUENT, Traffic
from bench.pace import start as start_traffic
from bench.peers import ROOT, Peer, Rivvend, die_with_parent, running
from bench.spread import Result, alone, left_out, take_turns, versus
from bench.transfer import Amount, put

LIVE = "live"
RATE = 5_000
PARTITIONS = 4
KAFKA = "Apache Kafka"
MB = 1_000_000
READER_S_MAX = 60.0


class Beside(NamedTuple):
    alone_p99_ms: float
    beside_p99_ms: float
    mb_per_s: float
    from_disk: float
    """Of what was read, the share that came from the disk."""


def run(*, quick: bool = False) -> list[Result]:
    rounds, seconds, sent_bytes = (1, 1.0, 20 * MB) if quick else (3, 4.0, 1000 * MB)
    amount = Amount(value_bytes=1000, sent_bytes=sent_bytes, partitions=PARTITIONS)
    with running(Rivvend, Kafka) as (peers, missing):
        warm(peers, quick=quick)
        for peer in peers:
            put(peer, amount)  # read again and again, so that the disk is not filled by the rounds
        ways = {peer.name: partial(side_by_side, peer, amount, seconds) for peer in peers}
        seen = take_turns(ways, rounds=rounds, warmups=0 if quick else 1)
    ours, theirs = seen["rivvend"], seen.get(KAFKA)
    beside = f"live traffic, {RATE:,}/s, p99"
    share = {"note": f"{min(each.from_disk for each in ours):.0%} or more came from the disk"}
    questions: tuple[tuple[str, str, Callable[[Beside], float], bool, Result], ...] = (
        (f"{beside}, alone", "ms", lambda each: each.alone_p99_ms, True, {}),
        (f"{beside}, beside a cold reader", "ms", lambda each: each.beside_p99_ms, True, {}),
        ("cold reader beside live traffic", "MB/s", lambda each: each.mb_per_s, False, share),
    )
    results = []
    for bench, unit, figure, less_is_better, more in questions:
        values, client = [figure(each) for each in ours], {"client": CONFLUENT, **more}
        if theirs is None:
            results.append(alone(bench, unit, values, **client))
        else:
            others = [figure(each) for each in theirs]
            results.append(versus(bench, unit, values, KAFKA, others, less_is_better=less_is_better, **client))
    return results + left_out("cold reader beside live traffic", missing)


def side_by_side(peer: Peer, amount: Amount, seconds: float) -> Beside:
    traffic = Traffic(client=CONFLUENT, rate=RATE, seconds=seconds, warmup_s=0.5, topic=LIVE)
    peer.create(LIVE, 1)
    before = start_traffic(peer, traffic).delivered()
    peer.create(LIVE, 1)
    drop_cache(peer.home)
    live = start_traffic(peer, traffic)
    try:
        time.sleep(traffic.warmup_s)
        disk_begun = disk_read_bytes(peer.pid)
        rate = read_elsewhere(peer, amount.records)
        share = (disk_read_bytes(peer.pid) - disk_begun) / (amount.records * amount.value_bytes)
        beside = live.delivered()
    finally:
        live.stop()
    return Beside(before.percentiles["99"], beside.percentiles["99"], rate * amount.value_bytes / MB, share)


def drop_cache(folder: Path) -> None:
    """Out of memory with all files below: written pages first to the disk, since dirty ones stay."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def disk_read_bytes(pid: int) -> int:
    found = re.search(r"^read_bytes: (\d+)$", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def read_elsewhere(peer: Peer, records: int) -> float:
    """By a process of its own, so that the live clients do not wait for its interpreter: records a second."""
    command = [sys.executable, "-m", "bench.catchup", str(peer.port), str(records)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=READER_S_MAX + 30, cwd=ROOT, preexec_fn=die_with_parent
    )
    if ended.returncode:
        raise RuntimeError(ended.stderr[-500:])
    return float(ended.stdout)


if __name__ == "__main__":
    print(confluent.read(int(sys.argv[1]), int(sys.argv[2]), partitions=PARTITIONS))

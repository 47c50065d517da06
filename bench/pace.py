"""Traffic at a given rate, and how long each record takes from the moment it was due until a consumer has it.

The clock of a record starts when the schedule says, not when the producer gets round to it: a producer that is held
up does not slow the schedule down, and the wait that it imposes on the records behind it is counted (no coordinated
omission). What never comes counts as having taken as long as was waited for it. Producer and consumers are processes
of their own, started by `start`; `Running.delivered` waits for their end. The clocks are one: CLOCK_MONOTONIC.
"""

from __future__ import annotations

import gc
import json
import resource
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from bench.peers import ROOT, TOPIC, Peer, cpu_seconds, die_with_parent
from bench.spread import percentile, significant

CONFLUENT, OURS = "confluent-kafka", "our client"
SHARES = ("50", "75", "90", "95", "99", "99.5", "99.9", "99.99")
LINGER_MS = 1
PATIENCE_S = 15.0
"""How long after the last record was due its arrival is waited for."""
READY_S = 30.0
SLEEP_S_LEAST = 0.0001
TAKEN_MAX = 1000
HEAD = struct.Struct("<qq")
"""When a record was due, and its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    client: str
    rate: int
    seconds: float
    warmup_s: float
    value_bytes: int = 100
    consumers: int = 1
    topic: str = TOPIC

    @property
    def records(self) -> int:
        return round(self.rate * (self.warmup_s + self.seconds))

    @property
    def skipped(self) -> int:
        """Of the first ones it does not count how long they took."""
        return round(self.rate * self.warmup_s)


class Delivered(NamedTuple):
    percentiles: dict[str, float]
    """Milliseconds, all consumers together."""
    missing: int
    late_p99_ms: float
    """How late the producer itself was: a part of the figures above, and the client's doing."""
    put_cpu: float
    take_cpu: float
    peer_cpu: float
    """Each as a share of one core."""


def percentiles_ms(taken_ns: array[int], missing: int, waited_ns: int) -> dict[str, float]:
    ordered = sorted(taken_ns)
    ordered += [max(waited_ns, ordered[-1] if ordered else 0)] * missing
    return {share: significant(percentile(ordered, float(share) / 100) / 1e6) for share in SHARES}


# The parent's side


@dataclass(slots=True)
class Running:
    traffic: Traffic
    peer: Peer
    taker: subprocess.Popen[str]
    putter: subprocess.Popen[str]
    begun_s: float
    cpu_begun_s: float

    def delivered(self) -> Delivered:
        patience_s = self.traffic.warmup_s + self.traffic.seconds + 2 * PATIENCE_S + READY_S
        try:
            put = _told(self.putter, patience_s)
            passed_s = time.monotonic() - self.begun_s
            peer_cpu = (cpu_seconds(self.peer.pid) - self.cpu_begun_s) / passed_s
            took = _told(self.taker, patience_s)
        finally:
            self.stop()
        return Delivered(
            took["percentiles"],
            took["missing"],
            put["late_p99_ms"],
            put["cpu_s"] / passed_s,
            took["cpu_s"] / passed_s,
            peer_cpu,
        )

    def stop(self) -> None:
        for process in (self.putter, self.taker):
            _end(process)


def start(peer: Peer, traffic: Traffic) -> Running:
    """Into a topic that is there and empty."""
    taker = _child("take", peer, traffic)
    try:
        assert taker.stdout is not None
        line = taker.stdout.readline()
        if line != "ready\n":
            raise RuntimeError(f"the consumer did not start: {line}{taker.communicate()[1][-500:]}")
        cpu_begun_s = cpu_seconds(peer.pid)
        return Running(traffic, peer, taker, _child("put", peer, traffic), time.monotonic(), cpu_begun_s)
    except BaseException:
        _end(taker)
        raise


def measure(peer: Peer, traffic: Traffic) -> Delivered:
    peer.reset(1)
    return start(peer, traffic).delivered()


def _child(role: str, peer: Peer, traffic: Traffic) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.pace", role, str(peer.port), json.dumps(asdict(traffic))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=die_with_parent,
    )


def _told(process: subprocess.Popen[str], patience_s: float) -> dict[str, Any]:
    said, complaint = process.communicate(timeout=patience_s)
    if process.returncode:
        raise RuntimeError(complaint[-500:])
    return dict(json.loads(said.splitlines()[-1]))


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


# The children's side


def main() -> None:
    role, port, told = sys.argv[1:]
    traffic = Traffic(**json.loads(told))
    gc.disable()  # nothing here goes in circles, and a pause of the client's is not the broker's
    acts = {"put": put, "take": take}
    result = acts[role](int(port), traffic)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({**result, "cpu_s": used.ru_utime + used.ru_stime}), flush=True)


def put(port: int, traffic: Traffic) -> dict[str, Any]:
    late = array("q")
    if traffic.client == OURS:
        from rivven import blocking

        with (
            blocking.connect(f"127.0.0.1:{port}") as client,
            client.producer(traffic.topic, linger_ms=LINGER_MS) as producer,
        ):
            send_on_time(producer.put, lambda: None, traffic, late)
            producer.flush()
    else:
        _put_confluent(port, traffic, late)
    return {"late_p99_ms": percentile(sorted(late[traffic.skipped :]), 0.99) / 1e6}


def _put_confluent(port: int, traffic: Traffic, late: array[int]) -> None:
    from confluent_kafka import Producer

    producer = Producer(_settings(port) | {"linger.ms": LINGER_MS, "queue.buffering.max.messages": 10_000_000})
    producer.list_topics(traffic.topic, timeout=10)
    produce, topic = producer.produce, traffic.topic
    send_on_time(lambda value: produce(topic, value, partition=0), lambda: producer.poll(0), traffic, late)
    left = producer.flush(PATIENCE_S)
    assert left == 0, f"{left} records were not stored"


def send_on_time(
    hand_over: Callable[[bytes], None], between: Callable[[], object], traffic: Traffic, late: array[int]
) -> None:
    """All that is due, then sleep until the next is; the schedule never waits for anybody."""
    rest, step_ns, records = bytes(traffic.value_bytes - HEAD.size), 1e9 / traffic.rate, traffic.records
    clock, pack = time.monotonic_ns, HEAD.pack
    begun_ns, sent = clock() + 1_000_000, 0
    while sent < records:
        now_ns = clock()
        due = min(records, int((now_ns - begun_ns) / step_ns) + 1)
        if due <= sent:
            time.sleep(max(SLEEP_S_LEAST, (begun_ns + sent * step_ns - now_ns) / 1e9))
            continue
        for number in range(sent, due):
            due_ns = begun_ns + int(number * step_ns)
            hand_over(pack(due_ns, number) + rest)
            late.append(clock() - due_ns)
        sent = due
        between()


def take(port: int, traffic: Traffic) -> dict[str, Any]:
    """Each consumer has a thread; the first record tells when the last one will be due."""
    ways = {OURS: _take_ours, CONFLUENT: _take_confluent}
    taken = [array("q") for _ in range(traffic.consumers)]
    seen = [0] * traffic.consumers
    ready = threading.Barrier(traffic.consumers + 1)

    def follow(place: int) -> None:
        seen[place] = ways[traffic.client](port, traffic, taken[place], ready)

    threads = [threading.Thread(target=follow, args=(place,), daemon=True) for place in range(traffic.consumers)]
    for thread in threads:
        thread.start()
    ready.wait(READY_S)
    print("ready", flush=True)
    for thread in threads:
        thread.join()
    everything = array("q")
    for each in taken:
        everything.extend(each)
    missing = traffic.records * traffic.consumers - sum(seen)
    return {"percentiles": percentiles_ms(everything, missing, int(PATIENCE_S * 1e9)), "missing": missing}


class _Patience:
    """Until when to wait: for the first record long, after it until the last was due and a while more."""

    def __init__(self, traffic: Traffic) -> None:
        self._lasts_s = traffic.warmup_s + traffic.seconds + PATIENCE_S
        self.ends_s = time.monotonic() + READY_S + self._lasts_s

    def begin(self) -> None:
        self.ends_s = time.monotonic() + self._lasts_s


def _take_confluent(port: int, traffic: Traffic, taken: array[int], ready: threading.Barrier) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(_settings(port) | {"group.id": "bench", "enable.auto.commit": False})
    try:
        consumer.list_topics(traffic.topic, timeout=10)
        consumer.assign([TopicPartition(traffic.topic, 0, 0)])
        consumer.poll(0.5)  # connected and asking before anything is sent
        ready.wait(READY_S)
        seen, skipped, patience = 0, traffic.skipped, _Patience(traffic)
        while seen < traffic.records and time.monotonic() < patience.ends_s:
            first = consumer.poll(0.1)
            if first is None:
                continue
            if not seen:
                patience.begin()
            messages = [first, *consumer.consume(TAKEN_MAX, 0)]  # `consume` alone would wait until it has so many
            now_ns = time.monotonic_ns()
            for message in messages:
                value = message.value()
                assert message.error() is None, message.error()
                assert isinstance(value, bytes)
                due_ns, number = HEAD.unpack_from(value)
                if number >= skipped:
                    taken.append(now_ns - due_ns)
            seen += len(messages)
        return seen
    finally:
        consumer.close()


def _take_ours(port: int, traffic: Traffic, taken: array[int], ready: threading.Barrier) -> int:
    from rivven import blocking

    with (
        blocking.connect(f"127.0.0.1:{port}") as client,
        client.consumer(traffic.topic, 0, start_offset=0, batch_size=TAKEN_MAX) as consumer,
    ):
        ready.wait(READY_S)
        seen, skipped, patience = 0, traffic.skipped, _Patience(traffic)
        while seen < traffic.records and time.monotonic() < patience.ends_s:
            messages = consumer.poll(100)
            now_ns = time.monotonic_ns()
            for message in messages:
                assert message.value is not None
                due_ns, number = HEAD.unpack_from(message.value)
                if number >= skipped:
                    taken.append(now_ns - due_ns)
            if messages and not seen:
                patience.begin()
            seen += len(messages)
        return seen


def _settings(port: int) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "log_level": 0,
        "socket.nagle.disable": True,
        "fetch.queue.backoff.ms": 0,  # else a consumer that has enough in hand pauses for a second
    }


if __name__ == "__main__":
    main()

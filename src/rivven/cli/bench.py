"""`rivven bench`: how fast this broker is, asked from here. One connection, one topic, the plain client."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rivven.limits import BATCH_BYTES_MAX, MIB

from . import show
from .bounds import FROM_1, LINGER_MS_MAX, PARTITION_MAX, VALUE_BYTES_MAX
from .server import DEFAULT, AsJson, Server, TopicName, connected, partitions_of
from .text import counted, sized

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from rivven.client import Delivery
    from rivven.errors import RivvenError

app = typer.Typer(
    help="Measure how fast the broker takes and gives records.", no_args_is_help=True, rich_markup_mode=None
)

PAYLOADS = 64
PAYLOADS_BYTES = 64 * MIB
"""Different values that are sent in turn: so many, or as many as fit into so much memory."""
LOOK_EVERY = 256
"""Records between two looks at the clock."""
SAMPLES_MAX = 10_000
LINE_S = 1.0
"""Between two plain lines."""
FETCHED_MAX = 10_000

Count = Annotated[int, typer.Option("--records", "-n", metavar="N", click_type=FROM_1, help="How many records.")]
Partition = Annotated[
    int | None,
    typer.Option("--partition", "-p", metavar="N", min=0, max=PARTITION_MAX, help="Only this partition; else all."),
]


@app.command()
def produce(
    topic: TopicName,
    count: Count = 100_000,
    value_bytes: Annotated[
        int, typer.Option("--size", metavar="BYTES", min=0, max=VALUE_BYTES_MAX, help="Bytes of each value.")
    ] = 100,
    partition: Partition = None,
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    batch_bytes: Annotated[
        int,
        typer.Option(
            "--batch-bytes", metavar="BYTES", min=1, max=BATCH_BYTES_MAX, help="A batch leaves when it is so large."
        ),
    ] = 16_384,
    linger_ms: Annotated[
        int,
        typer.Option(
            "--linger-ms", metavar="MS", min=0, max=LINGER_MS_MAX, help="Or when its first record has waited so long."
        ),
    ] = 5,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Publish records as fast as the broker takes them, and wait until all are stored.

    The latency is that of single records, a sample of them, from being handed over to being stored: on a full pipe
    most of it is waiting in line. The records stay in the topic.

    Example:

        rivven bench produce trial -n 1000000 --size 200 --compression lz4
    """
    payloads = _payloads(value_bytes)
    kinds = len(payloads)
    every = -(-count // SAMPLES_MAX)
    latencies_ms: list[float] = []
    errors: list[RivvenError] = []
    with connected(server) as client:
        if partition is not None and topic in client.list_topics():
            partitions_of(client, topic, partition)
        with (
            client.producer(topic, batch_bytes, linger_ms, compression=compression) as producer,
            _live("producing", count) as live,
        ):
            put = producer.put
            for number in range(count):
                if number % every:
                    put(payloads[number % kinds], partition=partition)
                else:
                    timing = _Timing(latencies_ms, errors)
                    put(payloads[number % kinds], partition=partition, on_delivery=timing.over)
                if number % LOOK_EVERY == 0:
                    live.at(number, number * value_bytes)
                    if errors:
                        break
            producer.flush()
    if errors:
        raise errors[0]
    result = _result("produce", topic, count, count * value_bytes, live.elapsed_s)
    latencies_ms.sort()
    for name, part in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0)):
        result[name] = round(latencies_ms[min(len(latencies_ms) - 1, int(part * len(latencies_ms)))], 3)
    _tell(result, as_json=as_json)


def _payloads(value_bytes: int) -> list[bytes]:
    rng = Random(0)
    kinds = min(PAYLOADS, max(1, PAYLOADS_BYTES // max(1, value_bytes)))
    return [(rng.randbytes((value_bytes + 1) // 2).hex()[:value_bytes]).encode() for _ in range(kinds)]


class _Timing:
    """One record under way."""

    __slots__ = ("_begun_ns", "_errors", "_latencies_ms")

    def __init__(self, latencies_ms: list[float], errors: list[RivvenError]) -> None:
        self._latencies_ms = latencies_ms
        self._errors = errors
        self._begun_ns = time.perf_counter_ns()

    def over(self, delivery: Delivery) -> None:
        self._latencies_ms.append((time.perf_counter_ns() - self._begun_ns) / 1e6)
        if delivery.error is not None:
            self._errors.append(delivery.error)


@app.command()
def consume(
    topic: TopicName,
    count_max: Annotated[
        int | None,
        typer.Option("--records", "-n", metavar="N", click_type=FROM_1, help="Stop after so many; else at the end."),
    ] = None,
    partition: Partition = None,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Read records from the beginning as fast as the broker gives them.

    Example:

        rivven bench consume trial
    """
    done_count = done_bytes = 0
    with connected(server) as client:
        numbers = partitions_of(client, topic, partition)
        bounds = [client.get_offset_bounds(topic, number) for number in numbers]
        there = sum(latest - earliest for earliest, latest in bounds)
        wanted = there if count_max is None else min(there, count_max)
        with (
            client.consumer(topic, numbers, start_offset=0, batch_size=FETCHED_MAX) as consumer,
            _live("consuming", wanted) as live,
        ):
            while done_count < wanted:
                messages = consumer.fetch(min(FETCHED_MAX, wanted - done_count))
                if not messages:
                    break  # compaction has left fewer than the offsets promise
                done_count += len(messages)
                done_bytes += sum(len(message.value or b"") for message in messages)
                live.at(done_count, done_bytes)
    if not done_count:
        show.remark(f"topic '{topic}' has no records; `rivven bench produce {topic}` makes some")
    _tell(_result("consume", topic, done_count, done_bytes, live.elapsed_s), as_json=as_json)


# The result


def _result(what: str, topic: str, count: int, total_bytes: int, elapsed_s: float) -> dict[str, Any]:
    return {
        "bench": what,
        "topic": topic,
        "records": count,
        "bytes": total_bytes,
        "elapsed_s": round(elapsed_s, 3),
        "records_per_s": round(count / elapsed_s),
        "bytes_per_s": round(total_bytes / elapsed_s),
    }


def _tell(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show.show_json(result)
        return
    verb = {"produce": "Produced", "consume": "Consumed"}[result["bench"]]
    show.say(
        f"{verb} {counted(result['records'], 'record')}, {sized(result['bytes'])}, in {result['elapsed_s']:.2f} s"
    )
    show.say(f"  rate     {_rate(result['records_per_s'], result['bytes_per_s'])}")
    if "p50_ms" in result:
        show.say(
            f"  latency  median {result['p50_ms']:.1f} ms, 99% within {result['p99_ms']:.1f} ms, "
            f"longest {result['max_ms']:.1f} ms"
        )


def _rate(records_per_s: float, bytes_per_s: float) -> str:
    return f"{records_per_s:,.0f} records/s, {sized(int(bytes_per_s))}/s"


# While it runs


class _Live:
    """How far it is and how fast: a bar where stderr is a terminal, a line a second elsewhere."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._begun_s = self._shown_s = time.monotonic()
        self._shown = (0, 0)
        self._ended_s: float | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._title, total=self._total, rate="")
        self._bar.start()

    @property
    def elapsed_s(self) -> float:
        return max(1e-6, (self._ended_s or time.monotonic()) - self._begun_s)

    def at(self, count: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        passed_s = now_s - self._shown_s
        if passed_s < (LINE_S if self._bar is None else 0.1):
            return
        before_count, before_bytes = self._shown
        rate = _rate((count - before_count) / passed_s, (total_bytes - before_bytes) / passed_s)
        self._shown, self._shown_s = (count, total_bytes), now_s
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=count, rate=rate)
        else:
            show.remark(f"{self._title} {count:,} of {self._total:,}: {rate}")

    def close(self) -> None:
        self._ended_s = time.monotonic()
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def _live(title: str, total: int) -> Iterator[_Live]:
    live = _Live(title, total)
    if sys.stderr.isatty():
        live.open_bar()
    try:
        yield live
    finally:
        live.close()

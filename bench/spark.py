"""Topics in Spark, beside what Spark itself makes of Arrow batches from Python.

Each route has two partitions on `local[2]`. What a topic gives and takes is compared, in turns and in one session,
with a source that yields the same batches out of memory and a sink that drops them: so the ratio says what the topic
costs on top of Spark's own way to and from Python. The same values are also read by confluent-kafka inside
`mapInArrow`, as one would without a format, and from parquet files, which Spark reads and writes without Python, with
neither codec nor dictionary. The clock stands around the action, not the session; the memory that a round fills is
there when it begins (`memory.py`).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.memory import ballast
from bench.peers import Peer, Rivvend, running
from rivven import blocking

TOPIC = "bench"
PARTITIONS = 2
BATCH_ROWS = {100: 32_768, 1000: 4_096}
OVER_MEMORY = 0.8
OVER_NOWHERE = {100: 0.8, 1000: 0.7}
"""Into Spark, and out of it; see `docs/decisions/009-budgets.md`."""
MICRO_BATCHES, QUICK_MICRO_BATCHES = 40, 7
Result = dict[str, Any]


def run(*, quick: bool = False) -> list[Result]:
    from rivven.spark import start

    rounds, share = (1, 0.05) if quick else (7, 1.0)
    rows = {100: int(4_000_000 * share), 1000: int(800_000 * share)}
    results: list[Result] = []
    with running(Rivvend) as ((peer,), _), tempfile.TemporaryDirectory() as state:
        spark = start("bench", "local[2]", {"spark.sql.shuffle.partitions": "2"})
        try:
            for kind in (memory_source(), drain()):
                spark.dataSource.register(kind)
            for size in (100, 1000):
                results += throughput(spark, peer, Path(state), size, rows[size], rounds)
            spark.sparkContext.setLogLevel("OFF")  # a query that is stopped within a batch complains at length
            results += micro_batches(spark, peer, Path(state), QUICK_MICRO_BATCHES if quick else MICRO_BATCHES)
        finally:
            spark.stop()
    return results


def throughput(spark: Any, peer: Peer, state: Path, size: int, rows: int, rounds: int) -> list[Result]:
    fill(peer, size, rows)
    files, files_out = state / f"in-{size}", state / f"out-{size}"
    fill_files(files, size, rows)
    out = f"bench-out-{size}"
    remake(peer, out)
    servers = f"127.0.0.1:{peer.port}"
    memory = spark.read.format("memory").options(rows=rows, size=size)
    topic = spark.read.format("rivven").options(servers=servers, subscribe=TOPIC)
    to_topic = {"servers": servers, "topic": out}
    plainly = {"compression": "none", "parquet.enable.dictionary": "false"}
    ways: dict[str, Callable[[], Any]] = {
        "memory in": lambda: noop(memory.load()),
        "topic in": lambda: noop(topic.load()),
        "topic in, values": lambda: noop(topic.option("columns", "value").load()),
        "memory in, values": lambda: noop(memory.load().select("value")),
        "files in, values": lambda: noop(spark.read.parquet(str(files))),
        "confluent in, values": lambda: noop(by_confluent(spark, servers)),
        "dropped out": lambda: memory.load().select("value").write.format("drain").mode("append").save(),
        "topic out": lambda: (
            memory.load().select("value").write.format("rivven").options(**to_topic).mode("append").save()
        ),
        "files out": lambda: (
            memory.load().select("value").write.options(**plainly).mode("overwrite").parquet(str(files_out))
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for way in ways.values():  # once for the workers, the code and the memory
        way()
    for _ in range(rounds):
        for name in order:
            ballast.take_all()
            ballast.drop()
            begun = time.perf_counter()
            ways[name]()
            rates[name].append(rows / (time.perf_counter() - begun))
        order.reverse()
        remake(peer, out)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    label = f"{size} B"
    into, out_of = f"topic to Spark, {label}", f"Spark to topic, {label}, exactly once"
    return [
        ratio(f"{into}, all columns, over memory to Spark", medians, "topic in", "memory in", OVER_MEMORY),
        ratio(f"{into}, values, over memory to Spark", medians, "topic in, values", "memory in, values", OVER_MEMORY),
        ratio(f"{into}, values, over parquet files", medians, "topic in, values", "files in, values", None),
        ratio(
            f"{into}, values, over confluent-kafka in mapInArrow",
            medians,
            "topic in, values",
            "confluent in, values",
            1.0,
        ),
        ratio(f"{out_of}, over Spark to a sink that drops", medians, "topic out", "dropped out", OVER_NOWHERE[size]),
        ratio(f"{out_of}, over Spark to parquet files", medians, "topic out", "files out", None),
    ]


def ratio(bench: str, medians: dict[str, float], ours: str, other: str, target: float | None) -> Result:
    value, against = medians[ours], medians[other]
    result = {
        "bench": bench,
        "unit": "rows/s",
        "value": round(value),
        "against": round(against),
        "ratio": round(value / against, 2),
    }
    return result if target is None else {**result, "target": target, "met": value >= target * against}


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def remake(peer: Peer, topic: str) -> None:
    with blocking.connect(f"127.0.0.1:{peer.port}") as client:
        if topic in client.list_topics():
            client.delete_topic(topic)
        client.create_topic(topic, PARTITIONS)


def fill(peer: Peer, size: int, rows: int) -> None:
    remake(peer, TOPIC)
    with (
        blocking.connect(f"127.0.0.1:{peer.port}") as client,
        client.producer(TOPIC, batch_size=1_000_000) as producer,
    ):
        for partition in range(PARTITIONS):
            for batch in batches(rows // PARTITIONS, size):
                producer.put_arrow(batch.select(["value", "timestamp"]), partition=partition)
        producer.flush()


def fill_files(place: Path, size: int, rows: int) -> None:
    """As many values as the topic has, as Spark reads them soonest: neither packed nor looked up."""
    place.mkdir()
    count = BATCH_ROWS[size]
    batch = pa.record_batch({"value": pa.array([os.urandom(size) for _ in range(count)], pa.binary())})
    for number in range(PARTITIONS):
        path = place / f"{number}.parquet"
        with pq.ParquetWriter(path, batch.schema, compression="none", use_dictionary=False) as writer:
            for first in range(0, rows // PARTITIONS, count):
                writer.write_batch(batch.slice(0, min(count, rows // PARTITIONS - first)))


def micro_batches(spark: Any, peer: Peer, state: Path, count: int) -> list[Result]:
    """How long a micro-batch takes, triggers back to back, a few rows each."""
    servers = f"127.0.0.1:{peer.port}"
    topic = spark.readStream.format("rivven").options(servers=servers, subscribe=TOPIC, startingOffsets="earliest")
    frames = {
        "rate": spark.readStream.format("rate-micro-batch").options(rowsPerBatch=100, numPartitions=2).load(),
        "topic": topic.option("maxOffsetsPerTrigger", "100").load(),
    }
    taken = {
        name: time_batches(frame.writeStream.format("noop"), state / name, count) for name, frame in frames.items()
    }
    copy = frames["topic"].select("value").writeStream.format("rivven").options(servers=servers, topic="bench-copy")
    remake(peer, "bench-copy")
    taken["topic to topic"] = time_batches(copy, state / "copy", count)
    return [
        {"bench": "micro-batch of the JVM's rate source to nothing, p50", "unit": "ms", "value": taken["rate"]},
        {"bench": "micro-batch of a topic to nothing, p50", "unit": "ms", "value": taken["topic"]},
        {"bench": "micro-batch of a topic to a topic, p50", "unit": "ms", "value": taken["topic to topic"]},
    ]


def time_batches(writer: Any, checkpoint: Path, count: int) -> int:
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()
    try:
        deadline = time.monotonic() + 120
        while len(query.recentProgress) < count and time.monotonic() < deadline and query.isActive:
            time.sleep(0.2)
        times = [progress.durationMs["triggerExecution"] for progress in query.recentProgress[5:]]
    finally:
        query.stop()
    return int(statistics.median(times))


# What Spark is compared with


def batches(rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """The columns of a topic, out of memory."""
    count = BATCH_ROWS[size]
    whole = pa.RecordBatch.from_arrays(
        [
            pa.nulls(count, pa.binary()),
            pa.array([bytes(size)] * count, pa.binary()),
            pa.array([TOPIC] * count, pa.string()),
            pa.array([0] * count, pa.int32()),
            pa.array(range(count), pa.int64()),
            pa.array([time.time_ns() // 1000] * count, pa.timestamp("us", "UTC")),
            pa.array([0] * count, pa.int32()),
            pa.array([[]] * count, HEADERS),
        ],
        names=["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"],
    )
    for first in range(0, rows, count):
        yield whole.slice(0, min(count, rows - first))


def by_confluent(spark: Any, servers: str) -> Any:
    """The values of the topic, read by a consumer of librdkafka in each task."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Consumer, TopicPartition

        for batch in numbers:
            (number,) = map(int, batch.column(0).to_numpy())
            consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
            try:
                _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, number))
                consumer.assign([TopicPartition(TOPIC, number, 0)])
                last = -1
                while last + 1 < end:
                    messages = consumer.consume(10_000, timeout=1.0)
                    if messages:
                        last = int(messages[-1].offset() or 0)
                        values = pa.array([message.value() for message in messages], pa.binary())
                        yield pa.RecordBatch.from_arrays([values], names=["value"])
            finally:
                consumer.close()

    return spark.range(0, PARTITIONS, 1, PARTITIONS).mapInArrow(read, "value BINARY")


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def memory_source() -> type:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import to_arrow_schema

    from rivven.spark import RivvenSource

    schema_of_topics = RivvenSource({"servers": "127.0.0.1:1", "subscribe": TOPIC}).schema()
    wanted = to_arrow_schema(schema_of_topics, timezone="UTC")

    class Reader(DataSourceReader):
        def __init__(self, rows: int, size: int) -> None:
            self._rows, self._size = rows, size

        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(number) for number in range(PARTITIONS)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            del partition
            for batch in batches(self._rows // PARTITIONS, self._size):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted)

    class Memory(DataSource):
        @classmethod
        def name(cls) -> str:
            return "memory"

        def schema(self) -> Any:
            return schema_of_topics

        def reader(self, schema: Any) -> DataSourceReader:
            del schema
            return Reader(int(self.options["rows"]), int(self.options["size"]))

    return Memory


def drain() -> type:
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Drain(DataSource):
        @classmethod
        def name(cls) -> str:
            return "drain"

        def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
            del schema, overwrite
            return Writer()

    return Drain

"""What the tests of the Spark format share: a broker of their own, a session's settings, topics as tables."""

from __future__ import annotations

import contextlib
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from rivven.client import blocking

# Micro-batches of a tenth of a second instead of three; that their crash safety is not proven is no matter here.
TUNED = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.pollingDelay": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
}
READY = re.compile(r"rivvend ready: native protocol on (127\.0\.0\.1:\d+), ")


@contextlib.contextmanager
def running_broker(data_dir: Path, *flags: str) -> Iterator[str]:
    """The address of a `rivvend` of our own."""
    command = [str(Path(sys.executable).with_name("rivvend")), "--data-dir", str(data_dir)]
    command += ["--bind", "127.0.0.1:0", "--http-port", "0", "--sync-policy", "none", *flags]
    with open(data_dir.with_suffix(".errors"), "wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 30)[0], "the broker did not start"
        found = READY.match(process.stdout.readline().decode())
        assert found is not None, data_dir.with_suffix(".errors").read_text()
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


class Topics:
    """Makes topics with names of their own, and fills and reads them."""

    def __init__(self, client: blocking.RivvenClient, spark: SparkSession, servers: str) -> None:
        self.client = client
        self.servers = servers
        self.spark = spark
        self._made = 0

    def make(self, partitions: int = 1, name: str | None = None, **configs: str) -> str:
        """Its records stay, however old they are."""
        self._made += 1
        topic = name or f"topic-{self._made}"
        settings = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
        self.client.create_topic(topic, partitions, configs=settings)
        return topic

    def fill(self, topic: str, partition: int, values: list[str], *, first_ms: int = 1_700_000_000_000) -> None:
        """One record a second, the keys being the values."""
        with self.client.producer(topic) as producer:
            for place, value in enumerate(values):
                moment = first_ms + 1000 * place
                producer.put(value.encode(), value.encode(), partition=partition, timestamp_ms=moment)

    def read(self, topic: str | None = None, **options: object) -> DataFrame:
        """The topic as a table."""
        given = {"servers": self.servers} | ({"subscribe": topic} if topic else {})
        texts = {key: str(value) for key, value in {**given, **options}.items()}
        return self.spark.read.format("rivven").options(**texts).load()

    def stream(self, topic: str | None = None, **options: object) -> DataFrame:
        given = {"servers": self.servers, "startingOffsets": "earliest"} | ({"subscribe": topic} if topic else {})
        texts = {key: str(value) for key, value in {**given, **options}.items()}
        return self.spark.readStream.format("rivven").options(**texts).load()


def values(table: DataFrame) -> list[str]:
    """The values of a table of records, in order of the text."""
    return sorted(row[0] for row in table.selectExpr("CAST(value AS STRING)").collect())

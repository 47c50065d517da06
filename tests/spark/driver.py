"""A Spark driver that copies a topic into another, and ends itself by SIGKILL where it is told to.

    driver.py SERVERS FROM TO CHECKPOINT (before|after)

`before` and `after`: inside the commit of batch 1, before or after the broker has decided.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType
from tables import TUNED

from rivven.spark import RivvenSource, start
from rivven.spark.sink import StreamWriter

DRIVER, MOMENT = "RIVVEN_TEST_DRIVER", "RIVVEN_TEST_MOMENT"
DEADLY_BATCH = 1


def kill_driver() -> None:
    """End the driver, its JVM, and this process, which is a child's child of them."""
    last, line = int(os.environ[DRIVER]), [os.getpid()]
    while line[-1] != last:
        with open(f"/proc/{line[-1]}/stat") as file:
            line.append(int(file.read().rpartition(")")[2].split()[1]))
    for pid in reversed(line):
        os.kill(pid, signal.SIGKILL)


class MortalWriter(StreamWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        moment = os.environ[MOMENT] if batchId == DEADLY_BATCH else "never"
        if moment == "before":
            kill_driver()
        super().commit(messages, batchId)
        if moment == "after":
            kill_driver()


class MortalSource(RivvenSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return MortalWriter(self._writing(schema, overwrite, stream=True))


def copying(spark: SparkSession, servers: str, source: str, sink: str, checkpoint: str) -> StreamingQuery:
    """The query, which ends when it has copied what is there, ten records in a batch."""
    reading = {"servers": servers, "subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    rows = spark.readStream.format("rivven").options(**reading).load().select("key", "value")
    writer = rows.writeStream.format("rivven").options(servers=servers, topic=sink, checkpointLocation=checkpoint)
    return writer.trigger(availableNow=True).start()


def main(servers: str, source: str, sink: str, checkpoint: str, moment: str) -> None:
    os.environ.update({DRIVER: str(os.getpid()), MOMENT: moment})
    spark = start("mortal", "local[2]", TUNED)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(MortalSource)
    copying(spark, servers, source, sink, checkpoint).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

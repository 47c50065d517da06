"""Spark's Python daemon with our modules loaded: `python -m rivven.spark.daemon WORKER`, instead of pyspark's own.

A daemon forks a process for whatever Spark wants from Python: to plan a query, to read a partition, to commit a
write. Each of those would load the same modules anew, which takes longer than most of them work. The daemon loads
them once, and what it forks has them. What was loaded stays, so the children's collector need not look at it: pyspark
has it look at everything after each task, which took longer than many a task.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from importlib import import_module

PLANS = ("rivven.spark",)
MOVES_ROWS = (*PLANS, "pyarrow.compute", "pyspark.sql.pandas.serializers", "pyspark.sql.pandas.types")
LOADED = {
    "pyspark.worker": MOVES_ROWS,
    "pyspark.sql.worker.create_data_source": PLANS,
    "pyspark.sql.worker.plan_data_source_read": MOVES_ROWS,
    "pyspark.sql.worker.data_source_pushdown_filters": PLANS,
    "pyspark.sql.worker.write_into_data_source": MOVES_ROWS,
    "pyspark.sql.worker.commit_data_source_write": PLANS,
    "pyspark.sql.worker.python_streaming_sink_runner": PLANS,
    "pyspark.sql.streaming.python_streaming_source_runner": PLANS,
}
"""What is loaded before a daemon forks, by the module that its children run. Others, of which a session needs one
at most, load what they need themselves."""


def load(worker: str) -> None:
    for name in LOADED.get(worker, ()):
        with suppress(ImportError):  # whoever needs it will say so
            import_module(name)


def main() -> None:
    load(sys.argv[1] if len(sys.argv) > 1 else "")
    from pyspark.daemon import manager

    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()

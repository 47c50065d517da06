"""A Spark session of our own: quiet, on the Java that was found, with the format `rivven` in it.

Whoever has a session already needs `register` alone.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from . import classes, interpreter
from .java import java_home, quiet_home
from .source import RivvenSource

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
TWICE_SAID = "SQLQueryContextLogger", "DataFrameQueryContextLogger"
"""They write every error of a query to the terminal as JSON, where it is raised too."""

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    PUSHDOWN: "true",
}


def register(spark: SparkSession) -> None:
    """Make `format("rivven")` known to a session, and let filters be pushed down to it."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(RivvenSource)


def prepare_environment(*, here: bool = False) -> None:
    """What the JVM and the workers find in the environment. Whatever is set already stays as it is.

    `here` where all of Spark runs on this machine.
    """
    if "SPARK_CONF_DIR" not in os.environ:
        os.environ["SPARK_CONF_DIR"] = str(classes.empty_directory())
        told = os.environ.get("SPARK_SUBMIT_OPTS", "")
        os.environ["SPARK_SUBMIT_OPTS"] = f"{classes.options()} {told}".rstrip()
    os.environ["JAVA_HOME"] = str(quiet_home(java_home()))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not interpreter.is_chosen(os.environ.get("PYSPARK_PYTHON")):
        os.environ["PYSPARK_PYTHON"] = interpreter.python(here=here)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def start(
    name: str = "rivven", master: str | None = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with the format registered; the one that runs already, if there is one.

    `master` may be None where `spark-submit` has chosen it.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        return running
    settings = {**QUIET, **(settings or {})}
    prepare_environment(here=settings.get("spark.master", master or "").startswith("local"))
    for logger in TWICE_SAID:
        PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark

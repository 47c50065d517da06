"""The Spark session of a run: started quietly, ended without a fuss."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .opening import Misused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rivven.connect.config import ConnectConfig
    from rivven.connect.state import StateDirectory


def session(
    config: ConnectConfig, master: str, remote: str | None, state: StateDirectory, *, verbose: bool
) -> SparkSession:
    """The Spark session. What the JVM says goes to spark.log in the state directory, unless it may speak."""
    if config.settings.log_level != "debug":
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    settings = {"spark.sql.session.timeZone": "UTC", **config.settings.spark}
    try:
        from rivven.spark import start, start_remote
    except ImportError as error:
        raise Misused(f"Spark is not installed ({error.name or error}); pip install 'rivven[spark]'") from None
    if remote is not None:
        return start_remote(remote, settings, tell=lambda text: typer.echo(text, err=True))
    with _stderr_to(None if verbose else state.path / "spark.log"):
        return start("rivven-connect", master, _local_settings(master) | settings)


def _local_settings(master: str) -> dict[str, str]:
    """For one machine: an aggregation in 200 parts, which is Spark's default, would be 200 tasks for a few rows."""
    if not master.startswith("local"):
        return {}
    return {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Children that start meanwhile write their stderr to a file; our own comes back after that."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    own = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(file)


def end(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception as error:  # a JVM that a signal has ended cannot say goodbye
        logging.getLogger("rivven.connect").debug("Spark did not stop: %s", error)

"""Spark started once for its classes alone: a small pipeline runs in a directory that goes with it, and Java keeps
what it has loaded for that (see `rivven.spark.classes`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rivven.errors import RivvenError

PATIENCE_S = 300.0
SAID_CHARS_MAX = 500
PIPELINES = """\
version: "1.0"
pipelines:
  rows:
    source: {connector: datagen, config: {pattern: orders, max_events: 50, seed: 1}}
    transforms:
      - {type: filter, config: {condition: "quantity > 0"}}
      - {type: mask, config: {fields: [customer_id], method: hash}}
      - {type: add_timestamp, config: {field: seen_at}}
    sink: {connector: file, config: {path: rows, format: parquet}}
  texts:
    source: {connector: datagen, config: {pattern: pageviews, max_events: 50, seed: 1}}
    sink: {connector: file, config: {path: texts, format: json}}
"""


class NotPrepared(RivvenError, code=115):
    """Java kept no classes."""


def keep_classes(tell: Callable[[str], None]) -> tuple[float, Path]:
    """Make the archive anew; how long that took, and where it is."""
    from rivven.spark import classes

    started = time.monotonic()
    path = classes.archive()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.stem}-{os.getpid()}.jsa")
    tell("starting Spark once, to keep the classes that it loads ...")
    try:
        with tempfile.TemporaryDirectory(prefix="rivven-prepare-") as directory:
            _run_once(Path(directory), classes.options_to_archive(fresh), str(classes.empty_directory()))
        if not fresh.exists():
            raise NotPrepared(reason="Java kept no classes, though all went well; Spark starts as before")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return time.monotonic() - started, path


def _run_once(directory: Path, options: str, conf: str) -> None:
    """Run the pipelines, and wait until Java is gone too: it writes on its way out."""
    (directory / "connect.yaml").write_text(PIPELINES)
    command = [sys.executable, "-m", "rivven.connect.main", "-c", "connect.yaml", "run", "--once", "--no-http"]
    environment = os.environ | {"SPARK_CONF_DIR": conf, "SPARK_SUBMIT_OPTS": options}
    process = subprocess.Popen(
        [*command, "--master", "local[2]", "--state-dir", "state"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
        _await_group(process.pid)
    except BaseException:
        _end_group(process.pid)
        raise
    if process.returncode != 0:
        end = said.decode(errors="replace").strip()[-SAID_CHARS_MAX:]
        raise NotPrepared(reason=f"the small pipeline failed, and Spark starts as before: {end}")


def _await_group(group: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise NotPrepared(reason=f"Java did not end within {PATIENCE_S:.0f} s")


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)

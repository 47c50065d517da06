"""`rivven sql`: what is refused before Spark is started. What it answers is in tests/spark/test_query.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

RIVVEN = Path(sys.executable).with_name("rivven")


def test_without_spark_one_line_says_what_to_install(tmp_path: Path) -> None:
    """As if it were not there: a finder of ours says so before any other is asked."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'pyspark' else real(name, package)\n"
    )
    ran = subprocess.run(
        [RIVVEN, "sql", "SELECT 1"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "error: SQL needs Spark, which is not installed here: pip install 'rivven[spark]'\n"


def test_two_forms_at_once_are_refused() -> None:
    ran = subprocess.run(
        [RIVVEN, "sql", "SELECT 1", "--json", "--csv"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: choose one of --json and --csv")

"""Which Python Spark's workers are, what its path is rid of, and what it loads."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyspark
import pytest
from pyspark.sql import SparkSession

from rivven.spark import daemon, interpreter, prepare_environment

HOME = Path(pyspark.__file__).parent
ZIP = HOME / "python" / "lib" / "pyspark.zip"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # what was not set shall not be set afterwards either
        monkeypatch.delenv(name)
    return tmp_path / "a cache" / "rivven"


def told(python: str, path: str) -> list[str]:
    """What a Python that Spark starts with this path says of itself."""
    code = "import os, sys; print(sys.executable, os.environ.get('PYTHONPATH'), sys.argv[1:], sep='\\n')"
    command = [python, "-c", code, "$x", "a b"]
    ran = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def test_spark_s_own_copies_leave_the_path_and_all_else_stays(cache: Path) -> None:
    python = interpreter.python(here=True)
    assert Path(python).is_relative_to(cache)
    jar = next((HOME / "jars").glob("spark-core_*.jar"))
    kept = ["/else/where/python/lib/pyspark.zip", "/of mine/*", str(HOME), str(HOME / "jars" / "mine.jar")]
    path = [str(ZIP), str(next(ZIP.parent.glob("py4j-*.zip"))), str(jar), *kept]
    assert told(python, ":".join(path)) == [sys.executable, ":".join(kept), "['$x', 'a b']"]
    assert told(python, ":".join(path[:3])) == [sys.executable, "", "['$x', 'a b']"]


def test_a_path_is_no_pattern(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    python = interpreter.python(here=True)
    assert told(python, "a*:[c]*:b")[1] == "a*:[c]*:b"
    assert cache.exists()


@pytest.mark.usefixtures("cache")
def test_a_spark_elsewhere_gets_the_python_itself() -> None:
    assert interpreter.python(here=False) == sys.executable


def test_another_spark_has_its_own_copy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert interpreter.python(here=True) == sys.executable
    assert not cache.exists()
    monkeypatch.setenv("SPARK_HOME", str(HOME))
    assert interpreter.python(here=True) != sys.executable


def test_a_pyspark_that_only_a_path_leads_to_is_left_on_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter.site, "getsitepackages", lambda: ["/else/where"])
    monkeypatch.setattr(interpreter.site, "ENABLE_USER_SITE", False)
    assert interpreter.python(here=True) == sys.executable
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
def test_each_python_and_each_pyspark_has_a_script_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one = interpreter.python(here=True)
    monkeypatch.setattr(sys, "executable", "/other/bin/python")
    other = interpreter.python(here=True)
    assert Path(other).read_text().count("/other/bin/python") == 1
    monkeypatch.setattr(interpreter.pyspark, "__file__", "/other/pyspark/__init__.py")
    third = interpreter.python(here=True)
    assert "/other/pyspark/python/lib/" in Path(third).read_text()
    assert len({one, other, third}) == 3


@pytest.mark.usefixtures("cache")
def test_a_script_of_an_older_release_is_written_anew() -> None:
    path = Path(interpreter.python(here=True))
    text = path.read_text()
    path.write_text("#!/bin/sh\nexit 1\n")
    assert interpreter.python(here=True) == str(path)
    assert path.read_text() == text
    assert os.access(path, os.X_OK)


def test_all_who_write_it_at_once_find_it_whole(cache: Path) -> None:
    ready = Barrier(8)

    def write(_number: int) -> tuple[str, str]:
        ready.wait()
        path = interpreter.python(here=True)
        return path, Path(path).read_text()

    with ThreadPoolExecutor(8) as pool:
        ((path, text),) = set(pool.map(write, range(8)))
    assert text.endswith('"$@"\n')
    assert [*cache.rglob("*")] == [Path(path).parent, Path(path)], "nothing is left over"


@pytest.mark.usefixtures("cache")
def test_a_choice_stays_and_a_script_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with a cluster's session can be the child of one with a session here, or had that one before."""
    prepare_environment(here=True)
    assert os.environ["PYSPARK_PYTHON"] == interpreter.python(here=True)
    prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    prepare_environment(here=True)
    assert os.environ["PYSPARK_PYTHON"] == interpreter.python(here=True)
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3.99")
    prepare_environment(here=True)
    assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python3.99"


@pytest.mark.xdist_group("spark")
def test_workers_import_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    def where(_rows: object) -> list[str]:
        import py4j

        return [pyspark.__file__, py4j.__file__, sys.executable]

    import py4j

    found = spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect()
    assert found == [pyspark.__file__, py4j.__file__, sys.executable]


@pytest.mark.xdist_group("spark")
def test_what_a_daemon_forks_has_our_modules_already(spark: SparkSession) -> None:
    def loaded(_rows: object) -> list[bool]:
        return [name in sys.modules for name in ("rivven.spark.source", "pyarrow")]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(loaded).collect() == [True, True]


def test_a_daemon_that_lacks_what_it_would_load_works_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(daemon.LOADED, "pyspark.worker", ("there.is.no.such.module", "rivven.spark"))
    daemon.load("pyspark.worker")
    daemon.load("a.worker.of.somebody.else")


@pytest.mark.parametrize("worker", daemon.LOADED)
def test_every_worker_that_we_prepare_for_is_one_of_spark_s(worker: str) -> None:
    assert importlib.util.find_spec(worker) is not None


@pytest.mark.usefixtures("cache")
def test_only_spark_s_own_daemon_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "rivven" / "spark").mkdir(parents=True)
    for place, name in (("rivven/spark/daemon.py", "ours"), ("mine.py", "mine")):
        (tmp_path / place).write_text(f"import sys; print({name!r}, sys.argv[1:])")
    (tmp_path / "rivven" / "__init__.py").touch()
    (tmp_path / "rivven" / "spark" / "__init__.py").touch()
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    for asked, answered in (("pyspark.daemon", "ours ['a worker', 'b']"), ("mine", "mine ['a worker', 'b']")):
        command = [interpreter.python(here=True), "-m", asked, "a worker", "b"]
        assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout.strip() == answered


def test_a_process_that_only_plans_loads_neither_arrow_nor_yaml() -> None:
    """Spark starts half a dozen for a pipeline; what takes a tenth of a second there waits until it is needed."""
    loaded = "set(sys.modules) & {'numpy', 'pandas', 'pyarrow', 'yaml'}"
    code = f"import sys, rivven.connect.bridge, rivven.connect.sources.datagen; print(*{loaded})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == []

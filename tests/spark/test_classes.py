"""What a session's JVM is told about the classes that it may take ready-made, and that it takes them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rivven.connect.prepare import keep_classes
from rivven.spark import classes, java_home, prepare_environment


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(classes, "place", lambda: tmp_path / "a place")
    for name in ("SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # what was not set shall not be set afterwards either
        monkeypatch.delenv(name)
    monkeypatch.setenv("JAVA_HOME", str(java_home()))
    return tmp_path / "a place"


def test_without_an_archive_only_the_logging_is_told(place: Path) -> None:
    prepare_environment()
    assert os.environ["SPARK_SUBMIT_OPTS"] == f'-Dlog4j2.configurationFile="{classes.LOGGING}"'
    assert classes.LOGGING.is_file()
    assert os.environ["SPARK_CONF_DIR"] == str(place / "conf")
    assert list((place / "conf").iterdir()) == [], "Java refuses an archive where this holds a file"


def test_an_archive_that_is_there_is_named_and_other_options_stay(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.mkdir()
    classes.archive().write_bytes(b"")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xmx300m")
    prepare_environment()
    told = os.environ["SPARK_SUBMIT_OPTS"]
    assert f'-XX:SharedArchiveFile="{classes.archive()}"' in told
    assert told.endswith(" -Xmx300m")
    prepare_environment()
    assert os.environ["SPARK_SUBMIT_OPTS"] == told, "once is enough"


def test_a_configuration_of_the_users_own_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    prepare_environment()
    assert os.environ["SPARK_CONF_DIR"] == "/etc/spark"
    assert "SPARK_SUBMIT_OPTS" not in os.environ
    assert not place.exists()


def test_java_starts_with_an_archive_that_is_none(place: Path) -> None:
    """It was cut short, or is of another Java: then the start is as slow as ever, and silent."""
    place.mkdir()
    classes.archive().write_bytes(b"no archive" * 1000)
    command = [str(java_home() / "bin" / "java"), *shlex.split(classes.options()), "-version"]
    ran = subprocess.run(command, capture_output=True, check=False)
    assert ran.returncode == 0
    assert b"version" in ran.stderr
    assert b"rchive" not in ran.stdout + ran.stderr


@pytest.mark.soak
def test_classes_are_kept_and_taken(place: Path) -> None:
    _, path = keep_classes(print)
    assert path == classes.archive()
    assert path.stat().st_size > 50_000_000
    assert [each.name for each in place.iterdir() if each != path] == ["conf"]
    loaded = place.parent / "loaded"
    told = {"SPARK_SUBMIT_OPTS": f'{classes.options()} -Xlog:class+load:file="{loaded}"'}
    script = "from rivven.spark import start; start().range(10).count()"
    where = {"SPARK_CONF_DIR": str(classes.empty_directory())}
    subprocess.run([sys.executable, "-c", script], env=os.environ | told | where, check=True, timeout=300)
    assert loaded.read_text().count("shared objects file (top)") > 5_000

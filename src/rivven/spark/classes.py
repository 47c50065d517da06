"""The classes that Spark loads, kept as Java maps them into memory: a start with them takes half the time.

Java makes such an archive when it exits, and takes it at the next start if the jars are still the same; if not, or if
there is none, it starts as ever. It can do so only where no directory with files is on the class path, so Spark's
configuration directory is an empty one, and the words for its logging come as an option.

The archive lies beside Spark's jars, or in the user's cache where nobody may write there.
"""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import pyspark

from .java import cache_directory, java_home, version

LOGGING = Path(__file__).with_name("conf") / "log4j2.properties"
LOGGED = f'-Dlog4j2.configurationFile="{LOGGING}"'
QUIETLY = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
"""An archive that does not fit is nothing to tell anybody."""


def place() -> Path:
    """Where the archive is, or would be."""
    home = Path(pyspark.__file__).parent
    return (
        home / "rivven" if os.access(home, os.W_OK) else cache_directory() / f"spark-{crc32(os.fsencode(home)):08x}"
    )


def archive() -> Path:
    """One for each version of Java. An update of that version finds it of no use, as if there was none."""
    return place() / f"classes-{version(java_home())}.jsa"


def empty_directory() -> Path:
    made = place() / "conf"
    made.mkdir(parents=True, exist_ok=True)
    return made


def options() -> str:
    """For the JVM of a session."""
    path = archive()
    return f'{LOGGED} -XX:SharedArchiveFile="{path}" {QUIETLY}' if path.exists() else LOGGED


def options_to_archive(path: Path) -> str:
    """For the JVM of a session whose classes shall be kept."""
    return f'{LOGGED} -XX:ArchiveClassesAtExit="{path}" {QUIETLY}'

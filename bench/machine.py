"""Where and on what a run was made: the head of every result, so that a figure can be doubted knowledgeably."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from bench import load
from bench.kraft import Kafka
from bench.peers import MockBroker, Nats, Peer, Redis, Rivvend, Unavailable

PEERS: dict[str, type[Peer]] = {
    "rivvend": Rivvend,
    "Apache Kafka": Kafka,
    "Redis": Redis,
    "NATS JetStream": Nats,
    "librdkafka": MockBroker,
}
Facts = dict[str, Any]


def about() -> Facts:
    return {
        "commit": commit(),
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "kernel": platform.release(),
        "filesystem": filesystem(Path.cwd(), Path("/proc/self/mounts").read_text()),
        "python": platform.python_version(),
        "java": java(),
        "compiler": compiler(),
        "generator": "C" if load.is_native() else "Python",
        **versions(),
        "load": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Who is here to be measured, and who is not and why."""
    told = {}
    for name, kind in PEERS.items():
        try:
            told[name] = kind.version()
        except Unavailable as why:
            told[name] = f"not available: {why}"
    return told


def commit() -> str:
    """Where the tree stands, and whether it has been changed since."""
    return _said("git", "describe", "--always", "--dirty") or "unknown"


def java() -> str:
    from rivven.spark import java_home

    try:
        home = java_home()
    except Exception as error:
        return f"not available: {error}"
    found = re.search(r'version "([^"]+)"', _said(str(home / "bin" / "java"), "-version"))
    return found[1] if found else "unknown"


def compiler() -> str:
    path = shutil.which("cc") or shutil.which("gcc")
    return _said(path, "--version").partition("\n")[0] if path else "none"


def _said(*command: str) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (ended.stdout + ended.stderr).strip()


def cpu_model(cpuinfo: str) -> str:
    """Of /proc/cpuinfo; some machines keep it to themselves."""
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def filesystem(place: Path, mounts: str) -> str:
    """The kind of the filesystem that this place is on: that of the longest mount point above it."""
    kinds = {}
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split()
        kinds[Path(point.replace("\\040", " "))] = kind
    above = [point for point in kinds if place.is_relative_to(point)]
    return kinds[max(above, key=lambda point: len(point.parts))] if above else "unknown"

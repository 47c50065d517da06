"""How many open files this machine allows, and so how many connections and partitions can be measured here.

Children inherit the limit, so brokers get the same. Where it does not suffice, fewer are measured and a note says so.
"""

from __future__ import annotations

import resource

from bench.spread import Result

WANTED = 65_536
SPARE = 600
PARTITION_FILES = 2
"""A partition of `rivvend` may have so many files open."""
STEP = 100


def allow() -> int:
    """Ask for as many as we want, or else for all that we may have; how many there are then."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < WANTED:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (WANTED, WANTED))
            return WANTED
        except (ValueError, OSError):  # only a privileged process may
            pass
    most = WANTED if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def affordable(wanted: int, *, files_each: int, files: int | None = None) -> tuple[int, Result]:
    """As many as there are files for, and what to say if that is fewer than wanted."""
    most = allow() if files is None else files
    room = (most - SPARE) // files_each // STEP * STEP
    if room >= wanted:
        return wanted, {}
    return room, {"note": f"{wanted:,} were wanted; the limit of open files here is {most:,} (ulimit -n)"}

"""Opening a data directory, to read it beside a node or to have it alone; and refusing what cannot be meant."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rivven.log import DataDirectory, PartitionFiles, Store
    from rivven.system import SystemDisk

# The modules of the log are imported where they are used: `--help` should not wait for them.


def read_only(path: str) -> SystemDisk:
    from rivven.system import SystemDisk

    if not stat.S_ISDIR(os.stat(path).st_mode):  # tells "not there" from "not allowed to look"
        raise NotADirectoryError(errno.ENOTDIR, "is a file, not a directory", path)
    return SystemDisk(path, read_only=True)


def open_directory(path: str) -> tuple[SystemDisk, DataDirectory]:
    from rivven.log import read_directory

    disk = read_only(path)
    os.listdir(path)  # a directory that may not be listed would look empty
    return disk, read_directory(disk)


def user_of(disk: SystemDisk) -> int | str | None:
    """The process that has the directory open, if one has."""
    from rivven.errors import DirectoryLocked

    try:
        disk.lock("lock").release()
    except DirectoryLocked as error:
        pid: int | str = error.facts["pid"]
        return pid
    return None


def files_of(
    disk: SystemDisk, directory: DataDirectory, topic: str | None, partition: int | None
) -> list[PartitionFiles]:
    from rivven.log import read_partition

    return [read_partition(disk, directory, each, place) for each, place in directory.partitions(topic, partition)]


def root_of(path: str) -> tuple[str, str]:
    """The data directory that a file is in, as far as one can tell, and its path below that."""
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    whole = os.path.abspath(path)
    root = parent = os.path.dirname(whole)
    for _ in range(4):
        if os.path.isdir(os.path.join(parent, "topics")):
            root = parent
            break
        parent = os.path.dirname(parent)
    return root, os.path.relpath(whole, root)


@contextmanager
def keeper(path: str, directory: DataDirectory) -> Iterator[SystemDisk | None]:
    """The disk to save filters on, while no other process has the directory and its segments are settled."""
    from rivven.errors import DirectoryLocked
    from rivven.system import SystemDisk

    if not directory.clean:
        yield None
        return
    try:
        disk = SystemDisk(path)
        lock = disk.lock("lock")
    except (DirectoryLocked, OSError):
        yield None
        return
    try:
        yield disk
    finally:
        lock.release()


@contextmanager
def open_store(path: str) -> Iterator[Store]:
    """The directory opened alone and recovered; closed in good order if all goes well, else left as after a crash."""
    from rivven.log import Store
    from rivven.system import SystemClock, SystemDisk, SystemEntropy

    disk = SystemDisk(path)
    store = Store(disk, SystemClock(), SystemEntropy())
    try:
        yield store
        store.close()
    finally:
        store.abandon()
        disk.close()


class Misused(Exception):
    """Options that cannot be meant together, or a value that is none."""


def usage(message: str) -> NoReturn:
    raise Misused(message)

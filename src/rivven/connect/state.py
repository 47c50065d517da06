"""The state directory: checkpoints of the queries, and what was learned about their data. One process at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from rivven.errors import RivvenError


class StateInUse(RivvenError, code=202):
    """Another run has the state directory."""

    message = "{path} is in use by process {pid}; stop that run, or choose another state directory with --state-dir"


class StateDamaged(RivvenError, code=207):
    """What a run has kept cannot be read."""

    message = "{path} cannot be read: {reason}; remove it, and what it says is learned anew from what is there now"


def why_unusable(error: OSError) -> str:
    """What is wrong with a state directory that cannot be opened."""
    match error.errno:
        case errno.EEXIST:
            return "it is a file"
        case errno.ENOTDIR:
            return "a part of its path is a file"
        case errno.ENOENT:
            return "it cannot be made there"
        case _:
            return f"{error.filename}: {error.strerror}" if error.filename else str(error)


class StateDirectory:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Take it for this process; StateInUse if another has it. A process that ends lets go of it.

        OSError if it is no directory that can be written: Spark would find that out later, and at length.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path))
        lock = open(self.path / "lock", "a+", encoding="ascii")  # noqa: SIM115  # held while we run
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            pid = lock.read().strip() or "unknown"
            lock.close()
            raise StateInUse(path=self.path, pid=pid) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def below(self, place: str) -> str:
        return str(self.path / place)

    def kept(self, place: str) -> str | None:
        """A text that was kept, if there is one."""
        try:
            return (self.path / "learned" / place).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def known(self, place: str) -> dict[str, Any] | None:
        """The same, of what was kept as JSON."""
        text = self.kept(place)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError as error:
            raise StateDamaged(path=self.path / "learned" / place, reason=str(error)) from error
        if not isinstance(found, dict):
            raise StateDamaged(path=self.path / "learned" / place, reason="it holds no object")
        return found

    def keep(self, place: str, text: str) -> None:
        """Whole or not at all, also if the power goes: nobody could tell an empty file from one that says nothing."""
        path = self.path / "learned" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".draft")
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)

    def recall(self, place: str, make: Callable[[], str]) -> str:
        text = self.kept(place)
        if text is None:
            text = make()
            self.keep(place, text)
        return text

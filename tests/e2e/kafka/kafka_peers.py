"""The clients of one session, each started when the first test asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from clients import Missing, Peer, peer_command
from kcat import Kcat

QUICK_GROUPS = (
    *("--group-initial-rebalance-delay-ms", "0"),
    *("--group-consumer-heartbeat-ms", "300"),
    *("--group-consumer-session-timeout-ms", "10000"),
)
FLAGS = (*QUICK_GROUPS, "--rate-limit-per-ip", "0", "--max-connections-per-ip", "1000")
"""How the broker is started for them."""


class Peers:
    """The clients by name. One that is missing skips the test that wants it, and says so."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._open: dict[str, Peer | Kcat] = {}
        self._missing: dict[str, str] = {}

    def __getitem__(self, name: str) -> Peer | Kcat:
        if name not in self._open and name not in self._missing:
            log_path = self._home / f"{name}.log"
            try:
                self._open[name] = Kcat(log_path) if name == "kcat" else Peer(peer_command(name), log_path)
            except Missing as missing:
                self._missing[name] = str(missing)
        if name in self._missing:
            pytest.skip(f"NOT TESTED, a client is missing: {self._missing[name]}")
        return self._open[name]

    def have(self, name: str) -> bool:
        try:
            return bool(self[name])
        except pytest.skip.Exception:
            return False

    def drop(self, name: str) -> None:
        """Forget a client that is in no state to be asked again."""
        if name in self._open:
            self._open.pop(name).close()

    def close(self) -> None:
        for name in list(self._open):
            self.drop(name)

"""Many consumers come and go under load, with a SIGKILL of the broker in between: nothing is lost or repeated."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from clients import DRIVERS, Peer, until
from daemon import running
from kafka_peers import FLAGS
from matrix import Ledger

PARTITIONS = 8
REBALANCE_S = 30.0
"""As long as a member may take to join again."""
UNREST_S = 15.0
"""After a crash: longer than a member that left meanwhile is believed to be there."""


def free_port() -> int:
    """One that the broker can have again after it was killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def churn(home: Path, kind: str, consumers: int, seconds: float) -> Any:
    """What the members' account says in the end."""
    peer = Peer([sys.executable, "-X", "faulthandler", str(DRIVERS / "churn.py")], home / "churn.log")
    try:
        with running(home, *FLAGS, "--bind", f"127.0.0.1:{free_port()}") as daemon:
            with daemon.client() as native:
                native.call("CreateTopic", "churned", PARTITIONS)
            servers = f"127.0.0.1:{daemon.port}"
            play = {"servers": servers, "topic": "churned", "partitions": PARTITIONS, "kind": kind}
            peer.ask("start", **play, consumers=consumers, seed=1)
            time.sleep(seconds / 2)  # the length of the play, not a wait for something
            peer.ask("crash")
            daemon.kill()
            daemon.start()
            unrest_s = min(seconds / 2, UNREST_S)
            time.sleep(unrest_s)
            if unrest_s == UNREST_S:
                peer.ask("calm")
            time.sleep(seconds / 2 - unrest_s)
            peer.ask("settle")
            until(lambda: peer.ask("state")["owners"], each_has_one_owner, REBALANCE_S, "no balance")
            until(lambda: peer.ask("state")["lost"], lambda count: count == 0, REBALANCE_S, "not all records")
            return peer.ask("stop")
    finally:
        peer.close()


def each_has_one_owner(owners: dict[str, list[str]]) -> bool:
    return all(len(owners.get(str(number), [])) == 1 for number in range(PARTITIONS))


def check(found: Any) -> None:
    assert found["failures"] == []
    assert found["faults"] == []
    assert found["lost"] == 0
    assert found["acked"] > 1_000


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_eight_consumers_come_and_go_and_the_broker_is_killed(kind: str, tmp_path: Path, ledger: Ledger) -> None:
    found = churn(tmp_path, kind, consumers=8, seconds=8)
    check(found)
    ledger.passed("churn", kind=kind, consumers=8, acked=found["acked"], twice=found["twice"])


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_twenty_consumers_come_and_go_for_a_minute(kind: str, tmp_path: Path, ledger: Ledger) -> None:
    found = churn(tmp_path, kind, consumers=20, seconds=60)
    check(found)
    ledger.passed("churn", kind=kind, consumers=20, acked=found["acked"], twice=found["twice"])

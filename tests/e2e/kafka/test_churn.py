"""Many consumers that come and go under load, with a SIGKILL of the broker in between: nothing is lost or repeated."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from churn import REBALANCE_MS, Churn
from clients import until
from daemon import Daemon, running
from matrix import Ledger
from peers import FLAGS

PARTITIONS = 8


def free_port() -> int:
    """One that the broker can have again after it was killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def churn(home: Path, kind: str, consumers: int, seconds: float, seed: int = 1) -> Churn:
    with running(home, *FLAGS, "--bind", f"127.0.0.1:{free_port()}") as daemon:
        with daemon.client() as native:
            native.call("CreateTopic", "churned", PARTITIONS)
        play = Churn(f"127.0.0.1:{daemon.port}", "churned", PARTITIONS, kind, consumers, seed)
        play.start()
        try:
            time.sleep(seconds / 2)
            restart(daemon, play)
            time.sleep(seconds / 2)
            play.settle()
            until(lambda: uneven(play), lambda wrong: not wrong, REBALANCE_MS / 1_000, "no balance")
            until(lambda: len(play.account.lost()), lambda count: count == 0, REBALANCE_MS / 1_000, "not all records")
        finally:
            play.stop()
    return play


def restart(daemon: Daemon, play: Churn) -> None:
    play.account.forgiving = True
    daemon.kill()
    daemon.start()


def uneven(play: Churn) -> dict[int, list[str]]:
    """The partitions that have no owner, or several."""
    owners = play.account.owners()
    return {number: owners.get(number, []) for number in range(PARTITIONS) if len(owners.get(number, [])) != 1}


def check(play: Churn) -> None:
    assert play.failures == []
    assert play.account.faults == []
    assert play.account.lost() == []
    assert len(play.account.acked) > 1_000


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_eight_consumers_come_and_go_and_the_broker_is_killed(kind: str, tmp_path: Path, ledger: Ledger) -> None:
    check(churn(tmp_path, kind, consumers=8, seconds=8))
    ledger.passed("churn", kind=kind, consumers=8)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_twenty_consumers_come_and_go_for_a_minute(kind: str, tmp_path: Path, ledger: Ledger) -> None:
    check(churn(tmp_path, kind, consumers=20, seconds=60))
    ledger.passed("churn", kind=kind, consumers=20)

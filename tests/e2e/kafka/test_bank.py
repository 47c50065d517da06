"""A bank of several clients at once keeps its money through aborts and kills, of clients and of the broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from bank import ACCOUNTS, DEPOSIT, OPENING, PARTITIONS, TIMEOUT_MS, TOPICS, Auditor, Teller, notes_of
from clients import Missing, Peer, peer_command
from daemon import Daemon, running
from kafka_peers import FLAGS
from matrix import Ledger

QUICK, LONG = 8.0, 90.0
"""Seconds of business."""
IMPATIENT = {"kafkajs"}
"""It gives a transaction up when the broker is away for a second."""


def starter(name: str, home: Path) -> Callable[[], Peer]:
    try:
        command = peer_command(name)
    except Missing as missing:
        pytest.skip(f"NOT TESTED, a client is missing: {missing}")
    return lambda: Peer(command, home / f"teller-{name}.log")


def deposit(servers: str, start_peer: Callable[[], Peer]) -> None:
    peer = start_peer()
    producer = peer.ask("open", servers=servers, name=DEPOSIT, timeout_ms=TIMEOUT_MS)
    notes = notes_of(DEPOSIT, [(account, OPENING) for account in range(ACCOUNTS)])
    peer.ask("transfer", producer=producer, notes=notes, end="commit")
    peer.close()


def do_business(
    home: Path, names: dict[str, float], seconds: float, broker_kills: int, seed: int
) -> tuple[list[Teller], Auditor]:
    """Tellers of these clients, each with how often it is killed; the broker is killed so many times in between."""
    with ExitStack() as stack:
        starters = {name: starter(name, home) for name in names}
        daemon: Daemon = stack.enter_context(running(home, *FLAGS))
        daemon.flags = (*daemon.flags, "--bind", f"127.0.0.1:{daemon.port}")  # the same port after a kill
        servers = f"127.0.0.1:{daemon.port}"
        with daemon.client() as native:
            for topic in TOPICS:
                native.call("CreateTopic", topic, PARTITIONS)
        deposit(servers, starters["confluent-kafka"])
        auditor, tellers = Auditor(servers), []
        stack.callback(auditor.close)
        for place, (name, kills) in enumerate(names.items()):
            teller = Teller(name, servers, starters[name], Random(1_000 * seed + place), kills)
            stack.callback(teller.close)
            tellers.append(teller)
        everybody = [*tellers, auditor]
        for one in everybody:
            one.start()
        for _ in range(broker_kills):
            time.sleep(seconds / (broker_kills + 1))  # the length of the play, not a wait for something
            daemon.kill()
            daemon.start()
        time.sleep(seconds / (broker_kills + 1))
        for one in everybody:  # the auditor last, so that it sees everything
            one.stop()
        second = Auditor(servers)
        second.start()
        second.stop()
        assert second.crash is None, second.crash
        assert second.books == auditor.books, "whoever reads it again reads the same"
        return tellers, auditor


def check(tellers: list[Teller], auditor: Auditor) -> None:
    assert [one.crash for one in (*tellers, auditor)] == [None] * (len(tellers) + 1)
    assert not auditor.faults, "\n".join(auditor.faults)
    assert auditor.unfinished() == []
    failures = {teller.name: teller.failures for teller in tellers if teller.name not in IMPATIENT}
    assert not any(failures.values()), f"whoever waits for the broker need not know that it was killed: {failures}"
    seen = auditor.whole - {DEPOSIT}
    committed = set().union(*(teller.committed for teller in tellers))
    aborted = set().union(*(teller.aborted for teller in tellers))
    unknown = set().union(*(teller.unknown for teller in tellers))
    assert auditor.balances > 20, "there were moments without a half transfer"
    assert committed <= seen, "what was committed is there"
    assert not aborted & seen, "what was aborted is not"
    assert seen <= committed | unknown


def figures(tellers: list[Teller], auditor: Auditor) -> dict[str, object]:
    return {
        "clients": [teller.name for teller in tellers],
        "committed": sum(len(teller.committed) for teller in tellers),
        "aborted": sum(len(teller.aborted) for teller in tellers),
        "in doubt": sum(len(teller.unknown) for teller in tellers),
        "clients killed": sum(teller.killed for teller in tellers),
        "balances": auditor.balances,
    }


def test_three_clients_move_money_and_none_is_lost(tmp_path: Path, ledger: Ledger) -> None:
    names = {"confluent-kafka": 0.01, "aiokafka": 0.01, "java": 0.0}
    tellers, auditor = do_business(tmp_path, names, QUICK, broker_kills=1, seed=1)
    check(tellers, auditor)
    assert all(len(teller.committed) > 20 for teller in tellers), figures(tellers, auditor)
    ledger.passed("bank", **figures(tellers, auditor))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_five_clients_move_money_for_minutes_and_none_is_lost(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    names = {"confluent-kafka": 0.01, "kafka-python": 0.01, "aiokafka": 0.01, "kafkajs": 0.01, "java": 0.003}
    tellers, auditor = do_business(tmp_path, names, LONG, broker_kills=5, seed=seed)
    check(tellers, auditor)
    assert all(len(teller.committed) > 100 for teller in tellers), figures(tellers, auditor)
    ledger.passed("bank", **figures(tellers, auditor))

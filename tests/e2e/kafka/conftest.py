"""Real Kafka clients and one real `rivvend` for the tests here, each started when the first test needs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))

from daemon import Daemon, running
from kafka_peers import FLAGS, Peers
from matrix import Ledger


@pytest.fixture(scope="session")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("clients"))
    yield peers
    peers.close()


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("served"), *FLAGS) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def servers(daemon: Daemon) -> str:
    return f"127.0.0.1:{daemon.port}"


@pytest.fixture(scope="session")
def ledger() -> Iterator[Ledger]:
    """What ran, for `out/matrix.json`."""
    ledger = Ledger()
    yield ledger
    ledger.save()

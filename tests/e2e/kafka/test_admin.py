"""Every client that can administer topics makes, grows, changes, lists and deletes one."""

from __future__ import annotations

import pytest
from clients import CLIENTS
from kafka_peers import Peers
from matrix import Ledger


@pytest.mark.parametrize("name", [client.name for client in CLIENTS if client.administers])
def test_a_topic_is_made_grown_changed_listed_and_deleted(
    name: str, peers: Peers, servers: str, ledger: Ledger
) -> None:
    assert peers[name].ask("administer", servers=servers, topic=f"administered-by-{name}") == {
        "created": 2,
        "grown": 3,
        "retention": "3600000",
        "altered": "7200000",
        "listed": True,
        "deleted": True,
    }
    ledger.passed("administration", client=name)

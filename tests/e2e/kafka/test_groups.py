"""Groups of every client: members come and go, all partitions have an owner, and every record is given once."""

from __future__ import annotations

from typing import Any

import pytest
from clients import BY_NAME, CLIENTS, Peer, until
from daemon import Daemon
from kafka_peers import Peers
from kcat import Kcat
from matrix import Ledger, values

PARTITIONS = 4
BALANCE_S = 30.0
CASES = [(client.name, kind) for client in CLIENTS for kind in client.groups]


class Group:
    """Some members of one group, of one client or several, and the records that they are owed."""

    def __init__(self, servers: str, name: str, writer: Peer | Kcat) -> None:
        self.servers, self.name, self.topic = servers, name, f"topic-of-{name}"
        self._writer = writer
        self._members: list[tuple[Peer | Kcat, int]] = []
        self._left: list[Any] = []
        self._sent: list[str] = []

    def join(self, peer: Peer | Kcat, kind: str) -> None:
        member = peer.ask("join", servers=self.servers, group=self.name, topic=self.topic, kind=kind)
        self._members.append((peer, member))

    def leave(self, place: int = -1) -> None:
        peer, member = self._members.pop(place)
        self._left.append(peer.ask("leave", member=member)["got"])

    def send(self, count: int) -> None:
        """So many records to every partition."""
        for partition in range(PARTITIONS):
            marks = [f"{partition}-{len(self._sent) + place}" for place in range(count)]
            self._sent += marks
            self._writer.ask(
                "produce",
                servers=self.servers,
                topic=self.topic,
                codec="none",
                records=values(marks),
                partition=partition,
            )

    def states(self) -> list[Any]:
        return [peer.ask("state", member=member) for peer, member in self._members]

    def await_balance(self) -> None:
        """Every partition has one owner, and nobody has two more than another."""

        def balanced(shares: list[list[int]]) -> bool:
            counts = [len(share) for share in shares]
            owned = sorted(partition for share in shares for partition in share)
            return owned == list(range(PARTITIONS)) and max(counts) - min(counts) <= 1

        until(lambda: [state["assigned"] for state in self.states()], balanced, BALANCE_S, "no balance")

    def got(self) -> list[str]:
        return sorted(value for got in [*self._left, *(state["got"] for state in self.states())] for *_, value in got)

    def await_records(self) -> None:
        until(self.got, lambda found: len(found) >= len(self._sent), BALANCE_S, "not all records")
        assert self.got() == sorted(self._sent), "each of them once"


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_members_come_and_go_and_every_record_is_given_once(
    name: str, kind: str, peers: Peers, daemon: Daemon, servers: str, ledger: Ledger
) -> None:
    peer = peers[name]
    group = Group(servers, f"{name}-{kind}", peers["confluent-kafka"])
    with daemon.client() as native:
        native.call("CreateTopic", group.topic, PARTITIONS)
    try:
        group.join(peer, kind)
        group.await_balance()
        group.send(3)
        group.await_records()
        group.join(peer, kind)
        group.await_balance()
        group.send(3)
        group.await_records()
        describe(name, peer, group, members=2)
        group.leave()
        group.await_balance()
        group.send(3)
        group.await_records()
        group.leave()
        describe(name, peer, group, members=0, offset=9)
        group.join(peer, kind)
        group.await_balance()
        group.send(1)
        group.await_records()
        group.leave()
    except BaseException:
        peers.drop(name)
        raise
    ledger.passed("group", client=name, kind=kind)


def describe(name: str, peer: Peer | Kcat, group: Group, members: int, offset: int | None = None) -> None:
    if not BY_NAME[name].describes:
        return
    told = peer.ask("describe", servers=group.servers, group=group.name, topic=group.topic)
    assert told["listed"] is True
    assert told["members"] == members
    if offset is not None:
        assert told["offsets"] == {str(partition): offset for partition in range(PARTITIONS)}


@pytest.mark.parametrize("name", [client.name for client in CLIENTS if client.deletes_groups])
def test_an_empty_group_is_deleted(name: str, peers: Peers, daemon: Daemon, servers: str, ledger: Ledger) -> None:
    peer = peers[name]
    group = Group(servers, f"deleted-by-{name}", peers["confluent-kafka"])
    with daemon.client() as native:
        native.call("CreateTopic", group.topic, PARTITIONS)
    group.join(peer, "classic")
    group.await_balance()
    group.leave()
    peer.ask("delete_group", servers=servers, group=group.name)
    assert peers["confluent-kafka"].ask("describe", servers=servers, group=group.name, topic=group.topic) == {
        "listed": False,
        "members": 0,
        "offsets": {},
    }
    ledger.passed("group deleted", client=name)


def test_clients_of_four_kinds_share_one_group(peers: Peers, daemon: Daemon, servers: str, ledger: Ledger) -> None:
    """They agree on the range assignor, and each may be the leader that assigns for all."""
    names = ["kcat", "java", "kafka-python", "confluent-kafka"]
    group = Group(servers, "mixed", peers["confluent-kafka"])
    with daemon.client() as native:
        native.call("CreateTopic", group.topic, PARTITIONS)
    for name in names:
        group.join(peers[name], "classic")
        group.await_balance()
        group.send(2)
        group.await_records()
    while len(group.states()) > 1:
        group.leave()
        group.await_balance()
        group.send(2)
        group.await_records()
    group.leave()
    ledger.passed("mixed group", clients=names)


# Java's client gives up on the commit of its close if its epoch moves at that moment, and says so
@pytest.mark.flaky(reruns=2, only_rerun="stale member epoch")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (client.name, kind)
        for client in CLIENTS
        if "consumer" in client.groups
        for kind in client.groups
        if kind != "consumer"
    ],
)
def test_members_are_restarted_one_by_one_in_the_other_protocol(
    name: str, kind: str, peers: Peers, daemon: Daemon, servers: str, ledger: Ledger
) -> None:
    """To the consumer protocol and back again, with members of both in between; no record is lost or given twice."""
    peer = peers[name]
    group = Group(servers, f"{name}-from-{kind}", peers["confluent-kafka"])
    with daemon.client() as native:
        native.call("CreateTopic", group.topic, PARTITIONS)
    try:
        group.join(peer, kind)
        group.join(peer, kind)
        group.await_balance()
        for protocol in ("consumer", "consumer", kind, kind):
            group.leave(0)
            group.join(peer, protocol)
            group.await_balance()
            group.send(3)
            group.await_records()
            describe(name, peer, group, members=2)
        group.leave()
        group.leave()
    except BaseException:
        peers.drop(name)
        raise
    ledger.passed("group migration", client=name, kind=kind)

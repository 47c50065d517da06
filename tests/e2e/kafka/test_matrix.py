"""What one client writes every other one reads: all codecs, headers, nulls, bytes and timestamps."""

from __future__ import annotations

import shutil
import time
from typing import Any

import pytest
from clients import BY_NAME, CLIENTS, CODECS, Client
from daemon import Daemon
from kafka_peers import Peers
from matrix import Ledger, records_of
from speech import codecs_of

NAMES = [client.name for client in CLIENTS]


@pytest.fixture(scope="session")
def written(daemon: Daemon, peers: Peers, servers: str) -> Any:
    """The topics of a writer by codec, written once, with the time that this took."""
    done: dict[str, tuple[dict[str, str], int, int]] = {}

    def write(writer: Client) -> tuple[dict[str, str], int, int]:
        if writer.name not in done:
            peer, begun_ms = peers[writer.name], time.time_ns() // 1_000_000
            topics = {codec: f"from-{writer.name}-{codec}" for codec in writer.writes}
            with daemon.client() as native:
                for codec, topic in topics.items():
                    native.call("CreateTopic", topic, 1)
                    peer.ask(
                        "produce", servers=servers, topic=topic, codec=codec, records=records_of(writer), partition=0
                    )
            done[writer.name] = topics, begun_ms, time.time_ns() // 1_000_000
        return done[writer.name]

    return write


@pytest.mark.parametrize("reader", NAMES)
@pytest.mark.parametrize("writer", NAMES)
def test_what_one_client_writes_the_other_reads(
    writer: str, reader: str, peers: Peers, servers: str, written: Any, ledger: Ledger
) -> None:
    source, sink = BY_NAME[writer], BY_NAME[reader]
    peer = peers[reader]
    topics, begun_ms, ended_ms = written(source)
    wanted = records_of(source)
    shared = {codec: topic for codec, topic in topics.items() if codec in sink.reads}
    found = peer.ask("read", servers=servers, topics={topic: len(wanted) for topic in shared.values()})
    for codec, topic in shared.items():
        read = found[topic]
        if "timestamp" in source.lacks:
            assert all(begun_ms <= record["timestamp"] <= ended_ms for record in read), codec
            read = [record | {"timestamp": asked["timestamp"]} for record, asked in zip(read, wanted, strict=True)]
        assert read == wanted, codec
    ledger.passed("records", writer=writer, reader=reader, codecs=list(shared))


@pytest.mark.parametrize("writer", NAMES)
def test_what_a_client_compresses_is_stored_as_it_came(writer: str, daemon: Daemon, written: Any) -> None:
    """Guards the matrix: a client that quietly leaves its compression out would pass all of the above."""
    topics, _, _ = written(BY_NAME[writer])
    stored = {codec: codecs_of(daemon.port, topic) for codec, topic in topics.items()}
    for codec, found in stored.items():
        assert CODECS.index(codec) in found, codec
        assert found <= {0, CODECS.index(codec)}, "a batch that would only grow may be left as it is"


@pytest.mark.parametrize("name", NAMES)
def test_the_client_is_the_one_that_the_page_names(name: str, peers: Peers) -> None:
    found = peers[name].ask("version")
    if name == "kcat" and shutil.which("kcat") and found != BY_NAME[name].version:
        pytest.skip(f"this machine has a kcat of its own, {found}, which the page cannot know of")
    assert found == BY_NAME[name].version

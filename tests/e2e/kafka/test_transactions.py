"""Transactions of every client that has them: what readers see, who is fenced, what times out, and what is sent."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from clients import BY_NAME, CLIENTS, Peer, until
from confluent_kafka import Consumer, TopicPartition
from daemon import Daemon, running
from kafka_peers import FLAGS, Peers
from matrix import Ledger, values
from speech import batches_of
from tap import Tap, tapped

NAMES = [client.name for client in CLIENTS]
WRITERS = [client.name for client in CLIENTS if client.transactions]
LONG_MS, BRIEF_MS = 600_000, 1_000
"""A transaction that nothing but its producer ends, and one that the broker ends soon."""
WAIT_S = 20.0

COMMITTED, ABORTED, OPEN, BEHIND = ["c0", "c1", "c2", "c3"], ["a0", "a1"], ["o0", "o1"], ["b0", "b1"]
EVERYTHING = [*COMMITTED[:3], *ABORTED, COMMITTED[3], *OPEN, *BEHIND]
STABLE_END = len(COMMITTED) + len(ABORTED) + 3
"""Three transactions have ended before the open one, and each has left a marker."""

FENCED = {
    "confluent-kafka": r"code=_FENCED",
    "kafka-python": r"^ProducerFencedError",
    "aiokafka": r"^ProducerFenced",
    "kafkajs": r"^KafkaJSProtocolError: Producer attempted an operation with an old epoch",
    "java": r"ProducerFencedException",
}
"""What each client calls it when another has come with its transactional id."""
CANNOT_WRITE = FENCED | {"kafka-python": r"^InvalidProducerEpochError", "java": r"InvalidProducerEpochException"}
"""The same, told on the way of records."""
TOO_LATE = FENCED | {"java": r"InvalidTxnStateException"}
"""And when the broker has aborted its transaction. In version 2 its epoch tells it from a zombie."""


def writer_of(peers: Peers, name: str) -> Peer:
    peer = peers[name]
    assert isinstance(peer, Peer)
    return peer


def topic_at(daemon: Daemon, topic: str, partitions: int = 1) -> str:
    with daemon.client() as native:
        native.call("CreateTopic", topic, partitions)
    return topic


def seen_by(peers: Peers, reader: str, servers: str, topic: str, count: int, committed: bool = True) -> list[str]:
    found = peers[reader].ask("look", servers=servers, topics={topic: count}, committed=committed)
    return list(found[topic]["values"])


# What readers see


class Shown(NamedTuple):
    """By writer, a topic whose last transaction is open, and one where it was committed in the end."""

    open: dict[str, str]
    ended: dict[str, str]


@pytest.fixture(scope="module")
def shown(daemon: Daemon, peers: Peers, servers: str) -> Shown:
    """Records of every writer that is here: committed, aborted, open, and behind that some of no transaction."""
    found = Shown({}, {})
    for name in WRITERS:
        if not peers.have(name):
            continue
        for fate, topics in found._asdict().items():
            topics[name] = topic_at(daemon, f"{fate}-of-{name}")
            show(peers, name, servers, topics[name], commit_last=fate == "ended")
    return found


def show(peers: Peers, name: str, servers: str, topic: str, commit_last: bool) -> None:
    writer = writer_of(peers, name)
    producer = writer.ask("open", servers=servers, name=topic, timeout_ms=LONG_MS)
    for batch, commit in ((COMMITTED[:3], True), (ABORTED, False), (COMMITTED[3:], True), (OPEN, None)):
        writer.ask("begin", producer=producer)
        writer.ask("write", producer=producer, topic=topic, partition=0, values=batch)
        if commit is not None:
            writer.ask("end", producer=producer, commit=commit)
    plain = {"servers": servers, "topic": topic, "codec": "none", "records": values(BEHIND), "partition": 0}
    peers["confluent-kafka"].ask("produce", **plain)
    if commit_last:
        writer.ask("end", producer=producer, commit=True)


@pytest.mark.parametrize("reader", NAMES)
def test_a_reader_of_what_is_committed_sees_all_of_it_and_nothing_else(
    reader: str, peers: Peers, servers: str, shown: Shown, ledger: Ledger
) -> None:
    """An open transaction is not there, and neither is what follows it, until it ends."""
    peer = peers[reader]
    wanted = dict.fromkeys(shown.open.values(), COMMITTED)
    wanted |= {topic: [*COMMITTED, *OPEN, *BEHIND] for topic in shown.ended.values()}
    counts = {topic: len(records) for topic, records in wanted.items()}
    found = peer.ask("look", servers=servers, topics=counts, committed=True)
    assert {topic: looked["values"] for topic, looked in found.items()} == wanted
    for topic in shown.open.values():
        assert found[topic]["end"] in (None, STABLE_END), "where it ends for this reader"
    for topic in shown.ended.values():
        assert found[topic]["end"] in (None, len(EVERYTHING) + 4)
    for writer in shown.open:
        ledger.passed("transactions read", writer=writer, reader=reader)


@pytest.mark.parametrize("reader", NAMES)
def test_a_reader_of_everything_sees_what_is_open_and_what_was_aborted(
    reader: str, peers: Peers, servers: str, shown: Shown
) -> None:
    topics = [*shown.open.values(), *shown.ended.values()]
    counts = dict.fromkeys(topics, len(EVERYTHING))
    found = peers[reader].ask("look", servers=servers, topics=counts, committed=False)
    assert {topic: looked["values"] for topic, looked in found.items()} == dict.fromkeys(topics, EVERYTHING)
    for topic in shown.open.values():
        assert found[topic]["end"] in (None, len(EVERYTHING) + 3)


def test_a_time_within_an_open_transaction_is_not_found_by_a_reader_of_what_is_committed(
    servers: str, shown: Shown
) -> None:
    """Else a reader that starts at a time would start behind the records that it waits for."""
    topic = shown.open["confluent-kafka"]

    def first_since(timestamp_ms: int, isolation: str) -> int:
        settings = {"bootstrap.servers": servers, "group.id": "unused", "isolation.level": isolation}
        consumer = Consumer(settings)
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], WAIT_S)
        consumer.close()
        return int(found.offset)

    settings = {"bootstrap.servers": servers, "group.id": "unused", "isolation.level": "read_uncommitted"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, STABLE_END)])
    message = consumer.poll(WAIT_S)
    consumer.close()
    assert message is not None
    assert message.value() == b"o0"
    begun_ms = message.timestamp()[1]
    marker = STABLE_END - 1  # it ends what came before, perhaps within the same millisecond
    assert first_since(begun_ms, "read_uncommitted") in (marker, STABLE_END)
    assert first_since(begun_ms, "read_committed") in (marker, -1), "none, which this client calls the end"
    assert first_since(1, "read_committed") == 0


# Who is fenced


@pytest.mark.parametrize("name", WRITERS)
def test_a_zombie_is_fenced_and_what_it_wrote_is_not_seen(
    name: str, daemon: Daemon, peers: Peers, servers: str, ledger: Ledger
) -> None:
    writer, topic = writer_of(peers, name), topic_at(daemon, f"fenced-{name}")
    opening = {"servers": servers, "name": f"contested-by-{name}", "timeout_ms": LONG_MS}
    writing = {"topic": topic, "partition": 0}
    zombies = [writer.ask("open", **opening)]
    writer.ask("begin", producer=zombies[0])
    writer.ask("write", producer=zombies[0], **writing, values=["of the first zombie"])
    zombies.append(writer.ask("open", **opening))
    writer.ask("begin", producer=zombies[1])
    writer.ask("write", producer=zombies[1], **writing, values=["of the second zombie"])
    heir = writer.ask("open", **opening)
    writer.ask("begin", producer=heir)
    writer.ask("write", producer=heir, **writing, values=["of the heir"])
    told = writer.refuses("end", producer=zombies[0], commit=True)
    assert re.search(FENCED[name], told), told
    told = writer.refuses("write", producer=zombies[1], **writing, values=["more of the second zombie"])
    assert re.search(CANNOT_WRITE[name], told), told
    writer.ask("end", producer=heir, commit=True)
    assert seen_by(peers, "confluent-kafka", servers, topic, 1) == ["of the heir"]
    for zombie in zombies:
        writer.attempt("abandon", producer=zombie)
    ledger.passed("transactions fenced", client=name)


# What times out


@pytest.mark.parametrize("name", WRITERS)
def test_a_transaction_that_takes_too_long_is_aborted_and_its_client_is_told(
    name: str, daemon: Daemon, peers: Peers, servers: str, ledger: Ledger
) -> None:
    writer, topic = writer_of(peers, name), topic_at(daemon, f"late-{name}")
    opening = {"servers": servers, "name": f"late-{name}", "timeout_ms": BRIEF_MS}
    late = writer.ask("open", **opening)
    writer.ask("begin", producer=late)
    begun = time.monotonic()
    writer.ask("write", producer=late, topic=topic, partition=0, values=["late"])
    plain = {"servers": servers, "topic": topic, "codec": "none", "records": values(["behind"]), "partition": 0}
    peers["confluent-kafka"].ask("produce", **plain)
    assert seen_by(peers, "confluent-kafka", servers, topic, 1) == ["behind"]
    assert time.monotonic() - begun >= BRIEF_MS / 1_000, "not before its time"
    told = writer.refuses("end", producer=late, commit=True)
    assert re.search(TOO_LATE[name], told), told
    writer.attempt("abandon", producer=late)
    heir = writer.ask("open", **opening)
    writer.ask("transfer", producer=heir, notes=[[topic, 0, "in time"]], end="commit")
    assert seen_by(peers, "confluent-kafka", servers, topic, 2) == ["behind", "in time"]
    ledger.passed("transactions timed out", client=name)


@pytest.mark.parametrize("name", [client.name for client in CLIENTS if client.transactions == 2])
def test_a_producer_of_version_two_that_was_too_late_aborts_and_goes_on(
    name: str, daemon: Daemon, peers: Peers, servers: str
) -> None:
    writer, topic = writer_of(peers, name), topic_at(daemon, f"recovers-{name}")
    producer = writer.ask("open", servers=servers, name=f"recovers-{name}", timeout_ms=BRIEF_MS)
    writing = {"producer": producer, "topic": topic, "partition": 0}
    writer.ask("begin", producer=producer)
    writer.ask("write", **writing, values=["late"])
    everything = {"servers": servers, "topics": {topic: 0}, "committed": True}
    ended = until(
        lambda: peers[name].ask("look", **everything), lambda found: found[topic]["end"] == 2, WAIT_S, "no abort"
    )
    assert ended[topic]["values"] == []
    told = writer.refuses("write", **writing, values=["later"])
    assert re.search(CANNOT_WRITE[name], told), told
    writer.ask("end", producer=producer, commit=False)
    writer.ask("transfer", producer=producer, notes=[[topic, 0, "in time"]], end="commit")
    assert seen_by(peers, name, servers, topic, 1) == ["in time"]
    writer.attempt("abandon", producer=producer)


# Consume, transform, produce


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A broker that may be killed: it has the same port after that."""
    with running(tmp_path_factory.mktemp("mortal"), *FLAGS) as daemon:
        daemon.flags = (*daemon.flags, "--bind", f"127.0.0.1:{daemon.port}")
        yield daemon


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_read_transformed_and_written_is_written_once(
    name: str, mortal: Daemon, peers: Peers, ledger: Ledger
) -> None:
    """Each step is a new member of the group, so it begins where the last committed transaction ended. One step is
    aborted, and one is left open by a client that is gone, on a broker that is killed meanwhile."""
    writer, servers = writer_of(peers, name), f"127.0.0.1:{mortal.port}"
    source, target = topic_at(mortal, f"source-{name}", 2), topic_at(mortal, f"target-{name}")
    marks = [f"{partition}-{place}" for partition in range(2) for place in range(6)]
    for partition in range(2):
        records = values(marks[6 * partition : 6 * partition + 6])
        plain = {"servers": servers, "topic": source, "codec": "none", "records": records, "partition": partition}
        peers["confluent-kafka"].ask("produce", **plain)
    where = {"servers": servers, "group": f"workers-{name}", "source": source, "target": target, "count": 4}
    opening = {"servers": servers, "name": f"worker-{name}", "timeout_ms": LONG_MS}
    worker = writer.ask("open", **opening)
    writer.ask("work", producer=worker, **where, end="commit")
    writer.ask("work", producer=worker, **where, end="abort")
    writer.ask("work", producer=worker, **where, end="leave")
    mortal.kill()
    mortal.start()
    heir = writer.ask("open", **opening)
    told = writer.refuses("end", producer=worker, commit=True)
    assert re.search(FENCED[name], told), told
    writer.attempt("abandon", producer=worker)
    writer.ask("work", producer=heir, **where, end="commit")
    writer.ask("work", producer=heir, **where, end="commit")
    assert sorted(seen_by(peers, name, servers, target, len(marks))) == sorted(f"made of {mark}" for mark in marks)
    writer.attempt("abandon", producer=heir)
    ledger.passed("transactions with offsets", client=name)


# What is sent

PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END = 0, 24, 25, 26
IMPLICIT_FROM, SECOND_FROM = 12, 5
"""The first version of Produce that adds a partition by itself, and of EndTxn that answers with the next epoch."""


@pytest.fixture(scope="module")
def overheard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Tap]]:
    """A broker whose clients all come through a tap."""
    with tapped() as tap:
        flags = (*FLAGS, "--advertise-addr", f"127.0.0.1:{tap.port}")
        with running(tmp_path_factory.mktemp("overheard"), *flags) as daemon:
            tap.start(tap.serve, daemon.port)
            yield daemon, tap


@pytest.mark.parametrize("name", WRITERS)
def test_a_client_speaks_the_version_of_transactions_that_the_page_names(
    name: str, overheard: tuple[Daemon, Tap], peers: Peers, ledger: Ledger
) -> None:
    """Of version 2 (KIP-890): partitions and offsets are not announced, and every end is a new epoch."""
    daemon, tap = overheard
    writer, topic, source = writer_of(peers, name), topic_at(daemon, f"sent-{name}"), topic_at(daemon, f"read-{name}")
    servers = f"127.0.0.1:{tap.port}"
    plain = {"servers": servers, "topic": source, "codec": "none", "records": values(["x"]), "partition": 0}
    peers["confluent-kafka"].ask("produce", **plain)
    tap.forget()
    producer = writer.ask("open", servers=servers, name=f"sent-by-{name}", timeout_ms=LONG_MS)
    for end in ("commit", "abort", "commit"):
        writer.ask("transfer", producer=producer, notes=[[topic, 0, end]], end=end)
    where = {"servers": servers, "group": f"readers-{name}", "source": source, "target": topic, "count": 1}
    writer.ask("work", producer=producer, **where, end="commit")
    versions: dict[int, set[int]] = {}
    for key, version in tap.heard():
        versions.setdefault(key, set()).add(version)
    epochs = [batch.producer_epoch for batch in batches_of(daemon.port, topic) if not batch.control]
    assert len(epochs) == 4
    if BY_NAME[name].transactions == 2:
        assert writer.ask("features", servers=servers)["transaction.version"] == 2
        assert not versions.keys() & {ADD_PARTITIONS, ADD_OFFSETS}
        assert min(versions[PRODUCE]) >= IMPLICIT_FROM
        assert min(versions[END]) >= SECOND_FROM
        assert epochs == [epochs[0] + place for place in range(4)]
    else:
        assert versions.keys() >= {ADD_PARTITIONS, ADD_OFFSETS}
        assert max(versions[PRODUCE]) < IMPLICIT_FROM
        assert max(versions[END]) < SECOND_FROM
        assert len(set(epochs)) == 1
    ledger.passed("transaction version", client=name, version=BY_NAME[name].transactions)

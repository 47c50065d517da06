"""Transactions of a real client: what readers see, who is fenced, and a bank that never loses money."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from daemon import Daemon, running
from kafka_peers import FLAGS

ACCOUNTS, PARTITIONS, TRANSFERS, OPENING = 8, 3, 60, 100
WAIT_S = 30.0


@pytest.fixture
def own(tmp_path: Path):
    """A daemon that may be killed."""
    with running(tmp_path, *FLAGS) as daemon:
        yield daemon


def at(daemon: Daemon) -> str:
    return f"127.0.0.1:{daemon.port}"


def make_topics(servers: str, **partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()]).values():
        made.result(WAIT_S)


def producer_at(servers: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 0})
    producer.init_transactions(WAIT_S)
    return producer


def read_all(servers: str, partitions: dict[str, int], isolation: str = "read_committed") -> list[tuple[str, bytes]]:
    """Every record up to where each partition can be read now."""
    settings = {"bootstrap.servers": servers, "group.id": "reader", "isolation.level": isolation}
    reader = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0})
    found = []
    try:
        where = [TopicPartition(name, number, 0) for name, count in partitions.items() for number in range(count)]
        ends = {(each.topic, each.partition): reader.get_watermark_offsets(each, WAIT_S)[1] for each in where}
        reader.assign(where)
        left = {key for key, end in ends.items() if end > 0}
        deadline = time.monotonic() + WAIT_S
        while left and time.monotonic() < deadline:
            for message in reader.consume(500, 0.2):
                assert message.error() is None, message.error()
                found.append((message.topic(), message.value()))
            positions = {(p.topic, p.partition): p.offset for p in reader.position(where)}
            left = {key for key in left if positions[key] < ends[key]}
        assert not left, f"{left} were not read to their ends"
    finally:
        reader.close()
    return found


def test_committed_aborted_and_open_transactions_are_told_apart(own: Daemon) -> None:
    servers = at(own)
    make_topics(servers, t=2, u=1)
    producer = producer_at(servers, "x")
    for verdict in ("commit", "abort", "open"):
        producer.begin_transaction()
        for place in range(5):
            producer.produce("t", key=str(place), value=f"{verdict}-{place}")
        producer.produce("u", value=verdict)
        producer.flush(WAIT_S)
        if verdict == "commit":
            producer.commit_transaction(WAIT_S)
        elif verdict == "abort":
            producer.abort_transaction(WAIT_S)
    seen = Counter(value.decode().partition("-")[0] for _, value in read_all(servers, {"t": 2, "u": 1}))
    assert seen == {"commit": 6}
    everything = read_all(servers, {"t": 2, "u": 1}, "read_uncommitted")
    assert Counter(value.decode().partition("-")[0] for _, value in everything) == {
        "commit": 6,
        "abort": 6,
        "open": 6,
    }
    heir = producer_at(servers, "x")
    with pytest.raises(KafkaException) as fenced:
        producer.commit_transaction(WAIT_S)
    assert fenced.value.args[0].fatal()
    heir.begin_transaction()
    heir.produce("u", value="heir")
    heir.commit_transaction(WAIT_S)
    assert [value for _, value in read_all(servers, {"u": 1})] == [b"commit", b"heir"]


def test_what_is_read_transformed_and_written_is_written_once(own: Daemon) -> None:
    servers = at(own)
    make_topics(servers, source=2, target=1)
    feeder = Producer({"bootstrap.servers": servers})
    for place in range(40):
        feeder.produce("source", key=str(place), value=str(place))
    feeder.flush(WAIT_S)
    producer = producer_at(servers, "worker")
    settings = {"bootstrap.servers": servers, "group.id": "workers", "auto.offset.reset": "earliest"}
    done, attempts = 0, 0
    reader = Consumer({**settings, "enable.auto.commit": False, "isolation.level": "read_committed"})
    reader.subscribe(["source"])
    deadline = time.monotonic() + WAIT_S
    while done < 40 and time.monotonic() < deadline:
        messages = reader.consume(7, 0.5)
        if not messages:
            continue
        attempts += 1
        producer.begin_transaction()
        for message in messages:
            producer.produce("target", value=b"made of " + message.value())
        positions = reader.position(reader.assignment())
        producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), WAIT_S)
        if attempts % 3 == 2:  # as a failure would
            producer.abort_transaction(WAIT_S)
            for committed in reader.committed(reader.assignment(), WAIT_S):
                reader.seek(TopicPartition(committed.topic, committed.partition, max(committed.offset, 0)))
            continue
        producer.commit_transaction(WAIT_S)
        done += len(messages)
    reader.close()
    made = Counter(value.decode() for _, value in read_all(servers, {"target": 1}))
    assert made == {f"made of {place}": 1 for place in range(40)}


def test_a_bank_keeps_its_money_through_aborts_and_a_kill(tmp_path: Path, own: Daemon) -> None:
    """A transfer is two records in two topics; half of one would make money, or lose it."""
    del tmp_path
    servers, rng = at(own), Random(7)
    own.flags = (*own.flags, "--bind", f"127.0.0.1:{own.port}")  # the same port after the kill
    make_topics(servers, debit=PARTITIONS, credit=PARTITIONS)
    producer = producer_at(servers, "bank")
    acknowledged = 0
    for number in range(TRANSFERS):
        if number == TRANSFERS // 2:
            own.kill()
            own.start()
        giver, taker = rng.sample(range(ACCOUNTS), 2)
        amount = rng.randint(1, OPENING)
        producer.begin_transaction()
        for topic, account, change in (("debit", giver, -amount), ("credit", taker, amount)):
            note = json.dumps({"transfer": number, "account": account, "change": change})
            producer.produce(topic, note, str(account))
        if rng.random() < 0.3:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
            acknowledged += 1
        if number % 20 == 19:
            check_bank(servers, acknowledged)
    check_bank(servers, acknowledged)


def check_bank(servers: str, acknowledged: int) -> None:
    notes = [json.loads(value) for _, value in read_all(servers, {"debit": PARTITIONS, "credit": PARTITIONS})]
    assert sum(note["change"] for note in notes) == 0
    halves = Counter(note["transfer"] for note in notes)
    assert set(halves.values()) <= {2}, "a transfer is there whole, and once"
    assert len(halves) == acknowledged

"""kafka-python as a driver."""

from __future__ import annotations

import threading
import time
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.structs import OffsetAndMetadata
from serving import HEARTBEAT_MS, READ_S, SESSION_MS, Asked, Looked, Seen, made_of, serve, told, transactions

JOIN_MS, PATIENT_MS = 10_000, 500
"""For how long it polls as a member. If that ends while it waits for its assignment, it never takes it."""


def produce(servers: str, topic: str, codec: str, records: list[dict[str, Any]], partition: int) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, compression_type=None if codec == "none" else codec)
    sent = [
        producer.send(topic, each.value, each.key, each.headers, partition, each.timestamp_ms)
        for each in map(Asked, records)
    ]
    producer.flush(READ_S)
    for future in sent:
        future.get(READ_S)
    producer.close()


def read(servers: str, topics: dict[str, int]) -> dict[str, list[Any]]:
    consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0) for topic in topics])
    found: dict[str, list[Any]] = {topic: [] for topic in topics}
    deadline = time.monotonic() + READ_S
    while any(len(found[topic]) < count for topic, count in topics.items()) and time.monotonic() < deadline:
        for partition, records in consumer.poll(timeout_ms=200).items():
            found[partition.topic] += [told(each.key, each.value, each.headers, each.timestamp) for each in records]
    consumer.close()
    return found


def look(servers: str, topics: dict[str, int], committed: bool) -> dict[str, Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed" if committed else "read_uncommitted",
        fetch_max_wait_ms=100,
    )
    places = [TopicPartition(topic, 0) for topic in topics]
    looked = Looked(topics)
    consumer.assign(places)
    looked.ends = {place.topic: end for place, end in consumer.end_offsets(places).items()}
    while looked.goes_on():
        for place, records in consumer.poll(timeout_ms=100).items():
            for each in records:
                looked.see(place.topic, each.value)
    consumer.close()
    return looked.told()


class Writer:
    """A transactional producer."""

    def __init__(self, servers: str, name: str, timeout_ms: int) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=servers, transactional_id=name, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, topic: str, partition: int, values: list[str]) -> None:
        sent = [self._producer.send(topic, value.encode(), partition=partition) for value in values]
        self._producer.flush(READ_S)
        for future in sent:
            future.get(READ_S)

    def end(self, commit: bool) -> None:
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)()

    def work(self, servers: str, group: str, source: str, target: str, count: int) -> None:
        consumer = KafkaConsumer(
            source,
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        deadline = time.monotonic() + READ_S
        following: dict[TopicPartition, OffsetAndMetadata] = {}
        while count and time.monotonic() < deadline:
            for place, records in consumer.poll(timeout_ms=JOIN_MS, max_records=count).items():
                for each in records:
                    self._producer.send(target, made_of(each.value), partition=0)
                    following[place] = OffsetAndMetadata(each.offset + 1, "", -1)
                count -= len(records)
        assert count == 0, f"{count} records did not come"
        self._producer.send_offsets_to_transaction(following, consumer.group_metadata())
        consumer.close()

    def abandon(self) -> None:
        self._producer.close(timeout=0)


class Member(kafka.ConsumerRebalanceListener):
    def __init__(self, servers: str, group: str, topic: str, kind: str) -> None:
        assert kind == "classic"
        self.seen = Seen()
        self._consumer = KafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=True,  # also before a rebalance, where its listener could not commit
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        self._consumer.subscribe([topic], listener=self)
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.seen.lose({each.partition for each in revoked})

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.seen.gain({each.partition for each in assigned})

    def _poll(self) -> None:
        while not self.seen.stopping.is_set():
            for records in self._consumer.poll(timeout_ms=PATIENT_MS).values():
                for each in records:
                    self.seen.get(each.partition, each.offset, each.value)
        self._consumer.close()

    def leave(self) -> dict[str, Any]:
        self.seen.stopping.set()
        self._thread.join()
        return self.seen.told()


members: list[Member] = []


def join(servers: str, group: str, topic: str, kind: str) -> int:
    members.append(Member(servers, group, topic, kind))
    return len(members) - 1


def describe(servers: str, group: str, topic: str) -> dict[str, Any]:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    listed, described = admin.list_groups(), admin.describe_groups([group])
    offsets = admin.list_group_offsets(group)[group]
    admin.close()
    return {
        "listed": group in [each["group_id"] for each in listed],
        "members": len(described[group]["members"]),
        "offsets": {str(place.partition): found.offset for place, found in offsets.items() if place.topic == topic},
    }


def delete_group(servers: str, group: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_groups([group])
    admin.close()


def administer(servers: str, topic: str) -> dict[str, Any]:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "3600000"})])
        found: dict[str, Any] = {"created": len(admin.describe_topics([topic])[0]["partitions"])}
        admin.create_partitions({topic: NewPartitions(3)})
        found["grown"] = len(admin.describe_topics([topic])[0]["partitions"])
        found["retention"] = retention(admin, topic)
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})])
        found["altered"] = retention(admin, topic)
        found["listed"] = topic in admin.list_topics()
        admin.delete_topics([topic])
        found["deleted"] = topic not in admin.list_topics()
        return found
    finally:
        admin.close()


def retention(admin: KafkaAdminClient, topic: str) -> Any:
    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return found["topic"][topic]["retention.ms"]["value"]


serve(
    {
        "version": lambda: kafka.__version__,
        "produce": produce,
        "read": read,
        "join": join,
        "state": lambda member: members[member].seen.told(),
        "leave": lambda member: members[member].leave(),
        "describe": describe,
        "delete_group": delete_group,
        "administer": administer,
        "look": look,
        **transactions(Writer),
    }
)

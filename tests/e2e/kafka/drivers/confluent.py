"""confluent-kafka, and librdkafka beneath it, as a driver."""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition, version
from confluent_kafka import ConsumerGroupTopicPartitions as GroupOffsets
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from serving import HEARTBEAT_MS, READ_S, SESSION_MS, Asked, Looked, Seen, made_of, serve, told, transactions

KINDS = {
    "classic": {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS},
    "cooperative": {
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": "cooperative-sticky",
    },
    "consumer": {"group.protocol": "consumer"},
}


@cache
def producer_of(servers: str, codec: str) -> Producer:
    """Kept: a new one takes half a second until it has its id."""
    return Producer({"bootstrap.servers": servers, "compression.type": codec, "enable.idempotence": True})


def produce(servers: str, topic: str, codec: str, records: list[dict[str, Any]], partition: int) -> None:
    failures: list[Any] = []
    producer = producer_of(servers, codec)
    for record in map(Asked, records):
        producer.produce(
            topic,
            record.value,
            record.key,
            partition,
            headers=record.headers,
            timestamp=record.timestamp_ms,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(READ_S) == 0, "not everything was acknowledged"
    assert not failures, failures


def read(servers: str, topics: dict[str, int]) -> dict[str, list[Any]]:
    settings = {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics])
    found: dict[str, list[Any]] = {topic: [] for topic in topics}
    deadline = time.monotonic() + READ_S
    while any(len(found[topic]) < count for topic, count in topics.items()) and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        assert message.error() is None, message.error()
        found[message.topic()].append(told(message.key(), message.value(), message.headers(), message.timestamp()[1]))
    consumer.close()
    return found


def look(servers: str, topics: dict[str, int], committed: bool) -> dict[str, Any]:
    settings = {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed" if committed else "read_uncommitted"})
    places = [TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics]
    looked = Looked(topics)
    looked.ends = {place.topic: consumer.get_watermark_offsets(place, READ_S)[1] for place in places}
    consumer.assign(places)
    while looked.goes_on():
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            looked.see(message.topic(), message.value())
    consumer.close()
    return looked.told()


class Writer:
    """A transactional producer."""

    def __init__(self, servers: str, name: str, timeout_ms: int) -> None:
        settings = {"bootstrap.servers": servers, "transactional.id": name, "transaction.timeout.ms": timeout_ms}
        self._producer = Producer({**settings, "linger.ms": 0})
        self._producer.init_transactions(READ_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, topic: str, partition: int, values: list[str]) -> None:
        failures: list[Any] = []
        for value in values:
            self._producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert self._producer.flush(READ_S) == 0, "not everything was acknowledged"
        if failures:
            raise KafkaException(failures[0])

    def end(self, commit: bool) -> None:
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)(READ_S)

    def work(self, servers: str, group: str, source: str, target: str, count: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                **KINDS["classic"],
            }
        )
        consumer.subscribe([source])
        deadline = time.monotonic() + READ_S
        following: dict[int, int] = {}
        while count and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._producer.produce(target, made_of(message.value()), partition=0)
                following[message.partition()] = message.offset() + 1
                count -= 1
        assert count == 0, f"{count} records did not come"
        places = [TopicPartition(source, number, offset) for number, offset in following.items()]
        self._producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), READ_S)
        consumer.close()

    def abandon(self) -> None:
        del self._producer


class Member:
    def __init__(self, servers: str, group: str, topic: str, kind: str) -> None:
        self.seen = Seen()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **KINDS[kind],
            }
        )
        self._consumer.subscribe([topic], on_assign=self._gained, on_revoke=self._lost)
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _gained(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.seen.gain({each.partition for each in partitions})

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        self.seen.lose({each.partition for each in partitions})

    def _commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].name() != "_NO_OFFSET":
                raise

    def _poll(self) -> None:
        while not self.seen.stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen.get(message.partition(), message.offset(), message.value())
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
    admin = AdminClient({"bootstrap.servers": servers})
    listed = admin.list_consumer_groups().result()
    assert not listed.errors, listed.errors
    described = admin.describe_consumer_groups([group])[group].result()
    offsets = admin.list_consumer_group_offsets([GroupOffsets(group)])[group].result().topic_partitions
    return {
        "listed": group in [each.group_id for each in listed.valid],
        "members": len(described.members),
        "offsets": {str(each.partition): each.offset for each in offsets if each.topic == topic},
    }


def delete_group(servers: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})  # named, so that it outlives the question
    admin.delete_consumer_groups([group])[group].result()


def partition_count(admin: AdminClient, topic: str) -> int:
    return len(admin.list_topics(topic, timeout=10).topics[topic].partitions)


def retention(admin: AdminClient, resource: ConfigResource) -> str:
    return admin.describe_configs([resource])[resource].result()["retention.ms"].value


def administer(servers: str, topic: str) -> dict[str, Any]:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "3600000"})])[topic].result()
    found: dict[str, Any] = {"created": partition_count(admin, topic)}
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    found["grown"] = partition_count(admin, topic)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found["retention"] = retention(admin, resource)
    entry = ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result()
    found["altered"] = retention(admin, resource)
    found["listed"] = topic in admin.list_topics(timeout=10).topics
    admin.delete_topics([topic])[topic].result()
    found["deleted"] = topic not in admin.list_topics(timeout=10).topics
    return found


serve(
    {
        "version": lambda: version(),
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

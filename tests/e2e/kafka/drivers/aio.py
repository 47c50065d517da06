"""aiokafka as a driver. Its clients live on an event loop in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from serving import HEARTBEAT_MS, READ_S, SESSION_MS, Asked, Looked, Seen, made_of, serve, told, transactions

loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()


def blocking(work: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    return lambda **question: asyncio.run_coroutine_threadsafe(work(**question), loop).result()


async def produce(servers: str, topic: str, codec: str, records: list[dict[str, Any]], partition: int) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=servers, compression_type=None if codec == "none" else codec, enable_idempotence=True
    ) as producer:
        sent = [
            await producer.send(
                topic,
                each.value,
                each.key,
                partition,
                timestamp_ms=each.timestamp_ms,
                headers=each.headers,
            )
            for each in map(Asked, records)
        ]
        await asyncio.gather(*sent)


async def read(servers: str, topics: dict[str, int]) -> dict[str, list[Any]]:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0) for topic in topics])
    await consumer.start()
    found: dict[str, list[Any]] = {topic: [] for topic in topics}
    deadline = loop.time() + READ_S
    while any(len(found[topic]) < count for topic, count in topics.items()) and loop.time() < deadline:
        for partition, records in (await consumer.getmany(timeout_ms=200)).items():
            found[partition.topic] += [told(each.key, each.value, each.headers, each.timestamp) for each in records]
    await consumer.stop()
    return found


async def look(servers: str, topics: dict[str, int], committed: bool) -> dict[str, Any]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed" if committed else "read_uncommitted",
        fetch_max_wait_ms=100,
    )
    places = [TopicPartition(topic, 0) for topic in topics]
    consumer.assign(places)
    await consumer.start()
    looked = Looked(topics)
    looked.ends = {place.topic: end for place, end in (await consumer.end_offsets(places)).items()}
    while looked.goes_on():
        for place, records in (await consumer.getmany(timeout_ms=100)).items():
            for each in records:
                looked.see(place.topic, each.value)
    await consumer.stop()
    return looked.told()


def wait(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result()


class Writer:
    """A transactional producer."""

    def __init__(self, servers: str, name: str, timeout_ms: int) -> None:
        self._settings = {"transactional_id": name, "transaction_timeout_ms": timeout_ms}
        self._producer = wait(self._started(servers))

    async def _started(self, servers: str) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=servers, **self._settings)
        await producer.start()
        return producer

    def begin(self) -> None:
        wait(self._producer.begin_transaction())

    def write(self, topic: str, partition: int, values: list[str]) -> None:
        async def send() -> None:
            sent = [await self._producer.send(topic, value.encode(), partition=partition) for value in values]
            await asyncio.gather(*sent)

        wait(send())

    def end(self, commit: bool) -> None:
        wait(self._producer.commit_transaction() if commit else self._producer.abort_transaction())

    def work(self, servers: str, group: str, source: str, target: str, count: int) -> None:
        wait(self._work(servers, group, source, target, count))

    async def _work(self, servers: str, group: str, source: str, target: str, count: int) -> None:
        consumer = AIOKafkaConsumer(
            source,
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        deadline = loop.time() + READ_S
        following: dict[TopicPartition, int] = {}
        while count and loop.time() < deadline:
            for place, records in (await consumer.getmany(timeout_ms=100, max_records=count)).items():
                for each in records:
                    await self._producer.send(target, made_of(each.value), partition=0)
                    following[place] = each.offset + 1
                count -= len(records)
        assert count == 0, f"{count} records did not come"
        await self._producer.send_offsets_to_transaction(following, group)
        await consumer.stop()

    def abandon(self) -> None:
        wait(self._producer.stop())


class Member(ConsumerRebalanceListener):
    def __init__(self, servers: str, group: str, topic: str, kind: str) -> None:
        assert kind == "classic"
        self.seen = Seen()
        self._topic = topic
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._consumer.subscribe([self._topic], listener=self)
        await self._consumer.start()
        self._task = asyncio.create_task(self._poll())

    async def on_partitions_revoked(self, revoked: Any) -> None:
        if revoked:
            await self._consumer.commit()
        self.seen.lose({each.partition for each in revoked})

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.seen.gain({each.partition for each in assigned})

    async def _poll(self) -> None:
        while not self.seen.stopping.is_set():
            for records in (await self._consumer.getmany(timeout_ms=100)).values():
                for each in records:
                    self.seen.get(each.partition, each.offset, each.value)
        await self._consumer.commit()
        await self._consumer.stop()

    async def leave(self) -> dict[str, Any]:
        self.seen.stopping.set()
        assert self._task is not None
        await self._task
        return self.seen.told()


members: list[Member] = []


async def join(servers: str, group: str, topic: str, kind: str) -> int:
    member = Member(servers, group, topic, kind)
    members.append(member)
    await member.start()
    return len(members) - 1


async def with_admin(servers: str, work: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, Any]]) -> Any:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        return await work(admin)
    finally:
        await admin.close()


async def describe(servers: str, group: str, topic: str) -> dict[str, Any]:
    async def work(admin: AIOKafkaAdminClient) -> dict[str, Any]:
        listed = await admin.list_consumer_groups()
        described = await admin.describe_consumer_groups([group])
        offsets = await admin.list_consumer_group_offsets(group)
        return {
            "listed": group in [name for name, *_ in listed],
            "members": len(described[0].to_object()["groups"][0]["members"]),
            "offsets": {
                str(place.partition): found.offset for place, found in offsets.items() if place.topic == topic
            },
        }

    return await with_admin(servers, work)


async def administer(servers: str, topic: str) -> dict[str, Any]:
    async def work(admin: AIOKafkaAdminClient) -> dict[str, Any]:
        async def count() -> int:
            return len((await admin.describe_topics([topic]))[0]["partitions"])

        async def retention() -> str:
            found = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            entries = found[0].to_object()["resources"][0]["config_entries"]
            return next(each["config_value"] for each in entries if each["config_names"] == "retention.ms")

        await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "3600000"})])
        found: dict[str, Any] = {"created": await count()}
        await admin.create_partitions({topic: NewPartitions(3)})
        found["grown"] = await count()
        found["retention"] = await retention()
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})])
        found["altered"] = await retention()
        found["listed"] = topic in await admin.list_topics()
        await admin.delete_topics([topic])
        found["deleted"] = topic not in await admin.list_topics()
        return found

    return await with_admin(servers, work)


serve(
    {
        "version": lambda: aiokafka.__version__,
        "produce": blocking(produce),
        "read": blocking(read),
        "join": blocking(join),
        "state": lambda member: members[member].seen.told(),
        "leave": lambda member: blocking(members[member].leave)(),
        "describe": blocking(describe),
        "administer": blocking(administer),
        "look": blocking(look),
        **transactions(Writer),
    }
)

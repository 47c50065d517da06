"""Records what real Kafka clients send: run as a script, it writes tests/vectors/kafka/*.txt anew.

A server that knows one topic and one group answers just enough for a client to go on, through our own codecs; each
kind of request is kept once per version, the first that came. Bytes, not behaviour, are what is recorded here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from rivven.wire import kafka
from rivven.wire.kafka import APIS, made

FOLDER = Path(__file__).parent / "kafka"
TOPIC, TOPIC_ID = "orders", bytes(range(16))
ROW_BYTES = 24


class Recorder:
    """The server, and what it was sent by (api key, version)."""

    def __init__(self) -> None:
        self.frames: dict[tuple[int, int], bytes] = {}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection:
            while True:
                (length,) = struct.unpack(">i", self._exactly(connection, 4))
                self._answer(connection, self._exactly(connection, length))

    def _exactly(self, connection: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = connection.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def _answer(self, connection: socket.socket, body: bytes) -> None:
        call = kafka.decode_request(body, apis=APIS)
        self.frames.setdefault((call.api_key, call.version), body)
        response = answer(call, self.port)
        for piece in kafka.encode_response(response, call.api_key, call.version, call.correlation_id):
            connection.sendall(piece)


def answer(call: kafka.Call, port: int) -> Any:
    """Just enough for a client to go on: the fields that it looks at, the rest at their defaults."""
    request = call.request
    match APIS[call.api_key].name:
        case "ApiVersions":
            keys = [made.api_versions.ApiVersion(api.key, *api.advertised) for api in APIS.values()]
            return made.api_versions.ApiVersionsResponse(0, [key for key in keys if not 76 <= key.api_key <= 92])
        case "Metadata":
            partition = made.metadata.MetadataResponsePartition(0, 0, 0, 0, [0], [0])
            topic = made.metadata.MetadataResponseTopic(0, TOPIC, TOPIC_ID, partitions=[partition])
            broker = made.metadata.MetadataResponseBroker(0, "127.0.0.1", port)
            return made.metadata.MetadataResponse(0, [broker], "cluster", 0, [topic])
        case "DescribeCluster":
            node = made.describe_cluster.DescribeClusterBroker(0, "127.0.0.1", port)
            return made.describe_cluster.DescribeClusterResponse(cluster_id="c", controller_id=0, brokers=[node])
        case "FindCoordinator":
            key = request.key or "".join(request.coordinator_keys)
            one = made.find_coordinator.Coordinator(key, 0, "127.0.0.1", port)
            return made.find_coordinator.FindCoordinatorResponse(
                node_id=0, host="127.0.0.1", port=port, coordinators=[one]
            )
        case "Produce":
            return made.produce.ProduceResponse(
                [
                    made.produce.TopicProduceResponse(
                        topic.name,
                        topic.topic_id,
                        [made.produce.PartitionProduceResponse(one.index, 0, 0) for one in topic.partition_data],
                    )
                    for topic in request.topic_data
                ]
            )
        case "Fetch":
            time.sleep(0.05)
            return made.fetch.FetchResponse(
                responses=[
                    made.fetch.FetchableTopicResponse(
                        topic.topic,
                        topic.topic_id,
                        [made.fetch.PartitionData(one.partition, 0, 0, 0, 0) for one in topic.partitions],
                    )
                    for topic in request.topics
                ]
            )
        case "ListOffsets":
            one = made.list_offsets.ListOffsetsPartitionResponse(0, 0, timestamp=-1, offset=0, leader_epoch=0)
            return made.list_offsets.ListOffsetsResponse(
                topics=[made.list_offsets.ListOffsetsTopicResponse(TOPIC, [one])]
            )
        case "JoinGroup":
            protocol = request.protocols[0]
            member = made.join_group.JoinGroupResponseMember("member-1", None, protocol.metadata)
            return made.join_group.JoinGroupResponse(
                generation_id=1,
                protocol_type=request.protocol_type,
                protocol_name=protocol.name,
                leader="member-1",
                member_id="member-1",
                members=[member],
            )
        case "SyncGroup":
            given = [one.assignment for one in request.assignments]
            return made.sync_group.SyncGroupResponse(
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignment=given[0] if given else b"",
            )
        case "OffsetCommit":
            one = made.offset_commit.OffsetCommitResponsePartition(0)
            topics = [made.offset_commit.OffsetCommitResponseTopic(TOPIC, TOPIC_ID, [one])]
            return made.offset_commit.OffsetCommitResponse(topics=topics)
        case "OffsetFetch":
            one, new = made.offset_fetch.OffsetFetchResponsePartition, made.offset_fetch.OffsetFetchResponsePartitions
            old_topic = made.offset_fetch.OffsetFetchResponseTopic(TOPIC, [one(0, -1)])
            topic = made.offset_fetch.OffsetFetchResponseTopics(TOPIC, TOPIC_ID, [new(0, -1)])
            groups = [made.offset_fetch.OffsetFetchResponseGroup(group.group_id, [topic]) for group in request.groups]
            return made.offset_fetch.OffsetFetchResponse(topics=[old_topic], groups=groups)
        case "InitProducerId":
            return made.init_producer_id.InitProducerIdResponse(producer_id=7, producer_epoch=0)
        case "ConsumerGroupHeartbeat":
            parts = made.consumer_group_heartbeat.TopicPartitions(TOPIC_ID, [0])
            return made.consumer_group_heartbeat.ConsumerGroupHeartbeatResponse(
                member_id=request.member_id,
                member_epoch=1,
                heartbeat_interval_ms=1000,
                assignment=made.consumer_group_heartbeat.Assignment([parts]),
            )
        case "DeleteGroups":
            results = [made.delete_groups.DeletableGroupResult(group) for group in request.groups_names]
            return made.delete_groups.DeleteGroupsResponse(results=results)
        case name:
            return getattr(getattr(made, APIS[call.api_key].module), f"{name}Response")()


# The clients


def confluent(port: int) -> None:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

    where = {"bootstrap.servers": f"127.0.0.1:{port}", "client.id": "ck"}
    producer = confluent_kafka.Producer({**where, "enable.idempotence": True, "linger.ms": 0})
    producer.produce(TOPIC, b"value", b"key")
    producer.flush(10)
    for protocol in ("classic", "consumer"):
        consumer = confluent_kafka.Consumer({**where, "group.id": "readers", "group.protocol": protocol})
        consumer.subscribe([TOPIC])
        for _ in range(12):
            consumer.poll(0.25)
        with contextlib.suppress(confluent_kafka.KafkaException):
            consumer.commit(offsets=[confluent_kafka.TopicPartition(TOPIC, 0, 1)], asynchronous=False)
        consumer.close()
    admin = AdminClient(where)
    futures: list[Any] = [
        *admin.create_topics([NewTopic("new", 3, 1, config={"retention.ms": "1000"})]).values(),
        *admin.create_partitions([NewPartitions("new", 6)]).values(),
        *admin.describe_configs([ConfigResource("topic", TOPIC)]).values(),
        *admin.delete_topics(["new"]).values(),
        *admin.delete_consumer_groups(["readers"]).values(),
        *admin.delete_records([confluent_kafka.TopicPartition(TOPIC, 0, 1)]).values(),
        admin.list_consumer_groups(),
    ]
    settle(futures)


def settle(futures: list[Any]) -> None:
    """Wait for what was asked; whether the answer pleased is of no interest here."""
    for future in futures:
        with contextlib.suppress(Exception):
            future.result(3)


def kafka_python(port: int) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    where = {"bootstrap_servers": f"127.0.0.1:{port}", "client_id": "kp"}
    producer = KafkaProducer(**where)
    producer.send(TOPIC, b"value", b"key").get(10)
    producer.close()
    consumer = KafkaConsumer(TOPIC, group_id="readers", **where)
    consumer.poll(2000)
    with contextlib.suppress(Exception):
        consumer.commit()
    consumer.close()
    admin = KafkaAdminClient(**where)
    for ask in (admin.list_groups, admin.describe_cluster, lambda: admin.delete_topics(["new"])):
        with contextlib.suppress(Exception):
            ask()
    admin.close()


def aiokafka(port: int) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def run() -> None:
        where = {"bootstrap_servers": f"127.0.0.1:{port}", "client_id": "aio"}
        producer = AIOKafkaProducer(**where, enable_idempotence=True)
        await producer.start()
        await asyncio.wait_for(producer.send_and_wait(TOPIC, b"value", b"key"), 10)
        await producer.stop()
        consumer = AIOKafkaConsumer(TOPIC, group_id="readers", enable_auto_commit=False, **where)
        await asyncio.wait_for(consumer.start(), 10)
        await consumer.getmany(timeout_ms=500)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(consumer.commit({next(iter(consumer.assignment())): 1}), 3)
        await asyncio.wait_for(consumer.stop(), 10)

    asyncio.run(run())


# The files


def text_of(frames: dict[tuple[int, int], bytes], client: str) -> str:
    lines = [f"# What {client} sends, without the length in front. Recorded by kafka_requests.py."]
    for (key, version), body in sorted(frames.items()):
        call = kafka.decode_request(body, apis=APIS)
        lines += ["", f"= {APIS[key].name} {version}"]
        lines.append(f"{body[:8].hex()} | api key {key}, version {version}, correlation id {call.correlation_id}")
        name_bytes = 2 + len((call.client_id or "").encode())
        lines.append(f"{body[8 : 8 + name_bytes].hex()} | client id {call.client_id!r}")
        for at in range(8 + name_bytes, len(body), ROW_BYTES):
            row = body[at : at + ROW_BYTES]
            lines.append(f"{row.hex()} | {''.join(chr(one) if 32 <= one < 127 else '.' for one in row)}")
        lines.append(f"-> {msgspec.json.encode(call.request).decode()}")
    return "\n".join(lines) + "\n"


def main() -> None:
    wanted = sys.argv[1:] or ["confluent", "kafka_python", "aiokafka"]
    FOLDER.mkdir(exist_ok=True)
    for name in wanted:
        recorder = Recorder()
        globals()[name](recorder.port)
        recorder.close()
        (FOLDER / f"{name}.txt").write_text(text_of(recorder.frames, name))
        print(name, [f"{APIS[key].name} {version}" for key, version in sorted(recorder.frames)])


if __name__ == "__main__":
    main()

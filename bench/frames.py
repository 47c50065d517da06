"""The bytes that the load generator sends: the same records in the protocol of each peer.

`single` is one record in a request, `bulk` many: one batch for those who know batches, and for those who don't as
many commands in a row, sent at once and answered one by one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from functools import cache

from bench.load import Framing, Plan, Script
from rivven.record import encode
from rivven.wire import CAPABILITIES, PROTOCOL_VERSION, Request, encode_request, encode_response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

TOPIC = "bench"
STAMP_MS = time.time_ns() // 1_000_000
"""Of this run: what is older than the retention of a topic would be deleted while it is measured."""
TIMEOUT_MS = 30_000
LENGTH_BYTES, HEADER_BYTES = 4, 5
PARTITIONS_MAX = 127
"""A larger number would move what follows it in a reply."""
NATS_SUBJECT = f"{TOPIC}.0"


def single(speaks: str, value_bytes: int, *, connections: int, partitions: int = 1) -> Plan:
    """One record a request; with several partitions, to each in turn."""
    value = bytes(value_bytes)
    match speaks:
        case "native":
            frames = tuple(native(ask.Publish(TOPIC, number, None, value)) for number in range(partitions))
            published = native(tell.Published(0, 0))[LENGTH_BYTES + HEADER_BYTES :][:1]
            return Plan(Framing.LENGTH, (_native_script(frames),), expect_at=HEADER_BYTES, expect=published)
        case "kafka":
            return kafka_produce(batch_of(1, value_bytes), 1, 1)
        case "redis":
            return Plan(Framing.RESP, (Script((redis_add(value),)),))
        case "nats":
            return Plan(Framing.NATS, tuple(_nats_script(value, 1, number) for number in range(connections)))
    raise AssertionError(speaks)


def bulk(speaks: str, value_bytes: int, records: int, *, connections: int) -> Plan:
    """Many records a frame. A connection has a partition of its own where there are partitions."""
    value = bytes(value_bytes)
    match speaks:
        case "native":
            return native_batches(batch_of(records, value_bytes), records, connections)
        case "kafka":
            return kafka_produce(batch_of(records, value_bytes), records, connections)
        case "redis":
            return Plan(Framing.RESP, (Script((redis_add(value) * records,)),), records, records)
        case "nats":
            scripts = tuple(_nats_script(value, records, number) for number in range(connections))
            return Plan(Framing.NATS, scripts, records, records)
    raise AssertionError(speaks)


@cache
def batch_of(records: int, value_bytes: int) -> bytes:
    """One batch as a producer sends it: the very same bytes go to us and to the mock broker."""
    return bytes(encode([(STAMP_MS, None, bytes(value_bytes), ())] * records))


# Ours


def native(message: Request | tell.Response) -> bytes:
    is_request = isinstance(message, Request)
    pieces = encode_request(message, 0) if is_request else encode_response(message, 0)  # type: ignore[arg-type]
    return b"".join(pieces)


def native_batches(batch: bytes, records: int, partitions: int) -> Plan:
    assert partitions <= PARTITIONS_MAX
    frames = [
        native(
            ask.ProduceBatches(
                -1, TIMEOUT_MS, (ask.TopicBatches(TOPIC, (ask.PartitionBatches(number, memoryview(batch)),)),)
            )
        )
        for number in range(partitions)
    ]
    scripts = tuple(_native_script((frame,)) for frame in frames)
    return Plan(Framing.LENGTH, scripts, records, expect_at=_error_at(), expect=b"\0\0")


def _error_at() -> int:
    """Where the reply to a batch has its error, which is no code and no message where all is well."""
    parts = (tell.PartitionProduced(0, error, None, 0, -1, 0) for error in (0, 1))
    one, other = (native(tell.ProducedBatches((tell.TopicProduced(TOPIC, (part,)),))) for part in parts)
    return next(place for place, pair in enumerate(zip(one, other, strict=True)) if len(set(pair)) > 1) - LENGTH_BYTES


def _native_script(frames: tuple[bytes, ...]) -> Script:
    return Script(frames, native(ask.Handshake(PROTOCOL_VERSION, "bench", int(CAPABILITIES))), 1)


# Kafka: Produce v7, which the mock broker takes


def kafka_produce(batch: bytes, records: int, partitions: int) -> Plan:
    scripts = tuple(Script((_kafka_frame(batch, number),)) for number in range(partitions))
    return Plan(Framing.LENGTH, scripts, records, expect_at=_kafka_error_at(TOPIC), expect=b"\0\0")


def kafka_produce_in_turn(batch: bytes, records: int, places: Sequence[tuple[str, int]]) -> Plan:
    """Every connection to all these partitions in turn, each from another place on. Names have one length, or the
    answers would have their errors at different places."""
    (length,) = {len(topic) for topic, _ in places}
    script = Script(tuple(_kafka_frame(batch, number, topic) for topic, number in places))
    return Plan(Framing.LENGTH, (script,), records, expect_at=_kafka_error_at("x" * length), expect=b"\0\0")


def _kafka_error_at(topic: str) -> int:
    """Behind the correlation, one topic, one partition and its number."""
    return 4 + 4 + len(_kafka_string(topic)) + 4 + 4


def _kafka_frame(batch: bytes, partition: int, topic: str = TOPIC) -> bytes:
    header = struct.pack(">hhi", 0, 7, 0) + _kafka_string("bench")
    body = struct.pack(">hhii", -1, -1, TIMEOUT_MS, 1) + _kafka_string(topic)
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    return struct.pack(">i", len(header) + len(body)) + header + body


def _kafka_string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


# Redis


def redis_command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def redis_add(value: bytes) -> bytes:
    return redis_command(b"XADD", TOPIC.encode(), b"*", b"v", value)


# NATS


def nats_publish(subject: str, inbox: str, value: bytes) -> bytes:
    return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox.encode(), len(value), value)


def nats_hello(inbox: str) -> bytes:
    return b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %s 1\r\n' % inbox.encode()


def _nats_script(value: bytes, records: int, number: int) -> Script:
    inbox = f"_INBOX.{number}"
    return Script((nats_publish(NATS_SUBJECT, inbox, value) * records,), nats_hello(inbox))

"""Records batches that nobody here wrote: librdkafka's from the wire, kafka-python's from its builder.

    python tests/vectors/record_batches.py      # rewrites batch_*.txt beside this file

A tiny broker answers librdkafka's ApiVersions, Metadata and Produce requests just well enough to be sent one
batch, and keeps it. Each file holds the batch as hex, one header field to a line with its name in the margin,
and above it the records that went in, as JSON with bytes in hex.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOPIC = "vectors"
TIMESTAMP_MS = 1_700_000_000_000
API_PRODUCE, API_FETCH, API_METADATA, API_FIND_COORDINATOR, API_VERSIONS = 0, 1, 3, 10, 18
VERSIONS = (
    (API_PRODUCE, 3, 7),
    (API_FETCH, 4, 10),
    (API_METADATA, 0, 4),
    (API_FIND_COORDINATOR, 0, 0),  # never asked for; librdkafka takes it as the sign that a broker knows LZ4
    (API_VERSIONS, 0, 0),
)
UNSUPPORTED_VERSION = 35

RECORDS: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (TIMESTAMP_MS, b"first", b"one", []),
    (TIMESTAMP_MS + 5, None, b"a value without a key", []),
    (TIMESTAMP_MS + 3, b"tombstone", None, []),
    (TIMESTAMP_MS + 400, b"", b"", [("trace", b"\x00\x01\xff"), ("empty", b""), ("none", None)]),
    (TIMESTAMP_MS - 70_000, "schlüssel".encode(), b"long " * 30, [("größe", "groß".encode())]),
]
FIELDS = (
    (8, "base offset"),
    (4, "batch length"),
    (4, "leader epoch"),
    (1, "magic"),
    (4, "CRC-32C of what follows"),
    (2, "attributes"),
    (4, "last offset delta"),
    (8, "base timestamp"),
    (8, "max timestamp"),
    (8, "producer id"),
    (2, "producer epoch"),
    (4, "base sequence"),
    (4, "count"),
)


class Recorder(threading.Thread):
    """A broker of one topic with one partition, which forgets everything but the batches it was sent."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.batches: list[bytes] = []

    def run(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while len(prefix := stream.read(4)) == 4:
                request = stream.read(int.from_bytes(prefix, "big"))
                api, version, correlation = struct.unpack_from(">hhi", request)
                reply = struct.pack(">i", correlation) + self.answer(api, version, request)
                connection.sendall(struct.pack(">i", len(reply)) + reply)

    def answer(self, api: int, version: int, request: bytes) -> bytes:
        if api == API_VERSIONS:
            known = b"".join(struct.pack(">hhh", *row) for row in VERSIONS)
            error = 0 if version == 0 else UNSUPPORTED_VERSION
            return struct.pack(">hi", error, len(VERSIONS)) + known
        if api == API_METADATA:
            return self.metadata(version)
        assert api == API_PRODUCE, f"nobody taught the recorder api {api}"
        self.batches.append(batch_in(request))
        topic = text(TOPIC) + struct.pack(">iihqq", 1, 0, 0, 0, -1) + (struct.pack(">q", 0) if version >= 5 else b"")
        return struct.pack(">i", 1) + topic + struct.pack(">i", 0)

    def metadata(self, version: int) -> bytes:
        broker = struct.pack(">i", 1) + text("127.0.0.1") + struct.pack(">i", self.port)
        broker += text(None) if version >= 1 else b""
        partition = struct.pack(">hiiiiii", 0, 0, 1, 1, 1, 1, 1)
        topic = (
            struct.pack(">h", 0) + text(TOPIC) + (b"\0" if version >= 1 else b"") + struct.pack(">i", 1) + partition
        )
        reply = struct.pack(">i", 0) if version >= 3 else b""
        reply += struct.pack(">i", 1) + broker
        reply += text("recorder") if version >= 2 else b""
        reply += struct.pack(">i", 1) if version >= 1 else b""
        return reply + struct.pack(">i", 1) + topic


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


def batch_in(request: bytes) -> bytes:
    """The record batch of a Produce request with one topic and one partition: behind its name, count and place."""
    at = request.index(text(TOPIC)) + len(text(TOPIC)) + 8
    length = int.from_bytes(request[at : at + 4], "big")
    return request[at + 4 : at + 4 + length]


def from_librdkafka(codec: str) -> tuple[str, bytes]:
    import confluent_kafka

    recorder = Recorder()
    recorder.start()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{recorder.port}",
            "compression.type": codec,
            "linger.ms": 300,
            "broker.address.family": "v4",
        }
    )
    for timestamp_ms, key, value, headers in RECORDS:
        producer.produce(TOPIC, key=key, value=value, headers=headers, timestamp=timestamp_ms, partition=0)
    assert producer.flush(20) == 0, "librdkafka did not get rid of its records"
    assert len(recorder.batches) == 1, f"one batch expected, {len(recorder.batches)} came"
    return f"librdkafka {confluent_kafka.libversion()[0]}", recorder.batches[0]


def from_kafka_python(codec: int) -> tuple[str, bytes]:
    import kafka
    from kafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for delta, (timestamp_ms, key, value, headers) in enumerate(RECORDS):
        builder.append(delta, timestamp_ms, key, value, headers)
    return f"kafka-python {kafka.__version__}", bytes(builder.build())


def page(producer: str, codec: str, batch: bytes) -> str:
    lines = [f"# A record batch with codec {codec}, as {producer} writes it.", "#"]
    for offset, (timestamp_ms, key, value, headers) in enumerate(RECORDS):
        fields: dict[str, Any] = {
            "offset": offset,
            "timestamp_ms": timestamp_ms,
            "key": hexed(key),
            "value": hexed(value),
            "headers": [[name, hexed(header)] for name, header in headers],
        }
        lines.append(f"# record {json.dumps(fields, ensure_ascii=False)}")
    lines.append("")
    at = 0
    for length, name in FIELDS:
        lines.append(f"{batch[at : at + length].hex():16} | {name}")
        at += length
    lines += [batch[place : place + 32].hex() for place in range(at, len(batch), 32)]
    return "\n".join(lines) + "\n"


def hexed(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def main() -> None:
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        for source, (producer, batch) in (
            ("librdkafka", from_librdkafka(codec)),
            ("kafka_python", from_kafka_python(number)),
        ):
            found = batch[22] & 7
            assert found == number, f"{producer} wrote codec {found} instead of {codec}"
            (HERE / f"batch_{source}_{codec}.txt").write_text(page(producer, codec, batch))


if __name__ == "__main__":
    main()

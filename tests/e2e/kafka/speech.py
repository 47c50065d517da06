"""Kafka's protocol by hand: frames, headers, and the one request that shows batches as they are stored.

Nothing here imports the code under test.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import NamedTuple

FETCH, FETCH_VERSION = 1, 10
BATCH_HEADER_BYTES = 61
ANSWER_S = 10.0


class Closed(Exception):
    """The other side has hung up."""


class Speaker:
    """One connection that sends frames and takes frames."""

    def __init__(self, port: int, timeout_s: float = ANSWER_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)

    def __enter__(self) -> Speaker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, body: bytes) -> None:
        try:
            self.socket.sendall(struct.pack(">i", len(body)) + body)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def answer(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise Closed
            data += more
        return data


def header(api_key: int, version: int, correlation_id: int) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, -1)


class StoredBatch(NamedTuple):
    """What the header of a batch says of it."""

    codec: int
    transactional: bool
    control: bool
    producer_id: int
    producer_epoch: int


def batches_of(port: int, topic: str) -> list[StoredBatch]:
    """All batches of partition 0, in order."""
    name = topic.encode()
    wanted = struct.pack(">iiqqi", 0, -1, 0, -1, 1 << 24)
    body = struct.pack(">iiiibii", -1, 100, 1, 1 << 24, 0, 0, -1)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", 1) + wanted + struct.pack(">i", 0)
    with Speaker(port) as speaker:
        speaker.send(header(FETCH, FETCH_VERSION, 7) + body)
        answer = speaker.answer()
    correlation_id, _, error, _, topics, length = struct.unpack_from(">iihiih", answer)
    assert (correlation_id, error, topics) == (7, 0, 1)
    at = struct.calcsize(">iihiih") + length
    partitions, number, fault, _, _, _, aborted, size = struct.unpack_from(">iihqqqii", answer, at)
    assert (partitions, number, fault, aborted) == (1, 0, 0, -1)
    batches = answer[at + struct.calcsize(">iihqqqii") :]
    assert len(batches) == size
    found, at = [], 0
    while at < size:
        (length,) = struct.unpack_from(">i", batches, at + 8)
        (attributes,) = struct.unpack_from(">h", batches, at + 21)
        producer = struct.unpack_from(">qh", batches, at + 43)
        found.append(StoredBatch(attributes & 7, bool(attributes & 16), bool(attributes & 32), *producer))
        at += 12 + length
    return found


def codecs_of(port: int, topic: str) -> set[int]:
    """The codecs of all batches of partition 0, by the numbers that their headers hold."""
    return {batch.codec for batch in batches_of(port, topic)}

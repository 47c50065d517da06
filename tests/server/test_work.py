"""How much work a request is, counted instead of timed: whatever makes requests dearer shows here on any machine.

A node serves in this thread while a client in another one talks to it. What is counted are calls of Python functions
of ours, system calls on sockets, batches and syncs, and memory that stays. The limits are a little above what was
counted when they were written; raise one only for a reason that is worth it, and say so.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import rivven
from rivven.record import NATIVE, encode
from rivven.server.node import Node
from rivven.server.settings import Settings
from rivven.wire import CAPABILITIES, PROTOCOL_VERSION, Format, Request, encode_request
from rivven.wire import requests as ask

if not NATIVE:
    pytest.skip("what is counted is the native way", allow_module_level=True)

OURS = str(Path(rivven.__file__).parent)
TOPIC = "t"
HELLO = ask.Handshake(PROTOCOL_VERSION, "counting", int(CAPABILITIES))


class Work(NamedTuple):
    """What a node did for one exchange."""

    calls: int
    receives: int
    sends: int
    batches: int
    syncs: int


def native(request: Request, form: Format = Format.POSTCARD) -> bytes:
    return b"".join(encode_request(request, 7, form))


def batch_of(records: int) -> bytes:
    return bytes(encode([(1_700_000_000_000, b"key", bytes(100), ())] * records))


def batches_in() -> bytes:
    parts = (ask.PartitionBatches(0, memoryview(batch_of(10))),)
    return native(ask.ProduceBatches(-1, 30_000, (ask.TopicBatches(TOPIC, parts),)))


def batches_out() -> bytes:
    return native(ask.FetchBatches(0, 1, 65_536, 0, (ask.TopicFetch(TOPIC, (ask.PartitionFetch(0, 0, 65_536),)),)))


def kafka_text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def kafka_frame(api: int, version: int, body: bytes) -> bytes:
    whole = struct.pack(">hhi", api, version, 7) + kafka_text("counting") + body
    return struct.pack(">i", len(whole)) + whole


def kafka_produce() -> bytes:
    batch = batch_of(10)
    head = struct.pack(">hhii", -1, -1, 30_000, 1) + kafka_text(TOPIC)
    return kafka_frame(0, 7, head + struct.pack(">iii", 1, 0, len(batch)) + batch)


def kafka_fetch() -> bytes:
    head = struct.pack(">iiiibiii", -1, 0, 1, 65_536, 0, 0, -1, 1) + kafka_text(TOPIC)
    return kafka_frame(1, 8, head + struct.pack(">iiqqii", 1, 0, 0, -1, 65_536, 0))


def exchange(port: int, hello: bytes, frames: list[bytes], *, at_once: bool) -> None:
    """Send the frames, all of them or each after the answer to the one before, and read every answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        stream = sock.makefile("rb")

        def answer() -> bytes:
            (length,) = struct.unpack(">I", stream.read(4))
            return stream.read(length)

        with stream:
            if hello:
                sock.sendall(hello)
                answer()
            yielded = [b"".join(frames)] if at_once else frames
            for piece in yielded:
                sock.sendall(piece)
                for _ in range(len(frames) if at_once else 1):
                    answer()


def work(
    tmp_path: Path,
    frames: list[bytes],
    *,
    at_once: bool,
    policy: str = "none",
    hello: bytes | None = None,
    measure: Callable[[Node, Callable[[], None]], Awaitable[Any]] | None = None,
) -> Any:
    """What the second of two equal exchanges cost: the first one makes what is made once."""
    hello = native(HELLO) if hello is None else hello
    settings = Settings(data_dir=str(tmp_path), bind_port=0, http_port=0, sync_policy=policy, rate_limit_per_ip=0)

    async def run() -> Any:
        node = Node(settings)
        await node.start()
        try:
            node.store.create_topic(TOPIC, 2)
            await asyncio.to_thread(exchange, node.address[1], hello, frames, at_once=at_once)
            return await (measure or counted)(node, lambda: exchange(node.address[1], hello, frames, at_once=at_once))
        finally:
            await node.stop()

    return asyncio.run(run())


async def counted(node: Node, exchange: Callable[[], None]) -> Work:
    calls = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls += 1

    assert node.front is not None

    def standing() -> tuple[int, ...]:
        assert node.front is not None
        return *node.front.system_calls, node.broker.stats.batches_in, node.store.wal_stats.syncs

    before = standing()
    sys.setprofile(profile)
    try:
        await asyncio.to_thread(exchange)
    finally:
        sys.setprofile(None)
    return Work(calls, *(new - old for new, old in zip(standing(), before, strict=True)))


PUBLISH = native(ask.Publish(TOPIC, 0, None, bytes(100)))


@pytest.mark.parametrize("policy", ["none", "every_write"])
def test_publishes_that_arrive_together_cost_no_call_each(tmp_path: Path, policy: str) -> None:
    done = work(tmp_path, [PUBLISH] * 3_000, at_once=True, policy=policy)
    assert done.calls < 3_000, "it is calls per turn, not per request"
    assert done.batches <= 30
    assert done.syncs <= done.batches + 1
    assert done.receives <= 60
    assert done.sends <= 60


def test_nothing_of_a_publish_stays(tmp_path: Path) -> None:
    async def kept(_: Node, exchange: Callable[[], None]) -> int:
        """Blocks of memory; the least of several exchanges, since other threads load what is needed once."""
        grown = []
        for _ in range(5):
            gc.collect()
            before = sys.getallocatedblocks()
            await asyncio.to_thread(exchange)
            gc.collect()
            grown.append(sys.getallocatedblocks() - before)
        return min(grown)

    assert work(tmp_path, [PUBLISH] * 3_000, at_once=True, measure=kept) < 1_000


def test_a_publish_alone_is_one_receive_and_one_send(tmp_path: Path) -> None:
    done = work(tmp_path, [PUBLISH] * 100, at_once=False)
    assert done.receives <= 100 + 4
    assert done.sends <= 100 + 4
    assert done.calls <= 100 * 55, "most of it is the turn, which others would share"


@pytest.mark.parametrize(
    ("frame", "calls_max"),
    [
        (native(ask.Publish(TOPIC, 0, None, bytes(100)), Format.PROTOBUF), 68),
        (batches_in(), 5),
        (batches_out(), 70),
        (kafka_produce(), 5),
        (kafka_fetch(), 68),
    ],
    ids=["publish in protobuf", "batches in", "batches out", "Kafka's Produce", "Kafka's Fetch"],
)
def test_calls_for_one_of_many_requests(tmp_path: Path, frame: bytes, calls_max: int) -> None:
    hello = kafka_frame(18, 0, b"") if frame in (kafka_produce(), kafka_fetch()) else None
    done = work(tmp_path, [frame] * 300, at_once=True, hello=hello)
    assert done.calls <= 300 * calls_max
    assert done.receives <= 40
    assert done.sends <= 40

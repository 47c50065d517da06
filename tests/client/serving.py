"""Servers to test clients against: a real node, in the test's loop or in a thread, and one that acts as told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import rivven
from rivven.client import Options, RivvenClient
from rivven.server.node import Node
from rivven.server.settings import Settings
from rivven.wire import Request, Response, Splitter, decode_request, encode_response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

QUICK = {"backoff_ms": 5, "backoff_ms_max": 20, "breaker_open_ms": 20}
"""Options of a client that does not wait long."""


def settings(path: Path, *, port: int = 0, **more: Any) -> Settings:
    return Settings(
        **{
            "data_dir": str(path),
            "bind_port": port,
            "http_port": 0,
            "sync_policy": "none",
            "rate_limit_per_ip": 0,
            **more,
        }
    )


def address_of(node: Node) -> str:
    host, port = node.address
    return f"{host}:{port}"


@contextlib.asynccontextmanager
async def serving(path: Path, **more: Any) -> AsyncIterator[Node]:
    node = Node(settings(path, **more))
    await node.start()
    try:
        yield node
    finally:
        await stop(node)


async def stop(node: Node) -> None:
    """Stop it, and see its sockets closed.

    A reply that nobody read holds one open beyond `Node.stop`, and whoever was being accepted just then comes late.
    """
    await node.stop()
    for _ in range(10):
        await asyncio.sleep(0)
    for connection in list(node._connections):
        connection.close()
    await eventually(lambda: node.connections == 0)


@contextlib.asynccontextmanager
async def connected(path: Path, options: Options | None = None, **more: Any) -> AsyncIterator[RivvenClient]:
    """A client of a server that is there for it alone."""
    async with serving(path, **more) as node:
        client = await rivven.connect(address_of(node), options=options)
        try:
            yield client
        finally:
            await client.close()


@contextlib.contextmanager
def served(path: Path, **more: Any) -> Iterator[str]:
    """The address of a node that runs in a thread."""
    started: Any = threading.Event()
    said: dict[str, Any] = {}

    async def serve() -> None:
        async with serving(path, **more) as node:
            said.update(address=address_of(node), loop=asyncio.get_running_loop(), stop=asyncio.Event())
            started.set()
            await said["stop"].wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(30)
    try:
        yield said["address"]
    finally:
        said["loop"].call_soon_threadsafe(said["stop"].set)
        thread.join(30)
        assert not thread.is_alive()


Play = Callable[[Request], "Response | Awaitable[Response | None] | None"]


class Actor:
    """A server that answers as it is told; None is no answer. It shakes hands and gives identities by itself."""

    def __init__(self, play: Play, *, capabilities: int = 0) -> None:
        self._play = play
        self._capabilities = capabilities
        self.heard: list[Request] = []
        self.connections: list[asyncio.StreamWriter] = []
        self.connected = 0
        self.identities = 0

    async def __aenter__(self) -> Actor:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.hang_up()
        await self._server.wait_closed()

    def hang_up(self) -> None:
        for writer in self.connections:
            writer.transport.abort()
        self.connections.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        self.connections.append(writer)
        splitter = Splitter()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                for body in splitter.feed(data):
                    call = decode_request(bytes(body))
                    response = await self._answer(call.request)
                    if response is not None:
                        writer.writelines(encode_response(response, call.correlation_id, call.format))
        writer.close()

    async def _answer(self, request: Request) -> Response | None:
        if isinstance(request, ask.Handshake):
            return tell.HandshakeResult(2, True, "OK", request.capabilities & self._capabilities)
        if request == ask.InitProducerId(None):
            self.identities += 1
            return tell.ProducerIdInitialized(self.identities, 0)
        self.heard.append(request)
        response = self._play(request)
        return await response if isinstance(response, Awaitable) else response  # type: ignore[return-value]

    def of(self, kind: type[Request]) -> list[Any]:
        """What was heard of one kind."""
        return [request for request in self.heard if isinstance(request, kind)]


def stored(request: ask.ProduceBatches, offset: int = 0) -> tell.ProducedBatches:
    """The answer of a server that took it all."""
    return tell.ProducedBatches(
        tuple(
            tell.TopicProduced(
                topic.topic,
                tuple(tell.PartitionProduced(part.partition, 0, None, offset, -1, 0) for part in topic.partitions),
            )
            for topic in request.topics
        )
    )


async def eventually(holds: Callable[[], bool]) -> None:
    """Let the loop turn until it holds."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)

"""Clients over TLS: a node behind a proxy that ends the encryption, with certificates made for the occasion."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import serving

import rivven
from rivven.client import ConfigException, ConnectionException, Options, TimeoutException

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
NAME = "broker.test"
ONCE = Options(connect_timeout_ms=10_000)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`broker.pem` for the server and `client.pem` for a client, each its own authority, with a `.key` beside."""
    path = tmp_path_factory.mktemp("certificates")
    for who, name in (("broker", NAME), ("client", "client.test")):
        command = [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"),
            *("-keyout", str(path / f"{who}.key"), "-out", str(path / f"{who}.pem")),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return path


def server_side(certificates: Path, *, asks_client: bool = False, newest: ssl.TLSVersion | None = None) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "broker.pem", certificates / "broker.key")
    if asks_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "client.pem")
    if newest is not None:
        context.maximum_version = newest
    return context


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def behind_tls(path: Path, context: ssl.SSLContext) -> AsyncIterator[str]:
    """The address of a proxy that speaks TLS, before a node that does not."""
    async with serving(path) as node:
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inward, outward = await asyncio.open_connection(*node.address)
            for task in (asyncio.create_task(pipe(reader, outward)), asyncio.create_task(pipe(inward, writer))):
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        proxy = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        try:
            yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        finally:
            proxy.close()
            await asyncio.gather(*tasks)
            await proxy.wait_closed()


@contextlib.contextmanager
def in_a_thread(path: Path, context: ssl.SSLContext) -> Iterator[str]:
    said: dict[str, Any] = {}
    started = threading.Event()

    async def serve() -> None:
        async with behind_tls(path, context) as address:
            said.update(address=address, loop=asyncio.get_running_loop(), stop=asyncio.Event())
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


def test_records_go_there_and_back_over_tls(tmp_path, certificates):
    async def play():
        async with behind_tls(tmp_path, server_side(certificates)) as address:
            client = await rivven.connect_tls(address, certificates / "broker.pem", NAME, options=ONCE)
            await client.create_topic("t", 1)
            large = bytes(range(256)) * 2000
            assert [await client.publish("t", value) for value in (b"small", large)] == [0, 1]
            found = [(await client.consume("t", 0, offset, 1))[0].value for offset in range(2)]
            await client.close()
            assert found == [b"small", large]

    asyncio.run(play())


def test_the_blocking_client_speaks_it_too(tmp_path, certificates):
    with in_a_thread(tmp_path, server_side(certificates)) as address:
        client = rivven.blocking.connect_tls(address, str(certificates / "broker.pem"), NAME, options=ONCE)
        assert client.create_topic("t", 2) == 2
        client.close()


def test_a_server_may_ask_for_the_clients_certificate(tmp_path, certificates):
    async def play():
        async with behind_tls(tmp_path, server_side(certificates, asks_client=True)) as address:
            own = certificates / "client.pem", certificates / "client.key"
            client = await rivven.connect_tls(address, certificates / "broker.pem", NAME, *own, options=ONCE)
            await client.ping()
            await client.close()
            with pytest.raises((ConnectionException, TimeoutException)):
                await rivven.connect_tls(address, certificates / "broker.pem", NAME, options=ONCE)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("ca", "name", "newest", "told"),
    [
        ("broker.pem", "other.test", None, "certificate"),
        ("client.pem", NAME, None, "certificate"),
        ("broker.pem", NAME, ssl.TLSVersion.TLSv1_2, "version|TLS 1.3"),
    ],
)
def test_a_server_that_cannot_be_trusted_is_refused_with_the_reason(tmp_path, certificates, ca, name, newest, told):
    async def play():
        async with behind_tls(tmp_path, server_side(certificates, newest=newest)) as address:
            await rivven.connect_tls(address, certificates / ca, name, options=ONCE)

    with pytest.raises(ConnectionException, match=f"(?i){told}"):
        asyncio.run(play())


def test_certificates_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ConfigException, match=r"certificates cannot be used \(.*none\.pem\)"):
        asyncio.run(rivven.connect_tls("127.0.0.1:1", tmp_path / "none.pem", NAME))

"""The asyncio side: sockets, timers and the clock. It opens connections, keeps them up, and decides nothing.

`Connection` is a socket round a `Link`; `Cluster` knows the addresses and how to log in; a `Channel` is one
connection that is made again whenever it is needed and not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import TypeVar, cast

from rivven.errors import RivvenError
from rivven.wire import PROTOCOL_VERSION, Capability, Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .failures import Closed, ConfigException, ConnectionException, TimeoutException, expect, failure
from .link import Done, Link
from .options import Address, Options, parse_addresses
from .retry import Backoff, Roster
from .scram import Scram

C = TypeVar("C")
P = TypeVar("P", bound=asyncio.BaseProtocol)
R = TypeVar("R", bound=Response)
WRITE_BUFFER_BYTES = 8 * 1024 * 1024

LogIn = Callable[["Connection"], Awaitable[tuple[str, int]]]
"""Who we are; done on every new connection. Answers with session and lifetime in seconds."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Timer:
    """One call at a time, at the earliest moment that anybody asked for."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def set(self, due_ms: int) -> None:
        if self._handle is not None:
            if self._due_ms <= due_ms:
                return
            self._handle.cancel()
        self._due_ms = due_ms
        wait_s = max(0, due_ms - monotonic_ms()) / 1000
        self._handle = asyncio.get_running_loop().call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._handle = None
        self._call()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Connection(asyncio.BufferedProtocol):
    """A socket on which requests go out and answers come back, in order."""

    def __init__(self, address: Address, *, timeout_ms: int) -> None:
        self.address = address
        self.capabilities = Capability(0)
        self.used_ms = monotonic_ms()
        self.on_lost: Callable[[], None] | None = None
        self._timeout_ms = timeout_ms
        self._link = Link()
        self._transport: asyncio.Transport | None = None
        self._timer = Timer(self._look)

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of the class
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._link.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.used_ms = monotonic_ms()
        try:
            self._link.received(nbytes)
        except ConnectionException as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {exc}" if exc else ""
        self._end(ConnectionException(reason=f"the connection to {self.address} was lost{why}"))

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_near(self) -> bool:
        """Whether the server is on this machine, as far as addresses tell: then both sides have one."""
        transport = self._transport
        ours, theirs = (transport and transport.get_extra_info(name) for name in ("sockname", "peername"))
        return bool(ours and theirs and ours[0] == theirs[0])

    @property
    def is_idle(self) -> bool:
        return self._link.owed == 0

    def close(self) -> None:
        self._end(Closed(what="connection"))

    def _end(self, first: RivvenError, rest: RivvenError | None = None) -> None:
        transport, self._transport = self._transport, None
        self._timer.cancel()
        if transport is not None:
            transport.abort()
            self._link.lost(first, rest)
            if self.on_lost is not None:
                self.on_lost()

    # Requests

    def submit(self, request: Request, done: Done, *, timeout_ms: int | None = None) -> None:
        """Send a request; `done` is called with its answer or with what kept it from coming, never at once."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionException(reason=f"the connection to {self.address} was lost")
        self.used_ms = now_ms = monotonic_ms()
        due_ms = now_ms + (timeout_ms or self._timeout_ms)
        transport.writelines(self._link.ask(request, done, due_ms))
        self._timer.set(due_ms)

    async def ask(self, request: Request, *, timeout_ms: int | None = None) -> Response:
        """The answer, which may be an `Error`."""
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def done(result: Response | RivvenError) -> None:
            if answered.done():
                return  # the caller was cancelled
            if isinstance(result, RivvenError):
                answered.set_exception(result)
            else:
                answered.set_result(result)

        self.submit(request, done, timeout_ms=timeout_ms)
        return await answered

    def _look(self) -> None:
        """Hang up if the oldest request has waited too long: whatever stands behind it would wait as well."""
        due_ms = self._link.due_ms
        if due_ms is None:
            return
        if due_ms > monotonic_ms():
            self._timer.set(due_ms)
            return
        name = self._link.waits_for
        late = TimeoutException(reason=f"{self.address} did not answer {name} in time")
        lost = ConnectionException(reason=f"the connection to {self.address} was given up: {name} was not answered")
        self._end(late, lost)


class Cluster:
    """The servers, how to reach them, and who we are to them."""

    def __init__(
        self, addresses: Sequence[Address], options: Options, tls: tuple[ssl.SSLContext, str] | None = None
    ) -> None:
        self.options = options
        self.rng = Random(SystemRandom().getrandbits(64))
        self.log_in: LogIn | None = None
        self._tls = tls
        self._roster = Roster(addresses, options)

    async def open(self) -> Connection:
        """A connection to the first server that takes one, with the handshake done."""
        return await self.open_first(self._open)

    async def open_first(self, open_one: Callable[[Address], Awaitable[C]]) -> C:
        """The same for a connection of any kind."""
        reasons: list[str] = []
        for address in self._roster.candidates():
            if not self._roster.try_now(address, monotonic_ms()):
                continue
            try:
                connection = await open_one(address)
            except RivvenError as error:
                self._roster.failed(address, monotonic_ms())
                if not error.retriable:
                    raise
                reasons.append(str(error))
            except BaseException:
                self._roster.abandoned(address)
                raise
            else:
                self._roster.succeeded(address)
                return connection
        wait_ms = self._roster.wait_ms(monotonic_ms())
        if not reasons:
            failed = f"every server failed several times; the next try is in {wait_ms} ms"
            raise ConnectionException(reason=failed, retry_ms=wait_ms)
        raise ConnectionException(reason="; ".join(reasons), retry_ms=wait_ms)

    async def dial(self, address: Address, make: Callable[[], P]) -> P:
        """A socket to a server, with a protocol on it that `make` makes."""
        timeout_ms = self.options.connect_timeout_ms
        loop = asyncio.get_running_loop()
        tls, server_name = self._tls or (None, None)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _, protocol = await loop.create_connection(
                    make, address.host, address.port, ssl=tls, server_hostname=server_name
                )
        except TimeoutError:
            raise TimeoutException(reason=f"no connection to {address} within {timeout_ms} ms") from None
        except UnicodeError:  # a label that is empty, or too long
            raise ConnectionException(reason=f"no connection to {address}: that is no name of a host") from None
        except (OSError, ssl.SSLError) as error:
            why = str(error) or ("it hung up; does it speak TLS 1.3?" if tls else type(error).__name__)
            raise ConnectionException(reason=f"no connection to {address}: {why}") from None
        return protocol

    async def _open(self, address: Address) -> Connection:
        connection = await self.dial(address, lambda: Connection(address, timeout_ms=self.options.request_timeout_ms))
        try:
            await self._shake_hands(connection)
            if self.log_in is not None:
                await self.log_in(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _shake_hands(self, connection: Connection) -> None:
        options = self.options
        greeting = ask.Handshake(PROTOCOL_VERSION, options.client_id, options.capabilities)
        answer = await connection.ask(greeting, timeout_ms=options.connect_timeout_ms)
        if isinstance(answer, tell.HandshakeResult):
            if not answer.compatible:
                raise ConfigException(reason=f"{connection.address} speaks another protocol: {answer.message}")
            connection.capabilities = Capability(answer.capabilities & options.capabilities)
        # Anything else comes from a server that wants to know first who asks; it has no capabilities.


class Channel:
    """One connection, made when it is needed and again when it was lost."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.on_lost: Callable[[], None] | None = None
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    @property
    def current(self) -> Connection | None:
        """The connection, if it is there and can be trusted."""
        connection = self._connection
        if connection is None or not connection.is_open:
            return None
        if connection.is_idle and monotonic_ms() - connection.used_ms > self.cluster.options.idle_ms_max:
            connection.close()
            return None
        return connection

    async def connection(self) -> Connection:
        async with self._opening:
            if self._closed:
                raise Closed(what="connection")
            connection = self.current
            if connection is None:
                connection = await self.cluster.open()
                connection.on_lost = self.on_lost
                self._connection = connection
                self._hang_up_if_closed()
            return connection

    async def ask(self, request: Request, kind: type[R], *, repeat: bool = True, timeout_ms: int | None = None) -> R:
        """The answer of the kind that is expected. `repeat`: asking twice does no harm if an answer was lost."""
        options = self.cluster.options
        backoff = Backoff(self.cluster.rng, first_ms=options.backoff_ms, most_ms=options.backoff_ms_max)
        due_ms = monotonic_ms() + (timeout_ms or options.request_timeout_ms)
        tries = 0
        while True:
            tries += 1
            sent = False
            try:
                connection = await self.connection()
                left_ms = due_ms - monotonic_ms()
                sent = True
                answer = await connection.ask(request, timeout_ms=max(1, left_ms))
                error = failure(answer)
                if error is None:
                    return expect(answer, kind)
            except (ConnectionException, TimeoutException) as lost:
                error = lost
                if sent and not repeat:
                    raise
            wait_ms = max(backoff.next_ms(), error.facts.get("retry_ms", 0))
            if not error.retriable or tries >= options.attempts_max or monotonic_ms() + wait_ms > due_ms:
                raise error
            await asyncio.sleep(wait_ms / 1000)

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.on_lost = None
            self._connection.close()
            self._connection = None

    def _hang_up_if_closed(self) -> None:
        """Somebody may have closed while the connection was being made."""
        if self._closed:
            self.close()
            raise Closed(what="connection")


async def log_in_plainly(connection: Connection, username: str, password: str) -> tuple[str, int]:
    request = ask.Authenticate(username, password, True)
    answer = expect(await connection.ask(request), tell.Authenticated)
    return answer.session_id, answer.expires_in_s


async def log_in_by_scram(connection: Connection, username: str, password: str) -> tuple[str, int]:
    scram = Scram(username, password, b64encode(SystemRandom().randbytes(24)).decode())
    first = expect(await connection.ask(ask.ScramClientFirst(scram.first())), tell.ScramServerFirst)
    # Hundreds of thousands of rounds: not on the loop.
    proof = await asyncio.to_thread(scram.final, first.message)
    final = expect(await connection.ask(ask.ScramClientFinal(proof)), tell.ScramServerFinal)
    scram.verify(final.message)
    return final.session_id or "", final.expires_in_s or 0


def is_this_machine(name: str) -> bool:
    """Whether a server that calls its machine so is on this one."""
    from rivven.system import machine_id  # by few, and not for nothing

    return name != "" and name == machine_id()


def make_cluster(address: str | Sequence[str], options: Options | None) -> Cluster:
    return Cluster(parse_addresses(address), options or Options())


def make_tls_cluster(
    address: str | Sequence[str],
    ca_cert_path: str | Path,
    server_name: str,
    client_cert_path: str | Path | None,
    client_key_path: str | Path | None,
    options: Options | None,
) -> Cluster:
    try:
        context = ssl.create_default_context(cafile=str(ca_cert_path))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if client_cert_path is not None:
            context.load_cert_chain(str(client_cert_path), None if client_key_path is None else str(client_key_path))
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(str(path) for path in (ca_cert_path, client_cert_path, client_key_path) if path is not None)
        raise ConfigException(reason=f"the certificates cannot be used ({names}): {error}") from None
    return Cluster(parse_addresses(address), options or Options(), (context, server_name))


async def gone(task: asyncio.Task[None] | None) -> None:
    """Cancel a task of ours and see it end."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

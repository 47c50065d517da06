"""HTTP beside the broker, in the same event loop: health, metrics, and a page for people.

`HttpServer.start` binds its port at once and loads the web framework in a thread, so that the broker is ready
without waiting for it; whoever connects meanwhile is answered as soon as it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from rivven import __version__

from .metrics import CONTENT_TYPE, Measured, Observed, Sizes, measure, scrape

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 100
HEADERS_S = 10.0
"""So long may a request's headers take to arrive."""
STOP_S = 2
TOPICS_SHOWN = 500
RATE_WINDOW_S = 10.0
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


# What is served


def create_app(node: Observed, *, metrics: bool = True, dashboard: bool = True) -> Starlette:
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    rates = Rates(node)

    async def live(_: Request) -> Response:
        return JSONResponse({"status": "alive"}, headers=HEADERS)

    async def ready(_: Request) -> Response:
        reason = why_not_ready(node)
        if reason is None:
            return JSONResponse({"status": "ready"}, headers=HEADERS)
        return JSONResponse({"status": "not ready", "reason": reason}, 503, headers=HEADERS)

    async def health(_: Request) -> Response:
        healthy = why_not_ready(node) is None
        return JSONResponse(health_of(node, healthy=healthy), 200 if healthy else 503, headers=HEADERS)

    async def metrics_page(_: Request) -> Response:
        if not _is_open(node):
            return JSONResponse({"status": "not ready", "reason": "starting"}, 503, headers=HEADERS)
        return Response(await scrape(node), headers={**HEADERS, "Content-Type": CONTENT_TYPE})

    async def status(_: Request) -> Response:
        if not _is_open(node):
            return HTMLResponse("<!doctype html><title>rivven</title>starting", 503, headers=HEADERS)
        return HTMLResponse(status_page(node, await measure(node.store), rates), headers=HEADERS)

    routes: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
        ("/health/live", live),
        ("/health/ready", ready),
        ("/health", health),
    ]
    if metrics:
        routes.append(("/metrics", metrics_page))
    if dashboard:
        routes.append(("/", status))
    return Starlette(routes=[Route(path, answer, methods=["GET"]) for path, answer in routes])


def _is_open(node: Observed) -> bool:
    """Whether there is a store to look into: a node has none before it has started."""
    return hasattr(node, "store") and hasattr(node, "broker")


def why_not_ready(node: Observed) -> str | None:
    if not node.ready:
        return "starting or stopping"
    closed = getattr(node.store, "closed", None)
    return str(closed) if closed else None


def health_of(node: Observed, *, healthy: bool) -> dict[str, Any]:
    """A node by itself is the leader of a cluster of one."""
    name = node.broker.config.node_id if _is_open(node) else ""
    number = fnv1a(name.encode())
    return {
        "status": "healthy" if healthy else "unhealthy",
        "node_id": number,
        "node_id_str": name,
        "is_leader": healthy,
        "leader_id": number if healthy else None,
        "cluster_mode": False,
        "version": __version__,
    }


def fnv1a(data: bytes) -> int:
    """The number that stands for a node's name: FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


# The page for people


class Rates:
    """Messages and bytes a second over the last while, from samples taken when somebody looks."""

    def __init__(self, node: Observed, now: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._now = now
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=16)
        self._samples.append((now(), (0, 0, 0, 0)))

    def per_second(self) -> tuple[float, list[float]]:
        """Over how many seconds; messages in and out, bytes in and out."""
        now, stats = self._now(), self._node.broker.stats
        counts = (stats.messages_in, stats.messages_out, stats.bytes_in, stats.bytes_out)
        while len(self._samples) > 1 and now - self._samples[1][0] >= RATE_WINDOW_S:
            self._samples.popleft()
        then, before = self._samples[0]
        if now - self._samples[-1][0] >= 1:
            self._samples.append((now, counts))
        seconds = max(now - then, 0.001)
        return seconds, [(new - old) / seconds for new, old in zip(counts, before, strict=True)]


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { text-align: right; padding: .25rem .75rem; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a { color: #9cf; } }
"""


def status_page(node: Observed, sizes: Sizes, rates: Rates) -> str:
    topics = sizes.by_topic()
    seconds, per_second = rates.per_second()
    reason = why_not_ready(node)
    facts = [
        ("State", "ready" if reason is None else reason),
        ("Connections", f"{node.connections}"),
        ("Topics, partitions, segments", f"{len(topics)}, {len(sizes.partitions)}, {sizes.segments}"),
        ("On disk", human_bytes(sizes.size_bytes)),
        ("Waiting long polls", f"{node.broker.waiting}"),
        ("Messages a second, in and out", f"{per_second[0]:,.1f}, {per_second[1]:,.1f}"),
        ("Bytes a second, in and out", f"{human_bytes(per_second[2])}, {human_bytes(per_second[3])}"),
        ("Rates are over the last", f"{seconds:.0f} s"),
    ]
    name = escape(node.broker.config.node_id)
    shown = list(topics.items())[:TOPICS_SHOWN]
    more = f"<p>and {len(topics) - len(shown)} topics more</p>" if len(topics) > len(shown) else ""
    rows = "".join(_topic_row(topic, parts) for topic, parts in shown)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>rivven {name}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>rivven {escape(__version__)}, node {name}</h1><table>"
        + "".join(f"<tr><td>{escape(key)}</td><td>{escape(value)}</td></tr>" for key, value in facts)
        + "</table><table><tr><th>Topic</th><th>Partitions</th><th>Messages</th><th>Bytes</th></tr>"
        + f'{rows}</table>{more}<p><a href="/metrics">metrics</a>, <a href="/health">health</a></p></body></html>'
    )


def _topic_row(name: str, parts: list[Measured]) -> str:
    messages = sum(each.end - each.start for each in parts)
    size = human_bytes(sum(each.size_bytes for each in parts))
    return f"<tr><td>{escape(name)}</td><td>{len(parts)}</td><td>{messages:,}</td><td>{size}</td></tr>"


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


# Serving it


class HttpServer:
    """An app on a port. It takes no signals, and tells of nothing but errors."""

    def __init__(
        self,
        make_app: Callable[[], Any],
        host: str,
        port: int,
        *,
        connections_max: int = CONNECTIONS_MAX,
        headers_s: float = HEADERS_S,
    ) -> None:
        self._make_app = make_app
        self._connections_max = connections_max
        self._headers_s = headers_s
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._server: Any = None

    async def start(self) -> None:
        """Take the port; OSError if it cannot be had."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(CONNECTIONS_MAX)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._socket = listener
        self._task = loop.create_task(self._serve(listener))
        self._task.add_done_callback(_told_if_failed)

    @property
    def address(self) -> tuple[str, int]:
        assert self._socket is not None, "not started"
        name = self._socket.getsockname()
        return name[0], name[1]

    async def _serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.to_thread(self._load)
        await self._server.serve(sockets=[listener])

    def _load(self) -> Any:
        import uvicorn

        class Quiet(uvicorn.Server):
            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # they are the daemon's

        config = uvicorn.Config(
            self._make_app(),
            http=_bounded(self._connections_max, self._headers_s),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
        )
        config.load()
        return Quiet(config)

    async def stop(self) -> None:
        """Answer what is under way, and give the port up."""
        task, self._task = self._task, None
        if task is not None:
            if self._server is None:
                task.cancel()
            else:
                self._server.should_exit = True
            await asyncio.wait([task], timeout=STOP_S + 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()


def _bounded(connections_max: int, headers_s: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, but that neither too many clients nor one that trickles its headers is kept."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Bounded(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            if len(self.connections) >= connections_max:
                self.transport = transport
                transport.abort()
                return
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop_waiting()
            elif self._late is None:
                self._expect_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _expect_headers(self) -> None:
            self._late = self.loop.call_later(headers_s, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Bounded


def _told_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("HTTP has ended: %s", error, exc_info=error)

"""Status over HTTP: health, ready, live, progress and metrics, from the last snapshot of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from . import report

Seen = dict[str, Any]
JSON, TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


def answer(path: str, seen: Seen, health_path: str, *, metrics: bool) -> tuple[int, str, bytes]:
    """Status, content type and body for a path."""
    path = path.partition("?")[0].rstrip("/") or "/"
    if path == health_path:
        return (200 if seen["status"] == "healthy" else 503), JSON, _json(report.health(seen))
    if path == "/ready":
        good = report.ready(seen)
        return (200 if good else 503), JSON, _json({"ready": good})
    if path == "/live":
        return 200, JSON, _json({"alive": True})
    if path in ("/progress", "/status"):
        return 200, JSON, _json(seen)
    if path == "/metrics" and metrics:
        return 200, TEXT, report.metrics(seen).encode()
    there = [health_path, "/ready", "/live", "/progress", *(["/metrics"] if metrics else [])]
    return 404, JSON, _json({"error": f"there is no {path}", "paths": there})


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


class StatusServer:
    """A listener in a thread of its own; `seen` is called for every request."""

    def __init__(self, host: str, port: int, seen: Callable[[], Seen], health_path: str, *, metrics: bool) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                status, kind, body = answer(self.path, seen(), health_path, metrics=metrics)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Requests are not worth a line."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="status", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

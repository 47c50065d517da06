"""A tap on the line between clients and broker: everything passes, and each request is noted by kind and version."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHUNK_BYTES = 1 << 16


class Tap:
    """Where clients connect, and what they have asked: (api key, version), each with its count."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._heard: Counter[tuple[int, int]] = Counter()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def heard(self) -> Counter[tuple[int, int]]:
        with self._lock:
            return self._heard.copy()

    def forget(self) -> None:
        with self._lock:
            self._heard.clear()

    def serve(self, broker_port: int) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", broker_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets += [client, broker]
            self.start(self._requests, client, broker)
            self.start(self._answers, broker, client)

    def start(self, work: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=work, args=given)
        thread.start()
        with self._lock:
            self._threads.append(thread)

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        waiting = b""
        while chunk := self._passed(client, broker):
            waiting += chunk
            while len(waiting) >= 8:
                length, key, version = struct.unpack_from(">ihh", waiting)
                if len(waiting) < 4 + length:
                    break
                waiting = waiting[4 + length :]
                with self._lock:
                    self._heard[key, version] += 1

    def _answers(self, broker: socket.socket, client: socket.socket) -> None:
        while self._passed(broker, client):
            continue

    @staticmethod
    def _passed(source: socket.socket, sink: socket.socket) -> bytes:
        """The next bytes on their way; at the end of one direction the other ends too."""
        try:
            chunk = source.recv(CHUNK_BYTES)
            if chunk:
                sink.sendall(chunk)
                return chunk
        except OSError:
            chunk = b""
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        return b""

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            sockets, threads = list(self._sockets), list(self._threads)
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for one in (self._listener, *sockets):
            one.close()


@contextmanager
def tapped() -> Iterator[Tap]:
    """Made before the broker, which must tell clients to come here; then call `start(serve, broker_port)`."""
    tap = Tap()
    try:
        yield tap
    finally:
        tap.close()

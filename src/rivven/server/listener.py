"""The port: bound before anything else is done, opened when the node is ready, and whoever comes is handed on.

Invariant: a socket that was accepted is handed to `serve` or closed. A node that has no descriptors left waits a
moment, instead of asking for the same connection for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable

logger = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTED_AT_ONCE = 16
"""Few enough that those who hung up are noticed in between: until then they count for the limit of their address."""
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
OUT_OF_FILES_WAIT_S = 1.0


class Listener:
    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        """Take the port on every address that the host has; nobody can connect yet. `OSError` if it is taken."""
        self._loop = loop
        self._sockets: list[socket.socket] = []
        self._open = False
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except UnicodeError:  # a label that is empty, or too long
            raise socket.gaierror(socket.EAI_NONAME, "no name of a host") from None
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(_bound(family, kind, protocol, address))
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> tuple[str, int]:
        name = self._sockets[0].getsockname()
        return name[0], name[1]

    def start(self, serve: Callable[[socket.socket], None]) -> None:
        """Let clients in; `serve` gets each socket."""
        self._open = True
        for listening in self._sockets:
            listening.listen(BACKLOG)
            self._loop.add_reader(listening.fileno(), self._accept, listening, serve)

    def _accept(self, listening: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_FILES:
                    raise
                logger.error("nobody can connect for a moment: %s; allow the process more open files", error)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(OUT_OF_FILES_WAIT_S, self._again, listening, serve)
                return
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # whoever has gone already
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serve(sock)

    def _again(self, listening: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        if self._open:
            self._loop.add_reader(listening.fileno(), self._accept, listening, serve)

    def close(self) -> None:
        """Let nobody in any more."""
        for listening in self._sockets:
            if self._open:
                self._loop.remove_reader(listening.fileno())
            listening.close()
        self._open = False
        self._sockets = self._sockets[:0]


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock

"""Where clients' sockets are served if the native code was built: small publishes at once, the rest by `Connection`.

`Front` brings three things together: the lines, which receive and send; the express, which takes plain publishes off
them; and the broker, which says what is plain and appends. Without it the event loop serves the sockets.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from rivven.broker import refusal
from rivven.errors import RivvenError
from rivven.limits import BATCH_RECORDS_MAX
from rivven.log import Log
from rivven.record import NATIVE
from rivven.wire import Format, encode_response

if TYPE_CHECKING:
    from ._express import Express as Express
    from ._express import Heard
    from ._lines import Line as Line
    from ._lines import Lines
    from .connection import Connection
    from .node import Node
else:
    Line = None
    if NATIVE:
        with suppress(ImportError):
            from ._express import Express
            from ._lines import Line, Lines

logger = logging.getLogger(__name__)

KIND = "Publish"


class Front:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._writing = node.broker.writing
        self._stats = node.broker.stats
        self._lines = Lines(node.loop, node.shared_buffer)
        self._express = Express(
            find=self._find,
            append=self._append,
            refuse=self._refuse,
            observe=self._observe,
            failed=self._failed,
            now_ms=node.broker.clock.now_ms,
            frame_bytes_max=node.settings.max_request_size,
        )
        self._lines.taker = self._express
        self._true_for = self._writing.plain_changes
        node.loop.add_reader(self._lines.fileno(), node.turn_now, self._poll)

    @classmethod
    def open(cls, node: Node) -> Front | None:
        """None where there is no native code."""
        return cls(node) if Line is not None else None

    def close(self) -> None:
        self._node.loop.remove_reader(self._lines.fileno())
        self._lines.close()

    def serve(self, sock: socket.socket, connection: Connection) -> None:
        self._lines.add(sock, connection)

    # The turn

    def _poll(self) -> None:
        if self._true_for != (now := self._writing.plain_changes):
            self._true_for = now
            self._express.forget()
        self._express.inflight_bytes_max = self._node.settings.max_inflight_bytes - self._node.ordinary_bytes
        self._lines.poll()

    def finish(self) -> None:
        """Pass on what was taken in this turn."""
        self._express.finish()

    def send(self) -> None:
        """Send what was answered in this turn."""
        self._lines.send()

    @property
    def system_calls(self) -> tuple[int, int]:
        """How often something was received and sent, since the start."""
        return self._lines.receives, self._lines.sends

    @property
    def inflight_bytes(self) -> int:
        return self._express.inflight_bytes

    # What the express asks

    def _find(self, topic: bytes, partition: int) -> tuple[Log, int, int] | None:
        try:
            log = self._writing.plain_log(topic.decode(), partition)
        except UnicodeDecodeError:
            return None
        return None if log is None else (log, log.config.max_message_bytes, BATCH_RECORDS_MAX)

    def _append(self, log: Log, batch: bytearray, heard: Heard, count: int) -> None:
        requests = self._stats.requests
        requests[KIND] = requests.get(KIND, 0) + count
        try:
            self._writing.append_plain(log, batch, heard)
        except OSError as error:  # as for any other request: this one fails, the node goes on
            logger.exception("%s failed", KIND)
            heard(-1, error)

    def _refuse(self, correlation_id: int, error: RivvenError | OSError) -> bytes:
        return b"".join(encode_response(refusal(error), correlation_id, Format.POSTCARD))

    def _failed(self, count: int) -> None:
        self._stats.errors += count

    def _observe(self, begun: list[tuple[int, int]], count: int) -> None:
        """`begun` says since when, and from which of the `count` on."""
        now_us = self._node.now_us()
        for begun_us, first in reversed(begun):
            self._node.observe(KIND, (now_us - begun_us) / 1e6, count - first)
            count = first

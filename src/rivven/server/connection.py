"""One client's socket: bytes to requests to the broker, replies back in order.

A connection is not read from while its replies pile up, while its quota is overdrawn, and for the rest of the loop's
turn after a large frame, so that a bulk producer leaves room for everybody else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, cast

from rivven.broker import Reply, Session
from rivven.errors import Malformed
from rivven.wire import Dialect, Format, decode_request, dialect_of, encode_response, refuse_oversized
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .receive import Receiver

if TYPE_CHECKING:
    from .node import Node

logger = logging.getLogger(__name__)

LARGE_FRAME_BYTES = 64 * 1024
OWED_MAX = 1000
"""So many requests may be under way on one connection; further ones wait in the socket."""
WRITE_BUFFER_BYTES = 1024 * 1024


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_muted",
        "_node",
        "_reading_paused",
        "_receiver",
        "_seen_us",
        "_speaks",
        "_transport",
        "_writing_paused",
        "address",
        "session",
    )

    def __init__(self, node: Node) -> None:
        self._node = node
        self._receiver = Receiver(node.shared_buffer, node.buffers, node.settings.max_request_size)
        self._transport: asyncio.Transport | None = None
        self._speaks = False
        self._reading_paused = False
        self._writing_paused = False
        self._muted = False
        self._seen_us = node.now_us()
        self.address = ""
        self.session = Session()
        self.session.connection = self

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = self.session.address = peer[0] if peer else "local"
        if not self._node.admit(self):
            self._transport = None
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if not self._node.settings.tcp_nodelay:  # which event loops turn on by themselves
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        for reply in self.session.owed:
            self._node.inflight_bytes -= reply.size_bytes
        self.session.owed.clear()
        self._node.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        now_us = self._node.now_us()
        large = False
        bodies = self._receiver.received(nbytes)
        if bodies:
            self._seen_us = now_us  # a frame that trickles in does not count as a sign of life
        for body, own in bodies:
            large = large or len(body) >= LARGE_FRAME_BYTES
            self._request(body, own, now_us)
            if self._transport is None:
                return
        if self._receiver.oversized is not None:
            self._refuse_oversized(self._receiver.oversized)
        elif large or len(self.session.owed) > OWED_MAX:
            self._pause_reading()
        self._node.want_turn(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.resume_reading()

    # Requests

    def _request(self, body: memoryview, own: bytearray | None, now_us: int) -> None:
        if not self._speaks and not self._recognise(body):
            return
        node = self._node
        size_bytes = len(body)
        if not node.within_rate(self.address, now_us):
            self._refuse_rate(body, now_us)
            return
        if own is None and size_bytes > 4096:
            body = memoryview(bytearray(body))  # the request may outlive the shared buffer's turn
        try:
            call = decode_request(body)
        except Malformed as error:
            facts = error.facts
            form, correlation_id = facts.get("format", Format.POSTCARD), facts.get("correlation_id", 0)
            reply = self.session.expect(correlation_id, form, now_us, 0)
            reply.kind = "malformed"
            reply.fulfil(tell.Error(f"INVALID_REQUEST: {facts['reason']}"))
            return
        reply = self.session.expect(call.correlation_id, call.format, now_us, size_bytes)
        node.inflight_bytes += size_bytes
        if node.inflight_bytes > node.settings.max_inflight_bytes:
            node.broker.stats.refused_full += 1
            reply.fulfil(tell.Error("BUFFER_FULL: Server publish buffer is full, retry later"))
            return
        if isinstance(call.request, ask.GetMetrics):
            node.answer_metrics(call.request.prefix, reply)  # the numbers are the node's, not the broker's
            return
        node.broker.handle(call.request, reply)
        if own is not None:
            node.lend(own, reply)

    def _recognise(self, body: memoryview) -> bool:
        """Which dialect the first frame is in. Whether we speak it."""
        self._speaks = True
        if dialect_of(body) is Dialect.KAFKA:
            logger.info("%s speaks Kafka, which this version does not yet; closed", self.address)
            self.close()
            return False
        return True

    def _refuse_rate(self, body: memoryview, now_us: int) -> None:
        correlation_id = int.from_bytes(body[1:5], "big") if len(body) >= 5 else 0
        form = Format.PROTOBUF if len(body) and body[0] == 1 else Format.POSTCARD
        reply = self.session.expect(correlation_id, form, now_us, 0)
        reply.fulfil(tell.Error("RATE_LIMIT_EXCEEDED: Too many requests"))
        self._pause_reading()
        self._node.close_later(self, 1.0)

    def _refuse_oversized(self, length: int) -> None:
        assert self._transport is not None
        self._transport.writelines(refuse_oversized(length))
        self._transport.close()

    # Replies

    def send_ready(self) -> None:
        """Send the replies that are ready, in order, and look whether reading may go on."""
        transport = self._transport
        if transport is None:
            return
        replies = self.session.take_ready()
        if replies:
            pieces: list[bytes | bytearray | memoryview] = []
            for reply in replies:
                pieces += self._encoded(reply)
            transport.writelines(pieces)
            self._node.sent(replies)
        self.resume_reading()

    @staticmethod
    def _encoded(reply: Reply) -> list[bytes | bytearray | memoryview]:
        assert reply.response is not None
        try:
            return encode_response(reply.response, reply.correlation_id, reply.format)
        except Malformed as error:
            text = f"INTERNAL_ERROR: response send failed ({error.facts.get('reason')})"
            return encode_response(tell.Error(text), reply.correlation_id, reply.format)

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless something still stands against it."""
        if not self._reading_paused or self._transport is None or self._transport.is_closing():
            return
        if self._writing_paused or self._muted or len(self.session.owed) > OWED_MAX:
            return
        self._reading_paused = False
        self._transport.resume_reading()

    def mute(self) -> None:
        """The client has had more than its share: read no more until it is unmuted."""
        self._muted = True
        self._pause_reading()

    def unmute(self) -> None:
        self._muted = False
        self.resume_reading()

    @property
    def muted(self) -> bool:
        return self._muted

    # The end

    def idle_since_us(self) -> int | None:
        """When the client was last heard of; None while it is owed a reply that we are still working on."""
        return None if self.session.owed and not self._writing_paused else self._seen_us

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

"""One client's socket: bytes to requests to the broker, replies back in order.

A connection is not read from while its replies pile up, while its quota is overdrawn, and for the rest of the loop's
turn after a large frame, so that a bulk producer leaves room for everybody else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from rivven.broker import Reply, Session
from rivven.errors import Malformed
from rivven.wire import Dialect, Format, Piece, Response, decode_request, dialect_of, encode_response, kafka
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .allowance import Allowance
from .front import Line
from .kafka import KafkaForm, encode_kafka, hand_over
from .receive import Receiver

if TYPE_CHECKING:
    from .node import Node

logger = logging.getLogger(__name__)

LARGE_FRAME_BYTES = 64 * 1024
TURN_REQUESTS = 32
"""So many requests of one connection are handled in a turn; then others have theirs."""
OWED_MAX = 1000
"""So many requests may be under way on one connection; further ones wait."""
OWED_BYTES_MAX = 16 * 1024 * 1024
"""So much may they hold; and so much may replies hold that have not left, before no more are asked for."""
UNSENT_BYTES_MAX = 2 * 1024 * 1024
WRITE_BUFFER_BYTES = 1024 * 1024
PUBLISHES = (ask.Publish, ask.PublishBatch, ask.PublishRecords, ask.ProduceBatches)


def encode_native(reply: Reply) -> list[Piece]:
    """A reply of the native dialect as it goes over the wire: in the format of its request."""
    form, response = reply.form, reply.response
    assert isinstance(form, Format)
    assert isinstance(response, Response)
    try:
        return encode_response(response, reply.correlation_id, form)
    except Malformed as error:
        text = f"INTERNAL_ERROR: response send failed ({error.facts.get('reason')})"
        return encode_response(tell.Error(text), reply.correlation_id, form)


def _is_near(transport: asyncio.Transport, address: str) -> bool:
    """Whether the other side is on this machine: then both have one address."""
    try:
        return bool(transport.get_extra_info("socket").getsockname()[0] == address)
    except OSError:  # it has gone already
        return False


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_allowance",
        "_encode",
        "_ending",
        "_kafka",
        "_line",
        "_muted",
        "_node",
        "_owed_bytes",
        "_pending",
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
        self._line: Line | None = None
        """The transport again, if it serves small requests by itself when it is let."""
        self._speaks = False
        self._kafka = False
        self._encode: Callable[[Reply], list[Piece] | None] = encode_native
        """Writes a reply in the dialect of this connection, which its first frame tells."""
        self._reading_paused = False
        self._writing_paused = False
        self._muted = False
        self._ending = False
        """Nothing more is read or handled; once the replies that are owed have left, the connection closes."""
        self._allowance: Allowance | None = None
        self._pending: deque[tuple[memoryview, bytearray | None]] = deque()
        self._owed_bytes = 0
        self._seen_us = node.now_us()
        self.address = ""
        self.session = Session()
        self.session.connection = self

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if Line is not None and isinstance(transport, Line):
            self._line = transport
        transport = cast(asyncio.Transport, transport)  # uvloop's and ours are one in all but name
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = self.session.address = peer[0] if peer else "local"
        self.session.is_local = self._node.settings.local_reads and _is_near(transport, self.address)
        if not self._node.admit(self):
            self._transport = None
            transport.abort()
            return
        self._allowance = self._node.allowances.of(self.address, self._seen_us)
        if self._line is not None:
            self._line.allowance = cast(Any, self._allowance)  # where there are lines it is their twin
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if not self._node.settings.tcp_nodelay:  # which event loops turn on by themselves
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = self._line = None  # and with it goes the circle of the two
        self._receiver.release()
        self._node.dropped(self.session.owed)
        self.session.owed.clear()
        self._pending.clear()
        self._node.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        bodies = self._receiver.received(nbytes)
        if bodies:
            self._seen_us = self._node.now_us()  # a frame that trickles in does not count as a sign of life
        self._pending.extend(bodies)
        self._work()
        if self._pending:  # what lies in the shared buffer must be kept before somebody else receives into it
            self._pending = deque(
                (body, own) if own is not None else (memoryview(bytearray(body)), None) for body, own in self._pending
            )
        self._end_if_unreadable()
        self._offer()
        self._node.want_turn(self)

    def _offer(self) -> None:
        """Let the line take small requests by itself while nothing is under way here."""
        line = self._line
        if line is not None:
            line.express = (
                self._speaks
                and not (self._pending or self.session.owed)
                and self._receiver.is_between_frames
                and self._is_open()
            )

    def line_is_free(self) -> None:
        """What the line took is answered: now it is our turn."""
        self._node.want_turn(self)

    def _work(self) -> None:
        """Handle requests that have arrived, as far as this turn and this connection's share allow."""
        now_us = self._node.now_us()
        left = TURN_REQUESTS
        while self._pending and left and self._may_work():
            body, own = self._pending.popleft()
            left -= 1
            if len(body) >= LARGE_FRAME_BYTES:
                left = 0  # one bulk producer must not starve everybody
            self._request(body, own, now_us)
        if self._pending or not left:
            self._pause_reading()
            if self._line is not None and self._line.owed:
                self._line.wanted = True

    def _may_work(self) -> bool:
        if self._line is not None and self._line.owed:
            return False  # or replies would overtake each other
        return self._is_open()

    def _is_open(self) -> bool:
        """Whether this client may ask for more."""
        return (
            self._transport is not None
            and not (self._ending or self._muted or self._writing_paused)
            and len(self.session.owed) <= OWED_MAX
            and self._owed_bytes <= OWED_BYTES_MAX
            and self.session.unsent_bytes <= UNSENT_BYTES_MAX
        )

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._node.want_turn(self)

    # Requests

    def _request(self, body: memoryview, own: bytearray | None, now_us: int) -> None:
        if not self._speaks and not self._recognise(body):
            return
        if self._kafka:
            self._kafka_request(body, own, now_us)
            return
        node = self._node
        size_bytes = len(body)
        if self._allowance is not None and not self._allowance.take(now_us):
            self._refuse_rate(body, now_us)
            return
        if own is None and size_bytes > 4096:
            body = memoryview(bytearray(body))  # the request may outlive the shared buffer's turn
        try:
            call = decode_request(body)
        except Malformed as error:
            facts = error.facts
            form, correlation_id = facts.get("format", Format.POSTCARD), facts.get("correlation_id", 0)
            self._answer(correlation_id, form, now_us, f"INVALID_REQUEST: {facts['reason']}")
            return
        publishes = isinstance(call.request, PUBLISHES)
        if publishes and node.inflight_bytes + size_bytes > node.settings.max_inflight_bytes:
            node.broker.stats.refused_full += 1
            text = "BUFFER_FULL: Server publish buffer is full, retry later"
            self._answer(call.correlation_id, call.format, now_us, text)
            return
        reply = self.session.expect(call.correlation_id, call.format, now_us, size_bytes)
        node.ordinary_bytes += size_bytes
        self._owed_bytes += size_bytes
        if own is not None:
            node.lend(own, reply)
        if isinstance(call.request, ask.GetMetrics):
            node.answer_metrics(call.request.prefix, reply)  # the numbers are the node's, not the broker's
            return
        node.broker.handle(call.request, reply)

    def _kafka_request(self, body: memoryview, own: bytearray | None, now_us: int) -> None:
        node, size_bytes = self._node, len(body)
        if self._allowance is not None and not self._allowance.take(now_us):
            node.broker.stats.refused_rate += 1
            self._hang_up("it asks too often")
            return
        if own is None:
            body = memoryview(bytearray(body))  # the request may outlive the shared buffer's turn
        try:
            call = kafka.decode_request(body)
        except Malformed as error:
            if not kafka.asks_for_versions(error):
                self._hang_up(str(error))
                return
            reply = self.session.expect(error.facts["correlation_id"], KafkaForm(kafka.API_VERSIONS, 0), now_us, 0)
            reply.kind = "refused"
            reply.fulfil(node.broker.kafka.refuse_version())
            return
        form = KafkaForm(call.api_key, call.version)
        reply = self.session.expect(call.correlation_id, form, now_us, size_bytes)
        node.ordinary_bytes += size_bytes
        self._owed_bytes += size_bytes
        if own is not None:
            node.lend(own, reply)
        hand_over(node, reply, call)

    def _hang_up(self, reason: str) -> None:
        """There is nothing that the client would understand: close, once what it is owed has left."""
        logger.info("%s: closed: %s", self.address, reason)
        self._pending.clear()
        self._ending = True
        self._pause_reading()
        if not self.owes:
            self.close()
        else:
            self._node.close_later(self, 1.0)

    def _answer(self, correlation_id: int, form: Format, now_us: int, text: str) -> None:
        """Refuse a request that never reached the broker, in its place in the row."""
        reply = self.session.expect(correlation_id, form, now_us, 0)
        reply.kind = "refused"
        reply.fulfil(tell.Error(text))

    def _recognise(self, body: memoryview) -> bool:
        """Which dialect the first frame is in. Whether we speak it."""
        self._speaks = True
        if dialect_of(body) is Dialect.KAFKA:
            self._kafka = True
            self._encode = encode_kafka
            if self._line is not None:
                self._line.kafka = True
        return True

    def _refuse_rate(self, body: memoryview, now_us: int) -> None:
        correlation_id = int.from_bytes(body[1:5], "big") if len(body) >= 5 else 0
        form = Format.PROTOBUF if len(body) and body[0] == 1 else Format.POSTCARD
        self._node.broker.stats.refused_rate += 1
        self._answer(correlation_id, form, now_us, "RATE_LIMIT_EXCEEDED: Too many requests")
        self._pending.clear()
        self._ending = True
        self._pause_reading()
        self._node.close_later(self, 1.0)

    @property
    def _is_unreadable(self) -> bool:
        """Whether a frame has begun for which there is no room: nothing behind it can be read."""
        return self._receiver.oversized is not None or self._receiver.full

    def _end_if_unreadable(self) -> None:
        """Say so after all that was asked before it, and close."""
        if self._ending or not self._is_unreadable:
            return
        self._pause_reading()
        if self._pending:
            return
        text = "BUFFER_FULL: Server receive buffer is full, retry later"
        if self._receiver.oversized is not None:
            self._node.broker.stats.refused_large += 1
            text = f"MESSAGE_TOO_LARGE: {self._receiver.oversized} bytes exceeds limit"
        if self._kafka:
            self._hang_up(text)
            return
        self.session.expect(0, Format.POSTCARD, self._node.now_us(), 0).fulfil(tell.Error(text))
        self._ending = True

    # Replies

    def send_ready(self) -> None:
        """Send the replies that are ready, in order, and look whether work and reading may go on."""
        transport, line = self._transport, self._line
        if transport is None:
            return
        if line is not None and line.owed:  # what it took was asked before
            line.wanted = True
            return
        replies = self.session.take_ready()
        if replies:
            pieces: list[Piece] = []
            for reply in replies:
                written = self._encode(reply)
                if written is None:
                    break
                pieces += written
                self._owed_bytes -= reply.size_bytes
            self.session.unsent_bytes = 0  # from here on the transport counts them
            transport.writelines(pieces)
            self._node.sent(replies)
            if written is None:
                self._hang_up("a request that has no answer")
                return
        if self._ending and not self.session.owed and self._is_unreadable:
            transport.close()
            return
        if self._pending and self._may_work():
            self._work()
            self._end_if_unreadable()
            self._node.want_turn(self)
        self.resume_reading()
        self._offer()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless something still stands against it."""
        if not self._reading_paused or self._transport is None or self._transport.is_closing():
            return
        if self._pending or self._is_unreadable or not self._may_work():
            if self._line is not None and self._line.owed:
                self._line.wanted = True
            return
        self._reading_paused = False
        self._transport.resume_reading()

    def mute(self) -> None:
        """The client has had more than its share: read no more until it is unmuted."""
        self._muted = True
        self._pause_reading()

    def unmute(self) -> None:
        self._muted = False
        self._node.want_turn(self)

    @property
    def muted(self) -> bool:
        return self._muted

    # The end

    def idle_since_us(self) -> int | None:
        """When the client was last heard of; None while it is owed a reply that we are still working on."""
        if self.owes and not self._writing_paused:
            return None
        return self._seen_us if self._line is None else max(self._seen_us, self._line.seen_us)

    @property
    def owes(self) -> bool:
        """Whether the client waits for an answer."""
        return bool(self.session.owed) or (self._line is not None and self._line.owed > 0)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

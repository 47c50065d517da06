"""Where clients' sockets are served if the native code was built: publishes at once, the rest by `Connection`.

`Front` brings three things together: the lines, which receive and send; the express, which takes what is plain off
them; and the broker, which says what is plain and appends. Without it the event loop serves the sockets.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from rivven.broker import Produced, produced_to_one, refusal
from rivven.errors import RivvenError
from rivven.limits import BATCH_RECORDS_MAX
from rivven.log import Log
from rivven.record import NATIVE
from rivven.wire import Format, encode_response, kafka
from rivven.wire.kafka import NO_ID, SERVED

from .kafka import PRODUCE
from .metrics import LATENCY_BOUNDS_S, Histogram

if TYPE_CHECKING:
    from ._express import Express as Express
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

Place = tuple[bytes, bool, int, int]
"""A topic's name or id, whether it is its id, a partition, and where that begins."""

PUBLISH = "Publish"
NATIVE_FORM, PUBLISH_FORM = -1, -2
"""In the place of a version of Kafka's Produce."""
OWN_KINDS = {NATIVE_FORM: "ProduceBatches", PUBLISH_FORM: PUBLISH}


class Front:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._writing = node.broker.writing
        self._stats = node.broker.stats
        self._lines = Lines(node.loop, node.shared_buffer)
        self.now_ms = node.broker.clock.now_ms
        self.deliver = self._writing.append_parcels
        self.append = self._writing.append_plain
        self._express = Express(
            self,
            frame_bytes_max=node.settings.max_request_size,
            produce_newest=SERVED[PRODUCE].newest,
            bounds_s=LATENCY_BOUNDS_S,
        )
        self._lines.taker = self._express
        self._topics, self._quotas = node.store, node.broker.admission
        self._true_for = self._topics.topic_changes + self._quotas.changes
        self.finish = self._express.finish
        """Pass on what was taken in this turn."""
        self.send = self._lines.send
        """Send what was answered in this turn."""
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
        changes = self._topics.topic_changes + self._quotas.changes  # both only grow
        if changes != self._true_for:
            self._true_for = changes
            self._express.forget()
        self._express.inflight_bytes_max = self._node.settings.max_inflight_bytes - self._node.ordinary_bytes
        self._lines.poll()

    def take_counts(self) -> Iterator[tuple[str, Histogram]]:
        """What was answered since the last time, and how long it took."""
        for version, (counts, seconds) in self._express.take_counts().items():
            yield OWN_KINDS.get(version, "Produce"), Histogram.of(LATENCY_BOUNDS_S, counts, seconds)

    @property
    def system_calls(self) -> tuple[int, int]:
        """How often something was received and sent, since the start."""
        return self._lines.receives, self._lines.sends

    @property
    def inflight_bytes(self) -> int:
        return self._express.inflight_bytes

    # What the express asks

    def deliver_in_transaction(
        self,
        connection: Connection,
        transaction: str,
        log: Log,
        batches: bytearray | memoryview,
        answer: Callable[[Produced], None],
    ) -> None:
        """As `deliver`, for what one request brings as part of a transaction."""
        batches, where = memoryview(batches), log.partition
        self._node.broker.produce_in_transaction(connection.session, transaction, where, batches, answer)

    def find(self, topic: bytes, partition: int, by_id: bool) -> tuple[Log, int, int] | None:
        """The partition if it takes plain records, and how many bytes and records a batch of it may have."""
        try:
            name = self._name_of(topic) if by_id else topic.decode()
            log = None if name is None else self._writing.plain_log(name, partition)
        except UnicodeDecodeError:
            return None
        return None if log is None else (log, log.config.max_message_bytes, BATCH_RECORDS_MAX)

    def _name_of(self, topic_id: bytes) -> str | None:
        found = None if topic_id == NO_ID else self._node.broker.topics.by_id(topic_id)
        return None if found is None else found.name

    def refuse(self, correlation_id: int, error: RivvenError | OSError) -> bytes:
        return b"".join(encode_response(refusal(error), correlation_id, Format.POSTCARD))

    def return_parcel(
        self, version: int, correlation_id: int, place: Place, error: RivvenError | OSError
    ) -> bytes | None:
        """What to say about a parcel that was not taken; None if there is nothing but to hang up."""
        topic, by_id, partition, start = place
        if isinstance(error, OSError):
            logger.error("a produce request failed: %s", error)
            return self.refuse(correlation_id, error) if version == NATIVE_FORM else None
        produced = Produced(start=start, error=error)
        if version == NATIVE_FORM:
            response = produced_to_one(topic.decode(), partition, produced)
            return b"".join(encode_response(response, correlation_id, Format.POSTCARD))
        name, topic_id = ("", topic) if by_id else (topic.decode(), NO_ID)
        refused = self._node.broker.kafka.produced_to_one(name, topic_id, partition, produced, version)
        return b"".join(kafka.encode_response(refused, PRODUCE, version, correlation_id))

    def failed(self, count: int, error: RivvenError | OSError) -> None:
        """So many publishes were refused."""
        self._stats.errors += count
        if isinstance(error, OSError):
            logger.error("%s failed: %s", PUBLISH, error)

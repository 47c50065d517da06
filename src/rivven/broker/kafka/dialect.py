"""The Kafka dialect of the broker: every request that is served, with the family of handlers that decides it.

A handler takes a request as it came and an `Asked`, and returns its response, or None if it will call
`Asked.answer` later. It never waits. What an operation refuses is told in the response's own error code, per
topic or partition where the response has a place for it; only what no place was made for ends the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from rivven.errors import RivvenError
from rivven.wire.kafka import APIS, Call

if TYPE_CHECKING:
    from rivven.broker.broker import Broker
    from rivven.broker.session import Reply, Session

logger = logging.getLogger(__name__)


class Silence(Enum):
    """What is no response, in the place of one."""

    NO_ANSWER = "the client waits for none"
    HANG_UP = "there is nothing sensible to say: close the connection"


class Asked(NamedTuple):
    """A request's circumstances: who asks, in which version, and where the answer goes."""

    broker: Broker
    reply: Reply
    version: int

    @property
    def session(self) -> Session:
        return self.reply.session

    def answer(self, response: object, *, failed: bool = False) -> None:
        self.broker.fulfil(self.reply, response, failed=failed)


Handler = Callable[[Any, Asked], object | None]


class Kafka:
    def __init__(self, broker: Broker, handlers: dict[int, Handler]) -> None:
        self._broker = broker
        self._handlers = handlers

    def handle(self, call: Call, reply: Reply) -> None:
        """Decide a request. Its reply is fulfilled now, or by a later turn."""
        asked = Asked(self._broker, reply, call.version)
        name = APIS[call.api_key].name
        self._broker.begin(reply, name)
        if call.client_id is not None:
            reply.session.client_id = call.client_id
        try:
            response = self._handlers[call.api_key](call.request, asked)
        except (RivvenError, OSError):
            logger.exception("%s failed in a way that its answer has no place for", name)
            response = Silence.HANG_UP
        if response is not None:
            asked.answer(response)


def kafka_dialect(broker: Broker) -> Kafka:
    """Every family of handlers, together."""
    from .cluster import ClusterRequests
    from .configs import ConfigRequests
    from .groups import GroupRequests
    from .offsets import OffsetRequests
    from .opening import OpeningRequests
    from .quotas import QuotaRequests
    from .records import RecordRequests
    from .topics import TopicRequests

    families = (
        OpeningRequests,
        RecordRequests,
        TopicRequests,
        ClusterRequests,
        ConfigRequests,
        QuotaRequests,
        GroupRequests,
        OffsetRequests,
    )
    return Kafka(broker, {key: handler for family in families for key, handler in family(broker).handlers().items()})

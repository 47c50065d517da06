"""The Kafka dialect of the broker: every request that is served, with the family of handlers that decides it.

A handler takes a request as it came and an `Asked`, and returns its response, or None if it will call
`Asked.answer` later. It never waits. What an operation refuses is told in the response's own error code, per
topic or partition where the response has a place for it; only what no place was made for ends the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from rivven.errors import RivvenError
from rivven.wire.kafka import APIS, Call, Error

if TYPE_CHECKING:
    from rivven.broker.broker import Broker
    from rivven.broker.session import Reply, Session
    from rivven.broker.writing import Produced

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


FAMILIES: Mapping[str, str] = {
    "opening": "OpeningRequests",
    "records": "RecordRequests",
    "topics": "TopicRequests",
    "cluster": "ClusterRequests",
    "configs": "ConfigRequests",
    "quotas": "QuotaRequests",
    "groups": "GroupRequests",
    "offsets": "OffsetRequests",
    "transactions": "TransactionRequests",
}
"""The modules of this package that have handlers, and what their classes are called."""


class Kafka:
    """The handlers are loaded when the first Kafka client comes: their messages are many, and a node that only
    speaks the native protocol starts sooner without them."""

    def __init__(self, broker: Broker, handlers: Mapping[int, Handler] | None = None) -> None:
        self._broker = broker
        self._handlers = handlers

    def load(self) -> Mapping[int, Handler]:
        """All handlers, by the key of their api. Any thread may call this, to have them ready."""
        if self._handlers is None:
            found: dict[int, Handler] = {}
            for module, family in FAMILIES.items():
                found |= getattr(import_module(f".{module}", __package__), family)(self._broker).handlers()
            self._handlers = found
        return self._handlers

    def handle(self, call: Call, reply: Reply) -> None:
        """Decide a request. Its reply is fulfilled now, or by a later turn."""
        asked = Asked(self._broker, reply, call.version)
        name = APIS[call.api_key].name
        self._broker.begin(reply, name)
        if call.client_id is not None:
            reply.session.client_id = call.client_id
        handlers = self._handlers or self.load()
        try:
            response = handlers[call.api_key](call.request, asked)
        except (RivvenError, OSError):
            logger.exception("%s failed in a way that its answer has no place for", name)
            response = Silence.HANG_UP
        if response is not None:
            asked.answer(response)

    def refuse_version(self) -> object:
        """The answer to a question for versions in a version that is not known."""
        from .opening import versions

        return versions(Error.UNSUPPORTED_VERSION)

    def produced_to_one(self, topic: str, topic_id: bytes, partition: int, produced: Produced, version: int) -> Any:
        """The answer to a produce to one partition that came another way."""
        from .records import produced_to_one

        return produced_to_one(topic, topic_id, partition, produced, version)

    def refuse_produce(self, request: Any) -> object:
        """The answer to a produce that was not looked at, since too many are under way."""
        from .records import overloaded

        return overloaded(request)

"""Kafka's frames on a connection: requests in, replies out, and what to say where there is nothing to say.

A request that cannot be read ends the connection, as Kafka's own brokers do; only a question for versions that is too
new is answered, since the client then asks again in a version that both know.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from rivven.broker import Reply
from rivven.broker.kafka import Silence
from rivven.errors import Malformed
from rivven.wire import Piece
from rivven.wire.kafka import Call, encode_response

if TYPE_CHECKING:
    from .node import Node

logger = logging.getLogger(__name__)

PRODUCE = 0


class KafkaForm(NamedTuple):
    """How a request was asked, which is how it is answered."""

    api_key: int
    version: int


def encode_kafka(reply: Reply) -> list[Piece] | None:
    """A reply as it goes over the wire; nothing of one that the client does not wait for; None to hang up."""
    form, response = reply.form, reply.response
    assert isinstance(form, KafkaForm)
    if isinstance(response, Silence):
        return [] if response is Silence.NO_ANSWER else None
    try:
        return encode_response(response, form.api_key, form.version, reply.correlation_id)  # type: ignore[arg-type]
    except Malformed as error:  # it repeats a text of the request that no response can carry
        logger.info("a response cannot be written: %s", error)
        return None


def hand_over(node: Node, reply: Reply, call: Call) -> None:
    """Let the broker decide a request, unless too much is under way already."""
    if call.api_key == PRODUCE and node.inflight_bytes > node.settings.max_inflight_bytes:
        node.broker.stats.refused_full += 1
        reply.kind = "refused"
        reply.fulfil(node.broker.kafka.refuse_produce(call.request))
        return
    node.broker.kafka.handle(call, reply)

"""A Kafka client of a simulated broker: everything it says and hears goes through the codecs."""

from __future__ import annotations

from typing import Any, Protocol

from simulated import World

from rivven.broker import Broker
from rivven.broker.kafka import Handler, Kafka
from rivven.wire.kafka import APIS, decode_request, decode_response, encode_request, encode_response

CORRELATION_ID = 77


class Family(Protocol):
    def __init__(self, broker: Broker) -> None: ...

    def handlers(self) -> dict[int, Handler]: ...


class Client:
    """Asks one family of handlers."""

    def __init__(self, world: World, family: type[Family]) -> None:
        self._world = world
        self._kafka = Kafka(world.broker, family(world.broker).handlers())

    def ask(self, request: Any, version: int | None = None) -> Any:
        """The response, in the newest version unless another is given."""
        api = next(api for api in APIS.values() if f"{api.name}Request" == type(request).__name__)
        version = api.newest if version is None else version
        frame = b"".join(encode_request(request, version, CORRELATION_ID, "a-client"))
        call = decode_request(frame[4:])
        reply = self._world.session.expect(call.correlation_id, None)
        self._kafka.handle(call, reply)
        for _ in range(4):  # a verdict is several writes, one after the other
            if reply.response is None:
                self._world.settle()
        assert reply.response is not None, f"{request} is not answered"
        answer = b"".join(encode_response(reply.response, api.key, version, call.correlation_id))  # type: ignore[arg-type]
        correlation_id, response = decode_response(answer[4:], api.key, version)
        assert correlation_id == CORRELATION_ID
        return response


def versions(*keys: int) -> list[tuple[int, int]]:
    """Every version of these apis that is served, with its key."""
    assert all(APIS[key].served for key in keys)
    return [(key, version) for key in keys for version in range(APIS[key].oldest, APIS[key].newest + 1)]

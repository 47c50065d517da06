"""How a Kafka client begins: what is served, who coordinates, and the ids that producers go by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rivven.coordinator import Initialized, InitProducer
from rivven.errors import RivvenError
from rivven.model import Epoch, ProducerId
from rivven.wire.kafka import SERVED, Error, code_of
from rivven.wire.kafka.made.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from rivven.wire.kafka.made.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from rivven.wire.kafka.made.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

from .dialect import Asked, Handler

if TYPE_CHECKING:
    from rivven.broker.broker import Broker

API_VERSIONS, FIND_COORDINATOR, INIT_PRODUCER_ID = 18, 10, 22
GROUP, TRANSACTION = 0, 1
FENCED_FROM = 4
"""The first version of InitProducerId whose clients know the code for a fenced producer."""

FEATURES: Final = {"group.version": (0, 1), "transaction.version": (0, 2)}
"""What is more than a version of an api: by name, the levels that there are; the highest is in force."""


def versions(error: Error = Error.NONE) -> ApiVersionsResponse:
    """What this broker serves."""
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[ApiVersion(api.key, *api.advertised) for api in SERVED.values()],
        supported_features=[SupportedFeatureKey(name, *levels) for name, levels in FEATURES.items()],
        finalized_features_epoch=0,
        finalized_features=[FinalizedFeatureKey(name, most, most) for name, (_, most) in FEATURES.items()],
    )


class OpeningRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {
            API_VERSIONS: self._api_versions,
            FIND_COORDINATOR: self._find_coordinator,
            INIT_PRODUCER_ID: self._init_producer_id,
        }

    def _api_versions(self, _: ApiVersionsRequest, __: Asked) -> ApiVersionsResponse:
        return versions()

    def _find_coordinator(self, request: FindCoordinatorRequest, asked: Asked) -> FindCoordinatorResponse:
        """This node, for every group and every transaction."""
        config = self._broker.config
        here = (config.broker_id, config.host, config.port)
        known = request.key_type in (GROUP, TRANSACTION)
        error = Error.NONE if known else Error.INVALID_REQUEST
        text = (
            None
            if known
            else f"key type {request.key_type} is neither {GROUP} (group) nor {TRANSACTION} (transaction)"
        )
        if asked.version >= 4:
            found = [Coordinator(key, *here, error, text) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=found)
        return FindCoordinatorResponse(0, error, text, *here)

    def _init_producer_id(self, request: InitProducerIdRequest, asked: Asked) -> InitProducerIdResponse | None:
        if request.transactional_id is not None:
            self._init_transactional(request, asked)
            return None
        try:
            return InitProducerIdResponse(producer_id=self._broker.producer_ids.next(), producer_epoch=0)
        except RivvenError as error:
            return InitProducerIdResponse(error_code=code_of(error), producer_epoch=-1)

    def _init_transactional(self, request: InitProducerIdRequest, asked: Asked) -> None:
        def told(result: object) -> None:
            if isinstance(result, Initialized):
                asked.answer(
                    InitProducerIdResponse(producer_id=result.producer_id, producer_epoch=result.producer_epoch)
                )
                return
            assert isinstance(result, RivvenError)
            code = code_of(result)
            if code is Error.PRODUCER_FENCED and asked.version < FENCED_FROM:
                code = Error.INVALID_PRODUCER_EPOCH
            asked.answer(InitProducerIdResponse(error_code=code, producer_epoch=-1))

        assert request.transactional_id is not None
        init = InitProducer(
            request.transactional_id,
            request.transaction_timeout_ms,
            ProducerId(request.producer_id),
            Epoch(request.producer_epoch),
        )
        self._broker.transactions.ask(init, told)

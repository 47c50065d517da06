"""The cluster in Kafka's words: who is in it, who leads, what it holds, and what may be done to it.

There is one node: it leads every partition, holds all of them in one directory, and is the controller.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rivven.errors import RivvenError, UnknownTopic
from rivven.wire.kafka import Error
from rivven.wire.kafka.made.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from rivven.wire.kafka.made.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from rivven.wire.kafka.made.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from rivven.wire.kafka.made.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

from .dialect import Asked, Handler
from .refusals import REFUSALS, told

if TYPE_CHECKING:
    from rivven.broker.broker import Broker

logger = logging.getLogger(__name__)

DESCRIBE_LOG_DIRS, ELECT_LEADERS, LIST_PARTITION_REASSIGNMENTS, DESCRIBE_CLUSTER = 35, 43, 46, 60
BROKERS, CONTROLLERS = 1, 2
PREFERRED, UNCLEAN = 0, 1


def _operations(*codes: int) -> int:
    return sum(1 << code for code in codes)


_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS = range(3, 11)
_ALTER_CONFIGS, _IDEMPOTENT_WRITE = 11, 12
TOPIC_OPERATIONS: Final = _operations(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
CLUSTER_OPERATIONS: Final = _operations(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)
NOT_ASKED: Final = -(2**31)


class ClusterRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics = broker.topics
        self._node = broker.config.broker_id

    def handlers(self) -> dict[int, Handler]:
        return {
            DESCRIBE_LOG_DIRS: self._describe_log_dirs,
            ELECT_LEADERS: self._elect_leaders,
            LIST_PARTITION_REASSIGNMENTS: self._list_partition_reassignments,
            DESCRIBE_CLUSTER: self._describe_cluster,
        }

    def _describe_cluster(self, request: DescribeClusterRequest, _: Asked) -> DescribeClusterResponse:
        if request.endpoint_type != BROKERS:
            known = request.endpoint_type == CONTROLLERS
            code = Error.MISMATCHED_ENDPOINT_TYPE if known else Error.UNSUPPORTED_ENDPOINT_TYPE
            text = f"this is where brokers are asked for (endpoint type {BROKERS}, not {request.endpoint_type})"
            return DescribeClusterResponse(error_code=code, error_message=text, endpoint_type=request.endpoint_type)
        config = self._broker.config
        return DescribeClusterResponse(
            cluster_id=config.cluster_id,
            controller_id=self._node,
            brokers=[DescribeClusterBroker(self._node, config.host, config.port, config.rack)],
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )

    def _elect_leaders(self, request: ElectLeadersRequest, _: Asked) -> ElectLeadersResponse:
        """There is nobody else to elect. Asked for all partitions, only those are told of that needed a vote."""
        if request.election_type not in (PREFERRED, UNCLEAN):
            return ElectLeadersResponse(error_code=Error.INVALID_REQUEST)
        results = [
            ReplicaElectionResult(topic.topic, [self._elected(topic.topic, number) for number in topic.partitions])
            for topic in request.topic_partitions or ()
        ]
        return ElectLeadersResponse(replica_election_results=results)

    def _elected(self, name: str, number: int) -> PartitionResult:
        try:
            self._topics.log(name, number)
        except REFUSALS as refusal:
            return PartitionResult(number, *told(refusal))
        return PartitionResult(number, Error.ELECTION_NOT_NEEDED, f"node {self._node} leads it, and has no rival")

    def _list_partition_reassignments(
        self, _: ListPartitionReassignmentsRequest, __: Asked
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_message=None)

    def _describe_log_dirs(self, request: DescribeLogDirsRequest, _: Asked) -> DescribeLogDirsResponse:
        """One directory holds all; what is asked for and not there is left out."""
        name = self._broker.config.data_dir
        try:
            topics = self._sized(request)
            free_bytes = self._broker.disk.free_bytes()
        except (OSError, RivvenError):
            logger.exception("the sizes of partitions cannot be told")
            return DescribeLogDirsResponse(results=[DescribeLogDirsResult(Error.KAFKA_STORAGE_ERROR, name)])
        return DescribeLogDirsResponse(
            results=[DescribeLogDirsResult(Error.NONE, name, topics, usable_bytes=free_bytes)]
        )

    def _sized(self, request: DescribeLogDirsRequest) -> list[DescribeLogDirsTopic]:
        if request.topics is None:
            wanted: dict[str, Sequence[int]] = {topic.name: range(topic.partitions) for topic in self._topics}
        else:
            wanted = {topic.topic: topic.partitions for topic in request.topics}
        found = ((name, list(self._sizes(name, numbers))) for name, numbers in wanted.items())
        return [DescribeLogDirsTopic(name, partitions) for name, partitions in found if partitions]

    def _sizes(self, name: str, numbers: Iterable[int]) -> Iterator[DescribeLogDirsPartition]:
        for number in dict.fromkeys(numbers):
            try:
                log = self._topics.log(name, number)
            except UnknownTopic:
                continue
            yield DescribeLogDirsPartition(number, log.size_bytes)

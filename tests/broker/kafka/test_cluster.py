"""The cluster, as Kafka's clients and tools see it."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Client, versions
from simulated import World

from rivven.broker.kafka.cluster import CLUSTER_OPERATIONS, ClusterRequests
from rivven.wire import requests as native
from rivven.wire.kafka import Error
from rivven.wire.kafka.made import describe_cluster as cluster
from rivven.wire.kafka.made import describe_log_dirs as dirs
from rivven.wire.kafka.made import elect_leaders as elect
from rivven.wire.kafka.made import list_partition_reassignments as moves

NODE = 7
UNSAID = -(2**31)


@pytest.fixture
def world() -> World:
    world = World(broker_id=NODE, cluster_id="c" * 22, host="broker.example", port=9092, rack="r1", data_dir="here")
    world.ask(native.CreateTopic("t", 2))
    return world


@pytest.fixture
def client(world: World) -> Client:
    return Client(world, ClusterRequests)


REQUESTS: dict[int, tuple[Any, str]] = {
    35: (dirs.DescribeLogDirsRequest(None), "results"),
    43: (elect.ElectLeadersRequest(0, [elect.TopicPartitions("t", [0])]), "replica_election_results"),
    46: (moves.ListPartitionReassignmentsRequest(), "topics"),
    60: (cluster.DescribeClusterRequest(), "brokers"),
}


@pytest.mark.parametrize(("key", "version"), versions(*REQUESTS))
def test_every_version_is_answered_without_an_error(client: Client, key: int, version: int) -> None:
    request, results = REQUESTS[key]
    response = client.ask(request, version)
    assert response.error_code == Error.NONE
    assert len(getattr(response, results)) == (0 if key == 46 else 1)


def test_the_table_of_handlers_is_what_was_promised(world: World) -> None:
    assert ClusterRequests(world.broker).handlers().keys() == REQUESTS.keys()


def test_the_cluster_is_one_node(client: Client) -> None:
    told = client.ask(cluster.DescribeClusterRequest(include_cluster_authorized_operations=True))
    assert told.brokers == [cluster.DescribeClusterBroker(NODE, "broker.example", 9092, "r1")]
    assert (told.cluster_id, told.controller_id, told.error_code) == ("c" * 22, NODE, 0)
    assert told.cluster_authorized_operations == CLUSTER_OPERATIONS
    assert client.ask(cluster.DescribeClusterRequest()).cluster_authorized_operations == UNSAID


@pytest.mark.parametrize(
    ("endpoint", "error"), [(2, Error.MISMATCHED_ENDPOINT_TYPE), (3, Error.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_only_brokers_can_be_asked_for_here(client: Client, endpoint: int, error: Error) -> None:
    told = client.ask(cluster.DescribeClusterRequest(endpoint_type=endpoint))
    assert (told.error_code, told.endpoint_type, told.brokers) == (error, endpoint, [])
    assert told.error_message


def test_there_is_nobody_else_to_elect(client: Client) -> None:
    request = elect.ElectLeadersRequest(1, [elect.TopicPartitions("t", [0, 1, 2])])
    (told,) = client.ask(request).replica_election_results
    needless = Error.ELECTION_NOT_NEEDED
    assert [each.error_code for each in told.partition_result] == [
        needless,
        needless,
        Error.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert client.ask(elect.ElectLeadersRequest(0, None)).replica_election_results == []
    assert client.ask(elect.ElectLeadersRequest(2, None)).error_code == Error.INVALID_REQUEST


def test_nothing_is_being_moved(client: Client) -> None:
    asked = moves.ListPartitionReassignmentsTopics("t", [0])
    told = client.ask(moves.ListPartitionReassignmentsRequest(topics=[asked]))
    assert (told.error_code, told.error_message, told.topics) == (0, None, [])


def test_the_directory_tells_the_size_of_what_is_asked_for(client: Client, world: World) -> None:
    world.ask(native.CreateTopic("u", 1))
    world.ask(native.Publish("t", 0, b"k", b"value"))
    (told,) = client.ask(dirs.DescribeLogDirsRequest(None)).results
    assert (told.error_code, told.log_dir, told.is_cordoned) == (0, "here", False)
    assert (told.total_bytes, told.usable_bytes) == (-1, world.disk.free_bytes())
    sizes = {topic.name: [part.partition_size for part in topic.partitions] for topic in told.topics}
    assert sizes == {"t": [world.broker.topics.log("t", 0).size_bytes, 0], "u": [0]}
    assert sizes["t"][0] > 0
    some = [dirs.DescribableLogDirTopic("t", [1, 9, 1]), dirs.DescribableLogDirTopic("none", [0])]
    (told,) = client.ask(dirs.DescribeLogDirsRequest(some)).results
    numbers = [(topic.name, [part.partition_index for part in topic.partitions]) for topic in told.topics]
    assert numbers == [("t", [1])]

"""Topics, as Kafka's clients see and change them."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Client, versions
from simulated import World

from rivven.broker.kafka.cluster import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from rivven.broker.kafka.topics import TopicRequests
from rivven.errors import UnknownTopic
from rivven.wire import requests as native
from rivven.wire.kafka import NO_ID, Error
from rivven.wire.kafka.made import create_partitions as grow
from rivven.wire.kafka.made import create_topics as create
from rivven.wire.kafka.made import delete_records as empty
from rivven.wire.kafka.made import delete_topics as delete
from rivven.wire.kafka.made import describe_topic_partitions as parts
from rivven.wire.kafka.made import metadata as look

NODE = 7
UNSAID = -(2**31)


@pytest.fixture
def world() -> World:
    return World(broker_id=NODE, cluster_id="c" * 22, host="broker.example", port=9092, rack="r1", data_dir="here")


@pytest.fixture
def client(world: World) -> Client:
    return Client(world, TopicRequests)


def ask_for(*names: str, **rest: Any) -> look.MetadataRequest:
    return look.MetadataRequest([look.MetadataRequestTopic(name=name) for name in names], **rest)


def wanted(name: str, partitions: int = -1, replicas: int = -1, **rest: Any) -> create.CreatableTopic:
    configs = [create.CreatableTopicConfig(key, value) for key, value in rest.pop("configs", {}).items()]
    return create.CreatableTopic(name, partitions, replicas, configs=configs, **rest)


def made(client: Client, *topics: create.CreatableTopic, version: int | None = None, **rest: Any) -> list[Any]:
    response = client.ask(create.CreateTopicsRequest(list(topics), **rest), version)
    return list(response.topics)


def codes(results: list[Any]) -> list[int]:
    return [getattr(result, "error_code", 0) for result in results]


def publish(world: World, topic: str, count: int = 1, partition: int = 0) -> None:
    for _ in range(count):
        world.ask(native.Publish(topic, partition, b"k", b"value"))


# Every version

REQUESTS: dict[int, Any] = {
    3: look.MetadataRequest([look.MetadataRequestTopic(name="t")]),
    19: create.CreateTopicsRequest([wanted("new", 2, 1)]),
    20: delete.DeleteTopicsRequest([delete.DeleteTopicState("t")], ["t"]),
    21: empty.DeleteRecordsRequest([empty.DeleteRecordsTopic("t", [empty.DeleteRecordsPartition(0, -1)])]),
    37: grow.CreatePartitionsRequest([grow.CreatePartitionsTopic("t", 5, None)]),
    75: parts.DescribeTopicPartitionsRequest([parts.TopicRequest("t")]),
}


@pytest.mark.parametrize(("key", "version"), versions(*REQUESTS))
def test_every_version_is_answered_without_an_error(client: Client, key: int, version: int) -> None:
    assert codes(made(client, wanted("t", 3))) == [Error.NONE]
    response = client.ask(REQUESTS[key], version)
    results = next(getattr(response, name) for name in ("topics", "responses", "results") if hasattr(response, name))
    assert codes(results) == [Error.NONE]
    assert getattr(response, "error_code", 0) == Error.NONE


@pytest.mark.parametrize(("key", "version"), versions(*REQUESTS))
def test_every_version_tells_of_what_is_not_there(client: Client, key: int, version: int) -> None:
    """Nothing is there at all: the answer can be written all the same."""
    client.ask(REQUESTS[key], version)


def test_the_table_of_handlers_is_what_was_promised(world: World) -> None:
    assert TopicRequests(world.broker).handlers().keys() == REQUESTS.keys()


# Metadata


def test_metadata_tells_of_one_node_that_leads_everything(client: Client, world: World) -> None:
    made(client, wanted("t", 2))
    told = client.ask(ask_for("t"))
    assert told.brokers == [look.MetadataResponseBroker(NODE, "broker.example", 9092, "r1")]
    assert (told.cluster_id, told.controller_id) == ("c" * 22, NODE)
    (topic,) = told.topics
    assert topic.topic_id == world.broker.topics.get("t").id_bytes
    assert [
        (part.partition_index, part.leader_id, part.leader_epoch, part.replica_nodes, part.isr_nodes)
        for part in topic.partitions
    ] == [(number, NODE, 0, [NODE], [NODE]) for number in range(2)]


@pytest.mark.parametrize("version", range(14))
def test_null_is_all_topics_and_an_empty_list_none_but_in_the_first_version(client: Client, version: int) -> None:
    made(client, wanted("a"), wanted("b"))
    every = look.MetadataRequest([] if version == 0 else None)
    assert [topic.name for topic in client.ask(every, version).topics] == ["a", "b"]
    if version > 0:
        assert client.ask(look.MetadataRequest([]), version).topics == []


@pytest.mark.parametrize("version", range(14))
def test_asking_makes_a_topic_unless_the_request_says_no(client: Client, version: int) -> None:
    (topic,) = client.ask(ask_for("new", allow_auto_topic_creation=version < 4 or False), version).topics
    assert (topic.error_code, len(topic.partitions)) == ((0, 3) if version < 4 else (3, 0))
    (topic,) = client.ask(ask_for("newer", allow_auto_topic_creation=True), version).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 3)


def test_asking_makes_no_topic_where_the_node_forbids_it() -> None:
    client = Client(World(auto_create_topics=False), TopicRequests)
    assert codes(client.ask(ask_for("new")).topics) == [Error.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "x" * 256, "__mine"])
def test_a_name_that_cannot_be_is_invalid(client: Client, name: str) -> None:
    assert codes(client.ask(ask_for(name)).topics) == [Error.INVALID_TOPIC_EXCEPTION]
    assert codes(made(client, wanted(name))) == [Error.INVALID_TOPIC_EXCEPTION]


def test_topics_are_found_by_their_ids(client: Client, world: World) -> None:
    made(client, wanted("t"))
    here, nowhere = world.broker.topics.get("t").id_bytes, b"\x01" * 16
    wanted_ids = [look.MetadataRequestTopic(here, None), look.MetadataRequestTopic(nowhere, None)]
    found = client.ask(look.MetadataRequest(wanted_ids)).topics
    assert [(topic.error_code, topic.name) for topic in found] == [(0, "t"), (Error.UNKNOWN_TOPIC_ID, None)]
    for version in (10, 11):
        assert codes(client.ask(look.MetadataRequest(wanted_ids), version).topics) == [Error.INVALID_REQUEST] * 2


def test_a_topic_without_a_name_or_an_id_is_a_mistake(client: Client) -> None:
    request = look.MetadataRequest([look.MetadataRequestTopic(NO_ID, None)])
    for version in (10, 12, 13):
        assert codes(client.ask(request, version).topics) == [Error.INVALID_REQUEST]


def test_operations_are_told_only_when_asked_for(client: Client) -> None:
    made(client, wanted("t"))
    assert client.ask(ask_for("t")).topics[0].topic_authorized_operations == UNSAID
    assert client.ask(ask_for("t"), 8).cluster_authorized_operations == UNSAID
    asking = ask_for("t", include_cluster_authorized_operations=True, include_topic_authorized_operations=True)
    told = client.ask(asking, 8)
    assert told.topics[0].topic_authorized_operations == TOPIC_OPERATIONS == 0b1101_1111_1000
    assert told.cluster_authorized_operations == CLUSTER_OPERATIONS == 0b1_1111_1010_0000


def test_the_brokers_own_topics_are_marked(client: Client, world: World) -> None:
    world.broker.store.create_topic("__own", 1)
    made(client, wanted("t"))
    topics = client.ask(look.MetadataRequest(None)).topics
    assert {topic.name: topic.is_internal for topic in topics} == {"__own": True, "t": False}


def test_a_topic_asked_for_twice_is_told_once(client: Client) -> None:
    assert [topic.name for topic in client.ask(ask_for("a", "b", "a")).topics] == ["a", "b"]


# DescribeTopicPartitions


def describe(client: Client, *names: str, **rest: Any) -> parts.DescribeTopicPartitionsResponse:
    request = parts.DescribeTopicPartitionsRequest([parts.TopicRequest(name) for name in names], **rest)
    return client.ask(request)  # type: ignore[no-any-return]


def test_partitions_are_described_with_lists_that_are_never_null(client: Client) -> None:
    made(client, wanted("t", 1))
    (topic,) = describe(client, "t").topics
    assert topic.topic_authorized_operations == TOPIC_OPERATIONS
    (part,) = topic.partitions
    assert (part.leader_id, part.leader_epoch, part.isr_nodes) == (NODE, 0, [NODE])
    assert part.eligible_leader_replicas == part.last_known_elr == part.offline_replicas == []


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_of_partitions_add_up_to_all_of_them(client: Client, limit: int) -> None:
    made(client, wanted("a", 3), wanted("b", 1), wanted("c", 4))
    seen: list[tuple[str | None, int]] = []
    cursor = None
    for _ in range(20):
        page = describe(client, response_partition_limit=limit, cursor=cursor)
        here = [(topic.name, part.partition_index) for topic in page.topics for part in topic.partitions]
        assert 0 < len(here) <= limit
        seen += here
        if (cursor := page.next_cursor) is None:
            break
    assert seen == [(name, number) for name, count in (("a", 3), ("b", 1), ("c", 4)) for number in range(count)]


def test_a_cursor_of_a_deleted_topic_goes_on_with_the_next(client: Client) -> None:
    made(client, wanted("a", 1), wanted("c", 2))
    page = describe(client, cursor=parts.Cursor("b", 5))
    assert [(topic.name, len(topic.partitions)) for topic in page.topics] == [("c", 2)]


def test_unknown_and_invalid_topics_are_described_as_such(client: Client) -> None:
    page = describe(client, "no/name", "none", response_partition_limit=0, cursor=parts.Cursor("", -5))
    assert codes(list(page.topics)) == [Error.INVALID_TOPIC_EXCEPTION, Error.UNKNOWN_TOPIC_OR_PARTITION]


# CreateTopics


def test_a_topic_is_made_and_told_with_its_configuration(client: Client, world: World) -> None:
    (result,) = made(client, wanted("t", 4, 1, configs={"retention.ms": "5000", "compression.type": "uncompressed"}))
    assert (result.error_code, result.error_message, result.topic_config_error_code) == (0, None, 0)
    assert (result.num_partitions, result.replication_factor) == (4, 1)
    topic = world.broker.topics.get("t")
    assert result.topic_id == topic.id_bytes != NO_ID
    assert topic.configs == {"retention.ms": "5000", "compression.type": "none"}
    told = {config.name: (config.value, config.config_source) for config in result.configs}
    assert told["retention.ms"] == ("5000", 1)
    assert told["compression.type"] == ("uncompressed", 1)
    assert told["segment.bytes"] == (str(1 << 30), 5)


def test_what_is_left_out_is_the_nodes_to_say(client: Client, world: World) -> None:
    (result,) = made(client, wanted("t", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    assert world.broker.topics.get("t").partitions == 3


def assigned(*pairs: tuple[int, list[int]]) -> dict[str, Any]:
    return {"assignments": [create.CreatableReplicaAssignment(number, nodes) for number, nodes in pairs]}


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (wanted("there"), Error.TOPIC_ALREADY_EXISTS),
        (wanted("there", configs={"no.such": "1"}), Error.TOPIC_ALREADY_EXISTS),
        (wanted("t", 0), Error.INVALID_PARTITIONS),
        (wanted("t", -2), Error.INVALID_PARTITIONS),
        (wanted("t", 2**31 - 1), Error.INVALID_PARTITIONS),
        (wanted("t", 1, 0), Error.INVALID_REPLICATION_FACTOR),
        (wanted("t", 1, 2), Error.INVALID_REPLICATION_FACTOR),
        (wanted("t", configs={"no.such": "1"}), Error.INVALID_CONFIG),
        (wanted("t", configs={"retention.ms": "soon"}), Error.INVALID_CONFIG),
        (wanted("t", configs={"retention.ms": None}), Error.INVALID_CONFIG),
        (wanted("t", configs={"retention.ms": "x" * 30_000}), Error.INVALID_CONFIG),
        (wanted("t", configs={"preallocate": "true"}), Error.INVALID_CONFIG),
        (wanted("t", 1, -1, **assigned((0, [NODE]))), Error.INVALID_REQUEST),
        (wanted("t", -1, 1, **assigned((0, [NODE]))), Error.INVALID_REQUEST),
        (wanted("t", **assigned((0, [NODE]), (2, [NODE]))), Error.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", **assigned((0, [NODE]), (0, [NODE]))), Error.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", **assigned((0, [NODE, 2]))), Error.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", **assigned((0, []))), Error.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", **assigned((1, [NODE]), (0, [NODE]))), Error.NONE),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_each_topic_is_checked_by_itself(
    client: Client, world: World, topic: create.CreatableTopic, error: Error, validate_only: bool
) -> None:
    made(client, wanted("there"))
    results = made(client, topic, wanted("good", 1), validate_only=validate_only)
    assert codes(results) == [error, Error.NONE]
    assert bool(results[0].error_message) == (error is not Error.NONE)
    assert all(result.configs is not None for result in results)
    names = {each.name for each in world.broker.topics}
    assert names == {"there"} | (set() if validate_only else {"good"} | ({"t"} if error is Error.NONE else set()))


def test_a_check_makes_nothing_and_tells_what_would_be(client: Client, world: World) -> None:
    (result,) = made(client, wanted("t", 2, configs={"cleanup.policy": "compact"}), validate_only=True)
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 2, NO_ID)
    assert ("cleanup.policy", "compact") in {(config.name, config.value) for config in result.configs}
    with pytest.raises(UnknownTopic):
        world.broker.topics.get("t")


def test_a_key_that_is_given_twice_is_refused(client: Client) -> None:
    configs = [create.CreatableTopicConfig("retention.ms", text) for text in ("1", "2")]
    (result,) = made(client, create.CreatableTopic("t", 1, 1, [], configs))
    assert result.error_code == Error.INVALID_CONFIG


def test_a_topic_that_is_named_twice_is_not_made(client: Client, world: World) -> None:
    results = made(client, wanted("t"), wanted("u"), wanted("t"))
    assert codes(results) == [Error.INVALID_REQUEST, Error.NONE, Error.INVALID_REQUEST]
    assert [topic.name for topic in world.broker.topics] == ["u"]


def test_the_refusal_of_a_long_value_ends(client: Client) -> None:
    (result,) = made(client, wanted("t", configs={"retention.ms": "x" * 30_000}))
    assert "retention.ms" in result.error_message
    assert len(result.error_message) <= 1_000


# CreatePartitions


def growth(name: str, count: int, *nodes: list[int]) -> grow.CreatePartitionsTopic:
    assignments = [grow.CreatePartitionsAssignment(each) for each in nodes] if nodes else None
    return grow.CreatePartitionsTopic(name, count, assignments)


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (growth("t", 5), Error.NONE),
        (growth("t", 4, [NODE], [NODE]), Error.NONE),
        (growth("t", 4, [NODE]), Error.INVALID_REPLICA_ASSIGNMENT),
        (growth("t", 3, [1]), Error.INVALID_REPLICA_ASSIGNMENT),
        (growth("t", 2), Error.INVALID_PARTITIONS),
        (growth("t", -1), Error.INVALID_PARTITIONS),
        (growth("t", 2**31 - 1), Error.INVALID_PARTITIONS),
        (growth("none", 5), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (growth("__own", 5), Error.INVALID_TOPIC_EXCEPTION),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_topic_grows_and_never_shrinks(
    client: Client, world: World, topic: grow.CreatePartitionsTopic, error: Error, validate_only: bool
) -> None:
    made(client, wanted("t", 2))
    response = client.ask(grow.CreatePartitionsRequest([topic], 0, validate_only))
    assert [(each.name, each.error_code) for each in response.results] == [(topic.name, error)]
    grown = error is Error.NONE and not validate_only
    assert world.broker.topics.get("t").partitions == (topic.count if grown else 2)


def test_a_topic_that_is_named_twice_does_not_grow(client: Client, world: World) -> None:
    made(client, wanted("t", 2))
    response = client.ask(grow.CreatePartitionsRequest([growth("t", 3), growth("t", 4)]))
    assert codes(response.results) == [Error.INVALID_REQUEST] * 2
    assert world.broker.topics.get("t").partitions == 2


# DeleteTopics


@pytest.mark.parametrize("version", range(1, 7))
def test_a_topic_is_deleted_by_its_name(client: Client, world: World, version: int) -> None:
    made(client, wanted("t"), wanted("u"))
    request = delete.DeleteTopicsRequest(
        [delete.DeleteTopicState("t"), delete.DeleteTopicState("none")], ["t", "none"]
    )
    response = client.ask(request, version)
    told = [(each.name, each.error_code) for each in response.responses]
    assert told == [("t", 0), ("none", Error.UNKNOWN_TOPIC_OR_PARTITION)]
    assert [topic.name for topic in world.broker.topics] == ["u"]


def test_a_topic_is_deleted_by_its_id_and_comes_back_with_another(client: Client, world: World) -> None:
    made(client, wanted("t"))
    old = world.broker.topics.get("t").id_bytes
    request = delete.DeleteTopicsRequest([delete.DeleteTopicState(None, old)])
    (told,) = client.ask(request).responses
    assert (told.error_code, told.name, told.topic_id) == (0, "t", old)
    made(client, wanted("t"))
    assert world.broker.topics.get("t").id_bytes != old
    (told,) = client.ask(request).responses
    assert (told.error_code, told.name, told.topic_id) == (Error.UNKNOWN_TOPIC_ID, None, old)


def test_a_topic_to_delete_is_named_in_one_way_and_once(client: Client, world: World) -> None:
    made(client, wanted("t"), wanted("u"), wanted("v"), wanted("w"))
    id_of_v = world.broker.topics.get("v").id_bytes
    states = [
        delete.DeleteTopicState("t", world.broker.topics.get("t").id_bytes),
        delete.DeleteTopicState(None, NO_ID),
        delete.DeleteTopicState("u"),
        delete.DeleteTopicState("u"),
        delete.DeleteTopicState("v"),
        delete.DeleteTopicState(None, id_of_v),
        delete.DeleteTopicState("w"),
        delete.DeleteTopicState("__own"),
    ]
    world.broker.store.create_topic("__own", 1)
    response = client.ask(delete.DeleteTopicsRequest(states))
    assert codes(response.responses) == [Error.INVALID_REQUEST] * 6 + [Error.NONE, Error.INVALID_TOPIC_EXCEPTION]
    assert [topic.name for topic in world.broker.topics] == ["__own", "t", "u", "v"]


def test_deleting_nothing_is_answered(client: Client) -> None:
    for version in (1, 6):
        assert client.ask(delete.DeleteTopicsRequest(), version).responses == []


def test_what_was_committed_for_a_topic_goes_before_the_answer(client: Client, world: World) -> None:
    made(client, wanted("t"))
    world.ask(native.CommitOffset("g", "t", 0, 3))
    assert codes(client.ask(delete.DeleteTopicsRequest([delete.DeleteTopicState("t")])).responses) == [0]
    made(client, wanted("t"))
    assert world.ask(native.GetOffset("g", "t", 0)).offset is None  # type: ignore[attr-defined]


# DeleteRecords


def test_records_are_deleted_up_to_an_offset_or_the_end(client: Client, world: World) -> None:
    made(client, wanted("t", 3))
    publish(world, "t", 5)
    publish(world, "t", 2, partition=1)
    asked = [(0, 3), (0, 2), (1, -1), (2, -1), (0, 6), (0, -2), (9, 0)]
    topic = empty.DeleteRecordsTopic("t", [empty.DeleteRecordsPartition(*each) for each in asked])
    (told,) = client.ask(empty.DeleteRecordsRequest([topic])).topics
    lost = (-1, Error.OFFSET_OUT_OF_RANGE)
    assert [(part.low_watermark, part.error_code) for part in told.partitions] == [
        (3, 0), (3, 0), (2, 0), (0, 0), lost, lost, (-1, Error.UNKNOWN_TOPIC_OR_PARTITION),
    ]  # fmt: skip
    assert world.broker.topics.log("t", 0).start == 3


def test_records_of_a_compacted_topic_are_not_deleted_by_offset(client: Client, world: World) -> None:
    made(client, wanted("t", 1, configs={"cleanup.policy": "compact"}))
    publish(world, "t", 2)
    topic = empty.DeleteRecordsTopic("t", [empty.DeleteRecordsPartition(0, 1)])
    (told,) = client.ask(empty.DeleteRecordsRequest([topic])).topics
    assert codes(told.partitions) == [Error.POLICY_VIOLATION]
    assert world.broker.topics.log("t", 0).start == 0

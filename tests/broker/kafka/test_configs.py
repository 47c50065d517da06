"""Configuration, as Kafka's tools read and change it."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Client, versions
from hypothesis import given
from hypothesis import strategies as st
from simulated import World

from rivven.broker.kafka.configs import ConfigRequests
from rivven.broker.kafka.keys import FIXED, KEYS
from rivven.coordinator import GroupConfig
from rivven.log import KEYS as OUR_KEYS
from rivven.wire import requests as native
from rivven.wire.kafka import Error
from rivven.wire.kafka.made import alter_configs as replace
from rivven.wire.kafka.made import describe_configs as describe
from rivven.wire.kafka.made import incremental_alter_configs as alter
from rivven.wire.kafka.made import list_config_resources as listed

TOPIC, NODE, LOGGERS, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
FROM_TOPIC, FROM_NODE, FROM_DEFAULT = 1, 4, 5


@pytest.fixture
def world() -> World:
    return new_world()


def new_world(**config: Any) -> World:
    world = World(broker_id=7, **config)
    world.ask(native.CreateTopic("t", 1))
    return world


@pytest.fixture
def client(world: World) -> Client:
    return Client(world, ConfigRequests)


def described(client: Client, kind: int, name: str, *keys: str, version: int | None = None, **rest: Any) -> Any:
    resource = describe.DescribeConfigsResource(kind, name, list(keys) or None)
    (result,) = client.ask(describe.DescribeConfigsRequest([resource], **rest), version).results
    return result


def configs_of(client: Client, kind: int = TOPIC, name: str = "t", **rest: Any) -> dict[str, Any]:
    result = described(client, kind, name, **rest)
    assert result.error_code == Error.NONE
    return {config.name: config for config in result.configs}


def changed(client: Client, *changes: tuple[str, int, str | None], **rest: Any) -> Any:
    """The outcome of changes to one topic."""
    configs = [alter.AlterableConfig(*change) for change in changes]
    only = rest.pop("validate_only", False)
    resource = alter.AlterConfigsResource(rest.pop("kind", TOPIC), rest.pop("name", "t"), configs)
    (outcome,) = client.ask(alter.IncrementalAlterConfigsRequest([resource], only), **rest).responses
    return outcome


def replaced(client: Client, configs: dict[str, str | None], **rest: Any) -> Any:
    pairs = [replace.AlterableConfig(*pair) for pair in configs.items()]
    only = rest.pop("validate_only", False)
    resource = replace.AlterConfigsResource(rest.pop("kind", TOPIC), rest.pop("name", "t"), pairs)
    (outcome,) = client.ask(replace.AlterConfigsRequest([resource], only), **rest).responses
    return outcome


def chosen(world: World) -> dict[str, str]:
    return world.broker.topics.get("t").configs


REQUESTS: dict[int, Any] = {
    32: describe.DescribeConfigsRequest([describe.DescribeConfigsResource(TOPIC, "t", None)], True, True),
    33: replace.AlterConfigsRequest(
        [replace.AlterConfigsResource(TOPIC, "t", [replace.AlterableConfig("segment.ms", "5")])]
    ),
    44: alter.IncrementalAlterConfigsRequest(
        [alter.AlterConfigsResource(TOPIC, "t", [alter.AlterableConfig("segment.ms", SET, "5")])]
    ),
    74: listed.ListConfigResourcesRequest(),
}


@pytest.mark.parametrize(("key", "version"), versions(*REQUESTS))
def test_every_version_is_answered_without_an_error(client: Client, world: World, key: int, version: int) -> None:
    response = client.ask(REQUESTS[key], version)
    assert getattr(response, "error_code", 0) == Error.NONE
    inner = getattr(response, "results", None) or getattr(response, "responses", None) or []
    assert all(each.error_code == Error.NONE for each in inner)
    assert inner or key == 74
    if key in (33, 44):
        assert chosen(world) == {"segment.ms": "5"}


def test_the_table_of_handlers_is_what_was_promised(world: World) -> None:
    assert ConfigRequests(world.broker).handlers().keys() == REQUESTS.keys()


# Telling


def test_every_key_that_a_topic_has_is_known_to_this_dialect() -> None:
    assert KEYS.keys() == OUR_KEYS.keys()
    assert not KEYS.keys() & FIXED.keys()


def test_a_topic_tells_all_keys_with_their_types_and_where_they_are_from(client: Client) -> None:
    changed(client, ("retention.ms", SET, "5000"))
    configs = configs_of(client)
    assert configs.keys() == KEYS.keys() | FIXED.keys()
    kinds = {name: config.config_type for name, config in configs.items()}
    assert (kinds["retention.ms"], kinds["segment.bytes"], kinds["cleanup.policy"]) == (5, 3, 7)
    assert (kinds["min.cleanable.dirty.ratio"], kinds["preallocate"], kinds["compression.type"]) == (6, 1, 2)
    sources = {name for name, config in configs.items() if config.config_source != FROM_DEFAULT}
    assert sources == {"retention.ms"}
    assert configs["retention.ms"].value == "5000"
    assert configs["retention.ms"].config_source == FROM_TOPIC
    assert not any(config.is_sensitive for config in configs.values())
    assert {name for name, config in configs.items() if config.read_only} == FIXED.keys()


def test_only_the_keys_that_are_asked_for_are_told(client: Client) -> None:
    result = described(client, TOPIC, "t", "retention.ms", "no.such")
    assert [config.name for config in result.configs] == ["retention.ms"]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_an_empty_list_of_keys_is_all_of_them(client: Client, version: int) -> None:
    request = describe.DescribeConfigsRequest([describe.DescribeConfigsResource(TOPIC, "t", [])])
    (result,) = client.ask(request, version).results
    assert len(result.configs) == len(KEYS) + len(FIXED)


def test_synonyms_and_documentation_are_told_when_asked_for(client: Client) -> None:
    changed(client, ("retention.ms", SET, "5000"))
    bare = configs_of(client)["retention.ms"]
    assert (bare.synonyms, bare.documentation) == ([], None)
    full = configs_of(client, include_synonyms=True, include_documentation=True)
    assert [(each.name, each.value, each.source) for each in full["retention.ms"].synonyms] == [
        ("retention.ms", "5000", FROM_TOPIC),
        ("log.retention.ms", "604800000", FROM_DEFAULT),
    ]
    assert all(config.documentation.endswith(".") for config in full.values())


def test_no_compression_has_kafkas_word(client: Client, world: World) -> None:
    changed(client, ("compression.type", SET, "uncompressed"))
    assert chosen(world) == {"compression.type": "none"}
    config = configs_of(client, include_synonyms=True)["compression.type"]
    assert (config.value, config.synonyms[0].value) == ("uncompressed", "uncompressed")


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "none", Error.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no/name", Error.INVALID_TOPIC_EXCEPTION),
        (NODE, "8", Error.INVALID_REQUEST),
        (NODE, "seven", Error.INVALID_REQUEST),
        (LOGGERS, "8", Error.INVALID_REQUEST),
        (METRICS, "m", Error.INVALID_REQUEST),
        (0, "t", Error.INVALID_REQUEST),
        (99, "t", Error.INVALID_REQUEST),
    ],
)
def test_what_has_no_configuration_is_told_as_such(client: Client, kind: int, name: str, error: Error) -> None:
    result = described(client, kind, name)
    assert (result.error_code, result.resource_type, result.resource_name) == (error, kind, name)
    assert result.error_message
    assert changed(client, ("k", SET, "v"), kind=kind, name=name).error_code == error
    assert replaced(client, {"k": "v"}, kind=kind, name=name).error_code == error


def test_a_node_tells_what_it_was_told_and_what_it_knows_itself() -> None:
    told = {"socket.request.max.bytes": "60", "log.retention.ms": "9", "num.partitions": "5"}
    client = Client(new_world(default_partitions=5, node_configs=told, auto_create_topics=False), ConfigRequests)
    configs = configs_of(client, NODE, "7")
    values = {name: (config.value, config.config_source, config.config_type) for name, config in configs.items()}
    assert values["socket.request.max.bytes"] == ("60", FROM_NODE, 2)
    assert values["log.retention.ms"] == ("9", FROM_NODE, 5)
    assert values["num.partitions"] == ("5", FROM_NODE, 3)
    assert values["log.segment.bytes"] == (str(1 << 30), FROM_DEFAULT, 3)
    assert values["auto.create.topics.enable"] == ("false", FROM_NODE, 1)
    assert values["node.id"] == ("7", FROM_NODE, 3)
    assert values["broker.rack"][0] is None
    assert all(config.read_only for config in configs.values())


def test_settings_for_all_nodes_and_loggers_are_none(client: Client) -> None:
    assert configs_of(client, NODE, "") == configs_of(client, LOGGERS, "7") == {}


def test_a_group_tells_what_the_node_says_of_all_groups() -> None:
    world = new_world(groups=GroupConfig(consumer_heartbeat_ms=2_000, offsets_retention_ms=7_200_000))
    client = Client(world, ConfigRequests)
    of_group = {name: (config.value, config.config_source) for name, config in configs_of(client, GROUP, "g").items()}
    assert of_group == {
        "consumer.heartbeat.interval.ms": ("2000", FROM_NODE),
        "consumer.session.timeout.ms": ("45000", FROM_DEFAULT),
    }
    assert configs_of(client, NODE, "7")["offsets.retention.minutes"].value == "120"


def test_resources_with_a_configuration_are_listed_by_type(client: Client) -> None:
    def found(*types: int, version: int = 1) -> list[tuple[int, str]]:
        response = client.ask(listed.ListConfigResourcesRequest(list(types)), version)
        assert response.error_code == Error.NONE
        return [(each.resource_type, each.resource_name) for each in response.config_resources]

    assert found() == [(TOPIC, "t"), (NODE, "7"), (LOGGERS, "7")]
    assert found(TOPIC) == [(TOPIC, "t")]
    assert found(GROUP, METRICS) == []
    assert found(version=0) == []
    response = client.ask(listed.ListConfigResourcesRequest([TOPIC, 3]))
    assert (response.error_code, response.config_resources) == (Error.UNSUPPORTED_VERSION, [])


# Changing one by one


def test_a_key_is_set_and_taken_back_and_the_others_stay(client: Client, world: World) -> None:
    assert changed(client, ("retention.ms", SET, "5"), ("segment.ms", SET, "6")).error_code == 0
    assert changed(client, ("retention.ms", DELETE, None)).error_code == 0
    assert chosen(world) == {"segment.ms": "6"}
    assert world.broker.topics.log("t", 0).config.segment_ms == 6


def test_a_list_gets_and_loses_entries(client: Client, world: World) -> None:
    assert changed(client, ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert world.broker.topics.log("t", 0).config.cleanup_policy == "compact,delete"
    assert changed(client, ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert world.broker.topics.log("t", 0).config.cleanup_policy == "compact,delete"
    assert changed(client, ("cleanup.policy", SUBTRACT, "delete, compress")).error_code == 0
    assert world.broker.topics.log("t", 0).config.cleanup_policy == "compact"
    refused = changed(client, ("cleanup.policy", SUBTRACT, "compact"))
    assert (refused.error_code, "cleanup.policy" in refused.error_message) == (Error.INVALID_CONFIG, True)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("retention.ms", SET, "soon"), Error.INVALID_CONFIG),
        (("retention.ms", SET, None), Error.INVALID_REQUEST),
        (("retention.ms", APPEND, "5"), Error.INVALID_CONFIG),
        (("no.such", APPEND, "5"), Error.INVALID_CONFIG),
        (("no.such", SET, "5"), Error.INVALID_CONFIG),
        (("no.such", DELETE, None), Error.INVALID_CONFIG),
        (("retention.ms", 4, "5"), Error.INVALID_REQUEST),
        (("retention.ms", -1, "5"), Error.INVALID_REQUEST),
        (("cleanup.policy", APPEND, "vanish"), Error.INVALID_CONFIG),
        (("leader.replication.throttled.replicas", APPEND, "0:7"), Error.INVALID_CONFIG),
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(
    client: Client, world: World, change: tuple[str, int, str | None], error: Error
) -> None:
    outcome = changed(client, ("segment.ms", SET, "6"), change)
    assert (outcome.error_code, change[0] in outcome.error_message) == (error, True)
    assert chosen(world) == {}


def test_a_check_changes_nothing_and_finds_the_same_mistakes(client: Client, world: World) -> None:
    assert changed(client, ("segment.ms", SET, "6"), validate_only=True).error_code == 0
    assert changed(client, ("segment.ms", SET, "x"), validate_only=True).error_code == Error.INVALID_CONFIG
    assert replaced(client, {"segment.ms": "6"}, validate_only=True).error_code == 0
    assert replaced(client, {"segment.ms": "x"}, validate_only=True).error_code == Error.INVALID_CONFIG
    assert chosen(world) == {}


def test_keys_and_resources_are_named_once(client: Client, world: World) -> None:
    assert changed(client, ("segment.ms", SET, "6"), ("segment.ms", SET, "7")).error_code == Error.INVALID_REQUEST
    twice = [alter.AlterConfigsResource(TOPIC, "t", [alter.AlterableConfig("segment.ms", SET, "6")])] * 2
    response = client.ask(alter.IncrementalAlterConfigsRequest(twice))
    assert [each.error_code for each in response.responses] == [Error.INVALID_REQUEST] * 2
    assert chosen(world) == {}


def test_the_brokers_own_topics_keep_their_configuration(client: Client, world: World) -> None:
    world.broker.store.create_topic("__own", 1)
    assert changed(client, ("segment.ms", SET, "6"), name="__own").error_code == Error.INVALID_TOPIC_EXCEPTION
    assert described(client, TOPIC, "__own").error_code == 0


@pytest.mark.parametrize(("kind", "name"), [(NODE, "7"), (NODE, ""), (LOGGERS, "7"), (GROUP, "g")])
def test_nodes_loggers_and_groups_are_not_changed_while_the_node_runs(client: Client, kind: int, name: str) -> None:
    outcome = changed(client, ("num.partitions", SET, "6"), kind=kind, name=name)
    assert (outcome.error_code, "num.partitions" in outcome.error_message) == (Error.INVALID_REQUEST, True)
    assert replaced(client, {"num.partitions": "6"}, kind=kind, name=name).error_code == Error.INVALID_REQUEST
    assert changed(client, kind=kind, name=name).error_code == Error.NONE


# Changing all at once


def test_what_is_not_named_goes_back_to_its_default(client: Client, world: World) -> None:
    replaced(client, {"segment.ms": "6", "retention.ms": "5"})
    assert replaced(client, {"segment.ms": "7"}).error_code == 0
    assert chosen(world) == {"segment.ms": "7"}
    assert replaced(client, {"segment.ms": None}).error_code == Error.INVALID_REQUEST
    assert replaced(client, {}).error_code == 0
    assert chosen(world) == {}


def test_what_a_tool_has_read_it_can_write_back(client: Client, world: World) -> None:
    changed(client, ("compression.type", SET, "uncompressed"), ("cleanup.policy", SET, "delete,compact"))
    before = {name: config.value for name, config in configs_of(client).items()}
    assert replaced(client, before).error_code == 0
    assert {name: config.value for name, config in configs_of(client).items()} == before
    assert chosen(world).keys() == KEYS.keys()


# Keys that are Kafka's alone


@pytest.mark.parametrize("key", sorted(FIXED))
def test_a_fixed_key_takes_the_value_that_it_has_and_no_other(client: Client, world: World, key: str) -> None:
    assert changed(client, (key, SET, FIXED[key].value)).error_code == 0
    assert changed(client, (key, DELETE, None)).error_code == 0
    outcome = changed(client, (key, SET, "something"))
    assert outcome.error_code == Error.INVALID_CONFIG
    assert key in outcome.error_message
    assert FIXED[key].value in outcome.error_message
    assert chosen(world) == {}
    assert configs_of(client)[key].value == FIXED[key].value


def test_a_flush_that_is_asked_for_is_granted_where_every_write_is_synced_anyway() -> None:
    every, seldom = (Client(new_world(policy=policy), ConfigRequests) for policy in ("every_write", "none"))
    for key in ("flush.messages", "flush.ms"):
        assert changed(every, (key, SET, "1")).error_code == 0
        assert changed(seldom, (key, SET, "1")).error_code == Error.INVALID_CONFIG


def test_a_limit_of_the_index_that_it_never_reaches_is_granted(client: Client) -> None:
    assert changed(client, ("segment.index.bytes", SET, "10485760")).error_code == 0
    for text in ("4096", "-1", "9" * 5000):
        assert changed(client, ("segment.index.bytes", SET, text)).error_code == Error.INVALID_CONFIG


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*KEYS, *FIXED, "no.such", ""]),
            st.integers(-2, 6),
            st.none() | st.sampled_from(["", "-1", "0", "1.5", "compact", "delete,", "true", "²", "9" * 5000]),
        ),
        max_size=4,
    ),
    st.sampled_from([TOPIC, NODE, LOGGERS, METRICS, GROUP, 0, -1]),
    st.sampled_from(["t", "", "7", "none", "no/name", "²"]),
)
def test_whatever_is_asked_is_answered(changes: list[tuple[str, int, str | None]], kind: int, name: str) -> None:
    client = Client(SHARED, ConfigRequests)
    changed(client, *changes, kind=kind, name=name)
    replaced(client, {key: value for key, _, value in changes}, kind=kind, name=name)
    described(client, kind, name, include_synonyms=True, include_documentation=True)
    assert configs_of(client).keys() == KEYS.keys() | FIXED.keys()


SHARED = new_world()
"""One for all examples: opening a store takes longer than asking it."""

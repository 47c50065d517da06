"""Quotas, as Kafka's tools read and change them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from asking import Client, versions
from simulated import World

from rivven.broker import Limit
from rivven.broker.kafka.quotas import QuotaRequests
from rivven.limits import QUOTA_ENTITIES_MAX
from rivven.wire.kafka import Error
from rivven.wire.kafka.made import alter_client_quotas as alter
from rivven.wire.kafka.made import describe_client_quotas as describe

EXACT, DEFAULT, ANY = range(3)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    return Client(world, QuotaRequests)


def entry(entity: dict[str, str | None], **values: float | None) -> alter.RequestEntryData:
    return alter.RequestEntryData(
        [alter.EntityData(*pair) for pair in entity.items()],
        [alter.OpData(key, 0.0 if value is None else value, value is None) for key, value in values.items()],
    )


def altered(client: Client, *entries: alter.RequestEntryData, **rest: Any) -> list[Any]:
    return list(client.ask(alter.AlterClientQuotasRequest(list(entries), **rest)).entries)


def told(client: Client, *components: tuple[str, int, str | None], strict: bool = False) -> list[Any]:
    request = describe.DescribeClientQuotasRequest([describe.ComponentData(*each) for each in components], strict)
    response = client.ask(request)
    assert response.error_code == Error.NONE
    return [
        (
            {each.entity_type: each.entity_name for each in found.entity},
            {each.key: each.value for each in found.values},
        )
        for found in response.entries
    ]


@pytest.mark.parametrize(("key", "version"), versions(48, 49))
def test_every_version_is_answered_without_an_error(client: Client, key: int, version: int) -> None:
    entries = [entry({"user": "ada"}, producer_byte_rate=5.0)]
    assert client.ask(alter.AlterClientQuotasRequest(entries), min(version, 1)).entries[0].error_code == 0
    wanted = describe.ComponentData("user", EXACT, "ada")
    response = client.ask(describe.DescribeClientQuotasRequest([wanted], True), version)
    assert [value.value for found in response.entries for value in found.values] == [5.0]
    assert key in QuotaRequests(World().broker).handlers()


def test_what_was_set_is_told_and_counts(client: Client, world: World) -> None:
    outcome = altered(client, entry({"user": "ada"}, producer_byte_rate=1000.0, request_rate=7.0))
    assert [(each.error_code, each.error_message) for each in outcome] == [(0, None)]
    assert [(each.entity_type, each.entity_name) for each in outcome[0].entity] == [("user", "ada")]
    assert told(client) == [({"user": "ada"}, {"producer_byte_rate": 1000.0, "request_rate": 7.0})]
    assert world.broker.admission.effective("ada", None) == {"produce_bytes_rate": 1000, "request_rate": 7}
    world.restart()
    assert world.broker.admission.effective("ada", None) == {"produce_bytes_rate": 1000, "request_rate": 7}


def test_what_is_removed_is_gone(client: Client) -> None:
    altered(client, entry({"client-id": None}, consumer_byte_rate=5.0, producer_byte_rate=6.0))
    altered(client, entry({"client-id": None}, consumer_byte_rate=None))
    assert told(client) == [({"client-id": None}, {"producer_byte_rate": 6.0})]
    altered(client, entry({"client-id": None}, producer_byte_rate=None))
    assert told(client) == []
    assert altered(client, entry({"user": "nobody"}, producer_byte_rate=None))[0].error_code == 0


def test_a_check_changes_nothing(client: Client) -> None:
    outcome = altered(
        client, entry({"user": "ada"}, producer_byte_rate=5.0), entry({"ip": "::1"}), validate_only=True
    )
    assert [each.error_code for each in outcome] == [0, Error.INVALID_REQUEST]
    assert told(client) == []


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (entry({"user": "ada", "client-id": "c"}, producer_byte_rate=5.0), "both together"),
        (entry({"ip": "10.0.0.1"}, connection_creation_rate=5.0), "address"),
        (entry({"team": "x"}, producer_byte_rate=5.0), "user or client-id"),
        (entry({}, producer_byte_rate=5.0), "empty"),
        (entry({"user": ""}, producer_byte_rate=5.0), "empty name"),
        (entry({"user": "ada"}, request_percentage=50.0), "request_rate"),
        (entry({"user": "ada"}, controller_mutation_rate=5.0), "producer_byte_rate"),
        (entry({"user": "ada"}, no_such_rate=None), "no_such_rate"),
        (entry({"user": "ada"}, producer_byte_rate=0.0), "whole number"),
        (entry({"user": "ada"}, producer_byte_rate=-1.0), "whole number"),
        (entry({"user": "ada"}, producer_byte_rate=1.5), "whole number"),
        (entry({"user": "ada"}, producer_byte_rate=math.nan), "whole number"),
        (entry({"user": "ada"}, producer_byte_rate=math.inf), "whole number"),
        (entry({"user": "ada"}, producer_byte_rate=1e300), "whole number"),
        (entry({"user": "ada"}, consumer_byte_rate=5.0, producer_byte_rate=-1.0), "producer_byte_rate"),
    ],
)
def test_what_cannot_be_kept_is_refused_whole_and_the_rest_is_kept(
    client: Client, wrong: alter.RequestEntryData, text: str
) -> None:
    outcome = altered(client, wrong, entry({"user": "bob"}, producer_byte_rate=5.0))
    assert [each.error_code for each in outcome] == [Error.INVALID_REQUEST, Error.NONE]
    assert text in outcome[0].error_message
    assert outcome[0].entity == [alter.EntityData(each.entity_type, each.entity_name) for each in wrong.entity]
    assert told(client) == [({"user": "bob"}, {"producer_byte_rate": 5.0})]


def test_one_entity_too_many_is_told_to_all_that_were_right(client: Client, world: World) -> None:
    world.broker.admission.alter([Limit("user", f"u{n}", "request_rate", 5) for n in range(QUOTA_ENTITIES_MAX)])
    outcome = altered(client, entry({"user": "ada"}, request_rate=5.0), entry({"ip": None}))
    assert [each.error_code for each in outcome] == [Error.POLICY_VIOLATION, Error.INVALID_REQUEST]


@pytest.fixture
def filled(client: Client) -> Client:
    for kind in ("user", "client-id"):
        for name in (None, "ada", "bob"):
            assert altered(client, entry({kind: name}, producer_byte_rate=5.0))[0].error_code == 0
    return client


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, [(kind, name) for kind in ("client-id", "user") for name in (None, "ada", "bob")]),
        ([], True, []),
        ([("user", EXACT, "ada")], False, [("user", "ada")]),
        ([("user", EXACT, "ada")], True, [("user", "ada")]),
        ([("user", EXACT, "eve")], False, []),
        ([("client-id", DEFAULT, None)], True, [("client-id", None)]),
        ([("client-id", ANY, None)], True, [("client-id", None), ("client-id", "ada"), ("client-id", "bob")]),
        ([("user", ANY, None), ("client-id", ANY, None)], False, []),
        ([("ip", ANY, None)], False, []),
    ],
)
def test_a_filter_finds_the_entities_that_have_what_it_names(
    filled: Client, components: list[tuple[str, int, str | None]], strict: bool, found: list[tuple[str, str | None]]
) -> None:
    entities = [pair for entity, _ in told(filled, *components, strict=strict) for pair in entity.items()]
    assert entities == found


def test_limits_that_kafka_has_no_words_for_are_not_told(client: Client, world: World) -> None:
    world.broker.admission.alter(
        [Limit("default", None, "request_rate", 5), Limit("consumer-group", "g", "request_rate", 5)]
    )
    assert told(client) == []


@pytest.mark.parametrize(
    "components",
    [
        [("user", EXACT, None)],
        [("user", DEFAULT, "ada")],
        [("user", ANY, "ada")],
        [("user", 3, None)],
        [("user", EXACT, "a"), ("user", EXACT, "b")],
        [("team", ANY, None)],
        [("", ANY, None)],
        [("ip", ANY, None), ("user", ANY, None)],
    ],
)
def test_a_filter_that_makes_no_sense_is_refused_with_an_empty_list(
    filled: Client, components: list[tuple[str, int, str | None]]
) -> None:
    request = describe.DescribeClientQuotasRequest([describe.ComponentData(*each) for each in components])
    response = filled.ask(request)
    assert (response.error_code, response.entries) == (Error.INVALID_REQUEST, [])
    assert response.error_message

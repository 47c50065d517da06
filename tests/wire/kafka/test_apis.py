"""The table of apis says what Kafka's own definitions say, and what is loaded is only what was asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kafka_messages import SIDES, within

from rivven.wire.kafka import API_VERSIONS, APIS, NO_ID, SERVED, Stage
from rivven.wire.kafka.apis import NEVER
from rivven.wire.kafka.codec import HOLDS_RECORDS
from rivven.wire.kafka.generate import generate


@pytest.mark.parametrize("side", SIDES, ids=str)
def test_every_version_in_the_table_is_one_of_kafka(side):
    source = side.source
    assert source["name"] == f"{side.api.name}{side.kind.capitalize()}"
    for version in side.versions:
        assert within(version, source["validVersions"])
        assert within(version, source["flexibleVersions"]) == (version >= side.api.flexible)
    assert source["flexibleVersions"] != "none" or side.api.flexible == NEVER


@pytest.mark.parametrize("side", SIDES, ids=str)
def test_the_table_stops_at_the_newest_stable_version(side):
    following = side.api.newest + 1
    unstable = next(one for one in SIDES if one.api == side.api).source.get("latestVersionUnstable", False)
    assert not within(following, side.source["validVersions"]) or unstable


def test_produce_is_advertised_from_0_on_and_taken_from_3_on():
    assert APIS[0].advertised == (0, 13)
    assert not APIS[0].knows(2)
    assert APIS[0].knows(3)
    others = [api for key, api in APIS.items() if key != 0]
    assert all(api.advertised == (api.oldest, api.newest) for api in others)


def test_security_and_share_groups_are_not_served_yet():
    later = {Stage.SECURITY, Stage.SHARE_GROUPS}
    assert {api.key for api in SERVED.values() if api.stage in later} == set()
    assert {18, 3, 0, 1, 2, 10, 11, 12, 13, 14, 8, 9, 19, 20, 22, 32, 60, 37, 23} <= SERVED.keys()
    assert {68, 69, 24, 25, 26, 27, 28, 61, 65, 66} <= SERVED.keys()
    assert not {71, 72} & APIS.keys(), "a client that is told of telemetry sends it"


def test_records_are_where_the_data_says():
    found = {(side.api.key, side.kind) for side in SIDES if '"records"' in repr(side.source).replace("'", '"')}
    listed = {
        (key, kind)
        for key, flags in HOLDS_RECORDS.items()
        for kind, has in zip(("request", "response"), flags, strict=True)
        if has
    }
    assert found == listed


def test_only_what_is_asked_for_is_loaded():
    program = (
        "import sys, rivven.wire\n"
        "made = [name for name in sys.modules if name.startswith('rivven.wire.kafka.made.')]\n"
        "assert made == [], made\n"
        "rivven.wire.kafka.decode_request(bytes.fromhex('0012 0000 00000005 ffff'))\n"
        "made = [name for name in sys.modules if name.startswith('rivven.wire.kafka.made.')]\n"
        "assert made == ['rivven.wire.kafka.made.api_versions'], made\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_was_made_is_not_made_again():
    assert generate() is False, "messages.json or generate.py changed since the codecs were made: run make setup"


def test_no_id_is_all_zeros():
    assert bytes(16) == NO_ID
    assert API_VERSIONS == 18

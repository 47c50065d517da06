"""What real clients sent, recorded byte for byte: it reads as the margin says, and is written back the same."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from rivven.wire import Dialect, dialect_of
from rivven.wire.kafka import APIS, decode_request, encode_request

FOLDER = Path(__file__).parents[2] / "vectors" / "kafka"


class Vector(NamedTuple):
    """One frame without its length, and the request in it as JSON."""

    title: str
    body: bytes
    request: str


def vectors() -> list[Vector]:
    found: list[Vector] = []
    for path in sorted(FOLDER.glob("*.txt")):
        for block in path.read_text().split("\n= ")[1:]:
            title, *rows = block.strip().splitlines()
            digits = "".join(row.partition("|")[0] for row in rows[:-1])
            found.append(Vector(f"{path.stem} {title}", bytes.fromhex(digits), rows[-1].removeprefix("-> ")))
    return found


EACH = pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector.title)


@EACH
def test_a_recorded_request_reads_as_its_margin_says(vector):
    call = decode_request(vector.body, apis=APIS)
    name, version = vector.title.split()[1:]
    assert (APIS[call.api_key].name, call.version) == (name, int(version))
    assert msgspec.json.encode(call.request).decode() == vector.request


@EACH
def test_a_recorded_request_is_written_back_the_same(vector):
    call = decode_request(vector.body, apis=APIS)
    again = b"".join(encode_request(call.request, call.version, call.correlation_id, call.client_id))
    assert again[4:] == vector.body


@EACH
def test_a_recorded_request_is_known_for_kafka(vector):
    assert dialect_of(vector.body) is Dialect.KAFKA


def test_the_recorded_clients_speak_old_versions_and_new_ones():
    spoken = {vector.title for vector in vectors()}
    assert {"aiokafka ApiVersions 0", "aiokafka Produce 7", "kafka_python Produce 9"} <= spoken
    assert {"confluent Metadata 13", "confluent Fetch 16", "confluent ConsumerGroupHeartbeat 1"} <= spoken

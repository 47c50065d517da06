"""Two libraries that others wrote read what we write as we meant it, and write it back byte for byte.

kio knows every api and version of ours, kafka-python all but the groups that came last. Both are made from
Kafka's own definitions and share nothing with our generator.
"""

from __future__ import annotations

import datetime
import io
import uuid
import warnings
from dataclasses import fields as fields_of
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_messages import SIDES, Plain, Side, in_version, message, messages, snake, struct_of
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from rivven.wire.kafka.codec import codec_of

with warnings.catch_warnings():  # kafka-python reads its data by a function that Python has put aside
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata, producer, sasl
    from kafka.protocol.api_message import ApiMessage

EACH_SIDE = pytest.mark.parametrize("side", SIDES, ids=str)
UNKNOWN_TO_KAFKA_PYTHON = {68, 69, 76, 77, 78, 79, 90, 91, 92}
MODULES = [admin, consumer, metadata, producer, sasl]  # to have every class defined


def written(side: Side, value: Any, version: int) -> bytes:
    codec = codec_of(side.api.key)
    writer = (codec.write_request if side.kind == "request" else codec.write_response)[version]
    parts: list[Any] = []
    parts.append(writer(value, bytearray(), parts))
    return b"".join(parts)


def told(side: Side, drawn: Plain, version: int) -> Plain:
    """What the version says, with tagged fields and all, by our names."""
    source = side.source
    return renamed(in_version(drawn, source["fields"], source, version), source["fields"], source)


def renamed(value: Any, fields: list[Plain], source: Plain) -> Plain:
    found = {}
    for field in fields:
        if field["name"] in value:
            inner, one = struct_of(field, source), value[field["name"]]
            if inner and one is not None:
                many = isinstance(one, list)
                one = [renamed(each, inner, source) for each in one] if many else renamed(one, inner, source)
            found[snake(field["name"])] = one
    return found


# kio: dataclasses by version, with times and codes of their own


def kio_plain(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return round(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, tuple):
        return [kio_plain(one) for one in value]
    if hasattr(type(value), "__dataclass_fields__"):
        return {field.name: kio_plain(getattr(value, field.name)) for field in fields_of(value)}
    return value


def same_as_kio(ours: Any, theirs: Any) -> bool:
    """Alike, though kio leaves the unit out of a name, and has none for no id and no time."""
    if isinstance(ours, dict):
        units = {name if name in theirs else name.removesuffix("_ms"): one for name, one in ours.items()}
        return units.keys() == theirs.keys() and all(same_as_kio(one, theirs[name]) for name, one in units.items())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same_as_kio, ours, theirs))
    return ours == theirs or (theirs is None and ours in (bytes(16), -1))


@cache
def kio_codec(side: Side, version: int) -> tuple[Any, Any]:
    kind = EntityType.request if side.kind == "request" else EntityType.response
    module = load_payload_module(side.api.key, version, kind)
    entity = getattr(module, side.source["name"])
    return entity_reader(entity), entity_writer(entity)


@EACH_SIDE
@settings(max_examples=6)
@given(data=st.data())
def test_kio_reads_what_we_write_and_writes_the_same(side, data):
    drawn = data.draw(messages(side, tame=True))
    for version in side.versions:
        ours = written(side, message(side, drawn, version), version)
        reader, writer = kio_codec(side, version)
        theirs, size = reader(ours, 0)
        assert size == len(ours)
        assert same_as_kio(told(side, drawn, version), kio_plain(theirs)), version
        again = io.BytesIO()
        writer(again, theirs)
        assert again.getvalue() == ours


# kafka-python: one class for all versions


@cache
def kafka_python(side: Side) -> Any:
    def below(kind: Any) -> list[Any]:
        return [each for one in kind.__subclasses__() for each in (one, *below(one))]

    found = [one for one in below(ApiMessage) if one.__dict__.get("_json") or hasattr(one, "_json")]
    return next(one for one in found if (one.API_KEY, one.type) == (side.api.key, side.kind))


KNOWN_TO_KAFKA_PYTHON = [side for side in SIDES if side.api.key not in UNKNOWN_TO_KAFKA_PYTHON]


@pytest.mark.parametrize("side", KNOWN_TO_KAFKA_PYTHON, ids=str)
@settings(max_examples=6)
@given(data=st.data())
def test_kafka_python_reads_what_we_write_and_writes_the_same(side, data):
    drawn = data.draw(messages(side, tame=True))
    if str(side) == "ApiVersions-response":
        drawn["ErrorCode"] = 0  # with any other it reads what follows as version 0
    for version in side.versions:
        ours = written(side, message(side, drawn, version), version)
        theirs = kafka_python(side).decode(ours, version=version)
        theirs._header = None  # which it expects and does not set
        assert bytes(theirs.encode(version=version)) == ours
        for name, value in told(side, drawn, version).items():
            assert_same(value, theirs, name, f"version {version}")


def assert_same(ours: Any, parent: Any, name: str, where: str) -> None:
    if name.endswith("authorized_operations"):
        return  # it makes a set of the bits; that they come back was compared
    theirs, where = getattr(parent, name), f"{where}, {name}"
    if isinstance(ours, dict) and theirs is None:
        assert set(ours.values()) == {-1}, where  # a tagged struct at its defaults is not sent
    elif isinstance(ours, dict):
        for inner, value in ours.items():
            assert_same(value, theirs, inner, where)
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for one, other in zip(ours, theirs, strict=True):
            if isinstance(one, dict):
                for inner, value in one.items():
                    assert_same(value, other, inner, where)
            else:
                assert one == (other.bytes if isinstance(other, uuid.UUID) else other), where
    elif isinstance(theirs, uuid.UUID):
        assert ours == theirs.bytes, where
    else:
        assert ours == theirs or (theirs is None and ours == bytes(16)), where

"""Every error of ours has a code of Kafka's, and the codes are those that clients know."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from rivven import errors
from rivven.errors import RivvenError
from rivven.wire.kafka import Error, code_of
from rivven.wire.kafka.errors import CODES

OURS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RivvenError)]


@pytest.mark.parametrize("kind", [kind for kind in OURS if kind is not RivvenError], ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_is_to_a_kafka_client(kind):
    assert kind in CODES, f"add {kind.__name__} to wire/kafka/errors.py"
    assert CODES[kind] not in (Error.NONE, Error.UNKNOWN_SERVER_ERROR)


def test_the_codes_are_those_of_a_library_that_others_wrote():
    theirs = {code.value: code.name for code in ErrorCode}
    renamed = {-1: "UNKNOWN_SERVER_ERROR"}
    differing = {
        code.value: (code.name, theirs[code.value])
        for code in Error
        if code.value in theirs and code.name != renamed.get(code.value, theirs[code.value].upper())
    }
    assert differing == {}
    assert theirs.keys() <= set(Error)


def test_an_error_that_is_a_kind_of_another_has_its_code():
    class Narrower(errors.InvalidConfig, code=99_001):
        pass

    try:
        assert code_of(Narrower(key="k", reason="r")) is Error.INVALID_CONFIG
    finally:
        del errors._BY_CODE[99_001]


def test_an_error_that_nobody_mapped_is_the_servers():
    class Strange(RivvenError, code=99_002):
        pass

    try:
        assert code_of(Strange(reason="r")) is Error.UNKNOWN_SERVER_ERROR
    finally:
        del errors._BY_CODE[99_002]

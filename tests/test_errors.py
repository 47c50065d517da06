"""The errors: codes are stable, messages carry their facts, and they travel between processes."""

from __future__ import annotations

import pickle

import pytest

from rivven import errors
from rivven.errors import CorruptLog, DiskFull, Malformed, Overloaded, RivvenError
from rivven.model import TopicPartition

CODES = {
    "Malformed": 1,
    "BatchTooLarge": 2,
    "UnsupportedCodec": 3,
    "OffsetOutOfRange": 10,
    "CorruptLog": 11,
    "DiskFull": 12,
    "Overloaded": 13,
    "SyncFailed": 14,
    "StoreClosed": 15,
    "TopicExists": 20,
    "UnknownTopic": 21,
    "InvalidTopic": 22,
    "InvalidConfig": 23,
    "DirectoryLocked": 24,
    "BadDirectory": 25,
    "InvalidPartitions": 27,
    "LimitReached": 31,
}
RETRIABLE = {"DiskFull", "Overloaded"}
LOG_ERRORS = [getattr(errors, name) for name in CODES]


def test_codes_never_change():
    assert {kind.__name__: kind.code for kind in LOG_ERRORS} == CODES


def test_every_error_has_a_code_of_its_own():
    tree = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RivvenError)]
    codes = [kind.code for kind in tree]
    assert len(set(codes)) == len(codes)


def test_only_what_may_pass_is_retriable():
    assert {kind.__name__ for kind in LOG_ERRORS if kind.retriable} == RETRIABLE


def test_a_code_is_given_once():
    with pytest.raises(AssertionError, match="taken by Malformed"):
        type("Again", (RivvenError,), {}, code=1)


def test_the_message_carries_the_facts():
    error = CorruptLog(
        partition=TopicPartition("t", 3), first=7, last=9, path="topics/t/x.log", position=512, reason="CRC"
    )
    text = str(error)
    assert all(part in text for part in ("t/3", "7 to 9", "topics/t/x.log", "byte 512", "CRC"))
    assert error.facts["position"] == 512


def test_a_fact_that_is_missing_is_our_own_mistake():
    with pytest.raises(KeyError):
        Malformed(what="batch")


@pytest.mark.parametrize("error", [DiskFull(wanted_bytes=5, path="a"), Overloaded(waiting_bytes=3, retry_ms=1)])
def test_an_error_travels_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.facts, str(again)) == (type(error), error.facts, str(error))

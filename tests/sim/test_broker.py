"""The broker's promises to clients on a network that is cut, on a disk that loses power: histories by seed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from quiet import Quiet

from rivven.broker import Reply, Session
from rivven.record import encode
from rivven.sim.broker import BrokerWorld, run_broker_history
from rivven.wire import Format, Request
from rivven.wire import requests as ask
from rivven.wire import responses as tell

HISTORIES = 40
SOAK_HISTORIES = 4_000
SHARDS = 4
SOAK_SHARDS = 10


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """A store has something to say of every crash, and here are thousands of them."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_histories_keep_every_promise(shard: int) -> None:
    for seed in range(shard * HISTORIES // SHARDS, (shard + 1) * HISTORIES // SHARDS):
        run_broker_history(seed)


@pytest.mark.soak
@pytest.mark.parametrize("shard", range(SOAK_SHARDS))
def test_thousands_of_histories_keep_every_promise(shard: int) -> None:
    base = int(os.environ.get("RIVVEN_SOAK_SEED", "1000000"))
    each = SOAK_HISTORIES // SOAK_SHARDS
    for seed in range(base + shard * each, base + (shard + 1) * each):
        run_broker_history(seed)


def test_a_seed_repeats_its_history_in_any_process() -> None:
    command = [sys.executable, "-m", "rivven.sim", "--world", "broker", "--seed", "5", "--seconds", "3"]
    told = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hashes}, capture_output=True, check=True, timeout=60
        ).stdout
        for hashes in ("1", "2")
    ]
    assert told[0] == told[1]
    assert b"adversary" in told[0]


def test_histories_do_have_faults_retries_and_many_lives() -> None:
    worlds = [run_broker_history(seed) for seed in range(3)]
    assert sum(world.node.lives for world in worlds) > 6
    assert sum(world.network.cuts for world in worlds) > 30
    more = (run_broker_history(seed) for seed in range(3, 20))  # not every history has one
    assert any(world.chronicle.duplicates() for worlds_ in (worlds, more) for world in worlds_)
    assert all(world.chronicle.commits and world.chronicle.looks for world in worlds)


# A broken broker is found out


def first_failure(seeds: Sequence[int], *, policy: str | None = None) -> BaseException:
    for seed in seeds:
        try:
            run_broker_history(seed, policy=policy)
        except Exception as error:
            return error
    raise AssertionError("nobody noticed")


def test_a_sync_that_does_nothing_is_noticed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivven.sim.disk._Inode.sync", lambda _inode: None)
    failure = first_failure(range(12), policy="every_write")
    assert any("python -m rivven.sim --world broker --seed" in note for note in failure.__notes__)


def test_acknowledging_before_the_sync_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerWorld, "loses_power", property(lambda _world: True))
    failure = first_failure(range(12), policy="none")
    assert any(word in str(failure) for word in ("lost write", "not what it was before the power went"))


def test_replies_out_of_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_any(session: Session) -> list[Reply]:
        ready = [reply for reply in session.owed if reply.response is not None]
        for reply in ready:
            session.owed.remove(reply)
        return ready

    monkeypatch.setattr(Session, "take_ready", take_any)
    assert "out of order" in str(first_failure(range(3)))


def test_a_long_poll_that_nobody_ends_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivven.broker.fetch.Waiting.expire", lambda _waiting, _now_us: None)
    monkeypatch.setattr("rivven.broker.fetch.Waiting.due_us", lambda _waiting: None)
    failure = str(first_failure(range(3)))
    assert "liveness" in failure or "not answered" in failure


# One client and no faults: what histories once found


def opaque(topic: str, *values: bytes) -> Request:
    batch = encode([(1, None, value, ()) for value in values])
    return ask.ProduceBatches(-1, 1000, (ask.TopicBatches(topic, (ask.PartitionBatches(0, batch),)),))


def test_a_batch_that_follows_a_record_on_one_connection_gets_the_higher_offset() -> None:
    world = Quiet()
    world.ask_all(ask.CreateTopic("orders", 1))
    answers = world.ask_all(
        ask.Publish("orders", 0, None, b"first"),
        opaque("orders", b"second"),
        ask.Publish("orders", 0, None, b"third"),
    )
    first, second, third = answers
    assert isinstance(second, tell.ProducedBatches)
    assert (first, third) == (tell.Published(0, 0), tell.Published(2, 0))
    assert second.topics[0].partitions[0].base_offset == 1


def test_whole_batches_are_taken_in_protobuf_too() -> None:
    world = Quiet(Format.PROTOBUF)
    world.ask_all(ask.CreateTopic("orders", 1))
    (answer,) = world.ask_all(opaque("orders", b"one", b"two"))
    assert isinstance(answer, tell.ProducedBatches)
    assert answer.topics[0].partitions[0].error == 0
    (found,) = world.ask_all(ask.Consume("orders", 0, 0, 10))
    assert isinstance(found, tell.Messages)
    assert [message.value for message in found.messages] == [b"one", b"two"]

"""Traffic on a schedule: the clock of a record starts when it is due, and what never comes counts as late."""

import itertools
import time
from array import array

import pytest

from bench import kraft, pace, peers, transfer

MS = 1_000_000


def traffic(**more):
    return pace.Traffic(**({"client": pace.OURS, "rate": 2000, "seconds": 0.1, "warmup_s": 0.05} | more))


def sent_by(hand_over, plan):
    late = array("q")
    pace.send_on_time(hand_over, lambda: None, plan, late)
    return late


def test_records_are_due_at_even_distances_and_numbered():
    sent = []
    late = sent_by(lambda value: sent.append(pace.HEAD.unpack_from(value)), traffic())
    dues, numbers = zip(*sent, strict=True)
    assert list(numbers) == list(range(300))
    steps = {later - earlier for earlier, later in itertools.pairwise(dues)}
    assert steps == {500_000}
    assert len(late) == 300
    assert min(late) >= 0


def test_a_broker_that_holds_the_producer_up_does_not_move_the_schedule():
    sent = []

    def hand_over(value):
        if not sent:
            time.sleep(0.05)  # as a full buffer does
        sent.append(pace.HEAD.unpack_from(value)[0])

    late = sent_by(hand_over, traffic())
    assert sent[-1] - sent[0] == 299 * 500_000
    assert max(late) >= 50 * MS
    assert late[50] >= 24 * MS, "what had to wait behind it is late as well"


def test_what_never_came_counts_as_long_as_it_was_waited_for():
    taken = array("q", [MS] * 98)
    told = pace.percentiles_ms(taken, 2, 15_000 * MS)
    assert told["95"] == 1.0
    assert told["99"] == 15_000
    assert pace.percentiles_ms(taken, 0, 15_000 * MS)["99.99"] == 1.0


@pytest.mark.parametrize("client", [pace.OURS, pace.CONFLUENT])
def test_everything_that_was_sent_is_taken(tmp_path, client):
    with peers.running(peers.Rivvend, under=tmp_path) as ((peer,), _):
        seen = pace.measure(peer, traffic(client=client, consumers=1))
    assert seen.missing == 0
    assert 0 < seen.percentiles["50"] <= seen.percentiles["99"] <= seen.percentiles["99.99"]


def test_values_have_the_length_asked_for_and_differ():
    for value_bytes in (10, 100, 1000):
        made = transfer.lines(value_bytes, 50)
        assert {len(value) for value in made} == {value_bytes}
        assert len(set(made)) == 50


@pytest.mark.parametrize(("value_bytes", "partitions"), [(10, 1), (100, 1000), (1000, 12), (100_000, 4)])
def test_an_amount_is_made_of_whole_calls(value_bytes, partitions):
    amount = transfer.Amount(
        value_bytes=value_bytes, sent_bytes=100_000_000, records_max=500_000, partitions=partitions
    )
    assert amount.records == amount.calls * len(amount.values)
    assert amount.records <= 500_000
    assert amount.calls >= partitions, "every partition gets something"


def test_kafka_is_left_out_with_the_reason_where_maven_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kraft.shutil, "which", lambda _: None)
    monkeypatch.setattr(kraft, "java_home", lambda: tmp_path)
    kraft.jars.cache_clear()
    try:
        with peers.running(kraft.Kafka, under=tmp_path) as (running, missing):
            assert running == []
        assert missing == [
            "Apache Kafka: there is no mvn to fetch its jars with; on Debian and Ubuntu: apt install maven"
        ]
    finally:
        kraft.jars.cache_clear()


def test_kafka_promises_what_it_is_compared_for(tmp_path):
    plain = kraft._properties(tmp_path, 1, 2, sync_always=False)
    synced = kraft._properties(tmp_path, 1, 2, sync_always=True)
    assert "flush" not in plain
    assert "log.flush.interval.messages=1\n" in synced

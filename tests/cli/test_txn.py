"""`rivven txn` against a real `rivvend`: transactions of Kafka's clients and of native ones, and some that hang."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from rivven import blocking
from rivven.cli.main import main
from rivven.cli.text import parse_span, span
from rivven.client import ConfigException, ServerException
from rivven.log.blocking import BlockingStore
from rivven.record import encode
from rivven.wire import requests as ask
from rivven.wire import responses as tell

with warnings.catch_warnings():  # kafka-python reads its data by a function that Python has put aside
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.admin import KafkaAdminClient

WAIT_S = 30
STRANGER = 990_000
"""The producer of partition 0 of `stray`; the others follow. Nobody touches what is in that partition."""
STRAYS = 3
QUIET = logging.Logger("quiet", logging.CRITICAL)
"""For producers that are fenced on purpose, and would say so on stderr."""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose topic `stray` has a transaction in each partition that no coordinator has ever heard of."""
    directory = tmp_path_factory.mktemp("broker")
    with BlockingStore(directory / "data") as store:
        store.create_topic("stray", STRAYS)
        now_ms = time.time_ns() // 1_000_000
        for number in range(STRAYS):
            plain = encode([(now_ms, b"k", b"before", ())])
            row = [(now_ms - 5_000, b"k", b"stray", ())]
            whose = {"producer_id": STRANGER + number, "producer_epoch": 3, "base_sequence": 0}
            lost = encode(row, transactional=True, **whose)
            behind = encode([(now_ms, b"k", b"behind", ())])
            store.append_batches([(store.log("stray", number), batch) for batch in (plain, lost, behind)])
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "rivven.server.main"),
                *("--data-dir", str(directory / "data"), "--bind", "127.0.0.1:0", "--http-port", "0"),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        found = re.search(r"native protocol on (\S+),", process.stdout.readline())
        assert found, (directory / "log").read_text()
        yield found[1]
    finally:
        process.terminate()
        process.wait(WAIT_S)
        process.stdout.close()


@pytest.fixture
def run(broker: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process: (exit code, stdout, stderr), without what librdkafka has to say on stderr."""
    monkeypatch.setenv("RIVVEN_SERVER", broker)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["txn", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def client(broker: str) -> Iterator[blocking.RivvenClient]:
    with blocking.connect(broker) as client:
        yield client


@pytest.fixture
def topic(client: blocking.RivvenClient, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions, of the test's own."""
    name = re.sub(r"\W", "-", request.node.name)[:60]
    client.create_topic(name, 2)
    return name


@pytest.fixture
def reader(broker: str, topic: str) -> Iterator[Consumer]:
    """A member of nothing, whose group has the topic's name."""
    with closing(Consumer({"bootstrap.servers": broker, "group.id": f"g-{topic}"})) as reader:
        yield reader


def well(done: tuple[int, str, str]) -> str:
    code, out, err = done
    assert (code, err) == (0, "")
    return out


def told(done: tuple[int, str, str]) -> dict[str, Any]:
    return dict(json.loads(well(done)))


def producer_at(broker: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker, "transactional.id": name, "log_level": 0, "logger": QUIET})
    producer.init_transactions(WAIT_S)
    return producer


def begun(broker: str, name: str, topic: str, *partitions: int) -> Producer:
    """A producer in the middle of a transaction."""
    producer = producer_at(broker, name)
    producer.begin_transaction()
    for number in partitions:
        producer.produce(topic, value=b"v", partition=number)
    assert producer.flush(WAIT_S) == 0
    return producer


def stable_end(broker: str, topic: str, partition: int) -> int:
    """How far readers of committed data come."""
    where = TopicPartition(topic, partition)
    asked = {where: OffsetSpec.latest()}
    admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
    found = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
    return int(found[where].result(WAIT_S).offset)


# Looking


def test_open_committed_and_aborted_ones_are_told_apart_and_the_open_come_first(
    run: Run, broker: str, topic: str
) -> None:
    done = begun(broker, "a-done", topic, 0)
    done.commit_transaction(WAIT_S)
    gone = begun(broker, "b-gone", topic, 0)
    gone.abort_transaction(WAIT_S)
    half = begun(broker, "c-half", topic, 0, 1)
    mine = ("a-done", "b-gone", "c-half")
    found = [each for each in told(run("list", "--json"))["transactions"] if each["id"] in mine]
    assert [(each["id"], each["state"]) for each in found] == [
        ("c-half", "Ongoing"),
        ("a-done", "CompleteCommit"),
        ("b-gone", "CompleteAbort"),
    ]
    assert found[0]["partitions"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
    assert found[1]["started_ms"] is None
    out = well(run("list", "--state", "open"))
    assert re.search(rf"^c-half +Ongoing +\S+ +1m +\d+/0 +{topic}:0-1", out, re.MULTILINE)
    assert "a-done" not in out
    assert "c-half" not in well(run("list", "--state", "completecommit"))
    assert "c-half" in well(run("list", "--older-than", "1ms"))
    assert "c-half" not in well(run("list", "--older-than", "1h"))
    half.abort_transaction(WAIT_S)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list", "--state", "odd"), "--state takes open, Empty, Ongoing"),
        (("list", "--older-than", "soon"), "--older-than takes a time like 500ms"),
        (("list", "--hanging", "--state", "open"), "takes no --state"),
        (("abort",), "by all of --topic, --partition and --start-offset"),
        (("abort", "--topic", "t", "--partition", 0), "by all of --topic, --partition and --start-offset"),
        (("abort", "x", "--topic", "t"), "not by both"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Run, arguments: tuple[object, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_describe_tells_where_it_writes_and_what_waits_for_it(
    run: Run, broker: str, topic: str, reader: Consumer
) -> None:
    producer = begun(broker, "desc", topic, 1, 1)
    offsets = [TopicPartition(topic, 0, 1)]
    producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), WAIT_S)
    found = told(run("describe", "desc", "--json"))
    assert (found["state"], found["groups"], found["timeout_ms"]) == ("Ongoing", [f"g-{topic}"], 60_000)
    rows = {(row["topic"], row["partition"]): row for row in found["partitions"]}
    assert {where[0] for where in rows} == {topic, "__consumer_offsets"}
    mine = rows[topic, 1]
    assert (mine["start_offset"], mine["waiting"]) == (0, 2)
    assert abs(mine["last_write_ms"] - time.time() * 1000) < 60_000
    out = well(run("describe", "desc"))
    assert f"  Offsets of: g-{topic}\n" in out
    assert re.search(rf"^{topic} +1 +0 +\S+ ago +2$", out, re.MULTILINE)
    assert f"group:g-{topic}" in well(run("list"))
    hanging = {each["topic"] for each in told(run("list", "--hanging", "--json"))["hanging"]}
    assert hanging == {"stray"}, "neither its records nor its offsets hang"
    producer.commit_transaction(WAIT_S)
    assert told(run("describe", "desc", "--json"))["partitions"] == []


def test_a_transaction_that_there_is_not(run: Run) -> None:
    for command in ("describe", "abort"):
        code, out, err = run(command, "nobody")
        assert (code, out) == (1, "")
        assert err.splitlines() == [
            "error: there is no transaction 'nobody'.",
            "`rivven txn list` shows the transactions there are.",
        ]


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        *((0, "0ms"), (-5, "0ms"), (999, "999ms"), (1_000, "1s"), (4_260, "4.3s"), (59_999, "59s"), (60_000, "1m")),
        *((65_000, "1m 5s"), (3_599_999, "59m 59s"), (12_000_000, "3h 20m"), (187_200_000, "2d 4h")),
    ],
)
def test_a_length_of_time_in_its_two_largest_units(length_ms: int, text: str) -> None:
    assert span(length_ms) == text


@pytest.mark.parametrize(("text", "length_ms"), [("5ms", 5), ("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000)])
def test_a_length_of_time_is_read(text: str, length_ms: int) -> None:
    assert parse_span(text) == length_ms


@pytest.mark.parametrize("text", ["", "5", "m", "5x", "5 m", "-5m", "1.5h", "5mm", "٥m"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no length of time"):
        parse_span(text)


# Ending by id


def test_an_abort_is_shown_first_and_then_fences_the_producer(run: Run, broker: str, topic: str) -> None:
    producer = begun(broker, "doomed", topic, 0)
    code, out, err = run("abort", "doomed")
    assert (code, err) == (0, "nothing was changed; --execute does it\n")
    assert "has to be made anew, with init_transactions" in out
    assert told(run("describe", "doomed", "--json"))["state"] == "Ongoing"
    assert stable_end(broker, topic, 0) == 0
    assert "✓ Aborted transaction 'doomed'\n" in well(run("abort", "doomed", "--execute"))
    assert stable_end(broker, topic, 0) == 2, "readers go on behind the marker"
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal()
    code, out, err = run("abort", "doomed", "--execute")
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "error: transaction 'doomed' has nothing open; it is Empty."
    assert "--state open" in err.splitlines()[1]
    heir = begun(broker, "doomed", topic, 0)
    heir.commit_transaction(WAIT_S)
    assert told(run("describe", "doomed", "--json"))["state"] == "CompleteCommit"


def test_one_whose_producer_is_gone_is_found_by_its_age_and_has_an_id(run: Run, broker: str, topic: str) -> None:
    begun(broker, "widow", topic, 0)
    assert "widow" not in {each["id"] for each in told(run("list", "--hanging", "--json"))["hanging"]}
    late = told(run("list", "--hanging", "--older-than", "0s", "--json"))["hanging"]
    (mine,) = [each for each in late if each["id"] == "widow"]
    assert (mine["topic"], mine["partition"], mine["start_offset"]) == (topic, 0, 0)
    place = ("--topic", topic, "--partition", 0, "--start-offset", 0)
    code, _, err = run("abort", *place, "--execute")
    assert code == 1
    assert f"the transaction at offset 0 of {topic}/0 is that of 'widow', and its coordinator knows it." in err
    assert "rivven txn abort ID" in err
    assert stable_end(broker, topic, 0) == 0
    well(run("abort", "widow", "--execute", "--json"))
    assert stable_end(broker, topic, 0) == 2


# Native ones


def test_native_ones_have_a_name_and_perhaps_an_owner(run: Run, client: blocking.RivvenClient, topic: str) -> None:
    state = client.init_producer_id()
    client.begin_transaction("checkout", state, 60_000)
    client.add_partitions_to_txn("checkout", state, [(topic, 0)])
    name = f"native:{state.producer_id}"
    found = told(run("describe", name, "--json"))
    assert (found["name"], found["owner"], found["sequence"]) == ("checkout", None, None)
    _, out, _ = run("abort", name)
    assert "is refused (PRODUCER_FENCED)" in out
    assert "init_transactions" not in out
    well(run("abort", name, "--execute"))
    with pytest.raises(ServerException, match="FENCED"):
        client.commit_transaction("checkout", state)


def test_the_owner_of_an_aborted_one_is_refused_its_decision(
    run: Run, client: blocking.RivvenClient, topic: str
) -> None:
    def asked(request: Any, kind: type[Any]) -> Any:
        return client._thread.run(client._inner._ask(request, kind))

    epoch = asked(ask.RegisterOwner("query-7"), tell.OwnerRegistered).owner_epoch
    state = client.init_producer_id()
    whom = (state.producer_id, state.producer_epoch)
    begin = ask.BeginOwnedTransaction("attempt-1", *whom, 60_000, "query-7", epoch, 12)
    asked(begin, tell.TransactionStarted)
    client.add_partitions_to_txn("attempt-1", state, [(topic, 1)])
    name = f"native:{state.producer_id}"
    out = well(run("list", "--state", "open"))
    assert re.search(rf"^{name} +Ongoing .* {topic}:1 +attempt-1 +query-7 #12$", out, re.MULTILINE)
    assert "  Owner: query-7, sequence 12\n" in well(run("describe", name))
    code, _, err = run("abort", "query-7")
    assert (code, err.splitlines()[0]) == (1, f"error: there is no transaction 'query-7'; as an owner it has {name}.")
    _, out, _ = run("abort", name)
    assert "refused a decision of sequence 12 that names it" in " ".join(out.split())
    well(run("abort", name, "--execute"))
    with pytest.raises(ServerException, match="DECISION"):
        asked(ask.Decide("query-7", epoch, 12, (ask.TxnProducer(*whom),)), tell.Decided)


# Hanging ones


def test_one_that_no_coordinator_knows_is_found_shown_and_ended_by_its_place(run: Run, broker: str) -> None:
    (found,) = [each for each in told(run("list", "--hanging", "--json"))["hanging"] if each["partition"] == 1]
    assert 4_000 < time.time() * 1000 - found.pop("last_write_ms") < 120_000
    place = {"topic": "stray", "partition": 1, "start_offset": 1}
    assert found == {**place, "producer_id": STRANGER + 1, "producer_epoch": 3, "id": None}
    code, out, err = run("list", "--hanging")
    assert code == 0
    assert re.search(rf"^stray +1 +1 +{STRANGER + 1}/3 +\S+.* ago +unknown to the coordinator$", out, re.MULTILINE)
    command = "rivven txn abort --topic stray --partition 0 --start-offset 1"
    assert err == f"readers of committed data wait there; see what `{command}` would do\n"
    where = ("--topic", "stray", "--partition", 1, "--start-offset")
    code, out, err = run("abort", *where, 1)
    assert (code, err) == (0, "nothing was changed; --execute does it\n")
    assert "nobody is fenced" in out
    assert stable_end(broker, "stray", 1) == 1
    done = told(run("abort", *where, 1, "--execute", "--json"))
    assert (done["executed"], done["waiting"], done["producer_id"]) == (True, 2, STRANGER + 1)
    assert stable_end(broker, "stray", 1) == 4
    code, _, err = run("abort", *where, 1, "--execute")
    assert code == 1
    assert err.splitlines() == [
        "error: no open transaction begins at offset 1 of stray/1; those that do: none.",
        "`rivven txn list --hanging` shows those that hang.",
    ]


def test_one_that_begins_and_ends_meanwhile_does_not_hang(
    broker: str, client: blocking.RivvenClient, topic: str
) -> None:
    producer = producer_at(broker, "busy")
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            producer.begin_transaction()
            producer.produce(topic, value=b"v", partition=0)
            producer.commit_transaction(WAIT_S)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        hanging = {each.topic for _ in range(40) for each in client.find_hanging_transactions()}
    finally:
        over.set()
        writer.join()
    assert hanging == {"stray"}
    assert stable_end(broker, topic, 0) > 2, "it has been busy"


def test_what_a_program_cannot_mean(client: blocking.RivvenClient) -> None:
    with pytest.raises(ConfigException, match="no state 'open'; there are Empty, Ongoing"):
        client.list_transactions(["open"])
    for ask_for in (client.list_transactions, client.find_hanging_transactions):
        with pytest.raises(ConfigException, match="older_than_ms must be at least 0, not -1"):
            ask_for(older_than_ms=-1)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (("stray", 9, 1), "partition 9 of 'stray' not found"),
        (("nowhere", 0, 1), "topic 'nowhere' not found"),
        (("stray", 0, 2), "no open transaction begins at offset 2 of stray/0; those that do: 1."),
    ],
)
def test_a_place_where_nothing_hangs(run: Run, where: tuple[str, int, int], words: str) -> None:
    topic, partition, offset = where
    code, out, err = run("abort", "-t", topic, "-p", partition, "-o", offset, "--execute")
    assert (code, out) == (1, "")
    assert words in err.splitlines()[0]
    assert len(err.splitlines()) == 2


# Others' tools, and eyes


def test_kafka_python_sees_the_same_and_may_end_what_hangs(
    broker: str, client: blocking.RivvenClient, topic: str, reader: Consumer
) -> None:
    from kafka import TopicPartition as Place
    from kafka.admin import AbortTransactionSpec
    from kafka.errors import InvalidProducerEpochError, InvalidTxnStateError

    producer = begun(broker, "seen", topic, 1)
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], reader.consumer_group_metadata(), WAIT_S)
    state = client.init_producer_id()
    client.begin_transaction("named", state, 60_000)
    native = f"native:{state.producer_id}"
    with closing(KafkaAdminClient(bootstrap_servers=broker)) as admin:
        listed = {each.transactional_id for found in admin.list_transactions().values() for each in found}
        assert {"seen", native} <= listed
        described = admin.describe_transactions(["seen", native])
        assert described["seen"].state.value == "Ongoing"
        assert Place(topic, 1) in set(described["seen"].topic_partitions)
        assert described[native].producer_id == state.producer_id, "our own words are passed over"
        (active,) = admin.describe_producers([Place("stray", 2)])[Place("stray", 2)].active_producers
        assert (active.producer_id, active.current_transaction_start_offset) == (STRANGER + 2, 1)
        with pytest.raises(InvalidProducerEpochError):
            admin.abort_transaction(AbortTransactionSpec(Place("stray", 2), STRANGER + 2, 2))
        assert stable_end(broker, "stray", 2) == 1
        admin.abort_transaction(AbortTransactionSpec(Place("stray", 2), STRANGER + 2, 3))
        assert stable_end(broker, "stray", 2) == 4
        with pytest.raises(InvalidTxnStateError):
            admin.abort_transaction(AbortTransactionSpec(Place(topic, 1), described["seen"].producer_id, 0))
    producer.abort_transaction(WAIT_S)
    client.abort_transaction("named", state)


def test_on_a_narrow_terminal_the_id_stays_whole(broker: str, topic: str) -> None:
    name = "an-id-that-has-to-be-typed-again"
    producer = begun(broker, name, topic, 0, 1)
    ours, theirs = pty.openpty()
    settings = {"RIVVEN_SERVER": broker, "COLUMNS": "80", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rivven.cli.main", "txn", "list", "--state", "open"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **settings},
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # the other end was closed
    os.close(ours)
    assert process.wait(WAIT_S) == 0
    title, rule, *rows = shown.decode().splitlines()
    assert title.startswith("ID ")
    assert set(rule) == {"─"}
    assert [row for row in rows if row.startswith(f"{name}  Ongoing  ")]
    producer.abort_transaction(WAIT_S)

"""The Python API that programs were written for: every name, and every parameter with its default."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import pickle
import textwrap
from typing import Any

import pytest
from serving import connected, served

import rivven
from rivven import client as client_package
from rivven.client import options, scram, values

NONE = inspect.Parameter.empty
EXPECTED: dict[str, dict[str, list[tuple[str, Any]]]] = {
    "RivvenClient": {
        "create_topic": [("name", NONE), ("partitions", None)],
        "list_topics": [],
        "delete_topic": [("name", NONE)],
        "get_metadata": [("name", NONE)],
        "producer": [("topic", NONE), ("batch_size", 16384), ("linger_ms", 5)],
        "consumer": [
            *[("topic", None), ("partition", 0), ("group", None), ("start_offset", None)],
            *[("batch_size", 100), ("auto_commit", True)],
        ],
        "authenticate": [("username", NONE), ("password", NONE)],
        "authenticate_scram": [("username", NONE), ("password", NONE)],
        "list_groups": [],
        "describe_group": [("group", NONE)],
        "delete_group": [("group", NONE)],
        "commit_offset": [("group", NONE), ("topic", NONE), ("partition", NONE), ("offset", NONE)],
        "get_offset": [("group", NONE), ("topic", NONE), ("partition", NONE)],
        "publish": [("topic", NONE), ("value", NONE), ("key", None)],
        "consume": [("topic", NONE), ("partition", NONE), ("offset", NONE), ("max_messages", NONE)],
        "ping": [],
        "get_offset_for_timestamp": [("topic", NONE), ("partition", NONE), ("timestamp_ms", NONE)],
        "describe_topic_configs": [("topic", NONE)],
        "alter_topic_config": [("topic", NONE), ("configs", NONE)],
        "create_partitions": [("topic", NONE), ("new_total", NONE)],
        "delete_records": [("topic", NONE), ("partition", NONE), ("before_offset", NONE)],
        "delete_records_batch": [("topic", NONE), ("partition_offsets", NONE)],
        "init_producer_id": [("previous_producer_id", None)],
        "publish_idempotent": [("topic", NONE), ("value", NONE), ("producer_state", NONE), ("key", None)],
        "begin_transaction": [("transactional_id", NONE), ("producer_state", NONE), ("timeout_ms", None)],
        "add_partitions_to_txn": [("transactional_id", NONE), ("producer_state", NONE), ("partitions", NONE)],
        "commit_transaction": [("transactional_id", NONE), ("producer_state", NONE)],
        "abort_transaction": [("transactional_id", NONE), ("producer_state", NONE)],
    },
    "Producer": {
        "send": [("value", NONE), ("key", None)],
        "send_to_partition": [("value", NONE), ("partition", NONE), ("key", None)],
        "send_batch": [("messages", NONE)],
        "flush": [],
        "close": [],
    },
    "Consumer": {
        "fetch": [("max_messages", None)],
        "commit": [],
        "seek": [("offset", NONE)],
        "seek_to_beginning": [],
        "seek_to_end": [],
        "get_offset_bounds": [],
        "close": [],
    },
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in EXPECTED.items() for name in names])
def test_a_method_is_a_coroutine_with_these_parameters(kind, name):
    method = getattr(getattr(rivven, kind), name)
    assert inspect.iscoroutinefunction(method)
    positional = [
        (parameter.name, parameter.default)
        for parameter in inspect.signature(method).parameters.values()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and parameter.name != "self"
    ]
    assert positional == EXPECTED[kind][name]


def test_the_module():
    assert inspect.iscoroutinefunction(client_package.connect)
    assert next(iter(inspect.signature(client_package.connect).parameters)) == "address"
    parameters = [p for p in inspect.signature(rivven.connect_tls).parameters.values() if p.kind != p.KEYWORD_ONLY]
    assert [(parameter.name, parameter.default) for parameter in parameters] == [
        *[("address", NONE), ("ca_cert_path", NONE), ("server_name", NONE)],
        *[("client_cert_path", None), ("client_key_path", None)],
    ]
    assert rivven.version() == rivven.__version__
    assert rivven.RivvenError is rivven.RivvenException
    for name in ("Connection", "Server", "Timeout", "Serialization", "Config"):
        assert issubclass(getattr(rivven, f"{name}Exception"), rivven.RivvenException)


def test_properties():
    for kind, names in (
        ("Producer", ["topic"]),
        ("Consumer", ["topic", "partition", "group", "is_closed"]),
        ("ProducerState", ["producer_id", "producer_epoch", "next_sequence"]),
    ):
        for name in names:
            assert isinstance(inspect.getattr_static(getattr(rivven, kind), name), property), (kind, name)
    assert hasattr(rivven.Consumer, "__aiter__")
    assert hasattr(rivven.Consumer, "__anext__")


def test_a_message():
    message = rivven.Message(b"v\xc3\xa4", 1, 2, 3, "t", key=b"k")
    assert (message.value, message.key, message.offset, message.timestamp) == (b"v\xc3\xa4", b"k", 1, 2)
    assert (message.partition, message.topic) == (3, "t")
    assert (message.value_str(), message.key_str(), message.size()) == ("vä", "k", 4)
    assert rivven.Message(b"v", 1, 2, 3, "t").key_str() is None
    assert repr(message).startswith("Message(value=")
    assert pickle.loads(pickle.dumps(message)) == message


@pytest.mark.parametrize("module", [options, values, scram])
def test_the_examples_run(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def example_of(thing: Any) -> str:
    """The indented part of a docstring."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    found = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))
    assert found
    return found


@pytest.mark.parametrize(
    "thing", [rivven, client_package.connect, rivven.Producer, rivven.Consumer], ids=lambda t: t.__name__
)
def test_the_examples_with_a_server_run(tmp_path, capsys, thing):
    async def play():
        async with connected(tmp_path) as client:
            await client.create_topic("orders", 1)
            for value in (b"first", b"last"):
                await client.publish("orders", value)
            text = example_of(thing).replace("localhost:9092", str(client._cluster._roster.addresses[0]))
            names: dict[str, Any] = {"client": client, "rivven": rivven}
            body = textwrap.indent(text + "\nreturn locals()", "    ")
            exec(f"async def example(client=client):\n{body}", names)
            made = await names["example"]()
            for name in ("producer", "consumer", "client"):
                if name in made:
                    await made[name].close()

    asyncio.run(play())
    assert capsys.readouterr().out == ("0 b'first'\n1 b'last'\n" if thing is rivven.Consumer else "")


def test_the_blocking_example_runs(tmp_path, capsys):
    with served(tmp_path) as address:
        exec(example_of(rivven.blocking).replace("localhost:9092", address), {"rivven": rivven})
    assert "Message(value=b'paid'" in capsys.readouterr().out


def test_names_that_are_not_there_are_told_as_usual():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = rivven.Nonsense
    assert set(rivven.__all__) <= set(dir(rivven))


def test_errors_travel_between_processes():
    error = rivven.TryAgain(reason="BUFFER_FULL: x", retry_ms=5)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.facts, str(again), again.retriable) == (rivven.TryAgain, error.facts, str(error), True)

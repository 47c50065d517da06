"""The commands that talk to a broker, as their users meet them: a real `rivvend`, exit codes, text and JSON."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rivven.cli.main import main

WAIT_S = 30
Run = Callable[..., tuple[int, str, str]]


@contextmanager
def running_broker(directory: Path) -> Iterator[str]:
    """A broker on a free port; its address."""
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "rivven.server.main"),
                *("--data-dir", str(directory / "data"), "--bind", "127.0.0.1:0", "--http-port", "0"),
                *("--group-initial-rebalance-delay-ms", "0"),
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


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture
def run(broker: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("RIVVEN_SERVER", broker)

    def run(*arguments: object, stdin: bytes | None = None) -> tuple[int, str, str]:
        if stdin is not None:
            lines = SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: False)
            monkeypatch.setattr(sys, "stdin", lines)
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def topic(run: Run, request: pytest.FixtureRequest) -> str:
    """A topic of one partition, of the test's own."""
    name = re.sub(r"\W", "-", request.node.name)[:60]
    assert run("topic", "create", name, "-p", 1)[0] == 0
    return name


def well(done: tuple[int, str, str]) -> str:
    code, out, err = done
    assert (code, err) == (0, "")
    return out


def told(done: tuple[int, str, str]) -> dict[str, Any]:
    return dict(json.loads(well(done)))


def start(broker: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rivven.cli.main", *arguments],
        text=True,
        env={**os.environ, "RIVVEN_SERVER": broker, "NO_COLOR": "1"},
        **options,
    )


# Is it there?


def test_ping(run: Run, broker: str) -> None:
    assert well(run("ping")) == f"✓ Pong from {broker}\n"
    answer = told(run("ping", "--json"))
    assert answer["address"] == broker
    assert set(answer) == {"address", "elapsed_ms"}


def test_the_option_is_stronger_than_the_variable(run: Run, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVVEN_SERVER", "127.0.0.1:1")
    assert well(run("ping", "-s", broker)) == f"✓ Pong from {broker}\n"


@pytest.mark.parametrize("command", ["ping", "topic list", "produce x y", "consume x", "status", "group list"])
def test_without_a_broker_the_next_step_is_named(run: Run, command: str) -> None:
    code, out, err = run(*command.split(), "--server", "127.0.0.1:1")
    assert (code, out) == (1, "")
    first, second = err.splitlines()
    assert first.startswith("error: no connection to 127.0.0.1:1:")
    assert "rivvend" in second
    assert "--server" in second


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_host_that_cannot_be_one(run: Run, host: str) -> None:
    code, _, err = run("ping", "--server", f"{host}:9092")
    assert code == 1
    assert "no name of a host" in err


@pytest.mark.parametrize("command", ["topic list >&-", "produce closed <&-", "topic list 2>&-"])
def test_streams_that_are_closed_are_no_reason_to_fall_over(broker: str, command: str) -> None:
    rivven = Path(sys.executable).with_name("rivven")
    done = subprocess.run(["sh", "-c", f"{rivven} {command} -s {broker}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_name_that_is_none(run: Run) -> None:
    code, _, err = run("ping", "--server", "127.0.0.1:port")
    assert code == 2
    assert "use host:port" in err


def test_status(run: Run, topic: str, broker: str) -> None:
    well(run("produce", topic, "a"))
    out = well(run("status"))
    assert f"at {broker}, controller" in out
    assert re.search(rf"^{topic} +1 +1$", out, re.MULTILINE)
    answer = told(run("status", "--json"))
    assert set(answer) == {"controller", "brokers", "topics", "groups"}
    mine = {"name": topic, "internal": False, "partitions": 1, "offline_partitions": 0, "records": 1}
    assert mine in answer["topics"]


def test_metrics_or_where_they_are(run: Run) -> None:
    code, out, err = run("metrics", "rivven")
    if code == 0:
        assert "rivven" in out
        assert told(run("metrics", "--json"))["metrics"]
    else:
        assert "/metrics" in err


# Topics


def test_a_new_broker_has_no_topics(run: Run, tmp_path: Path) -> None:
    with running_broker(tmp_path) as address:
        assert well(run("topic", "list", "-s", address)) == "No topics found\n"
        assert told(run("topic", "list", "-s", address, "--json")) == {"topics": []}
        assert well(run("group", "list", "-s", address)) == "No consumer groups found\n"
        assert well(run("quota", "list", "-s", address)) == "No quotas found\n"


def test_create_list_and_delete(run: Run) -> None:
    assert well(run("topic", "create", "clad", "--partitions", 2)) == "✓ Created topic 'clad' with 2 partitions\n"
    out = well(run("topic", "list"))
    assert out.startswith("Topics:\n")
    assert "  • clad\n" in out
    assert well(run("topic", "delete", "clad")) == "✓ Deleted topic 'clad'\n"
    assert "clad" not in told(run("topic", "list", "--json"))["topics"]


def test_create_says_what_it_made(run: Run) -> None:
    assert told(run("topic", "create", "json-1", "--json")) == {"topic": "json-1", "partitions": 3, "created": True}
    again = told(run("topic", "create", "json-1", "--json", "--if-not-exists"))
    assert again == {"topic": "json-1", "partitions": 3, "created": False}


def test_create_with_settings_is_all_or_nothing(run: Run) -> None:
    code, _, err = run("topic", "create", "half", "-c", "retention.ms=soon")
    assert (code, err.splitlines()[0]) == (1, "error: invalid retention.ms: 'soon' is not a number.")
    assert "half" not in told(run("topic", "list", "--json"))["topics"]
    well(run("topic", "create", "half", "-c", "retention.ms=5000"))
    assert told(run("topic", "config", "describe", "half", "--json"))["configs"]["retention.ms"] == "5000"


def test_info_stats_and_describe(run: Run, topic: str) -> None:
    well(run("produce", topic, stdin=b"a\nb\n"))
    assert well(run("topic", "info", topic)) == f"Topic: {topic}\n  Partitions: 1\n  Records: 2\n"
    assert told(run("topic", "info", topic, "--json")) == {"topic": topic, "partitions": 1, "records": 2}
    assert well(run("topic", "stats", topic)).splitlines()[1].split() == ["0", "0", "2", "2"]
    row = {"partition": 0, "earliest": 0, "latest": 2, "records": 2}
    assert told(run("topic", "stats", topic, "--json")) == {"topic": topic, "records": 2, "partitions": [row]}
    assert "cleanup.policy" in well(run("topic", "describe", topic))
    described = told(run("topic", "describe", topic, "--json"))
    assert set(described) == {"topic", "partitions", "configs"}
    assert set(described["partitions"][0]) == {*row, "leader", "replicas", "isr"}


@pytest.mark.parametrize("group", [("topic", "config"), ("config",)])
def test_settings(run: Run, topic: str, group: tuple[str, ...]) -> None:
    out = well(run(*group, "set", topic, "retention.ms=1000", "cleanup.policy=compact"))
    assert out == f"✓ Changed 2 settings of topic '{topic}'\n"
    assert re.search(r"^retention.ms +1000$", well(run(*group, "describe", topic)), re.MULTILINE)
    assert told(run(*group, "reset", topic, "retention.ms", "--json")) == {"topic": topic, "changed": 1}
    assert told(run(*group, "describe", topic, "--json"))["configs"]["retention.ms"] == "604800000"
    code, _, err = run(*group, "set", topic, "colour=red")
    assert code == 1
    assert "unknown configuration key" in err
    assert run(*group, "set", topic, "retention.ms")[0] == 2


def test_alter_and_more_partitions(run: Run, topic: str) -> None:
    out = well(run("topic", "alter", topic, "-p", 2, "-c", "retention.ms=1000", "--reset", "segment.ms"))
    assert out == f"✓ Changed 2 settings of topic '{topic}'\n✓ Topic '{topic}' has 2 partitions now\n"
    out = well(run("topic", "partitions", "create", topic, "--total", 4))
    assert out == f"✓ Topic '{topic}' has 4 partitions now\n"
    code, _, err = run("topic", "partitions", "create", topic, "--total", 3)
    assert (code, err.splitlines()[0]) == (1, "error: new partition count 3 must be greater than current count 4.")
    assert run("topic", "alter", topic)[0] == 2


def test_old_records_are_deleted(run: Run, topic: str) -> None:
    well(run("produce", topic, stdin=b"a\nb\nc\n"))
    out = well(run("topic", "records", "delete", topic, "-p", 0, "--before", 2))
    assert out == f"✓ Partition 0 of topic '{topic}' begins at offset 2 now\n"
    assert well(run("consume", topic)) == "[offset=2] key=null value=c\n"
    assert run("consume", topic, "-o", 0) == (
        0,
        "[offset=2] key=null value=c\n",
        "offset 0 is gone; the first that is left is 2\n",
    )
    code, _, err = run("topic", "records", "delete", topic, "-p", 0, "--before", 9)
    assert code == 1
    assert "`rivven offsets list`" in err


@pytest.mark.parametrize(
    ("command", "text", "step"),
    [
        ("topic delete nowhere", "topic not found: nowhere", "`rivven topic list`"),
        ("topic info nowhere", "topic not found: nowhere", "`rivven topic list`"),
        ("topic config describe nowhere", "topic not found: nowhere", "`rivven topic list`"),
        ("topic config set nowhere retention.ms=1", "topic 'nowhere' not found", "`rivven topic list`"),
        ("topic create not/a/name", "invalid topic 'not/a/name'", "another name"),
        ("consume nowhere", "topic not found: nowhere", "`rivven topic list`"),
        ("offsets list nowhere", "topic not found: nowhere", "`rivven topic list`"),
        ("offsets commit g nowhere 1", "topic 'nowhere' does not exist", "`rivven topic list`"),
        ("group describe nobody", "consumer group 'nobody' not found", "`rivven group list`"),
        ("group delete nobody", "consumer group 'nobody' not found", "`rivven group list`"),
        ("group lag nobody", "consumer group 'nobody' not found", "`rivven group list`"),
    ],
)
def test_errors_name_the_next_step(run: Run, command: str, text: str, step: str) -> None:
    code, out, err = run(*command.split())
    assert (code, out) == (1, "")
    first, second = err.splitlines()
    assert first.startswith(f"error: {text}")
    assert step in second


def test_a_topic_twice(run: Run, topic: str) -> None:
    code, _, err = run("topic", "create", topic)
    assert (code, err.splitlines()[0]) == (1, f"error: topic '{topic}' already exists.")


def test_a_partition_that_is_not_there(run: Run, topic: str) -> None:
    for command in (["consume", topic], ["produce", topic, "a"], ["offsets", "list", topic]):
        code, _, err = run(*command, "-p", 7)
        assert (code, err) == (
            1,
            f"error: topic '{topic}' has no partition 7; it has only number 0.\n"
            "`rivven topic info` shows the partitions.\n",
        )


def test_more_partitions_than_the_broker_allows(run: Run, topic: str) -> None:
    for command in (["create", f"{topic}-2"], ["alter", topic]):
        code, _, err = run("topic", *command, "-p", 1001)
        assert code == 1
        assert re.match(r"error: the number of partitions: .* 1000, got 1001\.\n", err)


@pytest.mark.parametrize(
    "command",
    [
        "topic create",
        "topic create x -p 0",
        "produce x a --file b",
        "produce x a -k k --key-separator :",
        "produce x --tombstone",
        "produce x a -H nothing",
        "produce x --file /does/not/exist",
        "consume x --offset 1 --from-beginning",
        "consume x --timestamp yesterday",
        "consume x --format xml",
        "group reset-offsets g -t x",
        "group reset-offsets g -t x --to nowhere",
        "group reset-offsets g -t x:a --to latest",
        "quota set --request-rate 5",
        "quota set --user a",
        "quota delete --user a --key speed",
        "completion tcsh",
        "nonsense",
    ],
)
def test_misuse_exits_with_2(run: Run, command: str) -> None:
    code, out, err = run(*command.split())
    assert (code, out) == (2, "")
    assert "rror" in err


# Records in


def test_produce_one(run: Run, topic: str) -> None:
    assert well(run("produce", topic, "a teapot", "-k", "customer-17", "-H", "source=web", "-H", "n=")) == (
        f"✓ Published to topic '{topic}' at offset 0\n"
    )
    assert told(run("produce", topic, "naïve", "--json")) == {"topic": topic, "partition": 0, "offset": 1}
    assert well(run("consume", topic)) == (
        "[offset=0] key=customer-17 value=a teapot\n[offset=1] key=null value=naïve\n"
    )
    first = told(run("consume", topic, "--json", "-m", 1))
    assert [(each["name"], each["value"]) for each in first["headers"]] == [("source", "web"), ("n", "")]


def test_produce_to_a_partition(run: Run) -> None:
    well(run("topic", "create", "parts", "-p", 3))
    for number in (2, 0):
        well(run("produce", "parts", f"to {number}", "-p", number))
    assert well(run("consume", "parts", "-p", 2)) == "[offset=0] key=null value=to 2\n"
    assert well(run("consume", "parts")) == (
        "partition=0 [offset=0] key=null value=to 0\npartition=2 [offset=0] key=null value=to 2\n"
    )
    assert well(run("consume", "parts", "-o", 0)) == "[offset=0] key=null value=to 0\n"


def test_produce_lines_of_stdin(run: Run, topic: str) -> None:
    assert well(run("produce", topic, stdin=b"one\n\nthree")) == f"✓ Published 3 records to topic '{topic}'\n"
    answer = told(run("produce", topic, "--json", "-k", "k", stdin=b"a\nb\n"))
    row = {"partition": 0, "first_offset": 3, "last_offset": 4, "records": 2}
    assert answer == {"topic": topic, "records": 2, "partitions": [row]}
    assert well(run("consume", topic, "--format", "value")) == "one\n\nthree\na\nb\n"


def test_produce_a_file_with_keys(run: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a:1\nb:2:3\n:4\n")
    well(run("produce", topic, "--file", tmp_path / "lines", "--key-separator", ":", "-z", "zstd"))
    assert well(run("consume", topic)) == (
        "[offset=0] key=a value=1\n[offset=1] key=b value=2:3\n[offset=2] key= value=4\n"
    )


def test_a_line_without_a_key_is_told(run: Run, topic: str) -> None:
    code, out, err = run("produce", topic, "--key-separator", ":", stdin=b"a:1\nno key\nb:2\n")
    assert (code, out) == (2, "")
    assert "1 record had been published before" in err
    assert "record 2 has no ':'" in err
    assert well(run("consume", topic)) == "[offset=0] key=a value=1\n"


def test_a_tombstone(run: Run, topic: str) -> None:
    well(run("produce", topic, "--tombstone", "-k", "gone"))
    assert well(run("consume", topic)) == "[offset=0] key=gone value=null\n"
    assert told(run("consume", topic, "--json"))["value"] is None


def test_a_record_that_is_too_large(run: Run, topic: str) -> None:
    well(run("topic", "config", "set", topic, "max.message.bytes=500"))
    code, _, err = run("produce", topic, "x" * 1000)
    assert code == 1
    assert "max.message.bytes" in err


def test_typing_records_on_a_terminal(broker: str, topic: str) -> None:
    ours, theirs = pty.openpty()
    process = start(broker, "produce", topic, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(theirs)
    assert process.stdout is not None
    os.write(ours, b"first\n")
    assert process.stdout.readline() == f"✓ Published to topic '{topic}' at offset 0\n"  # before the next is typed
    os.write(ours, b"second\n\x04")
    out, err = process.communicate(timeout=WAIT_S)
    os.close(ours)
    assert (process.returncode, out) == (0, f"✓ Published to topic '{topic}' at offset 1\n")
    assert "Ctrl-D" in err


# Records out


def test_formats(run: Run, topic: str) -> None:
    well(run("produce", topic, "--key-separator", ":", stdin=b"k:v\n\x1b[31m:\xff\n"))
    assert well(run("consume", topic)) == "[offset=0] key=k value=v\n[offset=1] key=0x1b5b33316d value=0xff\n"
    assert well(run("consume", topic, "--format", "hex")) == (
        "[offset=0] key=6b value=76\n[offset=1] key=1b5b33316d value=ff\n"
    )
    lines = [json.loads(line) for line in well(run("consume", topic, "--json")).splitlines()]
    assert [(line["key"], line["value"], line["value_encoding"]) for line in lines] == [
        ("k", "v", "utf-8"),
        ("\x1b[31m", "ff", "hex"),
    ]
    assert {"topic", "partition", "offset", "timestamp_ms", "headers"} <= set(lines[0])


def test_where_to_begin_and_to_stop(run: Run, topic: str) -> None:
    well(run("produce", topic, stdin=b"".join(b"%d\n" % number for number in range(150))))
    code, out, err = run("consume", topic, "--format", "value")
    assert (code, len(out.splitlines())) == (0, 100)
    assert "stopped after 100 records" in err
    assert len(well(run("consume", topic, "--max", 0)).splitlines()) == 150
    assert well(run("consume", topic, "-o", 148, "--format", "value")) == "148\n149\n"
    assert well(run("consume", topic, "--from-beginning", "-m", 1, "--format", "value")) == "0\n"
    assert run("consume", topic, "-o", 150) == (0, "", "no records there\n")
    code, _, err = run("consume", topic, "-o", 151)
    assert (code, err.splitlines()[0]) == (1, f"error: offset 151 of {topic}/0 is after its end, 150.")


def test_from_a_time_on(run: Run, topic: str) -> None:
    well(run("produce", topic, "early"))
    at_ms = json.loads(well(run("consume", topic, "--json")))["timestamp_ms"]
    while time.time_ns() // 1_000_000 <= at_ms + 1:
        pass
    well(run("produce", topic, "late"))
    assert well(run("consume", topic, "--timestamp", at_ms + 1)) == "[offset=1] key=null value=late\n"
    assert len(well(run("consume", topic, "--timestamp", "2020-01-01T00:00:00Z")).splitlines()) == 2
    assert run("consume", topic, "--timestamp", "2100-01-01")[2] == "no records there\n"


def test_a_group_goes_on_where_it_stopped(run: Run, topic: str) -> None:
    well(run("produce", topic, stdin=b"a\nb\nc\n"))
    read = ("consume", topic, "--group", "reader", "--format", "value")
    assert well(run(*read, "-m", 2)) == "a\nb\n"
    assert well(run(*read)) == "c\n"
    assert well(run(*read, "--from-beginning", "-m", 1)) == "a\n"


def test_follow_ends_after_max(broker: str, run: Run, topic: str) -> None:
    well(run("produce", topic, "there"))
    process = start(broker, "consume", topic, "--follow", "--max", "2", stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "[offset=0] key=null value=there\n"
    well(run("produce", topic, "come"))
    assert process.communicate(timeout=WAIT_S)[0] == "[offset=1] key=null value=come\n"
    assert process.returncode == 0


def test_follow_ends_with_ctrl_c(broker: str, run: Run, topic: str) -> None:
    well(run("produce", topic, "there"))
    process = start(broker, "consume", topic, "-f", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (130, "", "")


def test_follow_waits_for_a_broker_that_is_away(run: Run, tmp_path: Path) -> None:
    with running_broker(tmp_path) as address:
        well(run("produce", "t", "there", "-s", address))
        process = start(address, "consume", "t", "-f", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline()
    assert process.stderr is not None
    assert "Trying again until Ctrl-C" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 130


def test_a_pipe_that_breaks_is_no_news(broker: str, run: Run, topic: str) -> None:
    well(run("produce", topic, stdin=b"%s\n" % (b"x" * 99) * 5000))
    process = start(broker, "consume", topic, "-m", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("[offset=0]")
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(WAIT_S) != 0


# Groups and offsets


def test_groups(run: Run, topic: str) -> None:
    well(run("produce", topic, stdin=b"a\nb\nc\n"))
    assert "goes on at offset 1" in well(run("offsets", "commit", "g-1", topic, 1))
    assert "  • g-1\n" in well(run("group", "list"))
    assert "g-1" in told(run("group", "list", "--json"))["groups"]
    assert well(run("group", "describe", "g-1")).splitlines()[-1].split() == [topic, "0", "1"]
    described = told(run("group", "describe", "g-1", "--json"))
    assert described["offsets"] == [{"topic": topic, "partition": 0, "committed": 1}]
    assert (described["state"], described["members"]) == ("Empty", [])
    row = well(run("group", "lag", "g-1")).splitlines()[-1].split()
    assert row[:5] == [topic, "0", "1", "3", "2"]
    lag = told(run("group", "lag", "g-1", "--json"))
    assert (lag["group"], lag["lag"]) == ("g-1", 2)
    (part,) = lag["partitions"]
    assert 0 < part.pop("lag_s") == lag["lag_s"] < WAIT_S
    assert part == {"topic": topic, "partition": 0, "committed": 1, "end": 3, "lag": 2}
    assert well(run("group", "delete", "g-1")) == "✓ Deleted consumer group 'g-1'\n"
    assert run("group", "describe", "g-1")[0] == 1


@pytest.mark.parametrize(
    ("where", "offset"),
    [
        ("earliest", 0),
        ("latest", 3),
        ("2", 2),
        ("offset:99", 3),
        ("+1", 2),
        ("-5", 0),
        ("shift:1", 2),
        ("2020-01-01", 0),
        ("2100-01-01", 3),
        ("timestamp:0", 0),
    ],
)
def test_reset_offsets(run: Run, topic: str, where: str, offset: int) -> None:
    well(run("produce", topic, stdin=b"a\nb\nc\n"))
    well(run("offsets", "commit", topic, topic, 1))
    reset = ("group", "reset-offsets", topic, "--topic", topic, "--to", where)
    rows = [{"topic": topic, "partition": 0, "before": 1, "offset": offset}]
    planned = told(run(*reset, "--json"))
    assert planned == {"group": topic, "executed": False, "members": 0, "partitions": rows}
    code, out, err = run(*reset)
    assert (code, out.splitlines()[1].split()) == (0, [topic, "0", "1", str(offset), f"{offset - 1:+}"])
    assert err == "nothing was changed; --execute does it\n"
    assert told(run("offsets", "get", topic, topic, "--json"))["partitions"][0]["committed"] == 1
    assert well(run(*reset, "--execute")).endswith(f"✓ Reset 1 offset of group '{topic}'\n")
    assert told(run("offsets", "get", topic, topic, "--json"))["partitions"][0]["committed"] == offset


def test_reset_some_partitions_of_several_topics(run: Run, topic: str) -> None:
    well(run("topic", "create", f"{topic}-2", "-p", 4))
    reset = ("group", "reset-offsets", topic, "-t", f"{topic}-2:0,2-3", "-t", topic, "--to", "latest")
    rows = told(run(*reset, "--execute", "--json"))["partitions"]
    assert [(row["topic"], row["partition"]) for row in rows] == [
        *((f"{topic}-2", number) for number in (0, 2, 3)),
        (topic, 0),
    ]
    assert run("group", "reset-offsets", topic, "-t", f"{topic}:1", "--to", "latest")[0] == 1


def test_a_group_with_members_is_described_and_left_alone(broker: str, run: Run, topic: str) -> None:
    well(run("produce", topic, "there"))
    process = start(
        broker, "consume", topic, "--group", topic, "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "[offset=0] key=null value=there\n"
    out = well(run("group", "describe", topic))
    assert "  State: Stable\n  Assignor: cooperative-sticky\n" in out
    assert re.search(rf"^rivven-cli-\S+ +127\.0\.0\.1 +{topic}:0$", out, re.MULTILINE)
    (member,) = told(run("group", "describe", topic, "--json"))["members"]
    assert (member["client"], member["partitions"]) == ("rivven-cli", [{"topic": topic, "partition": 0}])
    reset = ("group", "reset-offsets", topic, "-t", topic, "--to", "earliest")
    assert "has 1 member: stop them" in run(*reset)[2]
    for command in ((*reset, "--execute"), ("group", "delete", topic)):
        code, _, err = run(*command)
        assert (code, "member" in err.splitlines()[0]) == (1, True)
        assert err.splitlines()[1] == "Stop its consumers first; `rivven group describe` shows them."
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=WAIT_S) == ("", "")
    assert process.returncode == 130
    well(run(*reset, "--execute"))


def test_two_members_share_what_is_shown(broker: str, run: Run, topic: str) -> None:
    name = f"{topic}-2"
    well(run("topic", "create", name, "-p", 2))
    both = [start(broker, "consume", name, "-g", name, "-f", "-m", "1", stdout=subprocess.PIPE) for _ in range(2)]
    while len(told(run("group", "describe", name, "--json"))["members"]) < 2 if group_is_there(run, name) else True:
        assert all(process.poll() is None for process in both)
    while sorted(
        len(member["partitions"]) for member in told(run("group", "describe", name, "--json"))["members"]
    ) != [1, 1]:
        assert all(process.poll() is None for process in both)
    for number in range(2):
        well(run("produce", name, f"to {number}", "-p", number))
    shown = sorted(process.communicate(timeout=WAIT_S)[0] for process in both)
    assert shown == [f"partition={number} [offset=0] key=null value=to {number}\n" for number in range(2)]


def group_is_there(run: Run, name: str) -> bool:
    return name in told(run("group", "list", "--json"))["groups"]


def test_offsets(run: Run, topic: str) -> None:
    well(run("produce", topic, "a"))
    assert well(run("offsets", "list", topic)).splitlines()[1].split() == ["0", "0", "1"]
    row = {"partition": 0, "earliest": 0, "latest": 1, "at_timestamp": None}
    assert told(run("offsets", "list", topic, "--timestamp", "2100-01-01", "--json"))["partitions"] == [row]
    assert well(run("offsets", "get", "nobody", topic)).splitlines()[1].split() == ["0", "-"]
    code, _, err = run("offsets", "commit", "g", topic, 5)
    assert code == 1
    assert "`rivven offsets list`" in err


# Quotas


def test_quotas(run: Run) -> None:
    assert well(run("quota", "set", "--user", "alice", "--request-rate", 500)) == "✓ Set 1 limit for user 'alice'\n"
    well(run("quota", "set", "--client-id", "*", "--produce-bytes-rate", 10**9, "--consume-bytes-rate", 10**9))
    well(run("quota", "set", "--default", "--request-rate", 10**6))
    listed = told(run("quota", "list", "--json"))["quotas"]
    assert {"entity_type": "user", "entity_name": "alice", "limits": {"request_rate": 500}} in listed
    assert {"entity_type": "default", "entity_name": None, "limits": {"request_rate": 10**6}} in listed
    assert re.search(r"^client-id +\* +1,000,000,000 +1,000,000,000 +-$", well(run("quota", "list")), re.MULTILINE)
    applied = told(run("quota", "list", "--user", "alice", "--json"))["quotas"][0]
    assert applied["limits"]["request_rate"] == 500
    assert told(run("quota", "delete", "--client-id", "*", "--json"))["changed"] == 2
    assert well(run("quota", "delete", "--user", "alice")) == "✓ Deleted 1 limit of user 'alice'\n"
    well(run("quota", "delete", "--default"))
    assert well(run("quota", "list")) == "No quotas found\n"


# Speed


def test_bench(run: Run, topic: str) -> None:
    produced = told(run("bench", "produce", topic, "-n", 3000, "--size", 50, "--json"))
    assert (produced["bench"], produced["records"], produced["bytes"]) == ("produce", 3000, 150_000)
    assert {"elapsed_s", "records_per_s", "bytes_per_s", "p50_ms", "p99_ms", "max_ms"} < set(produced)
    consumed = told(run("bench", "consume", topic, "--json"))
    assert (consumed["bench"], consumed["records"], consumed["bytes"]) == ("consume", 3000, 150_000)
    out = well(run("bench", "consume", topic, "-n", 1000))
    assert out.startswith("Consumed 1,000 records, 49 KiB, in ")
    assert "records/s" in out


def test_bench_of_nothing(run: Run, topic: str) -> None:
    code, out, err = run("bench", "consume", topic)
    assert (code, "0 records" in out) == (0, True)
    assert "`rivven bench produce" in err


def on_terminal(broker: str, *arguments: str) -> str:
    """What a terminal of eighty columns shows."""
    ours, theirs = pty.openpty()
    process = start(broker, *arguments, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], WAIT_S)[0]:
        try:
            shown += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    assert process.wait(WAIT_S) == 0
    return shown.decode()


def test_on_a_terminal_there_is_a_bar_and_tables_have_rules(broker: str, topic: str) -> None:
    assert "producing" in on_terminal(broker, "bench", "produce", topic, "-n", "2000")
    assert "───" in on_terminal(broker, "topic", "stats", topic)


# The shell


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str) -> None:
    assert "_RIVVEN_COMPLETE" in well(run("completion", shell))


def test_the_shell_is_told_what_could_come_next() -> None:
    asked = {"_RIVVEN_COMPLETE": "complete_bash", "COMP_WORDS": "rivven topic de", "COMP_CWORD": "2"}
    found = subprocess.run(
        [sys.executable, "-m", "rivven.cli.main"],
        capture_output=True,
        text=True,
        env={**os.environ, **asked},
        check=False,
    )
    assert set(found.stdout.split()) == {"delete", "describe"}


def test_help_does_not_load_the_client() -> None:
    code = (
        "import sys\nfrom rivven.cli.main import main\n"
        "try: main(['topic', 'create', '--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('rich', 'asyncio', 'rivven.client', 'rivven.wire') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"

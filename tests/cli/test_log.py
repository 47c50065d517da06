"""`rivven log` as its users meet it: on real directories, by exit code, text and JSON."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rivven import __version__
from rivven.cli.main import main
from rivven.log import Document
from rivven.log.blocking import BlockingStore
from rivven.record import Codec, encode, encode_marker, partition_for_key
from rivven.system import SystemDisk

NOW_MS = 1_750_000_000_000
SMALL = {"segment.bytes": "2000", "index.interval.bytes": "500", "retention.ms": "-1"}
ASTRAY = next(name for name in map("astray-{}".format, range(99)) if partition_for_key(name.encode(), 2) == 0)
ORDERS = "topics/orders/partition-0/00000000000000000000"


def fill(path: Path) -> None:
    with BlockingStore(path) as store:
        store.create_topic("orders", 2, SMALL)
        store.create_topic("customers", 1, SMALL | {"cleanup.policy": "compact"})
        store.create_topic("payments", 1)
        for number in range(30):
            key = b"customer-%d" % (number % 7)
            codec = (Codec.NONE, Codec.ZSTD)[number % 2]
            rows = [(NOW_MS + number * 1000 + i, key, b"total %d" % number, (("source", b"web"),)) for i in range(4)]
            store.append("orders", rows, codec=codec)
            store.append("customers", rows)
        store.append("orders", [(NOW_MS, ASTRAY.encode(), b"here", ())], partition=1)
        store.append("payments", [(NOW_MS, b"\x00\xff", b"\x1b[31mred", (("n", None),))])
        log = store.log("payments")
        mark = {"producer_id": 77, "producer_epoch": 0}
        batch = encode([(NOW_MS, b"k", b"v", ())], base_sequence=0, transactional=True, **mark)
        store.append_batches([(log, batch)])
        store.append_batches([(log, encode_marker(commit=False, timestamp_ms=NOW_MS, **mark))])


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "data"
    fill(path)
    return path


@pytest.fixture
def data(filled, tmp_path) -> Path:
    """A directory of one's own, to change and to damage."""
    return Path(shutil.copytree(filled, tmp_path / "data"))


@pytest.fixture
def open_tmp() -> Iterator[Path]:
    """A temporary directory that other users may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def run(capfd):
    """Run the command in this process: (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["log", *map(str, arguments)])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out, err

    return run


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def tree(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def rivven(*arguments: object, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rivven.cli.main", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        **options,
    )


# The command itself


def test_help_names_every_command_and_is_quick():
    code = (
        "import sys\nfrom rivven.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('rich', 'rivven.log', 'rivven.record', 'pyarrow') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "log" in found.stdout
    assert found.stdout.splitlines()[-1] == "[]"


def test_the_version_is_printed(capfd):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capfd.readouterr().out == f"rivven {__version__}\n"


@pytest.mark.parametrize("command", ["dump", "verify", "find", "clean", "rebuild-index"])
def test_the_help_of_a_command_teaches_by_example(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Example" in out
    assert f"rivven log {command} /var/lib/rivven" in out
    assert max(map(len, out.splitlines())) <= 100


# verify


def test_verify_of_an_intact_directory(run, filled):
    before = tree(filled)
    code, out, err = run("verify", filled)
    assert (code, err) == (0, "")
    assert "3 topics, closed in good order" in out
    assert re.search(r"^orders/0 +\d+ +30 +120 ", out, re.MULTILINE)
    assert out.endswith("Nothing is wrong.\n")
    assert "\x1b" not in out
    assert tree(filled) == before


def test_verify_says_what_is_wrong_and_where_and_what_to_do(run, data):
    flip(data / f"{ORDERS}.log", 700)
    flip(data / f"{ORDERS}.idx", 18)
    code, out, _ = run("verify", data, "--topic", "orders")
    assert code == 1
    assert "2 problems:" in out
    assert re.search(r"orders/0: damaged batch: CRC .*\n +topics/orders/.*\.log, byte \d+, offsets \d+ to \d+\n", out)
    assert "restore the partition" in out
    assert f"{ORDERS}.idx, byte 0" in out
    assert "rebuild-index" in out


def test_verify_as_json_has_stable_keys(run, data):
    flip(data / f"{ORDERS}.log", 700)
    code, out, _ = run("verify", data, "--json", "--quick")
    found = json.loads(out)
    assert code == 1
    assert found.keys() == {"directory", "in_use_by", "clean", "quick", "ok", "partitions", "problems", "notes"}
    assert (found["ok"], found["quick"], found["clean"], found["in_use_by"]) == (False, True, True, None)
    assert {each["partition"] for each in found["partitions"]} == {
        "orders/0",
        "orders/1",
        "customers/0",
        "payments/0",
    }
    assert found["partitions"][0].keys() >= {"segments", "batches", "records", "length_bytes", "start", "end"}
    [problem] = found["problems"]
    assert problem.keys() == {
        "severity",
        "partition",
        "path",
        "what",
        "then",
        "position",
        "first_offset",
        "last_offset",
    }
    assert problem["path"] == f"{ORDERS}.log"


def test_verify_of_a_directory_in_use_says_so(run, data):
    with BlockingStore(data) as store:
        store.append("orders", [(NOW_MS, b"k", b"v", ())])
        code, out, _ = run("verify", data)
        assert code == 0
        assert f"in use by process {os.getpid()}" in out
        assert json.loads(run("verify", data, "--json")[1])["in_use_by"] == os.getpid()


def test_verify_after_a_kill_has_notes_only(run, tmp_path):
    code = (
        "import os, sys\nfrom rivven.log.blocking import BlockingStore\n"
        "store = BlockingStore(sys.argv[1])\nstore.create_topic('t')\n"
        "[store.append('t', [(1, b'k', b'v' * 100, ())]) for _ in range(50)]\nos.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, tmp_path / "data"], check=False, env=environment, timeout=60)
    path = tmp_path / "data/topics/t/partition-0/00000000000000000000.log"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 20)
    code, out, _ = run("verify", tmp_path / "data")
    assert code == 0
    assert "not closed in good order" in out
    assert re.search(r"recovery will cut \d+ bytes", out)
    with BlockingStore(tmp_path / "data") as store:
        assert store.log("t").end == 50


# dump


def test_dump_shows_each_batch(run, filled):
    code, out, _ = run("dump", filled, "-t", "orders", "-p", 0)
    assert code == 0
    lines = [line.split() for line in out.splitlines() if re.match(r" +\d", line)]
    assert len(lines) == 30
    assert lines[0][:7] == ["0", "0", "3", "4", lines[0][4], "none", "ok"]
    assert {line[5] for line in lines} == {"none", "zstd"}
    assert "2025-06-15 15:06:40.000" in out


def test_dump_shows_records_safely(run, filled):
    code, out, _ = run("dump", filled, "--topic", "payments", "--records")
    assert code == 0
    assert "0x00ff -> 0x1b5b33316d726564  [n=null]" in out
    assert "77:0:0" in out
    assert "transactional,control" in out
    assert "abort of producer 77" in out
    assert "\x1b" not in out


def test_dump_begins_and_ends_where_it_is_told(run, filled):
    _, out, _ = run("dump", filled, "-t", "orders", "-p", 0, "--from-offset", 50, "--max", 3, "--records")
    assert re.findall(r"^ {12}(\d+)  ", out, re.MULTILINE) == ["50", "51", "52"]
    _, out, _ = run("dump", filled, "-t", "orders", "--max", 2)
    assert len([line for line in out.splitlines() if re.match(r" +\d", line)]) == 2


def test_dump_as_json(run, filled):
    _, out, _ = run("dump", filled, "-t", "payments", "--records", "--json")
    found = json.loads(out)
    assert found.keys() == {"directory", "batches", "faults"}
    first, second, marker = found["batches"]
    assert first["records"] == [
        {
            "offset": 0,
            "timestamp_ms": NOW_MS,
            "key": "00ff",
            "key_encoding": "hex",
            "value": "\x1b[31mred",
            "value_encoding": "utf-8",
            "headers": [{"name": "n", "value": None, "value_encoding": None}],
        }
    ]
    assert (second["producer_id"], second["transactional"], second["control"]) == (77, True, False)
    assert (marker["control"], marker["crc_ok"], marker["fault"]) == (True, True, None)


def test_dump_goes_on_behind_damage(run, data):
    flip(data / f"{ORDERS}.log", 700)
    code, out, _ = run("dump", data, "-t", "orders", "-p", 0)
    assert code == 0
    assert out.count(" BAD ") == 1
    assert len([line for line in out.splitlines() if re.match(r" +\d+ +\d+ +\d+ ", line)]) == 30
    assert json.loads(run("dump", data, "-t", "orders", "--json")[1])["faults"] == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (f"{ORDERS}.log", "position"),
        (f"{ORDERS}.idx", "offset index"),
        (f"{ORDERS}.tidx", "time index"),
        ("wal/00000000000000000001.wal", "write-ahead log"),
        ("topic_metadata.json", "topics[0].name"),
        ("checkpoint.json", "clean"),
    ],
)
def test_dump_explains_any_file(run, filled, name, says):
    for arguments in ([filled / name], ["--file", filled / name], [filled, "--file", name]):
        code, out, _ = run("dump", *arguments)
        assert code == 0
        assert says in out
        assert name in out
    assert json.loads(run("dump", filled / name, "--json")[1])


def test_dump_explains_snapshots_and_filters(run, data):
    run("find", data, "-t", "orders", "--key", "nobody")
    for suffix in (".state", ".bloom"):
        path = next(data.rglob(f"*{suffix}"))
        code, out, _ = run("dump", path)
        assert code == 0
        assert "damaged" not in out
        flip(path, path.stat().st_size - 4)
        assert "damaged" in run("dump", path)[1]


# find


def test_find_shows_the_latest_version_of_a_key(run, data):
    code, out, err = run("find", data, "-t", "orders", "-p", 0, "--key", "customer-3")
    assert code == 0
    assert "orders/0 offset 99" in out
    assert "total 24" in out
    assert "source=web" in out
    assert out.count("offset") == 1
    assert "read 1 segment" in err


def test_find_shows_every_version_newest_first(run, data):
    code, out, _ = run("find", data, "-t", "orders", "-p", 0, "--key", "customer-3", "--all")
    offsets = [int(text) for text in re.findall(r"offset (\d+),", out)]
    assert code == 0
    assert offsets == sorted(offsets, reverse=True)
    assert len(offsets) == 16


def test_find_says_when_a_key_is_not_where_it_belongs(run, data):
    code, out, err = run("find", data, "-t", "orders", "--key", ASTRAY)
    assert code == 0
    assert "here" in out
    assert "found in partition 1, although the key belongs to partition 0" in err


def test_find_makes_filters_and_skips_segments_by_them(run, data):
    _, _, err = run("find", data, "-t", "orders", "--key", "nobody")
    assert re.search(r"\d+ filters made", err)
    made = list(data.rglob("*.bloom"))
    assert made
    code, out, err = run("find", data, "-t", "orders", "--key", "nobody", "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["found"], found["matches"], found["filters_saved"]) == (False, [], 0)
    assert found["segments_skipped"] >= len(made) - 1
    assert run("verify", data)[0] == 0


def test_find_makes_no_filters_while_a_node_runs(run, data):
    with BlockingStore(data):
        code, _, _ = run("find", data, "-t", "orders", "-p", 0, "--key", "customer-3")
    assert code == 0
    assert list((data / "topics/orders").rglob("*.bloom")) == []


def test_find_by_hex_key_offset_and_time(run, filled):
    _, out, _ = run("find", filled, "-t", "payments", "--key-hex", "00ff")
    assert "payments/0 offset 0" in out
    _, out, _ = run("find", filled, "-t", "payments", "--key", "k")
    assert "a transaction that is aborted" in out
    _, out, _ = run("find", filled, "-t", "orders", "-p", 0, "--offset", 41)
    assert "orders/0 offset 41" in out
    for when in ("2025-06-15T15:06:50Z", "2025-06-15T17:06:50+02:00", str(NOW_MS + 10_000)):
        _, out, _ = run("find", filled, "-t", "orders", "-p", 0, "--timestamp", when)
        assert "orders/0 offset 40" in out


@pytest.mark.parametrize(
    "arguments", [("--key", "nobody"), ("--offset", "99999"), ("--timestamp", "2099-01-01"), ("--key-hex", "0a")]
)
def test_find_exits_with_1_if_there_is_nothing(run, data, arguments):
    code, out, err = run("find", data, "-t", "orders", *arguments)
    assert (code, out) == (1, "")
    assert err
    assert json.loads(run("find", data, "-t", "orders", *arguments, "--json")[1])["found"] is False


# clean


def test_a_dry_run_changes_nothing(run, data):
    before = tree(data)
    code, out, _ = run("clean", data, "--dry-run")
    assert code == 0
    assert re.search(r"customers/0 .* due$", out, re.MULTILINE)
    assert "2 partitions would change, 2 had nothing to clean." in out
    assert tree(data) == before


def test_clean_compacts_and_deletes(run, data):
    with BlockingStore(data) as store:
        store.store.configure("orders", SMALL | {"retention.ms": "1000"})
    code, out, _ = run("clean", data, "--json")
    found = json.loads(out)
    assert code == 0
    assert found.keys() == {"directory", "dry_run", "recovery", "partitions"}
    by_name = {each["partition"]: each for each in found["partitions"]}
    orders, customers = by_name["orders/0"], by_name["customers/0"]
    assert orders["start_after"] == 120
    assert orders["after"]["records"] == 0
    assert customers["after"]["records"] < customers["before"]["records"]
    assert by_name["payments/0"]["changed"] is True, "it is older than seven days"
    assert run("verify", data)[0] == 0
    code, out, _ = run("clean", data)
    assert "0 partitions changed, 4 had nothing to clean." in out


def test_clean_does_only_what_it_is_asked_for(run, data):
    _, out, _ = run("clean", data, "--no-compact", "--no-retention", "--json")
    assert [each["changed"] for each in json.loads(out)["partitions"]] == [False] * 4
    _, out, _ = run("clean", data, "--topic", "customers")
    assert "1 partition changed, 0 had nothing to clean." in out


def test_clean_shows_what_recovery_did(run, data):
    flip(data / f"{ORDERS}.log", 700)
    (data / "checkpoint.json").unlink()
    code, out, _ = run("clean", data, "--topic", "customers")
    assert code == 0
    assert "Recovery:" in out


# rebuild-index


def test_indexes_are_rebuilt(run, data):
    flip(data / f"{ORDERS}.idx", 18)
    before = tree(data)
    code, out, _ = run("rebuild-index", data, "--topic", "orders", "--partition", 0)
    assert code == 0
    assert re.search(r"orders/0 +0 .* checksum mismatch", out)
    assert run("verify", data)[0] == 0
    after = tree(data)
    assert {path for path in after if after[path] != before.get(path)} <= {
        path for path in after if path.endswith(("idx", "lock"))
    }
    found = json.loads(run("rebuild-index", data, "--json")[1])
    assert {each["was"] for each in found["segments"]} <= {"good", "not needed"}


# Mistakes


@pytest.mark.parametrize("command", ["dump", "verify", "clean", "rebuild-index"])
def test_a_directory_that_is_not_there_is_a_usage_error(run, tmp_path, command):
    code, out, err = run(command, tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert (
        err == f"error: {tmp_path}/nowhere does not exist.\nCheck the path; it names the data directory of a node.\n"
    )
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("command", ["dump", "verify", "clean", "rebuild-index"])
def test_a_directory_of_something_else_is_left_alone(run, tmp_path, command):
    (tmp_path / "holiday.jpg").write_bytes(b"beach")
    code, _, err = run(command, tmp_path)
    assert code == 2
    assert "not a data directory" in err
    assert len(err.splitlines()) == 2
    assert tree(tmp_path) == {"holiday.jpg": b"beach"}


@pytest.mark.parametrize("command", ["dump", "verify", "clean", "rebuild-index"])
def test_a_slip_in_a_topic_name_is_answered_with_the_right_one(run, filled, command):
    code, _, err = run(command, filled, "--topic", "ordres")
    assert code == 2
    assert "there is no topic 'ordres'; did you mean 'orders'?" in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("command", ["clean", "rebuild-index"])
def test_a_directory_in_use_names_the_process(run, data, command):
    with BlockingStore(data):
        code, _, err = run(command, data)
    assert code == 2
    assert f"is in use by process {os.getpid()}; stop that process" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["find", "--topic", "orders"], "one of --key"),
        (["find", "--topic", "orders", "--key", "a", "--offset", "1"], "one of --key"),
        (["find", "--topic", "orders", "--offset", "1", "--all"], "--all goes with"),
        (["find", "--topic", "orders", "--key-hex", "xyz"], "hex digits"),
        (["find", "--topic", "orders", "--timestamp", "tomorrow"], "2025-03-01T12:00:00Z"),
        (["verify", "--topic", "orders", "--partition", "7"], "orders has 2, counted from 0"),
        (["dump", "--topic", "orders", "--partition", "0", "--from-offset", "9999"], "outside [0, 119]"),
    ],
)
def test_what_makes_no_sense_is_refused_in_two_lines(run, filled, arguments, says):
    code, out, err = run(arguments[0], filled, *arguments[1:])
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 2


def test_a_document_that_the_broker_keeps_is_shown(run, data):
    Document(SystemDisk(data), "quotas.json", dict).save({"user": {"alice": {"rate": 5}}})
    code, out, _ = run("dump", data / "quotas.json")
    assert code == 0
    assert "user.alice.rate" in out


def test_a_file_of_no_known_kind_is_refused(run, filled):
    code, _, err = run("dump", filled / "lock")
    assert code == 2
    assert "lock cannot be shown" in err


@pytest.mark.parametrize(
    ("name", "path"), [(f"{ORDERS}.log", "."), ("topic_metadata.json", "."), ("lock", "."), ("topics", "topics/a")]
)
def test_what_may_not_be_read_is_said_so(filled, open_tmp, name, path):
    data = Path(shutil.copytree(filled, open_tmp / "data"))
    code = (
        "import os, sys\nfrom rivven.cli.main import main\n"
        "try: main(['log', 'verify', sys.argv[1]])\nexcept SystemExit: pass\n"  # all is imported by now
        "os.chmod(sys.argv[2], 0)\nos.chdir(sys.argv[1])\n"
        "if os.geteuid() == 0: os.seteuid(65534)\n"  # root may read everything
        "main(['log', 'verify', sys.argv[3]])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", code, data, data / name, path],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert found.returncode == 2
    assert found.stderr.startswith("error: ")
    assert "permission denied" in found.stderr
    assert "Run this as the user that the node runs as." in found.stderr
    assert len(found.stderr.splitlines()) == 2


# Signals and pipes


def test_a_closed_pipe_is_quiet(filled):
    process = rivven("log", "dump", filled, "--records", "--json")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(30) in (0, -signal.SIGPIPE)
    process.stderr.close()


def test_an_interrupt_is_quiet(data):
    # A fifo where a segment should be keeps the command waiting until it is interrupted.
    path = data / "topics/orders/partition-1/00000000000000000000.log"
    path.unlink()
    os.mkfifo(path)
    process = rivven("log", "verify", data)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        wchan = Path(f"/proc/{process.pid}/wchan")
        if wchan.exists() and ("fifo" in wchan.read_text() or "wait_for_partner" in wchan.read_text()):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (out, err) == ("", "")

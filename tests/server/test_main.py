"""`rivvend` as its users meet it: by exit code, by what it prints, and by signals."""

import errno
import io
import json
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from rivven import __version__
from rivven.errors import BadDirectory, DirectoryLocked, DiskFull
from rivven.log.blocking import BlockingStore
from rivven.server import logs
from rivven.server.main import explain, main
from rivven.server.settings import Settings

RIVVEND = [sys.executable, "-m", "rivven.server.main"]
CLEAN_ENV = {key: value for key, value in os.environ.items() if not key.startswith(("RIVVEN_", "RUST_LOG"))}


def run(*flags: str, python: tuple[str, ...] = (), env: dict[str, str] | None = None, cwd: Path | None = None):
    command = [sys.executable, *python, *RIVVEND[1:], *flags]
    environment = CLEAN_ENV | (env or {})
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, cwd=cwd)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@contextmanager
def daemon(path: Path, *flags: str):
    """A daemon that has told it is ready, and its ready line."""
    command = [*RIVVEND, "--bind", "127.0.0.1:0", "--data-dir", str(path / "data"), *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=CLEAN_ENV, cwd=path, **pipes) as process:
        try:
            assert select.select([process.stdout], [], [], 60)[0], "never got ready"
            line = process.stdout.readline()
            assert "rivvend ready" in line, line + process.stderr.read()
            yield process, line
        finally:
            if process.poll() is None:
                process.kill()


def ended(process, number: int = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


# Used wrongly


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--bnd", "x"], "rivvend: unknown flag --bnd; did you mean --bind?\n"),
        (["--http-port", "x"], "rivvend: --http-port: 'x' is not a whole number; write one from 0 to 65535\n"),
        (["--mode", "cluster"], "rivvend: --mode: not available yet in rivven"),
        (["--bind", "0.0.0.0:0"], "rivvend: --bind: 0.0.0.0 can be reached from other machines"),
        (["--config", "none.yaml"], "rivvend: --config none.yaml: cannot be read: No such file or directory\n"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(flags, told, capsys, monkeypatch):
    monkeypatch.delenv("RIVVEN_CONFIG", raising=False)
    assert main(flags) == 2
    out, errors = capsys.readouterr()
    assert (out, errors.startswith(told), errors.count("\n")) == ("", True, 1)


def test_a_mistake_in_a_process_of_its_own_is_no_traceback(tmp_path):
    done = run("--http-port", "70000", env={"RIVVEN_METRICS": "maybe"}, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "rivvend: RIVVEN_METRICS: 'maybe' is neither true nor false",
        "rivvend: --http-port: 70000 is outside 0 to 65535; the nearest is 65535",
    ]
    assert list(tmp_path.iterdir()) == []


def test_python_without_its_checks_is_refused():
    done = run(python=("-O",))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rivvend: python -O takes out checks")


def test_help_and_version_are_told(capsys):
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert all(flag in page for flag in ("--bind", "--http-port", "--print-config", "env RIVVEN_DATA_DIR"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rivvend {__version__}\n"


def test_print_config_starts_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RIVVEN_LOG_LEVEL", "debug")
    assert main(["--print-config", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)["settings"]
    assert page["log_level"] == {
        "value": "debug", "source": "environment", "key": "RIVVEN_LOG_LEVEL", "file": None
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []


# Running


def test_it_tells_when_it_is_ready_and_stops_in_good_order(tmp_path):
    port = free_port()
    with daemon(tmp_path, "--http-port", str(port)) as (process, line):
        assert re.fullmatch(
            rf"rivvend ready: native protocol on 127\.0\.0\.1:\d+, http on 127\.0\.0\.1:{port}, data in \S+/data "
            r"\(0 topics, 0 partitions, recovered in \d+ ms from nothing\)\n",
            line,
        )
        for path in ("/health/ready", "/metrics", "/"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
                assert reply.status == 200
        code, errors = ended(process)
    assert code == 0
    told = errors.splitlines()
    assert [event.split("rivven.server.main: ")[1] for event in told] == [
        "SIGTERM: stopping",
        "stopped in good order",
    ]
    assert json.loads((tmp_path / "data" / "checkpoint.json").read_text())["body"]["clean"] is True


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_it_stops_on_either_loop_and_either_signal(tmp_path, loop):
    number = signal.SIGINT if loop == "asyncio" else signal.SIGTERM
    with daemon(tmp_path, "--http-port", "0", "--loop", loop) as (process, line):
        assert ", no http, " in line
        assert ended(process, number)[0] == 0


def test_its_logs_are_json_on_request(tmp_path):
    with daemon(tmp_path, "--http-port", "0", "--log-format", "json") as (process, line):
        _, errors = ended(process)
    ready = json.loads(line)
    assert (ready["event"], ready["topics"], ready["http"], ready["level"]) == ("ready", 0, None, "info")
    assert [json.loads(each)["message"] for each in errors.splitlines()][-1] == "stopped in good order"


def test_the_ready_line_tells_how_the_last_process_ended(tmp_path):
    store = BlockingStore(str(tmp_path / "data"))
    store.create_topic("t")
    store.close()
    with daemon(tmp_path, "--http-port", "0") as (process, line):
        assert "1 topic, 1 partition, recovered in" in line
        assert line.endswith(" ms after a clean stop)\n")
        process.kill()
    with daemon(tmp_path, "--http-port", "0") as (process, line):
        assert line.endswith(" ms after an unclean stop: took 0 batches from the write-ahead log)\n")
        process.kill()
    with daemon(tmp_path, "--http-port", "0", "--log-format", "json") as (process, line):
        ready = json.loads(line)
        assert (ready["clean_stop"], ready["replayed_batches"], ready["cut_bytes"]) == (False, 0, 0)
        assert ended(process)[0] == 0


def test_nothing_heavy_is_loaded_before_it_is_ready():
    heavy = ("prometheus_client", "starlette", "uvicorn", "typer", "rich", "google.protobuf", "pyarrow", "yaml")
    code = f"import sys, rivven.server.node; print(*(name for name in {heavy} if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == []


def test_it_is_ready_within_a_second_of_work(tmp_path):
    """Of its own work: what the clock says depends on the neighbours."""
    with daemon(tmp_path, "--http-port", str(free_port())) as (process, _):
        facts = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        assert (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK") < 1


def test_a_kill_at_any_time_is_safe(tmp_path):
    with daemon(tmp_path, "--http-port", "0") as (process, _):
        process.kill()
        process.wait(30)
    with daemon(tmp_path, "--http-port", "0") as (process, _):
        assert ended(process)[0] == 0


def test_two_cannot_share_a_directory_or_a_port(tmp_path):
    with daemon(tmp_path, "--http-port", "0") as (process, line):
        address = re.search(r"127\.0\.0\.1:\d+", line)[0]
        locked = run("--bind", "127.0.0.1:0", "--http-port", "0", "--data-dir", str(tmp_path / "data"))
        taken = run("--bind", address, "--http-port", "0", "--data-dir", str(tmp_path / "other"))
        http = run("--bind", "127.0.0.1:0", "--http-bind", address, "--data-dir", str(tmp_path / "third"))
        pid = process.pid
    assert [done.returncode for done in (locked, taken, http)] == [1, 1, 1]
    assert locked.stderr.splitlines() == [
        f"rivvend: data directory {tmp_path}/data is in use by process {pid}; "
        "stop that process, or choose another data directory"
    ]
    in_use = "is in use by another process; stop that, or choose another with"
    assert taken.stderr == f"rivvend: {address} {in_use} --bind\n"
    assert http.stderr == f"rivvend: {address} {in_use} --http-port\n"


def test_a_directory_that_cannot_be_one_is_told(tmp_path):
    (tmp_path / "data").write_text("a file")
    done = run("--bind", "127.0.0.1:0", "--http-port", "0", "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"rivvend: {tmp_path}/data ")
    assert "choose another" in done.stderr
    assert done.stderr.count("\n") == 1


STAND_IN = """
import asyncio, os, signal, sys
from types import SimpleNamespace
from rivven.errors import SyncFailed
from rivven.log import RecoveryReport
from rivven.server.config import Resolved
from rivven.server.settings import Settings
from rivven.server.main import serve

class Failing:
    address = ("127.0.0.1", 1)
    store = SimpleNamespace(topics=[], logs=[], recovery=RecoveryReport())
    def __init__(self, settings): pass
    async def start(self): pass
    async def run_until(self, stop):
        {body}
    async def stop(self):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

sys.exit(serve(Resolved(Settings(http_port=0), {{}}), Failing))
"""


def run_stand_in(body: str):
    command = [sys.executable, "-c", STAND_IN.format(body=body)]
    return subprocess.run(command, capture_output=True, text=True, env=CLEAN_ENV, timeout=60)


def test_a_failed_sync_ends_the_process_with_one_line():
    done = run_stand_in('raise SyncFailed(path="wal/1", reason="I/O error")')
    assert done.returncode == 1
    assert done.stderr == (
        "rivvend: the disk failed to sync wal/1: I/O error; this process must end, and recovery will run at start\n"
    )


def test_a_second_signal_ends_at_once():
    done = run_stand_in("os.kill(os.getpid(), signal.SIGINT); await stop.wait()")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "rivvend: SIGTERM again: ending at once; the next start recovers"


# What is told of a failure


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DirectoryLocked(path="data", pid=7), "data directory data is in use by process 7"),
        (BadDirectory(path="data", reason="of a newer version"), "choose another with --data-dir"),
        (DiskFull(wanted_bytes=8, path="wal"), "no room on the disk for 8 bytes in wal; free some space"),
        (OSError(errno.ENOSPC, "No space left", "wal/2"), "no room on the disk for wal/2; free some space"),
        (OSError(errno.EADDRINUSE, "in use"), "127.0.0.1:9092 is in use by another process"),
        (OSError(errno.EACCES, "denied"), "choose a port above 1023 with --bind"),
        (OSError(errno.EACCES, "denied", "data/lock"), "data/lock: permission denied; run as the user that owns it"),
        (OSError(errno.EROFS, "read-only", "data"), "data is on a read-only file system"),
        (OSError(errno.ENOENT, "No such file", "/proc/x"), "/proc/x is not there and cannot be made; choose another"),
        (OSError(errno.EMFILE, "Too many open files"), "raise the limit (ulimit -n"),
        (OSError(errno.EIO, "I/O error", "data/x"), "data/x: I/O error; check the disk"),
        (socket.gaierror(-2, "Name or service not known"), "127.0.0.1:9092 cannot be resolved"),
    ],
)
def test_a_failure_is_told_with_what_to_do(error, told):
    assert told in explain(error, Settings())


# Logs


@pytest.fixture
def loggers():
    root, ours = logging.getLogger(), logging.getLogger("rivven")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before[0], before[1], before[2]


@pytest.mark.usefixtures("loggers")
def test_an_event_is_a_line_with_its_facts():
    out = io.StringIO()
    logs.configure("info", "text", out)
    logging.getLogger("rivven.x").info("a line\nbreak %d", 5, extra={"port": 1, "why": "two words"})
    logging.getLogger("rivven.x").debug("not wanted")
    logging.getLogger("uvicorn.error").info("others are heard when something is wrong")
    (line,) = out.getvalue().splitlines()
    assert re.fullmatch(r'\S+T\S+Z info  rivven\.x: a line\\nbreak 5 port=1 why="two words"', line)


@pytest.mark.usefixtures("loggers")
def test_an_event_is_an_object_in_json():
    out = io.StringIO()
    logs.configure("debug", "text", io.StringIO())
    logs.configure("debug", "json", out)
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("rivven.x").exception("it went %s", "wrong", extra={"message_count": 3, "path": Path("p")})
    event = json.loads(out.getvalue())
    assert (event["level"], event["logger"], event["message"]) == ("error", "rivven.x", "it went wrong")
    assert (event["message_count"], event["path"]) == (3, "p")
    assert "ValueError: bad" in event["error"]

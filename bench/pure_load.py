"""`load.c` once more in Python, for machines without a C compiler: same arguments, same plan, same line of JSON."""

from __future__ import annotations

import json
import re
import resource
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.load import HEAD, WORD, Framing, Plan, Script

DRAIN_S = 10.0
RECEIVE_BYTES = 65_536
Reply = tuple[bytes, bool]


def read_plan(data: bytes) -> Plan:
    framing, replies, expect_at, expect_length, expect, scripts = HEAD.unpack_from(data)
    position = HEAD.size

    def word() -> int:
        nonlocal position
        position += WORD.size
        return int(WORD.unpack_from(data, position - WORD.size)[0])

    def piece() -> bytes:
        nonlocal position
        length = word()
        position += length
        return data[position - length : position]

    def script() -> Script:
        hello, hello_replies = piece(), word()
        return Script(tuple(piece() for _ in range(word())), hello, hello_replies)

    read = tuple(script() for _ in range(scripts))
    return Plan(Framing(framing), read, 1, replies, expect_at, expect[:expect_length])


# Replies: each cuts whole ones off the front of the buffer, with whether they are good


def cut_length(buffer: bytearray, plan: Plan) -> Iterator[Reply]:
    while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4], "big")):
        body = bytes(buffer[4:end])
        del buffer[:end]
        yield body, body[plan.expect_at :].startswith(plan.expect)


def cut_resp(buffer: bytearray, plan: Plan) -> Iterator[Reply]:
    del plan
    while (line := buffer.find(b"\n") + 1) > 0:
        end = line + int(buffer[1 : line - 2]) + 2 if buffer[0] == ord("$") and buffer[1] != ord("-") else line
        if len(buffer) < end:
            return
        reply = bytes(buffer[:end])
        del buffer[:end]
        yield reply, reply[0] != ord("-")


MESSAGE = re.compile(rb"MSG \S+ \S+ (?:\S+ )?(\d+)\r\n")


def cut_nats(buffer: bytearray, plan: Plan) -> Iterator[Reply]:
    """An empty reply is the server's PING, which wants an answer."""
    del plan
    while (line := buffer.find(b"\n") + 1) > 0:
        found = MESSAGE.match(buffer)
        end = line + int(found[1]) + 2 if found else line
        if len(buffer) < end:
            return
        reply = bytes(buffer[:end])
        del buffer[:end]
        if found:
            yield reply[line:], not reply[line:].startswith(b'{"error"')
        elif reply.startswith(b"PING"):
            yield b"", True
        elif reply[0] in b"-H":
            raise SystemExit(f"the server says {reply!r}")


CUT: dict[Framing, Callable[[bytearray, Plan], Iterator[Reply]]] = {
    Framing.LENGTH: cut_length,
    Framing.RESP: cut_resp,
    Framing.NATS: cut_nats,
}


class Sender:
    """One connection."""

    def __init__(self, load: Load, number: int, connections: int, port: int) -> None:
        self.load = load
        self.script = load.plan.scripts[number % len(load.plan.scripts)]
        self.next = number * len(self.script.frames) // connections % len(self.script.frames)
        self.hello_left = self.script.hello_replies
        self.replies_left = load.plan.replies_per_frame
        self.begun_s: deque[float] = deque()
        self.received = bytearray()
        self.sending = memoryview(self.script.hello)
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)

    def receive(self) -> None:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise SystemExit("the server closed a connection")
        self.received += data
        now_s = time.perf_counter()
        for reply, good in CUT[self.load.plan.framing](self.received, self.load.plan):
            if not reply:
                self.sending = memoryview(bytes(self.sending) + b"PONG\r\n")
            elif self.hello_left:
                self.hello_left -= 1
            else:
                self._replied(reply, good, now_s)

    def _replied(self, reply: bytes, good: bool, now_s: float) -> None:
        load = self.load
        if not good:
            load.errors.append(reply)
        self.replies_left -= 1
        if not self.replies_left:
            self.replies_left = load.plan.replies_per_frame
            begun_s = self.begun_s.popleft()
            if load.measure_s <= now_s < load.end_s:
                load.taken_s.append(now_s - begun_s)

    def pump(self) -> bool:
        """Send what can be sent; whether some is left that could not."""
        while True:
            try:
                while self.sending:
                    self.sending = self.sending[self.socket.send(self.sending) :]
            except BlockingIOError:
                return True
            now_s = time.perf_counter()
            if self.hello_left or len(self.begun_s) >= self.load.depth or now_s >= self.load.end_s:
                return False
            self.sending = memoryview(self.script.frames[self.next])
            self.next = (self.next + 1) % len(self.script.frames)
            self.begun_s.append(now_s)


class Load:
    def __init__(self, plan: Plan, port: int, connections: int, depth: int, warmup_s: float, seconds: float) -> None:
        self.plan = plan
        self.depth = depth
        self.seconds = seconds
        self.taken_s: list[float] = []
        self.errors: list[bytes] = []
        self._senders = [Sender(self, number, connections, port) for number in range(connections)]
        self.measure_s = time.perf_counter() + warmup_s
        self.end_s = self.measure_s + seconds

    def run(self) -> dict[str, object]:
        selector = selectors.DefaultSelector()
        for each in self._senders:
            selector.register(each.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, each)
        cpu_begun_s = _cpu_s()
        while time.perf_counter() < self.end_s or any(sender.begun_s for sender in self._senders):
            if time.perf_counter() > self.end_s + DRAIN_S:
                raise SystemExit("no reply for ten seconds")
            for key, ready in selector.select(0.1):
                sender: Sender = key.data
                if ready & selectors.EVENT_READ:
                    sender.receive()
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if sender.pump() else 0)
                if wanted != key.events:
                    selector.modify(sender.socket, wanted, sender)
        return self._told(_cpu_s() - cpu_begun_s)

    def _told(self, cpu_s: float) -> dict[str, object]:
        self.taken_s.sort()
        count = len(self.taken_s)
        shares = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999, "max_us": 1.0}
        return {
            "frames": count,
            "errors": len(self.errors),
            "first_error": repr(self.errors[0][:200]) if self.errors else "",
            "seconds": self.seconds,
            **{
                name: round(self.taken_s[min(count - 1, int(count * share))] * 1e6, 1) if count else 0
                for name, share in shares.items()
            },
            "load_cpu": round(cpu_s / self.seconds, 2),
        }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    path, port, connections, depth, warmup_s, seconds = sys.argv[1:]
    plan = read_plan(Path(path).read_bytes())
    load = Load(plan, int(port), int(connections), int(depth), float(warmup_s), float(seconds))
    print(json.dumps(load.run()))

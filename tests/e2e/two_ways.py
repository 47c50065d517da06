"""A node with the short way for what is published beside one without it, and how to ask both the same."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from daemon import Daemon
from hypothesis import strategies as st
from raw import Raw, request

PARTITIONS = 3
BYTES_MAX = 2_000
"""What a batch may have in the topics here."""
names = (f"topic-{number:06}" for number in itertools.count())
"""All of one length: what hypothesis draws must not depend on what was drawn before."""
cuts = st.none() | st.lists(st.floats(0, 1), max_size=5)
"""Where a stream is cut, as shares of its length; None if it is sent in one piece."""


@contextmanager
def two_ways(first: Path, second: Path, policy: str) -> Iterator[tuple[Daemon, Daemon]]:
    flags = ("--sync-policy", policy, "--rate-limit-per-ip", "0", "--max-connections-per-ip", "1000")
    native, pure = Daemon(first, *flags), Daemon(second, *flags)
    pure.environment = {"RIVVEN_PURE": "1"}
    try:
        yield native.start(), pure.start()
    finally:
        native.end()
        pure.end()


def make_topic(client: Raw, name: str) -> None:
    assert (said := client.call("CreateTopic", name, PARTITIONS)) == ("TopicCreated", (name, PARTITIONS)), said
    assert client.call("AlterTopicConfig", name, [("max.message.bytes", str(BYTES_MAX))])[0] == "TopicConfigAltered"


def cut(stream: bytes, shares: Sequence[float] | None) -> list[bytes]:
    places = sorted(int(share * len(stream)) for share in shares or ())
    return [stream[begin:end] for begin, end in itertools.pairwise([0, *places, len(stream)]) if begin < end]


PING = request("Ping")


def talk(daemon: Daemon, pieces: list[bytes], replies: int, hello: bytes = PING) -> list[bytes]:
    """Send the pieces one by one, and read so many frames. The node learns from `hello` who talks to it, and answers
    that first: what comes with the first frame goes the ordinary way."""
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(hello)
        read_frame(sock)
        sender = Thread(target=lambda: [sock.sendall(piece) for piece in pieces])
        sender.start()
        found = [read_frame(sock) for _ in range(replies)]
        sender.join()
        return found


def read_frame(sock: socket.socket) -> bytes:
    (length,) = struct.unpack(">I", read_exactly(sock, 4))
    return read_exactly(sock, length)


def read_exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = sock.recv(length - len(data))
        assert more, f"closed after {data!r}"
        data += more
    return data


def kept(daemon: Daemon, topic: str) -> list[list[tuple[object, ...]]]:
    """Every record but for its time: offset, partition, key, value."""
    with daemon.client() as client:
        found = [client.call("Consume", topic, number, 0, 10_000, None, None) for number in range(PARTITIONS)]
    assert all(name == "Messages" for name, _ in found)
    return [[tuple(message[:4]) for message in fields[0]] for _, fields in found]

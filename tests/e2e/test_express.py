"""Small publishes have a way of their own where the native code was built; whoever publishes must not notice.

The same bytes, cut anywhere, go to a node with that way and to one without it, and what comes back has to be the
same, byte by byte. What is not decided by the bytes alone, such as a client that goes away, is tried on the first.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread

import pytest
from daemon import Daemon, running
from hypothesis import given, settings
from hypothesis import strategies as st
from raw import POSTCARD, PROTOBUF, Closed, Raw, frame, request
from two_ways import BYTES_MAX, PARTITIONS, cut, cuts, kept, make_topic, names, read_frame, talk, two_ways

from rivven.client import blocking
from rivven.record import NATIVE

if not NATIVE:
    pytest.skip("no native code was built: there is only the ordinary way", allow_module_level=True)

PUBLISHED = 3
COUNT = "rivven_core_append_latency_seconds_count"


@pytest.fixture(scope="module", params=["every_write", "none"])
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def both(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    with two_ways(tmp_path_factory.mktemp("native"), tmp_path_factory.mktemp("pure"), policy) as daemons:
        yield daemons


@pytest.fixture
def daemon(both: tuple[Daemon, Daemon]) -> Daemon:
    return both[0]


def made_topic(client: Raw) -> str:
    name = next(names)
    make_topic(client, name)
    return name


def metrics(daemon: Daemon, prefix: str) -> str:
    with blocking.connect(f"127.0.0.1:{daemon.port}") as client:
        return client.get_metrics(prefix)


publish = st.tuples(
    st.just("Publish"),
    st.sampled_from(["", "", "", "", "-unknown", "é"]),
    st.sampled_from([0, 0, 0, 1, 2, PARTITIONS, 127, 128, 2**31]),
    st.none() | st.binary(max_size=6) | st.just(bytes(130)),
    st.binary(max_size=9) | st.just(bytes(300)) | st.just(bytes(BYTES_MAX)),
    st.sampled_from([None, None, None, 0, 300]),
)
odd = st.one_of(
    st.tuples(st.just("Ping")),
    st.tuples(st.just("GetMetadata"), st.just("")),
    st.binary(min_size=1, max_size=30).map(lambda data: (data,)),
)
asked = st.lists(
    st.tuples(publish | publish | publish | odd, st.sampled_from([POSTCARD] * 4 + [PROTOBUF])), max_size=40
)


def written(topic: str, wanted: list[tuple[tuple[object, ...], int]]) -> list[bytes]:
    frames = []
    for number, (fields, form) in enumerate(wanted):
        match fields:
            case (bytes(data),):  # a head that is right, so that a reply comes, and then anything
                frames.append(frame(struct.pack(">BI", POSTCARD, number) + b"\x04" + data))
            case ("Publish" | "GetMetadata" as kind, suffix, *rest):
                frames.append(request(kind, f"{topic}{suffix}", *rest, cid=number, form=form))
            case (kind, *rest):
                frames.append(request(str(kind), *rest, cid=number, form=form))
    return frames


@settings(max_examples=60)
@given(asked, cuts)
def test_both_ways_answer_alike(
    both: tuple[Daemon, Daemon],
    wanted: list[tuple[tuple[object, ...], int]],
    shares: list[float] | None,
) -> None:
    name = next(names)
    for daemon in both:
        with daemon.client() as client:
            make_topic(client, name)
    stream = b"".join(written(name, wanted))
    answers = [talk(daemon, cut(stream, shares), len(wanted)) for daemon in both]
    assert answers[0] == answers[1]
    assert kept(both[0], name) == kept(both[1], name)


def test_many_in_a_row_are_answered_in_order(daemon: Daemon) -> None:
    """More than a connection may have under way, in pieces that end inside frames, among other requests."""
    with daemon.client() as client:
        topic = made_topic(client)
    wanted = [
        (("Ping",), POSTCARD)
        if number % 97 == 96
        else (("Publish", "", number % 3, None, b"%d" % number, None), POSTCARD)
        for number in range(5_000)
    ]
    stream = b"".join(written(topic, wanted))
    pieces = [stream[begin : begin + 10_007] for begin in range(0, len(stream), 10_007)]
    found = talk(daemon, pieces, len(wanted))
    assert [struct.unpack_from(">I", reply, 1)[0] for reply in found] == list(range(len(wanted)))
    values = [[int(bytes(message[3])) for message in part] for part in kept(daemon, topic)]
    assert values == [sorted(part) for part in values], "in the order in which they were sent"
    assert sum(map(len, values)) == 5_000 - 5_000 // 97


def test_who_goes_away_takes_nothing_along(daemon: Daemon) -> None:
    """Clients that leave without reading: what others were owed is unharmed, and nothing is left under way."""
    idle = metrics(daemon, "rivven_inflight")
    with daemon.client() as client:
        topic = made_topic(client)
        stream = b"".join(written(topic, [(("Publish", "", 0, None, b"x" * 50, None), POSTCARD)] * 400))
        for number in range(40):
            with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as leaving:
                if number % 2:
                    leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                leaving.sendall(request("Ping") + stream[: 1 + number * 400])
            assert client.call("Publish", topic, 1, None, b"mine", None) == ("Published", (number, 1))
        deadline = time.monotonic() + 20
        while metrics(daemon, "rivven_inflight") != idle:
            assert time.monotonic() < deadline, "something is counted as under way for ever"
            time.sleep(0.05)
    daemon.assert_well(daemon.pid)


def test_who_does_not_read_is_not_served_for_ever(daemon: Daemon) -> None:
    """A client that sends without reading leaves others alone, and finds every answer once it does read."""
    with daemon.client() as client:
        topic = made_topic(client)
    count = 100_000
    one = request("Publish", topic, 0, None, b"", None)
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=60) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        sock.sendall(request("Ping"))
        read_frame(sock)
        sender = Thread(target=sock.sendall, args=(one * count,))
        sender.start()
        time.sleep(0.5)
        daemon.assert_well(daemon.pid)
        with sock.makefile("rb") as buffered:
            for _ in range(count):
                (length,) = struct.unpack(">I", buffered.read(4))
                buffered.read(length)
        sender.join()
    assert daemon.rss_bytes() < 400_000_000


def test_a_quota_that_is_set_meanwhile_holds(daemon: Daemon) -> None:
    with daemon.client() as client, daemon.client() as other:
        topic = made_topic(client)
        assert client.call("Publish", topic, 0, None, b"x", None) == ("Published", (0, 0))
        assert other.call("AlterQuotas", [("default", None, "produce_bytes_rate", 1_000)])[0] == "QuotasAltered"
        begun = time.monotonic()
        for number in range(1, 6):
            assert client.call("Publish", topic, 0, None, bytes(900), None) == ("Published", (number, 0))
        assert time.monotonic() - begun > 1, "4,500 bytes at 1,000 a second"
        assert other.call("AlterQuotas", [("default", None, "produce_bytes_rate", None)])[0] == "QuotasAltered"


def test_a_topic_that_is_deleted_and_made_anew(daemon: Daemon) -> None:
    """What is remembered of a partition ends with it."""
    with daemon.client() as client, daemon.client() as other:
        topic = made_topic(client)
        for offset in range(3):
            assert client.call("Publish", topic, 0, None, b"x", None) == ("Published", (offset, 0))
        assert other.call("DeleteTopic", topic) == ("TopicDeleted", ())
        assert other.call("CreateTopic", topic, 1) == ("TopicCreated", (topic, 1))
        assert client.call("Publish", topic, 0, None, b"x", None) == ("Published", (0, 0))
        assert client.call("Publish", topic, 1, None, b"x", None)[0] == "Error"


def test_publishes_are_counted(daemon: Daemon) -> None:
    def counted() -> float:
        lines = metrics(daemon, COUNT).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(COUNT))

    with daemon.client() as client:
        topic = made_topic(client)
        before = counted()
        for _ in range(10):
            client.call("Publish", topic, 0, None, b"x", None)
        assert counted() == before + 10


def test_what_is_asked_before_a_frame_that_is_too_long_is_answered(daemon: Daemon) -> None:
    """Whether the line took it, or it has to wait for what the line took, or for its turn."""
    with daemon.client() as client:
        topic = made_topic(client)
    wanted = [(("Publish", "", 0, None, b"x", None), POSTCARD), *[(("Ping",), POSTCARD)] * 50]
    stream = b"".join(written(topic, wanted)) + struct.pack(">I", 2**31)
    found = talk(daemon, [stream], len(wanted) + 1)
    assert [struct.unpack_from(">I", reply, 1)[0] for reply in found] == [*range(len(wanted)), 0]
    assert b"MESSAGE_TOO_LARGE" in found[-1]


def test_an_address_that_has_used_up_its_requests_harms_nobody(tmp_path: Path) -> None:
    """Connections that were idle get no more out of it than others, and what others publish is answered."""
    with running(tmp_path, "--rate-limit-per-ip", "200") as daemon, ExitStack() as opened:
        with daemon.client() as client:
            topic = made_topic(client)
        one = b"".join(written(topic, [(("Publish", "", 1, None, b"x", None), POSTCARD)]))
        idle = [opened.enter_context(daemon.client()) for _ in range(40)]
        for waiting in idle:
            waiting.send(request("Ping"))
            waiting.body()
        time.sleep(1.2)
        for waiting in idle:
            waiting.send(one * 200)
        answered = 0
        for waiting in idle:
            with suppress(Closed):
                for _ in range(200):
                    answered += waiting.body()[5] == PUBLISHED
        assert answered < 1_000, "a second's worth, and what came by while it was asked for"
        with socket.create_connection(
            ("127.0.0.1", daemon.port), source_address=("127.0.0.9", 0), timeout=30
        ) as sock:
            sock.sendall(request("Ping") + one)
            read_frame(sock)
            assert read_frame(sock)[5] == PUBLISHED


def test_who_does_not_read_what_is_fetched_is_not_sent_more(daemon: Daemon) -> None:
    """Replies of the ordinary way count too: they wait for the client, not in memory."""
    with daemon.client() as client:
        name = next(names)
        assert client.call("CreateTopic", name, 1)[0] == "TopicCreated"
        for _ in range(5):
            assert client.call("Publish", name, 0, None, bytes(100_000), None)[0] == "Published"
        before = daemon.rss_bytes()
        one = request("Consume", name, 0, 0, 5, None, None)
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=5) as sock:
            with suppress(TimeoutError):
                sock.sendall(one * 2_000)
            time.sleep(2)
            assert client.call("Ping") == ("Pong", ())
            assert daemon.rss_bytes() - before < 200_000_000, "1 GB was asked for"


def test_who_asks_too_often_is_refused_whichever_way(tmp_path: Path) -> None:
    """A second's worth at once, then a refusal in its place, and the end of the connection."""
    with running(tmp_path, "--rate-limit-per-ip", "300") as daemon, daemon.client() as client:
        topic = made_topic(client)
        wanted = [(("Publish", "", 0, None, b"x", None), POSTCARD)] * 1_000
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as sock:
            sock.sendall(request("Ping") + b"".join(written(topic, wanted)))
            assert struct.unpack_from(">I", read_frame(sock), 1) == (0,)
            for number in range(1_000):
                reply = read_frame(sock)
                assert struct.unpack_from(">I", reply, 1) == (number,)
                if reply[5] != PUBLISHED:
                    break
            assert b"RATE_LIMIT_EXCEEDED" in reply
            assert number > 290

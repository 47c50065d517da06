"""A real `rivvend` that is killed while clients write, and one that is asked to stop: what was acknowledged stays."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Daemon, running
from raw import POSTCARD, PROTOBUF, Closed, Raw, request

PARTITIONS = 3
WRITERS = 4
BURST = 8
ROUND_WRITES = 150
STOP_S = 2.0


class Writer(threading.Thread):
    """Publishes numbered values in bursts, and remembers what was acknowledged and where, until the line breaks."""

    def __init__(
        self, daemon: Daemon, name: str, form: int, acked: dict[tuple[int, int], bytes], heard: threading.Semaphore
    ) -> None:
        super().__init__(daemon=True)
        self._client = daemon.client()
        self._name = name.encode()
        self._form = form
        self.acked = acked
        self._heard = heard
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self.offsets: dict[int, list[tuple[int, int]]] = {}
        """For each partition: the numbers that were acknowledged, and their offsets."""

    def run(self) -> None:
        try:
            for first in itertools.count(0, BURST):
                if self.stopped.is_set():
                    break
                self._burst(first)
        except (Closed, OSError):
            pass  # killed, as planned
        except BaseException as error:
            self.failure = error
        finally:
            self._heard.release(ROUND_WRITES)  # nobody waits for one that has ended
            self._client.close()

    def _burst(self, first: int) -> None:
        numbers = range(first, first + BURST)
        values = [b"%s:%d:%s" % (self._name, number, b"x" * (number * 37 % 3000)) for number in numbers]
        asked = [
            request("Publish", "t", number % PARTITIONS, self._name, value, None, cid=number, form=self._form)
            for number, value in enumerate(values, first)
        ]
        self._client.send(b"".join(asked))
        for number, value in enumerate(values, first):
            form, cid, name, found = self._client.reply()
            assert (form, cid, name) == (self._form, number, "Published"), (name, found)
            offset, partition = found
            assert partition == number % PARTITIONS
            self.acked[partition, offset] = value
            self.offsets.setdefault(partition, []).append((number, offset))
            self._heard.release()


def everything(client: Raw, topic: str, partition: int) -> dict[int, tuple[bytes | None, bytes]]:
    _, (earliest, latest) = client.call("GetOffsetBounds", topic, partition)
    found: dict[int, tuple[bytes | None, bytes]] = {}
    offset = earliest
    while offset < latest:
        name, (messages,) = client.call("Consume", topic, partition, offset, 1000, None, None)
        assert name == "Messages"
        assert messages, f"nothing at {offset}, below {latest}"
        found |= {message[0]: (message[2], message[3]) for message in messages}
        offset = messages[-1][0] + 1
    assert sorted(found) == list(range(earliest, latest)), "a hole, or an offset twice"
    return found


def assert_nothing_is_lost(client: Raw, acked: dict[tuple[int, int], bytes], writers: list[Writer]) -> None:
    kept = {partition: everything(client, "t", partition) for partition in range(PARTITIONS)}
    for (partition, offset), value in acked.items():
        assert offset in kept[partition], f"lost: {partition}@{offset}"
        assert kept[partition][offset][1] == value
    for writer in writers:
        assert writer.failure is None, repr(writer.failure)
        for pairs in writer.offsets.values():
            assert pairs == sorted(pairs), "acknowledged out of order"
            assert len({offset for _, offset in pairs}) == len(pairs)
    for rows in kept.values():
        assert_in_order(rows)


def assert_in_order(rows: dict[int, tuple[bytes | None, bytes]]) -> None:
    """Also what was never acknowledged stands in the order in which it was sent, once."""
    last: dict[bytes, int] = {}
    for _, (key, value) in sorted(rows.items()):
        name, number, _ = value.split(b":", 2)
        assert name == key
        assert last.get(name, -1) < int(number), f"{value[:40]!r} after {last[name]}"
        last[name] = int(number)


def kill_and_check(home: Path, rounds: int, *flags: str) -> None:
    acked: dict[tuple[int, int], bytes] = {}
    committed = 0
    with running(home, *flags) as daemon:
        with daemon.client() as client:
            client.call("CreateTopic", "t", PARTITIONS)
        for number in range(rounds):
            heard = threading.Semaphore(0)
            writers = [Writer(daemon, f"w{number}-{each}", each % 2, acked, heard) for each in range(WRITERS)]
            for writer in writers:
                writer.start()
            for _ in range(ROUND_WRITES + number * 17 % 60):
                heard.acquire()
            with daemon.client() as client:
                latest = client.call("GetOffsetBounds", "t", 0)[1][1]
                assert client.call("CommitOffset", "g", "t", 0, latest) == ("OffsetCommitted", ())
                committed = latest
            daemon.kill()
            for writer in writers:
                writer.join(30)
                assert not writer.is_alive()
            daemon.start()
            with daemon.client() as client:
                assert_nothing_is_lost(client, acked, writers)
                assert client.call("GetOffset", "g", "t", 0) == ("Offset", (committed,))


@pytest.mark.parametrize("flags", [(), ("--max-segment-size", "16KiB")], ids=["", "rolling"])
def test_what_was_acknowledged_survives_kills(tmp_path: Path, flags: tuple[str, ...]) -> None:
    kill_and_check(tmp_path, 4, *flags)


@pytest.mark.soak
@pytest.mark.parametrize("flags", [(), ("--max-segment-size", "16KiB")], ids=["", "rolling"])
def test_what_was_acknowledged_survives_fifty_kills(tmp_path: Path, flags: tuple[str, ...]) -> None:
    kill_and_check(tmp_path, 50, *flags)


def test_a_topic_that_was_deleted_stays_so_after_a_kill(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        with daemon.client() as client:
            for name in ("gone", "again"):
                client.call("PublishBatch", name, 0, [(None, b"old")] * 100, None)
                assert client.call("DeleteTopic", name) == ("TopicDeleted", ())
            assert client.call("Publish", "again", 0, None, b"new", None) == ("Published", (0, 0))
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            assert client.call("ListTopics") == ("Topics", (("again",),))
            assert [row[1] for row in everything(client, "again", 0).values()] == [b"new"]


def test_everything_that_was_changed_survives_a_kill(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        with daemon.client() as client:
            client.call("CreateTopic", "t", 1)
            client.call("PublishBatch", "t", 0, [(None, b"%d" % number) for number in range(20)], None)
            assert client.call("CreatePartitions", "t", 4, [])[0] == "PartitionsCreated"
            assert client.call("AlterTopicConfig", "t", [("retention.ms", "77000")])[0] == "TopicConfigAltered"
            assert client.call("DeleteRecords", "t", [(0, 7)])[0] == "RecordsDeleted"
            assert client.call("AlterQuotas", [("user", "al", "request_rate", 5)]) == ("QuotasAltered", (1,))
            assert client.call("CommitOffset", "kept", "t", 0, 11) == ("OffsetCommitted", ())
            assert client.call("CommitOffset", "gone", "t", 0, 11) == ("OffsetCommitted", ())
            assert client.call("DeleteGroup", "gone") == ("GroupDeleted", ())
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            assert client.call("GetMetadata", "t") == ("Metadata", ("t", 4))
            assert client.call("DescribeTopicConfigs", ["t"])[1][0][0][1]["retention.ms"][0] == "77000"
            assert client.call("GetOffsetBounds", "t", 0) == ("OffsetBounds", (7, 20))
            assert client.call("DescribeQuotas", []) == ("QuotasDescribed", ((("user", "al", {"request_rate": 5}),),))
            assert client.call("ListGroups") == ("Groups", (("kept",),))
            assert client.call("GetOffset", "kept", "t", 0) == ("Offset", (11,))


# Stopping


def was_clean(daemon: Daemon) -> bool:
    """Whether the directory says that it was left in good order."""
    return bool(json.loads((daemon.data_dir / "checkpoint.json").read_text())["body"]["clean"])


@pytest.fixture
def polled(tmp_path: Path) -> Iterator[tuple[Daemon, list[Raw]]]:
    """A daemon with two long polls under way, one in each encoding."""
    with running(tmp_path) as daemon:
        clients = [daemon.client() for _ in range(2)]
        clients[0].call("CreateTopic", "t", 1)
        for client, form in zip(clients, (POSTCARD, PROTOBUF), strict=True):
            client.send(request("Consume", "t", 0, 0, 10, None, 30_000, cid=5, form=form))
            with daemon.client() as other:
                other.call("Ping")  # what was sent before has been read by now
        yield daemon, clients
        for client in clients:
            client.close()


def test_a_stop_answers_the_long_polls_and_takes_no_time(polled: tuple[Daemon, list[Raw]]) -> None:
    daemon, clients = polled
    assert daemon.stop() < STOP_S
    assert [client.reply()[1:] for client in clients] == [(5, "Messages", ((),))] * 2
    assert all(client.is_closed() for client in clients)
    assert was_clean(daemon)
    daemon.start()
    assert "(1 topic, 1 partition, " in daemon.ready_line


def test_a_stop_does_not_wait_for_those_who_poll_again_at_once(tmp_path: Path) -> None:
    """As every consumer does."""
    with running(tmp_path) as daemon:
        with daemon.client() as client:
            client.call("CreateTopic", "t", 1)

        def poll() -> None:
            try:
                with daemon.client() as client:
                    while True:
                        client.call("Consume", "t", 0, 0, 10, None, 30_000)
            except (Closed, OSError):
                pass

        pollers = [threading.Thread(target=poll, daemon=True) for _ in range(3)]
        for poller in pollers:
            poller.start()
        with daemon.client() as client:
            client.call("Ping")
        taken_s = daemon.stop()
        for poller in pollers:
            poller.join(10)
        assert taken_s < STOP_S


def test_a_stop_amid_writes_loses_nothing(tmp_path: Path) -> None:
    acked: dict[tuple[int, int], bytes] = {}
    heard = threading.Semaphore(0)
    with running(tmp_path) as daemon:
        with daemon.client() as client:
            client.call("CreateTopic", "t", PARTITIONS)
        writers = [Writer(daemon, f"w{each}", each % 2, acked, heard) for each in range(WRITERS)]
        for writer in writers:
            writer.start()
        for _ in range(ROUND_WRITES):
            heard.acquire()
        begun = time.monotonic()
        daemon.stop()
        assert time.monotonic() - begun < STOP_S
        for writer in writers:
            writer.join(30)
        assert was_clean(daemon)
        daemon.start()
        with daemon.client() as client:
            assert_nothing_is_lost(client, acked, writers)

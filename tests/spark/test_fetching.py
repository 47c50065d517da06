"""What a task reads: the same out of the broker's files and through its socket; and who tells what is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tables import running_broker

from rivven.client import blocking
from rivven.errors import RivvenError
from rivven.record import decode, walk
from rivven.spark.fetching import Fetcher

RECORDS = 6_000
VALUE = bytes(700)
SETTINGS = {"retention.ms": "-1", "segment.bytes": str(1 << 20)}


class Place:
    """A broker, a client of it, and the directory of its topic's partition."""

    def __init__(self, client: blocking.RivvenClient, data: Path, *, is_near: bool) -> None:
        self.client = client
        self.is_near = is_near
        self.files = data / "topics" / "t" / "partition-0"

    def read(self, start: int, until: int, *, committed: bool = True) -> list[int]:
        """The offsets that a task sees of a stretch."""
        seen: list[int] = []
        with Fetcher(self.client, "t", 0, start, committed=committed) as fetcher:
            while fetcher.position(0) < until and (piece := fetcher.next(0, until)) is not None:
                for at, header in walk(piece.data):
                    if not header.control:
                        seen += [each.offset for each in decode(piece.data, at) if start <= each.offset < until]
            assert fetcher.position(0) >= until
        return seen

    def asked(self, kind: str) -> int:
        """How many requests of a kind the broker has had."""
        lines = self.client.get_metrics("rivven_requests_total").splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if f'"{kind}"' in line)


@pytest.fixture(scope="module", params=["near", "far"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    data = tmp_path_factory.mktemp("fetching") / "data"
    flags = () if request.param == "near" else ("--no-local-reads",)
    with running_broker(data, *flags) as servers, blocking.connect(servers) as client:
        client.create_topic("t", 1, configs=SETTINGS)
        with client.producer("t", batch_bytes_max=20_000) as producer:
            for _ in range(RECORDS):
                producer.put(VALUE, partition=0)
        yield Place(client, data, is_near=request.param == "near")


@pytest.mark.parametrize(("start", "until"), [(0, RECORDS), (17, 5_991), (2_500, 2_501), (RECORDS - 5, RECORDS)])
def test_a_stretch_is_read_whole(place: Place, start: int, until: int) -> None:
    assert place.read(start, until) == list(range(start, until))


def test_many_segments_are_read_where_they_stand_if_they_are_near(place: Place) -> None:
    before = place.asked("FetchBatches")
    place.read(0, RECORDS)
    assert len(list(place.files.glob("*.log"))) > 3
    assert (place.asked("FetchBatches") == before) == place.is_near
    assert (place.asked("FindBatches") > 0) == place.is_near


def test_transactions_look_alike_from_near_and_far(place: Place) -> None:
    client = place.client
    client.create_topic("u", 1, configs=SETTINGS)
    expected: list[int] = []
    with client.producer("u", transactional_id=f"x-{id(place)}", batch_bytes_max=20_000) as producer:
        at = 0
        for number in range(6):
            is_kept = number % 2 == 0
            with contextlib.suppress(ZeroDivisionError), producer.transaction():
                for _ in range(300):
                    producer.put(VALUE, partition=0)
                producer.flush()
                assert is_kept or 1 / 0
            expected += range(at, at + 300) if is_kept else ()
            at += 301
    with Fetcher(client, "u", 0, 0, committed=True) as fetcher:
        seen = []
        while (piece := fetcher.next(0, at)) is not None:
            for position, _ in walk(piece.data):
                seen += [each.offset for each in decode(piece.data, position)]
    assert seen == expected


def test_damage_is_told_by_the_broker(place: Place) -> None:
    path = sorted(place.files.glob("*.log"))[1]
    first = int(path.stem)
    with path.open("r+b") as file:
        file.seek(300_000)
        byte = file.read(1)
        file.seek(300_000)
        file.write(bytes([byte[0] ^ 1]))
    try:
        with pytest.raises(RivvenError, match="are unreadable in"):
            place.read(0, RECORDS)
        assert place.read(0, first) == list(range(first))
    finally:
        with path.open("r+b") as file:
            file.seek(300_000)
            file.write(byte)

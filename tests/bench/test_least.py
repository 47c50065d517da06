"""The bar of the benchmarks: it stores what it answers for, and takes nothing that is damaged."""

import shutil
import socket
import struct

import pytest

from bench import frames, load, peers
from rivven.record import encode, walk

pytestmark = pytest.mark.skipif(not load.is_native(), reason="no C compiler")


@pytest.fixture(scope="module")
def least(tmp_path_factory):
    with peers.running(peers.Least, under=tmp_path_factory.mktemp("peers")) as ((peer,), _):
        yield peer


@pytest.mark.parametrize("records", [1, 100, 10_000])
def test_every_batch_that_was_counted_is_in_its_file(least, records):
    least.reset(2)
    plan = frames.bulk("kafka", 100, records, connections=2)
    seen = load.run(least, plan, load.Shape(connections=2, depth=3, seconds=0.3, warmup_s=0.0))
    stored = 0
    for number in range(2):
        headers = [header for _, header in walk((least.home / f"{number}.log").read_bytes())]
        assert [header.base_offset for header in headers] == [records * place for place in range(len(headers))]
        stored += records * len(headers)
    assert stored >= round(seen.records_per_s * 0.3) > 0


@pytest.mark.parametrize("place", [8, 16, 17, -1], ids=["length", "magic", "crc", "record"])
def test_a_damaged_batch_is_not_taken(least, place):
    least.reset(1)
    batch = bytearray(encode([(0, None, b"value", ())]))
    batch[place] ^= 0x40
    (frame,) = frames.kafka_produce(bytes(batch), 1, 1).scripts[0].frames
    with socket.create_connection(("127.0.0.1", least.port), timeout=5) as client:
        client.sendall(frame)
        assert client.recv(1) == b""
    assert (least.home / "0.log").read_bytes() == b""


@pytest.mark.parametrize("garbage", [struct.pack(">i", -1), struct.pack(">ihh", 20, 3, 7) + bytes(16), bytes(64)])
def test_what_it_does_not_know_it_cuts_off(least, garbage):
    with socket.create_connection(("127.0.0.1", least.port), timeout=5) as client:
        client.sendall(garbage)
        assert client.recv(1) == b""


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_what_the_benchmarks_compile_is_in_the_repository():
    listed = peers.subprocess.run(["git", "ls-files", "bench/*.c"], cwd=peers.ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout")
    assert {peers.LEAST.name, load.SOURCE.name} == {name.removeprefix("bench/") for name in listed.stdout.split()}

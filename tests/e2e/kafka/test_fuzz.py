"""Every request that is served, with bytes changed: the broker answers, or hangs up, and stays well.

A mutant is a valid request of any version, or one that a real client once sent, with a few bytes overwritten, left
out or put in. Nothing else than an answer to it, or a closed connection, may follow; and nothing in the broker's own
words may tell of something that it did not expect.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Daemon, running
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_peers import FLAGS
from speech import Closed, Speaker, header

from rivven.wire.kafka import SERVED, Api, encode_request

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "wire" / "kafka"))

from kafka_messages import Side, message, messages  # noqa: E402

SLOW_TO_ANSWER = {"Produce", "Fetch", "JoinGroup", "SyncGroup"}
"""These may wait, or say nothing at all, and be right."""
PATIENCE_S = 0.03
API_VERSIONS = 18
CORRELATION_ID = 0x5EED
TELLING = [0, 1, 0x7F, 0x80, 0xFE, 0xFF]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("fuzzed"), *FLAGS) as daemon:
        yield daemon


def mutants(body: bytes) -> st.SearchStrategy[bytes]:
    """The bytes behind the header's correlation id, which stays, with one to four changes."""
    place = st.integers(8, max(8, len(body) - 1))
    change = st.tuples(
        st.sampled_from(["over", "out", "in", "end"]), place, st.sampled_from(TELLING) | st.integers(0, 255)
    )

    def changed(changes: list[tuple[str, int, int]]) -> bytes:
        data = bytearray(body)
        for how, at, byte in changes:
            match how:
                case "over" if at < len(data):
                    data[at] = byte
                case "out":
                    del data[at : at + 1 + byte % 8]
                case "in":
                    data[at:at] = bytes([byte]) * (1 + byte % 5)
                case "end":
                    del data[at:]
        return bytes(data)

    return st.lists(change, min_size=1, max_size=4).map(changed)


def try_out(daemon: Daemon, api: Api, body: bytes) -> None:
    """Send it on a connection that has shown to be Kafka's."""
    slow = api.name in SLOW_TO_ANSWER
    with Speaker(daemon.port, PATIENCE_S if slow else 10) as speaker:
        try:
            speaker.send(header(API_VERSIONS, 0, 1))
            assert speaker.answer()[:4] == bytes([0, 0, 0, 1])
            speaker.send(body)
            answer = speaker.answer()
        except Closed:
            return
        except TimeoutError:
            assert slow, f"neither answered nor hung up: {body.hex()}"
            return
        assert answer[:4] == body[4:8]


def assert_well(daemon: Daemon, pid: int) -> None:
    daemon.assert_well(pid)
    assert "Traceback" not in daemon.errors(), daemon.errors()[-3_000:]


def attack_with(api: Api, attacked: Daemon, mutants_max: int) -> None:
    pid, side = attacked.pid, Side(api, "request")

    @given(st.data())
    def attack(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(side.versions))
        request = message(side, data.draw(messages(side)), version)
        body = b"".join(encode_request(request, version, CORRELATION_ID, "fuzz"))[4:]
        try_out(attacked, api, data.draw(mutants(body)))

    settings(max_examples=mutants_max, deadline=None, database=None)(attack)()
    assert_well(attacked, pid)


EACH_API = pytest.mark.parametrize("api", SERVED.values(), ids=lambda api: api.name)


@EACH_API
def test_a_mutated_request_is_answered_or_ends_its_connection(api: Api, attacked: Daemon) -> None:
    attack_with(api, attacked, mutants_max=30)


@pytest.mark.soak
@EACH_API
def test_very_many_mutated_requests_are_answered_or_end_their_connections(api: Api, attacked: Daemon) -> None:
    attack_with(api, attacked, mutants_max=1_000)


def recorded() -> list[bytes]:
    """What real clients once sent."""
    found = []
    for path in sorted((ROOT / "vectors" / "kafka").glob("*.txt")):
        for block in path.read_text().split("\n= ")[1:]:
            rows = block.strip().splitlines()[1:-1]
            found.append(bytes.fromhex("".join(row.partition("|")[0] for row in rows)))
    return [body for body in found if int.from_bytes(body[:2], "big") in SERVED]


def test_what_clients_send_survives_a_thousand_mutations(attacked: Daemon) -> None:
    pid, rng, bodies = attacked.pid, random.Random(4), recorded()
    for _ in range(1_000):
        body = bytearray(rng.choice(bodies))
        for _ in range(rng.randrange(1, 5)):
            body[rng.randrange(8, len(body))] = rng.choice([*TELLING, rng.randrange(256)])
        try_out(attacked, SERVED[int.from_bytes(body[:2], "big")], bytes(body))
    assert_well(attacked, pid)


def test_a_request_cut_off_anywhere_hurts_nobody(attacked: Daemon) -> None:
    pid = attacked.pid
    for body in recorded():
        api = SERVED[int.from_bytes(body[:2], "big")]
        for end in random.Random(5).sample(range(8, len(body)), min(6, len(body) - 8)):
            try_out(attacked, api, body[:end])
    assert_well(attacked, pid)

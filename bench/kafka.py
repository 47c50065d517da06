"""What do Kafka's clients get from us? Records in and out by librdkafka, metadata of many partitions, large groups.

confluent-kafka sends to rivvend with the policy `none` and to librdkafka's own mock broker, which writes nothing and
checks nothing: four partitions, 1,000 records a call, until the last one is stored. It reads the few megabytes that
the mock broker keeps from both, and from rivvend all that was sent. Client and broker share the machine, and the
client is the busier of the two, so what a record costs the broker stands beside the rates.

The mock broker gives a topic four partitions and knows no large groups. Groups are measured beside Kafka: both sync
what they answer for, and at neither does the first member pause to wait for company. The members are the same, in
one process, and beat at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench import confluent, load, members
from bench.contest import CLIENT, latencies
from bench.kraft import Kafka
from bench.load import Framing, Plan, Script, Shape
from bench.peers import START_S, TOPIC, MockBroker, Peer, Rivvend, cpu_seconds, running
from bench.spread import Result, alone, left_out, take_turns, versus
from rivven.wire import Splitter
from rivven.wire.kafka import decode_response, encode_request
from rivven.wire.kafka.made.metadata import API_KEY as METADATA
from rivven.wire.kafka.made.metadata import MetadataRequest, MetadataRequestTopic

PARTITIONS = 4
VALUE_BYTES = {"100 B": 100, "1 KB": 1000}
SENT_BYTES = 200_000_000
KEPT_BYTES = 14_000_000
"""The mock broker keeps 5 MB of a partition."""
PUT_TARGET = 0.9
METADATA_VERSION = 12
MANY_PARTITIONS = 1000
GROUP_MEMBERS = 500
READER = "confluent-kafka"
R = TypeVar("R")
_numbers = count()
TAIL_BYTES = 16


class Rate(NamedTuple):
    records_per_s: float
    peer_cpu_us: float
    """What a record cost the broker."""


def run(*, quick: bool = False) -> list[Result]:
    results: list[Result] = []
    for shown, value_bytes in VALUE_BYTES.items():
        results += records(shown, value_bytes, rounds=1 if quick else 11, share=0.1 if quick else 1.0)
    return [*results, *many(rounds=1 if quick else 5, seconds=0.5 if quick else 2.0)]


# Records, by confluent-kafka


def records(shown: str, value_bytes: int, *, rounds: int, share: float) -> list[Result]:
    """With brokers of its own, since the mock broker's topic cannot be emptied."""
    kept, sent = whole_calls(KEPT_BYTES, value_bytes), whole_calls(SENT_BYTES * share, value_bytes)
    value = bytes(value_bytes)
    with running(Rivvend, MockBroker) as (peers, missing):
        if missing:
            return left_out(f"Kafka produce and consume {shown}", missing)
        ours, mock = peers
        for peer in peers:
            peer.reset(PARTITIONS)
            put(peer, value, kept)
        read_kept = turns(peers, partial(read, records=kept), rounds=rounds)
        put_sent = turns(peers, partial(put_afresh, value=value, records=sent), rounds=rounds)
        read_sent = [read(ours, sent) for _ in range(rounds)]
    megabytes = round(kept * value_bytes / 1e6)
    return [
        beside(f"confluent-kafka puts {shown}", put_sent[ours.name], put_sent[mock.name], PUT_TARGET),
        beside(f"confluent-kafka reads {megabytes} MB of {shown}", read_kept[ours.name], read_kept[mock.name], None),
        figure(f"confluent-kafka reads all of {shown} from rivvend", read_sent),
    ]


def whole_calls(sent_bytes: float, value_bytes: int) -> int:
    """As many records as make these bytes, in whole calls to every partition."""
    step = confluent.HANDED_OVER * PARTITIONS
    return max(1, int(sent_bytes) // value_bytes // step) * step


def turns(peers: list[Peer], way: Callable[[Peer], R], *, rounds: int, warmups: int = 0) -> dict[str, list[R]]:
    return take_turns({peer.name: partial(way, peer) for peer in peers}, rounds=rounds, warmups=warmups)


def put_afresh(peer: Peer, *, value: bytes, records: int) -> Rate:
    peer.reset(PARTITIONS)
    return put(peer, value, records)


def put(peer: Peer, value: bytes, records: int) -> Rate:
    return costed(peer, records, lambda: confluent.put_many(peer.port, value, records, partitions=PARTITIONS))


def read(peer: Peer, records: int) -> Rate:
    return costed(peer, records, lambda: confluent.read(peer.port, records, partitions=PARTITIONS))


def costed(peer: Peer, records: int, act: Callable[[], float]) -> Rate:
    begun_s = cpu_seconds(peer.pid)
    rate = act()
    return Rate(rate, (cpu_seconds(peer.pid) - begun_s) / records * 1e6)


def figure(bench: str, rates: list[Rate]) -> Result:
    return alone(bench, "records/s", (rate.records_per_s for rate in rates), peer_cpu_us=cost(rates), client=READER)


def beside(bench: str, ours: list[Rate], others: list[Rate], target: float | None) -> Result:
    return versus(
        bench,
        "records/s",
        (rate.records_per_s for rate in ours),
        "librdkafka's mock broker",
        (rate.records_per_s for rate in others),
        target=target,
        client=READER,
        peer_cpu_us=cost(ours),
        against_peer_cpu_us=cost(others),
    )


def cost(rates: list[Rate]) -> float:
    return alone("", "us", (rate.peer_cpu_us for rate in rates))["value"]  # type: ignore[no-any-return]


# Many partitions, and many members


def many(*, rounds: int, seconds: float) -> list[Result]:
    at_once = ("--group-initial-rebalance-delay-ms", "0")
    ours = partial(_rivvend, flags=at_once)
    with running(ours, partial(Kafka, sync_always=True)) as (peers, missing):
        for each in peers:
            each.reset(MANY_PARTITIONS)
            if isinstance(each, Kafka):
                each.wake_groups()
        plan = metadata_plan(peers[0])
        shape = Shape(connections=1, seconds=seconds, warmup_s=0.2)
        asked = [load.run(peers[0], plan, shape) for _ in range(rounds)]
        seen = turns(peers, rebalances, rounds=rounds, warmups=0 if rounds == 1 else 1)
    metadata = alone(
        f"Kafka metadata of {MANY_PARTITIONS:,} partitions, one request in flight",
        "requests/s",
        (each.frames_per_s for each in asked),
        client=CLIENT,
        **latencies(asked),
        **load.doubts(*asked),
    )
    return [metadata, *groups(seen), *left_out("a group of many members", missing)]


def _rivvend(home: Path, flags: tuple[str, ...]) -> Rivvend:
    return Rivvend(home, *flags, policy="every_write")


def groups(seen: dict[str, list[members.Rebalances]]) -> list[Result]:
    bench = f"a Kafka group of {GROUP_MEMBERS} members shares {MANY_PARTITIONS:,} partitions"
    ours, (rival, theirs) = seen.pop("rivvend"), next(iter(seen.items()), ("", []))
    firsts, seconds = [each.first_s for each in ours], [each.second_s for each in ours]
    if not theirs:
        return [alone(bench, "s", firsts), alone(f"{bench} anew, one having left", "s", seconds)]
    their_firsts, their_seconds = [each.first_s for each in theirs], [each.second_s for each in theirs]
    anew = f"{bench} anew, one having left"
    return [
        versus(bench, "s", firsts, rival, their_firsts, less_is_better=True, client="bench/members.py"),
        versus(anew, "s", seconds, rival, their_seconds, less_is_better=True, client="bench/members.py"),
    ]


def metadata_plan(peer: Peer) -> Plan:
    """The question, and how the right answer ends, which is the same every time."""
    question = MetadataRequest([MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
    frame = b"".join(encode_request(question, METADATA_VERSION, 0, "bench"))
    body = answer_to(peer, frame)
    (topic,) = decode_response(body, METADATA, METADATA_VERSION)[1].topics
    assert len(topic.partitions) == MANY_PARTITIONS, topic
    return Plan(Framing.LENGTH, (Script((frame,)),), expect_at=len(body) - TAIL_BYTES, expect=body[-TAIL_BYTES:])


def answer_to(peer: Peer, frame: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", peer.port), timeout=START_S) as link:
        link.sendall(frame)
        splitter = Splitter()
        while data := link.recv(65_536):
            for body in splitter.feed(data):
                return bytes(body)
    raise RuntimeError("rivvend closed the connection")


def rebalances(peer: Peer) -> members.Rebalances:
    """Of a group that was never there before."""
    group = f"bench-{next(_numbers)}"
    return members.measure(peer.port, group, TOPIC, partitions=MANY_PARTITIONS, members=GROUP_MEMBERS)

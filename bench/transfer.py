"""Records into a broker and out of it again by confluent-kafka, with what that cost the client and the broker.

The values are lines of JSON with fields that vary, so that a codec has something to do and not too much. The client
is librdkafka, in C, called a thousand records at a time; how busy it was stands beside every figure, because on a
small machine it and the broker share the cores.
"""

from __future__ import annotations

import json
import resource
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

from bench import confluent
from bench.peers import Peer, cpu_seconds
from bench.spread import Result

CLIENT = "confluent-kafka"
CALL_BYTES_MAX = 2_000_000
"""Of what one call hands over; the least is one record."""
PLACES = ("Aachen", "Bergen", "Cork", "Delft", "Espoo", "Faro", "Ghent", "Havre")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """What goes in and comes out: at least so many bytes and no more than so many records, in whole calls."""

    value_bytes: int
    sent_bytes: int
    records_max: int = 10_000_000
    partitions: int = 4
    codec: str = "none"

    @property
    def values(self) -> list[bytes]:
        spread_wide = self.partitions > 100  # then calls are small, or most partitions would get nothing
        most = max(1, CALL_BYTES_MAX // self.value_bytes)
        return lines(self.value_bytes, min(100 if spread_wide else confluent.HANDED_OVER, most))

    @property
    def calls(self) -> int:
        wanted = min(self.records_max, self.sent_bytes // self.value_bytes)
        return max(1, round(wanted / len(self.values)))

    @property
    def records(self) -> int:
        return self.calls * len(self.values)


class Rate(NamedTuple):
    records_per_s: float
    client_cpu: float
    """How many cores the client used."""
    peer_cpu_s_per_gb: float


@cache
def lines(value_bytes: int, count: int) -> list[bytes]:
    """Values of exactly so many bytes, no two alike as long as there is room for it."""
    chance = Random(7)
    return [_line(chance, value_bytes) for _ in range(count)]


def _line(chance: Random, value_bytes: int) -> bytes:
    text = ""
    while len(text) < value_bytes:
        fields = {"id": chance.getrandbits(48), "place": chance.choice(PLACES), "reading": round(chance.random(), 6)}
        text += json.dumps(fields)
    return text.encode()[-value_bytes:]


def put(peer: Peer, amount: Amount) -> Rate:
    peer.reset(amount.partitions)
    return _costed(
        peer,
        amount,
        lambda: confluent.put_rows(
            peer.port, amount.values, amount.calls, partitions=amount.partitions, codec=amount.codec
        ),
    )


def read(peer: Peer, amount: Amount) -> Rate:
    return _costed(peer, amount, lambda: confluent.read(peer.port, amount.records, partitions=amount.partitions))


def _costed(peer: Peer, amount: Amount, act: Callable[[], float]) -> Rate:
    peer_begun_s, begun_s = cpu_seconds(peer.pid), _own_cpu_s()
    rate = act()
    passed_s = amount.records / rate
    peer_s = cpu_seconds(peer.pid) - peer_begun_s
    gigabytes = amount.records * amount.value_bytes / 1e9
    return Rate(rate, (_own_cpu_s() - begun_s) / passed_s, peer_s / gigabytes)


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def busy(ours: Iterable[Rate], theirs: Iterable[Rate]) -> Result:
    """Who was the client and how busy, for the table."""
    return {
        "client": CLIENT,
        "load_cpu": round(statistics.median(rate.client_cpu for rate in ours), 2),
        "against_load_cpu": round(statistics.median(rate.client_cpu for rate in theirs), 2),
    }

"""The node's plain counters as Prometheus text, made when somebody asks for it.

The data plane counts with integers and the small `Histogram` here; nothing of Prometheus is on its way, and the
library is loaded with the first scrape. The names of the series are bounded: beyond `SERIES_MAX` partitions the
sizes are told by topic alone, and beyond as many topics not by name at all.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Protocol

from rivven import __version__
from rivven.broker import Broker
from rivven.errors import RivvenError
from rivven.log import Store

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SERIES_MAX = 1000
SLICE = 100
"""So many partitions are measured before the event loop has its turn again."""
APPENDS = ("Publish", "PublishBatch", "PublishRecords", "ProduceBatches")
READS = ("Consume", "FetchBatches", "FindBatches")
QUOTAS = ("produce_bytes_rate", "consume_bytes_rate", "request_rate")
LATENCY_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


class Histogram:
    """Counts of observations by size. `counts[i]` are those up to `bounds[i]`, the last those beyond all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        assert list(bounds) == sorted(bounds)
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    @classmethod
    def of(cls, bounds: Sequence[float], counts: list[int], total: float) -> Histogram:
        made = cls(bounds)
        assert len(counts) == len(made.counts)
        made.counts, made.total = counts, total
        return made

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, other: Histogram) -> None:
        assert self.bounds == other.bounds
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each counts all that is below its bound."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


class Observed(Protocol):
    """What is read of a node."""

    @property
    def broker(self) -> Broker: ...
    @property
    def store(self) -> Store: ...
    @property
    def latency(self) -> Mapping[str, Histogram]: ...
    @property
    def buffers(self) -> Any: ...
    @property
    def connections(self) -> int: ...
    @property
    def connections_total(self) -> int: ...
    @property
    def refused_total(self) -> int: ...
    @property
    def inflight_bytes(self) -> int: ...
    @property
    def ready(self) -> bool: ...
    def take_counts(self) -> None:
        """Bring `latency` and the counts of requests up to date."""


@dataclass(slots=True)
class Measured:
    """One partition."""

    topic: str
    partition: int
    size_bytes: int
    segments: int
    start: int
    end: int


@dataclass(slots=True)
class Sizes:
    """Every partition of a store."""

    partitions: list[Measured] = field(default_factory=list)

    @property
    def segments(self) -> int:
        return sum(each.segments for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)

    def by_topic(self) -> dict[str, list[Measured]]:
        found: dict[str, list[Measured]] = {}
        for each in sorted(self.partitions, key=lambda each: (each.topic, each.partition)):
            found.setdefault(each.topic, []).append(each)
        return found


async def measure(store: Store) -> Sizes:
    """How large everything is, a slice at a time, since a store may hold very many partitions."""
    sizes = Sizes()
    for number, log in enumerate(store.logs, 1):
        with suppress(OSError, RivvenError):  # its topic may be deleted meanwhile
            name, partition = log.partition.topic, log.partition.partition
            facts = log.size_bytes, len(log.segments), int(log.start), int(log.end)
            sizes.partitions.append(Measured(name, partition, *facts))
        if number % SLICE == 0:
            await asyncio.sleep(0)
    return sizes


async def scrape(node: Observed) -> bytes:
    """The page that Prometheus reads."""
    node.take_counts()
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(NodeCollector(node, await measure(node.store)))
    return generate_latest(registry)


class NodeCollector:
    """A node and the sizes of its partitions, as families of metrics."""

    def __init__(self, node: Observed, sizes: Sizes) -> None:
        self._node = node
        self._sizes = sizes

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._core()
        yield from self._traffic()
        yield from self._latencies()
        yield from self._durability()
        yield from self._storage()
        yield from self._groups()

    def _core(self) -> Iterator[Metric]:
        """The names that dashboards for rivven have known for long."""
        node, stats = self._node, self._node.broker.stats
        labels = {"version": __version__, "node_id_str": node.broker.config.node_id}
        yield _gauge("rivven_info", "The version, and this node's name", [(labels, 1)])
        yield _counter("rivven_core_messages_appended", "Messages published", stats.messages_in)
        yield _counter("rivven_core_messages_read", "Messages read", stats.messages_out)
        yield _counter("rivven_core_batch_appends", "Batches appended", stats.batches_in)
        yield _gauge("rivven_core_active_connections", "Connections now", node.connections)
        text = "Connections closed since their address asked too often"
        yield _counter("rivven_core_rate_limit_rejections", text, stats.refused_rate)
        yield _counter("rivven_core_message_size_exceeded", "Requests above the largest size", stats.refused_large)
        text = "Connections closed since they were silent for too long"
        yield _counter("rivven_core_connection_timeouts", text, stats.timed_out)
        yield _gauge("rivven_core_partition_count", "Partitions", len(self._sizes.partitions))
        yield _gauge("rivven_core_segment_count", "Segments of all partitions", self._sizes.segments)
        kinds = {"append": APPENDS, "batch_append": APPENDS[1:], "read": READS}
        for name, requests in kinds.items():
            text = f"From the request to its reply: {', '.join(requests)}"
            yield _histogram(f"rivven_core_{name}_latency_seconds", text, [({}, self._merged(requests))])

    def _merged(self, requests: Sequence[str]) -> Histogram:
        found = [self._node.latency[name] for name in requests if name in self._node.latency]
        merged = Histogram(found[0].bounds if found else LATENCY_BOUNDS_S)
        for each in found:
            merged.add(each)
        return merged

    def _traffic(self) -> Iterator[Metric]:
        node, stats = self._node, self._node.broker.stats
        ways = {"in": (stats.messages_in, stats.bytes_in), "out": (stats.messages_out, stats.bytes_out)}
        messages = [({"direction": way}, counts[0]) for way, counts in ways.items()]
        payload = [({"direction": way}, counts[1]) for way, counts in ways.items()]
        yield _counter("rivven_messages", "Messages published (in) and read (out)", messages)
        yield _counter("rivven_bytes", "Bytes published (in) and read (out)", payload)
        requests = [({"request": name}, count) for name, count in sorted(stats.requests.items())]
        yield _counter("rivven_requests", "Requests by kind", requests)
        yield _counter("rivven_errors", "Requests that were answered with an error", stats.errors)
        yield _counter("rivven_throttled", "Times that a client went over its quota", stats.throttled)
        for quota in QUOTAS:
            kind, times = quota.partition("_")[0], stats.violations.get(quota, 0)
            yield _counter(f"rivven_quota_{kind}_violations", f"Times that a client went over its {quota}", times)
        text = "For how long clients over their quotas were held up"
        yield _counter("rivven_quota_throttle_time_ms", text, stats.throttled_ms)
        text = "Requests refused because too many bytes were under way"
        yield _counter("rivven_requests_refused", text, stats.refused_full)
        yield _gauge("rivven_connections_active", "Connections now", node.connections)
        yield _counter("rivven_connections_accepted", "Connections since the start", node.connections_total)
        yield _counter("rivven_connections_refused", "Connections over a limit", node.refused_total)
        yield _gauge("rivven_inflight_bytes", "Requests under way, in memory", node.inflight_bytes)
        yield _gauge("rivven_waiting_requests", "Long polls that wait for records", node.broker.waiting)
        preloading = node.broker.preloading
        yield _gauge("rivven_waiting_for_disk", "Readers of what is not in memory, until it is", len(preloading))
        yield _counter("rivven_disk_preloads", "Times that something was read into memory first", preloading.total)
        yield _gauge("rivven_ready", "1 while the node serves", int(node.ready))
        for name in ("hits", "misses"):
            if (count := getattr(node.buffers, name, None)) is not None:
                yield _counter(f"rivven_buffer_pool_{name}", f"Receive buffers: {name} in the pool", count)
        text = "Receive buffers at rest in the pool"
        yield _gauge("rivven_buffer_pool_bytes", text, getattr(node.buffers, "held_bytes", 0))

    def _latencies(self) -> Iterator[Metric]:
        rows = [({"request": name or "refused"}, histogram) for name, histogram in sorted(self._node.latency.items())]
        yield _histogram("rivven_request_latency_seconds", "From the request to its reply, by kind", rows)

    def _durability(self) -> Iterator[Metric]:
        from prometheus_client.core import SummaryMetricFamily

        store = self._node.store
        stats = store.wal_stats
        text = "Write and sync of a group in the write-ahead log"
        yield SummaryMetricFamily("rivven_sync_latency_seconds", text, stats.syncs, stats.sync_us_total / 1e6)
        yield _gauge("rivven_sync_latency_max_seconds", "The longest since the start", stats.sync_us_max / 1e6)
        yield _counter("rivven_wal_groups", "Groups written ahead", stats.groups)
        yield _counter("rivven_wal_writes", "Writes in these groups", stats.writes)
        yield _counter("rivven_wal_bytes", "Bytes written ahead", stats.bytes_written)
        yield _counter("rivven_wal_syncs", "Syncs", stats.syncs)
        yield _counter("rivven_wal_rotations", "Moves to the next write-ahead file", stats.rotations)
        yield _gauge("rivven_wal_waiting_writes", "Writes that are not durable yet", store.waiting)

    def _storage(self) -> Iterator[Metric]:
        topics = self._sizes.by_topic()
        yield _gauge("rivven_topics", "Topics", len(self._node.store.topics))
        sizes: list[tuple[dict[str, str], float]] = []
        ends: list[tuple[dict[str, str], float]] = []
        if len(self._sizes.partitions) <= SERIES_MAX:
            for name, parts in topics.items():
                for each in parts:
                    labels = {"topic": name, "partition": str(each.partition)}
                    sizes.append((labels, each.size_bytes))
                    ends.append((labels, each.end))
        elif len(topics) <= SERIES_MAX:
            sizes = [
                ({"topic": name, "partition": "all"}, sum(each.size_bytes for each in parts))
                for name, parts in topics.items()
            ]
        else:
            sizes = [({"topic": "all", "partition": "all"}, self._sizes.size_bytes)]
        yield _gauge("rivven_storage_bytes", "Bytes of record batches on disk", sizes)
        if ends:
            yield _gauge("rivven_core_partition_offset", "The next offset of a partition", ends)

    def _groups(self) -> Iterator[Metric]:
        keeper = self._node.broker.groups
        listed = keeper.list()
        yield _gauge("rivven_consumer_groups", "Groups", len(listed))
        if len(listed) <= SERIES_MAX:
            members = [({"group": each.group}, keeper.members(each.group)) for each in listed]
            yield _gauge("rivven_consumer_group_members", "Members of a group", members)
        behind = list(islice(self._node.broker.lags(), SERIES_MAX))  # the groups that come first by name
        records: list[tuple[dict[str, str], float]] = []
        seconds: list[tuple[dict[str, str], float]] = []
        for each in behind:
            labels = {"group": each.group, "topic": each.topic, "partition": str(each.partition)}
            records.append((labels, each.records))
            seconds.append((labels, each.waiting_ms / 1000))
        yield _gauge("rivven_consumer_lag_records", "Records that a group has not committed", records)
        yield _gauge("rivven_consumer_lag_seconds", "The age of the first that it has not committed", seconds)


Rows = Sequence[tuple[dict[str, str], float]]


def _rows(value: float | Rows) -> Rows:
    return [({}, value)] if isinstance(value, int | float) else value


def _counter(name: str, text: str, value: float | Rows) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, text)
    for labels, count in _rows(value):
        family.add_sample(f"{name}_total", labels, count)
    return family


def _gauge(name: str, text: str, value: float | Rows) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text)
    for labels, amount in _rows(value):
        family.add_sample(name, labels, amount)
    return family


def _histogram(name: str, text: str, rows: Sequence[tuple[dict[str, str], Histogram]]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text)
    for labels, histogram in rows:
        for bound, count in histogram.buckets():
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{name}_count", labels, histogram.count)
        family.add_sample(f"{name}_sum", labels, histogram.total)
    return family

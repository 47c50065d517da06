"""What Prometheus reads: parsed by its own parser, from a node's plain counters."""

import asyncio
import contextlib
import struct
from bisect import bisect_left
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from rivven import __version__
from rivven.record import encode, validate
from rivven.server import metrics as module
from rivven.server.metrics import Histogram, Measured, NodeCollector, Sizes, measure, scrape
from rivven.server.node import Node
from rivven.server.settings import Settings
from rivven.wire import encode_request
from rivven.wire import requests as ask


def settings_for(path) -> Settings:
    return Settings(data_dir=str(path / "data"), bind_port=0, http_port=0, node_id="n1")


def served(path, look):
    """Run `look` with a node that serves, and stop it."""

    async def run():
        node = Node(settings_for(path))
        await node.start()
        try:
            return await look(node)
        finally:
            await node.stop()

    return asyncio.run(run())


def parsed(page: bytes) -> dict[tuple[str, tuple], float]:
    families = text_string_to_metric_families(page.decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def fill(node) -> None:
    node.store.create_topic("orders", 2)
    node.store.create_topic("payments", 1)
    batch = bytearray(encode([(1_750_000_000_000, b"k", b"v" * 100, ())] * 3))
    node.store.append(node.store.log("orders", 1), batch, validate(batch))
    node.store.flush()


def test_a_scrape_tells_what_the_broker_has_counted(tmp_path):
    async def look(node):
        fill(node)
        stats = node.broker.stats
        stats.messages_in, stats.messages_out, stats.batches_in = 3, 2, 1
        stats.bytes_in, stats.bytes_out, stats.errors, stats.throttled = 300, 200, 4, 5
        stats.requests["Publish"] = 7
        return await scrape(node)

    found = parsed(served(tmp_path, look))
    assert found["rivven_info", (("node_id_str", "n1"), ("version", __version__))] == 1
    assert found["rivven_core_messages_appended_total", ()] == 3
    assert found["rivven_core_messages_read_total", ()] == 2
    assert found["rivven_core_batch_appends_total", ()] == 1
    assert found["rivven_core_active_connections", ()] == 0
    assert found["rivven_core_partition_count", ()] == 3
    assert found["rivven_core_segment_count", ()] == 3
    assert found["rivven_messages_total", (("direction", "in"),)] == 3
    assert found["rivven_bytes_total", (("direction", "out"),)] == 200
    assert found["rivven_requests_total", (("request", "Publish"),)] == 7
    assert found["rivven_errors_total", ()] == 4
    assert found["rivven_throttled_total", ()] == 5
    assert found["rivven_connections_active", ()] == 0
    assert found["rivven_waiting_requests", ()] == 0
    assert found["rivven_ready", ()] == 1
    assert found["rivven_topics", ()] == 2
    assert found["process_resident_memory_bytes", ()] > 1e6


def test_a_scrape_tells_who_was_refused_held_up_or_silent(tmp_path):
    async def play():
        node = Node(
            replace(
                settings_for(tmp_path),
                rate_limit_per_ip=3,
                max_request_size=1024,
                idle_timeout_secs=0.05,
                quota_produce_bytes_rate=1000,
            )
        )
        await node.start()
        try:
            await closed(node, struct.pack(">I", 2000))
            await closed(node, b"")
            publish, ping = ask.Publish("t", 0, None, bytes(900), None), ask.Ping()
            for requests in ([publish] * 3, [ping] * 4):
                await closed(node, b"".join(piece for each in requests for piece in encode_request(each, 1)))
            return await scrape(node)
        finally:
            await node.stop()

    found = parsed(asyncio.run(play()))
    assert found["rivven_core_message_size_exceeded_total", ()] == 1
    assert found["rivven_core_connection_timeouts_total", ()] >= 1
    assert found["rivven_core_rate_limit_rejections_total", ()] >= 1
    assert found["rivven_quota_produce_violations_total", ()] >= 1
    assert found["rivven_quota_request_violations_total", ()] == 0
    assert found["rivven_quota_throttle_time_ms_total", ()] > 0


async def closed(node, said: bytes) -> None:
    """Connect, say that, and wait until the node hangs up."""
    reader, writer = await asyncio.open_connection(*node.address)
    writer.write(said)
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
    writer.close()


def test_a_scrape_tells_how_large_each_partition_is_and_how_the_syncs_went(tmp_path):
    async def look(node):
        fill(node)
        return await scrape(node), node.store.log("orders", 1).size_bytes

    page, size_bytes = served(tmp_path, look)
    found = parsed(page)
    assert size_bytes > 300 // 2
    assert found["rivven_storage_bytes", (("partition", "1"), ("topic", "orders"))] == size_bytes
    assert found["rivven_storage_bytes", (("partition", "0"), ("topic", "payments"))] == 0
    assert found["rivven_core_partition_offset", (("partition", "1"), ("topic", "orders"))] == 3
    assert found["rivven_sync_latency_seconds_count", ()] == found["rivven_wal_syncs_total", ()] >= 1
    assert found["rivven_sync_latency_seconds_sum", ()] > 0
    assert found["rivven_wal_writes_total", ()] == 1
    assert found["rivven_wal_bytes_total", ()] > size_bytes
    assert found["rivven_wal_waiting_writes", ()] == 0


def test_latencies_are_histograms_by_request_and_together(tmp_path):
    async def look(node):
        for kind, seconds in [("Publish", 0.0004), ("PublishBatch", 0.02), ("Consume", 0.3), ("Ping", 99)]:
            node.latency[kind] = Histogram()
            node.latency[kind].observe(seconds)
        return await scrape(node)

    found = parsed(served(tmp_path, look))
    name = "rivven_request_latency_seconds"
    assert found[f"{name}_bucket", (("le", "0.00025"), ("request", "Publish"))] == 0
    assert found[f"{name}_bucket", (("le", "0.0005"), ("request", "Publish"))] == 1
    assert found[f"{name}_bucket", (("le", "30.0"), ("request", "Ping"))] == 0
    assert found[f"{name}_bucket", (("le", "+Inf"), ("request", "Ping"))] == 1
    assert found[f"{name}_sum", (("request", "Consume"),)] == pytest.approx(0.3)
    assert found["rivven_core_append_latency_seconds_count", ()] == 2
    assert found["rivven_core_batch_append_latency_seconds_count", ()] == 1
    assert found["rivven_core_read_latency_seconds_sum", ()] == pytest.approx(0.3)


def storage_rows(node, sizes: Sizes) -> dict[tuple, float]:
    families = {family.name: family for family in NodeCollector(node, sizes).collect()}
    rows = {tuple(sorted(sample.labels.items())): sample.value for sample in families["rivven_storage_bytes"].samples}
    assert ("rivven_core_partition_offset" in families) == (len(sizes.partitions) <= module.SERIES_MAX)
    return rows


def test_many_partitions_are_told_by_topic_and_many_topics_in_one(tmp_path):
    async def look(node):
        few = Sizes([Measured("t", number, 5, 1, 0, 0) for number in range(1000)])
        many = Sizes([Measured(f"t{number % 4}", number, 5, 1, 0, 0) for number in range(1001)])
        topics = Sizes([Measured(f"t{number}", 0, 5, 1, 0, 0) for number in range(1001)])
        assert len(storage_rows(node, few)) == 1000
        by_topic = storage_rows(node, many)
        assert len(by_topic) == 4
        assert by_topic[("partition", "all"), ("topic", "t0")] == 5 * 251
        assert storage_rows(node, topics) == {(("partition", "all"), ("topic", "all")): 5005}

    served(tmp_path, look)


def test_a_topic_name_cannot_break_the_page(tmp_path):
    async def look(node):
        node.broker.stats.requests['a"b\\c\nd'] = 1
        return await scrape(node)

    assert parsed(served(tmp_path, look))["rivven_requests_total", (("request", 'a"b\\c\nd'),)] == 1


def test_measuring_lets_the_loop_turn(tmp_path, monkeypatch):
    async def look(node):
        node.store.create_topic("orders", 10)
        monkeypatch.setattr(module, "SLICE", 2)
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(count())
        sizes = await measure(node.store)
        task.cancel()
        assert len(sizes.partitions) == 10
        assert turns >= 4

    served(tmp_path, look)


@given(st.lists(st.floats(0, 100)), st.lists(st.floats(0.001, 50), unique=True).map(sorted))
def test_a_histogram_counts_every_observation_once_at_or_below_its_bound(observed, bounds):
    histogram = Histogram(bounds)
    for seconds in observed:
        histogram.observe(seconds)
    assert histogram.count == len(observed)
    assert histogram.total == pytest.approx(sum(observed))
    for (name, below), bound in zip(histogram.buckets(), [*bounds, float("inf")], strict=True):
        assert float(name) == bound
        assert below == sum(seconds <= bound for seconds in observed)
    assert histogram.counts[bisect_left(bounds, 1.0)] >= sum(seconds == 1.0 for seconds in observed)


@given(st.lists(st.floats(0, 10)), st.lists(st.floats(0, 10)))
def test_adding_histograms_is_observing_both(first, second):
    one, two, both = Histogram(), Histogram(), Histogram()
    for seconds in first:
        one.observe(seconds)
        both.observe(seconds)
    for seconds in second:
        two.observe(seconds)
        both.observe(seconds)
    one.add(two)
    assert one.counts == both.counts
    assert one.total == pytest.approx(both.total)

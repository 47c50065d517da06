"""What the driver asks the broker before tasks read: which partitions there are, their bounds, their sizes."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import NoReturn

from rivven.client import Bounds, ServerException, blocking
from rivven.errors import RivvenError
from rivven.model import TopicPartition

from .clients import client_of, patiently
from .fetching import NOWHERE, Fetcher
from .offsets import Offsets, Stretch, split
from .options import EARLIEST, LATEST, Place, Reading, refuse

SIZES_S = 60.0
"""How long the sizes of partitions are taken as known."""
SIZE_LINE = re.compile(r"^rivven_storage_bytes\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
RECORD_BYTES = 100.0
"""Of a partition whose size nobody tells."""

log = logging.getLogger("rivven.spark")


class DataLost(RivvenError, code=110):
    """Records that were to be read are gone."""

    message = (
        "{topic}/{partition}: offsets {start} to {last} are gone, the first that is left is {earliest}: {why}. "
        "To go on with what is left set failOnDataLoss=false, in a pipeline file fail_on_data_loss: false; to lose "
        "nothing the next time, raise retention.ms or retention.bytes of the topic"
    )


class Planner:
    """Asks for one reader. Connections are made when they are needed: a planner is shipped to tasks without any."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._fetchers: dict[str, Fetcher] = {}
        self._record_bytes: dict[TopicPartition, float] = {}
        self._sized_s = float("-inf")

    def __getstate__(self) -> Reading:
        return self._reading

    def __setstate__(self, reading: Reading) -> None:
        self.__init__(reading)  # type: ignore[misc]

    @property
    def client(self) -> blocking.RivvenClient:
        return client_of(self._reading.access)

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.__exit__()
        self._fetchers.clear()

    # Partitions

    def partitions(self) -> list[TopicPartition]:
        """All that are wanted and there now. A broker that was never reached is not waited for."""
        assert self.client
        return patiently(self._partitions)

    def _partitions(self) -> list[TopicPartition]:
        wanted = self._reading.wanted
        if wanted.pattern is not None:
            matches = re.compile(wanted.pattern).fullmatch
            topics = [name for name in self.client.list_topics() if not name.startswith("__") and matches(name)]
            counts = self._counts(topics)
        else:
            named = wanted.topics or tuple(dict.fromkeys(each.topic for each in wanted.partitions))
            counts = self._counts(named)
        if wanted.partitions:
            return [each for each in wanted.partitions if each.partition < counts.get(each.topic, 0)]
        return [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        counts = {}
        for topic in topics:
            try:
                counts[topic] = self.client.get_metadata(topic)[1]
            except ServerException as error:
                if "not found" not in str(error).lower():
                    raise
        return counts

    def present_partitions(self) -> list[TopicPartition]:
        """The same, and an error if something that was named is not there."""
        found = self.partitions()
        wanted = self._reading.wanted
        topics = {each.topic for each in found}
        for topic in [*wanted.topics, *(each.topic for each in wanted.partitions)]:
            if topic not in topics:
                refuse(f"there is no topic {topic!r} at {self._reading.access.servers}; create it first")
        for each in wanted.partitions:
            if each not in found:
                refuse(f"option 'assign' names {each.topic}/{each.partition}, which is not there")
        return found

    # Bounds

    def bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        return patiently(lambda: self._bounds(partitions))

    def _bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        by_topic: dict[str, list[int]] = {}
        for topic, number in partitions:
            by_topic.setdefault(topic, []).append(number)
        found = {}
        for topic, numbers in by_topic.items():
            bounds = self._fetcher(topic, numbers).ask_bounds()
            found.update({TopicPartition(topic, number): bounds[number] for number in numbers})
        return found

    def _fetcher(self, topic: str, numbers: list[int]) -> Fetcher:
        held = self._fetchers.get(topic)
        if held is None or held.numbers != numbers:
            if held is not None:
                held.__exit__()
            committed = self._reading.committed
            held = self._fetchers[topic] = Fetcher(self.client, topic, numbers, NOWHERE, committed=committed)
        return held

    def end_of(self, bounds: Bounds) -> int:
        """Up to where this reader may read."""
        return bounds.stable if self._reading.committed else bounds.latest

    # Places

    def resolve(self, place: Place, partitions: Sequence[TopicPartition]) -> Offsets:
        """The offsets that a place means for these partitions."""
        bounds = self.bounds(partitions)
        if place.table is not None:
            _check_named(place, partitions)
        return {each: self._resolve(place, each, bounds[each]) for each in partitions}

    def _resolve(self, place: Place, partition: TopicPartition, bounds: Bounds) -> int:
        told = place.edge if place.table is None else place.table[partition]
        if place.in_time:
            return self.at_time(partition, told if place.time_ms is None else place.time_ms, bounds)
        if told == EARLIEST:
            return bounds.earliest
        if told == LATEST:
            return self.end_of(bounds)
        return told

    def at_time(self, partition: TopicPartition, time_ms: int, bounds: Bounds) -> int:
        """The first offset that is not older, or the end."""
        found = patiently(lambda: self.client.get_offset_for_timestamp(*partition, time_ms))
        end = self.end_of(bounds)
        return end if found is None else min(found, end)

    # Stretches

    def stretches(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[Stretch]:
        """What tasks read of these [start, until)."""
        reading = self._reading
        whole = [Stretch(*each, start, until) for each, (start, until) in sorted(ranges.items()) if until > start]
        self._look_at_sizes(whole)
        return split(
            whole,
            partitions_min=reading.partitions_min,
            bytes_max=reading.partition_bytes_max,
            record_bytes=lambda it: self._record_bytes.get(TopicPartition(it.topic, it.partition), RECORD_BYTES),
        )

    def _look_at_sizes(self, whole: Sequence[Stretch]) -> None:
        """Learn about how long records are; only where it may matter, and not too often."""
        many = any(each.count * RECORD_BYTES > self._reading.partition_bytes_max / 100 for each in whole)
        if not many or monotonic() - self._sized_s < SIZES_S:
            return
        self._sized_s = monotonic()
        try:
            text = self.client.get_metrics("rivven_storage_bytes")
        except ServerException:
            return  # a broker that does not tell
        sizes = parse_sizes(text)
        bounds = self.bounds([TopicPartition(each.topic, each.partition) for each in whole])
        for each, (earliest, latest, _) in bounds.items():
            if each in sizes and latest > earliest:
                self._record_bytes[each] = sizes[each] / (latest - earliest)

    # What is gone

    def lost(self, partition: TopicPartition, start: int, earliest: int, why: str) -> None:
        """Offsets [start, earliest) are gone: an error, or a warning if that is wanted."""
        error = DataLost(
            topic=partition.topic,
            partition=partition.partition,
            start=start,
            last=earliest - 1,
            earliest=earliest,
            why=why,
        )
        if self._reading.fail_on_loss:
            raise error
        log.warning("%s", error)


def _check_named(place: Place, partitions: Sequence[TopicPartition]) -> None:
    table = place.table or {}
    missing = [each for each in partitions if each not in table]
    if missing:
        _refuse_named(place, "leaves out", missing, "name every partition; in offsets -2 is earliest and -1 latest")
    unknown = sorted(set(table) - set(partitions))
    if unknown:
        _refuse_named(place, "names", unknown, "which this reader does not read; leave it out")


def _refuse_named(place: Place, verb: str, partitions: Sequence[TopicPartition], cure: str) -> NoReturn:
    named = ", ".join(f"{each.topic}/{each.partition}" for each in partitions[:5])
    refuse(f"option '{place.option}' {verb} {named}{' and more' if len(partitions) > 5 else ''}; {cure}")


def parse_sizes(text: str) -> dict[TopicPartition, float]:
    """Bytes by partition, from the metrics of a broker.

    >>> parse_sizes('rivven_storage_bytes{partition="0",topic="orders"} 4096.0')
    {TopicPartition(topic='orders', partition=0): 4096.0}
    """
    sizes = {}
    for labels, value in SIZE_LINE.findall(text):
        found = dict(LABEL.findall(labels))
        if found.get("partition", "").isdecimal():
            sizes[TopicPartition(found["topic"], int(found["partition"]))] = float(value)
    return sizes

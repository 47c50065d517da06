"""Committed offsets of consumer groups, kept in the compacted topic `__consumer_offsets`.

A commit is a record; it counts, and is answered, once it is durable. At start the topic is read from end to end.
A group's records all go to one partition, so that they keep their order.
"""

from __future__ import annotations

from collections.abc import Callable

from rivven.coordinator import CommittedOffset, OffsetKey, Offsets, encode_key, encode_value
from rivven.errors import RivvenError
from rivven.log import Log, Store
from rivven.ports import Clock
from rivven.record import decode, partition_for_key, walk

from .publish import Publisher

TOPIC = "__consumer_offsets"
PARTITIONS = 8
READ_BYTES = 1024 * 1024

Done = Callable[[RivvenError | None], None]


class CommittedOffsets:
    def __init__(self, store: Store, clock: Clock, publisher: Publisher) -> None:
        self._store = store
        self._clock = clock
        self._publisher = publisher
        self.table = Offsets()
        if any(topic.name == TOPIC for topic in store.topics):
            for number in range(store.topic(TOPIC).partitions):
                self._replay(store.log(TOPIC, number))

    def _replay(self, log: Log) -> None:
        offset = int(log.start)
        while offset < log.high_watermark:
            data = log.read(offset, bytes_max=READ_BYTES)
            for position, header in walk(data):
                for record in decode(data, position) if not header.control else ():
                    self.table.replay(record.key, record.value)
                offset = header.next_offset

    def commit(self, entries: dict[OffsetKey, CommittedOffset | None], done: Done) -> None:
        """Make these commits of one group, all or none; `done` hears when they count."""
        group = next(iter(entries)).group
        assert all(key.group == group for key in entries), "one group at a time"
        now_ms = self._clock.now_ms()
        records = [
            (now_ms, encode_key(key), encode_value(entry) if entry is not None else None, ())
            for key, entry in entries.items()
        ]

        def answered(_: int, error: RivvenError | None) -> None:
            if error is None:
                for key, entry in entries.items():
                    self.table.apply(key, entry)
            done(error)

        self._publisher.gather(self._log_of(group), records, answered)

    def _log_of(self, group: str) -> Log:
        if not any(topic.name == TOPIC for topic in self._store.topics):
            configs = {"cleanup.policy": "compact", "segment.bytes": str(64 * 1024 * 1024)}
            self._store.create_topic(TOPIC, PARTITIONS, configs)
        return self._store.log(TOPIC, partition_for_key(group.encode(), self._store.topic(TOPIC).partitions))

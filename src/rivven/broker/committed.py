"""Committed offsets of consumer groups, kept in the compacted topic `__consumer_offsets`.

A commit is a record; it counts, and is answered, once it is durable. At start the topic is read from end to end.
A group's records all go to one partition, so that they keep their order. Offsets of a topic go when the topic goes;
should a crash come between, the next start takes them away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from rivven.coordinator import CommittedOffset, OffsetKey, Offsets, encode_key, encode_value
from rivven.errors import GroupFull, RivvenError
from rivven.limits import GROUPS_MAX, OFFSETS_PER_GROUP_MAX
from rivven.log import Log, Store
from rivven.ports import Clock
from rivven.record import decode, partition_for_key, walk

from .publish import Publisher

TOPIC = "__consumer_offsets"
PARTITIONS = 8
READ_BYTES = 1024 * 1024
TOMBSTONES_PER_BATCH = 1000

Done = Callable[[RivvenError | None], None]


class CommittedOffsets:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        publisher: Publisher,
        *,
        groups_max: int = GROUPS_MAX,
        offsets_max: int = OFFSETS_PER_GROUP_MAX,
    ) -> None:
        self._store = store
        self._clock = clock
        self._publisher = publisher
        self._groups_max = groups_max
        self._offsets_max = offsets_max
        self.table = Offsets()
        self._underway: dict[OffsetKey, int] = {}
        """How many commits of each key are not durable yet."""
        if any(topic.name == TOPIC for topic in store.topics):
            for number in range(store.topic(TOPIC).partitions):
                self._replay(store.log(TOPIC, number))
        self._sizes = {group: len(self.table.keys_of_group(group)) for group in self.table.groups()}
        """How many offsets each group has."""
        self._forget_missing()

    def _replay(self, log: Log) -> None:
        offset = int(log.start)
        while offset < log.high_watermark:
            data = log.read(offset, bytes_max=READ_BYTES)
            for position, header in walk(data):
                for record in decode(data, position) if not header.control else ():
                    self.table.replay(record.key, record.value)
                offset = header.next_offset

    def _forget_missing(self) -> None:
        """Take away what was committed for topics that are no more."""
        known = {topic.name for topic in self._store.topics}
        missing = [key for key in self._keys() if key.topic not in known]
        for key in missing:
            self._apply(key, None)  # at once; that the topic says so too may wait for the first turn
        self._take_away(missing, lambda _: None)

    def _keys(self) -> Iterator[OffsetKey]:
        for group in self.table.groups():
            yield from self.table.keys_of_group(group)

    # Committing

    def commit(self, entries: dict[OffsetKey, CommittedOffset | None], done: Done) -> None:
        """Make these commits of one group, all or none; None takes an offset away. `done` hears when they count."""
        group = next(iter(entries)).group
        assert all(key.group == group for key in entries), "one group at a time"
        if any(entry is not None for entry in entries.values()):
            self._check_room(group, entries)
        now_ms = self._clock.now_ms()
        records = [
            (now_ms, encode_key(key), encode_value(entry) if entry is not None else None, ())
            for key, entry in entries.items()
        ]

        def answered(_: int, error: RivvenError | None) -> None:
            for key, entry in entries.items():
                self._landed(key)
                if error is None:
                    self._apply(key, entry)
            done(error)

        self._publisher.gather(self._log_of(group), records, answered)
        for key in entries:
            self._underway[key] = self._underway.get(key, 0) + 1

    def _check_room(self, group: str, entries: dict[OffsetKey, CommittedOffset | None]) -> None:
        """What is under way is not counted, so a burst may go beyond by as much as one sync covers."""
        size = self._sizes.get(group, 0)
        if not size and len(self._sizes) >= self._groups_max:
            raise GroupFull(group=group, what="one group more", limit=self._groups_max)
        if size + len(entries) > self._offsets_max:
            added = sum(self.table.get(key) is None for key, entry in entries.items() if entry is not None)
            if size + added > self._offsets_max:
                raise GroupFull(group=group, what="its committed offsets", limit=self._offsets_max)

    def _landed(self, key: OffsetKey) -> None:
        left = self._underway.pop(key) - 1
        if left:
            self._underway[key] = left

    def _apply(self, key: OffsetKey, entry: CommittedOffset | None) -> None:
        had = self.table.get(key) is not None
        self.table.apply(key, entry)
        size = self._sizes.get(key.group, 0) + (entry is not None) - had
        if size:
            self._sizes[key.group] = size
        else:
            self._sizes.pop(key.group, None)

    def _log_of(self, group: str) -> Log:
        if not any(topic.name == TOPIC for topic in self._store.topics):
            configs = {"cleanup.policy": "compact", "segment.bytes": str(64 * 1024 * 1024)}
            self._store.create_topic(TOPIC, PARTITIONS, configs)
        return self._store.log(TOPIC, partition_for_key(group.encode(), self._store.topic(TOPIC).partitions))

    # Taking away

    def forget_topic(self, name: str, done: Done) -> None:
        """The topic is gone, and what groups committed for it goes too, also what is not durable yet."""
        keys = dict.fromkeys(key for key in (*self._keys(), *self._underway) if key.topic == name)
        self._take_away(list(keys), done)

    def forget_group(self, group: str, done: Done) -> None:
        """Take away all that a group has committed."""
        keys = dict.fromkeys(
            (*self.table.keys_of_group(group), *(key for key in self._underway if key.group == group))
        )
        self._take_away(list(keys), done)

    def _take_away(self, keys: list[OffsetKey], done: Done) -> None:
        left = 1  # one for ourselves, so that an answer on the spot does not end it early
        failed: RivvenError | None = None

        def settle(error: RivvenError | None) -> None:
            nonlocal left, failed
            left -= 1
            failed = failed or error
            if left == 0:
                done(failed)

        by_group: dict[str, list[OffsetKey]] = {}
        for key in keys:
            by_group.setdefault(key.group, []).append(key)
        for of_group in by_group.values():
            rest = iter(of_group)
            while some := list(islice(rest, TOMBSTONES_PER_BATCH)):
                left += 1
                try:
                    self.commit(dict.fromkeys(some), settle)
                except RivvenError as error:
                    settle(error)
        settle(None)

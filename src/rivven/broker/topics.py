"""Topics: made, grown, configured, emptied and deleted, whichever dialect asks.

These take plain arguments, and return what came about or raise from the error tree. Whatever waits for the disk
here waits for the list of topics, which is short; records never pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from rivven.errors import (
    InvalidPartitions,
    InvalidTopic,
    OffsetOutOfRange,
    RivvenError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from rivven.limits import PARTITIONS_PER_TOPIC_MAX
from rivven.log import KEYS, Log, Store, Topic, TopicConfig, check_name

from .fetch import Reader, Waiting
from .groups import GroupKeeper
from .partitioner import Partitioner
from .publish import Publisher

Done = Callable[[RivvenError | None], None]


class ConfigValue(NamedTuple):
    value: str
    is_default: bool
    """Whether nobody has chosen it for this topic."""


def is_internal(name: str) -> bool:
    return name.startswith("__")


class Topics:
    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        partitioner: Partitioner,
        reader: Reader,
        waiting: Waiting,
        groups: GroupKeeper,
        *,
        default_partitions: int,
        auto_create: bool,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._partitioner = partitioner
        self._reader = reader
        self._waiting = waiting
        self._groups = groups
        self._default_partitions = default_partitions
        self._auto_create = auto_create
        self._defaults = store.config.topic_defaults

    # Looking

    def __iter__(self) -> Iterator[Topic]:
        """All of them by name, the broker's own among them."""
        return iter(self._store.topics)

    def get(self, name: str) -> Topic:
        return self._store.topic(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._store.topic_of_id(topic_id)

    def log(self, name: str, partition: int) -> Log:
        """`UnknownTopic`, or `UnknownPartition` where there is such a topic."""
        topic = self._store.topic(name)
        if not 0 <= partition < topic.partitions:
            raise UnknownPartition(partition=partition, partitions=topic.partitions)
        return self._store.log(name, partition)

    @property
    def changes(self) -> int:
        """Goes up whenever a topic is made, grown, configured or deleted."""
        return self._store.topic_changes

    # Making and growing

    def create(self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None) -> Topic:
        """A new topic, with the node's usual number of partitions where it is not said."""
        refuse_internal(name)
        return self._store.create_topic(name, self._partitions(name, partitions), dict(configs or {}))

    def check(self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None) -> int:
        """Raise what `create` would raise for these arguments, and make nothing; the number of partitions."""
        refuse_internal(name)
        check_name(name)
        TopicConfig.from_map(configs or {})
        if any(topic.name == name for topic in self._store.topics):
            raise TopicExists(topic=name)
        return self._partitions(name, partitions)

    def _partitions(self, name: str, partitions: int | None) -> int:
        count = self._default_partitions if partitions is None else partitions
        if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
            reason = f"a topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}"
            raise InvalidPartitions(topic=name, reason=reason)
        return count

    def to_publish(self, name: str, partition: int | None = None) -> Topic:
        """The topic that somebody publishes to; made if there is none and the node's settings allow it."""
        try:
            topic = self._store.topic(name)
        except UnknownTopic:
            check_name(name)
            if not self._auto_create:
                raise
            if partition is not None and partition >= self._default_partitions:
                raise UnknownPartition(partition=partition, partitions=self._default_partitions) from None
            refuse_internal(name)
            return self._store.create_topic(name, self._default_partitions)
        refuse_internal(name)
        return topic

    def add_partitions(self, name: str, count: int) -> Topic:
        """Grow a topic to `count` partitions."""
        return self._store.add_partitions(name, self.check_growth(name, count))

    def check_growth(self, name: str, count: int) -> int:
        """Raise what `add_partitions` would raise for these arguments, and add none; `count`."""
        refuse_internal(name)
        topic = self._store.topic(name)
        if count <= topic.partitions:
            reason = f"New partition count {count} must be greater than current count {topic.partitions}"
            raise InvalidPartitions(topic=name, reason=reason)
        return self._partitions(name, count)

    # Configuring

    def alter_configs(self, name: str, changes: Mapping[str, str | None]) -> Topic:
        """Set these keys, and take back to their defaults those that are None; the others stay."""
        topic = self._store.topic(name)
        configs = {**topic.configs, **changes}
        return self.replace_configs(
            name, {key: value for key, value in configs.items() if value is not None}, changes
        )

    def replace_configs(self, name: str, configs: Mapping[str, str], named: Iterable[str] = ()) -> Topic:
        """Let these be all that is chosen for the topic. A key of `named` that nobody knows is a mistake too."""
        self.check_configs(name, configs, named)
        return self._store.configure(name, dict(configs))

    def check_configs(self, name: str, configs: Mapping[str, str], named: Iterable[str] = ()) -> None:
        """Raise what `replace_configs` would raise for these arguments, and change nothing."""
        refuse_internal(name)
        self._store.topic(name)
        TopicConfig.from_map({key: "0" for key in named if key not in KEYS})
        TopicConfig.from_map({**self._defaults, **configs})

    def configs(self, name: str) -> dict[str, ConfigValue]:
        """Every key with its value: chosen for the topic, else the node's default, else the log's own."""
        chosen = self._store.topic(name).configs
        values = TopicConfig.from_map({**self._defaults, **chosen}).to_map()
        return {key: ConfigValue(value, key not in chosen) for key, value in values.items()}

    def default_configs(self) -> dict[str, str]:
        """What a topic has that nothing was chosen for."""
        return TopicConfig.from_map(self._defaults).to_map()

    # Taking away

    def delete_before(self, name: str, partition: int, offset: int) -> int:
        """Drop the records below `offset`; where the partition begins now."""
        refuse_internal(name)
        log = self._store.log(name, partition)
        if not 0 <= offset <= log.high_watermark:
            raise OffsetOutOfRange(offset=offset, partition=log.partition, start=log.start, end=log.high_watermark)
        if offset > log.start:
            self._store.delete_before(log, offset)
        return log.start

    def delete(self, name: str, done: Done) -> None:
        """Delete a topic and what groups have committed for it. The topic is gone when this returns; `done` hears
        when the offsets are, or why they are not: a start then takes those of topics that are no more."""
        topic = self._store.topic(name)
        refuse_internal(name)
        logs = [self._store.log(*partition) for partition in topic.each()]
        self._publisher.append_gathered()
        self._store.delete_topic(name)
        self._partitioner.forget(name)
        gone = UnknownTopic(partition=f"topic {name!r}: it was deleted")
        for log in logs:
            self._publisher.abandon(log, gone)
            self._waiting.end(log)
            self._reader.forget(log)
        self._groups.forget_topic(name, done)


def refuse_internal(name: str) -> None:
    if is_internal(name):
        raise InvalidTopic(topic=name, reason="it is the broker's own; choose another name")

"""Configuration in Kafka's words: which keys a topic and a node have, their types, and which of our values they are.

Most keys of a topic are ours under the same name. Those of `FIXED` are Kafka's alone: here they have one value, which
tools may read and write back, and any other is refused rather than ignored. Nothing of them is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from rivven.coordinator import GroupConfig, TxnConfig
from rivven.errors import InvalidConfig
from rivven.log import TopicConfig

if TYPE_CHECKING:
    from rivven.broker.broker import Broker


class Kind(IntEnum):
    """What a value is, by Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """Who has chosen a value, by Kafka's numbers."""

    TOPIC = 1
    NODE = 4
    DEFAULT = 5


class Key(NamedTuple):
    kind: Kind
    node: str | None
    """What the node's own default for it is called; None where it has none."""
    about: str


class Fixed(NamedTuple):
    """A key of which there is one value."""

    kind: Kind
    node: str | None
    value: str
    about: str


class Synonym(NamedTuple):
    name: str
    value: str
    source: Source


class Setting(NamedTuple):
    """A key as it is told: with its value, where that is from, and what would apply in its stead."""

    name: str
    value: str | None
    kind: Kind
    source: Source
    about: str = ""
    read_only: bool = False
    synonyms: tuple[Synonym, ...] = ()


KEYS: Final[Mapping[str, Key]] = {
    "cleanup.policy": Key(Kind.LIST, "log.cleanup.policy", "What happens to old records: delete, compact, or both."),
    "compression.type": Key(
        Kind.STRING, "compression.type", "The codec of all batches; producer leaves each as its producer packed it."
    ),
    "delete.retention.ms": Key(
        Kind.LONG, "log.cleaner.delete.retention.ms", "How long a tombstone outlives the records it deletes."
    ),
    "index.interval.bytes": Key(Kind.INT, "log.index.interval.bytes", "How far apart the entries of an index are."),
    "max.compaction.lag.ms": Key(
        Kind.LONG, "log.cleaner.max.compaction.lag.ms", "A record is compacted after so long at the latest."
    ),
    "max.message.bytes": Key(Kind.INT, "message.max.bytes", "The largest batch, compressed, with its header."),
    "message.timestamp.type": Key(
        Kind.STRING, "log.message.timestamp.type", "Whose clock stamps records: CreateTime or LogAppendTime."
    ),
    "min.cleanable.dirty.ratio": Key(
        Kind.DOUBLE, "log.cleaner.min.cleanable.ratio", "How much of a log is new before it is compacted."
    ),
    "min.compaction.lag.ms": Key(
        Kind.LONG, "log.cleaner.min.compaction.lag.ms", "A record is left alone for so long at least."
    ),
    "min.insync.replicas": Key(
        Kind.INT, "min.insync.replicas", "How many replicas must have a write that asks for all of them."
    ),
    "retention.bytes": Key(Kind.LONG, "log.retention.bytes", "How much a partition keeps; -1 is no limit."),
    "retention.ms": Key(Kind.LONG, "log.retention.ms", "How long a record is kept; -1 is for ever."),
    "segment.bytes": Key(Kind.INT, "log.segment.bytes", "How large a segment grows before the next one begins."),
    "segment.ms": Key(Kind.LONG, "log.roll.ms", "How old a segment grows before the next one begins."),
}
"""The keys that are ours too."""

WITHOUT_END: Final = str(2**63 - 1)
NO_TIERS: Final = "this node keeps everything on its own disk"
NO_FOLLOWERS: Final = "no replica follows another here, so nothing is held back"

FIXED: Final[Mapping[str, Fixed]] = {
    "compression.gzip.level": Fixed(Kind.INT, "compression.gzip.level", "-1", "the codec's own level is used"),
    "compression.lz4.level": Fixed(Kind.INT, "compression.lz4.level", "9", "the fast compressor is used"),
    "compression.zstd.level": Fixed(Kind.INT, "compression.zstd.level", "3", "the codec's own level is used"),
    "file.delete.delay.ms": Fixed(Kind.LONG, "log.segment.delete.delay.ms", "0", "files are removed at once"),
    "flush.messages": Fixed(
        Kind.LONG, "log.flush.interval.messages", WITHOUT_END, "the node's sync policy says when writes are synced"
    ),
    "flush.ms": Fixed(
        Kind.LONG, "log.flush.interval.ms", WITHOUT_END, "the node's sync policy says when writes are synced"
    ),
    "follower.replication.throttled.replicas": Fixed(Kind.LIST, None, "", NO_FOLLOWERS),
    "leader.replication.throttled.replicas": Fixed(Kind.LIST, None, "", NO_FOLLOWERS),
    "local.retention.bytes": Fixed(Kind.LONG, "log.local.retention.bytes", "-2", NO_TIERS),
    "local.retention.ms": Fixed(Kind.LONG, "log.local.retention.ms", "-2", NO_TIERS),
    "message.downconversion.enable": Fixed(
        Kind.BOOLEAN, "log.message.downconversion.enable", "false", "batches are never converted"
    ),
    "message.timestamp.after.max.ms": Fixed(
        Kind.LONG, "log.message.timestamp.after.max.ms", WITHOUT_END, "timestamps are taken as they come"
    ),
    "message.timestamp.before.max.ms": Fixed(
        Kind.LONG, "log.message.timestamp.before.max.ms", WITHOUT_END, "timestamps are taken as they come"
    ),
    "preallocate": Fixed(Kind.BOOLEAN, "log.preallocate", "false", "a segment's file grows with its content"),
    "remote.log.copy.disable": Fixed(Kind.BOOLEAN, None, "false", NO_TIERS),
    "remote.log.delete.on.disable": Fixed(Kind.BOOLEAN, None, "false", NO_TIERS),
    "remote.storage.enable": Fixed(Kind.BOOLEAN, None, "false", NO_TIERS),
    "segment.index.bytes": Fixed(
        Kind.INT, "log.index.size.max.bytes", str(2**31 - 1), "an index is never what ends a segment"
    ),
    "segment.jitter.ms": Fixed(Kind.LONG, "log.roll.jitter.ms", "0", "segments end when segment.ms says so"),
    "unclean.leader.election.enable": Fixed(
        Kind.BOOLEAN,
        "unclean.leader.election.enable",
        "false",
        "a replica that lacks acknowledged records never leads",
    ),
}
"""The keys that tools know of Kafka, and that have nothing to choose here."""

GROUP_KEYS: Final = ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")
"""The keys of a group; the node has each for all of them, with `group.` before it."""

INDEX_BYTES_AMPLE: Final = 10 * 1024 * 1024
"""No index of a segment reaches this at the usual interval, so a larger limit means no more than none."""

OURS: Final = {"uncompressed": "none"}
"""Values of compression.type that have another word here."""
KAFKAS: Final = {ours: kafkas for kafkas, ours in OURS.items()}


def kind_of(key: str) -> Kind | None:
    """The type of a topic's key; None if there is no such key."""
    known = KEYS.get(key) or FIXED.get(key)
    return known.kind if known is not None else None


class Keys:
    """The keys of one node and its topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        store = broker.store.config
        self._chosen_by_node = frozenset(store.topic_defaults)
        self._node_values = TopicConfig.from_map(store.topic_defaults).to_map()
        self._log_values = TopicConfig().to_map()
        self._syncs_each = store.sync_policy.writes == 1

    # From a client

    def taken(self, configs: Mapping[str, str]) -> dict[str, str]:
        """What of these is to be stored. `InvalidConfig` for a value that a fixed key cannot have here."""
        for key, value in configs.items():
            if key in FIXED and not self._is_so(key, value.strip().lower()):
                fixed = FIXED[key]
                instead = f"set it to {fixed.value}, or leave it out" if fixed.value else "leave it empty, or out"
                raise InvalidConfig(key=key, reason=f"{fixed.about}; {instead}, instead of {value!r}")
        return {key: _ours(key, value) for key, value in configs.items() if key not in FIXED}

    def _is_so(self, key: str, value: str) -> bool:
        """Whether a value of a fixed key asks for what is done anyway."""
        if value == FIXED[key].value:
            return True
        if not value.isdecimal() or len(value) > len(WITHOUT_END):
            return False
        if key == "segment.index.bytes":
            return int(value) >= INDEX_BYTES_AMPLE
        return key in ("flush.messages", "flush.ms") and self._syncs_each  # sooner than any of them asks for

    # To a client

    def of_topic(self, chosen: Mapping[str, str]) -> list[Setting]:
        """Every key of a topic for which these were chosen."""
        chosen = {key: value for key, value in chosen.items() if key not in FIXED}
        values = TopicConfig.from_map({**self._broker.store.config.topic_defaults, **chosen}).to_map()
        settings = [
            Setting(
                name,
                _kafkas(name, value),
                KEYS[name].kind,
                self._source(name, chosen),
                KEYS[name].about,
                synonyms=tuple(self._synonyms(name, chosen)),
            )
            for name, value in values.items()
        ]
        settings += [
            Setting(name, fixed.value, fixed.kind, Source.DEFAULT, _sentence(fixed.about), read_only=True)
            for name, fixed in FIXED.items()
        ]
        return sorted(settings)

    def _source(self, name: str, chosen: Iterable[str]) -> Source:
        if name in chosen:
            return Source.TOPIC
        return Source.NODE if name in self._chosen_by_node else Source.DEFAULT

    def _synonyms(self, name: str, chosen: Mapping[str, str]) -> Iterator[Synonym]:
        """The closest first."""
        if name in chosen:
            yield Synonym(name, _kafkas(name, chosen[name]), Source.TOPIC)
        node = KEYS[name].node or name
        if name in self._chosen_by_node:
            yield Synonym(node, _kafkas(name, self._node_values[name]), Source.NODE)
        yield Synonym(node, _kafkas(name, self._log_values[name]), Source.DEFAULT)

    def of_node(self) -> list[Setting]:
        """Every key of this node. None can be changed while it runs."""
        settings = {setting.name: setting for setting in (*self._topic_defaults(), *self._own())}
        for name, value in self._broker.config.node_configs.items():
            known = settings.get(name, Setting(name, None, Kind.STRING, Source.NODE))
            settings[name] = known._replace(value=value, source=Source.NODE, synonyms=())
        return sorted(setting._replace(read_only=True) for setting in settings.values())

    def of_group(self) -> list[Setting]:
        """The keys of every group: what the node says of them all."""
        of_node = {setting.name: setting for setting in self.of_node()}
        return [of_node[f"group.{name}"]._replace(name=name) for name in GROUP_KEYS]

    def _topic_defaults(self) -> Iterator[Setting]:
        for name, key in KEYS.items():
            if key.node is not None:
                value = _kafkas(name, self._node_values[name])
                synonyms = tuple(self._synonyms(name, {}))
                yield Setting(key.node, value, key.kind, self._source(name, ()), key.about, synonyms=synonyms)
        for fixed in FIXED.values():
            if fixed.node is not None:
                yield Setting(fixed.node, fixed.value, fixed.kind, Source.DEFAULT, _sentence(fixed.about))

    def _own(self) -> Iterator[Setting]:
        config = self._broker.config
        auto_create = "true" if config.auto_create_topics else "false"
        listener = f"PLAINTEXT://{config.host}:{config.port}"
        told = Source.NODE
        yield Setting("advertised.listeners", listener, Kind.LIST, told, "Where clients are told to connect.")
        yield Setting("auto.create.topics.enable", auto_create, Kind.BOOLEAN, told, "Whether asking makes a topic.")
        yield Setting("broker.id", str(config.broker_id), Kind.INT, told, "The number of this node.")
        yield Setting("broker.rack", config.rack, Kind.STRING, told, "Where this node stands.")
        yield Setting("default.replication.factor", "1", Kind.INT, Source.DEFAULT, "Replicas of a new topic.")
        yield Setting("delete.topic.enable", "true", Kind.BOOLEAN, Source.DEFAULT, "Whether topics may be deleted.")
        yield Setting("log.dirs", config.data_dir, Kind.LIST, told, "The directory that holds everything.")
        yield Setting("node.id", str(config.broker_id), Kind.INT, told, "The number of this node.")
        partitions = str(config.default_partitions)
        yield Setting("num.partitions", partitions, Kind.INT, told, "Partitions of a topic that does not say.")
        yield from _of(config.groups, GroupConfig(), OF_GROUPS)
        yield from _of(config.transactions, TxnConfig(), OF_TRANSACTIONS)


OF_GROUPS = (
    ("group.consumer.heartbeat.interval.ms", "consumer_heartbeat_ms", 1, "How often a member is to be heard."),
    ("group.consumer.session.timeout.ms", "consumer_session_timeout_ms", 1, "How long a member may be silent."),
    ("group.initial.rebalance.delay.ms", "initial_rebalance_delay_ms", 1, "How long a first member waits."),
    ("group.max.session.timeout.ms", "session_timeout_ms_max", 1, "The longest session that a member may ask for."),
    ("group.max.size", "members_max", 1, "How many members a group may have."),
    ("group.min.session.timeout.ms", "session_timeout_ms_min", 1, "The shortest session."),
    ("offsets.retention.check.interval.ms", "offsets_check_ms", 1, "How often expired offsets are looked for."),
    ("offsets.retention.minutes", "offsets_retention_ms", 60_000, "How long an empty group's offsets are kept."),
)
OF_TRANSACTIONS = (
    ("transaction.max.timeout.ms", "timeout_ms_max", 1, "The longest timeout that a transaction may ask for."),
    ("transactional.id.expiration.ms", "id_expiration_ms", 1, "An id that is not used for so long is forgotten."),
)
"""Kafka's name, ours, how many of our units make one of Kafka's, and what it is."""


def _of(
    config: GroupConfig | TxnConfig, usual: GroupConfig | TxnConfig, rows: Iterable[tuple[str, str, int, str]]
) -> Iterator[Setting]:
    for name, field, unit, about in rows:
        value = getattr(config, field)
        source = Source.DEFAULT if value == getattr(usual, field) else Source.NODE
        yield Setting(name, str(value // unit), Kind.INT, source, about)


def _ours(key: str, value: str) -> str:
    return OURS.get(value, value) if key == "compression.type" else value


def _kafkas(key: str, value: str) -> str:
    return KAFKAS.get(value, value) if key == "compression.type" else value


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."

"""The broker: one node's operations, the turn that ends a round of them, and the doors that requests come in by.

`topics`, `writing`, `reading`, `groups` and `admission` are the operations: they take plain arguments, and know no
dialect. A dialect translates: `handle` takes a native request and makes its reply, fulfilled at once or later. `turn`
ends a round of requests: what was published is written, what has become durable is answered, and waiting requests are
looked at. All return at once; `due_us` says when `turn` is wanted next even if no request comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from rivven.coordinator import REQUEST, GroupConfig, TxnConfig
from rivven.errors import RivvenError
from rivven.log import Store
from rivven.model import ProducerId, TopicPartition
from rivven.ports import Clock, Disk
from rivven.wire import Request

from .admit import Admission
from .fetch import Reader, Waiting
from .groups import TOPIC as GROUPS_TOPIC
from .groups import GroupKeeper
from .identity import cluster_id
from .kafka import Kafka
from .lag import Lag, lags
from .native import Native
from .partitioner import Partitioner
from .preloading import Preloading
from .producer_ids import ProducerIds
from .publish import Publisher
from .reading import Reading
from .session import Reply, Session
from .stats import BrokerStats
from .topics import Topics
from .transactions import TransactionKeeper
from .writing import Writing

NEVER_US = 2**62


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    node_id: str = "rivven-1"
    host: str = "127.0.0.1"
    port: int = 9092
    rack: str | None = None
    default_partitions: int = 3
    auto_create_topics: bool = True
    partitioner_records: int = 16_384
    partitioner_linger_ms: int = 100
    quotas: dict[str, int] = field(default_factory=dict)
    """Default limits by key; none unless configured."""
    groups: GroupConfig = field(default_factory=GroupConfig)
    transactions: TxnConfig = field(default_factory=TxnConfig)
    broker_id: int = 1
    """What Kafka's clients know this node by."""
    cluster_id: str = ""
    data_dir: str = "data"
    """What the data directory is called, for whoever asks."""
    node_configs: dict[str, str] = field(default_factory=dict)
    """Settings of the node by Kafka's names, beyond those that the broker knows itself."""


class Broker:
    def __init__(self, store: Store, disk: Disk, clock: Clock, config: BrokerConfig | None = None) -> None:
        self.store = store
        self.disk = disk
        config = config or BrokerConfig()
        self.config = config = replace(config, cluster_id=config.cluster_id or cluster_id(disk, store.entropy))
        self.stats = BrokerStats()
        self.clock = clock
        self._publisher = Publisher(store, clock, self.stats)
        self._reader = Reader(self.stats)
        self._waiting = Waiting()
        self.preloading = Preloading(disk)
        self._touched: dict[Session, None] = {}
        """Sessions with replies that were fulfilled since the last turn."""
        partitioner = Partitioner(batch_records=config.partitioner_records, linger_ms=config.partitioner_linger_ms)
        self.admission = Admission(disk, clock, self.stats, config.quotas)
        self.groups = GroupKeeper(store, clock, self._publisher, config.groups, Random(store.entropy.bytes(16)))
        self.topics = Topics(
            store,
            self._publisher,
            partitioner,
            self._reader,
            self._waiting,
            self.groups,
            default_partitions=config.default_partitions,
            auto_create=config.auto_create_topics,
        )
        self.writing = Writing(clock, self.topics, self._publisher, partitioner, self.admission)
        self.reading = Reading(
            store, clock, self.topics, self._reader, self._waiting, self.preloading, self.admission
        )
        self.transactions = TransactionKeeper(
            store, clock, self._publisher, self.groups, config.transactions, lambda: self.producer_ids.next()
        )
        self.producer_ids = ProducerIds(disk, self._ids_in_use)
        self._parts = self._waiting, store, self.groups, self.transactions
        self._native = Native(self)
        self.produce_in_transaction = self._native.produce_in_transaction
        self.kafka = Kafka(self)
        self._topic_changes = -1
        self.due_us = 0
        """When `turn` is wanted at the latest, on the clock's monotonic time, or `NEVER_US`; 0 if a request may have
        changed that, and the turn that ends it is to come."""

    # The doors

    def handle(self, request: Request, reply: Reply) -> None:
        """Decide a request of the native dialect. Its reply is fulfilled now, or by a later `turn`."""
        self._native.handle(request, reply)

    def begin(self, reply: Reply, kind: str) -> None:
        """Count a request, whatever its dialect, and charge its sender for it."""
        self.due_us = 0
        reply.kind = kind
        self.stats.count(kind)
        self.admission.charge(reply.session, REQUEST, 1)

    def fulfil(self, reply: Reply, response: object, *, failed: bool = False) -> None:
        """Answer a request, in the words of its dialect; the reply leaves when those before it have left."""
        self.stats.errors += failed
        reply.fulfil(response)
        self._touched[reply.session] = None

    def turn(self) -> list[Session]:
        """End a round: write, commit, answer. Returns the sessions that have replies to send."""
        now_us = self.clock.now_us()
        is_due = self.due_us <= now_us
        ticks = is_due or self.store.topic_changes != self._topic_changes
        if ticks:
            self._topic_changes = self.store.topic_changes
            self.groups.tick()
            self.transactions.tick()
        may_change = ticks or self._publisher.owes_others
        while self._write_and_answer():
            pass  # an answer may have made a coordinator write something more, which wants to be on its way too
        if is_due:
            self._waiting.expire(now_us)
        self._reader.end_turn()
        if may_change:
            self.due_us = self._soonest_us()
        elif (due_us := self.store.due_us()) is not None and due_us < self.due_us:
            self.due_us = due_us  # of all that may come due, only this changes without a request or an answer
        if not self._touched:
            return []
        touched, self._touched = self._touched, {}
        return list(touched)

    def _write_and_answer(self) -> bool:
        """Hand what is written to the disk, and answer whom it concerns. Whether that had something more written."""
        publisher = self._publisher
        if publisher.gathering:
            publisher.append_gathered()
        moved = self.store.pump()
        if not moved:
            return False
        before = self.stats.batches_in
        publisher.answer_durable(moved)
        if self._waiting.by_log:
            self._waiting.wake(moved)
        return self.stats.batches_in != before or bool(publisher.gathering)

    def _ids_in_use(self) -> Iterator[int]:
        for log in self.store.logs:
            yield from log.facts.producers.ids()
        for transaction in self.transactions.list():
            yield transaction.producer_id

    def end_waiting(self) -> None:
        """The node is about to stop: answer whoever waits for records with what there is, now and from now on."""
        self.reading.end_waiting()

    def _soonest_us(self) -> int:
        soonest_us = NEVER_US
        for part in self._parts:
            due_us = part.due_us()
            if due_us is not None and due_us < soonest_us:
                soonest_us = due_us
        return soonest_us

    def end_hanging(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        done: Callable[[RivvenError | None], None],
    ) -> None:
        """End a transaction that a partition shows as open and no coordinator knows of."""

        def marked(_: int, error: RivvenError | None) -> None:
            if error is None and partition.topic == GROUPS_TOPIC:
                self.groups.end_transaction(ProducerId(producer_id), committed=commit)
            done(error)

        log = self.topics.log(*partition)
        self._publisher.append_marker(log, producer_id, producer_epoch, commit, marked)

    def lags(self) -> Iterator[Lag]:
        """How far each group is behind, partition by partition."""
        return lags(self.groups, self.store, self.clock.now_ms())

    @property
    def waiting(self) -> int:
        """How many requests wait for records."""
        return len(self._waiting)

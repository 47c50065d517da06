"""The transactions of this node: what the coordinator decides is written to `__transaction_state`, and performed.

`ask` hands a request to the coordinator and calls `answer` once, now or in a later turn. Its records become batches
in that topic; its markers become control batches in every partition that the transaction wrote to, and in those of
`__consumer_offsets` that hold its offsets. At the start the topic is read from end to end, and whatever had been
decided but not wholly marked is marked.
Invariant: a batch of a transaction is admitted and appended in one go, so none can follow its own marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from rivven.coordinator import (
    DescribedTxn,
    OpenInLog,
    Transactions,
    TxnAnswer,
    TxnAsk,
    TxnConfig,
    TxnEffect,
    TxnPersist,
    TxnResult,
    WriteMarkers,
)
from rivven.errors import RivvenError, UnknownTopic
from rivven.limits import BATCH_BYTES_MAX, MIB
from rivven.log import Log, Store
from rivven.model import Epoch, ProducerId, TopicPartition
from rivven.ports import Clock
from rivven.record import decode, partition_for_key, walk

from .groups import TOPIC as GROUPS_TOPIC
from .groups import GroupKeeper
from .publish import Publisher

TOPIC = "__transaction_state"
PARTITIONS = 8
READ_BYTES = 1 * MIB

Told = Callable[[TxnResult | RivvenError], None]


class TransactionKeeper:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        publisher: Publisher,
        groups: GroupKeeper,
        config: TxnConfig,
        fresh_id: Callable[[], int],
    ) -> None:
        self._store = store
        self._clock = clock
        self._publisher = publisher
        self._groups = groups
        self._transactions = Transactions(config, fresh_id)
        self._asked: dict[int, Told] = {}
        self._ids = count(1)
        if any(topic.name == TOPIC for topic in store.topics):
            for number in range(store.topic(TOPIC).partitions):
                self._replay(store.log(TOPIC, number))
        self._perform(self._transactions.recall(self._now_ms()))

    def _now_ms(self) -> int:
        return self._groups.now_ms()

    def _replay(self, log: Log) -> None:
        offset = int(log.start)
        while offset < log.high_watermark:
            data = log.read(offset, bytes_max=READ_BYTES)
            for position, header in walk(data):
                for record in decode(data, position):
                    self._transactions.replay(record.key, record.value)
                offset = header.next_offset

    # Asking

    def ask(self, request: TxnAsk, answer: Told) -> None:
        """Let the coordinator decide; `answer` hears what it says, once it is true for good."""
        reply_id = next(self._ids)
        self._asked[reply_id] = answer
        self._perform(self._transactions.ask(request, reply_id, self._now_ms()))

    def admit(
        self,
        producer_id: int,
        producer_epoch: int,
        target: TopicPartition | str,
        *,
        batch_bytes: int = 0,
        label: str | None = None,
    ) -> None:
        """Raise unless this producer may write there now, as part of its open transaction."""
        self._transactions.admit(
            ProducerId(producer_id),
            Epoch(producer_epoch),
            target,
            self._now_ms(),
            batch_bytes=batch_bytes,
            label=label,
        )

    def describe(self, transactional_id: str) -> DescribedTxn:
        return self._transactions.describe(transactional_id)

    def hanging(self) -> list[OpenInLog]:
        """What the logs show as open and nobody will ever end."""
        found = [
            OpenInLog(log.partition, ProducerId(producer_id), first, log.timestamp_at(first) or 0)
            for log in self._store.logs
            for producer_id, first in log.facts.transactions.open_transactions().items()
        ]
        return self._transactions.hanging(found, self.home_of)

    def home_of(self, group: str) -> TopicPartition | None:
        """Where the offsets of a group lie, and the markers of its transactions; None as long as there are none."""
        if not any(topic.name == GROUPS_TOPIC for topic in self._store.topics):
            return None
        return self._groups.log_of(group).partition

    def list(self) -> list[DescribedTxn]:
        return self._transactions.list()

    # Turns

    def due_us(self) -> int | None:
        due_ms = self._transactions.due_ms()
        return None if due_ms is None else self._groups.us_of(due_ms)

    def tick(self) -> None:
        """Let what is due come about: transactions that took too long, markers to be tried again."""
        due_ms = self._transactions.due_ms()
        if due_ms is not None and due_ms <= (now_ms := self._now_ms()):
            self._perform(self._transactions.tick(now_ms))

    # Effects

    def _perform(self, effects: Iterable[TxnEffect]) -> None:
        for effect in effects:
            match effect:
                case TxnAnswer(reply_id, result):
                    self._asked.pop(reply_id)(result)
                case TxnPersist():
                    self._persist(effect)
                case WriteMarkers():
                    self._mark(effect)

    def _persist(self, effect: TxnPersist) -> None:
        def settled(_: int, error: RivvenError | None) -> None:
            now_ms = self._now_ms()
            if error is None:
                self._perform(self._transactions.persisted(effect.token, now_ms))
            else:
                self._perform(self._transactions.failed(effect.token, error, now_ms))

        timestamp_ms = self._clock.now_ms()
        records = [(timestamp_ms, key, value, ()) for key, value in effect.records]
        try:
            self._publisher.gather(self._log_of(effect.home), records, settled)
        except RivvenError as error:
            settled(-1, error)

    def _log_of(self, home: str) -> Log:
        if not any(topic.name == TOPIC for topic in self._store.topics):
            configs = {
                "cleanup.policy": "compact",
                "segment.bytes": str(64 * MIB),
                "max.message.bytes": str(BATCH_BYTES_MAX),  # a transaction is one record, however many partitions
            }
            self._store.create_topic(TOPIC, PARTITIONS, configs)
        return self._store.log(TOPIC, partition_for_key(home.encode(), self._store.topic(TOPIC).partitions))

    def _mark(self, effect: WriteMarkers) -> None:
        logs = dict.fromkeys(self._existing(effect.partitions))
        logs |= dict.fromkeys(self._groups.log_of(group) for group in effect.groups)
        left = len(logs) + 1  # one for ourselves, so that an answer on the spot does not end it early
        failed: RivvenError | None = None

        def settled(_: int, error: RivvenError | None) -> None:
            nonlocal left, failed
            failed = failed or error
            left -= 1
            if left == 0:
                self._marked(effect, failed)

        for log in logs:
            try:
                self._publisher.append_marker(log, effect.producer_id, effect.producer_epoch, effect.commit, settled)
            except RivvenError as error:
                settled(-1, error)
        settled(-1, None)

    def _existing(self, partitions: Iterable[TopicPartition]) -> Iterable[Log]:
        for partition in partitions:
            try:
                yield self._store.log(*partition)
            except UnknownTopic:
                continue  # what was in it is gone with it

    def _marked(self, effect: WriteMarkers, failed: RivvenError | None) -> None:
        now_ms = self._now_ms()
        if failed is not None and not isinstance(failed, UnknownTopic):
            self._perform(self._transactions.failed(effect.token, failed, now_ms))
            return
        if effect.groups:
            self._groups.end_transaction(effect.producer_id, committed=effect.commit)
        self._perform(self._transactions.marked(effect.token, now_ms))

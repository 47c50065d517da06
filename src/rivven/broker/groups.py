"""The groups of this node: what the coordinator decides is written to `__consumer_offsets`, and answered.

`ask` hands a request to the coordinator and calls `answer` once, now or in a later turn. The coordinator's `Persist`
becomes one batch in the group's partition of the topic; once that is durable the coordinator hears of it. At the
start the topic is read from end to end.
Invariant: whatever was answered as done is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from random import Random

from rivven.coordinator import (
    Answer,
    Ask,
    DescribedConsumerGroup,
    DescribedGroup,
    Effect,
    Fetched,
    FetchOffsets,
    ForgetTopic,
    GroupConfig,
    Groups,
    ListedGroup,
    Offsets,
    Persist,
    Result,
)
from rivven.errors import RivvenError
from rivven.limits import BATCH_BYTES_MAX, MIB
from rivven.log import Log, Store
from rivven.model import NO_PRODUCER, ProducerId
from rivven.ports import Clock
from rivven.record import decode, decode_marker, partition_for_key, walk

from .publish import Publisher

TOPIC = "__consumer_offsets"
PARTITIONS = 8
READ_BYTES = 1 * MIB

Told = Callable[[Result | RivvenError], None]


class GroupKeeper:
    def __init__(self, store: Store, clock: Clock, publisher: Publisher, config: GroupConfig, rng: Random) -> None:
        self._store = store
        self._clock = clock
        self._publisher = publisher
        self._groups = Groups(config, rng)
        self._asked: dict[int, Told] = {}
        self._ids = count(1)
        self._began_ms = clock.now_ms() - clock.now_us() // 1000
        self._topic_changes = -1
        if any(topic.name == TOPIC for topic in store.topics):
            for number in range(store.topic(TOPIC).partitions):
                self._replay(store.log(TOPIC, number))
        self._look_at_topics()
        self._groups.recall(self.now_ms())
        self._forget_missing()

    def now_ms(self) -> int:
        """The time of day when the node started, and what has passed since: a clock that is set back, or forward,
        must not end every session."""
        return self._began_ms + self._clock.now_us() // 1000

    def _replay(self, log: Log) -> None:
        offset = int(log.start)
        while offset < log.high_watermark:
            data = log.read(offset, bytes_max=READ_BYTES)
            for position, header in walk(data):
                if header.control:
                    committed, _ = decode_marker(data, position)
                    self._groups.end_transaction(ProducerId(header.producer_id), committed=committed)
                else:
                    producer_id = ProducerId(header.producer_id if header.transactional else NO_PRODUCER)
                    for record in decode(data, position):
                        self._groups.replay(record.key, record.value, producer_id)
                offset = header.next_offset

    # Asking

    def ask(self, request: Ask, answer: Told) -> None:
        """Let the coordinator decide; `answer` hears what it says, once it is true for good."""
        if self.topics_changed:
            self._look_at_topics()
        reply_id = next(self._ids)
        self._asked[reply_id] = answer
        self._perform(self._groups.ask(request, reply_id, self.now_ms()))

    def forget_topic(self, name: str, done: Callable[[RivvenError | None], None]) -> None:
        """The topic is gone: so is what groups committed for it. `done` hears when a restart knows that too."""
        concerned = self._groups.groups_with(name)
        left, failed = len(concerned), None
        if not left:
            done(None)

        def told(result: Result | RivvenError) -> None:
            nonlocal left, failed
            failed = result if isinstance(result, RivvenError) else failed
            left -= 1
            if not left:
                done(failed)

        for group in concerned:
            self.ask(ForgetTopic(group, name), told)

    def _forget_missing(self) -> None:
        """Take away what was committed for topics that are no more: a crash came between the two."""
        known = {topic.name for topic in self._store.topics}
        table = self._groups.offsets
        committed = {key.topic for group in table.groups() for key in table.keys_of_group(group)}
        for name in sorted(committed - known):
            self.forget_topic(name, lambda _: None)

    def fetch(self, request: FetchOffsets) -> Fetched:
        return self._groups.fetch(request)

    def list(self) -> list[ListedGroup]:
        return self._groups.list()

    def describe(self, group: str) -> DescribedGroup | DescribedConsumerGroup:
        return self._groups.describe(group)

    def members(self, group: str) -> int:
        """How many members a group has."""
        return len(self._groups.describe(group).members)

    @property
    def offsets(self) -> Offsets:
        return self._groups.offsets

    # Turns

    def due_us(self) -> int | None:
        due_ms = self._groups.due_ms()
        return None if due_ms is None else self.us_of(due_ms)

    def us_of(self, ms: int) -> int:
        """A time of `now_ms` on the clock's monotonic time."""
        return (ms - self._began_ms) * 1000

    @property
    def topics_changed(self) -> bool:
        return self._store.topic_changes != self._topic_changes

    def tick(self) -> None:
        """Let what is due come about: sessions that ran out, rebalances that took too long, offsets that expired."""
        if self.topics_changed:
            self._look_at_topics()
        due_ms = self._groups.due_ms()
        if due_ms is not None and due_ms <= (now_ms := self.now_ms()):
            self._perform(self._groups.tick(now_ms))

    def _look_at_topics(self) -> None:
        """Topics were made, grown or deleted: groups that are assigned by the broker may have more to share."""
        self._topic_changes = self._store.topic_changes
        self._groups.topics_changed({topic.name: topic.partitions for topic in self._store.topics})

    # Effects

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer(reply_id, result):
                    self._asked.pop(reply_id)(result)
                case Persist():
                    self._persist(effect)

    def _persist(self, effect: Persist) -> None:
        def settled(_: int, error: RivvenError | None) -> None:
            now_ms = self.now_ms()
            if error is None:
                self._perform(self._groups.persisted(effect.token, now_ms))
            else:
                self._perform(self._groups.failed(effect.token, error, now_ms))

        timestamp_ms = self._clock.now_ms()
        records = [(timestamp_ms, key, value, ()) for key, value in effect.records]
        try:
            log = self.log_of(effect.group)
            if effect.producer_id == NO_PRODUCER:
                self._publisher.gather(log, records, settled)
            else:
                self._publisher.append_transactional(log, records, effect.producer_id, effect.producer_epoch, settled)
        except RivvenError as error:
            settled(-1, error)

    def end_transaction(self, producer_id: ProducerId, *, committed: bool) -> None:
        """The marker is in the log: the offsets of that transaction count, or are forgotten."""
        self._groups.end_transaction(producer_id, committed=committed)

    def log_of(self, group: str) -> Log:
        """The partition of the topic that holds what is known of this group."""
        if not any(topic.name == TOPIC for topic in self._store.topics):
            configs = {
                "cleanup.policy": "compact",
                "segment.bytes": str(64 * MIB),
                "max.message.bytes": str(BATCH_BYTES_MAX),  # a group is one record, whatever its members say
            }
            self._store.create_topic(TOPIC, PARTITIONS, configs)
        return self._store.log(TOPIC, partition_for_key(group.encode(), self._store.topic(TOPIC).partitions))

"""Publishing, as an operation: which partition, whose quota, and who hears when it is durable.

Single records and whole batches take plain arguments; what is wrong at once is raised, what becomes of the write is
told to `answer` in a later turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rivven.coordinator import PRODUCE
from rivven.errors import RivvenError, UnknownTopic
from rivven.log import Log
from rivven.ports import Clock
from rivven.record import NewRecord

from .admit import Admission
from .partitioner import Partitioner
from .publish import Admit, Answer, NumberedAnswer, Numbers, OwnBatch, Parcels, Publisher
from .session import Session
from .topics import Topics, is_internal


class Produced(NamedTuple):
    """What became of one partition's batches."""

    base_offset: int = -1
    append_ms: int = -1
    """When the log appended them, where that is their timestamp."""
    start: int = -1
    """Where the partition begins."""
    error: RivvenError | None = None


class Writing:
    def __init__(
        self,
        clock: Clock,
        topics: Topics,
        publisher: Publisher,
        partitioner: Partitioner,
        admission: Admission,
    ) -> None:
        self._clock = clock
        self._topics = topics
        self._publisher = publisher
        self._partitioner = partitioner
        self._admission = admission
        self._known: dict[tuple[str, int], Log] = {}
        """Partitions that were published to, for as long as no topic changes."""
        self._known_for = -1

    def log_for(self, name: str, partition: int | None, key: bytes | None = None, records: int = 1) -> Log:
        """The partition to publish to, of a topic that is made if need be; chosen by the key where it is not said."""
        if self._known_for != (changes := self._topics.changes):
            self._known_for = changes
            self._known.clear()
        elif partition is not None and (known := self._known.get((name, partition))) is not None:
            return known
        topic = self._topics.to_publish(name, partition)
        if partition is None:
            partition = self._partitioner.choose(name, topic.partitions, key, self._clock.now_ms(), records)
        log = self._known[name, partition] = self._topics.log(name, partition)
        return log

    def plain_log(self, name: str, partition: int) -> Log | None:
        """The partition, if records and batches may be put there without a look at them or at who sends them: nothing
        is to be made, chosen, counted, refused or converted. True until a topic changes, or a quota."""
        if self._admission.is_limiting or is_internal(name):
            return None
        try:
            log = self._topics.log(name, partition)
        except UnknownTopic:
            return None
        config = log.config
        plain = config.compression_type in ("producer", "none") and config.timestamp_type == "CreateTime"
        return log if plain and not config.compacts else None

    @property
    def append_plain(self) -> Callable[[Sequence[OwnBatch]], None]:
        """Takes batches made of single records, for partitions that `plain_log` gave. Raises what concerns all."""
        return self._publisher.append_own_each

    @property
    def append_parcels(self) -> Callable[[Log, Parcels], None]:
        """Takes whole batches for a partition that `plain_log` gave, as `produce` takes them. Raises only what the
        disk does."""
        return self._publisher.append_parcels

    def publish(self, session: Session, log: Log, records: Sequence[NewRecord], answer: Answer) -> None:
        """Records, in order, in the partition's batch of this turn; `answer` hears their first offset."""
        self._admission.charge(session, PRODUCE, sum(len(record[2] or b"") for record in records))
        self._publisher.gather(log, records, answer)

    def log_for_numbered(
        self, name: str, partition: int | None, key: bytes | None, numbers: Numbers, records: int = 1
    ) -> Log:
        """As `log_for`, but what was sent before under these numbers stays where it went then."""
        if partition is None:
            for number in range(self._topics.to_publish(name).partitions):
                log = self._topics.log(name, number)
                if _has(log, numbers):
                    return log
        return self.log_for(name, partition, key, records)

    def publish_numbered(
        self,
        session: Session,
        log: Log,
        records: Sequence[NewRecord],
        numbers: Numbers,
        answer: NumberedAnswer,
        admit: Admit | None = None,
    ) -> None:
        """Records of a producer that counts them, once however often they come."""
        self._admission.charge(session, PRODUCE, sum(len(record[2] or b"") for record in records))
        self._publisher.append_numbered(log, records, numbers, answer, admit)

    def produce(
        self,
        session: Session,
        topic: str,
        partition: int,
        batches: memoryview,
        answer: Callable[[Produced], None],
        admit: Admit | None = None,
    ) -> None:
        """Whole record batches, end to end, appended as they are; all of them or none. Raises nothing. `admit` is
        asked for those that are part of a transaction."""
        append_ms = start = -1

        def settled(offset: int, error: RivvenError | None) -> None:
            answer(Produced(offset, append_ms if error is None else -1, start, error))

        try:
            log = self.log_for(topic, partition)
            start = log.start
            self._admission.charge(session, PRODUCE, len(batches))
            append_ms = self._publisher.append_batches(log, batches, settled, admit)
        except RivvenError as error:
            settled(-1, error)


def _has(log: Log, numbers: Numbers) -> bool:
    """Whether the partition remembers a batch that begins with these numbers."""
    known = log.facts.producers.get(numbers.producer_id)
    if known is None or known.epoch != numbers.producer_epoch:
        return False
    return any(batch.base_sequence == numbers.base_sequence for batch in known.batches)

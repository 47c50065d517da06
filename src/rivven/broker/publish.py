"""Records in: single publishes are gathered into batches, whole batches are appended as they come.

Whatever is published within one turn to one partition becomes one batch, one write and a share of one sync. A
reply is fulfilled when its records are durable under the sync policy; replies of a partition leave in offset order.
Invariant: `gathering` is empty between turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from rivven.errors import BatchTooLarge, Malformed, OutOfOrderSequence, RivvenError
from rivven.limits import BATCH_RECORDS_MAX
from rivven.log import Appended, Log, ProducedBatch, Store, follows
from rivven.ports import Clock
from rivven.record import (
    CODEC_MASK,
    CONTROL,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    Codec,
    NewRecord,
    decode,
    encode,
    encode_marker,
    parse_header,
    plain_run,
    stamp,
    validate,
)

from .stats import BrokerStats

HEADER_BYTES = 61
RECORD_OVERHEAD_BYTES = 40
"""More than a record's lengths, deltas and counts ever take."""
HEADER_OVERHEAD_BYTES = 12

Admit = Callable[[Log, BatchHeader], None]
"""Raises unless a batch may be written now, as part of its transaction."""
Answer = Callable[[int, RivvenError | None], None]
"""Called with the first offset of what was published once it is durable, or with the reason why it was not."""


class Parcels(Protocol):
    """What several requests bring for one partition: their batches end to end, and who asked."""

    @property
    def data(self) -> bytearray | memoryview: ...

    @property
    def ends(self) -> list[int]:
        """Up to where each one reaches."""

    @property
    def answers(self) -> list[Answer]:
        """Whom to tell, one by one."""

    def __call__(self, first: int, error: RivvenError | None, /) -> None:
        """Tell all of them. By now each batch says at which offset it begins."""


OwnBatch = tuple[Log, bytearray, BatchHeader, Answer]
"""A batch that was made on this node, its header, and whom to tell."""
NumberedAnswer = Callable[[bool, int, RivvenError | None], None]
"""The same, and first of all whether the records had been there already."""


class Numbers(NamedTuple):
    """Who sends records, and the number of the first of them."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool = False
    skipping: bool = False
    """The producer counts over several partitions, so in one of them numbers are left out."""


@dataclass(slots=True)
class _Gathering:
    """Records on their way into one batch."""

    records: list[NewRecord] = field(default_factory=list)
    answers: list[tuple[int, Answer]] = field(default_factory=list)
    """How many records stand before, and whom to tell."""
    size_bytes: int = 0


class Publisher:
    def __init__(self, store: Store, clock: Clock, stats: BrokerStats) -> None:
        self._store = store
        self._clock = clock
        self._stats = stats
        self.gathering: dict[Log, _Gathering] = {}
        """What is published one by one, by log, to be one batch at the end of the turn."""
        self._undurable: dict[Log, list[tuple[int, int, Answer]]] = {}
        """For each log: what becomes durable with which offset, its first offset, and whom to tell."""
        self.owes_others = False
        """Whether somebody waits who may do more than send the answer: a coordinator may set a timer by it."""

    # One record or a few, without a batch of their own

    def gather(self, log: Log, records: Sequence[NewRecord], answer: Answer) -> None:
        """Publish these together, in order, in the batch of this turn. Raises what can be told at once."""
        size_bytes = _checked_bytes(log, records)
        bytes_max = log.config.max_message_bytes - HEADER_BYTES
        group = self.gathering.get(log)
        if group is not None and (
            group.size_bytes + size_bytes > bytes_max or len(group.records) + len(records) > BATCH_RECORDS_MAX
        ):
            self._append_gathered(log, self.gathering.pop(log))
            group = None
        if group is None:
            group = self.gathering[log] = _Gathering()
        group.answers.append((len(group.records), answer))
        group.records += records
        group.size_bytes += size_bytes

    def append_gathered(self) -> None:
        """The turn is over: write what was gathered."""
        while self.gathering:
            log, group = self.gathering.popitem()
            self._append_gathered(log, group)

    def _append_gathered(self, log: Log, group: _Gathering) -> None:
        try:
            batch = encode(group.records, codec=_codec_of(log) or Codec.NONE)
            append_ms = self._clock.now_ms() if log.config.timestamp_type == "LogAppendTime" else -1
            done = self._append(log, batch, parse_header(batch), append_ms)
        except RivvenError as error:
            for _, answer in group.answers:
                answer(-1, error)
            return
        for before, answer in group.answers:
            self._owe(log, done.next_offset, done.base_offset + before, answer)

    def _owe(self, log: Log, upto: int, first: int, answer: Answer) -> None:
        """Tell somebody of an offset when everything below another one is durable."""
        self.owes_others = True
        self._undurable.setdefault(log, []).append((upto, first, answer))

    # One record or a few, with the numbers of their producer

    def append_numbered(
        self,
        log: Log,
        records: Sequence[NewRecord],
        numbers: Numbers,
        answer: NumberedAnswer,
        admit: Admit | None = None,
    ) -> None:
        """Records in a batch of their own, or the answer that they got when they were sent before. `admit` may refuse
        them as part of a transaction. Raises what can be told at once."""
        _checked_bytes(log, records)
        batch = encode(
            records,
            codec=_codec_of(log) or Codec.NONE,
            producer_id=numbers.producer_id,
            producer_epoch=numbers.producer_epoch,
            base_sequence=numbers.base_sequence,
            transactional=numbers.transactional,
        )
        header = parse_header(batch)
        if (repeated := self._repeats_loosely(log, header, skipping=numbers.skipping)) is not None:
            told = partial(answer, True)
            self._answer_when_durable(log, repeated.last_offset + 1, repeated.base_offset, told)
            return
        if admit is not None:
            admit(log, header)
        append_ms = self._clock.now_ms() if log.config.timestamp_type == "LogAppendTime" else -1
        self.append_own(log, batch, partial(answer, False), append_ms)

    @staticmethod
    def _repeats_loosely(log: Log, header: BatchHeader, *, skipping: bool) -> ProducedBatch | None:
        """As `judge`, but a new epoch may begin with any number, and one that is `skipping` may leave some out."""
        producers = log.facts.producers
        try:
            return producers.judge(log.partition, header)
        except OutOfOrderSequence:
            known = producers.get(header.producer_id)
            assert known is not None
            ahead = bool(known.batches) and header.base_sequence > known.batches[-1].last_sequence
            if header.producer_epoch > known.epoch or (skipping and ahead):
                return None
            raise

    # What the coordinators write

    def append_transactional(
        self, log: Log, records: Sequence[NewRecord], producer_id: int, producer_epoch: int, answer: Answer
    ) -> None:
        """Records of the broker's own that are part of a client's transaction."""
        batch = encode(records, producer_id=producer_id, producer_epoch=producer_epoch, transactional=True)
        self.append_own(log, batch, answer)

    def append_marker(self, log: Log, producer_id: int, producer_epoch: int, commit: bool, answer: Answer) -> None:
        """The end of a producer's transaction in this partition."""
        batch = encode_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp_ms=self._clock.now_ms(),
        )
        self.append_own(log, batch, answer)

    def append_own(self, log: Log, batch: bytearray, answer: Answer, append_ms: int = -1) -> None:
        """A batch that was made on this node, so that there is nothing to check."""
        if (group := self.gathering.pop(log, None)) is not None:
            self._append_gathered(log, group)
        done = self._append(log, batch, parse_header(batch), append_ms)
        self._owe(log, done.next_offset, done.base_offset, answer)

    def append_own_each(self, batches: Sequence[OwnBatch]) -> None:
        """Batches that were made on this node, of many partitions; whoever is told does nothing but send it. Raises
        what concerns all of them."""
        if self.gathering:
            self.append_gathered()  # what was published before keeps the lower offsets
        outcomes = self._store.append_each(batches)
        records = size_bytes = appended = 0
        for (log, batch, header, answer), done in zip(batches, outcomes, strict=True):
            if isinstance(done, RivvenError):
                answer(-1, done)
                continue
            records += header[12]
            size_bytes += len(batch)
            appended += 1
            self._promise(log, done, answer)
        stats = self._stats
        stats.messages_in += records
        stats.bytes_in += size_bytes
        stats.batches_in += appended

    def _promise(self, log: Log, done: Appended, answer: Answer) -> None:
        """As `_owe`, for whoever does nothing with an answer but send it."""
        waiting = self._undurable.get(log)
        if waiting is not None:
            waiting.append((done[1], done[0], answer))
        elif done[1] <= log.durable:
            answer(done[0], None)
        else:
            self._undurable[log] = [(done[1], done[0], answer)]

    # Whole batches

    def append_batches(self, log: Log, data: memoryview, answer: Answer, admit: Admit | None = None) -> int:
        """Append every batch in `data`, each as it is. All are checked before the first is written; `admit` may
        refuse one that is part of a transaction. Returns the time that the log gave them, -1 where they keep their
        own."""
        if data.readonly:
            data = memoryview(bytearray(data))  # offsets are written into it; protobuf hands over bytes
        checked = self._checked(log, data)
        if checked[0][1].producer_id >= 0 and (repeated := self._repeats(log, [header for _, header in checked])):
            self._answer_when_durable(log, repeated.last_offset + 1, repeated.base_offset, answer)
            return -1
        for _, header in checked:
            if header[5] & TRANSACTIONAL:
                if admit is None:
                    raise Malformed(what="batch", reason="it is part of a transaction, and the request names none")
                admit(log, header)
        if (group := self.gathering.pop(log, None)) is not None:
            self._append_gathered(log, group)  # what was published before keeps the lower offsets
        codec = _codec_of(log)
        append_ms = self._clock.now_ms() if log.config.timestamp_type == "LogAppendTime" else -1
        as_they_are = codec is None and append_ms < 0 and not log.config.compacts
        if len(checked) > 1 and as_they_are and (run := self._append_checked(log, data, checked)):
            self._owe(log, run.next_offset, run.base_offset, answer)
            return append_ms
        first: Appended | None = None
        for position, header in checked:
            whole = data if len(checked) == 1 else data[position : position + header.batch_bytes]
            batch: bytearray | memoryview = whole
            if (codec is not None and header.codec is not codec) or log.config.compacts:
                batch, header = self._made_over(log, whole, header, codec)
            done = self._append(log, batch, header, append_ms)
            first = first or done
        assert first is not None
        self._owe(log, done.next_offset, first.base_offset, answer)
        return append_ms

    def append_parcels(self, log: Log, parcels: Parcels) -> None:
        """For a topic that takes batches as they come: as if each came to `append_batches`, but in one write if
        nothing is odd about any of them. Raises only what the disk does."""
        data, ends = parcels.data, parcels.ends
        try:
            done = self._append_plain(log, data, ends)
        except RivvenError:  # one of them is wrong; or the disk has no room for all, but perhaps for one
            done = None
        if done is None:
            self._append_each(log, memoryview(data), ends, parcels.answers)
        else:
            self._promise(log, done, parcels)

    def _append_plain(self, log: Log, data: bytearray | memoryview, ends: list[int]) -> Appended | None:
        """Append parcels that need no second look; None, and nothing is done, if one of them does."""
        if log in self.gathering:
            return None
        config = log.config
        if (plain := plain_run(data, ends, config.max_message_bytes)) is not None:
            records, compressed = plain
            if compressed and config.compression_type != "producer":
                return None
            return self._append_run(log, data, ends, records, numbered=False)
        if (headers := self._numbered_run(log, data, ends)) is None:
            return None
        return self._append_run(log, data, ends, sum(header[6] + 1 for header in headers), numbered=True)

    def _numbered_run(self, log: Log, data: bytearray | memoryview, ends: list[int]) -> list[BatchHeader] | None:
        """The headers of parcels, some numbered by their producers, of which none was sent before; None if one needs
        a second look. Raises if one is wrong."""
        bytes_max, any_codec = log.config.max_message_bytes, log.config.compression_type == "producer"
        headers: list[BatchHeader] = []
        before: BatchHeader | None = None
        at = 0
        for end in ends:
            header = validate(data, at)
            if (
                header[1] + PREFIX_BYTES != end - at
                or end - at > bytes_max
                or header[5] & (CONTROL | TRANSACTIONAL)
                or header[12] != header[6] + 1
                or (header[5] & CODEC_MASK and not any_codec)
            ):
                return None
            if header[9] >= 0 and not (before is not None and follows(before, header)):
                if any(other[9] == header[9] for other in headers):
                    return None  # to be judged by what is not yet written
                if log.facts.producers.judge(log.partition, header) is not None:
                    return None
            headers.append(header)
            before = header
            at = end
        return headers

    def _append_each(self, log: Log, data: memoryview, ends: list[int], answers: list[Answer]) -> None:
        at = 0
        for end, answer in zip(ends, answers, strict=True):
            try:
                self.append_batches(log, data[at:end], answer)
            except RivvenError as error:
                answer(-1, error)
            at = end

    def _repeats(self, log: Log, headers: list[BatchHeader]) -> ProducedBatch | None:
        """What a producer sent before and sends again, or None if it is new. Raises if its numbers are neither."""
        if len(headers) > 1:
            raise Malformed(what="batches", reason="an idempotent producer sends one batch to a partition at a time")
        return log.facts.producers.judge(log.partition, headers[0])

    def _answer_when_durable(self, log: Log, upto: int, first: int, answer: Answer) -> None:
        if upto <= log.durable:
            answer(first, None)
        else:
            self._owe(log, upto, first, answer)

    def _checked(self, log: Log, data: memoryview) -> list[tuple[int, BatchHeader]]:
        """Every batch in `data`, by its position: whole, true to its CRC, and one that a client may send."""
        checked = []
        position, end = 0, len(data)
        bytes_max = log.config.max_message_bytes
        while position < end:
            header = validate(data, position)
            batch_bytes = header[1] + PREFIX_BYTES  # by place: this is done for every batch that comes in
            if batch_bytes > bytes_max:
                raise BatchTooLarge(batch_bytes=batch_bytes, bytes_max=bytes_max)
            if header[5] & CONTROL:
                raise Malformed(what="batch", reason="control batches are the broker's own")
            if header[12] != header[6] + 1:
                raise Malformed(what="batch", reason="a new batch has a record at each of its offsets")
            checked.append((position, header))
            position += batch_bytes
        if not checked:
            raise Malformed(what="batches", reason="nothing but whole record batches is expected")
        return checked

    def _made_over(
        self, log: Log, batch: memoryview, header: BatchHeader, codec: Codec | None
    ) -> tuple[bytearray | memoryview, BatchHeader]:
        """Look into a batch where the topic asks for it: keys where it is compacted, another codec."""
        records = decode(batch, verify=False)
        if log.config.compacts and any(record.key is None for record in records):
            raise Malformed(what="record", reason=f"{log.partition.topic} is compacted, and needs a key")
        if codec is None or header.codec is codec:
            return batch, header
        made = encode(
            [(record.timestamp_ms, record.key, record.value, record.headers) for record in records],
            codec=codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.transactional,
        )
        return made, parse_header(made)

    # Both

    def _append(self, log: Log, batch: bytearray | memoryview, header: BatchHeader, append_ms: int) -> Appended:
        if append_ms >= 0:
            stamp(batch, append_ms)
            header = parse_header(batch)
        done = self._store.append(log, batch, header)
        self._stats.messages_in += header.count
        self._stats.bytes_in += len(batch)
        self._stats.batches_in += 1
        return done

    def _append_checked(self, log: Log, data: memoryview, checked: list[tuple[int, BatchHeader]]) -> Appended | None:
        ends = [position + header.batch_bytes for position, header in checked]
        records = sum(header.count for _, header in checked)
        numbered = any(header.producer_id >= 0 for _, header in checked)
        return self._append_run(log, data, ends, records, numbered=numbered)

    def _append_run(
        self, log: Log, data: bytearray | memoryview, ends: list[int], records: int, *, numbered: bool
    ) -> Appended | None:
        done = self._store.append_run(log, data, ends, records, numbered=numbered)
        if done is not None:
            stats = self._stats
            stats.messages_in += records
            stats.bytes_in += len(data)
            stats.batches_in += len(ends)
        return done

    def answer_durable(self, logs: Iterable[Log]) -> None:
        """These logs' durable offsets have moved: tell whoever waited for it."""
        undurable = self._undurable
        if not undurable:
            return
        for log in logs:
            waiting = undurable.get(log)
            if waiting is None:
                continue
            durable, told = log.durable, 0
            try:
                for upto, first, answer in waiting:  # an answer may have somebody else wait, behind all of them
                    if upto > durable:
                        break
                    told += 1
                    answer(first, None)
            finally:
                del waiting[:told]
            if not waiting:
                undurable.pop(log, None)
        if not undurable:
            self.owes_others = False

    def abandon(self, log: Log, error: RivvenError) -> None:
        """The log is gone: nobody will hear that their records are durable."""
        for _, _, answer in self._undurable.pop(log, ()):
            answer(-1, error)


def _checked_bytes(log: Log, records: Sequence[NewRecord]) -> int:
    """How many bytes these take at most, if the topic takes them at all."""
    size_bytes = sum(map(_size_of, records))
    if size_bytes > log.config.max_message_bytes - HEADER_BYTES:
        raise BatchTooLarge(batch_bytes=size_bytes, bytes_max=log.config.max_message_bytes)
    if log.config.compacts and any(key is None for _, key, _, _ in records):
        raise Malformed(what="record", reason=f"{log.partition.topic} is compacted, and needs a key")
    return size_bytes


def _size_of(record: NewRecord) -> int:
    _, key, value, headers = record
    size_bytes = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, text in headers:
        size_bytes += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(text or b"")
    return size_bytes


def _codec_of(log: Log) -> Codec | None:
    """The codec that the topic insists on; None if producers choose."""
    chosen = log.config.compression_type
    return None if chosen == "producer" else Codec[chosen.upper()]

"""Who uses a simulated broker: producers, consumers that commit, an auditor, a maker of topics, and a stranger.

Each acts on its own, on a client of its own, and takes down in the chronicle what it asked for and what it was told.
Invariant: a value is sent again only after its last attempt was answered or its connection lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Protocol

from rivven.model import TopicPartition
from rivven.record import Codec, decode, encode, walk
from rivven.wire import Format, Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .checkers import Anomaly, Chronicle, Commit, Fate, Look, Poll, Send, Trim
from .client import SimClient
from .network import SimNetwork

WINDOW = 4
"""So many requests a producer has under way."""
ATTEMPTS_MAX = 6
GROUP_READS = 0.3


class Actor(Protocol):
    def begin(self) -> None: ...

    def stop(self) -> None:
        """Begin nothing new."""

    @property
    def settled(self) -> bool:
        """Whether nothing of it is under way."""


class Stage:
    """What every actor needs: the others' network, chance, and the chronicle."""

    def __init__(self, network: SimNetwork, address: str, chronicle: Chronicle, topics: dict[str, int]) -> None:
        self.network = network
        self.agenda = network.agenda
        self.rng: Random = network.rng
        self.address = address
        self.chronicle = chronicle
        self.topics = topics
        """How many partitions each has."""
        self.anomalies: list[Anomaly] = []
        """What an actor found wrong by itself."""

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, count in self.topics.items() for number in range(count)]

    def suspect(self, message: str) -> None:
        """An error that a reader was told: no fault of this world explains one about damage."""
        if "unreadable" in message:
            self.anomalies.append(Anomaly("corrupt read", message))

    def after_ms(self, least: int, most: int, act: Callable[[], object]) -> None:
        self.agenda.after(self.rng.randint(least * 1000, most * 1000), act)


# Records in


@dataclass(frozen=True, slots=True)
class Part:
    """What of a parcel goes to one partition."""

    partition: int | None
    key: bytes | None
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one request publishes; only an opaque one has several parts."""

    kind: str
    topic: str
    parts: tuple[Part, ...]
    attempts: int = 1

    def request(self, now_ms: int) -> Request:
        part = self.parts[0]
        match self.kind:
            case "one":
                return ask.Publish(self.topic, part.partition, part.key, part.values[0])
            case "batch":
                rows = tuple(ask.BatchRecord(part.key, value) for value in part.values)
                return ask.PublishBatch(self.topic, part.partition, rows)
            case "records":
                header = (ask.Header("of", b"a history"),)
                records = tuple(ask.NewRecord(part.key, value, header, now_ms) for value in part.values)
                return ask.PublishRecords(self.topic, part.partition, records)
            case _:
                parts = tuple(ask.PartitionBatches(part.partition or 0, batches(part, now_ms)) for part in self.parts)
                return ask.ProduceBatches(-1, 1000, (ask.TopicBatches(self.topic, parts),))


def halves(part: Part) -> list[tuple[bytes, ...]]:
    """The values of an opaque part batch by batch: two if there are many, else one."""
    middle = len(part.values) if len(part.values) < 4 else len(part.values) // 2
    return [values for values in (part.values[:middle], part.values[middle:]) if values]


def batches(part: Part, now_ms: int) -> bytes:
    codec = Codec.GZIP if len(part.values) % 3 == 0 else Codec.NONE
    return b"".join(
        encode([(now_ms, part.key, value, ()) for value in values], codec=codec) for values in halves(part)
    )


class Producer:
    """Sends values that are its own, and each again until it is acknowledged or it has had enough."""

    def __init__(self, name: str, stage: Stage, client: SimClient) -> None:
        self._name = name
        self._stage = stage
        self._client = client
        self._count = 0
        self._under_way = 0
        self._stopped = False

    def begin(self) -> None:
        if not self._stopped:
            if self._under_way < WINDOW:
                for _ in range(self._stage.rng.choice((1, 1, 1, 2, 3))):
                    self._send(self._new_parcel())
                if self._stage.rng.random() < 0.2:
                    self._ping()
            self._stage.after_ms(0, 120, self.begin)

    def stop(self) -> None:
        self._stopped = True

    @property
    def settled(self) -> bool:
        return self._under_way == 0

    def _ping(self) -> None:
        """Something that is answered at once, behind something that is not."""
        self._under_way += 1

        def answered(response: Response | None) -> None:
            self._under_way -= 1
            assert response is None or isinstance(response, tell.Pong), f"a ping was answered by {response}"

        self._client.ask(ask.Ping(), answered)

    def _new_parcel(self) -> Parcel:
        rng = self._stage.rng
        kind = rng.choice(("one", "one", "batch", "records", "opaque"))
        if kind == "batch" and self._client.form is Format.PROTOBUF:
            kind = "records"  # protobuf has no word for the other
        topic = rng.choice(list(self._stage.topics))
        numbers = range(self._stage.topics[topic])
        if kind == "opaque":
            chosen = rng.sample(numbers, rng.randint(1, len(numbers)))
            return Parcel(kind, topic, tuple(Part(number, None, self._values()) for number in chosen))
        key = b"key-%d" % rng.randint(0, 3) if rng.random() < 0.5 else None
        partition = rng.choice(numbers) if rng.random() < 0.7 else None
        values = self._values()
        return Parcel(kind, topic, (Part(partition, key, values[:1] if kind == "one" else values),))

    def _values(self) -> tuple[bytes, ...]:
        rng = self._stage.rng
        padding = b"." * rng.choice((0, 5, 5, 80, 700))
        first, self._count = self._count, self._count + rng.randint(1, 5)
        return tuple(b"%s-%d" % (self._name.encode(), number) + padding for number in range(first, self._count))

    def _send(self, parcel: Parcel) -> None:
        chronicle = self._stage.chronicle
        self._under_way += 1
        sends = [
            [chronicle.send(value, parcel.topic, part.partition) for value in part.values] for part in parcel.parts
        ]
        request = parcel.request(self._stage.agenda.clock.now_ms())
        connection = self._client.ask(request, partial(self._answered, parcel, sends))
        for of_part in sends:
            for send in of_part:
                send.connection = connection

    def _answered(self, parcel: Parcel, sends: list[list[Send]], response: Response | None) -> None:
        self._under_way -= 1
        failed = []
        for part, of_part in zip(parcel.parts, sends, strict=True):
            place = outcome(parcel, part, response)
            if place is None:
                failed.append(part)
                # Of several batches an error says only that not all of them were kept.
                unsure = response is None or (parcel.kind == "opaque" and len(halves(part)) > 1)
                self._end(of_part, Fate.OPEN if unsure else Fate.REFUSED)
            else:
                self._acknowledge(of_part, *place)
        if failed and parcel.attempts < ATTEMPTS_MAX:
            self._under_way += 1
            again = replace(parcel, parts=tuple(failed), attempts=parcel.attempts + 1)
            self._stage.after_ms(1, 200 * parcel.attempts, partial(self._send_again, again))

    def _send_again(self, parcel: Parcel) -> None:
        self._under_way -= 1
        self._send(parcel)

    def _acknowledge(self, sends: Sequence[Send], partition: int, base_offset: int) -> None:
        for place, send in enumerate(sends):
            send.partition, send.offset = partition, base_offset + place
        self._end(sends, Fate.DONE)

    def _end(self, sends: Sequence[Send], fate: Fate) -> None:
        for send in sends:
            self._stage.chronicle.end(send, fate)


def outcome(parcel: Parcel, part: Part, response: Response | None) -> tuple[int, int] | None:
    """Partition and first offset that a part of a parcel got, or None if it failed or nobody knows."""
    match response:
        case None | tell.Error():
            return None
        case tell.Published(offset, partition):
            return partition, offset
        case tell.PublishedBatch(offset, partition, count):
            assert count == len(part.values), f"{count} records of {len(part.values)} acknowledged"
            return partition, offset
        case tell.ProducedBatches(topics):
            (topic,) = topics
            assert len(topic.partitions) == len(parcel.parts)
            done = topic.partitions[parcel.parts.index(part)]
            assert done.partition == part.partition, "partitions are answered in the order of the request"
            return (done.partition, done.base_offset) if done.error == 0 else None
        case _:
            raise AssertionError(f"a publish was answered by {response}")


# Records out


class Asker:
    """One who asks, waits for the answer, and asks again: `_next`, until it is told to stop."""

    def __init__(self) -> None:
        self._asking = False
        self._stopped = False

    def begin(self) -> None:
        if not self._stopped and not self._asking:
            self._asking = True
            self._next()

    def stop(self) -> None:
        self._stopped = True

    @property
    def settled(self) -> bool:
        return not self._asking

    def _next(self) -> None:
        raise NotImplementedError


class Consumer(Asker):
    """Reads its partitions from the start on, by both kinds of request, and commits where it stands as its group."""

    def __init__(self, name: str, stage: Stage, client: SimClient, partitions: Sequence[TopicPartition]) -> None:
        self.name = name
        self.positions = dict.fromkeys(partitions, 0)
        self.found: dict[TopicPartition, dict[int, bytes]] = {partition: {} for partition in partitions}
        self._stage = stage
        self._client = client
        super().__init__()

    def _next(self) -> None:
        rng = self._stage.rng
        roll = rng.random()
        if self._stopped:
            self._asking = False
        elif roll < 0.35:
            self._consume(rng.choice(list(self.positions)))
        elif roll < 0.75:
            self._fetch(rng.sample(list(self.positions), rng.randint(1, len(self.positions))))
        elif roll < 0.9:
            self._commit(rng.choice(list(self.positions)))
        else:
            self._look(rng.choice(list(self.positions)))

    def _go_on(self, response: Response | None) -> None:
        pause_ms = 200 if response is None or isinstance(response, tell.Error) else 20
        self._stage.after_ms(0, pause_ms, self._next)

    def _consume(self, partition: TopicPartition) -> None:
        rng, begun, position = self._stage.rng, self._stage.chronicle.tick(), self.positions[partition]
        wait_ms = rng.choice((None, 0, 100, 1500))
        request = ask.Consume(
            partition.topic, partition.partition, position, rng.choice((1, 3, 50)), rng.choice((None, 0, 1)), wait_ms
        )

        def answered(response: Response | None) -> None:
            if isinstance(response, tell.Messages):
                found = tuple((message.offset, message.value) for message in response.messages)
                self._read(begun, partition, position, found, None)
            elif isinstance(response, tell.Error):
                self._stage.suspect(response.message)
            self._go_on(response)

        self._client.ask(request, answered)

    def _fetch(self, partitions: list[TopicPartition]) -> None:
        rng, begun = self._stage.rng, self._stage.chronicle.tick()
        asked = {partition: self.positions[partition] for partition in partitions}
        most = rng.choice((1, 300, 4000))
        topics = tuple(
            ask.TopicFetch(
                topic,
                tuple(
                    ask.PartitionFetch(partition.partition, position, most)
                    for partition, position in asked.items()
                    if partition.topic == topic
                ),
            )
            for topic in dict.fromkeys(partition.topic for partition in partitions)
        )
        request = ask.FetchBatches(
            rng.choice((0, 100, 1500)), rng.choice((0, 1, 1, 600)), 8000, rng.randint(0, 1), topics
        )
        self._client.ask(request, partial(self._fetched, begun, asked))

    def _fetched(self, begun: int, asked: dict[TopicPartition, int], response: Response | None) -> None:
        if isinstance(response, tell.FetchedBatches):
            for topic in response.topics:
                for part in topic.partitions:
                    partition = TopicPartition(topic.topic, part.partition)
                    self._take(begun, partition, asked[partition], part)
        self._go_on(response)

    def _take(self, begun: int, partition: TopicPartition, position: int, part: tell.PartitionFetched) -> None:
        if part.error:
            self._stage.suspect(part.error_message or "")
            if part.log_start_offset > position:  # deleted on demand
                self.positions[partition] = max(self.positions[partition], part.log_start_offset)
            return
        assert not isinstance(part.batches, tuple)
        records = [record for place, _ in walk(part.batches) for record in decode(part.batches, place)]
        found = tuple((record.offset, record.value or b"") for record in records if record.offset >= position)
        self._read(begun, partition, position, found, part.high_watermark)

    def _read(
        self,
        begun: int,
        partition: TopicPartition,
        position: int,
        found: tuple[tuple[int, bytes], ...],
        high_watermark: int | None,
    ) -> None:
        chronicle = self._stage.chronicle
        chronicle.polls.append(Poll(begun, chronicle.tick(), self.name, partition, position, found, high_watermark))
        if found:
            self.found[partition].update(found)
            self.positions[partition] = max(self.positions[partition], found[-1][0] + 1)

    def _commit(self, partition: TopicPartition) -> None:
        offset = self.positions[partition]
        fact = self._stage.chronicle.commit(self.name, partition, offset)
        request = ask.CommitOffset(self.name, partition.topic, partition.partition, offset)
        self._client.ask(request, partial(self._committed, fact))

    def _committed(self, fact: Commit, response: Response | None) -> None:
        if response is not None:
            assert isinstance(response, tell.OffsetCommitted | tell.Error), f"a commit was answered by {response}"
            refused = isinstance(response, tell.Error)
            self._stage.chronicle.end(fact, Fate.REFUSED if refused else Fate.DONE)
        self._go_on(response)

    def _look(self, partition: TopicPartition) -> None:
        look(self._stage, self._client, self.name, partition, self._go_on)


def look(
    stage: Stage,
    client: SimClient,
    group: str,
    partition: TopicPartition,
    then: Callable[[Response | None], object],
) -> None:
    """Read a group's offset and take it down."""
    begun = stage.chronicle.tick()

    def answered(response: Response | None) -> None:
        if isinstance(response, tell.CommittedOffset):
            stage.chronicle.looks.append(Look(begun, stage.chronicle.tick(), group, partition, response.offset))
        then(response)

    client.ask(ask.GetOffset(group, partition.topic, partition.partition), answered)


class Auditor(Asker):
    """Reads bounds and other groups' offsets, and now and then deletes the oldest records of a partition."""

    def __init__(self, stage: Stage, client: SimClient, groups: Sequence[str]) -> None:
        self._stage = stage
        self._client = client
        self._groups = groups
        super().__init__()

    def _next(self) -> None:
        rng = self._stage.rng
        partition = rng.choice(self._stage.partitions)
        if self._stopped:
            self._asking = False
        elif rng.random() < 0.5:
            look(self._stage, self._client, rng.choice(self._groups), partition, self._go_on)
        else:
            begun = self._stage.chronicle.tick()
            request = ask.GetOffsetBounds(partition.topic, partition.partition)
            self._client.ask(request, partial(self._bounded, begun, partition))

    def _go_on(self, _: Response | None) -> None:
        self._stage.after_ms(5, 150, self._next)

    def _bounded(self, begun: int, partition: TopicPartition, response: Response | None) -> None:
        chronicle = self._stage.chronicle
        if isinstance(response, tell.OffsetBounds):
            poll = Poll(begun, chronicle.tick(), "the auditor", partition, response.earliest, (), response.latest)
            chronicle.polls.append(poll)
            if self._stage.rng.random() < 0.1:
                offset = self._stage.rng.randint(response.earliest, response.latest)
                fact = chronicle.trim(partition, offset)
                where = (ask.PartitionOffset(partition.partition, offset),)
                self._client.ask(ask.DeleteRecords(partition.topic, where), partial(self._trimmed, fact))
                return
        self._go_on(response)

    def _trimmed(self, fact: Trim, response: Response | None) -> None:
        if isinstance(response, tell.RecordsDeleted):
            (result,) = response.results
            self._stage.chronicle.end(fact, Fate.REFUSED if result.error else Fate.DONE)
            assert result.error or result.low_watermark >= fact.offset
        elif response is not None:
            self._stage.chronicle.end(fact, Fate.REFUSED)
        self._go_on(response)


# Topics


class TopicMaker(Asker):
    """Makes a topic, fills it, reads it, deletes it, and makes it again, while somebody waits for its records.

    It alone uses its topic, one request at a time. If it never hears what became of one it takes another name, since
    that request may still be on its way.
    """

    def __init__(self, name: str, stage: Stage, client: SimClient, watcher: SimClient) -> None:
        self._name = name
        self._stage = stage
        self._client = client
        self._watcher = watcher
        self._generation = 0
        self._expected: list[bytes] | None = None
        """What the topic holds; None while there is none."""
        self._count = 0
        self._watching = 0
        super().__init__()

    @property
    def topic(self) -> str:
        return f"{self._name}-{self._generation}"

    @property
    def settled(self) -> bool:
        return super().settled and self._watching == 0

    def _next(self) -> None:
        rng = self._stage.rng
        if self._stopped:
            self._asking = False
            return
        if self._watching < 2 and rng.random() < 0.3:
            self._watch()
        if self._expected is None:
            choices: list[Callable[[], None]] = [self._make, self._make, self._miss]
        else:
            choices = [self._fill, self._fill, self._read, self._read, self._delete]
        rng.choice(choices)()

    def _ask(self, request: Request, answered: Callable[[Response], None]) -> None:
        def heard(response: Response | None) -> None:
            if response is None:
                self._generation += 1
                self._expected = None
            else:
                answered(response)
            self._stage.after_ms(0, 150, self._next)

        self._client.ask(request, heard)

    def _wrong(self, text: str) -> None:
        self._stage.anomalies.append(Anomaly("topic", f"{self.topic}: {text}"))

    def _make(self) -> None:
        def answered(response: Response) -> None:
            if isinstance(response, tell.TopicCreated):
                self._expected = []
            elif not isinstance(response, tell.Error):
                self._wrong(f"a creation was answered by {response}")
            elif "exists" in response.message:
                self._wrong("it was deleted and exists")

        self._ask(ask.CreateTopic(self.topic, 1), answered)

    def _miss(self) -> None:
        def answered(response: Response) -> None:
            if not isinstance(response, tell.Error):
                self._wrong(f"it is not there, and yet {response}")

        self._ask(ask.GetMetadata(self.topic), answered)

    def _fill(self) -> None:
        self._count += 1
        value = b"%s %d" % (self.topic.encode(), self._count)

        def answered(response: Response) -> None:
            assert self._expected is not None
            if isinstance(response, tell.Published):
                if response.offset != len(self._expected):
                    self._wrong(f"offset {response.offset} instead of {len(self._expected)}")
                self._expected.append(value)
            elif isinstance(response, tell.Error) and "UNKNOWN_TOPIC" in response.message:
                self._wrong("it was made and is lost")

        self._ask(ask.Publish(self.topic, 0, None, value), answered)

    def _read(self) -> None:
        def answered(response: Response) -> None:
            if isinstance(response, tell.Messages):
                found = [message.value for message in response.messages]
                if found != self._expected:
                    self._wrong(f"it holds {found} instead of {self._expected}")
            else:
                self._wrong(f"a read was answered by {response}")

        self._ask(ask.Consume(self.topic, 0, 0, 10_000), answered)

    def _delete(self) -> None:
        def answered(response: Response) -> None:
            if isinstance(response, tell.TopicDeleted):
                self._expected = None

        self._ask(ask.DeleteTopic(self.topic), answered)

    def _watch(self) -> None:
        """Wait for records that may never come, of a topic that may go meanwhile."""
        self._watching += 1

        def heard(_: Response | None) -> None:
            self._watching -= 1

        far = 1_000_000
        request: Request = ask.Consume(self.topic, 0, len(self._expected or ()), 5, None, 2000)
        if self._stage.rng.random() < 0.5:
            parts = (ask.PartitionFetch(0, len(self._expected or ()), far),)
            request = ask.FetchBatches(2000, far, far, 0, (ask.TopicFetch(self.topic, parts),))
        self._watcher.ask(request, heard)


class Stranger:
    """Sends what is no request at all. It may be refused or cut off, and must not disturb anybody."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._stopped = False

    def begin(self) -> None:
        if not self._stopped:
            socket = self._stage.network.connect(self._stage.address)
            socket.send([self._noise() for _ in range(self._stage.rng.randint(1, 3))])
            self._stage.after_ms(1, 500, socket.close)
            self._stage.after_ms(50, 1000, self.begin)

    def stop(self) -> None:
        self._stopped = True

    @property
    def settled(self) -> bool:
        return True

    def _noise(self) -> bytes:
        rng = self._stage.rng
        body = rng.randbytes(rng.choice((0, 1, 5, 30, 300)))
        length = rng.choice((len(body), len(body), rng.randint(0, 400), rng.getrandbits(32)))
        return length.to_bytes(4, "big") + rng.choice((b"", b"\0", b"\1")) + body

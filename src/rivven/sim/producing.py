"""Producers without sequence numbers: whatever is not acknowledged is sent again, and may be there twice.

Invariant: a value is sent again only after its last attempt was answered or its connection lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from rivven.record import Codec, encode
from rivven.wire import Format, Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .chronicle import Fate, Send
from .client import SimClient
from .stage import Stage

WINDOW = 4
"""So many requests a producer has under way."""
ATTEMPTS_MAX = 6


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

"""Who reads: consumers that commit where they stand, and an auditor that compares and deletes.

A consumer takes down every poll, whichever request it was made by. Of whole batches it makes what a client would: no
markers, and no records of aborted transactions where it asked for committed data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rivven.model import TopicPartition
from rivven.record import Record, decode, decode_marker, walk
from rivven.wire import Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .chronicle import Commit, Fate, Look, Poll, Trim
from .client import SimClient
from .stage import Asker, Stage

READ_COMMITTED = 1


class Consumer(Asker):
    """Reads its partitions from the start on, by both kinds of request, and commits where it stands as its group."""

    def __init__(
        self,
        name: str,
        stage: Stage,
        client: SimClient,
        partitions: Sequence[TopicPartition],
        isolation: int | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.name = name
        self._whole = whole
        """Whether it reads batches only, and so sees every marker."""
        self.positions = dict.fromkeys(partitions, 0)
        self.found: dict[TopicPartition, dict[int, bytes]] = {partition: {} for partition in partitions}
        self.markers: dict[TopicPartition, set[int]] = {partition: set() for partition in partitions}
        self.isolation = isolation
        """None where nothing is ever hidden, and either will do."""
        self._stage = stage
        self._client = client
        super().__init__()

    def _next(self) -> None:
        rng = self._stage.rng
        roll = rng.random()
        if self._stopped:
            self._asking = False
        elif roll < 0.35 and not self._whole:
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
        isolation = rng.choice((None, 0, 1)) if self.isolation is None else self.isolation
        request = ask.Consume(
            partition.topic, partition.partition, position, rng.choice((1, 3, 50)), isolation, wait_ms
        )

        def answered(response: Response | None) -> None:
            if isinstance(response, tell.Messages):
                found = tuple((message.offset, message.value) for message in response.messages)
                poll = Poll(begun, 0, self.name, partition, position, found, None, isolation == READ_COMMITTED)
                self._read(poll, found[-1][0] + 1 if found else position)
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
        isolation = rng.randint(0, 1) if self.isolation is None else self.isolation
        request = ask.FetchBatches(rng.choice((0, 100, 1500)), rng.choice((0, 1, 1, 600)), 8000, isolation, topics)
        self._client.ask(request, partial(self._fetched, begun, asked, isolation == READ_COMMITTED))

    def _fetched(
        self, begun: int, asked: dict[TopicPartition, int], committed: bool, response: Response | None
    ) -> None:
        if isinstance(response, tell.FetchedBatches):
            for topic in response.topics:
                for part in topic.partitions:
                    partition = TopicPartition(topic.topic, part.partition)
                    self._take(begun, partition, asked[partition], committed, part)
        self._go_on(response)

    def _take(
        self, begun: int, partition: TopicPartition, position: int, committed: bool, part: tell.PartitionFetched
    ) -> None:
        if part.error:
            self._stage.suspect(part.error_message or "")
            if part.log_start_offset > position:  # deleted on demand
                self.positions[partition] = max(self.positions[partition], part.log_start_offset)
            return
        records, markers, upto = taken_apart(part, committed=committed)
        found = tuple((record.offset, record.value or b"") for record in records if record.offset >= position)
        self.markers[partition].update(markers)
        bounds = (part.high_watermark, committed, part.last_stable_offset)
        self._read(Poll(begun, 0, self.name, partition, position, found, *bounds), max(position, upto))

    def _read(self, poll: Poll, upto: int) -> None:
        chronicle, partition = self._stage.chronicle, poll.partition
        chronicle.polls.append(poll._replace(ended=chronicle.tick()))
        self.found[partition].update(poll.found)
        self.positions[partition] = max(self.positions[partition], upto)

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


def taken_apart(part: tell.PartitionFetched, *, committed: bool) -> tuple[list[Record], list[int], int]:
    """What a client makes of whole batches: the records it is to show, the offsets of markers, and where to go on.

    A reader of committed data is told which producers have aborted, and where; it leaves out what they wrote from
    there up to the marker.
    """
    assert not isinstance(part.batches, tuple)
    aborted = sorted(((one.first_offset, one.producer_id) for one in part.aborted), reverse=True)
    aborting: set[int] = set()
    records: list[Record] = []
    markers: list[int] = []
    upto = 0
    for place, header in walk(part.batches):
        while aborted and aborted[-1][0] <= header.last_offset:
            aborting.add(aborted.pop()[1])
        if header.control:
            markers.append(header.base_offset)
            if not decode_marker(part.batches, place)[0]:
                aborting.discard(header.producer_id)
        elif not (committed and header.transactional and header.producer_id in aborting):
            records += decode(part.batches, place)
        upto = header.next_offset
    return records, markers, upto


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
    """Reads bounds and groups' offsets, and now and then deletes the oldest records of a partition."""

    def __init__(
        self, stage: Stage, client: SimClient, groups: Sequence[str], *, spares: Sequence[TopicPartition] = ()
    ) -> None:
        self._stage = stage
        self._client = client
        self._groups = groups
        self._spares = spares
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
            if self._stage.rng.random() < 0.1 and partition not in self._spares:
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

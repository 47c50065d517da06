"""A member of a group in the native protocol: it joins, is given partitions, reads them and commits, and goes again.

The leader spreads the partitions itself. A member that dies says nothing, and comes back under another name; one that
leaves says so. Offsets are committed by whoever asks, so a member that was replaced may still commit: the checkers
hold that the offset is the one of some commit not yet followed by another, not that it never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from rivven.model import TopicPartition
from rivven.wire import Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .chronicle import Fate, Look, Seat
from .stage import Pause, Scene, Story

SESSION_MS = 700
REBALANCE_MS = 1500
JOIN_AGAIN = 27


class Member:
    def __init__(self, name: str, scene: Scene, group: str, partitions: Sequence[TopicPartition]) -> None:
        self.name = name
        self.stopped = False
        self.seat: Seat | None = None
        """What it reads now; None while it has yet to be told."""
        self._scene = scene
        self._rng = scene.rng
        self._group = group
        self._partitions = partitions
        self._lives = 1
        self._positions: dict[TopicPartition, int] = {}
        self.calm = False
        """Whether it stays for good, so that the group can come to rest."""

    @property
    def _id(self) -> str:
        return f"{self.name}-{self._lives}"

    def story(self) -> Story[None]:
        while not self.stopped:
            if self.seat is None:
                yield from self._join()
            elif self._rng.random() < 0.05 and not self.calm:
                yield from self._go()
            else:
                yield from self._act(self.seat)
            yield Pause(10, 150)
        yield ask.LeaveGroup(self._group, self._id)

    def _go(self) -> Story[None]:
        if self._rng.random() < 0.5:
            yield ask.LeaveGroup(self._group, self._id)
        self._lives += 1
        self.seat = None
        yield Pause(0, 1500)

    def _join(self) -> Story[None]:
        topics = tuple(dict.fromkeys(partition.topic for partition in self._partitions))
        joined = yield ask.JoinGroup(self._group, self._id, SESSION_MS, REBALANCE_MS, "consumer", topics)
        if not isinstance(joined, tell.JoinGroupResult):
            return
        if joined.member_id != self._id:
            self._scene.wrong("membership", f"{self._id} joined and was called {joined.member_id}")
        assignments = self._spread(joined) if joined.leader_id == self._id else ()
        synced = yield ask.SyncGroup(self._group, joined.generation_id, self._id, assignments)
        if isinstance(synced, tell.SyncGroupResult):
            given = frozenset(
                TopicPartition(topic.topic, number) for topic in synced.assignments for number in topic.partitions
            )
            self.seat = Seat(self._group, joined.generation_id, self._id, given)
            self._scene.chronicle.seats.append(self.seat)
            self._positions = {}

    def _spread(self, joined: tell.JoinGroupResult) -> tuple[ask.MemberAssignment, ...]:
        members = sorted(member.member_id for member in joined.members)
        by_member: dict[str, dict[str, list[int]]] = {member: {} for member in members}
        for place, partition in enumerate(self._partitions):
            topics = by_member[members[place % len(members)]]
            topics.setdefault(partition.topic, []).append(partition.partition)
        return tuple(
            ask.MemberAssignment(
                member, tuple(ask.TopicAssignment(topic, tuple(numbers)) for topic, numbers in topics.items())
            )
            for member, topics in by_member.items()
        )

    def _act(self, seat: Seat) -> Story[None]:
        beat = yield ask.Heartbeat(self._group, seat.generation, self._id)
        refused = isinstance(beat, tell.Error) or (
            isinstance(beat, tell.HeartbeatResult) and beat.error_code == JOIN_AGAIN
        )
        if refused:
            self.seat = None
        elif seat.partitions:
            partition = self._rng.choice(sorted(seat.partitions))
            if partition not in self._positions:
                yield from self._look(partition)
            elif self._rng.random() < 0.5:
                yield from self._read(partition)
            else:
                yield from self._commit(partition)

    def _look(self, partition: TopicPartition) -> Story[None]:
        chronicle = self._scene.chronicle
        begun = chronicle.tick()
        response = yield ask.GetOffset(self._group, *partition)
        if isinstance(response, tell.CommittedOffset):
            chronicle.looks.append(Look(begun, chronicle.tick(), self._group, partition, response.offset))
            self._positions[partition] = response.offset or 0

    def _read(self, partition: TopicPartition) -> Story[None]:
        response = yield ask.Consume(*partition, self._positions[partition], 5)
        if isinstance(response, tell.Messages) and response.messages:
            self._positions[partition] = response.messages[-1].offset + 1

    def _commit(self, partition: TopicPartition) -> Story[None]:
        chronicle, offset = self._scene.chronicle, self._positions[partition]
        fact = chronicle.commit(self._group, partition, offset)
        request: Request = ask.CommitOffset(self._group, *partition, offset)
        response: Response | None = yield request
        if response is not None:
            chronicle.end(fact, Fate.REFUSED if isinstance(response, tell.Error) else Fate.DONE)

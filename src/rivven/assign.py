"""Who reads which partition: the assignors that members and coordinator share, and the bytes they say it in.

An assignor takes what every member subscribes to and how many partitions each topic has, and gives every partition of
a subscribed topic to exactly one member that subscribes to it. The same input gives the same output, whoever asks.
The sticky ones keep what members own as far as balance allows; the cooperative one, besides, gives nobody a partition
that another member still owns: its owner gives it up first, and the next rebalance hands it on.

`encode_subscription` and `encode_assignment` are the consumer protocol embedded in the classic group protocol, in
Kafka's public layout.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import cycle
from typing import NamedTuple

from .errors import Malformed
from .fields import FieldReader
from .model import TopicPartition

Assignment = dict[str, list[TopicPartition]]
"""Each member's partitions, in order."""


class Subscription(NamedTuple):
    """What a member tells its group's leader."""

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    """Of the ownership; where two claim the same partition, the later generation has it."""
    rack: str | None = None


Subscriptions = Mapping[str, Subscription]
Counts = Mapping[str, int]
"""How many partitions each topic has; one that is missing has none."""


# The assignors


def assign_range(subscriptions: Subscriptions, counts: Counts) -> Assignment:
    """Topic by topic, each member a run of neighbours; the first members get one more where it does not divide."""
    given: Assignment = {member: [] for member in sorted(subscriptions)}
    for topic, members in _members_by_topic(subscriptions).items():
        share, extra = divmod(counts.get(topic, 0), len(members))
        start = 0
        for index, member in enumerate(members):
            end = start + share + (index < extra)
            given[member] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return given


def assign_round_robin(subscriptions: Subscriptions, counts: Counts) -> Assignment:
    """All partitions in order, dealt round the members that subscribe to them."""
    given: Assignment = {member: [] for member in sorted(subscriptions)}
    by_topic = _members_by_topic(subscriptions)
    turns = cycle(given)
    for topic, members in by_topic.items():
        allowed = set(members)
        for number in range(counts.get(topic, 0)):
            member = next(one for one in turns if one in allowed)
            given[member].append(TopicPartition(topic, number))
    return given


def assign_sticky(subscriptions: Subscriptions, counts: Counts) -> Assignment:
    """As balanced as subscriptions allow, and as little moved as balance allows."""
    by_topic = _members_by_topic(subscriptions)
    held = _owned_once(subscriptions, counts)
    alike = all(len(members) == len(subscriptions) for members in by_topic.values())
    if alike and subscriptions:
        _cut_to_quota(held, sum(counts.get(topic, 0) for topic in by_topic))
    _fill(held, by_topic, counts)
    if not alike:
        _level(held, by_topic)
    return {member: sorted(partitions) for member, partitions in sorted(held.items())}


def assign_cooperative(subscriptions: Subscriptions, counts: Counts) -> Assignment:
    """The sticky assignment, without what another member has to give up first."""
    owners = {one: member for member, owned in _owned_once(subscriptions, counts).items() for one in owned}
    wanted = assign_sticky(subscriptions, counts)
    return {
        member: [one for one in partitions if owners.get(one, member) == member]
        for member, partitions in wanted.items()
    }


ASSIGNORS: dict[str, Callable[[Subscriptions, Counts], Assignment]] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_cooperative,
}
"""By the names under which clients vote for them."""


def _members_by_topic(subscriptions: Subscriptions) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in set(subscriptions[member].topics):
            found.setdefault(topic, []).append(member)
    return dict(sorted(found.items()))


def _owned_once(subscriptions: Subscriptions, counts: Counts) -> dict[str, set[TopicPartition]]:
    """What members own and may keep: it exists, they still want it, and nobody of a later generation claims it."""
    held: dict[str, set[TopicPartition]] = {member: set() for member in subscriptions}
    taken: set[TopicPartition] = set()
    for member in sorted(subscriptions, key=lambda one: (-subscriptions[one].generation, one)):
        subscription = subscriptions[member]
        topics = set(subscription.topics)
        for one in subscription.owned:
            if one not in taken and one.topic in topics and 0 <= one.partition < counts.get(one.topic, 0):
                held[member].add(one)
                taken.add(one)
    return held


def _cut_to_quota(held: dict[str, set[TopicPartition]], total: int) -> None:
    """All subscribe alike: nobody keeps more than an even share, and the odd ones stay where most is owned."""
    share, extra = divmod(total, len(held))
    for index, member in enumerate(sorted(held, key=lambda one: (-len(held[one]), one))):
        quota = share + (index < extra)
        held[member] = set(sorted(held[member])[:quota])


def _fill(held: dict[str, set[TopicPartition]], by_topic: dict[str, list[str]], counts: Counts) -> None:
    """Give what nobody has to whoever has least; topics with few takers first."""
    taken = set().union(*held.values()) if held else set()
    for topic in sorted(by_topic, key=lambda one: (len(by_topic[one]), one)):
        heap = [(len(held[member]), member) for member in by_topic[topic]]
        heapify(heap)
        for number in range(counts.get(topic, 0)):
            if (one := TopicPartition(topic, number)) not in taken:
                load, member = heap[0]
                held[member].add(one)
                heapreplace(heap, (load + 1, member))


def _level(held: dict[str, set[TopicPartition]], by_topic: dict[str, list[str]]) -> None:
    """Move partitions while somebody has two more than somebody else who would take one of them."""
    moved = True
    while moved:
        moved = False
        for topic, members in by_topic.items():
            while _level_topic(held, topic, members):
                moved = True


def _level_topic(held: dict[str, set[TopicPartition]], topic: str, members: list[str]) -> bool:
    takers = [(len(held[member]), member) for member in members]
    heapify(takers)
    load, taker = heappop(takers)
    for giver in sorted(members, key=lambda one: (-len(held[one]), one)):
        if len(held[giver]) - load < 2:
            return False
        given = sorted(one for one in held[giver] if one.topic == topic)
        if given:
            held[giver].remove(given[-1])
            held[taker].add(given[-1])
            return True
    return False


# The bytes

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 3


def encode_subscription(subscription: Subscription) -> bytes:
    parts = [_I16.pack(SUBSCRIPTION_VERSION), _I32.pack(len(subscription.topics))]
    parts += [_text(topic) for topic in subscription.topics]
    parts += [_bytes(subscription.user_data), _partitions(subscription.owned)]
    parts += [_I32.pack(subscription.generation)]
    parts += [_I16.pack(-1) if subscription.rack is None else _text(subscription.rack)]
    return b"".join(parts)


def decode_subscription(data: bytes) -> Subscription:
    """Fields that an older version does not have take their defaults, and what a newer one adds is passed over."""
    reader = _Reader(data, "subscription")
    version = reader.i16()
    topics = tuple(reader.text() for _ in range(reader.count()))
    user_data = reader.data()
    owned = reader.partitions() if version >= 1 else ()
    generation = reader.i32() if version >= 2 else -1
    rack = reader.text_or_none() if version >= 3 else None
    return Subscription(topics, user_data, owned, generation, rack)


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes = b"") -> bytes:
    return _I16.pack(ASSIGNMENT_VERSION) + _partitions(partitions) + _bytes(user_data)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions; empty bytes are an empty assignment, as a member without one is told."""
    if not data:
        return ()
    reader = _Reader(data, "assignment")
    reader.i16()
    return reader.partitions()


def _text(text: str) -> bytes:
    data = text.encode()
    return _I16.pack(len(data)) + data


def _bytes(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    parts = [_I32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += [_text(topic), _I32.pack(len(numbers)), struct.pack(f">{len(numbers)}i", *numbers)]
    return b"".join(parts)


class _Reader(FieldReader):
    """Takes fields off bytes that a client made, and says what is wrong with them."""

    def count(self) -> int:
        count = self.i32()
        if not -1 <= count <= len(self._data):
            raise Malformed(what=self._what, reason=f"{count} items cannot be in {len(self._data)} bytes")
        return max(count, 0)

    def data(self) -> bytes:
        length = self.i32()
        return b"" if length == -1 else self.take(length)

    def text(self) -> str:
        return self.text_or_none() or ""

    def partitions(self) -> tuple[TopicPartition, ...]:
        found: list[TopicPartition] = []
        for _ in range(self.count()):
            topic = self.text()
            found += [TopicPartition(topic, self.i32()) for _ in range(self.count())]
        return tuple(found)

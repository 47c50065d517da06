"""The state of a consumer-protocol group as one immutable value: how it changes, and how a change is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rivven.model import TopicPartition

from .group_log import (
    CONSUMER_GROUP_KEY,
    CONSUMER_MEMBER_KEY,
    CURRENT_MEMBER_KEY,
    TARGET_EPOCH_KEY,
    TARGET_MEMBER_KEY,
    KeptClassic,
    KeptConsumer,
    KeptConsumerGroup,
    KeptCurrent,
    KeptTarget,
    KeptTargetEpoch,
    Log,
    Parts,
    Standing,
    decode_group_key,
    decode_json,
    encode_json,
    group_key,
    key_version,
)
from .group_values import ConsumerHeartbeat
from .members import Protocols

Partitions = frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Classic:
    """What a member that speaks the classic protocol says besides."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True)
class Described:
    """A member as it described itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignor: str | None = None
    classic: Classic | None = None
    """None for a member that speaks the consumer protocol."""

    def updated(self, request: ConsumerHeartbeat) -> Described:
        """What the heartbeat leaves out stays as it was. Whoever sends one speaks the consumer protocol."""
        said = replace(self, classic=None)
        if request.client_id or request.client_host:
            said = replace(said, client_id=request.client_id, client_host=request.client_host)
        if request.rack_id is not None:
            said = replace(said, rack_id=request.rack_id)
        if request.rebalance_timeout_ms >= 0:
            said = replace(said, rebalance_timeout_ms=request.rebalance_timeout_ms)
        if request.topics is not None:
            said = replace(said, topics=tuple(sorted(set(request.topics))))
        if request.pattern is not None:
            said = replace(said, pattern=request.pattern or None)
        if request.assignor is not None:
            said = replace(said, assignor=request.assignor)
        return self if said == self else said

    @property
    def subscription(self) -> tuple[tuple[str, ...], str | None, str | None]:
        return self.topics, self.pattern, self.assignor


@dataclass(frozen=True, slots=True)
class Current:
    """What a member has, and what it has still to give up."""

    epoch: int = 0
    previous_epoch: int = 0
    standing: Standing = Standing.STABLE
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()

    def settled(self, target_epoch: int) -> bool:
        return self.standing is Standing.STABLE and self.epoch == target_epoch

    def owning_nothing(self) -> Current:
        """The member has let go of all it held; what it is assigned waits for it, and perhaps more by now."""
        return replace(self, standing=Standing.UNRELEASED, revoking=frozenset())


def reconciled(
    current: Current, target: Partitions, free: Partitions, epoch: int, owned: Partitions | None
) -> Current:
    """One step of a member towards its target; `owned` is what it says it holds, None where it does not say.

    `free` is that part of the target which no other member holds.
    """
    unrevoked = current.standing is Standing.UNREVOKED
    if unrevoked and (owned is None or owned & current.revoking):
        return current
    if not unrevoked and current.settled(epoch):
        return current
    keep, revoke = current.assigned & target, current.assigned - target
    if revoke and (owned is None or owned & revoke):
        return replace(current, standing=Standing.UNREVOKED, assigned=keep, revoking=revoke)
    assigned = keep | (target & free)
    standing = Standing.STABLE if assigned == target else Standing.UNRELEASED
    previous = current.epoch if current.epoch != epoch else current.previous_epoch
    return Current(epoch, previous, standing, assigned)


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    said: Described
    current: Current


@dataclass(frozen=True, slots=True)
class ConsumerState:
    epoch: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """The subscribed topics as they were when this epoch began."""
    target_epoch: int = 0
    target: dict[str, Partitions] = field(default_factory=dict)
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    emptied_ms: int = 0
    """When a member last went; offsets of a group without members expire some time after that."""

    def with_member(self, member_id: str, member: ConsumerMember) -> ConsumerState:
        return replace(self, members=self.members | {member_id: member})

    def without(self, member_id: str) -> ConsumerState:
        members = {one: member for one, member in self.members.items() if one != member_id}
        target = {one: partitions for one, partitions in self.target.items() if one != member_id}
        return replace(self, members=members, target=target)

    def renamed(self, old_id: str, new_id: str) -> ConsumerState:
        """A static member under its new id, with the partitions that waited for it."""
        old = self.members[old_id]
        current = replace(old.current.owning_nothing(), epoch=0, previous_epoch=0)
        target = self.target.get(old_id, frozenset())
        state = self.without(old_id).with_member(new_id, ConsumerMember(old.said, current))
        return replace(state, target=state.target | {new_id: target})

    def holder_of(self, instance_id: str) -> str | None:
        return next((one for one, member in self.members.items() if member.said.instance_id == instance_id), None)

    def holders(self) -> dict[TopicPartition, str]:
        """Who has each partition, also if only to give it up."""
        return {
            partition: member_id
            for member_id, member in self.members.items()
            for partition in member.current.assigned | member.current.revoking
        }

    def same_said(self, other: ConsumerState) -> bool:
        if self.members.keys() != other.members.keys():
            return False
        return all(other.members[one].said is member.said for one, member in self.members.items())

    def same_subscriptions(self, other: ConsumerState) -> bool:
        """Whether as many members want the same as before; a static member's new id makes no difference."""
        return _subscriptions(self) == _subscriptions(other)


def _subscriptions(state: ConsumerState) -> list[tuple[str, object]]:
    return sorted(
        (
            (member.said.instance_id or member_id, member.said.subscription)
            for member_id, member in state.members.items()
        ),
        key=repr,
    )


# In the log


def difference(group: str, old: ConsumerState, new: ConsumerState) -> Log:
    """The records that make the new state of the old one."""
    records: list[tuple[bytes, bytes | None]] = []
    if (old.epoch, old.counts) != (new.epoch, new.counts):
        kept = KeptConsumerGroup(new.epoch, new.counts, new.emptied_ms)
        records.append((group_key(CONSUMER_GROUP_KEY, group), encode_json(kept)))
    for member_id in sorted(old.members.keys() - new.members.keys()):
        records += _gone(group, member_id)
    for member_id, member in new.members.items():
        before = old.members.get(member_id)
        if before is None or before.said != member.said:
            key = group_key(CONSUMER_MEMBER_KEY, group, member_id)
            records.append((key, encode_json(_kept_said(member.said))))
        if before is None or before.current != member.current:
            key = group_key(CURRENT_MEMBER_KEY, group, member_id)
            records.append((key, encode_json(_kept_current(member.current))))
    for member_id, target in new.target.items():
        if old.target.get(member_id) != target:
            key = group_key(TARGET_MEMBER_KEY, group, member_id)
            records.append((key, encode_json(KeptTarget(to_parts(target)))))
    if old.target_epoch != new.target_epoch:
        records.append((group_key(TARGET_EPOCH_KEY, group), encode_json(KeptTargetEpoch(new.target_epoch))))
    return tuple(records)


def tombstones(group: str, state: ConsumerState) -> Log:
    records = [record for member_id in state.members for record in _gone(group, member_id)]
    records += [(group_key(version, group), None) for version in (TARGET_EPOCH_KEY, CONSUMER_GROUP_KEY)]
    return tuple(records)


def _gone(group: str, member_id: str) -> list[tuple[bytes, bytes | None]]:
    versions = (CURRENT_MEMBER_KEY, TARGET_MEMBER_KEY, CONSUMER_MEMBER_KEY)
    return [(group_key(version, group, member_id), None) for version in versions]


def _kept_said(said: Described) -> KeptConsumer:
    names = (said.instance_id, said.rack_id, said.client_id, said.client_host, said.rebalance_timeout_ms)
    classic = None
    if said.classic is not None:
        classic = KeptClassic(said.classic.session_timeout_ms, list(said.classic.protocols))
    return KeptConsumer(*names, list(said.topics), said.pattern, said.assignor, classic)


def _kept_current(current: Current) -> KeptCurrent:
    epochs = (current.epoch, current.previous_epoch, current.standing)
    return KeptCurrent(*epochs, to_parts(current.assigned), to_parts(current.revoking))


class Recalled:
    """A group as it comes back from the log, record by record; the order of keys does not matter."""

    def __init__(self) -> None:
        self._group: KeptConsumerGroup | None = None
        self._target_epoch = 0
        self._said: dict[str, Described] = {}
        self._current: dict[str, Current] = {}
        self._target: dict[str, Partitions] = {}

    def take(self, key: bytes, value: bytes | None) -> None:
        version = key_version(key)
        _, member_id = decode_group_key(key)
        if version == CONSUMER_GROUP_KEY:
            self._group = None if value is None else decode_json(value, KeptConsumerGroup)
        elif version == TARGET_EPOCH_KEY:
            self._target_epoch = 0 if value is None else decode_json(value, KeptTargetEpoch).epoch
        elif version == CONSUMER_MEMBER_KEY:
            self._said.pop(member_id, None)
            if value is not None:
                self._said[member_id] = _to_said(decode_json(value, KeptConsumer))
        elif version == CURRENT_MEMBER_KEY:
            self._current.pop(member_id, None)
            if value is not None:
                self._current[member_id] = _to_current(decode_json(value, KeptCurrent))
        elif version == TARGET_MEMBER_KEY:
            self._target.pop(member_id, None)
            if value is not None:
                self._target[member_id] = from_parts(decode_json(value, KeptTarget).partitions)

    def state(self) -> ConsumerState | None:
        if self._group is None:
            return None
        members = {one: ConsumerMember(said, self._current.get(one, Current())) for one, said in self._said.items()}
        target = {one: partitions for one, partitions in self._target.items() if one in members}
        group = self._group
        return ConsumerState(group.epoch, group.counts, self._target_epoch, target, members, group.emptied_ms)


def _to_said(kept: KeptConsumer) -> Described:
    names = (kept.instance_id, kept.rack_id, kept.client_id, kept.client_host, kept.rebalance_timeout_ms)
    classic = None
    if kept.classic is not None:
        classic = Classic(kept.classic.session_timeout_ms, tuple(kept.classic.protocols))
    return Described(*names, tuple(kept.topics), kept.pattern, kept.assignor, classic)


def _to_current(kept: KeptCurrent) -> Current:
    epochs = (kept.epoch, kept.previous_epoch, kept.standing)
    return Current(*epochs, from_parts(kept.assigned), from_parts(kept.revoking))


def to_parts(partitions: Iterable[TopicPartition]) -> Parts:
    parts: Parts = {}
    for topic, number in sorted(partitions):
        parts.setdefault(topic, []).append(number)
    return parts


def from_parts(parts: Parts) -> Partitions:
    return frozenset(TopicPartition(topic, number) for topic, numbers in parts.items() for number in numbers)

"""A consumer group with members of the classic protocol in it: how a group changes its protocol while it is in use.

The first member that speaks the consumer protocol takes a classic group with it (`upgraded`): from then on the
coordinator assigns. Members that still speak the classic protocol are members like all others. Their generation is
their epoch, a join is their step towards the target, a sync fetches what they have, and a heartbeat sends them to
join again when there is a step to take. Nobody leads, so joins wait for nobody. Whoever joins without saying that it
owns something has let go of everything.

When the last member that speaks the consumer protocol is gone, those who stay are a classic group again (`becomes`),
and gather to find a leader.

Both ways are decided first and count once they are written: until then an upgraded group remembers what it `was`.
Invariant: a group with members has one that speaks the consumer protocol, as far as the log knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rivven import limits
from rivven.assign import Subscription, decode_assignment, decode_subscription, encode_assignment
from rivven.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentGroupProtocol,
    Malformed,
    MemberIdRequired,
    RebalanceInProgress,
    RivvenError,
    UnknownMember,
)
from rivven.model import TopicPartition

from .classic import CONSUMER, PENDING, ClassicGroup, group_records
from .consumer_group import REVOKE, Change, ConsumerGroup
from .consumer_state import Classic, ConsumerMember, ConsumerState, Current, Described, Partitions, difference
from .group_log import KeptGroup, Standing
from .group_values import (
    Alive,
    Answer,
    Commit,
    ConsumerHeartbeat,
    Effect,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Left,
    LeftMember,
    Persist,
    Phase,
    Sync,
    Synced,
)
from .members import Member, choose_protocol, new_member_id, protocols_bytes, shared_protocols
from .shared import SESSION, Shared

REJOIN, FETCH = "rejoin", "fetch"
"""The deadlines by which a classic member must have joined after it was told to, and synced after it joined."""


@dataclass
class MixedGroup(ConsumerGroup):
    was: ClassicGroup | None = None
    """The group before it was upgraded, until that is written."""
    becomes: ClassicGroup | None = None
    """The group after its last member of the consumer protocol has gone, once that is written."""
    pending: set[str] = field(default_factory=set)
    """Ids that were given out to classic members, who shall join with them."""

    # Requests of classic members

    def join(self, request: Join, reply_id: int, now_ms: int) -> list[Effect]:
        """Raises what a request is refused for; otherwise it is one step of the member, and nobody is waited for."""
        subscription = self._check_join(request)
        member_id, state = self._admit_classic(request, now_ms)
        member = state.members.get(member_id, ConsumerMember(Described(), Current()))
        state = state.with_member(member_id, replace(member, said=_described(request, subscription)))
        state = self._with_target(self._with_epoch(state))
        state = self._with_step(state, member_id, frozenset(subscription.owned))
        epoch, protocol = state.members[member_id].current.epoch, request.protocols[0][0]
        answer = Answer(reply_id, Joined(member_id, epoch, CONSUMER, protocol, leader=""))
        return self._move_to(Change(state, (answer,), member_id), now_ms)

    def sync(self, request: Sync, reply_id: int, now_ms: int) -> list[Effect]:
        member, classic = self._classic_member(request)
        protocol = classic.protocols[0][0]
        if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, protocol):
            reason = f"the member's protocol is {protocol!r} of type {CONSUMER!r}"
            raise InconsistentGroupProtocol(group=self.name, reason=reason)
        self._see(request.member_id, now_ms)
        self.shared.timers.clear((self.name, FETCH, request.member_id))
        # Whoever has something to give up has joined already, and hears now what it may keep.
        if member.current.epoch < self.state.epoch and member.current.standing is not Standing.UNREVOKED:
            raise self._send_to_join(request.member_id, now_ms)
        return [Answer(reply_id, Synced(CONSUMER, protocol, encode_assignment(member.current.assigned)))]

    def heartbeat(self, request: ConsumerHeartbeat | Heartbeat, reply_id: int, now_ms: int) -> list[Effect]:
        if isinstance(request, ConsumerHeartbeat):
            return super().heartbeat(request, reply_id, now_ms)
        member, _ = self._classic_member(request)
        self._see(request.member_id, now_ms)
        if self._has_a_step(request.member_id, member.current):
            raise self._send_to_join(request.member_id, now_ms)
        return [Answer(reply_id, Alive())]

    def leave(self, request: Leave, reply_id: int, now_ms: int) -> list[Effect]:
        """Raises nothing: each member hears by itself what it is refused for."""
        state, left = self.state, []
        for member_id, instance_id in request.members:
            try:
                if instance_id is None and member_id in self.pending:
                    self.pending.discard(member_id)
                else:
                    state = state.without(self._who_leaves(state, member_id, instance_id))
                left.append(LeftMember(member_id, instance_id))
            except RivvenError as error:
                left.append(LeftMember(member_id, instance_id, error))
        if state is not self.state:
            state = replace(state, epoch=state.epoch + 1, emptied_ms=now_ms)
        return self._move_to(Change(state, (Answer(reply_id, Left(tuple(left))),)), now_ms)

    def check_commit(self, request: Commit, now_ms: int) -> None:
        if request.instance_id is not None and request.member_id:
            self._check_instance(request.member_id, request.instance_id)
        super().check_commit(request, now_ms)

    def check_epoch(self, member_id: str, epoch: int) -> None:
        member = self.state.members.get(member_id)
        if member is not None and member.said.classic is not None and epoch != member.current.epoch:
            raise IllegalGeneration(group=self.name, present=member.current.epoch, given=epoch)
        super().check_epoch(member_id, epoch)

    # Time

    def on_timer(self, what: str, member_id: str, now_ms: int) -> list[Effect]:
        if what == PENDING:
            self.pending.discard(member_id)
            return []
        return super().on_timer(what, member_id, now_ms)

    def _see(self, member_id: str, now_ms: int) -> None:
        classic = self.state.members[member_id].said.classic
        if classic is None:
            super()._see(member_id, now_ms)
        else:
            self.shared.timers.set((self.name, SESSION, member_id), now_ms + classic.session_timeout_ms)

    def _send_to_join(self, member_id: str, now_ms: int) -> RebalanceInProgress:
        timers, name = self.shared.timers, (self.name, REJOIN, member_id)
        if not timers.has(name):
            timers.set(name, now_ms + self.state.members[member_id].said.rebalance_timeout_ms)
        return RebalanceInProgress(group=self.name)

    def _watch_joined(self, member_id: str, now_ms: int) -> None:
        said = self.state.members[member_id].said
        self.pending.discard(member_id)
        self._clear_timers(member_id, PENDING, REJOIN, FETCH)
        if said.classic is not None:
            self.shared.timers.set((self.name, FETCH, member_id), now_ms + said.rebalance_timeout_ms)

    # What has been written

    def _move_to(self, change: Change, now_ms: int) -> list[Effect]:
        if not _is_classic(change.state):
            return super()._move_to(change, now_ms)
        self._change = change
        records = group_records(self.name, _kept(self._members_after(change), self._generation(change), now_ms))
        return [Persist(self.shared.next_token(), self.name, self.tombstones() + records)]

    def persisted(self, now_ms: int) -> list[Effect]:
        assert self._change is not None, "nothing was being written"
        change, before = self._change, self.state
        if _is_classic(change.state):
            return self._downgrade(change, now_ms)
        effects = super().persisted(now_ms)
        for member_id in before.members.keys() - self.state.members.keys():
            self._clear_timers(member_id, REJOIN, FETCH)
        if change.seen is not None:
            self._watch_joined(change.seen, now_ms)
        if self.was is not None:
            effects = self.was.disband() + effects
            self.was = None
            for member_id in self.state.members:
                self._see(member_id, now_ms)
        return effects

    def _downgrade(self, change: Change, now_ms: int) -> list[Effect]:
        for member_id in self.state.members:
            self._clear_timers(member_id, SESSION, REVOKE, REJOIN, FETCH)
        members = self._members_after(change)
        self._change, self.becomes = None, ClassicGroup(self.name, self.shared)
        self.becomes.recall(_kept(members, self._generation(change), now_ms), now_ms)
        self.becomes.members = {member.member_id: member for member in members}
        return list(change.answers)

    def _generation(self, change: Change) -> int:
        """The present epoch, so that whoever has reached it is told to join and keeps what it has until then."""
        return max(self.state.epoch, *(member.current.epoch for member in change.state.members.values()))

    def _members_after(self, change: Change) -> list[Member]:
        return [_classic_again(member_id, member) for member_id, member in change.state.members.items()]

    def _clear_timers(self, member_id: str, *whats: str) -> None:
        for what in whats:
            self.shared.timers.clear((self.name, what, member_id))

    # Who asks

    def _check_join(self, request: Join) -> Subscription:
        if request.protocol_type != CONSUMER or not request.protocols:
            reason = f"it is of type {CONSUMER!r}, and a member must name its protocols"
            raise InconsistentGroupProtocol(group=self.name, reason=reason)
        others = [
            Member("", None, "", "", 0, 0, said.classic.protocols)
            for member_id, member in self.state.members.items()
            if (said := member.said).classic is not None
            and member_id != request.member_id
            and (request.instance_id is None or request.instance_id != said.instance_id)
        ]
        spoken = shared_protocols(others)
        if others and not any(name in spoken for name, _ in request.protocols):
            reason = f"none of the member's protocols is among {sorted(spoken)}"
            raise InconsistentGroupProtocol(group=self.name, reason=reason)
        held_bytes = sum(one.metadata_bytes for one in others)
        if held_bytes + protocols_bytes(request.protocols) > limits.GROUP_BYTES_MAX:
            raise GroupFull(group=self.name, what="the members' metadata", limit=limits.GROUP_BYTES_MAX)
        return _subscription(self.name, request.protocols[0][1])

    def _admit_classic(self, request: Join, now_ms: int) -> tuple[str, ConsumerState]:
        """The id of the member that joins, and the state in which it may have that id."""
        if request.instance_id is not None:
            return self._admit_classic_static(request, request.instance_id)
        if request.member_id in self.state.members:
            return request.member_id, self.state
        if request.member_id and request.member_id not in self.pending and not request.adopt_id:
            raise UnknownMember(group=self.name, member=request.member_id)
        self._check_room(request.member_id)
        member_id = request.member_id or new_member_id(request.client_id, self.shared.rng)
        if request.id_required and not request.member_id:
            self.pending.add(member_id)
            self.shared.timers.set((self.name, PENDING, member_id), now_ms + request.session_timeout_ms)
            raise MemberIdRequired(group=self.name, member=member_id)
        return member_id, self.state

    def _admit_classic_static(self, request: Join, instance_id: str) -> tuple[str, ConsumerState]:
        if request.member_id:
            self._check_instance(request.member_id, instance_id)
            return request.member_id, self.state
        member_id, holder = new_member_id(instance_id, self.shared.rng), self.state.holder_of(instance_id)
        if holder is not None:
            return member_id, self.state.renamed(holder, member_id)
        self._check_room(member_id)
        return member_id, self.state

    def _check_room(self, member_id: str) -> None:
        members_max = self.shared.config.members_max
        if member_id not in self.pending and len(self.state.members) + len(self.pending) >= members_max:
            raise GroupFull(group=self.name, what="one more member", limit=members_max)

    def _check_instance(self, member_id: str, instance_id: str) -> None:
        holder = self.state.holder_of(instance_id)
        if holder is None:
            raise UnknownMember(group=self.name, member=member_id)
        if holder != member_id:
            raise FencedInstance(group=self.name, instance=instance_id)

    def _classic_member(self, request: Sync | Heartbeat) -> tuple[ConsumerMember, Classic]:
        if request.instance_id is not None:
            self._check_instance(request.member_id, request.instance_id)
        member = self.state.members.get(request.member_id)
        if member is None or member.said.classic is None:
            raise UnknownMember(group=self.name, member=request.member_id)
        self.check_epoch(request.member_id, request.generation)
        return member, member.said.classic

    def _who_leaves(self, state: ConsumerState, member_id: str, instance_id: str | None) -> str:
        """Of the consumer protocol only static members go this way, when somebody removes them."""
        if instance_id is not None:
            holder = state.holder_of(instance_id)
            if holder is not None and member_id not in ("", holder):
                raise FencedInstance(group=self.name, instance=instance_id)
            member_id = holder or ""
        member = state.members.get(member_id)
        if member is None or (instance_id is None and member.said.classic is None):
            raise UnknownMember(group=self.name, member=member_id)
        return member_id

    def _has_a_step(self, member_id: str, current: Current) -> bool:
        """Whether a join would bring the member nearer to its target."""
        if current.epoch < self.state.epoch or current.standing is Standing.UNREVOKED:
            return True
        if current.standing is Standing.STABLE:
            return False
        holders = self.state.holders()
        return any(one not in holders for one in self.state.target.get(member_id, ()))


# Changing the protocol


def upgraded(group: ClassicGroup, shared: Shared) -> MixedGroup:
    """The classic group's members as those of a consumer group; raises if they say what we cannot read.

    The epoch is the generation, which the member that caused this will take one further.
    """
    if group.protocol_type != CONSUMER:
        raise InconsistentGroupProtocol(group=group.name, reason=f"it is of type {group.protocol_type!r}")
    said = {member.member_id: _subscription(group.name, _told(group, member)) for member in group.members.values()}
    held = _held(group, said)
    epoch = group.generation
    members = {
        member.member_id: ConsumerMember(
            _described(member, said[member.member_id]), Current(epoch, epoch, assigned=held[member.member_id])
        )
        for member in group.members.values()
    }
    state = ConsumerState(epoch, {}, epoch, held, members)
    also = group.tombstones() + difference(group.name, ConsumerState(), state)
    return MixedGroup(group.name, shared, state, also, was=group, pending=set(group.pending))


def _told(group: ClassicGroup, member: Member) -> bytes:
    return member.said(group.protocol) or member.protocols[0][1]


def _held(group: ClassicGroup, said: dict[str, Subscription]) -> dict[str, Partitions]:
    """What each member may be reading: what it was assigned, or says to own while nothing is assigned yet.

    A partition that two members claim is that of the later generation, or of the first to claim it.
    """
    claims: dict[str, tuple[int, Iterable[TopicPartition]]] = {}
    for member_id, member in group.members.items():
        if member.assignment or group.phase is Phase.STABLE:
            claims[member_id] = group.generation, _assignment(group.name, member.assignment)
        else:
            claims[member_id] = said[member_id].generation, said[member_id].owned
    held: dict[str, Partitions] = {}
    taken: Partitions = frozenset()
    for member_id in sorted(claims, key=lambda one: -claims[one][0]):
        held[member_id] = frozenset(claims[member_id][1]) - taken
        taken |= held[member_id]
    return held


def _assignment(group: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    try:
        return decode_assignment(assignment)
    except Malformed as error:
        raise InconsistentGroupProtocol(
            group=group, reason=f"a member's assignment is unreadable: {error}"
        ) from error


def _subscription(group: str, metadata: bytes) -> Subscription:
    try:
        found = decode_subscription(metadata)
    except Malformed as error:
        raise InconsistentGroupProtocol(
            group=group, reason=f"a member's subscription is unreadable: {error}"
        ) from error
    if len(found.topics) > limits.MEMBER_TOPICS_MAX:
        raise GroupFull(group=group, what="a member's topics", limit=limits.MEMBER_TOPICS_MAX)
    return found


def _described(told: Join | Member, subscription: Subscription) -> Described:
    names = (told.instance_id, subscription.rack, told.client_id, told.client_host, told.rebalance_timeout_ms)
    topics = tuple(sorted(set(subscription.topics)))
    return Described(*names, topics, classic=Classic(told.session_timeout_ms, told.protocols))


def _is_classic(state: ConsumerState) -> bool:
    """Whether there are members, and none of them speaks the consumer protocol."""
    return bool(state.members) and all(member.said.classic is not None for member in state.members.values())


def _classic_again(member_id: str, member: ConsumerMember) -> Member:
    said, classic = member.said, member.said.classic
    assert classic is not None, "those of the consumer protocol are gone"
    names = (member_id, said.instance_id, said.client_id, said.client_host)
    assignment = encode_assignment(member.current.assigned | member.current.revoking)
    return Member(*names, said.rebalance_timeout_ms, classic.session_timeout_ms, classic.protocols, assignment)


def _kept(members: list[Member], generation: int, now_ms: int) -> KeptGroup:
    """A group that has no leader yet, and gathers to find one."""
    protocol = choose_protocol(members)
    kept = tuple(member.kept(protocol, member.assignment) for member in members)
    return KeptGroup(CONSUMER, generation, protocol, None, now_ms, kept)

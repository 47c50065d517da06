"""A group of the classic protocol: its members gather, one of them assigns, all of them keep in touch.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance -> ...

Preparing is the barrier at which joins wait for one another: a new group for some time to let others come, an old one
until all its members are back or the longest rebalance timeout has passed. Then a generation begins, and its leader
is told who the others are. Completing is the wait for what the leader assigns.

A generation, an assignment and a static member's new id are decided here and count once they are in the log: no
member hears of one that a crash could take back, so no generation's number is ever used twice. While such a change is
being written the group stands still (`writing`), and its caller keeps what arrives meanwhile. What is not written is
only what members say again after a restart: that they are there, that they wait, that they left.

Invariants: a generation has one leader, who is a member; a member waits for at most one join and one sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rivven import limits
from rivven.assign import decode_subscription
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
from rivven.model import NO_PRODUCER

from .group_log import CLASSIC_KEY, NOT_ASSIGNED_MS, KeptGroup, Log, encode_group, group_key
from .group_values import (
    NO_GENERATION,
    Alive,
    Answer,
    Commit,
    DescribedGroup,
    Effect,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Left,
    LeftMember,
    ListedGroup,
    Persist,
    Phase,
    Sync,
    Synced,
)
from .members import Member, choose_protocol, new_member_id, protocols_bytes, shared_protocols
from .shared import SESSION, Shared

PENDING, BARRIER, SYNC = "pending", "barrier", "sync"
CONSUMER = "consumer"
"""The protocol type whose metadata we can read."""
RETRY_MS = 1_000
"""When to try again after a write failed that nobody asked for."""
REBALANCE_TIMEOUT_MS = 60_000
"""For a barrier at which nobody stands who could say how long."""


@dataclass(frozen=True, slots=True)
class Began:
    """All who came back are in a new generation, and wait for its leader."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """Nobody came back."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The leader has said who gets what."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A static member came back under a new id, with nothing else changed."""

    old_id: str
    new_id: str
    request: Join
    reply_id: int


Change = Began | Emptied | Assigned | Replaced


class ClassicGroup:
    def __init__(self, name: str, shared: Shared, generation: int = 0, also: Log = ()) -> None:
        self.name = name
        self.also = also
        """Goes into the log with the first change: it takes away what the group was before."""
        self.phase = Phase.EMPTY
        self.protocol_type = ""
        self.protocol: str | None = None
        self.generation = generation
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.kept: KeptGroup | None = None
        """What the log says; None before anything was written."""
        self._static: dict[str, str] = {}
        self._pending: set[str] = set()
        self._unsynced: set[str] = set()
        self._first_wait = False
        """Whether the barrier is that of a new group, and how much longer it may be held open."""
        self._hold_ms = 0
        self._came_since = False
        self._change: tuple[Change, KeptGroup] | None = None
        self._shared = shared

    # What it says of itself

    @property
    def writing(self) -> bool:
        return self._change is not None

    @property
    def pending(self) -> frozenset[str]:
        """The ids that were given out and have not joined yet."""
        return frozenset(self._pending)

    @property
    def forgettable(self) -> bool:
        """Nobody is here, nobody is expected, and the log knows nothing."""
        nobody = not self.members and not self._pending
        return nobody and self.kept is None and not self.also and not self.writing

    def describe(self) -> DescribedGroup:
        members = tuple(member.described(self.protocol) for member in self.members.values())
        names = (self.protocol_type, self.protocol or "", self.generation, self.leader or "")
        return DescribedGroup(self.name, self.phase, *names, members)

    def listed(self) -> ListedGroup:
        return ListedGroup(self.name, self.protocol_type, self.phase, "classic")

    @property
    def idle_since_ms(self) -> int:
        return self.kept.since_ms if self.kept is not None else 0

    def subscribed(self) -> set[str] | None:
        """The topics that members read; None where they do not say it in a way that we can read."""
        if not self.members:
            return set()
        if self.protocol_type != CONSUMER:
            return None
        try:
            said = [decode_subscription(member.said(self.protocol)) for member in self.members.values()]
        except Malformed:
            return None
        return {topic for subscription in said for topic in subscription.topics}

    def tombstones(self) -> Log:
        gone = group_records(self.name, None) if self.kept is not None else ()
        return self.also + gone

    # Requests

    def join(self, request: Join, reply_id: int, now_ms: int) -> list[Effect]:
        """Raises what a request is refused for; otherwise it is answered, or waits at the barrier."""
        self._check_protocols(request)
        if request.instance_id is not None:
            return self._join_static(request, request.instance_id, reply_id, now_ms)
        if request.member_id in self.members:
            return self._rejoin(self._member(request.member_id, None), request, reply_id, now_ms)
        if request.member_id and request.member_id not in self._pending and not request.adopt_id:
            raise UnknownMember(group=self.name, member=request.member_id)
        self._check_room(request)
        member_id = request.member_id or new_member_id(request.client_id, self._shared.rng)
        if request.id_required and not request.member_id:
            self._pending.add(member_id)
            self._set_timer(PENDING, member_id, now_ms + request.session_timeout_ms)
            raise MemberIdRequired(group=self.name, member=member_id)
        return self._add(member_id, request, reply_id, now_ms)

    def sync(self, request: Sync, reply_id: int, now_ms: int) -> list[Effect]:
        member = self._member_of_generation(request.member_id, request.instance_id, request.generation)
        self._check_sync(request)
        if self.phase is Phase.PREPARING:
            raise RebalanceInProgress(group=self.name)
        self._unsynced.discard(member.member_id)
        if self.phase is Phase.STABLE:
            self._see(member, now_ms)
            return [Answer(reply_id, self._synced(member))]
        kept = self._assigned(request, now_ms) if member.member_id == self.leader else None
        effects = self._let_go(member, RebalanceInProgress(group=self.name))
        member.syncing = reply_id
        return effects if kept is None else effects + self._write(Assigned(), kept)

    def heartbeat(self, request: Heartbeat, reply_id: int, now_ms: int) -> list[Effect]:
        member = self._member_of_generation(request.member_id, request.instance_id, request.generation)
        self._see(member, now_ms)
        if self.phase is Phase.PREPARING:
            raise RebalanceInProgress(group=self.name)
        return [Answer(reply_id, Alive())]

    def leave(self, request: Leave, reply_id: int, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        left: list[LeftMember] = []
        for member_id, instance_id in request.members:
            try:
                effects += self._leave_one(member_id, instance_id)
                left.append(LeftMember(member_id, instance_id))
            except RivvenError as error:
                left.append(LeftMember(member_id, instance_id, error))
        effects.append(Answer(reply_id, Left(tuple(left))))
        return effects + self._after_departure(now_ms) if any(one.error is None for one in left) else effects

    def check_commit(self, request: Commit, now_ms: int) -> None:
        """Raises what a commit is refused for; one that is welcome counts as a sign of life."""
        in_transaction = request.producer_id != NO_PRODUCER
        nobody_named = request.generation == NO_GENERATION and not request.member_id
        if nobody_named and (in_transaction or not self.members):
            return
        member = self._member(request.member_id, request.instance_id)
        if request.generation != self.generation:
            raise IllegalGeneration(group=self.name, present=self.generation, given=request.generation)
        if self.phase is Phase.COMPLETING:
            raise RebalanceInProgress(group=self.name)
        self._see(member, now_ms)

    # Time

    def on_timer(self, what: str, member_id: str, now_ms: int) -> list[Effect]:
        if what == SESSION and (member := self.members.get(member_id)) is not None:
            if member.joining is None and member.syncing is None:
                return self._expel([member], now_ms)
        elif what == PENDING and member_id in self._pending:
            self._pending.discard(member_id)
            return self._after_departure(now_ms)
        elif what == BARRIER and self.phase is Phase.PREPARING:
            return self._hold_or_complete(now_ms)
        elif what == SYNC and self.phase in (Phase.COMPLETING, Phase.STABLE):
            return self._expel([self.members[one] for one in sorted(self._unsynced)], now_ms)
        return []

    def recall(self, kept: KeptGroup, now_ms: int) -> None:
        """Stand where the log says; every member has its whole session to show that it is still there."""
        self.kept = kept
        self.protocol_type, self.generation = kept.protocol_type, kept.generation
        self.protocol, self.leader = kept.protocol, kept.leader
        self.members = {one.member_id: Member.from_kept(one, kept.protocol or "") for one in kept.members}
        self._static = {one.instance_id: one.member_id for one in kept.members if one.instance_id is not None}
        if kept.members and kept.leader is None:
            self.phase = Phase.PREPARING
            self._set_timer(BARRIER, "", now_ms + self._rebalance_timeout_ms())
        elif kept.members and kept.since_ms == NOT_ASSIGNED_MS:
            self.phase = Phase.COMPLETING
            self._unsynced = set(self.members)
            self._set_timer(SYNC, "", now_ms + self._rebalance_timeout_ms())
        elif kept.members:
            self.phase = Phase.STABLE
        for member in self.members.values():
            self._see(member, now_ms)

    def disband(self) -> list[Effect]:
        """The group goes on in the consumer protocol: whoever waits is sent to join it there."""
        self._clear_timer(BARRIER, "")
        self._clear_timer(SYNC, "")
        error = RebalanceInProgress(group=self.name)
        return [effect for member in self.members.values() for effect in self._let_go(member, error)]

    # What has been written

    def persisted(self, now_ms: int) -> list[Effect]:
        assert self._change is not None, "nothing was being written"
        change, self.kept = self._change
        self._change, self.also = None, ()
        match change:
            case Began():
                return self._begin(self.kept, now_ms)
            case Emptied():
                return self._empty(self.kept)
            case Assigned():
                return self._assign(self.kept, now_ms)
            case Replaced():
                return self._replace(change, now_ms)
            case _:
                assert_never(change)

    def failed(self, error: RivvenError, now_ms: int) -> list[Effect]:
        """The change did not happen: whoever waits for it hears why, and may ask again."""
        assert self._change is not None, "nothing was being written"
        change, _ = self._change
        self._change = None
        match change:
            case Began() | Assigned():
                if self.phase is Phase.PREPARING:
                    self._set_timer(BARRIER, "", now_ms + self._rebalance_timeout_ms())
                return [effect for member in self.members.values() for effect in self._let_go(member, error, now_ms)]
            case Emptied():
                self._set_timer(BARRIER, "", now_ms + RETRY_MS)
                return []
            case Replaced():
                return [Answer(change.reply_id, error)]
            case _:
                assert_never(change)

    def _write(self, change: Change, kept: KeptGroup) -> list[Effect]:
        assert self._change is None, "one change at a time"
        self._change = change, kept
        return [Persist(self._shared.next_token(), self.name, self.also + group_records(self.name, kept))]

    # Joining

    def _check_protocols(self, request: Join) -> None:
        if not request.protocol_type or not request.protocols:
            raise InconsistentGroupProtocol(group=self.name, reason="a member must name its protocols and their type")
        others = [one for one in self.members.values() if one.member_id != request.member_id]
        others = [one for one in others if request.instance_id is None or one.instance_id != request.instance_id]
        if others and self.protocol_type != request.protocol_type:
            reason = f"it is of type {self.protocol_type!r}, not {request.protocol_type!r}"
            raise InconsistentGroupProtocol(group=self.name, reason=reason)
        spoken = shared_protocols(others)
        if others and not any(name in spoken for name, _ in request.protocols):
            reason = f"none of the member's protocols is among {sorted(spoken)}"
            raise InconsistentGroupProtocol(group=self.name, reason=reason)

    def _check_room(self, request: Join) -> None:
        members_max = self._shared.config.members_max
        if request.member_id not in self._pending and len(self.members) + len(self._pending) >= members_max:
            raise GroupFull(group=self.name, what="one more member", limit=members_max)
        self._check_bytes(protocols_bytes(request.protocols))

    def _check_bytes(self, more_bytes: int) -> None:
        held_bytes = sum(member.metadata_bytes for member in self.members.values())
        if held_bytes + more_bytes > limits.GROUP_BYTES_MAX:
            raise GroupFull(group=self.name, what="the members' metadata", limit=limits.GROUP_BYTES_MAX)

    def _join_static(self, request: Join, instance_id: str, reply_id: int, now_ms: int) -> list[Effect]:
        holder = self._static.get(instance_id)
        if request.member_id:
            member = self._member(request.member_id, instance_id)
            return self._rejoin(member, request, reply_id, now_ms)
        new_id = new_member_id(instance_id, self._shared.rng)
        if holder is None:
            self._check_room(request)
            return self._add(new_id, request, reply_id, now_ms)
        return self._take_over(self.members[holder], new_id, request, reply_id, now_ms)

    def _take_over(self, old: Member, new_id: str, request: Join, reply_id: int, now_ms: int) -> list[Effect]:
        """A static member came back. If it says what it said before, nobody else needs to know."""
        self._check_bytes(protocols_bytes(request.protocols) - old.metadata_bytes)
        change = Replaced(old.member_id, new_id, request, reply_id)
        if self.phase is Phase.STABLE and old.says_the_same(request, self.protocol):
            assert self.kept is not None, "a stable group is in the log"
            return self._write(change, renamed(self.kept, old.member_id, new_id, request))
        effects = self._rename(change)
        return effects + self._rejoin(self.members[new_id], request, reply_id, now_ms, anew=True)

    def _add(self, member_id: str, request: Join, reply_id: int, now_ms: int) -> list[Effect]:
        self._pending.discard(member_id)
        self._clear_timer(PENDING, member_id)
        if not self.members:
            self.protocol_type = request.protocol_type
        member = self.members[member_id] = Member.from_join(member_id, request)
        if request.instance_id is not None:
            self._static[request.instance_id] = member_id
        member.joining = reply_id, request
        self._came_since = True
        return self._prepare(now_ms)

    def _rejoin(
        self, member: Member, request: Join, reply_id: int, now_ms: int, *, anew: bool = False
    ) -> list[Effect]:
        same = not anew and member.says_the_same(request, self.protocol)
        leads = member.member_id == self.leader
        self._see(member, now_ms)
        if same and (self.phase is Phase.COMPLETING or (self.phase is Phase.STABLE and not leads)):
            return [Answer(reply_id, self._joined(member, request))]
        self._check_bytes(protocols_bytes(request.protocols) - member.metadata_bytes)
        member.update(request)
        if len(self.members) == 1:
            self.protocol_type = request.protocol_type
        effects = self._let_go(member, RebalanceInProgress(group=self.name))
        member.joining = reply_id, request
        return effects + self._prepare(now_ms)

    # The barrier

    def _prepare(self, now_ms: int) -> list[Effect]:
        """Open the barrier, or look whether all are there who are waited for."""
        effects: list[Effect] = []
        if self.phase is Phase.PREPARING:
            return [] if self._first_wait else self._complete_if_all_joined(now_ms)
        for member in self.members.values():
            if member.syncing is not None:
                effects += self._let_go(member, RebalanceInProgress(group=self.name), now_ms)
        self._unsynced.clear()
        self._clear_timer(SYNC, "")
        self._first_wait = self.phase is Phase.EMPTY
        self.phase = Phase.PREPARING
        if self._first_wait:
            return effects + self._first_hold(now_ms)
        self._set_timer(BARRIER, "", now_ms + self._rebalance_timeout_ms())
        return effects + self._complete_if_all_joined(now_ms)

    def _first_hold(self, now_ms: int) -> list[Effect]:
        joining = [member.joining[1].initial_delay_ms for member in self.members.values() if member.joining]
        given = next(iter(joining), None)
        delay_ms = self._shared.config.initial_rebalance_delay_ms if given is None else given
        self._hold_ms = self._rebalance_timeout_ms()
        return self._hold(delay_ms, now_ms)

    def _hold(self, delay_ms: int, now_ms: int) -> list[Effect]:
        delay_ms = min(delay_ms, self._hold_ms)
        if delay_ms <= 0:
            return self._complete(now_ms)
        self._hold_ms -= delay_ms
        self._came_since = False
        self._set_timer(BARRIER, "", now_ms + delay_ms)
        return []

    def _hold_or_complete(self, now_ms: int) -> list[Effect]:
        if self._first_wait and self._came_since and self._hold_ms > 0:
            return self._hold(self._shared.config.initial_rebalance_delay_ms, now_ms)
        return self._complete(now_ms)

    def _complete_if_all_joined(self, now_ms: int) -> list[Effect]:
        if self._pending or any(member.joining is None for member in self.members.values()):
            return []
        return self._complete(now_ms)

    def _complete(self, now_ms: int) -> list[Effect]:
        """Begin a generation with those who are there. A static member may be away for as long as its session."""
        self._first_wait = False
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._drop(member)
        there = [member for member in self.members.values() if member.joining is not None]
        if self.members and not there:
            self._set_timer(BARRIER, "", now_ms + self._rebalance_timeout_ms())
            return []
        generation = self.generation + 1
        if not there:
            return self._write(Emptied(), KeptGroup(self.protocol_type, generation, None, None, now_ms))
        protocol = choose_protocol(list(self.members.values()))
        leader = self.leader if any(one.member_id == self.leader for one in there) else there[0].member_id
        members = tuple(member.kept(protocol, b"") for member in self.members.values())
        kept = KeptGroup(self.protocol_type, generation, protocol, leader, NOT_ASSIGNED_MS, members)
        return self._write(Began(), kept)

    def _begin(self, kept: KeptGroup, now_ms: int) -> list[Effect]:
        self.phase = Phase.COMPLETING
        self.generation, self.protocol, self.leader = kept.generation, kept.protocol, kept.leader
        self._clear_timer(BARRIER, "")
        effects: list[Effect] = []
        for member in self.members.values():
            member.assignment = b""
            if member.joining is not None:
                reply_id, request = member.joining
                member.joining = None
                effects.append(Answer(reply_id, self._joined(member, request)))
                self._unsynced.add(member.member_id)
                self._see(member, now_ms)
        self._set_timer(SYNC, "", now_ms + self._rebalance_timeout_ms())
        return effects

    def _empty(self, kept: KeptGroup) -> list[Effect]:
        self.phase = Phase.EMPTY
        self.generation, self.protocol, self.leader = kept.generation, None, None
        self._clear_timer(BARRIER, "")
        return []

    def _joined(self, member: Member, request: Join) -> Joined:
        assert self.protocol is not None, "a generation has a protocol"
        assert self.leader is not None, "a generation has a leader"
        told = member.member_id == self.leader or request.members_to_all
        members = tuple(one.joined(self.protocol) for one in self.members.values()) if told else ()
        return Joined(member.member_id, self.generation, self.protocol_type, self.protocol, self.leader, members)

    # Assigning

    def _check_sync(self, request: Sync) -> None:
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocol(group=self.name, reason=f"its type is {self.protocol_type!r}")
        if request.protocol is not None and request.protocol != self.protocol:
            raise InconsistentGroupProtocol(group=self.name, reason=f"its protocol is {self.protocol!r}")
        strangers = [member_id for member_id, _ in request.assignments if member_id not in self.members]
        if request.known_members_only and strangers:
            reason = f"assignment references unknown member '{strangers[0]}'"
            raise InconsistentGroupProtocol(group=self.name, reason=reason)

    def _assigned(self, request: Sync, now_ms: int) -> KeptGroup:
        self._check_bytes(sum(len(assignment) for _, assignment in request.assignments))
        assert self.protocol is not None, "a generation has a protocol"
        given = dict(request.assignments)
        members = tuple(one.kept(self.protocol, given.get(one.member_id, b"")) for one in self.members.values())
        return KeptGroup(self.protocol_type, self.generation, self.protocol, self.leader, now_ms, members)

    def _assign(self, kept: KeptGroup, now_ms: int) -> list[Effect]:
        self.phase = Phase.STABLE
        effects: list[Effect] = []
        for one in kept.members:
            member = self.members[one.member_id]
            member.assignment = one.assignment
            if member.syncing is not None:
                effects.append(Answer(member.syncing, self._synced(member)))
                member.syncing = None
                self._see(member, now_ms)
        return effects

    def _synced(self, member: Member) -> Synced:
        return Synced(self.protocol_type, self.protocol or "", member.assignment)

    # Static members

    def _replace(self, change: Replaced, now_ms: int) -> list[Effect]:
        led = self.leader == change.old_id
        effects = self._rename(change)
        member = self.members[change.new_id]
        member.update(change.request)
        self._see(member, now_ms)
        answer = self._joined(member, change.request)
        if led and change.request.can_skip_assignment:
            skip = Joined(*_fields_of(answer), answer.members, skip_assignment=True)
            return [*effects, Answer(change.reply_id, skip)]
        if led:
            # An older client would assign anew if it were told that it leads; as a follower it just fetches its part.
            answer = Joined(answer.member_id, *_fields_of(answer)[1:4], change.old_id)
        return [*effects, Answer(change.reply_id, answer)]

    def _rename(self, change: Replaced) -> list[Effect]:
        """Put the member under its new id, in its old place; whoever still waits under the old one is fenced."""
        old = self.members[change.old_id]
        assert old.instance_id is not None, "only a static member has a place"
        effects = self._let_go(old, FencedInstance(group=self.name, instance=old.instance_id))
        self._clear_timer(SESSION, old.member_id)
        self.members = {
            change.new_id if member_id == change.old_id else member_id: member
            for member_id, member in self.members.items()
        }
        old.member_id = self._static[old.instance_id] = change.new_id
        if self.leader == change.old_id:
            self.leader = change.new_id
        if change.old_id in self._unsynced:
            self._unsynced.remove(change.old_id)
            self._unsynced.add(change.new_id)
        return effects

    # Departures

    def _leave_one(self, member_id: str, instance_id: str | None) -> list[Effect]:
        if instance_id is None and member_id in self._pending:
            self._pending.discard(member_id)
            self._clear_timer(PENDING, member_id)
            return []
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        member = self._member(member_id, instance_id)
        effects = self._let_go(member, UnknownMember(group=self.name, member=member_id))
        self._drop(member)
        return effects

    def _expel(self, members: list[Member], now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for member in members:
            effects += self._let_go(member, UnknownMember(group=self.name, member=member.member_id))
            self._drop(member)
        return effects + self._after_departure(now_ms) if members else effects

    def _drop(self, member: Member) -> None:
        assert member.joining is None, "whoever waits is answered first"
        assert member.syncing is None, "whoever waits is answered first"
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._unsynced.discard(member.member_id)
        self._clear_timer(SESSION, member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _after_departure(self, now_ms: int) -> list[Effect]:
        """Those who stay share what is left; at a new group's barrier there is nothing to share yet."""
        if self.phase is Phase.EMPTY or (self._first_wait and self.members):
            return []
        if self._first_wait:
            return self._complete(now_ms)
        return self._prepare(now_ms)

    # Members

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None:
            holder = self._static.get(instance_id)
            if holder is None:
                raise UnknownMember(group=self.name, member=member_id)
            if holder != member_id:
                raise FencedInstance(group=self.name, instance=instance_id)
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMember(group=self.name, member=member_id)
        return member

    def _member_of_generation(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        member = self._member(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGeneration(group=self.name, present=self.generation, given=generation)
        return member

    def _let_go(self, member: Member, error: RivvenError, now_ms: int | None = None) -> list[Effect]:
        """Answer what the member waits for; from then on its session counts again."""
        waiting = [] if member.joining is None else [member.joining[0]]
        waiting += [] if member.syncing is None else [member.syncing]
        member.joining = member.syncing = None
        if waiting and now_ms is not None:
            self._see(member, now_ms)
        return [Answer(reply_id, error) for reply_id in waiting]

    def _see(self, member: Member, now_ms: int) -> None:
        self._set_timer(SESSION, member.member_id, now_ms + member.session_timeout_ms)

    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=REBALANCE_TIMEOUT_MS)

    def _set_timer(self, what: str, member_id: str, due_ms: int) -> None:
        self._shared.timers.set((self.name, what, member_id), due_ms)

    def _clear_timer(self, what: str, member_id: str) -> None:
        self._shared.timers.clear((self.name, what, member_id))


def group_records(name: str, kept: KeptGroup | None) -> Log:
    return ((group_key(CLASSIC_KEY, name), None if kept is None else encode_group(kept)),)


def renamed(kept: KeptGroup, old_id: str, new_id: str, request: Join) -> KeptGroup:
    """The same generation, with a static member under its new id."""
    told = Member.from_join(new_id, request)
    members = tuple(
        told.kept(kept.protocol or "", one.assignment) if one.member_id == old_id else one for one in kept.members
    )
    leader = new_id if kept.leader == old_id else kept.leader
    return KeptGroup(kept.protocol_type, kept.generation, kept.protocol, leader, kept.since_ms, members)


def _fields_of(joined: Joined) -> tuple[str, int, str, str, str]:
    return joined.member_id, joined.generation, joined.protocol_type, joined.protocol, joined.leader

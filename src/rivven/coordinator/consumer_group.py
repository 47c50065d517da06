"""A group of the consumer protocol (KIP-848): the coordinator assigns, and one heartbeat says all.

Three epochs. The group's goes up whenever its members, what they subscribe to or those topics change. The target
assignment is made for a group epoch. A member's own epoch says which target it has reached, and it gets there by
itself: it first gives up what the target takes from it (UNREVOKED), then gets what the target gives it as soon as
whoever had it has let go (UNRELEASED until then), without anybody else having to stop.

The state is one immutable value. A heartbeat decides on the next one; the difference between the two is what is
written, and only when it is durable does the next one count and the heartbeat get its answer.

Invariant: a partition is held by at most one member, counting what a member has still to give up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from rivven import limits
from rivven.assign import Subscription, assign_range, assign_sticky
from rivven.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    InvalidGroupRequest,
    RivvenError,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from rivven.model import NO_PRODUCER

from .consumer_state import (
    ConsumerMember,
    ConsumerState,
    Current,
    Described,
    Partitions,
    difference,
    reconciled,
    tombstones,
)
from .group_log import Log, Standing
from .group_values import (
    Answer,
    Commit,
    ConsumerAlive,
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
    Effect,
    ListedGroup,
    Persist,
    Phase,
)
from .members import new_member_id
from .shared import SESSION, Shared

REVOKE = "revoke"
JOINING, LEAVING, AWAY = 0, -1, -2
"""Member epochs that say something else: I am new, I go, I (a static member) shall be back."""
ASSIGNORS = {"uniform": assign_sticky, "range": assign_range}
DEFAULT_ASSIGNOR = "uniform"


@dataclass(frozen=True, slots=True)
class Change:
    """What is being written: the next state, and what is answered when it counts."""

    state: ConsumerState
    answers: tuple[Answer, ...] = ()
    seen: str | None = None
    """The member whose heartbeat this is."""


@dataclass(slots=True)
class ConsumerGroup:
    name: str
    shared: Shared
    state: ConsumerState = field(default_factory=ConsumerState)
    also: Log = ()
    """Goes into the log with the first change: it takes away what the group was before."""
    in_log: bool = False
    _topics_version: int = -1
    _change: Change | None = None

    # What it says of itself

    @property
    def writing(self) -> bool:
        return self._change is not None

    @property
    def members(self) -> dict[str, ConsumerMember]:
        return self.state.members

    @property
    def forgettable(self) -> bool:
        return not self.state.members and not self.in_log and not self.also and not self.writing

    @property
    def phase(self) -> Phase:
        state = self.state
        if not state.members:
            return Phase.EMPTY
        if state.epoch > state.target_epoch:
            return Phase.ASSIGNING
        reached = all(one.current.settled(state.target_epoch) for one in state.members.values())
        return Phase.STABLE if reached else Phase.RECONCILING

    @property
    def idle_since_ms(self) -> int:
        return self.state.emptied_ms

    def listed(self) -> ListedGroup:
        return ListedGroup(self.name, "consumer", self.phase, "consumer")

    def describe(self) -> DescribedConsumerGroup:
        state = self.state
        members = tuple(self._described(member_id, member) for member_id, member in sorted(state.members.items()))
        return DescribedConsumerGroup(
            self.name, self.phase, state.epoch, state.target_epoch, self._assignor(state), members
        )

    def _described(self, member_id: str, member: ConsumerMember) -> DescribedConsumer:
        said, target = member.said, self.state.target.get(member_id, frozenset())
        names = (member_id, said.instance_id, said.rack_id, said.client_id, said.client_host)
        return DescribedConsumer(
            *names,
            member.current.epoch,
            said.topics,
            said.pattern,
            member.current.assigned,
            target,
            "consumer" if said.classic is None else "classic",
        )

    def subscribed(self) -> set[str]:
        return {topic for member in self.state.members.values() for topic in self._topics_of(member.said)}

    def tombstones(self) -> Log:
        return self.also + (tombstones(self.name, self.state) if self.in_log else ())

    # Requests

    def heartbeat(self, request: ConsumerHeartbeat, reply_id: int, now_ms: int) -> list[Effect]:
        """Raises what a heartbeat is refused for; otherwise it is answered now, or once it is written."""
        self._check_fields(request)
        if request.member_epoch in (LEAVING, AWAY):
            return self._leave(request, reply_id, now_ms)
        member_id, state = self._admit(request)
        state = self._with_target(self._with_epoch(state))
        state = self._with_step(state, member_id, request.owned)
        answer = Answer(reply_id, self._alive(request, member_id, state))
        return self._move_to(Change(state, (answer,), member_id), now_ms)

    def _with_step(self, state: ConsumerState, member_id: str, owned: Partitions | None) -> ConsumerState:
        member = state.members[member_id]
        if member.current.settled(state.target_epoch):
            return state
        target, holders = state.target.get(member_id, frozenset()), state.holders()
        free = frozenset(one for one in target if holders.get(one, member_id) == member_id)
        current = reconciled(member.current, target, free, state.target_epoch, owned)
        return state.with_member(member_id, replace(member, current=current))

    def _alive(self, request: ConsumerHeartbeat, member_id: str, state: ConsumerState) -> ConsumerAlive:
        """The assignment is told to whoever may not know it: one that joins, says what it has, or gets another."""
        before, current = self.state.members.get(member_id), state.members[member_id].current
        changed = before is None or before.current.assigned != current.assigned
        tell = changed or request.member_epoch == JOINING or request.owned is not None
        heartbeat_ms = self.shared.config.consumer_heartbeat_ms
        return ConsumerAlive(member_id, current.epoch, heartbeat_ms, current.assigned if tell else None)

    def check_commit(self, request: Commit, now_ms: int) -> None:
        nobody_named = request.generation < 0 and not request.member_id
        if nobody_named and (request.producer_id != NO_PRODUCER or not self.state.members):
            return
        if not self._is_overtaken(request):
            self.check_epoch(request.member_id, request.generation)
        self._see(request.member_id, now_ms)

    def _is_overtaken(self, request: Commit) -> bool:
        """Whether a member commits what it holds, in the epoch before its own: the answer that told it of the new one
        met the commit on its way. Nobody else can have had these partitions in between, as they would have had to be
        revoked. Clients that close have no time to repeat such a commit."""
        member = self.state.members.get(request.member_id)
        if member is None or member.said.classic is not None:
            return False
        current = member.current
        held = current.assigned | current.revoking
        return 0 < request.generation == current.previous_epoch < current.epoch and all(
            partition in held for partition, _ in request.offsets
        )

    def check_epoch(self, member_id: str, epoch: int) -> None:
        member = self.state.members.get(member_id)
        if member is None:
            raise UnknownMember(group=self.name, member=member_id)
        if epoch != member.current.epoch:
            raise StaleMemberEpoch(group=self.name, member=member_id, present=member.current.epoch, given=epoch)

    # Time

    def on_timer(self, what: str, member_id: str, now_ms: int) -> list[Effect]:
        member = self.state.members.get(member_id)
        if member is None or (what == REVOKE and member.current.standing is not Standing.UNREVOKED):
            return []
        return self._move_to(Change(self._without(member_id, now_ms)), now_ms)

    def recall(self, now_ms: int) -> None:
        self.in_log = True
        for member_id in self.state.members:
            self._see(member_id, now_ms)
            self._watch_revoking(member_id, None, now_ms)

    # What has been written

    def _move_to(self, change: Change, now_ms: int) -> list[Effect]:
        records = () if change.state is self.state else difference(self.name, self.state, change.state)
        self._change = change
        if not records:
            return self.persisted(now_ms)
        return [Persist(self.shared.next_token(), self.name, self.also + records)]

    def persisted(self, now_ms: int) -> list[Effect]:
        assert self._change is not None, "nothing was being written"
        change, before = self._change, self.state
        if change.state is not before:
            self.also, self.in_log = (), True
        self._change, self.state = None, change.state
        for member_id in before.members.keys() - self.state.members.keys():
            self.shared.timers.clear((self.name, SESSION, member_id))
            self.shared.timers.clear((self.name, REVOKE, member_id))
        if change.seen is not None:
            self._see(change.seen, now_ms)
            self._watch_revoking(change.seen, before.members.get(change.seen), now_ms)
        return list(change.answers)

    def failed(self, error: RivvenError, now_ms: int) -> list[Effect]:
        """The change did not happen; whoever asked for it hears why, and what nobody asked for is tried again."""
        assert self._change is not None, "nothing was being written"
        change, self._change = self._change, None
        self._topics_version = -1
        for member_id in self.state.members.keys() - change.state.members.keys():
            self._see(member_id, now_ms)
        return [Answer(answer.reply_id, error) for answer in change.answers]

    def _see(self, member_id: str, now_ms: int) -> None:
        due_ms = now_ms + self.shared.config.consumer_session_timeout_ms
        self.shared.timers.set((self.name, SESSION, member_id), due_ms)

    def _watch_revoking(self, member_id: str, before: ConsumerMember | None, now_ms: int) -> None:
        """Whoever must give something up has its rebalance timeout for it, counted from when it was told."""
        member = self.state.members[member_id]
        name = (self.name, REVOKE, member_id)
        if member.current.standing is not Standing.UNREVOKED:
            self.shared.timers.clear(name)
        elif before is None or before.current.revoking != member.current.revoking or not self.shared.timers.has(name):
            self.shared.timers.set(name, now_ms + member.said.rebalance_timeout_ms)

    # Who asks

    def _check_fields(self, request: ConsumerHeartbeat) -> None:
        problem = None
        if request.member_epoch < AWAY:
            problem = "member epoch", f"is {request.member_epoch}; it must be -2 or above"
        elif request.member_epoch == AWAY and request.instance_id is None:
            problem = "member epoch", "is -2, which is for static members alone"
        elif request.member_epoch == JOINING and request.rebalance_timeout_ms < 0:
            problem = "rebalance timeout", "must be given by a member that joins"
        elif request.member_epoch == JOINING and request.topics is None and not request.pattern:
            problem = "subscription", "must be given by a member that joins"
        elif request.member_epoch == JOINING and request.owned:
            problem = "owned partitions", "must be empty for a member that joins"
        elif len(request.topics or ()) > limits.MEMBER_TOPICS_MAX:
            problem = "topics", f"are more than {limits.MEMBER_TOPICS_MAX}"
        if problem is not None:
            raise InvalidGroupRequest(group=self.name, field=problem[0], reason=problem[1])
        if request.assignor is not None and request.assignor not in ASSIGNORS:
            raise UnsupportedAssignor(assignor=request.assignor, supported=", ".join(sorted(ASSIGNORS)))
        if request.pattern:
            self.shared.pattern(request.pattern)

    def _admit(self, request: ConsumerHeartbeat) -> tuple[str, ConsumerState]:
        """The member that speaks, and the state with it and with what it says."""
        state = self.state
        if request.instance_id is not None:
            state = self._admit_static(request, request.instance_id)
        member_id = request.member_id or new_member_id(request.client_id, self.shared.rng)
        member = state.members.get(member_id)
        if member is None:
            if request.member_epoch != JOINING:
                raise UnknownMember(group=self.name, member=member_id)
            if len(state.members) >= self.shared.config.members_max:
                raise GroupFull(group=self.name, what="one more member", limit=self.shared.config.members_max)
            member = ConsumerMember(Described(instance_id=request.instance_id), Current())
        elif request.member_epoch == JOINING:
            member = replace(member, current=member.current.owning_nothing())
        else:
            self._check_epoch(request, member.current)
        told = replace(member, said=member.said.updated(request))
        return member_id, state if told == state.members.get(member_id) else state.with_member(member_id, told)

    def _admit_static(self, request: ConsumerHeartbeat, instance_id: str) -> ConsumerState:
        """A static member that was away may come back under a new id, and finds everything as it was.

        One of the classic protocol never says that it goes, so its place is always free for the next.
        """
        holder = self.state.holder_of(instance_id)
        if holder is None or holder == request.member_id:
            if holder is None and request.member_epoch != JOINING:
                raise UnknownMember(group=self.name, member=request.member_id)
            return self.state
        if request.member_epoch != JOINING:
            raise FencedInstance(group=self.name, instance=instance_id)
        present = self.state.members[holder]
        if present.said.classic is None and present.current.epoch != AWAY:
            raise UnreleasedInstance(group=self.name, instance=instance_id, member=holder)
        return self.state.renamed(holder, request.member_id)

    def _check_epoch(self, request: ConsumerHeartbeat, current: Current) -> None:
        given = request.member_epoch
        lost_answer = (
            given == current.previous_epoch and request.owned is not None and request.owned <= current.assigned
        )
        if given != current.epoch and not lost_answer:
            facts = {"present": current.epoch, "given": given}
            raise FencedMemberEpoch(group=self.name, member=request.member_id, **facts)

    def _leave(self, request: ConsumerHeartbeat, reply_id: int, now_ms: int) -> list[Effect]:
        member = self.state.members.get(request.member_id)
        if request.instance_id is not None:
            holder = self.state.holder_of(request.instance_id)
            if holder is not None and holder != request.member_id:
                raise FencedInstance(group=self.name, instance=request.instance_id)
        if member is None:
            raise UnknownMember(group=self.name, member=request.member_id)
        answer = Answer(reply_id, ConsumerAlive(request.member_id, request.member_epoch, 0, None))
        if request.member_epoch == LEAVING:
            return self._move_to(Change(self._without(request.member_id, now_ms), (answer,)), now_ms)
        away = replace(member, current=replace(member.current.owning_nothing(), epoch=AWAY))
        return self._move_to(Change(self.state.with_member(request.member_id, away), (answer,)), now_ms)

    def _without(self, member_id: str, now_ms: int) -> ConsumerState:
        return replace(self.state.without(member_id), epoch=self.state.epoch + 1, emptied_ms=now_ms)

    # Epochs and the target

    def _with_epoch(self, state: ConsumerState) -> ConsumerState:
        """One epoch further if members want other topics than before, or if those topics have changed."""
        before = self.state
        if self._topics_version == self.shared.topics_version and state.same_said(before):
            return state
        self._topics_version = self.shared.topics_version
        wanted = {topic for member in state.members.values() for topic in self._topics_of(member.said)}
        counts = {topic: self.shared.topics[topic] for topic in sorted(wanted)}
        changed = counts != before.counts or not state.same_subscriptions(before)
        return replace(state, epoch=state.epoch + 1, counts=counts) if changed else state

    def _with_target(self, state: ConsumerState) -> ConsumerState:
        if state.epoch <= state.target_epoch:
            return state
        subscriptions = {
            member_id: Subscription(
                tuple(sorted(self._topics_of(member.said))), owned=tuple(state.target.get(member_id, ()))
            )
            for member_id, member in state.members.items()
        }
        given = ASSIGNORS[self._assignor(state)](subscriptions, state.counts)
        target = {member_id: frozenset(partitions) for member_id, partitions in given.items()}
        return replace(state, target=target, target_epoch=state.epoch)

    def _assignor(self, state: ConsumerState) -> str:
        votes = Counter(member.said.assignor for member in state.members.values() if member.said.assignor)
        return max(sorted(votes), key=lambda name: votes[name], default=DEFAULT_ASSIGNOR)

    def _topics_of(self, said: Described) -> set[str]:
        """What a member wants of what there is."""
        found = {topic for topic in said.topics if topic in self.shared.topics}
        return found | self.shared.matching(said.pattern) if said.pattern else found

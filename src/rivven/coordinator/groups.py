"""All groups of a node: requests go in with the time, effects come out, nothing waits.

`ask` takes whatever changes something. Its answer comes as an effect, at once or after others have spoken. What must
outlive a crash is decided first, written by the shell (`Persist`), and counts and is answered once `persisted` says
so. While a group's change is being written, whatever else concerns the group stands in its line, in order; commits
are written beside one another.

Reading (`fetch`, `describe`, `list`) is answered directly, from what has been written.

Invariants: every request is answered exactly once; what was answered is in the log; replaying the log gives the same
groups and offsets, apart from who was waiting for what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from rivven import limits
from rivven.errors import (
    GroupFull,
    GroupNotEmpty,
    GroupNotFound,
    GroupSubscribed,
    IllegalGeneration,
    InvalidGroupRequest,
    InvalidSessionTimeout,
    RivvenError,
    UnknownMember,
)
from rivven.model import NO_PRODUCER, ProducerId, TopicPartition

from .classic import ClassicGroup
from .commits import Commits, Entries
from .consumer_state import ConsumerState, Recalled
from .group_log import CLASSIC_KEY, CONSUMER_KEYS, KeptGroup, Log, decode_group, decode_group_key, key_version
from .group_values import (
    Answer,
    Commit,
    Committed,
    ConsumerHeartbeat,
    Deleted,
    DeleteGroup,
    DeleteOffsets,
    DescribedConsumerGroup,
    DescribedGroup,
    Effect,
    Fetched,
    FetchOffsets,
    ForgetTopic,
    GroupConfig,
    Heartbeat,
    Join,
    Leave,
    ListedGroup,
    Persist,
    Phase,
    Sync,
)
from .mixed_group import MixedGroup, upgraded
from .offsets import OffsetKey, Offsets, encode_key
from .shared import Shared

EXPIRE = ("", "expire", "")

Ask = Join | Sync | Heartbeat | Leave | ConsumerHeartbeat | Commit | DeleteOffsets | ForgetTopic | DeleteGroup


@dataclass(frozen=True, slots=True)
class _Due:
    """A deadline that came while its group stood still."""

    group: str
    what: str
    member_id: str


@dataclass(frozen=True, slots=True)
class _Committing:
    request: Commit
    accepted: Entries
    reply_id: int
    answer: Committed


@dataclass(frozen=True, slots=True)
class _Deleting:
    """Offsets that go, and perhaps the group with them; the group stands still meanwhile."""

    group: str
    keys: tuple[OffsetKey, ...]
    whole: bool
    reply_id: int | None
    answer: Deleted


class Groups:
    def __init__(self, config: GroupConfig, rng: Random) -> None:
        self._commits = Commits()
        self._config = config
        self._shared = Shared(config, rng)
        self._timers = self._shared.timers
        self._groups: dict[str, ClassicGroup | MixedGroup] = {}
        self._writes: dict[int, ClassicGroup | MixedGroup | _Committing | _Deleting] = {}
        self._held: set[str] = set()
        """Groups whose deletion is being written."""
        self._lines: dict[str, deque[tuple[Ask | _Due, int]]] = {}
        self._recalled: dict[str, KeptGroup] = {}
        self._recalled_consumers: dict[str, Recalled] = {}

    @property
    def offsets(self) -> Offsets:
        return self._commits.table

    # Starting from the log

    def replay(self, key: bytes | None, value: bytes | None, producer_id: ProducerId = NO_PRODUCER) -> None:
        """Take one record of the topic; records of unknown kinds are passed over."""
        if key is None:
            return
        version = key_version(key)
        if version in (0, 1):
            self._commits.replay(key, value, producer_id)
        elif version == CLASSIC_KEY:
            group, _ = decode_group_key(key)
            self._recalled.pop(group, None)
            if value is not None:
                self._recalled[group] = decode_group(value)
        elif version in CONSUMER_KEYS:
            group, _ = decode_group_key(key)
            self._recalled_consumers.setdefault(group, Recalled()).take(key, value)

    def recall(self, now_ms: int) -> None:
        """The log has been read to its end: its groups stand where it says, and time begins to count for them."""
        for name, kept in self._recalled.items():
            classic = self._groups[name] = ClassicGroup(name, self._shared)
            classic.recall(kept, now_ms)
        for name, recalled in self._recalled_consumers.items():
            if (state := recalled.state()) is not None:
                consumer = self._groups[name] = MixedGroup(name, self._shared, state)
                consumer.recall(now_ms)
        self._recalled.clear()
        self._recalled_consumers.clear()
        self._timers.set(EXPIRE, now_ms + self._config.offsets_check_ms)

    # What changes something

    def ask(self, request: Ask, reply_id: int, now_ms: int) -> list[Effect]:
        try:
            self._check_names(request)
            if self._stands_still(request.group):
                return self._stand_in_line(request, reply_id)
            return self._after(request.group, self._decide(request, reply_id, now_ms))
        except RivvenError as error:
            return self._after(request.group, [Answer(reply_id, error)])

    def _decide(self, request: Ask, reply_id: int, now_ms: int) -> list[Effect]:
        match request:
            case Join():
                return self._join(request, reply_id, now_ms)
            case Sync():
                return self._known(request.group, request.member_id).sync(request, reply_id, now_ms)
            case Heartbeat():
                return self._known(request.group, request.member_id).heartbeat(request, reply_id, now_ms)
            case Leave():
                first = request.members[0][0] if request.members else ""
                return self._known(request.group, first).leave(request, reply_id, now_ms)
            case Commit():
                return self._commit(request, reply_id, now_ms)
            case DeleteOffsets():
                return self._delete_offsets(request, reply_id)
            case ForgetTopic():
                return self._forget_topic(request, reply_id)
            case DeleteGroup():
                return self._delete_group(request, reply_id)
            case ConsumerHeartbeat():
                return self._consumer_heartbeat(request, reply_id, now_ms)

    def _after(self, name: str, effects: list[Effect]) -> list[Effect]:
        """Note which writes are under way, and forget a group that came to nothing."""
        group = self._groups.get(name)
        for effect in effects:
            if isinstance(effect, Persist) and effect.token not in self._writes:
                assert group is not None, "only a group writes of its own accord"
                self._writes[effect.token] = group
        if group is not None and group.forgettable:
            del self._groups[name]
        return effects

    # What has been written

    def persisted(self, token: int, now_ms: int) -> list[Effect]:
        """The records of that effect are durable."""
        written = self._writes.pop(token)
        match written:
            case _Committing():
                self._commits.end(written.accepted, written.request.producer_id, written=True)
                return [Answer(written.reply_id, written.answer)]
            case _Deleting():
                effects = self._deleted(written)
                return effects + self._serve_line(written.group, now_ms)
            case _:
                effects = written.persisted(now_ms)
                self._change_over(written)
                effects = self._after(written.name, effects)
                return effects + self._serve_line(written.name, now_ms)

    def failed(self, token: int, error: RivvenError, now_ms: int) -> list[Effect]:
        """The records of that effect are not in the log, and never will be."""
        written = self._writes.pop(token)
        match written:
            case _Committing():
                self._commits.end(written.accepted, written.request.producer_id, written=False)
                return [Answer(written.reply_id, error)]
            case _Deleting():
                self._held.discard(written.group)
                effects: list[Effect] = [] if written.reply_id is None else [Answer(written.reply_id, error)]
                return effects + self._serve_line(written.group, now_ms)
            case _:
                effects = written.failed(error, now_ms)
                self._change_over(written)
                effects = self._after(written.name, effects)
                return effects + self._serve_line(written.name, now_ms)

    # Time

    def due_ms(self) -> int | None:
        """When `tick` should be called next; it may be early."""
        return self._timers.next_ms()

    def tick(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        while (name := self._timers.pop(now_ms)) is not None:
            if name == EXPIRE:
                effects += self._expire(now_ms)
            else:
                effects += self._come_due(_Due(*name), now_ms)
        return effects

    def _come_due(self, due: _Due, now_ms: int) -> list[Effect]:
        if self._stands_still(due.group):
            self._lines.setdefault(due.group, deque()).append((due, 0))
            return []
        group = self._groups.get(due.group)
        if group is None:
            return []
        return self._after(due.group, group.on_timer(due.what, due.member_id, now_ms))

    # The line before a group that stands still

    def _stands_still(self, name: str) -> bool:
        return name in self._held or (name in self._groups and self._groups[name].writing)

    def _stand_in_line(self, request: Ask, reply_id: int) -> list[Effect]:
        line = self._lines.setdefault(request.group, deque())
        if len(line) >= limits.GROUP_WAITING_MAX:
            raise GroupFull(group=request.group, what="waiting requests", limit=limits.GROUP_WAITING_MAX)
        line.append((request, reply_id))
        return []

    def _serve_line(self, name: str, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        line = self._lines.get(name, deque())
        while line and not self._stands_still(name):
            waiting, reply_id = line.popleft()
            if isinstance(waiting, _Due):
                # What was being written may have been the very sign of life that the deadline missed.
                if not self._timers.has((waiting.group, waiting.what, waiting.member_id)):
                    effects += self._come_due(waiting, now_ms)
            else:
                effects += self.ask(waiting, reply_id, now_ms)
        if not line:
            self._lines.pop(name, None)
        return effects

    # Membership

    def _join(self, request: Join, reply_id: int, now_ms: int) -> list[Effect]:
        config = self._config
        bounds = (config.session_timeout_ms_min, config.session_timeout_ms_max)
        if not bounds[0] <= request.session_timeout_ms <= bounds[1]:
            facts = {"timeout_ms_min": bounds[0], "timeout_ms_max": bounds[1]}
            raise InvalidSessionTimeout(timeout_ms=request.session_timeout_ms, **facts)
        if len(request.protocols) > limits.GROUP_PROTOCOLS_MAX:
            raise GroupFull(group=request.group, what="a member's protocols", limit=limits.GROUP_PROTOCOLS_MAX)
        if request.group not in self._groups and request.member_id and not request.adopt_id:
            raise UnknownMember(group=request.group, member=request.member_id)
        group = self._groups.get(request.group)
        if isinstance(group, MixedGroup) and group.members:
            return group.join(request, reply_id, now_ms)
        return self._classic(request.group).join(request, reply_id, now_ms)

    def _consumer_heartbeat(self, request: ConsumerHeartbeat, reply_id: int, now_ms: int) -> list[Effect]:
        group = self._groups.get(request.group)
        if request.member_epoch != 0 and not isinstance(group, MixedGroup):
            raise UnknownMember(group=request.group, member=request.member_id)
        if isinstance(group, ClassicGroup) and group.members:
            return self._upgrade(group, request, reply_id, now_ms)
        return self._consumer(request.group).heartbeat(request, reply_id, now_ms)

    def _upgrade(self, group: ClassicGroup, request: ConsumerHeartbeat, reply_id: int, now_ms: int) -> list[Effect]:
        """The first who speaks the consumer protocol takes the group there, unless its heartbeat is refused."""
        made = upgraded(group, self._shared)
        effects = made.heartbeat(request, reply_id, now_ms)
        self._groups[group.name] = made
        return effects

    def _change_over(self, written: ClassicGroup | MixedGroup) -> None:
        """A group may go on in the other protocol once that is written, or not at all if it could not be."""
        if isinstance(written, MixedGroup) and (other := written.becomes or written.was) is not None:
            self._groups[written.name] = other

    def _classic(self, name: str) -> ClassicGroup:
        """The group, new if there is none; one without members changes over from the consumer protocol."""
        group = self._groups.get(name)
        if isinstance(group, ClassicGroup):
            return group
        self._check_group_count(name)
        if group is None:
            made = ClassicGroup(name, self._shared)
        else:
            assert not group.members, "whoever comes to members in the other protocol joins them there"
            made = ClassicGroup(name, self._shared, group.state.epoch, group.tombstones())
        self._groups[name] = made
        return made

    def _consumer(self, name: str) -> MixedGroup:
        """The group, new if there is none; one without members changes over from the classic protocol."""
        group = self._groups.get(name)
        if isinstance(group, MixedGroup):
            return group
        self._check_group_count(name)
        if group is None:
            made = MixedGroup(name, self._shared)
        else:
            assert not group.members, "a group with members is upgraded"
            state = ConsumerState(epoch=group.generation, target_epoch=group.generation)
            made = MixedGroup(name, self._shared, state, group.tombstones())
        self._groups[name] = made
        return made

    def _known(self, name: str, member_id: str) -> ClassicGroup | MixedGroup:
        group = self._groups.get(name)
        if group is None:
            raise UnknownMember(group=name, member=member_id)
        return group

    def _written(self, name: str) -> ClassicGroup | MixedGroup | None:
        """The group as the log knows it: before an upgrade is written it is what it was."""
        group = self._groups.get(name)
        return group.was or group if isinstance(group, MixedGroup) else group

    def topics_changed(self, topics: Mapping[str, int]) -> None:
        """These are the topics now, with their partition counts; groups hear of it at their members' heartbeats."""
        self._shared.change_topics(topics)

    # Offsets

    def _commit(self, request: Commit, reply_id: int, now_ms: int) -> list[Effect]:
        group = self._groups.get(request.group)
        if not request.unchecked and group is not None:
            group.check_commit(request, now_ms)
        elif not request.unchecked and request.generation >= 0:
            raise IllegalGeneration(group=request.group, present="none", given=request.generation)
        accepted, errors = self._commits.sift(request)
        if not accepted:
            return [Answer(reply_id, Committed(errors))]
        self._check_group_count(request.group)
        token = self._shared.next_token()
        self._writes[token] = _Committing(request, accepted, reply_id, Committed(errors))
        records = self._commits.begin(accepted)
        return [Persist(token, request.group, records, request.producer_id, request.producer_epoch)]

    def end_transaction(self, producer_id: ProducerId, *, committed: bool) -> None:
        """The marker of that transaction is in the log: its offsets count, or are forgotten."""
        self._commits.end_transaction(producer_id, committed=committed)

    def fetch(self, request: FetchOffsets) -> Fetched:
        """Raises only for a member of the consumer protocol with another epoch than its own."""
        group = self._written(request.group)
        if request.member_id and request.member_epoch >= 0 and isinstance(group, MixedGroup):
            group.check_epoch(request.member_id, request.member_epoch)
        return self._commits.fetch(request)

    def _delete_offsets(self, request: DeleteOffsets, reply_id: int) -> list[Effect]:
        group = self._groups.get(request.group)
        if group is None and not self.offsets.count(request.group):
            raise GroupNotFound(group=request.group, kind="consumer")
        subscribed = set() if group is None else group.subscribed()
        errors: dict[TopicPartition, RivvenError] = {
            one: GroupSubscribed(group=request.group, topic=one.topic)
            for one in request.partitions
            if subscribed is None or one.topic in subscribed
        }
        free = {OffsetKey(request.group, *one) for one in request.partitions if one not in errors}
        keys = tuple(key for key in self._commits.keys(request.group) if key in free)
        if not keys:
            return [Answer(reply_id, Deleted(errors))]
        return self._delete(_Deleting(request.group, keys, False, reply_id, Deleted(errors)))

    def groups_with(self, topic: str) -> list[str]:
        """The groups that `ForgetTopic` concerns, once a topic is gone."""
        return self._commits.groups_with(topic)

    def _forget_topic(self, request: ForgetTopic, reply_id: int) -> list[Effect]:
        keys = tuple(key for key in self._commits.keys(request.group) if key.topic == request.topic)
        return self._delete(_Deleting(request.group, keys, False, reply_id, Deleted()))

    def _delete_group(self, request: DeleteGroup, reply_id: int) -> list[Effect]:
        group = self._groups.get(request.group)
        keys = tuple(self._commits.keys(request.group))
        if group is None and not keys:
            raise GroupNotFound(group=request.group, kind="consumer")
        if group is not None and group.members:
            raise GroupNotEmpty(group=request.group, members=len(group.members))
        return self._delete(_Deleting(request.group, keys, True, reply_id, Deleted()))

    def _delete(self, deleting: _Deleting) -> list[Effect]:
        group = self._groups.get(deleting.group)
        tombstones: Log = tuple((encode_key(key), None) for key in deleting.keys)
        if deleting.whole and group is not None:
            tombstones += group.tombstones()
        if not tombstones:
            return self._deleted(deleting)
        token = self._shared.next_token()
        self._writes[token] = deleting
        self._held.add(deleting.group)
        return [Persist(token, deleting.group, tombstones)]

    def _deleted(self, deleting: _Deleting) -> list[Effect]:
        self._held.discard(deleting.group)
        for key in deleting.keys:
            self.offsets.apply(key, None)
        if deleting.whole:
            self._groups.pop(deleting.group, None)
        return [] if deleting.reply_id is None else [Answer(deleting.reply_id, deleting.answer)]

    def _expire(self, now_ms: int) -> list[Effect]:
        self._timers.set(EXPIRE, now_ms + self._config.offsets_check_ms)
        effects: list[Effect] = []
        for name in sorted({*self._groups, *self.offsets.groups()}):
            group = self._groups.get(name)
            if self._stands_still(name) or (group is not None and group.phase is not Phase.EMPTY):
                continue
            idle_since_ms = 0 if group is None else group.idle_since_ms
            keys = self._commits.expired(name, idle_since_ms, now_ms, self._config.offsets_retention_ms)
            whole = len(keys) == len(self._commits.keys(name)) and (bool(keys) or group is not None)
            if keys or whole:
                effects += self._delete(_Deleting(name, tuple(keys), whole, None, Deleted()))
        return effects

    # What is told at once

    def list(self) -> list[ListedGroup]:
        """By name; a group that has only committed offsets is an empty one."""
        found = []
        for name in sorted({*self._groups, *self.offsets.groups()}):
            group = self._written(name)
            found.append(ListedGroup(name, "", Phase.EMPTY, "classic") if group is None else group.listed())
        return found

    def describe(self, name: str) -> DescribedGroup | DescribedConsumerGroup:
        group = self._written(name)
        if group is not None:
            return group.describe()
        if self.offsets.count(name):
            return DescribedGroup(name, Phase.EMPTY)
        raise GroupNotFound(group=name, kind="classic")

    # Limits

    def _check_names(self, request: Ask) -> None:
        if not request.group or len(request.group.encode()) > limits.GROUP_ID_BYTES_MAX:
            reason = f"must have 1 to {limits.GROUP_ID_BYTES_MAX} bytes"
            raise InvalidGroupRequest(group=request.group[:64], field="group id", reason=reason)
        for name in ("member_id", "instance_id", "rack_id", "client_id", "client_host"):
            if len((getattr(request, name, None) or "").encode()) > limits.MEMBER_TEXT_BYTES_MAX:
                reason = f"is longer than {limits.MEMBER_TEXT_BYTES_MAX} bytes"
                raise InvalidGroupRequest(group=request.group, field=name.replace("_", " "), reason=reason)

    def _check_group_count(self, name: str) -> None:
        known = name in self._groups or self.offsets.count(name)
        if not known and len(self._groups) + self.offsets.group_count() >= limits.GROUPS_MAX:
            raise GroupFull(group=name, what="one more group", limit=limits.GROUPS_MAX)

"""A member of a consumer group: when to join, what to say, what to give up and what to take. It never waits.

Two sides ask it. Whoever keeps the connection asks `next` what to send now, and says what came of it. The caller who
reads messages asks `turn` for what has to happen before the next message, and says `turned` when it has: partitions
change hands only there, so that everything before has been dealt with. `asking` and `rested` tell when the caller
reads; one that does not for `max_poll_interval_ms` gives its place up until it does.

Eager assignors give up everything before they join, the cooperative one only what was taken away from it, and then
joins once more so that somebody else may have it.
Invariant: a partition is owned from `turned(Assign)` to `turned(Revoke)` or `turned(Lose)`, in between by this member
alone unless its session ran out; nobody joins as long as a loss has not been told.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random

from rivven.assign import (
    ASSIGNORS,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from rivven.errors import Malformed, RivvenError
from rivven.model import TopicPartition
from rivven.wire.kafka import Error

from .failures import ConfigException, ServerException, TryAgain
from .retry import Backoff

COOPERATIVE = "cooperative-sticky"
STICKY = "sticky"
REFRESH_INTERVAL_MS = 30_000
"""How often topics are looked at that may have come or grown."""
SESSION_TIMEOUT_MS = 45_000
HEARTBEAT_INTERVAL_MS = 3_000
MAX_POLL_INTERVAL_MS = 300_000

GENERATION = struct.Struct(">i")
NO_GENERATION = -1
Partitions = frozenset[TopicPartition]
NONE: Partitions = frozenset()

MOVED = frozenset({Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE})
"""Another server may be the coordinator now."""
PASSING = MOVED | {
    *(Error.COORDINATOR_LOAD_IN_PROGRESS, Error.REBALANCE_IN_PROGRESS, Error.REQUEST_TIMED_OUT),
    *(Error.KAFKA_STORAGE_ERROR, Error.NOT_ENOUGH_REPLICAS, Error.NETWORK_EXCEPTION, Error.UNSTABLE_OFFSET_COMMIT),
}
FENCED = frozenset({Error.ILLEGAL_GENERATION, Error.UNKNOWN_MEMBER_ID})
"""The group has gone on without us; it may be joined again."""
STEPS = {
    Error.FENCED_INSTANCE_ID: "another member has the same instance_id now; give each its own",
    Error.INCONSISTENT_GROUP_PROTOCOL: "the other members know none of our assignors; use the same in all of them",
    Error.INVALID_SESSION_TIMEOUT: "session_timeout_ms is outside the server's bounds, 6 s to 30 min unless told",
    Error.GROUP_MAX_SIZE_REACHED: "the group has as many members as it may have",
    Error.GROUP_AUTHORIZATION_FAILED: "this user may not join the group",
    Error.INVALID_GROUP_ID: "the group's name cannot be used",
}


def group_error(code: int, what: str) -> ServerException:
    """What a coordinator's refusal is to our callers."""
    error = Error(code) if code in Error._value2member_map_ else Error.UNKNOWN_SERVER_ERROR
    text = f"{error.name}: {what} was refused"
    if error in STEPS:
        text += f": {STEPS[error]}"
    kind = TryAgain if error in PASSING or error in FENCED else ServerException
    return kind(reason=text, error=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """How a member takes part."""

    group: str
    assignors: tuple[str, ...] = (COOPERATIVE,)
    """In the order of preference; the group uses the first that all of its members know."""
    instance_id: str | None = None
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS
    max_poll_interval_ms: int = MAX_POLL_INTERVAL_MS
    refresh_interval_ms: int = REFRESH_INTERVAL_MS

    def __post_init__(self) -> None:
        if not self.group:
            raise ConfigException(reason="group must not be empty")
        if not self.assignors:
            raise ConfigException(reason=f"assignor must name one of {', '.join(ASSIGNORS)}")
        for name in self.assignors:
            if name not in ASSIGNORS:
                raise ConfigException(reason=f"no assignor {name!r}; there are {', '.join(ASSIGNORS)}")
        for field in ("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms", "refresh_interval_ms"):
            if getattr(self, field) < 1:
                raise ConfigException(reason=f"{field} must be at least 1, not {getattr(self, field)}")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigException(reason="heartbeat_interval_ms must be below session_timeout_ms, best a third of it")

    @property
    def eager(self) -> bool:
        """One assignor that wants everything given up decides for all of them."""
        return any(name != COOPERATIVE for name in self.assignors)


# What to send


@dataclass(frozen=True, slots=True)
class Look:
    """Find out how many partitions these topics have; None is all topics. Answer with `looked`."""

    topics: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Join:
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Sync:
    generation: int
    member_id: str
    protocol: str
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Beat:
    generation: int
    member_id: str


@dataclass(frozen=True, slots=True)
class Leave:
    member_id: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to send before then, or before something happens."""

    until_ms: int | None


Sending = Look | Join | Sync | Beat | Leave | Rest


@dataclass(frozen=True, slots=True)
class Joined:
    """How a join was answered."""

    error: int = 0
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, bytes], ...] = ()
    """With their subscriptions; told to the leader alone."""
    skip_assignment: bool = False


# What to do before the next message


@dataclass(frozen=True, slots=True)
class Revoke:
    """These go to somebody else: finish with them, commit, and let go."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Assign:
    """These are ours from now on."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Lose:
    """These are somebody else's already: what was not committed is read again there."""

    partitions: Partitions


Turn = Revoke | Assign | Lose


class Phase(Enum):
    OUT = "no member, and not about to be one"
    LOOK = "which topics are there?"
    GIVE_UP = "the caller has something to give up before we join"
    JOIN = "join"
    ASSESS = "as the leader: how many partitions are there to share?"
    SYNC = "tell or hear who reads what"
    SETTLE = "the caller has something to give up or to take"
    STABLE = "heartbeats"
    GONE = "left for good"


MEMBER = frozenset({Phase.GIVE_UP, Phase.SETTLE, Phase.STABLE})
"""Phases in which heartbeats keep us in the group."""


class Membership:
    def __init__(self, settings: MemberSettings, rng: Random) -> None:
        self.settings = settings
        self.phase = Phase.OUT
        self.failure: RivvenError | None = None
        """Why it will never be a member again."""
        self.generation = NO_GENERATION
        self.member_id = ""
        self.owned: Partitions = NONE
        self._topics: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._lost: Partitions = NONE
        self._leaving: Partitions = NONE
        self._coming: Partitions = NONE
        self._again = False
        """Join once more as soon as this rebalance is over."""
        self._protocol = ""
        self._leads = False
        self._members: dict[str, Subscription] = {}
        self._assignments: tuple[tuple[str, bytes], ...] = ()
        self._counts: dict[str, int] = {}
        """What was there to share when we last led."""
        self._memory: tuple[Partitions, int] = (NONE, NO_GENERATION)
        self._callers = 0
        self._dormant = False
        self._farewell: str | None = None
        self._poll_due_ms = self._session_due_ms = self._beat_due_ms = self._look_due_ms = self._not_before_ms = 0
        self._backoff = Backoff(rng, first_ms=50, most_ms=2_000)

    # The caller's side

    def subscribe(self, topics: Iterable[str], pattern: re.Pattern[str] | None, now_ms: int) -> None:
        """Read these topics, or those whose whole names match, from now on."""
        self._topics, self._pattern = frozenset(topics), pattern
        if self.phase is Phase.OUT:
            self._poll_due_ms = now_ms + self.settings.max_poll_interval_ms
            self._begin()
        else:
            self._rejoin()

    @property
    def topics(self) -> frozenset[str]:
        return self._topics

    def asking(self, now_ms: int) -> None:
        """The caller wants messages."""
        del now_ms
        self._callers += 1
        if self._dormant:
            self._begin()

    def rested(self, now_ms: int) -> None:
        """The caller got what there was, and deals with it."""
        self._callers -= 1
        self._poll_due_ms = now_ms + self.settings.max_poll_interval_ms

    @property
    def turn(self) -> Turn | None:
        """What the caller has to do first."""
        if self._lost:
            return Lose(self._lost)
        if self.phase is Phase.GIVE_UP and (given := self._to_give_up()):
            return Revoke(given)
        if self.phase is Phase.SETTLE and self._leaving:
            return Revoke(self._leaving)
        if self.phase is Phase.SETTLE and self._coming:
            return Assign(self._coming)
        return None

    def turned(self, turn: Turn, generation: int) -> None:
        """The caller has done it. `generation` is that of the moment when it began."""
        match turn:
            case Revoke(partitions) | Lose(partitions):
                self.owned -= partitions
                self._lost -= partitions
                self._leaving -= partitions
            case Assign(partitions):
                self.owned |= partitions
                if self.phase is Phase.SETTLE and generation == self.generation:
                    self._coming -= partitions
                else:
                    self._lost |= partitions  # the group went on while the caller took them
        self._advance()

    def leave(self) -> Leave | None:
        """Be a member no more; what to send for it. A member with an instance id keeps its place until its session
        runs out, so that it may come back without a rebalance."""
        known = self.member_id if self.settings.instance_id is None else ""
        self.phase, self.generation, self.member_id = Phase.GONE, NO_GENERATION, ""
        return Leave(known) if known else None

    # The connection's side

    def next(self, now_ms: int) -> Sending:
        """What to send now. Asked again before an answer was told, it says the same."""
        if self.phase not in (Phase.OUT, Phase.GONE):
            self._watch(now_ms)
        if self._farewell is not None:
            return Leave(self._farewell)
        if self.phase in (Phase.OUT, Phase.GONE) or (self._lost and self.phase not in MEMBER):
            return Rest(None)
        if now_ms < self._not_before_ms:
            return Rest(self._not_before_ms)
        match self.phase:
            case Phase.LOOK:
                return Look(None)
            case Phase.JOIN:
                return Join(self.member_id, tuple((name, self._say(name)) for name in self.settings.assignors))
            case Phase.ASSESS:
                return Look(frozenset(topic for each in self._members.values() for topic in each.topics))
            case Phase.SYNC:
                return Sync(self.generation, self.member_id, self._protocol, self._assignments)
            case _:
                return self._keep_alive(now_ms)

    def _keep_alive(self, now_ms: int) -> Sending:
        if now_ms >= self._beat_due_ms:
            return Beat(self.generation, self.member_id)
        due = [self._beat_due_ms, self._session_due_ms]
        if self._watches:
            if now_ms >= self._look_due_ms:
                return Look(None if self._pattern is not None else frozenset(self._counts))
            due.append(self._look_due_ms)
        if not self._callers:
            due.append(self._poll_due_ms)
        return Rest(min(due))

    @property
    def _watches(self) -> bool:
        """Whether topics that come or grow are our affair."""
        return self.phase is Phase.STABLE and (self._leads or self._pattern is not None)

    def _watch(self, now_ms: int) -> None:
        """See whether our time has run out, at the server or with the caller."""
        if not self._callers and now_ms >= self._poll_due_ms:
            if self.settings.instance_id is None and self.member_id:
                self._farewell = self.member_id
            self._lose()
            self.member_id, self.phase, self._dormant = "", Phase.OUT, True
        elif self.generation != NO_GENERATION and now_ms >= self._session_due_ms:
            self._lose()
            self._begin()

    def said_farewell(self) -> None:
        """The leave that `next` asked for was sent, or could not be."""
        self._farewell = None

    def looked(self, counts: Mapping[str, int], now_ms: int) -> None:
        """How many partitions there are."""
        self._backoff.reset()
        if self._pattern is not None and self.phase in (Phase.LOOK, Phase.STABLE):
            self._look_due_ms = now_ms + self.settings.refresh_interval_ms
            found = frozenset(topic for topic in counts if self._matches(topic))
            changed, self._topics = found != self._topics, found
            if self.phase is Phase.LOOK:
                self.phase = Phase.GIVE_UP
                self._advance()
                return
            if changed:
                self._rejoin()
        if self.phase is Phase.ASSESS:
            self._share(counts)
            self.phase = Phase.SYNC
        elif self.phase is Phase.STABLE:
            self._look_due_ms = now_ms + self.settings.refresh_interval_ms
            if self._leads and any(counts.get(topic, 0) != count for topic, count in self._counts.items()):
                self._rejoin()

    def _matches(self, topic: str) -> bool:
        return self._pattern is not None and not topic.startswith("__") and bool(self._pattern.fullmatch(topic))

    def _share(self, counts: Mapping[str, int]) -> None:
        wanted = {topic for each in self._members.values() for topic in each.topics}
        self._counts = {topic: counts.get(topic, 0) for topic in wanted}
        given = ASSIGNORS[self._protocol](self._members, self._counts)
        self._assignments = tuple((member, encode_assignment(mine)) for member, mine in given.items())

    def joined(self, answer: Joined, now_ms: int) -> None:
        if self.phase is not Phase.JOIN:
            return
        match answer.error:
            case Error.NONE:
                self._take_seat(answer, now_ms)
            case Error.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            case Error.UNKNOWN_MEMBER_ID:
                self._lose()
                self.member_id = ""
            case _:
                self._refused(answer.error, "joining the group", now_ms)

    def _take_seat(self, answer: Joined, now_ms: int) -> None:
        self._backoff.reset()
        self.member_id, self.generation, self._protocol = answer.member_id, answer.generation, answer.protocol
        self._session_due_ms = now_ms + self.settings.session_timeout_ms
        self._beat_due_ms = now_ms + self.settings.heartbeat_interval_ms
        self._leads = answer.leader == answer.member_id
        self._assignments, self._again = (), False
        self.phase = Phase.SYNC
        if self._leads:
            try:
                self._members = {
                    member: _understood(answer.protocol, metadata) for member, metadata in answer.members
                }
            except Malformed as error:
                self.fail(ServerException(reason=f"a member of the group cannot be understood: {error}"))
                return
            if not answer.skip_assignment:
                self.phase = Phase.ASSESS

    def synced(self, error: int, assignment: bytes, now_ms: int) -> None:
        if self.phase is not Phase.SYNC:
            return
        if error:
            if error == Error.REBALANCE_IN_PROGRESS:
                self._begin()
            else:
                self._refused(error, "taking part in the group", now_ms)
            return
        try:
            assigned = frozenset(decode_assignment(assignment))
        except Malformed as fault:
            self.fail(ServerException(reason=f"the assignment cannot be read: {fault}"))
            return
        self._session_due_ms = now_ms + self.settings.session_timeout_ms
        self._look_due_ms = now_ms + self.settings.refresh_interval_ms
        self._memory = (assigned, self.generation)
        self._leaving, self._coming = self.owned - assigned, assigned - self.owned
        self._again = self._again or bool(self._leaving)
        self.phase = Phase.SETTLE
        self._advance()

    def beaten(self, error: int, sent_ms: int, now_ms: int) -> None:
        """How a heartbeat was answered that was sent then."""
        self._beat_due_ms = sent_ms + self.settings.heartbeat_interval_ms
        if self.phase not in MEMBER:
            return
        if error in (Error.NONE, Error.REBALANCE_IN_PROGRESS):
            self._backoff.reset()
            self._session_due_ms = sent_ms + self.settings.session_timeout_ms
        if error == Error.REBALANCE_IN_PROGRESS:
            self._rejoin()
        elif error:
            self._refused(error, "a heartbeat", now_ms)

    def commit_refused(self, error: int, generation: int, now_ms: int) -> None:
        """A commit of that generation was not taken, which may say that the group has gone on."""
        if generation == self.generation and self.phase in MEMBER and error in (*FENCED, Error.FENCED_INSTANCE_ID):
            self._refused(error, "a commit", now_ms)

    def failed(self, now_ms: int) -> None:
        """No answer came to what was sent."""
        self._not_before_ms = now_ms + self._backoff.next_ms()

    # Steps

    def _say(self, assignor: str) -> bytes:
        """Our subscription. Where everything is given up before, the sticky one says what it had before that."""
        memory, generation = self._memory
        owned = () if self.settings.eager else tuple(sorted(self.owned))
        data = b""
        if assignor == STICKY and memory:
            # Without the version before it and the user data behind it, an assignment is what Kafka's members send.
            data = encode_assignment(memory)[2:-4] + GENERATION.pack(generation)
        held = self._memory[1] if owned else NO_GENERATION
        return encode_subscription(Subscription(tuple(sorted(self._topics)), data, owned, held))

    def _to_give_up(self) -> Partitions:
        if self.settings.eager:
            return self.owned
        return frozenset(one for one in self.owned if one.topic not in self._topics)

    def _begin(self) -> None:
        """On the way to joining. What there was to settle is the next assignment's affair."""
        self._leaving = self._coming = NONE
        self._again = self._dormant = False
        self.phase = Phase.LOOK if self._pattern is not None else Phase.GIVE_UP
        self._advance()

    def _rejoin(self) -> None:
        match self.phase:
            case Phase.STABLE:
                self._begin()
            case Phase.ASSESS | Phase.SYNC | Phase.SETTLE:
                self._again = True
            case _:
                pass  # about to join anyway

    def _advance(self) -> None:
        """Pass over what has nothing in it."""
        if self.phase is Phase.GIVE_UP and not self._to_give_up():
            self.phase = Phase.JOIN
        if self.phase is Phase.SETTLE and not self._leaving and not self._coming:
            self.phase = Phase.STABLE
            if self._again:
                self._begin()

    def _refused(self, error: int, what: str, now_ms: int) -> None:
        if error in FENCED:
            self._lose()
            if error == Error.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self._begin()
        elif error in PASSING:
            self.failed(now_ms)
        else:
            self.fail(group_error(error, what))

    def _lose(self) -> None:
        """Another may have what was ours."""
        self._lost = self.owned
        self._leaving = self._coming = NONE
        self._memory = (NONE, NO_GENERATION)
        self.generation = NO_GENERATION

    def fail(self, error: RivvenError) -> None:
        """There is no way back: the caller hears why."""
        self._lose()
        self.failure, self.phase = error, Phase.GONE


def _understood(protocol: str, metadata: bytes) -> Subscription:
    """A member's subscription. For the eager sticky assignor what it had stands in its user data."""
    said = decode_subscription(metadata)
    if protocol != STICKY or not said.user_data:
        return said
    try:
        owned = decode_assignment(bytes(2) + said.user_data)
        (generation,) = GENERATION.unpack(said.user_data[-GENERATION.size :])
    except (Malformed, struct.error):
        return said  # only a memory: without it, nothing sticks
    return said._replace(owned=owned, generation=generation)

"""A small world round `Groups`: clients, a network that loses and delays, a disk that takes its time, and restarts.

Each client has one request under way, as real ones do; requests of different clients overtake one another. A client
that hears nothing gives up waiting and asks again. Whoever has not been answered for a whole session must assume that
the group goes on without it, and lets go of everything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from rivven.assign import (
    Subscription,
    assign_cooperative,
    assign_range,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from rivven.coordinator import (
    Alive,
    Answer,
    Commit,
    Committed,
    CommittedOffset,
    ConsumerAlive,
    ConsumerHeartbeat,
    DescribedGroup,
    Effect,
    GroupConfig,
    Groups,
    Heartbeat,
    Join,
    Joined,
    JoinedMember,
    Leave,
    Left,
    OffsetKey,
    Persist,
    Sync,
    Synced,
)
from rivven.errors import DiskFull, IllegalGeneration, MemberIdRequired, RebalanceInProgress, UnknownMember
from rivven.model import TopicPartition

GROUP = "g"
TOPICS = {"t": 5, "u": 2}
SESSION_MS, REBALANCE_MS = 10_000, 6_000
"""A rebalance does not wait for a session to end, so a static member may miss one and still be in the group."""
CONFIG = GroupConfig(
    initial_rebalance_delay_ms=0, consumer_session_timeout_ms=SESSION_MS, consumer_heartbeat_ms=1_000
)
ALL = frozenset(TopicPartition(topic, number) for topic, count in TOPICS.items() for number in range(count))


@dataclass
class Client:
    """What both protocols have in common."""

    name: str
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    held: frozenset[TopicPartition] = frozenset()
    alive: bool = True
    waiting: int | None = None
    """The reply it waits for."""
    asked: object = None
    sent_ms: int = 0
    heard_ms: int = 0
    """When it sent the last request that was answered."""

    @property
    def has_something(self) -> bool:
        return bool(self.held)

    def let_go(self) -> None:
        self.generation, self.held = -1, frozenset()

    def next_request(self) -> object:
        raise NotImplementedError

    def hear(self, result: object) -> None:
        raise NotImplementedError


@dataclass
class ClassicClient(Client):
    """Joins, syncs, keeps in touch; lets go of everything before it joins again.

    A cooperative one says instead what it has, and lets go only of what it is no longer given, to join again at once.
    """

    synced: bool = False
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False
    topics: tuple[str, ...] = ("t", "u")
    rebalance_ms: int = REBALANCE_MS
    cooperative: bool = False
    joins: bool = True
    claimed: frozenset[TopicPartition] = frozenset()
    """What it said to have when it joined; it may have lost that since, and then has to say so."""

    def let_go(self) -> None:
        self.generation, self.held, self.synced, self.joins = -1, frozenset(), False, True

    def join_again(self) -> None:
        """A cooperative member keeps what it has, and a commit that came too early does not hurry it."""
        self.joins = self.joins or not isinstance(self.asked, Commit)
        if not self.cooperative:
            self.let_go()

    def next_request(self) -> object:
        if self.joins:
            self.claimed, owned = self.held, tuple(sorted(self.held))
            metadata = encode_subscription(Subscription(self.topics, owned=owned, generation=self.generation))
            if not owned:
                metadata = encode_subscription(Subscription(self.topics))
            timeouts = (SESSION_MS, self.rebalance_ms)
            protocols = (("cooperative-sticky" if self.cooperative else "range", metadata),)
            return Join(GROUP, self.member_id, self.instance_id, self.name, "", "consumer", protocols, *timeouts)
        if not self.synced:
            return Sync(GROUP, self.generation, self.member_id, self.instance_id, assignments=self._assignments())
        return Heartbeat(GROUP, self.generation, self.member_id, self.instance_id)

    def _assignments(self) -> tuple[tuple[str, bytes], ...]:
        if self.skip_assignment:
            return ()
        wanted = {one.member_id: decode_subscription(one.metadata) for one in self.members}
        assign = assign_cooperative if self.cooperative else assign_range
        return tuple((member, encode_assignment(given)) for member, given in assign(wanted, TOPICS).items())

    def hear(self, result: object) -> None:
        match result:
            case Joined():
                self.member_id, self.generation, self.synced = result.member_id, result.generation, False
                self.joins = False
                self.members, self.skip_assignment = result.members, result.skip_assignment
            case Synced():
                given = frozenset(decode_assignment(result.assignment))
                self.joins = self.cooperative and bool((self.held | self.claimed) - given)
                self.synced, self.held = True, given
            case MemberIdRequired():
                self.member_id = result.facts["member"]
            case UnknownMember():
                self.let_go()
                self.member_id = ""
            case IllegalGeneration():
                self.let_go()
            case RebalanceInProgress():
                self.join_again()
            case Alive() | Committed() | DiskFull() | Left():
                pass
            case _:
                self.let_go()
                self.alive = False  # fenced: another has its place


@dataclass
class ConsumerClient(Client):
    """Lets go of what it is told to, some time later; takes on what is new after that."""

    target: frozenset[TopicPartition] = frozenset()
    say_all: bool = True

    @property
    def has_something(self) -> bool:
        """Or has been told to take it on."""
        return bool(self.held or self.target)

    def let_go(self) -> None:
        self.generation, self.held, self.target, self.say_all = 0, frozenset(), frozenset(), True

    def next_request(self) -> object:
        self.generation = max(self.generation, 0)
        if self.generation == 0:
            self.let_go()
            return ConsumerHeartbeat(
                GROUP, self.name, 0, rebalance_timeout_ms=3_600_000, topics=("t", "u"), owned=frozenset()
            )
        owned, self.say_all = (self.held if self.say_all else None), False
        return ConsumerHeartbeat(GROUP, self.name, self.generation, owned=owned)

    def work(self) -> None:
        if self.held != self.target:
            self.held, self.say_all = self.target, True

    def hear(self, result: object) -> None:
        match result:
            case ConsumerAlive():
                self.generation = result.member_epoch
                if result.assignment is not None:
                    self.target = result.assignment
                    # It may be told to drop what it never took. Unless it says that nothing is left to do, the group
                    # waits for it as long as its rebalance timeout: only the client knows whether it is about to.
                    self.say_all = self.say_all or self.held == self.target
            case DiskFull():
                self.say_all = True
            case Committed():
                pass
            case _:
                self.let_go()


@dataclass
class World:
    clients: list[Client] = field(default_factory=list)
    now_ms: int = 1_000_000
    seed: int = 0
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    requests: deque[tuple[Client, int, object]] = field(default_factory=deque)
    answers: deque[tuple[Client, int, object]] = field(default_factory=deque)
    writes: deque[Persist] = field(default_factory=deque)
    asked: dict[int, Client] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    replies: int = 0
    offsets: int = 0
    highest: dict[OffsetKey, int] = field(default_factory=dict)
    across_generations: bool = False
    """Whether a partition has one owner at any time, rather than one in each generation."""
    groups: Groups = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.seed += 1
        self.groups = Groups(CONFIG, Random(self.seed))
        self.groups.topics_changed(TOPICS)
        for key, value in self.log:
            self.groups.replay(key, value)
        self.groups.recall(self.now_ms)

    # What clients do

    def send(self, client: Client, request: object) -> None:
        assert client.waiting is None
        self.replies += 1
        client.waiting, client.asked, client.sent_ms = self.replies, request, self.now_ms
        self.requests.append((client, self.replies, request))

    def act(self, client: Client) -> None:
        if client.alive and client.waiting is None:
            self.send(client, client.next_request())

    def commit(self, client: Client) -> None:
        """Commits are numbered in the order in which they are made, so none may ever undo another."""
        if client.alive and client.waiting is None and client.held:
            self.offsets += 1
            what = ((min(client.held), CommittedOffset(self.offsets, committed_ms=self.now_ms)),)
            self.send(client, Commit(GROUP, what, client.member_id, client.instance_id, client.generation))

    def leave(self, client: Client) -> None:
        if client.alive and client.waiting is None and client.member_id and client.generation >= 0:
            self.send(client, Leave(GROUP, ((client.member_id, None),)))
            client.let_go()
            client.alive = False

    def give_up_waiting(self, client: Client) -> None:
        client.waiting = None
        if isinstance(client, ConsumerClient):
            client.say_all = True

    # The network

    def deliver_request(self, index: int) -> None:
        client, reply_id, request = self.requests[index]
        if any(other is client for other, _, _ in list(self.requests)[:index]):
            return  # one client's requests keep their order
        del self.requests[index]
        self.asked[reply_id] = client
        self.perform(self.groups.ask(request, reply_id, self.now_ms))  # type: ignore[arg-type]

    def deliver_answer(self, index: int) -> None:
        client, reply_id, result = self.answers[index]
        del self.answers[index]
        if client.waiting == reply_id:
            client.waiting, client.heard_ms = None, client.sent_ms
            if client.alive:
                client.hear(result)
                self.lapse()  # an answer to what was asked a session ago says nothing about now

    def lose_request(self, index: int) -> None:
        client, reply_id, _ = self.requests[index]
        del self.requests[index]
        if client.waiting == reply_id:
            self.give_up_waiting(client)

    def lose_answer(self, index: int) -> None:
        client, reply_id, _ = self.answers[index]
        del self.answers[index]
        if client.waiting == reply_id:
            self.give_up_waiting(client)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.reply_id not in self.answered, "answered twice"
                self.answered.add(effect.reply_id)
                self.answers.append((self.asked[effect.reply_id], effect.reply_id, effect.result))
            else:
                self.writes.append(effect)

    # The disk

    def write(self) -> None:
        write = self.writes.popleft()
        self.log += write.records
        self.perform(self.groups.persisted(write.token, self.now_ms))

    def fail_write(self) -> None:
        write = self.writes.popleft()
        self.perform(self.groups.failed(write.token, DiskFull(wanted_bytes=1, path="log"), self.now_ms))

    def restart(self) -> None:
        self.requests.clear()
        self.answers.clear()
        self.writes.clear()
        before = {name: self.groups.offsets.of_group(name) for name in self.groups.offsets.groups()}
        self.begin()
        assert before == {name: self.groups.offsets.of_group(name) for name in self.groups.offsets.groups()}
        for client in self.clients:
            if client.waiting is not None:
                self.give_up_waiting(client)

    # Time

    def pass_time(self, step_ms: int) -> None:
        end_ms = self.now_ms + step_ms
        while (due_ms := self.groups.due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.lapse()
            self.perform(self.groups.tick(self.now_ms))
        self.now_ms = end_ms
        self.lapse()

    def lapse(self) -> None:
        for client in self.clients:
            if client.has_something and self.now_ms >= client.heard_ms + SESSION_MS:
                client.let_go()

    # What must hold

    def check_one_owner(self, *, across_generations: bool) -> None:
        owners: dict[object, str] = {}
        for client in self.clients:
            for partition in client.held:
                key = partition if across_generations else (client.generation, partition)
                assert key not in owners, f"{key} is held by {owners[key]} and {client.name}"
                owners[key] = client.name

    def check_offsets_only_grow(self) -> None:
        for key in self.groups.offsets.keys_of_group(GROUP):
            committed = self.groups.offsets.get(key)
            assert committed is not None
            assert committed.offset >= self.highest.get(key, 0), f"{key} went back to {committed.offset}"
            self.highest[key] = committed.offset

    def serve(self, without: Client | None = None) -> None:
        """Everything under way arrives and is written, but for what concerns one client."""
        while self.writes or self._of_others(self.requests, without) or self._of_others(self.answers, without):
            while self.writes:
                self.write()
            for queue, deliver in ((self.requests, self.deliver_request), (self.answers, self.deliver_answer)):
                for index in self._of_others(queue, without)[:1]:
                    deliver(index)
            self.check()

    @staticmethod
    def _of_others(queue: deque[tuple[Client, int, object]], without: Client | None) -> list[int]:
        return [index for index, (client, _, _) in enumerate(queue) if client is not without]

    def go_on(self, rounds: int, without: Client | None = None) -> None:
        """Nothing is lost and everybody does its part, but for one client that hears and says nothing."""
        for _ in range(rounds):
            for client in self.clients:
                if client is not without:
                    self.act(client)
                    self.serve(without)
                    self.commit(client)
                    self.serve(without)
                    if isinstance(client, ConsumerClient):
                        client.work()
            self.pass_time(1_000)
            self.check()

    def check(self) -> None:
        self.check_one_owner(across_generations=self.across_generations)
        self.check_offsets_only_grow()

    def settle(self) -> None:
        """Everybody is heard again; all must come to rest, each partition with somebody."""
        self.go_on(90)
        living = [client for client in self.clients if client.alive]
        held = [partition for client in living for partition in client.held]
        assert len(held) == len(set(held))
        assert not living or set(held) == ALL, [(client.name, sorted(client.held)) for client in self.clients]
        group = self.groups.describe(GROUP) if living else None
        if isinstance(group, DescribedGroup):
            assert {client.generation for client in living} == {group.generation}
            assert {client.member_id for client in living} == {member.member_id for member in group.members}

"""A small world round `Transactions`: producers and their zombies, owners with tasks, a network that delays, doubles
and loses, a disk that takes its time or fails, markers written one by one, and crashes anywhere in between.

Every transaction has a number of its own, which its writes carry. Partitions are lists of writes and markers, so what
became of a transaction is read from them as a reader of committed data would.

Producers of version 1 speak in order over one connection and never leave a request behind: what happens otherwise is
the flaw that version 2 exists for.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from random import Random

from rivven.coordinator import (
    AbortTxn,
    Added,
    AddPartitions,
    BeginTxn,
    Begun,
    Decide,
    Decided,
    Ended,
    EndTxn,
    Initialized,
    InitProducer,
    Registered,
    RegisterOwner,
    Transactions,
    TxnAnswer,
    TxnConfig,
    TxnPersist,
    WriteMarkers,
    native_id,
)
from rivven.errors import (
    ConcurrentTransactions,
    DecisionRefused,
    DiskFull,
    InvalidTransactionState,
    RivvenError,
)
from rivven.model import TopicPartition

TIMEOUT_MS = 10_000
PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))
OWNER = "query"


@dataclass(eq=False)
class Sent:
    client: Client
    request: object
    write_to: TopicPartition | None = None
    """The batch that is appended if the partition can be added."""
    number: int = 0
    """Of the transaction that the client means."""


@dataclass(eq=False)
class Client:
    """Has one request under way, and is told in `next` what it might do."""

    alive: bool = True
    waiting: Sent | None = None
    number: int = 0
    keeps_order: bool = False

    def hear(self, sent: Sent, result: object) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class Instance(Client):
    """One instance of a Kafka producer; several may believe that they have the same transactional id."""

    name: str = ""
    version: int = 2
    producer_id: int = -1
    epoch: int = -1
    ending: bool | None = None

    def next(self, world: World, what: str, partition: TopicPartition) -> Sent | None:
        if self.producer_id < 0:
            return Sent(self, InitProducer(self.name, TIMEOUT_MS))
        me = (self.name, self.producer_id, self.epoch)
        if self.ending is None and what == "write":
            self.number = self.number or world.new_number()
            return Sent(self, AddPartitions(*me, (partition,), version=self.version), partition, self.number)
        if self.ending is None and self.number:
            self.ending = what == "commit"
        if self.ending is None:
            return None
        if self.ending:
            world.may_commit.add(self.number)
        return Sent(self, EndTxn(*me, self.ending, self.version), number=self.number)

    def hear(self, sent: Sent, result: object) -> None:
        match sent.request, result:
            case _, ConcurrentTransactions() | DiskFull():
                pass
            case InitProducer(), Initialized():
                self.producer_id, self.epoch = result.producer_id, result.producer_epoch
            case AddPartitions(), Added():
                pass
            case AddPartitions(), _ if self.version == 2:
                self.ending = False
            case EndTxn(), Ended():
                self.producer_id, self.epoch = result.producer_id, result.producer_epoch
                self.number, self.ending = 0, None
            case EndTxn(), InvalidTransactionState() if self.version == 2 and self.ending:
                self.ending = False
            case _:
                self.alive = False


@dataclass(eq=False)
class Task(Client):
    """An attempt of an owner's task: begins, writes, and waits for the owner."""

    producer_id: int = 0
    owner_epoch: int = 0
    sequence: int = 0
    begun: bool = False
    written: set[TopicPartition] = field(default_factory=set)

    def next(self, _: World, what: str, partition: TopicPartition) -> Sent | None:
        label = f"attempt {self.number}"
        if not self.begun:
            registration = (OWNER, self.owner_epoch, self.sequence)
            return Sent(self, BeginTxn(self.producer_id, 0, label, TIMEOUT_MS, *registration), number=self.number)
        me = (native_id(self.producer_id), self.producer_id, 0)
        if what == "abort":
            return Sent(self, EndTxn(*me, False, 1, label), number=self.number)
        return Sent(self, AddPartitions(*me, (partition,), label), partition, self.number)

    def hear(self, sent: Sent, result: object) -> None:
        match result:
            case Begun():
                self.begun = True
            case Added():
                assert sent.write_to is not None
                self.written.add(sent.write_to)
            case ConcurrentTransactions() | DiskFull():
                pass
            case _:
                self.alive = False


@dataclass(eq=False)
class Driver(Client):
    """One run of the owner; an earlier one may go on without knowing that it has been replaced."""

    owner_epoch: int = -1
    sequence: int = 0
    tasks: list[Task] = field(default_factory=list)

    def next(self, world: World, what: str, _: TopicPartition) -> Sent | None:
        if self.owner_epoch < 0:
            return Sent(self, RegisterOwner(OWNER))
        mine = [task for task in self.tasks if task.sequence == self.sequence and task.written]
        if what == "write" or (what == "commit" and not mine):
            self.tasks.append(world.new_task(self))
            return None
        chosen = mine if what == "commit" else mine[1:]
        for task in chosen:
            world.may_commit.add(task.number)
        committing = tuple((task.producer_id, 0) for task in chosen)
        return Sent(self, Decide(OWNER, self.owner_epoch, self.sequence, committing))

    def hear(self, _: Sent, result: object) -> None:
        match result:
            case Registered():
                self.owner_epoch, self.sequence = result.owner_epoch, result.decided + 1
            case Decided():
                self.sequence = max(self.sequence, result.sequence + 1)
            case ConcurrentTransactions() | DiskFull() | DecisionRefused():
                pass
            case _:
                self.alive = False


@dataclass
class Partition:
    items: list[tuple[str, int, int]] = field(default_factory=list)
    """`write`, producer id, transaction; or `commit` or `abort`, producer id, 0."""
    epochs: dict[int, int] = field(default_factory=dict)

    def append(self, kind: str, producer_id: int, epoch: int, number: int = 0) -> None:
        if kind == "write":
            assert epoch >= self.epochs.get(producer_id, 0), "a fenced epoch writes"
        self.epochs[producer_id] = max(epoch, self.epochs.get(producer_id, 0))
        self.items.append((kind, producer_id, number))

    def verdicts(self) -> dict[int, set[str]]:
        """What became of each transaction that wrote here: `commit`, `abort`, or `open`, and never two of them."""
        found: dict[int, set[str]] = defaultdict(set)
        open_: dict[int, set[int]] = defaultdict(set)
        for kind, producer_id, number in self.items:
            if kind == "write":
                open_[producer_id].add(number)
            else:
                for one in open_.pop(producer_id, ()):
                    found[one].add(kind)
        for numbers in open_.values():
            for one in numbers:
                found[one].add("open")
        return found


@dataclass
class World:
    clients: list[Client] = field(default_factory=list)
    network: list[Sent] = field(default_factory=list)
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    writes: list[TxnPersist] = field(default_factory=list)
    marking: list[tuple[WriteMarkers, list[TopicPartition]]] = field(default_factory=list)
    partitions: dict[TopicPartition, Partition] = field(
        default_factory=lambda: {one: Partition() for one in PARTITIONS}
    )
    asked: dict[int, Sent] = field(default_factory=dict)
    holders: dict[str, Client] = field(default_factory=dict)
    """Who was last given each transactional id, and the owner."""
    may_commit: set[int] = field(default_factory=set)
    promised: dict[int, str] = field(default_factory=dict)
    decided: dict[int, object] = field(default_factory=dict)
    now_ms: int = 1_000_000
    replies: int = 0
    numbers: int = 0
    producer_ids: count[int] = field(default_factory=lambda: count(1))
    txns: Transactions = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.txns = Transactions(TxnConfig(), lambda: next(self.producer_ids))
        for key, value in self.log:
            self.txns.replay(key, value)
        self.perform(self.txns.recall(self.now_ms))

    def new_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def new_task(self, driver: Driver) -> Task:
        facts = (next(self.producer_ids), driver.owner_epoch, driver.sequence)
        task = Task(True, None, self.new_number(), False, *facts)
        self.clients.append(task)
        return task

    # Clients and the network

    def act(self, client: Client, what: str, partition: TopicPartition) -> None:
        if client.alive and client.waiting is None:
            sent = client.next(self, what, partition)  # type: ignore[attr-defined]
            if sent is not None:
                client.waiting = sent
                self.network.append(sent)

    def give_up_waiting(self, client: Client) -> None:
        """It will ask again; what it asked may still arrive."""
        if not client.keeps_order:
            client.waiting = None

    def deliver(self, index: int, *, keep: bool = False) -> None:
        sent = self.network[index]
        if not (keep and not sent.client.keeps_order):
            del self.network[index]
        self.replies += 1
        self.asked[self.replies] = sent
        self.perform(self.txns.ask(sent.request, self.replies, self.now_ms))  # type: ignore[arg-type]

    def lose(self, index: int) -> None:
        sent = self.network[index]
        if not sent.client.keeps_order:
            del self.network[index]

    def abort_by_operator(self, name: str) -> None:
        self.replies += 1
        self.asked[self.replies] = Sent(Client(), None)
        self.perform(self.txns.ask(AbortTxn(name), self.replies, self.now_ms))

    def perform(self, effects: list) -> None:
        for effect in effects:
            match effect:
                case TxnAnswer(reply_id, result):
                    self.answered(self.asked.pop(reply_id), result)
                case TxnPersist():
                    self.writes.append(effect)
                case WriteMarkers():
                    self.marking.append((effect, list(effect.partitions)))

    def answered(self, sent: Sent, result: object) -> None:
        client = sent.client
        if isinstance(result, Initialized | Registered):
            self.holders[client.name if isinstance(client, Instance) else OWNER] = client
        elif not isinstance(result, RivvenError) and isinstance(client, Instance):
            assert self.holders[client.name] is client, "a fenced producer was told that it has done something"
        if isinstance(result, Ended) and isinstance(sent.request, EndTxn):
            self.promise(sent.number, "commit" if sent.request.commit else "abort")
        if isinstance(result, Decided):
            assert self.holders[OWNER] is client, "a fenced owner was told that it has decided"
            assert result.committed is not None
            assert self.decided.setdefault(result.sequence, set(result.committed)) == set(result.committed)
        if sent.write_to is not None and isinstance(result, Added):
            result = self.write_batch(sent)
        if client.waiting is sent and client.alive:
            client.waiting = None
            client.hear(sent, result)

    def promise(self, number: int, verdict: str) -> None:
        assert self.promised.setdefault(number, verdict) == verdict

    def write_batch(self, sent: Sent) -> object:
        request = sent.request
        assert isinstance(request, AddPartitions)
        assert sent.write_to is not None
        producer = (request.producer_id, request.producer_epoch)
        try:
            self.txns.admit(*producer, sent.write_to, self.now_ms, label=request.label)
        except RivvenError as error:
            return error
        self.partitions[sent.write_to].append("write", *producer, sent.number)
        return Added()

    # The disk

    def write(self, index: int) -> None:
        """Batches of one partition of the topic keep their order; those of others overtake them."""
        homes = [one.home for one in self.writes]
        index = homes.index(homes[index])
        write = self.writes.pop(index)
        self.log += write.records
        self.perform(self.txns.persisted(write.token, self.now_ms))

    def fail_write(self, index: int) -> None:
        homes = [one.home for one in self.writes]
        write = self.writes.pop(homes.index(homes[index]))
        error = DiskFull(wanted_bytes=1, path="log")
        self.perform(self.txns.failed(write.token, error, self.now_ms))

    def write_marker(self, index: int) -> None:
        effect, left = self.marking[index]
        if left:
            kind = "commit" if effect.commit else "abort"
            self.partitions[left.pop()].append(kind, effect.producer_id, effect.producer_epoch)
        if not left:
            del self.marking[index]
            self.perform(self.txns.marked(effect.token, self.now_ms))

    def fail_markers(self, index: int) -> None:
        effect, _ = self.marking.pop(index)
        error = DiskFull(wanted_bytes=1, path="log")
        self.perform(self.txns.failed(effect.token, error, self.now_ms))

    def crash(self, reached_disk: int) -> None:
        """What was being written may have reached the disk without anybody hearing of it."""
        for write in self.writes[:reached_disk]:
            self.log += write.records
        self.writes.clear()
        self.marking.clear()
        for sent in self.asked.values():
            if sent.client.waiting is sent:
                sent.client.waiting = None
                if sent.client.keeps_order:
                    sent.client.alive = False  # it cannot know what became of its request
        self.asked.clear()
        self.begin()

    # Time

    def pass_time(self, step_ms: int) -> None:
        end_ms = self.now_ms + step_ms
        while (due_ms := self.txns.due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.perform(self.txns.tick(self.now_ms))
        self.now_ms = end_ms

    def settle(self) -> None:
        """Nothing fails any more, and nobody begins anything: all must come to an end by itself."""
        for _ in range(8):
            while self.network or self.writes or self.marking:
                while self.writes:
                    self.write(0)
                while self.marking:
                    self.write_marker(0)
                if self.network:
                    self.deliver(0)
            self.pass_time(TIMEOUT_MS)
        assert self.txns.open_count() == 0
        assert not self.asked, "somebody was never answered"
        open_ = [number for number, verdicts in self.verdicts().items() if "open" in verdicts]
        assert not open_, f"transactions {open_} are hanging"

    # What must hold

    def verdicts(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = defaultdict(set)
        for partition in self.partitions.values():
            for number, verdicts in partition.verdicts().items():
                found[number] |= verdicts
        return found

    def check(self) -> None:
        sequences = {task.number: task for task in self.clients if isinstance(task, Task)}
        for number, verdicts in self.verdicts().items():
            assert not {"commit", "abort"} <= verdicts, f"transaction {number} is torn"
            if "commit" in verdicts:
                assert number in self.may_commit, f"nobody asked for transaction {number} to commit"
                task = sequences.get(number)
                if task is not None and task.sequence in self.decided:
                    assert (task.producer_id, 0) in self.decided[task.sequence]  # type: ignore[operator]
            if "abort" in verdicts:
                assert self.promised.get(number) != "commit", f"transaction {number} was told to be committed"
                task = sequences.get(number)
                if task is not None and task.sequence in self.decided:
                    assert (task.producer_id, 0) not in self.decided[task.sequence]  # type: ignore[operator]
            if "commit" in verdicts:
                assert self.promised.get(number) != "abort", f"transaction {number} was told to be aborted"


MOVES = {
    "act": 30,
    "deliver": 25,
    "write": 30,
    "mark": 30,
    "give up": 6,
    "repeat": 6,
    "lose": 1,
    "fail write": 2,
    "fail markers": 1,
    "moment": 4,
    "long while": 1,
    "crash": 1,
    "die": 1,
    "come": 3,
    "operator": 1,
}
CLIENTS_MAX = 6


def play(rng: Random, steps: int, *, owners: bool) -> World:
    """Let chance have its way for so many steps; what must hold is looked at on the way."""
    world = World()
    moves, weights = list(MOVES), list(MOVES.values())
    for step in range(steps):
        _move(world, rng, rng.choices(moves, weights)[0], owners=owners)
        if step % 25 == 0:
            world.check()
    world.check()
    return world


def _move(world: World, rng: Random, move: str, *, owners: bool) -> None:
    alive = [client for client in world.clients if client.alive]
    match move:
        case "act" if alive:
            what = rng.choice(["write", "write", "write", "commit", "commit", "abort"])
            world.act(rng.choice(alive[-CLIENTS_MAX:]), what, rng.choice(PARTITIONS))
        case "deliver" | "repeat" if world.network:
            world.deliver(rng.randrange(len(world.network)), keep=move == "repeat")
        case "write" if world.writes:
            world.write(rng.randrange(len(world.writes)))
        case "mark" if world.marking:
            world.write_marker(rng.randrange(len(world.marking)))
        case "give up" if alive:
            world.give_up_waiting(rng.choice(alive))
        case "lose" if world.network:
            world.lose(rng.randrange(len(world.network)))
        case "fail write" if world.writes:
            world.fail_write(rng.randrange(len(world.writes)))
        case "fail markers" if world.marking:
            world.fail_markers(rng.randrange(len(world.marking)))
        case "moment":
            world.pass_time(rng.randrange(200))
        case "long while":
            world.pass_time(rng.randrange(TIMEOUT_MS))
        case "crash":
            world.crash(rng.randrange(4))
        case "die" if alive:
            rng.choice(alive).alive = False
        case "come" if owners:
            drivers = sum(isinstance(client, Driver) for client in alive)
            if drivers == 0 or rng.random() < 0.1:
                world.clients.append(Driver())
        case "come" if len(alive) < CLIENTS_MAX:
            version = rng.choice([1, 2, 2])
            world.clients.append(Instance(name=rng.choice("xy"), version=version, keeps_order=version == 1))
        case "operator" if not owners:
            world.abort_by_operator(rng.choice("xy"))

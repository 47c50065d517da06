"""What clients did and saw: the vocabulary of every history, whether simulated or run with real processes.

A `Chronicle` takes down facts as clients learn them, each with its place in the order of all facts, so that "before"
means that one had ended when the other began. The facts:

| fact | who takes it down | what it says |
|---|---|---|
| `Send` | producers | one value for one partition; under a transaction where it has a `txn` |
| `Poll` | readers | the records found from a position on, and the bounds that were told |
| `Commit`, `Look` | consumers | a group's offset as it was to be kept, and as it was read |
| `Trim` | the auditor | records before an offset, to be deleted |
| `Txn` | transactional producers | a transaction attempt: what it wrote, which offsets it took, how it was to end |
| `Decision` | owners | which attempts of an owner's sequence were to commit, and the answer |
| `Loop` | consume-transform-produce loops | that each input is to have one output, and which group counts them |
| `Seat` | members of groups | the partitions that a member was given in a generation |
| `Final` | the last reader | all there is in a partition at rest |

Invariant: a fact that is open (its answer never came) may have happened or not, at any time up to its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import NamedTuple

from rivven.model import TopicPartition

FOREVER = 1 << 62
"""The end of what may still happen."""
NOWHERE = TopicPartition("", 0)
Place = tuple[TopicPartition, int]
"""A record: its partition and its offset."""
Writer = tuple[int, int]
"""A producer's id and epoch."""


class Fate(Enum):
    OPEN = auto()
    """No answer: it may have been done or not."""
    DONE = auto()
    REFUSED = auto()
    """An error came back: it was not done, and will not be."""


@dataclass(slots=True)
class Act:
    """Something a client asked for: when it began and ended in the order of facts, and what became of it."""

    begun: int
    ended: int = FOREVER
    fate: Fate = Fate.OPEN


@dataclass(slots=True, eq=False)
class Send(Act):
    """One attempt to publish one value. Several of one connection and partition stand in the order of sending."""

    value: bytes = b""
    connection: str = ""
    topic: str = ""
    partition: int | None = None
    """None where the broker chooses and has not said which."""
    offset: int = -1
    txn: Txn | None = None
    """The transaction it is part of. Then it is numbered: however often it is tried, it is there once at most."""
    source: Place | None = None
    """The input that it was made from, by a `Loop`."""

    @property
    def place(self) -> TopicPartition:
        assert self.partition is not None, "not known before it is done"
        return TopicPartition(self.topic, self.partition)


@dataclass(slots=True, eq=False)
class Txn(Act):
    """One attempt at a transaction. DONE: it was told to be committed. REFUSED: it was told to be aborted, or nobody
    ever asked for anything else."""

    name: str = ""
    writer: Writer = (-1, -1)
    writes: list[Send] = field(default_factory=list)
    offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    """The offsets of groups that are kept if it commits; only those that were acknowledged."""
    to_commit: bool = False
    """Whether its commit was ever asked for."""
    owner: str = ""
    sequence: int = -1

    @property
    def may_count(self) -> bool:
        """Whether anything of it may be shown to readers of committed data."""
        return self.to_commit and self.fate is not Fate.REFUSED


@dataclass(slots=True)
class Decision(Act):
    """An owner's word about one sequence. DONE: it was answered, whatever that answer says."""

    owner: str = ""
    sequence: int = -1
    naming: frozenset[Writer] = frozenset()
    committed: frozenset[Writer] | None = None
    """What the answer says is committed; None if it does not know any more."""
    repeated: bool = False


class Loop(NamedTuple):
    """Every record of the inputs below the group's offset has one record in the outputs, and no other has."""

    group: str
    inputs: tuple[TopicPartition, ...]
    output: str


class Seat(NamedTuple):
    """What a member of a group was told to read."""

    group: str
    generation: int
    member: str
    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class Commit(Act):
    """A group's offset, to be kept."""

    group: str = ""
    partition: TopicPartition = NOWHERE
    offset: int = 0


@dataclass(slots=True)
class Trim(Act):
    """Records before an offset, to be deleted."""

    partition: TopicPartition = NOWHERE
    offset: int = 0


class Poll(NamedTuple):
    """Records read from a position on, with the high watermark where the answer told it."""

    begun: int
    ended: int
    reader: str
    partition: TopicPartition
    position: int
    found: tuple[tuple[int, bytes], ...]
    high_watermark: int | None
    committed: bool = False
    """Whether only committed data was asked for."""
    last_stable: int | None = None


class Look(NamedTuple):
    """A group's offset as it was read; None where there was none."""

    begun: int
    ended: int
    group: str
    partition: TopicPartition
    offset: int | None


class Final(NamedTuple):
    """All there is in a partition when everything has come to rest."""

    start: int
    end: int
    found: dict[int, bytes]
    """Everything but markers, committed or not."""
    hidden: frozenset[int] = frozenset()
    """The offsets of what readers of committed data are not shown."""
    markers: frozenset[int] = frozenset()
    """The offsets of the ends of transactions."""
    last_stable: int | None = None

    @property
    def shown(self) -> dict[int, bytes]:
        """What readers of committed data see."""
        return {offset: value for offset, value in self.found.items() if offset not in self.hidden}


class Anomaly(NamedTuple):
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class Chronicle:
    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    trims: list[Trim] = field(default_factory=list)
    txns: list[Txn] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    seats: list[Seat] = field(default_factory=list)
    finals: dict[TopicPartition, Final] = field(default_factory=dict)
    final_offsets: dict[tuple[str, TopicPartition], int | None] = field(default_factory=dict)
    """The offsets of groups when everything has come to rest."""
    _ticks: Iterator[int] = field(default_factory=lambda: count(1))

    def tick(self) -> int:
        """The next place in the order of facts. Threads may ask for it at the same time."""
        return next(self._ticks)

    def send(self, value: bytes, topic: str, partition: int | None, txn: Txn | None = None) -> Send:
        fact = Send(self.tick(), value=value, topic=topic, partition=partition, txn=txn)
        self.sends.append(fact)
        if txn is not None:
            txn.writes.append(fact)
        return fact

    def txn(self, name: str, writer: Writer, owner: str = "", sequence: int = -1) -> Txn:
        fact = Txn(self.tick(), name=name, writer=writer, owner=owner, sequence=sequence)
        self.txns.append(fact)
        return fact

    def decision(self, owner: str, sequence: int, naming: frozenset[Writer]) -> Decision:
        fact = Decision(self.tick(), owner=owner, sequence=sequence, naming=naming)
        self.decisions.append(fact)
        return fact

    def commit(self, group: str, partition: TopicPartition, offset: int) -> Commit:
        fact = Commit(self.tick(), group=group, partition=partition, offset=offset)
        self.commits.append(fact)
        return fact

    def trim(self, partition: TopicPartition, offset: int) -> Trim:
        fact = Trim(self.tick(), partition=partition, offset=offset)
        self.trims.append(fact)
        return fact

    def end(self, act: Act, fate: Fate) -> None:
        """The answer has come. An act that stays open has no end: it may be on its way still."""
        act.fate = fate
        if fate is not Fate.OPEN:
            act.ended = self.tick()

    def life_ended(self) -> None:
        """The broker's process is gone, and with it every request it had: none of them happens after this."""
        now = self.tick()
        acts: list[Act] = [*self.commits, *self.trims]
        for act in acts:
            act.ended = min(act.ended, now)

    def trimmed_upto(self, partition: TopicPartition) -> int:
        """Below this offset records may have been deleted on demand."""
        return max((trim.offset for trim in self.trims if trim.partition == partition and kept(trim)), default=0)

    def duplicates(self) -> int:
        """How many records are there more than once: the price of a retry without sequence numbers."""
        return sum(len(offsets) - 1 for offsets in places_of(self).values())


def name(value: bytes | None) -> str:
    """A value as a report shows it: without what only makes it long."""
    return "nothing" if value is None else repr(value.rstrip(b".").decode(errors="replace"))


def kept(act: Act) -> bool:
    """Whether it was done, for all anybody knows."""
    return act.fate is not Fate.REFUSED


def places_of(chronicle: Chronicle) -> dict[bytes, list[tuple[TopicPartition, int]]]:
    """Where each value is at the end."""
    places: dict[bytes, list[tuple[TopicPartition, int]]] = defaultdict(list)
    for partition, final in chronicle.finals.items():
        for offset, value in final.found.items():
            places[value].append((partition, offset))
    return places


def seen(chronicle: Chronicle) -> Iterator[tuple[TopicPartition, int, bytes, str]]:
    """Every sight of a record by anybody: where, what, and who says so."""
    for poll in chronicle.polls:
        for offset, value in poll.found:
            yield poll.partition, offset, value, poll.reader
    for partition, final in chronicle.finals.items():
        for offset, value in final.found.items():
            yield partition, offset, value, "the last read"

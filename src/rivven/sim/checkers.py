"""What clients did and saw, and the anomalies that no history may hold.

A `Chronicle` takes down facts as clients learn them, each with its place in the order of all facts, so that "before"
means that one had ended when the other began. A checker is a function from the chronicle to the anomalies it finds:
it knows nothing of how the history came about, and a new promise is one more function in `CHECKERS`.
Invariant: a fact that is open (its answer never came) may have happened or not, at any time up to its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from rivven.model import TopicPartition

FOREVER = 1 << 62
"""The end of what may still happen."""
NOWHERE = TopicPartition("", 0)


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


@dataclass(slots=True)
class Send(Act):
    """One attempt to publish one value. Several of one connection and partition stand in the order of sending."""

    value: bytes = b""
    connection: str = ""
    topic: str = ""
    partition: int | None = None
    """None where the broker chooses and has not said which."""
    offset: int = -1

    @property
    def place(self) -> TopicPartition:
        assert self.partition is not None, "not known before it is done"
        return TopicPartition(self.topic, self.partition)


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
    finals: dict[TopicPartition, Final] = field(default_factory=dict)
    _ticks: int = 0

    def tick(self) -> int:
        """The next place in the order of facts."""
        self._ticks += 1
        return self._ticks

    def send(self, value: bytes, topic: str, partition: int | None) -> Send:
        fact = Send(self.tick(), value=value, topic=topic, partition=partition)
        self.sends.append(fact)
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


# The checkers


def lost_writes(chronicle: Chronicle) -> Iterator[Anomaly]:
    """What was acknowledged is there at the end, at the offset that was told."""
    for send in chronicle.sends:
        if send.fate is not Fate.DONE or (final := chronicle.finals.get(send.place)) is None:
            continue
        if send.offset >= final.start and final.found.get(send.offset) != send.value:
            there = final.found.get(send.offset)
            yield Anomaly(
                "lost write", f"{name(send.value)} acknowledged at {send.place} {send.offset}, there: {name(there)}"
            )


def taken_back(chronicle: Chronicle) -> Iterator[Anomaly]:
    """What any reader was shown is there at the end."""
    for poll in chronicle.polls:
        final = chronicle.finals.get(poll.partition)
        for offset, value in poll.found if final is not None else ():
            if final is not None and offset >= final.start and offset not in final.found:
                yield Anomaly(
                    "taken back", f"{name(value)} at {poll.partition} {offset}, seen by {poll.reader}, is gone"
                )


def inconsistent_offsets(chronicle: Chronicle) -> Iterator[Anomaly]:
    """One offset holds one value, whoever sends or reads it."""
    values: dict[tuple[TopicPartition, int], bytes] = {}
    told = ((send.place, send.offset, send.value, "its ack") for send in chronicle.sends if send.fate is Fate.DONE)
    for partition, offset, value, who in (*told, *seen(chronicle)):
        before = values.setdefault((partition, offset), value)
        if before != value:
            yield Anomaly(
                "inconsistent offsets", f"{partition} {offset}: {name(before)}, but {name(value)} says {who}"
            )


def spurious_offsets(chronicle: Chronicle) -> Iterator[Anomaly]:
    """An acknowledgement names a real offset."""
    for send in chronicle.sends:
        if send.fate is Fate.DONE and send.offset < 0:
            yield Anomaly("spurious offset", f"{name(send.value)} acknowledged at {send.place} {send.offset}")


def invented(chronicle: Chronicle) -> Iterator[Anomaly]:
    """Whatever is read was sent, to that partition, and not refused."""
    sent: dict[bytes, list[Send]] = defaultdict(list)
    for send in chronicle.sends:
        sent[send.value].append(send)
    for partition, offset, value, who in seen(chronicle):
        fitting = [
            send
            for send in sent.get(value, ())
            if kept(send) and send.topic == partition.topic and send.partition in (None, partition.partition)
        ]
        if not fitting:
            known = "was refused or sent elsewhere" if value in sent else "was never sent"
            yield Anomaly("invented", f"{who} saw {name(value)} at {partition} {offset}, which {known}")


def repeated(chronicle: Chronicle) -> Iterator[Anomaly]:
    """A value is there at most once for each attempt to send it."""
    attempts: dict[bytes, int] = defaultdict(int)
    for send in chronicle.sends:
        attempts[send.value] += kept(send)
    for value, places in places_of(chronicle).items():
        if len(places) > max(1, attempts[value]):
            yield Anomaly("duplicate", f"{name(value)} was tried {attempts[value]} times and is at {places}")


def unordered_sends(chronicle: Chronicle) -> Iterator[Anomaly]:
    """On one connection and to one partition, what was sent later has the higher offset."""
    last: dict[tuple[str, TopicPartition], Send] = {}
    for send in chronicle.sends:
        if send.fate is not Fate.DONE:
            continue
        before = last.get((send.connection, send.place))
        if before is not None and before.offset >= send.offset:
            order = f"{name(before.value)} at {before.offset}, then {name(send.value)} at {send.offset}"
            yield Anomaly("nonmonotonic send", f"{send.connection} to {send.place}: {order}")
        last[send.connection, send.place] = send


def skipping_polls(chronicle: Chronicle) -> Iterator[Anomaly]:
    """A poll brings what follows its position without a gap, but for what was deleted on demand."""
    for poll in chronicle.polls:
        expected = poll.position
        for offset, _ in poll.found:
            if offset < expected or (offset > expected and offset > chronicle.trimmed_upto(poll.partition)):
                yield Anomaly("poll skip", f"{poll.reader} at {poll.partition}: {offset} instead of {expected}")
                break
            expected = offset + 1


def watermark_regress(chronicle: Chronicle) -> Iterator[Anomaly]:
    """The high watermark never goes back, is above everything read, and covers whatever was acknowledged before."""
    ended: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for send in chronicle.sends:
        if send.fate is Fate.DONE:
            ended[send.place].append((send.ended, send.offset + 1))
    for poll in chronicle.polls:
        mark = max([poll.high_watermark or 0, *(offset + 1 for offset, _ in poll.found)])
        ended[poll.partition].append((poll.ended, mark))
        if poll.high_watermark is not None and mark > poll.high_watermark:
            yield Anomaly(
                "watermark", f"{poll.reader} read {poll.partition} up to {mark}, above {poll.high_watermark}"
            )
    told = sorted((poll for poll in chronicle.polls if poll.high_watermark is not None), key=lambda poll: poll.begun)
    highest: dict[TopicPartition, int] = defaultdict(int)
    for marks in ended.values():
        marks.sort(reverse=True)
    for poll in told:
        marks = ended[poll.partition]
        while marks and marks[-1][0] < poll.begun:
            highest[poll.partition] = max(highest[poll.partition], marks.pop()[1])
        if (poll.high_watermark or 0) < highest[poll.partition]:
            was = highest[poll.partition]
            yield Anomaly(
                "watermark", f"{poll.partition}: {poll.high_watermark} told to {poll.reader}, was {was} before"
            )


def committed_regress(chronicle: Chronicle) -> Iterator[Anomaly]:
    """A group's offset reads as one that was committed, and no later commit had ended when the read began."""
    commits: dict[tuple[str, TopicPartition], list[Commit]] = defaultdict(list)
    for commit in chronicle.commits:
        if kept(commit):
            commits[commit.group, commit.partition].append(commit)
    # What was read once has happened by then, whether its answer came or not.
    proven: dict[int, int] = {}
    for look in sorted(chronicle.looks, key=lambda look: look.ended):
        of_group = commits[look.group, look.partition]
        settled = [
            commit
            for commit in of_group
            if (commit.ended if commit.fate is Fate.DONE else proven.get(commit.begun, FOREVER)) < look.begun
        ]
        possible = [commit for commit in of_group if commit.offset == look.offset and commit.begun < look.ended]
        fresh = [commit for commit in possible if not any(commit.ended < later.begun for later in settled)]
        if (look.offset is None and settled) or (look.offset is not None and not fresh):
            newest = max((commit.offset for commit in settled), default=None)
            text = f"{look.group} at {look.partition} reads {look.offset}, after a commit of {newest}"
            yield Anomaly("committed offset regress", text)
        if len(fresh) == 1:
            proven.setdefault(fresh[0].begun, look.ended)


def holes(chronicle: Chronicle) -> Iterator[Anomaly]:
    """Offsets are dense from the start on, and the start moved only as far as somebody asked."""
    for partition, final in chronicle.finals.items():
        missing = [offset for offset in range(final.start, final.end) if offset not in final.found]
        if missing:
            yield Anomaly("hole", f"{partition} has no offsets {missing[:5]} between {final.start} and {final.end}")
        trimmed = [trim for trim in chronicle.trims if trim.partition == partition]
        asked = max((trim.offset for trim in trimmed if kept(trim)), default=0)
        least = max((trim.offset for trim in trimmed if trim.fate is Fate.DONE), default=0)
        if not least <= final.start <= asked:
            text = f"{partition} starts at {final.start}; deleted upto {least} for certain and {asked} at most"
            yield Anomaly("start", text)


Checker = Callable[[Chronicle], Iterator[Anomaly]]
CHECKERS: tuple[Checker, ...] = (
    lost_writes,
    taken_back,
    inconsistent_offsets,
    spurious_offsets,
    invented,
    repeated,
    unordered_sends,
    skipping_polls,
    watermark_regress,
    committed_regress,
    holes,
)


def examine(chronicle: Chronicle, checkers: tuple[Checker, ...] = CHECKERS) -> list[Anomaly]:
    """Every anomaly that the checkers find."""
    return [anomaly for checker in checkers for anomaly in checker(chronicle)]

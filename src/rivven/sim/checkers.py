"""What no history may hold, for records, offsets and watermarks; and `examine`, which asks all checkers.

A checker is a function from the chronicle to the anomalies it finds: it knows nothing of how the history came about,
and a new promise is one more function in `CHECKERS`. Those about transactions and decisions are in
`txn_checkers.py`, those about groups in `group_checkers.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from rivven.model import TopicPartition

from .chronicle import FOREVER, Anomaly, Chronicle, Commit, Fate, Final, Poll, Send, kept, name, places_of, seen
from .group_checkers import GROUP_CHECKERS
from .txn_checkers import TXN_CHECKERS

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
    """A poll brings what follows its position in order and without a gap, but for what was deleted on demand, for
    markers, and, where committed data was asked for, for what is not committed."""
    for poll in chronicle.polls:
        expected = poll.position
        trimmed = chronicle.trimmed_upto(poll.partition)
        passed = passed_over(poll, chronicle.finals.get(poll.partition))
        for offset, _ in poll.found:
            if offset < expected:
                yield Anomaly(
                    "nonmonotonic poll", f"{poll.reader} at {poll.partition}: {offset} after {expected - 1}"
                )
                break
            if any(gap >= trimmed and gap not in passed for gap in range(expected, offset)):
                yield Anomaly("poll skip", f"{poll.reader} at {poll.partition}: {offset} instead of {expected}")
                break
            expected = offset + 1


def passed_over(poll: Poll, final: Final | None) -> frozenset[int]:
    """The offsets that a reader is not shown."""
    if final is None:
        return frozenset()
    return final.markers | final.hidden if poll.committed else final.markers


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
    for commit in (*chronicle.commits, *offsets_of_transactions(chronicle)):
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


def offsets_of_transactions(chronicle: Chronicle) -> Iterator[Commit]:
    """What transactions commit for groups, as if somebody had committed it by hand."""
    for txn in chronicle.txns:
        fate = txn.fate if txn.may_count else Fate.REFUSED
        for (group, partition), offset in txn.offsets.items():
            yield Commit(txn.begun, txn.ended, fate, group, partition, offset)


def holes(chronicle: Chronicle) -> Iterator[Anomaly]:
    """Offsets are dense from the start on, and the start moved only as far as somebody asked."""
    for partition, final in chronicle.finals.items():
        there = final.found.keys() | final.markers
        missing = [offset for offset in range(final.start, final.end) if offset not in there]
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
    *TXN_CHECKERS,
    *GROUP_CHECKERS,
)


def examine(chronicle: Chronicle, checkers: tuple[Checker, ...] = CHECKERS) -> list[Anomaly]:
    """Every anomaly that the checkers find."""
    return [anomaly for checker in checkers for anomaly in checker(chronicle)]

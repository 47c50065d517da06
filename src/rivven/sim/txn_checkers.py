"""What no history may hold, for transactions, the offsets they take along, and decisions over many of them.

Readers of committed data are shown a transaction wholly or not at all, and for ever: so what a poll shows is compared
with what is there at the end, and what is there at the end with what producers and owners were told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from rivven.model import TopicPartition

from .chronicle import Anomaly, Chronicle, Decision, Fate, Place, Send, Txn, Writer, name


def shown_values(chronicle: Chronicle) -> dict[bytes, list[Place]]:
    """Where each value is that readers of committed data see at the end."""
    places: dict[bytes, list[Place]] = defaultdict(list)
    for partition, final in chronicle.finals.items():
        for offset, value in final.shown.items():
            places[value].append((partition, offset))
    return places


def aborted_reads(chronicle: Chronicle) -> Iterator[Anomaly]:
    """Readers of committed data never see what was aborted, or what nobody has asked to commit."""
    writes = {send.value: send.txn for send in chronicle.sends if send.txn is not None}

    def blame(partition: TopicPartition, offset: int, value: bytes, who: str) -> Iterator[Anomaly]:
        txn = writes.get(value)
        if txn is not None and not txn.may_count:
            why = "was aborted" if txn.to_commit else "was never to commit"
            text = f"{who} saw {name(value)} at {partition} {offset}, of {txn.name}, which {why}"
            yield Anomaly("aborted read", text)

    for poll in chronicle.polls if writes else ():
        final = chronicle.finals.get(poll.partition)
        for offset, value in poll.found if poll.committed else ():
            yield from blame(poll.partition, offset, value, poll.reader)
            if final is not None and offset in final.hidden:
                text = f"{poll.reader} saw {name(value)} at {poll.partition} {offset}, hidden at the end"
                yield Anomaly("aborted read", text)
    for partition, final in chronicle.finals.items():
        for offset, value in final.shown.items():
            yield from blame(partition, offset, value, "the last read")


def torn_transactions(chronicle: Chronicle) -> Iterator[Anomaly]:
    """Of a transaction all that was acknowledged is shown in all its partitions, or nothing; all if it was told to be
    committed."""
    for txn in chronicle.txns:
        shown, missing = split(chronicle, txn)
        if shown and missing:
            where = [f"{send.place} {send.offset}" for send in missing[:5]]
            yield Anomaly("torn transaction", f"{txn.name} is shown, but not at {', '.join(where)}")
        elif missing and txn.fate is Fate.DONE:
            text = f"{txn.name} was committed, and nothing of it is shown; {name(missing[0].value)} for one"
            yield Anomaly("lost write", text)


def split(chronicle: Chronicle, txn: Txn) -> tuple[list[Send], list[Send]]:
    """What of a transaction is shown at the end, and what was acknowledged and is not; without what was deleted."""
    shown: list[Send] = []
    missing: list[Send] = []
    for send in txn.writes:
        final = chronicle.finals.get(send.place)
        if final is None or send.fate is not Fate.DONE or send.offset < final.start:
            continue
        there = send.offset not in final.hidden and final.found.get(send.offset) == send.value
        (shown if there else missing).append(send)
    return shown, missing


def hanging_stable_offset(chronicle: Chronicle) -> Iterator[Anomaly]:
    """When everything has come to rest no transaction is open, and readers of committed data reach the end."""
    for partition, final in chronicle.finals.items():
        if final.last_stable is not None and final.last_stable != final.end:
            text = f"{partition} is stable up to {final.last_stable} only, and ends at {final.end}"
            yield Anomaly("hanging last stable offset", text)


def stable_regress(chronicle: Chronicle) -> Iterator[Anomaly]:
    """The last stable offset never goes back, and stays between what committed readers saw and the high watermark."""
    told = [poll for poll in chronicle.polls if poll.last_stable is not None]
    ends = sorted(((poll.ended, poll) for poll in told), reverse=True, key=lambda pair: pair[0])
    highest: dict[TopicPartition, int] = defaultdict(int)
    for poll in sorted(told, key=lambda poll: poll.begun):
        while ends and ends[-1][0] < poll.begun:
            _, before = ends.pop()
            highest[before.partition] = max(highest[before.partition], before.last_stable or 0)
        assert poll.last_stable is not None
        if poll.last_stable < highest[poll.partition]:
            text = f"{poll.partition}: {poll.last_stable} told to {poll.reader}, was {highest[poll.partition]} before"
            yield Anomaly("stable offset regress", text)
        if poll.high_watermark is not None and poll.last_stable > poll.high_watermark:
            text = f"{poll.partition}: stable up to {poll.last_stable}, above {poll.high_watermark}"
            yield Anomaly("stable offset regress", text)
        if poll.committed and poll.found and poll.found[-1][0] >= poll.last_stable:
            text = f"{poll.reader} read {poll.partition} {poll.found[-1][0]}, stable up to {poll.last_stable}"
            yield Anomaly("aborted read", text)


def uneven_loops(chronicle: Chronicle) -> Iterator[Anomaly]:
    """Offsets and output commit together: each input below the group's offset has one output that is shown, and no
    other input has any."""
    for loop in chronicle.loops:
        made: dict[Place, list[Place]] = defaultdict(list)
        shown = shown_values(chronicle)
        for send in chronicle.sends:
            if send.source is not None and send.topic == loop.output:
                made[send.source] += shown.get(send.value, ())
        for partition in loop.inputs:
            if (final := chronicle.finals.get(partition)) is None:
                continue
            upto = chronicle.final_offsets.get((loop.group, partition)) or 0
            for offset in final.shown:
                outputs = made.get((partition, offset), [])
                if len(outputs) > 1:
                    yield Anomaly("duplicate", f"{partition} {offset} has outputs at {outputs}")
                if offset < upto and not outputs:
                    text = f"{loop.group} is at {partition} {upto}, and {offset} has no output"
                    yield Anomaly("inconsistent offsets", text)
                if offset >= upto and outputs:
                    text = f"{loop.group} is at {partition} {upto}, and {offset} has its output at {outputs}"
                    yield Anomaly("inconsistent offsets", text)


# Decisions


def undecided_shown(chronicle: Chronicle) -> Iterator[Anomaly]:
    """Of an owner's sequence exactly those are shown that its decision names, and it is answered alike every time."""
    txns: dict[tuple[str, int], list[Txn]] = defaultdict(list)
    for txn in chronicle.txns:
        if txn.owner:
            txns[txn.owner, txn.sequence].append(txn)
    decisions: dict[tuple[str, int], list[Decision]] = defaultdict(list)
    for decision in chronicle.decisions:
        decisions[decision.owner, decision.sequence].append(decision)
    for key in txns.keys() | decisions.keys():
        yield from answered_alike(key, decisions[key])
        yield from shown_as_decided(chronicle, key, txns[key], decisions[key])


def answered_alike(key: tuple[str, int], decisions: list[Decision]) -> Iterator[Anomaly]:
    about = f"sequence {key[1]} of {key[0]}"
    answers = [one for one in decisions if one.fate is Fate.DONE]
    told = {one.committed for one in answers if one.committed is not None}
    if len(told) > 1:
        yield Anomaly("decision", f"{about} was answered in different ways: {sorted(map(sorted, told))}")
    first = [one for one in answers if not one.repeated]
    if len(first) > 1:
        yield Anomaly("decision", f"{about} was decided {len(first)} times")
    for one in first:
        if one.committed != one.naming:
            yield Anomaly("decision", f"{about}: {sorted(one.naming)} was asked, and {one.committed} answered")


def shown_as_decided(
    chronicle: Chronicle, key: tuple[str, int], txns: list[Txn], decisions: list[Decision]
) -> Iterator[Anomaly]:
    counted: set[Writer] = set()
    unknown: set[Writer] = set()
    for txn in txns:
        shown, missing = split(chronicle, txn)
        if shown and txn.writer in counted:
            yield Anomaly("decision", f"sequence {key[1]} of {key[0]} shows two attempts of {txn.writer}")
        if shown:
            counted.add(txn.writer)
        elif not missing:  # nothing of it is left to be seen
            unknown.add(txn.writer)
    known = {txn.writer for txn in txns} - (unknown - counted)
    told = [one.committed for one in decisions if one.fate is Fate.DONE and one.committed is not None]
    possible = told[:1] or [frozenset[Writer](), *(one.naming for one in decisions)]
    if not any(counted == one & known for one in possible):
        want = " or ".join(str(sorted(one & known)) for one in possible)
        text = f"sequence {key[1]} of {key[0]} shows {sorted(counted)} instead of {want}"
        yield Anomaly("decision", text)


TXN_CHECKERS: tuple[Callable[[Chronicle], Iterator[Anomaly]], ...] = (
    aborted_reads,
    torn_transactions,
    hanging_stable_offset,
    stable_regress,
    uneven_loops,
    undecided_shown,
)

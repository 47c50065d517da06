"""What no history may hold, for the members of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rivven.model import TopicPartition

from .chronicle import Anomaly, Chronicle


def shared_seats(chronicle: Chronicle) -> Iterator[Anomaly]:
    """In one generation of a group a partition has one reader at most, and a member is told one thing."""
    readers: dict[tuple[str, int, TopicPartition], str] = {}
    told: dict[tuple[str, int, str], frozenset[TopicPartition]] = {}
    for seat in chronicle.seats:
        where = f"generation {seat.generation} of {seat.group}"
        for partition in sorted(seat.partitions):
            reader = readers.setdefault((seat.group, seat.generation, partition), seat.member)
            if reader != seat.member:
                yield Anomaly("shared partition", f"{where}: {partition} is read by {reader} and {seat.member}")
        before = told.setdefault((seat.group, seat.generation, seat.member), seat.partitions)
        if before != seat.partitions:
            text = f"{where}: {seat.member} was given {sorted(before)}, then {sorted(seat.partitions)}"
            yield Anomaly("changed assignment", text)


GROUP_CHECKERS: tuple[Callable[[Chronicle], Iterator[Anomaly]], ...] = (shared_seats,)

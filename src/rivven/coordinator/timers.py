"""Deadlines by name: the earliest, and whatever has come due.

A deadline is moved far more often than it is reached, since every heartbeat moves one. So a move to later only notes
the new time; the heap learns of it when the old time comes. Invariant: every deadline has an entry in the heap that
is not later than itself.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

Name = tuple[str, str, str]
"""The group, what is due, and of which member; empty where it is the whole group's."""


class Timers:
    def __init__(self) -> None:
        self._due_ms: dict[Name, int] = {}
        self._heap: list[tuple[int, Name]] = []
        self._in_heap: dict[Name, int] = {}

    def set(self, name: Name, due_ms: int) -> None:
        self._due_ms[name] = due_ms
        if self._in_heap.get(name, due_ms + 1) > due_ms:
            self._in_heap[name] = due_ms
            heappush(self._heap, (due_ms, name))
            if len(self._heap) > 64 + 4 * len(self._due_ms):
                self._sweep()

    def clear(self, name: Name) -> None:
        self._due_ms.pop(name, None)

    def has(self, name: Name) -> bool:
        return name in self._due_ms

    def next_ms(self) -> int | None:
        """When to look again; it may be early, never late."""
        while self._heap:
            at_ms, name = self._heap[0]
            if self._in_heap.get(name) == at_ms and name in self._due_ms:
                return at_ms
            self._drop_first()
        return None

    def pop(self, now_ms: int) -> Name | None:
        """One deadline that has come, which is thereby forgotten."""
        while self._heap and self._heap[0][0] <= now_ms:
            name = self._drop_first()
            if name is None or name not in self._due_ms:
                continue
            if self._due_ms[name] <= now_ms:
                del self._due_ms[name]
                return name
            self.set(name, self._due_ms[name])
        return None

    def _drop_first(self) -> Name | None:
        """The name whose heap entry was first; None if a nearer entry had replaced it."""
        at_ms, name = heappop(self._heap)
        if self._in_heap.get(name) != at_ms:
            return None
        del self._in_heap[name]
        return name

    def _sweep(self) -> None:
        self._in_heap = dict(self._due_ms)
        self._heap = [(due_ms, name) for name, due_ms in self._due_ms.items()]
        heapify(self._heap)

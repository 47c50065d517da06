"""Group commit: many writes, one sync, and acknowledgements in the order of the writes.

Whatever is added while the disk is busy forms the next group; an idle disk is never made to wait. A group closes
at `group_bytes` or `group_writes`. With `eager=False` an idle disk waits for company until the oldest write has
waited `window_us`, which trades latency for fewer syncs.
Invariant: at most one group is under way; writes leave in the order they came.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rivven.errors import InvalidConfig, Overloaded
from rivven.limits import WAL_GROUP_BYTES, WAL_GROUP_WRITES, WAL_WAITING_BYTES_MAX, WAL_WINDOW_US

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """When a write counts as done: after the sync that covers it (`every_write`), at once but with a sync after
    every n-th (`every_n_writes(n)`), or at once with no sync at all (`none`)."""

    writes: int = 1
    """1 = every write, n = every n-th, 0 = none."""

    @classmethod
    def parse(cls, text: str) -> SyncPolicy:
        if text == "every_write":
            return cls(1)
        if text == "none":
            return cls(0)
        name, _, count = text.partition("(")
        if name == "every_n_writes" and count.endswith(")") and count[:-1].isdecimal() and int(count[:-1]) > 0:
            return cls(int(count[:-1]))
        raise InvalidConfig(key="sync_policy", reason=f"{text!r} is not one of every_write, every_n_writes(n), none")

    def __str__(self) -> str:
        return {0: "none", 1: "every_write"}.get(self.writes, f"every_n_writes({self.writes})")


@dataclass(frozen=True, slots=True)
class CommitLimits:
    window_us: int = WAL_WINDOW_US
    group_bytes: int = WAL_GROUP_BYTES
    group_writes: int = WAL_GROUP_WRITES
    waiting_bytes_max: int = WAL_WAITING_BYTES_MAX
    eager: bool = True


@dataclass(slots=True)
class Group(Generic[T]):
    """Writes that go to the disk together; `sync` says whether a sync follows them."""

    begun_us: int
    writes: list[T] = field(default_factory=list)
    size_bytes: int = 0
    sync: bool = False


class Commit(Generic[T]):
    def __init__(self, policy: SyncPolicy, limits: CommitLimits | None = None) -> None:
        self._policy = policy
        self.limits = limits or CommitLimits()
        self.groups: deque[Group[T]] = deque()
        """Those that wait, oldest first; the last one still takes writes."""
        self.under_way: Group[T] | None = None
        self.busy = False
        """Whether a group is under way."""
        self._unsynced_writes = 0
        self.waiting_bytes = 0

    def __len__(self) -> int:
        """How many writes are neither done nor under way."""
        return sum(len(group.writes) for group in self.groups)

    def admit(self, size_bytes: int) -> None:
        """Refuse a write that would wait behind too much."""
        if self.waiting_bytes + size_bytes > self.limits.waiting_bytes_max and self.waiting_bytes:
            raise Overloaded(waiting_bytes=self.waiting_bytes, retry_ms=max(1, self.limits.window_us // 1000))

    def add(self, write: T, size_bytes: int, now_us: int) -> None:
        """`now_us` counts only where this write begins a group: others are older."""
        groups, limits = self.groups, self.limits
        group = groups[-1] if groups else None
        if (
            group is None
            or group.size_bytes + size_bytes > limits.group_bytes
            or len(group.writes) >= limits.group_writes
        ):
            group = Group(now_us)
            groups.append(group)
        group.writes.append(write)
        group.size_bytes += size_bytes
        self.waiting_bytes += size_bytes

    def due_us(self) -> int | None:
        """When `take` will have something at the latest, if the disk is idle by then; None if it has it now."""
        if not self.groups or self.limits.eager:
            return None
        return self.groups[0].begun_us + self.limits.window_us

    def next_bytes(self) -> int:
        """The size of the group that `take` would return."""
        return self.groups[0].size_bytes if self.groups else 0

    def take(self, now_us: int, *, force: bool = False, sync: bool = False) -> Group[T] | None:
        """The next group to write, if the disk is idle and one is due. It is then under way.
        `force` makes it due; `sync` asks for a sync whatever the policy says."""
        if self.busy or not self.groups or not (force or self._due(now_us)):
            return None
        self.busy = True
        group = self.under_way = self.groups.popleft()
        group.sync = sync or 0 < self._policy.writes <= self._unsynced_writes + len(group.writes)
        return group

    def _due(self, now_us: int) -> bool:
        return (
            self.limits.eager
            or len(self.groups) > 1  # the first is closed, so it is full
            or len(self.groups[0].writes) >= self.limits.group_writes
            or self.groups[0].size_bytes >= self.limits.group_bytes
            or now_us >= self.groups[0].begun_us + self.limits.window_us
        )

    def done(self) -> Group[T]:
        """The group under way has been written, and synced if it asked for it."""
        group = self.under_way
        assert group is not None, "nothing is under way"
        self.under_way, self.busy = None, False
        self.waiting_bytes -= group.size_bytes
        self._unsynced_writes = 0 if group.sync else self._unsynced_writes + len(group.writes)
        return group

    def clear(self) -> None:
        """Forget what waits and what is under way; none of it was done."""
        self.groups.clear()
        self.under_way, self.busy = None, False
        self.waiting_bytes = 0

"""The members of a classic group, and what they agree on: a leader, and one protocol that all of them speak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from uuid import UUID

from .group_log import KeptMember
from .group_values import DescribedMember, Join, JoinedMember

Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    recalled: bool = False
    """Read from the log, which keeps what the member said under the chosen protocol alone."""
    joining: tuple[int, Join] | None = None
    """The reply it is owed once all have joined."""
    syncing: int | None = None
    """The reply it is owed once the leader has assigned."""
    speaks: frozenset[str] = frozenset()
    metadata_bytes: int = 0

    def __post_init__(self) -> None:
        self.speaks = frozenset(name for name, _ in self.protocols)
        self.metadata_bytes = protocols_bytes(self.protocols)

    @classmethod
    def from_join(cls, member_id: str, request: Join) -> Member:
        member = cls(member_id, request.instance_id, request.client_id, request.client_host, 0, 0, ())
        member.update(request)
        return member

    @classmethod
    def from_kept(cls, kept: KeptMember, protocol: str) -> Member:
        names = (kept.member_id, kept.instance_id, kept.client_id, kept.client_host)
        timeouts = (kept.rebalance_timeout_ms, kept.session_timeout_ms)
        return cls(*names, *timeouts, ((protocol, kept.subscription),), kept.assignment, recalled=True)

    def update(self, request: Join) -> None:
        self.client_id, self.client_host = request.client_id, request.client_host
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms
        self.protocols = request.protocols
        self.recalled = False
        self.__post_init__()

    def said(self, protocol: str | None) -> bytes:
        return dict(self.protocols).get(protocol or "", b"")

    def says_the_same(self, request: Join, protocol: str | None) -> bool:
        """Whether a join brings nothing new, as far as we remember."""
        if self.recalled:
            return dict(request.protocols).get(protocol or "") == self.said(protocol)
        return self.protocols == request.protocols

    def kept(self, protocol: str, assignment: bytes) -> KeptMember:
        names = (self.member_id, self.instance_id, self.client_id, self.client_host)
        timeouts = (self.rebalance_timeout_ms, self.session_timeout_ms)
        return KeptMember(*names, *timeouts, self.said(protocol), assignment)

    def joined(self, protocol: str | None) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.said(protocol))

    def described(self, protocol: str | None) -> DescribedMember:
        names = (self.member_id, self.instance_id, self.client_id, self.client_host)
        return DescribedMember(*names, self.said(protocol), self.assignment)


def new_member_id(request_name: str, rng: Random) -> str:
    return f"{request_name or 'member'}-{UUID(int=rng.getrandbits(128), version=4)}"


def protocols_bytes(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def shared_protocols(members: Iterable[Member]) -> frozenset[str]:
    """The protocols that every member speaks."""
    spoken = [member.speaks for member in members]
    return spoken[0].intersection(*spoken[1:]) if spoken else frozenset()


def choose_protocol(members: list[Member]) -> str:
    """Each member votes for the first it likes among those all speak; of equals the first member's choice wins."""
    shared = shared_protocols(members)
    assert shared, "a join that leaves nothing in common is refused"
    votes = Counter(next(name for name, _ in member.protocols if name in shared) for member in members)
    liked = [name for name, _ in members[0].protocols if name in votes]
    order = liked + sorted(votes.keys() - set(liked))
    return max(order, key=lambda name: votes[name])

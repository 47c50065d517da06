"""Members of one classic consumer group, many of them in one process: they join, share the partitions, and beat.

Each has a connection of its own and does what Kafka's clients do: asks for an id, joins, syncs, and joins again when
it is told that the group begins anew. The leader deals the partitions out as the range assignor does. Members learn
of a new beginning by a beat; those here beat at once where a real one would wait out its interval, so that what is
measured is the broker's time.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any, NamedTuple

from rivven.assign import Subscription, decode_assignment, encode_assignment, encode_subscription
from rivven.model import TopicPartition
from rivven.wire.kafka import SERVED, Error, decode_response, encode_request, made
from rivven.wire.kafka.made.heartbeat import HeartbeatRequest
from rivven.wire.kafka.made.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from rivven.wire.kafka.made.leave_group import LeaveGroupRequest, MemberIdentity
from rivven.wire.kafka.made.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

ASSIGNOR = "range"
SESSION_MS, REBALANCE_MS = 45_000, 60_000
BEAT_S = 0.05
"""How long a member that has its share waits before it asks whether the group begins anew."""
PATIENCE_S = 60.0
LENGTH = struct.Struct(">i")


class Rebalances(NamedTuple):
    """How long until everybody had a share: from the first join on, and after one had left."""

    first_s: float
    second_s: float
    generations: int


def measure(port: int, group: str, topic: str, *, partitions: int, members: int) -> Rebalances:
    return asyncio.run(asyncio.wait_for(_measure(port, group, topic, partitions, members), PATIENCE_S))


async def _measure(port: int, group: str, topic: str, partitions: int, members: int) -> Rebalances:
    everybody = [await Member.connect(port, group, topic, partitions) for _ in range(members)]
    try:
        begun = time.perf_counter()
        await settle(everybody)
        first_s = time.perf_counter() - begun
        check_shares([member.share for member in everybody], partitions)
        leaver, *others = everybody
        begun = time.perf_counter()
        await leaver.leave()
        await settle(others)
        second_s = time.perf_counter() - begun
        check_shares([member.share for member in others], partitions)
        return Rebalances(first_s, second_s, others[0].generation)
    finally:
        for member in everybody:
            member.close()


async def settle(members: list[Member]) -> None:
    """Until all have their shares of one and the same generation."""
    stands = asyncio.Event()

    def look() -> None:
        generations = {member.generation for member in members}
        if len(generations) == 1 and all(member.has_share for member in members):
            stands.set()

    async def take_part(member: Member) -> None:
        while not stands.is_set():
            if await member.is_called():
                await member.enter()
                look()
            else:
                await asyncio.wait([waiting], timeout=BEAT_S)

    waiting = asyncio.ensure_future(stands.wait())
    await asyncio.gather(*(take_part(member) for member in members))


def check_shares(shares: list[list[int]], partitions: int) -> None:
    """Every partition went to somebody, and to nobody else."""
    dealt = sorted(number for share in shares for number in share)
    assert dealt == list(range(partitions)), f"{len(dealt)} partitions were dealt out, of {partitions}"


class Member:
    def __init__(
        self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], group: str, topic: str, partitions: int
    ) -> None:
        self._reader, self._writer = streams
        self._group, self._topic, self._partitions = group, topic, partitions
        self._id = ""
        self.generation = -1
        self.has_share = False
        self.share: list[int] = []

    @classmethod
    async def connect(cls, port: int, group: str, topic: str, partitions: int) -> Member:
        return cls(await asyncio.open_connection("127.0.0.1", port), group, topic, partitions)

    def close(self) -> None:
        self._writer.close()

    async def is_called(self) -> bool:
        """Whether it has to join: it is not in yet, or the group begins anew."""
        if not self.has_share:
            return True
        beat = await self._ask(HeartbeatRequest(self._group, self.generation, self._id))
        assert beat.error_code in (Error.NONE, Error.REBALANCE_IN_PROGRESS), beat
        return bool(beat.error_code)

    async def enter(self) -> None:
        """Join, and ask for a share; it has none afterwards if the group began anew meanwhile."""
        self.has_share = False
        joined = await self._join()
        if joined.error_code == Error.MEMBER_ID_REQUIRED:
            self._id = joined.member_id
            joined = await self._join()
        assert joined.error_code == Error.NONE, joined
        self.generation = joined.generation_id
        synced = await self._ask(
            SyncGroupRequest(self._group, self.generation, self._id, None, "consumer", ASSIGNOR, self._deal(joined))
        )
        if synced.error_code == Error.REBALANCE_IN_PROGRESS:
            return
        assert synced.error_code == Error.NONE, synced
        self.share = [partition for _, partition in decode_assignment(synced.assignment)]
        self.has_share = True

    async def leave(self) -> None:
        left = await self._ask(LeaveGroupRequest(self._group, members=[MemberIdentity(self._id)]))
        assert left.error_code == Error.NONE, left

    async def _join(self) -> JoinGroupResponse:
        subscription = encode_subscription(Subscription((self._topic,)))
        protocols = [JoinGroupRequestProtocol(ASSIGNOR, subscription)]
        answer: JoinGroupResponse = await self._ask(
            JoinGroupRequest(self._group, SESSION_MS, REBALANCE_MS, self._id, None, "consumer", protocols)
        )
        return answer

    def _deal(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """What the leader, and it alone, knows: who gets what."""
        if joined.leader != self._id:
            return []
        ids = sorted(member.member_id for member in joined.members)
        bounds = [place * self._partitions // len(ids) for place in range(len(ids) + 1)]
        return [
            SyncGroupRequestAssignment(member_id, self._share(range(bounds[place], bounds[place + 1])))
            for place, member_id in enumerate(ids)
        ]

    def _share(self, numbers: range) -> bytes:
        return encode_assignment(TopicPartition(self._topic, number) for number in numbers)

    async def _ask(self, request: Any) -> Any:
        key = _KEYS[type(request)]
        version = SERVED[key].newest
        self._writer.writelines(encode_request(request, version, 0, "bench"))
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return decode_response(await self._reader.readexactly(length), key, version)[1]


_KEYS: dict[type[Any], int] = {
    JoinGroupRequest: made.join_group.API_KEY,
    SyncGroupRequest: made.sync_group.API_KEY,
    HeartbeatRequest: made.heartbeat.API_KEY,
    LeaveGroupRequest: made.leave_group.API_KEY,
}

"""The way to a group's coordinator: a connection that speaks Kafka's dialect, which the server's port takes as well.

Membership and its offsets are asked for there in Kafka's words, so that our members and those of Kafka's clients
share one group. Records go on over the native connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

from rivven.assign import decode_assignment
from rivven.errors import Malformed, RivvenError
from rivven.model import TopicPartition
from rivven.wire import ANSWER_BYTES_MAX, Splitter
from rivven.wire.kafka import APIS, Error, decode_response, encode_request
from rivven.wire.kafka.made import consumer_group_describe as consumers
from rivven.wire.kafka.made import offset_commit, offset_fetch, txn_offset_commit
from rivven.wire.kafka.made.describe_groups import DescribeGroupsRequest
from rivven.wire.kafka.made.find_coordinator import FindCoordinatorRequest
from rivven.wire.kafka.made.heartbeat import HeartbeatRequest
from rivven.wire.kafka.made.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from rivven.wire.kafka.made.leave_group import LeaveGroupRequest, MemberIdentity
from rivven.wire.kafka.made.metadata import MetadataRequest, MetadataRequestTopic
from rivven.wire.kafka.made.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

from .failures import Closed, ConnectionException, TimeoutException
from .membership import MOVED, NO_GENERATION, Beat, Join, Joined, Leave, MemberSettings, Sync, group_error
from .options import Address
from .retry import Backoff
from .shell import Cluster, monotonic_ms
from .values import GroupMember, GroupState

VERSIONS = {
    "OffsetCommit": 9,  # 10 names topics by id
    "OffsetFetch": 9,
    "FindCoordinator": 4,
    "JoinGroup": 9,
    "Heartbeat": 4,
    "LeaveGroup": 5,
    "SyncGroup": 5,
    "Metadata": 12,
    "DescribeGroups": 6,
    "ConsumerGroupDescribe": 1,
    "TxnOffsetCommit": 4,
    "InitProducerId": 4,
    "WriteTxnMarkers": 1,
    "DescribeConfigs": 4,
    "DescribeProducers": 0,
    "DescribeTransactions": 0,
    "ListTransactions": 1,
}
KEYS = {api.name: api.key for api in APIS.values()}
PROTOCOL_TYPE = "consumer"
GRACE_MS = 5_000
"""How much longer than it may take an answer is waited for."""


class TxnName(NamedTuple):
    """An open transaction: its name, and whose it is."""

    name: str
    producer_id: int
    producer_epoch: int


class _Owed(NamedTuple):
    correlation_id: int
    name: str
    answered: asyncio.Future[Any]


class KafkaConnection(asyncio.Protocol):
    """A socket on which Kafka's requests go out and their answers come back, in order.

    Who stops waiting leaves its place in the order: an answer that nobody wants is passed over when it comes.
    """

    def __init__(self, address: Address, client_id: str) -> None:
        self.address = address
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._splitter = Splitter(frame_bytes_max=ANSWER_BYTES_MAX)
        self._owed: deque[_Owed] = deque()
        self._next_id = 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {exc}" if exc else ""
        self._end(ConnectionException(reason=f"the connection to {self.address} was lost{why}"))

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._splitter.feed(data):
                self._answered(bytes(body))
        except Malformed as error:
            self._end(ConnectionException(reason=f"an answer of {self.address} cannot be read: {error}"))
        if self._splitter.oversized is not None:
            self._end(ConnectionException(reason=self._splitter.about_oversized()))

    def _answered(self, body: bytes) -> None:
        if not self._owed:
            raise Malformed(what="answer", reason="nothing was asked")
        owed = self._owed.popleft()
        correlation_id, answer = decode_response(body, KEYS[owed.name], VERSIONS[owed.name])
        if correlation_id != owed.correlation_id:
            raise Malformed(what="answer", reason=f"it is to {correlation_id}, not to {owed.correlation_id}")
        if not owed.answered.done():
            owed.answered.set_result(answer)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        return not self._owed

    async def ask(self, request: Any, timeout_ms: int) -> Any:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionException(reason=f"the connection to {self.address} was lost")
        name = type(request).__name__.removesuffix("Request")
        correlation_id, self._next_id = self._next_id, self._next_id % 0x7FFFFFFF + 1
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        transport.writelines(encode_request(request, VERSIONS[name], correlation_id, self._client_id))
        self._owed.append(_Owed(correlation_id, name, answered))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answered
        except TimeoutError:
            raise TimeoutException(reason=f"{self.address} did not answer {name} in time") from None

    def close(self) -> None:
        self._end(Closed(what="connection"))

    def _end(self, error: RivvenError) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        owed, self._owed = self._owed, deque()
        for each in owed:
            if not each.answered.done():
                each.answered.set_exception(error)


class CoordinatorLink:
    """A connection to whoever coordinates a group, looked for and made when it is needed."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._connection: KafkaConnection | None = None
        self._used_ms = 0
        self._opening = asyncio.Lock()
        self._closed = False

    async def ask(self, request: Any, *, timeout_ms: int | None = None) -> Any:
        connection = await self._connected()
        self._used_ms = monotonic_ms()
        return await connection.ask(request, timeout_ms or self._cluster.options.request_timeout_ms)

    def hang_up(self) -> None:
        """Whom we talked to is not to be trusted; the next request looks for the coordinator anew."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._closed = True
        self.hang_up()

    async def _connected(self) -> KafkaConnection:
        async with self._opening:
            connection = self._connection
            idle_ms = monotonic_ms() - self._used_ms
            if connection is not None and connection.is_idle and idle_ms > self._cluster.options.idle_ms_max:
                self.hang_up()
            elif connection is not None and connection.is_open:
                return connection
            self._refuse_if_closed()
            connection = self._connection = await self._find(await self._cluster.open_first(self._open))
            self._refuse_if_closed()
            return connection

    def _refuse_if_closed(self) -> None:
        """Somebody may have closed while the connection was being made."""
        if self._closed:
            self.hang_up()
            raise Closed(what="connection")

    async def _open(self, address: Address) -> KafkaConnection:
        client_id = self._cluster.options.client_id
        return await self._cluster.dial(address, lambda: KafkaConnection(address, client_id))

    async def _find(self, first: KafkaConnection) -> KafkaConnection:
        """A connection to the coordinator; the first one itself if the address told cannot be reached from here."""
        try:
            asked = FindCoordinatorRequest(coordinator_keys=[self._group])
            answer = await first.ask(asked, self._cluster.options.request_timeout_ms)
            (found,) = answer.coordinators
            if found.error_code:
                raise group_error(found.error_code, "looking for the group's coordinator")
        except BaseException:
            first.close()
            raise
        address = Address(found.host, found.port)
        if address == first.address:
            return first
        try:
            connection = await self._open(address)
        except RivvenError:
            return first
        first.close()
        return connection


class Coordinator:
    """What is asked of a group's coordinator. Refusals come back as codes where a membership has to judge them."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._link = CoordinatorLink(cluster, group)

    def hang_up(self) -> None:
        self._link.hang_up()

    def close(self) -> None:
        self._link.close()

    async def _ask(self, request: Any, *, timeout_ms: int | None = None) -> Any:
        return await self._link.ask(request, timeout_ms=timeout_ms)

    # Membership

    async def join(self, join: Join, settings: MemberSettings) -> Joined:
        """Waits until every member has joined."""
        request = JoinGroupRequest(
            self._group,
            settings.session_timeout_ms,
            settings.max_poll_interval_ms,
            join.member_id,
            settings.instance_id,
            PROTOCOL_TYPE,
            [JoinGroupRequestProtocol(name, metadata) for name, metadata in join.protocols],
        )
        answer = await self._ask(request, timeout_ms=settings.max_poll_interval_ms + GRACE_MS)
        return Joined(
            answer.error_code,
            answer.member_id,
            answer.generation_id,
            answer.protocol_name or "",
            answer.leader,
            tuple((each.member_id, bytes(each.metadata)) for each in answer.members),
            answer.skip_assignment,
        )

    async def sync(self, sync: Sync, settings: MemberSettings) -> tuple[int, bytes]:
        request = SyncGroupRequest(
            self._group,
            sync.generation,
            sync.member_id,
            settings.instance_id,
            PROTOCOL_TYPE,
            sync.protocol,
            [SyncGroupRequestAssignment(member, assignment) for member, assignment in sync.assignments],
        )
        answer = await self._ask(request, timeout_ms=settings.max_poll_interval_ms + GRACE_MS)
        return answer.error_code, bytes(answer.assignment)

    async def beat(self, beat: Beat, settings: MemberSettings) -> int:
        request = HeartbeatRequest(self._group, beat.generation, beat.member_id, settings.instance_id)
        code: int = (await self._ask(request, timeout_ms=settings.session_timeout_ms)).error_code
        return code

    async def leave(self, leave: Leave) -> None:
        member = MemberIdentity(leave.member_id, None, "the consumer was closed")
        await self._ask(LeaveGroupRequest(self._group, members=[member]), timeout_ms=GRACE_MS)

    async def look(self, topics: Iterable[str] | None) -> dict[str, int]:
        """How many partitions each topic has; one that is not there has none."""
        named = None if topics is None else [MetadataRequestTopic(name=topic) for topic in sorted(topics)]
        answer = await self._ask(MetadataRequest(named, allow_auto_topic_creation=False))
        return {topic.name: 0 if topic.error_code else len(topic.partitions) for topic in answer.topics}

    # Offsets

    async def committed(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """What the group has committed of these partitions, or of all."""

        async def once() -> tuple[int, dict[TopicPartition, int]]:
            topics = None
            if partitions is not None:
                topics = [
                    offset_fetch.OffsetFetchRequestTopics(name, partition_indexes=numbers)
                    for name, numbers in by_topic(partitions).items()
                ]
            asked = offset_fetch.OffsetFetchRequestGroup(self._group, topics=topics)
            (group,) = (await self._ask(offset_fetch.OffsetFetchRequest(groups=[asked], require_stable=True))).groups
            places = [(topic.name, part) for topic in group.topics for part in topic.partitions]
            code = group.error_code or next((part.error_code for _, part in places if part.error_code), 0)
            return code, {
                TopicPartition(name, part.partition_index): part.committed_offset
                for name, part in places
                if part.committed_offset >= 0
            }

        found: dict[TopicPartition, int] = await self._patiently(once, "asking for the group's offsets")
        return found

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        identity: Callable[[], tuple[int, str]] = lambda: (NO_GENERATION, ""),
        instance_id: str | None = None,
        refused: Callable[[int, int], None] | None = None,
        transaction: TxnName | None = None,
    ) -> None:
        """Remember for the group where it goes on. A member says who it is; others may do so in a group without any.

        `refused` hears of a code that comes back, with the generation it was for, before anything else is done. With
        a transaction, which must know of the group, the offsets count when that commits.
        """

        async def once() -> tuple[int, None]:
            generation, member_id = identity()
            topics = [
                offset_commit.OffsetCommitRequestTopic(
                    name,
                    partitions=[
                        offset_commit.OffsetCommitRequestPartition(number, offsets[TopicPartition(name, number)])
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(offsets).items()
            ]
            request = offset_commit.OffsetCommitRequest(
                self._group, generation, member_id, instance_id, topics=topics
            )
            answer = await self._ask(request if transaction is None else _as_part_of(transaction, request))
            codes = [part.error_code for topic in answer.topics for part in topic.partitions if part.error_code]
            if codes and refused is not None:
                refused(codes[0], generation)
            return codes[0] if codes else 0, None

        await self._patiently(once, "a commit")

    async def _patiently(self, once: Callable[[], Awaitable[tuple[int, Any]]], what: str) -> Any:
        """Ask again while waiting may help: the coordinator moved or is starting, or a rebalance is being settled."""
        options = self._cluster.options
        backoff = Backoff(self._cluster.rng, first_ms=options.backoff_ms, most_ms=options.backoff_ms_max)
        due_ms = monotonic_ms() + options.request_timeout_ms
        tries = 0
        while True:
            tries += 1
            try:
                code, found = await once()
                if not code:
                    return found
                error: RivvenError = group_error(code, what)
                if code in MOVED:
                    self.hang_up()
                again = error.retriable and code not in (Error.ILLEGAL_GENERATION, Error.UNKNOWN_MEMBER_ID)
            except (ConnectionException, TimeoutException) as lost:
                self.hang_up()
                error, again = lost, True
            wait_ms = backoff.next_ms()
            if not again or tries >= options.attempts_max or monotonic_ms() + wait_ms > due_ms:
                raise error
            await asyncio.sleep(wait_ms / 1000)

    # Looking at the group

    async def describe(self) -> GroupState:
        """Its members and what each reads."""
        (found,) = (await self._ask(DescribeGroupsRequest([self._group]))).groups
        if found.error_code == Error.GROUP_ID_NOT_FOUND:
            return await self._describe_consumers()
        if found.error_code:
            raise group_error(found.error_code, "describing the group")
        members = tuple(
            GroupMember(each.member_id, each.group_instance_id, each.client_id, each.client_host, _read(each))
            for each in found.members
        )
        return GroupState(self._group, "classic", found.group_state, found.protocol_data, members)

    async def _describe_consumers(self) -> GroupState:
        """A group that the broker assigns, or none at all."""
        (found,) = (await self._ask(consumers.ConsumerGroupDescribeRequest([self._group]))).groups
        if found.error_code == Error.GROUP_ID_NOT_FOUND:
            return GroupState(self._group, "", "Dead", "", ())
        if found.error_code:
            raise group_error(found.error_code, "describing the group")
        members = tuple(
            GroupMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                tuple(
                    TopicPartition(topic.topic_name, number)
                    for topic in each.assignment.topic_partitions
                    for number in topic.partitions
                ),
            )
            for each in found.members
        )
        return GroupState(self._group, "consumer", found.group_state, found.assignor_name, members)


def _as_part_of(
    transaction: TxnName, commit: offset_commit.OffsetCommitRequest
) -> txn_offset_commit.TxnOffsetCommitRequest:
    topics = [
        txn_offset_commit.TxnOffsetCommitRequestTopic(
            topic.name,
            [
                txn_offset_commit.TxnOffsetCommitRequestPartition(part.partition_index, part.committed_offset)
                for part in topic.partitions
            ],
        )
        for topic in commit.topics
    ]
    return txn_offset_commit.TxnOffsetCommitRequest(
        transaction.name,
        commit.group_id,
        transaction.producer_id,
        transaction.producer_epoch,
        commit.generation_id_or_member_epoch,
        commit.member_id,
        commit.group_instance_id,
        topics,
    )


def _read(member: Any) -> tuple[TopicPartition, ...]:
    """What a classic member was given; members that are no consumers have bytes that say nothing to us."""
    with contextlib.suppress(Malformed):
        return tuple(sorted(decode_assignment(bytes(member.member_assignment))))
    return ()


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found

"""The consumer that shares topics with the other members of its group.

It joins, beats and leaves over a connection in Kafka's dialect, so that members of ours and of Kafka's clients make
one group, and reads over its native ones. Partitions change hands while the caller asks for messages, and not
otherwise: whoever is called to give a partition up has dealt with all that was handed out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict

from rivven.errors import RivvenError
from rivven.model import TopicPartition
from rivven.wire import responses as tell

from .coordinator_link import Coordinator, TxnName
from .failures import ConfigException, TryAgain, coded_error
from .inbox import NOTHING, Isolation, Shelf, Shelves, Taken
from .membership import (
    COOPERATIVE,
    FENCED,
    MOVED,
    NO_GENERATION,
    Assign,
    Beat,
    Join,
    Leave,
    Look,
    Lose,
    MemberSettings,
    Membership,
    Partitions,
    Phase,
    Rest,
    Revoke,
    Sending,
    Sync,
    Turn,
)
from .reader import FETCH_BYTES, WAIT_MS, Reader
from .shell import Cluster, gone, monotonic_ms
from .values import Message, RebalanceListener

Reset = Literal["earliest", "latest", "error"]
RESETS = ("earliest", "latest", "error")
AUTO_COMMIT_INTERVAL_MS = 5_000
OnPartitions = Callable[[list[TopicPartition]], Any]


class GroupInbox(Shelves[TopicPartition]):
    """Partitions of several topics, which come and go."""

    def __init__(self, fetch_bytes: int, isolation: Isolation, reset: Reset) -> None:
        super().__init__(fetch_bytes, isolation)
        self._reset = reset

    def key(self, topic: str, partition: int) -> TopicPartition:
        return TopicPartition(topic, partition)

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        for key, offset in sorted(offsets.items()):
            self.shelves[key] = Shelf(key.topic, key.partition, offset)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for key in partitions:
            self.paused.discard(key)
            if key in self.shelves:
                self.shelves.pop(key).generation += 1  # what is under way for it does not count

    def _out_of_range(self, shelf: Shelf, part: tell.PartitionFetched) -> tuple[bool, RivvenError | None]:
        if shelf.chunks:
            return False, None  # they are handed out first
        if self._reset == "error":
            return False, coded_error(part.error, part.error_message)
        shelf.seek(part.log_start_offset if self._reset == "earliest" else part.high_watermark)
        return True, None


class _Functions(RebalanceListener):
    """A listener made of functions, each of which may be left out; without `on_lost`, a loss is a revocation."""

    def __init__(
        self, on_assigned: OnPartitions | None, on_revoked: OnPartitions | None, on_lost: OnPartitions | None
    ) -> None:
        self._assigned, self._revoked, self._lost = on_assigned, on_revoked, on_lost or on_revoked

    def on_assigned(self, partitions: list[TopicPartition]) -> Any:
        return self._assigned(partitions) if self._assigned else None

    def on_revoked(self, partitions: list[TopicPartition]) -> Any:
        return self._revoked(partitions) if self._revoked else None

    def on_lost(self, partitions: list[TopicPartition]) -> Any:
        return self._lost(partitions) if self._lost else None


class GroupConsumer(Reader[TopicPartition]):
    """A member of a consumer group. Made by `RivvenClient.consumer` with `topics` or a `pattern`.

        consumer = await client.consumer(group="billing", topics=["orders"])
        async for message in consumer:
            print(message.offset, message.value)
            if message.value == b"last":
                break
        await consumer.close()

    Partitions are known by `TopicPartition(topic, partition)`; a plain tuple does as well. What was handed out counts
    as done when the next is asked for: then it is committed, every `auto_commit_interval_ms`, before a partition
    is given up, and at `close`. `auto_commit=False` leaves it to `commit` and `commit_soon`.
    """

    _inbox: GroupInbox

    def __init__(
        self,
        cluster: Cluster,
        settings: MemberSettings,
        *,
        batch_size: int,
        auto_commit: bool,
        auto_commit_interval_ms: int = AUTO_COMMIT_INTERVAL_MS,
        auto_offset_reset: Reset = "earliest",
        fetch_bytes: int = FETCH_BYTES,
        wait_ms: int = WAIT_MS,
        isolation: Isolation = "read_committed",
    ) -> None:
        if auto_offset_reset not in RESETS:
            raise ConfigException(
                reason=f"auto_offset_reset is one of {', '.join(RESETS)}, not {auto_offset_reset!r}"
            )
        if fetch_bytes < 1 or auto_commit_interval_ms < 0 or wait_ms < 1:
            raise ConfigException(reason="fetch_bytes and wait_ms are at least 1, and auto_commit_interval_ms 0")
        super().__init__(
            cluster,
            GroupInbox(fetch_bytes, isolation, auto_offset_reset),
            group=settings.group,
            batch_size=batch_size,
            auto_commit=auto_commit,
            wait_ms=wait_ms,
        )
        self._reset = auto_offset_reset
        self._commit_interval_ms = auto_commit_interval_ms
        self._commit_due_ms = monotonic_ms() + auto_commit_interval_ms
        self._membership = Membership(settings, cluster.rng)
        self._listener = RebalanceListener()
        self._callbacks_in_thread = False
        # A join waits for the slowest member; offsets shall not wait behind it.
        self._seat = Coordinator(cluster, settings.group)
        self._offsets = Coordinator(cluster, settings.group)
        self._keeper: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        """Something has changed that the keeper should know."""
        self._news = asyncio.Event()
        """Something has to be done by a caller."""
        self._turning = asyncio.Lock()

    # What it reads

    async def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Read these topics from now on, or those whose names match a pattern as a whole, also when they come later.

        A listener, or functions in its place, hear what is assigned and revoked.
        """
        self._check_open()
        functions = any(each is not None for each in (on_assigned, on_revoked, on_lost))
        if listener is not None and functions:
            raise ConfigException(reason="give a listener or functions, not both")
        names = [topics] if isinstance(topics, str) else list(topics or ())
        if bool(names) == (pattern is not None):
            raise ConfigException(reason="subscribe to topics or to a pattern: one of them, and not nothing")
        try:
            compiled = re.compile(pattern) if pattern is not None else None
        except re.error as error:
            raise ConfigException(reason=f"pattern {pattern!r} is no regular expression: {error}") from None
        if listener is not None or functions:
            self._listener = listener or _Functions(on_assigned, on_revoked, on_lost)
        self._membership.subscribe(names, compiled, monotonic_ms())
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep())
        self._wake()

    @property
    def topics(self) -> list[str]:
        """What it subscribes to; with a pattern, the topics that were found to match."""
        return sorted(self._membership.topics)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that it reads now."""
        return sorted(self._membership.owned)

    @property
    def member_id(self) -> str:
        """What the coordinator calls it; empty before it has joined."""
        return self._membership.member_id

    @property
    def generation(self) -> int:
        """How often the group has been shared out anew; -1 for who is no member."""
        return self._membership.generation

    @property
    def is_settled(self) -> bool:
        """Whether it has its share, which may be none, and nothing is about to change."""
        return self._membership.phase is Phase.STABLE

    # Messages out

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        if self._keeper is None:
            raise ConfigException(reason="the consumer reads nothing yet; call `subscribe` first")
        self._membership.asking(monotonic_ms())
        self._wake()
        try:
            yield
        finally:
            self._membership.rested(monotonic_ms())
            self._wake()

    async def _fetch(self, max_messages: int | None, wait_ms: int) -> list[Message]:
        self._check_open()
        count = self._batch_size if max_messages is None else max_messages
        due_ms = monotonic_ms() + wait_ms
        with self._asking():
            while True:
                await self._attend()
                messages = self._take(count)
                if not messages and count > 0:
                    await self._fill(max(0, due_ms - monotonic_ms()))
                    messages = [] if self._due else self._take(count)
                if messages or count <= 0 or monotonic_ms() >= due_ms:
                    self._read_ahead()
                    return messages

    async def _refill(self) -> bool:
        with self._asking():
            return await super()._refill()

    async def _next_chunk(self, until: int | None, wait_ms: int) -> Taken:
        due_ms = monotonic_ms() + wait_ms
        with self._asking():
            while True:
                taken = await super()._next_chunk(until, max(0, due_ms - monotonic_ms()))
                if taken.chunk is not NOTHING or monotonic_ms() >= due_ms:
                    return taken

    async def _fill(self, wait_ms: int) -> bool:
        """Wait for messages, in portions: what is to be done for the group comes first."""
        wait_ms = min(wait_ms, self._wait_ms)
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._news.wait())]
        if self._flight is not None or self._inbox.plan(ahead=False).shelves:
            tasks.append(asyncio.create_task(super()._fill(wait_ms)))
        try:
            timeout_s = None if len(tasks) > 1 else wait_ms / 1000
            done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        for task in done:
            task.result()
        return self._inbox.has_chunks and not self._due

    # What the group asks for

    async def _attend(self) -> None:
        self._check_open()
        async with self._turning:
            while (turn := self._membership.turn) is not None:
                await self._perform(turn)
            self._heed()
        self._raise_failure()
        if self._auto_commit and monotonic_ms() >= self._commit_due_ms:
            self._commit_due_ms = monotonic_ms() + self._commit_interval_ms
            self.commit_soon()

    def _raise_failure(self) -> None:
        if self._membership.failure is not None:
            raise self._membership.failure
        if self._keeper is not None and self._keeper.done() and not self._keeper.cancelled():
            self._keeper.result()

    def _heed(self) -> None:
        """Let callers know whether there is something for them to do."""
        self._due = self._membership.turn is not None or self._membership.failure is not None
        if self._due:
            self._news.set()
        else:
            self._news.clear()

    def _wake(self) -> None:
        self._woken.set()

    async def _perform(self, turn: Turn) -> None:
        generation = self._membership.generation
        match turn:
            case Assign(partitions):
                self._inbox.add(await self._starts(partitions))
                try:
                    await self._tell(self._listener.on_assigned, partitions)
                finally:
                    self._turned(turn, generation)
            case Revoke(partitions):
                try:
                    if self._auto_commit:
                        await gone(self._committing)
                        await self._commit_quietly(self._positions_of(partitions))
                    await self._tell(self._listener.on_revoked, partitions)
                finally:
                    self._drop(partitions)
                    self._turned(turn, generation)
            case Lose(partitions):
                try:
                    await self._tell(self._listener.on_lost, partitions)
                finally:
                    self._drop(partitions)
                    self._turned(turn, generation)

    def _turned(self, turn: Turn, generation: int) -> None:
        self._membership.turned(turn, generation)
        self._heed()
        self._wake()

    async def _starts(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Where to begin: what the group has committed, else as `auto_offset_reset` says."""
        committed = await self._offsets.committed(partitions)
        starts = dict(committed)
        for one in sorted(partitions - committed.keys()):
            if self._reset == "error":
                wanted = "auto_offset_reset is 'error'; commit one first, or choose earliest or latest"
                raise ConfigException(reason=f"group {self._group!r} has no offset for {one}, and {wanted}")
            at_end = self._reset == "latest"
            starts[one] = (await self._bounds(Shelf(one.topic, one.partition, 0)))[1] if at_end else 0
        self._committed.update(committed)
        return starts

    def _positions_of(self, partitions: Partitions) -> dict[TopicPartition, int]:
        return {one: offset for one, offset in self.positions().items() if one in partitions}

    def _drop(self, partitions: Partitions) -> None:
        self._handed = deque(
            each for each in self._handed if TopicPartition(each.topic, each.partition) not in partitions
        )
        self._inbox.drop(partitions)
        for one in partitions:
            self._committed.pop(one, None)

    async def _tell(self, method: OnPartitions, partitions: Partitions) -> None:
        told = sorted(partitions)
        if self._callbacks_in_thread:
            await asyncio.to_thread(method, told)
            return
        answer = method(told)
        if inspect.isawaitable(answer):
            await answer

    # Keeping the seat

    async def _keep(self) -> None:
        member = self._membership
        try:
            while member.phase is not Phase.GONE:
                sending = member.next(monotonic_ms())
                self._heed()
                try:
                    await self._send(sending)
                except RivvenError as error:
                    self._seat.hang_up()
                    if error.retriable:
                        member.failed(monotonic_ms())
                    else:
                        member.fail(error)
        finally:
            self._heed()
            self._news.set()

    async def _send(self, sending: Sending) -> None:
        member, seat = self._membership, self._seat
        sent_ms = monotonic_ms()
        match sending:
            case Rest(until_ms):
                await self._rest(None if until_ms is None else until_ms - sent_ms)
            case Look(topics):
                member.looked(await seat.look(topics), monotonic_ms())
            case Join():
                joined = await seat.join(sending, member.settings)
                self._hang_up_if_moved(joined.error)
                member.joined(joined, monotonic_ms())
            case Sync():
                error, assignment = await seat.sync(sending, member.settings)
                self._hang_up_if_moved(error)
                member.synced(error, assignment, monotonic_ms())
            case Beat():
                error = await seat.beat(sending, member.settings)
                self._hang_up_if_moved(error)
                member.beaten(error, sent_ms, monotonic_ms())
            case Leave():
                with contextlib.suppress(RivvenError):
                    await seat.leave(sending)
                member.said_farewell()

    def _hang_up_if_moved(self, error: int) -> None:
        if error in MOVED:
            self._seat.hang_up()

    async def _rest(self, wait_ms: int | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if wait_ms is None else max(0, wait_ms) / 1000):
                await self._woken.wait()
        self._woken.clear()

    # Commits

    async def commit(self, *, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Remember for the group what was handed out so far, or that it goes on at these offsets; wait for it."""
        for key in offsets or ():
            self._inbox.shelf(key)  # or an error: what is not ours is not ours to commit
        await super().commit(offsets=offsets)

    async def _commit(self, positions: dict[TopicPartition, int]) -> None:
        news = {key: offset for key, offset in positions.items() if self._is_news(key, offset)}
        if news:
            await self._commit_as_member(news)
            self._committed.update(news)

    async def _commit_as_member(
        self, offsets: Mapping[TopicPartition, int], transaction: TxnName | None = None
    ) -> None:
        member = self._membership

        def identity() -> tuple[int, str]:
            if member.generation == NO_GENERATION:
                raise TryAgain(reason=f"REBALANCE_IN_PROGRESS: not a member of group {self._group!r} right now")
            return member.generation, member.member_id

        def refused(code: int, generation: int) -> None:
            member.commit_refused(code, generation, monotonic_ms())
            self._heed()
            self._wake()

        await self._offsets.commit(offsets, identity, member.settings.instance_id, refused, transaction)

    # The end

    async def close(self) -> None:
        """Commit if that is automatic, give everything back, leave the group and hang up. A second call does nothing.

        A member with an `instance_id` does not leave: it may come back within its session, to what it had.
        """
        if self._closed:
            return
        member = self._membership
        try:
            async with self._turning:
                if self._auto_commit and member.generation != NO_GENERATION:
                    await self._commit_at_last()
                if isinstance(lost := member.turn, Lose):
                    await self._perform(lost)
                elif member.owned:
                    await self._tell(self._listener.on_revoked, member.owned)
        finally:
            self._closed = True
            await self._stand_up()
            await self._hang_up()

    async def _commit_at_last(self) -> None:
        try:
            await self.commit()
        except TryAgain as error:
            if error.facts.get("error") not in FENCED:
                raise  # else the group has gone on without us, which no longer matters

    async def _stand_up(self) -> None:
        leave = self._membership.leave()
        if self._keeper is not None and not self._keeper.done():
            await gone(self._keeper)
        if leave is not None:
            self._seat.hang_up()  # a join may be waiting there
            with contextlib.suppress(RivvenError):
                await self._seat.leave(leave)
        self._seat.close()
        self._offsets.close()
        self._news.set()


class MemberOptions(TypedDict, total=False):
    """What `RivvenClient.consumer` takes for a member of a group."""

    assignor: str | Sequence[str]
    """"cooperative-sticky" unless told; "sticky", "range", "roundrobin", or several in the order of preference."""
    auto_commit_interval_ms: int
    auto_offset_reset: Reset
    """Where to begin without a committed offset, or with one that is gone: "earliest", "latest" or "error"."""
    session_timeout_ms: int
    """A member that is silent for so long is let go."""
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    """A member whose caller does not ask for messages for so long gives its place up until it does."""
    refresh_interval_ms: int
    """How often topics are looked at that may have come or grown."""
    instance_id: str | None
    """A name that outlives the process: who comes back with it gets what it had, without a rebalance."""
    listener: RebalanceListener
    on_assigned: OnPartitions
    on_revoked: OnPartitions
    on_lost: OnPartitions
    fetch_bytes: int
    wait_ms: int
    isolation: Isolation


SEAT = (
    *("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms", "refresh_interval_ms"),
    "instance_id",
)
LISTENING = ("listener", "on_assigned", "on_revoked", "on_lost")


async def make_member(
    cluster: Cluster,
    group: str,
    topics: str | Iterable[str] | None,
    pattern: str | re.Pattern[str] | None,
    *,
    batch_size: int,
    auto_commit: bool,
    options: dict[str, Any],
) -> GroupConsumer:
    """A member with `MemberOptions`, which is about to join if it is known for what."""
    if strange := options.keys() - MemberOptions.__annotations__.keys():
        names = ", ".join(MemberOptions.__annotations__)
        raise ConfigException(reason=f"a member of a group takes no {', '.join(sorted(strange))}; it takes {names}")
    seat = {name: options[name] for name in SEAT if name in options}
    listening = {name: options[name] for name in LISTENING if name in options}
    rest = {name: value for name, value in options.items() if name not in (*SEAT, *LISTENING, "assignor")}
    assignor = options.get("assignor", COOPERATIVE)
    settings = MemberSettings(
        group=group, assignors=(assignor,) if isinstance(assignor, str) else tuple(assignor), **seat
    )
    consumer = GroupConsumer(cluster, settings, batch_size=batch_size, auto_commit=auto_commit, **rest)
    if topics is not None or pattern is not None or listening:
        await consumer.subscribe(topics, pattern=pattern, **listening)
    return consumer

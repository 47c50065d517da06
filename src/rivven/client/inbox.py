"""What a consumer has read ahead: whole batches as they came, partition by partition, taken apart when asked for.

Invariant: `position` is the next offset to hand out and never goes back but by `seek`; `fetch_offset` is the next to
ask the server for; between the two lies what the shelf holds.

Who reads committed records alone is told by the server which transactions of what it sends have aborted; their
batches are left out here, as are the marks at the end of transactions, before anybody takes anything apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from rivven.errors import Malformed, OffsetOutOfRange, RivvenError
from rivven.limits import KIB, MIB
from rivven.record import decode, decode_marker, parse_header, to_arrow, walk
from rivven.wire import Piece
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from . import arrow
from .failures import ConfigException, SerializationException, coded_error
from .values import Message

if TYPE_CHECKING:
    import pyarrow as pa

K = TypeVar("K")
Isolation = Literal["read_committed", "read_uncommitted"]
ISOLATIONS = ("read_uncommitted", "read_committed")
"""By the number they have on the wire."""
COLUMNS = ("offset", "timestamp", "key", "value", "headers")
COPIED_BYTES_MAX = 64 * KIB
"""A smaller chunk is copied out of the receive buffer, which is then free for the next one."""
FLIGHT_BYTES_MAX = 16 * MIB
CHUNKS_AHEAD = 2
"""A partition is asked for more while it holds fewer chunks than this: one in use, one in reserve."""


LOST_MAX = 100


class Bounds(NamedTuple):
    """Of a partition, as the server told with its last answer: the first offset that is there, the next that will be
    written, and the first that is not decided yet, where readers of committed records end."""

    earliest: int
    latest: int
    stable: int


class Chunk(NamedTuple):
    """What one answer brought for a partition: batches, or the messages of a server that sends none."""

    data: Piece
    messages: tuple[Message, ...] | None
    next_offset: int


class Taken(NamedTuple):
    """A chunk on its way to becoming columns, which needs no connection and may be done in any thread."""

    topic: str
    partition: int
    chunk: Chunk
    from_offset: int
    until: int | None

    def to_arrow(self, columns: Sequence[str] | None) -> pa.RecordBatch:
        names = COLUMNS if columns is None else tuple(columns)
        own = [name for name in names if name != arrow.PARTITION]
        if self.chunk.messages is not None:
            end = self.chunk.next_offset if self.until is None else self.until
            kept = [message for message in self.chunk.messages if self.from_offset <= message.offset < end]
            batch = arrow.messages_to_arrow(kept, own)
        else:
            batch = self._decode(own)
        if len(own) < len(names):
            batch = arrow.with_partition(batch, names, self.partition)
        about = {b"topic": self.topic.encode(), b"partition": str(self.partition).encode()}
        return batch.replace_schema_metadata(about)

    def _decode(self, columns: Sequence[str]) -> pa.RecordBatch:
        start = self.from_offset
        try:
            return to_arrow(self.chunk.data, from_offset=start, until_offset=self.until, columns=columns)
        except Malformed as error:
            where = f"{self.topic}/{self.partition} cannot be read from offset {start} on"
            raise SerializationException(reason=f"{where}: {error}; fetch tells which batch it is") from error


NOTHING = Chunk(b"", None, 0)


class Shelf:
    """One partition."""

    __slots__ = (
        *("_at", "_ready", "_taken", "bounds", "chunks", "end_offset", "fetch_offset", "generation"),
        *("lost", "partition", "position", "topic"),
    )

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        self.topic = topic
        self.partition = partition
        self.generation = 0
        self.end_offset = -1
        """Where what can be read ended when the server was last asked."""
        self.bounds: Bounds | None = None
        self.lost: deque[tuple[int, int]] = deque(maxlen=LOST_MAX)
        """[start, until) that were passed over because they were gone when they were asked for; the latest."""
        self.chunks: deque[Chunk] = deque()
        self._ready: list[Message] = []
        self._taken = 0
        self._at = 0
        self.position = self.fetch_offset = offset

    def seek(self, offset: int) -> None:
        """Go on from there; whatever is under way for another place does not count."""
        self.generation += 1
        self.chunks.clear()
        self.lost.clear()
        self._forget_ready()
        self.position = self.fetch_offset = offset

    def _forget_ready(self) -> None:
        self._ready, self._taken, self._at = [], 0, 0

    @property
    def is_behind(self) -> bool:
        """Whether the server is known to have more."""
        return self.fetch_offset < self.end_offset

    def add(self, data: Piece, aborted: Iterable[tell.AbortedTransaction] = ()) -> None:
        data, next_offset = Visible(aborted).of(data)
        if next_offset <= self.fetch_offset:
            return
        if len(data) <= COPIED_BYTES_MAX:
            data = bytes(data)
        self.chunks.append(Chunk(data, None, next_offset))
        self.fetch_offset = next_offset

    def add_messages(self, messages: tuple[Message, ...]) -> None:
        if messages:
            self.fetch_offset = messages[-1].offset + 1
            self.chunks.append(Chunk(b"", messages, self.fetch_offset))

    def take(self, count: int) -> list[Message]:
        """Up to so many messages. At a batch that cannot be read it stops for good, after what comes before."""
        taken: list[Message] = []
        try:
            while count > 0 and (self._taken < len(self._ready) or self._unpack()):
                some = self._ready[self._taken : self._taken + count]
                self._taken += len(some)
                count -= len(some)
                taken += some
                self.position = some[-1].offset + 1
        except SerializationException:
            if not taken:
                raise
        return taken

    def _unpack(self) -> bool:
        """Take the next batch apart. Whether there was one with anything to hand out."""
        self._ready, self._taken = [], 0
        while self.chunks and not self._ready:
            data, messages, next_offset = self.chunks[0]
            if messages is not None and not self._at:
                self._ready = [message for message in messages if message.offset >= self.position]
                self._at = 1
            elif messages is not None or self._at >= len(data):
                self.chunks.popleft()
                self._at = 0
                self.position = max(self.position, next_offset)
            else:
                self._ready = self._decode(data)
        return bool(self._ready)

    def _decode(self, data: Piece) -> list[Message]:
        header = parse_header(data, self._at)
        messages: list[Message] = []
        if not header.control and header.last_offset >= self.position:
            topic, partition, position = self.topic, self.partition, self.position
            try:
                messages = [
                    Message(value, offset, timestamp_ms, partition, topic, key, headers)
                    for offset, timestamp_ms, key, value, headers in decode(data, self._at)
                    if offset >= position
                ]
            except Malformed as error:
                where = f"{topic}/{partition} cannot be read from offset {max(position, header.base_offset)}"
                beyond = f"seek to {header.next_offset} to leave that batch out"
                raise SerializationException(reason=f"{where}: {error}; {beyond}") from error
        self._at += header.batch_bytes
        return messages

    def pass_over_nothing(self) -> None:
        """Leave behind what has nothing to hand out."""
        while self.chunks and self.chunks[0].messages is None and not self.chunks[0].data:
            self.position = max(self.position, self.chunks.popleft().next_offset)

    def take_chunk(self, until: int | None) -> Taken:
        """The oldest chunk, or the part of it before `until`."""
        self._forget_ready()
        chunk, start = self.chunks[0], self.position
        if until is not None and until < chunk.next_offset:
            self.position = max(start, until)
        else:
            self.chunks.popleft()
            self.position = max(start, chunk.next_offset)
        return Taken(self.topic, self.partition, chunk, start, until)


class Visible:
    """Takes batches of aborted transactions and control batches out of data that comes piece by piece, in order.

    `aborted` has every aborted transaction that reaches into the data. One has its end in the data, at its marker, or
    behind it.
    """

    def __init__(self, aborted: Iterable[tell.AbortedTransaction]) -> None:
        self._begins = sorted((each.first_offset, each.producer_id) for each in aborted)
        self._dropping: set[int] = set()

    def of(self, data: Piece) -> tuple[Piece, int]:
        """The batches that are left of the next piece, and the offset behind them all."""
        begins, dropping = self._begins, self._dropping
        kept: list[tuple[int, int]] = []
        next_offset = end = 0
        for at, header in walk(data):
            next_offset, end = header.next_offset, at + header.batch_bytes
            while begins and begins[0][0] <= header.last_offset:
                dropping.add(begins.pop(0)[1])
            if header.control:
                # One that compaction has emptied does not tell any more what it was; but it is the one that was due
                if header.producer_id in dropping and not (header.count and decode_marker(data, at)[0]):
                    dropping.discard(header.producer_id)
            elif not (header.transactional and header.producer_id in dropping):
                if kept and kept[-1][1] == at:
                    kept[-1] = (kept[-1][0], end)
                else:
                    kept.append((at, end))
        if len(kept) == 1:
            (start, stop), view = kept[0], data
            return (view if (start, stop) == (0, len(data)) else memoryview(view)[start:stop]), next_offset
        return b"".join(data[start:stop] for start, stop in kept), next_offset


class Plan(NamedTuple):
    """What is asked for at once; the generations tell whether it is still wanted when it comes."""

    shelves: list[Shelf]
    generations: list[int]


class Shelves(Generic[K]):
    """Partitions that are read together, each in its turn. What a partition is known by is up to its keeper."""

    def __init__(self, fetch_bytes: int, isolation: Isolation = "read_committed") -> None:
        if isolation not in ISOLATIONS:
            raise ConfigException(reason=f"isolation is one of {', '.join(ISOLATIONS)}, not {isolation!r}")
        self._fetch_bytes = fetch_bytes
        self._isolation = ISOLATIONS.index(isolation)
        self.shelves: dict[K, Shelf] = {}
        self.paused: set[K] = set()

    def key(self, topic: str, partition: int) -> K:
        raise NotImplementedError

    def shelf(self, partition: K | None) -> Shelf:
        """The shelf of a partition; which one may be left out where there is one alone."""
        if partition is None and len(self.shelves) == 1:
            return next(iter(self.shelves.values()))
        if partition is None:
            raise ConfigException(reason=f"say which partition: {', '.join(map(str, self.shelves)) or 'none'}")
        if partition not in self.shelves:
            raise ConfigException(reason=f"partition {partition} is not assigned")
        return self.shelves[partition]

    def chosen(self, partition: K | None) -> list[Shelf]:
        """One shelf, or all of them."""
        return list(self.shelves.values()) if partition is None else [self.shelf(partition)]

    @property
    def has_chunks(self) -> bool:
        return any(shelf.chunks for shelf in self._open())

    def _open(self) -> list[Shelf]:
        """The shelves that are read from now."""
        if not self.paused:
            return list(self.shelves.values())
        return [shelf for key, shelf in self.shelves.items() if key not in self.paused]

    def take(self, count: int) -> list[Message]:
        taken: list[Message] = []
        try:
            for shelf in self._open():
                if len(taken) >= count:
                    break
                some = shelf.take(count - len(taken))
                if some:
                    taken += some
                    self._last(shelf)
        except SerializationException:
            if not taken:
                raise  # what there is goes first, and the next call ends here
        return taken

    def take_chunk(self, until: int | None) -> Taken | None:
        for shelf in self._open():
            shelf.pass_over_nothing()
            if shelf.chunks and (until is None or shelf.position < until):
                self._last(shelf)
                return shelf.take_chunk(until)
        return None

    def _last(self, shelf: Shelf) -> None:
        """The others come first the next time."""
        key = self.key(shelf.topic, shelf.partition)
        del self.shelves[key]
        self.shelves[key] = shelf

    # Asking for more

    def plan(self, *, ahead: bool) -> Plan:
        """What to ask for; `ahead`: only what the server is known to have."""
        shelves = [
            shelf for shelf in self._open() if len(shelf.chunks) < CHUNKS_AHEAD and (shelf.is_behind or not ahead)
        ]
        return Plan(shelves, [shelf.generation for shelf in shelves])

    def request(self, plan: Plan, wait_ms: int) -> ask.FetchBatches:
        parts: dict[str, list[ask.PartitionFetch]] = {}
        for shelf in plan.shelves:
            part = ask.PartitionFetch(shelf.partition, shelf.fetch_offset, self._fetch_bytes)
            parts.setdefault(shelf.topic, []).append(part)
        bytes_max = max(FLIGHT_BYTES_MAX, self._fetch_bytes)
        topics = tuple(ask.TopicFetch(topic, tuple(some)) for topic, some in parts.items())
        return ask.FetchBatches(wait_ms, 1, bytes_max, self._isolation, topics)

    def fetched(self, plan: Plan, answer: tell.FetchedBatches) -> tuple[bool, RivvenError | None]:
        """Keep what came. Whether asking again at once makes sense, and what went wrong."""
        parts = {(topic.topic, part.partition): part for topic in answer.topics for part in topic.partitions}
        again, error = False, None
        for shelf, generation in zip(plan.shelves, plan.generations, strict=True):
            part = parts.get((shelf.topic, shelf.partition))
            if part is None or generation != shelf.generation:
                again = again or generation != shelf.generation
                continue
            if part.log_start_offset >= 0:
                shelf.bounds = Bounds(part.log_start_offset, part.high_watermark, part.last_stable_offset)
            if part.error == OffsetOutOfRange.code:
                moved, fault = self._out_of_range(shelf, part)
                again, error = again or moved, error or fault
            elif part.error:
                error = error or coded_error(part.error, part.error_message)
            else:
                assert not isinstance(part.batches, tuple), "only what is sent comes in pieces"
                shelf.end_offset = part.last_stable_offset if self._isolation else part.high_watermark
                shelf.add(part.batches, part.aborted)
        return again, error

    def _out_of_range(self, shelf: Shelf, part: tell.PartitionFetched) -> tuple[bool, RivvenError | None]:
        """Before the beginning is at the beginning; after the end there is nothing yet."""
        if shelf.fetch_offset >= part.log_start_offset:
            return False, None
        shelf.lost.append((shelf.fetch_offset, part.log_start_offset))
        if not shelf.chunks:
            shelf.position = max(shelf.position, part.log_start_offset)
        shelf.fetch_offset = part.log_start_offset
        return True, None

    def old_requests(self, plan: Plan, wait_ms: int, count: int) -> Iterable[tuple[Shelf, int, ask.Consume]]:
        """The same for a server without batches; the last partition alone waits."""
        for place, (shelf, generation) in enumerate(zip(plan.shelves, plan.generations, strict=True), 1):
            wait = wait_ms if place == len(plan.shelves) else 0
            isolation = self._isolation or None
            request = ask.Consume(shelf.topic, shelf.partition, shelf.fetch_offset, count, isolation, wait)
            yield shelf, generation, request

    def fetched_old(self, shelf: Shelf, generation: int, answer: tell.Messages) -> None:
        if generation != shelf.generation:
            return
        shelf.add_messages(
            tuple(
                Message(
                    entry.value,
                    entry.offset,
                    entry.timestamp_ms,
                    entry.partition,
                    shelf.topic,
                    entry.key,
                    tuple((header.name, header.value) for header in entry.headers),
                )
                for entry in answer.messages
            )
        )


class Inbox(Shelves[int]):
    """The partitions of one topic."""

    def __init__(self, topic: str, fetch_bytes: int, isolation: Isolation = "read_committed") -> None:
        super().__init__(fetch_bytes, isolation)
        self.topic = topic

    def key(self, topic: str, partition: int) -> int:
        del topic
        return partition

    def assign(self, offsets: dict[int, int]) -> None:
        self.shelves = {number: Shelf(self.topic, number, offset) for number, offset in sorted(offsets.items())}
        self.paused.clear()

"""The consumers for threads: of partitions that were named, and of those that a group shares out.

Invariant: a message goes to one caller, however many threads ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rivven.model import TopicPartition

from . import consumer as shell_consumer
from . import group_consumer as shell_group
from .inbox import Bounds, Taken
from .loop_thread import Blocking, LoopThread, waits
from .reader import Reader
from .values import Message, Position

if TYPE_CHECKING:
    import pyarrow as pa

K = TypeVar("K")
S = TypeVar("S", bound=Reader[Any], covariant=True)
T = TypeVar("T")


class _Reading(Blocking[S], Generic[S, K]):
    """What the blocking consumers share."""

    @property
    def group(self) -> str | None:
        return self._inner.group

    @property
    def is_closed(self) -> bool:
        return self._inner.is_closed

    def current_offset(self, partition: K | None = None) -> Position:
        """The offset of the next message that will be handed out."""
        return self._inner.current_offset(partition)

    def positions(self) -> dict[K, int]:
        """The same for every partition."""
        return self._inner.positions()

    def pause(self, *partitions: K) -> None:
        """Hand out nothing more of these partitions, or of any, until `resume`."""
        self._thread.run(_soon(partial(self._inner.pause, *partitions)))

    def resume(self, *partitions: K) -> None:
        self._thread.run(_soon(partial(self._inner.resume, *partitions)))

    def commit_soon(self) -> None:
        """Commit without waiting for it."""
        self._thread.run(_soon(self._inner.commit_soon))

    def fetch_arrow(
        self, *, columns: Sequence[str] | None = None, until: int | None = None, wait_ms: int = 0
    ) -> pa.RecordBatch:
        """The next records as columns; made in the calling thread, while the loop goes on reading."""
        taken = self._thread.run(self._inner._next_chunk(until, wait_ms))
        try:
            return taken.to_arrow(columns)
        except Exception:
            self._thread.run(_soon(partial(self._inner._give_back, taken)))
            raise

    def fetch_batches(self, *, until: int | None = None, wait_ms: int = 0) -> Taken:
        """The next batches as they came, and the offset that is wanted first. No data: there is nothing now."""
        return self._thread.run(self._inner._next_chunk(until, wait_ms))

    def bounds(self) -> dict[K, Bounds]:
        """What the server told of the partitions with its last answers, for those that have been asked for."""
        shelves = dict(self._inner._inbox.shelves)
        return {key: shelf.bounds for key, shelf in shelves.items() if shelf.bounds is not None}

    def take_lost(self) -> list[tuple[K, int, int]]:
        """Partition, start and end of what was to be read and is gone, since this was last asked."""
        shelves = dict(self._inner._inbox.shelves)
        return [(key, *shelf.lost.popleft()) for key, shelf in shelves.items() for _ in range(len(shelf.lost))]

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come. What the loop's body has finished with is what an automatic commit covers."""
        inner = self._inner
        while not inner.is_closed:
            if (not inner._handed or inner._due) and not self._thread.run(inner._refill()):
                return
            while inner._handed and not inner._due:
                try:
                    message = inner._handed.popleft()
                except IndexError:  # another thread was faster
                    break
                yield message

    seek = waits(Reader.seek)
    seek_to_beginning = waits(Reader.seek_to_beginning)
    seek_to_end = waits(Reader.seek_to_end)
    seek_to_timestamp = waits(Reader.seek_to_timestamp)
    get_offset_bounds = waits(Reader.get_offset_bounds)
    lag = waits(Reader.lag)
    fetch = waits(Reader.fetch)
    poll = waits(Reader.poll)


async def _soon(call: Callable[[], T]) -> T:
    """What does not wait, done on the loop all the same."""
    return call()


class Consumer(_Reading[shell_consumer.Consumer, int]):
    """`rivven.Consumer`, blocking. Iterating waits for messages, and ends when the consumer is closed."""

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def partition(self) -> int:
        return self._inner.partition

    @property
    def partitions(self) -> list[int]:
        return self._inner.partitions

    assign = waits(shell_consumer.Consumer.assign)
    commit = waits(shell_consumer.Consumer.commit)
    close = waits(shell_consumer.Consumer.close)


class GroupConsumer(_Reading[shell_group.GroupConsumer, TopicPartition]):
    """`rivven.GroupConsumer`, blocking. Listeners run in a thread of their own while the caller waits for messages.
    They may use the consumer, but not ask it for messages."""

    def __init__(self, inner: shell_group.GroupConsumer, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        inner._callbacks_in_thread = True

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def topics(self) -> list[str]:
        return self._inner.topics

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._inner.assignment

    @property
    def member_id(self) -> str:
        return self._inner.member_id

    @property
    def generation(self) -> int:
        return self._inner.generation

    @property
    def is_settled(self) -> bool:
        return self._inner.is_settled

    subscribe = waits(shell_group.GroupConsumer.subscribe)
    commit = waits(shell_group.GroupConsumer.commit)
    close = waits(shell_group.GroupConsumer.close)

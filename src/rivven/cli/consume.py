"""`rivven consume`: records of a topic, as lines for people or for the next program."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rivven.errors import RivvenError

from . import show
from .bounds import FROM_0, PARTITION_MAX, POLL_MS_MAX
from .opening import usage
from .server import DEFAULT, Server, TopicName, connected, explain, from_time, partitions_of
from .text import readable

if TYPE_CHECKING:
    from rivven.client import Message, blocking
    from rivven.model import TopicPartition

MAX = 100
"""Records that are shown unless told."""
FETCHED_MAX = 1_000
SHARE_MS = 200
"""How long a member waits at a time for its share, and for records."""
PAUSE_S = 1.0
"""Between tries of a --follow whose broker is away."""


class Form(StrEnum):
    DEFAULT = "default"
    VALUE = "value"
    JSON = "json"
    HEX = "hex"


def consume(
    topic: TopicName,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", metavar="N", min=0, max=PARTITION_MAX, help="Only this partition; else all of them."
        ),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="O",
            click_type=FROM_0,
            help="Begin at this offset, of partition 0 unless told.",
        ),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin with the first record, as without a group it does anyway.")
    ] = False,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", metavar="TIME", help="Begin at a time: ISO 8601, or ms since 1970."),
    ] = None,
    count_max: Annotated[
        int | None,
        typer.Option(
            "--max",
            "-m",
            metavar="M",
            click_type=FROM_0,
            help=f"Stop after so many records; 0 is no limit, as with --follow. [default: {MAX}]",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more records, until Ctrl-C.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="G",
            help="Join this group: share its partitions with its other members, and go on where it stopped.",
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="How a record is shown.")] = Form.DEFAULT,
    poll_ms: Annotated[
        int,
        typer.Option(
            "--poll-interval", metavar="MS", min=1, max=POLL_MS_MAX, help="With --follow: how long a request waits."
        ),
    ] = 100,
    server: Server = DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Show the records of a topic, and with --follow those to come.

    With --group and --partition, or --offset, the partition is read without joining; the group's offsets are kept.

    Formats: default is `[offset=n] key=k value=v`, with the partition before it where several are read; value is
    the bytes of the value and a line end; hex is the default with key and value in hex; json is an object a line.

    Examples:

        rivven consume orders --partition 0 --offset 17 --max 1

        rivven consume orders --follow --format value | grep teapot

        rivven consume orders --timestamp 2025-03-01T12:00:00Z --json
    """
    if sum((offset is not None, from_beginning, timestamp is not None)) > 1:
        usage("begin at one of --offset, --timestamp and --from-beginning")
    since_ms = None if timestamp is None else from_time(timestamp)
    if offset is not None and partition is None:
        partition = 0
    limit = count_max if count_max is not None else 0 if follow else MAX
    with connected(server) as client:
        numbers = partitions_of(client, topic, partition)
        writer = _writer(Form.JSON if as_json else form, several=len(numbers) > 1)
        if group is not None and partition is None:
            reading: _Reading = _Sharing(client, topic, group, limit, whole=from_beginning, since_ms=since_ms)
        else:
            ends = {number: client.get_offset_bounds(topic, number) for number in numbers}
            start = None if group is not None and not from_beginning else 0
            if offset is not None:
                start = _checked(topic, numbers[0], offset, *ends[numbers[0]])
            consumer = client.consumer(topic, numbers, group, start, auto_commit=False)
            reading = _Reading(consumer, {number: latest for number, (_, latest) in ends.items()}, limit)
            if since_ms is not None:
                consumer.seek_to_timestamp(since_ms)
        with reading.consumer:
            for messages in reading.follow(poll_ms) if follow else reading.to_the_end():
                writer(messages)
                if group is not None:
                    reading.commit()
            reading.conclude(told=count_max is not None or follow)


def _checked(topic: str, partition: int, offset: int, earliest: int, latest: int) -> int:
    from rivven.client import ServerException

    if offset > latest:
        where = f"{topic}/{partition}"
        raise ServerException(reason=f"OFFSET_OUT_OF_RANGE: offset {offset} of {where} is after its end, {latest}")
    if offset < earliest:
        show.remark(f"offset {offset} is gone; the first that is left is {earliest}")
        return earliest
    return offset


class _Reading:
    """Messages up to a limit, in the portions in which they come."""

    def __init__(
        self, consumer: blocking.Consumer | blocking.GroupConsumer, ends: dict[Any, int], limit: int
    ) -> None:
        self.consumer = consumer
        self._ends = ends
        self._limit = limit
        self._count = 0

    @property
    def _wanted(self) -> int:
        return min(FETCHED_MAX, self._limit - self._count) if self._limit else FETCHED_MAX

    @property
    def _behind(self) -> bool:
        return any(place < self._ends[number] for number, place in self.consumer.positions().items())

    def to_the_end(self) -> Iterator[list[Message]]:
        """What is there now."""
        before: dict[Any, int] = {}
        while self._wanted and self._behind:
            messages = self.consumer.fetch(self._wanted)
            self._count += len(messages)
            if messages:
                yield messages
            elif before == (before := self.consumer.positions()):
                break

    def follow(self, wait_ms: int) -> Iterator[list[Message]]:
        """What is there and what comes. A broker that is away is waited for."""
        away = False
        while self._wanted:
            try:
                messages = self.consumer.poll(wait_ms, self._wanted)
            except RivvenError as error:
                if not error.retriable:
                    raise
                if not away:
                    show.remark(f"{(explain(error) or (str(error), ''))[0]} Trying again until Ctrl-C.")
                away = True
                time.sleep(PAUSE_S)
                continue
            away = False
            self._count += len(messages)
            if messages:
                yield messages

    def commit(self) -> None:
        """What was shown counts as read."""
        self.consumer.commit()

    def conclude(self, *, told: bool) -> None:
        if self._count == 0:
            show.remark("no records there")
        elif not told and self._count == self._limit and self._behind:
            show.remark(f"stopped after {self._limit} records; --max says how many, 0 all")


class _Sharing(_Reading):
    """As a member of a group: of the partitions that the others leave to us."""

    consumer: blocking.GroupConsumer

    def __init__(
        self,
        client: blocking.RivvenClient,
        topic: str,
        group: str,
        limit: int,
        *,
        whole: bool,
        since_ms: int | None,
    ) -> None:
        self._client = client
        self._whole = whole
        self._since_ms = since_ms
        consumer = client.consumer(group=group, topics=[topic], auto_commit=False, on_assigned=self._assigned)
        super().__init__(consumer, {}, limit)

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._ends[one] = self._client.get_offset_bounds(*one)[1]
            if self._whole:
                self.consumer.seek_to_beginning(partition=one)
            elif self._since_ms is not None:
                self.consumer.seek_to_timestamp(self._since_ms, partition=one)

    def to_the_end(self) -> Iterator[list[Message]]:
        """What is there when our share is known."""
        before: dict[TopicPartition, int] | None = None
        while self._wanted and not (self.consumer.is_settled and not self._behind):
            messages = self.consumer.poll(SHARE_MS, self._wanted)
            self._count += len(messages)
            if messages:
                yield messages
            elif self.consumer.is_settled and before == (before := self.consumer.positions()):
                break

    def commit(self) -> None:
        """Where the group goes on without us just then, another member shows these records again."""
        try:
            self.consumer.commit()
        except RivvenError as error:
            if not error.retriable:
                raise

    def conclude(self, *, told: bool) -> None:
        if self.consumer.is_settled and not self.consumer.assignment:
            show.remark("the group's other members read every partition")
        else:
            super().conclude(told=told)


# How a record looks


def _writer(form: Form, *, several: bool) -> Callable[[list[Message]], None]:
    """Writes a portion at once, and sees that it leaves."""
    show_one = {Form.DEFAULT: _plain, Form.HEX: _hex, Form.VALUE: _value, Form.JSON: _json}[form]
    placed = several and form in (Form.DEFAULT, Form.HEX)

    def write(messages: list[Message]) -> None:
        parts = []
        for message in messages:
            if placed:
                parts.append(b"partition=%d " % message.partition)
            parts += (show_one(message), b"\n")
        sys.stdout.flush()
        sys.stdout.buffer.write(b"".join(parts))
        sys.stdout.buffer.flush()

    return write


def _plain(message: Message) -> bytes:
    return f"[offset={message.offset}] key={readable(message.key)} value={readable(message.value)}".encode()


def _hex(message: Message) -> bytes:
    key, value = ("null" if data is None else data.hex() for data in (message.key, message.value))
    return f"[offset={message.offset}] key={key} value={value}".encode()


def _value(message: Message) -> bytes:
    return message.value or b""


def _json(message: Message) -> bytes:
    import msgspec

    from rivven.record import Record

    from .batches import record_json

    record = Record(message.offset, message.timestamp, message.key, message.value, message.headers)
    return msgspec.json.encode({"topic": message.topic, "partition": message.partition, **record_json(record)})

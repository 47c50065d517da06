"""`rivven produce`: records from the command line, from lines on stdin, or from the lines of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from . import show
from .bounds import PARTITION_MAX
from .opening import usage
from .server import DEFAULT, AsJson, Server, TopicName, connected, done, from_pairs, partitions_of
from .text import counted

if TYPE_CHECKING:
    from rivven.client import Delivery, blocking
    from rivven.errors import RivvenError

PATIENCE_MS = 30_000
"""How long a record may wait for a broker that has gone away."""

Pair = tuple[bytes | None, bytes | None]
"""Key and value."""


def produce(
    topic: TopicName,
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="The record's value. Without it, lines are read.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="The key, of every record if there are more.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="N",
            min=0,
            max=PARTITION_MAX,
            help="The partition; else the key or chance decides.",
        ),
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="PATH", help="Read lines from this file; - is stdin.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", metavar="TEXT", help="What stands between key and value, as : in key:value."),
    ] = None,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="A record without a value: compaction then deletes the key.")
    ] = False,
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Publish a record, or the lines of stdin or of a file.

    A command that ends well has everything stored. A topic that is not there is made, if the broker allows it.

    Examples:

        rivven produce orders 'a teapot' --key customer-17 -H source=web

        rivven produce orders --file orders.txt --key-separator :

        tail -f app.log | rivven produce logs
    """
    if message is not None and file is not None:
        usage("give a MESSAGE or --file, not both")
    if key is not None and key_separator is not None:
        usage("give --key or --key-separator, not both")
    if key_separator == "":
        usage("--key-separator takes at least one character")
    if tombstone and (key is None or message is not None or file is not None):
        usage("--tombstone takes a --key and no MESSAGE")
    extra = tuple((_header_name(name), os.fsencode(value)) for name, value in from_pairs(headers or [], "--header"))
    given_key = None if key is None else os.fsencode(key)
    separator = None if key_separator is None else os.fsencode(key_separator)
    with _lines(file if message is None and not tombstone else None, message, tombstone) as values:
        pairs = _pairs(values, given_key, separator)
        with connected(server) as client:
            if partition is not None and topic in client.list_topics():
                partitions_of(client, topic, partition)
            with client.producer(topic, compression=compression, delivery_timeout_ms=PATIENCE_MS) as producer:
                sender = _Sender(producer, partition, extra)
                if message is not None or tombstone:
                    sender.send_one(next(pairs), as_json=as_json)
                elif file is None and sys.stdin.isatty():
                    _converse(sender, pairs, as_json=as_json)
                else:
                    sender.send_all(pairs, as_json=as_json)


@contextmanager
def _lines(file: str | None, message: str | None, tombstone: bool) -> Iterator[Iterable[bytes | None]]:
    """The values before they are taken apart: what was given, or lines."""
    if tombstone:
        yield [None]
    elif message is not None:
        yield [os.fsencode(message)]
    elif file is None or file == "-":
        yield _without_ends(sys.stdin.buffer)
    else:
        try:
            source = open(file, "rb")  # noqa: SIM115  # closed below; only the opening is excused
        except OSError as error:
            usage(f"{file}: {error.strerror}")
        with source:
            yield _without_ends(source)


def _without_ends(source: BinaryIO) -> Iterator[bytes]:
    return (line.removesuffix(b"\n") for line in source)


def _pairs(values: Iterable[bytes | None], key: bytes | None, separator: bytes | None) -> Iterator[Pair]:
    for number, value in enumerate(values, 1):
        if separator is None or value is None:
            yield key, value
            continue
        own_key, found, rest = value.partition(separator)
        if not found:
            usage(f"record {number} has no {os.fsdecode(separator)!r} to end its key")
        yield own_key, rest


def _converse(sender: _Sender, pairs: Iterator[Pair], *, as_json: bool) -> None:
    show.remark("One record a line; Ctrl-D ends.")
    for pair in pairs:
        sender.send_one(pair, as_json=as_json)


@dataclass(slots=True)
class _Stored:
    """What became of the records of one partition."""

    first: int
    last: int
    count: int


@dataclass(slots=True)
class _Sender:
    producer: blocking.Producer
    partition: int | None
    headers: tuple[tuple[str, bytes], ...]
    stored: dict[int, _Stored] = field(default_factory=dict)
    error: RivvenError | None = None

    @property
    def count(self) -> int:
        return sum(each.count for each in self.stored.values())

    def send_one(self, pair: Pair, *, as_json: bool) -> None:
        self.stored.clear()
        self._put(pair)
        self._flush()
        ((partition, stored),) = self.stored.items()
        if as_json:
            show.show_json({"topic": self.producer.topic, "partition": partition, "offset": stored.last})
        else:
            done(f"Published to topic '{self.producer.topic}' at offset {stored.last}")
        sys.stdout.flush()

    def send_all(self, pairs: Iterator[Pair], *, as_json: bool) -> None:
        try:
            for pair in pairs:
                self._put(pair)
                if self.error is not None:
                    break
            self._flush()
        except BaseException:
            self.producer.close()
            show.remark(f"{counted(self.count, 'record')} had been published before")
            raise
        if as_json:
            show.show_json({"topic": self.producer.topic, "records": self.count, "partitions": self._as_json()})
        else:
            done(f"Published {counted(self.count, 'record')} to topic '{self.producer.topic}'")

    def _as_json(self) -> list[dict[str, Any]]:
        return [
            {"partition": number, "first_offset": each.first, "last_offset": each.last, "records": each.count}
            for number, each in sorted(self.stored.items())
        ]

    def _put(self, pair: Pair) -> None:
        key, value = pair
        self.producer.put(value, key, partition=self.partition, headers=self.headers, on_delivery=self._delivered)

    def _flush(self) -> None:
        self.producer.flush()
        if self.error is not None:
            raise self.error

    def _delivered(self, delivery: Delivery) -> None:
        """Called on the client's thread."""
        if delivery.error is not None:
            self.error = self.error or delivery.error
            return
        stored = self.stored.setdefault(delivery.partition, _Stored(delivery.offset, delivery.offset, 0))
        stored.last = delivery.offset + delivery.count - 1
        stored.count += delivery.count


def _header_name(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        usage(f"a header's name is text in UTF-8, not {os.fsencode(name)!r}")
    return name

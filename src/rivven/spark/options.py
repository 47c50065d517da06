"""The options of the format `rivven`: texts under names in any case, checked all at once before anybody is asked.

Whatever cannot be meant is refused with the option's name, the nearest name there is, and what to write instead.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn, TypeVar

from rivven.client import ConfigException
from rivven.limits import MIB
from rivven.model import TopicPartition

from .columns import READ_COLUMNS

T = TypeVar("T")

BATCH, STREAM, WRITE = "a batch read", "a stream", "a write"
READ = (BATCH, STREAM)
ALL = (BATCH, STREAM, WRITE)

USES: dict[str, tuple[str, ...]] = {
    "servers": ALL,
    "tlsCaCertPath": ALL,
    "tlsServerName": ALL,
    "tlsClientCertPath": ALL,
    "tlsClientKeyPath": ALL,
    "username": ALL,
    "password": ALL,
    "path": ALL,
    "subscribe": READ,
    "subscribePattern": READ,
    "assign": READ,
    "startingOffsets": READ,
    "startingTimestamp": READ,
    "startingOffsetsByTimestamp": READ,
    "endingOffsets": (BATCH,),
    "endingTimestamp": (BATCH,),
    "endingOffsetsByTimestamp": (BATCH,),
    "filterPushdown": (BATCH,),
    "minPartitions": READ,
    "maxPartitionBytes": READ,
    "failOnDataLoss": READ,
    "columns": READ,
    "includeHeaders": READ,
    "isolationLevel": READ,
    "maxOffsetsPerTrigger": (STREAM,),
    "groupId": (STREAM,),
    "topic": (WRITE,),
    "delivery": (WRITE,),
    "compression": (WRITE,),
    "transactionTimeoutMs": (WRITE,),
    "ownerId": (WRITE,),
    "sequence": (WRITE,),
    "checkpointLocation": (WRITE,),
    "queryName": (WRITE,),
}
"""Every option, and what it is for."""
ALIASES = {"bootstrap.servers": "servers", "kafka.bootstrap.servers": "servers"}
HINTS = {
    "asyncprogresstrackingenabled": "Spark offers it for its own Kafka sink alone; leave it out",
    "kafka.group.id": "use 'groupId', under which progress is published",
    "kafka.isolation.level": "use 'isolationLevel'",
    "topics": "use 'subscribe', with commas between topics",
    "partitioner": "rows go where their key says, or where a column 'partition' says; there is nothing to choose",
}

_SPELLING = {name.lower(): name for name in USES} | ALIASES

EARLIEST, LATEST = -2, -1
EDGES = {"earliest": EARLIEST, "latest": LATEST}
PARTITION_BYTES_MAX = 256 * MIB
TRANSACTION_TIMEOUT_MS = 15 * 60 * 1000
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
TLS = ("tlsCaCertPath", "tlsServerName", "tlsClientCertPath", "tlsClientKeyPath")


def refuse(reason: str) -> NoReturn:
    raise ConfigException(reason=reason)


@dataclass(frozen=True, slots=True)
class Access:
    """How the servers are reached, and as whom; two that are equal share a client."""

    servers: str
    tls: tuple[str, str, str | None, str | None] | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which partitions are read: those of some topics, of all that match, or these."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


class Place(NamedTuple):
    """Where reading begins or ends, as told: at an edge, at offsets, or at times in milliseconds.

    `table` is by partition; without one the edge or the time is meant for all.
    """

    option: str
    edge: int = EARLIEST
    time_ms: int | None = None
    table: Mapping[TopicPartition, int] | None = None
    in_time: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    access: Access
    wanted: Wanted
    start: Place
    end: Place
    rows_max: int | None
    partitions_min: int
    partition_bytes_max: int
    fail_on_loss: bool
    group: str | None
    committed: bool
    takes_filters: bool


@dataclass(frozen=True, slots=True)
class Writing:
    access: Access
    topic: str | None
    exactly_once: bool
    compression: str
    transaction_timeout_ms: int
    owner: str | None
    sequence: int | None


# Names


def normalized(options: Mapping[str, str]) -> dict[str, str]:
    """The options under the names of the table above; any name that is not there is refused."""
    found: dict[str, str] = {}
    for name, value in options.items():
        known = _SPELLING.get(name.lower())
        if known is None:
            refuse(_unknown(name))
        if known in found and found[known] != value:
            refuse(f"option '{name}' is given twice, as {found[known]!r} and as {value!r}; give one")
        found[known] = value
    return found


def _unknown(name: str) -> str:
    hint = HINTS.get(name.lower())
    if hint is None:
        near = difflib.get_close_matches(name.lower(), _SPELLING, n=1, cutoff=0.6)
        hint = f"did you mean '{_SPELLING[near[0]]}'?" if near else f"there are {', '.join(USES)}"
    return f"the format rivven has no option '{name}'; {hint}"


def _only_for(options: Mapping[str, str], use: str) -> None:
    for name in options:
        if use not in USES[name]:
            uses = " and ".join(each for each in USES[name])
            refuse(f"option '{name}' is for {uses}, and this is {use}; leave it out")


# Reading and writing


def for_reading(options: Mapping[str, str], *, stream: bool) -> Reading:
    """What a reader is to do; `options` as `normalized`."""
    _only_for(options, STREAM if stream else BATCH)
    columns_asked(options)
    start = _place(options, "starting", LATEST if stream else EARLIEST)
    end = _place(options, "ending", LATEST)
    if not stream and (start.edge == LATEST or LATEST in _offsets(start)):
        refuse(f"option '{start.option}' is latest, where a batch read would find nothing; use earliest or an offset")
    if EARLIEST in _offsets(end) or (end.table is None and end.time_ms is None and end.edge == EARLIEST):
        refuse(f"option '{end.option}' is earliest, where there is nothing to read; use latest or an offset")
    return Reading(
        access=_access(options),
        wanted=_wanted(options),
        start=start,
        end=end,
        rows_max=_count(options, "maxOffsetsPerTrigger", None),
        partitions_min=_count(options, "minPartitions", 1),
        partition_bytes_max=_count(options, "maxPartitionBytes", PARTITION_BYTES_MAX),
        fail_on_loss=_flag(options, "failOnDataLoss", True),
        group=options.get("groupId"),
        committed=_choice(options, "isolationLevel", ("read_committed", "read_uncommitted")) == "read_committed",
        takes_filters=_flag(options, "filterPushdown", False),
    )


def for_writing(options: Mapping[str, str], *, stream: bool) -> Writing:
    _only_for(options, WRITE)
    topic = _one_of(options, "topic", "path")
    if stream and "sequence" in options:
        refuse("option 'sequence' is for batch writes; a stream numbers its batches itself")
    if not stream and ("sequence" in options) != ("ownerId" in options):
        refuse(
            "numbered batch writes need both 'ownerId', their name, and 'sequence', a number that grows; or neither"
        )
    return Writing(
        access=_access(options),
        topic=topic,
        exactly_once=_choice(options, "delivery", ("exactly_once", "at_least_once")) == "exactly_once",
        compression=_choice(options, "compression", COMPRESSIONS),
        transaction_timeout_ms=_count(options, "transactionTimeoutMs", TRANSACTION_TIMEOUT_MS),
        owner=options.get("ownerId"),
        sequence=_number(options, "sequence"),
    )


def writing_of(options: Mapping[str, str]) -> Writing:
    """What a writer is to do that is no query of its own, such as one that tells of rows another has refused."""
    return for_writing(normalized(options), stream=True)


def columns_asked(options: Mapping[str, str]) -> list[str]:
    """The columns that a reader shows, in their order."""
    if not _flag(options, "includeHeaders", True):
        refuse("option 'includeHeaders' is false; name the columns you want with 'columns' instead")
    text = options.get("columns")
    if text is None:
        return list(READ_COLUMNS)
    spelled = {name.lower(): name for name in READ_COLUMNS}
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name.lower() not in spelled:
            refuse(f"option 'columns' names {name!r}; there are {', '.join(READ_COLUMNS)}")
    if not names:
        refuse(f"option 'columns' names none; there are {', '.join(READ_COLUMNS)}")
    return list(dict.fromkeys(spelled[name.lower()] for name in names))


# One option each


def _access(options: Mapping[str, str]) -> Access:
    if not options.get("servers", "").strip():
        refuse("option 'servers' is missing; name one or more as host:port, with commas between")
    tls = tuple(options.get(name) for name in TLS)
    if any(tls) and not (tls[0] and tls[1]):
        refuse("TLS needs both 'tlsCaCertPath' and 'tlsServerName'")
    if bool(tls[2]) != bool(tls[3]):
        refuse("a client's certificate needs both 'tlsClientCertPath' and 'tlsClientKeyPath'")
    user, password = options.get("username"), options.get("password")
    if (user is None) != (password is None):
        refuse("logging in needs both 'username' and 'password'")
    whole = (tls[0], tls[1], tls[2], tls[3]) if tls[0] and tls[1] else None
    return Access(options["servers"], whole, user, password)


def _wanted(options: Mapping[str, str]) -> Wanted:
    given = [name for name in ("subscribe", "subscribePattern", "assign", "path") if name in options]
    if len(given) != 1:
        told = f"{' and '.join(repr(name) for name in given)} are given" if given else "none is given"
        refuse(f"{told}; name what to read by one of 'subscribe', 'subscribePattern' and 'assign'")
    text = options[given[0]]
    match given[0]:
        case "subscribePattern":
            try:
                re.compile(text)
            except re.error as error:
                refuse(f"option 'subscribePattern' is no regular expression: {error}")
            return Wanted(pattern=text)
        case "assign":
            return Wanted(partitions=_assigned(text))
        case name:
            topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
            if not topics:
                refuse(f"option '{name}' names no topic")
            return Wanted(topics=topics)


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    shape = 'JSON such as {"orders":[0,1]}'
    table = _json(text, "assign", shape)
    found = []
    for topic, numbers in table.items():
        if not isinstance(numbers, list) or not numbers or not all(_is_count(number) for number in numbers):
            refuse(f"option 'assign' needs a list of partitions for {topic!r}: {shape}")
        found += [TopicPartition(topic, number) for number in sorted(set(numbers))]
    if not found:
        refuse(f"option 'assign' names no partition: {shape}")
    return tuple(found)


def _place(options: Mapping[str, str], which: str, default: int) -> Place:
    names = (f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp")
    given = [name for name in names if name in options]
    if len(given) > 1:
        refuse(f"options {' and '.join(repr(name) for name in given)} contradict one another; give one")
    if not given:
        return Place(names[0], default)
    (name,) = given
    text = options[name].strip()
    if name == names[1]:
        return Place(name, time_ms=_moment(text, name), in_time=True)
    if name == names[0] and text.lower() in EDGES:
        return Place(name, EDGES[text.lower()])
    return _by_partition(name, text, in_time=name == names[2])


def _by_partition(name: str, text: str, *, in_time: bool) -> Place:
    shape = 'JSON such as {"orders":{"0":1700000000000}}' if in_time else 'JSON such as {"orders":{"0":23,"1":-2}}'
    if not in_time:
        shape = f"earliest, latest, or {shape}, where -2 is earliest and -1 latest"
    table: dict[TopicPartition, int] = {}
    for topic, parts in _json(text, name, shape).items():
        if not isinstance(parts, dict):
            refuse(f"option '{name}' needs partitions for {topic!r}: {shape}")
        for partition, value in parts.items():
            lowest = 0 if in_time else EARLIEST
            if not partition.isdecimal() or not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                refuse(f"option '{name}' has {partition!r}: {json.dumps(value)} for {topic!r}; use {shape}")
            table[TopicPartition(topic, int(partition))] = value
    return Place(name, 0, table=table, in_time=in_time)


def _offsets(place: Place) -> Iterable[int]:
    return () if place.table is None or place.in_time else place.table.values()


def _json(text: str, name: str, shape: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    if not isinstance(table, dict):
        refuse(f"option '{name}' is {text!r}; use {shape}")
    return table


def _moment(text: str, name: str) -> int:
    """Milliseconds since 1970, as such or as ISO 8601; UTC unless told."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        refuse(f"option '{name}' is {text!r}; use milliseconds since 1970, or a time like 2025-03-01T12:00:00Z")
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(options: Mapping[str, str], name: str, default: T) -> int | T:
    text = options.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1:
        refuse(f"option '{name}' is {text!r}; use a whole number above 0")
    return int(text)


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is not None and not text.strip().isdecimal():
        refuse(f"option '{name}' is {text!r}; use a whole number from 0 up")
    return None if text is None else int(text)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        refuse(f"option '{name}' is {options[name]!r}; use true or false")
    return text == "true"


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of the choices; the first unless told."""
    text = options.get(name, choices[0]).strip().lower()
    if text not in choices:
        refuse(f"option '{name}' is {options[name]!r}; use one of {', '.join(choices)}")
    return text


def _one_of(options: Mapping[str, str], first: str, second: str) -> str | None:
    if first in options and second in options:
        refuse(f"options '{first}' and '{second}' name the same thing; give one")
    text = options.get(first, options.get(second))
    if text is not None and not text.strip():
        refuse(f"option '{first}' is empty; name a topic")
    return text

"""`rivven group`: consumer groups, how far they got, and how to send them back."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rivven.errors import RivvenError
from rivven.model import TopicPartition

from . import show
from .bounds import PARTITION_MAX
from .opening import usage
from .server import DEFAULT, AsJson, Server, connected, done, from_time, partitions_of
from .text import counted, harmless, parse_when

if TYPE_CHECKING:
    from rivven.client import GroupMember, blocking

app = typer.Typer(help="Look at consumer groups, and move them.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The group's name.")]


@app.command("list")
def list_all(server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """List the groups that have members or have committed something.

    Example:

        rivven group list
    """
    with connected(server) as client:
        names = client.list_groups()
    if as_json:
        show.show_json({"groups": names})
    elif not names:
        show.say("No consumer groups found")
    else:
        show.say("Consumer groups:")
        for name in names:
            show.say(f"  • {harmless(name)}")


@app.command()
def describe(name: Name, server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Show a group's state, its members with what each reads, and what it has committed.

    Example:

        rivven group describe billing
    """
    with connected(server) as client:
        offsets = client.describe_group(name)
        state = client.describe_members(name)
    rows: list[dict[str, Any]] = [
        {"topic": topic, "partition": partition, "committed": offset}
        for topic, committed in sorted(offsets.items())
        for partition, offset in sorted(committed.items())
    ]
    members = [
        {
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.host,
            "partitions": [{"topic": topic, "partition": partition} for topic, partition in member.partitions],
        }
        for member in state.members
    ]
    if as_json:
        head = {"group": name, "state": state.state, "assignor": state.assignor}
        show.show_json({**head, "members": members, "offsets": rows})
        return
    show.say(f"Consumer group: {name}")
    show.say(f"  State: {state.state}")
    if state.assignor:
        show.say(f"  Assignor: {harmless(state.assignor)}")
    if state.members:
        show.say()
        _show_members(state.members)
    if rows:
        show.say()
        columns = [
            show.Column("TOPIC", flexible=True),
            show.Column("PARTITION", True),
            show.Column("COMMITTED", True),
        ]
        show.show_table(
            columns, [(harmless(row["topic"]), str(row["partition"]), f"{row['committed']:,}") for row in rows]
        )


def _show_members(members: Sequence[GroupMember]) -> None:
    show.show_table(
        [show.Column("MEMBER", flexible=True), show.Column("HOST"), show.Column("PARTITIONS", flexible=True)],
        [
            (
                harmless(member.instance_id or member.member_id),
                harmless(member.host),
                " ".join(ranges(member.partitions)) or "-",
            )
            for member in members
        ],
    )


def ranges(partitions: Iterable[tuple[str, int]]) -> list[str]:
    """`topic:0-2,5`, each topic once."""
    by_topic: dict[str, list[list[int]]] = {}
    for topic, number in sorted(partitions):
        runs = by_topic.setdefault(topic, [])
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [
        f"{harmless(topic)}:{','.join(str(a) if a == b else f'{a}-{b}' for a, b in runs)}"
        for topic, runs in by_topic.items()
    ]


@app.command()
def lag(name: Name, server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Show how far a group is behind, partition by partition: in records, and since when the next one waits.

    Partitions of its topics of which it has committed nothing count from their beginning.

    Example:

        rivven group lag billing
    """
    with connected(server) as client:
        rows = _lags(client, name)
    total, longest_s = sum(row["lag"] for row in rows), max((row["lag_s"] for row in rows), default=0.0)
    if as_json:
        show.show_json({"group": name, "lag": total, "lag_s": longest_s, "partitions": rows})
        return
    show.show_table(
        [
            show.Column("TOPIC", flexible=True),
            *(show.Column(title, True) for title in ("PARTITION", "COMMITTED", "END", "LAG", "SECONDS")),
        ],
        [
            (
                harmless(row["topic"]),
                str(row["partition"]),
                _number(row["committed"]),
                f"{row['end']:,}",
                f"{row['lag']:,}",
                f"{row['lag_s']:,.1f}",
            )
            for row in rows
        ],
        total=("total", "", "", "", f"{total:,}", f"{longest_s:,.1f}") if len(rows) > 1 else None,
    )


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _lags(client: blocking.RivvenClient, name: str) -> list[dict[str, Any]]:
    described = client.describe_group(name)
    reading = {topic for member in client.describe_members(name).members for topic, _ in member.partitions}
    topics = set(client.list_topics())
    rows: list[dict[str, Any]] = []
    for topic in sorted(described.keys() | reading):
        if topic not in topics:
            show.remark(f"topic '{topic}' was deleted; the group still has offsets of it")
            continue
        committed = described.get(topic, {})
        for number in partitions_of(client, topic):
            earliest, end = client.get_offset_bounds(topic, number)
            place = max(earliest, committed.get(number, 0))
            rows.append(
                {
                    "topic": topic,
                    "partition": number,
                    "committed": committed.get(number),
                    "end": end,
                    "lag": max(0, end - place),
                    "lag_s": _waits_s(client, topic, number, place) if place < end else 0.0,
                }
            )
    return rows


def _waits_s(client: blocking.RivvenClient, topic: str, partition: int, offset: int) -> float:
    """For how many seconds the record at an offset has been waiting."""
    found = client.consume(topic, partition, offset, 1)
    return max(0, time.time_ns() // 1_000_000 - found[0].timestamp) / 1000 if found else 0.0


@app.command()
def delete(name: Name, server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Forget a group and all it has committed.

    Example:

        rivven group delete billing
    """
    with connected(server) as client:
        client.delete_group(name)
    if as_json:
        show.show_json({"group": name, "deleted": True})
    else:
        done(f"Deleted consumer group '{name}'")


@app.command("reset-offsets")
def reset_offsets(
    name: Name,
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic", "-t", metavar="T[:N,N-M]", help="A topic, or some of its partitions; may be given again."
        ),
    ],
    where: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset like 17, a shift like +10 or -10, or a time in ISO 8601.",
        ),
    ],
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without this the plan is shown.")] = False,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Have a group go on somewhere else. Shows what would change, and changes it with --execute.

    An offset before the first or after the last record is drawn to that. A group that is not there is made. One that
    has members is left alone: stop its consumers first.

    WHERE may say what it is: offset:17, shift:-10, timestamp:1740830400000 (ms since 1970, or ISO 8601).

    Examples: what reading everything since noon again would do, and doing it for two partitions

        rivven group reset-offsets billing --topic orders --to 2025-03-01T12:00:00Z

        rivven group reset-offsets billing --topic orders:0,3 --to -100 --execute
    """
    target = _target(where)
    wanted = [_topic_and_partitions(text) for text in topic]
    with connected(server) as client:
        places = [
            (each, number)
            for each, numbers in wanted
            for number in (partitions_of(client, each) if numbers is None else _existing(client, each, numbers))
        ]
        members = client.describe_members(name).members
        before = client.committed_offsets(name)
        rows: list[dict[str, Any]] = []
        for each, number in places:
            old = before.get(TopicPartition(each, number))
            new = _new_offset(client, each, number, old, target)
            rows.append({"topic": each, "partition": number, "before": old, "offset": new})
        if execute and members:
            raise _in_use(name, len(members))
        if execute:
            client.reset_offsets(
                name, {TopicPartition(row["topic"], row["partition"]): row["offset"] for row in rows}
            )
    if as_json:
        show.show_json({"group": name, "executed": execute, "members": len(members), "partitions": rows})
        return
    show.show_table(
        [
            show.Column("TOPIC", flexible=True),
            *(show.Column(title, True) for title in ("PARTITION", "BEFORE", "AFTER", "CHANGE")),
        ],
        [
            (
                harmless(row["topic"]),
                str(row["partition"]),
                _number(row["before"]),
                f"{row['offset']:,}",
                "-" if row["before"] is None else f"{row['offset'] - row['before']:+,}",
            )
            for row in rows
        ],
    )
    if execute:
        done(f"Reset {counted(len(rows), 'offset')} of group '{name}'")
    elif members:
        show.remark(
            f"nothing was changed; the group has {counted(len(members), 'member')}: stop them, then --execute"
        )
    else:
        show.remark("nothing was changed; --execute does it")


def _in_use(name: str, count: int) -> RivvenError:
    from rivven.client import ServerException

    return ServerException(reason=f"NON_EMPTY_GROUP: consumer group '{name}' has {counted(count, 'member')}")


SHIFT = re.compile(r"[+-]\d{1,19}")
"""A number of 64 bits has no more digits; beyond an end of the log, which end is all that counts."""


def _target(text: str) -> tuple[str, int]:
    """Where to: (earliest, latest, offset, shift or timestamp) and its number."""
    kind, _, rest = text.partition(":")
    if text in ("earliest", "latest"):
        return text, 0
    if kind in ("offset", "shift") and re.fullmatch(r"[+-]?\d{1,19}" if kind == "shift" else r"\d{1,19}", rest):
        return kind, int(rest)
    if kind == "timestamp" and rest:
        return kind, from_time(rest, "--to timestamp:")
    if SHIFT.fullmatch(text):
        return "shift", int(text)
    if re.fullmatch(r"\d{1,19}", text):
        return "offset", int(text)
    try:
        return "timestamp", parse_when(text)
    except (ValueError, OverflowError):
        usage(
            "--to takes earliest, latest, an offset, a shift like -10, or a time like 2025-03-01T12:00:00Z, "
            f"not {text!r}"
        )


PARTITIONS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def _topic_and_partitions(text: str) -> tuple[str, list[int] | None]:
    """`orders`, `orders:0`, `orders:0,2-4`."""
    topic, colon, rest = text.partition(":")
    if not colon:
        return topic, None
    numbers: set[int] = set()
    for part in rest.split(","):
        if not (found := PARTITIONS.fullmatch(part)):
            usage(f"--topic takes a name, or name:0,2-4 for some partitions, not {text!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        if last > PARTITION_MAX:
            usage(f"--topic {text}: partitions are numbered 0 to {PARTITION_MAX} at most")
        numbers.update(range(first, last + 1))
    return topic, sorted(numbers)


def _existing(client: blocking.RivvenClient, topic: str, numbers: list[int]) -> list[int]:
    return [found for number in numbers for found in partitions_of(client, topic, number)]


def _new_offset(
    client: blocking.RivvenClient, topic: str, partition: int, before: int | None, target: tuple[str, int]
) -> int:
    earliest, latest = client.get_offset_bounds(topic, partition)
    kind, number = target
    match kind:
        case "earliest":
            wanted: int | None = earliest
        case "offset":
            wanted = number
        case "shift":
            wanted = (earliest if before is None else before) + number
        case "timestamp":
            wanted = client.get_offset_for_timestamp(topic, partition, number)
        case _:
            wanted = None
    return latest if wanted is None else min(max(wanted, earliest), latest)

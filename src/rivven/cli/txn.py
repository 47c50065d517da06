"""`rivven txn`: the transactions that are open, those that nobody will end, and how to end one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rivven.errors import RivvenError
from rivven.model import TopicPartition

from . import show
from .bounds import FROM_0, PARTITION_MAX
from .group import ranges
from .opening import usage
from .server import DEFAULT, AsJson, Server, connected, done
from .text import counted, harmless, parse_span, span, when

if TYPE_CHECKING:
    from rivven.client import DescribedTransaction, HangingTransaction, blocking

app = typer.Typer(help="Look at transactions, and abort them.", no_args_is_help=True, rich_markup_mode=None)

Execute = Annotated[bool, typer.Option("--execute", help="Do it; without this is shown what would happen.")]
GROUPS_TOPIC = "__consumer_offsets"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# Listing


@app.command("list")
def list_all(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only these: Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Empty, "
            "or open for the first three; may be repeated.",
        ),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="TIME", help="Only those open for so long: 90s, 15m, 2h.")
    ] = None,
    hanging: Annotated[
        bool, typer.Option("--hanging", help="What partitions show as open and nobody will end, place by place.")
    ] = False,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids that the broker knows, those with an open transaction first.

    Readers of committed data wait at the first open transaction of a partition. A transaction that takes longer than
    its timeout is aborted by the broker. One is hanging if a partition shows it as open and no coordinator knows of
    it, so that it has no timeout; or if it has been open for longer than any timeout may be, or than --older-than.

    A native producer's id is native: and its number; beside it stands the name that it gave the transaction, and the
    owner who decides about it, if there is one.

    Examples:

        rivven txn list --state open

        rivven txn list --hanging
    """
    if hanging and state:
        usage("--hanging looks at open transactions alone, and takes no --state")
    older_ms = None if older_than is None else _from_span(older_than)
    states = _states(state or [])
    with connected(server) as client:
        if hanging:
            _show_hanging(client.find_hanging_transactions(older_than_ms=older_ms), as_json=as_json)
            return
        names = [each.transactional_id for each in client.list_transactions(states, older_than_ms=older_ms)]
        found = client.describe_transactions(names)
    rows = sorted(found.values(), key=lambda each: (not each.is_open, each.started_ms or 0, each.transactional_id))
    if as_json:
        show.show_json({"transactions": [_as_json(each) for each in rows]})
    elif not rows:
        show.say("No transactions found")
    else:
        _show_list(rows)


def _states(texts: Iterable[str]) -> list[str]:
    from rivven.client import OPEN_STATES, TRANSACTION_STATES

    known = {name.lower(): [name] for name in TRANSACTION_STATES} | {"open": list(OPEN_STATES)}
    found: list[str] = []
    for text in texts:
        if text.lower() not in known:
            usage(f"--state takes open, {', '.join(TRANSACTION_STATES)}, not {text!r}")
        found += known[text.lower()]
    return found


def _from_span(text: str) -> int:
    try:
        return parse_span(text)
    except ValueError:
        usage(f"--older-than takes a time like 500ms, 90s, 15m, 2h or 1d, not {text!r}")


def _as_json(each: DescribedTransaction) -> dict[str, Any]:
    return {
        "id": each.transactional_id,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "timeout_ms": each.timeout_ms,
        "started_ms": each.started_ms,
        "partitions": [{"topic": topic, "partition": number} for topic, number in each.partitions],
        "groups": list(each.groups),
        "name": each.name,
        "owner": each.owner,
        "sequence": each.sequence,
    }


def _show_list(rows: Sequence[DescribedTransaction]) -> None:
    now_ms = _now_ms()
    named, owned = any(each.name for each in rows), any(each.owner for each in rows)
    show.show_table(
        [
            show.Column("ID"),  # to be typed again, so it never gives way
            show.Column("STATE"),
            show.Column("OPEN FOR", True),
            show.Column("TIMEOUT", True),
            show.Column("PRODUCER", True),
            show.Column("WRITES TO", flexible=True),
            *([show.Column("NAME", flexible=True)] if named else []),
            *([show.Column("OWNER", flexible=True)] if owned else []),
        ],
        [
            (
                harmless(each.transactional_id),
                each.state,
                "-" if each.started_ms is None else span(now_ms - each.started_ms),
                span(each.timeout_ms),
                f"{each.producer_id}/{each.producer_epoch}",
                _writes_to(each),
                *([harmless(each.name or "-")] if named else []),
                *([_owner(each)] if owned else []),
            )
            for each in rows
        ],
    )


def _owner(each: DescribedTransaction) -> str:
    return "-" if each.owner is None else f"{harmless(each.owner)} #{each.sequence}"


def _writes_to(each: DescribedTransaction) -> str:
    """Topics with their partitions, and the groups whose offsets it commits, which say more than where those lie."""
    topics = ranges(where for where in each.partitions if where.topic != GROUPS_TOPIC)
    return " ".join([*topics, *(f"group:{harmless(name)}" for name in each.groups)]) or "-"


def _show_hanging(found: Sequence[HangingTransaction], *, as_json: bool) -> None:
    if as_json:
        show.show_json({"hanging": [_hanging_json(each) for each in found]})
        return
    if not found:
        show.say("No hanging transactions found")
        return
    now_ms = _now_ms()
    show.show_table(
        [
            show.Column("TOPIC", flexible=True),
            show.Column("PARTITION", True),
            show.Column("START OFFSET", True),
            show.Column("PRODUCER", True),
            show.Column("LAST WRITE", True),
            show.Column("WHY", flexible=True),
        ],
        [
            (
                harmless(each.topic),
                str(each.partition),
                f"{each.start_offset}",  # to be typed again, so without commas
                f"{each.producer_id}/{each.producer_epoch}" if each.producer_epoch >= 0 else str(each.producer_id),
                "-" if each.last_write_ms < 0 else f"{span(now_ms - each.last_write_ms)} ago",
                _why(each),
            )
            for each in found
        ],
    )
    first = found[0]
    show.remark(f"readers of committed data wait there; see what `{_abort_command(first)}` would do")


def _why(each: HangingTransaction) -> str:
    if each.transactional_id is None:
        return "unknown to the coordinator"
    return f"{harmless(each.transactional_id)} is open for too long"


def _abort_command(each: HangingTransaction) -> str:
    import shlex

    if each.transactional_id is not None:
        return f"rivven txn abort {shlex.quote(each.transactional_id)}"
    place = f"--partition {each.partition} --start-offset {each.start_offset}"
    return f"rivven txn abort --topic {shlex.quote(each.topic)} {place}"


def _hanging_json(each: HangingTransaction) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "start_offset": each.start_offset,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "last_write_ms": each.last_write_ms if each.last_write_ms >= 0 else None,
        "id": each.transactional_id,
    }


# One of them


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")],
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show a transactional id: its state, its producer, and where its open transaction has written.

    WAITING is how many offsets have been given out from its first record on: what readers of committed data cannot
    see before it ends.

    Example:

        rivven txn describe payments-1
    """
    with connected(server) as client:
        found = _known(client, name)
        places = _places(client, found)
    if as_json:
        show.show_json({**_as_json(found), "partitions": places})
        return
    _show_head(found)
    _show_places(places)


def _known(client: blocking.RivvenClient, name: str) -> DescribedTransaction:
    found = client.describe_transactions([name]).get(name)
    if found is None:
        raise _refusal(f"TRANSACTIONAL_ID_NOT_FOUND: there is no transaction {name!r}{_owned_by(client, name)}")
    return found


def _owned_by(client: blocking.RivvenClient, name: str) -> str:
    """What may have been meant: the transactional id of a native producer is an owner, and has others below it."""
    from rivven.client import OPEN_STATES

    listed = [each.transactional_id for each in client.list_transactions(OPEN_STATES)]
    owned = [each.transactional_id for each in client.describe_transactions(listed).values() if each.owner == name]
    return f"; as an owner it has {', '.join(sorted(owned)[:5])}" if owned else ""


def _refusal(reason: str) -> RivvenError:
    from rivven.client import ServerException

    return ServerException(reason=reason)


def _places(client: blocking.RivvenClient, found: DescribedTransaction) -> list[dict[str, Any]]:
    """Where it is open, and who waits for it. A partition that it has added and not written to has no offset yet."""
    return [_place(client, where, found.producer_id) for where in found.partitions]


def _place(client: blocking.RivvenClient, where: TopicPartition, producer_id: int) -> dict[str, Any]:
    producers = client.describe_producers(*where)
    who = next((who for who in producers if who.producer_id == producer_id and who.is_writing), None)
    row: dict[str, Any] = {"topic": where.topic, "partition": where.partition}
    if who is None or who.start_offset is None:
        return {**row, "start_offset": None, "last_write_ms": None, "waiting": 0}
    _, end = client.get_offset_bounds(*where)
    last_ms = who.last_write_ms if who.last_write_ms >= 0 else None
    return {**row, "start_offset": who.start_offset, "last_write_ms": last_ms, "waiting": end - who.start_offset}


def _show_head(found: DescribedTransaction) -> None:
    show.say(f"Transaction: {harmless(found.transactional_id)}")
    if found.name:
        show.say(f"  Name: {harmless(found.name)}")
    if found.owner:
        show.say(f"  Owner: {harmless(found.owner)}, sequence {found.sequence}")
    show.say(f"  State: {found.state}")
    show.say(f"  Producer: {found.producer_id}, epoch {found.producer_epoch}")
    if found.started_ms is not None:
        show.say(f"  Open for: {span(_now_ms() - found.started_ms)}, since {when(found.started_ms)}")
    show.say(f"  Timeout: {span(found.timeout_ms)}")
    if found.groups:
        show.say(f"  Offsets of: {', '.join(map(harmless, found.groups))}")


def _show_places(places: Sequence[dict[str, Any]]) -> None:
    if not places:
        return
    now_ms = _now_ms()
    show.say()
    show.show_table(
        [
            show.Column("TOPIC", flexible=True),
            *(show.Column(title, True) for title in ("PARTITION", "START OFFSET", "LAST WRITE", "WAITING")),
        ],
        [
            (
                harmless(row["topic"]),
                str(row["partition"]),
                "-" if row["start_offset"] is None else str(row["start_offset"]),
                "-" if row["last_write_ms"] is None else f"{span(now_ms - row['last_write_ms'])} ago",
                f"{row['waiting']:,}",
            )
            for row in places
        ],
    )


# Ending one


@app.command()
def abort(
    name: Annotated[str | None, typer.Argument(metavar="ID", help="The transactional id.")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="T", help="Of one that hangs and has no ID: its topic.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="P", help="Its partition.", min=0, max=PARTITION_MAX)
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", "-o", metavar="O", help="The offset at which it begins.", click_type=FROM_0),
    ] = None,
    execute: Execute = False,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Abort an open transaction. Shows what would happen, and does it with --execute.

    What it has written is never seen by readers of committed data, who go on behind it. With an ID its producer is
    fenced: whatever it sends next is refused, and it has to begin anew.

    A hanging transaction that no coordinator knows of has no ID, and is named by its place; `rivven txn list
    --hanging` shows it. There is no producer to be fenced.

    Examples:

        rivven txn abort payments-1

        rivven txn abort --topic orders -p 0 --start-offset 1712 --execute
    """
    place = (topic, partition, start_offset)
    if name is not None:
        if any(part is not None for part in place):
            usage("name a transaction by its ID, or by --topic, --partition and --start-offset, not by both")
        _abort_by_id(name, server, execute=execute, as_json=as_json)
    elif topic is None or partition is None or start_offset is None:
        usage("name a transaction by its ID, or by all of --topic, --partition and --start-offset")
    else:
        where = TopicPartition(topic, partition)
        _abort_by_place(where, start_offset, server, execute=execute, as_json=as_json)


def _abort_by_id(name: str, server: str, *, execute: bool, as_json: bool) -> None:
    with connected(server) as client:
        _known(client, name)
        found = client.abort_open_transaction(name, dry_run=True)
        places = _places(client, found)
        if execute:
            client.abort_open_transaction(name)
    if as_json:
        show.show_json({**_as_json(found), "partitions": places, "executed": execute})
        return
    _show_head(found)
    _show_places(places)
    _show_consequences(_consequences(found), execute=execute)
    if execute:
        done(f"Aborted transaction '{harmless(name)}'")


def _show_consequences(lines: Iterable[str], *, execute: bool) -> None:
    show.say("\nAn abort means:")
    for line in lines:
        show.say(show.wrapped(line, "  "))
    if not execute:
        show.remark("nothing was changed; --execute does it")


def _consequences(found: DescribedTransaction) -> list[str]:
    """What an abort means to those concerned."""
    lines = ["Readers of committed data never see what it has written, and go on behind it."]
    if found.groups:
        lines.append(
            f"The offsets that it would have committed for {counted(len(found.groups), 'group')} are dropped."
        )
    if found.owner:
        lines.append(
            f"Its owner is refused a decision of sequence {found.sequence} that names it, and has to have that part "
            "written again under another attempt."
        )
    if found.name is not None:
        lines.append(
            f"Its producer {found.producer_id} is fenced: whatever it sends with epoch {found.producer_epoch} is "
            "refused (PRODUCER_FENCED), until it takes its next epoch."
        )
    else:
        lines.append(
            "Its producer is fenced: its next send or commit fails for good (PRODUCER_FENCED or "
            "INVALID_PRODUCER_EPOCH), and it has to be made anew, with init_transactions."
        )
    return lines


def _abort_by_place(where: TopicPartition, start_offset: int, server: str, *, execute: bool, as_json: bool) -> None:
    with connected(server) as client:
        found = client.abort_hanging_transaction(*where, start_offset, dry_run=True)
        place = _place(client, where, found.producer_id)
        if execute:
            client.abort_hanging_transaction(*where, start_offset)
    if as_json:
        show.show_json({**_hanging_json(found), "waiting": place["waiting"], "executed": execute})
        return
    show.say(f"Hanging transaction of producer {found.producer_id}")
    _show_places([place])
    lines = [
        "Readers of committed data never see what it has written here, and go on behind it.",
        "No coordinator knows of it: nobody is fenced, and nobody is told.",
    ]
    _show_consequences(lines, execute=execute)
    if execute:
        done(f"Aborted the transaction at offset {start_offset} of {harmless(where.topic)}/{where.partition}")

"""`rivven group`: consumer groups, how far they got, and how to send them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import show
from .opening import usage
from .server import DEFAULT, AsJson, Server, connected, done, from_time, partitions_of
from .text import counted, harmless

if TYPE_CHECKING:
    from rivven.client import blocking

app = typer.Typer(help="Look at consumer groups, and move them.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The group's name.")]


@app.command("list")
def list_all(server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """List the groups that have committed something.

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
    """Show what a group has committed.

    Example:

        rivven group describe billing
    """
    with connected(server) as client:
        offsets = client.describe_group(name)
    rows: list[dict[str, Any]] = [
        {"topic": topic, "partition": partition, "committed": offset}
        for topic, committed in sorted(offsets.items())
        for partition, offset in sorted(committed.items())
    ]
    if as_json:
        show.show_json({"group": name, "offsets": rows})
        return
    show.say(f"Consumer group: {name}")
    show.say()
    columns = [show.Column("TOPIC", flexible=True), show.Column("PARTITION", True), show.Column("COMMITTED", True)]
    show.show_table(
        columns, [(harmless(row["topic"]), str(row["partition"]), f"{row['committed']:,}") for row in rows]
    )


@app.command()
def lag(name: Name, server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Show how far a group is behind, partition by partition.

    Partitions of its topics of which it has committed nothing count from their beginning.

    Example:

        rivven group lag billing
    """
    with connected(server) as client:
        rows = _lags(client, name)
    total = sum(row["lag"] for row in rows)
    if as_json:
        show.show_json({"group": name, "lag": total, "partitions": rows})
        return
    show.show_table(
        [
            show.Column("TOPIC", flexible=True),
            *(show.Column(title, True) for title in ("PARTITION", "COMMITTED", "LATEST", "LAG")),
        ],
        [
            (
                harmless(row["topic"]),
                str(row["partition"]),
                "-" if row["committed"] is None else f"{row['committed']:,}",
                f"{row['latest']:,}",
                f"{row['lag']:,}",
            )
            for row in rows
        ],
        total=("total", "", "", "", f"{total:,}") if len(rows) > 1 else None,
    )


def _lags(client: blocking.RivvenClient, name: str) -> list[dict[str, Any]]:
    described = client.describe_group(name)
    topics = set(client.list_topics())
    rows: list[dict[str, Any]] = []
    for topic, committed in sorted(described.items()):
        if topic not in topics:
            show.remark(f"topic '{topic}' was deleted; the group still has offsets of it")
            continue
        for number in partitions_of(client, topic):
            earliest, latest = client.get_offset_bounds(topic, number)
            place = committed.get(number)
            behind = max(0, latest - max(earliest, place or 0))
            rows.append({"topic": topic, "partition": number, "committed": place, "latest": latest, "lag": behind})
    return rows


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
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="T", help="The topic.")],
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="N", min=0, help="Only this partition; else all.")
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="O", min=0, help="To this offset.")] = None,
    to_timestamp: Annotated[
        str | None,
        typer.Option(
            "--to-timestamp", metavar="TIME", help="To the first record not older: ISO 8601, or ms since 1970."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show the offsets, and change nothing.")] = False,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Have a group go on somewhere else. Its consumers should be stopped meanwhile.

    An offset before the first or after the last record is drawn to that. A group that is not there is made.

    Example: read everything since noon again

        rivven group reset-offsets billing --topic orders --to-timestamp 2025-03-01T12:00:00Z
    """
    if sum((to_earliest, to_latest, to_offset is not None, to_timestamp is not None)) != 1:
        usage("say where with one of --to-earliest, --to-latest, --to-offset and --to-timestamp")
    since_ms = None if to_timestamp is None else from_time(to_timestamp, "--to-timestamp")
    rows: list[dict[str, Any]] = []
    with connected(server) as client:
        for number in partitions_of(client, topic, partition):
            earliest, latest = client.get_offset_bounds(topic, number)
            wanted = (
                earliest if to_earliest else latest if to_offset is None else min(max(to_offset, earliest), latest)
            )
            if since_ms is not None:
                found = client.get_offset_for_timestamp(topic, number, since_ms)
                wanted = latest if found is None else found
            rows.append({"partition": number, "before": client.get_offset(name, topic, number), "offset": wanted})
        for row in rows if not dry_run else []:
            client.commit_offset(name, topic, row["partition"], row["offset"])
    if as_json:
        show.show_json({"group": name, "topic": topic, "dry_run": dry_run, "partitions": rows})
        return
    show.show_table(
        [show.Column(title, True) for title in ("PARTITION", "BEFORE", "OFFSET")],
        [
            (str(row["partition"]), "-" if row["before"] is None else f"{row['before']:,}", f"{row['offset']:,}")
            for row in rows
        ],
    )
    if dry_run:
        show.remark("nothing was changed: --dry-run")
    else:
        done(f"Reset {counted(len(rows), 'offset')} of group '{name}' in topic '{topic}'")

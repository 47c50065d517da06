"""`rivven offsets`: which offsets a topic has, and single offsets of groups."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import show
from .bounds import FROM_0, PARTITION_MAX
from .server import DEFAULT, AsJson, Server, TopicName, connected, done, from_time, partitions_of

app = typer.Typer(
    help="Show offsets of topics and groups, and commit them.", no_args_is_help=True, rich_markup_mode=None
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
Partition = Annotated[
    int | None,
    typer.Option("--partition", "-p", metavar="N", min=0, max=PARTITION_MAX, help="Only this partition; else all."),
]


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


@app.command("list")
def list_all(
    topic: TopicName,
    partition: Partition = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp", metavar="TIME", help="Also the first record not older: ISO 8601, or ms since 1970."
        ),
    ] = None,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the first offset of each partition, and the next to be written.

    Example: and where yesterday begins

        rivven offsets list orders --timestamp 2025-03-01
    """
    since_ms = None if timestamp is None else from_time(timestamp)
    rows: list[dict[str, Any]] = []
    with connected(server) as client:
        for number in partitions_of(client, topic, partition):
            earliest, latest = client.get_offset_bounds(topic, number)
            row: dict[str, int | None] = {"partition": number, "earliest": earliest, "latest": latest}
            if since_ms is not None:
                row["at_timestamp"] = client.get_offset_for_timestamp(topic, number, since_ms)
            rows.append(row)
    if as_json:
        show.show_json({"topic": topic, "partitions": rows})
        return
    titles = ["PARTITION", "EARLIEST", "LATEST", *(["AT TIME"] if since_ms is not None else [])]
    show.show_table(
        [show.Column(title, True) for title in titles], [[_number(value) for value in row.values()] for row in rows]
    )


@app.command()
def get(
    group: GroupName, topic: TopicName, partition: Partition = None, server: Server = DEFAULT, as_json: AsJson = False
) -> None:
    """Show what a group has committed of a topic.

    Example:

        rivven offsets get billing orders
    """
    with connected(server) as client:
        numbers = partitions_of(client, topic, partition)
        rows = [{"partition": number, "committed": client.get_offset(group, topic, number)} for number in numbers]
    if as_json:
        show.show_json({"group": group, "topic": topic, "partitions": rows})
        return
    columns = [show.Column("PARTITION", True), show.Column("COMMITTED", True)]
    show.show_table(columns, [[_number(value) for value in row.values()] for row in rows])


@app.command()
def commit(
    group: GroupName,
    topic: TopicName,
    offset: Annotated[
        int,
        typer.Argument(metavar="OFFSET", click_type=FROM_0, help="The next offset that the group shall read."),
    ],
    partition: Annotated[
        int, typer.Option("--partition", "-p", metavar="N", min=0, max=PARTITION_MAX, help="Of this partition.")
    ] = 0,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Commit an offset for a group.

    Example:

        rivven offsets commit billing orders 1000 --partition 2
    """
    with connected(server) as client:
        client.commit_offset(group, topic, partition, offset)
    if as_json:
        show.show_json({"group": group, "topic": topic, "partition": partition, "committed": offset})
    else:
        done(f"Group '{group}' goes on at offset {offset} of partition {partition} of topic '{topic}'")

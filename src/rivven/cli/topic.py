"""`rivven topic`: make, look at, change and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import config, show
from .bounds import FROM_0, PARTITION_MAX, PARTITIONS_MAX
from .opening import usage
from .server import DEFAULT, AsJson, Server, connected, done, from_pairs, partitions_of
from .text import counted, harmless

if TYPE_CHECKING:
    from rivven.client import blocking

app = typer.Typer(help="Make, look at, change and delete topics.", no_args_is_help=True, rich_markup_mode=None)
partitions_app = typer.Typer(help="Add partitions to a topic.", no_args_is_help=True, rich_markup_mode=None)
records_app = typer.Typer(help="Delete old records of a topic.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config.app, name="config")
app.add_typer(partitions_app, name="partitions")
app.add_typer(records_app, name="records")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.")]
Settings = Annotated[
    list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting; may be repeated.")
]


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            metavar="N",
            min=1,
            max=PARTITIONS_MAX,
            help="How many partitions; else the broker decides, as a rule 3.",
        ),
    ] = None,
    settings: Settings = None,
    if_missing: Annotated[
        bool, typer.Option("--if-not-exists", help="Do nothing if there is such a topic already.")
    ] = False,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a topic.

    Example: one that keeps the last value of each key

        rivven topic create customers --partitions 6 --config cleanup.policy=compact
    """
    pairs = from_pairs(settings or [], "--config")
    with connected(server) as client:
        if if_missing and name in client.list_topics():
            count, created = client.get_metadata(name)[1], False
        else:
            count, created = client.create_topic(name, partitions, configs=dict(pairs)), True
    if as_json:
        show.show_json({"topic": name, "partitions": count, "created": created})
    elif created:
        done(f"Created topic '{name}' with {count} partitions")
    else:
        show.say(f"Topic '{name}' exists already, with {counted(count, 'partition')}")


@app.command("list")
def list_all(server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """List the topics.

    Example:

        rivven topic list
    """
    with connected(server) as client:
        names = client.list_topics()
    if as_json:
        show.show_json({"topics": names})
    elif not names:
        show.say("No topics found")
    else:
        show.say("Topics:")
        for name in names:
            show.say(f"  • {harmless(name)}")


@app.command()
def delete(name: Name, server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Delete a topic and all its records, at once and for good.

    Example:

        rivven topic delete orders
    """
    with connected(server) as client:
        client.delete_topic(name)
    if as_json:
        show.show_json({"topic": name, "deleted": True})
    else:
        done(f"Deleted topic '{name}'")


def _bounds(client: blocking.RivvenClient, name: str) -> list[dict[str, Any]]:
    rows = []
    for number in partitions_of(client, name):
        earliest, latest = client.get_offset_bounds(name, number)
        rows.append({"partition": number, "earliest": earliest, "latest": latest, "records": latest - earliest})
    return rows


@app.command()
def info(name: Name, server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Show in short what a topic is.

    Example:

        rivven topic info orders
    """
    with connected(server) as client:
        rows = _bounds(client, name)
    records = sum(row["records"] for row in rows)
    if as_json:
        show.show_json({"topic": name, "partitions": len(rows), "records": records})
        return
    show.say(f"Topic: {name}")
    show.say(f"  Partitions: {len(rows)}")
    show.say(f"  Records: {records:,}")


@app.command()
def stats(name: Name, server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Show the offsets of each partition, and how many records lie between them.

    What compaction took out of the middle is counted, too.

    Example:

        rivven topic stats orders
    """
    with connected(server) as client:
        rows = _bounds(client, name)
    records = sum(row["records"] for row in rows)
    if as_json:
        show.show_json({"topic": name, "records": records, "partitions": rows})
        return
    columns = [show.Column(title, True) for title in ("PARTITION", "EARLIEST", "LATEST", "RECORDS")]
    total = ("total", "", "", f"{records:,}") if len(rows) > 1 else None
    show.show_table(columns, [[f"{value:,}" for value in row.values()] for row in rows], total=total)


@app.command()
def describe(name: Name, server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Show all there is to know about a topic: partitions, leaders, offsets and settings.

    Example:

        rivven topic describe orders --json
    """
    with connected(server) as client:
        rows = _bounds(client, name)
        settings = config.settings_of(client, name)
        cluster = client.get_cluster_metadata([name])
    places = {part.partition: part for topic in cluster.topics for part in topic.partitions}
    for row in rows:
        place = places.get(row["partition"])
        row["leader"] = place.leader if place else None
        row["replicas"] = list(place.replicas) if place else []
        row["isr"] = list(place.isr) if place else []
    if as_json:
        show.show_json({"topic": name, "partitions": rows, "configs": settings})
        return
    show.say(f"Topic: {name}")
    show.say()
    show.show_table(
        [
            *(show.Column(title, True) for title in ("PARTITION", "EARLIEST", "LATEST")),
            *(show.Column(title, flexible=True) for title in ("LEADER", "REPLICAS", "IN SYNC")),
        ],
        [
            (
                str(row["partition"]),
                f"{row['earliest']:,}",
                f"{row['latest']:,}",
                harmless(row["leader"] or "none"),
                harmless(",".join(row["replicas"])),
                harmless(",".join(row["isr"])),
            )
            for row in rows
        ],
    )
    show.say()
    config.show_settings(settings)


@app.command()
def alter(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", min=1, max=PARTITIONS_MAX, help="Have so many partitions."),
    ] = None,
    settings: Settings = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="KEY", help="Take a setting back to its default; may be repeated."),
    ] = None,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change a topic's settings or add partitions.

    Example:

        rivven topic alter orders --partitions 6 --config retention.ms=86400000
    """
    pairs: list[tuple[str, str | None]] = [*from_pairs(settings or [], "--config")]
    pairs += [(key, None) for key in reset or []]
    if partitions is None and not pairs:
        usage("say what to change with --partitions, --config or --reset")
    changed, count = 0, None
    with connected(server) as client:
        if pairs:
            changed = client.alter_topic_config(name, pairs)
        if partitions is not None:
            count = client.create_partitions(name, partitions)
    if as_json:
        show.show_json({"topic": name, "changed": changed, "partitions": count})
        return
    if pairs:
        done(f"Changed {counted(changed, 'setting')} of topic '{name}'")
    if count is not None:
        done(f"Topic '{name}' has {counted(count, 'partition')} now")


@partitions_app.command("create")
def create_partitions(
    name: Name,
    total: Annotated[
        int,
        typer.Option(
            "--total",
            "-t",
            metavar="N",
            min=1,
            max=PARTITIONS_MAX,
            help="How many there shall be in all, not how many more.",
        ),
    ],
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic. Keys then move to other partitions, and none is ever taken away.

    Example:

        rivven topic partitions create orders --total 6
    """
    with connected(server) as client:
        count = client.create_partitions(name, total)
    if as_json:
        show.show_json({"topic": name, "partitions": count})
    else:
        done(f"Topic '{name}' has {counted(count, 'partition')} now")


@records_app.command("delete")
def delete_records(
    name: Name,
    before: Annotated[
        int,
        typer.Option("--before", "-b", metavar="O", click_type=FROM_0, help="Delete what stands before this offset."),
    ],
    partition: Annotated[
        int, typer.Option("--partition", "-p", metavar="N", min=0, max=PARTITION_MAX, help="Of this partition.")
    ],
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete the oldest records of a partition, for good.

    Example:

        rivven topic records delete orders --partition 0 --before 1000
    """
    with connected(server) as client:
        partitions_of(client, name, partition)
        earliest = client.delete_records(name, partition, before)
    if as_json:
        show.show_json({"topic": name, "partition": partition, "earliest": earliest})
    else:
        done(f"Partition {partition} of topic '{name}' begins at offset {earliest} now")

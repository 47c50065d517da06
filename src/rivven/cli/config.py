"""`rivven config` and `rivven topic config`: the settings of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import show
from .server import DEFAULT, AsJson, Server, TopicName, connected, done, from_pairs
from .text import counted, harmless

if TYPE_CHECKING:
    from rivven.client import blocking

app = typer.Typer(help="Show and change the settings of a topic.", no_args_is_help=True, rich_markup_mode=None)

Keys = Annotated[list[str], typer.Argument(metavar="KEY...", help="Settings to take back to their defaults.")]


def settings_of(client: blocking.RivvenClient, topic: str) -> dict[str, str]:
    client.get_metadata(topic)  # a broker describes the defaults for a topic that is not there
    return client.describe_topic_configs(topic)


def show_settings(settings: dict[str, str]) -> None:
    columns = [show.Column("KEY"), show.Column("VALUE", flexible=True)]
    show.show_table(columns, [(harmless(key), harmless(value)) for key, value in sorted(settings.items())])


@app.command()
def describe(topic: TopicName, server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Show every setting of a topic.

    Example:

        rivven topic config describe orders
    """
    with connected(server) as client:
        settings = settings_of(client, topic)
    if as_json:
        show.show_json({"topic": topic, "configs": settings})
    else:
        show_settings(settings)


@app.command("set")
def change(
    topic: TopicName,
    pairs: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings and their values.")],
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic: all of them, or none if one is wrong.

    Example: keep a week, and of that only the last value of each key

        rivven topic config set orders retention.ms=604800000 cleanup.policy=compact,delete
    """
    wanted = from_pairs(pairs, "set")
    with connected(server) as client:
        count = client.alter_topic_config(topic, wanted)
    if as_json:
        show.show_json({"topic": topic, "changed": count})
    else:
        done(f"Changed {counted(count, 'setting')} of topic '{topic}'")


@app.command()
def reset(topic: TopicName, keys: Keys, server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Take settings of a topic back to their defaults.

    Example:

        rivven topic config reset orders retention.ms
    """
    with connected(server) as client:
        count = client.alter_topic_config(topic, [(key, None) for key in keys])
    if as_json:
        show.show_json({"topic": topic, "changed": count})
    else:
        done(f"Reset {counted(count, 'setting')} of topic '{topic}'")

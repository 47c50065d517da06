"""`rivven quota`: how much a user or a client may do in a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from . import show
from .bounds import FROM_1
from .opening import usage
from .server import DEFAULT, AsJson, Server, connected, done
from .text import counted, harmless

app = typer.Typer(
    help="Show and change what clients may do in a second.", no_args_is_help=True, rich_markup_mode=None
)

PRODUCE, CONSUME, REQUEST = "produce_bytes_rate", "consume_bytes_rate", "request_rate"
KEYS = (PRODUCE, CONSUME, REQUEST)
Entity = tuple[str, str | None]

User = Annotated[
    str | None, typer.Option("--user", "-u", metavar="NAME", help="A user; * is whoever has no own limit.")
]
ClientId = Annotated[
    str | None, typer.Option("--client-id", "-c", metavar="ID", help="A client; * is whoever has no own limit.")
]
Everybody = Annotated[bool, typer.Option("--default", help="Whoever nothing else applies to.")]


def _entity(user: str | None, client_id: str | None, everybody: bool) -> Entity:
    if sum((user is not None, client_id is not None, everybody)) != 1:
        usage("say whose quota with one of --user, --client-id and --default")
    if everybody:
        return "default", None
    kind, name = ("user", user) if user is not None else ("client-id", client_id)
    return kind, None if name == "*" else name


def _called(entity: Entity) -> str:
    kind, name = entity
    return kind if kind == "default" else f"{kind} '{'*' if name is None else name}'"


@app.command("list")
def list_all(
    user: User = None, client_id: ClientId = None, server: Server = DEFAULT, as_json: AsJson = False
) -> None:
    """Show the quotas that were set; with --user or --client-id, those that apply to it.

    Example:

        rivven quota list --user alice
    """
    entities = [_entity(user, client_id, False)] if user is not None or client_id is not None else []
    with connected(server) as client:
        found = client.describe_quotas(entities)
    if as_json:
        show.show_json(
            {
                "quotas": [
                    {"entity_type": kind, "entity_name": name, "limits": dict(limits)} for kind, name, limits in found
                ]
            }
        )
    elif not any(limits for _, _, limits in found):
        show.say("No quotas found")
    else:
        show.show_table(
            [
                *(show.Column(title, flexible=True) for title in ("ENTITY", "NAME")),
                *(show.Column(title, True) for title in ("PRODUCE B/S", "CONSUME B/S", "REQUESTS/S")),
            ],
            [(kind, "*" if name is None else harmless(name), *_limits(limits)) for kind, name, limits in found],
        )


def _limits(limits: Mapping[str, int]) -> list[str]:
    return [f"{limits[key]:,}" if key in limits else "-" for key in KEYS]


@app.command("set")
def change(
    user: User = None,
    client_id: ClientId = None,
    everybody: Everybody = False,
    produce: Annotated[
        int | None,
        typer.Option("--produce-bytes-rate", metavar="N", click_type=FROM_1, help="Bytes to publish in a second."),
    ] = None,
    consume: Annotated[
        int | None,
        typer.Option("--consume-bytes-rate", metavar="N", click_type=FROM_1, help="Bytes to read in a second."),
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--request-rate", metavar="N", click_type=FROM_1, help="Requests in a second.")
    ] = None,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Set limits. Whoever goes beyond is made to wait.

    Example: ten megabytes a second for every client that has no limit of its own

        rivven quota set --client-id '*' --produce-bytes-rate 10000000
    """
    entity = _entity(user, client_id, everybody)
    limits = {key: value for key, value in zip(KEYS, (produce, consume, requests), strict=True) if value is not None}
    if not limits:
        usage("say what to limit with --produce-bytes-rate, --consume-bytes-rate or --request-rate")
    with connected(server) as client:
        count = client.alter_quotas([(*entity, key, value) for key, value in limits.items()])
    _tell(entity, count, f"Set {counted(count, 'limit')} for {_called(entity)}", as_json=as_json)


@app.command()
def delete(
    user: User = None,
    client_id: ClientId = None,
    everybody: Everybody = False,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help=f"Only this limit: {', '.join(KEYS)}; may be repeated."),
    ] = None,
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Take limits away: all of them, or those named.

    Example:

        rivven quota delete --user alice --key request_rate
    """
    entity = _entity(user, client_id, everybody)
    if strange := [key for key in keys or [] if key not in KEYS]:
        usage(f"there is no limit {strange[0]!r}; there are {', '.join(KEYS)}")
    with connected(server) as client:
        stored = {(kind, name): limits for kind, name, limits in client.describe_quotas()}
        there = [key for key in keys or KEYS if key in stored.get(entity, {})]
        count = client.alter_quotas([(*entity, key, None) for key in there]) if there else 0
    _tell(entity, count, f"Deleted {counted(count, 'limit')} of {_called(entity)}", as_json=as_json)


def _tell(entity: Entity, count: int, text: str, *, as_json: bool) -> None:
    if as_json:
        show.show_json({"entity_type": entity[0], "entity_name": entity[1], "changed": count})
    else:
        done(text)

"""`connectors` and `schema`: which there are, and what each takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .opening import AsJson, Misused
from .printing import print_json, print_table

if TYPE_CHECKING:
    from rivven.connect.sdk import Connector


def connectors(
    kind: Annotated[str | None, typer.Argument(help="source, sink or transform.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """List the connectors and transforms there are, those of other packages included."""
    from rivven.connect.registry import KINDS, UnknownConnector, catalogue
    from rivven.connect.settings import unknown

    wanted = kind.removesuffix("s") if kind else None
    if wanted is not None and wanted not in KINDS:
        raise Misused(unknown("kind", kind or "", list(KINDS)))
    found = [each for each in catalogue() if wanted in (None, each[0])]
    if as_json:
        listed = [
            {"kind": each, "name": name, "error": str(made)} if isinstance(made, UnknownConnector) else made.spec()
            for each, name, made in found
        ]
        print_json({"connectors": listed})
        return
    rows = []
    for each, name, made in found:
        if isinstance(made, UnknownConnector):
            rows.append([each, name, "", str(made)])
            continue
        needs = f" (needs rivven[{made.extra}])" if made.missing() else ""
        rows.append([each, name, getattr(made, "delivery", "").replace("_", " "), made.summary + needs])
    print_table(["KIND", "NAME", "DELIVERY", "WHAT IT DOES"], rows)


def schema(
    connector: Annotated[str, typer.Argument(help="A name, or kind.name where one name is of two kinds.")],
    form: Annotated[str, typer.Option("--format", help="json or table.")] = "json",
) -> None:
    """Print what a connector or transform takes: its JSON schema, or a table."""
    if form not in ("json", "table"):
        raise Misused(f"there is no format {form!r}; use json or table")
    found = _found(connector)
    if form == "json":
        specs = [made.spec() for made in found]
        print_json(specs[0] if len(specs) == 1 else {"connectors": specs}, indent=True)
        return
    from rivven.connect.settings import fields_of

    for made in found:
        typer.echo(f"{made.kind} {made.name}: {made.summary}")
        rows = [
            [field.key, field.type_text, "required" if field.required else _default(field.default), field.doc]
            for field in fields_of(made.settings_type)
        ]
        print_table(["SETTING", "TYPE", "DEFAULT", "WHAT IT IS FOR"], rows)


def _found(name: str) -> list[type[Connector[Any]]]:
    from rivven.connect.registry import KINDS, UnknownConnector, find, names
    from rivven.connect.settings import unknown

    kind, _, rest = name.partition(".")
    if kind in KINDS and rest:
        return [find(kind, rest)]
    found = []
    for each in KINDS:
        try:
            found.append(find(each, name))
        except UnknownConnector as error:
            if "there is no" not in str(error):
                raise
    if not found:
        raise Misused(unknown("connector", name, sorted({other for each in KINDS for other in names(each)})))
    return found


def _default(value: Any) -> str:
    from rivven.connect.settings import Settings

    if isinstance(value, Settings) or value in (None, [], {}):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)

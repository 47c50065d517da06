"""`status`: how a run is doing, asked over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from .opening import FAILED, AsJson
from .printing import print_json, print_table, stop_with

DEFAULT_URL = "http://127.0.0.1:8083"


def status(
    url: Annotated[str, typer.Option("--url", help="Where the run serves its status.")] = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show how a run is doing, one line for every pipeline.

    Exits with 0 if all is well, and with 1 if something failed or nobody answers.
    """
    import urllib.error
    import urllib.request

    import msgspec

    from rivven.connect import report
    from rivven.connect.plan import public

    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/progress", timeout=10) as answer:
            seen = msgspec.json.decode(answer.read())
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        stop_with(
            f"nobody answers at {public(url)}: {reason}",
            "Is a run going on? Its first lines say where its status is.",
            FAILED,
        )
    if as_json:
        print_json(seen)
    else:
        print_table(*report.table(seen))
        for row in seen["queries"]:
            if row["last_error"]:
                typer.echo(f"{row['name']}: {row['last_error']}")
    if seen["status"] != "healthy":
        raise typer.Exit(FAILED)

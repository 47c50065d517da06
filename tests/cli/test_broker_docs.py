"""The page of the commands is what the commands say of themselves: `--rewrite` writes it anew."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from rivven.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "cli.md"
COLUMNS = 80
HEAD = """# The command line

`rivven` talks to a broker, and `rivven log` to the data directory of one. A first try, with `rivvend` running:

```console
$ rivven topic create orders --partitions 1
✓ Created topic 'orders' with 1 partitions
$ rivven produce orders 'a teapot' --key customer-17
✓ Published to topic 'orders' at offset 0
$ rivven consume orders
[offset=0] key=customer-17 value=a teapot
```

- The broker is `127.0.0.1:9092` unless `--server` or the variable `RIVVEN_SERVER` names another.
- `--json` makes every command print JSON: one document, and of `rivven consume` one object a line. Tables have rules
  and colours on a terminal only.
- Answers go to stdout, remarks and errors to stderr. An error ends with the next step to take.
- Exit codes: 0 all is well, 1 something is wrong or was not found, 2 the command cannot be carried out as given,
  130 interrupted.

What follows is what each command says with `--help`. `rivven log` has a [page of its own](log-tools.md).
"""


def commands(command: Any, path: str, parent: typer.Context | None = None) -> Iterator[tuple[str, str]]:
    """(name, help) of a command and of all below it, without the tools of the log."""
    context = command.context_class(
        command,
        info_name=path.rpartition(" ")[2],
        parent=parent,
        terminal_width=COLUMNS,
        max_content_width=COLUMNS,
        **command.context_settings,
    )
    yield path, command.get_help(context)
    for name, each in getattr(command, "commands", {}).items():
        if f"{path} {name}" not in ("rivven log", "rivven config"):
            yield from commands(each, f"{path} {name}", context)


def page() -> str:
    parts = [HEAD]
    for path, text in commands(typer.main.get_command(app), "rivven"):
        body = "\n".join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f"\n## {path}\n\n```text\n{body}\n```\n")
        if path == "rivven topic config":
            parts.append("\n`rivven config` is the same in short.\n")
    return "".join(parts)


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == page(), "run python tests/cli/test_broker_docs.py --rewrite"


if __name__ == "__main__" and "--rewrite" in sys.argv:
    PAGE.write_text(page())

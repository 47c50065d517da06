"""The pages of docs/connect that are made from the code: `python -m rivven.connect.page` in the root of the tree.

One for every connector and transform that comes with rivven, one for the keys of the pipeline file, and the part of
the navigation that names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any, get_args

from .config import ConnectConfig
from .registry import KINDS, UnknownConnector, catalogue
from .sdk import Connector
from .settings import Field, Settings, fields_of

MADE = "<!-- Written by `python -m rivven.connect.page`; a test holds it to the code. -->"
BEGIN, END = "      # made by python -m rivven.connect.page", "      # to here"


def pages() -> dict[str, str]:
    """The text of each page by its path below docs/."""
    made = {_path(each): page_of(each) for each in ours()}
    return {**made, "connect/file.md": file_page()}


def ours() -> list[type[Connector[Any]]]:
    """The connectors that come with rivven; a package of others has pages of its own."""
    found = [made for _, _, made in catalogue() if not isinstance(made, UnknownConnector)]
    return [made for made in found if made.__module__.startswith("rivven.")]


def _path(connector: type[Connector[Any]]) -> str:
    return f"connect/{connector.kind}s/{connector.name}.md"


def page_of(connector: type[Connector[Any]]) -> str:
    """One connector: what it does, how it is used, what it takes."""
    parts = [f"# {connector.title}", MADE, connector.summary]
    if connector.long_docs():
        parts.append(connector.long_docs())
    parts.append("\n".join(_facts(connector)))
    if connector.example:
        parts.append(f"```yaml\n{cleandoc(connector.example)}\n```")
    settings = list(_tables("Settings", connector.settings_type))
    return "\n\n".join([*parts, *settings]) + "\n"


def _facts(connector: type[Connector[Any]]) -> Iterator[str]:
    word = "type" if connector.kind == "transform" else "connector"
    yield "| | |\n|---|---|"
    yield f"| `{word}:` | `{connector.name}` |"
    if connector.aliases:
        yield f"| also called | {', '.join(f'`{alias}`' for alias in connector.aliases)} |"
    delivery = getattr(connector, "delivery", None)
    if delivery:
        yield f"| delivery | {delivery.replace('_', ' ')} |"
    if connector.extra:
        yield f"| needs | `pip install 'rivven[{connector.extra}]'` |"


def _tables(title: str, settings: type[Settings], level: int = 2) -> Iterator[str]:
    """The settings as a table, and a table for each kind of settings inside."""
    fields = fields_of(settings)
    yield f"{'#' * level} {title}"
    rows = [f"| `{field.key}` | {_type(field)} | {_default(field)} | {_doc(field)} |" for field in fields]
    yield "\n".join(["| setting | type | default | |", "|---|---|---|---|", *rows]) if rows else "There are none."
    for field in fields:
        for inner in _inside(field.type):
            name = f"{field.key}: {inner.union_tag}" if inner.union_tag else field.key
            yield from _tables(f"{title}: {name}" if level > 2 else name, inner, level + 1)


def _inside(kind: Any) -> list[type[Settings]]:
    if isinstance(kind, type) and issubclass(kind, Settings) and kind is not Settings:
        return [kind]
    return [found for part in get_args(kind) for found in _inside(part)]


def _type(field: Field) -> str:
    return field.type_text.replace("|", "\\|")


def _default(field: Field) -> str:
    if field.required:
        return "**required**"
    value = field.default
    if value is None or isinstance(value, Settings) or value in ([], {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _doc(field: Field) -> str:
    words = [field.doc]
    if field.least is not None and field.least > 1:
        words.append(f"At least {field.least:,}.")
    if field.most is not None:
        words.append(f"At most {field.most:,}.")
    if field.ignored:
        words.append(f"Accepted without effect: {field.ignored}.")
    if field.also:
        words.append(f"Also called {', '.join(f'`{name}`' for name in field.also)}.")
    return " ".join(words).replace("|", "\\|")


FILE_INTRODUCTION = """\
The file that `rivven-connect` runs, key by key. `${NAME}` stands for a variable of the environment, and
`${NAME:-default}` for one that may be missing; `$${` is written for `${` itself. A variable fills in a value: it can
add nothing else to the file. `rivven-connect validate` finds every mistake in one go, with its line and column."""


def file_page() -> str:
    """The keys of the pipeline file."""
    tables = list(_tables("The whole file", ConnectConfig))
    return "\n\n".join(["# The pipeline file", MADE, FILE_INTRODUCTION, *tables]) + "\n"


# The navigation


def navigation(text: str) -> str:
    """mkdocs.yml with the pages of today between its two marks."""
    lines = []
    for kind in KINDS:
        lines.append(f"      - {kind.capitalize()}s:")
        lines += [f"          - {each.title}: {_path(each)}" for each in ours() if each.kind == kind]
    body = "\n".join([BEGIN, *lines, END])
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    assert pattern.search(text), "mkdocs.yml has the two marks"
    return pattern.sub(lambda _: body, text)


def write(root: Path) -> None:
    """Write all pages, and remove those of connectors that are gone."""
    wanted = pages()
    for path, text in wanted.items():
        target = root / "docs" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for kind in KINDS:
        for found in (root / "docs" / "connect" / f"{kind}s").glob("*.md"):
            if str(found.relative_to(root / "docs")) not in wanted:
                found.unlink()
    book = root / "mkdocs.yml"
    book.write_text(navigation(book.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path.cwd())

"""What `rivven-connect init` writes: a first file to run, and a package for a connector of one's own."""

from __future__ import annotations

import re
from pathlib import Path

STARTER = """\
# A pipeline file of rivven-connect. Try it:
#
#   rivven-connect validate      find every mistake, without starting anything
#   rivven-connect explain       see what would run
#   rivven-connect run --once    run it until all that is there is done
#   rivven-connect run           run it until you stop it
#
# ${NAME:-default} stands for a variable of the environment.
version: "1.0"

broker:
  bootstrap_servers: ["${RIVVEN_SERVERS:-localhost:9092}"]

# From outside into topics. `rivven-connect connectors` lists what there is.
sources:
  orders:
    connector: datagen
    topic: orders
    topic_config: {partitions: 2}
    key: [customer_id]
    config:
      pattern: orders
      events_per_second: 1000
      max_events: 10000        # leave it out to go on for ever
      seed: 7
    transforms:
      - type: mask
        config: {fields: [email], method: hash}

# From topics to the outside.
sinks:
  archive:
    connector: file
    topics: [orders]
    consumer_group: archive
    start_offset: earliest
    transforms:
      - type: filter
        config: {where: "amount > 100"}
    config:
      path: ./out/orders
      format: parquet
      partition_by: [country]

# From outside to outside, without a topic in between:
# pipelines:
#   copy:
#     source: {connector: file, config: {path: ./in, format: csv}}
#     sink: {connector: file, config: {path: ./out/copy, format: jsonl}}

settings:
  state_dir: ./data/connect-state   # checkpoints: with them, a second run goes on where this one ends
"""

NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}-connector"
version = "0.1.0"
description = "The connector {name} for rivven-connect"
requires-python = ">=3.11"
dependencies = ["rivven[spark]"]

[project.entry-points."rivven.connectors"]
"source.{name}" = "{module}:{cls}Source"
"sink.{name}" = "{module}:{cls}Sink"
"""

MODULE = '''\
"""The connector `{name}`: a source that counts, and a sink that appends to a file. Make them yours."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivven.connect import ArrowSink, ArrowSource, Batch, Finding, Position, Settings, Task, setting

if TYPE_CHECKING:
    import pyarrow as pa


class {cls}SourceSettings(Settings):
    rows: int = setting("How many records there are.", default=100, least=1)


class {cls}Source(ArrowSource[{cls}SourceSettings]):
    name = "{name}"
    title = "{title}"
    summary = "Counts."
    delivery = "exactly_once"

    @property
    def bounded(self) -> bool:
        return True

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([("n", pa.int64()), ("text", pa.string())])

    def start_position(self) -> Position:
        return {{"row": 0}}

    def newest_position(self) -> Position:
        return {{"row": self.settings.rows}}

    def advance(self, start: Position, newest: Position | None, rows: int) -> Position:
        assert newest is not None
        return {{"row": min(start["row"] + rows, newest["row"])}}

    def rows_between(self, start: Position, end: Position) -> int:
        return int(end["row"] - start["row"])

    def plan(self, start: Position, end: Position) -> Sequence[tuple[int, int]]:
        return [(start["row"], end["row"])] if start["row"] < end["row"] else []

    def read(self, part: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        numbers = list(range(*part))
        yield pa.RecordBatch.from_pydict(
            {{"n": numbers, "text": [f"row {{number}}" for number in numbers]}}, schema=self.schema()
        )


class {cls}SinkSettings(Settings):
    path: str = setting("The directory that gets a file of JSON lines for every micro-batch.", least=1)


class {cls}Sink(ArrowSink[{cls}SinkSettings]):
    name = "{name}"
    title = "{title}"
    summary = "Writes JSON lines, a file for every micro-batch."
    delivery = "exactly_once"

    def check(self) -> list[Finding]:
        if Path(self.settings.path).is_file():
            return [Finding("is a file", field="path", fix="name a directory")]
        return []

    def write(self, batches: Iterator[pa.RecordBatch], task: Task) -> Any:
        rows = [row for batch in batches for row in batch.to_pylist()]
        return [json.dumps(row, default=str) for row in rows] or None

    def commit(self, receipts: Sequence[Any], batch: Batch) -> None:
        target = Path(self.settings.path) / f"{{batch.key}}.jsonl"
        if target.exists():
            return  # this batch came before: once is enough
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(".draft")
        draft.write_text("".join(line + "\\n" for lines in receipts for line in lines))
        os.replace(draft, target)
'''

TEST = '''\
"""The conformance kit of rivven-connect, for both halves of the connector."""

from __future__ import annotations

import json
from pathlib import Path

from rivven.connect.kit import SinkKit, SourceKit

from {module} import {cls}Sink, {cls}Source


class Test{cls}Source(SourceKit):
    connector = {cls}Source
    settings = {{"rows": 1000}}
    bad_settings = {{"rows": 0}}


class Test{cls}Sink(SinkKit):
    connector = {cls}Sink
    bad_settings = {{"path": ""}}

    def make_settings(self, home: Path) -> dict[str, object]:
        return {{"path": str(home / "out")}}

    def written(self, home: Path) -> list[dict[str, object]]:
        files = sorted((home / "out").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]
'''

README = """\
# {name}-connector

    pip install -e .
    python -m pytest
    rivven-connect connectors | grep {name}
"""


def write_starter(path: Path) -> None:
    """The starter file; FileExistsError if there is one."""
    with open(path, "x", encoding="utf-8") as file:
        file.write(STARTER)


def write_connector(name: str, where: Path) -> list[Path]:
    """A package for a connector; which files it has. ValueError for a name that is none."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a connector; use lower case, with dashes between words")
    words = name.split("-")
    facts = {
        "name": name,
        "module": f"{name.replace('-', '_')}_connector",
        "cls": "".join(word.capitalize() for word in words),
        "title": " ".join(words).capitalize(),
    }
    root = where / f"{name}-connector"
    root.mkdir(parents=True)
    texts = {
        "pyproject.toml": PROJECT,
        f"src/{facts['module']}/__init__.py": MODULE,
        f"tests/test_{facts['module']}.py": TEST,
        "README.md": README,
    }
    made = []
    for place, text in texts.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**facts), encoding="utf-8")
        made.append(path)
    return made

"""Files in a directory, exactly once.

Tasks write below `_temporary`, where no reader looks. The commit of a micro-batch first writes down, in one atomic
step, which of these files belong to it, and then moves them to their places. So a crash at any point leaves either no
trace of the batch or a list of moves to finish, and a batch that comes again finds itself in the list.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from rivven.connect.avro import avro_schema
from rivven.connect.files import (
    Compression,
    Format,
    Made,
    Sorter,
    absolute,
    complaint_about,
    look_at_folders,
    suffix_of,
)
from rivven.connect.sdk import POSITION, RESERVED, ArrowSink, Batch, Finding, Settings, Task, setting

if TYPE_CHECKING:
    import pyarrow as pa


class FileSinkSettings(Settings):
    path: str = setting("The directory; it is made if it is not there.", example="./out/orders", least=1)
    format: Format = setting(
        "`jsonl` has a record in each line, `json` an array of them in each file; or avro, csv, or parquet.",
        default="jsonl",
    )
    partition_by: list[str] = setting("Columns that become folders: column=value.", factory=list)
    max_file_bytes: int = setting("A new file is begun above this.", default=128 << 20, least=1024)
    compression: Compression = setting(
        "`default` is snappy for parquet, deflate for avro and none for the others, which take gzip.",
        default="default",
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        if complaint := complaint_about(self.format, self.compression):
            yield "compression", complaint
        if self.format == "avro" and importlib.util.find_spec("fastavro") is None:
            yield "format", "avro needs fastavro, which is not installed; pip install fastavro"


class FileSink(ArrowSink[FileSinkSettings]):
    name = "file"
    aliases = ("files", "local-file")
    title = "Files"
    summary = "Writes JSON, JSON lines, Avro, CSV or Parquet files to a directory, each record exactly once."
    docs = """
    Every micro-batch adds files of its own, named after the query and the batch. Readers see a file when it is
    complete and committed; names that begin with `_` are not for them, as Spark, DuckDB and others know.

    The directory has to be one that all executors see: a local disk with `local[*]`, a shared one on a cluster. For
    object stores there are `s3`, `gcs` and `azure-blob`.

    A record that the format cannot have, such as a text that is no UTF-8, or whose folder would have a name that is
    too long, is refused: it goes to the `dead_letter_topic`, or without one it stops the pipeline.
    """
    example = """
    sinks:
      archive:
        connector: file
        topics: [orders]
        consumer_group: archive
        start_offset: earliest
        config:
          path: ./out/orders
          format: parquet
          partition_by: [country]
    """
    extra = "arrow"
    modules = ("pyarrow",)
    delivery = "exactly_once"
    record_columns = POSITION

    def check(self) -> list[Finding]:
        path = Path(self.settings.path)
        if path.exists() and not path.is_dir():
            return [Finding(f"{path} is a file", field="path", fix="name a directory")]
        nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not os.access(nearest, os.W_OK | os.X_OK):
            return [
                Finding(f"{nearest} cannot be written to", field="path", fix="change its rights or choose another")
            ]
        return []

    def prepare(self, schema: pa.Schema) -> None:
        data = look_at_folders(schema, self.settings.partition_by)
        if self.settings.format == "avro":
            avro_schema(data)
        self.settings = replace(self.settings, path=absolute(self.settings.path))
        Path(self.settings.path).mkdir(parents=True, exist_ok=True)

    def write(self, batches: Iterator[pa.RecordBatch], task: Task) -> list[tuple[str, str]] | None:
        """The files of one attempt, as (where it is, where it belongs), both below the directory."""
        root, settings = Path(self.settings.path), self.settings
        temporary = f"{_drafts(task.batch)}/{task.partition}-{task.attempt}"
        suffix = suffix_of(settings.format, settings.compression)

        def open_file(folder: str, number: int) -> tuple[str, IO[bytes]]:
            path = root / temporary / folder / f"{number}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            return f"{temporary}/{folder + '/' if folder else ''}{number}{suffix}", open(path, "w+b")

        sorter = Sorter(
            settings.format,
            settings.compression,
            settings.partition_by,
            settings.max_file_bytes,
            open_file,
            task.refuse,
            hidden=RESERVED,
        )
        try:
            for batch in batches:
                if batch.num_rows:
                    sorter.write(batch)
            made = sorter.close()
        except BaseException:
            sorter.abandon()
            shutil.rmtree(root / temporary, ignore_errors=True)
            raise
        for each in made:
            _sync(root / each.path)
        _sync_folders(root, {(root / each.path).parent for each in made})  # before any list of moves names them
        return [(each.path, self._place(each, task, suffix)) for each in made] or None

    def _place(self, made: Made, task: Task, suffix: str) -> str:
        number = Path(made.path).name.removesuffix(suffix)
        name = f"part-{task.batch.batch_id:010d}-{task.partition:05d}-{number}-{task.batch.query_id[:8]}{suffix}"
        return f"{made.folder}/{name}" if made.folder else name

    def commit(self, receipts: Sequence[list[tuple[str, str]]], batch: Batch) -> None:
        root, ledger = Path(self.settings.path), Ledger(Path(self.settings.path), batch.query_id)
        last, moves = ledger.read()
        if last is not None and last >= batch.batch_id:
            _move(root, moves)  # it came again: whatever a crash has left of the moves is done now
        else:
            moves = [(old, new) for receipt in receipts for old, new in receipt]
            ledger.write(batch.batch_id, moves)
            _move(root, moves)
        drafts = root / _drafts(batch)
        shutil.rmtree(drafts, ignore_errors=True)
        with suppress(OSError):  # others may have drafts there
            drafts.parent.rmdir()
            drafts.parent.parent.rmdir()

    def abort(self, receipts: Sequence[list[tuple[str, str]]], batch: Batch) -> None:  # noqa: ARG002
        for receipt in receipts:
            for old, _ in receipt:
                (Path(self.settings.path) / old).unlink(missing_ok=True)


def _drafts(batch: Batch) -> str:
    return f"_temporary/{batch.query_id}/{batch.batch_id}"


class Ledger:
    """The last batch that a query committed, and the moves that make it visible: one small file per query."""

    def __init__(self, root: Path, query_id: str) -> None:
        self._path = root / "_rivven" / f"{query_id}.json"

    def read(self) -> tuple[int | None, list[tuple[str, str]]]:
        try:
            found: dict[str, Any] = msgspec.json.decode(self._path.read_bytes())
        except FileNotFoundError:
            return None, []
        return found["batch"], [(old, new) for old, new in found["moves"]]

    def write(self, batch_id: int, moves: Sequence[tuple[str, str]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode({"batch": batch_id, "moves": moves}))
        _sync(draft)
        os.replace(draft, self._path)
        _sync(self._path.parent)


def _move(root: Path, moves: Sequence[tuple[str, str]]) -> None:
    folders = set()
    for old, new in moves:
        if not (root / old).exists():
            continue  # moved before
        (root / new).parent.mkdir(parents=True, exist_ok=True)
        os.replace(root / old, root / new)
        folders.add((root / new).parent)
    _sync_folders(root, folders)


def _sync_folders(root: Path, folders: set[Path]) -> None:
    """Folders, and those above them that may be new as well."""
    wanted = {above for folder in folders for above in (folder, *folder.parents) if above.is_relative_to(root)}
    for folder in sorted(wanted):
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

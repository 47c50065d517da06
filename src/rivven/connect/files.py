"""Arrow batches as files: JSON, JSON lines, CSV, Avro or Parquet, cut at a size, sorted into folders by columns.

Shared by every sink that makes files, wherever the bytes go then. A row that a format has no way to write, or whose
folder could not have its name, is refused alone, and the others of its batch are written.
"""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec

from rivven.errors import RivvenError

from .sdk import RESERVED

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["json", "jsonl", "avro", "csv", "parquet"]
Compression = Literal["default", "none", "gzip", "zstd", "snappy"]

FOLDERS_MAX = 1000
"""Folders that one task writes at a time; above this the column is no good to sort by."""
FOLDER_NAME_BYTES_MAX = 255
"""What file systems take as one name."""
FOLDER_BYTES_MAX = 700
"""What leaves room for the rest of an object's name, of which stores take 1,024 bytes."""
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The folder of what is null or empty, as Hive and Spark call it."""

ROW_TO_BLAME = (ValueError, OverflowError)
"""Errors that a single row can cause: a text that is no UTF-8, a year that Python has not. A column that there is no
way to write is another error, for it must not send a whole topic to the letters; and Parquet takes any row."""

Refuse = Callable[["pa.RecordBatch", str], None]


def suffix_of(form: Format, compression: Compression) -> str:
    """The ending of a file's name."""
    return f".{form}" + (".gz" if compression == "gzip" and form not in ("parquet", "avro") else "")


def complaint_about(form: Format, compression: Compression) -> str | None:
    """What is wrong with a compression for a format."""
    if form == "parquet" or compression in ("default", "none", "gzip"):
        return None
    if form == "avro":
        return f"avro is compressed by gzip (deflate) or not at all, not by {compression}"
    return f"{form} is compressed by gzip or not at all, not by {compression}"


def absolute(place: str) -> str:
    """A local path as every process of a run finds it: Spark starts some of them in directories of their own.

    >>> absolute("s3://bucket/orders")
    's3://bucket/orders'
    """
    return place if "://" in place else os.path.abspath(place)


# One file


class Encoder:
    """Batches into one file; `bytes_written` is what has left for the file so far."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target

    @property
    def bytes_written(self) -> int:
        return self._target.tell()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add all rows, or raise and add none."""
        raise NotImplementedError

    def close(self) -> None:
        """Write the end of the file; the target stays open."""


def encoder(form: Format, compression: Compression, target: IO[bytes], schema: pa.Schema) -> Encoder:
    if form == "parquet":
        return _Parquet(target, schema, "snappy" if compression == "default" else compression)
    if form == "avro":
        from .avro import Avro

        return Avro(target, schema, compression)
    packed = _Gzip(target) if compression == "gzip" else None
    plain: Any = packed if packed is not None else target
    made: _Text = _Csv(plain, schema) if form == "csv" else _Lines(plain) if form == "jsonl" else _Array(plain)
    made.packed, made.under = packed, target
    return made


class _Parquet(Encoder):
    def __init__(self, target: IO[bytes], schema: pa.Schema, compression: Any) -> None:
        import pyarrow.parquet as pq

        super().__init__(target)
        self._writer = pq.ParquetWriter(target, schema, compression=compression)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Gzip(gzip.GzipFile):
    """Without a time and a name inside, so that the same records make the same bytes."""

    def __init__(self, target: IO[bytes]) -> None:
        super().__init__(filename="", mode="wb", fileobj=target, mtime=0)


class _Text(Encoder):
    packed: _Gzip | None = None
    under: IO[bytes]

    @property
    def bytes_written(self) -> int:
        return self.under.tell()

    def close(self) -> None:
        if self.packed is not None:
            self.packed.close()


class _Lines(_Text):
    def write(self, batch: pa.RecordBatch) -> None:
        self._target.write(json_lines(batch))


class _Array(_Text):
    """One JSON array."""

    _begun = False

    def write(self, batch: pa.RecordBatch) -> None:
        text = json_lines(batch)[:-1].replace(b"\n", b",\n")  # a line break inside a text is escaped in JSON
        if text:
            self._target.write((b",\n" if self._begun else b"[") + text)
            self._begun = True

    def close(self) -> None:
        self._target.write(b"]\n" if self._begun else b"[]\n")
        super().close()


class _Csv(_Text):
    def __init__(self, target: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow as pa

        super().__init__(target)
        self._nested = [field.name for field in schema if pa.types.is_nested(field.type)]
        self._first = True

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow.csv as csv

        buffer = io.BytesIO()
        csv.write_csv(
            _texts_for(batch, self._nested),
            buffer,
            csv.WriteOptions(include_header=self._first, quoting_style="needed"),
        )
        self._first = False
        self._target.write(buffer.getbuffer())


def _texts_for(batch: pa.RecordBatch, nested: Sequence[str]) -> pa.RecordBatch:
    """Nested columns as JSON, since CSV has no words for them."""
    import pyarrow as pa

    for name in nested:
        texts = [None if value is None else _json(value).decode() for value in batch.column(name).to_pylist()]
        batch = batch.set_column(batch.schema.get_field_index(name), name, pa.array(texts, pa.string()))
    return batch


def json_lines(batch: pa.RecordBatch) -> bytes:
    """The rows as JSON objects, a line each."""
    return bytes(_encoder.encode_lines(batch.to_pylist()))


def _json(value: Any) -> bytes:
    return _encoder.encode(value)


def _otherwise(value: Any) -> Any:
    return str(value)


_encoder = msgspec.json.Encoder(enc_hook=_otherwise, decimal_format="number")


# Many files


class CannotSort(RivvenError, code=206):
    """Folders without end."""

    message = "partition_by {columns} makes over {most:,} folders; choose columns with fewer values"


@dataclass(slots=True)
class Made:
    """A file that was written: its folder below the target, and the bytes and rows it has."""

    folder: str
    path: str
    rows: int = 0
    bytes: int = 0


class Sorter:
    """Rows into files: one at a time for each folder, a new one when the old one is full.

    `open_file(folder, number)` gives the path and the open file that the bytes go to, open for reading too.
    `partition_by` names the columns that make folders, `hidden` those that only refusals need: neither is written.
    """

    def __init__(
        self,
        form: Format,
        compression: Compression,
        partition_by: Sequence[str],
        max_file_bytes: int,
        open_file: Callable[[str, int], tuple[str, IO[bytes]]],
        refuse: Refuse,
        hidden: Sequence[str] = (),
    ) -> None:
        self._form = form
        self._compression = compression
        self._partition_by = partition_by
        self._max_file_bytes = max_file_bytes
        self._open_file = open_file
        self._refuse = refuse
        self._hidden = hidden
        self._open: dict[str, tuple[Made, Encoder, IO[bytes]]] = {}
        self._done: list[Made] = []

    def write(self, batch: pa.RecordBatch) -> None:
        for folder, rows in by_folder(batch, self._partition_by):
            if isinstance(folder, Unnamed):
                self._refuse(rows, folder.reason)
            else:
                self._write_to(folder, rows)

    def _write_to(self, folder: str, rows: pa.RecordBatch) -> None:
        """Write the rows to the folder's file; if they cannot be, one by one, to find those that are to blame."""
        spare = [name for name in rows.schema.names if name in self._partition_by or name in self._hidden]
        data = rows.drop_columns(spare) if spare else rows
        encoding = self._encoder(folder, data.schema)
        try:
            encoding.write(data)
            written = rows.num_rows
        except ROW_TO_BLAME:
            if self._form == "parquet":
                raise
            written = 0
            for place in range(rows.num_rows):
                try:
                    encoding.write(data.slice(place, 1))
                    written += 1
                except ROW_TO_BLAME as error:
                    self._refuse(rows.slice(place, 1), f"{self._form} cannot have it: {error}")
        self._open[folder][0].rows += written
        if encoding.bytes_written >= self._max_file_bytes:
            self._finish(folder)

    def _encoder(self, folder: str, schema: pa.Schema) -> Encoder:
        if folder not in self._open:
            if len(self._open) >= FOLDERS_MAX:
                raise CannotSort(columns=", ".join(self._partition_by), most=FOLDERS_MAX)
            path, target = self._open_file(folder, len(self._done) + len(self._open))
            self._open[folder] = Made(folder, path), encoder(self._form, self._compression, target, schema), target
        return self._open[folder][1]

    def _finish(self, folder: str) -> None:
        made, encoding, target = self._open.pop(folder)
        encoding.close()
        target.flush()
        made.bytes = target.tell()
        target.close()
        self._done.append(made)

    def close(self) -> list[Made]:
        """End all files; which there are. One without rows, all of them refused, is none."""
        for folder in list(self._open):
            self._finish(folder)
        return [made for made in self._done if made.rows]

    def abandon(self) -> None:
        for _, _, target in self._open.values():
            target.close()


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A folder that cannot be: why."""

    reason: str


def look_at_folders(schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """The columns that are left to be written; ValueError if those that make folders are not there, or nested."""
    import pyarrow as pa

    data = [name for name in schema.names if name not in RESERVED]
    strangers = [name for name in partition_by if name not in data]
    if strangers:
        raise ValueError(f"partition_by: there is no column {', '.join(strangers)}; there is {', '.join(data)}")
    nested = [name for name in partition_by if pa.types.is_nested(schema.field(name).type)]
    if nested:
        raise ValueError(f"partition_by: {', '.join(nested)} is nested; take a field of it out by a transform")
    left = [name for name in data if name not in partition_by]
    if not left:
        raise ValueError("partition_by: at least one column must be left to be written")
    return pa.schema([schema.field(name) for name in left])


def by_folder(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str | Unnamed, pa.RecordBatch]]:
    """The rows of a batch by `column=value` folders, each in the order they came.

    A value is quoted as in an address, so that it is one name whatever it has in it, and no way out of the folder.
    """
    if not columns:
        yield "", batch
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    names: list[list[str | Unnamed]] = []
    whole: Any = pa.array([0] * batch.num_rows, pa.int64())
    for column in columns:
        coded: Any = pc.dictionary_encode(batch.column(column), null_encoding="encode")
        names.append([_folder(column, value) for value in _texts(coded.dictionary)])
        whole = pc.add(pc.multiply(whole, len(names[-1])), coded.indices.cast(pa.int64()))
    for code in pc.unique(whole).to_pylist():
        parts, rest = [], code
        for folders in reversed(names):
            rest, place = divmod(rest, len(folders))
            parts.append(folders[place])
        yield _joined(parts[::-1]), batch.filter(pc.equal(whole, code))


def _texts(values: Any) -> list[str | bytes | None]:
    """Distinct values as texts; as bytes if they are none."""
    import pyarrow as pa

    if not (
        pa.types.is_string(values.type) or pa.types.is_binary(values.type) or pa.types.is_large_string(values.type)
    ):
        return list(values.cast(pa.string()).to_pylist())
    made: list[str | bytes | None] = []
    for value in values.cast(pa.binary()).to_pylist():
        try:
            made.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            made.append(value)
    return made


def _folder(column: str, value: str | bytes | None) -> str | Unnamed:
    if isinstance(value, bytes):
        return Unnamed(f"partition_by {column} has {value[:40]!r}, which is no UTF-8 and no folder's name")
    name = f"{quote(column, safe='')}={quote(value, safe=' ') if value else NULL_FOLDER}"
    if len(name) > FOLDER_NAME_BYTES_MAX:
        return Unnamed(
            f"partition_by {column} has a value of {len(value or ''):,} characters, "
            f"and a folder's name, quoted, may have {FOLDER_NAME_BYTES_MAX}"
        )
    return name


def _joined(parts: Sequence[str | Unnamed]) -> str | Unnamed:
    names: list[str] = []
    for part in parts:
        if isinstance(part, Unnamed):
            return part
        names.append(part)
    whole = "/".join(names)
    if len(whole) > FOLDER_BYTES_MAX:
        return Unnamed(f"partition_by makes a path of {len(whole):,} bytes, and {FOLDER_BYTES_MAX} are possible")
    return whole

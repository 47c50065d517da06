"""Arrow batches as files: JSON, JSON lines, CSV or Parquet, cut at a size, sorted into folders by columns.

Shared by every sink that makes files, wherever the bytes go then.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["json", "jsonl", "csv", "parquet"]
Compression = Literal["default", "none", "gzip", "zstd", "snappy"]

SUFFIXES = {"json": ".json", "jsonl": ".jsonl", "csv": ".csv", "parquet": ".parquet"}
FOLDERS_MAX = 1000
"""Folders that one task writes at a time; above this the column is no good to sort by."""
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def suffix_of(form: Format, compression: Compression) -> str:
    """The ending of a file's name."""
    return SUFFIXES[form] + (".gz" if compression == "gzip" and form != "parquet" else "")


def complaint_about(form: Format, compression: Compression) -> str | None:
    if form == "parquet" or compression in ("default", "none", "gzip"):
        return None
    return f"{form} is compressed by gzip or not at all, not by {compression}"


# One file


class Encoder:
    """Batches into one file; `bytes_written` is what has left for the file so far."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target

    @property
    def bytes_written(self) -> int:
        return self._target.tell()

    def write(self, batch: pa.RecordBatch) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Write the end of the file; the target stays open."""


def encoder(form: Format, compression: Compression, target: IO[bytes], schema: pa.Schema) -> Encoder:
    if form == "parquet":
        return _Parquet(target, schema, "snappy" if compression == "default" else compression)
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


@dataclass(slots=True)
class Made:
    """A file that was written: its folder below the target, and the bytes and rows it has."""

    folder: str
    path: str
    rows: int = 0
    bytes: int = 0


class Sorter:
    """Rows into files: one at a time for each folder, a new one when the old one is full.

    `open_file(folder, number)` gives the path and the open file that the bytes go to.
    """

    def __init__(
        self,
        form: Format,
        compression: Compression,
        partition_by: Sequence[str],
        max_file_bytes: int,
        open_file: Callable[[str, int], tuple[str, IO[bytes]]],
    ) -> None:
        self._form = form
        self._compression = compression
        self._partition_by = partition_by
        self._max_file_bytes = max_file_bytes
        self._open_file = open_file
        self._open: dict[str, tuple[Made, Encoder, IO[bytes]]] = {}
        self._done: list[Made] = []

    def write(self, batch: pa.RecordBatch) -> None:
        for folder, rows in by_folder(batch, self._partition_by):
            if folder not in self._open:
                if len(self._open) >= FOLDERS_MAX:
                    columns = ", ".join(self._partition_by)
                    raise ValueError(
                        f"partition_by {columns} makes over {FOLDERS_MAX:,} folders; choose columns with fewer values"
                    )
                path, target = self._open_file(folder, len(self._done) + len(self._open))
                encoding = encoder(self._form, self._compression, target, rows.schema)
                self._open[folder] = Made(folder, path), encoding, target
            made, encoding, _ = self._open[folder]
            encoding.write(rows)
            made.rows += rows.num_rows
            if encoding.bytes_written >= self._max_file_bytes:
                self._finish(folder)

    def _finish(self, folder: str) -> None:
        made, encoding, target = self._open.pop(folder)
        encoding.close()
        target.flush()
        made.bytes = target.tell()
        target.close()
        self._done.append(made)

    def close(self) -> list[Made]:
        """End all files; which there are."""
        for folder in list(self._open):
            self._finish(folder)
        return self._done

    def abandon(self) -> None:
        for _, _, target in self._open.values():
            target.close()


def by_folder(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a batch by `column=value` folders, in the order they came, without those columns."""
    if not columns:
        yield "", batch
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    rest = batch.drop_columns(list(columns))
    texts: list[Any] = [pc.cast(batch.column(name), pa.string()).fill_null(NULL_FOLDER) for name in columns]
    keys: Any = pc.dictionary_encode(pc.binary_join_element_wise(*texts, pa.scalar("\x00")))
    for code, key in enumerate(keys.dictionary.to_pylist()):
        parts = zip(columns, key.split("\x00"), strict=True)
        folder = "/".join(f"{quote(name, safe='')}={quote(value, safe=' ')}" for name, value in parts)
        yield folder, rest.filter(pc.equal(keys.indices, pa.scalar(code, pa.int32())))

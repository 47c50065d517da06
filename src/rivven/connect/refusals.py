"""Rows that a sink refuses for good, those that a pipeline could not read, and the letters that tell of them.

A sink that meets a row which no retry will help hands it in with `task.refuse(rows, reason)` and goes on with the
others. With a dead-letter topic the row becomes a letter: gathered here while the task writes, in memory and then on
disk, and written to the topic by one transaction of the broker for each task. Without one the pipeline ends with the
row's place in its topic and the reason.

A letter's payload is the row as the sink was given it, as JSON: what the transforms have masked stays masked. What it
was before them is at the offset that the letter's error names. Of what could not be read it is the text as it was.
"""

from __future__ import annotations

import tempfile
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rivven.errors import RivvenError
from rivven.limits import KIB, MESSAGE_BYTES_DEFAULT, MIB

if TYPE_CHECKING:
    import pyarrow as pa

POSITION = ("__topic", "__origin", "__partition", "__offset")
"""The columns that say where a record comes from: what a sink that refuses rows wants to know of each. `__origin` is
there only if `__topic` may be the topic that the record goes to, since a router has set it."""
REFUSAL = ("topic", "key", "error")
"""What `__refused` has: the topic that the record comes from, its key, and what is wrong with it."""
PAYLOAD_BYTES_MAX = (MESSAGE_BYTES_DEFAULT - 64 * KIB) // 4 * 3
"""What of a row goes into its letter, so that the letter, in base64, fits into a topic."""
KEY_BYTES_MAX = 16 * KIB
REASON_CHARS_MAX = 2000
MEMORY_BYTES_MAX = 16 * MIB
"""Letters of one task that are kept in memory; more go to a temporary file."""
ROWS_AT_ONCE = 1000


class RowRefused(RivvenError, code=205):
    """A row that can never be written, and there is no topic to put it aside."""

    message = (
        "{where} cannot be written: {reason}; mend it before it comes to this sink, "
        "or give the sink or pipeline a dead_letter_topic to go on without it"
    )


def fail(rows: pa.RecordBatch, reason: str) -> None:
    """What becomes of a refused row without a dead-letter topic."""
    raise RowRefused(where=place_of(rows), reason=_cut(reason))


def place_of(rows: pa.RecordBatch) -> str:
    """Where the first of some rows comes from, in words."""
    more = f" (and {rows.num_rows - 1:,} more with it)" if rows.num_rows > 1 else ""
    topic, partition, offset = origin_of(rows), _first(rows, "__partition"), _first(rows, "__offset")
    if not topic or partition is None or offset is None:
        return f"a record{more}"
    return f"the record at offset {offset} of partition {partition} of topic {topic}{more}"


def origin_of(rows: pa.RecordBatch) -> str:
    """The topic that the first of some rows comes from; empty if it comes from none."""
    return str(_first(rows, "__origin" if "__origin" in rows.schema.names else "__topic") or "")


def _first(rows: pa.RecordBatch, name: str) -> Any:
    return rows.column(name)[0].as_py() if name in rows.schema.names else None


class Letters:
    """The letters of one task, in the order of the refusals, until they are read back in batches."""

    def __init__(self, connector_name: str, topic: str) -> None:
        self._name = connector_name
        self._topic = topic
        self._file: Any = tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX)  # noqa: SIM115  # until close()
        self.count = 0

    def refuse(self, rows: pa.RecordBatch, reason: str) -> None:
        for place in range(rows.num_rows):
            row = rows.slice(place, 1)
            self._add(_key(row), origin_of(row), _payload(row), f"{place_of(row)}: {_cut(reason)}")

    def readable(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that could be read and used, without what is said of the others, which become letters."""
        import pyarrow.compute as pc

        from .sdk import ASIDE

        for batch in batches:
            if "__corrupt" not in batch.schema.names:
                yield batch
                continue
            texts = batch.column("__corrupt")
            read = batch.drop_columns([name for name in ASIDE if name in batch.schema.names])
            if texts.null_count < batch.num_rows:
                self._put_aside(batch.filter(pc.is_valid(texts)))
                read = read.filter(pc.is_null(texts))
            if read.num_rows:
                yield read

    def _put_aside(self, rows: pa.RecordBatch) -> None:
        """Letters for rows with a `__corrupt`: with that text as it was, or, if a transform refused the row, with the
        row as it has become."""
        import pyarrow as pa

        texts = rows.column("__corrupt").cast(pa.binary())
        refused: Any = rows.column("__refused") if "__refused" in rows.schema.names else pa.nulls(rows.num_rows)
        for place in range(rows.num_rows):
            if not refused[place].is_valid:
                self._add(None, "", texts[place].as_py(), "the record cannot be read")
                continue
            mark = pa.RecordBatch.from_struct_array(refused.slice(place, 1))
            topic, key, error = (_value(mark.column(name)) for name in REFUSAL)
            words = error if isinstance(error, str) else error.decode(errors="replace")
            self._add(key, str(topic), _payload(rows.slice(place, 1)), words)

    def _add(self, key: bytes | None, topic: str, payload: bytes, error: str) -> None:
        import msgspec

        cut = f" (the payload is cut to {PAYLOAD_BYTES_MAX:,} bytes)" if len(payload) > PAYLOAD_BYTES_MAX else ""
        value = {
            "original_topic": topic,
            "connector_name": self._name,
            "payload_b64": b64encode(payload[:PAYLOAD_BYTES_MAX]).decode(),
            "error": error + cut,
            "retry_count": 0,
            "timestamp": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }
        letter = msgspec.msgpack.encode((key, msgspec.json.encode(value)))
        self._file.write(len(letter).to_bytes(4, "big"))
        self._file.write(letter)
        self.count += 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What the format `rivven` writes."""
        import msgspec

        self._file.seek(0)
        waiting: list[tuple[bytes | None, bytes]] = []
        while size := self._file.read(4):
            waiting.append(
                msgspec.msgpack.decode(self._file.read(int.from_bytes(size, "big")), type=tuple[bytes | None, bytes])
            )
            if len(waiting) == ROWS_AT_ONCE:
                yield self._batch(waiting)
                waiting = []
        if waiting:
            yield self._batch(waiting)

    def _batch(self, letters: list[tuple[bytes | None, bytes]]) -> pa.RecordBatch:
        import pyarrow as pa

        keys, values = zip(*letters, strict=True)
        columns: dict[str, Any] = {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array([self._topic] * len(letters), pa.string()),
        }
        return pa.RecordBatch.from_pydict(columns)

    def close(self) -> None:
        self._file.close()


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARS_MAX else text[: REASON_CHARS_MAX - 3] + "..."


def _key(row: pa.RecordBatch) -> bytes | None:
    if "__key" not in row.schema.names:
        return None
    value = _value(row.column("__key"))
    key = value.encode(errors="surrogateescape") if isinstance(value, str) else value
    return key if isinstance(key, bytes) and len(key) <= KEY_BYTES_MAX else None


def _payload(row: pa.RecordBatch) -> bytes:
    """What a letter has of a row: its data, without what speaks about it."""
    from .sdk import RESERVED

    return row_json(row.drop_columns([name for name in row.schema.names if name in RESERVED]))


def row_json(row: pa.RecordBatch) -> bytes:
    """One row as a JSON object, whatever it has: this is for rows that others could not write."""
    import msgspec

    found = {name: _value(row.column(name)) for name in row.schema.names}
    return msgspec.json.encode(found, enc_hook=repr)


def _value(column: Any) -> Any:
    """The only value of a column: a text that is no UTF-8 as bytes, and what Python has no value for as a number."""
    import pyarrow as pa

    try:
        value = column[0].as_py()
    except UnicodeDecodeError:
        plain = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        return column.cast(pa.binary()).to_pylist()[0] if plain else "(a text inside is no UTF-8)"
    except (ValueError, OverflowError):
        return (
            str(column.cast(pa.int64())[0]) if pa.types.is_temporal(column.type) else "(no value that JSON can have)"
        )
    return dict(value) if pa.types.is_map(column.type) and value is not None else value

"""Records between a topic and their columns: the envelope, the key, JSON, and letters for what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from .infer import columns_of, is_event, parsed
from .refusals import PAYLOAD_BYTES_MAX
from .sdk import ASIDE
from .transforms.columns import data_columns, place_of, quoted
from .transforms.routing import key_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
}
RFC3339 = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
UNREADABLE = "RIVVEN_UNREADABLE"
"""Begins the message of a query that met a record it cannot read: no retry will help."""

Envelope = Literal["event", "plain"]


# Into a topic


def to_topic(
    frame: DataFrame,
    *,
    name: str,
    topic: str,
    stream: str,
    namespace: str | None,
    envelope: Envelope,
    key: Sequence[str],
    dead_letter_topic: str | None,
    record_bytes_max: int,
) -> DataFrame:
    """The columns that the format `rivven` writes, from a source's columns.

    What could not be read or used, and what is too large for the topic, becomes a letter; without a topic for those
    the query ends.
    """
    from pyspark.sql import functions as F  # noqa: N812

    have = set(frame.columns)
    data = F.struct(*[F.col(quoted(column)) for column in data_columns(frame)])
    moment = F.col("__timestamp") if "__timestamp" in have else F.current_timestamp()
    if envelope == "plain":
        value = F.to_json(data, JSON_OPTIONS)
    else:
        own_stream = F.col("__stream") if "__stream" in have else F.lit(stream)
        own_namespace = F.col("__namespace") if "__namespace" in have else F.lit(namespace).cast("string")
        empty = F.from_json(F.lit("{}"), "map<string,string>")
        parts = [
            (F.col("__event_type") if "__event_type" in have else F.lit("record")).alias("event_type"),
            own_stream.alias("stream"),
            own_namespace.alias("namespace"),
            F.date_format(moment, RFC3339).alias("timestamp"),
            data.alias("data"),
            (F.col("__metadata") if "__metadata" in have else empty).alias("metadata"),
        ]
        value = F.to_json(F.struct(*parts), JSON_OPTIONS)
    if key:
        own_key = key_of(frame, key).cast("binary")
    else:
        own_key = F.col("__key").cast("binary") if "__key" in have else F.lit(None).cast("binary")
    target = F.coalesce(F.col("__topic"), F.lit(topic)) if "__topic" in have else F.lit(topic)
    columns = {"key": own_key, "value": value.cast("binary"), "topic": target, "timestamp": moment.cast("timestamp")}
    made = frame.select(*[F.col(name) for name in _spare(have)], *[each.alias(at) for at, each in columns.items()])
    size = F.octet_length("value") + F.coalesce(F.octet_length("key"), F.lit(0))
    large = size > F.lit(record_bytes_max)
    place = place_of(have)
    words = [place, F.lit(": it has "), size.cast("string"), F.lit(f" bytes, and the topic takes {record_bytes_max}")]
    complaint = F.concat(*words)
    if dead_letter_topic is None:
        error = F.raise_error(F.concat(F.lit(f"{UNREADABLE}: "), complaint)).cast("binary")
        shaped = {each: F.col(each) for each in columns} | {"value": F.when(large, error).otherwise(F.col("value"))}
    else:
        known = {each: F.col(each) for each in columns}
        topics = [F.col(each) for each in ("__origin", "__topic") if each in have]
        origin = F.coalesce(*topics[:1], F.lit(""))
        letter = letter_of(origin, name, F.col("value"), complaint)
        shaped = _or_letter(known, large, letter, dead_letter_topic)
        if "__corrupt" in have:
            text = F.col("__corrupt").cast("binary")
            letter = letter_of(F.lit(""), name, text, F.lit("the record cannot be read"))
            if "__refused" in have:
                mark = F.col("__refused")
                told = letter_of(mark["topic"], name, F.col("value"), mark["error"])
                letter = F.when(mark.isNotNull(), told).otherwise(letter)
            shaped = _or_letter(shaped, F.col("__corrupt").isNotNull(), letter, dead_letter_topic)
    return made.select(*[column.alias(title) for title, column in shaped.items()])


def _spare(have: set[str]) -> list[str]:
    """What a letter has to say besides the record."""
    return [name for name in ("__topic", "__origin", "__partition", "__offset", *ASIDE) if name in have]


def _or_letter(columns: dict[str, Column], bad: Column, letter: Column, dead_letter_topic: str) -> dict[str, Column]:
    """The same, and for a bad record a letter to the dead-letter topic instead."""
    from pyspark.sql import functions as F  # noqa: N812

    return {
        "key": F.when(~bad, columns["key"]),
        "value": F.when(bad, letter.cast("binary")).otherwise(columns["value"]),
        "topic": F.when(bad, F.lit(dead_letter_topic)).otherwise(columns["topic"]),
        "timestamp": columns["timestamp"],
    }


def letter_of(topic: Column, name: str, payload: Column, error: Column) -> Column:
    """A dead letter: the record as it was, and why nobody could use it."""
    from pyspark.sql import functions as F  # noqa: N812

    cut = F.when(
        F.octet_length(payload) > PAYLOAD_BYTES_MAX, F.lit(f" (the payload is cut to {PAYLOAD_BYTES_MAX:,} bytes)")
    ).otherwise(F.lit(""))
    parts = [
        topic.alias("original_topic"),
        F.lit(name).alias("connector_name"),
        F.base64(F.substring(payload, 1, PAYLOAD_BYTES_MAX)).alias("payload_b64"),
        F.concat(error, cut).alias("error"),
        F.lit(0).alias("retry_count"),
        F.date_format(F.current_timestamp(), RFC3339).alias("timestamp"),
    ]
    return F.to_json(F.struct(*parts), JSON_OPTIONS)


# From a topic

ABOUT = {
    "key": "__key",
    "topic": "__topic",
    "partition": "__partition",
    "offset": "__offset",
    "timestamp": "__timestamp",
}


def as_text(frame: DataFrame, *, binary: bool) -> DataFrame:
    """Key and value as columns, and what else is known of the record beside them."""
    from pyspark.sql import functions as F  # noqa: N812

    kind = "binary" if binary else "string"
    own = [F.col(name).cast(kind).alias(name) for name in ("key", "value")]
    rest = [F.col(name) for name in ("topic", "partition", "offset", "timestamp")]
    return frame.select(*own, *rest, *[F.col(name).alias(about) for name, about in ABOUT.items()])


def learned(sample: Sequence[bytes | None], wanted: Literal["auto", "event", "plain"]) -> tuple[Envelope, str] | None:
    """The envelope and the columns of a sample; None if there is no record to learn from."""
    records = parsed(sample)
    if not records:
        return None
    event = wanted == "event" or (wanted == "auto" and all(map(is_event, records)))
    if event:
        records = [record["data"] for record in records if isinstance(record.get("data"), dict)]
    columns = columns_of(records)
    return ("event" if event else "plain", columns) if columns else None


def schema_from(text: str) -> StructType:
    """Columns from a DDL, or from the JSON that Spark writes them as."""
    from pyspark.sql.types import StructType

    if text.lstrip().startswith("{"):
        return StructType.fromJson(json.loads(text))
    found = StructType.fromDDL(text)
    if not isinstance(found, StructType):
        raise ValueError(f"{text!r} is one type, and no columns; write them like: id BIGINT, name STRING")
    return found


def from_topic(frame: DataFrame, envelope: Envelope, data: StructType) -> DataFrame:
    """The fields of JSON records as columns. A record that is no such JSON has its text in `__corrupt`.

    A record without a value, a tombstone, has no fields and is left out.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [StructField("data", data)] if envelope == "event" else list(data.fields)
    if envelope == "event":
        fields += [StructField(name, StringType()) for name in ("event_type", "stream", "namespace")]
    whole = StructType([*fields, StructField("__corrupt", StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "__corrupt"}
    frame = frame.filter(F.col("value").isNotNull())
    read = frame.withColumn("__read", F.from_json(F.col("value").cast("string"), whole, options))
    record = F.col("__read.data") if envelope == "event" else F.col("__read")
    columns = [record.getField(field.name).alias(field.name) for field in data.fields]
    if envelope == "event":
        columns += [F.col(f"__read.{name}").alias(f"__{name}") for name in ("event_type", "stream", "namespace")]
    about = [F.col(name).alias(title) for name, title in ABOUT.items()]
    told, text = F.col("__read.__corrupt"), F.col("value").cast("string")
    corrupt = F.when(F.col("__read").isNull(), text).otherwise(told)  # of an empty text Spark says nothing
    return read.select(*columns, *about, corrupt.alias("__corrupt"), F.col("value").alias("__value"))


def refused(frame: DataFrame) -> DataFrame:
    """The frame without unreadable records, of which the first one ends the query."""
    from pyspark.sql import functions as F  # noqa: N812

    where = F.format_string(
        f"{UNREADABLE}: the record at offset %d of partition %d of topic %s is no JSON with the columns expected: %s",
        F.col("__offset"),
        F.col("__partition"),
        F.col("__topic"),
        F.substring(F.col("__corrupt"), 1, 200),
    )
    checked = F.when(F.col("__corrupt").isNull(), F.lit(True)).otherwise(F.raise_error(where).cast("boolean"))
    return frame.filter(checked).drop("__corrupt", "__value")


def readable(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.filter(F.col("__corrupt").isNull()).drop("__corrupt", "__value")


def read_alone(frame: DataFrame, transform: str) -> DataFrame:
    """The frame without a way to tell what could not be read or used, the first of which ends the query."""
    from pyspark.sql import functions as F  # noqa: N812

    complaint = F.concat(
        F.lit(f"{UNREADABLE}: a record cannot"),
        F.lit(f" be read, and the transform {transform} does not let __corrupt pass, which has its text: "),
        F.substring(F.col("__corrupt"), 1, 200),
    )
    checked = F.when(F.col("__corrupt").isNull(), F.lit(True)).otherwise(F.raise_error(complaint).cast("boolean"))
    return frame.filter(checked).drop(*ASIDE)


def letters(frame: DataFrame, name: str, topic: str) -> DataFrame:
    """The dead letters of the records that cannot be read."""
    from pyspark.sql import functions as F  # noqa: N812

    error = F.lit("the record is no JSON with the columns expected")
    value = letter_of(F.col("__topic"), name, F.col("__value"), error)
    return frame.filter(F.col("__corrupt").isNotNull()).select(
        F.col("__key").alias("key"), value.cast("binary").alias("value"), F.lit(topic).alias("topic")
    )

"""What a topic looks like as a table: the columns that are read, and those that may be written."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rivven.client import ConfigException

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

READ_COLUMNS: dict[str, tuple[DataType, bool]] = {
    "key": (BinaryType(), True),
    "value": (BinaryType(), True),
    "topic": (StringType(), False),
    "partition": (IntegerType(), False),
    "offset": (LongType(), False),
    "timestamp": (TimestampType(), False),
    "timestampType": (IntegerType(), False),
    "headers": (HEADERS, False),
}
"""Type, and whether it may be null."""

WRITE_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "headers": (HEADERS,),
    "timestamp": (TimestampType(),),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}


def schema_of(names: Sequence[str]) -> StructType:
    return StructType([StructField(name, *READ_COLUMNS[name]) for name in names])


def columns_of(schema: StructType) -> list[str]:
    """The columns that a reader shall give. A schema that somebody chose may leave some out, and change none."""
    for wanted in schema.fields:
        known = READ_COLUMNS.get(wanted.name)
        if known is None or not _alike(known[0], wanted.dataType):
            there = ", ".join(f"{name} {kind.simpleString()}" for name, (kind, _) in READ_COLUMNS.items())
            named = f"{wanted.name} {wanted.dataType.simpleString()}"
            raise ConfigException(
                reason=f"the schema has {named}; a topic has {there}. Read those, then cast or from_json(value)"
            )
    return schema.fieldNames()


def check_written(schema: StructType, topic: str | None) -> None:
    """Whether rows of this schema can be records."""
    for given in schema.fields:
        kinds = WRITE_COLUMNS.get(given.name)
        if kinds is None:
            raise ConfigException(
                reason=f"column {given.name!r} is no part of a record; there are {', '.join(WRITE_COLUMNS)}. "
                "Put the rest into the value: df.selectExpr('to_json(struct(*)) AS value')"
            )
        if not any(_alike(kind, given.dataType) for kind in kinds):
            wanted = " or ".join(kind.simpleString() for kind in kinds)
            raise ConfigException(
                reason=f"column {given.name!r} is {given.dataType.simpleString()} and must be {wanted}; "
                f"{_cure(given.name, kinds)}"
            )
    if "value" not in schema.fieldNames():
        raise ConfigException(
            reason="there is no column 'value'; df.selectExpr('to_json(struct(*)) AS value') makes one"
        )
    if topic is None and "topic" not in schema.fieldNames():
        raise ConfigException(reason="there is no topic to write to; give option 'topic', or a column 'topic'")


def _cure(name: str, kinds: Sequence[DataType]) -> str:
    if name == "value":
        return "to_json it, or cast it"
    return f"cast it: CAST({name} AS {kinds[-1].simpleString().upper()})"


def _alike(one: DataType, other: DataType) -> bool:
    """The same type, whatever may be null in it."""
    return one.simpleString() == other.simpleString()

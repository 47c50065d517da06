"""JSON from outside as typed columns: found from a sample, kept, and read by Spark in the JVM.

A source that reads JSON gives each record as text in the column `value`; `typed` makes columns of its fields. What is
no such JSON goes the way of all unreadable records: to the dead-letter topic if there is one, else it ends the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .infer import columns_of, merged, parsed, shape_of
from .records import UNREADABLE, schema_from

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from .sdk import Launch

NO_COLUMNS = "there is no record yet to find the columns from; give the schema, or begin when there is one"


def columns_text(records: Iterable[bytes]) -> str:
    """The columns of a sample in the JSON that Spark writes them as; ValueError where the sample has no object."""
    columns = columns_of(parsed(records))
    if not columns:
        raise ValueError(NO_COLUMNS)
    return schema_from(columns).json()


def typed(
    frame: DataFrame, schema: str | None, sample: Callable[[], Iterable[bytes]], launch: Launch, where: Column
) -> DataFrame:
    """The fields of the JSON in `value` as columns, before the columns about the record that the frame has.

    `where` names a record that cannot be read in the error that it causes.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType, StructField, StructType

    data = schema_from(schema if schema is not None else launch.recall("schema", lambda: columns_text(sample())))
    about = [name for name in frame.columns if name != "value"]
    whole = StructType([*data.fields, StructField("__corrupt", StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "__corrupt"}
    text = F.col("value").cast("string")
    read = frame.filter(F.col("value").isNotNull()).withColumn("__read", F.from_json(text, whole, options))
    fields = [F.col("__read").getField(field.name).alias(field.name) for field in data.fields]
    corrupt = F.when(F.col("__read").isNull(), text).otherwise(F.col("__read").getField("__corrupt"))
    made = read.select(*fields, *about, corrupt.alias("__corrupt"), where.alias("__where"))
    if launch.dead_letter_topic is not None:
        return made.drop("__where")
    complaint = F.concat(
        F.lit(f"{UNREADABLE}: "),
        F.col("__where"),
        F.lit(" is no JSON with the columns expected: "),
        F.substring(F.col("__corrupt"), 1, 200),
    )
    checked = F.when(F.col("__corrupt").isNull(), F.lit(True)).otherwise(F.raise_error(complaint).cast("boolean"))
    return made.filter(checked).drop("__corrupt", "__where")


def arrow_schema(records: Iterable[bytes]) -> pa.Schema:
    """The columns of a sample for `discover`, which has no Spark; `value` where the sample has no object."""
    import pyarrow as pa

    whole: Any = None
    for record in parsed(records):
        whole = merged(whole, shape_of(record))
    if whole is None or not whole[1]:
        return pa.schema([("value", pa.string())])
    return pa.schema([(name, _arrow_type(shape)) for name, shape in whole[1].items()])


def _arrow_type(shape: Any) -> pa.DataType:
    import pyarrow as pa

    plain: dict[str, pa.DataType] = {
        "boolean": pa.bool_(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "decimal(38,0)": pa.decimal128(38, 0),
    }
    if isinstance(shape, tuple) and shape[0] == "array":
        return pa.list_(_arrow_type(shape[1]))
    if isinstance(shape, tuple) and shape[1]:
        return pa.struct([(name, _arrow_type(inner)) for name, inner in shape[1].items()])
    return plain.get(shape, pa.string()) if isinstance(shape, str) else pa.string()

"""Fields by their paths: `a.b` is field b of struct a, and a column that is really called `a.b` wins."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from rivven.connect.refusals import REFUSAL
from rivven.connect.sdk import RESERVED
from rivven.connect.settings import unknown

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


class NoSuchColumn(ValueError):
    """A transform speaks of a column that is not there."""


def data_columns(frame: DataFrame) -> list[str]:
    """The columns of the record itself, without those that speak about it."""
    return [name for name in frame.columns if name not in RESERVED]


def about_columns(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name in RESERVED]


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def column(frame: DataFrame, path: str) -> Column:
    """The column or field at a path."""
    from pyspark.sql import functions as F  # noqa: N812

    top, inner = split(frame, path)
    return F.col(".".join(map(quoted, (top, *inner))))


def split(frame: DataFrame, path: str) -> tuple[str, list[str]]:
    """The column that a path begins with, and the fields below it."""
    if path in frame.columns:
        return path, []
    top, *inner = path.split(".")
    kind: DataType | None = frame.schema[top].dataType if top in frame.columns else None
    for name in inner:
        kind = {field.name: field.dataType for field in getattr(kind, "fields", ())}.get(name)
    if kind is None:
        raise NoSuchColumn(unknown("column", path, paths(frame)))
    return top, inner


def type_of(frame: DataFrame, path: str) -> DataType:
    top, inner = split(frame, path)
    kind: Any = frame.schema[top].dataType
    for name in inner:
        kind = kind[name].dataType
    found: DataType = kind
    return found


def all_of(columns: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one & other, columns)


def any_of(columns: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one | other, columns)


def paths(frame: DataFrame) -> list[str]:
    found: list[str] = []

    def walk(prefix: str, fields: Iterable[Any]) -> None:
        for field in fields:
            found.append(prefix + field.name)
            walk(f"{prefix}{field.name}.", getattr(field.dataType, "fields", ()))

    walk("", frame.schema.fields)
    return found


def replaced(frame: DataFrame, path: str, value: Column) -> DataFrame:
    """The frame with another value at a path; a new column where there was none."""
    from pyspark.sql import functions as F  # noqa: N812

    if path in frame.columns or "." not in path or path in RESERVED:
        return frame.withColumn(path, value)
    top, *inner = path.split(".")
    if top not in frame.columns:
        return frame.withColumn(path, value)
    return frame.withColumn(top, F.col(quoted(top)).withField(".".join(map(quoted, inner)), value))


def dropped(frame: DataFrame, path: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    top, inner = split(frame, path)
    if not inner:
        return frame.select(*[quoted(name) for name in frame.columns if name != top])
    return frame.withColumn(top, F.col(quoted(top)).dropFields(".".join(map(quoted, inner))))


def kept(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """These columns of the record, and all that speak about it."""
    for name in names:
        split(frame, name)
    return frame.select(*[quoted(name) for name in frame.columns if name in names or name in RESERVED])


def place_of(have: Container[str]) -> Column:
    """Where a record comes from, in words."""
    from pyspark.sql import functions as F  # noqa: N812

    topic = next((each for each in ("__origin", "__topic") if each in have), None)
    if topic is None or "__partition" not in have or "__offset" not in have:
        return F.lit("a record")
    form = "the record at offset %d of partition %d of topic %s"
    return F.format_string(form, F.col("__offset"), F.col("__partition"), F.col(topic))


def refused(frame: DataFrame, complaint: Column) -> DataFrame:
    """The frame with the records marked of which there is something to complain: they go on to become letters."""
    from pyspark.sql import functions as F  # noqa: N812

    topics = [F.col(name) for name in ("__origin", "__topic") if name in frame.columns]
    key = F.col("__key") if "__key" in frame.columns else F.lit(None)
    error = F.concat(place_of(frame.columns), F.lit(": "), complaint)
    parts = [F.coalesce(*topics[:1], F.lit("")), key.cast("binary"), error]
    mark = F.when(
        complaint.isNotNull(), F.struct(*[part.alias(name) for part, name in zip(parts, REFUSAL, strict=True)])
    )
    before = [F.col("__refused")] if "__refused" in frame.columns else []
    marks = {"__refused": F.coalesce(*before, mark), "__corrupt": F.coalesce(F.col("__corrupt"), complaint)}
    return frame.withColumns(marks)

"""A transform in SQL: a SELECT over the records that come, aggregations included."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from rivven.connect.sdk import Settings, Transform, setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INTERVAL = re.compile(r"[1-9]\d{0,8} (second|minute|hour|day)s?")
OutputMode = Literal["append", "update", "complete"]


def _select(text: str) -> str | None:
    words = text.split(None, 1)
    if not words or words[0].upper() not in ("SELECT", "WITH", "FROM"):
        return "it is no query; begin with SELECT, and take the records from `input`"
    return None


def _interval(text: str) -> str | None:
    return None if INTERVAL.fullmatch(text) else f"{text!r} is no interval; write it like 10 minutes"


class Watermark(Settings):
    """How long an aggregation waits for records that come late."""

    field: str = setting("The column with the time; the record's own unless told.", default="__timestamp")
    delay: str = setting("How late a record may be; a later one is left out.", check=_interval, example="10 minutes")


class SqlSettings(Settings):
    query: str = setting(
        "The query; its table is `input`.", check=_select, example="SELECT id, upper(name) FROM input"
    )
    output_mode: OutputMode = setting(
        "For aggregations: `update` gives the rows that changed, `complete` all rows each time, `append` those that "
        "can change no more.",
        default="append",
    )
    watermark: Watermark | None = setting(
        "Which records may still come; `append` needs it to know of a time window that it is done.", default=None
    )


class SqlTransform(Transform[SqlSettings]):
    name = "sql"
    aliases = ("query",)
    title = "SQL query"
    summary = "Replaces the records by the rows of a SQL query over them."
    docs = """
    Spark's SQL, with all its functions. The columns of the records are those of the table `input`; the columns about
    the record (`__key`, `__timestamp` and so on) are there as well, and are kept only if the query selects them.

    An aggregation keeps its state in the checkpoint. Without a time window it needs `output_mode: update` or
    `complete`, and a sink that can take a row again: a `topic` with a key. With one, such as
    `GROUP BY window(__timestamp, '1 minute')`, and a `watermark` it can `append`, to any sink: a window is given
    once, when a record has come that is later than its end by the delay. The last windows wait for that, also with
    `--once`.
    """
    example = """
    transforms:
      - type: sql
        config:
          query: SELECT country, count(*) AS orders, sum(amount) AS amount FROM input GROUP BY country
          output_mode: update
    """
    extra = "spark"

    @property
    def output_mode(self) -> OutputMode:
        return self.settings.output_mode

    def columns(self) -> tuple[str, ...]:
        return (self.settings.watermark.field,) if self.settings.watermark else ()

    def apply(self, frame: DataFrame) -> DataFrame:
        if self.settings.watermark is not None:
            frame = frame.withWatermark(self.settings.watermark.field, self.settings.watermark.delay)
        view = f"input_{uuid4().hex}"  # a session may resolve queries late, when another one's `input` has come
        frame.createOrReplaceTempView(view)
        return frame.sparkSession.sql(over(view, self.settings.query))


def over(view: str, query: str) -> str:
    """The query with `input` for the view.

    >>> over("v", "SELECT a FROM input")
    'WITH input AS (TABLE v) SELECT a FROM input'
    >>> over("v", "with x as (select 1) select * from x, input")
    'WITH input AS (TABLE v), x as (select 1) select * from x, input'
    """
    words = query.split(None, 1)
    rest = f", {words[1]}" if words[0].upper() == "WITH" else f" {query.strip()}"
    return f"WITH input AS (TABLE {view}){rest}"

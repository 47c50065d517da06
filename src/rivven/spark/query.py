"""One question in SQL over the topics of a broker: every topic that the question names is a table of that name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from rivven.client import blocking
from rivven.errors import RivvenError

from .session import start

TEXTS = "CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value"
REST = "topic", "partition", "offset", "timestamp", "headers"
NO_TABLE = re.compile(r"^\[TABLE_OR_VIEW_NOT_FOUND\].*?(`.*?`) cannot")
FIRST_WORDS = re.compile(r"^\[([A-Z_.]+)\] *")


class QueryFailed(RivvenError, code=112):
    """A question that Spark does not understand, or that it failed to answer."""


class Answer(NamedTuple):
    """Rows of plain values; `more`: there would have been more than were asked for."""

    columns: list[str]
    rows: list[list[Any]]
    more: bool


def ask(question: str, servers: str, *, binary: bool = False, rows_max: int = 0) -> Answer:
    """Ask, and wait for at most so many rows; 0 is all of them."""
    with blocking.connect(servers) as client:
        topics = client.list_topics()
    spark = start("rivven sql")
    try:
        return answered(spark, question, servers, topics, binary=binary, rows_max=rows_max)
    finally:
        spark.stop()


def answered(
    spark: SparkSession,
    question: str,
    servers: str,
    topics: Iterable[str],
    *,
    binary: bool = False,
    rows_max: int = 0,
) -> Answer:
    """The same in a session that is there, over these topics."""
    try:
        for topic in named_in(question, topics):
            table = topic_table(spark, servers, topic, binary=binary)
            table.createOrReplaceTempView(f"`{topic}`")
        found = spark.sql(question)
        rows = (found.limit(rows_max + 1) if rows_max else found).collect()
    except PySparkException as error:
        raise QueryFailed(reason=explained(str(error))) from None
    shown = rows[:rows_max] if rows_max else rows
    return Answer(found.columns, [[plain(value) for value in row] for row in shown], len(shown) < len(rows))


def named_in(question: str, topics: Iterable[str]) -> list[str]:
    """The topics whose names stand in the question as words.

    >>> named_in("SELECT * FROM orders JOIN `a-b` USING (key)", ["orders", "order", "a-b", "b"])
    ['orders', 'a-b']
    """
    return [
        topic
        for topic in topics
        if re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w-]|\.\w)", question, re.IGNORECASE)
    ]


def topic_table(spark: SparkSession, servers: str, topic: str, *, binary: bool = False) -> DataFrame:
    """A topic as a table, with key and value as text unless their bytes are wanted."""
    table = spark.read.format("rivven").options(servers=servers, subscribe=topic).load()
    return table if binary else table.selectExpr(*TEXTS, *REST)


def plain(value: Any) -> Any:
    """A value that JSON and people can read."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return bytes(value).hex(" ")
        case datetime() | date():
            return value.isoformat()
        case Row():
            return {name: plain(each) for name, each in value.asDict().items()}
        case dict():
            return {str(name): plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return str(value)


def explained(text: str) -> str:
    """What Spark says, without its code and without where in its own source that was.

    >>> explained("[DIVIDE_BY_ZERO] Division by zero.\\nUse try_divide.\\n\\nJVM stacktrace:")
    'Division by zero. Use try_divide.'
    """
    missing = NO_TABLE.search(text)
    if missing:
        return f"there is no topic {missing[1].replace('`', '')!r}; `rivven topic list` shows the topics there are"
    first = FIRST_WORDS.sub("", text.strip()).split("\n\n")[0].split("; line ")[0]
    lines = [line.strip() for line in first.splitlines() if line.strip() and not line.startswith("JVM")]
    ours = [line for line in text.splitlines() if re.match(r"rivven\.[\w.]+: ", line)]
    return ours[-1].partition(": ")[2] if ours else " ".join(lines) or json.dumps(text)

"""`rivven sql`: a question over topics, answered by Spark as a table."""

from __future__ import annotations

import csv
import importlib.util
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from rivven.errors import RivvenError

from . import show
from .bounds import ROWS_MAX
from .opening import usage
from .server import DEFAULT, Server
from .text import readable

if TYPE_CHECKING:
    from rivven.spark import Answer

MAX = 1_000
"""Rows that are shown unless told."""


class SparkMissing(RivvenError, code=113):
    """The package is installed without its extra."""

    message = "SQL needs Spark, which is not installed here: pip install 'rivven[spark]'"


def sql(
    question: Annotated[str, typer.Argument(metavar="QUERY", help="What to ask, in the SQL of Spark.")],
    server: Server = DEFAULT,
    rows_max: Annotated[
        int,
        typer.Option(
            "--max", "-m", metavar="N", min=0, max=ROWS_MAX, help="Show at most so many rows; 0 is all of them."
        ),
    ] = MAX,
    binary: Annotated[
        bool, typer.Option("--binary", help="Keep keys and values as bytes; else they are read as text.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
) -> None:
    """Ask topics a question in SQL.

    Every topic is a table of its name, with the columns key, value, topic, partition, offset, timestamp and headers.
    A name with other signs than letters, digits and _ stands in backticks. What a value holds as JSON is reached by
    get_json_object(value, '$.name'), or all at once by from_json(value, 'name STRING, price DOUBLE').

    Only committed records are seen. A bound on partition, offset or timestamp spares the broker the rest.

    Examples:

        rivven sql "SELECT count(*) FROM orders"

        rivven sql "SELECT get_json_object(value, '$.city') FROM orders" --csv

        rivven sql 'SELECT value FROM `web-clicks` WHERE offset >= 1000'
    """
    if as_json and as_csv:
        usage("choose one of --json and --csv")
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing
    from rivven.spark import ask

    answer = ask(question, server, binary=binary, rows_max=rows_max)
    if as_json:
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        show.show_json({"columns": answer.columns, "rows": rows, "more": answer.more})
    elif as_csv:
        _write_csv(answer)
    else:
        _write_table(answer)
    if answer.more and not as_json:
        show.remark(f"stopped after {rows_max} rows; --max says how many, 0 all")


def _write_csv(answer: Answer) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows([["" if value is None else _text(value) for value in row] for row in answer.rows])


def _write_table(answer: Answer) -> None:
    numbers = [
        bool(answer.rows) and all(isinstance(row[place], int | float) for row in answer.rows)
        for place in range(len(answer.columns))
    ]
    columns = [
        show.Column(name, right=right, flexible=not right)
        for name, right in zip(answer.columns, numbers, strict=True)
    ]
    show.show_table(columns, [[readable(_text(value).encode()) for value in row] for row in answer.rows])


def _text(value: Any) -> str:
    match value:
        case None:
            return "null"
        case str():
            return value
        case bool() | dict() | list():
            return msgspec.json.encode(value).decode()
        case _:
            return str(value)

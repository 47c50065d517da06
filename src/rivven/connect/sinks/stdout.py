"""Records on the terminal, as the driver sees them: to look at a topic, or to try a pipeline."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rivven.connect.sdk import RESERVED, Launch, Settings, Sink, setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

DIM, RESET = "\x1b[2m", "\x1b[0m"


class StdoutSettings(Settings):
    format: Literal["pretty", "json", "tsv", "text"] = setting(
        "`pretty` has a field in each line, `json` a record; `tsv` and `text` have its values.", default="pretty"
    )
    include_metadata: bool = setting("Show topic, partition, offset and key, where there are any.", default=True)
    include_timestamp: bool = setting("Show the record's time.", default=True)
    color: bool = setting("Use colours on a terminal.", default=True)
    rate_limit: int = setting("Records per second; 0 for no limit.", default=0, least=0)


class Stdout(Sink[StdoutSettings]):
    name = "stdout"
    aliases = ("console", "log", "print")
    title = "Standard output"
    summary = "Prints records."
    docs = """
    Records are printed by the process that runs the pipeline, one micro-batch after another. After a crash the last
    micro-batch may be printed again.
    """
    example = """
    sinks:
      look:
        connector: stdout
        topics: [orders]
        consumer_group: look
        config:
          format: json
    """
    extra = "spark"
    modules = ("pyarrow",)
    delivery = "at_least_once"
    output_modes = ("append", "update", "complete")
    record_columns = RESERVED

    def start(self, frame: DataFrame, launch: Launch) -> StreamingQuery:
        from rivven.spark import is_remote

        if is_remote(frame.sparkSession):
            raise ValueError(
                "stdout prints where the queries run, and with --remote that is the server; "
                "write to a topic and look at it with `rivven sql`, or run with --master"
            )
        settings = self.settings

        def show(batch: DataFrame, _batch_id: int) -> None:
            for rows in batch.toArrow().to_batches():
                for row in rows.to_pylist():
                    sys.stdout.write(rendered(row, settings, colored=settings.color and _has_colors()) + "\n")
                    if settings.rate_limit:
                        sys.stdout.flush()
                        time.sleep(1 / settings.rate_limit)
            sys.stdout.flush()

        return launch.writer(frame).foreachBatch(show).start()


def _has_colors() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def rendered(row: dict[str, Any], settings: StdoutSettings, *, colored: bool = False) -> str:
    """One record as text."""
    data = {name: value for name, value in row.items() if name not in RESERVED}
    about = {name[2:]: value for name, value in row.items() if name in RESERVED and value is not None}
    if not settings.include_timestamp:
        about.pop("timestamp", None)
    if not settings.include_metadata:
        about = {name: value for name, value in about.items() if name == "timestamp"}
    if settings.format == "json":
        return _json(data | ({"__about": about} if about else {}))
    if settings.format == "tsv":
        return "\t".join(
            _text(value).replace("\t", " ").replace("\n", " ") for value in (*about.values(), *data.values())
        )
    if settings.format == "text":
        return " ".join(f"{name}={_text(value)}" for name, value in (about | data).items())
    head = " ".join(f"{name}={_text(value)}" for name, value in about.items()) or "record"
    lines = [f"{DIM}{head}{RESET}" if colored else head]
    return "\n".join(lines + [f"  {name}: {_text(value)}" for name, value in data.items()])


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()

"""What the daemon tells while it runs: one event a line on stderr, for people or, with `json`, for programs.

Facts travel beside the message: `logger.info("listening", extra={"port": 9092})` ends in `port=9092`, or in a key of
its own in JSON. A line break inside a message never makes a second line.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO, Any

LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
NAMES = {logging.WARNING: "warn", logging.CRITICAL: "error"}
USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


def configure(level: str = "info", form: str = "text", out: IO[str] | None = None) -> None:
    """Send every logger's events to `out`, and take down what was set up before."""
    handler = logging.StreamHandler(out or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, JsonLines | TextLines):
            root.removeHandler(old)
    root.addHandler(handler)
    # Others' libraries are heard when something is wrong, or when everything is wanted.
    root.setLevel(logging.DEBUG if level == "trace" else max(LEVELS[level], logging.WARNING))
    logging.getLogger("rivven").setLevel(LEVELS[level])


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in USUAL}


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _level(record: logging.LogRecord) -> str:
    return NAMES.get(record.levelno, record.levelname.lower())


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = [_moment(record), f"{_level(record):5}", f"{record.name}:", _one_line(record.getMessage())]
        parts += [f"{key}={_value(value)}" for key, value in facts_of(record).items()]
        if record.exc_info:
            parts.append("\n" + self.formatException(record.exc_info))
        return " ".join(parts)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = {"ts": _moment(record), "level": _level(record), "logger": record.name}
        event["message"] = record.getMessage()
        event |= {key: value for key, value in facts_of(record).items() if key not in event}
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _value(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and text and " " not in text and '"' not in text else json.dumps(text)

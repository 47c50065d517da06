"""The configuration of a topic, as far as its log is concerned: keys, defaults, rules.

Values arrive as text, as both protocols carry them. An unknown key or a bad value raises `InvalidConfig` that
names it and, for a slip of the keyboard, the nearest key there is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rivven.errors import InvalidConfig
from rivven.limits import (
    BATCH_BYTES_MAX,
    INDEX_INTERVAL_BYTES,
    MESSAGE_BYTES_DEFAULT,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
)

DAY_MS = 24 * 3600 * 1000
FOREVER = -1


def _number(key: str, text: str, low: float, high: float, kind: type[int] | type[float] = int) -> Any:
    try:
        if not re.fullmatch(r"-?[0-9.]+", text):  # Python's own idea of a number is wider
            raise ValueError
        value = kind(text)
    except ValueError:
        raise InvalidConfig(key=key, reason=f"{text!r} is not a number") from None
    if not low <= value <= high:
        raise InvalidConfig(key=key, reason=f"{key} must be between {low} and {high}, not {value}")
    return value


def _choice(key: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise InvalidConfig(key=key, reason=f"{key} must be one of {', '.join(choices)}, not {text!r}")
    return text


def _cleanup(key: str, text: str) -> str:
    parts = sorted(part.strip() for part in text.split(","))
    if parts not in (["delete"], ["compact"], ["compact", "delete"]):
        raise InvalidConfig(key=key, reason=f'{key} must be delete, compact or "compact,delete", not {text!r}')
    return ",".join(parts)


def _key(default: Any, name: str, parse: Callable[[str, str], Any]) -> Any:
    return field(default=default, metadata={"key": name, "parse": parse})


def _count(low: int, high: int = 2**63 - 1) -> Callable[[str, str], Any]:
    return lambda key, text: _number(key, text, low, high)


CODECS = ("none", "producer", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    retention_ms: int = _key(7 * DAY_MS, "retention.ms", _count(FOREVER))
    retention_bytes: int = _key(FOREVER, "retention.bytes", _count(FOREVER))
    max_message_bytes: int = _key(MESSAGE_BYTES_DEFAULT, "max.message.bytes", _count(1, BATCH_BYTES_MAX))
    segment_bytes: int = _key(SEGMENT_BYTES_DEFAULT, "segment.bytes", _count(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX))
    segment_ms: int = _key(7 * DAY_MS, "segment.ms", _count(FOREVER))
    cleanup_policy: str = _key("delete", "cleanup.policy", _cleanup)
    min_insync_replicas: int = _key(1, "min.insync.replicas", _count(1, 2**31 - 1))
    compression_type: str = _key("producer", "compression.type", lambda key, text: _choice(key, text, CODECS))
    timestamp_type: str = _key(
        "CreateTime",
        "message.timestamp.type",
        lambda key, text: _choice(key, text, ("CreateTime", "LogAppendTime")),
    )
    index_interval_bytes: int = _key(INDEX_INTERVAL_BYTES, "index.interval.bytes", _count(1, 2**30))
    dirty_ratio_min: float = _key(0.5, "min.cleanable.dirty.ratio", lambda key, text: _number(key, text, 0, 1, float))
    compaction_lag_min_ms: int = _key(0, "min.compaction.lag.ms", _count(0))
    compaction_lag_max_ms: int = _key(2**63 - 1, "max.compaction.lag.ms", _count(1))
    delete_retention_ms: int = _key(DAY_MS, "delete.retention.ms", _count(0))

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @classmethod
    def from_map(cls, values: Mapping[str, str]) -> TopicConfig:
        parsed = {}
        for key, text in values.items():
            known = KEYS.get(key)
            if known is None:
                raise InvalidConfig(key=key, reason=f"unknown configuration key{_nearest(key)}")
            parsed[known.name] = known.metadata["parse"](key, text)
        return cls(**parsed)

    def to_map(self) -> dict[str, str]:
        """Every key with its value as text."""
        return {item.metadata["key"]: str(getattr(self, item.name)) for item in fields(self)}


KEYS = {item.metadata["key"]: item for item in fields(TopicConfig)}


def _nearest(key: str) -> str:
    close = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; the keys are {', '.join(sorted(KEYS))}"

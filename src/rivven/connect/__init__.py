"""Pipelines on Spark: sources into topics, topics into sinks, from one YAML file.

The names below are what connectors are made of; nothing that is imported from here imports Spark.
"""

import sys
from types import ModuleType
from typing import Any

from .sdk import (
    POSITION,
    RESERVED,
    ArrowSink,
    ArrowSource,
    BadSettings,
    Batch,
    Connector,
    Delivery,
    Finding,
    Kind,
    Launch,
    OutputMode,
    Position,
    RowRefused,
    Secret,
    Settings,
    Sink,
    Source,
    Stream,
    Task,
    Transform,
    setting,
)

__all__ = [
    "POSITION",
    "RESERVED",
    "ArrowSink",
    "ArrowSource",
    "BadSettings",
    "Batch",
    "Connector",
    "Delivery",
    "Finding",
    "Kind",
    "Launch",
    "OutputMode",
    "Position",
    "RowRefused",
    "Secret",
    "Settings",
    "Sink",
    "Source",
    "Stream",
    "Task",
    "Transform",
    "setting",
]


class _Callable(ModuleType):
    """The package has the name of a function: `rivven.connect(address)` stays one, whoever has imported this."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        from rivven.client import connect

        return connect(*args, **keywords)


sys.modules[__name__].__class__ = _Callable

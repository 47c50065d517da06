"""Pipelines on Spark: sources into topics, topics into sinks, from one YAML file.

The names below are what connectors are made of; nothing that is imported from here imports Spark.
"""

from .sdk import (
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
    "Secret",
    "Settings",
    "Sink",
    "Source",
    "Stream",
    "Task",
    "Transform",
    "setting",
]

"""rivven: a durable event-streaming platform.

What users import stands here and nowhere else. For now that is the errors; the clients come with the broker.
"""

from .errors import (
    BadDirectory,
    BatchTooLarge,
    CorruptLog,
    DirectoryLocked,
    DiskFull,
    InvalidConfig,
    InvalidTopic,
    Malformed,
    NotYet,
    OffsetOutOfRange,
    Overloaded,
    RivvenError,
    StoreClosed,
    SyncFailed,
    TopicExists,
    UnknownTopic,
    UnsupportedCodec,
)

__version__ = "0.1.0"

__all__ = [
    "BadDirectory",
    "BatchTooLarge",
    "CorruptLog",
    "DirectoryLocked",
    "DiskFull",
    "InvalidConfig",
    "InvalidTopic",
    "Malformed",
    "NotYet",
    "OffsetOutOfRange",
    "Overloaded",
    "RivvenError",
    "StoreClosed",
    "SyncFailed",
    "TopicExists",
    "UnknownTopic",
    "UnsupportedCodec",
]

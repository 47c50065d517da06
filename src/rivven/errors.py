"""One exception tree for the whole package: what went wrong, whether to try again, and the facts of the case.

Each class carries a stable `code`, says whether the same call may succeed later (`retriable`), and renders its
`message` from the keyword facts it was raised with. Protocols map from `code`; people read the message.
Our own mistakes are not here: those are `assert`s.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RivvenError(Exception):
    """Whatever can go wrong that is not our own mistake."""

    code: ClassVar[int] = 0
    retriable: ClassVar[bool] = False
    message: ClassVar[str] = "{reason}"

    def __init_subclass__(cls, *, code: int, retriable: bool = False) -> None:
        assert code not in _BY_CODE, f"code {code} is taken by {_BY_CODE[code].__name__}"
        cls.code = code
        cls.retriable = retriable
        _BY_CODE[code] = cls

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        super().__init__(self.message.format(**facts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts)


_BY_CODE: dict[int, type[RivvenError]] = {}


def _rebuild(kind: type[RivvenError], facts: dict[str, Any]) -> RivvenError:
    return kind(**facts)


# Bytes and batches


class Malformed(RivvenError, code=1):
    """Bytes that are not what they claim to be: a frame, a batch, a compressed block."""

    message = "malformed {what}: {reason}"


class BatchTooLarge(RivvenError, code=2):
    """A batch above the topic's `max.message.bytes` or above what any segment can hold."""

    message = "a batch of {batch_bytes} bytes is above the limit of {bytes_max}"


class UnsupportedCodec(RivvenError, code=3):
    """A compression codec that the batch format does not know."""

    message = "compression codec {codec} is not known; use none, gzip, snappy, lz4 or zstd"


# Reading and writing a log


class OffsetOutOfRange(RivvenError, code=10):
    """An offset before the log's start or after its end."""

    message = "offset {offset} of {partition} is outside [{start}, {end}]"


class CorruptLog(RivvenError, code=11):
    """Bytes on disk that were acknowledged once and no longer read back as written."""

    message = (
        "{partition}: offsets {first} to {last} are unreadable in {path} at byte {position} ({reason}); "
        "the rest stays readable. Run `rivven log verify` on the data directory"
    )


class DiskFull(RivvenError, code=12, retriable=True):
    """No room for the write; nothing of it was kept, and reads go on."""

    message = "no room on the disk for {wanted_bytes} bytes in {path}; free some space and try again"


class Overloaded(RivvenError, code=13, retriable=True):
    """Too much waits for a sync."""

    message = "{waiting_bytes} bytes wait for a sync; try again in {retry_ms} ms"


class SyncFailed(RivvenError, code=14):
    """The disk refused a sync, so nothing in its cache can be trusted; the process must end."""

    message = "the disk failed to sync {path}: {reason}; this process must end, and recovery will run at start"


class StoreClosed(RivvenError, code=15):
    """The store was closed, or a failed sync has ended it."""

    message = "the store is closed: {reason}"


# Topics and the data directory


class TopicExists(RivvenError, code=20):
    """A topic of that name is there already."""

    message = "topic {topic!r} exists already"


class UnknownTopic(RivvenError, code=21):
    """No such topic, or no such partition of it."""

    message = "there is no {partition}"


class UnknownPartition(UnknownTopic, code=26):
    """A partition number beyond the topic's last."""

    message = "Invalid partition {partition}: must be < {partitions}"


class InvalidTopic(RivvenError, code=22):
    """A topic name or partition count outside the rules."""

    message = "invalid topic {topic!r}: {reason}"


class InvalidConfig(RivvenError, code=23):
    """A configuration key nobody knows, or a value outside its rule."""

    message = "invalid {key}: {reason}"


class DirectoryLocked(RivvenError, code=24):
    """Another process has the data directory open."""

    message = "{path} is in use by process {pid}; stop that process, or choose another data directory"


class BadDirectory(RivvenError, code=25):
    """A data directory that this version cannot use as it stands."""

    message = "{path}: {reason}"


# Serving


class NotYet(RivvenError, code=30):
    """A request that this version understands and does not serve."""

    message = "{request} is not served by this version"

"""What can go wrong for a client, as part of the package's one tree, and how a server's words are judged.

Every error says by `retriable` whether the same call may succeed later. A server's own errors arrive as text that
begins with a code in capitals, or as a number of `rivven.errors`; both become `ServerException`, or its kind
`TryAgain` where waiting helps.
"""

from __future__ import annotations

from typing import TypeVar

from rivven import errors
from rivven.errors import RivvenError
from rivven.wire import Response
from rivven.wire import responses as tell

RivvenException = RivvenError
"""The root of the tree under the name that programs know."""


class ConnectionException(RivvenError, code=60, retriable=True):
    """No connection, or one that was lost before the answer came: the request may or may not have had effect."""


class ServerException(RivvenError, code=61):
    """The server answered that it will not; `facts["reason"]` has its words."""

    @property
    def word(self) -> str:
        """The code in capitals that the server's text begins with, or nothing."""
        return word_of(self.facts["reason"])


class TimeoutException(RivvenError, code=62, retriable=True):
    """No answer within the time that was given."""


class SerializationException(RivvenError, code=63):
    """A value that cannot be written, or an answer that cannot be read."""


class ConfigException(RivvenError, code=64):
    """A setting that makes no sense, or one that the call needs and does not have."""


class TryAgain(ServerException, code=65, retriable=True):
    """The server cannot now; `facts` may have `retry_ms`."""


class BufferFull(RivvenError, code=66, retriable=True):
    """More waits to be sent than the producer may hold."""

    message = "{waiting_bytes} bytes wait to be sent, of at most {bytes_max}; wait with `put`, or flush"


class Fenced(ServerException, code=68):
    """Another producer with the same `transactional_id` has taken over; this one can do nothing more."""


class TransactionClosed(RivvenError, code=69):
    """No transaction is open that a record could be part of."""


class Closed(RivvenError, code=67):
    """The client, producer or consumer was closed."""

    message = "the {what} is closed"


PASSING_WORDS = frozenset(
    {
        *("BUFFER_FULL", "RATE_LIMIT_EXCEEDED", "DISK_FULL", "WAL_ERROR", "REQUEST_TIMED_OUT"),
        *("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "NOT_ENOUGH_REPLICAS"),
        *("COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "REBALANCE_IN_PROGRESS"),
        "CONCURRENT_TRANSACTIONS",
    }
)
"""Codes that waiting may cure. Whatever is not here is told to the caller at once."""

# A server that has closed its store is about to be started again.
PASSING_CODES = frozenset(
    {errors.DiskFull.code, errors.Overloaded.code, errors.SyncFailed.code, errors.StoreClosed.code}
)

FENCING_CODES = frozenset({errors.ProducerFenced.code, errors.OwnerFenced.code, errors.InvalidProducerEpoch.code})
FENCING_WORDS = frozenset({"PRODUCER_FENCED", "OWNER_FENCED", "INVALID_PRODUCER_EPOCH"})

R = TypeVar("R", bound=Response)


def word_of(text: str) -> str:
    word = text.split(":", 1)[0]
    return word if word.isupper() and " " not in word else ""


def server_error(text: str) -> ServerException:
    word = word_of(text)
    if word in FENCING_WORDS:
        return Fenced(reason=text)
    kind = TryAgain if word in PASSING_WORDS else ServerException
    return kind(reason=text)


def coded_error(code: int, text: str | None) -> ServerException:
    """The error of one partition, which comes with a number of `rivven.errors`."""
    kind = TryAgain if code in PASSING_CODES else Fenced if code in FENCING_CODES else ServerException
    return kind(reason=text or f"error {code}", error=code)


def throttled(response: tell.Throttled) -> TryAgain:
    wait_ms = response.throttle_time_ms
    reason = f"over the quota {response.quota_type} of {response.entity}; try again in {wait_ms} ms"
    return TryAgain(reason=reason, retry_ms=wait_ms)


def failure(response: Response) -> RivvenError | None:
    """The error that a response tells of, if it does."""
    if isinstance(response, tell.Error):
        return server_error(response.message)
    if isinstance(response, tell.Throttled):
        return throttled(response)
    return None


def expect(response: Response, kind: type[R]) -> R:
    """The response, if it is of the kind that was asked for."""
    if isinstance(response, kind):
        return response
    raise failure(response) or SerializationException(
        reason=f"the server answered {type(response).__name__} where {kind.__name__} was expected"
    )

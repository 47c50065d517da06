"""What a producer and a server say to one another: parcels become a request, and its answer becomes outcomes.

A server that takes no batches is asked in words that it knows. Invariant: every partition that was asked for has an
outcome, an offset or an error, whatever the answer.
"""

from __future__ import annotations

from collections.abc import Callable

from rivven.errors import RivvenError
from rivven.wire import Capability, Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .failures import SerializationException, ServerException, coded_error, failure
from .lane import Batch, Parcel

LIST_MAX = 10_000
"""Records in one request of the protocol's first version."""


def request_for(
    topic: str,
    parcels: list[Parcel],
    capabilities: Capability,
    acks: int,
    timeout_ms: int,
    transaction: str | None,
) -> Request:
    if not capabilities & Capability.BATCHES:
        ((lane, (batch,)),) = parcels
        return old_request(topic, lane.partition, batch, capabilities)
    parts = []
    for lane, batches in parcels:
        encoded = tuple(batch.encoded for batch in batches if batch.encoded is not None)
        parts.append(ask.PartitionBatches(lane.partition, encoded if len(encoded) > 1 else encoded[0]))
    topics = (ask.TopicBatches(topic, tuple(parts)),)
    return ask.ProduceBatches(acks, timeout_ms, topics, transaction)


def outcomes(result: Response | RivvenError) -> Callable[[int], int | RivvenError]:
    """By partition: the first offset, or the error."""
    if isinstance(result, RivvenError):
        return lambda _: result
    if isinstance(result, tell.PublishedBatch):
        base_offset = result.base_offset
        return lambda _: base_offset
    if isinstance(result, tell.ProducedBatches):
        missing = SerializationException(reason="the server left a partition out of its answer")
        parts = {part.partition: part for topic in result.topics for part in topic.partitions}

        def outcome(partition: int) -> int | RivvenError:
            part = parts.get(partition)
            if part is None:
                return missing
            return coded_error(part.error, part.error_message) if part.error else part.base_offset

        return outcome
    error = failure(result) or SerializationException(reason=f"{type(result).__name__} answers no produce request")
    return lambda _: error


def check_old(batch: Batch, capabilities: Capability) -> None:
    """Whether a server that takes no batches can take these records."""
    if batch.count > LIST_MAX:
        raise ServerException(reason=f"MESSAGE_TOO_LARGE: {batch.count} records in one request")
    if capabilities & Capability.RECORDS:
        return
    if any(value is None or headers for _, _, value, headers in batch.records()):
        raise SerializationException(reason="this server knows neither headers nor tombstones")


def old_request(topic: str, partition: int | None, batch: Batch, capabilities: Capability) -> Request:
    rows = batch.records()
    if capabilities & Capability.RECORDS:
        records = tuple(
            ask.NewRecord(key, value, tuple(ask.Header(name, held) for name, held in headers), timestamp_ms)
            for timestamp_ms, key, value, headers in rows
        )
        return ask.PublishRecords(topic, partition, records)
    return ask.PublishBatch(topic, partition, tuple(ask.BatchRecord(key, value or b"") for _, key, value, _ in rows))

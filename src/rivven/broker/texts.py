"""Errors in the words of the native protocol: a code in capitals, then what happened.

Clients decide by the code whether to try again, so these texts are part of the protocol.
"""

from __future__ import annotations

from rivven import errors
from rivven.wire import responses as tell

CODES: dict[type[errors.RivvenError], str] = {
    errors.Malformed: "INVALID_RECORD",
    errors.BatchTooLarge: "MESSAGE_TOO_LARGE",
    errors.UnsupportedCodec: "UNSUPPORTED_COMPRESSION",
    errors.OffsetOutOfRange: "OFFSET_OUT_OF_RANGE",
    errors.CorruptLog: "CORRUPT_LOG",
    errors.DiskFull: "DISK_FULL",
    errors.Overloaded: "BUFFER_FULL",
    errors.SyncFailed: "WAL_ERROR",
    errors.StoreClosed: "WAL_ERROR",
    errors.TopicExists: "TOPIC_EXISTS",
    errors.UnknownTopic: "UNKNOWN_TOPIC_OR_PARTITION",
    errors.UnknownPartition: "INVALID_PARTITION",
    errors.InvalidTopic: "INVALID_TOPIC_NAME",
    errors.InvalidPartitions: "INVALID_PARTITIONS",
    errors.InvalidConfig: "INVALID_CONFIG",
    errors.GroupFull: "GROUP_FULL",
    errors.GroupNotEmpty: "GROUP_NOT_EMPTY",
    errors.GroupNotFound: "UNKNOWN_GROUP",
    errors.UnknownMember: "UNKNOWN_MEMBER_ID",
    errors.IllegalGeneration: "ILLEGAL_GENERATION",
    errors.RebalanceInProgress: "REBALANCE_IN_PROGRESS",
    errors.InconsistentGroupProtocol: "INCONSISTENT_GROUP_PROTOCOL",
    errors.InvalidSessionTimeout: "INVALID_SESSION_TIMEOUT",
    errors.InvalidGroupRequest: "INVALID_GROUP_ID",
    errors.OffsetMetadataTooLarge: "OFFSET_METADATA_TOO_LARGE",
    errors.OutOfOrderSequence: "OUT_OF_ORDER_SEQUENCE",
    errors.InvalidProducerEpoch: "INVALID_PRODUCER_EPOCH",
    errors.LimitReached: "LIMIT_REACHED",
    errors.NotYet: "UNSUPPORTED",
}


def told(error: errors.RivvenError) -> tell.Error:
    """The reply that tells a native client of an error."""
    return tell.Error(f"{CODES.get(type(error), 'INTERNAL_ERROR')}: {error}")


def topic_not_found(name: str) -> tell.Error:
    return tell.Error(f"Topic not found: {name}")

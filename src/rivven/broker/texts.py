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
    errors.ProducerFenced: "PRODUCER_FENCED",
    errors.ConcurrentTransactions: "CONCURRENT_TRANSACTIONS",
    errors.InvalidTransactionState: "INVALID_TXN_STATE",
    errors.InvalidProducerIdMapping: "INVALID_PRODUCER_ID_MAPPING",
    errors.InvalidTransactionTimeout: "INVALID_TRANSACTION_TIMEOUT",
    errors.TransactionNotFound: "INVALID_TXN_ID",
    errors.TransactionAbortable: "TRANSACTION_ERROR: TransactionAbortable",
    errors.PartitionNotInTransaction: "PARTITION_NOT_IN_TXN",
    errors.TransactionTooLarge: "TRANSACTION_ERROR: TransactionTooLarge",
    errors.TooManyTransactions: "TRANSACTION_ERROR: TooManyTransactions",
    errors.InvalidTransactionRequest: "INVALID_REQUEST",
    errors.OwnerNotFound: "UNKNOWN_OWNER",
    errors.OwnerFenced: "OWNER_FENCED",
    errors.AlreadyDecided: "ALREADY_DECIDED",
    errors.DecisionRefused: "DECISION_REFUSED",
    errors.LimitReached: "LIMIT_REACHED",
    errors.NotYet: "UNSUPPORTED",
}


def told(error: errors.RivvenError) -> tell.Error:
    """The reply that tells a native client of an error."""
    return tell.Error(f"{CODES.get(type(error), 'INTERNAL_ERROR')}: {error}")


def topic_not_found(name: str) -> tell.Error:
    return tell.Error(f"Topic not found: {name}")


def refusal(error: errors.RivvenError | OSError) -> tell.Error:
    """What is told about a request that failed, be it our fault or not."""
    return told(error) if isinstance(error, errors.RivvenError) else tell.Error(f"INTERNAL_ERROR: {error}")


def told_of_numbers(error: errors.RivvenError, *, single: bool) -> tell.Error:
    """What a producer that counts its records is told: it looks for the codes, and begins again."""
    facts = error.facts
    match error:
        case errors.OutOfOrderSequence():
            words = "expected sequence" if single else "expected"
            return tell.Error(f"OUT_OF_ORDER_SEQUENCE: {words} {facts['due']}, got {facts['given']}")
        case errors.InvalidProducerEpoch() | errors.ProducerFenced():
            present, given = facts["present"], facts["given"]
            if single:
                words = f"producer has been fenced (current epoch: {present}, received: {given})"
                return tell.Error(f"PRODUCER_FENCED: {words}")
            return tell.Error(f"PRODUCER_FENCED: current epoch {present}, received {given}")
        case errors.PartitionNotInTransaction():
            topic, partition = facts["partition"]
            return tell.Error(f"PARTITION_NOT_IN_TXN: {topic}:{partition} not added to transaction")
        case _:
            return told_of_transaction(error)


def told_of_transaction(error: errors.RivvenError) -> tell.Error:
    """What is told about a transaction as a whole."""
    facts = error.facts
    match error:
        case errors.ProducerFenced():
            return tell.Error(f"PRODUCER_FENCED: expected epoch {facts['present']}, got {facts['given']}")
        case errors.TransactionNotFound():
            return tell.Error(f"INVALID_TXN_ID: transaction '{facts['transaction']}' not found")
        case errors.InvalidTransactionState():
            words = f"transaction in {facts['status']}, expected Ongoing"
            return tell.Error(f"INVALID_TXN_STATE: {words}: {facts['reason']}")
        case _:
            return told(error)


def producer_unknown(producer_id: int) -> tell.Error:
    return tell.Error(f"UNKNOWN_PRODUCER_ID: producer {producer_id} not initialized; send InitProducerId first")

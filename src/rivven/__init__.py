"""rivven: a durable event-streaming platform.

What users import stands here and nowhere else. The clients are loaded when they are first asked for: whoever wants
an error alone, as every command does, does not pay for an event loop.

    import rivven

    client = await rivven.connect("localhost:9092")
    producer = await client.producer("orders")
    await producer.send(b"paid", key=b"42")
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .errors import (
    AlreadyDecided,
    BadDirectory,
    BatchTooLarge,
    ConcurrentTransactions,
    CorruptLog,
    DecisionRefused,
    DirectoryLocked,
    DiskFull,
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    GroupNotEmpty,
    GroupNotFound,
    GroupSubscribed,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidConfig,
    InvalidGroupRequest,
    InvalidPartitions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRegularExpression,
    InvalidSessionTimeout,
    InvalidTopic,
    InvalidTransactionRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    LimitReached,
    Malformed,
    MemberIdRequired,
    NotYet,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
    Overloaded,
    OwnerFenced,
    OwnerNotFound,
    PartitionNotInTransaction,
    ProducerFenced,
    RebalanceInProgress,
    RivvenError,
    StaleMemberEpoch,
    StoreClosed,
    SyncFailed,
    TooManyTransactions,
    TopicExists,
    TransactionAbortable,
    TransactionNotFound,
    TransactionTooLarge,
    UnknownMember,
    UnknownPartition,
    UnknownTopic,
    UnreleasedInstance,
    UnstableOffsetCommit,
    UnsupportedAssignor,
    UnsupportedCodec,
)
from .model import TopicPartition

if _TYPE_CHECKING:
    from .client import (
        Admin,
        Attempt,
        BufferFull,
        Closed,
        ConfigException,
        ConnectionException,
        Consumer,
        Decision,
        Delivery,
        Fenced,
        GroupConsumer,
        GroupMember,
        GroupState,
        Message,
        Options,
        Output,
        Owner,
        Producer,
        ProducerState,
        RebalanceListener,
        RivvenClient,
        RivvenException,
        SerializationException,
        ServerException,
        TimeoutException,
        Transaction,
        TransactionClosed,
        TryAgain,
        blocking,  # noqa: F401 - `rivven.blocking`, a module and not one of the names
        connect,
        connect_tls,
    )
    from .record import Record

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AlreadyDecided",
    "Attempt",
    "BadDirectory",
    "BatchTooLarge",
    "BufferFull",
    "Closed",
    "ConcurrentTransactions",
    "ConfigException",
    "ConnectionException",
    "Consumer",
    "CorruptLog",
    "Decision",
    "DecisionRefused",
    "Delivery",
    "DirectoryLocked",
    "DiskFull",
    "Fenced",
    "FencedInstance",
    "FencedMemberEpoch",
    "GroupConsumer",
    "GroupFull",
    "GroupMember",
    "GroupNotEmpty",
    "GroupNotFound",
    "GroupState",
    "GroupSubscribed",
    "IllegalGeneration",
    "InconsistentGroupProtocol",
    "InvalidConfig",
    "InvalidGroupRequest",
    "InvalidPartitions",
    "InvalidProducerEpoch",
    "InvalidProducerIdMapping",
    "InvalidRegularExpression",
    "InvalidSessionTimeout",
    "InvalidTopic",
    "InvalidTransactionRequest",
    "InvalidTransactionState",
    "InvalidTransactionTimeout",
    "LimitReached",
    "Malformed",
    "MemberIdRequired",
    "Message",
    "NotYet",
    "OffsetMetadataTooLarge",
    "OffsetOutOfRange",
    "Options",
    "OutOfOrderSequence",
    "Output",
    "Overloaded",
    "Owner",
    "OwnerFenced",
    "OwnerNotFound",
    "PartitionNotInTransaction",
    "Producer",
    "ProducerFenced",
    "ProducerState",
    "RebalanceInProgress",
    "RebalanceListener",
    "Record",
    "RivvenClient",
    "RivvenError",
    "RivvenException",
    "SerializationException",
    "ServerException",
    "StaleMemberEpoch",
    "StoreClosed",
    "SyncFailed",
    "TimeoutException",
    "TooManyTransactions",
    "TopicExists",
    "TopicPartition",
    "Transaction",
    "TransactionAbortable",
    "TransactionClosed",
    "TransactionNotFound",
    "TransactionTooLarge",
    "TryAgain",
    "UnknownMember",
    "UnknownPartition",
    "UnknownTopic",
    "UnreleasedInstance",
    "UnstableOffsetCommit",
    "UnsupportedAssignor",
    "UnsupportedCodec",
    "connect",
    "connect_tls",
    "version",
]


def version() -> str:
    return __version__


def __getattr__(name: str) -> object:
    if name not in __all__ and name != "blocking":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Record":
        from . import record as home
    else:
        from . import client as home  # type: ignore[no-redef]
    globals()[name] = found = getattr(home, name)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__", "blocking"]

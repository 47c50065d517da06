"""Producers, consumers and administration, asynchronous and blocking, over one core that never waits."""

from . import blocking
from .admin import Admin
from .client import RivvenClient, connect, connect_tls
from .consumer import Consumer
from .failures import (
    BufferFull,
    Closed,
    ConfigException,
    ConnectionException,
    Fenced,
    RivvenException,
    SerializationException,
    ServerException,
    TimeoutException,
    TransactionClosed,
    TryAgain,
)
from .group_consumer import GroupConsumer, MemberOptions
from .inbox import Bounds, Isolation
from .options import Options
from .places import Found, Missed
from .producer import Producer
from .transaction import Attempt, Decision, Owner, Transaction
from .transform import Output
from .values import (
    OPEN_STATES,
    TRANSACTION_STATES,
    ActiveProducer,
    Delivery,
    DescribedTransaction,
    GroupMember,
    GroupState,
    HangingTransaction,
    ListedTransaction,
    Message,
    ProducerState,
    RebalanceListener,
)

__all__ = [
    "OPEN_STATES",
    "TRANSACTION_STATES",
    "ActiveProducer",
    "Admin",
    "Attempt",
    "Bounds",
    "BufferFull",
    "Closed",
    "ConfigException",
    "ConnectionException",
    "Consumer",
    "Decision",
    "Delivery",
    "DescribedTransaction",
    "Fenced",
    "Found",
    "GroupConsumer",
    "GroupMember",
    "GroupState",
    "HangingTransaction",
    "Isolation",
    "ListedTransaction",
    "MemberOptions",
    "Message",
    "Missed",
    "Options",
    "Output",
    "Owner",
    "Producer",
    "ProducerState",
    "RebalanceListener",
    "RivvenClient",
    "RivvenException",
    "SerializationException",
    "ServerException",
    "TimeoutException",
    "Transaction",
    "TransactionClosed",
    "TryAgain",
    "blocking",
    "connect",
    "connect_tls",
]

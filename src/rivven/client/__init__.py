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
    RivvenException,
    SerializationException,
    ServerException,
    TimeoutException,
    TryAgain,
)
from .group_consumer import GroupConsumer, MemberOptions
from .options import Options
from .producer import Producer
from .values import Delivery, GroupMember, GroupState, Message, ProducerState, RebalanceListener

__all__ = [
    "Admin",
    "BufferFull",
    "Closed",
    "ConfigException",
    "ConnectionException",
    "Consumer",
    "Delivery",
    "GroupConsumer",
    "GroupMember",
    "GroupState",
    "MemberOptions",
    "Message",
    "Options",
    "Producer",
    "ProducerState",
    "RebalanceListener",
    "RivvenClient",
    "RivvenException",
    "SerializationException",
    "ServerException",
    "TimeoutException",
    "TryAgain",
    "blocking",
    "connect",
    "connect_tls",
]

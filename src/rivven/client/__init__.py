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
from .options import Options
from .producer import Producer
from .values import Delivery, Message, ProducerState

__all__ = [
    "Admin",
    "BufferFull",
    "Closed",
    "ConfigException",
    "ConnectionException",
    "Consumer",
    "Delivery",
    "Message",
    "Options",
    "Producer",
    "ProducerState",
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

"""One node: takes a request, asks a partition or a coordinator, and fulfils replies. It decides; it never waits."""

from .broker import Broker, BrokerConfig
from .session import Reply, Session
from .stats import BrokerStats

__all__ = ["Broker", "BrokerConfig", "BrokerStats", "Reply", "Session"]

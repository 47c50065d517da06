"""One node: takes a request, asks a partition or a coordinator, and fulfils replies. It decides; it never waits."""

from rivven.coordinator import GroupConfig, TxnConfig

from .admit import Limit
from .broker import NEVER_US, Broker, BrokerConfig
from .lag import Lag
from .native import produced_to_one
from .preloading import Preload
from .reading import Bounds, Fetched, Wanted
from .session import Reply, Session
from .stats import BrokerStats
from .texts import refusal
from .topics import ConfigValue
from .writing import Produced

__all__ = [
    "NEVER_US",
    "Bounds",
    "Broker",
    "BrokerConfig",
    "BrokerStats",
    "ConfigValue",
    "Fetched",
    "GroupConfig",
    "Lag",
    "Limit",
    "Preload",
    "Produced",
    "Reply",
    "Session",
    "TxnConfig",
    "Wanted",
    "produced_to_one",
    "refusal",
]

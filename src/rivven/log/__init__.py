"""The log: partitions of record batches on a disk, and the store that keeps many of them durable together."""

from .chores import Chore
from .commit import CommitLimits, SyncPolicy
from .compact import CleanReport
from .config import KEYS, TopicConfig
from .log import Appended, Log
from .recover import Cut, Damage, RecoveryReport
from .store import Store, StoreConfig
from .topics import Topic
from .transactions import Aborted
from .wal import WalStats

__all__ = [
    "KEYS",
    "Aborted",
    "Appended",
    "Chore",
    "CleanReport",
    "CommitLimits",
    "Cut",
    "Damage",
    "Log",
    "RecoveryReport",
    "Store",
    "StoreConfig",
    "SyncPolicy",
    "Topic",
    "TopicConfig",
    "WalStats",
]

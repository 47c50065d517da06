"""The log: partitions of record batches on a disk, and the store that keeps many of them durable together."""

from .chores import Chore
from .commit import CommitLimits, SyncPolicy
from .compact import CleanReport
from .config import KEYS, TopicConfig
from .contents import FileContent, read_content
from .document import Document
from .finding import Finding, Severity, Tally
from .log import Appended, Log
from .lookup import KeyLookup, Match, check_offset, find_offset, find_timestamp
from .offline import (
    DataDirectory,
    PartitionFiles,
    SegmentFiles,
    Unreadable,
    WalkedBatch,
    read_directory,
    read_partition,
    segment_batches,
    walk_batches,
)
from .preload import NotCached, Piece, preload
from .producers import ProducedBatch, follows
from .recover import Cut, Damage, RecoveryReport
from .segment import Place
from .store import Store, StoreConfig
from .topics import Topic, check_name
from .transactions import Aborted
from .upkeep import Cleaned, Rebuilt, Sizes, Wanted, clean_log, plan_cleaning, rebuild_indexes
from .verify import Verification
from .wal import WalStats

__all__ = [
    "KEYS",
    "Aborted",
    "Appended",
    "Chore",
    "CleanReport",
    "Cleaned",
    "CommitLimits",
    "Cut",
    "Damage",
    "DataDirectory",
    "Document",
    "FileContent",
    "Finding",
    "KeyLookup",
    "Log",
    "Match",
    "NotCached",
    "PartitionFiles",
    "Piece",
    "Place",
    "ProducedBatch",
    "Rebuilt",
    "RecoveryReport",
    "SegmentFiles",
    "Severity",
    "Sizes",
    "Store",
    "StoreConfig",
    "SyncPolicy",
    "Tally",
    "Topic",
    "TopicConfig",
    "Unreadable",
    "Verification",
    "WalStats",
    "WalkedBatch",
    "Wanted",
    "check_name",
    "check_offset",
    "clean_log",
    "find_offset",
    "find_timestamp",
    "follows",
    "plan_cleaning",
    "preload",
    "read_content",
    "read_directory",
    "read_partition",
    "rebuild_indexes",
    "segment_batches",
    "walk_batches",
]

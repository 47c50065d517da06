"""What a node decides for many clients together: committed offsets and quotas."""

from .offsets import CommittedOffset, OffsetKey, Offsets, encode_key, encode_value
from .quotas import CONSUME, ENTITY_TYPES, PRODUCE, QUOTA_KEYS, REQUEST, Quotas, QuotaTable

__all__ = [
    "CONSUME",
    "ENTITY_TYPES",
    "PRODUCE",
    "QUOTA_KEYS",
    "REQUEST",
    "CommittedOffset",
    "OffsetKey",
    "Offsets",
    "QuotaTable",
    "Quotas",
    "encode_key",
    "encode_value",
]

"""Quotas: how many bytes and requests a second a user or a client may have, and who has had how many.

One entry point counts: `charge` adds to the bucket of the closest entity that has a limit and says how long the
client should be made to wait. A bucket holds one second's worth, so a quiet client may burst that much. What is
charged is counted once, also when it leads to a wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

PRODUCE = "produce_bytes_rate"
CONSUME = "consume_bytes_rate"
REQUEST = "request_rate"
QUOTA_KEYS = (PRODUCE, CONSUME, REQUEST)
ENTITY_TYPES = ("user", "client-id", "consumer-group", "default")
WAIT_MS_MAX = 30_000
BUCKETS_MAX = 100_000

Entity = tuple[str, str | None]
"""Its type, and its name; None is the default for the type."""


class QuotaRow(msgspec.Struct, frozen=True):
    """As it is kept on disk."""

    entity_type: str
    entity_name: str | None
    quotas: dict[str, int]


class QuotaTable(msgspec.Struct):
    rows: list[QuotaRow] = []


@dataclass(slots=True)
class _Bucket:
    """Debt in units, paid back at the limit's rate."""

    debt: float = 0.0
    at_us: int = 0


@dataclass(slots=True)
class Quotas:
    defaults: dict[str, int] = field(default_factory=dict)
    """Limits for whoever has none of their own; a key that is missing is no limit."""
    _limits: dict[Entity, dict[str, int]] = field(default_factory=dict)
    _buckets: dict[tuple[Entity, str], _Bucket] = field(default_factory=dict)

    @classmethod
    def from_table(cls, table: QuotaTable, defaults: dict[str, int] | None = None) -> Quotas:
        quotas = cls(dict(defaults or {}))
        for row in table.rows:
            quotas._limits[row.entity_type, row.entity_name] = dict(row.quotas)
        return quotas

    def to_table(self) -> QuotaTable:
        return QuotaTable([QuotaRow(kind, name, dict(values)) for (kind, name), values in self._limits.items()])

    def alter(self, entity_type: str, entity_name: str | None, key: str, value: int | None) -> bool:
        """Set a limit, or with None take it away; False for an entity type or key that nobody knows."""
        if entity_type not in ENTITY_TYPES or key not in QUOTA_KEYS:
            return False
        limits = self._limits.setdefault((entity_type, entity_name), {})
        if value is None:
            limits.pop(key, None)
        else:
            limits[key] = value
        if not limits:
            del self._limits[entity_type, entity_name]
        return True

    @property
    def is_limiting(self) -> bool:
        """Whether anybody has a limit."""
        return bool(self._limits or self.defaults)

    def stored(self) -> dict[Entity, dict[str, int]]:
        return {entity: dict(values) for entity, values in self._limits.items()}

    def effective(self, user: str | None, client_id: str | None) -> dict[str, int]:
        """The limits that apply to this user and client, key by key."""
        found = {key: self._limit(key, user, client_id) for key in QUOTA_KEYS}
        return {key: limit for key, (_, limit) in found.items() if limit is not None}

    def _limit(self, key: str, user: str | None, client_id: str | None) -> tuple[Entity, int | None]:
        closest: list[Entity] = [("user", user), ("client-id", client_id), ("user", None), ("client-id", None)]
        for entity in closest:
            if key in (limits := self._limits.get(entity, {})):
                # A default applies to each user by itself: the bucket is theirs, the limit is shared.
                return (entity[0], user if entity[0] == "user" else client_id), limits[key]
        shared = self._limits.get(("default", None), {}).get(key, self.defaults.get(key))
        return ("user", user), shared

    def charge(self, key: str, amount: int, user: str | None, client_id: str | None, now_us: int) -> int:
        """Count `amount` and return for how many milliseconds the client should be held up; mostly 0."""
        if not self._limits and key not in self.defaults:
            return 0
        entity, limit = self._limit(key, user, client_id)
        if limit is None:
            return 0
        bucket = self._buckets.get((entity, key))
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.clear()  # a flood of client ids must not grow without end; all start anew
            bucket = self._buckets[entity, key] = _Bucket(at_us=now_us)
        rate = max(limit, 1)
        bucket.debt = max(0.0, bucket.debt - (now_us - bucket.at_us) * rate / 1e6) + amount
        bucket.at_us = now_us
        over = bucket.debt - rate
        return 0 if over <= 0 else min(WAIT_MS_MAX, max(1, round(1000 * over / rate)))

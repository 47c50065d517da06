"""What a broker has done since it started: plain counters that the shell turns into metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class BrokerStats:
    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    batches_in: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    errors: int = 0
    throttled: int = 0
    refused_full: int = 0
    refused_rate: int = 0
    """Connections that were closed since their address asked too often."""
    refused_large: int = 0
    """Requests above the largest size."""
    timed_out: int = 0
    """Connections that were closed since they were silent for too long."""
    throttled_ms: int = 0
    violations: dict[str, int] = field(default_factory=dict)
    """How often clients went over a quota, by its key."""

    def count(self, kind: str, requests: int = 1) -> None:
        self.requests[kind] = self.requests.get(kind, 0) + requests

    def count_throttled(self, quota: str, wait_ms: int) -> None:
        self.throttled += 1
        self.throttled_ms += wait_ms
        self.violations[quota] = self.violations.get(quota, 0) + 1

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

    def count(self, kind: str, requests: int = 1) -> None:
        self.requests[kind] = self.requests.get(kind, 0) + requests
